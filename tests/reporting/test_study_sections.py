"""What a report says of a study: the numbers of its tables, each refusal, and the same in Markdown as in HTML."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.comparison.planted import agree, write_evidence
from tests.reporting.conftest import with_tables
from tests.reporting.pages import make_page as make_hostile_page
from tests.reporting.pages import tables_of
from toolkit import compare
from toolkit.comparison.cards import make_cards
from toolkit.comparison.compare import COLLAPSED
from toolkit.comparison.conditions import Condition, arrange
from toolkit.comparison.intervals import detectable_gap_planned
from toolkit.comparison.measure import command_of_run
from toolkit.comparison.parameter_noise import drift_table_of_groups
from toolkit.comparison.verdicts import VERDICTS, Span
from toolkit.reporting.chart_files import image_of
from toolkit.reporting.charts import TICK_SIZE
from toolkit.reporting.comparison_report import make_page, report_tables, write_report
from toolkit.reporting.page import FoldBlock, Page, Section, TableBlock, TextBlock, shown, table_block
from toolkit.reporting.render_markdown import render_markdown
from toolkit.reporting.topics import first_screen
from toolkit.reporting.topics.caveats import (
    claims_block,
    decided,
    limits_section,
    verdicts_frame,
)
from toolkit.reporting.topics.comparison import PLANNED, mcnemar_counts, shown_comparison
from toolkit.reporting.topics.drift_and_score import association_block
from toolkit.reporting.topics.first_screen import (
    EXTRACTION,
    FINDABLE,
    FREEZING,
    MOVED,
    REST,
    answers_of,
    compared_of,
    picture_of,
    plot_parameters,
    tiles_of,
)
from toolkit.reporting.topics.runs import study_sections
from toolkit.reporting.verdict_words import FEW_SEEDS, OPEN_VERDICTS, answer_of, question_of

pytestmark = pytest.mark.usefixtures("undrawn")


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
    first, names = expected.iloc[0], list(cells.header)
    own = {
        "pair": "full fine-tuning minus embeddings frozen",
        "difference (points)": f"{first['difference_points']:+.2f}",
        "95 % interval (points)": f"{first['low_points']:+.2f} to {first['high_points']:+.2f}",
        "verdict": OPEN_VERDICTS.get(first["verdict"], first["verdict"]),
    }
    assert dict(zip(names, cells.rows[0], strict=True)).items() >= own.items()
    assert names.index("smallest detectable gap (points)") < names.index("difference (points)")


def test_mcnemar_is_counted_over_seeds():
    seeds = pd.DataFrame({"group": "g", "first": "a", "second": "b", "split": "s", "mcnemar_p": [0.01, 0.2, np.nan]})
    assert mcnemar_counts(seeds) == {("g", "a", "b", "s"): "1 of 2"}


def test_regression_has_no_accuracy_words(read_run, data_of):
    data = data_of([read_run(regime, seed, is_regression=True) for regime in ("none", "backbone") for seed in range(3)])
    assert set(shown_comparison(data.comparison, data.seeds)["mcnemar"]) == {"not applicable"}


def answers(data):
    """The answer to each question of the first screen."""
    return {answer.question: answer for answer in answers_of(data)}


def verdicts_of(data):
    return {question: answer.verdict for question, answer in answers(data).items()}


@pytest.fixture
def changed(read_study, data_of):
    """A function: what its comparison says instead, to the numbers of a study of three seeds."""

    def get(num_seeds=3, tasks=("toy",), **columns):
        data = data_of(*read_study(tasks=tasks, num_seeds=num_seeds))
        return with_tables(data, comparison=data.comparison.assign(**columns))

    return get


def test_tuning_is_printed_with_its_budget(study):
    runs, labels = study(num_seeds=2)
    common = {"task": "toy", "num_seeds": 1, "num_items": 20, "split": "selection", "score": "accuracy"}
    tuning = pd.DataFrame(
        [
            {"condition": condition, "setting": i, "fields": f"learning_rate {rate}", "is_chosen": i == 0}
            for condition in ("full fine-tuning", "feature extraction")
            for i, rate in enumerate((1e-5, 5e-5))
        ]
    ).assign(mean_score=0.5, **common)
    text = write_report(runs, "out", labels=labels, tuning=tuning).path.read_text()
    assert "chosen on part of train with 1 seed each: the intervals do not cover that choice" in text
    section = text.split("## Tuning")[1].split("\n## ")[0]  # a fold of another section
    assert "the same budget (2 settings per task)" in section
    assert section.count("| full fine-tuning |") == 2
    assert len(pd.read_csv("out/tables/tuning.csv")) == 4
    assert Path("out/tables/tuning.tex").exists()


@pytest.mark.slow  # dozens of runs
def test_many_runs_give_a_line_per_condition_and_a_short_text(read_study, data_of, cards_of):
    tasks = ("a", "b", "c", "d", "e")
    runs, labels = read_study(tasks, num_seeds=1)
    data, cards = data_of(runs, labels, words={"command": "make all"}), cards_of(tasks, num_seeds=1)
    text = render_markdown(make_page(data, cards), {group.title for group in data.groups})
    assert all(run.path.name not in text for run in runs)
    assert "```bash\nmake all\n```" in text
    assert "Each of the 15 runs, with its command, is in tables/runs.csv." in text
    assert set(report_tables(data, cards)["runs"]["run"]) == {run.path.name for run in runs}
    assert len(text.splitlines()) < 400


def test_every_card_is_a_question_whose_answer_is_its_verdict(cards_of):
    cards = cards_of(num_seeds=3)
    table = verdicts_frame(cards)
    for card, line in zip(cards, table.to_dict("records"), strict=True):
        assert card.claim in line["question"]
        assert line["answer"].startswith("yes") == (card.verdict == "supported")
        assert line["answer"].startswith("no,") == (card.verdict == "equivalent")
        assert (card in decided(cards)) <= (card.verdict in ("supported", "equivalent"))
    asked = [question_of(card) for card in decided(cards)]
    assert len(set(asked)) == len(asked)
    assert {"score", "forbid", "drift", "offset", "association"} == set(table["kind"])
    num = sum(card.kind == "score" and card.q == card.q for card in cards)
    assert {card.num_claims for card in cards} == {num, None}
    assert claims_block(cards, "Cards").caption == f"Cards; q is over the {num} score claims of this report"
    small = replace(cards[0], q=1.53e-47, verdict="the other way")
    (row,) = shown(claims_block([small], "")).rows
    assert (row[1], row[-2]) == ("no, the other way", "< 0.001")
    assert small in decided([small])
    assert shown(table_block(pd.DataFrame({"q": [small.q], "mcnemar_p": 0.0}), "q mcnemar_p", "")).rows == (
        row[-2:-1] * 2,
    )


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_interval_that_decided_is_the_one_that_is_shown(cards_of, verdict):
    card = next(card for card in cards_of(num_seeds=3) if card.kind == "score")
    spans = {"interval": Span(-1.2, 0.4, 0.95), "equivalence": Span(-0.9, 0.1, 0.9)}
    own = replace(card, **spans, margin=1.0, value=-0.4, detectable_gap=0.5, verdict=verdict)
    block = shown(claims_block([own], ""))
    line = dict(zip(block.header, block.rows[0], strict=True))
    span = "-0.900 to 0.100 (90 %)" if verdict == "equivalent" else "-1.20 to 0.400 (95 %)"
    # Beside "not recorded" a number would contradict it.
    said = ["undefined"] * 3 if verdict == "not recorded" else [f"-0.400 {own.unit}", span, "0.500"]
    assert [line[name] for name in ("estimate", "interval", "smallest gap")] == said
    decided = spans["equivalence" if verdict == "equivalent" else "interval"]
    agree(verdicts_frame([own]).iloc[0], low=decided.low, high=decided.high, level=decided.level)


@pytest.mark.parametrize(("num_seeds", "said"), [(1, FEW_SEEDS[1]), (2, FEW_SEEDS[2])])
def test_under_three_seeds_no_answer_is_yes_or_no(read_study, data_of, cards_of, num_seeds, said):
    found = verdicts_of(data_of(*read_study(num_seeds=num_seeds)))
    # What moved is seen, not inferred.
    assert (found[FREEZING], found[EXTRACTION], found[MOVED]) == (said, said, "yes")
    assert decided(cards_of(num_seeds=num_seeds)) == []
    assert {answer_of(card) for card in cards_of(num_seeds=num_seeds) if card.kind == "score"} == {said}


@pytest.mark.parametrize(("rates", "is_said"), [([5e-5, 5e-5], False), ([5e-5, 3e-4], True)])
def test_multiples_of_noise_of_other_learning_rates_are_not_held_against_each_other(
    read_study, data_of, rates, is_said
):
    data = data_of(*read_study(num_seeds=1))
    joined = data.joined.assign(times_noise=1.2)
    tables = [joined.assign(group=f"task {rate} {i}", learning_rate=rate) for i, rate in enumerate(rates)]
    text = answers(with_tables(data, joined=pd.concat(tables)))[MOVED].text
    assert "random steps of equal size: 1.2 (" in text
    assert ("other learning rates" in text) == is_said


def test_an_open_question_stands_once_and_a_decided_one_not_among_them(read_study, data_of, cards_of):
    cards = cards_of(num_seeds=3)
    (table,) = tables_of(limits_section(data_of(*read_study(num_seeds=3)), cards).blocks)
    rows = shown(table).rows
    assert len({row[0] for row in rows}) == len(rows)
    assert not {row[0] for row in rows} & {question_of(card) for card in decided(cards)}
    assert not any(" gain " in row[0] for row in rows)  # under six tasks the question has no meaning
    assert len(rows) < sum(answer_of(card) not in ("yes", "no") for card in cards)


def test_tiles_and_answers_have_the_numbers_of_the_tables(read_study, data_of):
    data = data_of(*read_study(num_seeds=3))
    own = data.summary[data.summary["is_headline"] & data.summary["is_reported_split"]].set_index("base")
    tiles = {tile.title: tile for tile in tiles_of(data)}
    assert {name: float(tile.value) for name, tile in tiles.items()} == pytest.approx(dict(own["mean"]), abs=5e-4)
    still = {"trained": "all but the embeddings", "embeddings moved": "0, bit-identical"}
    assert dict(tiles["embeddings frozen"].lines) == still
    drift = data.details[0].whole(data.details[0].group.conditions[0], "word_embeddings")
    last = f"{100 * drift.groupby('run')['value'].last().mean():.2g} %"
    table = drift_table_of_groups(data.groups, data.evidence.drift).set_index(["condition", "parameter"])
    seen = f"{table.loc[('full fine-tuning', 'word_embeddings'), 'exposed_percent']:.2g} %"
    moved = {"words moved": f"{last} of norm", "those seen in training": seen}
    assert dict(tiles["full fine-tuning"].lines).items() >= moved.items()
    found = answers(data)
    assert f"words by {last} (those seen in training: {seen}), positions by" in found[MOVED].text
    lines = data.comparison[data.comparison["is_reported_split"].astype(bool)]
    for question, second in ((FREEZING, "embeddings frozen"), (EXTRACTION, "feature extraction")):
        (line,) = lines[(lines["first"] == "full fine-tuning") & (lines["second"] == second)].to_dict("records")
        assert f"{line['difference_points']:+.1f}" in found[question].text


@pytest.mark.parametrize(
    ("verdict", "value", "said", "tone"),
    [
        ("equivalent", 0.2, "same score, within ±1.50 points", "same"),
        ("supported", 3.2, "3.2 points worse", "apart"),
        ("supported", -3.2, "3.2 points better", "apart"),
        ("under-powered", 3.2, "cannot tell", "open"),
        ("not supported", 3.2, "cannot tell", "open"),
    ],
)
def test_answers_stand_alone(changed, verdict, value, said, tone):
    """No bare yes or no, which is good news under one question and bad news under another."""
    found = answers(changed(verdict=verdict, difference_points=value, margin_points=1.5))
    for question in (FREEZING, EXTRACTION):
        assert (found[question].verdict, found[question].tone, found[question].parts) == (said, tone, ())
    assert f" {value:+.1f} ({90 if verdict == 'equivalent' else 95} %: " in found[FREEZING].text


def test_of_several_tasks_each_has_a_line_and_the_question_a_count(changed):
    """The lines of several tasks keep their own words, sizes and kinds; a kind is the question's where all share it."""
    data = changed(verdict="supported", difference_points=3.2, margin_points=1.5)
    tables = [
        data.comparison.assign(group=f"tiny on {name}", verdict=own)
        for name, own in (("a", "supported"), ("b", "equivalent"))
    ]
    found = answers(with_tables(data, comparison=pd.concat(tables)))[FREEZING]
    assert [(part.name, part.verdict, part.tone) for part in found.parts] == [
        ("a", "3.2 points worse", "apart"),
        ("b", "same score", "same"),
    ]
    assert found.text.endswith("in points of accuracy; the same is within ±1.50.")
    assert (found.verdict, found.tone) == ("worse on 1 of 2 tasks, same score on 1 of 2 tasks", "")
    tables = [own.assign(verdict="equivalent") for own in tables]
    found = answers(with_tables(data, comparison=pd.concat(tables)))[FREEZING]
    assert (found.verdict, found.tone) == ("same score", "same")


@pytest.mark.parametrize("names", [["full fine-tuning"], ["full fine-tuning", "embeddings frozen"]])
def test_a_task_that_leaves_nothing_to_gain_is_named_where_two_conditions_reach_its_end(read_study, data_of, names):
    data = data_of(*read_study(num_seeds=3))
    scores = data.scores.assign(value=np.where(data.scores["base"].isin(names), 1.0, 0.9))
    assert ("nothing is left to gain on: toy." in answers_of(with_tables(data, scores=scores))[-1].text) == (
        len(names) == 2
    )


def test_conditions_whose_loss_still_falls_are_named(read_study, data_of, monkeypatch):
    data = data_of(*read_study(num_seeds=3))
    assert "What more epochs would give" not in answers_of(data)[-1].text
    monkeypatch.setattr(first_screen, "STILL_FALLING", -0.5)  # and their losses stand still
    assert (
        "in the last epoch, in 3 of 3 runs of full fine-tuning, 3 of 3 runs of embeddings" in answers_of(data)[-1].text
    )


def test_what_was_compared_is_named_and_counted(read_study, data_of):
    data = data_of(*read_study(tasks=("order", "pair"), num_seeds=1))
    said = compared_of(data)
    assert said.startswith("Trained: tiny. On: order, pair. Conditions (3): full fine-tuning, embeddings frozen, ")
    gap = f"{100 * detectable_gap_planned(1, 100, 0.1, 0.01):.1f} (seeds 1, items 100)"
    assert said.endswith("Runs of each: 1. Runs: 6.")
    assert answers(data)[FINDABLE].text == PLANNED.format(f"order {gap}, pair {gap}")
    assert "on 10 % of the items, the same ones in every seed" in PLANNED


def test_runs_that_failed_are_said_first_and_leave_nothing_undecided(changed, monkeypatch):
    data = changed(verdict="not measurable here", reason=COLLAPSED)
    assert not any(name == "failed" for tile in tiles_of(data) for name, _ in tile.lines)
    for answer in answers_of(data)[1:3]:
        assert answer.verdict == "not measurable here"
        assert answer.text.endswith(f": toy {COLLAPSED}.")
    monkeypatch.setattr(Condition, "num_failed", 2)
    assert {tile.lines[0] for tile in tiles_of(data)} == {("failed", "2 of 3 runs")}


def test_what_the_first_screen_leaves_out_is_named(read_study, data_of, monkeypatch):
    data = data_of(*read_study(num_seeds=1))
    assert REST not in answers(data)
    monkeypatch.setattr(first_screen, "MOST_PAIRS", 1)
    monkeypatch.setattr(first_screen, "MOST_TILES", 1)
    text = answers(data)[REST].text
    assert text.startswith("Pairs, under “How sure this is”: 1 more (full fine-tuning minus feature extraction).")
    assert text.endswith("Tiles: 2 more (embeddings frozen, feature extraction).")


def test_tiles_of_several_tasks_name_the_score_where_it_is_one(read_study, data_of):
    data = data_of(*read_study(tasks=("toy", "other"), num_seeds=1))
    assert {tile.detail for tile in tiles_of(data)} == {"accuracy, 2 tasks"}
    mixed = with_tables(data, scores=data.scores.assign(score=["r2", *data.scores["score"][1:]]))
    assert {tile.detail for tile in tiles_of(mixed)} == {"score, 2 tasks"}


@pytest.mark.parametrize(("num_seeds", "needed"), [(1, "one seed"), (3, "seeds alike")])
@pytest.mark.parametrize("tasks", [("toy",), ("toy", "other")])
def test_a_difference_without_an_interval_says_why(changed, num_seeds, needed, tasks):
    none = dict.fromkeys(("low_points", "high_points", "low90_points", "high90_points"), np.nan)
    for answer in answers_of(changed(num_seeds, tasks, **none, score="macro_f1", verdict="under-powered"))[1:3]:
        told = [answer.text, *(part.text for part in answer.parts)]
        assert sum(text.count(f"(no interval: macro f1, {needed})") for text in told) == len(tasks)


def test_a_missing_interval_has_no_ends(changed):
    none = dict.fromkeys(("low_points", "high_points"), np.nan) | {"verdict": "not supported"}
    drawn = [image_of(picture_of(data).chart, "svg").decode() for data in (changed(), changed(**none))]
    assert [len(re.findall(f"v{TICK_SIZE:g}h-", svg)) for svg in drawn] == [4, 0]  # of two pairs


def test_conditions_that_moved_alike_stand_beside_each_other(read_run, data_of):
    regimes = ("none", "position_embeddings")
    data = data_of([read_run(regime, seed) for regime in regimes for seed in range(3)])
    assert "yOffset" in plot_parameters(data).to_dict()["encoding"]
    assert picture_of(data).spec["resolve"]["scale"]["yOffset"] == "independent"  # or places of one move those of both


def test_a_run_whose_embeddings_did_not_move_says_no(read_run, data_of):
    data = data_of([read_run("backbone", seed) for seed in range(3)])
    assert verdicts_of(data)[MOVED] == "no"
    assert tiles_of(data)[0].lines == (("trained", "only a new head"), ("embeddings moved", "0, bit-identical"))


def test_associations_that_are_refused_say_why_once():
    lines = [("word_embeddings", "noise"), ("position_embeddings", "noise"), ("LayerNorm.bias", "few")]
    table = pd.DataFrame(
        [{"model": "m", "base": "full", "parameter": p, "reason": n, "spearman": np.nan} for p, n in lines]
    )
    text = association_block(table).text
    assert text.count("noise") == text.count("few") == 1


def test_a_command_names_the_folder_that_is_not_the_usual_one(make_run):
    (run,) = arrange([make_run()])[0].runs
    command = command_of_run(run)
    assert "--output-dir" not in command
    Path("runs").rename("my runs")
    (moved,) = arrange(sorted(Path("my runs").iterdir()))[0].runs
    assert command_of_run(moved) == f"{command} --output-dir 'my runs'"


def words_of(text):
    return set(re.findall(r"[\w.]+", text))


def test_markdown_says_what_the_page_says(read_study, data_of, cards_of):
    words = {"title": "T <b>", "question": "Q?", "command": "run me"}
    page = make_page(data_of(*read_study(num_seeds=2), words=words), cards_of(num_seeds=2))
    text = render_markdown(page)
    assert text.startswith("# T &#60;b&#62;\n\nQ?\n")
    said = (
        [f"## {section.title}" for section in page.sections]
        + ["```bash\nrun me\n```"]
        + [f"{answer.question} {answer.verdict}".strip() for answer in page.answers]
    )
    assert [each for each in said if each not in text] == []
    texts = [answer.text for answer in page.answers] + [
        " ".join((tile.title, tile.value, tile.detail)) for tile in page.tiles
    ]
    assert words_of(" ".join(texts)) <= words_of(text.replace("&#95;", "_"))


def test_markdown_is_inert():
    text = render_markdown(make_hostile_page(text="<script>alert(1)</script> | `x` *y*", commands="run"))
    assert "<script>" not in text
    assert "*y*" not in text
    assert {row.count("|") for row in text.splitlines() if row.startswith("|")} == {4}


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


def test_comparisons_keep_to_the_largest_size_and_all_scores_have_every_one(read_run, data_of):
    runs = []
    for size, right in ((20, 0.55), (80, 0.7)):
        splits = {"train": {"num_examples": size}}
        facts = {"task": {"name": "toy", "score": "accuracy", "reported_split": "validation", "splits": splits}}
        own = {"config": {"max_train_examples": size}, "facts": facts}
        runs += [read_run("none", seed, right=0.9, **own) for seed in (0, 1)]
        runs += [read_run("backbone", seed, right=right, **own) for seed in (0, 1)]
    data = data_of(runs)
    sections = {section.id: section for section in study_sections(data)}
    pair = "full fine-tuning minus feature extraction"
    (every,) = [table for table in tables_of(sections["scores"].blocks) if "num_train_examples" in table.table]
    assert set(every.table["num_train_examples"]) == {20, 80}
    compared = next(tables_of(sections["comparison"].blocks))
    assert list(compared.table["pair"]) == [pair] * 2  # one line per split: the larger size only
    assert len(data.comparison) == 4


def test_where_data_come_from_is_on_the_page_and_in_the_evidence(read_study, data_of, tmp_path):
    """Kept, so that a report that is made again says it too."""
    source = "a set of films (Somebody 2001), CC BY 4.0"
    data = data_of(*read_study(num_seeds=1), words={"sources": {"toy": source}})
    assert data.evidence.page["sources"] == {"toy": source}
    details = make_page(data, []).sections[-1]
    assert [block.text for block in details.blocks if isinstance(block, TextBlock)] == [f"Data of toy: {source}"]


def test_a_difference_of_fewer_seeds_than_a_condition_has_says_so(read_run, data_of):
    for extra, is_said in ((), False), ((1,), True):
        runs = [read_run("none", seed) for seed in (0, *extra)] + [read_run("embeddings", 0)]
        text = " ".join(answer.text for answer in answers_of(data_of(runs)))
        assert ("on the 1 seed that both have" in text) == is_said


@pytest.mark.parametrize("beyond", [0.5, -0.5])
def test_a_90_percent_interval_that_lies_beyond_that_of_95_is_explained(read_study, data_of, beyond):
    data = data_of(*read_study(num_seeds=3))
    table = data.comparison.assign(
        low90_points=data.comparison["low_points"] - beyond, high90_points=data.comparison["high_points"] - 0.5
    )
    (section,) = [each for each in study_sections(with_tables(data, comparison=table)) if each.id == "comparison"]
    assert ("beyond the 95 % one" in section.lead) == (beyond > 0)
