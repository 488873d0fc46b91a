"""Question: learned, sinusoidal, shuffled or no positions: does it matter which table fine-tuning starts from?

The position table is replaced before training, and everything is trained. Two built-in tasks need word order to
different degrees: in `order` nothing but position tells the label; in `pair` the segments tell which sentence is
first, and position may help. "none at all" (zeros that stay zeros) is the control: on `order` it must be at chance.
"learned, added again" repeats the checkpoint's positions before each layer.

    python -m toolkit study experiments/position_tables.py --dry-run
    python -m toolkit study experiments/position_tables.py

With POSITION_TABLES_SST2=1 set, SST-2 is a third task (../shared/data, or the folder that EMBEDDING_DRIFT_DATA names,
holds sst2/train.tsv and sst2/dev.tsv; experiments/data.sha256 has their source, licence and sha256). The report's drift
is relative to the table that training started from, and undefined for zeros; the distances of each trained table from
its start and from the checkpoint's:

    python experiments/position_tables.py runs [OUT.csv]
"""

import os
import sys
from pathlib import Path
from typing import Any

from toolkit import Comparison, Study

DATA = os.environ.get("EMBEDDING_DRIFT_DATA", "../shared/data")
TASKS: dict[str, dict[str, Any]] = {"order": {"task": "order"}, "pair": {"task": "pair"}}
SST2: dict[str, Any] = {"train_file": f"{DATA}/sst2/train.tsv", "validation_file": f"{DATA}/sst2/dev.tsv"}

STUDY = Study(
    title="Position tables",
    question="Learned, sinusoidal, shuffled or no positions: does it matter which table fine-tuning starts from?",
    hypothesis=(
        "The checkpoint's table is best, because the layers were trained with it; sinusoids and shuffled rows, which "
        "the layers cannot read, are learned anew and cost points on order; without any positions order is at chance."
    ),
    conditions={
        "learned": {},
        "sinusoidal": {"positions": "sinusoidal"},
        "shuffled": {"positions": "shuffled"},
        "zero at the start": {"positions": "zero"},
        "none at all": {"positions": "zero", "freeze": "position_embeddings"},
        "learned, added again": {"reinject_positions": True},
    },
    tasks=TASKS | ({"sst2": SST2} if os.environ.get("POSITION_TABLES_SST2") else {}),
    common={"max_train_examples": 1000, "epochs": 3},
    seeds=range(3),
    margin_points=2.0,
    comparisons=[
        Comparison("learned", "sinusoidal"),
        Comparison("learned", "shuffled"),
        Comparison("sinusoidal", "shuffled"),
        Comparison("learned", "zero at the start"),
        Comparison("learned", "none at all"),
        Comparison("learned", "learned, added again"),
    ],
)


def main(runs: str, out: str | None = None) -> None:
    """Print how far the position tables of the study's finished runs below ``runs`` moved; write it to ``out``."""
    import pandas as pd

    from toolkit.snapshots import files
    from toolkit.snapshots.csv_tables import csv_of
    from toolkit.snapshots.store import open_run
    from toolkit.studies.plan import plan_runs

    if out and os.path.lexists(out):
        sys.exit(f"{out} is there already: pass another path")
    finished = [run for run in plan_runs(STUDY.final_cells({}), runs) if run.is_finished]
    if not finished:
        sys.exit(f"no finished run of the study below {runs}: run it first (see the top of {Path(__file__).name})")
    opened = {run.name: open_run(run.path) for run in finished}
    learned = next((opened[run.name] for run in finished if run.cell.condition == "learned"), None)
    if learned is None:
        sys.exit("no finished run of the condition 'learned': its first snapshot is the checkpoint's table")
    lines = [
        {
            "task": run.cell.task,
            "condition": run.cell.condition,
            "seed": run.cell.seed,
            **_moved(opened[run.name], learned),
        }
        for run in finished
    ]
    table = pd.DataFrame(lines)
    means = table.drop(columns="seed").groupby(["task", "condition"], sort=False).mean()
    print(means.to_string(float_format="{:.3f}".format))
    if out:
        files.write_text(Path(out), csv_of(table))


def _moved(run: Any, learned: Any) -> dict[str, float]:
    """Accuracy, and root mean square distances per row (over rows that training showed) of the position table."""
    import numpy as np

    first, last = (run.trajectory.snapshots[i].tensors["position_embeddings"] for i in (0, -1))
    checkpoint = learned.trajectory.snapshots[0].tensors["position_embeddings"]
    rows = np.flatnonzero(run.trajectory.exposure.tables["position_embeddings"].step_counts(len(first)))

    def distance(one: Any, other: Any) -> float:
        difference = np.asarray(one[rows], np.float64) - other[rows]
        return float(np.sqrt((difference**2).sum(axis=1).mean()))

    scores = run.scores[run.scores["epoch"] == run.scores["epoch"].max()].set_index("split")["accuracy"]
    return {
        **{split: float(value) for split, value in scores.items()},
        "num_rows_shown": len(rows),
        "norm_at_start": distance(first, 0 * first),
        "from_start": distance(last, first),
        "from_checkpoint_at_start": distance(first, checkpoint),
        "from_checkpoint_at_end": distance(last, checkpoint),
    }


if __name__ == "__main__":
    import tyro

    from toolkit.cli import guarded

    raise SystemExit(guarded(lambda: tyro.cli(main, config=(tyro.conf.Positional,))))
