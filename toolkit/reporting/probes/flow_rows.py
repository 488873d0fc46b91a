"""The tables of one group of a position flow in, header and rows of the page's tables out."""

import pandas as pd

from toolkit.reporting.probes.flow_findings import IN_POINTS
from toolkit.reporting.probes.flow_intervals import estimate
from toolkit.reporting.probes.flow_tables import COUNTERFACTUALS, FACTORS, FlowGroup, stage_cell

Rows = tuple[list[str], list[list[object]]]


def share_rows(group: FlowGroup) -> Rows:
    """Header and rows: arm and layer with ω² of each factor in percent (mean over seeds) and what is left."""
    header = ["arm", "layer", "position", "low", "high", *FACTORS[1:], "position, equal dimensions"]
    header += ["position x text (η²)", "left to interactions (η²)"]
    rows: list[list[object]] = []
    for arm in group.arms:
        columns = [group.over_seeds("ledger", arm, "omega_squared", factor=factor) for factor in FACTORS]
        columns += [
            group.over_seeds("ledger", arm, name, factor="position") for name in ("omega_standardised", "by_block_eta")
        ]
        columns.append(group.over_seeds("ledger", arm, "eta_squared", factor="residual"))
        for layer in group.layers:
            bounds = [_cell(columns[0], layer, name) for name in ("low", "high")]
            cells = [_cell(column, layer) for column in columns]
            rows.append([group.labels[arm], stage_cell(layer), cells[0], *bounds, *cells[1:]])
    return header, rows


def _cell(values: pd.DataFrame, layer: int, name: str = "mean") -> object:
    if layer not in values.index:
        return None
    percent = 100 * float(values[name][layer])
    return 0.0 if abs(percent) < 1e-9 else percent  # rounding is shown as 0


def bit_rows(group: FlowGroup) -> Rows:
    """Header and rows: arm and layer with the bits, beyond words and beyond the control, and the references."""
    shown = {"bits": "bits", "beyond_word_bits": "beyond the word", "selective_bits": "beyond the control"}
    references = {"word_bits": "word alone", "control_bits": "control", "shuffled_bits": "shuffled"}
    references |= {"entropy_bits": "entropy", "control_entropy_bits": "entropy of control"}
    header = ["arm", "layer", *(name for title in shown.values() for name in (title, "low", "high"))]
    rows: list[list[object]] = []
    for arm in group.arms:
        values = {name: group.over_seeds("decoding", arm, name) for name in (*shown, *references)}
        for layer in values["bits"].index:
            cells = [float(values[name][part][layer]) for name in shown for part in ("mean", "low", "high")]
            cells += [float(values[name]["mean"][layer]) for name in references]
            rows.append([group.labels[arm], stage_cell(int(layer)), *cells])
    return [*header, *references.values()], rows


def output_rows(group: FlowGroup) -> Rows:
    """Header and rows: arm and counterfactual with the change of the last layer, logits, predictions and the score."""
    header = ["arm", "positions", "last layer", "logits", "predictions changed (%)", "score before", "change"]
    header += ["low", "high"]
    rows: list[list[object]] = []
    for arm in dict.fromkeys(group.tables["models"]["arm"]):
        own = group.of("counterfactuals", arm)
        for name in COUNTERFACTUALS:
            lines = own[own["counterfactual"] == name]
            if lines.empty:
                continue
            state = lines[lines["quantity"] == "state"]
            last = state.loc[state["layer"] == state["layer"].max(), "value"].mean()
            logits, predictions, score = (lines[lines["quantity"] == q] for q in ("logits", "predictions", "score"))
            means = (_mean(logits["value"]), _mean(100 * predictions["value"]), _mean(score["reference"]))
            rows.append([arm, name, float(last), *means, *_score_cells(score)])
    return header, rows


def _score_cells(score: pd.DataFrame) -> list[object]:
    """Mean change with its interval, in points where the score is a share; not applicable without a head."""
    if score.empty:
        return [None] * 3
    factor = 100 if score["unit"].iloc[0] in IN_POINTS else 1
    change = estimate(score, "value")
    return [factor * change.estimate, factor * change.low, factor * change.high]


def _mean(values: pd.Series) -> object:
    """None where there are none: not applicable."""
    return float(values.mean()) if len(values) else None


def model_rows(group: FlowGroup) -> Rows:
    """Header and rows: what was looked into, and with what."""
    header = ["arm", "model", "family", "positions", "contents", "segments", "sequences", "split", "body", "note"]
    columns = [
        "arm",
        "name",
        "family",
        "num_positions",
        "num_contents",
        "num_segments",
        "num_sequences",
        "split",
        "body",
    ]
    models = group.tables["models"]
    return header, [[*line] for line in models[[*columns, "note"]].to_numpy(dtype=object).tolist()]
