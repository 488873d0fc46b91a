"""A sentence in, the proof that the embedding layer is LayerNorm(word + position + segment) out, with its controls."""

import numpy as np
import pandas as pd

from toolkit.models.classifier import Loaded
from toolkit.probes.anatomy.forward import Array, as_array, in_float64, largest, run_model
from toolkit.probes.anatomy.parts import Parts, find_parts
from toolkit.probes.anatomy.sentence import Sentence
from toolkit.probes.anatomy.tokens import look_up
from toolkit.schema import columns_of

HALF_ULP = {"float32": 2.0**-24, "float64": 2.0**-53}
"""Relative rounding of one operation."""

NUM_ROUNDINGS = 16
"""Of one entry on the way through two sums, a mean, a variance and a product, generously counted (ours)."""


def prove_sum(loaded: Loaded, sentence: Sentence) -> pd.DataFrame:
    """The layer computed by hand in float64 against the real module's output.

    The first two lines leave nothing out: the module as it is, and with its weights in float64. Every other line is a
    control: without one part, or without LayerNorm, the two must differ. ``rounding`` is how far the module's
    precision lets it stray (ours, first order): rounding of the sum, stretched by LayerNorm's weight over the standard
    deviation.
    """
    parts = find_parts(loaded)
    vectors = look_up(loaded, sentence)
    whole = tuple(vectors)
    output = run_model(loaded, sentence).embedded
    with in_float64(loaded):
        exact = run_model(loaded, sentence).embedded
    bare = formula(parts, whole).removeprefix("LayerNorm(").removesuffix(")")
    by_hand = normalise(parts, project(parts, _add(vectors)))
    computed = [
        (formula(parts, whole), "", "float32", by_hand, output),
        (formula(parts, whole), "", "float64", by_hand, exact),
        (bare, "LayerNorm", "float32", project(parts, _add(vectors)), output),
    ]
    for part in vectors if len(vectors) > 1 else ():
        kept = {name: values for name, values in vectors.items() if name != part}
        without = normalise(parts, project(parts, _add(kept)))
        computed.insert(-1, (formula(parts, tuple(kept)), part, "float32", without, output))
    lines = []
    for text, left_out, precision, values, truth in computed:
        difference, bound = largest(values - truth), rounding_bound(parts, vectors, truth, precision)
        lines.append((text, left_out, precision, difference, bound, difference <= bound))
    return pd.DataFrame(lines, columns=columns_of("take_apart.layer_sum"))


def formula(parts: Parts, kept: tuple[str, ...]) -> str:
    """The layer in words, as ``LayerNorm(word + position + segment)``."""
    inside = " + ".join(kept)
    return f"LayerNorm(projection({inside}))" if parts.inner_projection is not None else f"LayerNorm({inside})"


def _add(vectors: dict[str, Array]) -> Array:
    total: Array = np.sum(list(vectors.values()), axis=0)
    return total


def project(parts: Parts, vectors: Array) -> Array:
    """The inner projection of (tokens, width) vectors, where the family has one."""
    if parts.inner_projection is None:
        return vectors
    bias = 0.0 if parts.inner_projection.bias is None else as_array(parts.inner_projection.bias)
    return vectors @ as_array(parts.inner_projection.weight).T + bias


def normalise(parts: Parts, vectors: Array) -> Array:
    """LayerNorm (Ba, Kiros and Hinton 2016) by hand, per row: variance over the width, eps as the module has it."""
    norm = parts.layer_norm
    centred = vectors - vectors.mean(axis=1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + norm.eps)
    bias = 0.0 if norm.bias is None else as_array(norm.bias)
    output: Array = scaled * as_array(norm.weight) + bias
    return output


def rounding_bound(parts: Parts, vectors: dict[str, Array], output: Array, precision: str) -> float:
    """The largest difference that rounding in this precision explains, over all entries."""
    sizes = _add({part: np.abs(values) for part, values in vectors.items()})
    count = NUM_ROUNDINGS
    if parts.inner_projection is not None:
        sizes = sizes @ np.abs(as_array(parts.inner_projection.weight)).T
        count += parts.inner_projection.in_features
    spread = np.sqrt(project(parts, _add(vectors)).var(axis=1) + parts.layer_norm.eps)
    stretched = sizes.max(axis=1) / spread * np.abs(as_array(parts.layer_norm.weight)).max()
    return float(count * HALF_ULP[precision] * (stretched.max() + np.abs(output).max()))
