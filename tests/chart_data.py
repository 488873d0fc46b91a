"""The numbers that a chart draws."""

from typing import Any

from tests.reporting.chart_data import data_sets_of


def values_of(chart: Any) -> list[dict[str, Any]]:
    """Every line of the data of a chart's layers and panels, each data set once."""
    spec, inline = chart.to_dict(), list[list[dict[str, Any]]]()
    for values in data_sets_of(spec):
        inline += [] if values in inline else [values]
    return [line for values in (*spec.get("datasets", {}).values(), *inline) for line in values]
