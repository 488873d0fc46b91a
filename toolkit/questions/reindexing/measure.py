"""Must stored vectors be made again after tuning: what a search in the old index still finds, and what a map mends."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from toolkit.analysis.measures import Array, summarise_null
from toolkit.analysis.nearest import Ids, overlaps, search_nearest
from toolkit.data.batches import EncodedTask, evaluation_batches
from toolkit.data.files import read_file
from toolkit.data.tasks import check_texts
from toolkit.models.checkpoints import find_checkpoint
from toolkit.models.classifier import Classifier, Loaded, check_first_token, in_eval_mode
from toolkit.models.pipelines import list_modules, open_pipeline
from toolkit.naming import at_least, distinct, lookup, reading, shorten
from toolkit.progress import counted, say, shows_progress
from toolkit.questions.models import TEXTS, batch_on, encode_texts, open_model
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.backbones import is_run

KEPT, AS_IS, LINEAR = "neighbours kept", "as it is", "linear map"
"""Share of the stored neighbours that are still such; recall of the old index as it is, and mapped."""
KEEP, MAP, REINDEX, UNSURE = "keep the index", "map the stored vectors", "re-index", "cannot tell with so few queries"
POOLINGS = {"mean": "the mean of the tokens", "cls": "the first token", "last": "the last token"}
MAX_TOKENS, NO_LIMIT = 512, 10**6
"""Of a text that an encoder alone is given; and where a folder sets no limit."""
NUM_FOLDS = 5
TEXTS_PER_NUMBER = 2
"""Texts that a map is fitted on, at least, for each number of a stored vector. At two, least squares errs on new texts
about twice as much as the best linear map does (excess p / (n - p - 1) of the noise for n Gaussian rows of p numbers);
with fewer, a poor recall would tell of the number of texts, not of the models."""
STRENGTHS = tuple(10.0**k for k in range(-9, 2))
"""Of the ridge, in mean variances of a stored vector's numbers, times the number of texts."""
HELD_OUT_SHARE, MAX_HELD_OUT = 0.2, 1000
"""Of the texts: how many are queries where none are given, and at most."""
ROUNDING, LEAST_SETTLED, MAX_TRIED = 1e-5, 0.98, 1000
"""Of vectors of length 1, by what numbers of one may differ (batches of other lengths differ by rounding); share of the
nearest texts that must not hang on it; texts that this is tried for."""
OTHER_WIDTH = "not applicable: vectors of {} numbers before and {} after have no cosine"
ALL_SAME = "all weights, and every vector of these texts, are the same bit for bit"
ALL_EQUAL = "equal for all queries: exact bound"
MANY_QUERIES, NUM_DRAWS = 100, 2000
"""From how many on a bootstrap need not be held against a binomial bound; of the bootstrap."""


def neighbours_kept(before: Array, after: Array, k: int, num_null: int, seed: int) -> tuple[Array, Array]:
    """(n,) share of each text's k nearest texts by BEFORE, its row left out, that are so by AFTER; and its null.

    The null, (num_null,), is the mean share where AFTER's rows are dealt to the texts at random: k / (n - 1) on
    average.
    """
    nearest_before, nearest_after = (search_nearest(rows, k).indices for rows in (before, after))
    means = np.empty(num_null)
    rng = np.random.default_rng([*b"kept", seed])
    for draw in range(num_null):
        order = rng.permutation(len(before))
        dealt = np.empty_like(nearest_after)
        dealt[order] = order[nearest_after]
        means[draw] = overlaps(nearest_before, dealt).mean()
    return overlaps(nearest_before, nearest_after), means


def recall(truth: Ids, index: Array, queries: Array, num_null: int, seed: int) -> tuple[Array, Array]:
    """(m,) share of each query's true (m, k) rows among the k that it finds in ``index`` by cosine; and its null.

    The null, (num_null,), is the mean share where the rows of the index are dealt to the texts at random: k / n on
    average, and wide where all queries find the same rows.
    """
    found_rows = search(index, queries, truth.shape[1])
    rng = np.random.default_rng([*b"recall", seed])
    null = [overlaps(truth, rng.permutation(len(index))[found_rows]).mean() for _ in range(num_null)]
    return overlaps(truth, found_rows), np.array(null)


def search(index: Array, queries: Array, k: int) -> Ids:
    """(m, k) rows of the (n, hidden) index that are nearest to each of the (m, hidden) queries, exactly, by cosine."""
    rows = np.concatenate([index, queries])
    query_numbers, index_numbers = np.arange(len(index), len(rows)), np.arange(len(index))
    return search_nearest(rows, k, queries=query_numbers, candidates=index_numbers).indices


def fit_linear(before: Array, after: Array) -> Callable[[Array], Array]:
    """The affine map of (n, p) rows before to (n, q) after: ridge, its strength by leave-one-out squared error."""
    from sklearn.linear_model import RidgeCV

    unit_of_strength = len(before) * float(before.var(axis=0).mean())
    model = RidgeCV(alphas=[strength * unit_of_strength for strength in STRENGTHS]).fit(before, after)
    return lambda rows: np.asarray(model.predict(rows))


def map_by_folds(before: Array, after: Array, seed: int) -> Array:
    """(n, q) every row before, mapped by :func:`fit_linear` of the texts of the other folds only.

    The rows come out of NUM_FOLDS maps, which differ a little where one map would not: a careful estimate.
    """
    folds = np.random.default_rng([*b"folds", seed]).permutation(len(before)) % NUM_FOLDS
    mapped = np.empty_like(after)
    for fold in range(NUM_FOLDS):
        map_rows = fit_linear(before[folds != fold], after[folds != fold])
        mapped[folds == fold] = map_rows(before[folds == fold])
    return mapped


def recall_interval(values: Array, seed: int = 0) -> tuple[float, float, str]:
    """95 % interval over queries of the mean v of (m,) shares, and a note where all are equal.

    The percentile bootstrap's (Efron 1979), with each end moved out to an exact bound where that is farther out.
    Under MANY_QUERIES that is the binomial's (Clopper & Pearson 1934) of v·m in m, as if each query found all or
    nothing, than which no share of that mean varies more: few queries seldom have the bad one among them that the
    bootstrap would have to draw. From MANY_QUERIES on: were more than s = 1 - .05^(1/m) of all queries unlike these, m
    without one would have less than 5 % chance, so that the mean is v(1 - s) to v(1 - s) + s (ours). A lower share of
    any query never raises an end.
    """
    from scipy.special import betaincinv

    num_queries, value = len(values), float(values.mean())
    rng = np.random.default_rng(seed)
    # Draws at a time, of a million numbers at most.
    blocks = np.array_split(np.arange(NUM_DRAWS), -(-NUM_DRAWS * num_queries // 1_000_000))
    draws = (values[rng.integers(0, num_queries, (len(block), num_queries))] for block in blocks)
    means = np.concatenate([drawn_values.mean(axis=1) for drawn_values in draws])
    low, high = np.quantile(means, [0.025, 0.975]).tolist()
    if num_queries < MANY_QUERIES:
        num_right = value * num_queries
        least = float(betaincinv(num_right, num_queries - num_right + 1, 0.025)) if num_right > 0 else 0.0
        most = float(betaincinv(num_right + 1, num_queries - num_right, 0.975)) if num_right < num_queries else 1.0
    else:
        share_unlike = 1 - 0.05 ** (1 / num_queries)
        least, most = value * (1 - share_unlike), value * (1 - share_unlike) + share_unlike
    return min(low, least), max(high, most), ALL_EQUAL if np.ptp(values) == 0 else ""


Rows = NDArray[np.floating[Any]]


def compare_vectors(
    before: Rows,
    after: Rows,
    queries: Rows,
    *,
    k: int = 10,
    num_null: int = 200,
    seed: int = 0,
    has_one_model: bool = False,
) -> pd.DataFrame:
    """The table ``recall`` of :func:`measure_reindexing`, without the models.

    ``before`` (n, p) and ``after`` (n, q): the index by both models; ``queries`` (m, q): by AFTER. Any length of rows.
    ``has_one_model``: both have the same weights. Equal vectors of some texts alone bound what another query finds: it
    may be of a word that changed.
    ValueError where a model gives so many texts nearly the same vector that rounding decides which are nearest.
    """
    before, after, queries = map(_unit_rows, ("BEFORE", "AFTER", "AFTER"), (before, after, queries))
    for name, rows in (("BEFORE", before), ("AFTER", after)):
        usable_queries = queries if rows.shape[1] == queries.shape[1] else rows[:0]
        if (share := share_settled(rows, usable_queries, k, seed)) < LEAST_SETTLED:
            raise ValueError(
                f"{name} gives many texts nearly the same vector: of the {k} nearest of a text {share:.0%} stay where "
                f"numbers differ by up to {ROUNDING:g}, as rounding has it; pass fewer texts that say the same"
            )
    num_texts, width = before.shape
    has_cosine = width == after.shape[1]
    say("nearest neighbours")
    shares_kept, null = neighbours_kept(before, after, k, num_null, seed)
    records: list[dict[str, Any]] = [
        {"measure": KEPT, "value": shares_kept.mean(), "chance": k / (num_texts - 1), **_null(null)}
    ]
    truth = search(after, queries, k)
    indices: dict[str, tuple[Callable[[], Array], str]] = {
        AS_IS: (lambda: before, "" if has_cosine else OTHER_WIDTH.format(width, after.shape[1])),
        LINEAR: (lambda: map_by_folds(before, after, seed), _why_no_map(num_texts, width)),
    }
    for name, (make_index, reason) in counted(indices.items(), "recall"):
        record: dict[str, Any] = {"measure": name, "chance": k / num_texts}
        if not reason:
            values, null = recall(truth, make_index(), queries, num_null, seed)
            # Equal vectors bound nothing without equal weights: the next query may be of a word that changed.
            is_sure = name == AS_IS and has_one_model and np.array_equal(before, after)
            low, high, note = (1.0, 1.0, ALL_SAME) if is_sure else recall_interval(values, seed)
            record |= {"value": values.mean(), "low": low, "high": high, "note": note, **_null(null)}
        records.append(record | {"num_queries": len(queries), "reason": reason})
    table = pd.DataFrame(records).assign(num_neighbours=k, num_texts=num_texts).fillna({"reason": "", "note": ""})
    table = table.reindex(columns=columns_of("measure_reindexing.recall"))
    return table.astype({"num_queries": "Int64"})


def _why_no_map(num_texts: int, width: int) -> str:
    """Why there is no linear map of vectors of so many numbers; empty where there are texts enough to fit one."""
    num_fitted = num_texts - -(-num_texts // NUM_FOLDS)  # all but the largest fold
    least = TEXTS_PER_NUMBER * width
    if num_fitted >= least:
        return ""
    return f"too few texts: a map of {width} numbers is fitted on {least} texts or more, there are {num_fitted}"


def share_settled(index: Array, queries: Array, k: int, seed: int) -> float:
    """Share of the k nearest of a text in an index (n, hidden) that stay when its numbers move by ROUNDING / 2 at most.

    The less of two: of its own rows, and of (m, hidden) queries; of MAX_TRIED of each, drawn with the seed.
    """
    rng = np.random.default_rng([*b"settled", seed])
    num_texts = len(index)
    nudged = index + rng.uniform(-ROUNDING / 2, ROUNDING / 2, index.shape)
    variants = [np.concatenate([variant, queries]) for variant in (index, nudged)]
    shares = [1.0]
    for start, size in ((0, num_texts), (num_texts, len(queries))):
        chosen = start + np.sort(rng.permutation(size)[:MAX_TRIED])
        if size:
            found_rows = (
                search_nearest(variant, k, queries=chosen, candidates=np.arange(num_texts)).indices
                for variant in variants
            )
            shares.append(float(overlaps(*found_rows).mean()))
    return min(shares)


def _null(means: Array) -> dict[str, float]:
    """The cells of a null from its draws."""
    return dict(zip(("null", "null_sd", "null_low", "null_high"), summarise_null(means.tolist()), strict=True))


def _unit_rows(name: str, rows: Rows) -> Array:
    """Rows at length 1, in float64; ValueError where one is 0 or not finite and so has no cosine."""
    rows = np.asarray(rows, np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if num_without_cosine := int((~(np.isfinite(lengths) & (lengths > 0))).sum()):
        raise ValueError(
            f"{name} gives {num_without_cosine} of {len(rows)} texts a vector of 0 or NaN, with no cosine: leave them "
            "out"
        )
    return np.asarray(rows / lengths)


def advise(table: pd.DataFrame, keep_at: float, map_at: float) -> tuple[str, str]:
    """The advice by the lines AS_IS and LINEAR, and a reason where their numbers alone do not give it."""
    records = table.set_index("measure").loc[[AS_IS, LINEAR]].to_dict("records")
    for record, threshold, advice in zip(records, (keep_at, map_at), (KEEP, MAP), strict=True):
        if record["low"] >= threshold:
            return advice, ""
        if record["high"] >= threshold:
            return UNSURE, f"the interval of '{AS_IS if advice == KEEP else LINEAR}' holds the threshold {threshold:g}"
    return REINDEX, "; ".join(record["reason"] for record in records if record["reason"])


Texts = Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Reading:
    """Texts as one model reads them."""

    keys: Sequence[bytes]
    """What the model is given of each text: equal where it cannot tell two apart."""
    vectors: Callable[[Ids], NDArray[np.floating[Any]]]
    """(chosen,) texts to their (chosen, width) vectors."""


def open_reader(name: str, pooling: str | None) -> tuple[Callable[[Texts], Reading], str, nn.Module]:
    """What reads texts by a checkpoint or a run's tuned model, how it makes a vector, in words, and the model.

    A sentence-transformers folder is read as that library reads it, all of its modules, unless a pooling is asked for.
    """
    if pooling is None and not is_run(name) and name.strip():
        source = find_checkpoint(name).pinned()
        if modules := list_modules(source):
            with reading(name, "is not as sentence-transformers writes it", ValueError):
                pipeline = open_pipeline(source, modules)
            if pipeline.model is not None:
                return partial(read_by_library, name, pipeline.model), pipeline.said, pipeline.model
            loaded = open_encoder(pipeline.encoder, pipeline.pooling)
            length = min(filter(None, (pipeline.max_length, loaded.max_length, NO_LIMIT)))
            return partial(read_by_encoder, loaded, length), pipeline.said, loaded.model
    loaded = open_encoder(name, pooling or "mean")
    length = min(loaded.max_length or MAX_TOKENS, MAX_TOKENS)
    return partial(read_by_encoder, loaded, length), f"{loaded.model.pooling}, of {length} tokens at most", loaded.model


def has_one_state(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models have the same parameters and buffers, bit for bit."""
    tensors, other_tensors = one.state_dict(), other.state_dict()
    return tensors.keys() == other_tensors.keys() and all(
        torch.equal(tensor, other_tensors[name]) for name, tensor in tensors.items()
    )


def open_encoder(name: str, pooling: str) -> Loaded:
    """A checkpoint's encoder or a run's tuned model, which pools as asked, whatever the run did."""
    loaded = open_model(name)
    check_first_token(loaded.family, pooling)
    return replace(loaded, model=Classifier(loaded.model.backbone, pooling, 1, torch.Generator()))


def read_by_encoder(loaded: Loaded, max_length: int, texts: Texts) -> Reading:
    """Texts as an encoder reads them that we pool."""
    data = encode_texts(loaded, texts, max_length)
    split = data.splits[TEXTS]
    starts = zip(split.offsets, split.offsets[1:], strict=False)
    return Reading([split.tokens[start:stop].tobytes() for start, stop in starts], partial(embed, loaded, data))


def read_by_library(name: str, model: Any, texts: Texts) -> Reading:
    """Texts as sentence-transformers' ``encode()`` reads them; ValueError for pairs and where it cannot."""
    if any(len(text) > 1 for text in texts):
        raise ValueError(f"{name} is of sentence-transformers, which makes a vector of one text: pass one text column")

    def vectors(chosen: Ids) -> NDArray[np.floating[Any]]:
        say(f"vectors by {shorten(name)}")
        return np.asarray(model.encode([texts[text][0] for text in chosen], show_progress_bar=False))

    tokenize = getattr(model, "preprocess", model.tokenize)  # which it was named before
    with reading(name, "encodes no plain text", remedy="pass a model that does"):  # a Router, without a task
        inputs = [tokenize([text]) for (text,) in texts]
    keys = ({key: getattr(value, "tolist", lambda: "")() for key, value in features.items()} for features in inputs)
    return Reading([repr(key).encode() for key in keys], vectors)


def embed(loaded: Loaded, data: EncodedTask, chosen: Ids) -> NDArray[np.float32]:
    """(len(chosen), hidden) pooled vectors of some texts, in batches of like length."""
    model, split = loaded.model, data.splits[TEXTS]
    vectors: list[NDArray[np.float32]] = []
    batches = list(evaluation_batches(split.lengths[chosen]))
    with in_eval_mode(model), torch.inference_mode():
        for batch in counted(batches, f"vectors by {shorten(loaded.source.name)}, batches"):
            vectors.append(model.features(batch_on(model, split, chosen[batch], data)).cpu().numpy())
    return np.asarray(np.concatenate(vectors)[np.argsort(np.concatenate(batches))])


Source = str | Path | Sequence[str]
"""A data file, or texts."""


def texts_of(source: Source, text_columns: tuple[str, ...] = (), name: str = "texts") -> list[tuple[str, ...]]:
    """The texts of a data file, or given ones; ValueError where there are none, or one is empty."""
    if isinstance(source, str | Path):
        rows = read_file(Path(source), text_columns, None).texts
        source = str(source)
    else:
        rows, source = [(text,) for text in source], name
    if not rows:
        raise ValueError(f"{source} has no text: {name} must be at least one")
    check_texts(name, rows)
    return rows


def first_of_each(readings: Sequence[Reading]) -> Ids:
    """The texts, in order, that not all models read token by token like an earlier one."""
    first_text_of: dict[tuple[bytes, ...], int] = {}
    for text, keys in enumerate(zip(*(model_reading.keys for model_reading in readings), strict=True)):
        first_text_of.setdefault(keys, text)
    return np.array(list(first_text_of.values()))


@shows_progress("must I re-index?")
@with_columns
def measure_reindexing(
    before: str,
    after: str,
    texts: Source,
    *,
    queries: Source | None = None,
    text_columns: tuple[str, ...] = (),
    k: int = 10,
    pooling: str | None = None,
    keep_at: float = 0.95,
    map_at: float = 0.95,
    num_null: int = 200,
    seed: int = 0,
) -> Mapping[str, pd.DataFrame]:
    """Must stored vectors be made again after tuning? What a search in the old index finds, and what a map mends.

    Parameters
    ----------
    before, after
        The model that made the stored vectors and the one tuned from it: checkpoints (minilm, folders, hub ids) or run
        directories made with ``--save-model``. They may have different tokenizers and widths.
    texts
        Data file of the texts whose vectors are stored, or the texts themselves. Those that both models read token by
        token like an earlier one are counted once.
    queries
        The same of the texts that are searched for; None holds a fifth of ``texts`` out of the index, 1,000 at most.
    text_columns
        Names of the one or two text columns of the files.
    k
        Number of nearest texts that a search gives.
    pooling
        ``mean`` of the tokens, ``cls``, the first one, or ``last``, as decoders have it: the vector of a text by the
        encoder alone. None: the mean, and of a sentence-transformers folder what its ``encode()`` gives, with all of
        its modules, its length and its default prompt. Vectors are compared by cosine.
    keep_at, map_at
        Least recall at which the index is kept as it is, and at which a linear map of it is enough.
    num_null
        Number of draws of the null.
    seed
        Seed of every random draw.

    Returns
    -------
    dict of pandas.DataFrame
        ``recall``: the share of the k neighbours of every text before that are so after (``neighbours kept``), and the
        share of the k texts which AFTER finds among its own vectors that a query by AFTER finds in the old index: ``as
        it is``, and with each stored vector mapped by the best linear map (affine, ridge) that four fifths of the texts
        without it give. Intervals: 95 %, bootstrap over queries, no end of it within an exact
        bound. NaN, with the reason, where the two widths differ (a linear map is all that there is then) and where a
        map has fewer than two texts for each number of a stored vector.

        ``verdict``: ``keep the index`` where the interval of ``as it is`` lies at or above ``keep_at``; else, where it
        lies below, ``map the stored vectors`` where that of ``linear map`` lies at or above ``map_at``, and
        ``re-index`` where it lies below or there is none; ``cannot tell with so few queries`` where a threshold lies
        inside the interval that decides.

    Raises
    ------
    ValueError
        A model, file or text that cannot be read, a k below 1, fewer than 2k texts in the index, and vectors of which
        so many are nearly the same that rounding decides which are nearest.
    """
    lookup(POOLINGS, pooling or "mean", "pooling")
    k, num_null = at_least("k", k, 1), at_least("num_null", num_null, 0)
    for name, threshold in (("keep_at", keep_at), ("map_at", map_at)):
        if not 0 < threshold <= 1:
            raise ValueError(f"{name} is a recall, above 0 and at most 1; got {threshold}")
    stored = texts_of(texts, text_columns)
    query_texts = None if queries is None else texts_of(queries, text_columns, "queries")
    _check_number(len(stored), k)
    read_before, pooling_before, model_before = open_reader(before, pooling)
    read_after, pooling_after, model_after = open_reader(after, pooling)
    say("tokens of the texts")
    reading_before, reading_after = read_before(stored), read_after(stored)
    indexed = first_of_each([reading_before, reading_after])
    num_repeated = len(stored) - len(indexed)
    if query_texts is None:
        num_held_out = min(MAX_HELD_OUT, max(1, round(HELD_OUT_SHARE * len(indexed))))
        query_ids = np.random.default_rng([*b"queries", seed]).permutation(indexed)[:num_held_out]
        query_reading = reading_after
        indexed = np.setdiff1d(indexed, query_ids)
        _check_number(len(indexed), k)
    else:
        _check_number(len(indexed), k)
        query_reading = read_after(query_texts)
        query_ids = first_of_each([query_reading])
    recall_table = compare_vectors(
        reading_before.vectors(indexed),
        reading_after.vectors(indexed),
        query_reading.vectors(query_ids),
        k=k,
        num_null=num_null,
        seed=seed,
        has_one_model=pooling_before == pooling_after and has_one_state(model_before, model_after),
    )
    advice, reason = advise(recall_table, keep_at, map_at)
    note = f"{num_repeated:,} of {len(stored):,} texts are counted once with one that both models read alike"
    first, second = distinct(shorten(name) for name in (before, after))
    both_poolings = f"{pooling_before} (before) and {pooling_after} (after)"
    record = {
        "first": first,
        "second": second,
        "pooling": pooling_before if pooling_before == pooling_after else both_poolings,
        "num_neighbours": k,
        "num_texts": len(indexed),
        "num_queries": len(query_ids),
        "keep_at": keep_at,
        "map_at": map_at,
        "advice": advice,
        "reason": reason,
        "note": note if num_repeated else "",
    }
    verdict = pd.DataFrame([record])[columns_of("measure_reindexing.verdict")]
    return {"verdict": verdict, "recall": recall_table}


def _check_number(num_texts: int, k: int) -> None:
    """ValueError for an index of fewer than 2k texts."""
    if num_texts < 2 * k:
        raise ValueError(
            f"an index of at least 2k = {2 * k} different texts is needed; there are {num_texts}, queries left out: "
            "pass more texts, or a smaller k"
        )
