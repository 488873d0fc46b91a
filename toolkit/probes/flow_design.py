"""The crossed design of flow: the same tokens at every position and, in pairs, in both segments.

In natural text a position comes with its tokens (sentences begin with "the"), so that no variance can be given to
either. Here blocks of consecutive tokens are rotated inside a fixed frame of special tokens: over the T rotations of a
block every one of its tokens stands at each of the T places once, with the same neighbours but where the block closes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from toolkit.analysis.measures import Array
from toolkit.data.batches import EncodedSplit, EncodedTask
from toolkit.models.classifier import Loaded
from toolkit.probes.embedding_layer import Ids, find_parts
from toolkit.probes.states import batch_on
from toolkit.schema import columns_of

Units = tuple[float, ...]
"""One value per unit: what tables hold, so that they can be compared and joined."""
LEVEL = 0.95
LEAST_UNITS = 3
"""With two, leaving one out leaves nothing to compare it with."""


def leave_one_out(num_units: int) -> Array:
    """(units + 1, units) weights: every unit once in the first row, then each left out in turn."""
    return np.vstack([np.ones(num_units), 1 - np.eye(num_units)])


def unit_values(estimates: ArrayLike) -> Units:
    """Values (units,) from estimates (units + 1,) under :func:`leave_one_out`: θ + (n - 1)·(mean θ₋ - θ₋ᵢ).

    Of a mean over units they are the units themselves; their Student's t interval is the jackknife's. Empty, which is
    to say that no interval can be had, for fewer than three units or an estimate that is not finite.
    """
    values = np.asarray(estimates, np.float64)
    if len(values) <= LEAST_UNITS or not np.isfinite(values).all():
        return ()
    left_out = values[1:]
    return tuple((values[0] + (len(left_out) - 1) * (left_out.mean() - left_out)).tolist())


def bounds(units: Units, *, is_share: bool = False) -> dict[str, object]:
    """``low``, ``high`` and ``unit_values`` of one model: Student's t over its units, not over new seeds.

    NaN without units, or where all are equal, which leaves no spread; of right-or-wrong units (``is_share``) equal ones
    have the exact bound of :func:`~toolkit.comparison.intervals.two_way_interval`.
    """
    from toolkit.comparison.intervals import two_way_interval

    if not units or (np.ptp(units) == 0 and not is_share):
        return {"low": np.nan, "high": np.nan, "unit_values": units}
    interval = two_way_interval([units], LEVEL)
    return {"low": interval.low, "high": interval.high, "unit_values": units}


def own_columns(table: str) -> list[str]:
    """The columns of a table of :func:`toolkit.measure_flow` that do not say which model it is about."""
    return [name for name in columns_of(f"measure_flow.{table}") if name not in ("run", "group", "condition", "seed")]


def stage_name(layer: int) -> str:
    """What tables call a stage; -1 is the sum of embeddings before the embedding LayerNorm."""
    return {-1: "before LayerNorm", 0: "layer 0 (input)"}.get(layer, f"layer {layer}")


@dataclass(frozen=True, slots=True)
class Stages:
    """One batch through the model."""

    mask: torch.Tensor
    """(examples, longest) bool: real tokens."""
    layers: tuple[torch.Tensor, ...]
    """(examples, longest, size) each: the sum before LayerNorm, the encoder's input (layer 0), layers 1 to L."""
    logits: torch.Tensor
    """(examples, outputs) of the head, whether or not it was ever trained."""


def forward_stages(loaded: Loaded, split: EncodedSplit, indices: Ids, data: EncodedTask) -> Stages:
    """Run some examples of a split through a model in the mode that it is in; nothing is cast."""
    batch = batch_on(loaded.model, split, indices, data)
    seen: dict[str, Any] = {}
    hooks = [
        find_parts(loaded).layer_norm.register_forward_pre_hook(lambda _, inputs: seen.update(before=inputs[0])),
        loaded.model.backbone.register_forward_hook(lambda _, __, output: seen.update(output=output)),
    ]
    try:
        with torch.inference_mode():
            logits = loaded.model(**batch, output_hidden_states=True)
    finally:
        for hook in hooks:
            hook.remove()
    return Stages(batch["attention_mask"].bool(), (seen["before"], *seen["output"].hidden_states), logits)


NUM_POSITIONS = 32
NUM_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around the tokens of a block: the special tokens and segments of a text, or of a pair."""

    tokens: Ids
    """(length,) word rows; 0 where a block's token goes."""
    segments: Ids
    """(length,) segment rows, as the tokenizer gives them."""
    slots: Ids
    """(T,) the places of the block's tokens."""


@dataclass(frozen=True, slots=True)
class CrossedDesign:
    """T positions x C contents (tokens in their block), and x 2 segments in pairs; every cell once.

    A content is one token of one block, so C = blocks x T; sequences are ordered by block, arrangement and rotation.
    """

    frame: Frame
    blocks: Ids
    """(blocks, T) word rows: consecutive tokens of the texts, shuffled, without special tokens."""
    num_arrangements: int
    """2: each rotation is read with the segments as they are and with the two exchanged; 1: segments do not vary."""
    note: str
    """Why segments do not vary; empty where they do."""

    @property
    def num_positions(self) -> int:
        return int(self.blocks.shape[1])

    @property
    def num_contents(self) -> int:
        return self.blocks.size

    @property
    def num_sequences(self) -> int:
        return self.blocks.size * self.num_arrangements

    def cells(self, indices: Ids) -> tuple[Ids, Ids, Ids]:
        """Position, content and segment of each block token of some sequences: three (sequences, T) arrays."""
        size = self.num_positions
        block, rest = np.divmod(indices, self.num_arrangements * size)
        arrangement, rotation = np.divmod(rest, size)
        place = np.arange(size)
        content = block[:, None] * size + (place + rotation[:, None]) % size
        segment = self._segments(arrangement)[:, self.frame.slots] if self.num_arrangements > 1 else 0 * content
        return np.broadcast_to(place, content.shape), content, segment

    def to_split(self) -> EncodedSplit:
        """All sequences in tokens, in their order."""
        indices = np.arange(self.num_sequences)
        _, content, _ = self.cells(indices)
        tokens = np.tile(self.frame.tokens, (len(indices), 1))
        tokens[:, self.frame.slots] = self.blocks.ravel()[content]
        arrangement = indices // self.num_positions % self.num_arrangements
        return EncodedSplit(
            ids=indices,
            labels=None,
            tokens=tokens.astype(np.int32).ravel(),
            segments=self._segments(arrangement).astype(np.int32).ravel(),
            offsets=np.arange(len(indices) + 1) * len(self.frame.tokens),
            num_truncated=0,
            num_empty_texts=0,
        )

    def _segments(self, arrangement: Ids) -> Ids:
        """(sequences, length) segment rows; arrangement 1 exchanges rows 0 and 1, those of special tokens too."""
        return np.where(arrangement[:, None] == 1, 1 - self.frame.segments, self.frame.segments)


def cross(
    loaded: Loaded,
    texts: Sequence[tuple[str, ...]],
    *,
    num_positions: int = NUM_POSITIONS,
    num_blocks: int = NUM_BLOCKS,
    seed: int = 0,
) -> CrossedDesign:
    """The crossed design of some texts (singles, or pairs) for a model; ours.

    Texts are shuffled, repeated ones left out, and their tokens
    strung together and cut into blocks of ``num_positions``; a pair's block is halved by the pair's middle frame.
    ValueError for too few tokens, a block that the position table cannot hold, or an odd one for pairs.
    """
    is_pair = len(texts[0]) == 2
    if num_positions < 2 or num_blocks < 1 or (is_pair and num_positions % 2):
        raise ValueError(
            f"the crossed design needs at least 2 positions (an even number for pairs) and 1 block; got "
            f"{num_positions} positions and {num_blocks} blocks"
        )
    if loaded.max_length is not None and num_positions > loaded.max_length:  # before there are so many
        raise ValueError(
            f"{num_positions} positions are more than the {loaded.max_length} positions of {loaded.source.name}: ask "
            "for fewer"
        )
    frame = frame_of(loaded, texts, num_positions)
    if loaded.max_length is not None and len(frame.tokens) > loaded.max_length:
        raise ValueError(
            f"{num_positions} positions and their special tokens are {len(frame.tokens)} tokens, more than the "
            f"{loaded.max_length} positions of {loaded.source.name}: ask for fewer"
        )
    unique = list(dict.fromkeys(texts))
    stream: list[int] = []
    for i in np.random.default_rng([*b"crossed", seed]).permutation(len(unique)):
        for part in unique[i] if len(stream) < num_blocks * num_positions else ():
            stream += loaded.tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]
    found = len(stream) // num_positions
    if found < min(num_blocks, 2):
        raise ValueError(
            f"the texts have {len(stream)} tokens, too few for blocks of {num_positions}: pass more texts or ask for "
            "fewer positions"
        )
    blocks = np.array(stream[: min(found, num_blocks) * num_positions]).reshape(-1, num_positions)
    why = "" if is_pair else "single texts use one segment"
    why = why if find_parts(loaded).num_segments > 1 else f"{loaded.family.name} as loaded has no second segment"
    return CrossedDesign(frame, blocks, 1 if why else 2, why)


def frame_of(loaded: Loaded, texts: Sequence[tuple[str, ...]], num_positions: int) -> Frame:
    """The special tokens and segments around ``num_positions`` tokens, read off the first text with tokens."""
    for text in texts:
        encoded = loaded.tokenizer(*text, return_special_tokens_mask=True, verbose=False)
        special = np.array(encoded["special_tokens_mask"], bool)
        edges = np.flatnonzero(np.diff(np.concatenate(([1], special, [1]))))
        if len(edges) == 2 * len(text):  # each text has tokens of its own, in one piece
            break
    else:
        raise ValueError("no text has tokens beside the special ones")
    ids = np.array(encoded["input_ids"])
    kinds = np.array(encoded.get("token_type_ids", np.zeros(len(ids), int)))
    size = num_positions // len(text)
    parts, last = [], 0
    for start, stop in edges.reshape(-1, 2):
        parts += [(ids[last:start], kinds[last:start]), (np.full(size, -1), np.full(size, kinds[start]))]
        last = stop
    parts.append((ids[last:], kinds[last:]))
    tokens, segments = (np.concatenate(list(part)).astype(np.int64) for part in zip(*parts, strict=True))
    slots = np.flatnonzero(tokens == -1)
    return Frame(np.where(tokens == -1, 0, tokens), segments, slots)
