"""Question: do two checkpoints alone tell which rows training exposed?

The exposure that `toolkit.infer_exposure` reads off the weights before and after is held against what the runs logged,
row by row: full fine-tuning, the head first, the embeddings alone, and embeddings frozen (which it must refuse); weight
decay 0, .01 and .1; AdamW and SGD; fp32 and bf16 compute; two tasks; two seeds. Hypothesis: precision and recall are 1
wherever it answers. And with --published, what it reads off a checkpoint that others published.

    python experiments/inferred_exposure.py --out reports/inferred_exposure
    python experiments/inferred_exposure.py --published minilm FOLDER --out reports/inferred_exposure

About 70 short runs of the embedded model: a quarter of an hour on two cores.
"""

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.analysis.inferred_exposure import EXPOSED, UNEXPOSED, InferredExposure, infer_exposure, infer_from
from toolkit.config import RunConfig
from toolkit.snapshots.store import Run

RATES = {"adamw": 5e-5, "sgd": 0.05}
DECAYS = (0.0, 0.01, 0.1)
TASKS = ("polarity", "order")
SEEDS = (0, 1)
COMMON: dict[str, Any] = {"max_train_examples": 256, "epochs": 2}


def list_configs(output_dir: str) -> list[RunConfig]:
    """The config of every run."""
    grid: list[dict[str, Any]] = [
        {"optimizer": optimizer, "learning_rate": RATES[optimizer], "weight_decay": decay, "precision": precision}
        for optimizer, decay, precision in product(RATES, DECAYS, ("no", "bf16"))
    ]
    grid += [{"head_epochs": 1, "weight_decay": decay} for decay in DECAYS[:2]]
    grid += [{"freeze": freeze, "weight_decay": decay} for freeze in ("embeddings", "encoder") for decay in DECAYS[:2]]
    return [
        RunConfig(task=task, seed=seed, output_dir=output_dir, **COMMON, **fields)
        for fields, task, seed in product(grid, TASKS, SEEDS)
    ]


def compare(run: Run) -> pd.DataFrame:
    """A line per table: what was logged, what was inferred, and how often both agree."""
    inferred, config = infer_from(run.trajectory), run.config
    lines = []
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
    """Σ lr·decay of the schedule; NaN where the parameter was not trained."""
    log = run.optimizer_log
    if log is None or parameter not in log.weight_decay:
        return float("nan")
    return float(pd.Series(log.learning_rates).sum() * log.weight_decay[parameter])


def show_published(before: str, after: str) -> InferredExposure:
    """What the weights of others tell; their words are printed and not kept."""
    inferred = infer_exposure(before, after)
    print(inferred)
    print(inferred.words.head(20).to_string())
    return inferred


def main() -> None:
    """Train what is missing, compare, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--runs", default="runs/inferred_exposure", help="parent of the run directories")
    parser.add_argument("--published", nargs=2, metavar=("BEFORE", "AFTER"), help="read these two and train nothing")
    arguments = parser.parse_args()
    from toolkit.pipeline import finetune

    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.published:
        inferred = show_published(*arguments.published)
        inferred.tables.to_csv(arguments.out / "published.csv", index=False)
        return
    runs = [finetune(config, reuse_finished=True) for config in list_configs(arguments.runs)]
    table = pd.concat([compare(run) for run in runs], ignore_index=True)
    table.to_csv(arguments.out / "runs.csv", index=False)
    told = table[table["reason"] == ""]
    print(f"{len(runs)} runs, {len(table)} tables: {len(told)} told, {len(table) - len(told)} refused")
    scores = ["precision_of_exposed", "recall_of_exposed", "num_untold"]
    print(told.groupby(["parameter", "optimizer", "weight_decay"])[scores].agg(["min", "max"]).to_string())


if __name__ == "__main__":
    main()
