"""Question: does a run that is killed, and started again until it is finished, end with the bits of one that was not?

Hypothesis: yes, wherever it is killed. Runs of a tiny BERT (2 layers, random weights, the embedded model's tokenizer)
on a few examples of `order`, in each regime and in both ways to train a head. Two series: SIGKILL at random moments,
again and again until the run is finished; and, once each, at the first call that writes, renames or removes a file in
the run directory, at the second, and so on. Every file of the run but the manifest is compared with those of the run
that was left alone.

    python experiments/reliability/crash.py --kills 100
    python experiments/reliability/crash.py --kills 0 --every 7      # every seventh of those calls

Processes are forked from one that has imported everything, so that a kill does not only meet imports.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import accelerate  # noqa: F401
import datasets  # noqa: F401
import pyarrow.parquet  # noqa: F401
import sklearn.linear_model  # noqa: F401
import transformers.models.auto.modeling_auto
import transformers.models.bert.modeling_bert  # noqa: F401
import tyro

from toolkit import RunConfig, finetune, open_run
from toolkit.naming import select
from toolkit.snapshots.unfinished import find_state
from toolkit.training import resume

WAYS: dict[str, dict[str, Any]] = {
    "full fine-tuning": {"freeze": "none"},
    "embeddings frozen": {"freeze": "embeddings"},
    "feature extraction": {"freeze": "backbone", "head_training": "epochs"},
    # Its patience is of 10 epochs and of 200 steps: of batches of one it is met after a tenth of the epochs.
    "early stopping": {"freeze": "backbone", "epochs": None, "batch_size": 1},
    "head first": {"freeze": "none", "head_epochs": 2},
}
NUM_EXAMPLES = {"train": 64, "validation": 16, "test": 16, "ood": 16}
FILE_CALLS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
"""Audit events of calls that touch files; safetensors writes in a language that raises none: its file's rename does."""


def changes_a_file(event: str, arguments: tuple[Any, ...], folder: str) -> bool:
    """Whether an audit event is of a call that changes a file in a folder."""
    is_read = event == "open" and not any(c in str(arguments[1] or "") for c in "wax+")
    return event in FILE_CALLS and not is_read and folder in str(arguments[0])


def make_model(folder: Path) -> None:
    """A tiny checkpoint."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    from toolkit.models.checkpoints import find_checkpoint

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(find_checkpoint("minilm").location, trust_remote_code=False)
    AutoModel.from_config(
        AutoConfig.for_model(
            "bert",
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
        ),
        trust_remote_code=False,
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_examples(folder: Path) -> dict[str, Any]:
    """A few examples of the built-in task as files; the fields of a config that reads them."""
    from toolkit.data.builtin import BUILTIN_TASKS

    for name, split in BUILTIN_TASKS["order"].build().items():
        lines = [f"{text}\t{label}\n" for (text,), label in zip(split.texts, split.labels or (), strict=True)]
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "".join(lines[: NUM_EXAMPLES[name]]))
    files = {f"{name}_file": str(folder / f"{name}.tsv") for name in ("train", "validation")}
    return {**files, "test_file": (f"ood={folder / 'ood.tsv'}",), "text_columns": ("text",)}


def carry_out(text: str, kill_at: int | None, log: Path) -> None:
    """One try of a run in this process, which ends itself at some call that touches a file."""
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    resume.LEAST_SECONDS, resume.CREDIT_SECONDS = 0.0, 1e9
    config, seen = RunConfig.from_json(text), [0]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if not changes_a_file(event, arguments, config.output_dir):
            return  # such as the kill itself, which is an event too
        seen[0] += 1
        if seen[0] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    if kill_at is not None:
        sys.addaudithook(watch)
    finetune(config)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of the one run in a folder, but manifest and config."""
    (manifest,) = folder.rglob("manifest.json")
    names = json.loads(manifest.read_text())["files"]
    open_run(manifest.parent)
    return {name: (manifest.parent / name).read_bytes() for name in names if name != "config.json"}


class Series:
    """Kills of one run, and what became of it."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        folder.mkdir()
        self.context = get_context("fork")
        self.expected = self._left_alone()

    def _left_alone(self) -> dict[str, bytes]:
        started = time.perf_counter()
        place = self.folder / "whole"
        self._start(place, None).join()
        self.seconds = time.perf_counter() - started
        return contents(place)

    def _start(self, place: Path, kill_at: int | None) -> Any:
        from dataclasses import replace

        process = self.context.Process(
            target=carry_out, args=(replace(self.config, output_dir=str(place)).to_json(), kill_at, self.folder / "log")
        )
        process.start()
        return process

    def killed(self, name: str, next_kill: Callable[[int], float | int | None]) -> tuple[bool, int, int]:
        """Whether one run, killed as ``next_kill`` says of each try until that is None, ends as it should; how often it
        was killed; and the optimizer steps of which its states saved it the repetition."""
        place, num_kills, saved = self.folder / name, 0, 0
        while True:
            wanted = next_kill(num_kills)
            process = self._start(place, wanted if isinstance(wanted, int) else None)
            process.join(wanted if isinstance(wanted, float) else None)
            if process.is_alive():
                process.kill()
                process.join()
            if process.exitcode == 0 or [*place.rglob("manifest.json")]:  # killed when it had finished
                found = contents(place)
                others = [
                    name for name in found.keys() | self.expected.keys() if found.get(name) != self.expected.get(name)
                ]
                print(f"  {name}: other bytes in {', '.join(sorted(others))}\n" * bool(others), end="", flush=True)
                return not others, num_kills, saved
            if process.exitcode != -signal.SIGKILL:
                print(
                    f"  {name}: ended with {process.exitcode}: {(self.folder / 'log').read_text()[-500:]}", flush=True
                )
                return False, num_kills, saved
            num_kills += 1
            runs = [path.parent for path in place.rglob("unfinished.json")]
            state = find_state(runs[0])[0] if runs else None
            saved += 0 if state is None else state.step


def main(
    *,
    kills: int = 100,
    calls: int = 10_000,
    every: int = 1,
    only: str | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> int:
    """Kill, compare, count.

    Args:
        kills: at random moments, over all ways
        calls: of each way to kill at, at most
        every: kill at every Nth call
        only: one of WAYS
        seed: of the moments
        out: JSON file for the figures, which keeps those of the other series
    """
    rng, figures = random.Random(seed), {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        maker = get_context("fork").Process(target=make_model, args=(model,))  # a parent with threads cannot be forked
        maker.start()
        maker.join()
        examples = write_examples(Path(folder))
        for way, own in select(WAYS, only or tuple(WAYS), "way").items():
            common = {"model": str(model), "precision": "no", "batch_size": 16, "epochs": 3, "save_model": True}
            config = RunConfig(**{**common, **examples, **own})
            figures[way] = series_of(Series(config, Path(folder) / way), kills, range(1, calls + 1, every), rng)
            print(f"{way:20} {figures[way]}", flush=True)
    if out:
        known = json.loads(out.read_text()) if out.exists() else {}
        known |= {way: known.get(way, {}) | own for way, own in figures.items()}
        out.write_text(json.dumps(known, indent=1) + "\n")
    series = ("random", "calls")
    return int(any(own.get(f"{n}: same bits") != own.get(f"{n}: runs") for own in figures.values() for n in series))


def series_of(series: Series, kills: int, calls: range, rng: random.Random) -> dict[str, int]:
    """Both series of one way, or the one that is asked for."""
    counts: Counter[str] = Counter()

    def note(name: str, found: tuple[bool, int, int]) -> None:
        is_same, num_kills, saved = found
        own = {"kills": num_kills, "runs": 1, "same bits": int(is_same), "steps saved": saved}
        counts.update({f"{name}: {what}": number for what, number in own.items()})

    while counts["random: kills"] < kills / len(WAYS):
        place = f"random {counts['random: runs']}"
        note("random", series.killed(place, lambda _: rng.uniform(0.02, 1.2 * series.seconds)))
    for call in calls:
        found = series.killed(f"call {call}", lambda done, call=call: None if done else call)  # type: ignore[misc]
        if not found[1]:
            break  # the run has no such call any more
        note("calls", found)
    return dict(counts)


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main, description=__doc__))
