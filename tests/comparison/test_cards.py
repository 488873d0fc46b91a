"""A planted study gets the cards that it should; a card survives its file, and comes from the evidence alone."""

import json
import shutil
from dataclasses import replace
from itertools import product

import pandas as pd
import pytest

from tests.comparison.conftest import ARMS
from tests.comparison.planted import write_cards
from tests.run_directories import write_run
from toolkit.comparison.cards import make_cards
from toolkit.comparison.compare import compare
from toolkit.comparison.evidence import read_evidence
from toolkit.comparison.intervals import benjamini_hochberg
from toolkit.comparison.verdicts import VERDICTS, Card, load_cards, save_cards
from toolkit.snapshots.run_writer import RunWriter


def of_kind(cards, kind):
    return [card for card in cards if card.kind == kind]


@pytest.fixture(scope="module")
def written(shared_logged, tmp_path_factory):
    """The cards of three arms and the folder with their evidence, beside which the runs are no longer."""
    folder = tmp_path_factory.mktemp("cards")
    cases = [(regime, seed, right) for regime, right in ARMS for seed in range(3)]
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


def test_each_pair_and_split_has_a_card_with_the_numbers_of_compare(logged):
    runs = logged()
    cards = of_kind(write_cards(runs, "out", margin_points=3.0), "score")
    table = compare(runs, margin_points=3.0)
    assert len(cards) == len(table) == 4
    for card, line in zip(cards, table.to_dict("records"), strict=True):
        assert (card.value, card.interval.low, card.interval.high) == tuple(
            line[name] for name in ("difference_points", "low_points", "high_points")
        )
        assert (card.equivalence.low, card.equivalence.high) == (line["low90_points"], line["high90_points"])
        assert (card.verdict, card.reason, card.q) == (line["verdict"], line["reason"], line["q"])
        assert (card.num_seeds, card.num_items, card.margin) == (3, line["num_items"], 3.0)
        assert (card.noise_floor, card.detectable_gap) == (line["noise_floor_points"], line["detectable_gap_points"])
        assert card.is_discovery == line["is_discovery"] == (line["q"] < 0.05)
        assert f"{line['first']} and {line['second']} score differently (accuracy)" in card.claim
    assert len({card.id for card in cards}) == 4


def test_a_planted_gap_is_supported_and_equal_arms_are_equivalent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [
        write_run(tmp_path / "runs", *case, right=right)
        for case, right in (
            (("none", 0), 0.95),
            (("none", 1), 0.95),
            (("none", 2), 0.95),
            (("backbone", 0), 0.55),
            (("backbone", 1), 0.55),
            (("backbone", 2), 0.55),
            (("embeddings", 0), 0.95),
            (("embeddings", 1), 0.95),
            (("embeddings", 2), 0.95),
        )
    ]
    cards = {card.id: card for card in write_cards(runs, "out", margin_points=5.0)}
    large = next(card for name, card in cards.items() if "feature extraction" in name and "validation" in name)
    assert large.verdict == "supported"
    assert large.value > 30
    # The fake answers depend on the seed and the share of right ones only, so these two arms answer alike.
    equal = of_kind(cards.values(), "forbid")
    assert [card.verdict for card in equal] == ["equivalent"]
    assert equal[0].value == 0
    assert "on validation, tiny on toy" in equal[0].claim  # the reported split
    assert "free and forbidden to drift the scores differ" in equal[0].claim


@pytest.mark.parametrize("alone", [None, ("none", 1e-3), ("embeddings", 1e-3)])
def test_forbidding_pairs_arms_that_differ_in_nothing_else_where_there_are_such(read_run, tmp_path, monkeypatch, alone):
    """Seen: full fine-tuning at one learning rate held against frozen embeddings at another."""
    monkeypatch.chdir(tmp_path)
    cases = [case for case in product(("none", "embeddings"), (1e-5, 1e-4, 1e-3)) if case != alone]
    rates = {
        read_run(regime, seed, config={"learning_rate": rate}).path: rate for regime, rate in cases for seed in range(2)
    }
    cards = of_kind(write_cards(list(rates), "out"), "forbid")
    found = [{rate for path, rate in rates.items() if path.name in card.inputs["runs"]} for card in cards]
    assert sorted(found, key=min) == [{rate} for rate in ((1e-5, 1e-4) if alone else (1e-5, 1e-4, 1e-3))]


def test_tuned_arms_that_never_differ_in_the_freeze_alone_are_still_held_against_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [
        write_run(tmp_path / "runs", regime, seed, config={"learning_rate": rate})
        for regime, rate in (("none", 1e-4), ("embeddings", 1e-5))
        for seed in range(2)
    ]
    assert len(of_kind(write_cards(runs, "out"), "forbid")) == 1


FULL, PROBE, FIXED = "full fine-tuning", "feature extraction", "embeddings frozen"


@pytest.mark.parametrize("pairs", [None, [(FIXED, FULL), (FULL, PROBE)], [(FULL, PROBE)]])
def test_forbid_cards_have_the_q_of_their_line_in_the_comparison(logged, pairs):
    """Whichever way round it was compared; a pair that was not compared has the q that it would have had."""
    runs = logged()
    (card,) = of_kind(write_cards(runs, "out", pairs=pairs), "forbid")
    table = compare(runs, pairs=pairs, num_draws=0)
    if pairs is not None and (FIXED, FULL) not in pairs:
        alone = compare(runs, num_draws=0).query("second == @FIXED and split == 'validation'")["p"].item()
        expected = benjamini_hochberg([*table["p"], alone])[-1]
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


def test_a_pair_without_a_common_seed_is_said_to_be_not_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [write_run(tmp_path / "runs", regime, seed) for regime, seed in (("none", 0), ("backbone", 1))]
    (card,) = of_kind(write_cards(runs, "out"), "score")
    assert (card.verdict, card.reason, card.num_seeds) == (
        "not measurable here",
        "not compared: no seed in common",
        0,
    )


def test_a_collapsed_regression_seed_counts_on_the_card_and_its_seeds_are_honest(tmp_path, monkeypatch):
    """The same from the runs as from the evidence, in which a column of nothing but NaN has no place."""
    monkeypatch.chdir(tmp_path)
    runs = [
        write_run(tmp_path / "runs", r, s, is_regression=True, is_constant=r == "backbone" and s == 2)
        for r in ("none", "backbone")
        for s in range(3)
    ]
    card = next(card for card in of_kind(write_cards(runs, "out"), "score") if "/ validation /" in card.id)
    line = compare(runs).query("split == 'validation'").to_dict("records")[0]
    assert card.value == pytest.approx(line["difference_points"])
    assert card.value > 20
    assert card.num_seeds == line["num_seeds"] == 3
    assert (line["num_failed_first"], line["num_failed_second"]) == (0, 1)


def test_items_that_differ_are_refused_with_their_note(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [write_run(tmp_path / "runs", regime, 0) for regime in ("none", "backbone")]
    path = runs[1].path / "predictions.parquet"
    table = pd.read_parquet(path)
    table[table["id"] != 3].to_parquet(path, index=False)
    RunWriter(runs[1].path).finish({k: v for k, v in runs[1].manifest.items() if k not in ("format", "files")})
    cards = of_kind(write_cards([run.path for run in runs], "out"), "score")
    assert {card.verdict for card in cards} == {"not measurable here"}
    assert all(card.reason == "not compared: other items or labels" for card in cards)


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
        text = json.dumps(written, allow_nan=False)
        assert Card.from_dict(json.loads(text)).to_dict() == written
        assert written["value"] is None or written["value"] == pytest.approx(card.value, rel=1e-9, abs=0)
        assert written["verdict"] in VERDICTS
    with pytest.raises(ValueError, match="a card has the fields"):
        Card.from_dict({k: v for k, v in written.items() if k != "value"})
    with pytest.raises(ValueError, match="unknown verdict"):
        Card.from_dict({**written, "verdict": "suported"})


def test_every_card_names_what_it_is_recomputed_from(cards, out):
    hashes = read_evidence(out).hashes
    for card in cards:
        assert card.inputs["files"]
        assert card.inputs["files"].items() <= hashes.items()
        assert card.inputs["runs"]
        assert all(len(digest) == 64 for digest in card.inputs["runs"].values())


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}', '{"format": 9, "cards": [], "evidence": {}}'])
def test_a_file_that_is_no_list_of_cards_is_one_clear_line(tmp_path, content):
    with pytest.raises(ValueError, match=r"has no cards\.json"):
        load_cards(tmp_path)
    save_cards([], tmp_path, {})
    (tmp_path / "cards.json").write_text(content)
    with pytest.raises(ValueError, match=r"cards\.json") as error:
        load_cards(tmp_path)
    assert "\n" not in str(error.value)
