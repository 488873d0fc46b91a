"""The numbers of a position flow: conditions with their seeds, means with intervals, the published expectation judged.

One definition for every number on the page: the values are a table of seeds x units, and its mean has the interval of
:func:`toolkit.comparison.intervals.two_way_interval`, over new seeds and new units; of one model over new
units only. A difference is taken between the same units first: it is paired.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from toolkit.analysis.measures import Array
from toolkit.comparison.intervals import Interval, is_constant, seeds_interval, t_quantile, two_way_interval
from toolkit.questions.flow.ledger import LEVEL
from toolkit.questions.flow.measure import PRETRAINED, RANDOM
from toolkit.reporting.cells import spoken

VALUES = {
    "omega_squared": "unit_values",
    "eta_squared": "unit_values",
    "value": "unit_values",
    "bits": "bit_values",
    "selective_bits": "selective_values",
    "beyond_word_bits": "beyond_word_values",
}
"""Column to the one with its values per block or text."""
SHARES = ("predictions", "score")
"""Measures whose units are right or wrong, for which equal values have an exact bound."""
NO_UNITS = "no interval: no values per block or text"
EQUAL = "the same in every block or text and seed: no spread to make an interval from"


def estimate(lines: pd.DataFrame, column: str, against: pd.DataFrame | None = None) -> Interval:
    """Mean of ``column`` over a condition's models, or of its difference from ``against``, with its 95 % interval.

    ``lines``: one line per model, for one layer, factor or measure; ``against``: as many lines, or one for all.
    Without values per unit the interval is over seeds only; the spread of the control draws is added to that of
    ``selective_bits``. NaN with a note where there is none.
    """
    table = units_of(lines, column)
    other_units = None if against is None else units_of(against, column)
    value = float(lines[column].mean()) - (0.0 if against is None else float(against[column].mean()))
    if table is None or (against is not None and (other_units is None or other_units.shape[1] != table.shape[1])):
        interval = seeds_interval(lines[column]) if against is None and len(lines) > 1 else None
        return interval or Interval(value, np.nan, np.nan, np.nan, np.nan, LEVEL, NO_UNITS)
    table = table if other_units is None else table - other_units
    is_share = "measure" in lines and lines["measure"].iloc[0] in SHARES
    if is_constant(table) and not is_share:
        return Interval(float(table[0, 0]), np.nan, np.nan, np.nan, np.nan, LEVEL, EQUAL)
    interval = two_way_interval(table, LEVEL)
    return _with_draws(interval, lines["control_draws"]) if column == "selective_bits" else interval


def units_of(lines: pd.DataFrame, column: str) -> Array | None:
    """(models, units) values of a column; None where a model has none."""
    values_column = VALUES.get(column)
    units_of_models = [] if values_column not in lines else list(lines[values_column])
    lengths = {len(units) if isinstance(units, tuple) else 0 for units in units_of_models}
    return np.array(units_of_models, np.float64) if len(lengths) == 1 and lengths != {0} else None


def interval_cells(interval: Interval, lines: pd.DataFrame, column: str) -> dict[str, object]:
    """The cells of an interval in a table, with the numbers of models and units.

    ``lines``: those that the interval is of, one per model; ``column``: what it is the mean of, which has the units.
    """
    units = units_of(lines, column)
    return {
        "mean": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "df": interval.df,
        "num_models": len(lines),
        "num_units": None if units is None else units.shape[1],
        "note": interval.note,
    }


def _with_draws(interval: Interval, draws: pd.Series) -> Interval:
    """The interval with the variance of a mean over control draws added, df by Satterthwaite's formula; ours."""
    bits_of_draws = np.array(list(draws), np.float64).mean(axis=0)  # over models
    num_draws = len(bits_of_draws)
    if num_draws < 2:
        return interval
    draw_variance = float(bits_of_draws.var(ddof=1)) / num_draws
    variance = interval.variance + draw_variance
    df = variance**2 / (interval.variance**2 / interval.df + draw_variance**2 / (num_draws - 1))
    half_width = t_quantile((1 + LEVEL) / 2, df) * variance**0.5
    low, high = interval.estimate - half_width, interval.estimate + half_width
    return replace(interval, low=low, high=high, df=df, variance=variance)


Tables = Mapping[str, pd.DataFrame]
"""``ledger``, ``decoding``, ``counterfactuals`` and ``models``, as :func:`toolkit.measure_flow` returns them."""


@dataclass(frozen=True)
class FlowGroup:
    """All models that were looked at with the same texts."""

    title: str
    tables: Tables
    labels: Mapping[str, str]
    """Condition to what it is called; one whose bodies are all another's is not shown beside it, and named with it."""

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions that are shown, the random weights last."""
        return tuple(self.labels)

    def of(self, table: str, condition: str) -> pd.DataFrame:
        """The lines of one condition."""
        records = self.tables[table]
        return records[records["condition"] == condition]

    def lines(self, table: str, condition: str, column: str, **where: object) -> pd.DataFrame:
        """The lines of one condition that have a value in a column; ``where``: columns and what they must be."""
        lines = self.of(table, condition)
        for name, value in where.items():
            lines = lines[lines[name] == value]
        return lines.dropna(subset=[column])

    def over_seeds(self, table: str, condition: str, column: str, **where: object) -> pd.DataFrame:
        """Mean over a condition's models with its interval: index layer, columns mean, low, high; no undefined ones."""
        cells_by_layer = {}
        for layer, records in self.lines(table, condition, column, **where).groupby("layer"):
            interval = estimate(records, column)
            cells_by_layer[int(layer)] = [interval.estimate, interval.low, interval.high]
        return pd.DataFrame.from_dict(cells_by_layer, orient="index", columns=["mean", "low", "high"])

    def change(self, condition: str, factor: str, layer: int, *, since: int) -> Interval:
        """How a factor's share changes from one layer of a condition to another, on the same blocks."""
        column = "eta_squared" if factor == "residual" else "omega_squared"
        last = self.lines("ledger", condition, column, factor=factor, layer=layer)
        first = self.lines("ledger", condition, column, factor=factor, layer=since)
        return estimate(last, column, first)

    def drift(self, condition: str) -> dict[int, Interval]:
        """By layer, position's share in a condition minus that in the pretrained model, on the same blocks."""
        column = "omega_squared"
        shares = dict(list(self.lines("ledger", condition, column, factor="position").groupby("layer")))
        shares_before = dict(list(self.lines("ledger", PRETRAINED, column, factor="position").groupby("layer")))
        common_layers = sorted(shares.keys() & shares_before.keys())
        return {int(layer): estimate(shares[layer], column, shares_before[layer]) for layer in common_layers}

    def num_models(self, condition: str) -> int:
        return int(self.of("models", condition)["run"].nunique())

    @property
    def layers(self) -> list[int]:
        return sorted(int(layer) for layer in self.tables["ledger"]["layer"].unique())


def groups_of(tables: Tables) -> list[FlowGroup]:
    """One group per task, in the order of the tables; regimes by the names that papers give them."""
    tables = {name: spoken(table) for name, table in tables.items()}
    titles = dict.fromkeys(tables["models"]["group"])
    return [
        _group(str(title), {name: table[table["group"] == title] for name, table in tables.items()}) for title in titles
    ]


def _group(title: str, tables: Tables) -> FlowGroup:
    """The group of one task; conditions whose models compute the same are one, under both names."""
    models = tables["models"]
    conditions = list(dict.fromkeys(models["condition"]))
    conditions.sort(key=lambda condition: (condition == RANDOM, condition != PRETRAINED))
    bodies = {condition: set(models.loc[models["condition"] == condition, "body"]) for condition in conditions}
    labels: dict[str, str] = {}
    for condition in conditions:
        twin = next((earlier for earlier in labels if bodies[earlier] == bodies[condition]), None)
        if twin is None:
            labels[condition] = condition
        else:
            labels[twin] += f" = {condition}"
    return FlowGroup(title, tables, labels)


def intervals_of(tables: Tables) -> pd.DataFrame:
    """Every mean over seeds with its interval, and every difference of position from the pretrained model.

    Columns: group, condition, ``against`` (pretrained for a difference), table, measure, ``of`` (factor or
    counterfactual), layer, mean, low, high, df, num_models, num_units, note.
    """
    rows: list[dict[str, object]] = []
    for group in groups_of(tables):
        for condition in dict.fromkeys(group.tables["models"]["condition"]):
            key = {"group": group.title, "condition": condition, "against": ""}
            rows += [key | record for record in _mean_records(group, str(condition))]
            if condition != PRETRAINED and PRETRAINED in group.conditions:
                shares = group.lines("ledger", str(condition), "omega_squared", factor="position")
                for layer, interval in group.drift(str(condition)).items():
                    difference_key = key | {
                        "against": PRETRAINED,
                        "table": "ledger",
                        "measure": "omega_squared",
                        "of": "position",
                        "layer": layer,
                    }
                    layer_shares = shares[shares["layer"] == layer]
                    rows.append(difference_key | interval_cells(interval, layer_shares, "omega_squared"))
    return pd.DataFrame(rows)


def _mean_records(group: FlowGroup, condition: str) -> list[dict[str, object]]:
    """One record per mean of a condition: each column that has values per unit, and each counterfactual."""
    mean_records: list[dict[str, object]] = []
    for table, key_column in {"ledger": "factor", "counterfactuals": "counterfactual", "decoding": ""}.items():
        lines = group.of(table, condition)
        key_columns = [name for name in ("layer", key_column, "measure") if name in lines]
        # Of the ledger's units ω² is made; those of its residual line are of η².
        columns = [name for name in VALUES if name in lines and not (table == "ledger" and name == "eta_squared")]
        for column in columns:
            defined = lines.dropna(subset=[column])
            for key_values, records in defined.groupby(key_columns, dropna=False, sort=False):
                key = dict(zip(key_columns, key_values, strict=True))
                measure = key.get("measure", column)
                subject = {"table": table, "measure": measure, "of": key.get(key_column, ""), "layer": key["layer"]}
                mean_records.append(subject | interval_cells(estimate(records, column), records, column))
    return mean_records


def stage_cell(layer: int) -> str:
    """A stage in a table: the sum of embeddings before LayerNorm, what layer 1 reads, or a layer."""
    return {-1: "sum", 0: "input"}.get(layer, str(layer))


ROUNDING = 1e-9
"""A share of the variance below this is what rounding leaves of 0."""
SUPPORTED, IN_PART, HALF, NOT_SUPPORTED = "supported", "in part", "half of it", "not supported"
"""Verdicts on the published expectation; RULES of the page says which is given when."""
NO_SHARE = "not applicable: position has no share beyond rounding"


def is_rounding(group: FlowGroup, condition: str) -> bool:
    """Whether position has no share at any stage, as in a model without position rows."""
    position, _ = shares_of(group, condition)
    means = position["mean"]
    return len(means) > 0 and bool((means.abs() < ROUNDING).all())


def shares_of(group: FlowGroup, condition: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """ω² of position and of content by layer."""
    position = group.over_seeds("ledger", condition, "omega_squared", factor="position")
    content = group.over_seeds("ledger", condition, "omega_squared", factor="content")
    return position, content.reindex(position.index)
