"""A model and texts in, one vector per text and layer out."""

import numpy as np
from numpy.typing import NDArray

from toolkit.data.batches import EncodedTask
from toolkit.models.classifier import Loaded
from toolkit.probes.states import stream_states
from toolkit.probes.texts import TEXTS

Vectors = list[NDArray[np.float64]]
"""Per layer (texts, hidden): the encoder's input (0), then the output of layers 1 to L."""


def layer_vectors(loaded: Loaded, data: EncodedTask) -> Vectors:
    """The mean over each text's real tokens at every layer, in float64.

    The states of one batch at a time are held, and reduced before the next: memory grows with texts x layers x hidden.
    """
    split = data.splits[TEXTS]
    vectors: Vectors = []
    for states in stream_states(loaded, data, split):
        means = [mean.double().cpu().numpy() for mean in states.mean_of_tokens()]
        if not vectors:
            vectors = [np.empty((len(split), mean.shape[1])) for mean in means]
        for layer, mean in zip(vectors, means, strict=True):
            layer[states.indices] = mean
    return vectors
