"""One measurement of the benchmark training.py in, its figures as one line of JSON out: each has a process of its own.

python experiments/benchmarks/training_measures.py '{"measure": "start"}'
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIRST_STEP = """
import sys, runpy
from toolkit.training.fast_step import FastStepper
def take(*_):
    print("first step", flush=True)
    raise SystemExit
FastStepper.take = take
sys.argv = ["finetune.py", "--output-dir", sys.argv[1]]
runpy.run_path("finetune.py", run_name="__main__")
"""
"""A run that ends where its first training step would begin."""


LATE_IMPORTS = (
    "accelerate",
    "joblib",
    "sklearn.linear_model",
    "sklearn.model_selection",
    "transformers.models.bert.modeling_bert",
)
"""What a run of ours imports when it needs it: imports are left out of both sides."""


def config_of(data: str | None, **fields: Any) -> Any:
    """A run on SST-2 of ``data``, or on the built-in task."""
    from toolkit.config import RunConfig

    own: dict[str, Any] = {"epochs": 1, "task": "polarity"}
    if data:
        own |= {"train_file": f"{data}/train.tsv", "validation_file": f"{data}/dev.tsv"}
    return RunConfig(**(own | fields))


def time_trainer(
    data: str | None, freeze: str, kind: str, examples: int, epochs: int, is_scored: bool
) -> dict[str, Any]:
    """Seconds of ``Trainer.train``; with ``is_scored`` from loading the model to the last epoch's score."""
    import torch
    from transformers import BertForSequenceClassification, DataCollatorWithPadding, Trainer, TrainingArguments

    from toolkit.data.tasks import load_task
    from toolkit.models.checkpoints import find_checkpoint

    task, source = load_task(config_of(data, max_train_examples=examples)), find_checkpoint("minilm")
    started = time.perf_counter()
    tokenizer, config = source.read_tokenizer(), source.read_config()
    config.num_labels = task.num_outputs
    model = BertForSequenceClassification(config)
    model.bert.load_state_dict(source.read_backbone(source.read_config(), {"add_pooling_layer": True}).state_dict())
    frozen = {"none": [], "embeddings": model.bert.embeddings.parameters(), "backbone": model.bert.parameters()}
    for parameter in frozen[freeze]:
        parameter.requires_grad_(False)

    class Encoded(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __init__(self, split: Any) -> None:
            self.ids = tokenizer([text for (text,) in split.texts], truncation=True, max_length=128)["input_ids"]
            self.labels = split.labels

        def __len__(self) -> int:
            return len(self.ids)

        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"input_ids": self.ids[i], "labels": int(self.labels[i])}

    options: dict[str, Any] = {"bf16": True, "train_sampling_strategy": "group_by_length", "optim": "adamw_torch_fused"}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=64,
            learning_rate=5e-5,
            report_to=[],
            save_strategy="no",
            eval_strategy="epoch" if is_scored else "no",
            use_cpu=True,
            disable_tqdm=True,
            **(options if kind == "tuned" else {}),
        )
        train, dev = Encoded(task.splits["train"]), Encoded(task.splits["validation"])
        collator = DataCollatorWithPadding(tokenizer)
        trainer = Trainer(model, arguments, train_dataset=train, eval_dataset=dev, data_collator=collator)
        metrics = trainer.train().metrics
    return {"seconds": time.perf_counter() - started if is_scored else metrics["train_runtime"]}


def time_toolkit(data: str | None, freeze: str, examples: int, epochs: int, is_scored: bool) -> dict[str, Any]:
    """The same of a run of ours; of the full regime also the unpadded tokens."""
    from toolkit import finetune
    from toolkit.data.tasks import load_task

    for name in LATE_IMPORTS:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        # The pooler, as in BertForSequenceClassification: the same layers on both sides.
        own = {"freeze": freeze, "max_train_examples": examples, "epochs": epochs, "pooling": "pooler"}
        config = config_of(data, output_dir=folder, **own)
        load_task(config)
        started = time.perf_counter()
        run = finetune(config)
        whole = time.perf_counter() - started
        size = sum(file.stat().st_size for file in (run.path / "snapshots").iterdir())
        one = (run.path / "snapshots" / "epoch-000.safetensors").stat().st_size
        seconds = whole if is_scored else run.manifest["cost"]["seconds_training"]
    operations = epochs * _operations(_lengths(config))
    return {"seconds": seconds, "operations": operations, "snapshot_ratio": size / one}


def _lengths(config: Any) -> Any:
    """(examples,) unpadded tokens of the training split."""
    from toolkit.data.tasks import load_task
    from toolkit.models.classifier import load_classifier
    from toolkit.training.encoding import encode_task

    task = load_task(config)
    loaded = load_classifier(config.model, pooling=config.pooling, num_outputs=task.num_outputs)
    return encode_task(task, loaded, config.max_length).splits["train"].lengths


def _operations(lengths: Any, hidden: int = 384, layers: int = 6, inner: int = 1536) -> float:
    """Floating-point operations of the matrix products of one epoch of full fine-tuning, over unpadded tokens.

    Forward 2 per weight and token, backward 4; attention's two products 4·length·hidden per token and layer, times 3.
    Only those that the pooler needs, without its own: of the top layer keys and values of every token, all else of
    each first token.
    """
    attention, keys, rest = 3 * 4 * hidden, 2 * hidden**2, 2 * hidden**2 + 2 * hidden * inner
    below = (layers - 1) * (6 * (keys + rest) * lengths.sum() + attention * (lengths.astype(float) ** 2).sum())
    return float(below + 6 * (keys * lengths.sum() + rest * len(lengths)) + attention * lengths.sum())


def measure_peak() -> dict[str, Any]:
    """Operations per second of the fastest bf16 matrix product of five sizes."""
    import torch

    rates = []
    for size in (512, 1024, 2048, 3072, 4096):
        one, other = (torch.randn(size, size).bfloat16() for _ in range(2))
        one @ other
        for _ in range(5):
            started = time.perf_counter()
            one @ other
            rates.append(2 * size**3 / (time.perf_counter() - started))
    return {"rate": max(rates)}


def time_without_records(data: str | None, freeze: str, examples: int, epochs: int) -> dict[str, Any]:
    """Seconds of the same run without snapshots, exposure, logs and predictions: training and scoring alone."""
    from toolkit.data.tasks import load_task
    from toolkit.models.classifier import load_classifier
    from toolkit.models.regimes import apply_regime, list_components, parse_regime
    from toolkit.training.accelerators import build_accelerator
    from toolkit.training.encoding import encode_task
    from toolkit.training.evaluation import compute_scores
    from toolkit.training.going_on import GoingOn
    from toolkit.training.loop import train

    class Silent:
        """A recorder that records nothing."""

        def expect(self, *_: Any) -> None: ...

        def record_step(self, *_: Any) -> None: ...

        def record_rates(self, *_: Any) -> None: ...

    config = config_of(data, freeze=freeze, max_train_examples=examples, epochs=epochs)
    accelerator, task = build_accelerator(config), load_task(config)
    loaded = load_classifier(config.model, pooling=config.pooling, num_outputs=task.num_outputs)
    apply_regime(loaded.model, parse_regime(freeze, tuple(list_components(loaded.model, loaded.family))), loaded.family)
    encoded = encode_task(task, loaded, config.max_length)
    started = time.perf_counter()
    silent: Any = Silent()
    anew = GoingOn(accelerator, silent, None, None, {})
    for moment in train(accelerator, loaded.model, encoded, config, silent, lambda log, seconds: None, anew):
        found = moment.compute_outputs() if moment.compute_outputs else {}
        for name, outputs in found.items():
            compute_scores(task.kind, encoded.splits[name].labels, outputs)
    return {"seconds": time.perf_counter() - started}


def time_with_records(data: str | None, freeze: str, examples: int, epochs: int) -> dict[str, Any]:
    """Seconds of the part of a run that `time_without_records` times, with all that a run directory holds."""
    from toolkit import finetune, pipeline

    seconds: list[float] = []
    module: Any = pipeline
    inner = pipeline._train_and_save

    def timed(*arguments: Any) -> None:
        started = time.perf_counter()
        inner(*arguments)
        seconds.append(time.perf_counter() - started)

    module._train_and_save = timed
    with tempfile.TemporaryDirectory() as folder:
        finetune(config_of(data, freeze=freeze, max_train_examples=examples, epochs=epochs, output_dir=folder))
    return {"seconds": seconds[0]}


def time_start() -> dict[str, Any]:
    """Seconds from starting ``python finetune.py`` to its first training step, and of importing torch and BERT."""
    command = [sys.executable, "-c", FIRST_STEP]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "cwd": ROOT}
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        with subprocess.Popen([*command, folder], **pipes) as child:
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
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            subprocess.run(command, check=True, cwd=ROOT, capture_output=True, env=environment)
        sent[steps] = _loopback_bytes() - before
    return {"bytes_per_step": (sent[25] - sent[5]) / 20}


def _loopback_bytes() -> int:
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "trainer": time_trainer,
    "toolkit": time_toolkit,
    "peak": measure_peak,
    "with": time_with_records,
    "without": time_without_records,
    "start": time_start,
    "gloo": measure_gloo,
}

if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    print("\n" + json.dumps(MEASURES[arguments.pop("measure")](**arguments)))
