"""Every split of a task as tokens."""

import math
import warnings
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from toolkit.config import RunConfig
from toolkit.data.batches import EncodedSplit, EncodedTask, Masking, encode_split
from toolkit.data.splits import Task
from toolkit.models.classifier import Loaded
from toolkit.models.regimes import find_parameter, word_table
from toolkit.progress import shows_progress
from toolkit.snapshots.snapshot import check_word_rows

DOUBTFUL_SHARE = 0.2
"""Of unknown tokens, from which on a tokenizer hardly belongs to the texts."""


@shows_progress("tokenizing")
def encode_task(task: Task, loaded: Loaded, max_length: int) -> EncodedTask:
    """Tokenize every split, pairs as the classifier reads them.

    ValueError when --max-length is more than the model has positions for, or single texts are to be encoded apart.
    """
    if loaded.max_length is not None and max_length > loaded.max_length:
        raise ValueError(
            f"--max-length {max_length} is more than the {loaded.max_length} positions of {loaded.source.name}"
        )
    is_pair = len(task.splits["train"].texts[0]) > 1
    encoding = loaded.model.pair_encoding
    if encoding == "separate" and not is_pair:
        raise ValueError(f"--pair-encoding separate needs two texts in each example; {task.name} has one: leave it out")
    num_special = loaded.tokenizer.num_special_tokens_to_add(pair=is_pair and encoding == "joint")
    if max_length <= num_special:
        raise ValueError(f"--max-length {max_length} leaves no room for text beside {num_special} special tokens")
    name = loaded.family.embedding_parameters.get("token_type_embeddings")
    table = find_parameter(loaded.model.backbone, name) if name else None
    num_segments = 0 if table is None else len(table.parameter)
    tokenizer = loaded.tokenizer
    splits = {
        name: encode_split(split, tokenizer, max_length, num_segments, pair_encoding=encoding)
        for name, split in task.splits.items()
    }
    word_module = word_table(loaded.model.backbone)
    for name, split in splits.items():
        # A decoder that pads with its end-of-text token tells the two apart by the mask alone.
        pad_rows = () if tokenizer.pad_token_id == tokenizer.eos_token_id else (tokenizer.pad_token_id,)
        _refuse_padding(name, split, tokenizer, {*pad_rows, word_module.padding_idx} - {None})
        if not (sizes := np.diff(split.offsets)).all():
            row = split.ids[int(sizes.argmin()) // split.num_sequences] + 1
            raise ValueError(f"split {name!r}, row {row}: a text has no token; drop the row")
    check_word_rows(
        loaded.source.name, max(int(split.tokens.max()) for split in splits.values()) + 1, word_module.num_embeddings
    )
    if (share := unknown_share(splits["train"], tokenizer)) > DOUBTFUL_SHARE:
        warnings.warn(
            f"{share:.0%} of the tokens of split 'train' are {tokenizer.unk_token}: does the tokenizer of "
            f"{loaded.source.name} fit these texts?",
            stacklevel=2,
        )
    return EncodedTask(
        task=task,
        splits=splits,
        pad_id=tokenizer.pad_token_id,
        num_segments=num_segments,
        position_offset=loaded.position_offset,
    )


def mask_task(data: EncodedTask, loaded: Loaded, config: RunConfig) -> EncodedTask:
    """A task of masked tokens with what masks them, its scored splits masked; any other as it is.

    What is masked of these depends on nothing but their tokens, so that all runs answer the same; the mask token stands
    for all of it, as where :mod:`toolkit.questions.layers.forgetting` asks what was forgotten. ValueError for a text
    of any split that has no token to mask.
    """
    if data.task.kind != "masked":
        return data
    tokenizer = loaded.tokenizer
    num_rows = min(len(tokenizer), word_table(loaded.model.backbone).num_embeddings)
    rows = np.setdiff1d(np.arange(num_rows), tokenizer.all_special_ids)
    masking = Masking(tokenizer.mask_token_id, rows, config.mlm_probability)
    splits = {}
    for name, split in data.splits.items():
        try:
            masked = masking.mask(split, [*b"masked", *name.encode()], 1.0)
        except ValueError as error:
            raise ValueError(f"split {name!r}, {error}") from None
        splits[name] = split if name == "train" else masked
    return replace(data, splits=splits, masking=masking)


def unknown_share(split: EncodedSplit, tokenizer: Any) -> float:
    """Share of a split's tokens, special ones left out, that the tokenizer does not know; NaN where it knows all.

    A tokenizer of bytes may have no unknown token, or name another special one in its place. The mask token counts as
    known: in masked splits it stands for tokens that are.
    """
    special_rows = [getattr(tokenizer, f"{name}_token_id") for name in ("bos", "cls", "eos", "pad", "sep")]
    if tokenizer.unk_token_id is None or tokenizer.unk_token_id in special_rows:
        return math.nan
    special_rows = [number for number in special_rows if number is not None]
    ordinary_rows = split.tokens[~np.isin(split.tokens, special_rows)]
    return float(np.mean(ordinary_rows == tokenizer.unk_token_id)) if len(ordinary_rows) else math.nan


def _refuse_padding(name: str, split: EncodedSplit, tokenizer: Any, rows: Collection[int]) -> None:
    """ValueError where a text names the padding token: no row is learned from it, and some models count no place.

    ``rows``: those of the tokenizer's padding token and of the model's, which its config may put elsewhere.
    """
    positions = np.flatnonzero(np.isin(split.tokens, list(rows)))
    if len(positions):
        row = int(split.tokens[positions[0]])
        sequence = int(np.searchsorted(split.offsets, positions[0], side="right")) - 1
        example = sequence // split.num_sequences
        if row == tokenizer.pad_token_id:
            remedy = "drop the row or take the word out"
        else:
            remedy = f"the tokenizer pads with {tokenizer.pad_token!r}: take the one that the model was trained with"
        raise ValueError(
            f"split {name!r}, row {split.ids[example] + 1}: the text contains "
            f"{tokenizer.convert_ids_to_tokens(row)!r}, which the model takes for padding; {remedy}"
        )
