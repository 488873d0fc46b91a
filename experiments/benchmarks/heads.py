"""Question: does the head of ``--freeze backbone`` score what scikit-learn's cross-validated head does on its features?

SST-2 and TREC as in experiments/feature_extraction_vs_finetuning.py, and CR cut into 80 and 20 % (seed 0), by three
forms of features and three seeds, each of which draws other 2,000 training examples. A case holds where the run's
accuracy is at most one point below that of LogisticRegressionCV(Cs=logspace(-4, 4, 9), cv=5) on standardised
features, which chooses by accuracy and shares nothing with the toolkit but the features.

    python experiments/benchmarks/heads.py     # some seven minutes; it writes nothing

The data are those of experiments/data.sha256, in ../shared/data or the folder that EMBEDDING_DRIFT_DATA names.
"""

import os
import tempfile
import warnings
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from toolkit import RunConfig, finetune
from toolkit.cli import guarded
from toolkit.training.evaluation import extract_features

DATA = Path(os.environ.get("EMBEDDING_DRIFT_DATA", "../shared/data"))
FORMS: tuple[dict[str, Any], ...] = ({"features": "last"}, {"features": "last4-concat"}, {"pooling": "cls"})


def compare(train: Path, validation: Path, folder: Path, **settings: Any) -> tuple[float, float, dict[str, Any]]:
    """Accuracy of the run, of scikit-learn on the features that the run read, and what the run says of its head."""
    read: dict[str, Any] = {}

    def listening(accelerator: Any, model: Any, data: Any) -> Any:
        read.update(features=extract_features(accelerator, model, data), splits=data.splits)
        return read["features"]

    files: dict[str, Any] = {"train_file": str(train), "validation_file": str(validation), "output_dir": str(folder)}
    with (
        patch("toolkit.pipeline.extract_features", listening),
        patch("toolkit.pipeline.measure_floors", lambda *_: None),
    ):
        run = finetune(RunConfig(freeze="backbone", max_train_examples=2000, overwrite=True, **files, **settings))
    (x, y), scored = [(read["features"][name], read["splits"][name].labels) for name in ("train", "validation")]
    theirs = make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=np.logspace(-4, 4, 9), cv=5, max_iter=300))
    own = float(run.scores[run.scores["split"] == "validation"]["accuracy"].iloc[-1])
    return own, theirs.fit(x, y).score(*scored), run.manifest["head_training"]


def main() -> None:
    warnings.simplefilter("ignore")
    held, cr = [], DATA / "cr" / "all.tsv"
    missing = [path for path in (cr, DATA / "sst2" / "train.tsv", DATA / "trec" / "train.tsv") if not path.is_file()]
    if missing:
        raise ValueError(
            f"no file at {missing[0]}: pass the folder of sst2, trec and cr as EMBEDDING_DRIFT_DATA, which is now "
            f"{DATA}; experiments/data.sha256 says how they are made"
        )
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        header, *lines = cr.read_text(encoding="utf-8").splitlines()
        order, size = np.random.default_rng(0).permutation(lines).tolist(), len(lines) // 5
        for name, part in (("dev", order[:size]), ("train", order[size:])):
            (folder / f"{name}.tsv").write_text("\n".join([header, *part]) + "\n", encoding="utf-8")
        tasks = {"sst2": (DATA / "sst2", "dev"), "trec": (DATA / "trec", "test"), "cr": (folder, "dev")}
        for (task, (files, scored)), form, seed in product(tasks.items(), FORMS, range(3)):
            paths = (files / "train.tsv", files / f"{scored}.tsv", folder / "run")
            own, theirs, head = compare(*paths, seed=seed, **form)
            held.append(own >= theirs - 0.01)
            said = f"{task:5} {'-'.join(form.values()):13} seed {seed}: {own:.4f}, scikit-learn {theirs:.4f}"
            print(f"{said}, {'holds' if held[-1] else 'FAILS'}; {head['chosen']}: {head['convex']}", flush=True)
    print(f"{sum(held)} of {len(held)} hold")


if __name__ == "__main__":
    raise SystemExit(guarded(main))
