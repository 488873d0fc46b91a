"""Question: does fine-tuning distort features, and does training the head first (LP-FT) keep it from doing so?

Full fine-tuning, LP-FT and feature extraction on two built-in tasks with out-of-distribution test splits: how far
pooled features move in and out of distribution, how well the head was aligned at the start, and how large the first
gradients of embeddings, body and head are. Idea: Kumar et al. 2022 (arXiv 2202.10054).

    python experiments/feature_distortion.py --out reports/feature_distortion [--seeds 3] [--runs runs]

Finished runs are kept, so that the command can be repeated after an interruption. Each keeps its model (about 90 MB,
beside some 190 MB of snapshots).
"""

from pathlib import Path
from typing import Any

from toolkit.config import RunConfig

ARMS: dict[str, dict[str, Any]] = {
    "full fine-tuning": {"freeze": "none"},
    "LP-FT": {"freeze": "none", "head_epochs": 3},
    "feature extraction": {"freeze": "backbone", "head_training": "epochs"},
}
TASKS = ("polarity", "order")
SEEDS = 3
CAVEATS = (
    "Two small controlled tasks, 1,000 examples, three epochs, one learning rate, nothing tuned.",
    "The embedded model minilm (all-MiniLM-L6-v2) is a BERT that was tuned on single sentences: its features fit heads "
    "better than raw BERT's, and how far they are distorted is no claim about raw BERT.",
    "A distance of features is no loss of quality: whether it costs accuracy is in the comparison of scores "
    "(reports/feature_extraction_vs_finetuning).",
)


def list_configs(runs: str, seeds: int) -> dict[RunConfig, str]:
    """Configs of the runs, each with its arm."""
    common: dict[str, Any] = {"max_train_examples": 1000, "save_model": True, "output_dir": runs}
    return {
        RunConfig(task=task, seed=seed, **common, **fields): arm
        for task in TASKS
        for seed in range(seeds)
        for arm, fields in ARMS.items()
    }


def main(*, out: Path, runs: str = "runs", seeds: int = SEEDS) -> None:
    """Run what is missing, and write the report.

    Args:
        out: folder of the report
        runs: parent of run directories
        seeds: seeds per arm and task
    """
    from toolkit.naming import shown_path
    from toolkit.reporting.folder import check_out, write_page

    check_out(out)  # before what takes seconds to import
    from distortion import arm_differences, arm_means, distortion_page, measure_distortion
    from toolkit.pipeline import finetune

    finished = {finetune(config, reuse_finished=True): arm for config, arm in list_configs(runs, seeds).items()}
    table = measure_distortion(list(finished))
    table.insert(0, "condition", table["run"].map({run.path.resolve().name: arm for run, arm in finished.items()}))
    command = f"python experiments/feature_distortion.py --out {shown_path(out)}" + (
        f" --seeds {seeds}" if seeds != SEEDS else ""
    )
    title = "Does fine-tuning distort features?"
    means, differences = arm_means(table), arm_differences(table)
    page = distortion_page(means, differences, title=title, command=command, caveats=CAVEATS)
    tables = {"distortion": table, "means": means, "differences": differences}
    print(f"Report: {write_page(page, out, tables)}")


if __name__ == "__main__":
    import tyro

    from toolkit.cli import guarded

    raise SystemExit(guarded(lambda: tyro.cli(main, description=__doc__)))
