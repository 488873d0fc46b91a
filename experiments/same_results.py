"""Question: does a change of the code change any number?

One run of each regime on each built-in task (a few examples, one epoch, fixed seeds, the plain training step), and
every public table on them and on planted changes: each file, tensor and column becomes one sha256. Made before and
after a change and compared, every difference is named. A column counts by its values: its name and place may change,
its numbers may not.

    python experiments/same_results.py before.json     # at the last commit before the change
    python experiments/same_results.py after.json --against before.json

benchmarks/same_results/ has the sums before the modules were merged (291ad29) and after, made on one machine: 370 of
379 are the same; the others are tables that have a column more (`reason`), one that names its two runs, and the words
of one that now says condition for condition.

Sums are equal on one machine with one version of torch; they are not meant to be equal on another.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tyro
from numpy.typing import NDArray
from tyro.conf import Positional

import toolkit

Tensor = NDArray[np.float32]

TASKS = ("polarity", "order", "pair", "roles")
REGIMES = ("none", "embeddings", "backbone")
PAIRS = [(task, regime) for task in TASKS for regime in REGIMES]
CARDS = ("sst2_three_regimes", "shuffled_labels")
"""Committed reports whose cards are made from their evidence."""
TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")


def main(out: Positional[Path], against: Path | None = None) -> int:
    """Make every sum, and compare them.

    Args:
        out: file for the sums
        against: sums made before
    """
    with tempfile.TemporaryDirectory() as folder:
        sums = dict(sums_of(Path(folder)))
    out.write_text(json.dumps(sums, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{len(sums)} sums in {out}")
    if against is None:
        return 0
    before = json.loads(against.read_text(encoding="utf-8"))
    names = sorted(name for name in before.keys() | sums.keys() if before.get(name) != sums.get(name))
    for name in names:
        print(name, "is gone" if name not in sums else "is new" if name not in before else "is another")
    print(f"{len(names)} of {len(before)} differ")
    return 1 if names else 0


def sums_of(folder: Path) -> Iterator[tuple[str, Any]]:
    """Name and sha256 of everything that the runs and the functions give."""
    runs = []
    for task, regime in PAIRS:
        for run in runs_of(folder, task, regime):
            runs.append(run)
            yield from run_sums(f"{task} {regime} {run.config.seed}", run)
    full = [run for run in runs if run.config.task == "order" and run.config.freeze == "none"]
    for name, make in calls(full, runs):
        yield name, columns_of(make())
    for kind, after in planted(full[0].trajectory.snapshots[0].tensors).items():
        snapshot = type(full[0].trajectory.snapshots[0])
        pair = [snapshot(0, 0, full[0].trajectory.snapshots[0].tensors), snapshot(1, 1, after)]
        yield f"planted {kind}", columns_of(toolkit.measure_changes(type(full[0].trajectory)(pair)))
    for name in CARDS:
        for card in toolkit.make_cards(Path("reports") / name):
            kept = (card.value, card.interval, card.equivalence, card.null, card.detectable_gap, card.q, card.verdict)
            yield f"card {name}: {card.id}", digest(repr(kept).encode())


def runs_of(folder: Path, task: str, regime: str) -> Iterator[toolkit.Run]:
    """The runs of one task and regime, made as they are asked for."""
    for seed in (0, 1) if (task, regime) == ("order", "none") else (0,):
        yield train(folder, task, regime, seed)


def train(folder: Path, task: str, regime: str, seed: int) -> toolkit.Run:
    """One short run."""
    config = toolkit.RunConfig(
        task=task, freeze=regime, seed=seed, epochs=1, max_train_examples=96, precision="no", output_dir=str(folder),
        head_training="epochs" if regime == "backbone" else "auto",
    )  # fmt: skip
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        return toolkit.finetune(config)


def run_sums(name: str, run: toolkit.Run) -> Iterator[tuple[str, str]]:
    """Every tensor, score and answer of a run."""
    for snapshot in run.trajectory.snapshots:
        for parameter, tensor in snapshot.tensors.items():
            yield f"run {name}: epoch {snapshot.epoch:g} {parameter}", digest(tensor.tobytes())
    exposure = run.trajectory.exposure
    for parameter, table in exposure.tables.items() if exposure else ():
        parts = (table.offsets, table.rows, table.counts, table.norms)
        yield f"run {name}: exposure of {parameter}", digest(b"".join(part.tobytes() for part in parts))
    yield f"run {name}: optimizer", digest((run.path / "optimizer.json").read_bytes())
    yield f"run {name}: predictions", digest("".join(columns_of(run.predictions)).encode())
    scores = run.scores.drop(columns=[c for c in run.scores if "second" in c])
    yield f"run {name}: scores", digest("".join(columns_of(scores)).encode())


def calls(full: list[toolkit.Run], runs: list[toolkit.Run]) -> Iterator[tuple[str, Callable[[], pd.DataFrame]]]:
    """Each public function that returns a table, on two seeds of one condition or on all runs."""
    run = full[0]
    for name in (
        "measure_drift",
        "measure_changes",
        "measure_gauge",
        "measure_design",
        "functional_drift",
        "measure_segments",
    ):
        yield name, lambda name=name: getattr(toolkit, name)(run)  # type: ignore[misc]
    yield "measure_positions", lambda: toolkit.measure_positions(run, num_draws=10)
    for parameter in TABLES:
        for name in ("measure_rows", "explain", "decompose", "measure_geometry"):
            yield f"{name} {parameter}", lambda n=name, p=parameter: getattr(toolkit, n)(run, p)  # type: ignore[misc]
        yield f"sign_noise {parameter}", lambda p=parameter: toolkit.sign_noise(run, p, num_replicates=10)  # type: ignore[misc]
        yield f"measure_updates {parameter}", lambda p=parameter: toolkit.measure_updates(run, p, num_null=2)  # type: ignore[misc]
        yield f"measure_agreement {parameter}", lambda p=parameter: toolkit.measure_agreement(full, p, num_null=3)  # type: ignore[misc]
    yield "measure_similarity", lambda: toolkit.measure_similarity(run, "position_embeddings", num_null=2)
    yield "most_changed", lambda: toolkit.most_changed(full)
    for name in ("compare", "compare_seeds", "summarise_scores", "last_scores", "join_drift", "summarise_floors"):
        yield name, lambda name=name: getattr(toolkit, name)(runs)  # type: ignore[misc]


def planted(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Kind of change to the parameters of a model that was changed in this way."""
    words, rng = tensors["word_embeddings"], np.random.default_rng(0)
    some, swapped = rng.choice(len(words), 50, replace=False), words.copy()
    swapped[some[:2]] = words[some[1::-1]]
    moved = words.copy()
    moved[some] += rng.normal(0, 1e-3, moved[some].shape).astype(np.float32)
    low_rank = np.outer(rng.normal(size=len(words)), rng.normal(size=words.shape[1])) * 1e-4
    after = {
        "nothing": words,
        "decay": words * np.float32(1 - 1e-4),
        "offset": words + np.float32(0.01),
        "cast": words.astype(np.float16).astype(np.float32),
        "training on some rows": moved,
        "swapped rows": swapped,
        "low rank": words + low_rank.astype(np.float32),
    }
    return {kind: {**tensors, "word_embeddings": own} for kind, own in after.items()}


def columns_of(table: pd.DataFrame) -> list[str]:
    """One sum per column, in the order of the sums: names and places do not count, nor do seconds."""
    names = [name for name in table if "seconds" not in str(name)]
    return sorted(digest(table[name].to_csv(index=False, header=False).encode()) for name in names)


def digest(content: bytes) -> str:
    """The beginning of a sha256."""
    return hashlib.sha256(content).hexdigest()[:16]


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main, description=__doc__))
