"""Question: how much faster is a run than transformers.Trainer, how near to the machine's limit, what do records cost?

Side by side on this machine, each measurement in a process of its own, one after the other, ``--repeats`` times in
turn; medians, and ratios to the peer. The peers: Trainer as it comes (plain: fp32, random batches), and tuned by hand
(bf16, batches grouped by length, fused AdamW), BertForSequenceClassification on MiniLM's weights.

    python experiments/benchmarks/training.py --data ../shared/data/sst2
    python experiments/benchmarks/training.py --data ../shared/data/sst2 --only records --repeats 5

Without --data the built-in task polarity stands in; experiments/data.sha256 has the source, licence and sha256 of
SST-2. --out writes the ratios as JSON, and leaves those in the file that were not measured. --check FILE measures again
and fails when a ratio is worse than four fifths of the file's: ratios to the peer, never seconds, since machines
differ.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

MEASURES = Path(__file__).with_name("training_measures.py")
SLACK, STRICT = 0.8, 0.99
"""Of a committed ratio: below this --check fails; the second for what must not cost anything, which is near 1."""
MUST_BE_FREE = ("records", "snapshots")

Figures = dict[str, float]
PEERS = ("plain", "tuned")


def measure(name: str, **arguments: Any) -> Figures:
    """One measurement in a process of its own."""
    command = [sys.executable, str(MEASURES), json.dumps({"measure": name, **arguments})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} {arguments} failed:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    print(f"  {name} {arguments}: {figures}", flush=True)
    return figures


def medians(calls: dict[str, dict[str, Any]], repeats: int) -> dict[str, Figures]:
    """The median of each figure of several measurements, taken in turn; ``calls``: name to what `measure` takes."""
    found: dict[str, list[Figures]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, arguments in calls.items():
            found[name].append(measure(**arguments))
    return {name: {k: median(one[k] for one in lines) for k in lines[0]} for name, lines in found.items()}


def beside_peers(common: dict[str, Any], repeats: int, **others: dict[str, Any]) -> dict[str, Figures]:
    """A run of ours, of both peers, and whatever else."""
    peers = {kind: {"name": "trainer", "kind": kind, **common} for kind in PEERS}
    return medians({"toolkit": {"name": "toolkit", **common}, **peers, **others}, repeats)


def times_faster(freeze: str, found: dict[str, Figures]) -> Figures:
    """Seconds of each peer ÷ ours."""
    seconds = found["toolkit"]["seconds"]
    return {f"{freeze}: times faster than Trainer, {kind}": found[kind]["seconds"] / seconds for kind in PEERS}


def time_training(data: str | None, examples: int, repeats: int) -> Figures:
    """Training time beside both peers, and the share of the bf16 peak that the arithmetic takes."""
    common = {"data": data, "examples": examples, "epochs": 1, "is_scored": False}
    full = beside_peers(common | {"freeze": "none"}, repeats, peak={"name": "peak"})
    frozen = beside_peers(common | {"freeze": "embeddings"}, repeats)
    whole = measure("toolkit", **(common | {"freeze": "embeddings", "examples": 200, "epochs": 5}))
    rate = full["toolkit"]["operations"] / full["toolkit"]["seconds"]
    return {
        **times_faster("none", full),
        **times_faster("embeddings", frozen),
        "none: share of the bf16 product peak": rate / full["peak"]["rate"],
        "snapshots: one ÷ all of five epochs, embeddings frozen": 1 / whole["snapshot_ratio"],
    }


def time_features(data: str | None, examples: int, repeats: int) -> Figures:
    """Feature extraction, three epochs from loading the model to the last score, beside both peers."""
    common = {"data": data, "freeze": "backbone", "examples": examples, "epochs": 3, "is_scored": True}
    return times_faster("backbone", beside_peers(common, repeats))


def time_records(data: str | None, examples: int, repeats: int) -> Figures:
    """What snapshots, exposure, logs and predictions add: seconds without them ÷ with them (1: nothing), by pairs."""
    common: dict[str, Any] = {"data": data, "freeze": "none", "examples": examples, "epochs": 1}
    ratios = []
    for pair in range(repeats):
        # In turn the one and the other first: a machine that grows slower must not count against either.
        names = ("with", "without") if pair % 2 else ("without", "with")
        seconds = {name: measure(name, **common)["seconds"] for name in names}
        ratios.append(seconds["without"] / seconds["with"])
    print(f"Without ÷ with records, by pairs: {', '.join(f'{ratio:.3f}' for ratio in sorted(ratios))}")
    return {"records: seconds without ÷ with": median(ratios)}


def time_start(repeats: int) -> Figures:
    """Imports of torch and BERT ÷ time to the first training step, and the seconds between them."""
    found = medians({"start": {"name": "start"}}, repeats)["start"]
    print(f"First step {found['seconds'] - found['imports']:.2f} s after the imports alone")
    return {"start: imports ÷ first step": found["imports"] / found["seconds"]}


def measure_gloo() -> Figures:
    """Bytes per step that frozen embeddings save two processes: full ÷ frozen."""
    full, frozen = (measure("gloo", freeze=freeze)["bytes_per_step"] for freeze in ("none", "embeddings"))
    print(f"Over gloo, two processes: {full / 1e6:.1f} MB per step, {frozen / 1e6:.1f} with frozen embeddings")
    return {"gloo: bytes per step, full ÷ embeddings frozen": full / frozen}


def slack(name: str) -> float:
    """What --check lets a ratio lose."""
    return STRICT if name.startswith(MUST_BE_FREE) else SLACK


def main() -> None:
    """Measure what was asked for, print the ratios, and write or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with train.tsv and dev.tsv (default: the built-in task polarity)")
    parser.add_argument("--examples", type=int, default=2000, help="training examples (default: 2000)")
    parser.add_argument("--more-examples", type=int, default=20000, help="for features and records (default: 20000)")
    parser.add_argument("--repeats", type=int, default=3, help="times each measurement is taken (default: 3)")
    kinds = ("training", "features", "records", "start", "gloo")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds, help="what to measure (default: all)")
    parser.add_argument("--out", type=Path, help="JSON file for the ratios")
    parser.add_argument("--check", type=Path, help="JSON file of ratios that must hold")
    a = parser.parse_args()
    runs: dict[str, Callable[[], Figures]] = {
        "training": lambda: time_training(a.data, a.examples, a.repeats),
        "features": lambda: time_features(a.data, a.more_examples, a.repeats),
        "records": lambda: time_records(a.data, a.more_examples, a.repeats),
        "start": lambda: time_start(a.repeats),
        "gloo": measure_gloo,
    }
    figures = {name: round(value, 3) for kind in a.only for name, value in runs[kind]().items()}
    for name, value in figures.items():
        print(f"{name:60} {value:8.3f}")
    if a.out:
        before = json.loads(a.out.read_text()) if a.out.exists() else {}
        a.out.write_text(json.dumps(before | figures, indent=1, ensure_ascii=False) + "\n")
    if a.check:
        expected = json.loads(a.check.read_text())
        worse = [name for name, value in figures.items() if name in expected and value < slack(name) * expected[name]]
        sys.exit("\n".join(f"worse: {n}: {figures[n]}, was {expected[n]}" for n in worse) or 0)


if __name__ == "__main__":
    main()
