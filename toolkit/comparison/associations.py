"""Drift joined with score in, their association across tasks out: one point per task, refused under six tasks."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.comparison.summaries import check_table

LEAST_TASKS = 6
"""Fewer points say nothing: of five tasks even a perfect order has an exact two-sided p of 2/5! = .017, and a single
task decides it."""

TOO_FEW = f"and at least {LEAST_TASKS} are needed"

NUM_PERMUTATIONS = 99_999
"""Permutations of the test; all of them up to eight tasks (8! = 40,320)."""

TOLD_APART = "supported"
"""The verdict on a gain whose interval excludes 0 and that may be above the margin."""

NEEDED = ("group", "model", "base", "size", "run", "learning_rate", "epoch", "parameter", "is_frozen")
VALUES = ("times_noise", "gain_points", "gain_verdict")
COLUMNS = ("model", "base", "parameter", "num_tasks", "num_runs", "spearman", "p", "q", "note")


def associate_drift(joined: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Do tasks on which a parameter moved further gain more from its moving? One line per model, arm and parameter.

    ``joined``: the table of :func:`toolkit.join_drift`. A task is one point: the means over its seeds of
    ``times_noise`` and ``gain_points``, of the last epoch of each run and of the largest number of training examples,
    whatever else the table holds, so that more epochs, snapshots or sizes make no more points. Drift counts as a
    multiple of its noise: as a share of the norm it follows the number of steps and, over a whole vocabulary, the
    number of words in the data, which differ between tasks by design. The multiple still falls as the learning rate
    rises (1.22 to 1.04 on one task). ``spearman``: rank correlation; ``p``: two-sided permutation test over the tasks
    (exact up to eight of them, else 99,999 draws with ``seed``); ``q``: Benjamini-Hochberg over the lines. All NaN,
    with a ``note``: under six tasks, because nothing is fitted to so few; where tasks were trained at different
    learning rates; and where no task's gain is told apart from 0 (``gain_verdict``), because ranks of gains that are
    noise are noise. The association is between tasks and says nothing of cause. ValueError for another table.
    """
    check_table(joined, (*NEEDED, *VALUES), "join_drift")
    lines = [
        {"model": model, "base": base, "parameter": parameter} | _line(points, seed)
        for (model, base, parameter), points in _points(joined)
    ]
    table = pd.DataFrame(lines, columns=list(COLUMNS))
    if len(table):
        from toolkit.comparison.multiplicity import benjamini_hochberg

        table["q"] = benjamini_hochberg(table["p"].to_numpy(dtype=float))
    return table


def _points(joined: pd.DataFrame) -> Iterator[tuple[tuple[str, str, str], pd.DataFrame]]:
    """Per model, arm and parameter that was trained: one line per task, the means over its runs."""
    table = joined[~joined["is_frozen"].astype(bool)]
    table = table[table["epoch"] == table.groupby("run")["epoch"].transform("max")]
    sizes = pd.to_numeric(table["size"]).astype(float).fillna(np.inf)
    keys = [table[name] for name in ("group", "base")]
    table = table[sizes == sizes.groupby(keys).transform("max")]
    table = table.drop_duplicates(["run", "parameter"], keep="last")
    for (model, base, parameter), own in table.groupby(["model", "base", "parameter"], sort=False):
        usable = own.dropna(subset=["times_noise", "gain_points"]).groupby("group", sort=False)
        means = usable[["times_noise", "gain_points"]].mean()
        means["learning_rate"] = usable["learning_rate"].first()
        yield (model, base, parameter), means.assign(num_runs=usable.size(), verdict=usable["gain_verdict"].first())


def _line(points: pd.DataFrame, seed: int) -> dict[str, Any]:
    line = {"num_tasks": len(points), "num_runs": int(points["num_runs"].sum()), "spearman": np.nan, "p": np.nan}
    if len(points) < LEAST_TASKS:
        count = f"{len(points)} task{'' if len(points) == 1 else 's'}"
        return line | {"note": f"refused: {count} with both values, {TOO_FEW}"}
    if points["learning_rate"].nunique() > 1:
        rates = ", ".join(f"{rate:g}" for rate in sorted(set(points["learning_rate"])))
        return line | {"note": f"refused: tasks were trained at different learning rates ({rates})"}
    if not (points["verdict"] == TOLD_APART).any():
        return line | {"note": f"refused: {_all_noise(points['verdict'])}, so that there is nothing to predict"}
    drift, gain = (_centred_ranks(points[name]) for name in ("times_noise", "gain_points"))
    if not (drift.any() and gain.any()):
        return line | {"note": "undefined: drift or gain is the same in all tasks"}
    return line | {"spearman": _correlation(drift, gain), "p": _permutation_p(drift, gain, seed), "note": ""}


def _all_noise(verdicts: pd.Series) -> str:
    if (verdicts == "equivalent").all():
        return "every gain is within the margin (equivalent to 0)"
    counts = verdicts.value_counts()
    return f"no gain can be told apart from 0 ({', '.join(f'{count} {name}' for name, count in counts.items())})"


def _centred_ranks(values: pd.Series) -> NDArray[np.float64]:
    ranks = values.rank().to_numpy(dtype=float)
    centred: NDArray[np.float64] = ranks - ranks.mean()
    return centred


def _correlation(first: NDArray[np.float64], second: NDArray[np.float64], axis: int = -1) -> Any:
    """Pearson correlation of centred ranks, which is Spearman's; permuting changes neither mean nor norm."""
    return (first * second).sum(axis=axis) / np.sqrt((first**2).sum(axis=axis) * (second**2).sum(axis=axis))


def _permutation_p(drift: NDArray[np.float64], gain: NDArray[np.float64], seed: int) -> float:
    from scipy.stats import permutation_test

    def statistic(permuted: NDArray[np.float64], axis: int = -1) -> Any:
        return _correlation(permuted, gain, axis)

    result = permutation_test(
        (drift,),
        statistic,
        permutation_type="pairings",
        vectorized=True,
        n_resamples=NUM_PERMUTATIONS,
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)
