"""A text or a pair in, how token_type_ids tell its sentences apart, and what they change, out."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from toolkit.models.classifier import Loaded
from toolkit.probes.anatomy.forward import SAME, in_float64, largest, relative_difference, run_model
from toolkit.probes.anatomy.parts import find_parts, why_absent
from toolkit.probes.anatomy.sentence import Rows, Sentence
from toolkit.schema import columns_of

STAGES = ("embedding output", "encoder output")


@dataclass(frozen=True, slots=True)
class Segments:
    """What the tokenizer gives, what the model has, and what a change of it does."""

    token_type_ids: tuple[int, ...] | None
    """Per token, as the tokenizer gives them; None where it gives none."""
    num_rows: int
    """Rows of the model's segment table; 0 where it has none."""
    changes: pd.DataFrame
    """One line per change of the segments and stage, in float64; empty where there is no choice."""
    note: str
    """Why there is no choice, or why the tokenizer's ids are not used; empty otherwise."""


def compare_segments(loaded: Loaded, sentence: Sentence) -> Segments:
    """Swap the segments (0 for 1), set all to 0 and all to 1, and compare the outputs with those of the text as it is.

    A change that leaves the ids as they are has no line.
    """
    num_rows = find_parts(loaded).num_segments
    given = sentence.token_type_ids
    types = None if given is None else tuple(int(i) for i in given)
    if sentence.segments is None or num_rows < 2:
        reason = why_absent(loaded, "token_type_embeddings") or "the segment table has one row: every token has it"
        return Segments(types, num_rows, pd.DataFrame(columns=columns_of("take_apart.segments.changes")), reason)
    note = "" if given is not None else "the tokenizer gives no token_type_ids: every token is of segment 0"
    lines = []
    with in_float64(loaded):
        own = run_model(loaded, sentence)
        for change, segments in _changes(sentence.segments).items():
            other = run_model(loaded, replace(sentence, segments=segments))
            for stage, before, after in zip(
                STAGES, (own.embedded, own.encoded), (other.embedded, other.encoded), strict=True
            ):
                difference = relative_difference(after, before)
                lines.append((change, stage, difference, largest(after - before), difference < SAME))
    return Segments(types, num_rows, pd.DataFrame(lines, columns=columns_of("take_apart.segments.changes")), note)


def _changes(segments: Rows) -> dict[str, Rows]:
    changes = {
        "swapped": np.where(segments == 0, 1, np.where(segments == 1, 0, segments)),
        "all 0": np.zeros_like(segments),
        "all 1": np.ones_like(segments),
    }
    kept: dict[str, Rows] = {}
    for name, changed in changes.items():
        is_new = not any(np.array_equal(changed, other) for other in (segments, *kept.values()))
        if is_new:
            kept[name] = changed
    return kept
