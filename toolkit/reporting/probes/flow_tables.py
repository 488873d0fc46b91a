"""The tables of a position flow in, what its page shows of them out: arms with their seeds, merged and summarised."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

FACTORS = ("position", "content", "segment")
PRETRAINED, RANDOM = "pretrained", "random weights"
"""What the probe calls the reference and the null; a test holds the words together."""
COUNTERFACTUALS = ("shifted", "permuted", "sinusoid", "mean", "zero")

Tables = Mapping[str, pd.DataFrame]
"""``ledger``, ``decoding``, ``counterfactuals`` and ``models``, as the probe names them."""


@dataclass(frozen=True)
class FlowGroup:
    """All models that were looked at with the same texts."""

    title: str
    tables: Tables
    labels: Mapping[str, str]
    """Arm to what it is called; an arm whose bodies are all another's is not shown beside it, and named with it."""

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that are shown, the random weights last."""
        return tuple(self.labels)

    def of(self, table: str, arm: str) -> pd.DataFrame:
        """The lines of one arm."""
        lines = self.tables[table]
        return lines[lines["arm"] == arm]

    def over_seeds(self, table: str, arm: str, column: str, **where: object) -> pd.DataFrame:
        """Mean, least and greatest model of an arm: index layer, columns mean, min, max; undefined left out."""
        lines = self.of(table, arm)
        for name, value in where.items():
            lines = lines[lines[name] == value]
        lines = lines.dropna(subset=[column])
        return lines.groupby(lines["layer"].astype(int))[column].agg(["mean", "min", "max"])

    def num_models(self, arm: str) -> int:
        return int(self.of("models", arm)["name"].nunique())

    @property
    def layers(self) -> list[int]:
        return sorted(int(layer) for layer in self.tables["ledger"]["layer"].unique())


def groups_of(tables: Tables) -> list[FlowGroup]:
    """One group per task, in the order of the tables."""
    titles = list(dict.fromkeys(tables["models"]["group"]))
    return [_group(str(title), {k: t[t["group"] == title] for k, t in tables.items()}) for title in titles]


def _group(title: str, tables: Tables) -> FlowGroup:
    models = tables["models"]
    arms = list(dict.fromkeys(models["arm"]))
    arms.sort(key=lambda arm: (arm == RANDOM, arm != PRETRAINED))
    bodies = {arm: set(models.loc[models["arm"] == arm, "body"]) for arm in arms}
    labels: dict[str, str] = {}
    for arm in arms:
        same = next((shown for shown in labels if bodies[shown] == bodies[arm]), None)
        if same is None:
            labels[arm] = arm
        else:
            labels[same] += f" = {arm}"
    return FlowGroup(title, tables, labels)


def stage_tick(layer: int) -> str:
    """A stage on an axis: the sum of embeddings, the encoder's input, the layers."""
    return {-1: "Σ", 0: "in"}.get(layer, str(layer))
