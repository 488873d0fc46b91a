"""A body, items and a placement of embedding parameters in, what every item scores out: one pass for each."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.rows.measures import Array
from toolkit.data.batches import EncodedTask
from toolkit.probes.transplants.body import Body
from toolkit.probes.transplants.components import Components, Placement
from toolkit.probes.transplants.game import GaugeCheck
from toolkit.probes.transplants.probe import Probe

CONTROL_FACTOR = 1.1
"""What the words are multiplied by in the control of the gauge check: no offset, so the outputs must show it."""

Scores = dict[str, Array]


class Scorer(Protocol):
    """Places parameters, runs the body once and scores every item."""

    num_passes: int

    def start(self, components: Components) -> dict[int, Scores]:
        """What must be known before any other coalition is scored; the coalitions that this has scored."""
        ...

    def values(self, placement: Placement) -> Scores:
        """Name of a value to (items,)."""
        ...


class ForwardScorer:
    """In the tuned body under the tuned head."""

    def __init__(self, body: Body, data: EncodedTask, split: str) -> None:
        self.body, self.split = body, data.splits[split]
        self.num_passes = 0

    def start(self, components: Components) -> dict[int, Scores]:
        return {}

    def outputs(self, placement: Placement) -> Array:
        """(items, outputs) logits."""
        self.body.place(placement)
        self.num_passes += 1
        return self.body.outputs(self.split)

    def values(self, placement: Placement) -> Scores:
        assert self.split.labels is not None
        return score_items(self.outputs(placement), self.split.labels)


class ReverseScorer:
    """In the body from before, under a logistic regression that is fitted to the placement's own training features."""

    def __init__(self, body: Body, data: EncodedTask, split: str, seed: int) -> None:
        self.body, self.train, self.split = body, data.splits["train"], data.splits[split]
        assert self.train.labels is not None
        self.probe = Probe(self.train.labels, data.task.num_outputs, seed)
        self.num_passes = 0

    def start(self, components: Components) -> dict[int, Scores]:
        """Choose the probe's strength on nobody's and on everybody's features, which are kept for their scores."""
        coalitions = dict.fromkeys((0, components.moving))
        found = {coalition: self._features(components.place(coalition)) for coalition in coalitions}
        self.probe.choose_strength([train for train, _ in found.values()])
        return {coalition: self._score(*features) for coalition, features in found.items()}

    def values(self, placement: Placement) -> Scores:
        return self._score(*self._features(placement))

    def _features(self, placement: Placement) -> tuple[Array, Array]:
        """(items, hidden) pooled vectors of the training and of the scored items."""
        self.body.place(placement)
        self.num_passes += 1
        return self.body.features(self.train), self.body.features(self.split)

    def _score(self, train: Array, scored: Array) -> Scores:
        assert self.split.labels is not None
        return score_items(self.probe.outputs(train, scored), self.split.labels)


def score_items(outputs: Array, labels: NDArray[np.int64]) -> Scores:
    """(items, classes) logits and (items,) classes to the (items,) log-likelihood of the class (nats) and accuracy."""
    from scipy.special import log_softmax

    likelihoods = log_softmax(outputs, axis=1)[np.arange(len(labels)), labels]
    return {"log-likelihood": likelihoods, "accuracy": (outputs.argmax(axis=1) == labels).astype(np.float64)}


def check_gauge(scorer: ForwardScorer, components: Components, after: Mapping[str, Array]) -> GaugeCheck:
    """The tuned model in the fixed gauge against its raw parameters; the parameters are raw afterwards."""
    everyone = components.place(2 ** len(components.players) - 1)
    raw = {name: (rows, after[name] if rows is None else after[name][rows]) for name, (rows, _) in everyone.items()}
    rows, words = everyone["word_embeddings"]
    fixed = scorer.outputs(everyone)
    control = scorer.outputs({**everyone, "word_embeddings": (rows, CONTROL_FACTOR * words)})
    truth = scorer.outputs(raw)
    return GaugeCheck(float(np.abs(fixed - truth).max()), float(np.abs(control - truth).max()))
