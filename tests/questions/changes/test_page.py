"""What the page of drift says of the kind of each change, and of the words that two checkpoints tell."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import toolkit
from tests.exits import exit_code_of
from tests.planted_weights import altered
from tests.questions.pages import page_of, section_of, tables_of
from tests.questions.test_drift_report import turn_positions
from tests.run_directories import MakeRun
from toolkit.questions.drift_report import show_drift
from toolkit.reporting.cells import number
from toolkit.reporting.render_markdown import render_markdown


def test_the_first_screen_shows_every_parameter_and_its_change(runs: list[toolkit.Run]) -> None:
    page = page_of([runs[0].path])
    table = toolkit.measure_changes(runs[0])
    assert [tile.title.replace(" ", "_") for tile in page.tiles] == list(table["parameter"])
    for tile, line in zip(page.tiles, table.to_dict("records"), strict=True):
        relative = line["relative_drift"]
        assert tile.value == ("undefined: was 0" if np.isnan(relative) else f"{number(100 * relative)} %")
    (kinds,) = tables_of(section_of(page, "kinds"))
    assert list(kinds["kind"]) == list(table["kind"])
    text = render_markdown(page)
    for value in 100 * table["relative_drift"].dropna():
        assert f"{number(value)} %" in text


def test_frozen_embeddings_are_0_exactly_and_what_was_0_is_undefined(
    runs: list[toolkit.Run], read_run: MakeRun
) -> None:
    assert render_markdown(page_of([runs[2].path])).count("0 exactly") == 5
    assert page_of([read_run("none", zero=("LayerNorm.bias",)).path]).tiles[-1].value == "undefined: was 0"


def test_rows_in_another_order_are_said_to_be_so(
    tiny_model: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tiny_model("bert")
    after = altered(before, tmp_path / "after", turn_positions)
    show_drift([before, after])
    assert "permuted rows" in capsys.readouterr().out
    text = render_markdown(page_of([before, after]))
    assert ("permuted rows" in text, text.count("0 exactly")) == (True, 4), "in tiles"
    assert "words not at all, positions by " in text


def test_two_checkpoints_tell_which_words_trained_the_second(
    tiny_model: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = {"word_embeddings": [8, 9, 11], "position_embeddings": range(7), "token_type_embeddings": [0]}

    def train(tensors: dict[str, np.ndarray]) -> None:
        for name, rows in used.items():
            (key,) = (n for n in tensors if n.endswith(f"{name}.weight"))
            tensors[key] = tensors[key] * np.float32(1 - 1e-4)
            tensors[key][list(rows)] += np.random.default_rng(0).normal(size=(len(rows), tensors[key].shape[1])) / 1000

    before = tiny_model("bert")
    after = altered(before, tmp_path / "after", train)
    assert exit_code_of("drift", before, after, "--out", tmp_path / "out") == 0
    tokens = toolkit.import_checkpoints([before]).trajectory.vocabulary.tokens
    said = f"Which words did training use? 3 of {len(tokens)} words."
    printed = " ".join(capsys.readouterr().out.split())
    written = (tmp_path / "out" / "report.md").read_text() + (tmp_path / "out" / "index.html").read_text()
    for text in (said, "Inferred from the weights, without a log. Its longest text had 7 tokens."):
        assert (text in printed, text in written) == (True, True), text
    assert "****" not in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    rows = pd.read_csv(tmp_path / "out" / "tables" / "inferred_rows.csv")
    first, last = (toolkit.import_checkpoints([x]).trajectory.at(0).tensors["word_embeddings"] for x in (before, after))
    with np.errstate(invalid="ignore"):  # the row of [PAD] is 0
        moved = 100 * np.linalg.norm(last - first, axis=1) / np.linalg.norm(first, axis=1)
    of_used, of_others = moved[used["word_embeddings"]].mean(), np.nanmean(np.delete(moved, used["word_embeddings"]))
    said = f"On average these moved by {number(of_used)} % of their norm, the others by {number(of_others)} %."
    assert said in printed
    for name, own in rows[rows["exposure"] == "exposed"].groupby("parameter"):
        assert list(own["row"]) == list(used[name])
    assert set(pd.read_csv(tmp_path / "out" / "tables" / "inferred_words.csv")["token"]) == {
        tokens[row] for row in used["word_embeddings"]
    }
    drift = toolkit.measure_drift(toolkit.infer_exposure(before, after).trajectory)
    strata = drift[drift["parameter"] == "word_embeddings"].groupby("stratum", observed=True)["num_rows"].first()
    assert strata["exposed (inferred)"] == 3
    counts = toolkit.measure_rows(toolkit.infer_exposure(before, after).trajectory, "word_embeddings")
    assert list(counts.index[counts["num_steps"].isna()]) == used["word_embeddings"]
    assert (counts["num_steps"].dropna() == 0).all()
