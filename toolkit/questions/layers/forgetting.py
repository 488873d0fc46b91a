"""What fine-tuning forgot: the masked-LM loss of the backbone, before and after, under the head of its pretraining."""

from collections.abc import Iterator, Sequence
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
from toolkit.questions.layers.states import FEWEST_TEXTS, Texts, choose_texts, start_of
from toolkit.questions.models import TEXTS, batch_on, encode_texts
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run, runs_of

MASKED_SHARE = 0.15
"""Of a text's tokens (Devlin et al. 2019, section 3.1)."""
MOST_LOGITS = 2**25
"""Of one batch, or one text: 128 MiB."""
LOSS, ACCURACY = "masked-LM loss", "masked-LM accuracy"
TUNED, UNTUNED = "tuned words", "words before"
"""Word table by which the head scores the vocabulary: families whose head shares it with the input have both."""
TRAINED = "the run trained the masked-LM head too: its masked-LM loss is among its scores"
RANDOM_START = "the run started from random weights, which knew nothing"
NEW_TOKENS = "tokens were added, for which the masked-LM head has no rows"
APART = "each text of a pair was encoded apart (--pair-encoding separate)"
NO_MASK = "the tokenizer has no mask token"
NO_TOKENS = "no text has a token that can be masked"
STILL = "equal for all texts: no spread to make an interval from"


@dataclass(frozen=True, slots=True)
class Masked:
    """Texts with tokens masked, the same ones for every model."""

    data: EncodedTask
    """With the mask's row in place of the masked tokens."""
    targets: NDArray[np.int64]
    """Per token of the split, the row that was masked there; -1 elsewhere."""
    texts: NDArray[np.int64]
    """(texts,) those that have a masked token."""


def mask_tokens(data: EncodedTask, mask_row: int, special_rows: Sequence[int], seed: int) -> Masked:
    """Mask MASKED_SHARE of each text's tokens, at least one, drawn by the seed and its own tokens; special ones stay.

    Every masked token becomes [MASK]: pretraining's 80/10/10 is for training. What is masked of a text does not depend
    on the others.
    """
    split = data.splits[TEXTS]
    tokens, targets, texts = split.tokens.copy(), np.full(len(split.tokens), -1, np.int64), []
    for text in range(len(split)):
        address, _ = gather_tokens(split, np.array([text]))
        ordinary = address[~np.isin(split.tokens[address], special_rows)]
        if not len(ordinary):
            continue
        rng = np.random.default_rng([*b"masked tokens", seed, *split.tokens[address].tolist()])
        chosen = rng.choice(ordinary, max(1, round(MASKED_SHARE * len(ordinary))), replace=False)
        targets[chosen], tokens[chosen] = split.tokens[chosen], mask_row
        texts.append(text)
    return Masked(replace(data, splits={TEXTS: replace(split, tokens=tokens)}), targets, np.array(texts, np.int64))


def masked_scores(model: Any, masked: Masked, num_words: int) -> dict[str, NDArray[np.float64]]:
    """LOSS (nats) and ACCURACY to (texts,) the mean over each text's masked tokens, in float64; NaN without any."""
    split = masked.data.splits[TEXTS]
    scores = {measure: np.full(len(split), np.nan) for measure in (LOSS, ACCURACY)}
    with in_eval_mode(model), torch.inference_mode():
        for indices in evaluation_batches(split.lengths, min(EVALUATION_TOKENS, max(1, MOST_LOGITS // num_words))):
            logits = model(**batch_on(model, split, indices, masked.data)).logits
            for row, text in enumerate(indices):
                targets = masked.targets[gather_tokens(split, np.array([text]))[0]]
                places = np.flatnonzero(targets >= 0)
                if not len(places):
                    continue
                guesses, answers = logits[row, places].double(), torch.from_numpy(targets[places]).to(logits.device)
                scores[LOSS][text] = float(nn.functional.cross_entropy(guesses, answers))
                scores[ACCURACY][text] = float((guesses.argmax(dim=-1) == answers).double().mean())
    return scores


def by_frequency(masked: Masked) -> dict[str, float]:
    """The scores of who knows how often each word is masked in these texts, and nothing else; as masked_scores."""
    split = masked.data.splits[TEXTS]
    targets_by_text = [masked.targets[gather_tokens(split, np.array([text]))[0]] for text in masked.texts]
    shares = np.bincount(np.concatenate([targets[targets >= 0] for targets in targets_by_text])) / sum(
        int((targets >= 0).sum()) for targets in targets_by_text
    )
    with np.errstate(divide="ignore"):
        losses = -np.log(shares)
    most_frequent = int(shares.argmax())
    return {
        LOSS: float(np.mean([losses[targets[targets >= 0]].mean() for targets in targets_by_text])),
        ACCURACY: float(np.mean([(targets[targets >= 0] == most_frequent).mean() for targets in targets_by_text])),
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
    at_least("max_texts", max_texts, FEWEST_TEXTS)
    opened = runs_of(runs)
    for run in opened:
        check_model(run)
    records = [record for group in arrange(opened, labels) for record in _records_of(group, texts, max_texts, seed)]
    return pd.DataFrame(records, columns=columns_of("measure_forgetting"))


Scores = dict[str, dict[str, NDArray[np.float64]]]
"""``before``, or a decoder after training, to the scores of each text."""


def _records_of(group: Group, texts: Texts | None, max_texts: int, seed: int) -> Iterator[dict[str, Any]]:
    """The records of one group: one per run, texts, decoder and measure, or the reason why a run has none."""
    chosen: Texts | None = None
    heads: dict[Source, MaskedLM] = {}
    scores_before: dict[object, dict[str, NDArray[np.float64]]] = {}
    for condition in group.conditions:
        for reported in condition.runs:
            lead: dict[str, Any] = {
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
                yield lead | {"texts": "", "reason": reason}
                continue
            if chosen is None:
                chosen = choose_texts(group.runs[0].run, texts, max_texts, seed)
            head, untuned, tuned = _head_of(reported.run, heads), load_untuned(reported.run), load_tuned(reported.run)
            special = untuned.tokenizer.all_special_ids
            for name, domain_texts in chosen.items():
                masked = mask_tokens(
                    encode_texts(untuned, domain_texts, reported.config.max_length),
                    untuned.tokenizer.mask_token_id,
                    special,
                    seed,
                )
                record = lead | {"texts": name, "num_texts": len(masked.texts)}
                if not len(masked.texts):
                    yield record | {"reason": NO_TOKENS}
                    continue
                # Runs that start from the same weights have the same scores before training.
                if (key := (start_of(reported), name)) not in scores_before:
                    scores_before[key] = head.scores(untuned, masked)[UNTUNED]
                frequency_scores = by_frequency(masked)
                for decoder, scores_after in head.scores(tuned, masked).items():
                    for measure, unit in ((LOSS, "nats"), (ACCURACY, "1")):
                        pair = [scores[measure][masked.texts] for scores in (scores_before[key], scores_after)]
                        measure_cells = {"decoder": decoder, "measure": measure, "unit": unit}
                        yield (
                            record
                            | measure_cells
                            | _change_cells(*pair)
                            | {"by_frequency": frequency_scores[measure], "reason": ""}
                        )


def _why_not(reported: ReportedRun, heads: dict[Source, "MaskedLM"]) -> str:
    """Why the masked-LM loss of a run cannot be measured; empty where it can."""
    if reported.config.init == "random":
        return RANDOM_START
    if reported.config.add_tokens is not None:
        return NEW_TOKENS
    if reported.config.pair_encoding != "joint":
        return APART
    if reported.config.objective == MLM:
        return TRAINED
    if find_checkpoint(name_of_start(reported.run)).read_tokenizer().mask_token_id is None:
        return NO_MASK
    try:
        _head_of(reported.run, heads)
    except ValueError as error:
        return str(error)
    return ""


def _change_cells(before: NDArray[np.float64], after: NDArray[np.float64]) -> dict[str, Any]:
    """Means over texts and their difference, with its interval; without a spread there is none."""
    change, size = after - before, float(np.abs([before, after]).max())
    means = {"value_before": before.mean(), "value_after": after.mean(), "value": change.mean()}
    if len(change) > 1 and is_constant(change, size or 1.0):
        return means | {"low": np.nan, "high": np.nan, "note": STILL}
    interval = two_way_interval(change[None], size=size)
    return means | {"low": interval.low, "high": interval.high, "note": interval.note}


class MaskedLM:
    """A checkpoint's masked-LM head, put on one backbone after the other."""

    def __init__(self, model: Any) -> None:
        self.model, decoder = model, model.get_output_embeddings()
        self.decoder = decoder
        self.own: nn.Parameter | None = getattr(decoder, "weight", None)
        """The decoder's weight as the checkpoint has it."""
        self.is_tied = self.own is not None and self.own is model.get_input_embeddings().weight
        """As it was loaded: a config may say so of a file that holds two tables."""

    def scores(self, loaded: Loaded, masked: Masked) -> Scores:
        """The scores of a backbone under the decoder as it was and, where that is tied, under its own words."""
        backbone: Any = loaded.model.backbone
        setattr(self.model, self.model.base_model_prefix, backbone)
        num_words, scores_by_decoder = self.model.config.vocab_size, {}
        if self.own is not None:
            self.decoder.weight = self.own
        scores_by_decoder[UNTUNED] = masked_scores(self.model, masked, num_words)
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
