"""Tokens that whoever records a loop has added: their rows are told of apart, and no other is taken for one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import AddedToken
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Trainer,
    TrainingArguments,
)

import toolkit
from tests.chart_data import values_of
from tests.conftest import build_tokenizer, sizes_of
from tests.refusals import check_refused
from tests.training.recorded_texts import start, update
from toolkit.questions import drift_report
from toolkit.reporting.sources import Computed, open_sources
from toolkit.reporting.topics import new_tokens
from toolkit.reporting.topics.new_tokens import added_rows_chart

W = "word_embeddings"
ADDED = ("blorp", "zwick", "grumf")
"""Two that texts use, and one that none does."""
TEXTS = ["the film was blorp .", "the film was zwick ."]


def grown(
    tokenizer: Any = None, family: str = "bert", kind: Any = AutoModelForSequenceClassification
) -> tuple[Any, Any]:
    """A model, by default a classifier, and its tokenizer after a user has added tokens."""
    torch.manual_seed(0)
    tokenizer = tokenizer or build_tokenizer()
    model = kind.from_config(AutoConfig.for_model(family, **sizes_of(family, vocab_size=len(tokenizer))))
    tokenizer.add_tokens(list(ADDED))
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return model, tokenizer


def in_a_loop(path: Path, **options: Any) -> toolkit.Run:
    model, tokenizer = grown()
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    recording = start(model.train(), path, tokenizer=tokenizer, **options)
    for epoch in (1, 2):
        update(optimizer, model(**batch, labels=torch.tensor([0, 1])).loss)
        recording.snapshot(epoch=epoch)
    return recording.finish()


def in_a_trainer(path: Path, **options: Any) -> toolkit.Run:
    model, tokenizer = grown()
    items = [{**tokenizer(text), "labels": i} for i, text in enumerate(TEXTS)]
    settings = TrainingArguments(
        str(path.with_name("out")),
        num_train_epochs=2,
        optim="sgd",
        learning_rate=1.0,
        lr_scheduler_type="constant",
        report_to="none",
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    callback = toolkit.EmbeddingSnapshotCallback(path, **options)
    Trainer(model, settings, train_dataset=items, processing_class=tokenizer, callbacks=[callback]).train()
    return toolkit.open_run(path)


@pytest.mark.parametrize("train", [in_a_loop, in_a_trainer])
def test_named_rows_are_told_of_apart_and_without_names_none_is(
    train: Callable[..., toolkit.Run], tmp_path: Path
) -> None:
    run, plain = train(tmp_path / "a" / "run", added_tokens=ADDED), train(tmp_path / "b" / "run")
    rows = grown()[1].convert_tokens_to_ids(list(ADDED))
    assert run.vocabulary.added_rows == frozenset(rows)
    last = toolkit.measure_added_rows(run).query("epoch == 2")
    assert dict(zip(last["token"], last["norm"] > 0, strict=True)) == dict(zip(ADDED, (True, True, False), strict=True))
    strata = toolkit.measure_rows(run, W).set_index("row")["stratum"].astype(str)
    assert strata[rows].tolist() == ["added", "added", "added, never seen"]
    assert not strata.drop(rows).str.startswith("added").any()
    assert toolkit.measure_added_rows(plain).empty
    assert not toolkit.measure_rows(plain, W)["stratum"].astype(str).str.startswith("added").any()


@pytest.mark.parametrize("is_known", [True, False])
def test_of_an_output_layer_the_section_says_what_the_input_showed_and_no_word_of_checkpoints(
    is_known: bool, tmp_path: Path
) -> None:
    """The steps of no row are known of a tied table; of vectors in place of ids not what the input showed either."""
    model, tokenizer = grown(family="gpt2", kind=AutoModelForCausalLM)
    ids, words = tokenizer(TEXTS, return_tensors="pt")["input_ids"], model.get_input_embeddings()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with start(model.train(), tmp_path / "run", tokenizer=tokenizer, added_tokens=ADDED) as recording:
        update(optimizer, model(**({"input_ids": ids} if is_known else {"inputs_embeds": words(ids)}), labels=ids).loss)
        recording.snapshot(epoch=1)
    opened = open_sources([tmp_path / "run"], at_least=2)
    text, _, table = new_tokens.section(Computed(opened).add(new_tokens.makers(opened))).blocks
    known = "2 stood in the texts of training, and the rows of 2 of these left their start; of the other 1, 1 did."
    expected = known if is_known else "3 left their start; which training showed is not known."
    old = len(tokenizer) - 3
    assert text.text == f"Of 3 added tokens {expected} Of the {old:,} rows that were there {old:,} moved."
    assert "nearest_before" in table.columns


def test_the_terminal_names_a_picture_where_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drift_report, "_write", lambda *_: None)
    run = in_a_loop(tmp_path / "run", added_tokens=ADDED)
    for out in (None, tmp_path / "report"):
        drift_report.show_drift([run.path], out)
        said = capsys.readouterr().out
        places = "Of 3 added tokens 2 stood in the texts" in said, "figures/added-rows.png" in said
        assert places == (True, out is not None)


def published_with_added_tokens() -> Any:
    """A byte-level tokenizer as some decoders come: of its tokens that are called added one is not special."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    inner.train_from_iterator(["the film was good", "the doctor was bad"] * 9, trainer)
    inner.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>", pad_token="<|end|>")


@pytest.mark.parametrize("kind", [str, AddedToken, np.str_])
@pytest.mark.parametrize("build", [build_tokenizer, published_with_added_tokens])
def test_what_a_tokenizer_calls_added_is_no_answer(
    build: Callable[[], Any], kind: Callable[[str], Any], tmp_path: Path
) -> None:
    """Of tokens that it came with, or that had a row before, ``get_added_vocab`` says the same as of new ones; those
    that are named may be named as they were added."""
    tokenizer = build()
    inner = "film" if build is build_tokenizer else "<tool_call>"
    model, tokenizer = grown(tokenizer)
    if build is build_tokenizer:
        tokenizer.add_tokens(["film"])  # which has a row
    assert (tokenizer.get_added_vocab().keys() - set(tokenizer.all_special_tokens)) == {*ADDED, inner}
    recording = start(model, tmp_path / "run", tokenizer=tokenizer, added_tokens=list(map(kind, ADDED)))
    vocabulary = recording.finish().vocabulary
    assert [vocabulary.tokens[row] for row in sorted(vocabulary.added_rows)] == list(ADDED)
    assert min(vocabulary.added_rows) == len(tokenizer) - 3


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a token that is none": ({"added_tokens": ["blorp", "nosuch"]}, "the tokenizer lacks the added token 'nosuch': "),
    "one text": ({"added_tokens": "blorp"}, "added_tokens must be a list of tokens; got 'blorp'"),
    "none": ({"added_tokens": None}, "added_tokens must be a list of tokens; got None"),
    "one token": ({"added_tokens": AddedToken("blorp")}, "added_tokens must be a list of tokens; got AddedToken"),
    "no tokenizer": ({"added_tokens": ADDED, "tokenizer": None}, "added_tokens needs the tokenizer"),
    "an array and no tokenizer": ({"added_tokens": np.array(ADDED), "tokenizer": None}, "needs the tokenizer"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_names_no_rows_is_one_line_and_writes_nothing(case: str, tmp_path: Path) -> None:
    options, line = BAD[case]
    model, tokenizer = grown()
    check_refused(line, toolkit.record, model, tmp_path / "run", **{"tokenizer": tokenizer, **options})
    assert not (tmp_path / "run").exists()


def test_a_token_that_had_a_row_before_is_named(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """A list of words of a field goes to add_tokens whole, which passes by those that the vocabulary has."""
    for added in (ADDED, ("film", *ADDED)):
        model, tokenizer = grown()
        tokenizer.add_tokens(list(added))
        toolkit.record(model, tmp_path / added[0], tokenizer=tokenizer, added_tokens=added).close()
        said = [str(w.message) for w in recwarn if "added_tokens names" in str(w.message)]
        assert [line.startswith("film: added_tokens names 'film', in the voc") for line in said] == [True] * (
            "film" in added
        )


def table_of(num_tokens: int, num_epochs: int, **changes: Any) -> pd.DataFrame:
    """What :func:`toolkit.measure_added_rows` could give; every third token is in no text."""
    lines = [(float(epoch), row) for epoch in range(num_epochs) for row in range(num_tokens)]
    table = pd.DataFrame(lines, columns=["epoch", "row"])
    moved = table["epoch"] * (table["row"] % 3 > 0) * (1 + table["row"])
    table = table.assign(token="t" + table["row"].astype(str), num_steps=moved.astype(int), norm=moved)
    table = table.assign(relative=2 * moved, times_old_length=1 + moved, old_length_low=0.5, old_length_high=2.0)
    return table.assign(**changes)


@pytest.mark.parametrize("changes", [{}, {"relative": np.nan}, {"num_steps": pd.NA}], ids=["plain", "zero", "unknown"])
@pytest.mark.parametrize("num_tokens", [1, 8, 9, 200])
def test_the_chart_draws_the_table(num_tokens: int, changes: dict[str, Any]) -> None:
    table = table_of(num_tokens, 3, **changes)
    chart = added_rows_chart(table)
    drawn = [line for line in values_of(chart) if "token" in line]
    assert len({line["row"] for line in drawn}) == min(num_tokens, new_tokens.MOST_DRAWN)
    own = table.set_index(["epoch", "row"])
    names = ["norm" if "relative" in changes else "relative", "times_old_length"]
    for line in drawn:
        expected = own.loc[(line["epoch"], line["row"]), names].tolist()
        assert [line[name] for name in names] == pytest.approx(expected, rel=1e-4)
    series = {line["series"] for line in drawn}
    of_many = {"added token"} if "num_steps" in changes else {"training showed it", "never shown"}
    assert series == ({f"t{row}" for row in range(num_tokens)} if num_tokens <= 8 else of_many)
    bands = [line for line in values_of(chart) if "old_length_low" in line and "token" not in line]
    assert [(line["time"], line["old_length_low"], line["old_length_high"]) for line in bands] == [
        (epoch, 0.5, 2.0) for epoch in (0.0, 1.0, 2.0)
    ]


def test_of_one_snapshot_there_is_no_chart() -> None:
    assert added_rows_chart(table_of(2, 1)) is None
