"""Question: in which layers do the states change in fine-tuning, and is that more than two seeds or shuffled labels do?

Full fine-tuning, embeddings frozen and full fine-tuning on shuffled labels, on 2,000 examples of SST-2; layers are
compared on SST-2's dev texts, on product reviews (cr) and on questions (trec). Hypothesis, the published expectation
(Merchant et al. 2020, arXiv 2004.14448): the states of the top layers change most. They inherit what happened below;
how far each layer's own weights moved stands beside it, and is the question of experiments/weight_drift.py.

    python experiments/layer_drift.py --out reports/layer_drift [--seeds 3] [--runs runs/layer_drift]

The data are not part of this repository: ../shared/data, or the folder that EMBEDDING_DRIFT_DATA names, holds sst2/,
cr/ and trec/ as .tsv files; experiments/data.sha256 has their sources, licences and sha256. Runs keep their model,
about 90 MB each; finished ones are used again.
"""

import os
from pathlib import Path
from typing import Any

from toolkit.config import RunConfig

DATA = os.environ.get("EMBEDDING_DRIFT_DATA", "../shared/data")
SST2: dict[str, Any] = {
    "train_file": f"{DATA}/sst2/train.tsv",
    "validation_file": f"{DATA}/sst2/dev.tsv",
    "max_train_examples": 2000,
    "remove_near_duplicates": True,
}
CONDITIONS: dict[str, dict[str, Any]] = {
    "full fine-tuning": {"freeze": "none"},
    "embeddings frozen": {"freeze": "embeddings"},
    "shuffled labels": {"freeze": "none", "shuffle_labels": True},
}
SEEDS = 3
TEXTS = (f"sst2={DATA}/sst2/dev.tsv", f"product reviews={DATA}/cr/all.tsv", f"questions={DATA}/trec/test.tsv")


def list_configs(seeds: int, output_dir: str) -> list[tuple[str, RunConfig]]:
    """Condition and config of every run: all conditions of one seed after the other."""
    common: dict[str, Any] = {**SST2, "save_model": True, "output_dir": output_dir}
    return [
        (condition, RunConfig(seed=seed, **common, **fields))
        for seed in range(seeds)
        for condition, fields in CONDITIONS.items()
    ]


def main(*, out: Path, seeds: int = SEEDS, runs: str = "runs/layer_drift") -> None:
    """Train what is missing and write the report.

    Args:
        out: folder of the report
        seeds: seeds per condition
        runs: parent of the run directories
    """
    from toolkit.naming import shown_path
    from toolkit.pipeline import finetune
    from toolkit.questions.layers.page import layers_page
    from toolkit.questions.layers.states import measure_layers
    from toolkit.questions.models import read_texts
    from toolkit.reporting.folder import check_out, write_page

    check_out(out)
    configs = list_configs(seeds, runs)
    finished = [finetune(config, reuse_finished=True) for _, config in configs]
    labels = {run.path.resolve().name: condition for run, (condition, _) in zip(finished, configs, strict=True)}
    tables = measure_layers(finished, read_texts(TEXTS, ("text",)), labels=labels)
    command = f"python experiments/layer_drift.py --out {shown_path(out)}" + (
        f" --seeds {seeds}" if seeds != SEEDS else ""
    )
    title = "What changed in each layer, and what moved"
    page = layers_page(tables, models={config.model for _, config in configs}, title=title, command=command)
    print(f"Report: {write_page(page, out, tables)}")


if __name__ == "__main__":
    import tyro

    from toolkit.cli import guarded

    raise SystemExit(guarded(lambda: tyro.cli(main, description=__doc__)))
