"""A loaded model in, what sets its embedding layer apart from BERT's out, one sentence each."""

from typing import Any

from toolkit.families import TABLES
from toolkit.models.classifier import Loaded
from toolkit.probes.anatomy.parts import find_parts, why_absent


def list_differences(loaded: Loaded) -> tuple[str, ...]:
    """Read off the modules and the config, not off the family's name; none for a BERT."""
    parts = find_parts(loaded)
    config: Any = loaded.model.backbone.config
    found: list[str] = []
    for parameter in TABLES[1:]:
        if reason := why_absent(loaded, parameter):
            found.append(f"There are no {parameter.replace('_', ' ')}, {reason.removeprefix('not applicable: ')}.")
    if parts.position is not None and loaded.position_offset:
        last = loaded.position_offset - 1
        rows = f"rows 0 to {last} belong" if last else "row 0 belongs"
        found.append(
            f"The first token has position row {last + 1}: {rows} to padding, so that the table reads as many tokens "
            "less."
        )
    if parts.num_segments == 1:
        found.append("The segment table has one row, which every token gets: it cannot tell two sentences apart.")
    width, hidden = parts.word.embedding_dim, config.hidden_size
    for projection, where in ((parts.inner_projection, "before"), (parts.outer_projection, "after")):
        if projection is not None:
            found.append(f"Rows have {width} numbers; a projection {where} LayerNorm makes {hidden} of them.")
    if parts.layer_norm.bias is None:
        found.append("LayerNorm has no bias here.")
    if parts.relative is not None and parts.position is not None:
        found.append("Besides the position table, relative distances enter in the attention of every layer.")
    if parts.convolution is not None:
        found.append("A convolution over neighbouring tokens follows the first layer.")
    groups = getattr(config, "num_hidden_groups", config.num_hidden_layers)
    if groups < config.num_hidden_layers:
        found.append(f"{config.num_hidden_layers} layers share {groups} set(s) of weights.")
    return tuple(found)
