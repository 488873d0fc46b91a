"""Question: do two checkpoints alone tell which rows training exposed?

The exposure that `toolkit.infer_exposure` reads off the weights before and after is held against what the runs logged,
row by row: full fine-tuning, the head first, the embeddings alone, and embeddings frozen (which it must refuse); weight
decay 0, .01 and .1; AdamW and SGD; fp32 and bf16 compute; two tasks; two seeds. Hypothesis: precision and recall are 1
wherever it answers. With --published, also what it reads off weights that others published: numbers, no words.

    python experiments/inferred_exposure.py --out reports/inferred_exposure
    python experiments/inferred_exposure.py --out reports/inferred_exposure --published NAME minilm FOLDER

72 short runs of the embedded model: a quarter of an hour on two cores.
"""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tyro
from tyro.conf import UseAppendAction

from toolkit.config import RunConfig
from toolkit.families import TABLES
from toolkit.naming import shown_path
from toolkit.progress import show
from toolkit.questions.changes.inferred_exposure import EXPOSED, UNEXPOSED, InferredExposure, infer_exposure, infer_from
from toolkit.reporting.charts import COLOURS, Chart, altair
from toolkit.reporting.folder import write_page
from toolkit.reporting.page import ChartBlock, Page, Section, rows_block, stated, table_block
from toolkit.snapshots.store import Run

RATES = {"adamw": 5e-5, "sgd": 0.05}
DECAYS = (0.0, 0.01, 0.1)
TASKS = ("polarity", "order")
SEEDS = (0, 1)
COMMON: dict[str, Any] = {"max_train_examples": 256, "epochs": 2}


def list_configs(output_dir: str) -> list[RunConfig]:
    """The config of every run."""
    grid: list[dict[str, Any]] = (
        [
            {"optimizer": optimizer, "learning_rate": RATES[optimizer], "weight_decay": decay, "precision": precision}
            for optimizer, decay, precision in product(RATES, DECAYS, ("no", "bf16"))
        ]
        + [{"head_epochs": 1, "weight_decay": decay} for decay in DECAYS[:2]]
        + [{"freeze": freeze, "weight_decay": decay} for freeze in ("embeddings", "encoder") for decay in DECAYS[:2]]
    )
    return [
        RunConfig(task=task, seed=seed, output_dir=output_dir, **COMMON, **fields)
        for fields, task, seed in product(grid, TASKS, SEEDS)
    ]


def compare(run: Run) -> pd.DataFrame:
    """A line per table: what was logged, what was inferred, and how often both agree."""
    inferred, config, lines = infer_from(run.trajectory), run.config, []
    for line in inferred.tables.to_dict("records"):
        exposure = run.trajectory.exposure
        assert exposure is not None
        seen = exposure.tables[line["parameter"]].step_counts(line["num_rows"]) > 0
        told = inferred.rows.loc[inferred.rows["parameter"] == line["parameter"], "exposure"].to_numpy()
        found = told == EXPOSED
        is_told = not line["reason"]
        lines.append(
            {
                "task": config.task,
                "freeze": config.freeze,
                "head_epochs": config.head_epochs,
                "optimizer": config.optimizer,
                "weight_decay": config.weight_decay,
                "precision": config.precision,
                "seed": config.seed,
                "parameter": line["parameter"],
                "num_exposed_logged": int(seen.sum()),
                "num_exposed_inferred": int(found.sum()),
                "num_untold": int((~found & (told != UNEXPOSED)).sum()) if is_told else len(seen),
                "precision_of_exposed": (found & seen).sum() / found.sum() if is_told and found.any() else float("nan"),
                "recall_of_exposed": (found & seen).sum() / seen.sum() if is_told and seen.any() else float("nan"),
                "sum_lr_decay_logged": summed_decay(run, line["parameter"]),
                **{name: line[name] for name in ("sum_lr_decay", "sum_lr_decay_low", "sum_lr_decay_high")},
                **{name: line[name] for name in ("misfit_unexposed", "misfit_exposed", "reason")},
            }
        )
    return pd.DataFrame(lines)


def summed_decay(run: Run, parameter: str) -> float:
    """-Σ ln(1 - lr·decay) of the schedule, or Σ lr·decay where steps are small; NaN where nothing was trained."""
    log = run.optimizer_log
    if log is None or parameter not in log.weight_decay:
        return float("nan")
    return float(-np.log1p(-pd.Series(log.learning_rates).dropna() * log.weight_decay[parameter]).sum())


def gap_chart(table: pd.DataFrame) -> Chart:
    """The misfits on both sides of the cut, of the words of each run."""
    own = table[(table["parameter"] == TABLES[0]) & (table["reason"] == "")]
    decay = own["weight_decay"].map("{:g}".format)
    own = own.assign(condition=own["optimizer"] + ", decay " + decay + ", " + own["precision"].replace("no", "fp32"))
    names = {"misfit_unexposed": "unexposed: greatest", "misfit_exposed": "exposed: least"}
    lines = own.melt(["condition"], list(names), "rows", "misfit").replace({"rows": names})
    lines["misfit"] = lines["misfit"].clip(lower=1e-9)
    return (
        altair.Chart(lines)
        .mark_point(filled=True, size=45, opacity=0.7)
        .encode(
            x=altair.X(
                "misfit:Q",
                scale=altair.Scale(type="log", domain=(3e-10, 1), nice=False),
                axis=altair.Axis(values=[10.0**i for i in range(-9, 1)], format=".0e"),
                title="misfit (0 stands at 1e-9)",
            ),
            y=altair.Y("condition:N", title=None),
            color=altair.Color("rows:N", scale=altair.Scale(range=[COLOURS[0], COLOURS[1]]), title="words"),
            shape=altair.Shape("rows:N", title="words"),
        )
        .properties(width=520, height=260)
    )


def make_page(table: pd.DataFrame, published: Mapping[str, InferredExposure], command: str) -> Page:
    """What was found, without any word of any text."""
    told = table[table["reason"] == ""]
    scores = ["precision_of_exposed", "recall_of_exposed"]
    by = told.groupby(["parameter", "optimizer", "weight_decay"], sort=False)
    summary = by.agg(
        tables=("seed", "size"),
        precision=(scores[0], "min"),
        recall=(scores[1], "min"),
        untold=("num_untold", "sum"),
        fewest=("num_exposed_logged", "min"),
        most=("num_exposed_logged", "max"),
    ).reset_index()
    refused = table[table["reason"] != ""].groupby(["freeze", "parameter", "reason"], sort=False).size().reset_index()
    inside = (told["sum_lr_decay_low"] <= told["sum_lr_decay_logged"]) & (
        told["sum_lr_decay_logged"] <= told["sum_lr_decay_high"]
    )
    answers = [
        f"{len(table):,} tables of {len(table) // 3:,} runs: {len(told):,} were told, with a least precision of "
        f"{told[scores[0]].min():g} and a least recall of {told[scores[1]].min():g} of their exposed rows; "
        f"{len(table) - len(told):,} were refused.",
        f"The interval of Σ lr·decay held what the log comes to in {inside.sum():,} of {len(told):,}.",
    ]
    caption = "Words of each run: the greatest misfit of the unexposed ones, and the least of the exposed ones."
    header = "parameter,optimizer,decay,tables,least precision,least recall,cannot tell,fewest exposed,most exposed"
    blocks = (
        rows_block(header.split(","), summary.to_numpy().tolist(), "Against the log."),
        rows_block(("frozen", "parameter", "why refused", "tables"), refused.to_numpy().tolist(), "Refused."),
    )
    sections = [Section(id="log", title="Against the log", blocks=blocks)]
    for name, inferred in published.items():
        answers.append(
            f"{name}: {len(inferred.words):,} words were used, the longest text had {inferred.longest_text:g} tokens."
        )
        block = table_block(inferred.tables, inferred.tables, "Published weights, of which no log is known.")
        sections.append(Section(id=f"published-{len(sections)}", title=name, blocks=(block,)))
    return Page(
        title="Which rows training used, told by two checkpoints alone",
        question="Do the weights before and after training tell which words, positions and segments it used?",
        answers=stated(answers),
        picture=ChartBlock(name="misfits", chart=gap_chart(table), caption=caption, alt=caption),
        sections=tuple(sections),
        commands=command,
    )


def main(
    *,
    out: Path,
    runs: str = "runs/inferred_exposure",
    published: UseAppendAction[tuple[tuple[str, str, str], ...]] = (),
) -> None:
    """Train what is missing, compare, and write the report.

    Args:
        out: folder of the report
        runs: parent of the run directories
        published: name, checkpoint before and after of a published pair, also read; once for each
    """
    from toolkit.pipeline import finetune

    finished = [finetune(config, reuse_finished=True) for config in list_configs(runs)]
    exposures = {name: infer_exposure(before, after) for name, before, after in published}
    for inferred in exposures.values():
        show(inferred.words.head(20).to_string())  # here, and nowhere else
    table = pd.concat([compare(run) for run in finished], ignore_index=True)
    command = [f"python experiments/inferred_exposure.py --out {shown_path(out)}"]
    command += [f"--published '{name}' {shown_path(before)} {shown_path(after)}" for name, before, after in published]
    tables = {"runs": table} | {f"published_{i}": one.tables for i, one in enumerate(exposures.values(), start=1)}
    show(f"Report: {write_page(make_page(table, exposures, ' '.join(command)), out, tables)}")


if __name__ == "__main__":
    from toolkit.cli import guarded

    raise SystemExit(guarded(lambda: tyro.cli(main, description=__doc__)))
