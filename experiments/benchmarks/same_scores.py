"""Question: does anything that was done for speed change how well a model scores?

Two sides with the same seeds, heads, learning rates and numbers of steps, full fine-tuning of MiniLM, one epoch:

- plain: fp32, batches drawn at random, a loop of torch's own in this file, transformers' model as it is;
- ours: `toolkit.finetune` at its defaults (bf16 where the hardware has it, batches of similar length).

Printed: each seed's share of right answers over dev and test together, and the paired difference, ours minus plain,
with its 90 % interval over seeds and items, and over seeds alone (Student's t of the seeds' differences).

    python experiments/benchmarks/same_scores.py --data ../shared/data/sst2 --folder runs/same_scores

The data are SST-2: experiments/data.sha256 has their source, licence and sha256. Answers are kept in --folder, one file
per side and seed: repeated, it takes up where it stopped.
"""

import io
import math
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from torch.nn import functional

from toolkit import finetune
from toolkit.comparison.intervals import two_way_interval
from toolkit.config import RunConfig
from toolkit.data.tasks import Split, load_task
from toolkit.models.classifier import load_classifier

LEVEL, BOUND = 0.9, 0.015
Answers = NDArray[np.bool_]
"""(items,) whether an answer is right, validation then test."""


def train_plainly(config: RunConfig) -> Answers:
    """Fine-tune without anything of the toolkit's training."""
    task = load_task(config)
    loaded = load_classifier(config.model, pooling="mean", num_outputs=task.num_outputs, seed=config.seed)
    model, tokenizer = loaded.model, loaded.tokenizer
    torch.manual_seed(config.seed)
    decayed, others = (
        [p for n, p in model.named_parameters() if (p.ndim > 1) == is_matrix and not n.startswith("head")]
        for is_matrix in (True, False)
    )
    rate, decay = config.learning_rate, config.weight_decay
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "lr": rate, "weight_decay": decay},
            {"params": others, "lr": rate, "weight_decay": 0.0},
            {"params": [model.head.weight], "lr": config.head_learning_rate, "weight_decay": decay},
            {"params": [model.head.bias], "lr": config.head_learning_rate, "weight_decay": 0.0},
        ]
    )
    train, order = task.splits["train"], np.random.default_rng(config.seed).permutation(len(task.splits["train"]))
    batches = [order[i : i + config.batch_size] for i in range(0, len(order), config.batch_size)]
    warmup = math.ceil(config.warmup_fraction * len(batches))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda k: min((k + 1) / warmup, (len(batches) - k) / (len(batches) - warmup)),
    )

    def outputs(split: Split, indices: NDArray[np.int64]) -> torch.Tensor:
        texts = [split.texts[i][0] for i in indices]
        encoded = tokenizer(texts, padding=True, truncation=True, max_length=config.max_length, return_tensors="pt")
        logits: torch.Tensor = model(**encoded)
        return logits

    model.train()
    for batch in batches:
        assert train.labels is not None
        functional.cross_entropy(outputs(train, batch), torch.from_numpy(train.labels[batch])).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_gradient_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()
    right = []
    with torch.inference_mode():
        for name in ("validation", "test"):
            split = task.splits[name]
            for part in np.array_split(np.arange(len(split)), len(split) // 64 + 1):
                assert split.labels is not None
                right.append(outputs(split, part).argmax(1).numpy() == split.labels[part])
    return np.concatenate(right)


def train_ours(config: RunConfig) -> Answers:
    """Fine-tune as anybody does."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        predictions = finetune(config).predictions
    last = predictions[predictions.epoch == predictions.epoch.max()]
    parts = [last[last.split == name].sort_values("id") for name in ("validation", "test")]
    return np.concatenate([(part.prediction == part.label).to_numpy() for part in parts])


SIDES: dict[str, Callable[[RunConfig], Answers]] = {"plain": train_plainly, "ours": train_ours}


def main(*, data: str, folder: Path, examples: int = 5000, seeds: tuple[int, ...] = tuple(range(8))) -> None:
    """Train what is missing, print scores and intervals.

    Args:
        data: folder with train.tsv, dev.tsv and test.tsv
        folder: where answers are kept
        examples: training examples
        seeds: 0 to 7 by default
    """
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Answers]] = {side: [] for side in SIDES}
    for seed in seeds:
        for side, train in SIDES.items():
            file = folder / f"{side}-{examples}-{seed}.npy"
            if not file.exists():
                with tempfile.TemporaryDirectory() as runs:
                    config = RunConfig(
                        train_file=f"{data}/train.tsv",
                        validation_file=f"{data}/dev.tsv",
                        test_file=(f"test={data}/test.tsv",),
                        max_train_examples=examples,
                        epochs=1,
                        seed=seed,
                        output_dir=runs,
                    )
                    np.save(file, train(config))
            found[side].append(np.load(file))
        print(f"seed {seed}: " + ", ".join(f"{side} {own[-1].mean():.4f}" for side, own in found.items()), flush=True)
    differences = np.array(found["ours"], float) - np.array(found["plain"], float)
    for name, table in (("seeds and items", differences), ("seeds alone", differences.mean(axis=1, keepdims=True))):
        span = two_way_interval(table, LEVEL)
        verdict = "within" if max(-span.low, span.high) < BOUND else "NOT within"
        print(
            f"ours minus plain, {table.shape[0]} seeds, {differences.shape[1]:,} items, over {name}: "
            f"{span.estimate:+.4f} ({span.low:+.4f} to {span.high:+.4f}), {verdict} ±{BOUND}"
        )


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
