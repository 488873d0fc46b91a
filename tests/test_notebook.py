"""What a user gets back says what it is: in 80 columns where it is printed, as a table in a notebook."""

import html
import json
import re

import pytest

import toolkit
from toolkit.comparison.verdicts import Card, Null, Span
from toolkit.naming import Described
from toolkit.snapshots.store import DIVERGED, RECORDED

HOSTILE = "<b>a & b</b>"


def card() -> Card:
    numbers = {"value": 1.25, "margin": 1.0, "noise_floor": 0.1, "num_seeds": 3, "num_items": 50}
    numbers |= {"detectable_gap": 2.0, "q": 0.01}
    return Card(
        **numbers,
        interval=Span(0.5, 2.0, 0.95),
        equivalence=Span(0.7, 1.8, 0.9),
        null=Null("no difference"),
        subject=("a",),
        claim=HOSTILE,
        kind="score",
        estimator="paired",
        unit="points",
        source="ours",
        verdict="supported",
        reason="its interval excludes 0",
    )


def study() -> toolkit.Study:
    conditions = {"full": {"freeze": "none"}, "frozen": {"freeze": "embeddings"}}
    pairs = [toolkit.Comparison("full", "frozen")]
    return toolkit.Study(
        title=HOSTILE,
        question="What? " * 30,
        conditions=conditions,
        tasks={"polarity": {"task": "polarity"}},
        seeds=[0, 1],
        comparisons=pairs,
    )


@pytest.fixture
def shown(read_run) -> dict[str, Described]:
    run = read_run("embeddings", 3, task=HOSTILE.replace("/", "+"))
    return {
        "run": run,
        "trajectory": run.trajectory,
        "snapshot": run.trajectory.snapshots[-1],
        "config": toolkit.RunConfig(seed=3, epochs=7, train_file="a/b.csv", validation_file="a/<b>.csv"),
        "imported": toolkit.import_checkpoints([run.path]),
        "card": card(),
        "study": study(),
    }


KINDS = ("run", "trajectory", "snapshot", "config", "imported", "card", "study")


def check_repr(result: Described) -> None:
    """A result says what it is in 80 columns."""
    text = repr(result)
    words = {word for line in text.splitlines() if len(line) > 80 for word in line.split()}
    assert not words or max(map(len, words)) > 76  # a path, which is not broken
    assert text.startswith(f"{type(result).__name__}(")
    flat = " ".join(text.split())
    assert all(" ".join(f"{name}: {value}".split()) in flat for name, value in result.facts().items())


def check_html(result: Described) -> None:
    """A notebook shows every fact, and no markup of its values."""
    text = result._repr_html_()
    assert set(re.findall(r"</?(\w+)", text)) == {"table", "tr", "th", "td"}
    cells = [html.unescape(cell) for cell in re.findall(r"<t[hd]>(.*?)</t[hd]>", text, re.S)]
    assert cells == [part for fact in result.facts().items() for part in fact]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", [check_repr, check_html])
def test_a_result_says_what_it_is(shown, kind, check):
    check(shown[kind])


def test_a_config_shows_what_differs_from_the_defaults(shown):
    assert ("epochs: 7" in repr(shown["config"]), "batch_size" in repr(shown["config"])) == (True, False)


def test_a_card_shows_the_interval_that_decided():
    assert "0.5 to 2 (95 %)" in repr(card())


def test_a_run_says_how_it_ended_and_what_is_damaged(make_run):
    run = make_run("none", 0)
    score = run.scores[(run.scores["split"] == "validation")].sort_values("epoch")["accuracy"].iloc[-1]
    own = {name: run.facts()[name] for name in ("state", "frozen", "seed", "accuracy on validation")}
    assert own == {"state": "finished", "frozen": "none", "seed": "0", "accuracy on validation": f"{score:.3f}"}
    (run.path / "scores.csv").write_text("epoch,split\n")
    facts = toolkit.open_run(run.path).facts()
    assert (facts["state"], "scores.csv" in facts["damaged"]) == ("finished", True)
    (run.path / "manifest.json").unlink()
    assert toolkit.open_run(run.path).facts()["state"] == "unfinished"
    (run.path / DIVERGED).write_text("{}")
    assert toolkit.open_run(run.path).facts()["state"] == "diverged"
    (run.path / "config.json").write_text(json.dumps({RECORDED: True}))
    assert toolkit.open_run(run.path).facts()["recorded in"] == "another training loop"
