"""The table of similarities: what every entry claims, nulls, refusals, and planted faults that break the claims."""

from dataclasses import replace

import numpy as np
import pytest

from tests.refusals import check_refused
from toolkit.questions.space import similarity_measures, similarity_table
from toolkit.questions.space.similarity import SIMILARITIES, compare_rows, measure_similarity
from toolkit.questions.space.similarity_measures import unaligned_relative_drift
from toolkit.questions.space.similarity_table import (
    NULLS,
    ROTATION,
    SCALING,
    SHAPE,
    TRANSLATION,
    PermutedPair,
    Similarity,
    TablePair,
    null_base,
)
from toolkit.schema import columns_of


def _tables(seed=0, n=160, p=12, size=0.6):
    """Correlated columns of unequal variance and a common mean, and a version of them with noise. (2, n, p) float64."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p)) * np.geomspace(1, 0.3, p) @ rng.normal(size=(p, p)) * 0.4 + 0.5
    return np.stack([x, x + size * rng.normal(size=(n, p)) * np.std(x)])


def _changes(seed, p):
    rng = np.random.default_rng([1, seed])
    rotation = np.linalg.qr(rng.normal(size=(p, p)))[0]
    shift = rng.normal(size=p)
    return {ROTATION: lambda y: y @ rotation, SCALING: lambda y: 3.7 * y, TRANSLATION: lambda y: y + shift}


def check_claims(entry: Similarity, seed: int) -> None:
    """What the entry declares holds, and what it does not declare does not."""
    x, y = _tables(seed)

    def value(reference, current):
        return entry.function(TablePair(reference, current))

    as_it_is = value(x, y)
    for name, change in _changes(seed, x.shape[1]).items():
        is_same = np.isclose(value(x, change(y)), as_it_is, rtol=1e-7, atol=1e-9)
        assert is_same or name not in entry.invariant_to, f"{name} changes it"
        assert not is_same or name in entry.invariant_to, f"{name} does not change it"
    assert np.isclose(value(y, x), as_it_is, rtol=1e-7, atol=1e-9) == entry.is_symmetric, "symmetry"
    if not np.isnan(entry.identical):
        assert value(x, x) == pytest.approx(entry.identical, abs=1e-7), "identical versions"
    order = np.random.default_rng(seed).permutation(len(x))
    assert value(x[order], y[order]) == pytest.approx(as_it_is, rel=1e-7, abs=1e-9), "the order of the rows"
    assert value(x.astype(np.float32), y.astype(np.float32)) == pytest.approx(as_it_is, rel=1e-3, abs=1e-3), "float32"


@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_claims(name, seed):
    entry = SIMILARITIES[name]
    assert entry.source
    assert entry.description.endswith(".")
    assert (entry.null in NULLS, entry.invariant_to <= SHAPE) == (True, True)
    check_claims(entry, seed)


BIASED, OVERLAP, DRIFT = (SIMILARITIES[n] for n in ("biased_cka", "knn_overlap", "unaligned_relative_drift"))
FAULTS = {
    "not centred": (
        replace(BIASED, function=lambda pair: float(np.sum((pair.reference.T @ pair.current) ** 2))),
        "scaling changes it",
    ),
    "standardised": (
        replace(BIASED, function=lambda pair: similarity_measures.biased_cka(pair.products, is_standardised=True)),
        "rotation changes it",
    ),
    "a shift that is said not to matter": (replace(OVERLAP, invariant_to=SHAPE), "translation changes it"),
    "an invariance that is not declared": (
        replace(BIASED, invariant_to=frozenset({ROTATION, SCALING})),
        "translation does not change it",
    ),
    "asymmetric": (replace(DRIFT, is_symmetric=True), "symmetry"),
    "not 0 for nothing": (
        replace(DRIFT, function=lambda pair: 1e-3 + unaligned_relative_drift(pair.products)),
        "identical versions",
    ),
    "by place": (
        replace(DRIFT, function=lambda pair: float(pair.current[0] @ pair.reference[1])),
        "identical versions",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_entry_breaks_its_claims(name):
    entry, claim = FAULTS[name]
    with pytest.raises(AssertionError, match=claim):
        check_claims(entry, 0)


def test_noise_moves_every_similarity_away_from_identical():
    x, _ = _tables()
    noise = np.random.default_rng(8).normal(size=x.shape) * np.std(x)
    lines = [compare_rows(x, x + size * noise, num_null=0).set_index("measure").value for size in (0, 0.1, 0.5, 2)]
    for name, entry in SIMILARITIES.items():
        if not np.isnan(entry.identical):
            assert np.all(np.diff([abs(line[name] - entry.identical) for line in lines]) > 1e-4), name


def test_permuted_pairs_are_what_the_permuted_rows_give(monkeypatch):
    monkeypatch.setattr(similarity_table, "MAX_ITEMS", 20)
    monkeypatch.setattr(similarity_table, "MAX_QUERIES", 50)
    for has_zeros in (False, True):
        x, y = _tables(2, n=140)
        x[3 : 3 + has_zeros] = y[4 : 4 + has_zeros] = 0
        drawn = NULLS["permuted rows"](TablePair(x, y, 4, 1), np.random.default_rng(0))
        assert isinstance(drawn, PermutedPair)
        assert sorted(drawn.order) == list(range(140)) != list(drawn.order)
        fresh = TablePair(x, y[drawn.order], 4, 1)
        for name, entry in SIMILARITIES.items():
            # Rows of zeros: the fresh search leaves other rows out. It is a null, and a row or two of it.
            tolerance = 0.05 if has_zeros and name.startswith(("knn", "second")) else 1e-9
            assert entry.function(drawn) == pytest.approx(entry.function(fresh), rel=1e-9, abs=tolerance), name


@pytest.mark.parametrize("num_rows", [2, 3])
@pytest.mark.parametrize("drift", [0, 1e-9, 1e-3])
def test_the_permuted_null_of_few_rows_that_hardly_moved(num_rows, drift):
    """Some draws are the order itself: their drift is tiny, and a difference of large sums could fall below 0."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        reference = rng.normal(size=(num_rows, 5))
        current = reference + drift * rng.normal(size=reference.shape)
        (line,) = compare_rows(reference, current, ["unaligned_relative_drift"], seed=seed).to_dict("records")
        assert line["null_low"] >= unaligned_relative_drift(TablePair(reference, current).products) * (1 - 1e-6)


@pytest.mark.parametrize("size", [0.6, 1e-5])
def test_isotropic_drift_moves_each_row_as_far_as_it_moved(size):
    """A small drift too, which a sum in float32 would lose."""
    x, y = _tables(size=size).astype(np.float32)
    y[5] = x[5]
    drawn = NULLS["isotropic drift"](TablePair(x, y), np.random.default_rng(0))
    lengths = np.linalg.norm(drawn.current - x, axis=1)
    assert np.allclose(lengths, np.linalg.norm(y.astype(np.float64) - x, axis=1), rtol=1e-5)
    assert lengths[5] == 0
    assert abs(np.mean(np.sum((drawn.current - x) * (y - x), axis=1) / np.sum((y - x) ** 2))) < 0.01


def test_unrelated_rows_lie_inside_their_null_and_related_ones_outside():
    x, y = np.random.default_rng(3).normal(size=(2, 200, 16))
    for current, is_related in ((y, False), (x + 0.3 * y, True)):
        lines = compare_rows(x, current, num_null=30, k=5)
        distance = (lines.value - lines.null).abs() / lines.null_sd
        described = lines.null_kind == "permuted rows"
        assert ((distance[described] > 4) == is_related).all()


def test_isotropic_drift_lies_inside_its_null_and_a_planted_rotation_outside():
    rng = np.random.default_rng(4)
    x, noise = rng.normal(size=(2, 200, 10))
    names = ["aligned_relative_drift", "translation_share", "rotation_share"]
    isotropic = compare_rows(x, x + 0.02 * noise, names, num_null=40).set_index("measure")
    assert ((isotropic.value - isotropic.null).abs() < 4 * isotropic.null_sd).all()
    assert set(isotropic.null_kind) == {"isotropic drift"}
    skew = 0.02 * rng.normal(size=(10, 10))
    for name, change in (("rotation_share", x @ (skew - skew.T)), ("translation_share", 0.05)):
        moved = compare_rows(x, x + change + 0.02 * noise, names, num_null=40).set_index("measure")
        assert moved.value[name] > moved.null_high[name] + 0.3


def test_columns_and_seeds():
    x, y = _tables(n=70, p=5)
    lines = compare_rows(x, y, num_null=3, k=4)
    assert list(lines.measure) == list(SIMILARITIES)
    assert not lines.value.isna().any()
    assert lines.value_of_null_rows.equals(lines.value.rename("value_of_null_rows"))
    assert (lines["num_rows"] == 70).all()
    assert (lines.null_low <= lines.null).all()
    assert lines.equals(compare_rows(x, y, num_null=3, k=4))
    assert not lines.null.equals(compare_rows(x, y, num_null=3, k=4, seed=1).null)
    few = compare_rows(x, y, ["rsa_pearson", "svcca"], num_null=0)
    assert (list(few.measure), few.null.count()) == (["rsa_pearson", "svcca"], 0)


def test_a_long_table_is_sampled_and_says_so(monkeypatch):
    for name, value in (("MAX_NULL_ROWS", 80), ("MAX_ITEMS", 15), ("MAX_QUERIES", 40)):
        monkeypatch.setattr(similarity_table, name, value)
    x, y = _tables(n=300)
    pair = TablePair(x, y)
    assert null_base(pair).reference.shape == (80, 12)
    lines = compare_rows(x, y, num_null=2).set_index("measure")
    rows = np.sort(pair.drawn[:80])
    for name in ("biased_cka", "procrustes_similarity", "rotation_share"):
        on_them = compare_rows(x[rows], y[rows], [name], num_null=0).value.item()
        assert lines.value_of_null_rows[name] == on_them != lines.value[name]
    assert (len(pair.items), len(pair.queries)) == (15, 40)
    assert lines.value["debiased_cka"] == similarity_measures.debiased_cka(pair.products)
    assert not set(pair.items) - set(pair.queries)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 11, 12])
def test_what_means_nothing_for_few_rows_is_refused(n):
    x, y = np.random.default_rng(n).normal(size=(2, n, 6))
    lines = compare_rows(x, y, num_null=2).set_index("measure")
    assert (lines.value.isna() == (lines.reason != "")).all()
    assert (lines.null.isna() == lines.value.isna()).all()
    assert lines.reason["svcca"] == f"SVCCA needs at least 5 rows per column: {n} rows, 6 columns" or n < 3
    expected = (
        {"svcca", "pwcca_reference", "pwcca_current"}
        | {name for name, entry in SIMILARITIES.items() if n < entry.min_rows}
        | {name for name in SIMILARITIES if n <= 11 and name.startswith(("knn", "second"))}
    )
    assert set(lines.index[lines.value.isna()]) == expected
    assert np.isfinite(lines.value["unaligned_relative_drift"])


def test_of_a_trajectory(make_trajectory):
    trajectory = make_trajectory()
    lines = measure_similarity(trajectory, num_null=2, k=3)
    assert set(lines.epoch) == {3.0}
    assert set(lines.stratum) == {"all rows"}
    words = [trajectory.at(epoch).tensors["word_embeddings"] for epoch in (1, 2)]
    lines = measure_similarity(trajectory, epoch=2, reference_epoch=1, num_null=2, k=3)
    assert lines[columns_of("compare_rows")].equals(compare_rows(*words, num_null=2, k=3))
    assert measure_similarity(trajectory, "LayerNorm.weight", num_null=0).value.count() == 1


def test_bad_input_is_one_clear_line(make_trajectory):
    trajectory = make_trajectory()
    for arguments, message in (
        ({"measures": ["debiased_ck"]}, r"unknown similarity 'debiased_ck' \(did you mean 'debiased_cka'\?\)"),
        ({"epoch": 9}, "no snapshot of epoch 9"),
        ({"parameter": "words"}, "unknown embedding parameter"),
        ({"k": 2.5}, r"k must be a whole number of at least 1; got 2\.5"),
        ({"num_null": -1}, "num_null must be a whole number of at least 0; got -1"),
    ):
        check_refused(message, measure_similarity, trajectory, **arguments)
    trajectory.at(3).tensors["word_embeddings"][0, 0] = np.nan
    check_refused("the run diverged", measure_similarity, trajectory)


@pytest.mark.parametrize("level", [0.1, 1000.1])
@pytest.mark.parametrize("side", [0, 1])
def test_rows_that_are_all_equal_have_no_shape_whatever_centring_leaves_of_them(level, side):
    """Sums of 0.1 are not exact: a CKA of the rest would be a number between 0 and 1 that says nothing."""
    tables = [np.random.default_rng(0).normal(size=(300, 8)), np.full((300, 8), level) + np.arange(8) * 0.37]
    of_shape = [name for name in SIMILARITIES if any(word in name for word in ("cka", "cca", "procrustes", "rsa"))]
    found = compare_rows(tables[side], tables[1 - side], of_shape, num_null=2)
    assert len(found) == 10
    assert found["value"].isna().all()
    assert found["reason"].str.contains("equal").all()


def test_rows_that_hardly_differ_have_the_shape_that_they_have():
    """What is refused is rounding, not smallness: 1e-9 of the level is told from it."""
    x, y = _tables()
    measures = ["debiased_cka", "procrustes_similarity", "svcca"]
    expected = compare_rows(x, y, measures, num_null=2)["value"]
    assert np.allclose(compare_rows(x, 1 + 1e-9 * y, measures, num_null=2)["value"], expected, rtol=0, atol=1e-4)
