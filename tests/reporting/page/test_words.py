"""The words of a run are those that training showed, with what the analyses say of them, on axes that never turn."""

from dataclasses import replace

import numpy as np
import pytest

from tests.run_directories import HIDDEN, HOSTILE, NUM_WORDS, TOKENS, MakeRun
from toolkit.analysis.neighbours.neighbours import neighbours
from toolkit.analysis.rows.rows import measure_rows
from toolkit.reporting.page.word_maps import measure_words
from toolkit.reporting.page.words import collect_words, visible
from toolkit.snapshots.store import Run


def collect(run: Run, **options):
    data = collect_words([("one", run)], **options)
    assert data is not None
    return data, data.runs[0], [data.vocabularies[0][place] for place in data.runs[0].words]


def test_words_are_those_that_training_showed(read_run: MakeRun):
    _, run, names = collect(read_run())
    assert run.rows.tolist() == [2, 3, *range(5, 45)]  # tests/run_directories.py shows these; [PAD] is row 0
    assert names == [visible(TOKENS[row]) for row in run.rows]
    assert len(names) == len(run.words)
    assert set(HOSTILE[:5]) <= set(names)
    assert run.epochs == (0, 1, 2, 3)


def test_drift_and_exposure_are_those_of_measure_rows(read_run: MakeRun):
    made = read_run()
    _, run, _ = collect(made)
    for epoch in (1, 2, 3):
        rows = measure_rows(made, "word_embeddings", epoch).set_index("row").loc[run.rows]
        np.testing.assert_allclose(run.norm[epoch - 1], rows["norm"], rtol=1e-12)
        np.testing.assert_allclose(run.angle_degrees[epoch - 1], rows["angle_degrees"], rtol=1e-9)
        np.testing.assert_allclose(run.norm[epoch - 1] / run.norm_before, rows["relative"], rtol=1e-12)
    assert run.num_steps is not None
    assert run.num_steps.tolist() == rows["num_steps"].tolist()
    assert run.num_tokens is not None
    assert run.num_tokens.tolist() == rows["num_tokens"].tolist()


def test_neighbours_are_those_of_neighbours(read_run: MakeRun):
    made = read_run()
    data, run, names = collect(made)
    for i in (5, 20, 41):
        table = neighbours(made, int(run.rows[i]), k=5)
        for name in ("before", "after"):
            places = getattr(run, name)[i]
            assert [data.vocabularies[0][place] for place in places] == [visible(t) for t in table[f"neighbour_{name}"]]
            np.testing.assert_allclose(getattr(run, f"{name}_similarity")[i], table[f"similarity_{name}"], rtol=1e-12)
    assert names[0] == "[CLS]"  # shown, but nobody's neighbour
    near = {data.vocabularies[0][place] for place in [*run.before.ravel(), *run.after.ravel()]}
    assert not near & {"[CLS]", "[SEP]", "[PAD]", "[unused0]"}


def test_map_is_the_principal_plane_before_training():
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(50, 6)) * [5, 3, 1, 1, 1, 1]]
    tables.append(tables[0] + rng.normal(0, 0.1, (50, 6)))
    rows = np.arange(50)
    drawn = measure_words(tables, rows, rows)["maps"][0]
    centred = tables[0] - tables[0].mean(axis=0)
    _, values, axes = np.linalg.svd(centred)
    signs = np.sign(axes[[0, 1], np.abs(axes[:2]).argmax(axis=1)])
    for epoch, table in enumerate(tables):  # the later epoch on the first one's mean and axes
        expected = (table - tables[0].mean(axis=0)) @ axes[:2].T * signs
        np.testing.assert_allclose(drawn.coordinates[epoch], expected, atol=1e-10)
    np.testing.assert_allclose(drawn.word_shares, values[:2] ** 2 / (values**2).sum(), rtol=1e-10)
    change = tables[1] - tables[0]
    assert drawn.drift_share == pytest.approx(((change @ axes[:2].T) ** 2).sum() / (change**2).sum())


def test_drift_axes_find_the_planted_direction_and_noise_has_none():
    rng = np.random.default_rng(1)
    before, rows = rng.normal(size=(400, 40)), np.arange(400)
    direction = np.eye(40)[7]
    planted = before + 0.1 * rng.normal(size=(400, 1)) * direction + rng.normal(0, 1e-3, (400, 40))
    noise = before + rng.normal(0, 0.1, (400, 40))
    shares = [measure_words([before, after], rows, rows)["maps"][1].drift_share for after in (planted, noise)]
    assert shares[0] > 0.99
    assert shares[1] < 0.2  # 2 of 40 directions, chosen: a little above 0.05
    moves = np.diff(measure_words([before, planted], rows, rows)["maps"][1].coordinates, axis=0)[0]
    np.testing.assert_allclose(np.abs(moves[:, 0]), np.abs((planted - before)[:, 7]), rtol=1e-2, atol=1e-3)


def test_nothing_moves_on_a_map_of_equal_epochs():
    table = np.random.default_rng(2).normal(size=(20, 5))
    for drawn in measure_words([table, table], np.arange(20), np.arange(20))["maps"]:
        np.testing.assert_array_equal(drawn.coordinates[0], drawn.coordinates[1])
        assert np.isnan(drawn.drift_share)


def test_without_exposure_every_word_is_shown(read_run: MakeRun):
    _, run, names = collect(read_run(has_exposure=False))
    assert run.num_steps is None
    assert run.num_tokens is None
    assert "[CLS]" not in names
    assert len(names) == NUM_WORDS - 5  # four special tokens and one free row


def test_runs_without_drift_or_words_are_named(read_run: MakeRun):
    frozen = read_run("embeddings")
    lacking = read_run("none", 1, lacking=("word_embeddings",))
    assert collect_words([("frozen", frozen)]) is None
    data = collect_words([("frozen", frozen), ("full", read_run()), ("lacking", lacking)])
    assert data is not None
    assert [run.label for run in data.runs] == ["full"]
    assert data.left_out == (
        "frozen: its word embeddings did not move",
        "lacking: its model has no word embeddings",
    )


def test_runs_of_one_model_share_their_texts(read_run: MakeRun):
    data = collect_words([("a", read_run()), ("b", read_run("none", 1))])
    assert data is not None
    assert len(data.vocabularies) == 1
    assert len(set(data.vocabularies[0])) == len(data.vocabularies[0])
    assert [run.vocabulary for run in data.runs] == [0, 0]


def test_a_small_budget_keeps_the_words_seen_most_and_says_so(read_run: MakeRun):
    runs = [("a", read_run()), ("b", read_run("none", 1))]
    whole = collect(runs[0][1])[1]
    data = collect_words(runs, budget_bytes=5000)
    assert data is not None
    run = data.runs[0]
    assert 3 <= len(run.words) < len(whole.words)
    assert f"{len(run.words)} of 42 words are shown, those seen in the most steps" in run.note
    assert run.num_steps is not None
    assert whole.num_steps is not None
    assert sorted(run.num_steps) == sorted(whole.num_steps)[-len(run.words) :]
    assert run.maps[0].coordinates.shape == (4, len(run.words), 2)
    assert data.left_out == ("b: its words would make the page larger than it should be",)


def test_many_epochs_are_thinned(read_run: MakeRun):
    _, run, _ = collect(read_run(epochs=20))
    assert (run.epochs[0], run.epochs[-1], len(run.epochs)) == (0, 20, 8)
    assert "8 of 21 epochs" in run.note


def test_a_row_that_is_zero_has_no_neighbours_and_no_angle(read_run: MakeRun):
    made = read_run()
    trajectory = made.trajectory
    snapshots = []
    for snapshot in trajectory:
        table = np.array(snapshot.tensors["word_embeddings"])
        table[10] = 0
        snapshots.append(replace(snapshot, tensors={**snapshot.tensors, "word_embeddings": table}))
    made.__dict__["trajectory"] = replace(trajectory, snapshots=snapshots)
    _, run, _ = collect(made)
    place = run.rows.tolist().index(10)
    assert (run.before[place] == -1).all()
    assert np.isnan(run.before_similarity[place]).all()
    assert np.isnan(run.angle_degrees[:, place]).all()
    assert np.isfinite(run.maps[0].coordinates).all()


def test_invisible_characters_are_shown():
    assert visible("a\u202eb\x00\ud800") == "aU+202EbU+0000U+D800"
    assert visible("naïve 词 🙂") == "naïve 词 🙂"
    assert HIDDEN >= 2
