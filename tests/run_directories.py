"""A regime, a seed and some oddities in, a tiny finished run directory out: what the report is tested on."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.config import RunConfig
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.snapshots.files import sha256_of_array, sha256_of_file
from toolkit.snapshots.logs import Exposure, OptimizerLog, TableExposure
from toolkit.snapshots.ownership import seal
from toolkit.snapshots.run_writer import RunWriter, facts_of, start_run
from toolkit.snapshots.snapshot import Vocabulary
from toolkit.snapshots.store import MANIFEST, Run, open_run, verify_run

NUM_WORDS, NUM_POSITIONS, HIDDEN, LONGEST, STEPS_PER_EPOCH = 60, 32, 8, 12, 10
HOSTILE = ("<script>", "a|b", "`tick`", "*star*", "[x](y)", "\u202ertl", "under_score_", "\\|")
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[unused0]", *HOSTILE, *(f"word{i}" for i in range(47)))
ENCODER = "backbone.encoder.layer.0.output.dense.weight"
FROZEN: dict[str, tuple[str, ...]] = {
    "none": (),
    "embeddings": EMBEDDING_PARAMETERS,
    "backbone": (*EMBEDDING_PARAMETERS, ENCODER),
    "position_embeddings": ("position_embeddings",),
}
MakeRun = Callable[..., Run]


def write_run(
    folder: Path,
    regime: str,
    seed: int,
    *,
    model: str = "tiny",
    task: str = "toy",
    epochs: int = 3,
    lacking: tuple[str, ...] = (),
    right: float = 0.8,
    is_regression: bool = False,
    is_constant: bool = False,
    has_exposure: bool = True,
    is_finished: bool = True,
    zero: tuple[str, ...] = (),
    learned: tuple[float, int] = (0.0, 0),
    log: OptimizerLog | None = None,
    config: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
) -> Run:
    """One run directory; the oddities are what the tests are about.

    ``learned``: how far rows move, in standard deviations of their noise, in directions that a number names: runs of
    other seeds and the same number move alike.
    """
    config = config or {}
    settings = RunConfig(model=model, task=task, freeze=regime, seed=seed, epochs=epochs, **config)
    extra = "".join(f"-{value}" for value in config.values()).replace("/", "+")
    name = f"{Path(model).name}_{task}_freeze-{regime}_seed-{seed}{extra}_0123abcd"
    writer = start_run(folder / name, overwrite=True)
    writer.facts = facts_of((facts or {}).get("position_offset", 0), 1e-12)
    writer.write_config(settings)
    writer.write_vocabulary(Vocabulary(TOKENS, frozenset(range(4)), 0))
    first = _write_snapshots(writer, epochs, seed, FROZEN[regime], lacking, zero, learned)
    if has_exposure:
        writer.write_exposure(_exposure(epochs * STEPS_PER_EPOCH, lacking))
    writer.write_optimizer_log(log)
    predictions = _predictions(epochs, seed, right, is_regression).copy()
    if is_constant:
        predictions["prediction"] = predictions["prediction"].where(predictions["epoch"] < epochs, 0)
    writer.write_predictions(predictions)
    writer.write_scores(_scores(predictions, is_regression))
    if is_finished:
        known = {name: tensor for name, tensor in first.items() if name not in lacking}
        writer.finish(_facts(regime, known, model, task, is_regression) | (facts or {}))
    return open_run(writer.path)


def rehash(path: Path, *names: str) -> None:
    """Let the manifest of a run say what its files are now: as if they had been written so."""
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"] |= {name: sha256_of_file(path / name) for name in names}
    manifest["sizes"] |= {name: (path / name).stat().st_size for name in names}
    write_manifest(path, manifest)


def edit(path: Path, **changes: Any) -> None:
    """Other values in a JSON file, a config say."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest of a run, as if it had been written so."""
    (path / MANIFEST).write_text(seal(manifest))


class SharedRuns:
    """Runs that are written once each, for tests that only read them; the others get copies."""

    def __init__(self, folder: Path, write: MakeRun = write_run) -> None:
        self.folder, self._write = folder, write
        self._made: dict[str, Path] = {}

    def get(self, regime: str = "none", seed: int = 0, **oddities: Any) -> Run:
        """The run that ``write`` writes, in a folder ``runs`` of its own; nobody may change it."""
        key = repr((regime, seed, sorted(oddities.items())))
        if key not in self._made:
            self._made[key] = self._write(self.folder / str(len(self._made)) / "runs", regime, seed, **oddities).path
        return open_run(self._made[key])

    def copy_into(self, folder: Path, regime: str = "none", seed: int = 0, **oddities: Any) -> Run:
        """A copy below ``folder``, in place of a run of that name."""
        run = self.get(regime, seed, **oddities)
        path = folder / run.path.name
        shutil.rmtree(path, ignore_errors=True)
        return open_run(shutil.copytree(run.path, path))

    def changed(self) -> list[Path]:
        """The finished runs that are no longer as they were written."""
        runs = [open_run(path) for path in self._made.values()]
        return [run.path for run in runs if run.is_finished and verify_run(run.path)]


def _write_snapshots(
    writer: RunWriter,
    epochs: int,
    seed: int,
    frozen: tuple[str, ...],
    lacking: tuple[str, ...],
    zero: tuple[str, ...],
    learned: tuple[float, int],
) -> dict[str, np.ndarray]:
    shapes = {"word_embeddings": (NUM_WORDS, HIDDEN), "position_embeddings": (NUM_POSITIONS, HIDDEN)}
    shapes |= {"token_type_embeddings": (2, HIDDEN)}
    generator = np.random.default_rng(0)
    first = {k: generator.normal(0, 0.05, shapes.get(k, (HIDDEN,))) + ("weight" in k) for k in EMBEDDING_PARAMETERS}
    for name in zero:  # before training, as the LayerNorm.bias of a random start
        first[name][:] = 0
    first["word_embeddings"][0] = 0  # the row of [PAD]: relative drift is undefined there
    change = np.random.default_rng(seed + 1)
    steps = {k: change.normal(0, 1e-3, value.shape) for k, value in first.items()}
    size, targets = learned
    for name, value in first.items():
        steps[name] += size * 1e-3 * np.random.default_rng([7, targets]).choice([-1.0, 1.0], value.shape)
    for name, last in (("word_embeddings", 45), ("position_embeddings", LONGEST), ("token_type_embeddings", 1)):
        steps[name][last:] = -1e-5 * first[name][last:]  # never seen: weight decay alone
    steps["word_embeddings"][5 : 5 + len(HOSTILE)] *= 4  # so that they are in every ranking
    steps["word_embeddings"][[1, 4]] = -1e-5 * first["word_embeddings"][[1, 4]]
    steps["word_embeddings"][[0, 59]] = 0
    for epoch in range(epochs + 1):
        tensors = {k: (first[k] + epoch * steps[k] * (k not in frozen)).astype(np.float32) for k in first}
        kept = {k: tensor for k, tensor in tensors.items() if k not in lacking}
        writer.write_snapshot(epoch, epoch * STEPS_PER_EPOCH, kept)
    return {k: value.astype(np.float32) for k, value in first.items()}


def _exposure(num_steps: int, lacking: tuple[str, ...]) -> Exposure:
    """Word row i of 5 to 44 is in every (i - 4)-th step or so, [CLS] and [SEP] in all; positions below LONGEST."""
    words = [[2, 3, *(i for i in range(5, 45) if step % (i - 4) == 0)] for step in range(num_steps)]
    rows = {
        "word_embeddings": words,
        "position_embeddings": [range(LONGEST)] * num_steps,
        "token_type_embeddings": [[0]] * num_steps,
    }
    return Exposure({k: TableExposure.join([_step(r) for r in v]) for k, v in rows.items() if k not in lacking})


def _step(rows: Any) -> TableExposure:
    array = np.array(rows, np.int32)
    return TableExposure.of_step(array, np.full(len(array), 2, np.int32), np.ones(len(array), np.float32))


@cache
def _predictions(epochs: int, seed: int, right: float, is_regression: bool) -> pd.DataFrame:
    parts = []
    for split, size in (("validation", 100), ("ood", 50), ("hidden", 20)):
        labels = np.random.default_rng(size).random(size) if is_regression else (np.arange(size) % 5 < 2).astype(int)
        for epoch in range(epochs + 1):
            generator = np.random.default_rng([seed, epoch, size, round(1000 * right)])
            is_right = generator.random(size) < (right if epoch else 0.5)
            values = (
                labels + generator.normal(0, 0.1, size) if is_regression else np.where(is_right, labels, 1 - labels)
            )
            shown = [None] * size if split == "hidden" else labels
            dtype = "Float64" if is_regression else "Int64"
            columns = {"label": pd.array(shown, dtype=dtype), "prediction": pd.array(values, dtype=dtype)}
            parts.append(pd.DataFrame({"epoch": float(epoch), "split": split, "id": np.arange(size), **columns}))
    return pd.concat(parts, ignore_index=True)


def _scores(predictions: pd.DataFrame, is_regression: bool) -> pd.DataFrame:
    rows = []
    for (epoch, split), part in predictions.groupby(["epoch", "split"], sort=False):
        head = {"epoch": epoch, "step": int(epoch * STEPS_PER_EPOCH), "split": split, "num_examples": len(part)}
        is_labelled = part["label"].notna().all()
        names = ("pearson", "spearman") if is_regression else ("accuracy", "macro_f1", "matthews")
        values = dict.fromkeys(("loss", *names), np.nan)
        if is_labelled and is_regression:
            is_defined = part["prediction"].nunique() > 1  # as the scores of real runs
            value = np.corrcoef(part["label"], part["prediction"])[0, 1] if is_defined else np.nan
            values |= {"loss": 0.1, **dict.fromkeys(names, value)}
        elif is_labelled:
            values |= {"loss": 0.5, **dict.fromkeys(names, float((part["label"] == part["prediction"]).mean()))}
        rows.append(head | values)
    return pd.DataFrame(rows)


def _facts(regime: str, first: dict[str, np.ndarray], model: str, task: str, is_regression: bool) -> dict[str, Any]:
    first = {**first, ENCODER: np.zeros(1, np.float32)}
    digests = {name: sha256_of_array(first[name]) for name in FROZEN[regime] if name in first}
    sizes = {"num_examples": 100, "num_truncated": 3, "num_empty_texts": 1}
    probe = {"validation": {"accuracy": 0.875, "loss": 0.3}} if regime == "backbone" else None
    return {
        "regime": {"label": regime, "frozen_components": list(FROZEN[regime])},
        "frozen": {
            "is_bit_identical": True,
            "parameters": {k: {"before": v, "after": v} for k, v in digests.items()},
        },
        "model": {"name": model, "pooling": "mean", "head": "linear", "num_parameters": 1234, "num_trainable": 234},
        "task": {
            "name": task,
            "kind": "regression" if is_regression else "classification",
            "commonest_label": None if is_regression else 0,
            "score": "pearson" if is_regression else "accuracy",
            "reported_split": "validation",
            "splits": {"train": sizes, "validation": sizes},
        },
        "linear_probe": probe,
        "cost": {"seconds_training": 12.5, "examples_per_second": 100.0, "peak_memory_bytes": 10**8},
        "versions": {"python": "3.11.9", "torch": "2.13.0"},
        "devices": ["cpu"],
        "num_processes": 1,
        "precision": "no",
    }
