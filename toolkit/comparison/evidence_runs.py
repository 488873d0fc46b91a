"""The evidence tables of a report in, runs out that compare exactly as the run directories did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from toolkit.comparison.reported import ReportedRun
from toolkit.config import RunConfig
from toolkit.naming import distinct
from toolkit.snapshots.store import Run

if TYPE_CHECKING:
    import pandas as pd

    from toolkit.comparison.evidence import Evidence

PARTS = ("regime", "model", "task", "head_stage", "floors")
"""Sections of a manifest that comparisons read."""


@dataclass(frozen=True)
class EvidenceRun(Run):
    """A run whose config, manifest, scores and last predictions come from a report's evidence; it has no snapshots."""

    evidence: "Evidence"

    @property
    def is_finished(self) -> bool:
        return True

    @cached_property
    def is_recorded(self) -> bool:
        return False

    @cached_property
    def config(self) -> RunConfig:
        known = {k: v for k, v in self._facts["config"].items() if k != "output_dir"}  # evidence does not tell it
        return RunConfig.from_json(_json(known), f"the config of {self.path.name}")

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return dict(self._facts["manifest"])

    @cached_property
    def scores(self) -> "pd.DataFrame":
        return self._own("scores").dropna(axis="columns", how="all")

    @cached_property
    def predictions(self) -> "pd.DataFrame":
        own = self._own("predictions")
        # Beside a token task's runs those of others have a column of nothing.
        return own.drop(columns="word") if "word" in own and own["word"].isna().all() else own

    @property
    def _facts(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self.evidence.facts[self.path.name]
        return facts

    def _own(self, name: str) -> "pd.DataFrame":
        parts, table = self.evidence.by_run[name]
        own: pd.DataFrame = parts.get(self.path.name, table.iloc[:0]).drop(columns="run").reset_index(drop=True)
        return own


def describe_runs(runs: Sequence[ReportedRun]) -> dict[str, dict[str, Any]]:
    """Run name to its config and manifest as far as comparisons read them, without a path of anybody's machine."""
    originals = list(dict.fromkeys(run.run.config.model for run in runs))
    shown = {run.run.config.model: run.config.model for run in runs}
    models = dict(zip(originals, distinct(shown[model] for model in originals), strict=True))
    return {run.name: _describe(run, models[run.run.config.model]) for run in runs}


def _describe(run: ReportedRun, model: str) -> dict[str, Any]:
    import json

    config = json.loads(run.config.to_json())
    parts = {name: run.run.manifest[name] for name in PARTS if run.run.manifest.get(name) is not None}
    if "model" in parts:
        parts["model"] = {"name": run.model}
    if "regime" in parts:
        parts["regime"] = {"label": run.regime}
    return {"config": {**config, "model": model, "output_dir": ""}, "manifest": parts}


def _json(value: object) -> str:
    import json

    return json.dumps(value)
