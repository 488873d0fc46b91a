"""Runs beside runs on shuffled labels: whether a parameter moved as only real labels move it.

That a drift is larger than random gradient signs would make it does not say that anything was learned: under shuffled
labels, which training can only memorise, that ratio may be as large. What learning makes of a drift is what real labels
add to it, so every measure here is taken of both, and what is judged is their difference over seeds. All is ours.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.nulls import is_beyond_both, sign_noise
from toolkit.analysis.strata import count_rows, table_exposure
from toolkit.comparison.arms import Arm, Group, arrange, differing_settings, without_numbers
from toolkit.comparison.compare import EQUIVALENCE_LEVEL
from toolkit.comparison.intervals import p_value
from toolkit.comparison.parameter_noise import changes_of_shown, measure_beyond_noise
from toolkit.comparison.runs import ReportedRun
from toolkit.comparison.verdicts import Verdict, verdict
from toolkit.families import TABLES
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run, runs_of

if TYPE_CHECKING:
    from toolkit.comparison.intervals import Interval

SAMPLED_ROWS = 200
NUM_REPLICATES, NUM_COORDINATES = 200, 256
"""Of the nulls of the sampled rows (nulls.py)."""

SHUFFLING = ("shuffle_labels", "label_seed")

ONE, PER_SEED = "one for all seeds", "another per seed"
"""Which permutation of the labels the runs of a control share."""

OTHER_TARGETS = (
    "each seed of the control learned other targets, so that its seeds may disagree for that alone: hold agreement "
    "against runs with --label-seed, whose targets are the same"
)

ONE_DRAW = (
    "one permutation is one draw: its seeds do not say how far another would have moved rows; hold this against runs "
    "with a permutation per seed (--shuffle-labels without --label-seed)"
)
OTHER_EXAMPLES = (
    "seeds drew other training examples, so that few of two seeds' targets are the same although the permutation is: "
    "train every seed on the same ones (all of a file, rather than --max-train-examples of it)"
)


@dataclass(frozen=True, slots=True)
class Measure:
    """What is taken of both conditions; ``scale`` says how they are compared."""

    claim: str
    how: str
    unit: str
    margin: float
    is_ratio: bool = False
    """Compared as a ratio, in per cent, and averaged as logarithms; else as a difference, times ``factor``."""
    factor: float = 1.0


MEASURES: Mapping[str, Measure] = {
    "agreement": Measure(
        "Seeds move {parameter} more alike than with shuffled labels",
        "Mean over the rows that two seeds showed of the cosine between the row's change in the one and in the other, "
        "each without the mean change of these rows; mean over pairs of seeds.",
        "cosine",
        0.05,
    ),
    "median_drift": Measure(
        "{parameter} moved further than with shuffled labels",
        "Median over the rows that training showed of ‖Δ_i - c‖, c their mean change (0 for a LayerNorm vector).",
        "%",
        5.0,
        is_ratio=True,
    ),
    "times_noise": Measure(
        "{parameter} moved more times its sign noise than with shuffled labels",
        "Drift of the rows that training showed as a multiple of what random gradient signs would have moved them.",
        "%",
        5.0,
        is_ratio=True,
    ),
    "share_beyond_nulls": Measure(
        "More rows of {parameter} moved beyond random signs and random directions than with shuffled labels",
        f"Of at most {SAMPLED_ROWS} rows that training showed, those beyond both nulls of toolkit.sign_noise.",
        "points",
        5.0,
        factor=100.0,
    ),
}
"""In the order in which they are told: agreement first, which runs that only memorise have little of."""


@with_columns
def compare_with_shuffled(
    runs_real: Sequence[Run | str | Path],
    runs_shuffled: Sequence[Run | str | Path],
    *,
    level: float = 0.95,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Did parameters move as only real labels move them? One line per control, embedding parameter and measure.

    Parameters
    ----------
    runs_real, runs_shuffled
        Runs of one condition, and runs with ``--shuffle-labels`` of the same model, task and settings, the learning
        rate among them: a multiple of noise falls as the rate rises, and so do drift and agreement change with it.
        Those of one ``--label-seed``, and those without one, are controls of their own.
    level, alpha
        Of the interval, and of the test by which the smallest detectable gap is worked out.

    Returns
    -------
    pandas.DataFrame
        One line per control, parameter that moved and measure: agreement, median_drift, times_noise and
        share_beyond_nulls. ``value`` is what real labels add: the difference, or of a ratio how much further.

    Intervals are by Student's t: paired by seed where both conditions have the same ones (data order, head and dropout
    are then the same), else Welch's. **Real labels are one labelling among all**, and permutations differ among
    themselves by more than seeds do: of the pairs of eight permutations of a small task, three seeds each, 16 % had an
    interval over seeds above 0 where 2.5 % should (median drift of words; share beyond both nulls 14 %, multiple of
    noise 11 %, agreement 1.8 %). So how far rows moved is held against a permutation per seed, by an interval that a
    new permutation would lie in: V = s²·(1 + 1/K) for K permutations, s² of the difference in one seed, with its noise;
    against one permutation for all seeds it has no verdict.

    Agreement is a mean over pairs of seeds, which are not independent: its variance is the jackknife's over seeds,
    which errs high (Efron & Stein 1981), with K - 1 degrees of freedom. Against a permutation per seed it has no
    verdict: targets differ between seeds, and that alone would make seeds disagree; nor has it where the seeds of a
    control drew other examples (--max-train-examples), which have few targets in common. Rows of words are those that
    training showed; words are not drawn anew.

    ValueError: no runs, more than one condition, model or task among the real ones, labels that are shuffled (or are
    not) on the wrong side, other settings than the labels' that differ.
    """
    groups = arrange([*runs_real, *runs_shuffled])
    names = {side: {run.path.resolve().name for run in runs_of(runs)} for side, runs in
             (("real", runs_real), ("shuffled", runs_shuffled))}  # fmt: skip
    for side, own in names.items():
        if not own:
            raise ValueError(f"no runs with {side} labels: pass at least one")
    if len(groups) > 1:
        raise ValueError(f"runs of one model and task are compared; got {', '.join(group.title for group in groups)}")
    (group,) = groups
    for run in group.runs:
        is_shuffled = run.config.shuffle_labels
        if (run.directory_name in names["real"]) == is_shuffled:
            kind = "shuffled" if is_shuffled else "real"
            raise ValueError(f"{run.name} learned {kind} labels: pass it with the others of these")
    real = [arm for arm in group.arms if not arm.is_shuffled]
    if len(real) > 1:
        raise ValueError(f"the runs with real labels are of {len(real)} conditions: {_listed(real)}; pass one of them")
    for arm in group.arms:
        if arm.is_shuffled and (apart := other_settings(real[0], arm)):
            raise ValueError(
                f"{arm.label} differs from {real[0].label} in {', '.join(apart)} beside the labels: drift, and its "
                "multiple of noise, depend on that; train both alike"
            )
    return contrast(groups, label_statistics(groups), level=level, alpha=alpha)


def _listed(arms: Iterable[Arm]) -> str:
    return "; ".join(arm.label for arm in arms)


def other_settings(real: Arm, shuffled: Arm) -> list[str]:
    """In what else than the labels two conditions differ, as far as embeddings depend on it."""
    names = differing_settings(real, shuffled)
    is_same_regime = real.runs[0].regime == shuffled.runs[0].regime
    found = [name.replace("_", " ") for name in names if name not in {*SHUFFLING, *without_numbers()}]
    return found if is_same_regime else ["freeze", *found]


def controls_of(group: Group, arm: Arm) -> list[Arm]:
    """The conditions of shuffled labels and the same settings, those of one permutation first; none for one of them."""
    if arm.is_shuffled:
        return []
    found = [other for other in group.arms if other.is_shuffled and not other_settings(arm, other)]
    return sorted(found, key=lambda other: permutation_of(other) != ONE)


def permutation_of(arm: Arm) -> str:
    """Which permutation of the labels the runs of a condition of shuffled labels share."""
    return PER_SEED if arm.runs[0].config.label_seed is None else ONE


@with_columns
def label_statistics(groups: Sequence[Group], drift: pd.DataFrame | None = None) -> pd.DataFrame:
    """Every measure of every run, or pair of seeds, of the conditions that have a control, and of these.

    ``drift``: `measure_beyond_noise` of the runs, led by the run's name, where it is known.
    """
    lines: list[dict[str, Any]] = []
    for group in groups:
        pairs = [(arm, controls) for arm in group.arms if (controls := controls_of(group, arm))]
        arms = {arm.label: arm for arm, controls in pairs for arm in (arm, *controls)}
        for arm in arms.values():
            lead = {"group": group.title, "condition": arm.label}
            for run in arm.runs:
                known = None if drift is None else drift[drift["run"] == run.name]
                lines += [lead | line for line in _of_run(run, known)]
            lines += [lead | line for line in _of_pairs(arm)]
    return pd.DataFrame(lines, columns=columns_of("label_statistics"))


def _of_run(run: ReportedRun, known: pd.DataFrame | None) -> Iterator[dict[str, Any]]:
    table = measure_beyond_noise(run.run) if known is None else known
    for line in table[table["has_moved"].astype(bool)].to_dict("records"):
        parameter, refusal = str(line["parameter"]), str(line["reason"])
        lead = {"run": run.name, "second": "", "parameter": parameter}
        found = changes_of_shown(run.run.trajectory, parameter)
        value = math.nan if found is None else float(np.median(np.linalg.norm(found.without_offset(), axis=1)))
        yield lead | {"measure": "median_drift", "value": value, "reason": refusal if math.isnan(value) else ""}
        value = math.nan if refusal else float(line["times_noise"])
        yield lead | {"measure": "times_noise", "value": value, "reason": refusal}
        if parameter in TABLES:
            share, why = (math.nan, refusal) if refusal or found is None else _share_beyond(run, parameter, found.rows)
            yield lead | {"measure": "share_beyond_nulls", "value": share, "reason": why}


def _share_beyond(run: ReportedRun, parameter: str, shown: NDArray[np.int64]) -> tuple[float, str]:
    """Share of a sample of the shown rows beyond both nulls, or why there is none."""
    rows = np.sort(np.random.default_rng(0).permutation(shown)[:SAMPLED_ROWS])
    draws, coordinates = NUM_REPLICATES, NUM_COORDINATES
    try:
        table = sign_noise(run.run, parameter, None, rows, num_replicates=draws, num_coordinates=coordinates)
        return float(is_beyond_both(table).mean()), ""
    except ValueError as error:
        return math.nan, str(error).replace(str(run.run.path), run.name)


def _of_pairs(arm: Arm) -> Iterator[dict[str, Any]]:
    """Agreement of each two seeds of a condition; those of one permutation must have had the same targets."""
    is_one = arm.is_shuffled and permutation_of(arm) == ONE
    has_targets = not is_one or len({_tokens_seen(run) for run in arm.runs}) == 1
    for parameter in arm.runs[0].parameters:
        if not arm.has(parameter):
            continue
        changes = [changes_of_shown(run.run.trajectory, parameter) for run in arm.runs]
        moved = [found is not None and bool(np.any(found.change)) for found in changes]
        for (i, one), (j, other) in combinations(enumerate(arm.runs), 2):
            if not (moved[i] and moved[j]):
                continue
            first, second = changes[i], changes[j]
            assert first is not None
            assert second is not None
            value = first.agreement(second)
            refusal = "" if has_targets else OTHER_EXAMPLES
            refusal = refusal if value == value else "two seeds share too few rows that moved, or started otherwise"
            lead = {"run": one.name, "second": other.name, "parameter": parameter, "measure": "agreement"}
            yield lead | {"value": value, "reason": refusal}


def _tokens_seen(run: ReportedRun) -> bytes | None:
    """How many tokens of each word a run trained on: the same for runs that trained on the same examples as often."""
    name = "word_embeddings"
    table = table_exposure(run.run.trajectory, name)
    return None if table is None else table.token_counts(count_rows(run.run.trajectory, name)).tobytes()


def contrast(
    groups: Sequence[Group], statistics: pd.DataFrame, *, level: float = 0.95, alpha: float = 0.05
) -> pd.DataFrame:
    """:func:`compare_with_shuffled` of each condition that has a control, from :func:`label_statistics`."""
    lines = []
    for group in groups:
        own = statistics[statistics["group"] == group.title]
        for arm in group.arms:
            for control in controls_of(group, arm):
                lead = {"group": group.title, "condition": arm.label, "control": control.label}
                lead |= {"permutation": permutation_of(control)}
                lines += [lead | line for line in _contrasts(own, arm, control, level, alpha)]
    from toolkit.comparison.intervals import benjamini_hochberg

    q = benjamini_hochberg([line["p"] for line in lines])
    counted = {"num_claims": int(np.isfinite(q).sum())}
    judged = [judge(line | {"q": own} | counted) for line, own in zip(lines, q, strict=True)]
    told = [{"q": own, "verdict": each.name, "reason": each.reason} for own, each in zip(q, judged, strict=True)]
    return pd.DataFrame(
        [line | each for line, each in zip(lines, told, strict=True)], columns=columns_of("compare_with_shuffled")
    )


def _contrasts(own: pd.DataFrame, arm: Arm, control: Arm, level: float, alpha: float) -> Iterator[dict[str, Any]]:
    real, shuffled = (own[own["condition"] == each.label] for each in (arm, control))
    for name, measure in MEASURES.items():
        for parameter in dict.fromkeys(real["parameter"]):
            sides = [side[(side["measure"] == name) & (side["parameter"] == parameter)] for side in (real, shuffled)]
            if all(len(side) for side in sides):
                refusals = [str(text) for side in sides for text in side["reason"] if text]
                if permutation_of(control) != (ONE if name == "agreement" else PER_SEED):
                    refusals.append(OTHER_TARGETS if name == "agreement" else ONE_DRAW)
                yield {"parameter": parameter, "measure": name} | _line(
                    measure,
                    _values(sides[0], arm),
                    _values(sides[1], control),
                    refusals,
                    level,
                    alpha,
                    permutation_of(control),
                )


Values = Mapping[tuple[int, ...], float]
"""One seed, or two, to a measure of that run or pair of runs."""


def _values(lines: pd.DataFrame, arm: Arm) -> dict[tuple[int, ...], float]:
    seeds = {run.name: run.config.seed for run in arm.runs}
    found: dict[tuple[int, ...], float] = {}
    for line in lines.to_dict("records"):
        if not math.isnan(line["value"]):
            key = (seeds[line["run"]], *([seeds[line["second"]]] if line["second"] else []))
            found[key] = float(line["value"])
    return found


def _line(
    measure: Measure,
    real: Values,
    shuffled: Values,
    refusals: Sequence[str],
    level: float,
    alpha: float,
    permutation: str,
) -> dict[str, Any]:
    """What real labels add to one measure, judged."""
    from toolkit.comparison.intervals import detectable_gap

    if measure.is_ratio:
        real, shuffled = ({k: math.log(v) for k, v in own.items() if v > 0} for own in (real, shuffled))
    seeds, others = (sorted({seed for key in own for seed in key}) for own in (real, shuffled))
    is_paired = seeds == others and len(seeds) > 0
    wide, narrow = (difference(real, shuffled, at, permutation) for at in (level, EQUIVALENCE_LEVEL))

    def shown(x: float) -> float:
        return 100 * math.expm1(x) if measure.is_ratio else measure.factor * x

    def mean(own: Values) -> float:
        value = float(np.mean(list(own.values()))) if own else math.nan
        return math.exp(value) if measure.is_ratio else measure.factor * value

    ends = {"low": shown(wide.low), "high": shown(wide.high), "low90": shown(narrow.low), "high90": shown(narrow.high)}
    return {
        "real_mean": mean(real),
        "shuffled_mean": mean(shuffled),
        "value": shown(wide.estimate),
        **ends,
        "margin": measure.margin,
        "detectable_gap": shown(detectable_gap(wide, alpha=alpha)),
        "unit": measure.unit,
        "p": math.nan if refusals or math.isnan(wide.low) else p_value(wide),
        "num_seeds": len(seeds),
        "num_seeds_shuffled": len(others),
        "is_paired": is_paired,
        "reason": refusals[0] if refusals else "",
    }


def judge(line: Mapping[Any, Any]) -> Verdict:
    """The verdict on "real labels add to this measure" of one line, by the rules of verdicts.py."""
    low, high, low90, high90 = (float(line[name]) for name in ("low", "high", "low90", "high90"))
    return verdict(
        num_seeds=min(line["num_seeds"], line["num_seeds_shuffled"]),
        refusal=Verdict("not measurable here", line["reason"]) if line["reason"] else None,
        low=low,
        high=high,
        low90=low90,
        high90=high90,
        margin=float(line["margin"]),
        gap=float(line["detectable_gap"]),
        q=float(line["q"]),
        num_claims=int(line["num_claims"]),
        side="above",
        unit=line["unit"],
    )


def difference(real: Values, shuffled: Values, level: float, permutation: str = ONE) -> "Interval":
    """Mean of one minus mean of the other with its interval over seeds; paired where both have the same seeds.

    With a permutation per seed the interval is one that a new permutation in the place of the real labels would lie in:
    these are one labelling too, whose own deviation all of its seeds share.
    """
    from toolkit.comparison.intervals import NO_SEED, Interval, seeds_interval, t_interval

    if not real or not shuffled:
        return Interval(math.nan, math.nan, math.nan, math.nan, math.nan, level, NO_SEED)
    is_of_pairs = any(len(key) == 2 for key in real)
    if real.keys() == shuffled.keys():
        differences = {key: real[key] - shuffled[key] for key in real}
        if not is_of_pairs:
            found = seeds_interval(list(differences.values()), level)
            if permutation == ONE or math.isnan(found.variance):
                return found
            return t_interval(found.estimate, found.variance * (len(differences) + 1), found.df, level)
        estimate, variance, df = over_pairs(differences)
    else:
        (one, first, n), (two, second, m) = (_mean_of(own, is_of_pairs) for own in (real, shuffled))
        second *= 1 if permutation == ONE or is_of_pairs else len(shuffled) + 1
        estimate, variance = one - two, first + second
        known = variance > 0 and n > 0 and m > 0
        df = variance**2 / (first**2 / n + second**2 / m) if known else math.nan  # Welch 1947
    if not variance > 0:
        return Interval(estimate, math.nan, math.nan, math.nan, math.nan, level, NO_SEED)
    return t_interval(estimate, variance, df, level)


def _mean_of(values: Values, is_of_pairs: bool) -> tuple[float, float, float]:
    """Mean, variance of the mean and degrees of freedom of one condition."""
    if is_of_pairs:
        return over_pairs(values)
    own = np.array(list(values.values()))
    return float(own.mean()), float(own.var(ddof=1)) / len(own) if len(own) > 1 else math.nan, len(own) - 1.0


def over_pairs(values: Values) -> tuple[float, float, float]:
    """Mean over pairs of seeds, its jackknife variance over the K seeds, and K - 1 degrees of freedom.

    Leaving out seed i leaves the mean θ_i of the pairs without it; V = (K-1)/K·Σ(θ_i - θ̄)² (Efron & Stein 1981, where
    it is shown not to err low on average). NaN for fewer than three seeds: without one of two no pair is left.
    """
    seeds = sorted({seed for key in values for seed in key})
    estimate = float(np.mean(list(values.values())))
    without = [[value for key, value in values.items() if seed not in key] for seed in seeds]
    if len(seeds) < 3 or not all(without):
        return estimate, math.nan, math.nan
    left = np.array([np.mean(part) for part in without])
    return estimate, float((len(seeds) - 1) * left.var()), len(seeds) - 1.0
