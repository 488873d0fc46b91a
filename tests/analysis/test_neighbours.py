"""Words beside words: what was planted is found, what did not happen is not, and chance is what it says."""

import numpy as np
import pandas as pd
import pytest

from tests.refusals import check_refusals, check_refused
from toolkit.analysis.nearest import correct
from toolkit.analysis.neighbours import (
    WordSearch,
    find_changed,
    list_words,
    matched_percentiles,
    most_changed,
    neighbours,
)
from toolkit.snapshots.snapshot import Snapshot, Trajectory, Vocabulary

N, P = 300, 24
SPECIAL = 4


def _tokens(num_rows=N):
    return ("[PAD]", "[CLS]", "[SEP]", "[unused7]", *(f"word{row}" for row in range(SPECIAL, num_rows)))


def _words(seed=0, num_rows=N, hidden=P):
    rng = np.random.default_rng([7, seed])
    centres = rng.normal(size=(num_rows // 10, hidden))
    rows = rng.normal(size=(num_rows, hidden)) + centres[np.arange(num_rows) % len(centres)]
    rows[0] = 0
    return rows


def _trajectory(*tables, exposure=None, **changes):
    snapshots = [Snapshot(epoch, 10 * epoch, {"word_embeddings": table}) for epoch, table in enumerate(tables)]
    arguments = {"vocabulary": Vocabulary(_tokens(len(tables[0])), frozenset({0, 1, 2}), 0)}
    if exposure is not None:
        arguments["read_exposure"] = lambda: exposure
    return Trajectory(snapshots, **(arguments | changes))


@pytest.fixture(scope="module")
def expose(make_exposure):
    """Exposure in which word row r is seen in ``steps[r]`` of 10 steps per epoch."""

    def make(steps, num_steps=10):
        return make_exposure({"word_embeddings": [np.flatnonzero(steps > step).tolist() for step in range(num_steps)]})

    return make


def _kept(trajectory, k=10, epoch=None, *, is_centred=False):
    """What every word kept, which the lists are made from."""
    pair = trajectory.at(0), trajectory.at_or_last(epoch)
    search = WordSearch.of(pair, list_words(trajectory), k, is_centred)
    return find_changed(pair, search, None, 2, [0]).table


def _rotation(seed=1):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(P, P)))[0]


def test_a_word_moved_next_to_another_is_found():
    before = _words()
    after = before.copy()
    after[50] = 1.7 * before[81] + 0.01 * before[50]
    trajectory = _trajectory(before, after)
    table = neighbours(trajectory, "word50", k=5)
    first = table.iloc[0]
    assert (first["row_after"], first["neighbour_after"], first["is_new"]) == (81, "word81", True)
    assert (first["similarity_after"] > 0.99, table["is_lost"].sum() >= 4) == (True, True)
    assert 50 in neighbours(trajectory, 81, k=5)["row_after"].tolist()
    assert most_changed(trajectory, k=5, order="overlap")["row"].iloc[0] == 50
    before, after = (_words(hidden=200) for _ in range(2))
    after[50] += 0.5 * before[81]
    # In many dimensions a random direction leads to nobody: the excess shows it too.
    assert most_changed(_trajectory(before, after), k=5)["row"].iloc[0] == 50
    measured = _kept(trajectory, k=5)
    assert measured["overlap"].idxmin() == 50
    assert measured.loc[50, "similarity_change"] < -0.2
    assert measured.drop(index=50)["overlap"].mean() > 0.95


def test_one_word_against_the_plain_formula():
    before, after = _words(0), _words(0) + 0.3 * _words(1)
    for is_centred in (False, True):
        table = neighbours(_trajectory(before, after), "word9", k=6, is_centred=is_centred)
        for name, rows in (("before", before), ("after", after)):
            words = rows[SPECIAL:] - rows[SPECIAL:].mean(axis=0) * is_centred
            units = words / np.linalg.norm(words, axis=1, keepdims=True)
            cosines = units @ units[9 - SPECIAL]
            order = [i for i in np.argsort(-cosines) if i != 9 - SPECIAL][:6]
            assert table[f"row_{name}"].tolist() == [i + SPECIAL for i in order]
            assert table[f"neighbour_{name}"].tolist() == [f"word{i + SPECIAL}" for i in order]
            assert np.allclose(table[f"similarity_{name}"], cosines[order])
    assert table["rank"].tolist() == [1, 2, 3, 4, 5, 6]
    kept = set(table["row_before"]) & set(table["row_after"])
    assert set(table.loc[~table["is_lost"], "row_before"]) == kept
    assert set(table.loc[~table["is_new"], "row_after"]) == kept


def test_the_measures_against_the_plain_formula():
    before, after, k = _words(0), _words(0) + 0.5 * _words(1), 7
    measured = _kept(_trajectory(before, after), k=k)
    assert measured.index.tolist() == list(range(SPECIAL, N))
    cosines = []
    for rows in (before, after):
        units = rows[SPECIAL:] / np.linalg.norm(rows[SPECIAL:], axis=1, keepdims=True)
        cosines.append(units @ units.T - 9 * np.eye(len(units)))
    nearest = [np.argsort(-gram, axis=1)[:, :k] for gram in cosines]
    for i in range(len(measured)):
        old = nearest[0][i]
        expected = {
            "overlap": len(np.intersect1d(old, nearest[1][i])) / k,
            "similarity_change": (cosines[1] - cosines[0])[i, old].mean(),
        }
        assert measured.loc[i + SPECIAL, [*expected]].to_dict() == pytest.approx(expected)


@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize("kind", ["identical", "scaling", "rotation", "both"])
def test_what_keeps_all_cosines_keeps_all_neighbours(kind, is_centred):
    before = _words()
    after = before @ (_rotation() if kind in ("rotation", "both") else np.eye(P))
    after = after * {"scaling": 3.7, "both": 0.2}.get(kind, 1)
    trajectory = _trajectory(before, after)
    measured = _kept(trajectory, is_centred=is_centred)
    assert (measured["overlap"] == 1).all()
    assert np.allclose(measured["similarity_change"], 0, atol=1e-12)
    assert not neighbours(trajectory, "word30", is_centred=is_centred)[["is_new", "is_lost"]].to_numpy().any()
    if kind == "identical":
        assert (measured["similarity_change"].abs() < 1e-15).all()
    assert most_changed(trajectory, is_centred=is_centred).empty


def test_a_common_offset_is_a_change_only_of_raw_neighbours():
    before = _words()
    trajectory = _trajectory(before, before + 3 * np.random.default_rng(2).normal(size=P))
    assert _kept(trajectory)["overlap"].mean() < 0.9
    assert (_kept(trajectory, is_centred=True)["overlap"] == 1).all()


def test_unrelated_tables_share_neighbours_by_chance_only():
    rng = np.random.default_rng(0)
    tables = [_trajectory(*rng.normal(size=(2, 600, P)), vocabulary=None) for _ in range(4)]
    measured = pd.concat([_kept(trajectory, k=30) for trajectory in tables])
    assert measured["overlap"].mean() == pytest.approx(30 / 599, rel=0.05)


def test_where_all_are_neighbours_chance_leaves_nothing_to_correct():
    assert np.isnan(correct(np.array([1.0]), 1.0)).all()


def test_who_is_a_candidate():
    before = _words()
    before[[1, 3]] = before[40] + 1e-3  # [CLS] and an unused row lie beside word40
    trajectory = _trajectory(before, before + 0)
    assert not set(neighbours(trajectory, "word40")["row_before"]) & {0, 1, 2, 3}
    assert neighbours(trajectory, "[CLS]", k=1)["neighbour_before"].tolist() == ["word40"]  # asking is allowed
    assert _kept(trajectory).index.tolist() == list(range(SPECIAL, N))


def test_a_row_that_is_zero_at_either_epoch_is_no_candidate_at_the_other():
    before = _words()
    after = before.copy()
    before[60], after[61] = 0, 0
    measured = _kept(_trajectory(before, after))
    assert measured.index.tolist() == [row for row in range(SPECIAL, N) if row not in (60, 61)]
    assert (measured["overlap"] == 1).all()
    check_refused("row 60 is zero at epoch 0: it has no direction", neighbours, _trajectory(before, after), "word60")


def test_words_are_looked_up():
    trajectory = _trajectory(_words(), _words())
    check_refusals(
        (r"no token 'wrd150' .*; the nearest are '\w+', '\w+', '\w+'$", lambda: neighbours(trajectory, "wrd150")),
        (r"no token '§' \(words may be lower case or in pieces\)$", lambda: neighbours(trajectory, "§")),
        (f"word row {N} is outside the table: rows are 0 to {N - 1}", lambda: neighbours(trajectory, N)),
    )
    nameless = _trajectory(_words(), _words(), vocabulary=None)
    assert neighbours(nameless, 50)["neighbour_before"].tolist() == [""] * 10
    most = f"k must be 1 to {N - SPECIAL - 1}"
    check_refusals(
        ("the row of a word must be a whole number of at least 0; got 1.5", lambda: neighbours(trajectory, 1.5)),
        ("the row of a word must be a whole number of at least 0; got -1", lambda: neighbours(trajectory, -1)),
        (r"k must be a whole number of at least 1; got 2\.5", lambda: neighbours(trajectory, "word50", k=2.5)),
        ("no vocabulary to look 'word50' up in: give the number of its row", lambda: neighbours(nameless, "word50")),
        (most, lambda: most_changed(trajectory, k=0)),
        (most, lambda: most_changed(trajectory, k=N - SPECIAL)),
        ("no snapshot of epoch 7; at hand: 0, 1", lambda: neighbours(trajectory, "word50", epoch=7)),
        ("lacks word_embeddings", lambda: neighbours(Trajectory([Snapshot(0, 0, {})]), 3)),
    )


def test_epochs_and_their_order():
    first, second, third = _words(0), _words(0) + 0.2 * _words(1), _words(0) + 0.6 * _words(1)
    trajectory = _trajectory(first, second, third)
    pd.testing.assert_frame_equal(most_changed(trajectory), most_changed(trajectory, epoch=2))
    there = neighbours(trajectory, "word33", epoch=1, reference_epoch=2)
    back = neighbours(trajectory, "word33", epoch=2, reference_epoch=1)
    assert there["row_before"].tolist() == back["row_after"].tolist()
    assert _kept(trajectory, epoch=1)["overlap"].mean() > _kept(trajectory)["overlap"].mean()


def _runs(expose, num_runs=2, planted=(), noise=0.05, num_rows=900):
    """Runs from one table: noise that grows with exposure, its own in each run, and planted words moved alike."""
    before = _words(0, num_rows, 100)
    steps = np.random.default_rng(5).integers(0, 9, num_rows)
    runs = []
    for run in range(num_runs):
        after = before + noise * steps[:, None] * np.random.default_rng([9, run]).normal(size=before.shape)
        for word in planted:
            after[word] += noise * steps[word] * 1.5 * (before[word + 1] - before[word])
        runs.append(_trajectory(before, after, exposure=expose(steps)))
    return runs, steps


def test_runs_agree_on_what_was_planted_and_not_on_noise(expose):
    planted = range(20, 420, 20)
    runs, steps = _runs(expose, planted=planted, noise=0.08)
    seen = [word for word in planted if steps[word] > 2]
    listed = most_changed(runs, num=20)
    agreement = listed.iloc[0]
    assert agreement["jaccard"] > agreement[["jaccard_random", "jaccard_permuted"]].max() + 0.1
    assert len(set(listed["row"]) & set(seen)) > len(seen) / 2
    assert (listed.iloc[0]["num_runs"], listed["rank"].tolist()) == (2, list(range(1, 21)))
    assert (listed["jaccard"] == agreement["jaccard"]).all()
    assert listed["percentile"].mean() > 0.95


def test_without_anything_in_common_runs_agree_no_more_than_random_directions(expose):
    """Words with close rivals lose neighbours in every run: agreement of the raw overlap is no evidence."""
    values, raw = [], []
    for draw in range(4):
        runs, steps = _runs(expose, noise=0.03 + 0.01 * draw)
        values.append(most_changed(runs, num=60, k=5, seed=draw).iloc[0])
        seen = np.intersect1d(np.flatnonzero(steps), np.arange(SPECIAL, len(steps)))
        overlap = [_kept(run, k=5).loc[seen, "overlap"] for run in runs]
        raw.append(overlap[0].corr(overlap[1], method="spearman"))
    table = pd.DataFrame(values).astype({"jaccard": float, "jaccard_random": float})
    assert np.mean(raw) > 0.2  # what a table without this null would report as agreement between seeds
    assert (table["jaccard"] - table["jaccard_random"]).abs().mean() < 0.04


def test_exchanging_words_keeps_what_exposure_alone_explains(expose):
    runs, _ = _runs(expose, planted=range(20, 820, 20), noise=0.08)
    agreement = most_changed(runs, num=40).iloc[0]
    assert 0 <= agreement["jaccard_permuted"] < agreement["jaccard"]
    runs, _ = _runs(expose, noise=0.12)
    frequent, excess = (most_changed(runs, num=40, order=order).iloc[0] for order in ("overlap", "excess"))
    # In both runs frequent words move farther and lose more; by the excess they do not.
    assert frequent["jaccard_permuted"] > 1.5 * excess["jaccard_permuted"]
    assert most_changed(runs, num=40).equals(most_changed(runs, num=40))
    check_refusals(
        (r"unknown order 'exces' \(did you mean 'excess'\?\)", lambda: most_changed(runs, order="exces")),
        ("num_draws must be 2 or more", lambda: most_changed(runs[0], num_draws=1)),
    )


def test_the_list_of_one_run(expose):
    (run,), steps = _runs(expose, 1)
    listed = most_changed(run, num=15, seed=3)
    assert (steps[listed["row"]] > 0).all(), "a word that was never seen is listed"
    assert listed["num_steps"].tolist() == steps[listed["row"]].tolist()
    assert np.allclose(listed["excess"], listed["random_overlap"] - listed["overlap"])
    assert (np.diff(listed["excess"]) < 1e-9).all()
    assert listed["jaccard"].isna().all()
    assert listed["token"].tolist() == [f"word{row}" for row in listed["row"]]
    assert np.array_equal(_kept(run).loc[listed["row"], "overlap"], listed["overlap"])
    assert listed.equals(most_changed([run], num=15, seed=3))
    nameless = Trajectory(run.snapshots)
    assert len(most_changed(nameless, num=15)) == 15
    assert most_changed(nameless, num=15)["num_steps"].isna().all()


def test_percentiles_among_words_of_like_exposure():
    rng = np.random.default_rng(0)
    exposure = np.sort(rng.choice([1, 2, 3, 50, 60, 1000], 1200)).astype(float)
    values = exposure + rng.normal(size=1200)  # frequent words change more: no word is remarkable for its exposure
    percentiles = matched_percentiles(exposure, values, 100)
    for level in np.unique(exposure):
        of_level = percentiles[exposure == level]
        assert of_level.mean() == pytest.approx(0.5, abs=0.01)
        rank = values[exposure == level].argsort().argsort()
        assert np.allclose(of_level, rank / (len(rank) - 1))
    assert (matched_percentiles(np.full(9, np.nan), np.zeros(9)) == 0.5).all()  # ties count half
    assert np.isnan(matched_percentiles(np.ones(1), np.ones(1))).all()
    # Few words of exposure 4: the next on a log scale are those of 3, not of 10.
    few = matched_percentiles(
        np.array([3.0] * 50 + [4.0] + [10.0] * 50), np.r_[np.zeros(50), 1.0, np.full(50, 9.0)], 40
    )
    assert few[50] == 1
