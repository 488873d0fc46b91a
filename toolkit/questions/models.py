"""A model opened, its embedding layer, and texts as it reads them: one forward pass, the states of every layer."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from toolkit.analysis.measures import Array
from toolkit.data.batches import EVALUATION_TOKENS, EncodedSplit, EncodedTask, evaluation_batches, make_batch
from toolkit.data.files import read_file
from toolkit.data.splits import Split, Task
from toolkit.data.tasks import check_texts, load_task, named_path
from toolkit.families import BENEATH, TABLES, family_of
from toolkit.models.checkpoints import LackingError, find_checkpoint
from toolkit.models.classifier import Loaded, in_eval_mode, load_classifier
from toolkit.models.tuned import load_tuned
from toolkit.progress import shows_progress
from toolkit.snapshots.backbones import is_run
from toolkit.snapshots.snapshot import check_word_rows
from toolkit.snapshots.store import Run, open_run
from toolkit.training.encoding import encode_task

ANSWERED = {"tokens": "tags words", "masked": "tells masked tokens"}
"""Kinds of task that have no one answer to a text, and what they do."""


def task_of(run: Run) -> Task:
    """The task of a finished run, read again; ValueError where its data are not those that the manifest names."""
    task = load_task(run.config)
    task.check_data(run.manifest["task"].get("data_sha256") or {}, run.path.name)
    return task


TEXTS = "train"
"""The only split of what :func:`encode_texts` returns; the name that every task has."""


LONGEST_BY_DEFAULT = 512
"""Tokens of a text where nothing says how many: what BERT reads. Many newer models read thousands, and have states of
all of them."""


def task_of_texts(texts: Sequence[tuple[str, ...]], name: str = "texts") -> Task:
    """Texts without labels as a task of one split, TEXTS."""
    split = Split(ids=np.arange(len(texts)), texts=tuple(texts), labels=None)
    # Nothing is scored: these only have to be given.
    unused: dict[str, Any] = {"kind": "classification", "label_names": (), "score": "accuracy", "file_hashes": {}}
    return Task(name=name, splits={TEXTS: split}, reported_split=TEXTS, **unused)


def encode_texts(loaded: Loaded, texts: Sequence[tuple[str, ...]], max_length: int | None = None) -> EncodedTask:
    """Texts without labels as one split, TEXTS; longer ones than ``max_length`` tokens are truncated and counted.

    ``texts``: one or two texts each, all alike. ``max_length``: None takes what the model reads at most, but not more
    than LONGEST_BY_DEFAULT. ValueError when there are none, when singles and pairs are mixed, or for a length that the
    model does not have.
    """
    if not texts or len({len(text) for text in texts}) > 1 or len(texts[0]) not in (1, 2):
        raise ValueError(f"texts must be all single texts or all pairs, at least one; got {len(texts)} of them")
    default_length = min(loaded.max_length or LONGEST_BY_DEFAULT, LONGEST_BY_DEFAULT)
    return encode_task(task_of_texts(texts), loaded, max_length or default_length)


def read_texts(entries: Sequence[str], text_columns: tuple[str, ...] = ()) -> dict[str, list[tuple[str, ...]]]:
    """``NAME=PATH`` entries to named lists of texts, singles or pairs; ValueError for a bad entry, file or text."""
    texts: dict[str, list[tuple[str, ...]]] = {}
    for entry in entries:
        name, path = named_path("--texts", entry, texts)
        texts[name] = read_file(path, text_columns, None).texts
        check_texts(name, texts[name])
    return texts


@dataclass(frozen=True, slots=True)
class States:
    """The hidden states of one batch of texts."""

    indices: NDArray[np.int64]
    """(examples,) which texts of the split these are."""
    mask: torch.Tensor
    """(examples, longest) bool: real tokens."""
    layers: tuple[torch.Tensor, ...]
    """(examples, longest, hidden) each: the encoder's input (layer 0), then the output of layers 1 to L."""

    def mean_of_tokens(self) -> list[torch.Tensor]:
        """Per layer (examples, hidden): the mean over each text's real tokens."""
        weights = self.mask.unsqueeze(-1).to(self.layers[0].dtype)
        return [(layer * weights).sum(dim=1) / weights.sum(dim=1) for layer in self.layers]


def check_one_sequence_each(split: EncodedSplit) -> None:
    """ValueError for texts of a pair that are encoded separately: the states of an example are then not defined."""
    if split.num_sequences > 1:
        raise ValueError(
            "the texts of a pair are encoded separately (--pair-encoding separate): take a run that reads them jointly"
        )


def batch_on(
    model: nn.Module, split: EncodedSplit, indices: NDArray[np.int64], data: EncodedTask
) -> dict[str, torch.Tensor]:
    """Some examples of a split as a batch, on the device of a model."""
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in make_batch(split, indices, data).items()}


@contextlib.contextmanager
def replaced(parameter: torch.Tensor, values: torch.Tensor) -> Iterator[None]:
    """A parameter holds other values inside the block, and its own, bit for bit, after it."""
    original = parameter.detach().clone()
    with torch.no_grad():
        parameter.copy_(values)
    try:
        yield
    finally:
        with torch.no_grad():
            parameter.copy_(original)


def stream_states(
    loaded: Loaded, data: EncodedTask, split: EncodedSplit, *, num_tokens: int = EVALUATION_TOKENS
) -> Iterator[States]:
    """Run the backbone over a split in eval mode, in the order of length, and hand out one batch after the other.

    Memory holds one batch's states. Layer 0 is what the first layer reads: the embeddings, after a projection where
    the family has one. Nothing is cast: states have the dtype of the weights.
    """
    check_one_sequence_each(split)
    backbone = loaded.model.backbone
    with in_eval_mode(backbone):
        for indices in evaluation_batches(split.lengths, num_tokens):
            batch = batch_on(backbone, split, indices, data)
            with torch.inference_mode():
                output = backbone(**batch, output_hidden_states=True)
            yield States(indices, batch["attention_mask"].bool(), tuple(output.hidden_states))


@dataclass(frozen=True, slots=True)
class Parts:
    """The embedding layer, module by module."""

    embeddings: nn.Module
    """The module as a whole: token ids in, (examples, tokens, width) vectors out."""
    word: nn.Embedding
    position: nn.Embedding | None
    segment: nn.Embedding | None
    layer_norm: nn.LayerNorm
    inner_projection: nn.Linear | None
    """Between the sum and LayerNorm (DeBERTa-v2 with narrow embeddings)."""
    outer_projection: nn.Linear | None
    """After the module, at the door of the encoder (ELECTRA and ALBERT)."""
    relative: nn.Embedding | None
    """The encoder's table of relative distances (DeBERTa-v2, MPNet)."""
    is_rotary: bool
    """Whether the attention turns queries and keys by the angle of their places (ModernBERT)."""
    convolution: nn.Module | None
    """A convolution over neighbours in the encoder (large DeBERTa-v2 models)."""

    @property
    def tables(self) -> dict[str, nn.Embedding]:
        """Canonical name to table, of those that the model has."""
        tables = dict(zip(TABLES, (self.word, self.position, self.segment), strict=True))
        return {name: table for name, table in tables.items() if table is not None}

    @property
    def num_segments(self) -> int:
        """Rows of the segment table; 0 where there is none."""
        return 0 if self.segment is None else self.segment.num_embeddings


def find_parts(loaded: Loaded) -> Parts:
    """The embedding layer of a model; ValueError for a family whose layer is not LayerNorm of a sum of rows."""
    if not loaded.family.is_plain_sum:
        raise ValueError(
            f"not applicable: {loaded.source.name} is of the family {loaded.family.name}, whose embedding layer is not "
            "LayerNorm of the sum of its tables' rows; drift, layers and positions read its weights"
        )
    backbone = loaded.model.backbone
    modules = {
        canonical: _find_module(backbone, name.rpartition(".")[0])
        for canonical, name in loaded.family.embedding_parameters.items()
    }
    patterns = loaded.family.components.get("projection", ("",))  # the weights of one module
    projection_name = patterns[0].removesuffix(".*")
    projection = _find_module(backbone, projection_name) if projection_name else None
    is_inner = projection_name.startswith("embeddings.")
    encoder = getattr(backbone, "encoder", None)
    return Parts(
        embeddings=backbone.get_submodule("embeddings"),
        word=modules["word_embeddings"],
        position=modules.get("position_embeddings"),
        segment=modules.get("token_type_embeddings"),
        layer_norm=modules["LayerNorm.weight"],
        inner_projection=projection if is_inner else None,
        outer_projection=None if is_inner else projection,
        relative=getattr(encoder, "rel_embeddings", getattr(encoder, "relative_attention_bias", None)),
        is_rotary=hasattr(backbone, "rotary_emb"),
        convolution=getattr(encoder, "conv", None),
    )


def _find_module(backbone: nn.Module, name: str) -> Any:
    """A submodule, or None where the config left it out (the attribute is missing or None)."""
    try:
        return backbone.get_submodule(name)
    except AttributeError:
        return None


def why_absent(loaded: Loaded, parameter: str) -> str:
    """Why a model has no such embedding parameter, as one clause; empty when it has it."""
    parts = find_parts(loaded)
    if parameter in parts.tables:
        return ""
    name = loaded.family.name
    if parameter == "position_embeddings":
        if parts.is_rotary:
            return "not applicable: positions are rotary angles in the attention"
        if parts.relative is not None:
            return "not applicable: positions are relative distances in the attention"
        return f"not applicable: {name} was built without positions"
    if parameter == "token_type_embeddings":
        is_known = parameter in loaded.family.embedding_parameters
        return f"not applicable: {name} {'was built without' if is_known else 'has no'} segments"
    if parameter == "LayerNorm.bias" and parts.layer_norm.bias is None:
        return f"not applicable: {name} was built without this bias"
    return ""


Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One text or one pair, token by token, without padding."""

    texts: tuple[str, ...]
    tokens: tuple[str, ...]
    """As the tokenizer writes them."""
    words: Ids
    """(tokens,) rows of the word table."""
    positions: Ids | None
    """(tokens,) rows of the position table; None where there is none."""
    segments: Ids | None
    """(tokens,) rows of the segment table, as the model is given them; None where there is none."""
    token_type_ids: Ids | None
    """(tokens,) what the tokenizer gives, used or not; None where it gives none."""

    def __len__(self) -> int:
        return len(self.words)

    @property
    def rows(self) -> dict[str, Ids]:
        """Table to the (tokens,) rows that the text takes of it, of those that the model has."""
        rows = dict(zip(TABLES, (self.words, self.positions, self.segments), strict=True))
        return {name: row_ids for name, row_ids in rows.items() if row_ids is not None}


def read_sentence(loaded: Loaded, text: str, pair: str | None = None) -> Sentence:
    """Tokenize one text or one pair, nothing cut off.

    ValueError when a text is empty or has no tokens, when it is longer than the model reads, or when the tokenizer
    and the word table do not fit.
    """
    texts = (text,) if pair is None else (text, pair)
    for flag, value in zip(("--text", "--pair"), texts, strict=False):  # a single text has no --pair
        if not value.strip():
            advice = "pass a sentence" if flag == "--text" else "leave it out, or pass a second sentence"
            raise ValueError(f"{flag} is empty: {advice}")
        if not loaded.tokenizer(value, add_special_tokens=False, verbose=False)["input_ids"]:
            raise ValueError(f"{flag} {value!r} has no token that {loaded.source.name} knows: pass a sentence")
    encoded = loaded.tokenizer(*texts, truncation=False, verbose=False)
    ids = np.asarray(encoded["input_ids"], np.int64)
    if loaded.max_length is not None and len(ids) > loaded.max_length:
        subject = "--text and --pair together are" if pair is not None else "--text is"
        raise ValueError(
            f"{subject} {len(ids)} tokens long, and {loaded.source.name} reads {loaded.max_length} at most: shorten it"
        )
    check_word_rows(loaded.source.name, int(ids.max()) + 1, find_parts(loaded).word.num_embeddings)
    token_type_ids = encoded.get("token_type_ids")
    type_ids = None if token_type_ids is None else np.asarray(token_type_ids, np.int64)
    return make_sentence(loaded, ids, type_ids, texts)


def make_sentence(loaded: Loaded, words: Ids, token_type_ids: Ids | None, texts: tuple[str, ...] = ()) -> Sentence:
    """A Sentence of these word rows: positions as the family counts them, segments where its table has a choice."""
    parts = find_parts(loaded)
    segments = None
    if parts.segment is not None:
        has_choice = parts.num_segments > 1 and token_type_ids is not None
        segments = token_type_ids if has_choice else np.zeros(len(words), np.int64)
    return Sentence(
        texts=texts,
        tokens=tuple(loaded.tokenizer.convert_ids_to_tokens(words.tolist())),
        words=words,
        positions=None if parts.position is None else position_rows(loaded, words),
        segments=segments,
        token_type_ids=token_type_ids,
    )


def position_rows(loaded: Loaded, words: Ids) -> Ids:
    """(tokens,) position row of each token: 0, 1, 2 ..., or (RoBERTa) from padding_idx + 1, padding not counted."""
    if loaded.family.position_start == "zero":
        return np.arange(len(words))
    padding = loaded.position_offset - 1
    is_real = words != padding
    rows: Ids = np.where(is_real, padding + np.cumsum(is_real), padding)
    return rows


def make_inputs(loaded: Loaded, sentence: Sentence) -> dict[str, torch.Tensor]:
    """(1, tokens) tensors for the backbone; token_type_ids where its segment table has a choice, as in training."""
    inputs = {"input_ids": sentence.words, "attention_mask": np.ones(len(sentence), np.int64)}
    if sentence.segments is not None and find_parts(loaded).num_segments > 1:
        inputs["token_type_ids"] = sentence.segments
    device = next(loaded.model.backbone.parameters()).device
    return {name: torch.as_tensor(values, device=device)[None] for name, values in inputs.items()}


SAME = 1e-9
"""In float64, vectors that differ by less than this share of their size count as equal; rounding is far less (ours)."""


@contextlib.contextmanager
def in_float64(loaded: Loaded) -> Iterator[None]:
    """Compute with the same weights in float64, so that equal is distinguishable from nearly equal; then back to fp32.

    fp32 values survive the way there and back bit for bit. The weights need twice their memory meanwhile.
    """
    backbone = loaded.model.backbone
    if next(backbone.parameters()).dtype == torch.float64:
        yield
        return
    backbone.double()
    try:
        yield
    finally:
        backbone.float()


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one forward pass gave, as float64 copies."""

    embedded: Array
    """(tokens, width) output of the embedding module."""
    encoded: Array
    """(tokens, hidden) output of the last layer."""

    @property
    def stages(self) -> tuple[Array, Array]:
        return self.embedded, self.encoded


def run_model(loaded: Loaded, sentence: Sentence, **changes: Any) -> Outputs:
    """One forward pass in eval mode; ``changes`` replace or add arguments of the backbone."""
    backbone = loaded.model.backbone
    embedded: list[torch.Tensor] = []
    hook = find_parts(loaded).embeddings.register_forward_hook(lambda module, inputs, output: embedded.append(output))
    try:
        with in_eval_mode(backbone), torch.inference_mode():
            output = backbone(**(make_inputs(loaded, sentence) | changes))
    finally:
        hook.remove()
    return Outputs(as_array(embedded[0][0]), as_array(output.last_hidden_state[0]))


def as_array(tensor: torch.Tensor) -> Array:
    """A float64 copy on the CPU."""
    return tensor.detach().cpu().double().numpy()


def largest(difference: Array) -> float:
    """The largest absolute value."""
    return float(np.abs(difference).max())


def relative_difference(values: Array, reference: Array) -> float:
    """‖values - reference‖ / ‖reference‖ over all entries (Frobenius); NaN where the reference is 0."""
    size = float(np.linalg.norm(reference))
    return float(np.linalg.norm(values - reference)) / size if size else float("nan")


@shows_progress("opening the model")
def open_model(name: str | Path) -> Loaded:
    """The checkpoint (``minilm``, a folder, a hub id) or the tuned model of a run directory, in eval mode.

    A checkpoint's pooler is loaded where its files have one, so that parameters are counted as published; of a run's
    parameters those have ``requires_grad`` that were trained, themselves or by an adapter. ValueError for a name that
    cannot be had.
    """
    name = str(name)
    if not name.strip():
        raise ValueError("MODEL is empty: pass minilm, a folder, a hub id or a run directory")
    loaded: Loaded | None = None
    if is_run(name):
        run = open_run(name)
        loaded = load_tuned(run)
        # A weight beneath an adapter is frozen itself, and trained by it.
        frozen_names = {
            frozen_name.replace(BENEATH, ".")
            for frozen_name in run.manifest["frozen"]["parameters"]
            if f"{BENEATH}weight" not in frozen_name
        }
        for parameter, tensor in loaded.model.named_parameters():
            tensor.requires_grad_(parameter not in frozen_names)
    elif family_of(find_checkpoint(name).read_config().model_type).has_pooler:
        try:
            loaded = load_classifier(name, pooling="pooler", num_outputs=1)
        except LackingError as error:
            if not any(tensor_name.startswith("pooler.") for tensor_name in error.names):
                raise  # what is lacking is not the pooler, without which the model is loaded below
    loaded = loaded or load_classifier(name, pooling="mean", num_outputs=1)
    loaded.model.eval()
    return loaded
