"""Question: are the toolkit's exact nearest neighbours those of flat FAISS, and how much sooner are they there?

Both get the same fp32 rows, the same threads and a warm-up, and take turns; the times include each one's preparation
(unit rows, index). A row counts as differing where the two lists hold another row whose float64 cosine is not within
1e-6 of what the other list has at that rank. faiss-cpu is needed here and nowhere else.

    python experiments/benchmarks/neighbours.py [--rows 30522 --hidden 768 --k 10 --rounds 5 --threads 2]
"""

import os
import statistics
from pathlib import Path

import numpy as np
import tyro
from numpy.typing import NDArray
from rows import cpu_name, take_turns

from toolkit.analysis.nearest import Nearest, search_nearest

Rows = NDArray[np.float32]
Ids = NDArray[np.int64]


def make_table(num_rows: int, hidden: int, seed: int = 0) -> Rows:
    """Rows like those of a word table: a spectrum that falls, a common mean, lengths that differ, words in clusters."""
    rng = np.random.default_rng(seed)
    scales = (1 + np.arange(hidden)) ** -0.25
    centres = rng.standard_normal((max(1, num_rows // 15), hidden))
    rows = centres[rng.integers(len(centres), size=num_rows)] + 1.5 * rng.standard_normal((num_rows, hidden))
    rows = (rows + 0.3 * rng.standard_normal(hidden)) * scales * rng.lognormal(0, 0.2, (num_rows, 1))
    return (0.03 * rows).astype(np.float32)


def read_word_table() -> Rows:
    """The word table of the embedded model, 30,522 x 384."""
    from safetensors.numpy import load_file

    from toolkit.models.checkpoints import find_checkpoint

    tensors = load_file(Path(find_checkpoint("minilm").location) / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("embeddings.word_embeddings.weight"))
    return tensors[name]


def search_faiss(rows: Rows, k: int) -> Ids:
    """(n, k) neighbours by flat FAISS: k + 1 are asked for, and the row itself, or else the last, is dropped."""
    import faiss

    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(units)
    found: Ids = index.search(units, k + 1)[1]
    is_self = found == np.arange(len(rows))[:, None]
    is_self[~is_self.any(axis=1), k] = True
    others: Ids = found[~is_self].reshape(len(rows), k)
    return others


def count_differing(rows: Rows, ours: Ids, theirs: Ids) -> tuple[int, float]:
    """Rows whose lists differ by more than ties, and the largest difference of float64 cosine at one rank."""
    units = rows.astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    differing, largest = 0, 0.0
    for row in np.flatnonzero((ours != theirs).any(axis=1)):
        gap = np.abs(units[ours[row]] @ units[row] - units[theirs[row]] @ units[row]).max()
        differing, largest = differing + int(gap > 1e-6), max(largest, float(gap))
    return differing, largest


def compare(name: str, rows: Rows, k: int, rounds: int) -> str:
    """One line of the table."""
    functions = {"toolkit": lambda: search_nearest(rows, k), "faiss": lambda: search_faiss(rows, k)}
    seconds, results = take_turns(functions, rounds)
    ours: Nearest = results["toolkit"]
    differing, largest = count_differing(rows, ours.indices, results["faiss"])
    times = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = [theirs / mine for mine, theirs in zip(seconds["toolkit"], seconds["faiss"], strict=True)]
    return (
        f"{name:<24} {times['toolkit']:9.2f} {times['faiss']:9.2f} {statistics.median(ratios):6.2f} "
        f"{min(ratios):5.2f}-{max(ratios):<5.2f} {differing:9d} {largest:9.1e}"
    )


def main(
    *, rows: int = 30_522, hidden: int = 768, k: int = 10, rounds: int = 5, threads: int = os.cpu_count() or 1
) -> None:
    """Print one line per table of rows.

    Args:
        rows: of the table
        hidden: of the table
        k: neighbours
        rounds: timed, after one warm-up
        threads: for both; all cores by default
    """
    import faiss
    from threadpoolctl import threadpool_limits

    threadpool_limits(threads)
    faiss.omp_set_num_threads(threads)
    print(f"{cpu_name()}, {threads} threads, numpy {np.__version__}, faiss {faiss.__version__}")
    print(f"k = {k}; medians of {rounds} rounds in seconds; ratio = FAISS / toolkit, round by round")
    print(f"{'table':<24} {'toolkit':>9} {'faiss':>9} {'ratio':>6} {'range':<11} {'differing':>9} {'at most':>9}")
    print(compare(f"made {rows}x{hidden}", make_table(rows, hidden), k, rounds), flush=True)
    words = read_word_table()
    print(compare(f"minilm {words.shape[0]}x{words.shape[1]}", words, k, rounds))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
