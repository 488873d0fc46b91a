"""A planted study gets the cards that it should; a card survives its file, and comes from the evidence alone."""

import json
import shutil
from dataclasses import replace
from itertools import product

import pandas as pd
import pytest

from tests.comparison.conftest import CONDITIONS
from tests.comparison.planted import agree, write_cards
from tests.refusals import check_refused
from tests.run_directories import rehash
from toolkit.comparison.cards import make_cards
from toolkit.comparison.compare import compare, judge_together
from toolkit.comparison.conditions import NO_SEED
from toolkit.comparison.evidence import read_evidence
from toolkit.comparison.verdicts import VERDICTS, load_cards, save_cards


def of_kind(cards, kind):
    return [card for card in cards if card.kind == kind]


@pytest.fixture(scope="module")
def written(shared_logged, tmp_path_factory):
    """The cards of three conditions and the folder with their evidence, beside which the runs are no longer."""
    folder = tmp_path_factory.mktemp("cards")
    cases = [(regime, seed, right) for regime, right in CONDITIONS for seed in range(3)]
    runs = [shared_logged.copy_into(folder / "runs", regime, seed, right=right) for regime, seed, right in cases]
    cards = write_cards(runs, folder / "out")
    shutil.rmtree(folder / "runs")
    return cards, folder / "out"


@pytest.fixture(scope="module")
def cards(written):
    return written[0]


@pytest.fixture(scope="module")
def out(written):
    return written[1]


@pytest.fixture
def cards_from(read_run, tmp_path, monkeypatch):
    """A function: runs, and a kind, to their cards of this kind; below a temporary current directory."""
    monkeypatch.chdir(tmp_path)
    return lambda runs, kind, **options: of_kind(write_cards(runs, "out", **options), kind)


def test_each_pair_and_split_has_a_card_with_the_numbers_of_compare(logged):
    runs = logged()
    cards = of_kind(write_cards(runs, "out", margin_points=3.0), "score")
    table = compare(runs, margin_points=3.0)
    assert len(cards) == len(table) == len({card.id for card in cards}) == 4
    for card, line in zip(cards, table.to_dict("records"), strict=True):
        agree(line, difference_points=card.value, low_points=card.interval.low, high_points=card.interval.high)
        agree(line, low90_points=card.equivalence.low, high90_points=card.equivalence.high, num_items=card.num_items)
        agree(line, verdict=card.verdict, reason=card.reason, q=card.q)
        agree(line, noise_floor_points=card.noise_floor, detectable_gap_points=card.detectable_gap)
        assert (card.num_seeds, card.margin, card.is_discovery) == (3, 3.0, line["q"] < 0.05)
        assert f"{line['first']} and {line['second']} score differently (accuracy)" in card.claim


@pytest.mark.parametrize("alone", [None, ("none", 1e-3), ("embeddings", 1e-3)])
def test_forbidding_pairs_conditions_that_differ_in_nothing_else_where_there_are_such(read_run, cards_from, alone):
    """Seen: full fine-tuning at one learning rate held against frozen embeddings at another."""
    cases = [case for case in product(("none", "embeddings"), (1e-5, 1e-4, 1e-3)) if case != alone]
    rates = {
        read_run(regime, seed, config={"learning_rate": rate}).path: rate for regime, rate in cases for seed in range(2)
    }
    cards = cards_from(list(rates), "forbid")
    found = [{rate for path, rate in rates.items() if path.name in card.inputs["runs"]} for card in cards]
    assert sorted(found, key=min) == [{rate} for rate in ((1e-5, 1e-4) if alone else (1e-5, 1e-4, 1e-3))]


def test_tuned_conditions_that_never_differ_in_the_freeze_alone_are_still_held_against_each_other(read_run, cards_from):
    cases = product((("none", 1e-4), ("embeddings", 1e-5)), range(2))
    runs = [read_run(regime, seed, config={"learning_rate": rate}) for (regime, rate), seed in cases]
    assert len(cards_from(runs, "forbid")) == 1


FULL, PROBE, FIXED = "full fine-tuning", "feature extraction", "embeddings frozen"


@pytest.mark.parametrize("pairs", [None, [(FIXED, FULL), (FULL, PROBE)], [(FULL, PROBE)]])
def test_forbid_cards_have_the_q_of_their_line_in_the_comparison(logged, pairs):
    """Whichever way round it was compared; a pair that was not compared has the q that it would have had."""
    runs = logged()
    (card,) = of_kind(write_cards(runs, "out", pairs=pairs), "forbid")
    table = compare(runs, pairs=pairs)
    if pairs is not None and (FIXED, FULL) not in pairs:
        alone = compare(runs).query("second == @FIXED and split == 'validation'")
        expected = judge_together(pd.concat([table, alone], ignore_index=True), 0.05)["q"].iloc[-1]
    else:
        ends = table["first"].eq(FIXED) | table["second"].eq(FIXED)
        expected = table[ends & (table["split"] == "validation")]["q"].item()
    assert card.q == pytest.approx(expected)
    assert 0 < card.q < 1
    assert card.is_discovery == (card.q < 0.05)


def test_claims_and_verdicts_say_what_they_are_about(cards):
    for card in of_kind(cards, "score") + of_kind(cards, "forbid"):
        assert not any(word in card.claim for word in ("higher", "lower", "otherwise"))
        assert "q: Benjamini-Hochberg over all compared pairs of the report" in card.source
        assert "first minus second" in card.source
    assert all((card.is_discovery is None) == (card.q != card.q) for card in cards)
    assert all(card.is_discovery for card in cards if card.verdict == "supported")


def test_one_seed_says_what_its_interval_covers(logged):
    for card in of_kind(write_cards(logged(1), "out"), "score"):
        assert card.interval.low < card.interval.high
        assert (card.verdict, card.reason) == ("not judged", "one seed says nothing of others: at least 3 are needed")
        assert card.is_discovery is None


@pytest.mark.parametrize("said", [NO_SEED, "other words"])
def test_a_pair_without_a_common_seed_is_said_to_be_not_compared(read_run, cards_from, monkeypatch, said):
    monkeypatch.setattr("toolkit.comparison.compare.NO_SEED", said)
    (card,) = cards_from([read_run("none", 0), read_run("backbone", 1)], "score")
    assert (card.verdict, card.reason, card.num_seeds) == ("not measurable here", said, 0)


def test_a_collapsed_regression_seed_counts_on_the_card_and_its_seeds_are_honest(read_run, cards_from):
    """The same from the runs as from the evidence, in which a column of nothing but NaN has no place."""
    cases = list(product(("none", "backbone"), range(3)))
    runs = [read_run(*case, is_regression=True, is_constant=case == ("backbone", 2)) for case in cases]
    card = next(card for card in cards_from(runs, "score") if "/ validation /" in card.id)
    line = compare(runs).query("split == 'validation'").to_dict("records")[0]
    agree(line, difference_points=card.value, num_seeds=card.num_seeds)
    assert card.value > 20
    assert card.num_seeds == 3


def test_items_that_differ_are_refused_with_their_note(make_run, cards_from):
    runs = [make_run(regime) for regime in ("none", "backbone")]
    path = runs[1].path / "predictions.parquet"
    table = pd.read_parquet(path)
    table[table["id"] != 3].to_parquet(path, index=False)
    rehash(runs[1].path, path.name)
    cards = cards_from([run.path for run in runs], "score")
    said = "not measurable here", "not compared: other items or labels"
    assert {(card.verdict, card.reason) for card in cards} == {said}


def test_cards_come_from_the_evidence_alone_and_are_the_same(cards, out):
    again = make_cards(out)
    assert [card.to_dict() for card in again] == [card.to_dict() for card in cards] == load_cards(out)[0]
    assert json.dumps([card.to_dict() for card in again]) == json.dumps(load_cards(out)[0])


def test_the_order_of_runs_does_not_matter_to_any_number(logged):
    runs = logged()
    one, other = write_cards(runs, "one"), write_cards(runs[::-1], "two")
    assert [replace(card, inputs={}).to_dict() for card in one] == [
        replace(card, inputs={}).to_dict() for card in other
    ]


def test_a_card_survives_its_file(cards):
    for card in cards:
        written = card.to_dict()
        assert json.loads(json.dumps(written, allow_nan=False)) == written
        assert written["value"] is None or written["value"] == pytest.approx(card.value, rel=1e-9, abs=0)
        assert written["verdict"] in VERDICTS
    check_refused("unknown verdict", replace, cards[0], verdict="suported")


def test_every_card_names_what_it_is_recomputed_from(cards, out):
    hashes = read_evidence(out).hashes
    for card in cards:
        assert card.inputs["files"]
        assert card.inputs["files"].items() <= hashes.items()
        assert card.inputs["runs"]
        assert all(len(digest) == 64 for digest in card.inputs["runs"].values())


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}', '{"format": 9, "cards": [], "evidence": {}}'])
def test_a_file_that_is_no_list_of_cards_is_one_clear_line(tmp_path, content):
    check_refused(r"has no cards\.json", load_cards, tmp_path)
    save_cards([], tmp_path, {})
    (tmp_path / "cards.json").write_text(content)
    check_refused(r"cards\.json", load_cards, tmp_path)


def test_a_planted_gap_is_supported_and_equal_conditions_are_equivalent(read_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shares = {"none": 0.95, "backbone": 0.55, "embeddings": 0.95}
    runs = [read_run(regime, seed, right=right) for regime, right in shares.items() for seed in range(3)]
    cards = {card.id: card for card in write_cards(runs, "out", margin_points=5.0)}
    large = next(card for name, card in cards.items() if "feature extraction" in name and "validation" in name)
    assert (large.verdict, large.value > 30) == ("supported", True)
    # The fake answers depend on the seed and the share of right ones only, so these two conditions answer alike.
    (equal,) = of_kind(cards.values(), "forbid")
    assert (equal.verdict, equal.value) == ("equivalent", 0)
    assert "on validation, tiny on toy" in equal.claim  # the reported split
    assert "free and forbidden to drift the scores differ" in equal.claim
