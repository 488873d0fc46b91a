"""What a report says of a study: the numbers of its tables, each refusal, and the same in Markdown as in HTML."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from toolkit import compare
from toolkit.analysis.comparison.arms import arrange
from toolkit.analysis.comparison.card import Span
from toolkit.analysis.comparison.cards import make_cards
from toolkit.analysis.comparison.evidence import write_evidence
from toolkit.analysis.comparison.verdicts import VERDICTS
from toolkit.reporting.cells import shown
from toolkit.reporting.columns import COLUMNS
from toolkit.reporting.comparison.comparison_section import mcnemar_counts, shown_comparison
from toolkit.reporting.comparison.data import find_runs
from toolkit.reporting.comparison.markdown_report import render_markdown
from toolkit.reporting.comparison.provenance import command_of_run
from toolkit.reporting.comparison.report import make_page, write_report
from toolkit.reporting.comparison.study_findings import report_findings
from toolkit.reporting.comparison.study_sections import study_sections
from toolkit.reporting.comparison.verdict_lines import (
    MOST_IN_OVERVIEW,
    group_of,
    line_of,
    not_listed,
    overview,
    verdicts_frame,
)
from toolkit.reporting.comparison.worth_sections import association_block
from toolkit.reporting.page.model import FoldBlock, Page, Section, TableBlock, TextBlock, VerdictLine
from toolkit.reporting.page.verdict_table import ICONS, VERDICT_HOW


def tables_of(blocks):
    """Every table, also under folds."""
    for block in blocks:
        if isinstance(block, TableBlock):
            yield block
        elif isinstance(block, FoldBlock):
            yield from tables_of(block.blocks)


@pytest.fixture(scope="module")
def cards_of(read_study, tmp_path_factory):
    """A function: arguments of ``read_study`` to the cards of its runs, made once."""

    @cache
    def get(tasks=("toy",), num_seeds=3):
        return make_cards(write_evidence(*read_study(tasks, num_seeds), tmp_path_factory.mktemp("evidence")))

    return get


def test_the_comparison_is_that_of_compare(read_study, data_of):
    runs, labels = read_study(num_seeds=3)
    data = data_of(runs, labels, margin_points=2.0)
    expected = compare(runs, labels=labels, margin_points=2.0)
    pd.testing.assert_frame_equal(data.comparison[list(expected.columns)], expected)
    (section,) = [each for each in study_sections(data) if each.id == "comparison"]
    cells = shown(next(tables_of(section.blocks)))
    line = dict(zip(cells.header, cells.rows[0], strict=True))
    first = expected.iloc[0]
    assert line["pair"] == "full fine-tuning minus embeddings frozen"
    assert line["difference (points)"] == f"{first['difference_points']:+.2f}"
    assert line["95 % interval (points)"] == f"{first['low_points']:+.2f} to {first['high_points']:+.2f}"
    assert line["verdict"] == first["verdict"]
    names = list(cells.header)
    assert names.index("smallest detectable gap (points)") < names.index("difference (points)")


def test_mcnemar_is_counted_over_seeds():
    seeds = pd.DataFrame({"group": "g", "first": "a", "second": "b", "split": "s", "mcnemar_p": [0.01, 0.2, np.nan]})
    assert mcnemar_counts(seeds) == {("g", "a", "b", "s"): "1 of 2"}


def test_regression_has_no_accuracy_words(read_run, data_of):
    runs = [read_run(regime, seed, is_regression=True) for regime in ("none", "backbone") for seed in range(3)]
    data = data_of(runs)
    assert set(shown_comparison(data.comparison, data.seeds)["mcnemar"]) == {"not applicable"}
    assert "Scores: pearson on validation, 3 seeds;" in report_findings(data)[0]


@pytest.mark.usefixtures("undrawn")
def test_tuning_is_printed_with_its_budget(study):
    runs, labels = study(num_seeds=2)
    tuning = pd.DataFrame(
        [
            {
                "task": "toy",
                "arm": arm,
                "setting": i,
                "fields": f"learning_rate {rate}",
                "num_seeds": 1,
                "num_items": 20,
            }
            | {"split": "selection", "score": "accuracy", "mean_score": 0.5, "is_chosen": i == 0}
            for arm in ("full fine-tuning", "feature extraction")
            for i, rate in enumerate((1e-5, 5e-5))
        ]
    )
    text = write_report(runs, "out", labels=labels, tuning=tuning).read_text()
    assert "chosen on part of train with 1 seed each: the intervals do not cover that choice" in text
    section = text.split("## Tuning")[1].split("\n## ")[0]
    assert "the same budget (2 settings per task)" in section
    assert section.count("| full fine-tuning |") == 2
    assert len(pd.read_csv("out/tables/tuning.csv")) == 4
    assert Path("out/tables/tuning.tex").exists()


@pytest.mark.usefixtures("undrawn")
def test_many_runs_give_a_line_per_arm_and_a_short_text(study):
    runs, labels = study(tasks=("a", "b", "c", "d", "e"), num_seeds=1)
    text = write_report(runs, "out", labels=labels, command="make all").read_text()
    assert all(run.path.name not in text for run in runs)
    assert "```bash\nmake all\n```" in text
    assert "Each of the 15 runs, with its command, is in tables/runs.csv." in text
    assert set(pd.read_csv("out/tables/runs.csv")["run"]) == {run.path.name for run in runs}
    assert len(text.splitlines()) < 400


def test_cards_and_lines_agree(cards_of):
    cards = cards_of(num_seeds=3)
    lines = overview(cards)
    by_claim = {card.claim: card for card in cards}
    for line in lines:
        if line.claim in by_claim:
            card = by_claim[line.claim]
            assert line.verdict == card.verdict
            assert (line.low, line.high) == (card.deciding.low, card.deciding.high) or line.low != line.low
            assert card.reason[1:] in line.detail
    groups = [line.group for line in lines]
    assert groups == sorted(groups, key=groups.index)  # lines of one group follow one another
    forbidden = {card.id.partition(": ")[2] for card in cards if card.kind == "forbid"}
    assert len(forbidden) == 1
    assert sum("validation" in line.claim and "embeddings frozen" in line.claim for line in lines) == 1


def test_the_interval_that_decided_is_the_one_that_is_shown(cards_of):
    card = next(card for card in cards_of(num_seeds=3) if card.kind == "score")
    wide, narrow = Span(-1.2, 0.4, 0.95), Span(-0.9, 0.1, 0.9)
    for verdict in VERDICTS:
        own = replace(card, interval=wide, equivalence=narrow, margin=1.0, value=-0.4, verdict=verdict)
        shown = line_of(own)
        assert (shown.interval == "-0.90 to +0.10 (90 %)") == (verdict == "equivalent")
        assert (shown.interval == "-1.20 to +0.40 (95 %)") == (verdict != "equivalent")
        assert (-own.margin < shown.low) == (verdict == "equivalent")  # as drawn, within the shaded margin
        (row,) = verdicts_frame([own]).to_dict("records")
        assert (row["low"], row["high"], row["level"]) == (
            (-0.9, 0.1, 0.9) if verdict == "equivalent" else (-1.2, 0.4, 0.95)
        )


def test_one_line_for_associations_that_one_reason_refuses(cards_of):
    cards = cards_of(num_seeds=2)
    refused = [card for card in cards if card.kind == "association"]
    assert len(refused) > 1
    assert sum(line.group == "Across tasks" for line in overview(cards)) == len({card.reason for card in refused})
    assert all(group_of(card) == "" for card in refused)
    again = [replace(card, id=card.id.replace("full fine-tuning", "LP-FT"), reason="other") for card in refused]
    claims = [line.claim for line in overview([*refused, *again])]
    assert len(set(claims)) == len(claims) > 1  # two reasons are two claims, and they read as two
    assert "word_embeddings" in claims[0]
    assert claims[0].endswith("under full fine-tuning")


def test_the_overview_says_how_many_cards_it_leaves_out(cards_of):
    cards = cards_of(num_seeds=2)
    drift = [card for card in cards if card.kind in ("drift", "offset")]
    others = [card for card in cards if card not in drift]
    all_lines = overview(cards)
    more = len(others) - sum(not line.group.startswith("Drift") for line in all_lines)  # one line stands for several
    assert f"{len(drift)} on drift" not in not_listed(cards, all_lines)
    kept = [line for line in all_lines if not line.group.startswith("Drift")]
    text = not_listed(cards, kept)
    assert text.startswith(f"{len(drift) + more} more cards ({len(drift)} on drift, ")
    assert text.endswith("in cards.json and tables/verdicts and are not in this count.")
    assert not_listed(drift, overview(drift)) == ""


def test_with_many_cards_the_overview_is_about_scores(cards_of):
    cards = cards_of(tasks=("a", "b", "c"), num_seeds=2)
    many = [*cards, *cards, *cards]
    assert len(many) > MOST_IN_OVERVIEW
    assert not any(line.group.startswith("Drift") for line in overview(many))


def test_the_sentence_above_the_verdicts_names_the_exceptions():
    line = VerdictLine(claim="c", verdict="not recorded", value="", interval="", detail="", group="")
    (text,) = [part for part in render_markdown(Page(title="t", verdicts=(line,))).split("\n\n") if "1 claims" in part]
    for said in (text, VERDICT_HOW):
        for name in VERDICTS:
            assert re.search(f"{name}: ", said, re.IGNORECASE), name
        assert "Not judged: under three seeds, or drift beside sign noise, which is described because" in said
        assert "even if it excludes 0" in said
    assert "not judged (under three seeds, or drift beside sign noise," in COLUMNS["verdict"].how
    assert " → ".join(VERDICTS) in text
    assert set(ICONS) == set(VERDICTS)


def test_every_refusal_of_an_association_names_its_parameter():
    lines = [
        ("word_embeddings", "refused: noise"),
        ("position_embeddings", "refused: noise"),
        ("LayerNorm.bias", "few"),
    ]
    table = pd.DataFrame(
        [{"model": "m", "base": "full", "parameter": p, "note": n, "spearman": np.nan} for p, n in lines]
    )
    assert association_block(table).text == (
        "Does drift predict gain across tasks? Refused: noise (word_embeddings and position_embeddings under full); "
        "few (LayerNorm.bias under full)."
    )


def test_a_command_names_the_folder_that_is_not_the_usual_one(make_run):
    (group,) = arrange([make_run()])
    (run,) = group.runs
    elsewhere = SimpleNamespace(config=replace(run.config, output_dir=str(Path.cwd() / "my runs")))
    assert "--output-dir" not in command_of_run(run)
    assert command_of_run(elsewhere) == f"{command_of_run(run)} --output-dir 'my runs'"


def words_of(text):
    return set(re.findall(r"[\w.]+", text))


@pytest.mark.usefixtures("undrawn")
def test_markdown_says_what_the_page_says(read_study, data_of, cards_of):
    data = data_of(*read_study(num_seeds=2))
    page = make_page(data, cards_of(num_seeds=2), title="T <b>", question="Q?", commands="run me")
    text = render_markdown(page)
    assert text.startswith("# T &#60;b&#62;\n\nQ?\n")
    for section in page.sections:
        assert f"## {section.title}" in text
    found = words_of(text.replace("&#95;", "_"))
    for sentence in page.findings:
        assert words_of(sentence) <= found
    for line in page.verdicts:
        assert f"| {line.verdict} |" in text
        assert words_of(line.claim) | words_of(line.value) | words_of(line.interval) <= found


def test_long_tables_and_many_folds_are_cut_and_say_so():
    table = TableBlock(table=pd.DataFrame({"n": range(100)}), caption="long")
    folds = tuple(FoldBlock(title=f"task {i}", blocks=(table,)) for i in range(5))
    page = Page(
        title="t", sections=(Section(id="a", title="A", blocks=(table,)), Section(id="b", title="B", blocks=folds))
    )
    assert "The details of" not in render_markdown(page)  # folds of something else are no tasks
    text = render_markdown(page, {fold.title for fold in folds})
    assert "40 more lines are in index.html and tables/." in text
    assert "The details of each of the 5 tasks are in index.html" in text
    assert len(text.splitlines()) < 90


def test_markdown_is_inert():
    hostile = "<script>alert(1)</script> | `x` *y*"
    line = VerdictLine(claim=hostile, verdict=VERDICTS[0], value=hostile)
    fold = FoldBlock(title=hostile, blocks=(TextBlock(text=hostile),), is_open=True)
    section = Section(id="a", title=hostile, lead=hostile, blocks=(fold,))
    text = render_markdown(
        Page(title=hostile, question=hostile, findings=(hostile,), verdicts=(line,), sections=(section,))
    )
    assert "<script>" not in text
    assert "*y*" not in text
    assert all(row.count("|") == 5 for row in text.splitlines() if row.startswith("|"))


def test_left_out_is_only_what_cannot_be_reported_on(make_run, tmp_path):
    run = make_run()
    (tmp_path / "runs" / "file.txt").write_text("")
    sources = find_runs([run, tmp_path / "runs" / "file.txt"])
    assert [each.path for each in sources.runs] == [run.path]
    assert sources.left_out == ("runs/file.txt is left out: it is not a run directory.",)


def test_sizes_have_a_section_of_their_own_and_comparisons_keep_to_the_largest(read_run, data_of):
    runs = []
    for size in (20, 80):
        splits = {"train": {"num_examples": size}}
        facts = {"task": {"name": "toy", "score": "accuracy", "reported_split": "validation", "splits": splits}}
        for regime, right in (("none", 0.9), ("backbone", 0.5 + size / 400)):
            config = {"max_train_examples": size}
            runs += [read_run(regime, seed, right=right, config=config, facts=facts) for seed in (0, 1)]
    data = data_of(runs)
    sections = {section.id: section for section in study_sections(data)}
    means, gaps = (shown(table) for table in tables_of(sections["data-efficiency"].blocks))
    assert means.header == ("arm", "20 examples", "80 examples")
    lines = data.summary[data.summary["is_headline"] & data.summary["is_reported_split"]]
    wanted = lines[(lines["base"] == "backbone (feature extraction)") & (lines["num_train_examples"] == 20)]
    (row,) = (row for row in means.rows if row[0] == "backbone (feature extraction)")
    assert row[1].startswith(f"{wanted['mean'].iloc[0]:.3f} ± ")
    assert [row[0] for row in gaps.rows] == ["none (full fine-tuning) minus backbone (feature extraction)"]
    compared = next(tables_of(sections["comparison"].blocks))
    assert set(compared.table["pair"]) == {"none (full fine-tuning) minus backbone (feature extraction)"}
    assert len(compared.table) == 2  # one line per split: the larger size only
    assert len(data.comparison) == 4
