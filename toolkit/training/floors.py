"""What needs no fine-tuning, as a floor under every score: the majority, a bag of words."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.config import RunConfig
from toolkit.data.batches import EncodedSplit, EncodedTask
from toolkit.training.evaluation import score_split
from toolkit.training.features import PROBE_FOLDS, linear_map, quiet_fits

MOST_FITTED, MOST_COMPARED = 20_000, 2000
"""Training examples that the bag of words is fitted to at most, and that its penalty is chosen on."""
STRENGTHS = (0.1, 1.0, 10.0, 100.0)
"""C of the logistic regression, 1 / alpha of the ridge, that cross-validation chooses from."""
WORD = r"(?u)\b\w+\b"
"""What counts as a word: scikit-learn's own, but words of one character too."""
FIT = {"max_iter": 300, "tol": 1e-3}

Outputs = dict[str, NDArray[np.float32]]
"""Scored split to (rows, outputs): what answers there, in the form of a head's outputs."""


@dataclass(frozen=True)
class Floors:
    """Scores of what needs no fine-tuning of the checkpoint."""

    scores: Mapping[str, Mapping[str, Mapping[str, float | None]]]
    """``majority``, ``bag_of_words`` (left out where it does not apply) to scored split to score to value; None where a
    score is undefined."""
    choice: Mapping[str, float | int | None]
    """Of the bag of words: ``strength`` (None: nothing to choose), ``num_fitted`` and ``num_compared`` examples."""
    seconds: float


def measure_floors(data: EncodedTask, config: RunConfig) -> Floors | None:
    """The floors of every labelled split but ``train``, from the training examples that the run was given.

    - ``majority``: the most frequent training label; in regression the mean of the targets.
    - ``bag_of_words``: :func:`bag_of_words`; of a token task :func:`tags_by_word`.

    A function of data and config. None under shuffled labels, of which nothing is a floor, and of masked tokens.
    """
    if config.shuffle_labels or data.masking is not None:
        return None
    started = time.perf_counter()
    choice: dict[str, float | int | None] = {}
    outputs_by_floor = {"majority": majority(data)}
    word_outputs = tags_by_word(data) if data.task.kind == "tokens" else bag_of_words(data, config.seed, choice)
    if word_outputs is not None:
        outputs_by_floor["bag_of_words"] = word_outputs
    scores: dict[str, dict[str, dict[str, float | None]]] = {}
    for floor, outputs in outputs_by_floor.items():
        for split, values in outputs.items():
            split_scores = score_split(data, split, values)
            del split_scores["loss"]  # of probabilities that only some of them have
            scores.setdefault(floor, {})[split] = {
                score: None if math.isnan(value) else value for score, value in split_scores.items()
            }
    return Floors(scores, choice, time.perf_counter() - started)


def majority(data: EncodedTask) -> Outputs:
    """The most frequent training label everywhere, or the mean of the targets."""
    label = commonest_label(data)
    if label is None:
        mean = _labels(data).mean()
        return {name: np.full((len(split), 1), mean, np.float32) for name, split in _scored(data)}
    return {name: _one_hot(np.full(split.num_rows, label), data) for name, split in _scored(data)}


def commonest_label(data: EncodedTask) -> int | None:
    """The most frequent training label, the first of several; None in regression and of masked tokens."""
    return None if data.task.kind in ("regression", "masked") else int(np.bincount(_labels(data)).argmax())


def tags_by_word(data: EncodedTask) -> Outputs:
    """The tag that each word form has most often in training, and of a word that is not there the most frequent tag.

    Of tags that are equally frequent the one that is the more frequent in all of training, then the first.
    """
    labels = _labels(data)
    counts = np.bincount(labels, minlength=data.task.num_outputs)
    counts_by_word: dict[str, Counter[int]] = defaultdict(Counter)
    for word, tag in zip(_words(data, "train"), labels.tolist(), strict=True):
        counts_by_word[word][tag] += 1
    tags = {
        word: max(counts_of_word, key=lambda tag: (counts_of_word[tag], counts[tag], -tag))
        for word, counts_of_word in counts_by_word.items()
    }
    commonest = int(counts.argmax())
    return {
        name: _one_hot(np.array([tags.get(word, commonest) for word in _words(data, name)], np.int64), data)
        for name, _ in _scored(data)
    }


def bag_of_words(data: EncodedTask, seed: int, choice: dict[str, float | int | None]) -> Outputs | None:
    """TF-IDF of single words (sublinear counts) and a logistic or ridge regression; None without words or two classes.

    Words alone and no pairs of neighbours: those know of order, and a bag does not. Of a pair both texts have a bag, of
    one vocabulary: (u, v, |u - v|, u * v), as where a model reads the two apart. The penalty, of STRENGTHS, is the one
    with the least log loss (squared error) by cross-validation within train, on at most MOST_COMPARED examples whose
    class is there PROBE_FOLDS times or more; the fit is to at most MOST_FITTED. Both are drawn with ``seed``. What was
    chosen is put into ``choice``.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    texts, labels, is_regression = data.task.splits["train"].texts, _labels(data), data.task.kind == "regression"
    order = np.random.default_rng([*b"floors", seed]).permutation(len(labels))
    fitted, compared = np.sort(order[:MOST_FITTED]), np.sort(order[:MOST_COMPARED])
    if not is_regression and len(np.unique(labels[fitted])) < 2:
        return None
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=WORD)
    try:
        vectorizer.fit([text for i in fitted for text in texts[i]])
    except ValueError:  # no text holds a word
        return None
    if not is_regression:
        compared = compared[np.bincount(labels[compared])[labels[compared]] >= PROBE_FOLDS]
    model: Any = Ridge() if is_regression else LogisticRegression(**FIT)
    bags = _bags(vectorizer, [texts[i] for i in fitted])
    with quiet_fits():
        strength = _best_strength(model, bags[np.searchsorted(fitted, compared)], labels[compared], seed)
        model.set_params(**_penalty(model, 1.0 if strength is None else strength)).fit(bags, labels[fitted])
    choice.update(strength=strength, num_fitted=len(fitted), num_compared=len(compared))
    scored_bags = {name: _bags(vectorizer, data.task.splits[name].texts) for name, _ in _scored(data)}
    if is_regression:
        return {name: model.predict(split_bags)[:, None].astype(np.float32) for name, split_bags in scored_bags.items()}
    weight, bias = linear_map(model, data.task.num_outputs)
    return {name: (split_bags @ weight.T + bias).astype(np.float32) for name, split_bags in scored_bags.items()}


def _best_strength(model: Any, bags: Any, labels: NDArray[Any], seed: int) -> float | None:
    """The strength with the least error over folds, the smallest of several; None with too few examples or classes."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold

    is_regression = isinstance(model, Ridge)
    if len(labels) < PROBE_FOLDS or (not is_regression and len(np.unique(labels)) < 2):
        return None
    folds = (KFold if is_regression else StratifiedKFold)(PROBE_FOLDS, shuffle=True, random_state=seed)
    grid = [{name: [value] for name, value in _penalty(model, strength).items()} for strength in STRENGTHS]
    scoring = "neg_mean_squared_error" if is_regression else "neg_log_loss"
    search = GridSearchCV(model, grid, scoring=scoring, cv=folds, refit=False).fit(bags, labels)
    return STRENGTHS[int(search.best_index_)]


def _penalty(model: Any, strength: float) -> dict[str, float]:
    return {"C": strength} if "C" in model.get_params() else {"alpha": 1 / strength}


def _bags(vectorizer: Any, texts: Sequence[tuple[str, ...]]) -> Any:
    """(examples, words) sparse, or of pairs (examples, 4 x words)."""
    from scipy.sparse import csr_matrix, hstack

    bags = [vectorizer.transform(column) for column in zip(*texts, strict=True)]
    if len(bags) == 1:
        return bags[0]
    first, second = bags
    return csr_matrix(hstack([first, second, abs(first - second), first.multiply(second)]))


def _scored(data: EncodedTask) -> Iterator[tuple[str, EncodedSplit]]:
    return ((name, split) for name, split in data.splits.items() if name != "train" and split.labels is not None)


def _labels(data: EncodedTask) -> NDArray[Any]:
    labels = data.splits["train"].labels
    assert labels is not None
    return labels


def _words(data: EncodedTask, name: str) -> list[str]:
    """The words of a split that are answered for, as its labels are."""
    words, kept_words = data.task.splits[name].words, data.splits[name].words
    assert words is not None
    assert kept_words is not None
    # Truncated words, and those of which the tokenizer keeps nothing, are not answered for.
    numbers_by_example = np.split(kept_words.numbers, kept_words.offsets[1:-1])
    return [
        words_of_example[number]
        for words_of_example, numbers in zip(words, numbers_by_example, strict=True)
        for number in numbers
    ]


def _one_hot(classes: NDArray[np.int64], data: EncodedTask) -> NDArray[np.float32]:
    return np.eye(data.task.num_outputs, dtype=np.float32)[classes]
