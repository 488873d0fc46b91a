"""A planted study gets the cards that it should; a card survives its file, and comes from the evidence alone."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.analysis.comparison.conftest import write_logged_run
from tests.run_directories import write_run
from toolkit.analysis.comparison.card import Card, load_cards, save_cards
from toolkit.analysis.comparison.cards import make_cards, write_cards
from toolkit.analysis.comparison.compare import compare
from toolkit.analysis.comparison.drift_cards import association_cards, spearman_interval
from toolkit.analysis.comparison.evidence import read_evidence, write_evidence
from toolkit.analysis.comparison.verdicts import VERDICTS
from toolkit.families import EMBEDDING_PARAMETERS


def of_kind(cards, kind):
    return [card for card in cards if card.kind == kind]


@pytest.fixture
def cards(logged):
    return write_cards(logged(), None, "out")


def test_each_pair_and_split_has_a_card_with_the_numbers_of_compare(logged):
    runs = logged()
    cards = of_kind(write_cards(runs, None, "out", margin_points=3.0), "score")
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
        assert ("higher than" in card.claim) == (card.value > 0)
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
    cards = {card.id: card for card in write_cards(runs, None, "out", margin_points=5.0)}
    large = next(card for name, card in cards.items() if "backbone" in name and "validation" in name)
    assert large.verdict == "supported"
    assert large.value > 30
    # The fake answers depend on the seed and the share of right ones only, so these two arms answer alike.
    equal = of_kind(cards.values(), "forbid")
    assert [card.verdict for card in equal] == ["equivalent"]
    assert equal[0].value == 0
    assert "on validation, tiny on toy" in equal[0].claim  # the reported split


def test_items_that_differ_are_refused_with_their_note(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [write_run(tmp_path / "runs", regime, 0) for regime in ("none", "backbone")]
    path = runs[1].path / "predictions.parquet"
    table = pd.read_parquet(path)
    table[table["id"] != 3].to_parquet(path, index=False)
    cards = of_kind(write_cards([run.path for run in runs], None, "out"), "score")
    assert {card.verdict for card in cards} == {"not identifiable"}
    assert all("other items" in card.reason for card in cards)


@pytest.mark.parametrize(("rate", "expected"), [(1e-5, "supported"), (1e-2, "not supported")])
def test_drift_above_noise_is_supported_and_below_it_is_not(tmp_path, monkeypatch, rate, expected):
    monkeypatch.chdir(tmp_path)
    runs = [write_logged_run(tmp_path / "runs", "none", seed, rate) for seed in range(4)]
    cards = {card.id.rsplit(" / ")[-1]: card for card in of_kind(write_cards(runs, None, "out"), "drift")}
    assert list(cards) == list(EMBEDDING_PARAMETERS)
    verdicts = {name: card.verdict for name, card in cards.items()}
    assert verdicts.pop("token_type_embeddings") == "not identifiable"  # single sentences show one row
    for name in ("LayerNorm.weight", "LayerNorm.bias"):
        assert verdicts.pop(name) == "not identifiable"
        assert "sizes of its gradients were not recorded" in cards[name].reason
    assert set(verdicts.values()) == {expected}
    words = cards["word_embeddings"]
    assert (words.value > 1) == (expected == "supported")
    assert words.noise_floor == pytest.approx(math.sqrt(2) * words.value, rel=0.1)
    assert "gradients were not recorded" not in words.reason


def test_one_seed_supports_no_drift(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cards = write_cards([write_logged_run(tmp_path / "runs", "none", 0, 1e-5)], None, "out")
    words = next(card for card in of_kind(cards, "drift") if "word" in card.id)
    assert words.verdict == "under-powered"
    assert words.value > 1


def test_common_offsets_are_never_identifiable_and_what_is_frozen_has_no_card(cards):
    offsets = of_kind(cards, "offset")
    assert [card.verdict for card in offsets] == ["not identifiable"]
    assert 0 <= offsets[0].value <= 1
    assert "full fine-tuning" in offsets[0].id
    assert all("full fine-tuning" in card.id for card in of_kind(cards, "drift"))


def joined_of(num_tasks, noise=0.0, seeds=2, seed=0):
    """Tasks on which drift and gain rise together, up to ``noise``."""
    rng = np.random.default_rng(seed)
    lines = []
    for task in range(num_tasks):
        gain = task + noise * rng.normal()
        for run in range(seeds):
            line = {"group": f"tiny on t{task}", "model": "tiny", "task": f"t{task}", "arm": "full", "base": "full"}
            line |= {"num_train_examples": 10, "run": f"r{task}-{run}", "seed": run, "epoch": 3.0, "is_frozen": False}
            lines.append(line | {"parameter": "word_embeddings", "relative": 0.01 * (task + 1), "gain_points": gain})
    return pd.DataFrame(lines)


def association(evidence, joined):
    facts = {name: {"manifest_sha256": "0"} for name in joined["run"]}
    return next(iter(association_cards(replace(evidence, joined=joined, facts=facts))))


def test_association_is_refused_under_six_tasks_and_found_when_planted(logged):
    evidence = write_evidence(logged(1), None, "out")
    five, twelve = association(evidence, joined_of(5)), association(evidence, joined_of(12))
    assert (five.verdict, five.num_items) == ("not identifiable", 5)
    assert "at least 6" in five.reason
    assert (twelve.verdict, twelve.num_items, twelve.num_seeds) == ("supported", 12, 24)
    silent = [association(evidence, joined_of(12, noise=1e4, seed=seed)).verdict for seed in range(20)]
    assert silent.count("supported") <= 4


def test_more_runs_are_no_more_points(logged):
    evidence = write_evidence(logged(1), None, "out")
    few, many = (association(evidence, joined_of(7, 3.0, seeds)) for seeds in (1, 9))
    assert few.num_items == many.num_items == 7
    assert few.interval == many.interval


def test_the_interval_of_a_rank_correlation_covers():
    """Bivariate normal with a Spearman correlation of .48, twelve points: about 95 % of intervals hold it."""
    from scipy.stats import spearmanr

    rng, rho = np.random.default_rng(0), 0.5
    true = 6 / np.pi * np.arcsin(rho / 2)
    hits = []
    for _ in range(400):
        x, y = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], 12).T
        low, high = spearman_interval(float(spearmanr(x, y).statistic), 12, 0.95)
        hits.append(low <= true <= high)
    assert 0.92 <= np.mean(hits) <= 0.98
    assert all(math.isnan(end) for end in (*spearman_interval(0.5, 3, 0.95), *spearman_interval(math.nan, 9, 0.95)))
    low, high = spearman_interval(1.0, 6, 0.95)
    assert low < high < 1


def test_cards_come_from_the_evidence_alone_and_are_the_same(cards):
    shutil.rmtree("runs")
    again = make_cards("out")
    assert [card.to_dict() for card in again] == [card.to_dict() for card in cards] == load_cards("out")[0]
    assert json.dumps([card.to_dict() for card in again]) == json.dumps(load_cards("out")[0])


def test_the_order_of_runs_does_not_matter_to_any_number(logged):
    runs = logged()
    one, other = write_cards(runs, None, "one"), write_cards(runs[::-1], None, "two")
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


def test_every_card_names_what_it_is_recomputed_from(cards):
    hashes = read_evidence("out").hashes
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
