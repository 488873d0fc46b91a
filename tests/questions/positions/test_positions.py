"""The table of positions: every statistic beside its references, offsets, windows, refusals, and the two verdicts."""

import numpy as np
import pytest

from tests.refusals import check_refusals
from toolkit.questions.positions import measure as positions
from toolkit.questions.positions.measure import STATISTICS, VERDICTS
from toolkit.questions.positions.resemblance import few_waves, noisy_sinusoid
from toolkit.sinusoid import sinusoidal_table
from toolkit.snapshots.snapshot import Snapshot, Trajectory

DRAWS = 10


def trajectory_of(*tables, offset=0, name="position_embeddings"):
    snapshots = [Snapshot(i, 10 * i, {name: table.astype(np.float32)}) for i, table in enumerate(tables)]
    return Trajectory(snapshots, position_offset=offset)


@pytest.fixture(scope="module")
def measured():
    """A noisy sinusoid, then a few waves, both 256 x 96; and their tables."""
    rng = np.random.default_rng(0)
    source = trajectory_of(noisy_sinusoid(256, 96, rng, snr=4.0), few_waves(256, 96, rng))
    return {epoch: positions.measure_positions(source, epoch, num_draws=DRAWS) for epoch in (0, 1)}


def lines_of(table):
    return table.set_index("measure")


def test_columns_and_statistics(measured):
    table = measured[1]
    assert list(table["measure"]) == list(STATISTICS)
    assert table[["epoch", "window"]].drop_duplicates().to_numpy().tolist() == [[1, "0-255"]]
    assert table.drop(columns="note").notna().all(axis=None)
    assert all(statistic.description.endswith(".") for statistic in STATISTICS.values())


def test_the_references_are_what_they_are_known_to_be(measured):
    lines = lines_of(measured[0])
    assert lines.loc["translation_invariance", "sinusoid"] == pytest.approx(1)
    assert lines.loc["translation_invariance", "shuffled"] < 0.05
    assert lines.loc["local_monotonicity_8", "gaussian"] == pytest.approx(0.5, abs=0.02)
    assert lines.loc["decoding_error", "sinusoid"] < 0.01
    assert lines.loc["decoding_error", "gaussian"] == pytest.approx(64, abs=10)
    assert lines.loc["explained_by_sinusoid_20", "smooth"] > lines.loc["explained_by_sinusoid_20", "sinusoid"]
    assert lines.loc["effective_rank", "shuffled"] == pytest.approx(lines.loc["effective_rank", "value"])


def test_the_two_verdicts(measured):
    verdicts = [lines_of(table)["note"].str.partition(": ")[0] for table in measured.values()]
    assert [table["line_match"] for table in verdicts] == ["resembles", "does not resemble"]
    assert verdicts[1]["orbit_share"] == "made of waves"
    assert set(VERDICTS) == {"line_match", "orbit_share"}
    assert (measured[1].loc[~measured[1]["measure"].isin(VERDICTS), "note"] == "").all()


def test_shuffling_the_rows_takes_everything_but_the_spread(measured):
    lines = lines_of(measured[1])
    assert lines.loc["orbit_share", "shuffled"] < 0.6
    assert abs(lines.loc["line_match", "shuffled"]) < 5
    assert lines.loc["decoding_error", "shuffled"] > 40


def test_rows_before_the_first_position_are_left_out():
    table = sinusoidal_table(40, 8)
    padded = np.concatenate([np.full((2, 8), 100.0), table])
    for window, expected in ((None, table), ((3, 10), table[3:10])):
        assert positions.position_table(trajectory_of(padded, offset=2), 0, window) == pytest.approx(expected, abs=1e-6)


def test_the_last_epoch_is_the_default():
    first, last = np.random.default_rng(1).normal(size=(2, 12, 4)).astype(np.float32)
    source = trajectory_of(first, last)
    assert np.array_equal(positions.position_table(source), last)
    assert np.array_equal(positions.position_table(source, 0), first)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((512,), [(0, 512), (0, 128), (128, 256), (256, 512)]),
        ((514,), [(0, 514), (0, 128), (128, 256), (256, 512)]),  # two rows are no window
        ((128,), [(0, 128)]),
        ((300,), [(0, 300), (0, 128), (128, 256), (256, 300)]),
        ((300, 21), [(0, 300), (0, 21), (21, 300), (0, 128), (128, 256), (256, 300)]),
        ((300, 2), [(0, 300), (0, 128), (128, 256), (256, 300)]),
        ((100, 100), [(0, 100)]),
    ],
)
def test_windows(numbers, expected):
    """Of all positions, and of how many of them training exposed."""
    assert positions.position_windows(*numbers) == expected


def test_refusals_are_in_the_table_and_errors_are_one_line():
    source = trajectory_of(np.random.default_rng(2).normal(size=(12, 6)))
    table = lines_of(positions.measure_positions(source, num_draws=DRAWS))
    undefined = table.loc["cosine_lag_50", ["value", "reason"]].fillna("undefined")
    assert undefined.tolist() == ["undefined", "lag 50 needs more than 12 rows"]
    assert table.loc["line_match", "note"].startswith("not identifiable: in 12 rows only 0 waves")
    check_refusals(
        (
            "window 4 to 20 does not lie within the 12 positions",
            lambda: positions.measure_positions(source, window=(4, 20)),
        ),
        (
            "no position_embeddings",
            lambda: positions.measure_positions(trajectory_of(np.ones((3, 3)), name="word_embeddings")),
        ),
        (
            "num_draws must be a whole number of at least 1; got 0",
            lambda: positions.measure_positions(trajectory_of(np.eye(20, 12)), num_draws=0),
        ),
    )


def test_an_odd_hidden_size_has_no_sinusoid():
    source = trajectory_of(np.random.default_rng(3).normal(size=(40, 7)))
    table = lines_of(positions.measure_positions(source, num_draws=DRAWS))
    assert table["sinusoid"].isna().all()
    assert "odd hidden size" in table.loc["explained_by_sinusoid_20", "reason"]
    assert table.loc["line_match", "note"].startswith("not identifiable")
    assert np.isfinite(table.loc["decoding_error", "value"])


def test_one_zero_row_is_named():
    rows = np.random.default_rng(4).normal(size=(40, 6))
    rows[7] = 0
    table = lines_of(positions.measure_positions(trajectory_of(rows), num_draws=DRAWS))
    assert table.loc["translation_invariance", "reason"].startswith("row 7 is 0")


def learned(num_rows, hidden, seed=0):
    """Rows that something trained: waves in noise, neighbours alike, norms that vary along the positions."""
    return few_waves(num_rows, hidden, np.random.default_rng(seed))


@pytest.mark.parametrize("scale", [0.02, 0.0003], ids=["as drawn", "after long decay"])
@pytest.mark.parametrize(
    ("start", "found"), [(15, 512), (16, 16), (200, 200), (496, 496), (497, 512), (512, 512), (0, 512)]
)
def test_rows_that_nothing_trained_are_left_out(start, found, scale):
    """A tail of 15 rows is too short to judge, and a table that is random but for 15 rows may be so on purpose."""
    for seed, hidden in enumerate((128, 384)):
        table = learned(512, hidden, seed)
        table[start:] = np.random.default_rng(seed).normal(0, scale, (512 - start, hidden))
        assert positions.num_trained(table) == found


def test_their_statistics_are_those_of_the_other_rows():
    whole = learned(80, 128)
    whole[50:] = np.random.default_rng(2).normal(0, 0.02, (30, 128))
    table = lines_of(positions.measure_positions(trajectory_of(whole), num_draws=2))
    assert table.equals(lines_of(positions.measure_positions(trajectory_of(whole), window=(0, 50), num_draws=2)))
    assert set(table["window"]) == {"0-49"}


def test_trained_rows_are_not_taken_for_random_ones():
    """Waves, waves in another order, random rows that share an offset, or whose norms vary: something made all of it.
    With few columns chance is too wide to say."""
    rng = np.random.default_rng(0)
    table = learned(512, 384)
    random = rng.normal(0, 0.02, (512, 384))
    for tail in (
        table[rng.permutation(512)],
        random + 0.01,
        random * np.linspace(0.5, 2, 512)[:, None],
        np.repeat(random[::2], 2, axis=0),
        np.tile(random[:8], (64, 1)),  # neighbours are unrelated, and every eighth row is the same
    ):
        assert positions.num_trained(np.concatenate([table[:100], tail[:300]])) == 400
    few = learned(64, 32)
    few[20:] = rng.normal(0, 0.02, (44, 32))
    assert positions.num_trained(few) == 64


def test_none_of_300_random_tails_begins_late():
    """The bounds hold for 300 tables: one seed's luck does not meet them."""
    tables = np.random.default_rng(7).normal(0, 0.02, (300, 64, 128))
    tables[:, :20] *= 3
    assert [positions.num_trained(table) for table in tables] == [20] * 300


def exposed_rows(num_rows, num_exposed):
    return np.where(np.arange(num_rows) < num_exposed, "exposed", "unexposed").astype(object)


def test_rows_that_training_exposed_are_never_called_untrained():
    """A random start that hardly moved looks random still: what is known of exposure wins."""
    table = np.random.default_rng(5).normal(0, 0.02, (64, 128))
    table[:20] *= 3
    names = exposed_rows(64, 40)
    source = Trajectory(trajectory_of(table, table).snapshots, inferred={"position_embeddings": names})
    assert (positions.num_trained(table), positions.num_described(source)) == (20, 40)
    names[:] = "unexposed"
    assert (positions.num_exposed(source), positions.num_described(source)) == (None, 20)


def test_exposed_and_raw_positions_are_windows_of_their_own():
    before = learned(64, 128)
    after = before.copy()
    after[:21] += np.random.default_rng(1).normal(0, 0.001, (21, 128))
    source = trajectory_of(before, after)
    told = Trajectory(source.snapshots, inferred={"position_embeddings": exposed_rows(64, 21)})
    assert (positions.num_exposed(source), positions.num_exposed(told)) == (None, 21)
    windows = positions.measure_position_windows(told, num_draws=2)["window"]
    assert list(dict.fromkeys(windows)) == ["0-63", "0-20", "21-63"]
