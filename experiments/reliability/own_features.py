"""Question: do feature recipes and their linear probe equal code that shares nothing with the toolkit?

Features by transformers, one text at a time, pooled by hand, and scikit-learn's own search over C and scaling, on the
same rows, against ``finetune.py --freeze backbone``: features to 1e-6 of their norm, answers of the probe to the item.
The search is told the probe's four rules, as its docstring has them: the choice is made on a drawn part; it is by log
loss of those within a standard error of the highest accuracy; coordinates share one scale or have each their own; one
whose standard deviation is at most 1e-6 of its mean's size varies by rounding only and counts as constant.

Features are fp32, as transformers gives them. In float64 u*v of pairs differs in two coordinates, where u and v are
about 1e-32 and their product is below fp32: divided by their standard deviation they count like all others, and 6 of
200 answers change (2 correct ones). That is what standardising does to values that mean nothing, here or anywhere.

The data are those of experiments/feature_extraction_vs_finetuning.py; experiments/data.sha256 has their sources,
licences and sha256.

    python experiments/reliability/own_features.py     # 4 minutes; writes own_features.json beside itself
"""

import csv
import json
import os
import tempfile
import warnings
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from transformers import AutoModel, AutoTokenizer, BertModel

from toolkit import RunConfig, finetune
from toolkit.cli import guarded
from toolkit.snapshots.tokenizer_files import find_embedded
from toolkit.training.features import LinearProbe, linear_probe

DATA = os.environ.get("EMBEDDING_DRIFT_DATA", "../shared/data")
TEXTS = {"sst2": ("text",), "trec": ("text",), "cad_nli_original": ("sentence1", "sentence2")}
RECIPES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sst2", {}),
    ("sst2", {"features": "last4-concat"}),
    ("trec", {}),
    ("trec", {"features": "second-to-last"}),
    ("cad_nli_original", {}),
    ("cad_nli_original", {"pair_encoding": "separate"}),
    ("cad_nli_original", {"pair_encoding": "separate", "features": "last4-sum"}),
)
LAYERS = {"last": (6,), "second-to-last": (5,), "last4-concat": (3, 4, 5, 6), "last4-sum": (3, 4, 5, 6)}
STRENGTHS = [10.0**k for k in range(-4, 3)]


MOST_ROWS = 2000
"""Of a training file, its first."""


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


class Own:
    """Mean-pooled states of chosen layers, one text or pair at a time: no batch, no padding, no cache."""

    def __init__(self) -> None:
        folder = find_embedded("minilm")
        self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self.model = AutoModel.from_pretrained(folder, trust_remote_code=False).eval()
        assert isinstance(self.model, BertModel)

    @torch.no_grad()
    def pool(self, layers: tuple[int, ...], is_summed: bool, *texts: str) -> np.ndarray:
        encoded = self.tokenizer(*texts, truncation=True, max_length=128, return_tensors="pt")
        states = self.model(**encoded, output_hidden_states=True).hidden_states
        pooled = [states[k][0].mean(dim=0).numpy() for k in layers]
        return np.sum(pooled, axis=0) if is_summed else np.concatenate(pooled)

    def features(self, rows: list[dict[str, str]], task: str, recipe: dict[str, Any]) -> np.ndarray:
        name = recipe.get("features", "last")
        how = LAYERS[name], name == "last4-sum"
        texts = [[row[column] for column in TEXTS[task]] for row in rows]
        if recipe.get("pair_encoding") != "separate":
            return np.array([self.pool(*how, *own) for own in texts])
        pairs = [(self.pool(*how, a), self.pool(*how, b)) for a, b in texts]
        return np.array([np.concatenate([u, v, np.abs(u - v), u * v]) for u, v in pairs])


class Scale(FunctionTransformer):  # type: ignore[misc]
    """Centred; divided by each coordinate's own standard deviation, or by one number, but never by rounding."""

    def __init__(self, is_own: bool = True) -> None:
        super().__init__()
        self.is_own = is_own

    def fit(self, inputs: np.ndarray, labels: Any = None) -> "Scale":
        self.mean_, spread = inputs.mean(axis=0, dtype=np.float64), inputs.std(axis=0, dtype=np.float64)
        is_rounding = spread <= 1e-6 * np.abs(self.mean_)
        self.scale_ = spread if self.is_own else np.full_like(spread, np.sqrt(np.square(spread).mean()))
        self.scale_ = np.where(is_rounding, np.inf, self.scale_)
        self.num_rounding_ = int(is_rounding.sum())
        return self

    def transform(self, inputs: np.ndarray) -> np.ndarray:
        return np.asarray((inputs - self.mean_) / self.scale_)


def searched(train: np.ndarray, labels: np.ndarray, seed: int = 0) -> tuple[Any, np.ndarray]:
    limit = max(1000, 2_000_000 // train.shape[1])
    order = np.random.default_rng([*b"probe", seed]).permutation(len(train))
    chosen = np.sort(order[:limit]) if len(train) > limit else np.arange(len(train))
    found = []
    for is_own, strength in product((True, False), STRENGTHS):
        model = make_pipeline(Scale(is_own), LogisticRegression(C=strength, max_iter=300))
        folds = StratifiedKFold(5, shuffle=True, random_state=seed)
        given = {"estimator": model, "X": train[chosen], "y": labels[chosen], "cv": folds, "n_jobs": 2}
        hits = 1.0 * (cross_val_predict(**given) == labels[chosen])
        found.append((hits, cross_val_score(**given, scoring="neg_log_loss").mean(), model))
    most = max((hits for hits, _, _ in found), key=np.mean)
    near = [own for own in found if (most - own[0]).mean() <= (most - own[0]).std() / len(most) ** 0.5]
    _, _, best = max(near, key=lambda own: own[1])  # the first where equal
    return best.fit(train, labels), chosen


def of_toolkit(train: Path, dev: Path, texts: tuple[str, ...], recipe: dict[str, Any]) -> dict[str, Any]:
    """What the run's probe read and answered: train and validation."""
    found: dict[str, Any] = {}

    def listening(head: Any, features: Any, data: Any, seed: int) -> LinearProbe | None:
        probe = linear_probe(head, features, data, seed)
        assert probe is not None
        read = {name: torch.from_numpy(array) for name, array in features.items()}
        inputs = {name: head.inputs(x) if hasattr(head, "inputs") else x for name, x in read.items()}
        found.update(
            probe=probe, labels=data.splits["train"].labels, inputs={name: x.numpy() for name, x in inputs.items()}
        )
        return probe

    with tempfile.TemporaryDirectory() as folder, patch("toolkit.pipeline.linear_probe", listening):
        config = RunConfig(
            train_file=str(train),
            validation_file=str(dev),
            text_columns=texts,
            tsv_quotes="keep",
            freeze="backbone",
            precision="no",
            epochs=1,
            head_training="epochs",
            output_dir=str(Path(folder) / "run"),
            **recipe,
        )
        finetune(config)
    return found


def file_of(task: str, part: str) -> Path:
    """A data file; ValueError, which says what is needed, where it is not there."""
    if not (path := Path(DATA) / task / f"{part}.tsv").is_file():
        said = f"this needs {', '.join(TEXTS)} in the folder that EMBEDDING_DRIFT_DATA names, now {DATA}"
        raise ValueError(f"no file at {path}: {said}; experiments/data.sha256 says how they are made")
    return path


def main() -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    file_of(RECIPES[0][0], "train")  # before the model, which takes seconds
    own_model, results = Own(), []
    for task, recipe in RECIPES:
        with tempfile.TemporaryDirectory() as folder:
            lines = file_of(task, "train").read_text(encoding="utf-8").split("\n")
            (train_file := Path(folder) / "train.tsv").write_text("\n".join(lines[: MOST_ROWS + 1]), encoding="utf-8")
            dev_file = file_of(task, "test" if task == "trec" else "dev")
            theirs = of_toolkit(train_file, dev_file, TEXTS[task], recipe)
            train, dev = rows_of(train_file), rows_of(dev_file)
        names = sorted({row["label"] for row in train})
        own_dev = own_model.features(dev, task, recipe)
        lengths, change = np.linalg.norm(own_dev, axis=1), own_dev - theirs["inputs"]["validation"]
        apart, farthest = np.linalg.norm(change) / np.linalg.norm(own_dev), np.linalg.norm(change, axis=1) / lengths
        labels = np.array([names.index(row["label"]) for row in train])
        assert (labels == theirs["labels"]).all()
        fitted, _ = searched(own_model.features(train, task, recipe), labels)
        own = fitted.predict(own_dev)
        answers = theirs["probe"].outputs["validation"].argmax(axis=1)
        true = np.array([names.index(row["label"]) for row in dev])
        results.append(
            {
                "task": task,
                **recipe,
                "features_apart": float(f"{apart:.2g}"),
                "farthest_example": float(f"{farthest.max():.2g}"),
                "coordinates_of_rounding": fitted[0].num_rounding_,
                "own_score": round(float((own == true).mean()), 4),
                "toolkit_score": round(float((answers == true).mean()), 4),
                "answers_that_differ": int((own != answers).sum()),
                "num_answers": len(dev),
                "own_choice": [fitted[1].C, fitted[0].is_own],
                "toolkit_choice": [theirs["probe"].choice[name] for name in ("strength", "is_standardised")],
            }
        )
        print(json.dumps(results[-1]), flush=True)
    Path(__file__).with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if any(line["answers_that_differ"] or line["features_apart"] > 1e-6 for line in results):
        raise SystemExit("the toolkit and own code differ")


if __name__ == "__main__":
    raise SystemExit(guarded(main))
