"""Question: does fine-tuning distort features, and does training the head first (LP-FT) keep it from doing so?

Full fine-tuning, LP-FT and feature extraction on two built-in tasks with out-of-distribution test splits: how far
pooled features move in and out of distribution, how well the head was aligned at the start, and how large the first
gradients of embeddings, body and head are. Idea: Kumar et al. 2022 (arXiv 2202.10054).

    python experiments/feature_distortion.py --out reports/feature_distortion.csv [--seeds 3] [--runs runs]

Finished runs are kept, so that the command can be repeated after an interruption. Each keeps its model (about 90 MB,
beside some 190 MB of snapshots).
"""

import argparse
from pathlib import Path
from typing import Any

from toolkit.config import RunConfig

ARMS: dict[str, dict[str, Any]] = {
    "full fine-tuning": {"freeze": "none"},
    "LP-FT": {"freeze": "none", "head_epochs": 3},
    "feature extraction": {"freeze": "backbone"},
}
TASKS = ("polarity", "order")


def list_configs(runs: str, seeds: int) -> dict[RunConfig, str]:
    """Configs of the runs, each with its arm."""
    common: dict[str, Any] = {"max_train_examples": 1000, "save_model": True, "output_dir": runs}
    return {
        RunConfig(task=task, seed=seed, **common, **fields): arm
        for task in TASKS
        for seed in range(seeds)
        for arm, fields in ARMS.items()
    }


def main() -> None:
    """Run what is missing, print the mean over seeds and write every value."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="CSV file for the table, one value per line")
    parser.add_argument("--runs", default="runs", help="parent of run directories (default: runs)")
    parser.add_argument("--seeds", type=int, default=1, help="seeds per arm and task (default: 1)")
    arguments = parser.parse_args()
    from toolkit.pipeline import finetune
    from toolkit.probes.distortion import measure_distortion

    configs = list_configs(arguments.runs, arguments.seeds)
    runs = {finetune(config, reuse_finished=True): arm for config, arm in configs.items()}
    table = measure_distortion(list(runs))
    table.insert(0, "arm", table["run"].map({run.path.resolve().name: arm for run, arm in runs.items()}))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(arguments.out, index=False)
    means = table.groupby(["task", "quantity", "place", "arm"], sort=False)["value"].mean().unstack("arm")
    print(means.to_string(float_format="{:.3f}".format))
    print(f"Every value: {arguments.out}")


if __name__ == "__main__":
    main()
