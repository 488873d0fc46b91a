"""Question: does any broken input end in a traceback, a hang, or another number without a word?

Hypothesis: none does. Files that a user may pass are mutated (bits, slices, odd values; of JSON and of safetensors
headers also single entries) and read as the commands read them. An input is refused (ValueError or OSError of one
line), read with a warning, read as the sound one, or read as something else. The last is a fault only where a hash
should have told: a finished run, a report. Data files and checkpoints have none, and a run or a report whose hashes
were made anew vouches for its own files: there only tracebacks and hangs count.

    python experiments/reliability/fuzz.py --inputs 20000 --jobs 2
    python experiments/reliability/fuzz.py --inputs 200 --seed 7 --target sealed

Writes fuzz.json beside itself with --out: inputs per target and what became of them.
"""

import json
import math
import random
import shutil
import signal
import struct
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import tyro
from crash import make_model

import toolkit
from toolkit.cli import parse_config
from toolkit.comparison.evidence import check_evidence
from toolkit.comparison.verdicts import CARDS
from toolkit.comparison.verify import describe
from toolkit.config import RunConfig
from toolkit.data.files import read_file
from toolkit.models.classifier import load_classifier
from toolkit.reporting.comparison_report import report_from
from toolkit.snapshots.files import sha256_of_file
from toolkit.snapshots.importers import import_checkpoints
from toolkit.snapshots.ownership import MANIFEST, seal

MOST_SECONDS = 30
ODD = ("", "NaN", "-1", "0", "1e999", "9" * 400, "null", "[]", "{}", '"', "\x00", "\ud800", "../../x", "true", "\t")
VALUES: tuple[Any, ...] = (None, -1, 0, 1e308, 2**63, "", "x", [], {}, [[]], {"a": 1}, True, 0.5, "9" * 400, math.nan)
MEANT = (ValueError, OSError, MemoryError)


@dataclass(frozen=True)
class Target:
    """What is mutated, and how it is read."""

    folder: Path
    """Sound; its files are mutated in a copy, one at a time."""
    read: Callable[[Path], object]
    """All of a copy; what comes back is compared as text."""
    is_sealed: bool = False
    """Whether a hash vouches for the numbers, so that others must not come back."""
    is_signed_again: bool = False
    """Whether its hashes are made again after the mutation."""


def mutated(content: bytes, rng: random.Random, suffix: str) -> bytes:
    """One to three mutations; by structure where the file has one, half of the time."""
    if rng.random() < 0.5:
        try:
            if suffix == ".json":
                return json.dumps(_mutated_tree(json.loads(content), rng)).encode("utf-8", "surrogatepass")
            if suffix == ".safetensors":
                size = struct.unpack("<Q", content[:8])[0]
                header = json.dumps(_mutated_tree(json.loads(content[8 : 8 + size]), rng)).encode("utf-8", "replace")
                return struct.pack("<Q", len(header)) + header + content[8 + size :]
        except (ValueError, RecursionError, struct.error):
            pass
    for _ in range(rng.randint(1, 3)):
        content = _mutated_bytes(content, rng)
    return content


def _mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    a, b = sorted(rng.randint(0, len(content)) for _ in range(2))
    match rng.randrange(8):
        case 0 if content:
            place = rng.randrange(len(content))
            return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
        case 1:
            return content[:a] + content[b:]
        case 2:
            return content[:b] + content[a:]
        case 3:
            return content[:a]
        case 4:
            return content[:a] + rng.choice(ODD).encode("utf-8", "surrogatepass") + content[a:]
        case 5:
            return content[:a] + bytes(b - a) + content[b:]
        case 6:
            return content[:a] + rng.choice(ODD).encode("utf-8", "surrogatepass") + content[min(a + 4, len(content)) :]
        case _:
            return content[:a] + rng.randbytes(rng.randint(1, 40)) + content[a:]


def _mutated_tree(tree: Any, rng: random.Random, depth: int = 0) -> Any:
    """One entry of nested lists and objects is another, gone, renamed or deeply nested."""
    if not isinstance(tree, dict | list) or not tree or (depth and rng.random() < 0.25):
        return json.loads("[" * 3000 + "]" * 3000) if rng.random() < 0.01 else rng.choice(VALUES)
    copy = tree.copy()
    key = rng.choice(list(copy)) if isinstance(copy, dict) else rng.randrange(len(copy))
    match rng.randrange(8):
        case 0:
            del copy[key]
        case 1 if isinstance(copy, dict):
            copy[f"{key}x"] = copy.pop(key)
        case 2 if isinstance(copy, list):
            copy.insert(key, rng.choice(VALUES))
        case _:
            copy[key] = _mutated_tree(copy[key], rng, depth + 1)
    return copy


def outcome_of(read: Callable[[], object], sound: str | None) -> str:
    """What became of an input; ``sound``: what a sound one gives, None where another may come back."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(MOST_SECONDS)
    try:
        with warnings.catch_warnings(record=True) as heard, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("always")
            result = str(read())
        if sound is None or result == sound:
            return "read"
        return "warned" if heard else "fault: other numbers without a word"
    except TimeoutError:
        return f"fault: over {MOST_SECONDS} s"
    except KeyboardInterrupt:
        raise
    except MEANT as error:
        return "refused" if str(error).strip() or not isinstance(error, ValueError) else "fault: refused without a word"
    except BaseException as error:  # a library in Rust panics with one that is no Exception
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "toolkit" in frame.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "?"
        return f"fault: {type(error).__name__} in {place}: {str(error)[:120]}"
    finally:
        signal.alarm(0)


def tables_of(run: Path) -> str:
    """What a user reads of a run."""
    opened = toolkit.open_run(run)
    log, exposure = opened.optimizer_log, opened.trajectory.exposure
    parts = [
        *(opened.scores, opened.predictions, toolkit.measure_drift(opened)),
        toolkit.measure_rows(opened, "word_embeddings"),
        toolkit.measure_segments(opened),
    ]
    facts = [
        opened.config,
        opened.manifest.get("regime"),
        log and (log.num_steps, log.weight_decay),
        None if exposure is None else {n: t.counts.sum() for n, t in exposure.tables.items()},
    ]
    return repr([part.to_csv() if isinstance(part, pd.DataFrame) else part for part in parts]) + repr(facts)


def read_data(folder: Path) -> None:
    """Every data file of a folder."""
    for path in sorted(folder.iterdir()):
        read_file(path, (), None if path.suffix == ".conll" else "label")


def read_config(folder: Path) -> RunConfig:
    """Flags that start from a file."""
    return parse_config(["--config", str(folder / "config.json")])


def read_checkpoint(folder: Path) -> None:
    """Embedding parameters, and the model with its tokenizer."""
    toolkit.measure_drift(import_checkpoints([folder, folder]).trajectory, measures=("norm",))
    loaded = load_classifier(str(folder), pooling="mean", num_outputs=2)
    loaded.tokenizer(["a film", "another"], truncation=True, max_length=16)


def read_report(folder: Path) -> list[str]:
    """Its cards, made again."""
    check_evidence(folder)
    return [repr(card) for card in toolkit.make_cards(folder)]


def make_again(folder: Path) -> None:
    """The report from its evidence, but for the pictures; and its check."""
    with patch("toolkit.reporting.chart_files.image_of", lambda chart, kind: b""):
        report_from(folder, folder.parent / "again")
    describe(folder, None)


def sign_again(place: Path) -> None:
    """Make a run's manifest, or a report's cards, vouch for the files as they are."""
    path, key = (place / MANIFEST, "files") if (place / MANIFEST).exists() else (place / CARDS, "evidence")
    try:
        values = json.loads(path.read_bytes())
        named = [name for name in values[key] if (place / name).is_file()]
        values[key] = {name: sha256_of_file(place / name) for name in named}
        values["sizes"] = {name: (place / name).stat().st_size for name in named}
        path.write_text(seal(values) if path.name == MANIFEST else json.dumps(values), encoding="utf-8")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass  # that file is what was mutated


def make_targets(folder: Path) -> dict[str, Target]:
    """Small sound inputs of each kind."""
    make_model(folder / "model")
    config = RunConfig(
        model=str(folder / "model"), task="order", epochs=1, max_train_examples=48, precision="no", max_length=32,
        output_dir=str(folder / "runs"),
    )  # fmt: skip
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        runs = [toolkit.finetune(config), toolkit.finetune(replace(config, seed=1))]
        toolkit.write_report(runs, folder / "report")
    data = folder / "data"
    data.mkdir()
    frame = pd.DataFrame({"text": [f"text, {i}" for i in range(30)], "label": [i % 3 for i in range(30)]})
    frame.to_csv(data / "a.csv", index=False)
    frame.to_csv(data / "a.tsv", index=False, sep="\t")
    frame.to_json(data / "a.jsonl", orient="records", lines=True)
    frame.to_parquet(data / "a.parquet")
    (data / "a.conll").write_text("a O\nfilm B-x\n\nb O\n", encoding="utf-8")
    (folder / "config").mkdir()
    shutil.copy(runs[0].path / "config.json", folder / "config" / "config.json")
    return {
        "data": Target(data, read_data),
        "config": Target(folder / "config", read_config),
        "checkpoint": Target(folder / "model", read_checkpoint),
        "sealed run": Target(runs[0].path, tables_of, is_sealed=True),
        "signed run": Target(runs[0].path, tables_of, is_signed_again=True),
        "report": Target(folder / "report", read_report, is_sealed=True),
        "signed report": Target(folder / "report", make_again, is_signed_again=True),
    }


def fuzz(targets: dict[str, Target], num_inputs: int, seed: int, folder: Path) -> dict[str, Counter[str]]:
    """Counts of outcomes per target, each given an equal share of the inputs."""
    found: dict[str, Counter[str]] = {name: Counter() for name in targets}
    for name, target in targets.items():
        rng = random.Random(f"{name} {seed}")
        paths = sorted(path for path in target.folder.rglob("*") if path.is_file())
        if (target.folder / "evidence").is_dir():
            paths = [path for path in paths if path.parent.name == "evidence" or path.name == "cards.json"]
        place = folder / f"{name.replace(' ', '_')}_{seed}" / target.folder.name
        shutil.copytree(target.folder, place)
        sound = str(target.read(place)) if target.is_sealed else None
        for _ in range(num_inputs // len(targets)):
            path = rng.choice(paths)
            broken, content = place / path.relative_to(target.folder), path.read_bytes()
            broken.write_bytes(mutated(content, rng, path.suffix))
            if target.is_signed_again:
                sign_again(place)
            found[name][outcome_of(lambda t=target, p=place: t.read(p), sound)] += 1  # type: ignore[misc]
            broken.write_bytes(content)
            if target.is_signed_again:
                sign_again(place)
    return found


def main(
    *, inputs: int = 1200, jobs: int = 1, seed: int = 0, target: tuple[str, ...] = (), out: Path | None = None
) -> int:
    """Fuzz, and print what became of the inputs.

    Args:
        inputs: over all targets
        jobs: processes
        seed: of the mutations
        target: only these
        out: JSON file for the counts
    """
    with tempfile.TemporaryDirectory() as folder:
        targets = {name: own for name, own in make_targets(Path(folder)).items() if not target or name in target}
        shares = [(targets, inputs // jobs, seed * 1000 + job, Path(folder)) for job in range(jobs)]
        with get_context("fork").Pool(jobs) as pool:
            results = pool.starmap(fuzz, shares)
    total = {name: sum((result[name] for result in results), Counter()) for name in targets}
    print(json.dumps(total, indent=1, sort_keys=True))
    if out:
        out.write_text(json.dumps(total, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return int(any(outcome.startswith("fault") for counts in total.values() for outcome in counts))


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main, description=__doc__))
