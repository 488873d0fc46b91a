"""A model and a sentence in, everything that anatomy measures out."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from toolkit.models.classifier import Loaded
from toolkit.naming import Described
from toolkit.probes.anatomy.differences import list_differences
from toolkit.probes.anatomy.gradients import Gradients, measure_gradients
from toolkit.probes.anatomy.layer_sum import prove_sum
from toolkit.probes.anatomy.one_hot import compare_one_hot
from toolkit.probes.anatomy.parameters import list_parameters
from toolkit.probes.anatomy.permutation import Permutation, measure_permutation
from toolkit.probes.anatomy.segments import Segments, compare_segments
from toolkit.probes.anatomy.sentence import Sentence, read_sentence
from toolkit.probes.anatomy.special_tokens import SpecialTokens, compare_special_tokens
from toolkit.probes.anatomy.tokens import decompose_tokens
from toolkit.schema import with_columns


@dataclass(frozen=True, slots=True, repr=False)
class Anatomy(Described):
    """The embedding layer of one model, taken apart on one text or pair."""

    model: str
    """As the user wrote it."""
    family: str
    differences: tuple[str, ...]
    """What sets this layer apart from BERT's, one sentence each."""
    sentence: Sentence
    parameters: pd.DataFrame
    tokens: pd.DataFrame
    layer_sum: pd.DataFrame
    one_hot: pd.DataFrame
    gradients: Gradients
    special_tokens: SpecialTokens
    segments: Segments
    permutation: Permutation

    def facts(self) -> dict[str, str]:
        """The model, the text as it reads it, and what is at hand."""
        tables = ("parameters", "tokens", "layer_sum", "one_hot")
        shapes = {name: f"table of {len(getattr(self, name))} lines" for name in tables}
        return {"model": f"{self.model} ({self.family})", "text": " ".join(self.sentence.tokens)} | shapes


@with_columns
def take_apart(loaded: Loaded, text: str, pair: str | None = None, *, name: str | None = None) -> Anatomy:
    """An Anatomy: what the embedding layer of a model does with one text or pair, one table or record per question.

    ``loaded``: what :func:`toolkit.open_model` returns; it is left as it was. ``name``: what to call the model
    (default: as it was loaded). ValueError for an empty text, one without tokens, or one that is longer than the model
    reads, and for a model's name in its place.
    """
    if isinstance(loaded, str | Path):
        raise ValueError(f"expected a model; got {loaded}: pass open_model({str(loaded)!r})")
    sentence = read_sentence(loaded, text, pair)
    return Anatomy(
        model=name or loaded.source.name,
        family=loaded.family.name,
        differences=list_differences(loaded),
        sentence=sentence,
        parameters=list_parameters(loaded),
        tokens=decompose_tokens(loaded, sentence),
        layer_sum=prove_sum(loaded, sentence),
        one_hot=compare_one_hot(loaded, sentence),
        gradients=measure_gradients(loaded, sentence),
        special_tokens=compare_special_tokens(loaded, sentence),
        segments=compare_segments(loaded, sentence),
        permutation=measure_permutation(loaded, sentence),
    )
