"""A model and a crossed design in, the ledger out: how much of each layer's variance is position, content, segment."""

import numpy as np
import pandas as pd

from toolkit.data.batches import EncodedSplit, EncodedTask
from toolkit.data.tasks import Task
from toolkit.models.classifier import Loaded, in_eval_mode
from toolkit.probes.flow.design import CrossedDesign
from toolkit.probes.flow.jackknife import bounds, leave_one_out, unit_values
from toolkit.probes.flow.stages import forward_stages, own_columns, stage_name
from toolkit.probes.flow.sums import FACTORS, CrossedSums, Squares

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
    is NaN with a ``reason``. Source of the formulas: :class:`toolkit.probes.flow.sums.Squares`; the design is ours. In
    planted simulations (8 and 16 blocks, tests/probes/flow/test_sums.py) the interval covers 90 to 96 % where position
    has an effect, and more where it has none. States are read in the dtype of the weights and added up in float64; only
    sums are kept.
    """
    data, split = encode_design(loaded, design)
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
        file_hashes={},
    )
    data = EncodedTask(
        task=task,
        splits={"crossed": split},
        pad_id=loaded.tokenizer.pad_token_id,
        num_segments=num_segments_of(loaded),
        position_offset=loaded.position_offset,
    )
    return data, split


def _lines(layer: int, sums: CrossedSums, null: Squares, design: CrossedDesign) -> list[dict[str, object]]:
    squares, scaled = sums.squares(), sums.squares(is_standardised=True)
    with np.errstate(invalid="ignore", divide="ignore"):  # of one block nothing is left
        left_out = sums.squares(leave_one_out(sums.num_units))
    start: dict[str, object] = {"layer": layer, "stage": stage_name(layer), "unit_values": ()}
    lines = []
    for factor in FACTORS:
        if factor not in squares.factors:
            lines.append(start | {"factor": factor, "reason": f"not applicable: {design.note}"})
            continue
        values = {
            "factor": factor,
            "omega_squared": float(squares.omega_squared(factor)),
            **bounds(unit_values(left_out.omega_squared(factor))),
            "omega_standardised": float(scaled.omega_squared(factor)),
            "eta_squared": float(squares.eta_squared(factor)),
            "by_block_eta": _share(squares, factor),
            "eta_chance": float(squares.eta_chance(factor)),
            "shuffled_omega": float(null.omega_squared(factor)),
            "shuffled_eta": float(null.eta_squared(factor)),
            "df": float(squares.df[factor]),
            "sum_of_squares": float(squares.factors[factor]),
            "reason": {1: ONE_BLOCK, 2: TWO_BLOCKS}.get(sums.num_units, ""),
        }
        lines.append(start | values)
    share = {
        "eta_squared": float(squares.residual_share()),
        "eta_chance": float(squares.df_residual / (squares.num_cells - 1)),
        "shuffled_eta": float(null.residual_share()),
    }
    rest = {"df": float(squares.df_residual), "sum_of_squares": float(squares.residual), "reason": NO_OMEGA}
    units = bounds(unit_values(left_out.residual_share()))
    return [*lines, {**start, "factor": RESIDUAL, **share, **rest, **units}]


def _share(squares: Squares, factor: str) -> float:
    """η² of a factor's interaction with the blocks; NaN of content, which lies within them."""
    if factor not in squares.by_block or squares.num_blocks < 2:
        return float("nan")
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(squares.by_block[factor] / squares.total)


def _without_input_position(ledger: pd.DataFrame) -> pd.DataFrame:
    """Without a position table the input has no position to measure: attention brings it in (rotary, relative)."""
    is_input = (ledger["factor"] == "position") & (ledger["layer"] <= 0)
    numbers = ledger.columns.difference(["layer", "stage", "factor", "unit_values", "reason"])
    ledger.loc[is_input, numbers] = np.nan
    ledger["unit_values"] = [() if gone else units for gone, units in zip(is_input, ledger["unit_values"], strict=True)]
    ledger.loc[is_input, "reason"] = NO_TABLE
    return ledger
