"""Recall of an old index against planted maps and chance; its command on two tiny checkpoints."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, hypergeom, ortho_group

from tests.chart_data import values_of
from tests.planted_weights import altered
from tests.refusals import check_refused
from toolkit.questions.models import encode_texts, open_model
from toolkit.questions.reindexing import measure as probe
from toolkit.questions.reindexing import page as topic
from toolkit.questions.reindexing.command import ReindexCommand
from toolkit.questions.reindexing.measure import (
    AS_IS,
    KEEP,
    KEPT,
    LINEAR,
    MAP,
    REINDEX,
    UNSURE,
    advise,
    compare_vectors,
    measure_reindexing,
    recall_interval,
)

HIDDEN, NUM, QUERIES = 8, 200, 80


def drawn(seed: int, num: int = NUM, hidden: int = HIDDEN) -> Any:
    return np.random.default_rng(seed).normal(size=(num, hidden))


def lines_of(before: Any, after: Any, queries: Any, **options: Any) -> pd.DataFrame:
    return compare_vectors(before, after, queries, **{"k": 5, "num_null": 50} | options).set_index("measure")


def test_the_same_vectors_find_all() -> None:
    found = compare_vectors(drawn(0), drawn(0), drawn(1, QUERIES), k=5, num_null=20)
    assert found["value"].tolist()[:2] == [1, 1]
    line = found.set_index("measure").loc[AS_IS]
    # Equal vectors of these texts: another query may still be of what changed.
    assert (line["high"], line["note"]) == (1, probe.ALL_EQUAL)
    assert 0.95 < line["low"] < 1
    assert advise(found, 0.95, 0.95) == (KEEP, "")


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_a_planted_rotation_is_mapped_back_whole(scale: float) -> None:
    """Neighbours are all kept, the old index is useless as it is, the map makes it whole; lengths do not count."""
    turn = scale * ortho_group.rvs(HIDDEN, random_state=3)
    found = lines_of(drawn(0), drawn(0) @ turn, drawn(1, QUERIES) @ turn)
    assert found.loc[[KEPT, LINEAR], "value"].tolist() == [1, 1]
    assert found.loc[AS_IS, "value"] < 0.3
    assert advise(found.reset_index(), 0.95, 0.95) == (MAP, "")
    assert found.loc[LINEAR, "note"] == probe.ALL_EQUAL


def test_a_planted_stretch_needs_the_linear_map() -> None:
    stretch = np.diag(np.geomspace(0.2, 5, HIDDEN)) @ ortho_group.rvs(HIDDEN, random_state=3)
    rows = drawn(0) / np.linalg.norm(drawn(0), axis=1, keepdims=True)
    found = lines_of(rows, rows @ stretch, drawn(1, QUERIES) @ stretch)
    assert found.loc[LINEAR, "value"] > found.loc[AS_IS, "value"] + 0.1


def test_maps_are_tried_on_texts_that_they_were_not_fitted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise can be fitted, but not found again: in-sample a map of as many numbers as texts would be perfect."""
    assert lines_of(drawn(0, 40), drawn(1, 40), drawn(2, QUERIES)).loc[LINEAR, "value"] < 0.4
    fitted = probe.fit_linear(drawn(0), drawn(0)[:, ::-1] + 1)
    np.testing.assert_allclose(fitted(drawn(5)), drawn(5)[:, ::-1] + 1, atol=1e-6)
    seen: list[tuple[int, int]] = []  # how many texts a map is fitted on, and numbers of another text among them

    def fit(before: Any, after: Any) -> Callable[[Any], Any]:
        seen.append((len(before), (after != before).sum()))
        known = {tuple(row) for row in before}

        def apply(rows: Any) -> Any:
            assert not known & {tuple(row) for row in rows}
            return rows

        return apply

    monkeypatch.setattr(probe, "fit_linear", fit)
    assert np.array_equal(probe.map_by_folds(drawn(0), drawn(0), 0), drawn(0))
    assert seen == [(160, 0)] * 5


def test_unrelated_vectors_find_what_chance_finds() -> None:
    """Each of the k found rows is a true one with chance k / n; the mean of m queries varies as hypergeometric ones."""
    k, num, queries = 5, 100, 400
    found = lines_of(drawn(0, num), drawn(1, num), drawn(2, queries), k=k, num_null=200)
    one = hypergeom(num, k, k)
    assert found.loc[AS_IS, "chance"] == pytest.approx(one.mean() / k)
    assert abs(found.loc[AS_IS, "value"] - k / num) < 5 * one.std() / k / queries**0.5
    assert found.loc[KEPT, "chance"] == pytest.approx(hypergeom(num - 1, k, k).mean() / k)
    for name in (AS_IS, KEPT, LINEAR):
        line = found.loc[name]
        # What is left of noise out of sample lies a little below chance: a fold lies opposite to the mean of the rest.
        assert line["null_low"] <= line["value"] or name == LINEAR
        assert line["value"] <= line["null_high"]
        assert abs(line["null"] - line["chance"]) < 4 * line["null_sd"] / 200**0.5
    assert advise(found.reset_index(), 0.95, 0.95) == (REINDEX, "")


def test_the_null_is_wide_where_all_queries_find_the_same() -> None:
    """All queries in one direction: their common list is right or wrong as a whole."""
    num, same = 100, np.tile(drawn(3, 1), (QUERIES, 1))
    alike = lines_of(drawn(0, num), drawn(1, num), same, num_null=100).loc[AS_IS]
    other = lines_of(drawn(0, num), drawn(1, num), drawn(2, QUERIES), num_null=100).loc[AS_IS]
    assert alike["null_sd"] > 4 * other["null_sd"]


def test_recall_is_that_of_a_slow_search() -> None:
    before, after, queries, k = drawn(0, 30), drawn(0, 30) + 0.5 * drawn(1, 30), drawn(2, 20), 4

    def nearest(query: Any, rows: Any) -> set[int]:
        cosines = [row @ query / np.linalg.norm(row) for row in rows]
        return set(sorted(range(len(rows)), key=lambda i: -cosines[i])[:k])

    expected = np.mean([len(nearest(q, before) & nearest(q, after)) / k for q in queries])
    found = lines_of(before, after, queries, k=k)
    assert found.loc[AS_IS, "value"] == pytest.approx(expected)
    kept = [
        len(nearest(before[i], np.delete(before, i, 0)) & nearest(after[i], np.delete(after, i, 0))) / k
        for i in range(30)
    ]
    assert found.loc[KEPT, "value"] == pytest.approx(np.mean(kept))


def test_lengths_of_vectors_do_not_count() -> None:
    rows = drawn(0), drawn(0) + 0.5 * drawn(1), drawn(2, QUERIES)
    longer = [own * np.random.default_rng(5).uniform(0.1, 10, (len(own), 1)) for own in rows]
    pd.testing.assert_frame_equal(lines_of(*rows), lines_of(*longer))


def test_what_has_no_number_says_why() -> None:
    wide = lines_of(drawn(0), drawn(0) @ drawn(4, HIDDEN, 12), drawn(1, QUERIES) @ drawn(4, HIDDEN, 12))
    assert np.isnan(wide.loc[AS_IS, "value"])
    assert wide.loc[AS_IS, "reason"] == "not applicable: vectors of 8 numbers before and 12 after have no cosine"
    assert wide.loc[LINEAR, "value"] > 0.5
    few = lines_of(drawn(0, 18), drawn(1, 18), drawn(2, QUERIES))
    assert np.isnan(few.loc[LINEAR, "value"])
    said = "too few texts: a map of 8 numbers is fitted on 16 texts or more, there are 14"
    assert few.loc[LINEAR, "reason"] == said
    assert advise(few.reset_index(), 0.95, 0.95) == (REINDEX, said)
    assert lines_of(drawn(0, 20), drawn(1, 20), drawn(2, QUERIES)).loc[LINEAR, "reason"] == ""  # 16 are enough


@pytest.mark.parametrize("mean", [0.3, 0.9])
def test_the_interval_holds_the_value_and_covers_the_truth(mean: float) -> None:
    rng, held = np.random.default_rng(7), []
    for seed in range(150):
        values = rng.binomial(10, rng.beta(4 * mean, 4 * (1 - mean), 120)) / 10  # queries differ, beyond the binomial
        low, high, _ = recall_interval(values, seed)
        assert low < values.mean() < high
        held.append(low <= mean <= high)
    assert 0.88 <= np.mean(held) <= 0.99


@pytest.mark.parametrize("value", [0.0, 0.4, 1.0])
def test_equal_queries_have_an_exact_interval(value: float) -> None:
    low, high, note = recall_interval(np.full(120, value))
    assert note == probe.ALL_EQUAL
    assert (1 - (high - low)) ** 120 == pytest.approx(0.05)
    assert low == pytest.approx(value * 0.05 ** (1 / 120))
    few = recall_interval(np.full(20, value))
    oracle = binomtest(round(20 * value), 20).proportion_ci()
    assert few[:2] == pytest.approx((oracle.low, oracle.high))
    assert 0 <= few[0] <= low <= value <= high <= few[1] <= 1


@given(st.lists(st.integers(0, 10), min_size=1, max_size=130), st.data())
def test_worse_data_never_have_a_better_interval(shares: list[int], data: st.DataObject) -> None:
    """Nineteen perfect queries and one of .9 had .985 to 1 ("keep"), twenty perfect ones .861 to 1 ("cannot tell")."""
    worse = [data.draw(st.integers(0, share)) if i < 3 else share for i, share in enumerate(shares)]
    before, after = (np.array(recall_interval(np.array(own) / 10)[:2]) for own in (shares, worse))
    assert (after <= before + 1e-12).all()
    assert 0 <= after[0] <= np.mean(worse) / 10 + 1e-12 <= after[1] + 2e-12 <= 1 + 1e-11


@pytest.mark.parametrize("num", [20, 50, 100])
@pytest.mark.parametrize(("mean", "at"), [(0.93, 0.95), (0.895, 0.95), (0.69, 0.7)])
@pytest.mark.parametrize("kind", ["all or nothing", "some lost", "beta"])
def test_few_queries_seldom_keep_an_index_that_should_not_be_kept(kind: str, mean: float, at: float, num: int) -> None:
    """The bootstrap alone kept in .23 (20 queries), .04 (50) and .02 (100) of those of which some are lost whole, at a
    true recall of .93, and in .07 (20) of all-or-nothing ones at .69; with the exact bound in .00 to .02."""
    rng = np.random.default_rng([num, round(1000 * mean)])
    rates = rng.beta(4 * mean, 4 * (1 - mean), (200, num))
    drawn = {
        "all or nothing": (rng.random((200, num)) < mean).astype(float),
        "some lost": (rng.random((200, num)) < mean / 0.99) * rng.binomial(10, 0.99, (200, num)) / 10,
        "beta": rng.binomial(10, rates) / 10,
    }
    assert np.mean([recall_interval(values, i)[0] >= at for i, values in enumerate(drawn[kind])]) <= 0.05


def test_a_hundred_queries_keep_an_index_that_is_whole() -> None:
    rng = np.random.default_rng(2)
    assert np.mean([recall_interval(1 - (rng.random(100) < 0.05) / 10)[0] >= 0.95 for _ in range(100)]) > 0.95


@pytest.mark.parametrize(
    ("as_is", "linear", "advice"),
    [
        ((0.96, 0.99), (0.2, 0.3), KEEP),
        ((0.95, 0.99), (0.2, 0.3), KEEP),
        ((0.94, 0.96), (0.97, 0.99), UNSURE),
        ((0.2, 0.3), (0.95, 0.99), MAP),
        ((0.2, 0.3), (0.9, 0.97), UNSURE),
        ((0.2, 0.3), (0.8, 0.9), REINDEX),
        ((np.nan, np.nan), (0.96, 0.97), MAP),
        ((0.2, 0.3), (np.nan, np.nan), REINDEX),
    ],
)
def test_the_advice_is_what_the_intervals_say(as_is: Any, linear: Any, advice: str) -> None:
    ends = np.array([as_is, linear])
    table = pd.DataFrame({"measure": [AS_IS, LINEAR], "low": ends[:, 0], "high": ends[:, 1], "reason": ""})
    said, reason = advise(table, 0.95, 0.95)
    assert said == advice
    assert ("holds the threshold" in reason) == (advice == UNSURE)
    assert advise(table.assign(low=0.5, high=0.6), 0.5, 0.5)[0] == KEEP


@pytest.fixture(scope="module")
def texts(tiny_files: Callable[[str], dict[str, Any]]) -> list[str]:
    lines = Path(tiny_files("polarity")["train_file"]).read_text().splitlines()[1:]
    return list(dict.fromkeys(line.split("\t")[0] for line in lines))


@pytest.fixture(scope="module")
def other(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same architecture and tokenizer, other random weights."""
    import torch
    from transformers import AutoConfig, AutoModel

    folder = tmp_path_factory.mktemp("other") / "model"
    shutil.copytree(tiny_model("bert"), folder)
    torch.manual_seed(11)
    AutoModel.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return str(folder)


def test_queries_are_read_by_the_tuned_model(tiny_model: Callable[[str], Path], other: str, texts: list[str]) -> None:
    stored, asked = texts[:40], texts[40:]
    tables = measure_reindexing(str(tiny_model("bert")), other, stored, queries=asked, k=3)
    (before, said, _), (after, *_) = (probe.open_reader(name, None) for name in (str(tiny_model("bert")), other))
    assert tables["verdict"]["pooling"].tolist() == [said] == ["mean, of 48 tokens at most"]

    def vectors(read: Any, own: list[str]) -> Any:
        return read([(text,) for text in own]).vectors(np.arange(len(own)))

    sides = vectors(before, stored), vectors(after, stored), vectors(after, asked)
    pd.testing.assert_frame_equal(tables["recall"], compare_vectors(*sides, k=3))


def test_of_a_word_that_no_text_uses_equal_vectors_tell_nothing(
    tiny_model: Callable[[str], Path], texts: list[str], tmp_path: Path
) -> None:
    def turn(tensors: dict[str, np.ndarray]) -> None:
        tensors["embeddings.word_embeddings.weight"][-1] += 1  # a row to spare, beyond the tokenizer

    other = altered(tiny_model("bert"), tmp_path / "other", turn)
    line = measure_reindexing(str(tiny_model("bert")), str(other), texts, k=3)["recall"].set_index("measure").loc[AS_IS]
    assert (line["value"], line["high"], line["note"]) == (1, 1, probe.ALL_EQUAL)
    assert line["low"] < 1
    same = measure_reindexing(str(tiny_model("bert")), str(tiny_model("bert")), texts, k=3)["recall"].set_index(
        "measure"
    )
    assert (same.loc[AS_IS, "low"], same.loc[AS_IS, "note"]) == (1, probe.ALL_SAME)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_model_beside_itself_keeps_its_index(
    tiny_model: Callable[[str], Path], texts: list[str], pooling: str
) -> None:
    model = str(tiny_model("bert"))
    tables = measure_reindexing(model, model, [*texts, texts[0], texts[1].upper()], k=3, num_null=20, pooling=pooling)
    (verdict,) = tables["verdict"].to_dict("records")
    assert verdict["advice"] == KEEP
    assert verdict["first"] != verdict["second"]
    assert tables["recall"]["value"].tolist()[:2] == [1, 1]
    # Identical texts, and those that differ in what the tokenizer folds, are counted once.
    assert verdict["note"].startswith(f"2 of {len(texts) + 2} texts are counted once")
    assert verdict["num_texts"] + verdict["num_queries"] == len(texts)


def test_a_model_of_random_weights_needs_a_new_index(
    tiny_model: Callable[[str], Path], other: str, texts: list[str]
) -> None:
    tables = measure_reindexing(str(tiny_model("bert")), other, texts, k=3)
    line = tables["recall"].set_index("measure").loc[AS_IS]
    assert line["null_low"] <= line["value"] <= line["null_high"]
    assert tables["verdict"]["advice"].tolist() == [REINDEX]


def test_vectors_are_those_of_one_text_at_a_time(tiny_model: Callable[[str], Path], texts: list[str]) -> None:
    """By the model itself, without batches or padding."""
    import torch

    model = str(tiny_model("bert"))
    chosen = np.array([5, 0, 17, 3, 9, 1])
    for pooling in ("mean", "cls", "last"):
        read, *_ = probe.open_reader(model, pooling)
        found = read([(text,) for text in texts]).vectors(chosen)
        loaded = open_model(model)
        for row, text in zip(found, chosen, strict=True):
            ids = loaded.tokenizer(texts[text], return_tensors="pt")["input_ids"]
            with torch.no_grad():
                states = loaded.model.backbone(ids).last_hidden_state[0]
            np.testing.assert_allclose(
                row, {"mean": states.mean(dim=0), "cls": states[0], "last": states[-1]}[pooling], atol=1e-5
            )
    assert encode_texts(loaded, [(texts[0],)]).splits["train"].num_truncated == 0


def test_the_first_token_of_a_decoder_tells_nothing_of_a_text(
    tiny_model: Callable[[str], Path], texts: list[str]
) -> None:
    model = str(tiny_model("llama"))
    with pytest.raises(ValueError, match="--pooling cls: in Llama the first token sees no other"):
        measure_reindexing(model, model, texts, k=3, pooling="cls")
    tables = measure_reindexing(model, model, texts, k=3, pooling="last", num_null=5)
    assert tables["verdict"]["advice"].tolist() == [KEEP]


def test_a_wider_model_with_another_family_is_compared(tiny_model: Callable[[str], Path], texts: list[str]) -> None:
    tables = measure_reindexing(str(tiny_model("bert")), str(tiny_model("roberta")), texts, k=3, num_null=5)
    assert tables["recall"]["value"].notna().all()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no file": ({"texts": "nowhere.csv"}, "no file at nowhere.csv"),
    "too few texts": ({"texts": ["a", "the"]}, "at least 2k = 20 different texts is needed; there are 2"),
    "no text": ({"texts": []}, "texts has no text"),
    "an empty text": ({"texts": ["a", " "]}, "row 2: the text is empty"),
    "no queries": ({"queries": []}, "queries has no text"),
    "k": ({"k": 0}, "k must be a whole number of at least 1; got 0"),
    "pooling": ({"pooling": "max"}, "unknown pooling 'max'"),
    "threshold": ({"keep_at": 1.5}, "keep_at is a recall, above 0 and at most 1; got 1.5"),
    "model": ({"before": "nowhere"}, "nowhere"),
    "alike": ({"texts": ["the book"] * 30}, "at least 2k = 20 different texts is needed; there are 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(name: str, tiny_model: Callable[[str], Path], texts: list[str]) -> None:
    changes, said = BAD[name]
    options: dict[str, Any] = {"before": str(tiny_model("bert")), "after": str(tiny_model("bert")), "texts": texts}
    with pytest.raises(ValueError, match=said) as raised:
        measure_reindexing(**options | changes)
    assert "\n" not in str(raised.value)


def test_the_command_writes_its_page(
    tiny_model: Callable[[str], Path],
    other: str,
    tiny_files: Callable[[str], dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = tiny_files("polarity")
    command = ReindexCommand(
        before=str(tiny_model("bert")),
        after=other,
        texts=Path(files["train_file"]),
        queries=Path(files["validation_file"]),
        k=3,
        out=tmp_path / "report",
    )
    assert command.run() == 0
    assert "Must I re-index? re-index." in capsys.readouterr().out
    assert "--texts train.tsv --queries validation.tsv --k 3" in (tmp_path / "report" / "report.md").read_text()
    recall = pd.read_csv(tmp_path / "report" / "tables" / "recall.csv")
    assert recall["measure"].tolist() == [KEPT, AS_IS, LINEAR]
    assert recall["num_queries"].iloc[1] == 24
    assert (tmp_path / "report" / "figures" / "recall.png").is_file()
    check_refused("no file at", replace(command, texts=tmp_path / "gone.csv").run)


def test_the_page_says_what_the_tables_say() -> None:
    turn = ortho_group.rvs(HIDDEN, random_state=3)
    found = compare_vectors(drawn(0), drawn(0) @ turn, drawn(1, QUERIES) @ turn, k=5, num_null=20)
    line = {
        "first": "a",
        "second": "b",
        "pooling": "mean",
        "num_neighbours": 5,
        "num_texts": NUM,
        "reason": "",
        "num_queries": QUERIES,
        "keep_at": 0.95,
        "map_at": 0.9,
        "advice": MAP,
        "note": "",
    }
    tables = {"verdict": pd.DataFrame([line]), "recall": found}
    page = topic.reindex_page(tables)
    assert page.answers[0].verdict == MAP
    assert f"{AS_IS} {found['value'][1]:.3f} (" in page.answers[0].text
    shown = {value["measure"]: value["value"] for value in values_of(topic.plot_recall(tables)) if "measure" in value}
    assert shown == pytest.approx(found.set_index("measure")["value"].drop(KEPT).to_dict() | {"embedded again": 1})
    few = compare_vectors(drawn(0, 18), drawn(1, 18), drawn(2, QUERIES), k=5, num_null=5)
    drawn_names = {value["measure"] for value in values_of(topic.plot_recall(tables | {"recall": few})) if value}
    assert drawn_names == {AS_IS, "embedded again"}


def collapsed(copies: int, seed: int) -> Any:
    """Vectors that stand for this many texts each, but for rounding."""
    return 3 * drawn(1)[np.arange(NUM) // copies] + 1e-8 * drawn(seed)


K = 5


@pytest.mark.parametrize("side", ["BEFORE", "AFTER"])
@pytest.mark.parametrize("copies", [NUM, 40, K + 1, K, 4])
def test_where_rounding_decides_which_are_nearest_there_is_no_answer(side: str, copies: int) -> None:
    """A model that is the same but for rounding looked as if its vectors had to be stored again."""
    vectors = [collapsed(copies, 2), collapsed(copies, 4)]
    plain = drawn(0)
    sides = (vectors[0], plain) if side == "BEFORE" else (plain, vectors[0])
    with pytest.raises(ValueError, match=f"{side} gives many texts nearly the same vector: of the {K} ") as caught:
        compare_vectors(*sides, drawn(3, QUERIES), k=K, num_null=5)
    assert "\n" not in str(caught.value)
    truth = probe.search(vectors[1], drawn(3, QUERIES), K)
    by_rounding = probe.neighbours_kept(*vectors, K, 0, 0)[0].mean()
    assert min(by_rounding, probe.recall(truth, vectors[0], drawn(3, QUERIES), 0, 0)[0].mean()) < probe.LEAST_SETTLED


def test_where_rounding_decides_nothing_there_is_an_answer() -> None:
    assert lines_of(collapsed(1, 2), collapsed(1, 4), drawn(3, QUERIES), k=K)["value"].tolist()[:2] == [1, 1]


def test_a_few_texts_that_say_the_same_do_no_harm() -> None:
    rows = drawn(0)
    rows[:4] = rows[4:8]
    assert lines_of(rows, rows + 1e-8 * drawn(2), drawn(1, QUERIES))["value"].iloc[:2].tolist() == pytest.approx(
        [1, 1], abs=0.02
    )
