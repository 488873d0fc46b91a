"""The evidence of a report in, its cards out: one per claim, each with the verdict that its numbers allow."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from toolkit.analysis.comparison.arms import Arm, Group, Labels
from toolkit.analysis.comparison.card import Card as Card
from toolkit.analysis.comparison.card import Null, Span, save_cards
from toolkit.analysis.comparison.compare import compare_groups, compare_pair
from toolkit.analysis.comparison.drift_cards import association_cards, drift_cards, offset_cards
from toolkit.analysis.comparison.estimates import EQUIVALENCE_LEVEL, Settings
from toolkit.analysis.comparison.evidence import FOLDER, PREDICTIONS, Evidence, read_evidence, write_evidence
from toolkit.analysis.comparison.pairs import ArmPair
from toolkit.snapshots.store import Run

VERSION = 1
"""Of the estimators of score and forbid cards."""

FILES = tuple(f"{FOLDER}/{name}" for name in ("settings.json", "runs.json", PREDICTIONS, "scores.csv"))

FEWEST_DRAWS = 100

TWO_WAY = "two-way interval over seeds and items"
OVER_SEEDS = "t interval over seeds"
SOURCES = {
    TWO_WAY: "mean paired difference ± t·√V, V = max(MS_seed + MS_item - MS_res, MS_seed, MS_item)/(KN); ours",
    OVER_SEEDS: "mean paired difference ± t·s/√K over K seeds",
}


def make_cards(evidence: Evidence | str | Path) -> list[Card]:
    """Every card of a report from its evidence alone: the same evidence gives the same cards.

    Kinds, in order: *score*, per pair of arms, task and split: the first scores higher (or lower, worded after the sign
    of the estimate; the interval is two-sided); *forbid*, per task on the reported split: freezing the embeddings
    changes the score, so that "equivalent" means that forbidding the drift costs nothing; *drift*, per arm and
    embedding parameter that moved: it moved further than random gradient signs would move it; *offset*, per arm: what
    the tables share moved in one of them, which no data can tell; *association*, per arm and parameter: tasks on which
    it moved further gained more, refused under six tasks. What was frozen has no card: its hashes prove it.
    ValueError when the evidence cannot be read.
    """
    known = evidence if isinstance(evidence, Evidence) else read_evidence(evidence)
    makers = (score_cards, forbid_cards, drift_cards, offset_cards, association_cards)
    return [card for make in makers for card in make(known)]


def write_cards(
    runs: Sequence[Run | str | Path], labels: Labels | None, folder: str | Path, **options: Any
) -> list[Card]:
    """Write ``folder``/evidence and ``folder``/cards.json; the cards. ``options``: those of write_evidence."""
    evidence = write_evidence(runs, labels, folder, **options)
    cards = make_cards(evidence)
    save_cards(cards, folder, evidence.hashes)
    return cards


def score_cards(evidence: Evidence) -> Iterable[Card]:
    """One card per line of a headline score in :func:`toolkit.compare`."""
    pairs = evidence.settings["pairs"]
    table = compare_groups(
        evidence.groups, None if pairs is None else [(a, b) for a, b in pairs], settings_of(evidence)
    )
    arms = {(group.title, arm.label): arm for group in evidence.groups for arm in group.arms}
    for line in table[table["is_headline"].astype(bool)].to_dict("records"):
        members = [arms[line["group"], line[side]] for side in ("first", "second")]
        points = line["difference_points"]
        direction = "higher than" if points > 0 else "lower than" if points < 0 else "otherwise than"
        claim = (
            f"{line['first']} scores {direction} {line['second']} ({line['score']}) on {line['split']}, {line['group']}"
        )
        yield _card(line, "score", claim, members, evidence)


def forbid_cards(evidence: Evidence) -> Iterable[Card]:
    """Full fine-tuning against frozen embeddings on the reported split, one card per task and size that has both."""
    for group in evidence.groups:
        for pair in _forbidding(group):
            lines = compare_pair(pair, settings_of(evidence))
            for line in lines:
                if line["is_headline"] and line["is_reported_split"]:
                    claim = f"Forbidding the embeddings to drift changes the score ({line['score']}) on {line['split']}"
                    claim += f", {group.title} ({pair.first.label} against {pair.second.label})"
                    own = {"difference_points": math.nan, "reason": "", **line, "group": group.title, "q": math.nan}
                    yield _card(own, "forbid", claim, [pair.first, pair.second], evidence)


def _forbidding(group: Group) -> list[ArmPair]:
    full = [arm for arm in group.arms if arm.is_full]
    frozen = [arm for arm in group.arms if arm.runs[0].regime == "embeddings" and _starts_plainly(arm)]
    return [ArmPair(one, other) for one in full for other in frozen if one.size == other.size]


def _starts_plainly(arm: Arm) -> bool:
    config = arm.runs[0].config
    return config.init == "checkpoint" and not config.head_epochs


def _card(line: dict[str, Any], kind: str, claim: str, arms: Sequence[Arm], evidence: Evidence) -> Card:
    """One line of a comparison as a card; a difference that could not be worked out is refused with its note."""

    def points(name: str) -> float:
        value = line.get(name)
        return math.nan if value is None else float(value)

    is_refused = math.isnan(points("difference_points"))
    estimator = TWO_WAY if line["score"] == "accuracy" else OVER_SEEDS
    settings, runs = settings_of(evidence), [run for arm in arms for run in arm.runs]
    return Card(
        id=f"{kind}: {line['group']} / {line['split']} / {line['score']} / {line['first']} - {line['second']}",
        claim=claim,
        kind=kind,
        estimator=estimator,
        version=VERSION,
        unit="points",
        value=points("difference_points"),
        interval=Span(points("low_points"), points("high_points"), settings.level),
        equivalence=Span(points("low90_points"), points("high90_points"), EQUIVALENCE_LEVEL),
        margin=settings.margin_points,
        null=Null("no difference"),
        noise_floor=points("noise_floor_points"),
        num_seeds=int(line["num_seeds"]),
        num_items=int(line["num_items"]),
        detectable_gap=points("detectable_gap_points"),
        q=points("q"),
        verdict="not identifiable" if is_refused else str(line["verdict"]),
        reason=str(line["note"] if is_refused else line["reason"]),
        source=SOURCES[estimator],
        inputs=evidence.inputs(FILES, [run.name for run in runs]),
    )


def settings_of(evidence: Evidence) -> Settings:
    """How the report compared; a card shows no bootstrap, so the fewest draws will do."""
    names = ("margin_points", "level", "alpha")
    return Settings(**{name: evidence.settings[name] for name in names}, num_draws=FEWEST_DRAWS)
