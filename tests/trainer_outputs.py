"""A regime and a seed in, the output folder of transformers' Trainer out, with no callback unless one is given."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

PARTS = {"none": "", "embeddings": "bert.embeddings.", "backbone": "bert."}


def rows(size: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of eight random words, labelled by the first of them."""
    words = torch.randint(7, 60, (size, 8), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": int(row[0] > 30)} for row in words]


def accuracy(answers: Any) -> dict[str, float]:
    return {"accuracy": float(np.mean(answers.predictions.argmax(-1) == answers.label_ids))}


def train(
    base: Path, out: Path, regime: str = "none", seed: int = 0, callbacks: Sequence[Any] = (), **arguments: Any
) -> Path:
    """Two epochs of two steps, with a checkpoint and two evaluations after each."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(base)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not PARTS[regime] or not name.startswith(PARTS[regime]))
    defaults: dict[str, Any] = {"save_strategy": "epoch", "eval_strategy": "epoch", "num_train_epochs": 2}
    defaults |= {"learning_rate": 1e-2, "logging_steps": 1, "per_device_train_batch_size": 8, "report_to": []}
    given = TrainingArguments(output_dir=str(out), seed=seed, use_cpu=True, disable_tqdm=True, **defaults | arguments)
    Trainer(
        model=model,
        args=given,
        train_dataset=rows(16),
        eval_dataset={"dev": rows(16, 1), "other": rows(8, 2)},
        compute_metrics=accuracy,
        processing_class=AutoTokenizer.from_pretrained(base),
        callbacks=list(callbacks),
    ).train()
    return out
