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
    sources={
        "sst2": "SST-2 (Socher et al. 2013): no licence stated, released for research",
        "all of them": "experiments/data.sha256 has where each was taken from, how it was made, and its sha256",
    },
    conditions={
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


def main(runs: str, out: str | None = None) -> None:
    """Print drift and exponents of the study's finished runs below ``runs``; write table and figure into ``out``."""
    import pandas as pd

    from toolkit.reporting.chart_files import write_charts
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
        regime, rate = planned.cell.condition.split(" at ")
        run = open_run(planned.path)
        place = {"task": planned.cell.task, "rate": float(rate), "seed": planned.cell.seed}
        last = run.scores[(run.scores["epoch"] == run.scores["epoch"].max()) & (run.scores["split"] == "validation")]
        scores.append({**place, "regime": regime, "accuracy": float(last["accuracy"].iloc[0])})
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
            write_csvs(folder / "tables", {"drift_by_rate": table}, float_format="%.6g")
            write_charts(folder / "figures", {"learning_rates": plot_rates(table, scored)})


def exponents(table: Any) -> Any:
    """b by task, rows and the lower of two neighbouring rates: the slope of log drift on log rate, mean over seeds."""
    import numpy as np

    wide = (
        np.log(table.set_index(["task", "rows", "seed", "rate"])["relative_drift"]).unstack("rate").sort_index(axis=1)
    )
    slopes = wide.diff(-1, axis=1) / -np.diff(np.log(wide.columns), append=np.nan)
    return slopes.iloc[:, :-1].stack().groupby(level=["task", "rows", "rate"], sort=False).mean()


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
            lines[-1]["without_rounding"] = float(1 - (1 - log.learning_rates * log.weight_decay[name]).prod())
    drift = toolkit.measure_drift(run)
    at = drift[(drift["epoch"] == last) & (drift["measure"] == "relative") & (drift["statistic"] == "value")]
    whole = at[at["stratum"] == "whole parameter"].set_index("parameter")["value"]
    return lines + [{"rows": name, "relative_drift": float(whole[name])} for name in VECTORS]


def plot_rates(drift: Any, scores: Any) -> Any:
    """An Altair chart, a column per task: relative drift over the rate above, accuracy below, means over seeds.

    ``drift`` has the columns of drift_by_rate.csv, ``scores`` task, rate, seed, regime and accuracy.
    """
    import altair

    from toolkit.reporting.charts import WIDTH, colour, data_of, shape

    tasks, rows = list(dict.fromkeys(drift["task"])), list(dict.fromkeys(drift["rows"]))
    above, below = [], []
    for task in tasks:
        own, scored = drift[drift["task"] == task], scores[scores["task"] == task]
        means = own.groupby(["rows", "rate"], sort=False)["relative_drift"].mean().reset_index()
        ends = [own["rate"].min(), own["rate"].max()]
        start = 2 * own.loc[own["rate"] == ends[0], "relative_drift"].max()
        line = [{"rate": rate, "relative_drift": start * rate / ends[0]} for rate in ends]
        powers = altair.Axis(values=[10.0**k for k in range(-8, 3)], format="~e")
        y = altair.Y("relative_drift:Q", title="drift / norm before", scale=altair.Scale(type="log"), axis=powers)
        dotted = altair.Chart(altair.Data(values=line)).mark_line(strokeDash=[2, 3], color="#767B84")
        marks = altair.Chart(data_of(means)).encode(color=colour("rows", rows, columns=3), tooltip=_tips("rows"))
        dots = marks.mark_point(filled=True, opacity=1).encode(_rate(None), y, shape=shape("rows", rows, columns=3))
        lines = marks.mark_line().encode(_rate(None), y)
        upper = altair.layer(dotted.encode(_rate(None), y), lines, dots).properties(title=task)
        # Each regime's mean as a line, and its seeds as dots.
        regimes = altair.Chart(data_of(scored)).encode(
            _rate("peak learning rate"), color=colour("regime", REGIMES, columns=2)
        )
        accuracy = altair.Scale(zero=False)
        mean = regimes.mark_line().encode(altair.Y("mean(accuracy):Q", title="accuracy (validation)", scale=accuracy))
        seeds = regimes.mark_point(filled=True, size=16).encode(
            altair.Y("accuracy:Q", scale=accuracy), shape=shape("regime", REGIMES, columns=2), tooltip=_tips("regime")
        )
        size = {"width": WIDTH // len(tasks) - 65, "height": 160}
        above.append(upper.properties(**size))
        below.append(altair.layer(mean, seeds).properties(**size))
    both = altair.vconcat(altair.hconcat(*above), altair.hconcat(*below))
    return both.resolve_scale(color="independent", shape="independent")


def _rate(title: str | None) -> Any:
    import altair

    values = [float(rate) for rate in RATES]
    scale = altair.Scale(type="log", nice=False, padding=10)
    return altair.X("rate:Q", title=title, scale=scale, axis=altair.Axis(values=values, format="~e"))


def _tips(series: str) -> list[str]:
    return [f"{series}:N", "rate:Q", "relative_drift:Q" if series == "rows" else "accuracy:Q"]


if __name__ == "__main__":
    import tyro

    from toolkit.cli import guarded

    raise SystemExit(guarded(lambda: tyro.cli(main, config=(tyro.conf.Positional,))))
