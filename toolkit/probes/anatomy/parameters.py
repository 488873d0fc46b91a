"""A loaded model in, the table of its parameters out: the embedding parameters one by one, the rest by component."""

import pandas as pd

from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.models.classifier import Loaded
from toolkit.models.regimes import BACKBONE, list_components
from toolkit.probes.anatomy.parts import why_absent
from toolkit.schema import columns_of

Line = tuple[object, ...]


def list_parameters(loaded: Loaded) -> pd.DataFrame:
    """One line per embedding parameter, then one per other component, then ``all``.

    The head is left out: the backbone is counted as published. ``number``: place in ``named_parameters()``, from 1,
    and for a component or ``all`` how many named parameters it has (``name`` is empty then). ``share`` is of all
    values of the backbone. ``requires_grad`` is None where a component holds both. An embedding parameter that the
    model does not have keeps its line, with NA and its ``reason``.
    """
    named = dict(loaded.model.backbone.named_parameters())
    total = sum(p.numel() for p in named.values())
    numbers = {name: i for i, name in enumerate(named, start=1)}
    lines: list[Line] = []
    for parameter in EMBEDDING_PARAMETERS:
        name = loaded.family.embedding_parameters.get(parameter, "")
        if name not in named:
            absent = why_absent(loaded, parameter) or "not applicable: the model has none"
            lines.append((parameter, "", pd.NA, pd.NA, pd.NA, pd.NA, float("nan"), None, absent))
            continue
        p = named[name]
        rows = len(p) if p.ndim == 2 else pd.NA
        values = (name, numbers[name], rows, p.shape[-1], p.numel(), p.numel() / total, p.requires_grad, "")
        lines.append((parameter, *values))
    lines += _component_lines(loaded, total)
    frame = pd.DataFrame(lines, columns=columns_of("take_apart.parameters"))
    return frame.astype(dict.fromkeys(("number", "num_rows", "num_columns", "num_values"), "Int64"))


def _component_lines(loaded: Loaded, total: int) -> list[Line]:
    groups: dict[str, list[str]] = {}
    for leaf, names in list_components(loaded.model, loaded.family).items():
        if leaf not in EMBEDDING_PARAMETERS and leaf != "head":
            groups.setdefault("layers" if leaf.startswith("layers.") else leaf, []).extend(names)
    named = {f"{BACKBONE}{name}": p for name, p in loaded.model.backbone.named_parameters()}
    groups["all"] = list(named)
    lines: list[Line] = []
    for group, members in groups.items():
        size = sum(named[name].numel() for name in members)
        states = {named[name].requires_grad for name in members}
        state = states.pop() if len(states) == 1 else None
        note = "" if state is not None else "some frozen"
        lines.append((group, "", len(members), pd.NA, pd.NA, size, size / total, state, note))
    return lines
