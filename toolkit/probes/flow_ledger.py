"""The ledger of flow: how much of each layer's variance is position, content and segment."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from toolkit.analysis.measures import Array
from toolkit.data.batches import EncodedTask
from toolkit.models.classifier import Loaded, in_eval_mode
from toolkit.probes.embedding_layer import Ids, find_parts
from toolkit.probes.flow_design import (
    CrossedDesign,
    bounds,
    forward_stages,
    leave_one_out,
    own_columns,
    stage_name,
    unit_values,
)
from toolkit.probes.states import task_of_texts

FACTORS = ("position", "content", "segment")


@dataclass(frozen=True, slots=True)
class Squares:
    """Sums of squares of a balanced design, traced over dimensions; arrays (...) for several weightings of blocks."""

    total: Array
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
        w = np.ones(self.num_units) if weights is None else np.asarray(weights, np.float64)
        num = w.sum(axis=-1) * (num_contents / self.num_units)  # contents, those drawn twice counted twice
        cells = num * num_positions * num_segments
        scale = self._scales() if is_standardised else np.ones(self._squares.shape[1])
        rows = {"position": self._position * scale, "segment": self._segment * scale}
        levels = {"position": num_positions, "segment": num_segments}
        whole = rows["position"].reshape(self.num_units, num_positions, -1).sum(axis=1)
        grand = _quadratic(w, whole) / cells
        per_block = num_contents // self.num_units * num_positions * num_segments
        blocks = w @ np.square(whole).sum(axis=1) / per_block - grand
        content = w @ np.square(self._content * scale).sum(axis=1).reshape(self.num_units, -1).sum(axis=1)
        factors, by_block = {"content": np.asarray(content / (num_positions * num_segments) - grand)}, {}
        for name, size in levels.items():
            if name == "segment" and size == 1:
                continue
            of_blocks = rows[name].reshape(self.num_units, -1)
            factors[name] = np.asarray(_quadratic(w, of_blocks) / (cells / size) - grand)
            both = w @ np.square(of_blocks).sum(axis=1) / (per_block // size) - grand
            by_block[name] = np.asarray(both - blocks - factors[name])
        num_levels = {"position": np.full_like(num, num_positions), "content": num}
        num_levels["segment"] = np.full_like(num, num_segments)
        return Squares(
            total=np.asarray(w @ (self._squares @ scale**2) - grand),
            factors={name: factors[name] for name in FACTORS if name in factors},
            by_block=by_block,
            num_levels={name: np.asarray(num_levels[name]) for name in factors},
            num_cells=np.asarray(cells),
            num_blocks=np.asarray(w.sum(axis=-1)),
        )

    def _scales(self) -> Array:
        """(hidden,) 1 / standard deviation over all cells; 0 for a dimension whose variance is rounding."""
        num_cells = self.shape[0] * self.shape[1] * self.shape[2]
        squares = self._squares.sum(axis=0) / num_cells
        variance = squares - (self._position.sum(axis=0) / num_cells) ** 2
        varies = variance > 1e-12 * squares.max()
        return np.where(varies, 1 / np.sqrt(np.where(varies, variance, 1)), 0.0)


def _add_rows(sums: Array, level: Ids, states: Array) -> None:
    """``np.add.at(sums, level, states)``, many times faster: one sparse product of the levels that occur."""
    from scipy.sparse import csr_array

    levels, place = np.unique(level, return_inverse=True)
    chooser = csr_array((np.ones(len(level)), (place, np.arange(len(level)))), shape=(len(levels), len(level)))
    sums[levels] += chooser @ states


def _quadratic(w: Array, rows: Array) -> Array:
    """(...) |sum_u w_u rows_u|² for weightings (..., units) of rows (units, anything)."""
    return np.asarray(np.einsum("...u,uv,...v->...", w, rows @ rows.T, w, optimize=True))


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
    simulations (8 and 16 blocks, tests/probes/test_flow_sums.py) the interval covers 90 to 96 % where position
    has an effect, and more where it has none. States are read in the dtype of the weights and added up in float64; only
    sums are kept.
    """
    split, num_segments = design.to_split(), find_parts(loaded).num_segments
    data = EncodedTask(
        task=task_of_texts(()),
        splits={},
        pad_id=loaded.tokenizer.pad_token_id,
        num_segments=num_segments,
        position_offset=loaded.position_offset,
    )
    shape = (design.num_positions, design.num_contents, design.num_arrangements)
    num_cells = int(np.prod(shape[:2])) * shape[2]
    dealt = np.random.default_rng([*b"dealt", seed]).permutation(num_cells)
    sums: list[CrossedSums] = []
    shuffled: list[CrossedSums] = []
    with in_eval_mode(loaded.model):
        for start in range(0, len(split), BATCH_SIZE):
            indices = np.arange(start, min(start + BATCH_SIZE, len(split)))
            stages = forward_stages(loaded, split, indices, data)
            cells = [level.ravel() for level in design.cells(indices)]
            place = dealt[start * shape[0] : start * shape[0] + len(cells[0])]
            random_cells = np.unravel_index(place, shape)
            if not sums:
                sums = [CrossedSums(*shape, num_units=len(design.blocks)) for _ in stages.layers]
                shuffled = [CrossedSums(*shape, num_units=len(design.blocks)) for _ in stages.layers]
            for layer, own, null in zip(stages.layers, sums, shuffled, strict=True):
                slots = layer[:, design.frame.slots].cpu().double().numpy()
                states = slots.reshape(-1, slots.shape[2])
                own.add(states, *cells)
                null.add(states, *random_cells)
    lines = [
        line
        for layer, (own, null) in enumerate(zip(sums, shuffled, strict=True), start=-1)
        for line in _lines(layer, own, null.squares(), design)
    ]
    ledger = pd.DataFrame(lines, columns=own_columns("ledger"))
    return ledger if find_parts(loaded).position is not None else _without_input_position(ledger)


@np.errstate(invalid="ignore", divide="ignore")  # of one block nothing is left
def _lines(layer: int, sums: CrossedSums, null: Squares, design: CrossedDesign) -> list[dict[str, object]]:
    squares, scaled = sums.squares(), sums.squares(is_standardised=True)
    left_out = sums.squares(leave_one_out(sums.num_units))
    start: dict[str, object] = {"layer": layer, "stage": stage_name(layer), "unit_values": ()}
    lines = []
    for factor in FACTORS:
        if factor not in squares.factors:
            lines.append(start | {"factor": factor, "reason": f"not applicable: {design.note}"})
            continue
        has_blocks = factor in squares.by_block and squares.num_blocks >= 2  # content lies within them
        own = {
            "factor": factor,
            "omega_squared": float(squares.omega_squared(factor)),
            **bounds(unit_values(left_out.omega_squared(factor))),
            "omega_standardised": float(scaled.omega_squared(factor)),
            "eta_squared": float(squares.eta_squared(factor)),
            "by_block_eta": float(squares.by_block[factor] / squares.total) if has_blocks else np.nan,
            "eta_chance": float(squares.eta_chance(factor)),
            "shuffled_omega": float(null.omega_squared(factor)),
            "shuffled_eta": float(null.eta_squared(factor)),
            "df": float(squares.df[factor]),
            "sum_of_squares": float(squares.factors[factor]),
            "reason": {1: ONE_BLOCK, 2: TWO_BLOCKS}.get(sums.num_units, ""),
        }
        lines.append(start | own)
    rest = {
        "factor": RESIDUAL,
        "eta_squared": float(squares.residual_share()),
        "eta_chance": float(squares.df_residual / (squares.num_cells - 1)),
        "shuffled_eta": float(null.residual_share()),
        "df": float(squares.df_residual),
        "sum_of_squares": float(squares.residual),
        "reason": NO_OMEGA,
        **bounds(unit_values(left_out.residual_share())),
    }
    return [*lines, start | rest]


def _without_input_position(ledger: pd.DataFrame) -> pd.DataFrame:
    """Without a position table the input has no position to measure: attention brings it in (rotary, relative)."""
    is_input = (ledger["factor"] == "position") & (ledger["layer"] <= 0)
    numbers = ledger.columns.difference(["layer", "stage", "factor", "unit_values", "reason"])
    ledger.loc[is_input, numbers] = np.nan
    ledger["unit_values"] = [() if gone else units for gone, units in zip(is_input, ledger["unit_values"], strict=True)]
    ledger.loc[is_input, "reason"] = NO_TABLE
    return ledger
