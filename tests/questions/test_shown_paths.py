"""No page of any kind, and no terminal, shows where on this machine something lies, but for what the user typed; and no
table gives a spreadsheet a formula, whatever folders, splits, labels, scores and conditions are called."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import toolkit
from tests.formulas import check_no_formula
from tests.questions.examples import commands_of_questions
from tests.training.recorded_texts import encode, load
from toolkit.cli import main
from toolkit.config import RunConfig

SPLIT, SCORE, CONDITION = "@SUM(1+1)*cmd", "a;=1+1", "-2+3+cmd|' /C calc'!A0"
KINDS: dict[str, list[str]] = {
    **commands_of_questions(),
    "drift of runs": ["drift", "{run}", "{other}"],
    "drift of a recorded run": ["drift", "{recorded}"],
    "drift of checkpoints": ["drift", "{model}", "{run}", "{tuned}"],
    "report": ["report", "{run}", "{other}", "{recorded}"],
}


@pytest.fixture(scope="module")
def places(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two runs with their models, a recorded one without an optimizer, a checkpoint and texts: absolute paths.

    Whatever has a name of its own has that of a formula.
    """
    folder = tmp_path_factory.mktemp("places")
    shutil.copytree(tiny_config.model, folder / "=model")
    assert tiny_config.train_file is not None
    lines = Path(tiny_config.train_file).read_text().splitlines()[1:]
    rows = [{"text": line[:-2], "label": {"0": "=A1", "1": "+1-x\r=2"}[line[-1]]} for line in lines]
    texts = folder / "@texts.jsonl"
    texts.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = replace(
        tiny_config,
        model=str(folder / "=model"),
        train_file=str(texts),
        validation_file=str(texts),
        test_file=(f"{SPLIT}={texts}",),
        save_model=True,
        output_dir=str(folder / "r"),
    )
    run, other = (toolkit.finetune(replace(config, seed=seed)) for seed in (0, 1))
    model, tokenizer = load(folder / "=model")
    with toolkit.record(model, folder / "=recorded", tokenizer=tokenizer, condition=CONDITION, seed=0) as recording:
        recording.snapshot(epoch=0)
        model(**encode(tokenizer, ["good"]))
        model.bert.embeddings.word_embeddings.weight.data += 1
        recording.snapshot(epoch=1)
        recording.score(SCORE, **{SPLIT: 0.5})
    return {
        "folder": str(folder),
        "run": str(run.path),
        "other": str(other.path),
        "tuned": str(run.path / "model"),
        "recorded": str(folder / "=recorded"),
        "model": str(folder / "=model"),
        "texts": str(texts),
    }


@pytest.mark.parametrize(
    "kind", ["report", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "report")]
)
def test_nothing_shows_a_path_that_was_not_typed_and_no_table_holds_a_formula(
    kind: str,
    places: dict[str, str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    out = tmp_path_factory.mktemp("out")
    words = [word.format(**places) for word in KINDS[kind]]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--out", str(out)])
    said = "".join(capsys.readouterr())
    assert stop.value.code == 0, said
    for typed in sorted([str(out), *(word.partition("=")[2] or word for word in words)], key=len, reverse=True):
        said = said.replace(typed, "")
    own = str(tmp_path_factory.getbasetemp())
    assert own not in said, around(said, own)
    pages = [path for path in out.rglob("*") if path.is_file()]
    assert {path.suffix for path in pages} >= {".md", ".html"}
    for path in pages:
        content = content_of(path)
        assert own not in content, (path.name, around(content, own))
        if path.suffix == ".csv":
            check_no_formula(path.read_bytes().decode())


def content_of(path: Path) -> str:
    if path.suffix == ".parquet":
        return pd.read_parquet(path).to_csv()
    return path.read_bytes().decode("utf-8", errors="replace")


def around(text: str, found: str) -> str:
    at = text.find(found)
    return text[max(0, at - 200) : at + 300]
