"""Question: in which layers do the weights move in fine-tuning, and are these the layers whose states change most?

Full fine-tuning of minilm on five tasks, three seeds each. Hypothesis: the states change most at the top of the encoder
on every task, as published (Merchant et al. 2020, arXiv 2004.14448), but a layer's states inherit what changed in all
layers below it, and the weights move about equally far in all layers, or further at the bottom.

    python experiments/weight_drift.py --out reports/weight_drift [--seeds 3] [--runs runs/weight_drift]

1,000 training examples and 3 epochs, at the learning rate that feature_extraction_vs_finetuning.py chose for each
task: how unevenly layers move depends on the rate. States are compared on every scored split (at most 300 texts each).
`polarity` and `order` are built in; the data of the others are not part of this repository: ../shared/data, or the
folder that EMBEDDING_DRIFT_DATA names, holds sst2/, trec/ and cad_nli_original/ as .tsv files; experiments/data.sha256
has their sources, licences and sha256. Runs keep their model, about 90 MB each; finished ones are used again.
"""

import os
from pathlib import Path
from typing import Any

from toolkit.config import RunConfig

DATA = os.environ.get("EMBEDDING_DRIFT_DATA", "../shared/data")
PAIRS: dict[str, Any] = {"text_columns": ("sentence1", "sentence2"), "tsv_quotes": "keep"}
TASKS: dict[str, dict[str, Any]] = {
    "sst2": {
        "train_file": f"{DATA}/sst2/train.tsv",
        "validation_file": f"{DATA}/sst2/dev.tsv",
        "learning_rate": 5e-5,
    },
    "trec": {
        "train_file": f"{DATA}/trec/train.tsv",
        "validation_file": f"{DATA}/trec/test.tsv",
        "learning_rate": 1.5e-4,
    },
    "cad_nli_original": {
        "train_file": f"{DATA}/cad_nli_original/train.tsv",
        "validation_file": f"{DATA}/cad_nli_original/dev.tsv",
        "learning_rate": 3e-4,
        **PAIRS,
    },
    "polarity": {"task": "polarity", "learning_rate": 5e-5},
    "order": {"task": "order", "learning_rate": 5e-5},
}
"""Name to where it is and the learning rate of full fine-tuning in reports/feature_extraction_vs_finetuning."""
SEEDS, EXAMPLES, EPOCHS = 3, 1000, 3


def list_configs(seeds: int, examples: int, epochs: int, output_dir: str) -> list[RunConfig]:
    """The config of every run, task by task; near-duplicates of scored items are removed from files."""
    common: dict[str, Any] = {
        "max_train_examples": examples,
        "epochs": epochs,
        "save_model": True,
        "output_dir": output_dir,
    }
    return [
        RunConfig(seed=seed, remove_near_duplicates="train_file" in fields, **common, **fields)
        for fields in TASKS.values()
        for seed in range(seeds)
    ]


def main(
    *, out: Path, seeds: int = SEEDS, examples: int = EXAMPLES, epochs: int = EPOCHS, runs: str = "runs/weight_drift"
) -> None:
    """Train what is missing and write the report.

    Args:
        out: folder of the report
        seeds: seeds per task
        examples: training examples
        epochs: epochs
        runs: parent of the run directories
    """
    from toolkit.naming import shown_path
    from toolkit.pipeline import finetune
    from toolkit.questions.layers.page import layers_page
    from toolkit.questions.layers.states import measure_layers
    from toolkit.reporting.folder import write_page

    configs = list_configs(seeds, examples, epochs, runs)
    finished = [finetune(config, reuse_finished=True) for config in configs]
    tables = measure_layers(finished, labels={run.path.resolve().name: "full fine-tuning" for run in finished})
    command = f"python experiments/weight_drift.py --out {shown_path(out)}"
    for name, value, default in (("seeds", seeds, SEEDS), ("examples", examples, EXAMPLES), ("epochs", epochs, EPOCHS)):
        command += f" --{name} {value}" if value != default else ""
    title = "What changed in each layer, and what moved: states and weights on five tasks"
    page = layers_page(tables, models={config.model for config in configs}, title=title, command=command)
    print(f"Report: {write_page(page, out, tables)}")


if __name__ == "__main__":
    import tyro

    from toolkit.cli import guarded

    raise SystemExit(guarded(lambda: tyro.cli(main, description=__doc__)))
