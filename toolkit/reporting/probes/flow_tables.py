"""The tables of a position flow in, what its page shows of them out: arms with their seeds, merged and summarised."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from toolkit.analysis.comparison.intervals import Interval
from toolkit.reporting.probes.flow_intervals import VALUES, estimate, record, summary

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

    def lines(self, table: str, arm: str, column: str, **where: object) -> pd.DataFrame:
        """The lines of one arm that have a value in a column; ``where``: columns and what they must be."""
        lines = self.of(table, arm)
        for name, value in where.items():
            lines = lines[lines[name] == value]
        return lines.dropna(subset=[column])

    def over_seeds(self, table: str, arm: str, column: str, **where: object) -> pd.DataFrame:
        """Mean over an arm's models with its interval: index layer, columns mean, low, high; undefined left out."""
        lines = self.lines(table, arm, column, **where)
        found = {int(layer): summary(own, column) for layer, own in lines.groupby("layer")}
        return pd.DataFrame.from_dict(found, orient="index", columns=["mean", "low", "high"])

    def change(self, arm: str, factor: str, layer: int, *, since: int) -> Interval:
        """How a factor's share changes from one layer of an arm to another, on the same blocks."""
        column = "eta_squared" if factor == "residual" else "omega_squared"
        last, first = (self.lines("ledger", arm, column, factor=factor, layer=each) for each in (layer, since))
        return estimate(last, column, first)

    def drift(self, arm: str) -> dict[int, Interval]:
        """By layer, position's share in an arm minus that in the pretrained model, on the same blocks."""
        column = "omega_squared"
        own, before = (self.lines("ledger", each, column, factor="position") for each in (arm, PRETRAINED))
        layers = sorted(set(own["layer"]) & set(before["layer"]))
        return {
            int(layer): estimate(own[own["layer"] == layer], column, before[before["layer"] == layer])
            for layer in layers
        }

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


def intervals_of(tables: Tables) -> pd.DataFrame:
    """Every mean over seeds with its interval, and every difference of position from the pretrained model.

    Columns: group, arm, ``against`` (pretrained for a difference), table, quantity, ``of`` (factor or counterfactual),
    layer, mean, low, high, df, num_models, num_units, note.
    """
    rows: list[dict[str, object]] = []
    for group in groups_of(tables):
        for arm in dict.fromkeys(group.tables["models"]["arm"]):
            start = {"group": group.title, "arm": arm, "against": ""}
            rows += [start | line for line in _means(group, str(arm))]
            if arm != PRETRAINED and PRETRAINED in group.arms:
                lines = group.lines("ledger", str(arm), "omega_squared", factor="position")
                for layer, interval in group.drift(str(arm)).items():
                    at = {"table": "ledger", "quantity": "omega_squared", "of": "position", "layer": layer}
                    own = lines[lines["layer"] == layer]
                    rows.append(start | {"against": PRETRAINED} | at | record(interval, own, "omega_squared"))
    return pd.DataFrame(rows)


def _means(group: FlowGroup, arm: str) -> list[dict[str, object]]:
    """One line per arm for every column that has values per unit, and for every counterfactual."""
    rows: list[dict[str, object]] = []
    keys = {"ledger": "factor", "counterfactuals": "counterfactual", "decoding": ""}
    for table, key in keys.items():
        own = group.of(table, arm)
        by = ["layer", *([key] if key else []), *(["quantity"] if "quantity" in own else [])]
        for column in (name for name in VALUES if name in own and not (table == "ledger" and name == "eta_squared")):
            defined = own.dropna(subset=[column])
            for place, lines in defined.groupby(by, dropna=False, sort=False):
                at = dict(zip(by, place, strict=True))
                what = {"table": table, "quantity": at.get("quantity", column), "of": at.get(key, "")}
                rows.append({**what, "layer": at["layer"], **record(estimate(lines, column), lines, column)})
    return rows


_STAGES = {-1: ("the sum before LayerNorm", "sum", "Σ"), 0: ("the input", "input", "in")}


def stage_text(layer: int) -> str:
    """A stage in a sentence: the sum of embeddings, the encoder's input, the layers."""
    return _STAGES.get(layer, (f"layer {layer}",))[0]


def stage_cell(layer: int) -> str:
    """A stage in a table."""
    return _STAGES[layer][1] if layer in _STAGES else str(layer)


def stage_tick(layer: int) -> str:
    """A stage on an axis."""
    return _STAGES[layer][2] if layer in _STAGES else str(layer)
