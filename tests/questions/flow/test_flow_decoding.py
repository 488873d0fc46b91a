"""Decoding in bits: planted positions are read off, what is not there is not, and the formula is the entropy's."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from tests.conftest import FAMILY_CONFIGS
from tests.questions.opened import opened
from tests.refusals import check_refusals
from toolkit.data.builtin import BUILTIN_TASKS
from toolkit.questions.flow.decoding import choose_tokens, decode_positions, held_out_losses, information, word_losses
from toolkit.questions.models import TEXTS

SINGLES = tuple(BUILTIN_TASKS["polarity"].build()["validation"].texts[:80])
TinyModel = Callable[[str], Path]


def planted(num_texts: int = 60, length: int = 8, hidden: int = 6, seed: int = 0):
    """Texts, labels (4 bins of 8 places) and words of tokens without a model; half of the texts are held out."""
    rng = np.random.default_rng(seed)
    texts = np.repeat(np.arange(num_texts), length)
    labels = np.tile(np.arange(length) // 2, num_texts)
    words = rng.integers(0, 20, len(texts))
    return rng, texts, labels, words, texts >= num_texts // 2, rng.normal(size=(len(texts), hidden))


def bits_of(losses, labels, texts) -> float:
    own = np.unique(texts, return_inverse=True)[1]
    return float(information(losses, labels, own, np.ones((1, own.max() + 1)), 4)[0])


def test_a_planted_position_is_read_off_in_full():
    rng, texts, labels, _, held_out, noise = planted()
    losses = held_out_losses(noise * 0.01 + rng.normal(size=(4, 6))[labels], labels, texts, held_out, 4)[0]
    assert bits_of(losses, labels[held_out], texts[held_out]) == pytest.approx(2, abs=0.1)


def test_noise_holds_nothing_and_labels_dealt_out_neither():
    """The negative control: chance is 0, and the fitted penalty keeps the probe from falling far below it."""
    for seed in range(4):
        rng, texts, labels, _, held_out, noise = planted(seed=seed)
        assert (
            -0.05
            < bits_of(held_out_losses(noise, labels, texts, held_out, 4)[0], labels[held_out], texts[held_out])
            < 0.05
        )
        states = noise * 0.01 + rng.normal(size=(4, 6))[labels]
        dealt = rng.permutation(labels)
        losses = held_out_losses(states, dealt, texts, held_out, 4)[0]
        assert -0.05 < bits_of(losses, dealt[held_out], texts[held_out]) < 0.05


def test_the_control_reads_words_where_states_are_words_and_nothing_where_they_are_positions():
    rng, texts, labels, words, held_out, noise = planted(hidden=24)
    control = rng.integers(0, 4, 20)[words]
    for states, expected in ((rng.normal(size=(20, 24))[words], 2), (rng.normal(size=(4, 24))[labels], 0)):
        losses = held_out_losses(states + 0.01 * noise, control, texts, held_out, 4)[0]
        whole = entropy(np.bincount(control[held_out]), base=2)
        assert bits_of(losses, control[held_out], texts[held_out]) == pytest.approx(expected and whole, abs=0.15)


def test_the_word_alone_tells_what_it_can():
    _, texts, labels, words, held_out, _ = planted(num_texts=200)
    assert abs(bits_of(word_losses(words, labels, texts, held_out, 4), labels[held_out], texts[held_out])) < 0.05
    told = bits_of(word_losses(labels // 2, labels, texts, held_out, 4), labels[held_out], texts[held_out])
    assert told == pytest.approx(1, abs=0.02)  # four bins, known up to two


def test_bits_are_entropy_minus_cross_entropy_and_weights_repeat_texts():
    labels, texts = np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1])
    one, two = information(np.array([0.1, 0.2, 0.3, 0.4]), labels, texts, np.array([[1.0, 1.0], [2.0, 0.0]]), 3)
    assert one == pytest.approx(entropy([1, 2, 1], base=2) - 0.25 / np.log(2))
    assert two == pytest.approx(entropy([1, 1], base=2) - 0.15 / np.log(2))


def test_a_label_that_only_the_held_out_texts_have_is_finite():
    _, texts, labels, _, held_out, noise = planted()
    fit_on_two = np.where(held_out, labels, labels % 2)
    losses = held_out_losses(noise, fit_on_two, texts, held_out, 4)[0]
    assert np.isfinite(losses).all()
    assert losses[fit_on_two[held_out] >= 2] == pytest.approx(np.log(2 * (~held_out).sum()))  # half a token of these


def test_a_fit_that_saw_one_label_is_sure_of_it():
    _, texts, labels, _, held_out, noise = planted()
    losses = held_out_losses(noise, np.where(held_out, labels, 1), texts, held_out, 4)[0]
    assert losses == pytest.approx(np.where(labels[held_out] == 1, 0, np.log(2 * (~held_out).sum())))


def test_texts_are_disjoint_and_special_tokens_left_out(tiny_model: TinyModel) -> None:
    loaded, data = opened(tiny_model("bert"), [*SINGLES, *SINGLES])  # every text twice
    split = data.splits[TEXTS]
    tokens = choose_tokens(loaded, split, num_bins=4, num_tokens=10_000, seed=0)
    owner = np.searchsorted(split.offsets, tokens.indices, side="right") - 1
    words = [
        {tuple(split.tokens[split.offsets[i] : split.offsets[i + 1]]) for i in np.unique(owner[part])}
        for part in (tokens.is_held_out, ~tokens.is_held_out)
    ]
    assert not words[0] & words[1]
    assert not np.isin(split.tokens[tokens.indices], loaded.tokenizer.all_special_ids).any()
    place = tokens.indices - split.offsets[owner]
    assert (tokens.labels == np.searchsorted(tokens.edges, place, side="right") - 1).all()
    for draw in tokens.controls:  # one label a word
        assert len(np.unique(np.stack([tokens.words, draw]), axis=1).T) == len(np.unique(tokens.words))
    assert len({draw.tobytes() for draw in tokens.controls}) == len(tokens.controls) == 5


def test_positions_are_read_where_the_table_is_and_not_without_it(tiny_model: TinyModel) -> None:
    loaded, data = opened(tiny_model("bert"), SINGLES)
    with torch.no_grad():
        loaded.model.backbone.embeddings.position_embeddings.weight.mul_(20)
    table = decode_positions(loaded, data, data.splits[TEXTS], num_bins=4).set_index("layer")
    assert table.bits[0] > 0.8 * table.entropy_bits[0] > table.control_bits[0]
    assert table.shuffled_bits.between(-0.2, 0.1).all()
    assert (table.low < table.high).all()
    np.testing.assert_allclose(table.selective_bits, table.bits - table.control_bits)
    np.testing.assert_allclose(table.control_bits, [np.mean(draws) for draws in table.control_draws])
    assert all(len(set(draws)) == 5 for draws in table.control_draws)
    for name in ("bits", "selective_bits", "beyond_word_bits"):
        values = np.array(table[{"bits": "bit_values"}.get(name, name.replace("bits", "values"))].to_list())
        assert values.shape == (len(table), table.num_held_out_texts.iloc[0])
        np.testing.assert_allclose(values.mean(axis=1), table[name])
    with torch.no_grad():
        loaded.model.backbone.embeddings.position_embeddings.weight.zero_()
    without = decode_positions(loaded, data, data.splits[TEXTS], num_bins=4).set_index("layer")
    assert without.bits[0] < without.word_bits[0] + 0.2 < table.bits[0] - 0.3


@pytest.mark.parametrize("model_type", FAMILY_CONFIGS)
def test_every_family(tiny_model: TinyModel, model_type: str) -> None:
    loaded, data = opened(tiny_model(model_type), SINGLES[:20])
    table = decode_positions(loaded, data, data.splits[TEXTS], num_bins=2, num_controls=2)
    assert len(table) == 5
    assert table.bits.notna().all()
    assert table.note.str.contains("no position table").all() == (model_type == "modernbert")


def test_too_few_texts_are_one_line(tiny_model: TinyModel) -> None:
    loaded, data = opened(tiny_model("bert"), SINGLES[:4])
    check_refusals(("at least 10 different texts, got 4", lambda: decode_positions(loaded, data, data.splits[TEXTS])))


def test_a_given_penalty_is_not_chosen_again():
    _, texts, labels, _, held_out, noise = planted()
    chosen = held_out_losses(noise, labels, texts, held_out, 4)
    assert np.array_equal(chosen[0], held_out_losses(noise, labels, texts, held_out, 4, chosen[1])[0])
    other = held_out_losses(noise, labels, texts, held_out, 4, 10.0)
    assert (other[1], other[0].mean() > chosen[0].mean()) == (10.0, True)
