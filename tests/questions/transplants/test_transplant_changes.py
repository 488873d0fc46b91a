"""Random changes: what each kind keeps of the real change, and what it does not."""

import numpy as np
import pytest

from toolkit.questions.transplants.players import (
    RANDOM,
    ROTATED,
    Components,
    Part,
    Player,
    can_rotate,
    perturbed,
)

HIDDEN = 12


def make_components(seed=0):
    """Words and positions that drift in few directions, one vector that all rows share, and LayerNorm."""
    rng = np.random.default_rng(seed)
    players = []
    for name, table, num_rows in (("word", "word_embeddings", 30), ("position", "position_embeddings", 9)):
        before = centre(rng.normal(size=(num_rows, HIDDEN)))
        change = centre(rng.normal(size=(num_rows, 2)) @ rng.normal(size=(2, HIDDEN)))
        players.append(Player(name, (Part(table, np.arange(num_rows), before, before + change, is_centred=True),)))
    offset = Part("position_embeddings", np.arange(9), *centre(rng.normal(size=(2, 1, HIDDEN))), is_centred=True)
    norm = Part("LayerNorm.weight", None, *rng.normal(size=(2, 1, HIDDEN)))
    return Components((*players, Player("common offset", (offset,)), Player("LayerNorm", (norm,))))


def centre(values):
    return values - values.mean(axis=-1, keepdims=True)


def moves(components):
    """(rows of all parts, hidden)."""
    return np.concatenate([part.after - part.before for player in components.players for part in player.parts])


@pytest.mark.parametrize("kind", [RANDOM, ROTATED])
def test_every_row_is_moved_as_far_as_it_was_and_stays_centred(kind):
    real = make_components()
    drawn = perturbed(real, 15, kind, np.random.default_rng(0))
    own, other = moves(real), moves(drawn)
    np.testing.assert_allclose(np.linalg.norm(other, axis=1), np.linalg.norm(own, axis=1), rtol=1e-12)
    np.testing.assert_allclose(other[:-1].mean(axis=1), 0, atol=1e-13)
    assert abs(other[-1].mean()) > 1e-3  # LayerNorm is not centred
    assert not np.allclose(own, other)
    for player, same in zip(real.players, drawn.players, strict=True):
        np.testing.assert_array_equal(player.parts[0].before, same.parts[0].before)


def test_only_a_rotation_keeps_angles_and_singular_values():
    real = make_components()
    for kind, keeps in ((ROTATED, True), (RANDOM, False)):
        drawn = perturbed(real, 15, kind, np.random.default_rng(1))
        own, other = moves(real)[:-1], moves(drawn)[:-1]  # words, positions and the offset, turned alike
        assert np.allclose(own @ own.T, other @ other.T, atol=1e-10) == keeps
        assert np.allclose(*[np.linalg.svd(x[:30], compute_uv=False) for x in (own, other)], atol=1e-10) == keeps


@pytest.mark.parametrize("kind", [RANDOM, ROTATED])
def test_directions_are_uniform(kind):
    """Of d coordinates with mean 0, the cosine with a fixed direction has mean 0 and variance 1 / (d - 1)."""
    real = make_components()
    own, rng, found = moves(real)[0], np.random.default_rng(2), []
    for _ in range(600):
        found.append(own @ moves(perturbed(real, 1, kind, rng))[0] / (own @ own))
    assert abs(np.mean(found)) < 4 / np.sqrt(600 * (HIDDEN - 1))
    assert np.var(found) == pytest.approx(1 / (HIDDEN - 1), rel=0.25)


@pytest.mark.parametrize("kind", [RANDOM, ROTATED])
def test_players_outside_the_coalition_are_left_as_they_are(kind):
    real = make_components()
    drawn = perturbed(real, 0b0010, kind, np.random.default_rng(0))
    assert [a is b for a, b in zip(real.players, drawn.players, strict=True)] == [True, False, True, True]
    placed, before = drawn.place(0b0010), real.place(0)
    assert [n for n in placed if not np.array_equal(placed[n][1], before[n][1])] == ["position_embeddings"]


def test_only_rows_that_moved_together_can_be_rotated():
    words, _, offset, norm = make_components().players
    part = words.parts[0]
    after = part.before.copy()
    after[3] += 1
    alone = Player("word", (Part(part.parameter, part.rows, part.before, after),))
    cases = ([words], [offset, words], [offset, norm], [alone])
    assert [can_rotate(players) for players in cases] == [True, True, False, False]
