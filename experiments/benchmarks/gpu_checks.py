"""Question: on this GPU, does a run keep its promises to the bit, and how many of its steps come from a graph?

One line per check with its figures and PASS or FAIL, the most important first; the tests that a GPU can run are those
of ``make test-gpu``. Models are small ones with random weights, made on the spot; the data are built-in tasks.

    python experiments/benchmarks/gpu_checks.py --out checks.json
    python experiments/benchmarks/gpu_checks.py --tiny --only replay decay

All ends within --budget seconds: what did not fit is said to be "not run". Without a GPU (to try it, with --tiny) the
same code runs, and what only a GPU can answer is said to need one. --out has the figures as JSON after every check.
"""

import contextlib
import io
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

# The last is read once, before the first product, and --deterministic needs it.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", CUBLAS_WORKSPACE_CONFIG=":4096:8")

import numpy as np
import torch
import tyro
from numpy.typing import NDArray

from toolkit import EmbeddingSnapshotCallback, Run, RunConfig, finetune, pipeline, record
from toolkit.analysis.adam import replay_decay, resolve_log
from toolkit.data.tasks import load_task
from toolkit.models.checkpoints import find_checkpoint
from toolkit.snapshots.logs import TableExposure
from toolkit.snapshots.snapshot import Snapshot
from toolkit.snapshots.unfinished import find_state
from toolkit.training.optimizer import StepLog
from toolkit.training.resume import Interrupted

ROOT = Path(__file__).resolve().parents[2]
HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
LEAST_SHARE = 0.5
"""Of the steps of a short run that come from a graph: the first step of each shape is run to capture it."""
TOLERANCES = {"no": (0.01, 1e-4), "bf16": (0.1, 0.01)}
"""Precision to what graph and eager may differ by: in drift, as a share of the drift; and in losses and in norms of
gradients, as a share of these. AdamW divides by the root of the second moment: of a gradient that is all rounding it
makes a step of full size."""
FIRST, LAST = (66, 124) if HAS_GPU else (2, 3)
"""Steps between which synchronisations are counted: no power of two, at which a step is looked at closely."""

Figures = dict[str, Any]
Outcome = tuple[bool, Figures]
"""Whether a check holds, and its figures."""


@contextlib.contextmanager
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Without progress bars, results and the warnings of short runs, which are collected."""
    aside, collected = io.StringIO(), warnings.catch_warnings(record=True)
    with contextlib.redirect_stderr(aside), contextlib.redirect_stdout(aside), collected as caught:
        warnings.simplefilter("always")
        yield caught


@dataclass(frozen=True, slots=True)
class Bench:
    """Where runs are made, and how large they are."""

    folder: Path
    is_tiny: bool

    def model(self, family: str = "bert") -> str:
        """The folder of a checkpoint with random weights and MiniLM's tokenizer, made when it is first asked for."""
        from transformers import AutoConfig, AutoModel

        folder = self.folder / f"random-{family}"
        if not folder.exists():
            hidden, layers = (32, 2) if self.is_tiny else (256, 4)
            tokenizer = find_checkpoint("minilm").read_tokenizer()
            torch.manual_seed(0)
            config = AutoConfig.for_model(
                family,
                hidden_size=hidden,
                num_hidden_layers=layers,
                num_attention_heads=4,
                intermediate_size=4 * hidden,
                vocab_size=len(tokenizer),
                max_position_embeddings=512,
                pad_token_id=tokenizer.pad_token_id,
                cls_token_id=tokenizer.cls_token_id,
                bos_token_id=tokenizer.cls_token_id,
                sep_token_id=tokenizer.sep_token_id,
                eos_token_id=tokenizer.sep_token_id,
            )
            AutoModel.from_config(config, trust_remote_code=False).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        return str(folder)

    def config(self, **fields: Any) -> RunConfig:
        """A run of 60 steps (tiny: 12) on a built-in task, in a new folder."""
        defaults: Figures = {"task": "polarity", "epochs": 100, "max_steps": self.steps(60), "learning_rate": 5e-4}
        defaults |= {"model": self.model(), "weight_decay": 0.1, "output_dir": tempfile.mkdtemp(dir=self.folder)}
        return RunConfig(**(defaults | fields))

    def steps(self, number: int) -> int:
        """A number of steps, or a fifth of them in a tiny trial."""
        return number // 5 if self.is_tiny else number

    def run(self, *, may_capture: bool = True, **fields: Any) -> Run:
        """The finished run of :meth:`config`; without ``may_capture`` every step is eager."""
        eager = patch("toolkit.training.step.MAY_CAPTURE", False)
        with quiet(), contextlib.nullcontext() if may_capture or not HAS_GPU else eager:
            return finetune(self.config(**fields))


def check_shares(bench: Bench) -> Outcome:
    """The share of steps replayed from a graph: per family, of a token task, of accumulation, under accelerate."""
    ways: dict[str, Figures] = {"token task": {"task": "roles"}, "accumulation": {"gradient_accumulation_steps": 2}}
    ways |= {name: {"model": bench.model(name)} for name in ("bert", "roberta", "distilbert", "modernbert")}
    launched = bench.config()
    words = ["--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    flags = [*shlex.split(launched.to_command())[3:], "--output-dir", launched.output_dir]
    command = [sys.executable, "-m", "accelerate.commands.launch", *words, "finetune.py", *flags]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    graphs: Figures = {}
    for way, fields in ways.items():
        try:
            graphs[way] = bench.run(**fields).manifest.get("cuda_graph")
        except Exception as error:  # of one family; the others have their figures
            graphs[way] = {"reason": repr(error)[:300]}
    graphs["accelerate launch"] = {"reason": process.communicate()[0][-300:]}  # stays where no run is finished
    for manifest in Path(launched.output_dir).rglob("manifest.json"):
        graphs["accelerate launch"] = json.loads(manifest.read_text()).get("cuda_graph")
    return all((graph or {}).get("share_of_steps", 0) >= LEAST_SHARE for graph in graphs.values()), graphs


def check_graph(bench: Bench) -> Outcome:
    """Graph against eager on one seed without dropout: drift, losses and norms to a tolerance, exposure exactly."""
    figures = {precision: differences(*pair_of(bench, precision=precision, dropout=0.0)) for precision in TOLERANCES}
    holds = [
        apart["same exposure"] and apart["drift"] <= of_drift and max(apart["loss"], apart["norms"]) <= of_loss
        for apart, (of_drift, of_loss) in zip(figures.values(), TOLERANCES.values(), strict=True)
    ]
    return all(holds), figures


def pair_of(bench: Bench, **fields: Any) -> tuple[Run, Run]:
    """The same run from graphs and eager, with losses to read."""
    fields["log_with"] = "tensorboard"
    return bench.run(**fields), bench.run(may_capture=False, **fields)


def differences(run: Run, other: Run) -> Figures:
    """How far two runs are apart: the largest relative difference of each quantity."""
    first, last, expected = (snapshot.tensors for snapshot in (*ends_of(run), ends_of(other)[1]))
    drift = {name: apart_by(last[name] - first[name], expected[name] - first[name]) for name in last}
    tables = [(table, tables_of(other)[name]) for name, table in tables_of(run).items()]
    same = [np.array_equal(getattr(a, p), getattr(b, p)) for a, b in tables for p in ("offsets", "rows", "counts")]
    norms = [apart_by(a.norms, b.norms) for a, b in tables] if all(same) else [np.inf]
    loss = float(np.max(np.abs(losses_of(run) / losses_of(other) - 1)))
    return {"same exposure": all(same), "drift": max(drift.values()), "loss": loss, "norms": max(norms)}


def ends_of(run: Run) -> tuple[Snapshot, Snapshot]:
    """The first and the last snapshot."""
    return run.trajectory.snapshots[0], run.trajectory.snapshots[-1]


def tables_of(run: Run) -> Mapping[str, TableExposure]:
    """Table to the exposure that was recorded; it always is."""
    return run.trajectory.exposure.tables  # type: ignore[union-attr]


def apart_by(values: NDArray[Any], expected: NDArray[Any]) -> float:
    """Norm of the difference over norm of what is expected; 0 for two zeros."""
    difference = float(np.linalg.norm(values.astype(float) - expected))
    return difference and difference / float(np.linalg.norm(expected.astype(float)))


def losses_of(run: Run) -> NDArray[np.float64]:
    """(steps,) the loss of each step of a run that was logged with tensorboard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    events = min(run.path.parent.rglob("events.out.tfevents.*"), key=lambda path: len(path.parts))
    return np.array([point.value for point in EventAccumulator(str(events)).Reload().Scalars("train/loss")])


def files_that_differ(run: Run, other: Run) -> list[str]:
    """Files of two runs with other bytes; not the manifest, which holds seconds, nor the config, which has places."""
    hashes, others = run.manifest["files"], other.manifest["files"]
    return sorted({name for name, _ in hashes.items() ^ others.items()} - {"config.json"})


def check_same_bits(bench: Bench) -> Outcome:
    """The same seed twice: with --deterministic every file is the same to the bit; without it is said what is not."""
    pairs = [
        [bench.run(deterministic=is_deterministic, dropout=0.1, max_steps=bench.steps(120)) for _ in range(2)]
        for is_deterministic in (True, False)
    ]
    exact, default = (files_that_differ(*pair) for pair in pairs)
    return not exact, {"deterministic: files that differ": exact, "default: files that differ": default}


def check_resumed(bench: Bench) -> Outcome:
    """A run that TERM ends within an epoch, started again: the bits of one that was not cut."""
    fields: Figures = {"deterministic": True, "dropout": 0.1, "max_steps": bench.steps(200)}
    fields["snapshot_steps"] = bench.steps(40)
    whole, config = bench.run(**fields), bench.config(**fields)
    report = pipeline._Progress.on_step

    def report_and_end(progress: Any, log: StepLog, seconds: float) -> None:
        report(progress, log, seconds)
        if log.step == bench.steps(50):  # on a GPU steps are reported some time after they are taken
            os.kill(os.getpid(), signal.SIGTERM)

    with quiet():
        with patch.object(pipeline._Progress, "on_step", report_and_end), contextlib.suppress(Interrupted):
            finetune(config)
        (unfinished,) = Path(config.output_dir).rglob("unfinished.json")
        state = find_state(unfinished.parent)[0]
        resumed = finetune(config, reuse_finished=True)
    differing = files_that_differ(whole, resumed)
    return state is not None and not differing, {"cut at": state and state.step, "files that differ": differing}


def check_replay(bench: Bench) -> Outcome:
    """Word rows that no text used: decay replayed by the logged rates gives the last snapshot's bits."""
    figures: Figures = {}
    for optimizer, rate in (("adamw", 5e-4), ("sgd", 0.1)):
        run = bench.run(optimizer=optimizer, learning_rate=rate)
        first, last = ends_of(run)
        before, after = (snapshot.tensors["word_embeddings"] for snapshot in (first, last))
        is_unseen = tables_of(run)["word_embeddings"].step_counts(len(before), last.step) == 0
        replayed = replay_decay(before[is_unseen], resolve_log(run, None), "word_embeddings", last.step)
        figures[optimizer] = {
            "rows": int(is_unseen.sum()),
            "values that moved": float(np.mean(after[is_unseen] != before[is_unseen])),
            "values not replayed": int(np.sum(replayed.view(np.int32) != after[is_unseen].view(np.int32))),
        }
    holds = [kind["values that moved"] > 0 and not kind["values not replayed"] for kind in figures.values()]
    return all(holds), figures


def check_curves(bench: Bench) -> Outcome:
    """300 steps with dropout in five seeds: graph and eager of a seed are no further apart than two eager seeds."""
    pairs = [pair_of(bench, seed=seed, dropout=0.1, max_steps=bench.steps(300)) for seed in range(5)]
    curves = [[np.convolve(losses_of(run), np.ones(20) / 20, "valid") for run in pair] for pair in pairs]
    of_one_seed = float(np.mean([np.abs(graph - eager).mean() for graph, eager in curves]))
    of_two = float(np.mean([np.abs(a - b).mean() for (_, a), (_, b) in itertools.combinations(curves, 2)]))
    ends = dict(zip(("last loss, graph", "last loss, eager"), (curve[-1] for curve in curves[0]), strict=True))
    return of_one_seed <= of_two, {"graph and eager": of_one_seed, "two eager seeds": of_two, **ends}


def train_by_trainer(bench: Bench, is_recorded: bool, num_steps: int) -> None:
    """A Trainer's steps, under the callback where they are recorded."""
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    (tokenizer, model, texts), folder = classifier_of(bench), tempfile.mkdtemp(dir=bench.folder)
    rows = [{"input_ids": ids, "labels": i % 2} for i, ids in enumerate(tokenizer(texts)["input_ids"])]
    options: Figures = {"max_steps": num_steps, "per_device_train_batch_size": 16, "optim": "adamw_torch_fused"}
    options |= {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "bf16": HAS_GPU}
    callbacks = [EmbeddingSnapshotCallback(f"{folder}-recorded")] if is_recorded else []
    given = (model, TrainingArguments(folder, **options), DataCollatorWithPadding(tokenizer), rows)
    Trainer(*given, callbacks=callbacks).train()


def train_by_loop(bench: Bench, is_recorded: bool, num_steps: int) -> None:
    """The same of a bare loop over one batch, which `record` watches."""
    tokenizer, model, texts = classifier_of(bench)
    batch = tokenizer(texts[:16], padding=True, return_tensors="pt").to(DEVICE)
    model.to(DEVICE).train()
    labels, optimizer = torch.arange(16, device=DEVICE) % 2, torch.optim.AdamW(model.parameters(), foreach=True)
    with record(model, tempfile.mkdtemp(dir=bench.folder)) if is_recorded else contextlib.nullcontext():
        for _ in range(num_steps):
            model(**batch, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def classifier_of(bench: Bench) -> tuple[Any, Any, list[str]]:
    """The tokenizer, transformers' classifier on the random BERT, and texts to train it on."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    places = (AutoTokenizer, AutoModelForSequenceClassification)
    tokenizer, model = (place.from_pretrained(bench.model(), trust_remote_code=False) for place in places)
    return tokenizer, model, [text for (text,) in load_task(bench.config()).splits["train"].texts]


def waits_per_step(train: Callable[[int], object]) -> float:
    """Synchronisations of a steady step that torch warns of, from what ``train(num_steps)`` makes."""
    counts = []
    for num_steps in (FIRST, LAST):
        with quiet() as caught:
            train(num_steps)
        counts.append(sum("synchronizing CUDA" in str(warning.message) for warning in caught))
    return (counts[1] - counts[0]) / (LAST - FIRST)


def check_waits(bench: Bench) -> Outcome:
    """Synchronisations of a steady step, of a Trainer, a loop and a run of ours: recording adds none."""
    sides: dict[str, Callable[[int], object]] = {
        f"{kind}, {'recorded' if is_recorded else 'bare'}": partial(train, bench, is_recorded)
        for kind, train in (("Trainer", train_by_trainer), ("loop", train_by_loop))
        for is_recorded in (False, True)
    }
    sides["a run of ours"] = lambda num_steps: bench.run(max_steps=num_steps, batch_size=16)
    if HAS_GPU:
        torch.cuda.set_sync_debug_mode("warn")  # to the end: what other checks warn of is dropped
    figures = {side: waits_per_step(train) for side, train in sides.items()}
    return all(figures[f"{kind}, recorded"] <= figures[f"{kind}, bare"] for kind in ("Trainer", "loop")), figures


def check_decay(bench: Bench) -> Outcome:
    """Which rounding of decay gives the bits of each of torch's AdamW on weights without a gradient; holds where the
    one that runs of ours take for plain ``foreach``, a product in fp32, is among them."""
    rate, decay = 5e-4, 0.1
    start = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    weights, wide = start.numpy(), start.numpy().astype(np.float64)
    candidates = {
        "p * fp32(1 - lr*wd)": weights * np.float32(1 - rate * decay),
        "p * fp32(1 - fp32(lr)*wd)": weights * np.float32(1 - np.float32(rate) * decay),
        "fp32(fp64 p * (1 - lr*wd))": (wide * (1 - rate * decay)).astype(np.float32),
        "fp32(fp64 p - lr*wd*p)": (wide - rate * decay * wide).astype(np.float32),
        "fp32(fp64 p - fp32(lr)*wd*p)": (wide - float(np.float32(rate)) * decay * wide).astype(np.float32),
        "p - fp32(fp32(lr*wd)*p)": weights - np.float32(rate * decay) * weights,
        "fma(-fp32(lr*wd), p, p)": (wide - float(np.float32(rate * decay)) * wide).astype(np.float32),
    }
    kinds: dict[str, Figures] = {"fused": {"fused": True}, "foreach": {"foreach": True}, "single": {"foreach": False}}
    if HAS_GPU:
        kinds |= {f"{name}, lr a tensor": {**kinds[name], "capturable": True} for name in ("fused", "foreach")}
    figures: Figures = {}
    for kind, options in kinds.items():
        parameter = start.to(DEVICE, copy=True).requires_grad_()
        parameter.grad = torch.zeros_like(parameter)
        lr = torch.tensor(rate, device=DEVICE) if "tensor" in kind else rate
        torch.optim.AdamW([parameter], lr=lr, weight_decay=decay, **options).step()
        bits = parameter.detach().cpu().numpy().view(np.int32)
        figures[kind] = [name for name, made in candidates.items() if np.array_equal(bits, made.view(np.int32))]
    return "p * fp32(1 - lr*wd)" in figures["foreach"], figures


CHECKS: tuple[tuple[Callable[[Bench], Outcome], bool], ...] = (
    (check_shares, True),
    (check_graph, True),
    (check_same_bits, False),
    (check_resumed, False),
    (check_replay, False),
    (check_curves, True),
    (check_waits, True),
    (check_decay, True),
)
"""The most important first, and whether only a GPU has the answer."""


def run_check(check: Callable[[Bench], Outcome], bench: Bench, seconds: float) -> tuple[str, Figures]:
    """PASS or FAIL, and the figures, of a check that may take so many seconds."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"cut after {seconds:.0f} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        holds, figures = check(bench)
    except Exception as error:  # one check that breaks must not take the others with it
        return "FAIL", {"error": repr(error)[:400], "at": traceback.format_exc().splitlines()[-4:-1]}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "PASS" if holds else "FAIL", figures


def main(
    *, budget: float = 285.0, tiny: bool = False, only: tuple[str, ...] = (), out: Path = Path("gpu_checks.json")
) -> None:
    """Run the checks, print a line of each, and write all figures.

    Args:
        budget: seconds that all may take
        tiny: small models and few steps, to try it on a CPU
        only: checks to run, such as graph decay; all by default
        out: the JSON file
    """
    started, device = time.monotonic(), torch.cuda.get_device_name() if HAS_GPU else "no GPU"
    results: Figures = {"device": device, "torch": torch.__version__, "checks": {}}
    print(f"{device}, torch {torch.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for check, needs_gpu in CHECKS:
            name, begun = check.__name__.removeprefix("check_"), time.monotonic()
            if only and name not in only:
                continue
            seconds = started + budget - begun
            verdict, figures = run_check(check, Bench(Path(folder), tiny), seconds) if seconds > 1 else ("not run", {})
            verdict = "needs a GPU" if needs_gpu and not HAS_GPU and figures and "error" not in figures else verdict
            seconds = round(time.monotonic() - begun, 1)
            results["checks"][name] = {"verdict": verdict, "seconds": seconds, **figures}
            print(f"{verdict:11} {name} ({seconds} s): {json.dumps(figures, default=float)}", flush=True)
            out.write_text(json.dumps(results, indent=1, default=float) + "\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
