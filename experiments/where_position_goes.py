"""Question: where does position go, layer by layer, and does fine-tuning change that?

Full fine-tuning, embeddings frozen and feature extraction, three seeds each, and one seed from random weights, on
single sentences (sst2) and on pairs (cad_nli_original: segments). Hypothesis, the published expectation: position
dominates the lower layers and gives way to content; fine-tuning changes the top layers most.

    python experiments/where_position_goes.py --out reports/where_position_goes

The data are not part of this repository: ../shared/data, or the folder that EMBEDDING_DRIFT_DATA names, holds sst2/ and
cad_nli_original/ as .tsv files; experiments/data.sha256 has their sources, licences and sha256. Runs keep their model,
about 90 MB each. Finished ones are used again, so that the command can be repeated after an interruption; `python -m
toolkit flow RUNS --out DIR` makes the report from them alone.
"""

import os
from pathlib import Path
from typing import Any

from toolkit.config import RunConfig
from toolkit.naming import select, shown_path

DATA = os.environ.get("EMBEDDING_DRIFT_DATA", "../shared/data")
TASKS: dict[str, dict[str, Any]] = {
    "sst2": {
        "train_file": f"{DATA}/sst2/train.tsv",
        "validation_file": f"{DATA}/sst2/dev.tsv",
        "max_train_examples": 2000,
    },
    "cad_nli_original": {
        "train_file": f"{DATA}/cad_nli_original/train.tsv",
        "validation_file": f"{DATA}/cad_nli_original/dev.tsv",
        "test_file": (f"test={DATA}/cad_nli_original/test.tsv",),
        "text_columns": ("sentence1", "sentence2"),
        "tsv_quotes": "keep",  # a few sentences stand in marks of their own
    },
}
CONDITIONS: dict[str, dict[str, Any]] = {
    "full fine-tuning": {"freeze": "none"},
    "embeddings frozen": {"freeze": "embeddings"},
    # A head on cached features needs many epochs, and each takes a second.
    "feature extraction": {"freeze": "backbone", "epochs": 30, "head_training": "epochs"},
    "random init": {"freeze": "none", "init": "random", "learning_rate": 5e-4},
}
SEEDS = 3
ONE_SEED = ("random init",)


def list_configs(seeds: int, output_dir: str) -> dict[str, list[RunConfig]]:
    """Condition to its runs, all tasks of one seed after the other."""
    common: dict[str, Any] = {"save_model": True, "remove_near_duplicates": True, "output_dir": output_dir}
    return {
        condition: [
            RunConfig(seed=seed, **{**common, **fields, **task})
            for seed in range(1 if condition in ONE_SEED else seeds)
            for task in TASKS.values()
        ]
        for condition, fields in CONDITIONS.items()
    }


def main(
    *,
    out: Path,
    seeds: int = SEEDS,
    runs: str = "runs/where_position_goes",
    conditions: tuple[str, ...] = tuple(CONDITIONS),
) -> None:
    """Train what is missing and write the report.

    Args:
        out: folder of the report
        seeds: seeds per condition
        runs: parent of the run directories
        conditions: train only these
    """
    from toolkit.pipeline import finetune
    from toolkit.reporting.folder import check_out, write_page

    check_out(out)
    chosen = select(list_configs(seeds, runs), conditions, "condition")
    finished = {
        condition: [finetune(each, reuse_finished=True) for each in configs] for condition, configs in chosen.items()
    }
    if set(finished) != set(CONDITIONS):
        print("Trained; without --conditions the same command also writes the report.")
        return
    from toolkit.questions.flow.measure import FlowSettings, measure_flow
    from toolkit.questions.flow.page import flow_page, flow_tables

    labels = {run.path.resolve().name: condition for condition, own in finished.items() for run in own}
    settings = FlowSettings(num_blocks=16, num_texts=400, num_tokens=2500)  # half a minute for each model on one core
    flow = measure_flow([run.path for own in finished.values() for run in own], labels=labels, settings=settings)
    # Where the runs lie is not shown: the numbers do not depend on it.
    command = f"python experiments/where_position_goes.py --out {shown_path(out)}" + (
        f" --seeds {seeds}" if seeds != SEEDS else ""
    )
    page = flow_page(flow, title="Where position goes", command=command)
    print(f"Report: {write_page(page, out, flow_tables(flow))}")


if __name__ == "__main__":
    import tyro

    from toolkit.cli import guarded

    raise SystemExit(guarded(lambda: tyro.cli(main, description=__doc__)))
