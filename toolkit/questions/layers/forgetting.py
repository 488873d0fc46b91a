"""What fine-tuning forgot: the masked-LM loss of the backbone, before and after, under the head of its pretraining."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from toolkit.comparison.conditions import Group, Labels, ReportedRun, arrange
from toolkit.comparison.intervals import is_constant, two_way_interval
from toolkit.config import MLM
from toolkit.data.batches import EVALUATION_TOKENS, EncodedTask, evaluation_batches, gather_tokens
from toolkit.models.checkpoints import Source, find_checkpoint
from toolkit.models.classifier import Loaded, in_eval_mode
from toolkit.models.tuned import check_model, load_tuned, load_untuned, name_of_start
from toolkit.naming import at_least
from toolkit.progress import shows_progress
from toolkit.questions.layers.states import LEAST_TEXTS, Texts, choose_texts, start_of
from toolkit.questions.models import TEXTS, batch_on, encode_texts
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run, runs_of

MASKED_SHARE = 0.15
"""Of a text's tokens (Devlin et al. 2019, section 3.1)."""
MAX_LOGITS = 2**25
"""Of one batch, or one text: 128 MiB."""
LOSS, ACCURACY = "masked-LM loss", "masked-LM accuracy"
TUNED, UNTUNED = "tuned words", "words before"
"""Word table by which the head scores the vocabulary: families whose head shares it with the input have both."""
HEAD_WAS_TRAINED = "the run trained the masked-LM head too: its masked-LM loss is among its scores"
RANDOM_START = "the run started from random weights, which knew nothing"
NEW_TOKENS = "tokens were added, for which the masked-LM head has no rows"
ENCODED_APART = "each text of a pair was encoded apart (--pair-encoding separate)"
NO_MASK = "the tokenizer has no mask token"
NO_TOKENS = "no text has a token that can be masked"
NO_SPREAD = "equal for all texts: no spread to make an interval from"


NOT_MASKED = -1


@dataclass(frozen=True, slots=True)
class Masked:
    """Texts with tokens masked, the same ones for every model."""

    data: EncodedTask
    """With the mask's row in place of the masked tokens."""
    targets: NDArray[np.int64]
    """Per token of the split, the row that was masked there; NOT_MASKED elsewhere."""
    texts: NDArray[np.int64]
    """(texts,) those that have a masked token."""

    def targets_of(self, text: int) -> NDArray[np.int64]:
        """(tokens,) those of one text."""
        indices, _ = gather_tokens(self.data.splits[TEXTS], np.array([text]))
        return self.targets[indices]


def mask_tokens(data: EncodedTask, mask_row: int, special_rows: Sequence[int], seed: int) -> Masked:
    """Mask MASKED_SHARE of each text's tokens, at least one, drawn by the seed and its own tokens; special ones stay.

    Every masked token becomes [MASK]: pretraining's 80/10/10 is for training. What is masked of a text does not depend
    on the others.
    """
    split = data.splits[TEXTS]
    tokens = split.tokens.copy()
    targets = np.full(len(tokens), NOT_MASKED, np.int64)
    texts = []
    for text in range(len(split)):
        indices, _ = gather_tokens(split, np.array([text]))
        ordinary = indices[~np.isin(split.tokens[indices], special_rows)]
        if not len(ordinary):
            continue
        rng = np.random.default_rng([*b"masked tokens", seed, *split.tokens[indices].tolist()])
        masked = rng.choice(ordinary, max(1, round(MASKED_SHARE * len(ordinary))), replace=False)
        targets[masked] = split.tokens[masked]
        tokens[masked] = mask_row
        texts.append(text)
    return Masked(replace(data, splits={TEXTS: replace(split, tokens=tokens)}), targets, np.array(texts, np.int64))


def masked_scores(model: Any, masked: Masked, num_words: int) -> dict[str, NDArray[np.float64]]:
    """LOSS (nats) and ACCURACY to (texts,) the mean over each text's masked tokens, in float64; NaN without any."""
    split = masked.data.splits[TEXTS]
    scores = {measure: np.full(len(split), np.nan) for measure in (LOSS, ACCURACY)}
    with in_eval_mode(model), torch.inference_mode():
        num_tokens = min(EVALUATION_TOKENS, max(1, MAX_LOGITS // num_words))
        for indices in evaluation_batches(split.lengths, num_tokens):
            logits = model(**batch_on(model, split, indices, masked.data)).logits
            for row, text in enumerate(indices):
                targets = masked.targets_of(text)
                positions = np.flatnonzero(targets != NOT_MASKED)
                if not len(positions):
                    continue
                guesses = logits[row, positions].double()
                answers = torch.from_numpy(targets[positions]).to(logits.device)
                scores[LOSS][text] = float(nn.functional.cross_entropy(guesses, answers))
                scores[ACCURACY][text] = float((guesses.argmax(dim=-1) == answers).double().mean())
    return scores


def score_by_frequency(masked: Masked) -> dict[str, float]:
    """The scores of who knows how often each word is masked in these texts, and nothing else; as masked_scores."""
    targets_by_text = [masked.targets_of(text) for text in masked.texts]
    answers_by_text = [targets[targets != NOT_MASKED] for targets in targets_by_text]
    counts = np.bincount(np.concatenate(answers_by_text))
    with np.errstate(divide="ignore"):
        losses = -np.log(counts / counts.sum())
    most_frequent = int(counts.argmax())
    return {
        LOSS: float(np.mean([losses[answers].mean() for answers in answers_by_text])),
        ACCURACY: float(np.mean([(answers == most_frequent).mean() for answers in answers_by_text])),
    }


@shows_progress("masked-LM loss")
@with_columns
def measure_forgetting(
    runs: Sequence[Run | str | Path],
    texts: Texts | None = None,
    *,
    max_texts: int = 300,
    seed: int = 0,
    labels: Labels | None = None,
) -> pd.DataFrame:
    """What fine-tuning forgot: the masked-LM loss and accuracy of the backbone, before and after.

    The head is the checkpoint's own, which no regime here trains. Where it shares the word table with the input (its
    decoder is tied), ``tuned words`` has the tuned one in both places, as whoever loads the tuned backbone with that
    head would have it, and ``words before`` keeps the decoder as it was.

    Parameters
    ----------
    runs, texts, max_texts
        As of :func:`toolkit.measure_layer_drift`, which reads the same texts.
    seed
        Seed of every random draw.
    labels
        Name of a run's directory to the name of its condition.

    Returns
    -------
    pandas.DataFrame
        One line per run, texts, decoder and measure. ``value`` is the mean over texts of what the run changed, after
        minus before (nats per masked token; of accuracy a fraction of 1), with its 95 % interval over texts by
        Student's t: it says nothing of other seeds. NaN, with the reason, where a run started at random or read the
        texts of a pair apart, and where its checkpoint has no masked-LM head or no mask token.

    Raises
    ------
    ValueError
        As :func:`toolkit.measure_layer_drift`.

    References
    ----------
    Devlin et al. 2019 (arXiv 1810.04805), section 3.1; the means over texts and the two decoders are ours.
    """
    at_least("max_texts", max_texts, LEAST_TEXTS)
    opened = runs_of(runs)
    for run in opened:
        check_model(run)
    records = [record for group in arrange(opened, labels) for record in _records_of(group, texts, max_texts, seed)]
    return pd.DataFrame(records, columns=columns_of("measure_forgetting"))


Scores = dict[str, dict[str, NDArray[np.float64]]]
"""``before``, or a decoder after training, to the scores of each text."""


def _records_of(group: Group, texts: Texts | None, max_texts: int, seed: int) -> Iterator[dict[str, Any]]:
    """The records of one group: one per run, texts, decoder and measure, or the reason why a run has none."""
    chosen_texts: Texts | None = None
    heads: dict[Source, MaskedLM] = {}
    scores_before: dict[object, dict[str, NDArray[np.float64]]] = {}
    for condition in group.conditions:
        for reported in condition.runs:
            run_key: dict[str, Any] = {
                "group": group.title,
                "condition": condition.label,
                "is_shuffled": condition.is_shuffled,
                "run": reported.name,
                "seed": reported.config.seed,
                "decoder": UNTUNED,
                "measure": LOSS,
                "unit": "nats",
            }
            if reason := _why_not(reported, heads):
                yield run_key | {"texts": "", "reason": reason}
                continue
            if chosen_texts is None:
                chosen_texts = choose_texts(group.runs[0].run, texts, max_texts, seed)
            head = _head_of(reported.run, heads)
            untuned, tuned = load_untuned(reported.run), load_tuned(reported.run)
            tokenizer = untuned.tokenizer
            for name, domain_texts in chosen_texts.items():
                data = encode_texts(untuned, domain_texts, reported.config.max_length)
                masked = mask_tokens(data, tokenizer.mask_token_id, tokenizer.all_special_ids, seed)
                key = run_key | {"texts": name, "num_texts": len(masked.texts)}
                if not len(masked.texts):
                    yield key | {"reason": NO_TOKENS}
                    continue
                # Runs that start from the same weights have the same scores before training.
                if (start := (start_of(reported), name)) not in scores_before:
                    scores_before[start] = head.scores(untuned, masked)[UNTUNED]
                cells = _score_cells(masked, scores_before[start], head.scores(tuned, masked))
                yield from (key | score_cells for score_cells in cells)


def _score_cells(
    masked: Masked, scores_before: Mapping[str, NDArray[np.float64]], scores_after: Scores
) -> Iterator[dict[str, Any]]:
    """The cells of each decoder and measure: the change of the score, beside what frequencies alone would give."""
    frequency_scores = score_by_frequency(masked)
    for decoder, scores in scores_after.items():
        for measure, unit in ((LOSS, "nats"), (ACCURACY, "1")):
            change_cells = _change_cells(scores_before[measure][masked.texts], scores[measure][masked.texts])
            cells = {"decoder": decoder, "measure": measure, "unit": unit, **change_cells}
            yield cells | {"by_frequency": frequency_scores[measure], "reason": ""}


def _why_not(reported: ReportedRun, heads: dict[Source, "MaskedLM"]) -> str:
    """Why the masked-LM loss of a run cannot be measured; empty where it can."""
    if reported.config.init == "random":
        return RANDOM_START
    if reported.config.add_tokens is not None:
        return NEW_TOKENS
    if reported.config.pair_encoding != "joint":
        return ENCODED_APART
    if reported.config.objective == MLM:
        return HEAD_WAS_TRAINED
    if find_checkpoint(name_of_start(reported.run)).read_tokenizer().mask_token_id is None:
        return NO_MASK
    try:
        _head_of(reported.run, heads)
    except ValueError as error:
        return str(error)
    return ""


def _change_cells(before: NDArray[np.float64], after: NDArray[np.float64]) -> dict[str, Any]:
    """Means over texts and their difference, with its interval; without a spread there is none."""
    change = after - before
    size = float(np.abs([before, after]).max())  # of the numbers, of which rounding is a share
    means = {"value_before": before.mean(), "value_after": after.mean(), "value": change.mean()}
    if len(change) > 1 and is_constant(change, size or 1.0):
        return means | {"low": np.nan, "high": np.nan, "note": NO_SPREAD}
    interval = two_way_interval(change[None], size=size)
    return means | {"low": interval.low, "high": interval.high, "note": interval.note}


class MaskedLM:
    """A checkpoint's masked-LM head, put on one backbone after the other."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.decoder = model.get_output_embeddings()
        self.untuned_weight: nn.Parameter | None = getattr(self.decoder, "weight", None)
        """The decoder's weight as the checkpoint has it."""
        self.is_tied = self.untuned_weight is not None and self.untuned_weight is model.get_input_embeddings().weight
        """As it was loaded: a config may say so of a file that holds two tables."""

    def scores(self, loaded: Loaded, masked: Masked) -> Scores:
        """The scores of a backbone under the decoder as it was and, where that is tied, under its own words."""
        backbone: Any = loaded.model.backbone
        setattr(self.model, self.model.base_model_prefix, backbone)
        num_words = self.model.config.vocab_size
        if self.untuned_weight is not None:
            self.decoder.weight = self.untuned_weight
        scores_by_decoder = {UNTUNED: masked_scores(self.model, masked, num_words)}
        if self.is_tied:
            self.decoder.weight = backbone.get_input_embeddings().weight
            scores_by_decoder[TUNED] = masked_scores(self.model, masked, num_words)
        return scores_by_decoder


def _head_of(run: Run, heads: dict[Source, MaskedLM]) -> MaskedLM:
    """The head of a run's checkpoint, read once; ValueError where it has none."""
    source = find_checkpoint(name_of_start(run))
    if source not in heads:
        heads[source] = MaskedLM(source.read_masked_lm(source.read_config()))
    return heads[source]
