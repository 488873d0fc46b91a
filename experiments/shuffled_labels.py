"""Question: do embeddings move as only real labels move them, or as far, and as alike, when labels mean nothing?

Full fine-tuning on real labels, on one permutation of them that is the same for all seeds, and on another permutation
per seed; SST-2, TREC (question types) and the built-in `order`, five seeds, one learning rate, the same 1,000 training
examples for every seed: of examples that each seed draws anew two seeds would share few targets.
Hypothesis: multiples of sign noise and how far words move are the same under shuffled labels; only under real labels do
two seeds move a word the same way.

    python experiments/shuffled_labels.py --out reports/shuffled_labels [--seeds 5] [--tasks sst2 trec order]

The data are not part of this repository: ../shared/data, or the folder that EMBEDDING_DRIFT_DATA names, holds sst2/
and trec/ as .tsv files; experiments/data.sha256 has their sources, licences and sha256. What is drawn of them, with one
seed, is written below --runs; finished runs are used again.
"""

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.config import RunConfig
from toolkit.snapshots import files

DATA = os.environ.get("EMBEDDING_DRIFT_DATA", "../shared/data")
TASKS = {
    "sst2": (f"{DATA}/sst2/train.tsv", f"{DATA}/sst2/dev.tsv"),
    "trec": (f"{DATA}/trec/train.tsv", f"{DATA}/trec/test.tsv"),
    "order": None,
}
"""Name to its training and validation file; None: built in."""
CONDITIONS: dict[str, dict[str, Any]] = {
    "real labels": {},
    "shuffled, one permutation": {"shuffle_labels": True, "label_seed": 0},
    "shuffled, another per seed": {"shuffle_labels": True},
}
COMMON: dict[str, Any] = {"freeze": "none", "learning_rate": 5e-5, "epochs": 3}
SEEDS, NUM_EXAMPLES = 5, 1000


def main(
    *,
    out: Path,
    seeds: int = SEEDS,
    tasks: tuple[str, ...] = tuple(TASKS),
    examples: int = NUM_EXAMPLES,
    runs: Path = Path("runs/shuffled_labels"),
) -> None:
    """Train what is missing and write the report.

    Args:
        out: folder of the report
        seeds: seeds per condition
        tasks: some of TASKS
        examples: for training
        runs: parent of the run directories
    """
    from toolkit.naming import select, shown_path
    from toolkit.pipeline import finetune
    from toolkit.reporting.comparison_report import write_report

    finished, labels, task_of = [], {}, {}
    for task in select(TASKS, tasks, "task"):
        data = write_data(task, examples, runs / "data")
        for condition, fields in CONDITIONS.items():
            for seed in range(seeds):
                run = finetune(
                    RunConfig(seed=seed, output_dir=str(runs), **data, **COMMON, **fields), reuse_finished=True
                )
                finished.append(run.path)
                labels[run.path.resolve().name], task_of[run.path.resolve().name] = condition, task
    real, *controls = CONDITIONS
    command = f"python experiments/shuffled_labels.py --out {shown_path(out)}"
    for name, value, default in (
        ("seeds", seeds, SEEDS),
        ("examples", examples, NUM_EXAMPLES),
        ("tasks", " ".join(tasks), " ".join(TASKS)),
    ):
        command += f" --{name} {value}" if value != default else ""
    report = write_report(
        finished,
        out,
        title="Real against shuffled labels",
        sources={
            "sst2": "SST-2 (Socher et al. 2013): no licence stated, released for research",
            "trec": "TREC questions (Li and Roth 2002): no licence stated, free for research",
            "all of them": "experiments/data.sha256 has where each was taken from, how it was made, and its sha256",
        },
        question="Do embeddings move as only real labels move them?",
        labels=labels,
        tasks=task_of,
        pairs=[(real, control) for control in controls],
        command=command,
    )
    print(f"Report: {report.path}")


def write_data(task: str, num_examples: int, folder: Path) -> dict[str, Any]:
    """Write the same ``num_examples`` training examples for every seed, with all of validation; the config's fields."""
    from toolkit.data.builtin import BUILTIN_TASKS

    if (paths := TASKS[task]) is not None:
        train, validation = (_read(path) for path in paths)
    else:
        splits = BUILTIN_TASKS[task].build()
        train, validation = (
            [(*texts, str(label)) for texts, label in zip(split.texts, split.labels or (), strict=True)]
            for split in (splits["train"], splits["validation"])
        )
    chosen = np.sort(np.random.default_rng(0).permutation(len(train))[:num_examples])
    own = folder / f"{task}-{num_examples}"
    own.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", [train[i] for i in chosen]), ("validation", validation)):
        text = "\n".join("\t".join(row) for row in [("text", "label"), *rows])
        files.write_new(own / f"{name}.tsv", text + "\n")
    return {f"{name}_file": str(own / f"{name}.tsv") for name in ("train", "validation")}


def _read(path: str) -> list[tuple[str, ...]]:
    """Text and label of every row."""
    with open(path, encoding="utf-8", newline="") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


if __name__ == "__main__":
    import tyro

    from toolkit.cli import guarded

    raise SystemExit(guarded(lambda: tyro.cli(main, description=__doc__)))
