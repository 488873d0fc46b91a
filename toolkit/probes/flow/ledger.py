"""A model and a crossed design in, the ledger out: how much of each layer's variance is position, content, segment."""

import numpy as np
import pandas as pd

from toolkit.data.batches import EncodedSplit, EncodedTask
from toolkit.data.tasks import Task
from toolkit.models.classifier import Loaded
from toolkit.probes.flow.design import CrossedDesign
from toolkit.probes.flow.stages import forward_stages, in_eval_mode, stage_name
from toolkit.probes.flow.sums import FACTORS, Array, CrossedSums, Squares

LEDGER_COLUMNS: tuple[str, ...] = ("layer", "stage", "factor", "omega_squared", "low", "high")
LEDGER_COLUMNS += ("omega_standardised", "eta_squared", "eta_chance", "shuffled_omega", "shuffled_eta")
LEDGER_COLUMNS += ("df", "sum_of_squares", "note")

RESIDUAL = "residual"
NUM_DRAWS = 1000
LEVEL = 0.95
NO_TABLE = "not applicable: the model has no position table, so its input holds no position"
ONE_BLOCK = "no interval: one block"
NO_OMEGA = "interactions of the factors; ω² is for main effects"


def position_ledger(
    loaded: Loaded,
    design: CrossedDesign,
    *,
    batch_size: int = 32,
    num_draws: int = NUM_DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> pd.DataFrame:
    """ω² and η² of position, content and segment per stage of the forward pass, one line per stage and factor.

    Columns LEDGER_COLUMNS: ``layer`` -1 is the sum of embeddings before LayerNorm, 0 the encoder's input. ``low`` and
    ``high``: percentile bootstrap over blocks (contents of one block share their neighbours), re-centred on the
    estimate, since a block that is drawn twice repeats its noise. ``omega_standardised``: ω² with every dimension at
    unit variance. ``shuffled_*``: the same states dealt at random to the cells. A residual line per stage has its η²
    only. Not applicable is NaN with a ``note``. Source of the formulas: :class:`toolkit.probes.flow.sums.Squares`; the
    design is ours. States are read in the dtype of the weights and added up in float64; only sums are kept.
    """
    data, split = encode_design(loaded, design)
    shape = (design.num_positions, design.num_contents, design.num_arrangements)
    num_cells = int(np.prod(shape[:2])) * shape[2]
    dealt = np.random.default_rng([*b"dealt", seed]).permutation(num_cells)
    sums: list[CrossedSums] = []
    shuffled: list[CrossedSums] = []
    with in_eval_mode(loaded):
        for start in range(0, len(split), batch_size):
            indices = np.arange(start, min(start + batch_size, len(split)))
            stages = forward_stages(loaded, split, indices, data)
            cells = [level.ravel() for level in design.cells(indices)]
            place = dealt[start * shape[0] : start * shape[0] + len(cells[0])]
            random_cells = np.unravel_index(place, shape)
            if not sums:
                sums = [CrossedSums(*shape, num_units=len(design.blocks)) for _ in stages.layers]
                shuffled = [CrossedSums(*shape) for _ in stages.layers]
            for layer, own, null in zip(stages.layers, sums, shuffled, strict=True):
                slots = layer[:, design.frame.slots].cpu().double().numpy()
                states = slots.reshape(-1, slots.shape[2])
                own.add(states, *cells)
                null.add(states, *random_cells)
    weights = np.random.default_rng([*b"blocks", seed]).multinomial(
        len(design.blocks), np.full(len(design.blocks), 1 / len(design.blocks)), size=num_draws
    )
    lines = [
        line
        for layer, (own, null) in enumerate(zip(sums, shuffled, strict=True), start=-1)
        for line in _lines(layer, own, null.squares(), weights.astype(np.float64), level, design)
    ]
    ledger = pd.DataFrame(lines, columns=list(LEDGER_COLUMNS))
    return _without_input_position(ledger) if not has_position_table(loaded) else ledger


def has_position_table(loaded: Loaded) -> bool:
    """Whether the model adds a position row to its input."""
    return loaded.family.embedding_parameters.get("position_embeddings") in dict(
        loaded.model.backbone.named_parameters()
    )


def num_segments_of(loaded: Loaded) -> int:
    """Rows of the segment table; 0 without one."""
    name = loaded.family.embedding_parameters.get("token_type_embeddings")
    table = dict(loaded.model.backbone.named_parameters()).get(name) if name else None
    return 0 if table is None else len(table)


def encode_design(loaded: Loaded, design: CrossedDesign) -> tuple[EncodedTask, EncodedSplit]:
    """The sequences of a design as batches are made of."""
    split = design.to_split()
    task = Task(
        name="crossed design",
        kind="classification",
        label_names=(),
        splits={},
        reported_split="",
        score="accuracy",
        data_hashes={},
    )
    data = EncodedTask(
        task=task,
        splits={"crossed": split},
        pad_id=loaded.tokenizer.pad_token_id,
        num_segments=num_segments_of(loaded),
        position_offset=loaded.position_offset,
    )
    return data, split


def _lines(
    layer: int, sums: CrossedSums, null: Squares, weights: Array, level: float, design: CrossedDesign
) -> list[dict[str, object]]:
    squares, scaled = sums.squares(), sums.squares(is_standardised=True)
    drawn = sums.squares(weights) if sums.num_units > 1 else None
    start: dict[str, object] = {"layer": layer, "stage": stage_name(layer)}
    lines = []
    for factor in FACTORS:
        if factor not in squares.factors:
            lines.append(start | {"factor": factor, "note": f"not applicable: {design.note}"})
            continue
        omega = float(squares.omega_squared(factor))
        low, high = (np.nan, np.nan) if drawn is None else _interval(omega, drawn.omega_squared(factor), level)
        values = {
            "factor": factor,
            "omega_squared": omega,
            "low": low,
            "high": high,
            "omega_standardised": float(scaled.omega_squared(factor)),
            "eta_squared": float(squares.eta_squared(factor)),
            "eta_chance": float(squares.eta_chance(factor)),
            "shuffled_omega": float(null.omega_squared(factor)),
            "shuffled_eta": float(null.eta_squared(factor)),
            "df": float(squares.df[factor]),
            "sum_of_squares": float(squares.factors[factor]),
            "note": ONE_BLOCK if drawn is None else "",
        }
        lines.append(start | values)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = {
            "eta_squared": float(squares.residual / squares.total),
            "eta_chance": float(squares.df_residual / (squares.num_cells - 1)),
            "shuffled_eta": float(null.residual / null.total),
        }
    rest = {"df": float(squares.df_residual), "sum_of_squares": float(squares.residual), "note": NO_OMEGA}
    return [*lines, {**start, "factor": RESIDUAL, **share, **rest}]


def _interval(estimate: float, draws: Array, level: float) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2]) + (estimate - draws.mean())
    return float(low), float(high)


def _without_input_position(ledger: pd.DataFrame) -> pd.DataFrame:
    """Without a position table the input has no position to measure: attention brings it in (rotary, relative)."""
    is_input = (ledger["factor"] == "position") & (ledger["layer"] <= 0)
    numbers = ledger.columns.difference(["layer", "stage", "factor", "note"])
    ledger.loc[is_input, numbers] = np.nan
    ledger.loc[is_input, "note"] = NO_TABLE
    return ledger
