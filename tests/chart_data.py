"""The numbers that a chart draws."""

from typing import Any


def values_of(chart: Any) -> list[dict[str, Any]]:
    """Every line of the data of a chart's layers and panels, each data set once."""
    spec = chart.to_dict()
    found = [*spec.get("datasets", {}).values()]
    stack, inline = [spec], []
    while stack:
        own = stack.pop(0)
        if isinstance(own, dict):
            if isinstance(own.get("data"), dict) and "values" in own["data"] and own["data"]["values"] not in inline:
                inline.append(own["data"]["values"])
            stack[:0] = own.values()
        elif isinstance(own, list):
            stack[:0] = own
    return [line for values in (*found, *inline) for line in values]
