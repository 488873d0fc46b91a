"""Likeness to the sinusoid: what proves nothing, and two statistics that pass their controls both ways."""

from functools import partial

import numpy as np
import pytest
import scipy.linalg
from scipy.fft import dct
from scipy.stats import ortho_group

from tests.refusals import check_refusals
from toolkit.analysis.kernels import Refused
from toolkit.questions.positions import resemblance
from toolkit.questions.positions.measure import cosine_by_lag
from toolkit.questions.positions.resemblance import band_of, find_waves, line_match, orbit_share
from toolkit.sinusoid import sinusoidal_table

SINUSOID = sinusoidal_table(512, 384)
SIZES = [(512, 384), (512, 768), (256, 384)]


def resonances(num_rows, hidden, rng, radius=0.97):
    """AR(2) curves: each column rings at a frequency of its own, and forgets its phase."""
    cosines = np.cos(rng.uniform(0.3, 1.0, hidden))
    table, noise = np.zeros((num_rows + 200, hidden)), rng.normal(size=(num_rows + 200, hidden))
    for i in range(2, len(table)):
        table[i] = 2 * radius * cosines * table[i - 1] - radius**2 * table[i - 2] + noise[i]
    return table[200:]


def walks(num_rows, hidden, rng, order=1):
    table = rng.normal(size=(num_rows, hidden))
    for _ in range(order):
        table = np.cumsum(table, axis=0)
    return table


def bent(num_rows, hidden, rng):
    """Smooth curves whose length scale changes along the positions."""
    places = np.cumsum(np.exp(2 * rng.normal(size=num_rows).cumsum() / num_rows**0.5))
    places *= num_rows / 15 / places[-1]
    values, vectors = np.linalg.eigh(np.exp(-0.5 * np.subtract.outer(places, places) ** 2))
    return vectors * np.sqrt(np.clip(values, 0, None)) @ rng.normal(size=(num_rows, hidden))


def tones(num_rows, hidden, rng):
    """As many pure waves as the sinusoid has, in noise, at other frequencies."""
    angles = np.arange(num_rows)[:, None] * 1e4 ** -rng.uniform(size=hidden // 2) + rng.uniform(0, 6, hidden // 2)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1) + 0.7 * rng.normal(size=(num_rows, hidden))


def other_base(num_rows, hidden, rng):
    return sinusoidal_table(num_rows, hidden, base=1e3) + 0.7 * rng.normal(size=(num_rows, hidden))


def shuffled(num_rows, hidden, rng):
    return resemblance.noisy_sinusoid(num_rows, hidden, rng)[rng.permutation(num_rows)]


HELD_OUT = {
    "rational quadratic": lambda n, p, rng: resemblance.smooth_curves(n, p, rng, "rational_quadratic", 5.0),
    "rational quadratic, rank 4": lambda n, p, rng: resemblance.smooth_curves(
        n, p, rng, "rational_quadratic", 8.0, 0, 4
    ),
    "resonances": resonances,
    "walks": walks,
    "integrated walks": partial(walks, order=2),
    "changing length": bent,
}
"""Smooth curves of families on which neither threshold was set."""

NO_SINUSOID = HELD_OUT | {
    "tones at other frequencies": tones,
    "the sinusoid of base 1,000": other_base,
    "a shuffled sinusoid": shuffled,
    "noise": lambda n, p, rng: rng.normal(size=(n, p)),
}


def errors_of(num_draws, size, seed=1):
    """Share of wrong answers of the line match: on noisy sinusoids, smooth curves, and each held-out generator."""
    rng = np.random.default_rng([seed, *size])
    tables = {kind: resemblance.draw_controls(kind, *size, num_draws, seed) for kind in ("sinusoid", "smooth")} | {
        name: (make(*size, rng) for _ in range(num_draws)) for name, make in NO_SINUSOID.items()
    }
    wrong = {n: np.mean([line_match(t).score >= resemblance.LINE_THRESHOLD for t in own]) for n, own in tables.items()}
    return wrong | {"sinusoid": 1 - wrong["sinusoid"]}


@pytest.mark.slow  # many draws
@pytest.mark.parametrize(("size", "num_draws"), [((512, 384), 10), ((512, 768), 3)])
def test_the_line_match_tells_noisy_sinusoids_from_smooth_curves(size, num_draws):
    assert not any(errors_of(num_draws, size).values())


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_error_rates_of_the_line_match(size):
    """100 draws of every control at each size; the threshold was set with other draws."""
    assert {name: rate for name, rate in errors_of(100, size, seed=2).items() if rate > 0.02} == {}


def test_smooth_curves_are_as_smooth_as_the_sinusoid():
    """The hardest control: Gaussian processes with the sinusoid's own cosine by lag, and no waves."""
    curves = resemblance.smooth_curves(512, 384, np.random.default_rng(3), "continuous_ladder", 1.0)
    lags = [0, 1, 4, 9, 49]
    ours, theirs = (cosine_by_lag(t)["value"].to_numpy()[lags] for t in (curves, SINUSOID))
    assert ours == pytest.approx(theirs, abs=0.06)
    assert line_match(SINUSOID).score > 20
    assert abs(line_match(curves).score) < 3.5


@pytest.mark.parametrize("entry", resemblance.SMOOTH, ids=str)
def test_smooth_curves_of_one_seed_are_the_same_whatever_eigenvectors_a_machine_finds(entry, monkeypatch):
    """Eigenvectors have no sign, and those of eigenvalues near 0 no direction: seen as other curves on each machine."""
    first = resemblance.smooth_curves(256, 8, np.random.default_rng(0), *entry)
    resemblance._factor.cache_clear()
    eigh = scipy.linalg.eigh
    signs = np.where(np.arange(256) % 2, -1, 1)

    def other(matrix):
        values, vectors = eigh(matrix, driver="ev")
        return values, vectors * signs

    monkeypatch.setattr(scipy.linalg, "eigh", other)
    again = resemblance.smooth_curves(256, 8, np.random.default_rng(0), *entry)
    resemblance._factor.cache_clear()
    assert again == pytest.approx(first, abs=1e-5)


def test_any_rotation_shift_factor_or_jump_leaves_the_line_match():
    rng = np.random.default_rng(4)
    table = resemblance.noisy_sinusoid(256, 96, rng)
    turned = 3 * table @ ortho_group.rvs(96, random_state=5) + rng.normal(size=96)
    assert line_match(turned).score == pytest.approx(line_match(table).score, rel=1e-6)
    with_jump = SINUSOID + 0.0
    with_jump[127:] += 4
    with_jump[0] *= 10
    assert line_match(with_jump).score > 15


def test_power_falls_with_the_noise_and_is_there_at_a_third():
    rng = np.random.default_rng(6)
    means = [
        np.mean([line_match(resemblance.noisy_sinusoid(512, 384, rng, snr)).score for _ in range(4)])
        for snr in (1, 1 / 3, 0.02)
    ]
    assert means[0] > means[1] > 2 * resemblance.LINE_THRESHOLD > resemblance.LINE_THRESHOLD > means[2]


def test_the_noisy_sinusoid_has_the_noise_that_it_says():
    table = resemblance.noisy_sinusoid(512, 384, np.random.default_rng(7), snr=1.0)
    assert np.mean(np.square(table)) == pytest.approx(2 * 0.5, rel=0.02)  # the sinusoid's mean square is 1/2


def test_too_few_rows_are_not_identifiable():
    too_few = "in 128 rows only 0 waves of the sinusoid of width 384 are apart"
    check_refusals((too_few, lambda: band_of(128, 384)), kind=Refused)
    found = resemblance.judge_resemblance(SINUSOID[:128])
    assert (found.answer, len(found.positive)) == ("not identifiable", 0)
    assert np.isnan([found.value, found.missed]).all()


@pytest.mark.parametrize("judge", [resemblance.judge_resemblance, resemblance.judge_waves])
def test_equal_rows_are_not_identifiable(judge):
    assert judge(np.ones((256, 96)), num_draws=4).answer == "not identifiable"


def test_verdicts():
    rng = np.random.default_rng(8)
    judge = partial(resemblance.judge_resemblance, num_draws=10)
    found = judge(resemblance.noisy_sinusoid(256, 384, rng))
    assert (found.answer, "smooth curves reach at most" in found.reason) == ("resembles", True)
    assert found.value >= resemblance.LINE_THRESHOLD > found.negative.max()
    assert judge(rng.normal(size=(256, 384))).answer == "does not resemble"


def test_a_statistic_that_fails_a_control_gives_no_verdict(monkeypatch):
    monkeypatch.setattr(resemblance, "LINE_THRESHOLD", -10.0)  # everything would resemble
    found = resemblance.judge_resemblance(SINUSOID[:256], num_draws=11)
    assert (found.answer, found.false_alarms) == ("not identifiable", 1)
    assert "deceived by 100% of smooth curves" in found.reason


def test_few_waves_are_told_from_smooth_curves():
    size = (256, 96)
    waves = [orbit_share(t) for t in resemblance.draw_controls("waves", *size, 20, 1)]
    smooth = [orbit_share(t) for t in resemblance.draw_controls("smooth", *size, 20, 1)]
    assert min(waves) > resemblance.ORBIT_THRESHOLD > max(smooth)
    rng = np.random.default_rng(9)
    for name, make in (HELD_OUT | {"noise": NO_SINUSOID["noise"]}).items():
        assert max(orbit_share(make(*size, rng)) for _ in range(5)) < resemblance.ORBIT_THRESHOLD, name


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_error_rates_of_the_orbit_share(size):
    for kind, has_waves in (("waves", True), ("smooth", False)):
        shares = np.array([orbit_share(t) for t in resemblance.draw_controls(kind, *size, 100, 2)])
        assert np.mean((shares >= resemblance.ORBIT_THRESHOLD) != has_waves) <= 0.02


def test_orbit_share_of_one_curve_one_circle_and_noise():
    angle = 2 * np.pi * np.arange(300) / 20
    planes = np.linalg.qr(np.random.default_rng(10).normal(size=(40, 2)))[0]
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1) @ planes.T
    line = np.cos(angle)[:, None] * planes[:, 0]
    assert (orbit_share(circle), orbit_share(line)) == pytest.approx((1, 0), abs=0.01)
    # An ellipse of axes 1 and 1/2 has c = 1 - (3/5)².
    ellipse = np.stack([np.cos(angle), np.sin(angle) / 2], axis=1) @ planes.T
    assert orbit_share(ellipse) == pytest.approx(1 - (3 / 5) ** 2, abs=0.01)
    assert orbit_share(np.random.default_rng(11).normal(size=(300, 400))) == pytest.approx(1 / 3, abs=0.05)
    assert np.isnan(orbit_share(np.ones((40, 3))))
    check_refusals(("waves need 32 rows and 2 columns; got 31 and 40", lambda: orbit_share(circle[:31])), kind=Refused)


def test_planted_waves_are_found_with_their_periods():
    rng = np.random.default_rng(12)
    rows, periods = np.arange(400), (6.0, 17.0, 60.0)
    angles = 2 * np.pi * rows[:, None] / np.array(periods)
    planes = np.linalg.qr(rng.normal(size=(50, 6)))[0]
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) @ planes.T + 0.03 * rng.normal(size=(400, 50))
    found = find_waves(table)
    assert sorted(found["period"]) == pytest.approx(periods, rel=0.03)
    assert found["share"].sum() == pytest.approx(1 / (1 + 0.03**2 * 50 / 3), abs=0.02)
    assert (found["roundness"] > 0.9).all()
    weights = np.square(planes).reshape(50, 2, 3).sum(axis=1)  # the plane of wave k has columns k and k + 3
    assert sorted(found["spread"]) == pytest.approx(sorted(4 / np.square(weights).sum(axis=0)), rel=0.05)


def test_shares_explained_are_description_only():
    rng = np.random.default_rng(13)
    smooth = resemblance.smooth_curves(512, 384, rng, "squared_exponential", 20.0)
    by = partial(resemblance.explained_by, reference=SINUSOID, rank=20)
    assert by(rng.normal(size=(512, 384))) == pytest.approx(20 / 511, abs=0.002)
    assert (by(smooth), by(SINUSOID)) == (pytest.approx(0.985, abs=0.004), pytest.approx(0.61, abs=0.005))
    assert 0.99 < resemblance.explained_by(smooth, SINUSOID, 511) <= 1 + 1e-12
    check_refusals(("the rank must lie between 1 and 511", lambda: by(smooth, rank=512)), kind=Refused)


def test_what_is_kept_and_handed_out_cannot_be_changed():
    found, band = resemblance.judge_resemblance(SINUSOID[:, :96], num_draws=2), band_of(512, 96)
    for kept in (found.positive, found.negative, band.frequencies, band.basis, band.template, band.combs, *band.waves):
        with pytest.raises(ValueError, match="read-only"):
            kept[0] = 0


def test_dct_spectrum_is_a_share_and_knows_a_cosine():
    spectrum = resemblance.dct_spectrum(np.cos(np.pi * 5 * (np.arange(64) + 0.5) / 64)[:, None] * [1.0, 2.0] + 7)
    assert spectrum == pytest.approx(np.eye(63)[4])
    table = np.random.default_rng(14).normal(size=(64, 5))
    plain = np.square(dct(table, type=2, norm="ortho", axis=0)).sum(axis=1)[1:]
    assert resemblance.dct_spectrum(table) == pytest.approx(plain / plain.sum())
    assert np.isnan(resemblance.dct_spectrum(np.ones((5, 2)))).all()
