"""The measurements of the benchmark training.py, each for a process of its own: `run` is its target."""

import importlib
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIRST_STEP = """
import sys, runpy
from toolkit.training.step_recorder import Recorder
def expect(*_):
    print("first step", flush=True)
    raise SystemExit
Recorder.expect = expect
sys.argv = ["finetune.py", "--output-dir", sys.argv[1]]
runpy.run_path("finetune.py", run_name="__main__")
"""
"""A run that ends where its first training step would begin."""


PRELOADED = (
    "accelerate",
    "joblib",
    "sklearn.linear_model",
    "sklearn.model_selection",
    "toolkit.pipeline",
    "toolkit.training.callback",
    "transformers.models.bert.modeling_bert",
    "transformers.trainer",
)
"""What a process has imported before it measures: no side's time counts them."""

TUNED: dict[str, Any] = {"bf16": True, "train_sampling_strategy": "group_by_length", "optim": "adamw_torch_fused"}
PEERS: dict[str, dict[str, Any]] = {"plain": {}, "tuned": TUNED, "tuned+": TUNED, "compiled": TUNED}
"""TrainingArguments of each. The last two also pad to a multiple of 8 and do without cuDNN's attention, which builds a
plan for each shape; the last is compiled beside."""
WORKERS = {"dataloader_num_workers": 4, "dataloader_pin_memory": True}
"""What tunes it beside, on a GPU."""
BATCH_SIZE, LEARNING_RATE = 32, 5e-5
STEPS_TO_WARM = 10
"""Of an epoch of a Trainer: its workers start, and its first batches wait for them."""


def now() -> float:
    """Seconds on this process's clock, once a GPU has done all that it was given."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def memory() -> dict[str, float]:
    """GiB at most: tensors on the GPU, and what is kept for them; without a GPU resident, twice."""
    import torch

    if torch.cuda.is_available():
        return {"GiB": torch.cuda.max_memory_allocated() / 2**30, "reserved": torch.cuda.max_memory_reserved() / 2**30}
    return dict.fromkeys(("GiB", "reserved"), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def read_rows(file: str | Path) -> list[tuple[str, int]]:
    """Text and label of each row of a file that `prepare` wrote."""
    lines = Path(file).read_text().splitlines()[1:]
    return [(text, int(label)) for text, label in (line.rsplit("\t", 1) for line in lines)]


def prepare(
    folder: str,
    data: str | None,
    tokenizer: str | None,
    sizes: dict[str, dict[str, int]],
    max_length: int,
    is_tiny: bool,
) -> dict[str, Any]:
    """Write data and, for a GPU, a model; say what they are, what they ask of the machine, and what it can do.

    ``sizes``: of a GPU and of a CPU, name of a data set to its training rows; ``long``: each joins 2 to 22 sentences of
    one label; all others are sentences. The model is BERT-base from its config with random weights (tiny: two small
    layers), without a GPU the embedded one. Gives ``folder``, ``model``, a folder too, ``operations`` of one epoch on
    each data set, the ``rate`` at which the device's bf16 matrix products go, per second, and ``device``, its name.
    """
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from toolkit.config import RunConfig
    from toolkit.data.tasks import load_task
    from toolkit.snapshots.tokenizer_files import EMBEDDED, find_embedded

    of_model = tokenizer or str(find_embedded(EMBEDDED))
    encode = AutoTokenizer.from_pretrained(of_model, trust_remote_code=False)
    if torch.cuda.is_available() or is_tiny:
        of_model = f"{folder}/model"
        small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
        torch.manual_seed(0)
        BertModel(BertConfig(**(small if is_tiny else {}))).save_pretrained(of_model)
        encode.save_pretrained(of_model)
    config = BertConfig.from_pretrained(of_model, trust_remote_code=False)
    files: dict[str, Any] = (
        {"train_file": f"{data}/train.tsv", "validation_file": f"{data}/dev.tsv"} if data else {"task": "polarity"}
    )
    splits: Any = load_task(RunConfig(**files)).splits
    rows = {
        name: [(text, int(label)) for (text,), label in zip(s.texts, s.labels, strict=True)]
        for name, s in splits.items()
    }
    draw, operations = random.Random(0), {}
    train, dev = list(dict.fromkeys(rows["train"])), rows["validation"]
    draw.shuffle(train)
    pools = [[text for text, label in train if label == wanted] for wanted in (0, 1)]

    def joined(size: int) -> list[tuple[str, int]]:
        return [(" ".join(draw.choices(pools[k % 2], k=draw.randint(2, 22))), k % 2) for k in range(size)]

    for name, size in sizes["cuda" if torch.cuda.is_available() else "cpu"].items():
        parts = {"train": joined(size), "dev": joined(400)} if name == "long" else {"train": train[:size], "dev": dev}
        for part, chosen in parts.items():
            lines = ["text\tlabel", *(f"{text}\t{label}" for text, label in chosen)]
            Path(folder, f"{name}_{part}.tsv").write_text("\n".join(lines) + "\n")
        ids = encode([text for text, _ in parts["train"]], truncation=True, max_length=max_length)["input_ids"]
        operations[name] = count_operations([len(one) for one in ids], config)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "folder": folder,
        "model": of_model,
        "device": device,
        "rate": measure_peak(),
        "operations": operations,
    }


def count_operations(lengths: list[int], config: Any) -> float:
    """Floating-point operations of the matrix products of one epoch of full fine-tuning, over unpadded tokens.

    Forward 2 per weight and token, backward 4; attention's two products 4·length·hidden per token and layer, times 3.
    Only those that the pooler needs, without its own: of the top layer keys and values of every token, all else of
    each first token.
    """
    hidden, num_tokens = config.hidden_size, sum(lengths)
    attention, keys, rest = 3 * 4 * hidden, 2 * hidden**2, 2 * hidden**2 + 2 * hidden * config.intermediate_size
    a_layer = 6 * (keys + rest) * num_tokens + attention * sum(length**2 for length in lengths)
    top = 6 * (keys * num_tokens + rest * len(lengths)) + attention * num_tokens
    return float((config.num_hidden_layers - 1) * a_layer + top)


def measure_peak() -> float:
    """Operations per second of the fastest bf16 matrix product: of one size on a GPU, of five on a CPU."""
    import torch

    rates = []
    is_cuda = torch.cuda.is_available()
    for size in (8192,) if is_cuda else (512, 1024, 2048, 3072, 4096):
        one, other = (torch.randn(size, size, device="cuda" if is_cuda else "cpu").bfloat16() for _ in range(2))
        one @ other
        for _ in range(5):
            started = now()
            for _ in range(num_products := 10 if is_cuda else 1):
                one @ other
            rates.append(num_products * 2 * size**3 / (now() - started))
    return max(rates)


def build_trainer(
    model: str, max_length: int, data: str, freeze: str, kind: str, *, epochs: int, is_scored: bool, callbacks: Any = ()
) -> tuple[Any, Any]:
    """A Trainer of BertForSequenceClassification, and the clock that it was given."""
    import torch
    from transformers import (
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        """When epochs began and ended, and when the first steps of a training were over."""

        def __init__(self) -> None:
            self.begins, self.warm, self.ends = list[float](), list[float](), list[float]()

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            self.begins.append(now())

        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == STEPS_TO_WARM:
                self.warm.append(now())

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(now())

    is_plus, is_cuda = kind in ("tuned+", "compiled"), torch.cuda.is_available()
    if is_plus and is_cuda:
        torch.backends.cuda.enable_cudnn_sdp(False)
    tokenizer, clock = AutoTokenizer.from_pretrained(model, trust_remote_code=False), Clock()
    splits = []
    for part in ("train", "dev"):
        texts, labels = zip(*read_rows(f"{data}_{part}.tsv"), strict=True)
        ids = tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
        splits.append([{"input_ids": one, "labels": label} for one, label in zip(ids, labels, strict=True)])
    arguments = TrainingArguments(
        tempfile.mkdtemp(dir=Path(data).parent),
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH_SIZE,
        per_device_eval_batch_size=128,
        learning_rate=LEARNING_RATE,
        report_to=[],
        save_strategy="no",
        eval_strategy="epoch" if is_scored else "no",
        use_cpu=not is_cuda,
        disable_tqdm=True,
        logging_steps=10**9,
        torch_compile=kind == "compiled",
        **PEERS[kind] | (WORKERS if is_cuda and kind != "plain" else {}),
    )
    trainer = Trainer(
        network_of(model, freeze),
        arguments,
        train_dataset=splits[0],
        eval_dataset=splits[1],
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if is_plus else None),
        processing_class=tokenizer,
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(1) == p.label_ids).mean())},
        callbacks=[clock, *callbacks],
    )
    return trainer, clock


def network_of(model: str, freeze: str) -> Any:
    """A BertForSequenceClassification of which a regime's part is frozen."""
    from transformers import BertForSequenceClassification

    network = BertForSequenceClassification.from_pretrained(model, num_labels=2, trust_remote_code=False)
    for frozen in {"none": [], "embeddings": [network.bert.embeddings], "backbone": [network.bert]}[freeze]:
        frozen.requires_grad_(False)
    return network


def time_trainer(model: str, max_length: int, data: str, freeze: str, epochs: int, kind: str) -> dict[str, Any]:
    """Seconds of the first and the last epoch without scoring, and of all from reading the data to the last score."""
    begun = time.perf_counter()
    trainer, clock = build_trainer(model, max_length, data, freeze, kind, epochs=epochs, is_scored=True)
    trainer.train()
    whole = now() - begun
    seconds = [end - begin for begin, end in zip(clock.begins, clock.ends, strict=True)]
    return {"cold": seconds[0], "warm": seconds[-1], "whole": whole, **memory()}


def config_of(model: str, max_length: int, data: str, freeze: str, epochs: int, folder: str) -> Any:
    """A run of ours, pooled as BertForSequenceClassification does, so that both sides have the same layers."""
    from toolkit.config import RunConfig

    return RunConfig(
        model=model,
        train_file=f"{data}_train.tsv",
        validation_file=f"{data}_dev.tsv",
        text_columns=("text",),
        label_column="label",
        freeze=freeze,
        epochs=epochs,
        head_training="epochs",
        batch_size=BATCH_SIZE,
        max_length=max_length,
        learning_rate=LEARNING_RATE,
        pooling="pooler",
        output_dir=folder,
    )


def time_toolkit(**setting: Any) -> dict[str, Any]:
    """The same of a run of ours, with the share of its snapshots' bytes that the first has, and of steps in graphs."""
    from toolkit import finetune

    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        run = finetune(config_of(**setting, folder=folder))
        whole = now() - begun
        sizes = [file.stat().st_size for file in sorted((run.path / "snapshots").iterdir())]
        cost, graph = run.manifest["cost"], run.manifest.get("cuda_graph") or {}
    seconds, shares = cost["epoch_seconds"], {"snapshots": sizes[0] / sum(sizes)}
    shares["in graphs"] = graph.get("share_of_steps", 0.0)
    return {"cold": seconds[0], "warm": seconds[-1], "whole": whole, **memory(), **shares}


def time_bare(model: str, max_length: int, data: str, freeze: str, epochs: int) -> dict[str, Any]:
    """Seconds of each epoch of a loop of nothing but the step, its batches on the device before; no scores."""
    import torch
    from torch.nn.utils import clip_grad_norm_
    from transformers import AutoTokenizer

    seconds = []
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.enable_cudnn_sdp(False)
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    network = network_of(model, freeze).to(device).train()
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, LEARNING_RATE, fused=True)
    rows = sorted(read_rows(f"{data}_train.tsv"), key=lambda row: len(row[0]))
    batches = []
    for start in range(0, len(rows), BATCH_SIZE):
        texts, labels = zip(*rows[start : start + BATCH_SIZE], strict=True)
        batch = tokenizer(
            list(texts), truncation=True, max_length=max_length, padding=True, pad_to_multiple_of=8, return_tensors="pt"
        ).to(device)
        batches.append({**batch, "labels": torch.tensor(labels, device=device)})
    for epoch in range(epochs):
        random.Random(epoch).shuffle(batches)
        epoch_begun = now()
        for batch in batches:
            with torch.autocast(device, torch.bfloat16):
                loss = network(**batch).loss
            loss.backward()
            clip_grad_norm_(trained, 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seconds.append(now() - epoch_begun)
    return {"cold": seconds[0], "warm": seconds[-1], **memory()}


def time_records(model: str, max_length: int, data: str, freeze: str, pairs: int) -> dict[str, Any]:
    """Milliseconds per step of a run of ours with all that it records, and of the same loop without, epochs in turn.

    One process trains two copies of the model: an epoch of `finetune`, then one of a loop whose recorder notes nothing
    and that saves nothing, and so on; the first epoch of each warms it. Scoring counts in neither. What the run still
    writes when the next epoch begins slows its own epoch, which therefore always comes first.
    """
    from toolkit import finetune, pipeline
    from toolkit.models.regimes import locate_embeddings
    from toolkit.training.loop import train
    from toolkit.training.resume import Resumer
    from toolkit.training.step_recorder import Recorder

    seconds: dict[str, list[float]] = {"with": [], "without": []}

    def in_turn(
        accelerator: Any,
        network: Any,
        encoded: Any,
        config: Any,
        recorder: Any,
        on_step: Any,
        resumer: Any,
        facts: Any,
    ) -> Any:
        alone = deepcopy(network)
        silent: Any = Recorder(dict(locate_embeddings(alone.backbone).parameters))
        for method in [name for name in dir(silent) if name.startswith("record_")]:
            setattr(silent, method, lambda *_, **__: None)
        anew = Resumer(accelerator, silent, None, None, {})
        loops = {
            "with": train(accelerator, network, encoded, config, recorder, on_step, resumer, facts),
            "without": train(accelerator, alone, encoded, config, silent, lambda log, seconds: None, anew, {}),
        }
        for _ in range(pairs + 2):
            moments: dict[str, Any] = {}
            for name, loop in loops.items():
                started = now()
                moments[name] = next(loop)
                seconds[name].append(now() - started)
            moments["without"].compute_outputs()
            yield moments["with"]

    module: Any = pipeline
    module.train = in_turn
    with tempfile.TemporaryDirectory() as folder:
        finetune(config_of(model, max_length, data, freeze, pairs + 1, folder))
    num_steps = -(-len(read_rows(f"{data}_train.tsv")) // BATCH_SIZE)
    # Of each the first time is of building it, up to its first scores, and the second of the epoch that warms it.
    return in_pairs({name: [1000 * value / num_steps for value in taken[2:]] for name, taken in seconds.items()})


def in_pairs(milliseconds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians of what was taken ``with`` records and ``without``, and their ratio in each pair."""
    ratios = [one / other for one, other in zip(milliseconds["with"], milliseconds["without"], strict=True)]
    return {name: median(values) for name, values in milliseconds.items()} | {"ratios": ratios}


def time_callback(model: str, max_length: int, data: str, freeze: str, pairs: int, kind: str) -> dict[str, Any]:
    """The same of a Trainer under EmbeddingSnapshotCallback and of one without, each training for an epoch in turn.

    The first steps of each training are left out. What the process meets for the first time slows the first pair, which
    a median can bear.
    """
    from toolkit import EmbeddingSnapshotCallback

    with tempfile.TemporaryDirectory() as folder:
        build = partial(build_trainer, model, max_length, data, freeze, kind, epochs=1, is_scored=False)
        recorded = build(callbacks=[EmbeddingSnapshotCallback(f"{folder}/recorded", overwrite=True)])
        sides = {"with": recorded, "without": build()}
        for trainer, _ in list(sides.values()) * pairs:
            trainer.train()
    num_steps = sides["with"][0].state.global_step - STEPS_TO_WARM
    taken = {
        name: [1000 * (end - warm) / num_steps for warm, end in zip(clock.warm, clock.ends, strict=True)]
        for name, (_, clock) in sides.items()
    }
    return in_pairs(taken)


def time_start() -> dict[str, Any]:
    """Seconds from starting ``python finetune.py`` to its first training step, and of importing torch and BERT."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", FIRST_STEP, folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        ) as child:
            if not any(line.startswith("first step") for line in child.stdout or ()):
                raise RuntimeError("finetune.py ended before its first step")
            first_step = time.perf_counter() - started
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, transformers.models.bert.modeling_bert"], check=True)
    return {"seconds": first_step, "imports": time.perf_counter() - started}


def measure_gloo(freeze: str) -> dict[str, Any]:
    """Bytes over the loopback device per optimizer step of two processes: a longer run minus a shorter one."""
    sent = {}
    for steps in (5, 25):
        before = _loopback_bytes()
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "finetune.py"]
            command += ["--freeze", freeze, "--max-steps", str(steps), "--output-dir", folder]
            subprocess.run(
                command, check=True, cwd=ROOT, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )
        sent[steps] = _loopback_bytes() - before
    return {"bytes_per_step": (sent[25] - sent[5]) / 20}


def _loopback_bytes() -> int:
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "prepare": prepare,
    "trainer": time_trainer,
    "ours": time_toolkit,
    "bare": time_bare,
    "records": time_records,
    "callback": time_callback,
    "start": time_start,
    "gloo": measure_gloo,
}


def run(answer: Connection, log: str, name: str, arguments: dict[str, Any]) -> None:
    """Send the figures of a measurement through ``answer``; what is said meanwhile goes to the file ``log``."""
    written = os.open(log, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(written, stream)
    for module in PRELOADED:
        importlib.import_module(module)
    answer.send(MEASURES[name](**arguments))
