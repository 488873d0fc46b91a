"""A model's outputs for every example, shared between processes and threads, and the scores of them."""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.data.batches import EVALUATION_TOKENS, LABELS, EncodedSplit, EncodedTask, evaluation_batches, make_batch
from toolkit.data.labels import has_entities
from toolkit.data.tokens import spelled_alike
from toolkit.models.classifier import Classifier, in_eval_mode
from toolkit.models.regimes import locate_embeddings
from toolkit.training.accelerators import is_fast
from toolkit.training.graphs import padded_length, quick_attention, to_device
from toolkit.training.shortcuts import leave_shortcuts, take_shortcuts
from toolkit.training.weights import HalfWeights, halved_names, is_halved

TOKEN_SCORES = ("accuracy", "precision", "recall", "f1")
"""Of a token task: of words, and of entities, an entity being right when its words and its type are."""
CLASSIFICATION_SCORES = ("accuracy", "macro_f1", "matthews")
REGRESSION_SCORES = ("pearson", "spearman", "r2")
MASKED_SCORES = ("accuracy", "perplexity")
SCORES_OF: Mapping[str, tuple[str, ...]] = {
    "classification": CLASSIFICATION_SCORES,
    "tokens": TOKEN_SCORES,
    "regression": REGRESSION_SCORES,
    "masked": MASKED_SCORES,
}
"""Kind of a task to its scores."""


def scores_of(kind: str, num_outputs: int) -> tuple[str, ...]:
    """The scores of a task; of two classes also ``f1``, of the second one (label 1), as papers give MRPC and QQP."""
    return (*SCORES_OF[kind], "f1") if (kind, num_outputs) == ("classification", 2) else SCORES_OF[kind]


def predict(kind: str, outputs: NDArray[np.float32]) -> NDArray[np.int64] | NDArray[np.float64]:
    """(examples,) predicted class indices, or values in regression, from outputs (examples, classes or 1).

    Of masked tokens the rows of the vocabulary, from what :func:`likelihood_and_choice` gives.
    """
    if kind == "masked":
        return outputs[:, 1].astype(np.int64)
    return outputs.argmax(axis=1) if kind != "regression" else outputs[:, 0].astype(np.float64)


def score_split(data: EncodedTask, split: str, outputs: NDArray[np.float32]) -> dict[str, float]:
    """The scores (:func:`compute_scores`) of outputs, (rows, outputs), on one split of a task."""
    encoded, task = data.splits[split], data.task
    offsets = None if encoded.words is None else encoded.words.offsets
    return compute_scores(task.kind, encoded.labels, outputs, offsets=offsets, label_names=task.label_names)


def compute_scores(
    kind: str,
    labels: NDArray[Any] | None,
    outputs: NDArray[np.float32],
    *,
    offsets: NDArray[np.int64] | None = None,
    label_names: Sequence[str] = (),
) -> dict[str, float]:
    """Loss (nats, or squared error) and the scores of the kind; all NaN for a split without labels.

    Correlations are NaN where a side is constant, R2 (1 - squared errors / squared deviations of the labels from their
    mean, as scikit-learn's r2_score) where the labels are or there is one; macro-F1 is over the classes that occur in
    labels or predictions, and of two classes F1 is the second one's, 0 where nothing has it. Of a token task rows are
    words, ``offsets`` (examples + 1,) says which of them are one example's, ``label_names`` what the tags are called.
    Precision, recall and F1 are seqeval's of entities (as CoNLL's own script counts them), 0 where none is found, NaN
    where the tags mark none. Of masked tokens ``outputs`` are as :func:`likelihood_and_choice` gives them, and
    perplexity is e to the loss.
    """
    if labels is None:
        return dict.fromkeys(("loss", *scores_of(kind, outputs.shape[1])), float("nan"))
    if kind == "masked":
        loss = -float(outputs[:, 0].astype(np.float64).mean())
        return {"loss": loss, "accuracy": float((outputs[:, 1] == labels).mean()), "perplexity": float(np.exp(loss))}
    if kind == "tokens":
        return _token_scores(labels, outputs, offsets, label_names)
    if kind == "classification":
        return _classification_scores(labels, outputs)
    return _regression_scores(labels, outputs)


def _classification_scores(labels: NDArray[np.int64], outputs: NDArray[np.float32]) -> dict[str, float]:
    """The loss and all scores of classes."""
    predictions = outputs.argmax(axis=1)
    log_probabilities = torch.log_softmax(torch.from_numpy(outputs).double(), dim=1).numpy()
    return {
        "loss": float(-log_probabilities[np.arange(len(labels)), labels].mean()),
        "accuracy": float((predictions == labels).mean()),
        **_from_confusion(labels, predictions, outputs.shape[1]),
    }


def _token_scores(
    labels: NDArray[np.int64],
    outputs: NDArray[np.float32],
    offsets: NDArray[np.int64] | None,
    label_names: Sequence[str],
) -> dict[str, float]:
    """The loss and all scores of a token task; those of entities are NaN where its tags mark none."""
    assert offsets is not None
    scores = {
        name: value for name, value in _classification_scores(labels, outputs).items() if name in ("loss", "accuracy")
    }
    if not has_entities(label_names):
        return scores | dict.fromkeys(TOKEN_SCORES[1:], float("nan"))
    from seqeval.metrics import f1_score, precision_score, recall_score

    names = spelled_alike(label_names)
    between_examples = offsets[1:-1]
    true_tags = [names[tags].tolist() for tags in np.split(labels, between_examples)]
    predicted_tags = [names[tags].tolist() for tags in np.split(outputs.argmax(axis=1), between_examples)]
    functions = {"precision": precision_score, "recall": recall_score, "f1": f1_score}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where nothing is marked at all, seqeval warns whatever its options
        return scores | {
            name: float(score(true_tags, predicted_tags, zero_division=0)) for name, score in functions.items()
        }


def _from_confusion(labels: NDArray[np.int64], predictions: NDArray[np.int64], num_classes: int) -> dict[str, float]:
    """Macro-F1, Matthews correlation (0 where a side is constant) and F1 of two classes, as scikit-learn has them.

    By hand, because importing scikit-learn takes longer than all else that comes before the first training step.
    """
    table = np.bincount(labels * num_classes + predictions, minlength=num_classes**2).reshape(num_classes, num_classes)
    num_right = np.diag(table).astype(float)
    num_labelled, num_predicted = table.sum(axis=1), table.sum(axis=0)
    total = float(table.sum())
    occurrences = num_labelled + num_predicted
    spread = (total**2 - float(num_labelled @ num_labelled)) * (total**2 - float(num_predicted @ num_predicted))
    covariance = num_right.sum() * total - float(num_labelled @ num_predicted)
    f1 = 2 * num_right / np.maximum(occurrences, 1)
    return {
        "macro_f1": float(f1[occurrences > 0].mean()),
        "matthews": float(covariance / spread**0.5) if spread > 0 else 0.0,
        **({"f1": float(f1[1])} if num_classes == 2 else {}),
    }


def _regression_scores(labels: NDArray[np.float64], outputs: NDArray[np.float32]) -> dict[str, float]:
    """The loss and all scores of a regression."""
    from scipy.stats import pearsonr, spearmanr

    values = outputs[:, 0].astype(np.float64)
    is_defined = len(labels) > 1 and np.ptp(values) > 0 and np.ptp(labels) > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nearly constant input: scipy warns and answers all the same
        pearson = float(pearsonr(labels, values).statistic) if is_defined else float("nan")
        spearman = float(spearmanr(labels, values).statistic) if is_defined else float("nan")
    errors, deviations = ((values - labels) ** 2).sum(), ((labels - labels.mean()) ** 2).sum()
    has_spread = len(labels) > 1 and np.ptp(labels) > 0
    r2 = float(1 - errors / deviations) if has_spread else float("nan")
    return {"loss": float(errors / len(labels)), "pearson": pearson, "spearman": spearman, "r2": r2}


Batch = dict[str, torch.Tensor]
Results = list[NDArray[np.float32]]

THREAD_TOKENS, GPU_TOKENS = 2048, 16_384
"""Of a batch of a CPU thread, whose cache states of more leave (experiments/benchmarks/NOTES.md), and of a GPU."""


def evaluate(accelerator: Any, model: Classifier, data: EncodedTask) -> dict[str, NDArray[np.float32]]:
    """Outputs of every split but ``train``, on all processes; dropout off, and the mode put back afterwards."""
    scored_splits = {name: split for name, split in data.splits.items() if name != "train"}

    def score(batch: Batch) -> torch.Tensor:
        outputs: torch.Tensor = model(**batch)
        return likelihood_and_choice(outputs, batch[LABELS]) if LABELS in batch else outputs

    with scoring(accelerator, model) as precision:
        return {
            name: run_over(accelerator, model, score, split, data, precision) for name, split in scored_splits.items()
        }


def likelihood_and_choice(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(tokens, 2) of masked tokens, from logits (tokens, vocabulary) and labels (tokens,): the log-likelihood (nats) of
    the right row, and the likeliest row. The logits of a split, a vocabulary for each token, would fill the memory."""
    likelihoods = torch.log_softmax(logits.double(), dim=1).gather(1, labels[:, None])
    return torch.cat([likelihoods, logits.argmax(dim=1, keepdim=True).double()], dim=1)


def extract_features(
    accelerator: Any, model: Classifier, data: EncodedTask, splits: Collection[str] | None = None
) -> Mapping[str, NDArray[np.float32]]:
    """(examples, width) pooled vectors of every split (or of ``splits``), on all processes, in eval mode.

    One pass over each split gives every layer that :meth:`Classifier.pool` wants, so that memory holds 4 bytes x
    examples x layers x hidden size (x 2 for texts encoded apart): .5 GB for ``mix`` of 20,000 texts by a BERT-base.
    """
    model.to(accelerator.device)
    chosen = {name: split for name, split in data.splits.items() if splits is None or name in splits}
    with scoring(accelerator, model) as precision:
        features = model.features
        return {name: run_over(accelerator, model, features, split, data, precision) for name, split in chosen.items()}


@contextmanager
def scoring(accelerator: Any, model: Classifier) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
    """Inside, the model is ready to be scored with: in bf16 it holds half-precision copies, instead of casts per batch.

    What it gives is the precision to run each batch in. Afterwards the model has its own weights again: they must not
    be used or changed inside. Where only the first token's state is pooled, the last states may be (examples, 1,
    hidden).
    """
    if not (accelerator.mixed_precision == "bf16" and is_halved(model)):
        yield accelerator.autocast
        return
    embeddings = locate_embeddings(model.backbone)
    parameters = dict(embeddings.backbone.named_parameters())
    names = halved_names(embeddings, accelerator.device)
    attention = None
    try:
        attention = take_shortcuts(embeddings.backbone, model.pooling)
        with HalfWeights(embeddings, {name: parameters[name].detach().bfloat16() for name in names}):
            yield nullcontext
    finally:
        leave_shortcuts(embeddings.backbone, attention)


def run_over(
    accelerator: Any,
    model: torch.nn.Module,
    function: Callable[[Batch], torch.Tensor],
    split: EncodedSplit,
    data: EncodedTask,
    precision: Callable[[], AbstractContextManager[Any]] | None = None,
) -> NDArray[np.float32]:
    """(rows, width) ``function`` of every example in eval mode, shared out over processes and gathered on all.

    Rows are examples, or of a token task words. ``precision``: what each batch runs in, by default Accelerate's.
    """
    from accelerate.utils import gather_object

    num_tokens = THREAD_TOKENS if is_fast(accelerator) else EVALUATION_TOKENS
    batches = evaluation_batches(split.lengths, GPU_TOKENS if accelerator.device.type == "cuda" else num_tokens)
    own_batches = batches[accelerator.process_index :: accelerator.num_processes]
    run = partial(_run, accelerator, function, split, data, precision or accelerator.autocast)
    results = list(zip(own_batches, run_batches(accelerator, model, run, own_batches), strict=True))
    results = gather_object(results)
    gathered = np.empty((split.num_rows, results[0][1].shape[1]), np.float32)
    for indices, values in results:
        gathered[split.rows_of(indices)] = values
    return gathered


def _run(
    accelerator: Any,
    function: Callable[[Batch], torch.Tensor],
    split: EncodedSplit,
    data: EncodedTask,
    precision: Callable[[], AbstractContextManager[Any]],
    indices: NDArray[np.int64],
) -> torch.Tensor:
    """(rows, width) ``function`` of a batch, fp32, where it was computed."""
    longest = None
    if accelerator.device.type == "cuda":
        longest = padded_length(int(split.lengths[indices].max()) // split.num_sequences)
    batch = to_device(make_batch(split, indices, data, longest), accelerator.device)
    with torch.inference_mode(), precision(), quick_attention(accelerator.device):  # each a thread's own
        return function(batch).float()


def run_batches(
    accelerator: Any,
    model: torch.nn.Module,
    run: Callable[[NDArray[np.int64]], torch.Tensor],
    batches: Sequence[NDArray[np.int64]],
) -> Results:
    """(rows, width) ``run`` of each batch in eval mode; of a GPU all are read back together.

    A single CPU process works on as many batches at a time as it has threads, each on one: two threads on one batch
    take 1.6 times less time than one, on two batches half. With fewer batches than threads, all work on each.
    """
    num_threads = torch.get_num_threads()
    with in_eval_mode(model):
        has_memory = getattr(model, "is_hooked", False) or getattr(model, "asked", None)
        if not 1 < num_threads <= len(batches) or not is_fast(accelerator) or has_memory:
            results = [run(indices) for indices in batches]
            if not results:  # of several processes one may have none
                return []
            joined = torch.cat(results).cpu().numpy()
            return np.split(joined, np.cumsum([len(result) for result in results])[:-1])
        try:
            with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                return [result.numpy() for result in pool.map(run, batches)]
        finally:
            torch.set_num_threads(num_threads)  # what a thread sets for itself reaches MKL's setting for all
