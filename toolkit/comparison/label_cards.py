"""The evidence of a report in, its cards on what real labels add to drift out; what a multiple of noise cannot tell."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from toolkit.comparison.card import NAN, Card, Null, Span
from toolkit.comparison.estimates import EQUIVALENCE_LEVEL
from toolkit.comparison.evidence import FOLDER, Evidence
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.shuffled_labels import MEASURES, ONE, PER_SEED

VERSION = 1
FILES = tuple(f"{FOLDER}/{name}" for name in ("settings.json", "runs.json", "labels.csv"))

CONTROLS: Mapping[str, tuple[str, ...]] = {"agreement": (ONE, PER_SEED), "median_drift": (PER_SEED, ONE)}
"""Measure to the permutations of the labels that it is held against, the one that can decide it first
(shuffled_labels.py)."""

SOURCES = {
    ONE: "over seeds, for the one permutation that all of them learned",
    PER_SEED: "with an interval that a new permutation would lie in",
}


def label_cards(data: ReportData) -> Iterable[Card]:
    """Per condition with a control, and embedding parameter: agreement of seeds first, then how far rows moved."""
    for line in chosen_lines(data.labels).to_dict("records"):
        yield _card(data.evidence, line, data.settings.alpha)


def chosen_lines(table: pd.DataFrame) -> pd.DataFrame:
    """Of each condition, parameter and measure with a card the line against the best of its controls (CONTROLS)."""
    parts = []
    for _, own in table.groupby(["group", "arm", "parameter"], sort=False):
        for measure, permutations in CONTROLS.items():
            lines = own[own["measure"] == measure]
            found = [lines[lines["permutation"] == permutation] for permutation in permutations]
            parts += [part.iloc[:1] for part in [part for part in found if len(part)][:1]]
    return pd.concat(parts) if parts else table.iloc[:0]


def _card(evidence: Evidence, line: Mapping[Any, Any], alpha: float) -> Card:
    measure, parameter, q = MEASURES[str(line["measure"])], str(line["parameter"]), float(line["q"])
    runs = evidence.runs[(evidence.runs["group"] == line["group"]) & evidence.runs["arm"].isin(_arms(line))]
    pairing = "paired by seed" if line["is_paired"] else "Welch's, unpaired"
    return Card(
        id=f"labels: {line['group']} / {line['arm']} / {parameter} / {line['measure']}",
        claim=f"{measure.claim.format(parameter=parameter)} under {line['arm']}, {line['group']}",
        kind="labels",
        estimator=f"{line['measure']}: {measure.how}",
        version=VERSION,
        unit=measure.unit,
        value=float(line["value"]),
        interval=Span(float(line["low"]), float(line["high"]), float(evidence.settings["level"])),
        equivalence=Span(float(line["low90"]), float(line["high90"]), EQUIVALENCE_LEVEL),
        margin=float(line["margin"]),
        null=Null(f"the same runs on shuffled labels: {line['control']}"),
        noise_floor=NAN,
        num_seeds=min(int(line["num_seeds"]), int(line["num_seeds_shuffled"])),
        num_items=None,
        detectable_gap=float(line["detectable_gap"]),
        q=q,
        is_discovery=None if math.isnan(q) else q < alpha,
        source=f"real labels minus shuffled ones (of ratios: how much further), {SOURCES[str(line['permutation'])]}; "
        f"{pairing}; pairs of seeds by the jackknife (Efron & Stein 1981); ours",
        inputs=evidence.inputs(FILES, list(runs["run"])),
        verdict=str(line["verdict"]),
        reason=str(line["reason"]),
    )


def _arms(line: Mapping[Any, Any]) -> list[str]:
    return [str(line["arm"]), str(line["control"])]
