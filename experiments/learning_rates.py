"""Question: how far do the embeddings move at another learning rate, and does their drift begin to matter there?

Full fine-tuning and frozen embeddings at five learning rates over two orders of magnitude, on SST-2 and on `order`,
whose labels hang on position alone; five seeds each. No rate is chosen: what is compared is one rate with and without
the drift of the embeddings.

    python -m toolkit study experiments/learning_rates.py --dry-run
    python -m toolkit study experiments/learning_rates.py

The data are not part of this repository: ../shared/data, or the folder that EMBEDDING_DRIFT_DATA names, holds sst2/ as
.tsv files; experiments/data.sha256 has their source, licence and sha256. Drift by rate, with the exponent b in drift =
c x rate^b from each rate to the next, is printed and, with OUT, written as drift_by_rate.csv and a figure:

    python experiments/learning_rates.py runs [OUT]
"""

import os
import sys
from pathlib import Path
from typing import Any

from toolkit import Comparison, Study

DATA = os.environ.get("EMBEDDING_DRIFT_DATA", "../shared/data")
RATES = ("1e-5", "3e-5", "1e-4", "3e-4", "1e-3")
FULL, FROZEN = "full", "embeddings frozen"
REGIMES = {FULL: "none", FROZEN: "embeddings"}

STUDY = Study(
    title="Learning rates",
    question="How far do the embeddings move at another learning rate, and does their drift begin to matter there?",
    hypothesis=(
        "Drift grows with the rate, a little slower than in proportion, while the rate lets the model learn; freezing "
        "the embeddings costs nothing at any rate."
    ),
    arms={
        f"{name} at {rate}": {"freeze": regime, "learning_rate": float(rate)}
        for rate in RATES
        for name, regime in REGIMES.items()
    },
    tasks={
        "sst2": {
            "train_file": f"{DATA}/sst2/train.tsv",
            "validation_file": f"{DATA}/sst2/dev.tsv",
            "test_file": (f"test={DATA}/sst2/test.tsv",),
            "max_train_examples": 2000,
            "remove_near_duplicates": True,
        },
        "order": {"task": "order", "max_train_examples": 1000},
    },
    seeds=range(5),
    margin_points=1.5,
    comparisons=[Comparison(f"{FULL} at {rate}", f"{FROZEN} at {rate}") for rate in RATES],
)

TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")
VECTORS = ("LayerNorm.weight", "LayerNorm.bias")
COLOURS = ("#0072b2", "#999999", "#d55e00", "#009e73", "#cc79a7", "#e69f00")


def main(runs: str, out: str | None = None) -> None:
    """Print drift and exponents of the study's finished runs below ``runs``; write table and figure into ``out``."""
    import pandas as pd

    from toolkit.reporting.folder import check_out, report_folder, write_csvs
    from toolkit.snapshots.store import open_run
    from toolkit.studies.plan import plan_runs

    if out:
        check_out(out)
    finished = [run for run in plan_runs(STUDY.final_cells({}), runs) if run.is_finished]
    if not finished:
        sys.exit(f"no finished run of the study below {runs}: run it first (see the top of {Path(__file__).name})")
    lines, scores = [], []
    for planned in finished:
        regime, rate = planned.cell.arm.split(" at ")
        run = open_run(planned.path)
        place = {"task": planned.cell.task, "rate": float(rate), "seed": planned.cell.seed}
        scores.append({**place, "regime": regime, "accuracy": _last_accuracy(run)})
        if regime == FULL:
            lines += [{**place, **line} for line in _drifts(run)]
    table, scored = pd.DataFrame(lines), pd.DataFrame(scores)
    keys = ["task", "rows", "rate"]
    means = table.groupby(keys, sort=False)[["relative_drift", "times_noise", "without_rounding"]].mean()
    print(means.unstack("rate").dropna(axis=1, how="all").to_string(float_format="{:.4g}".format))
    print("\nb in drift = c x rate^b from each rate to the next, mean over seeds")
    print(exponents(table).unstack("rate").to_string(float_format="{:.2f}".format))
    print("\naccuracy at the last epoch, mean over seeds")
    print(
        scored.groupby(["task", "regime", "rate"], sort=False)["accuracy"].mean().unstack("rate").round(3).to_string()
    )
    if out:
        with report_folder(out) as folder:
            write_csvs(folder, {"drift_by_rate": table}, float_format="%.6g")
            _draw(table, scored, folder)


def exponents(table: Any) -> Any:
    """b by task, rows and the lower of two neighbouring rates: the slope of log drift on log rate, mean over seeds."""
    import numpy as np

    wide = (
        np.log(table.set_index(["task", "rows", "seed", "rate"])["relative_drift"]).unstack("rate").sort_index(axis=1)
    )
    slopes = wide.diff(-1, axis=1) / -np.diff(np.log(wide.columns), append=np.nan)
    return slopes.iloc[:, :-1].stack().groupby(level=["task", "rows", "rate"], sort=False).mean()


def _last_accuracy(run: Any) -> float:
    """On the validation split, at the last epoch."""
    last = run.scores[(run.scores["epoch"] == run.scores["epoch"].max()) & (run.scores["split"] == "validation")]
    return float(last["accuracy"].iloc[0])


def _drifts(run: Any) -> list[dict[str, Any]]:
    """Relative drift at the last epoch: the median row of each table that was shown and not, each vector as a whole.

    ``times_noise``: the median over (a sample of) shown rows of drift / drift under random gradient signs.
    ``without_rounding``: what the logged weight decay makes of a row that no batch shows, in float64.
    """
    import toolkit

    last = run.trajectory.snapshots[-1].epoch
    lines = []
    for name in TABLES:
        rows = toolkit.measure_rows(run, name, epoch=last)
        noise = toolkit.sign_noise(run, name, last, num_replicates=100, num_coordinates=0)
        shown = rows["num_steps"] > 0
        what = name.removesuffix("_embeddings").replace("_", " ")
        ratio = float(noise.loc[noise["num_steps"] > 0, "ratio"].median())
        lines.append({"rows": f"{what} rows shown", "relative_drift": rows.loc[shown, "relative"].median()})
        lines[-1]["times_noise"] = ratio
        if name == "word_embeddings":
            lines.append({"rows": f"{what} rows never shown", "relative_drift": rows.loc[~shown, "relative"].median()})
            log = run.optimizer_log
            kept = (1 - log.learning_rates * log.weight_decay[name]).prod()
            lines[-1]["without_rounding"] = float(1 - kept)
    drift = toolkit.measure_drift(run)
    at = drift[(drift["epoch"] == last) & (drift["measure"] == "relative") & (drift["statistic"] == "value")]
    whole = at[at["stratum"] == "whole parameter"].set_index("parameter")["value"]
    return lines + [{"rows": name, "relative_drift": float(whole[name])} for name in VECTORS]


def _draw(table: Any, scored: Any, folder: Path) -> None:
    """learning_rates.png, .svg and .pdf: drift above, accuracy below, a column per task."""
    import matplotlib.pyplot as plt

    from toolkit.reporting.images import WIDTH, render, write_images

    tasks = list(dict.fromkeys(table["task"]))

    def figure() -> Any:
        drawn, axes = plt.subplots(
            2, len(tasks), figsize=(WIDTH, 5), sharex=True, sharey="row", squeeze=False, layout="constrained"
        )
        for (top, bottom), task in zip(axes.T, tasks, strict=True):
            own = table[table["task"] == task]
            for colour, (rows, part) in zip(COLOURS, own.groupby("rows", sort=False), strict=True):
                top.plot(*_mean(part, "relative_drift"), "o-", markersize=3, linewidth=1, color=colour, label=rows)
            rates = sorted(own["rate"].unique())
            start = 2 * own.loc[own["rate"] == rates[0], "relative_drift"].max()
            line = [start * rate / rates[0] for rate in rates]
            top.plot(rates, line, ":", color="black", linewidth=0.8, label="in proportion to the rate")
            top.set(xscale="log", yscale="log", title=task)
            for colour, regime in zip(COLOURS[::2], REGIMES, strict=False):
                part = scored[(scored["task"] == task) & (scored["regime"] == regime)]
                bottom.plot(*_mean(part, "accuracy"), linewidth=1, color=colour, label=regime)
                bottom.plot(part["rate"], part["accuracy"], "o", markersize=2.5, color=colour, alpha=0.5)
            bottom.set_xlabel("peak learning rate")
        axes[0][0].set_ylabel("drift / norm before training")
        axes[1][0].set_ylabel("accuracy (validation)")
        for row, place in zip(axes, ("upper", "lower"), strict=True):
            drawn.legend(*row[0].get_legend_handles_labels(), loc=f"outside {place} center", ncols=4, frameon=False)
        return drawn

    write_images(folder, render({"learning_rates": figure}))


def _mean(part: Any, name: str) -> tuple[Any, Any]:
    means = part.groupby("rate")[name].mean()
    return means.index, means


if __name__ == "__main__":
    main(*sys.argv[1:])
