"""A sentence in, per token its rows, their norms and what each adds to the sum out."""

import numpy as np
import pandas as pd

from toolkit.models.classifier import Loaded
from toolkit.probes.anatomy.forward import Array, as_array
from toolkit.probes.anatomy.parts import find_parts
from toolkit.probes.anatomy.sentence import Rows, Sentence
from toolkit.schema import columns_of

PARTS = ("word", "position", "segment")


def look_up(loaded: Loaded, sentence: Sentence) -> dict[str, Array]:
    """Part to its (tokens, width) float64 rows; a part that the model does not have is left out."""
    parts = find_parts(loaded)
    found: dict[str, Array] = {}
    for part, table, rows in zip(
        PARTS,
        (parts.word, parts.position, parts.segment),
        (sentence.words, sentence.positions, sentence.segments),
        strict=True,
    ):
        if table is not None and rows is not None:
            found[part] = as_array(table.weight.detach().cpu()[rows.tolist()])
    return found


def decompose_tokens(loaded: Loaded, sentence: Sentence) -> pd.DataFrame:
    """One line per token and part, and one for their sum; a part that does not exist has no line.

    ``share`` is ⟨part, e⟩ / ‖e‖² with e the sum of the parts: the length of the part along the sum. Shares of a token
    add up to 1 (ours; the projection of a sum is the sum of projections); one below 0 points against the sum. They
    are those of the tables as stored: a constant moved from one table to another changes them and nothing else. NaN
    where e is 0.
    """
    rows: dict[str, Rows | None] = {
        "word": sentence.words,
        "position": sentence.positions,
        "segment": sentence.segments,
    }
    vectors = look_up(loaded, sentence)
    whole = np.sum(list(vectors.values()), axis=0)
    squared = np.sum(whole**2, axis=1)
    lines: list[tuple[object, ...]] = []
    for i, token in enumerate(sentence.tokens):
        for part, values in vectors.items():
            share = float(values[i] @ whole[i] / squared[i]) if squared[i] else float("nan")
            picked = rows[part]
            row = pd.NA if picked is None else int(picked[i])
            lines.append((i, token, part, row, float(np.linalg.norm(values[i])), share))
        lines.append((i, token, "sum", pd.NA, float(np.sqrt(squared[i])), 1.0 if squared[i] else float("nan")))
    return pd.DataFrame(lines, columns=columns_of("take_apart.tokens")).astype({"row": "Int64"})
