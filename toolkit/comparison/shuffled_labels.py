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
from numpy.typing import NDArray

from toolkit.analysis.nulls import is_beyond_both, sign_noise
from toolkit.analysis.strata import count_rows, table_exposure
from toolkit.comparison.compare import EQUIVALENCE_LEVEL
from toolkit.comparison.conditions import Condition, Group, arrange, differing_settings, without_numbers
from toolkit.comparison.intervals import NO_SEED, Interval, detectable_gap, p_value, seeds_interval, t_interval
from toolkit.comparison.multiplicity import benjamini_hochberg
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
    """What is measured under real and under shuffled labels; ``is_ratio`` says how the two are compared."""

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
    for side, runs_of_side in sides.items():
        if not runs_of_side:
            raise ValueError(f"no runs with {side} labels: pass at least one")
        for run in runs_of_side:
            kind = "shuffled" if run.config.shuffle_labels else "real"
            if kind != side:
                raise ValueError(f"{run.path.resolve().name} learned {kind} labels: pass it with the others of these")
    # Arranged together: runs of another model or task then show as a second group.
    groups = arrange([*sides["real"], *sides["shuffled"]])
    if len(groups) > 1:
        raise ValueError(f"runs of one model and task are compared; got {', '.join(group.title for group in groups)}")
    real = [condition for condition in groups[0].conditions if not condition.is_shuffled]
    if len(real) > 1:
        labels = "; ".join(condition.label for condition in real)
        raise ValueError(f"the runs with real labels are of {len(real)} conditions: {labels}; pass one of them")
    for condition in groups[0].conditions:
        if condition.is_shuffled and (differing := other_settings(real[0], condition)):
            raise ValueError(
                f"{condition.label} differs from {real[0].label} in {', '.join(differing)} beside the labels: drift, "
                "and its multiple of noise, depend on that; train both alike"
            )
    return contrast(groups, label_statistics(groups), level=level, alpha=alpha)


def other_settings(real: Condition, shuffled: Condition) -> list[str]:
    """In what else than the labels two conditions differ, as far as embeddings depend on it."""
    names = differing_settings(real, shuffled)
    is_same_regime = real.runs[0].regime == shuffled.runs[0].regime
    differing = [name.replace("_", " ") for name in names if name not in {*SHUFFLING, *without_numbers()}]
    return differing if is_same_regime else ["freeze", *differing]


def controls_of(group: Group, condition: Condition) -> list[Condition]:
    """The controls of a condition: shuffled labels, else the same settings; one permutation for all seeds first.

    None for a condition that is a control itself.
    """
    if condition.is_shuffled:
        return []
    controls = [
        candidate
        for candidate in group.conditions
        if candidate.is_shuffled and not other_settings(condition, candidate)
    ]
    return sorted(controls, key=lambda candidate: permutation_of(candidate) != ONE)


def permutation_of(condition: Condition) -> str:
    """ONE or PER_SEED: which permutation of the labels the runs of a condition with shuffled labels share."""
    return PER_SEED if condition.runs[0].setting("label_seed") is None else ONE


@with_columns
def label_statistics(groups: Sequence[Group], drift: pd.DataFrame | None = None) -> pd.DataFrame:
    """Every measure of every run, or pair of seeds, of the conditions that have a control, and of these.

    ``drift``: `measure_beyond_noise` of the runs, led by the run's name, where it is known.
    """
    records: list[dict[str, Any]] = []
    for group in groups:
        conditions: dict[str, Condition] = {}
        for condition in group.conditions:
            if controls := controls_of(group, condition):
                conditions |= {member.label: member for member in (condition, *controls)}
        for condition in conditions.values():
            key = {"group": group.title, "condition": condition.label}
            for run in condition.runs:
                drift_of_run = None if drift is None else drift[drift["run"] == run.name]
                records += [key | record for record in _statistics_of_run(run, drift_of_run)]
            records += [key | record for record in _agreement_of_seeds(condition)]
    return pd.DataFrame(records, columns=columns_of("label_statistics"))


def _statistics_of_run(run: ReportedRun, drift: pd.DataFrame | None) -> Iterator[dict[str, Any]]:
    """A record per measure of one run and each parameter that moved, agreement apart; a reason where it is undefined.

    ``drift``: `measure_beyond_noise` of the run, where it is known.
    """
    table = measure_beyond_noise(run.run) if drift is None else drift
    for record in table[table["has_moved"].astype(bool)].to_dict("records"):
        parameter, refusal = str(record["parameter"]), str(record["reason"])
        changes = changes_of_shown(run.run.trajectory, parameter)
        median = math.nan if changes is None else float(np.median(np.linalg.norm(changes.without_offset(), axis=1)))
        values = {"median_drift": (median, refusal if math.isnan(median) else "")}
        values["times_noise"] = (math.nan if refusal else float(record["times_noise"]), refusal)
        if parameter in TABLES:
            values["share_beyond_nulls"] = math.nan, refusal
            if changes is not None and not refusal:
                values["share_beyond_nulls"] = _share_beyond_nulls(run, parameter, changes.rows)
        for measure, (value, reason) in values.items():
            key = {"run": run.name, "second": "", "parameter": parameter, "measure": measure}
            yield key | {"value": value, "reason": reason}


def _share_beyond_nulls(run: ReportedRun, parameter: str, exposed_rows: NDArray[np.int64]) -> tuple[float, str]:
    """Which share of a sample of the exposed rows is beyond both nulls of :func:`sign_noise`; NaN with the reason."""
    rows = np.sort(np.random.default_rng(0).permutation(exposed_rows)[:SAMPLED_ROWS])
    draws: dict[str, Any] = {"num_replicates": NUM_REPLICATES, "num_coordinates": NUM_COORDINATES}
    try:
        return float(is_beyond_both(sign_noise(run.run, parameter, None, rows, **draws)).mean()), ""
    except ValueError as error:
        # A report must not tell where somebody keeps their files.
        return math.nan, str(error).replace(str(run.run.path), run.name)


def _agreement_of_seeds(condition: Condition) -> Iterator[dict[str, Any]]:
    """Agreement of each two seeds of a condition; those of one permutation must have had the same targets."""
    shares_permutation = condition.is_shuffled and permutation_of(condition) == ONE
    refusal = OTHER_EXAMPLES if shares_permutation and len({_tokens_seen(run) for run in condition.runs}) > 1 else ""
    for parameter in (name for name in condition.runs[0].parameters if condition.has(name)):
        changes = [(run.name, changes_of_shown(run.run.trajectory, parameter)) for run in condition.runs]
        changes_that_moved = [
            (name, changes_of_run)
            for name, changes_of_run in changes
            if changes_of_run is not None and np.any(changes_of_run.change)
        ]
        for (first_name, first_changes), (second_name, second_changes) in combinations(changes_that_moved, 2):
            value = first_changes.agreement(second_changes)
            reason = "two seeds share too few rows that moved, or started otherwise" if math.isnan(value) else refusal
            key = {"run": first_name, "second": second_name, "parameter": parameter, "measure": "agreement"}
            yield key | {"value": value, "reason": reason}


def _tokens_seen(run: ReportedRun) -> bytes | None:
    """How many tokens of each word a run trained on, as bytes, which sets can hold; None where it was not recorded.

    They are the same for runs that trained on the same examples as often.
    """
    trajectory, name = run.run.trajectory, "word_embeddings"
    table = table_exposure(trajectory, name)
    return None if table is None else table.token_counts(count_rows(trajectory, name)).tobytes()


def contrast(
    groups: Sequence[Group], statistics: pd.DataFrame, *, level: float = 0.95, alpha: float = 0.05
) -> pd.DataFrame:
    """:func:`compare_with_shuffled` of each condition that has a control, from :func:`label_statistics`."""
    records = []
    for group in groups:
        group_statistics = statistics[statistics["group"] == group.title]
        for condition in group.conditions:
            for control in controls_of(group, condition):
                key = {"group": group.title, "condition": condition.label, "control": control.label}
                records += [key | record for record in _contrasts(group_statistics, condition, control, level, alpha)]
    # One family: all contrasts of this call.
    q = benjamini_hochberg([record["p"] for record in records])
    num_claims = int(np.isfinite(q).sum())
    for record, claim_q in zip(records, q, strict=True):
        judged = judge(record | {"q": claim_q, "num_claims": num_claims})
        record |= {"q": claim_q, "verdict": judged.name, "reason": judged.reason}
    return pd.DataFrame(records, columns=columns_of("compare_with_shuffled"))


def contrast_medians(
    condition: Condition, control: Condition, medians: Mapping[str, float], *, level: float, alpha: float
) -> dict[str, Any]:
    """What real labels add to ADDED_ROWS, yet to be judged; ``medians``: run to its median, in no unit."""

    def medians_by_seed(compared: Condition) -> Values:
        # Keys of one seed, as of all measures of single runs. A ratio to rows that did not move is undefined.
        return {(run.config.seed,): medians[run.name] for run in compared.runs if medians.get(run.name, 0) > 0}

    permutation = permutation_of(control)
    refusals = [] if permutation == PER_SEED else [ONE_DRAW]
    key = {"parameter": "rows", "measure": "median_drift", "permutation": permutation}
    return key | _contrast(
        ADDED_ROWS, medians_by_seed(condition), medians_by_seed(control), refusals, level, alpha, permutation
    )


Values = Mapping[tuple[int, ...], float]
"""One seed, or two, to a measure of that run or pair of runs."""


def _contrasts(
    statistics: pd.DataFrame, condition: Condition, control: Condition, level: float, alpha: float
) -> Iterator[dict[str, Any]]:
    """What real labels add to each measure of each parameter, in records that are yet to be judged."""
    permutation = permutation_of(control)
    # A value is of one run, whose second is "", or of two.
    seeds = {run.name: (run.config.seed,) for run in (*condition.runs, *control.runs)} | {"": ()}
    for name, measure in MEASURES.items():
        for parameter in dict.fromkeys(statistics.loc[statistics["condition"] == condition.label, "parameter"]):
            measured = statistics[(statistics["measure"] == name) & (statistics["parameter"] == parameter)]
            of_condition = measured[measured["condition"] == condition.label]
            of_control = measured[measured["condition"] == control.label]
            if of_condition.empty or of_control.empty:
                continue
            refusals = [str(reason) for reason in (*of_condition["reason"], *of_control["reason"]) if reason]
            # Agreement needs the same targets in all seeds; sizes need more than one draw of the permutation.
            if permutation != (ONE if name == "agreement" else PER_SEED):
                refusals.append(OTHER_TARGETS if name == "agreement" else ONE_DRAW)
            real, shuffled = _values_by_seeds(of_condition, seeds), _values_by_seeds(of_control, seeds)
            yield {"parameter": parameter, "measure": name, "permutation": permutation} | _contrast(
                measure, real, shuffled, refusals, level, alpha, permutation
            )


def _values_by_seeds(statistics: pd.DataFrame, seeds: Mapping[str, tuple[int, ...]]) -> Values:
    """The values of :func:`label_statistics` that are known; ``seeds``: run to its seed in a tuple, and "" to ()."""
    return {
        (*seeds[record["run"]], *seeds[record["second"]]): float(record["value"])
        for record in statistics.to_dict("records")
        if not math.isnan(record["value"])
    }


def _contrast(
    measure: Measure,
    real: Values,
    shuffled: Values,
    refusals: Sequence[str],
    level: float,
    alpha: float,
    permutation: str,
) -> dict[str, Any]:
    """What real labels add to one measure, in a record that is yet to be judged."""

    def in_unit(difference: float) -> float:
        return 100 * math.expm1(difference) if measure.is_ratio else measure.factor * difference

    def mean(values: Values) -> float:
        value = float(np.mean(list(values.values()))) if values else math.nan
        return math.exp(value) if measure.is_ratio else measure.factor * value

    if measure.is_ratio:
        real, shuffled = _logarithms(real), _logarithms(shuffled)
    real_seeds, shuffled_seeds = _seeds_of(real), _seeds_of(shuffled)
    wide = difference(real, shuffled, level, permutation)
    narrow = difference(real, shuffled, EQUIVALENCE_LEVEL, permutation)
    return {
        "real_mean": mean(real),
        "shuffled_mean": mean(shuffled),
        "value": in_unit(wide.estimate),
        "low": in_unit(wide.low),
        "high": in_unit(wide.high),
        "low90": in_unit(narrow.low),
        "high90": in_unit(narrow.high),
        "margin": measure.margin,
        "detectable_gap": in_unit(detectable_gap(wide, alpha=alpha)),
        "unit": measure.unit,
        "p": math.nan if refusals or math.isnan(wide.low) else p_value(wide),
        "num_seeds": len(real_seeds),
        "num_seeds_shuffled": len(shuffled_seeds),
        "is_paired": real_seeds == shuffled_seeds and len(real_seeds) > 0,
        "reason": refusals[0] if refusals else "",
    }


def _logarithms(values: Values) -> Values:
    """Of those above 0: the others have none."""
    return {key: math.log(value) for key, value in values.items() if value > 0}


def _seeds_of(values: Values) -> list[int]:
    """The seeds that values are of, ascending."""
    return sorted({seed for key in values for seed in key})


def judge(record: Mapping[Any, Any]) -> Verdict:
    """The verdict on "real labels add to this measure", from one record of a contrast, by the rules of verdicts.py."""
    names = ("low", "high", "low90", "high90", "margin", "q")
    return verdict(
        num_seeds=min(record["num_seeds"], record["num_seeds_shuffled"]),
        refusal=Verdict("not measurable here", record["reason"]) if record["reason"] else None,
        gap=float(record["detectable_gap"]),
        num_claims=int(record["num_claims"]),
        side="above",
        unit=record["unit"],
        **{name: record[name] for name in names},
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
        interval = seeds_interval([real[key] - shuffled[key] for key in real], level)
        if permutation == ONE or math.isnan(interval.variance):
            return interval
        return t_interval(interval.estimate, interval.variance * (len(real) + 1), interval.df, level)
    if real.keys() == shuffled.keys():
        estimate, variance, df = over_pairs({key: real[key] - shuffled[key] for key in real})
    else:
        summarise = over_pairs if is_of_pairs else _over_runs
        real_mean, real_variance, real_df = summarise(real)
        shuffled_mean, shuffled_variance, shuffled_df = summarise(shuffled)
        shuffled_variance *= 1 if permutation == ONE or is_of_pairs else len(shuffled) + 1
        estimate, variance, df = real_mean - shuffled_mean, real_variance + shuffled_variance, math.nan
        if variance > 0 and real_df > 0 and shuffled_df > 0:  # Welch 1947
            df = variance**2 / (real_variance**2 / real_df + shuffled_variance**2 / shuffled_df)
    if not variance > 0:
        return Interval(estimate, math.nan, math.nan, math.nan, math.nan, level, NO_SEED)
    return t_interval(estimate, variance, df, level)


def over_pairs(values: Values) -> tuple[float, float, float]:
    """Mean over pairs of seeds, its jackknife variance over the K seeds, and K - 1 degrees of freedom.

    Leaving out seed i leaves the mean θ_i of the pairs without it; V = (K-1)/K·Σ(θ_i - θ̄)² (Efron & Stein 1981, where
    it is shown not to err low on average). NaN for fewer than three seeds: without one of two no pair is left.
    """
    seeds = _seeds_of(values)
    estimate = float(np.mean(list(values.values())))
    values_without = [[value for key, value in values.items() if seed not in key] for seed in seeds]
    if len(seeds) < 3 or not all(values_without):
        return estimate, math.nan, math.nan
    means_without = np.array([np.mean(values_of_pairs) for values_of_pairs in values_without])
    return estimate, float((len(seeds) - 1) * means_without.var()), len(seeds) - 1.0


def _over_runs(values: Values) -> tuple[float, float, float]:
    """Mean over runs, its variance (NaN for one run), and degrees of freedom."""
    run_values, num_runs = np.array(list(values.values())), float(len(values))
    variance = float(run_values.var(ddof=1)) / num_runs if num_runs > 1 else math.nan
    return float(run_values.mean()), variance, num_runs - 1
