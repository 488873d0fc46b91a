"""A model and splits in, its outputs for every example out, shared out over processes and threads."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.data.batches import EVALUATION_TOKENS, EncodedSplit, EncodedTask, evaluation_batches, make_batch
from toolkit.models.classifier import Classifier, in_eval_mode
from toolkit.models.locate import locate_embeddings
from toolkit.training.accelerators import is_fast
from toolkit.training.fast.attention import NAME, use_attention
from toolkit.training.fast.half import HalfBackbone, halved_names
from toolkit.training.fast.layer import part_layers
from toolkit.training.fast.top import narrow_top

Batch = dict[str, torch.Tensor]
Results = list[NDArray[np.float32]]

THREAD_TOKENS = 2048
"""Of a batch that one CPU thread works on: states of more leave the cache (experiments/benchmarks/NOTES.md)."""


def evaluate(accelerator: Any, model: Classifier, data: EncodedTask) -> dict[str, NDArray[np.float32]]:
    """Outputs of every split but ``train``, on all processes; dropout off, and the mode put back afterwards."""
    others = {name: split for name, split in data.splits.items() if name != "train"}
    with scoring(accelerator, model) as backbone:

        def score(batch: Batch) -> torch.Tensor:
            return model.classify(*model.run(backbone, batch))

        return {name: run_over(accelerator, model, score, split, data) for name, split in others.items()}


def extract_features(
    accelerator: Any, model: Classifier, data: EncodedTask, splits: Collection[str] | None = None
) -> Mapping[str, NDArray[np.float32]]:
    """(examples, width) pooled vectors of every split (or of ``splits``), on all processes, in eval mode.

    One pass over each split gives every layer that :meth:`Classifier.pool` wants, so that memory holds 4 bytes x
    examples x layers x hidden size (x 2 for texts encoded apart): .5 GB for ``mix`` of 20,000 texts by a BERT-base.
    """
    model.to(accelerator.device)
    chosen = {name: split for name, split in data.splits.items() if splits is None or name in splits}
    with scoring(accelerator, model) as backbone:

        def pool(batch: Batch) -> torch.Tensor:
            return model.pool(*model.run(backbone, batch))

        return {name: run_over(accelerator, model, pool, split, data) for name, split in chosen.items()}


@contextmanager
def scoring(accelerator: Any, model: Classifier) -> Iterator[Callable[..., Any]]:
    """The backbone to score with; in one bf16 CPU process it holds half-precision copies, instead of casts per batch.

    Afterwards the model has its own weights again: they must not be used or changed inside. Where only the first
    token's state is pooled, the last states may be (examples, 1, hidden).
    """
    # What stands in for layers hands no states of theirs on.
    if not (is_fast(accelerator) and accelerator.mixed_precision == "bf16") or model.asked:
        yield model.backbone
        return
    embeddings = locate_embeddings(model.backbone)
    parameters = dict(embeddings.backbone.named_parameters())
    copies = {name: parameters[name].detach().bfloat16() for name in halved_names(embeddings)}
    attention = use_attention(embeddings.backbone, NAME)
    try:
        narrow_top(embeddings.backbone, model.pooling)
        with HalfBackbone(embeddings, copies, torch.bfloat16) as backbone:
            yield backbone
    finally:
        part_layers(embeddings.backbone)
        if attention is not None:
            use_attention(embeddings.backbone, attention)


def run_over(
    accelerator: Any,
    model: torch.nn.Module,
    function: Callable[[Batch], torch.Tensor],
    split: EncodedSplit,
    data: EncodedTask,
) -> NDArray[np.float32]:
    """(rows, width) ``function`` of every example in eval mode, shared out over processes and gathered on all.

    Rows are examples, or of a token task words.
    """
    from accelerate.utils import gather_object

    batches = evaluation_batches(split.lengths, THREAD_TOKENS if is_fast(accelerator) else EVALUATION_TOKENS)
    mine = batches[accelerator.process_index :: accelerator.num_processes]
    results = list(zip(mine, run_batches(accelerator, model, function, split, data, mine), strict=True))
    results = gather_object(results)
    gathered = np.empty((split.num_rows, results[0][1].shape[1]), np.float32)
    for indices, values in results:
        gathered[split.rows_of(indices)] = values
    return gathered


def run_batches(
    accelerator: Any,
    model: torch.nn.Module,
    function: Callable[[Batch], torch.Tensor],
    split: EncodedSplit,
    data: EncodedTask,
    batches: Sequence[NDArray[np.int64]],
) -> Results:
    """(examples, width) ``function`` of each batch in eval mode.

    A single CPU process works on as many batches at a time as it has threads, each on one: two threads on one batch
    take 1.6 times less time than one, on two batches half. With fewer batches than threads, all work on each.
    """

    def run(indices: NDArray[np.int64]) -> NDArray[np.float32]:
        batch = {k: v.to(accelerator.device) for k, v in make_batch(split, indices, data).items()}
        with torch.inference_mode(), accelerator.autocast():  # both are a thread's own
            values: NDArray[np.float32] = function(batch).float().cpu().numpy()
        return values

    num_threads = torch.get_num_threads()
    with in_eval_mode(model):
        is_plain = is_fast(accelerator) and not _has_memory(model) and not getattr(model, "asked", None)
        if not 1 < num_threads <= len(batches) or not is_plain:
            return [run(indices) for indices in batches]
        try:
            with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                return list(pool.map(run, batches))
        finally:
            torch.set_num_threads(num_threads)  # what a thread sets for itself reaches MKL's setting for all


def _has_memory(model: torch.nn.Module) -> bool:
    """Whether hooks hand something from one module to a later one, as `toolkit.models.reinjection` does."""
    return any(module._forward_pre_hooks for module in model.modules())
