"""Masked-LM loss before and after, against transformers' own loss, with runs that can and cannot forget."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import FAMILY_CONFIGS
from tests.refusals import check_refusals
from toolkit.config import RunConfig
from toolkit.models.tuned import load_untuned
from toolkit.pipeline import finetune
from toolkit.questions.layers.command import LayersCommand
from toolkit.questions.layers.forgetting import (
    ACCURACY,
    LOSS,
    NEW_TOKENS,
    TUNED,
    UNTUNED,
    mask_tokens,
    masked_scores,
    measure_forgetting,
    score_by_frequency,
)
from toolkit.questions.layers.forgetting_page import section
from toolkit.questions.models import TEXTS as ONLY
from toolkit.questions.models import encode_texts
from toolkit.reporting.cells import NOT_APPLICABLE, number
from toolkit.reporting.page import TableBlock
from toolkit.snapshots.store import Run

TEXTS = [
    (f"{start} {noun} was {word}",)
    for start in ("the", "a")
    for noun in ("ballet", "book")
    for word in ("bland", "bright")
]


@pytest.fixture(scope="module")
def train(masked_lm: Callable[[str], Path], train: Callable[..., Run]) -> Callable[..., Run]:
    """Runs that start from a checkpoint with a masked-LM head."""
    return lambda kind="bert", **changes: train(model=str(masked_lm(kind)), learning_rate=0.01, **changes)


def by_hand(run: Run, masked: Any, is_tuned: bool, is_tied: bool) -> list[float]:
    """Mean loss per text by transformers' own classes and its own loss, one text at a time."""
    from transformers import AutoModel, AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(run.config.model).eval()
    if is_tuned:
        head = {name: value.clone() for name, value in model.get_output_embeddings().state_dict().items()}
        own = AutoModel.from_pretrained(run.path / "model").state_dict()
        model.base_model.load_state_dict({name: own[name] for name in model.base_model.state_dict()})
        if not is_tied:
            model.get_output_embeddings().weight = torch.nn.Parameter(head["weight"])
    split, losses = masked.data.splits[ONLY], []
    for start, stop in zip(split.offsets[:-1], split.offsets[1:], strict=True):
        targets = torch.from_numpy(masked.targets[start:stop])
        labels = torch.where(targets < 0, -100, targets)[None]
        with torch.no_grad():
            output = model(input_ids=torch.from_numpy(split.tokens[start:stop].astype(np.int64))[None], labels=labels)
        losses.append(float(output.loss))
    return losses


@pytest.mark.parametrize("model_type", [name for name in FAMILY_CONFIGS if name != "electra"])
def test_it_is_the_loss_of_transformers(train: Callable[..., Run], model_type: str) -> None:
    """ELECTRA's head belongs to its generator, which is another model."""
    run = train(model_type)
    found = measure_forgetting([run], {"own": TEXTS}).set_index(["decoder", "measure"])
    loaded = load_untuned(run)
    data = encode_texts(loaded, [TEXTS[i] for i in range(len(TEXTS))], run.config.max_length)
    masked = mask_tokens(data, loaded.tokenizer.mask_token_id, loaded.tokenizer.all_special_ids, 0)
    before = np.array(by_hand(run, masked, False, True))
    decoders = list(found.index.get_level_values("decoder").unique())
    assert decoders == [UNTUNED, TUNED]
    for decoder in decoders:
        after = np.array(by_hand(run, masked, True, decoder == TUNED))
        line = found.loc[decoder, LOSS]
        assert (line.value_before, line.value_after) == pytest.approx((before.mean(), after.mean()), rel=1e-5)
        assert line.value == pytest.approx((after - before).mean(), abs=1e-5)
        half = 2.3646 * (after - before).std(ddof=1) / len(TEXTS) ** 0.5  # Student's t, 7 degrees of freedom
        assert line.high - line.value == pytest.approx(half, rel=1e-3)
        assert 0 <= found.loc[decoder, ACCURACY].value_after <= 1
    assert abs(found.loc[UNTUNED, LOSS].value - found.loc[TUNED, LOSS].value) > 1e-3, "the words moved"


def test_what_cannot_forget_does_not(train: Callable[..., Run]) -> None:
    still = measure_forgetting([train(freeze="backbone")], {"own": TEXTS})
    assert (still.value == 0).all()
    assert (still.value_before == still.value_after).all()
    assert still[["low", "high"]].isna().all(axis=None), "the bounds of right and wrong answers are none of nats"
    assert still.note.str.startswith("equal for all texts").all()
    frozen = measure_forgetting([train(freeze="embeddings")], {"own": TEXTS}).pivot(index="measure", columns="decoder")
    assert (frozen["value"][TUNED] == frozen["value"][UNTUNED]).all(), "the decoder's table did not move"
    assert frozen["value"][TUNED][LOSS] != 0


def test_what_was_masked_depends_on_seed_and_the_text_itself(train: Callable[..., Run]) -> None:
    loaded = load_untuned(train())
    special = loaded.tokenizer.all_special_ids
    long = [(" ".join(["ballet", "bland", "bright", "the", "a"] * 6),), *TEXTS]
    masks = [mask_tokens(encode_texts(loaded, own), 4, special, 0) for own in (long, long[:3])]
    assert np.array_equal(*[each.targets[: each.data.splits[ONLY].offsets[3]] for each in masks])
    counts = np.add.reduceat((masks[0].targets >= 0).astype(int), masks[0].data.splits[ONLY].offsets[:-1])
    assert counts.tolist() == [round(0.15 * 30), *[1] * len(TEXTS)]
    assert (masks[0].data.splits[ONLY].tokens[masks[0].targets >= 0] == 4).all()
    assert not np.isin(masks[0].targets, special).any()
    again = mask_tokens(encode_texts(loaded, [TEXTS[3], long[0]]), 4, special, 0)  # elsewhere, among other texts
    assert np.array_equal(again.targets[-32:], masks[0].targets[:32])
    assert not np.array_equal(mask_tokens(encode_texts(loaded, long), 4, special, 1).targets, masks[0].targets)


def test_frequency_alone_is_the_entropy_of_what_was_masked(train: Callable[..., Run]) -> None:
    loaded = load_untuned(train())
    special = loaded.tokenizer.all_special_ids
    one = score_by_frequency(mask_tokens(encode_texts(loaded, [("book book",)] * 3), 4, special, 0))
    assert one == {LOSS: 0, ACCURACY: 1}
    even = score_by_frequency(
        mask_tokens(encode_texts(loaded, [("ballet",), ("book",), ("bland",), ("bright",)]), 4, special, 0)
    )
    assert even == {LOSS: pytest.approx(np.log(4)), ACCURACY: 0.25}


def test_what_has_no_answer_says_so(
    train: Callable[..., Run], tiny_config: RunConfig, tiny_files: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    bare = replace(tiny_config, output_dir=str(tmp_path), epochs=1)
    cases = {
        "random weights": train(init="random"),
        "encoded apart": train(**tiny_files("pair"), pair_encoding="separate"),
        "has no masked-LM head": finetune(replace(bare, save_model=True)),
    }
    for said, run in cases.items():
        (line,) = measure_forgetting([run]).to_dict("records")
        assert np.isnan(line["value"])
        assert said in line["reason"]
    check_refusals(("holds no model", lambda: measure_forgetting([finetune(replace(bare, seed=1))])))


def test_a_head_has_no_rows_for_added_tokens(
    masked_lm: Callable[[str], Path], tiny_config: RunConfig, tmp_path: Path
) -> None:
    (tmp_path / "tokens.txt").write_text("zwick\n")
    config = replace(tiny_config, model=str(masked_lm("bert")), max_steps=1, save_model=True)
    run = finetune(replace(config, add_tokens=str(tmp_path / "tokens.txt"), output_dir=str(tmp_path / "runs")))
    found = measure_forgetting([run], {"own": TEXTS})
    assert (found["reason"].tolist(), found["value"].count()) == ([NEW_TOKENS], 0)


def test_a_head_that_is_stored_apart_stays_apart(
    masked_lm: Callable[[str], Path], tiny_config: RunConfig, tmp_path: Path
) -> None:
    """A config may say that the decoder is tied, of a file that holds another: transformers then loads two tables."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    start = masked_lm("bert")
    tensors = load_file(start / "model.safetensors")
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].flip(0) * 2
    shutil.copytree(start, tmp_path / "apart")
    save_file(tensors, tmp_path / "apart" / "model.safetensors", metadata={"format": "pt"})
    config = replace(tiny_config, model=str(tmp_path / "apart"), output_dir=str(tmp_path / "runs"), save_model=True)
    run = finetune(replace(config, max_steps=2))
    found = measure_forgetting([run], {"own": TEXTS})
    assert set(found.decoder) == {UNTUNED}
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "apart").eval()
    assert not torch.equal(model.get_output_embeddings().weight, model.get_input_embeddings().weight)
    loaded = load_untuned(run)
    masked = mask_tokens(encode_texts(loaded, TEXTS, 40), 4, AutoTokenizer.from_pretrained(start).all_special_ids, 0)
    expected = masked_scores(model, masked, model.config.vocab_size)
    for measure, line in found.set_index("measure").iterrows():
        assert line.value_before == pytest.approx(expected[measure].mean(), rel=1e-6)


@pytest.mark.parametrize("reason", ["", NEW_TOKENS])
def test_why_nothing_was_measured_stands_in_a_column_of_its_own(reason: str) -> None:
    key = {"group": "bert on pair", "texts": "dev", "run": "a", "decoder": UNTUNED, "reason": ""}
    numbers = {"value_before": 0.5, "value_after": 0.4, "value": -0.1, "low": -0.2, "high": 0.0, "by_frequency": 0.25}
    measured = [{**key, "condition": "full", "measure": measure, **numbers} for measure in (LOSS, ACCURACY)]
    refused = {**key, "condition": "other", "measure": LOSS, **dict.fromkeys(numbers, np.nan), "reason": reason}
    (block,) = section(pd.DataFrame([*measured, refused] if reason else measured)).blocks
    assert isinstance(block, TableBlock)
    headings = [column.label for column in block.columns.values()]
    cells = [dict(zip(headings, row, strict=True)) for row in block.table.to_numpy().tolist()]
    assert (cells[0]["loss before"], cells[0]["guessed by frequency"]) == (number(0.5), f"{number(25.0)} %")
    if not reason:
        assert headings[-1] == "guessed by frequency"
        return
    assert (cells[0]["note"], cells[1]["note"]) == ("", reason)
    assert {cells[1][name] for name in headings[4:-1]} == {NOT_APPLICABLE}


@pytest.mark.slow  # whole reports
def test_the_page_on_layers_has_it_where_there_is_a_head(
    train: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [train(), train(seed=1), train(freeze="embeddings"), train(shuffle_labels=True)]
    assert LayersCommand(places=tuple(str(run.path) for run in runs), out=tmp_path / "report").run() == 0
    assert "tuned words" in capsys.readouterr().out
    text = (tmp_path / "report" / "report.md").read_text()
    table = pd.read_csv(tmp_path / "report" / "tables" / "forgetting.csv")
    said = text.split("## What was forgotten?")[1].splitlines()
    (line,) = [line for line in said if "full fine-tuning | validation | 2 |" in line]
    own = table.query("condition == 'full fine-tuning' and texts == 'validation' and measure == @LOSS")
    for decoder in (TUNED, UNTUNED):
        seeds = own[own.decoder == decoder].value
        assert f"{seeds.mean():+.3f} ({seeds.min():+.3f} to {seeds.max():+.3f})" in line
