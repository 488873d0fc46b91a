"""The crossed design of flow, and its ledger: how much of each layer's variance is position, content and segment.

In natural text a position comes with its tokens (sentences begin with "the"), so that no variance can be given to
either. Here blocks of consecutive tokens are rotated inside a fixed frame of special tokens: over the T rotations of a
block every one of its tokens stands at each of the T places once, with the same neighbours but where the block closes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike

from toolkit.analysis.measures import Array
from toolkit.data.batches import EncodedSplit, EncodedTask
from toolkit.models.classifier import Loaded, in_eval_mode
from toolkit.progress import counted
from toolkit.questions.models import Ids, batch_on, find_parts, task_of_texts
from toolkit.schema import columns_of

Units = tuple[float, ...]
"""One value per unit: what tables hold, so that they can be compared and joined."""
LEVEL = 0.95
"""Of the intervals."""
LEAST_UNITS = 3
"""Of an interval: with two, leaving one out leaves nothing to compare it with."""


def leave_one_out(num_units: int) -> Array:
    """(units + 1, units) weights: every unit once in the first row, then each left out in turn."""
    return np.vstack([np.ones(num_units), 1 - np.eye(num_units)])


def unit_values(estimates: ArrayLike) -> Units:
    """Values (units,) from estimates (units + 1,) under :func:`leave_one_out`: θ + (n - 1)·(mean θ₋ - θ₋ᵢ).

    Of a mean over units they are the units themselves; their Student's t interval is the jackknife's. Empty, which is
    to say that no interval can be had, for fewer than three units or an estimate that is not finite.
    """
    values = np.asarray(estimates, np.float64)
    if len(values) - 1 < LEAST_UNITS or not np.isfinite(values).all():
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


def columns_beside_model(table: str) -> list[str]:
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
    captured: dict[str, Any] = {}
    hooks = [
        find_parts(loaded).layer_norm.register_forward_pre_hook(lambda _, inputs: captured.update(before=inputs[0])),
        loaded.model.backbone.register_forward_hook(lambda _, __, output: captured.update(output=output)),
    ]
    try:
        with torch.inference_mode():
            logits = loaded.model(**batch, output_hidden_states=True)
    finally:
        for hook in hooks:
            hook.remove()
    return Stages(batch["attention_mask"].bool(), (captured["before"], *captured["output"].hidden_states), logits)


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
        block, within_block = np.divmod(indices, self.num_arrangements * self.num_positions)
        arrangement, rotation = np.divmod(within_block, self.num_positions)
        positions = np.arange(self.num_positions)
        content = block[:, None] * self.num_positions + (positions + rotation[:, None]) % self.num_positions
        segment = self._segments(arrangement)[:, self.frame.slots] if self.num_arrangements > 1 else 0 * content
        return np.broadcast_to(positions, content.shape), content, segment

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
    max_length = loaded.max_length
    if num_positions < 2 or num_blocks < 1 or (is_pair and num_positions % 2):
        raise ValueError(
            f"the crossed design needs at least 2 positions (an even number for pairs) and 1 block; got "
            f"{num_positions} positions and {num_blocks} blocks"
        )
    if max_length is not None and num_positions > max_length:  # before a frame of so many is made
        raise ValueError(
            f"{num_positions} positions are more than the {max_length} positions of {loaded.source.name}: ask for fewer"
        )
    frame = frame_of(loaded, texts, num_positions)
    if max_length is not None and len(frame.tokens) > max_length:
        raise ValueError(
            f"{num_positions} positions and their special tokens are {len(frame.tokens)} tokens, more than the "
            f"{max_length} positions of {loaded.source.name}: ask for fewer"
        )
    blocks = _cut_blocks(loaded, texts, num_positions, num_blocks, seed)
    if find_parts(loaded).num_segments < 2:
        note = f"{loaded.family.name} as loaded has no second segment"
    else:
        note = "" if is_pair else "single texts use one segment"
    return CrossedDesign(frame, blocks, num_arrangements=1 if note else 2, note=note)


def _cut_blocks(
    loaded: Loaded, texts: Sequence[tuple[str, ...]], num_positions: int, num_blocks: int, seed: int
) -> Ids:
    """(blocks, num_positions) word rows, ``num_blocks`` at most; ValueError where the texts have too few tokens."""
    distinct_texts = list(dict.fromkeys(texts))
    tokens: list[int] = []
    for i in np.random.default_rng([*b"crossed", seed]).permutation(len(distinct_texts)):
        if len(tokens) >= num_blocks * num_positions:
            break
        for text in distinct_texts[i]:
            tokens += loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    num_whole = len(tokens) // num_positions
    if num_whole < min(num_blocks, 2):
        raise ValueError(
            f"the texts have {len(tokens)} tokens, too few for blocks of {num_positions}: pass more texts or ask for "
            "fewer positions"
        )
    return np.array(tokens[: min(num_whole, num_blocks) * num_positions]).reshape(-1, num_positions)


SLOT = -1
"""Stands for a token of a block while a frame is put together: no row has this number."""


def frame_of(loaded: Loaded, texts: Sequence[tuple[str, ...]], num_positions: int) -> Frame:
    """The special tokens and segments around ``num_positions`` tokens, read off the first text with tokens."""
    for text in texts:
        encoded = loaded.tokenizer(*text, return_special_tokens_mask=True, verbose=False)
        is_special = np.array(encoded["special_tokens_mask"], bool)
        # Where ordinary tokens begin and where they stop, in turn.
        edges = np.flatnonzero(np.diff(np.concatenate(([1], is_special, [1]))))
        if len(edges) == 2 * len(text):  # each text has tokens of its own, in one piece
            break
    else:
        raise ValueError("no text has tokens beside the special ones")
    ids = np.array(encoded["input_ids"])
    segment_ids = np.array(encoded.get("token_type_ids", np.zeros(len(ids), int)))
    num_slots = num_positions // len(text)  # of each text of a pair
    pieces, previous_stop = [], 0
    for start, stop in edges.reshape(-1, 2):
        pieces += [
            (ids[previous_stop:start], segment_ids[previous_stop:start]),
            (np.full(num_slots, SLOT), np.full(num_slots, segment_ids[start])),
        ]
        previous_stop = stop
    pieces.append((ids[previous_stop:], segment_ids[previous_stop:]))
    tokens, segments = (np.concatenate(list(piece)).astype(np.int64) for piece in zip(*pieces, strict=True))
    return Frame(np.where(tokens == SLOT, 0, tokens), segments, np.flatnonzero(tokens == SLOT))


FACTORS = ("position", "content", "segment")


@dataclass(frozen=True, slots=True)
class Squares:
    """Sums of squares of a balanced design, traced over dimensions; arrays (...) for several weightings of blocks."""

    total: Array
    """Of all cells around their mean."""
    factors: dict[str, Array]
    """Of each factor with more than one level."""
    by_block: dict[str, Array]
    """Interaction with the blocks, of each factor that is crossed with them: position and segment, not content."""
    num_levels: dict[str, Array]
    num_cells: Array
    num_blocks: Array

    @property
    def residual(self) -> Array:
        """What no main effect explains: all interactions."""
        return np.asarray(self.total - sum(self.factors.values()))

    @property
    def df(self) -> dict[str, Array]:
        return {name: self.num_levels[name] - 1.0 for name in self.factors}

    @property
    def df_residual(self) -> Array:
        return np.asarray(self.num_cells - 1.0 - sum(self.df.values()))

    def mean_square_error(self, factor: str) -> Array:
        """What a factor's mean square is held against: its interaction with the blocks; of content, the residual.

        NaN for a factor crossed with blocks where there is one block only.
        """
        if factor not in self.by_block:
            return np.asarray(self.residual / self.df_residual)
        df = (self.num_blocks - 1.0) * self.df[factor]
        return np.where(df > 0, self.by_block[factor] / np.where(df > 0, df, 1), np.nan)

    @np.errstate(invalid="ignore", divide="ignore")
    def omega_squared(self, factor: str) -> Array:
        """ω² = (SS - df·MS_err) / (SS_tot + MS_err) (Hays 1963; Olejnik & Algina 2003), SS traced over dimensions.

        MS_err: :meth:`mean_square_error`. The textbook formula for one observation per cell has the residual of all
        cells there. That is right where cells err independently; here the cells of a block share their text, and what a
        position does to one text only (block x position) would count as position with 1 / blocks of its size. Blocks
        are the sample, so that their interaction with the factor is its error, as in any design with a random factor.
        A vector that all tokens of a sequence share cancels from both. 0 is chance, and a value may fall below it; NaN
        where all states are equal, or with one block.
        """
        error = self.mean_square_error(factor)
        return np.asarray((self.factors[factor] - self.df[factor] * error) / (self.total + error), np.float64)

    @np.errstate(invalid="ignore", divide="ignore")
    def eta_squared(self, factor: str) -> Array:
        """η² = SS / SS_tot; its chance is :meth:`eta_chance`."""
        return np.asarray(self.factors[factor] / self.total, np.float64)

    def eta_chance(self, factor: str) -> Array:
        """df / (N - 1): of position (T - 1) / (C·T - 1), what unrelated states give on average."""
        return np.asarray(self.df[factor] / (self.num_cells - 1))

    @np.errstate(invalid="ignore", divide="ignore")
    def residual_share(self) -> Array:
        """η² of all interactions together."""
        return np.asarray(self.residual / self.total, np.float64)


class CrossedSums:
    """Streaming sums over the cells of a balanced design, for one layer."""

    def __init__(self, num_positions: int, num_contents: int, num_segments: int, num_units: int = 1) -> None:
        """``num_units``: blocks, which the jackknife leaves out in turn; each content lies in one, all of one size."""
        self.shape = (num_positions, num_contents, num_segments)
        self.num_units = num_units
        self._pivot: Array | None = None
        self._counts = np.zeros(num_contents, np.int64)

    def add(self, states: Array, position: Ids, content: Ids, segment: Ids) -> None:
        """States (cells, hidden) with the level of each factor, (cells,) each; computed in float64."""
        states = np.asarray(states, np.float64)
        num_positions, num_contents, num_segments = self.shape
        if self._pivot is None:
            # Sums of squares are differences: far from 0 they would lose their digits.
            self._pivot = states.mean(axis=0)
            hidden = states.shape[1]
            self._content = np.zeros((num_contents, hidden))
            self._position = np.zeros((self.num_units * num_positions, hidden))
            self._segment = np.zeros((self.num_units * num_segments, hidden))
            self._squares = np.zeros((self.num_units, hidden))
        states = states - self._pivot
        unit = content * self.num_units // num_contents
        _add_rows(self._content, content, states)
        _add_rows(self._position, unit * num_positions + position, states)
        _add_rows(self._segment, unit * num_segments + segment, states)
        _add_rows(self._squares, unit, states**2)
        np.add.at(self._counts, content, 1)

    def squares(self, weights: Array | None = None, *, is_standardised: bool = False) -> Squares:
        """Sums of squares when block u counts ``weights[..., u]`` times, (..., units); None: each once.

        ``is_standardised``: every dimension is first scaled to unit variance (over all cells, each once), so that no
        single dimension of large variance decides; a dimension without variance counts nothing.
        ValueError unless every cell was added once: an unbalanced design has no such split.
        """
        num_positions, num_contents, num_segments = self.shape
        if (self._counts != num_positions * num_segments).any():
            raise ValueError(
                f"every content must be seen {num_positions * num_segments} times, once in each cell; seen "
                f"{self._counts.min()} to {self._counts.max()} times"
            )
        weights = np.ones(self.num_units) if weights is None else np.asarray(weights, np.float64)
        weighted_contents = weights.sum(axis=-1) * (num_contents / self.num_units)  # those drawn twice counted twice
        num_cells = weighted_contents * num_positions * num_segments
        scale = self._scale_of_dimensions() if is_standardised else np.ones(self._squares.shape[1])
        sums = {"position": self._position * scale, "segment": self._segment * scale}  # (units x levels, hidden)
        block_sums = sums["position"].reshape(self.num_units, num_positions, -1).sum(axis=1)
        of_mean = _quadratic(weights, block_sums) / num_cells  # what every sum of squares has too much
        cells_per_block = num_contents // self.num_units * num_positions * num_segments
        blocks = weights @ np.square(block_sums).sum(axis=1) / cells_per_block - of_mean
        squares_of_contents = np.square(self._content * scale).sum(axis=1).reshape(self.num_units, -1).sum(axis=1)
        cells_per_content = num_positions * num_segments
        factors = {"content": np.asarray(weights @ squares_of_contents / cells_per_content - of_mean)}
        by_block = {}
        num_levels = {"content": weighted_contents}
        for factor, num_levels_of_factor in {"position": num_positions, "segment": num_segments}.items():
            if factor == "segment" and num_segments == 1:
                continue
            rows = sums[factor].reshape(self.num_units, -1)
            factors[factor] = np.asarray(_quadratic(weights, rows) / (num_cells / num_levels_of_factor) - of_mean)
            cells_per_level = cells_per_block // num_levels_of_factor
            of_levels_in_blocks = weights @ np.square(rows).sum(axis=1) / cells_per_level - of_mean
            by_block[factor] = np.asarray(of_levels_in_blocks - blocks - factors[factor])
            num_levels[factor] = np.full_like(weighted_contents, num_levels_of_factor)
        return Squares(
            total=np.asarray(weights @ (self._squares @ scale**2) - of_mean),
            factors={factor: factors[factor] for factor in FACTORS if factor in factors},
            by_block=by_block,
            num_levels={factor: np.asarray(levels) for factor, levels in num_levels.items()},
            num_cells=np.asarray(num_cells),
            num_blocks=np.asarray(weights.sum(axis=-1)),
        )

    def _scale_of_dimensions(self) -> Array:
        """(hidden,) 1 / standard deviation over all cells; 0 for a dimension without variance."""
        num_cells = int(np.prod(self.shape))
        mean_squares = self._squares.sum(axis=0) / num_cells
        variance = mean_squares - (self._position.sum(axis=0) / num_cells) ** 2
        varies = variance > 1e-12 * mean_squares.max()  # else it is rounding
        return np.where(varies, 1 / np.sqrt(np.where(varies, variance, 1)), 0.0)


def _add_rows(sums: Array, level: Ids, states: Array) -> None:
    """``np.add.at(sums, level, states)``, many times faster: one sparse product of the levels that occur."""
    from scipy.sparse import csr_array

    levels, level_index = np.unique(level, return_inverse=True)
    entries = (np.ones(len(level)), (level_index, np.arange(len(level))))
    is_of_level = csr_array(entries, shape=(len(levels), len(level)))
    sums[levels] += is_of_level @ states


def _quadratic(weights: Array, rows: Array) -> Array:
    """(...) |Σ_u w_u rows_u|² for weightings w (..., units) of rows (units, anything)."""
    return np.asarray(np.einsum("...u,uv,...v->...", weights, rows @ rows.T, weights, optimize=True))


RESIDUAL = "residual"
NO_TABLE = "not applicable: the model has no position table, so its input holds no position"
ONE_BLOCK = "no error term and no interval: one block"
TWO_BLOCKS = "no interval: two blocks"
NO_OMEGA = "interactions of the factors; ω² is for main effects"


BATCH_SIZE = 32


def position_ledger(loaded: Loaded, design: CrossedDesign, *, seed: int = 0) -> pd.DataFrame:
    """ω² and η² of position, content and segment per stage of the forward pass, one line per stage and factor.

    ``layer`` -1 is the sum of embeddings before LayerNorm, 0 the encoder's input. ``low`` and ``high``: 95 % of
    Student's t over blocks, by the jackknife (contents of one block share their neighbours); ``unit_values`` (blocks,)
    is what they come from. ``omega_standardised``: ω² with every dimension at unit variance. ``by_block_eta``: η² of
    the factor's interaction with the blocks, what it does to single texts and not to all. ``shuffled_*``: the same
    states dealt at random to the cells. A residual line per stage has η² only, with its ``unit_values``. Not applicable
    is NaN with a ``reason``. Source of the formulas: :class:`Squares`; the design is ours. In planted
    simulations (8 and 16 blocks, tests/questions/flow/test_flow_sums.py) the interval covers 90 to 96 % where position
    has an effect, and more where it has none. States are read in the dtype of the weights and added up in float64; only
    sums are kept.
    """
    split = design.to_split()
    data = EncodedTask(
        task=task_of_texts(()),
        splits={},
        pad_id=loaded.tokenizer.pad_token_id,
        num_segments=find_parts(loaded).num_segments,
        position_offset=loaded.position_offset,
    )
    shape = (design.num_positions, design.num_contents, design.num_arrangements)
    dealt = np.random.default_rng([*b"dealt", seed]).permutation(int(np.prod(shape)))
    sums: list[CrossedSums] = []
    shuffled_sums: list[CrossedSums] = []
    with in_eval_mode(loaded.model):
        for start in counted(range(0, len(split), BATCH_SIZE), "shares of the variance"):
            indices = np.arange(start, min(start + BATCH_SIZE, len(split)))
            stages = forward_stages(loaded, split, indices, data)
            cells = [level.ravel() for level in design.cells(indices)]
            dealt_cells = dealt[start * shape[0] : start * shape[0] + len(cells[0])]
            random_cells = np.unravel_index(dealt_cells, shape)
            if not sums:
                sums = [CrossedSums(*shape, num_units=len(design.blocks)) for _ in stages.layers]
                shuffled_sums = [CrossedSums(*shape, num_units=len(design.blocks)) for _ in stages.layers]
            for layer, layer_sums, layer_shuffled in zip(stages.layers, sums, shuffled_sums, strict=True):
                states_of_slots = layer[:, design.frame.slots].cpu().double().numpy()
                states = states_of_slots.reshape(-1, states_of_slots.shape[2])
                layer_sums.add(states, *cells)
                layer_shuffled.add(states, *random_cells)
    records = [
        record
        for layer, (layer_sums, layer_shuffled) in enumerate(zip(sums, shuffled_sums, strict=True), start=-1)
        for record in _ledger_records(layer, layer_sums, layer_shuffled.squares(), design)
    ]
    ledger = pd.DataFrame(records, columns=columns_beside_model("ledger"))
    if find_parts(loaded).position is None:  # then attention brings position in (rotary, relative)
        is_input = (ledger["factor"] == "position") & (ledger["layer"] <= 0)
        ledger.loc[is_input, ledger.columns.difference(["layer", "stage", "factor", "unit_values", "reason"])] = np.nan
        values_of_lines = zip(is_input, ledger["unit_values"], strict=True)
        ledger["unit_values"] = [() if has_none else values for has_none, values in values_of_lines]
        ledger.loc[is_input, "reason"] = NO_TABLE
    return ledger


@np.errstate(invalid="ignore", divide="ignore")  # of one block nothing is left
def _ledger_records(layer: int, sums: CrossedSums, shuffled: Squares, design: CrossedDesign) -> list[dict[str, object]]:
    """The records of one layer: one per factor, and one for what no factor explains."""
    squares, standardised = sums.squares(), sums.squares(is_standardised=True)
    left_out = sums.squares(leave_one_out(sums.num_units))
    key: dict[str, object] = {"layer": layer, "stage": stage_name(layer), "unit_values": ()}
    records = []
    for factor in FACTORS:
        if factor not in squares.factors:
            records.append(key | {"factor": factor, "reason": f"not applicable: {design.note}"})
            continue
        has_blocks = factor in squares.by_block and squares.num_blocks >= 2  # content lies within them
        record = {
            "factor": factor,
            "omega_squared": float(squares.omega_squared(factor)),
            **bounds(unit_values(left_out.omega_squared(factor))),
            "omega_standardised": float(standardised.omega_squared(factor)),
            "eta_squared": float(squares.eta_squared(factor)),
            "by_block_eta": float(squares.by_block[factor] / squares.total) if has_blocks else np.nan,
            "eta_chance": float(squares.eta_chance(factor)),
            "shuffled_omega": float(shuffled.omega_squared(factor)),
            "shuffled_eta": float(shuffled.eta_squared(factor)),
            "df": float(squares.df[factor]),
            "sum_of_squares": float(squares.factors[factor]),
            "reason": {1: ONE_BLOCK, 2: TWO_BLOCKS}.get(sums.num_units, ""),
        }
        records.append(key | record)
    residual = {
        "factor": RESIDUAL,
        "eta_squared": float(squares.residual_share()),
        "eta_chance": float(squares.df_residual / (squares.num_cells - 1)),
        "shuffled_eta": float(shuffled.residual_share()),
        "df": float(squares.df_residual),
        "sum_of_squares": float(squares.residual),
        "reason": NO_OMEGA,
        **bounds(unit_values(left_out.residual_share())),
    }
    return [*records, key | residual]
