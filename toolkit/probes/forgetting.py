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

from toolkit.comparison.intervals import two_way_interval
from toolkit.data.batches import EVALUATION_TOKENS, EncodedTask, evaluation_batches, gather_tokens
from toolkit.models.checkpoints import find_checkpoint
from toolkit.models.classifier import Loaded, in_eval_mode
from toolkit.models.tuned import check_model, load_tuned, load_untuned, name_of_start
from toolkit.naming import at_least
from toolkit.probes.embedding_layer import TEXTS, batch_on, encode_texts, task_of
from toolkit.progress import shows_progress
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run, runs_of

MASKED_SHARE = 0.15
"""Of a text's tokens (Devlin et al. 2019, section 3.1)."""
MOST_LOGITS = 2**25
"""Of one batch: 128 MiB."""
LOSS, ACCURACY = "masked-LM loss", "masked-LM accuracy"
TUNED, UNTUNED = "tuned words", "words before"
"""Word table by which the head scores the vocabulary: families whose head shares it with the input have both."""
RANDOM_START = "the run started from random weights, which knew nothing"
NO_TOKENS = "no text has a token that can be masked"


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
    """Mask MASKED_SHARE of each text's tokens, at least one, drawn by seed and text; special tokens stay.

    Every masked token becomes [MASK]: pretraining's 80/10/10 is for training. What was masked does not depend on the
    other texts.
    """
    split = data.splits[TEXTS]
    tokens, targets, kept = split.tokens.copy(), np.full(len(split.tokens), -1, np.int64), []
    for text in range(len(split)):
        address, _ = gather_tokens(split, np.array([text]))
        ordinary = address[~np.isin(split.tokens[address], special_rows)]
        if not len(ordinary):
            continue
        rng = np.random.default_rng([*b"masked tokens", seed, text])
        chosen = rng.choice(ordinary, max(1, round(MASKED_SHARE * len(ordinary))), replace=False)
        targets[chosen], tokens[chosen] = split.tokens[chosen], mask_row
        kept.append(text)
    masked = replace(data, splits={TEXTS: replace(split, tokens=tokens)})
    return Masked(masked, targets, np.array(kept, np.int64))


def masked_scores(model: Any, masked: Masked, num_words: int) -> dict[str, NDArray[np.float64]]:
    """LOSS (nats) and ACCURACY to (texts,) the mean over each text's masked tokens, in float64; NaN without any."""
    split = masked.data.splits[TEXTS]
    found = {measure: np.full(len(split), np.nan) for measure in (LOSS, ACCURACY)}
    with in_eval_mode(model), torch.inference_mode():
        for indices in evaluation_batches(split.lengths, min(EVALUATION_TOKENS, max(1, MOST_LOGITS // num_words))):
            logits = model(**batch_on(model, split, indices, masked.data)).logits
            for row, text in enumerate(indices):
                targets = masked.targets[gather_tokens(split, np.array([text]))[0]]
                places = np.flatnonzero(targets >= 0)
                if not len(places):
                    continue
                own, rows = logits[row, places].double(), torch.from_numpy(targets[places]).to(logits.device)
                found[LOSS][text] = float(nn.functional.cross_entropy(own, rows))
                found[ACCURACY][text] = float((own.argmax(dim=-1) == rows).double().mean())
    return found


def by_frequency(masked: Masked) -> dict[str, float]:
    """What one gets who knows how often each word is masked in these very texts, and nothing else; as masked_scores."""
    split = masked.data.splits[TEXTS]
    rows = [masked.targets[gather_tokens(split, np.array([text]))[0]] for text in masked.texts]
    shares = np.bincount(np.concatenate([own[own >= 0] for own in rows])) / sum(int((own >= 0).sum()) for own in rows)
    with np.errstate(divide="ignore"):
        losses = -np.log(shares)
    most = int(shares.argmax())
    return {
        LOSS: float(np.mean([losses[own[own >= 0]].mean() for own in rows])),
        ACCURACY: float(np.mean([(own[own >= 0] == most).mean() for own in rows])),
    }


Texts = Mapping[str, Sequence[tuple[str, ...]]]
"""Name of a domain to its texts, singles or pairs as the task has them."""


@shows_progress("masked-LM loss")
@with_columns
def measure_forgetting(
    runs: Sequence[Run | str | Path], texts: Texts | None = None, *, max_texts: int = 300, seed: int = 0
) -> pd.DataFrame:
    """What fine-tuning forgot: the masked-LM loss and accuracy of the backbone, before and after.

    The head is the checkpoint's own, which no regime here trains. Where it shares the word table with the input (its
    decoder is tied), ``tuned words`` has the tuned one in both places, as whoever loads the tuned backbone with that
    head would have it, and ``words before`` keeps the decoder as it was.

    Parameters
    ----------
    runs
        Finished runs with ``--save-model``, or the paths of their directories.
    texts
        Name of a domain to its texts; None takes the scored splits of each run's task.
    max_texts
        Number of texts of each domain, at most; drawn at random, the same for all models.
    seed
        Seed of every random draw.

    Returns
    -------
    pandas.DataFrame
        One line per run, texts, decoder and measure. ``value`` is the mean over texts of what the run changed, after
        minus before (nats per masked token; of accuracy a fraction of 1), with its 95 % interval over texts by
        Student's t: it says nothing of other seeds. Refused: NaN, with the reason, where a run started at random.

    Raises
    ------
    ValueError
        A run kept no model, its checkpoint has no masked-LM head, or its tokenizer no mask token.

    References
    ----------
    Devlin et al. 2019 (arXiv 1810.04805), section 3.1; the means over texts and the two decoders are ours.
    """
    at_least("max_texts", max_texts, 2)
    opened = runs_of(runs)
    for run in opened:
        check_model(run)
    lines = [line for run in opened for line in _lines_of(run, texts, max_texts, seed)]
    return pd.DataFrame(lines, columns=columns_of("measure_forgetting"))


def has_masked_lm(run: Run) -> bool:
    """Whether a run's checkpoint has the head that :func:`measure_forgetting` needs."""
    source = find_checkpoint(name_of_start(run))
    try:
        source.read_masked_lm(source.read_config())
    except ValueError:
        return False
    return True


def _lines_of(run: Run, texts: Texts | None, max_texts: int, seed: int) -> Iterator[dict[str, Any]]:
    source = find_checkpoint(name_of_start(run))
    model: Any = source.read_masked_lm(source.read_config())
    untuned, tuned = load_untuned(run), load_tuned(run)
    tokenizer, config = untuned.tokenizer, run.config
    if tokenizer.mask_token_id is None:
        raise ValueError(f"the tokenizer of {config.model} has no mask token: it cannot say what was masked")
    lead = {"run": run.path.resolve().name, "model": Path(config.model).name, "task": run.manifest["task"]["name"]}
    lead |= {"regime": config.freeze, "seed": config.seed}
    if texts is None:
        texts = {name: split.texts for name, split in task_of(run).splits.items() if name != "train"}
    for name, own in texts.items():
        drawn = np.random.default_rng([*b"masked texts", seed]).permutation(len(own))[:max_texts]
        data = encode_texts(untuned, [own[i] for i in np.sort(drawn)], config.max_length)
        masked = mask_tokens(data, tokenizer.mask_token_id, tokenizer.all_special_ids, seed)
        num_masked = int((masked.targets >= 0).sum())
        place = lead | {"texts": name, "num_texts": len(masked.texts), "num_masked": num_masked}
        reason = RANDOM_START if config.init == "random" else "" if num_masked else NO_TOKENS
        if reason:
            yield place | {"decoder": UNTUNED, "measure": LOSS, "unit": "nats", "reason": reason}
            continue
        floors, found = by_frequency(masked), _scores_by_decoder(model, untuned, tuned, masked)
        before = found.pop("before")
        for decoder, after in found.items():
            for measure, unit in ((LOSS, "nats"), (ACCURACY, "1")):
                pair = [scores[measure][masked.texts] for scores in (before, after)]
                interval = two_way_interval((pair[1] - pair[0])[None], size=float(np.abs(pair).max()))
                numbers = {"value_before": pair[0].mean(), "value_after": pair[1].mean(), "value": interval.estimate}
                ends = {"low": interval.low, "high": interval.high, "by_frequency": floors[measure], "unit": unit}
                yield place | {"decoder": decoder, "measure": measure} | numbers | ends | {"reason": ""}


def _scores_by_decoder(
    model: Any, untuned: Loaded, tuned: Loaded, masked: Masked
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Scores before, and after under each decoder; a head with a decoder of its own has but the one before."""
    num_words = model.config.vocab_size
    found = {}
    _put(model, untuned.model.backbone)
    model.tie_weights()
    own: nn.Parameter = model.get_output_embeddings().weight
    backbone: Any = untuned.model.backbone
    is_tied = own is backbone.get_input_embeddings().weight
    found["before"] = masked_scores(model, masked, num_words)
    _put(model, tuned.model.backbone)
    found[UNTUNED] = masked_scores(model, masked, num_words)
    if is_tied:
        model.tie_weights()
        found[TUNED] = masked_scores(model, masked, num_words)
    return found


def _put(model: Any, backbone: nn.Module) -> None:
    """The head reads another backbone; its decoder stays as it is."""
    setattr(model, model.base_model_prefix, backbone)
