"""What the command prints, as text and as JSON, and what it says of bad input."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.conftest import COMMON, FAMILY_CONFIGS, build_tokenizer
from tests.exits import exit_code_of
from tests.questions.anatomy.conftest import PAIR, TEXT
from tests.test_notebook import check_html, check_repr
from toolkit.config import RunConfig
from toolkit.pipeline import finetune
from toolkit.questions.anatomy.measure import Anatomy, as_document, take_apart
from toolkit.questions.anatomy.page import SECTIONS, anatomy_page
from toolkit.questions.models import open_model
from toolkit.reporting.page import TableBlock, shown
from toolkit.reporting.render_terminal import print_page

TinyModel = Callable[[str], Path]


def print_anatomy(document: dict[str, Any]) -> None:
    print_page(anatomy_page(document), has_charts=False)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[object, str, str]:
    return exit_code_of("anatomy", *args), *capsys.readouterr()


@pytest.mark.parametrize("model_type", [*FAMILY_CONFIGS, "mpnet"])
def test_every_family_on_the_screen(
    anatomy_of: Callable[[str], Anatomy], model_type: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_anatomy(as_document(anatomy_of(model_type)))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert [question for question, *_ in SECTIONS if question in out] == [question for question, *_ in SECTIONS]
    assert not {"NOT", "nan"} & {*out.split()}
    assert ("not applicable" in out) == (model_type in ("distilbert", "deberta-v2", "modernbert", "mpnet"))


def test_the_tables_admit_a_fault(anatomy_of: Callable[[str], Anatomy]) -> None:
    document: dict[str, Any] = as_document(anatomy_of("bert"))
    document["layer_sum"][0] |= {"is_equal": False, "largest_difference": 0.5}
    document["one_hot"][1] |= {"largest_difference": 0.25}
    document["permutation"]["table"][-1] |= {"is_equal": False, "relative_difference": 0.125}
    document["gradients"]["parameters"][1] |= {"num_with_gradient": 1}
    blocks = [block for section in anatomy_page(document).sections for block in section.blocks]
    rows = [row for block in blocks if isinstance(block, TableBlock) for row in shown(block).rows]
    (summed,) = (row for row in rows if row[0] == "NOT LayerNorm(word + position + segment)")
    assert (summed[2], summed[4]) == ("0.5", "no")
    assert any(row[0] == "position_embeddings" and "NOT equal" in row for row in rows)
    assert any("the order still shows (0.12)" in row for row in rows)
    (used,) = (row[3:5] for row in rows if row[0] == "position_embeddings" and row[1] == "yes")
    assert (used[0] != used[1], used[1]) == (True, "1")


def test_the_command_prints_the_text(tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tiny_model("bert"))
    code, out, _ = run(capsys, folder, "--text", TEXT, "--pair", PAIR)
    assert (code, str(tiny_model("bert").parent) in out, "14 tokens: [CLS] the film" in out) == (0, False, True)


def test_the_report_shows_what_the_screen_says(
    tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = str(tiny_model("bert")), tmp_path / "out"
    code, printed, _ = run(capsys, folder, "--text", TEXT, "--pair", PAIR, "--out", str(out))
    assert (code, str(out / "report.md") in printed) == (0, True)
    report, page = ((out / name).read_text() for name in ("report.md", "index.html"))
    assert all(question in report and question in page for question, *_ in SECTIONS)
    assert f"--text {shlex.quote(TEXT)} --pair {shlex.quote(PAIR)}" in report
    expected = take_apart(open_model(folder), TEXT, PAIR).tokens
    tokens = pd.read_csv(out / "tables" / "tokens.csv", keep_default_na=False)
    assert list(tokens["token"]) == list(expected["token"])
    np.testing.assert_allclose(tokens["length"].astype(float), expected["length"])
    code, _, err = run(capsys, folder, "--text", TEXT, "--out", str(tmp_path))
    assert (code, "pass another --out" in err) == (2, True)


def test_a_model_without_segments_takes_a_pair(tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(tiny_model("distilbert")), "--text", TEXT, "--pair", PAIR)
    assert (code, "Not applicable: DistilBERT has no segments." in out) == (0, True)


BAD = {
    "no text": (["--text", " "], "--text is empty: pass a sentence"),
    "no pair": (["--text", TEXT, "--pair", ""], "--pair is empty: leave it out"),
    "a long text": (["--text", "good " * 47], "--text is 49 tokens long, and tiny reads 48 at most: shorten it"),
    "a long pair": (["--text", "good " * 23, "--pair", "good " * 23], "--text and --pair together are 49 tokens long"),
    "no token": (["--text", "\u200b\u0000"], "has no token that tiny knows"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line(
    name: str, tiny_model: TinyModel, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "tiny").symlink_to(tiny_model("bert"))
    monkeypatch.chdir(tmp_path)
    flags, message = BAD[name]
    code, out, err = run(capsys, "tiny", *flags)
    assert (code, out, message in err, len(err.splitlines())) == (2, "", True, 1)


def test_unknown_models(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for model, message in (("minlm", "did you mean 'minilm'"), ("./nowhere", "no folder at"), (" ", "MODEL is empty")):
        code, _, err = run(capsys, model, "--text", TEXT)
        assert (code, message in err, len(err.splitlines())) == (2, True, 1)


def test_a_run_is_shown_as_its_regime_left_it(
    tiny_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(tiny_config, output_dir=str(tmp_path), max_steps=1, freeze="embeddings")
    code, out, _ = run(capsys, str(finetune(replace(config, save_model=True)).path), "--text", TEXT)
    assert (code, len(re.findall(r"^word_embeddings +no .*frozen *$", out, re.MULTILINE))) == (0, 1)
    code, _, err = run(capsys, str(finetune(replace(config, seed=1)).path), "--text", TEXT)
    assert (code, "--save-model" in err) == (2, True)


def test_a_deberta_without_absolute_positions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoConfig, AutoModel

    tokenizer = build_tokenizer()
    sizes = COMMON | {"vocab_size": len(tokenizer)} | FAMILY_CONFIGS["deberta-v2"] | {"conv_kernel_size": 0}
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.for_model("deberta-v2", **sizes, position_biased_input=False)).save_pretrained(
        tmp_path
    )
    tokenizer.save_pretrained(tmp_path)
    anatomy = take_apart(open_model(str(tmp_path)), TEXT)
    assert list(anatomy.permutation.table.without) == ["", "relative distances"]
    assert list(anatomy.permutation.table.is_equal) == [False, True]
    assert set(anatomy.tokens.part) == {"word", "sum"}
    print_anatomy(as_document(anatomy))
    assert "positions are relative distances in the attention" in " ".join(capsys.readouterr().out.split())


def test_padding_written_into_the_text(tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    """RoBERTa does not count it; where nothing is added to a row of 0 (ModernBERT), its share is undefined."""
    for model_type in ("roberta", "modernbert"):
        loaded = open_model(str(tiny_model(model_type)))
        with torch.no_grad():
            loaded.model.backbone.get_input_embeddings().weight[0] = 0  # type: ignore[operator]
        anatomy = take_apart(loaded, "the [PAD] film")
        assert anatomy.layer_sum.is_equal[:2].all()
        print_anatomy(as_document(anatomy))
        json.dumps(as_document(anatomy), allow_nan=False)  # what is undefined is None
    assert anatomy.tokens.share.isna().sum() == 2
    out = capsys.readouterr().out
    assert "NOT" not in out
    assert re.search(r"word_embeddings +0 +\[PAD\] +\d +0 exactly +padding_idx", out)


def test_a_notebook_shows_its_facts(anatomy_of: Callable[[str], Anatomy]) -> None:
    for check in (check_repr, check_html):
        check(anatomy_of("bert"))
