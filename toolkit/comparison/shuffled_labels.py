"""Runs beside runs on shuffled labels: whether a parameter moved as only real labels move it.

That a drift is larger than random gradient signs would make it does not say that anything was learned: under shuffled
labels, which training can only memorise, that ratio may be as large. What learning makes of a drift is what real labels
add to it, so every measure here is taken of both, and what is judged is their difference over seeds. All is ours.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.nulls import is_beyond_both, sign_noise
from toolkit.analysis.strata import count_rows, table_exposure
from toolkit.comparison.compare import EQUIVALENCE_LEVEL
from toolkit.comparison.conditions import Condition, Group, arrange, differing_settings, without_numbers
from toolkit.comparison.intervals import (
    NO_SEED,
    Interval,
    benjamini_hochberg,
    detectable_gap,
    p_value,
    seeds_interval,
    t_interval,
)
from toolkit.comparison.parameter_noise import changes_of_shown, measure_beyond_noise
from toolkit.comparison.runs import ReportedRun
from toolkit.comparison.verdicts import Verdict, verdict
from toolkit.families import TABLES
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run, runs_of

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
ADDED_ROWS = Measure(
    "The {parameter} of added tokens that training showed moved further than with shuffled labels",
    "Median over these rows of ‖Δ‖/‖E⁰‖.",
    "%",
    5.0,
    is_ratio=True,
)


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
    sides = {"real": runs_of(runs_real), "shuffled": runs_of(runs_shuffled)}
    for side, own in sides.items():
        if not own:
            raise ValueError(f"no runs with {side} labels: pass at least one")
        for run in own:
            kind = "shuffled" if run.config.shuffle_labels else "real"
            if kind != side:
                raise ValueError(f"{run.path.resolve().name} learned {kind} labels: pass it with the others of these")
    groups = arrange([*sides["real"], *sides["shuffled"]])
    if len(groups) > 1:
        raise ValueError(f"runs of one model and task are compared; got {', '.join(group.title for group in groups)}")
    real = [condition for condition in groups[0].conditions if not condition.is_shuffled]
    if len(real) > 1:
        labels = "; ".join(condition.label for condition in real)
        raise ValueError(f"the runs with real labels are of {len(real)} conditions: {labels}; pass one of them")
    for condition in groups[0].conditions:
        if condition.is_shuffled and (apart := other_settings(real[0], condition)):
            raise ValueError(
                f"{condition.label} differs from {real[0].label} in {', '.join(apart)} beside the labels: drift, and "
                "its multiple of noise, depend on that; train both alike"
            )
    return contrast(groups, label_statistics(groups), level=level, alpha=alpha)


def other_settings(real: Condition, shuffled: Condition) -> list[str]:
    """In what else than the labels two conditions differ, as far as embeddings depend on it."""
    names = differing_settings(real, shuffled)
    is_same_regime = real.runs[0].regime == shuffled.runs[0].regime
    found = [name.replace("_", " ") for name in names if name not in {*SHUFFLING, *without_numbers()}]
    return found if is_same_regime else ["freeze", *found]


def controls_of(group: Group, condition: Condition) -> list[Condition]:
    """The conditions of shuffled labels and the same settings, those of one permutation first; none for one of them."""
    if condition.is_shuffled:
        return []
    found = [other for other in group.conditions if other.is_shuffled and not other_settings(condition, other)]
    return sorted(found, key=lambda other: permutation_of(other) != ONE)


def permutation_of(condition: Condition) -> str:
    """Which permutation of the labels the runs of a condition of shuffled labels share."""
    return PER_SEED if condition.runs[0].setting("label_seed") is None else ONE


@with_columns
def label_statistics(groups: Sequence[Group], drift: pd.DataFrame | None = None) -> pd.DataFrame:
    """Every measure of every run, or pair of seeds, of the conditions that have a control, and of these.

    ``drift``: `measure_beyond_noise` of the runs, led by the run's name, where it is known.
    """
    lines: list[dict[str, Any]] = []
    for group in groups:
        pairs = [(condition, controls) for condition in group.conditions if (controls := controls_of(group, condition))]
        conditions = {
            condition.label: condition for condition, controls in pairs for condition in (condition, *controls)
        }
        for condition in conditions.values():
            lead = {"group": group.title, "condition": condition.label}
            for run in condition.runs:
                known = None if drift is None else drift[drift["run"] == run.name]
                lines += [lead | line for line in _of_run(run, known)]
            lines += [lead | line for line in _of_pairs(condition)]
    return pd.DataFrame(lines, columns=columns_of("label_statistics"))


def _of_run(run: ReportedRun, known: pd.DataFrame | None) -> Iterator[dict[str, Any]]:
    table = measure_beyond_noise(run.run) if known is None else known
    for line in table[table["has_moved"].astype(bool)].to_dict("records"):
        parameter, refusal = str(line["parameter"]), str(line["reason"])
        found = changes_of_shown(run.run.trajectory, parameter)
        median = math.nan if found is None else float(np.median(np.linalg.norm(found.without_offset(), axis=1)))
        values = {"median_drift": (median, refusal if math.isnan(median) else "")}
        values["times_noise"] = (math.nan if refusal else float(line["times_noise"]), refusal)
        if parameter in TABLES:
            share, why = math.nan, refusal
            if found is not None and not refusal:
                rows = np.sort(np.random.default_rng(0).permutation(found.rows)[:SAMPLED_ROWS])
                draws: dict[str, Any] = {"num_replicates": NUM_REPLICATES, "num_coordinates": NUM_COORDINATES}
                try:
                    share = float(is_beyond_both(sign_noise(run.run, parameter, None, rows, **draws)).mean())
                except ValueError as error:
                    why = str(error).replace(str(run.run.path), run.name)
            values["share_beyond_nulls"] = share, why
        for measure, (value, why) in values.items():
            lead = {"run": run.name, "second": "", "parameter": parameter, "measure": measure}
            yield lead | {"value": value, "reason": why}


def _of_pairs(condition: Condition) -> Iterator[dict[str, Any]]:
    """Agreement of each two seeds of a condition; those of one permutation must have had the same targets."""
    is_one = condition.is_shuffled and permutation_of(condition) == ONE
    refused = OTHER_EXAMPLES if is_one and len({_tokens_seen(run) for run in condition.runs}) > 1 else ""
    for parameter in (name for name in condition.runs[0].parameters if condition.has(name)):
        changes = [(run.name, changes_of_shown(run.run.trajectory, parameter)) for run in condition.runs]
        moved = [(name, found) for name, found in changes if found is not None and np.any(found.change)]
        for (one, first), (other, second) in combinations(moved, 2):
            value = first.agreement(second)
            why = "two seeds share too few rows that moved, or started otherwise" if math.isnan(value) else refused
            lead = {"run": one, "second": other, "parameter": parameter, "measure": "agreement"}
            yield lead | {"value": value, "reason": why}


def _tokens_seen(run: ReportedRun) -> bytes | None:
    """How many tokens of each word a run trained on: the same for runs that trained on the same examples as often."""
    trajectory, name = run.run.trajectory, "word_embeddings"
    table = table_exposure(trajectory, name)
    return None if table is None else table.token_counts(count_rows(trajectory, name)).tobytes()


def contrast(
    groups: Sequence[Group], statistics: pd.DataFrame, *, level: float = 0.95, alpha: float = 0.05
) -> pd.DataFrame:
    """:func:`compare_with_shuffled` of each condition that has a control, from :func:`label_statistics`."""
    lines = []
    for group in groups:
        own = statistics[statistics["group"] == group.title]
        for condition in group.conditions:
            for control in controls_of(group, condition):
                lead = {"group": group.title, "condition": condition.label, "control": control.label}
                lines += [lead | line for line in _contrasts(own, condition, control, level, alpha)]
    q = benjamini_hochberg([line["p"] for line in lines])
    num_claims = int(np.isfinite(q).sum())
    for line, value in zip(lines, q, strict=True):
        judged = judge(line | {"q": value, "num_claims": num_claims})
        line |= {"q": value, "verdict": judged.name, "reason": judged.reason}
    return pd.DataFrame(lines, columns=columns_of("compare_with_shuffled"))


def contrast_medians(
    condition: Condition, control: Condition, medians: Mapping[str, float], *, level: float, alpha: float
) -> dict[str, Any]:
    """What real labels add to ADDED_ROWS, yet to be judged; ``medians``: run to its median, in no unit."""

    def known(of: Condition) -> Values:
        return {(run.config.seed,): medians[run.name] for run in of.runs if medians.get(run.name, 0) > 0}

    permutation = permutation_of(control)
    refusals = [] if permutation == PER_SEED else [ONE_DRAW]
    lead = {"parameter": "rows", "measure": "median_drift", "permutation": permutation}
    return lead | _contrast(ADDED_ROWS, known(condition), known(control), refusals, level, alpha, permutation)


Values = Mapping[tuple[int, ...], float]
"""One seed, or two, to a measure of that run or pair of runs."""


def _contrasts(
    own: pd.DataFrame, condition: Condition, control: Condition, level: float, alpha: float
) -> Iterator[dict[str, Any]]:
    """What real labels add to each measure of each parameter."""
    permutation = permutation_of(control)
    seeds = {run.name: (run.config.seed,) for run in (*condition.runs, *control.runs)} | {"": ()}
    for name, measure in MEASURES.items():
        for parameter in dict.fromkeys(own.loc[own["condition"] == condition.label, "parameter"]):
            lines = own[(own["measure"] == name) & (own["parameter"] == parameter)]
            sides = [lines[lines["condition"] == each.label] for each in (condition, control)]
            if not all(len(side) for side in sides):
                continue
            refusals = [str(text) for side in sides for text in side["reason"] if text]
            if permutation != (ONE if name == "agreement" else PER_SEED):
                refusals.append(OTHER_TARGETS if name == "agreement" else ONE_DRAW)
            real, shuffled = (
                {
                    (*seeds[line["run"]], *seeds[line["second"]]): float(line["value"])
                    for line in side.to_dict("records")
                    if not math.isnan(line["value"])
                }
                for side in sides
            )
            yield {"parameter": parameter, "measure": name, "permutation": permutation} | _contrast(
                measure, real, shuffled, refusals, level, alpha, permutation
            )


def _contrast(
    measure: Measure,
    real: Values,
    shuffled: Values,
    refusals: Sequence[str],
    level: float,
    alpha: float,
    permutation: str,
) -> dict[str, Any]:
    """What real labels add to one measure, which has yet to be judged."""

    def shown(x: float) -> float:
        return 100 * math.expm1(x) if measure.is_ratio else measure.factor * x

    def mean(own: Values) -> float:
        value = float(np.mean(list(own.values()))) if own else math.nan
        return math.exp(value) if measure.is_ratio else measure.factor * value

    if measure.is_ratio:
        real, shuffled = ({k: math.log(v) for k, v in own.items() if v > 0} for own in (real, shuffled))
    seeds, others = (sorted({seed for key in own for seed in key}) for own in (real, shuffled))
    wide, narrow = (difference(real, shuffled, at, permutation) for at in (level, EQUIVALENCE_LEVEL))
    return {
        "real_mean": mean(real),
        "shuffled_mean": mean(shuffled),
        "value": shown(wide.estimate),
        "low": shown(wide.low),
        "high": shown(wide.high),
        "low90": shown(narrow.low),
        "high90": shown(narrow.high),
        "margin": measure.margin,
        "detectable_gap": shown(detectable_gap(wide, alpha=alpha)),
        "unit": measure.unit,
        "p": math.nan if refusals or math.isnan(wide.low) else p_value(wide),
        "num_seeds": len(seeds),
        "num_seeds_shuffled": len(others),
        "is_paired": seeds == others and len(seeds) > 0,
        "reason": refusals[0] if refusals else "",
    }


def judge(line: Mapping[Any, Any]) -> Verdict:
    """The verdict on "real labels add to this measure" of one line, by the rules of verdicts.py."""
    names = ("low", "high", "low90", "high90", "margin", "q")
    return verdict(
        num_seeds=min(line["num_seeds"], line["num_seeds_shuffled"]),
        refusal=Verdict("not measurable here", line["reason"]) if line["reason"] else None,
        gap=float(line["detectable_gap"]),
        num_claims=int(line["num_claims"]),
        side="above",
        unit=line["unit"],
        **{name: line[name] for name in names},
    )


def difference(real: Values, shuffled: Values, level: float, permutation: str = ONE) -> Interval:
    """Mean of one minus mean of the other with its interval over seeds; paired where both have the same seeds.

    With a permutation per seed the interval is one that a new permutation in the place of the real labels would lie in:
    these are one labelling too, whose own deviation all of its seeds share.
    """
    if not real or not shuffled:
        return Interval(math.nan, math.nan, math.nan, math.nan, math.nan, level, NO_SEED)
    is_of_pairs = any(len(key) == 2 for key in real)
    if real.keys() == shuffled.keys() and not is_of_pairs:
        found = seeds_interval([real[key] - shuffled[key] for key in real], level)
        if permutation == ONE or math.isnan(found.variance):
            return found
        return t_interval(found.estimate, found.variance * (len(real) + 1), found.df, level)
    if real.keys() == shuffled.keys():
        estimate, variance, df = over_pairs({key: real[key] - shuffled[key] for key in real})
    else:
        sides = []
        for own in (real, shuffled):
            values, n = np.array(list(own.values())), float(len(own))
            alone = float(values.mean()), float(values.var(ddof=1)) / n if n > 1 else math.nan, n - 1
            sides.append(over_pairs(own) if is_of_pairs else alone)
        (one, first, n), (two, second, m) = sides
        second *= 1 if permutation == ONE or is_of_pairs else len(shuffled) + 1
        estimate, variance = one - two, first + second
        known = variance > 0 and n > 0 and m > 0
        df = variance**2 / (first**2 / n + second**2 / m) if known else math.nan  # Welch 1947
    if not variance > 0:
        return Interval(estimate, math.nan, math.nan, math.nan, math.nan, level, NO_SEED)
    return t_interval(estimate, variance, df, level)


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
    return estimate, float((len(seeds) - 1) * np.array([np.mean(part) for part in without]).var()), len(seeds) - 1.0
