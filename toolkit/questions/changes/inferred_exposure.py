"""Which rows training exposed, told by two checkpoints alone.

A row that no text showed has a zero gradient, and every common optimizer then does one and the same thing to each of
its values: it decays it. What is left of a value is a function of the value alone, which never falls as the value grows
(rounding keeps order) and is the same in every power of two. No gradient keeps to it. So one curve, from the
significand of a value before to what is left of it, is drawn through the rows that changed least in direction, and
every row of every table is held against it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from toolkit.analysis.measures import Array
from toolkit.analysis.precision import FORMATS, HALF_FORMATS, FormatFinder
from toolkit.families import TABLES
from toolkit.naming import Described
from toolkit.questions.changes.finders import ROUNDINGS, Pair, unit_roundoff
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.importers import import_checkpoints
from toolkit.snapshots.snapshot import Trajectory

Ints = NDArray[np.int32]

EXPOSED, UNEXPOSED, UNTOLD = "exposed", "unexposed", "cannot tell"

LEAST_VALUE = 2.0**-100
"""Values below it are left out: their products may be subnormal, where the spacing no longer follows the value."""
NUM_SIGNIFICANDS = 2**23
"""Of fp32; it is also the distance, in bits, from a value to the one twice as large."""
MAX_VALUES = 2**21
"""Values that a curve is drawn through, at most: their neighbours are 4 spacings of fp32 apart."""
OFF_EVERY_CURVE = -64 * NUM_SIGNIFICANDS
"""Stands for what is left of a value that changed its sign or vanished: no curve reaches it."""
LEAST_CONTRADICTING = 10
"""Least number of values that would have left the curve if a row had moved by its misfit: random moves keep the order
of so many neighbours about once in 2¹⁰ times."""
LEAST_GAP = 10.0
"""How many times the greatest misfit of unexposed rows the least of exposed ones must have where a table has too few
values for that. Among trained rows alone the largest gap was 3.5 in three runs, among decayed ones 1.3."""
LEAST_COSINE = 0.5
"""Below it a row has so little in common with what it was that it was rather re-initialised, or given to another token,
than trained. Rows of two unrelated words of a BERT share a mean direction, and may have a cosine of .4 or so."""
LEAST_MISFIT_RATIO = 1.2
"""How many times the greatest misfit of all other rows the least of exposed ones must have in every table. It was below
.8 in every table of which a row would have been named falsely, and 1.8 or more in all that are told
(experiments/exposure_cases.py)."""
LEAST_LEAVING = 1 / 8
"""Or which share of their values must leave the curve in each exposed row: rounding takes a few of a row, a gradient
moves all. Of rows falsely named it took 3 of 64 at most, and 1 of 64 in some row of each such table (the same)."""
UNKNOWN_CAUSE = (
    "no row is as weight decay alone would leave it: decay inside Adam (L2), a trained output layer that shares the "
    "table, a BEFORE that training did not start from, or texts that used every row"
)
OVERLAP = (
    "rows that would be called exposed left decay alone by no more than others did: rounding may have moved them, as "
    "it does with decay inside momentum or Adam (L2), at tiny rates, and where few significant bits were saved"
)
"""Why a table is refused whose exposed rows do not lie apart from the others."""


@dataclass(frozen=True)
class Curve:
    """What is left of a value that decay alone moved, by the significand of what it was.

    Both are bits of fp32 over the power of two of the value before, which keep the order of the numbers.
    """

    significands: Ints
    """Those that it was drawn through, ascending."""
    least: Ints
    """(significands + 1,) what is left at least from each of them on; first, below all of them."""
    most: Ints
    """(significands + 1,) what is left at most up to each of them; last, above all of them."""
    slack: int
    """Spacings of fp32 by which a value may be off it."""
    misfit: float
    """Greatest misfit of the rows that it was drawn through."""

    @classmethod
    def through(cls, significands: Ints, remaining: Ints, slack: int, misfit: float = 0.0) -> "Curve | None":
        """The curve through some values; None where they keep to none."""
        distinct, first_index, index_of = np.unique(significands, return_index=True, return_inverse=True)
        curve = remaining[first_index]
        if not len(distinct) or (np.abs(curve[index_of] - remaining) > slack).any():
            return None  # one significand, and more than one remainder
        # Below the first known significand lies the last one of the power of two below, and so on.
        below, above = curve[-1] - np.int32(NUM_SIGNIFICANDS), curve[0] + np.int32(NUM_SIGNIFICANDS)
        low_bounds = np.maximum.accumulate(np.concatenate([[below], curve]))
        if (curve < low_bounds[1:] - slack).any():
            return None
        high_bounds = np.minimum.accumulate(np.concatenate([curve, [above]])[::-1])[::-1]
        return cls(distinct, low_bounds, high_bounds, slack, misfit)

    def bounds(self, significands: Ints) -> tuple[Ints, Ints]:
        """What is left of some significands, at least and at most."""
        least = self.least[np.searchsorted(self.significands, significands, "right")]
        most = self.most[np.searchsorted(self.significands, significands)]
        return least, most

    @cached_property
    def shares(self) -> Array:
        """(significands,) what is left of each significand, as a share of it."""
        bits = self.least[1:] + np.int32(127 << 23)  # fp32 of a number in [1, 2), whose exponent is stored as 127
        return np.asarray(bits.view(np.float32).astype(np.float64) / (1 + self.significands / NUM_SIGNIFICANDS))

    @cached_property
    def is_identity(self) -> bool:
        """Whether it leaves every value as it was."""
        return bool((self.least[1:] == self.significands).all())

    def num_closer(self, share: float) -> int:
        """How many neighbours are closer to one another than a share of them: they can contradict a move of it."""
        return int(np.count_nonzero(np.diff(self.significands) <= share * NUM_SIGNIFICANDS))


def split_values(before: Array, after: Array) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Of values (rows, columns): significands before, what is left of them, and which values are of use.

    A value near 0 is of none: its products may be subnormal.
    """
    is_usable = np.abs(before) >= LEAST_VALUE
    bits_before = np.abs(before).astype(np.float32).view(np.int32)
    significands = bits_before & np.int32(NUM_SIGNIFICANDS - 1)
    power_of_two = (bits_before >> 23) << 23  # the bits of the exponent alone
    remaining = np.abs(after).astype(np.float32).view(np.int32) - power_of_two
    remaining[(before < 0) != (after < 0)] = OFF_EVERY_CURVE
    return significands, np.clip(remaining, OFF_EVERY_CURVE, -OFF_EVERY_CURVE), is_usable


@dataclass
class _Table:
    """One table: what a pass over it tells, and what holding it against a curve found."""

    pair: Pair
    squares: Array
    """(rows,) ‖E⁰‖²."""
    norms: Array
    """(rows,) ‖Δ‖."""
    factors: Array
    """(rows,) s, the factor with which s·E⁰ comes nearest to Eᵗ; NaN of a row of zeros."""
    misfits: Array
    """(rows,) ‖Eᵗ - s·E⁰‖ / ‖E⁰‖."""
    is_related: NDArray[np.bool_]
    """(rows,) rows that were not 0 and still have something in common with what they were."""
    refused: str
    curve: Curve | None = None
    exposure: NDArray[np.object_] = field(init=False)
    """(rows,) EXPOSED, UNEXPOSED or UNTOLD."""
    num_leaving: NDArray[np.int64] = field(init=False)
    """(rows,) values that leave the curve."""
    gap: tuple[float, float] = (math.nan, math.nan)
    """Greatest misfit of the rows that are not exposed, and least of the exposed ones; NaN without any."""

    def __post_init__(self) -> None:
        num_rows = self.pair.shape[0]
        self.exposure, self.num_leaving = np.full(num_rows, UNTOLD, dtype=object), np.zeros(num_rows, np.int64)

    @property
    def is_apart(self) -> bool:
        """Whether exposed rows have misfits well above all others, or many values each that leave the curve.

        Where none is exposed, all must be unexposed.
        """
        greatest, least = self.gap
        if math.isnan(least):
            return not (self.exposure[self.is_related] == UNTOLD).any()
        share = self.num_leaving[self.exposure == EXPOSED].min() / self.pair.shape[1]
        return not least < LEAST_MISFIT_RATIO * greatest or share >= LEAST_LEAVING

    @property
    def is_certain(self) -> bool:
        """Whether the unexposed rows are more than a curve that happens to go through a few trained ones."""
        greatest, least = self.gap
        if self.curve is None or not (self.exposure == UNEXPOSED).any():
            return False
        would_contradict = self.curve.is_identity or self.curve.num_closer(self.curve.misfit) >= LEAST_CONTRADICTING
        return would_contradict or least >= LEAST_GAP * max(greatest, unit_roundoff(FORMATS["fp32"]))


def _survey(pair: Pair, may_draw: NDArray[np.bool_] | None) -> _Table:
    """One pass over a table: how far each row moved, the factor nearest to that and its misfit; or why it's refused.

    ``may_draw``: (rows,) the rows that a curve may be drawn through; None: all.
    """
    num_rows = pair.shape[0]
    finder = FormatFinder()
    squares, norms, factors, misfits, cosines = (np.full(num_rows, np.nan) for _ in range(5))
    for rows, a, b in pair.blocks():
        finder.add(b)
        change = b - a
        squares[rows], norms[rows] = np.vecdot(a, a), np.sqrt(np.vecdot(change, change))
        is_nonzero = squares[rows] > 0
        undefined = np.full(len(a), np.nan)
        # By the change, and not by the two rows, whose squares would lose a factor next to 1.
        shift = np.divide(np.vecdot(a, change), squares[rows], out=undefined.copy(), where=is_nonzero)
        residual = change - shift[:, None] * a
        factors[rows] = 1 + shift
        misfits[rows] = np.sqrt(
            np.divide(np.vecdot(residual, residual), squares[rows], out=undefined, where=is_nonzero)
        )
        lengths = np.sqrt(squares[rows] * np.vecdot(b, b))
        cosines[rows] = np.divide(np.vecdot(a, b), lengths, out=np.full(len(a), -1.0), where=lengths > 0)
    is_related, has_moved = cosines >= LEAST_COSINE, norms > 0
    is_related &= True if may_draw is None else may_draw
    refusal = ""
    if not has_moved.any():
        refusal = "no value of it differs: frozen, or never trained, so that nothing shows which rows texts used"
    elif finder.format.name in HALF_FORMATS:
        refusal = f"its new values fit {finder.format.name}: what would tell is rounded away"
    elif (has_moved & is_related).sum() < has_moved.sum() / 2:
        refusal = (
            "most of the rows that moved have nothing in common with those before: another vocabulary, a new table, or "
            "added rows that were trained alone"
        )
    return _Table(pair, squares, norms, factors, misfits, is_related, refusal)


def _values(table: _Table, rows: NDArray[np.intp]) -> tuple[Ints, Ints]:
    """Significands and what is left of them, of some rows, evenly thinned to MAX_VALUES."""
    stride = math.ceil(len(rows) * table.pair.shape[1] / MAX_VALUES)
    chunks = []
    for _, a, b in table.pair.blocks(np.sort(rows[::stride])):
        significands, remaining, is_usable = split_values(a, b)
        chunks.append((significands[is_usable], remaining[is_usable]))
    significands, remaining = (np.concatenate(chunk) for chunk in zip(*chunks, strict=True))
    return significands, remaining


def _draw_curve(table: _Table, slack: int) -> tuple[Curve | None, Ints, Ints]:
    """A curve through rows of least misfit, and the values that it goes through."""
    rows = np.flatnonzero(table.is_related)
    rows = rows[np.argsort(table.misfits[rows], kind="stable")]
    logs = np.log(np.maximum(table.misfits[rows], unit_roundoff(FORMATS["fp32"])))
    # The largest gap of log misfits is nearly always the place. Else from the first row on, as far as it goes.
    num_below_gap = int(np.argmax(np.diff(logs))) + 1 if len(rows) > 1 else 1
    values, curve = _curve_through(table, rows[:num_below_gap], slack)
    if curve is None:
        num_rows = 1
        while num_rows == 1 or num_rows < num_below_gap:
            more_values, wider_curve = _curve_through(table, rows[:num_rows], slack)
            if wider_curve is None:
                break
            values, curve = more_values, wider_curve
            num_rows *= 2
    return curve, *values


def _curve_through(table: _Table, rows: NDArray[np.intp], slack: int) -> tuple[tuple[Ints, Ints], Curve | None]:
    """The values of some rows, in the order of their misfits, and the curve through them, if they keep to one."""
    values = _values(table, rows)
    return values, Curve.through(*values, slack, float(table.misfits[rows[-1]]))


def _judge_rows(table: _Table, curve: Curve) -> None:
    """Set which rows training exposed (one of their values leaves the curve), and the gap to the others' misfits."""
    table.curve = curve
    slack = curve.slack
    for rows, a, b in table.pair.blocks():
        significands, remaining, is_usable = split_values(a, b)
        low, high = curve.bounds(significands)
        num_leaving = (is_usable & ((remaining < low - slack) | (remaining > high + slack))).sum(axis=1)
        misfits, has_moved = np.nan_to_num(table.misfits[rows]), table.norms[rows] > 0
        # Values that could not keep to the curve, had they moved by as much as the row's misfit is.
        num_would_leave = (is_usable & ((high - low + 2 * slack) <= NUM_SIGNIFICANDS * misfits[:, None])).sum(axis=1)
        is_certain = (misfits <= curve.misfit) | (num_would_leave >= LEAST_CONTRADICTING) | ~has_moved
        findings = np.full(len(rows), UNTOLD, dtype=object)
        findings[(num_leaving > 0) & has_moved & table.is_related[rows]] = EXPOSED
        findings[(num_leaving == 0) & is_certain] = UNEXPOSED
        findings[has_moved & (table.squares[rows] == 0)] = EXPOSED  # decay leaves a 0 what it is
        table.exposure[rows] = findings
        table.num_leaving[rows] = num_leaving
    is_exposed = table.exposure == EXPOSED
    misfits = pd.Series(table.misfits)
    table.gap = float(misfits[table.is_related & ~is_exposed].max()), float(misfits[is_exposed].min())


def tell_rows(pairs: Sequence[Pair], may_draw: NDArray[np.bool_] | None = None) -> list[_Table]:
    """Judge of every row of one model's tables whether training exposed it.

    Values must keep to the curve exactly; where no table is certain then, up to ROUNDINGS spacings.
    ``may_draw``: (rows,) the rows that curves may be drawn through; None: all that are related.
    """
    tables = [_survey(pair, may_draw) for pair in pairs]
    usable = [table for table in tables if not table.refused]
    for slack in (0, ROUNDINGS):
        drawn = [(table, *_draw_curve(table, slack)) for table in usable]
        curves_with_values = [(curve, values) for _, curve, *values in drawn if curve is not None]
        # One optimizer decays all tables alike, as a rule: together they draw a closer curve.
        common_curve = None
        if len(curves_with_values) > 1:
            values_by_table = [values for _, values in curves_with_values]
            significands, remaining = (np.concatenate(chunk) for chunk in zip(*values_by_table, strict=True))
            misfit = max(curve.misfit for curve, _ in curves_with_values)
            common_curve = Curve.through(significands, remaining, slack, misfit)
        word_curve = next((curve for table, curve, *_ in drawn if table.pair.parameter == TABLES[0]), None)
        for table, curve, *_ in drawn:
            is_words = table.pair.parameter == TABLES[0]
            # A word table of which no row keeps to a curve may share a trained output layer: no other table tells.
            if applied := curve if is_words and curve is None else common_curve or curve or word_curve:
                _judge_rows(table, applied)
        # A table of which all rows were used has no unexposed row of its own to be certain of.
        certain_curves = [table.curve for table in usable if table.is_certain]
        for table in usable:
            is_certain = any(table.curve is curve for curve in certain_curves)
            if not is_certain:
                table.refused = UNKNOWN_CAUSE
            else:
                table.refused = "" if table.is_apart else OVERLAP
            if table.refused:
                table.exposure[:] = UNTOLD
                table.curve = None
            if not is_certain:
                table.gap = math.nan, math.nan
        if certain_curves:
            break
    return tables


@dataclass(frozen=True, repr=False)
class InferredExposure(Described):
    """Which rows training exposed, as two checkpoints tell it, and what follows."""

    tables: pd.DataFrame
    """A line per embedding table: how many rows are exposed, what decay did, or why nothing can be told."""
    rows: pd.DataFrame
    """A line per row of every table, with the evidence."""
    trajectory: Trajectory
    """The checkpoints, their rows in strata by what was inferred: what every analysis takes."""
    notes: tuple[str, ...] = ()
    """One sentence each, from the import of the checkpoints."""

    @property
    def words(self) -> pd.DataFrame:
        """The lines of :attr:`rows` of exposed words, those that moved farthest first: words of the training text."""
        exposed_words = self.rows[(self.rows["parameter"] == TABLES[0]) & (self.rows["exposure"] == EXPOSED)]
        return exposed_words.sort_values(["norm", "row"], ascending=[False, True], ignore_index=True)

    @property
    def longest_text(self) -> float:
        """Tokens of the longest text that trained it, as positions tell; NaN where they do not."""
        rows = self._exposed("position_embeddings")
        return float(rows.max() - self.trajectory.position_offset + 1) if len(rows) else math.nan

    @property
    def num_segments(self) -> float:
        """Segments that the texts had, two where pairs were encoded together; NaN where segment rows do not tell."""
        return float(len(self._exposed("token_type_embeddings"))) or math.nan

    def _exposed(self, parameter: str) -> "pd.Series[Any]":
        """The numbers of a table's exposed rows."""
        return self.rows[(self.rows["parameter"] == parameter) & (self.rows["exposure"] == EXPOSED)]["row"]

    def facts(self) -> dict[str, str]:
        """How many rows of each table were exposed, or why that cannot be told; the longest text, segments, decay."""
        statements = {}
        for table in self.tables.itertuples():
            counts = f"{table.num_exposed_rows:,} of {table.num_rows:,} rows exposed ({table.num_untold_rows:,} untold)"
            statement = table.reason or counts
            if not math.isnan(table.misfit_exposed):
                statement += f"; misfits of exposed rows from {table.misfit_exposed:.2g}"
                if not math.isnan(table.misfit_unexposed):
                    statement += f", of others to {table.misfit_unexposed:.2g}"
            statements[table.parameter] = statement
        if not math.isnan(self.longest_text):
            statements["longest text"] = f"{self.longest_text:,.0f} tokens"
        if not math.isnan(self.num_segments):
            statements["segments"] = f"{self.num_segments:.0f}"
        told_tables = self.tables[self.tables["reason"] == ""]
        if len(told_tables):
            statements["Σ lr·decay"] = describe_decay(told_tables.iloc[0])
        return statements


def describe_decay(line: "pd.Series[Any]") -> str:
    """What came of weight decay, from a line of :attr:`InferredExposure.tables`."""
    if line["sum_lr_decay"] == 0:
        return "0: no decay, or below what fp32 holds in each step (lr·decay < 2⁻²⁵)"
    return f"{line['sum_lr_decay']:.3g} ({line['sum_lr_decay_low']:.3g} to {line['sum_lr_decay_high']:.3g})"


@with_columns
def infer_exposure(before: str | Path, after: str | Path) -> InferredExposure:
    """Which rows of the embedding tables training exposed, without a log, from the weights before and after it.

    Parameters
    ----------
    before
        The checkpoint that training started from: whatever :func:`toolkit.import_checkpoints` takes.
    after
        The checkpoint that it ended with.

    Returns
    -------
    InferredExposure
        ``tables``, ``rows``, ``words``, ``longest_text``, ``num_segments`` and ``trajectory``.

    Raises
    ------
    ValueError
        A place holds no weights that can be read, or the two cannot be compared. A table that tells nothing is no
        error: its line says why, and its rows ``cannot tell``.

    Notes
    -----
    Ours. A row without a gradient is only decayed: each value becomes a function of itself, the same for all values,
    that never falls as the value grows and that powers of two leave as it is. It is drawn as a curve through the rows
    that least changed their direction (cut at the largest gap of log misfits), which all of their values must keep to
    exactly; or, for optimizers that round more than once in a step, up to 4 spacings of fp32. A row is *exposed* when a
    value of it leaves the curve; *unexposed* when none does, and at least 10 would have, had the row moved by its
    misfit; else it *cannot tell*. It is refused: a table that did not change; one whose new values fit a half
    precision; one of which most of the rows that moved have nothing in common with those before; one of which no row
    keeps to a curve, or so few values that 10 neighbours could not contradict it and no tenfold gap of misfits stands
    beside it; one whose exposed rows do not lie apart: the least of their misfits must be 1.2 times the greatest of all
    other rows, or an eighth of the values must leave the curve in each of them.

    It is made for AdamW, whose decay is apart from the gradient, and for SGD without momentum. Decay inside momentum or
    Adam (L2) rounds several times in a step, and a table shared with a trained output layer has a gradient in every
    row: they are told where the rows lie apart nevertheless, else refused, by the misfits and not by the optimizer's
    name, which the weights do not tell. A row of which every update was rounded away is as one that no text used, and
    is called unexposed.

    Two that were tuned from one unknown checkpoint may stand for the two: the unexposed rows are then those that
    neither training used, and are the ancestor's up to a factor.

    What came of Σ lr·decay is -ln of what is left of unexposed rows, by least squares; low and high are its least and
    greatest over the significands, each of which fp32 rounds in its own way. Steps of lr·decay < 2⁻²⁵ leave nothing.
    """
    imported = import_checkpoints([before, after])
    return infer_from(imported.trajectory, imported.notes)


@with_columns
def find_ancestral_rows(checkpoints: Sequence[str | Path]) -> pd.DataFrame:
    """Which rows models that were tuned from one unknown checkpoint still hold as it had them, up to weight decay.

    Parameters
    ----------
    checkpoints
        Two or more descendants: whatever :func:`toolkit.import_checkpoints` takes. Of a run directory all snapshots are
        taken: pass one of them, or its ``model/``.

    Returns
    -------
    pandas.DataFrame
        A line per row. ``shared_by`` names the models that hold the row alike, which are those that did not train it:
        it is the ancestor's there. Empty where no two do. Two groups, parted by a semicolon, had an ancestor each, of
        which one at least had trained the row. ``reason`` says why two of the models tell nothing of the table.

    Raises
    ------
    ValueError
        Fewer than two models, or models that cannot be compared.

    Notes
    -----
    Ours: each two are held against each other by :func:`toolkit.infer_exposure`. Where two models trained a row on the
    same texts with the same bits, it is taken for the ancestor's.
    """
    if len(checkpoints) < 2:
        raise ValueError(f"descendants share rows with one another: pass at least 2 of them, not {len(checkpoints)}")
    return ancestral_rows_of(import_checkpoints(checkpoints).trajectory)


def ancestral_rows_of(trajectory: Trajectory) -> pd.DataFrame:
    """As :func:`find_ancestral_rows`, of the snapshots of a trajectory, whatever their order."""
    snapshots = trajectory.snapshots
    names = [parameter for parameter in TABLES if parameter in trajectory.parameters]
    is_alike: dict[str, NDArray[np.bool_]] = {}  # (models, models, rows): whether two hold a row alike
    for name in names:
        num_rows = len(snapshots[0].tensors[name])
        is_alike[name] = np.zeros((len(snapshots), len(snapshots), num_rows), np.bool_)
    refusals: dict[str, list[str]] = {name: [] for name in names}
    for i, j in combinations(range(len(snapshots)), 2):
        for table in tell_rows([Pair(snapshots[i], snapshots[j], name) for name in names]):
            name, is_same = table.pair.parameter, table.norms == 0
            is_alike[name][i, j] = is_same if table.refused else table.exposure == UNEXPOSED
            if table.refused and not is_same.all():
                refusals[name].append(f"{snapshots[i].name} and {snapshots[j].name}: {table.refused}")
    model_names = [snapshot.name for snapshot in snapshots]
    tables = []
    for name in names:
        # Few patterns of who holds a row like whom stand for thousands of rows: each is put into words once.
        patterns, pattern_of_row = np.unique(is_alike[name], axis=2, return_inverse=True)
        groups = [_name_groups(pattern, model_names) for pattern in np.moveaxis(patterns, 2, 0)]
        rows = _row_names(trajectory, name, len(pattern_of_row))
        shared_by = np.array(groups, object)[pattern_of_row]
        tables.append(rows.assign(shared_by=shared_by, reason="; ".join(refusals[name])))
    return pd.concat(tables, ignore_index=True)


def _name_groups(alike: NDArray[np.bool_], names: Sequence[str]) -> str:
    """The names of the models that hold a row alike, group by group; ``alike``: (models, models) which two do."""
    num_groups, group_of_model = connected_components(alike, directed=False)
    groups: list[list[str]] = [[] for _ in range(num_groups)]
    for name, group in zip(names, group_of_model, strict=True):
        groups[group].append(name)
    return "; ".join(", ".join(members) for members in groups if len(members) > 1)


def infer_from(trajectory: Trajectory, notes: tuple[str, ...] = ()) -> InferredExposure:
    """As :func:`infer_exposure`, from the first and the last snapshot of a trajectory."""
    before, after = trajectory.snapshots[0], trajectory.snapshots[-1]
    tables = tell_rows([Pair(before, after, name) for name in TABLES if name in trajectory.parameters])
    inferred = {table.pair.parameter: np.asarray(table.exposure, dtype=str) for table in tables if not table.refused}
    records = [_table_record(trajectory, table) for table in tables]
    return InferredExposure(
        tables=pd.DataFrame(records, columns=columns_of("infer_exposure.tables")),
        rows=pd.concat([_row_lines(trajectory, table) for table in tables], ignore_index=True),
        trajectory=replace(trajectory, inferred=inferred),
        notes=notes,
    )


def _table_record(trajectory: Trajectory, table: _Table) -> dict[str, Any]:
    """The record of one table: counts of its rows, the gap of misfits, and the decay that its unexposed rows tell."""
    exposed, unexposed = table.exposure == EXPOSED, table.exposure == UNEXPOSED
    greatest, least = table.gap
    decay = low = high = math.nan
    if table.curve is not None:
        logs = -np.log(table.curve.shares)
        low, high = float(logs.min()) + 0.0, float(logs.max()) + 0.0  # + 0.0: no -0
        has_factor = unexposed & (table.squares > 0)
        if table.curve.is_identity:
            decay = 0.0
        elif has_factor.any():
            # By least squares over all values: the mean factor, each row by its squared length.
            factor = float(np.average(table.factors[has_factor], weights=table.squares[has_factor]))
            decay = -math.log(factor) + 0.0
        else:
            decay = float(np.mean(logs))
    return {
        "parameter": table.pair.parameter,
        "num_rows": len(exposed),
        "num_exposed_rows": int(exposed.sum()),
        "num_unexposed_rows": int(unexposed.sum()),
        "num_untold_rows": int((~exposed & ~unexposed).sum()),
        "misfit_unexposed": greatest,
        "misfit_exposed": least,
        "sum_lr_decay": decay,
        "sum_lr_decay_low": low,
        "sum_lr_decay_high": high,
        "reason": table.refused,
        "note": "; ".join(_notes(trajectory, table)),
    }


def _notes(trajectory: Trajectory, table: _Table) -> Iterator[str]:
    """What is to be known beside the counts of a table that was not refused."""
    if table.refused:
        return
    unlike = ~table.is_related & (table.squares > 0) & (table.norms > 0)
    if unlike.any():
        example = trajectory.name_row(table.pair.parameter, int(np.argmax(unlike)))
        yield f"{unlike.sum():,} rows have little in common with those before (new values?), such as {example}"
    if table.curve is not None and (table.curve.shares > 1).any():
        yield "unexposed rows grew: this is no training of the first checkpoint, but of a relative, or a scaling"
    rows = np.flatnonzero(table.exposure == EXPOSED)
    if table.pair.parameter == "position_embeddings" and len(rows):
        expected_rows = range(trajectory.position_offset, int(rows.max()) + 1)
        if missing_rows := set(expected_rows) - set(rows.tolist()):
            yield f"{len(missing_rows):,} positions before the last exposed one did not move as trained ones do"


def _row_names(trajectory: Trajectory, parameter: str, num_rows: int) -> pd.DataFrame:
    """A line per row of a table: its number and, of words, its token."""
    vocabulary = trajectory.vocabulary if parameter == TABLES[0] else None
    tokens = np.array(vocabulary.tokens, dtype=object) if vocabulary else ""
    return pd.DataFrame({"parameter": parameter, "row": np.arange(num_rows), "token": tokens})


def _row_lines(trajectory: Trajectory, table: _Table) -> pd.DataFrame:
    """The lines of one table in :attr:`InferredExposure.rows`."""
    lengths = np.sqrt(table.squares)
    columns = {
        "exposure": table.exposure,
        "misfit": table.misfits,
        "norm": table.norms,
        "relative": np.divide(table.norms, lengths, out=np.full(len(lengths), np.nan), where=lengths > 0),
    }
    return _row_names(trajectory, table.pair.parameter, len(lengths)).assign(**columns)
