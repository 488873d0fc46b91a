"""A chart in, what it draws out: its data as tables."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from toolkit.reporting.charts import Chart, spec_of

Spec = dict[str, Any]


def alone(spec: Spec) -> list[dict[str, list[Any]]]:
    """Every distinct data set of a specification, wherever it hangs: column to values."""
    found: list[dict[str, list[Any]]] = []
    for values in data_sets_of(spec):
        table: dict[str, list[Any]] = {str(name): [line[name] for line in values] for name in values[0]}
        found += [] if table in found else [table]
    return found


def data_sets_of(spec: Any) -> Iterator[list[Spec]]:
    """The lines of each data set that is written into a specification, wherever it hangs."""
    if isinstance(spec, dict):
        if isinstance(spec.get("data"), dict) and spec["data"].get("values"):
            yield spec["data"]["values"]
        for value in spec.values():
            yield from data_sets_of(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from data_sets_of(value)


def lines_of(spec: Spec, *columns: str) -> pd.DataFrame:
    """The one data set that has these columns, of a specification or of one of its panels."""
    found = [data for data in alone(spec) if set(columns) <= set(data)]
    assert len(found) == 1, [list(data) for data in alone(spec)]
    return pd.DataFrame(found[0])


def panels_of(chart: Chart) -> list[Spec]:
    """The panels of a chart, or the chart itself."""
    spec: Spec = chart.to_dict()  # checked: valid Vega-Lite
    panels: list[Spec] = spec.get("concat", [spec])
    return panels


def titles_of(chart: Chart) -> list[Any]:
    return [panel.get("title") for panel in panels_of(chart)]


def names_of(chart: Chart) -> tuple[list[str], list[str]]:
    """What the legend shows, and the names that have colours."""
    found: list[Spec] = []

    def walk(spec: Any) -> None:
        for key, value in spec.items() if isinstance(spec, dict) else enumerate(spec) if isinstance(spec, list) else ():
            if key == "color" and isinstance(value, dict) and "scale" in value:
                found.append(value)
            walk(value)

    walk({key: value for key, value in spec_of(chart).items() if key != "config"})
    first = found[0]
    assert all(each["scale"] == first["scale"] for each in found)
    return first["legend"].get("values", first["scale"]["domain"]), first["scale"]["domain"]
