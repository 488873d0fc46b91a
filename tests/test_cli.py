"""The command lines: one line and exit code 2 for a mistake, nothing half-written, quick help."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields, make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors import SafetensorError

from toolkit.cli import BROKEN_PIPE, LOG_COLUMNS, finetune_main, guarded, main, parse, parse_config
from toolkit.config import RunConfig

ROOT = Path(__file__).parents[1]


@pytest.fixture
def flags(tiny_config: RunConfig, tmp_path: Path) -> list[str]:
    """Flags of a tiny run from files."""
    words = tiny_config.to_command().split()[3:]
    return [*words, "--output-dir", str(tmp_path / "runs")]


def fail(flags: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run finetune.py's entry point, expect a user error, and return its one line."""
    with pytest.raises(SystemExit) as stop:
        finetune_main(flags)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.strip() and "step/s" not in line and "s/step" not in line]
    assert len(lines) == 1, lines
    return lines[0]


MISTAKES = {
    "flag": (["--modle", "x"], r"unknown flag '--modle' \(did you mean '--model'\?\)$"),
    "choice": (["--precision", "fp8"], r"invalid choice 'fp8'.*auto.*no.*bf16"),
    "number": (["--epochs", "three"], r"^error: --epochs: 'three' is not INT; finetune\.py --help has all flags$"),
    "neither": (["--max-steps", "2.5"], r"--max-steps: '2\.5' is not INT;"),
    "no value": (["--learning-rate"], r"Missing value for argument '--learning-rate'"),
    "stray": (["stray"], r"Unrecognized options: stray"),
    "empty": (["--dataset", ""], r"error: --dataset must be a name or path, or left out; got ''"),
    "no model": (["--model", "."], r"error: \. holds no config\.json: pass a folder that save_pretrained wrote"),
    "range": (["--epochs", "0"], r"error: --epochs must be at least 1; got 0"),
    "regime": (["--freeze", "embedings"], r"unknown regime or component 'embedings' \(did you mean 'embeddings'\?\)"),
    "layers": (["--freeze", "layers.2-7"], r"the model has the layers layers\.0 to layers\.2"),
    "absent component": (["--freeze", "projection"], r"not applicable, this model has none"),
    "all frozen": (["--freeze", "backbone,head"], r"leaves nothing to train"),
    "column": (["--text-columns", "txt"], r"unknown column 'txt' \(did you mean 'text'\?\)"),
    "label column": (
        ["--label-column", "y"],
        r"no labels: check --label-column \(no column 'y'; it has: text, label\)",
    ),
    "file": (["--validation-file", "gone.tsv"], r"no file at gone\.tsv"),
    "length": (["--max-length", "4000"], r"--max-length 4000 is more than the 48 positions"),
    "no room": (["--max-length", "2"], r"--max-length 2 leaves no room for text beside 2 special tokens"),
    "test file": (["--test-file", "x.tsv"], r"--test-file takes NAME=PATH, got 'x\.tsv'"),
    "ood file": (["--ood-file", "x.tsv"], r"--ood-file takes NAME=PATH, got 'x\.tsv'"),
    "task name": (["--task-name", "a/b"], r"--task-name must be a name of 1 to 48 characters without / and"),
    "taken name": (["--test-file", "train=x.tsv"], r"the split name 'train' is taken"),
    "batch": (["--batch-size", "6", "--gradient-accumulation-steps", "4"], r"must be a multiple of"),
    "tracker": (["--log-with", "trackio"], r"needs the package: pip install trackio"),
    "folder": (["--validation-file", "."], r"\. is a folder: pass a data file \(\.tsv, "),
    "config": (["--config", "gone.json"], r"--config: no file at gone\.json"),
    "two sources": (["--dataset", "owner/name"], r"two sources of data"),
    "named task": (["--task", "order"], r"--task order and data of your own are two sources"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_written(
    name: str, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = MISTAKES[name]
    assert re.search(message, fail([*flags, *words], capsys))
    assert not (tmp_path / "runs").exists()


def test_names_without_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hub can be reached: the line says what to pass instead, and there is no half minute of retries."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    started = time.perf_counter()
    assert re.search(
        r"unknown task 'polarty' \(did you mean 'polarity'\?\); choose from: polarity, order, pair, roles, sst2",
        fail(["--task", "polarty"], capsys),
    )
    assert re.search(r"unknown model 'minilmm' \(did you mean 'minilm'\?\)", fail(["--model", "minilmm"], capsys))
    assert re.search(r"hub cannot be reached \(HF_HUB_OFFLINE\); pass minilm", fail(["--model", "owner/name"], capsys))
    assert re.search(r"no folder at './gone'", fail(["--model", "./gone"], capsys))
    assert re.search(r"cannot read the dataset 'nyu-mll/glue'.*pass --train-file", fail(["--task", "rte"], capsys))
    assert re.search(r"--validation-file goes with --train-file", fail(["--validation-file", "x.tsv"], capsys))
    assert time.perf_counter() - started < 20
    assert not list(tmp_path.iterdir())


DATA_MISTAKES = {
    "empty split": ("text\tlabel\n", r"split 'validation' .* is empty"),
    "new label": ("text\tlabel\nfine\t7\n", r"'validation' has the label 7, which training lacks \(it has: 0, 1\)"),
    "empty text": ("text\tlabel\nfine\t1\n \t0\n", r"split 'validation', row 2: the text is empty"),
    "missing label": ("text\tlabel\nfine\t1\ndull\t\n", r"split 'validation', row 2: the label is missing"),
    "no labels": ("text\nfine\n", r"split 'validation' has no labels"),
}


@pytest.mark.parametrize("name", DATA_MISTAKES)
def test_bad_data(name: str, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, message = DATA_MISTAKES[name]
    (tmp_path / "v.tsv").write_text(text)
    assert re.search(message, fail([*flags, "--validation-file", str(tmp_path / "v.tsv")], capsys))
    assert not (tmp_path / "runs").exists()


FULL = (
    OSError(errno.ENOSPC, "No space left on device"),
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
)


@pytest.mark.parametrize("error", FULL, ids=lambda error: type(error).__name__)
def test_a_full_disk_is_one_line(
    error: Exception,
    flags: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk fills up while the first snapshot is written: no manifest, no torn file, and the reason."""
    from toolkit.snapshots import files

    def full(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(files, "save_file", full)
    message = fail(flags, capsys)
    assert "No space left on device" in message
    assert message.endswith("; free some space or pass another --output-dir")
    (run,) = (tmp_path / "runs").iterdir()
    assert not (run / "manifest.json").exists()
    assert not [path for path in run.rglob("*") if ".tmp" in path.name or path.suffix == ".safetensors"]


def test_divergence_is_one_line_with_the_step(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    extra = ["--learning-rate", "1e30", "--head-learning-rate", "1e30", "--warmup-fraction", "0"]
    assert re.search(r"not finite at step \d+: training stopped", fail([*flags, *extra], capsys))


def test_a_finished_run_is_refused_and_verified(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        finetune_main(flags)
    assert stop.value.code == 0
    out = capsys.readouterr().out
    (run,) = (tmp_path / "runs").iterdir()
    assert "accuracy per epoch" in out
    assert "Drift from epoch 0" in out
    assert str(run) in out.replace("\n", "")
    assert re.search(r"finished run of this config: pass --overwrite", fail(flags, capsys))
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(run)])
    assert stop.value.code == 0
    scores = run / "scores.csv"
    scores.write_text(scores.read_text() + "9,9,x,1\n")
    (run / "stray").write_text("")
    (run / "vocabulary.json").unlink()
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(run)])
    assert stop.value.code == 1
    assert capsys.readouterr().out.splitlines() == [
        "missing: vocabulary.json",
        "changed: scores.csv",
        "not in the manifest: stray",
    ]


@pytest.mark.parametrize(
    "command",
    [
        ["verify"],
        ["report", "--out"],
        ["report", "gone", "--out", "x"],
        ["verify", "gone"],
        ["study", "gone.py", "--executor", "locl"],
        ["transplant", "gone", "--coordinates", "round"],
    ],
)
def test_mistakes_of_the_toolkit_command(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "For full helptext" in said or len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


COMMANDS = ("report", "drift", "flow", "layers", "positions", "anatomy", "reindex", "study", "transplant", "verify")
MISTYPED = {
    "before the file": (["study", "--dry-runn", "mine.py"], "--dry-runn", "--dry-run"),
    "after the file": (["study", "mine.py", "--dry-runn"], "--dry-runn", "--dry-run"),
    "with a value": (["study", "--worker=3", "mine.py"], "--worker", "--workers"),
    "underscore": (["study", "mine.py", "--output_dri", "x"], "--output_dri", "--output-dir"),
    "report": (["report", "--titel", "x", "runs", "--out", "r"], "--titel", "--title"),
    "the one that is required": (["report", "runs", "--ouut", "r"], "--ouut", "--out"),
    "drift": (["drift", "--outt", "r", "a", "b"], "--outt", "--out"),
    "positions": (["positions", "--default-lenght", "3", "m"], "--default-lenght", "--default-length"),
    "verify": (["verify", "--run", "x", "r"], "--run", "--runs"),
}


@pytest.mark.parametrize("name", MISTYPED)
def test_a_mistyped_flag_is_named_whatever_is_missed_for_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before a positional argument the parser takes that for the flag's value and misses it instead."""
    words, flag, meant = MISTYPED[name]
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"error: unknown flag '{flag}' (did you mean '{meant}'?)\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_names_an_unknown_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--zzzzzz"])  # nothing like any flag, nor as short as --k
    assert capsys.readouterr().err == "error: unknown flag '--zzzzzz'\n"


def test_a_value_may_begin_like_a_flag() -> None:
    needy = make_dataclass("Needy", [("text", str)])
    assert parse(needy, ["--text", "-- she said"], prog="x").text == "-- she said"  # type: ignore[attr-defined]


def test_a_mistyped_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["studdy", "mine.py"])
    assert "unknown command 'studdy' (did you mean 'study'?); choose from: report" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], r"(?s)Expected one of \{report, .*verify\}"),
        (["report"], "error: report needs run directories and --out FOLDER, or --from with the folder of"),
        (["report", "runs"], "error: report needs --out FOLDER, a new folder to write the report into"),
        (["drift"], "error: nothing to open: pass run directories, or checkpoints"),
        (["report", "--from", "no", "--out", "x"], "error: no report at no"),
        (
            ["verify"],
            r"^error: Missing from python -m toolkit verify: PATH Run directory, or folder of a report; python",
        ),
        (["reindex", "a"], "--texts PATH Data file of the texts whose vectors are stored;"),
    ],
)
@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_what_is_missing_is_named(words: list[str], said: str, encoding: str) -> None:
    command = [sys.executable, "-m", "toolkit", *words]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=environment)
    assert done.returncode == 2
    assert re.search(said, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_of_several_processes_one_speaks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first says what all meet; another waits until the launcher has ended it, or says what it alone has met."""
    said_after: list[str] = []
    monkeypatch.setattr("toolkit.cli.time.sleep", lambda _: said_after.append(capsys.readouterr().err))
    for rank, waits in (("0", 0), ("1", 1)):
        monkeypatch.setenv("RANK", rank)
        assert guarded(lambda: RunConfig(epochs=0).num_epochs) == 2
        assert said_after == [""] * waits
        assert "--epochs must be at least 1" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        finetune_main(["--epochs", "three"])
    assert stop.value.code == 2
    assert said_after == ["", ""]


def test_a_config_file_gives_defaults_that_flags_change(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(RunConfig(epochs=7, freeze="embeddings", overwrite=True).to_json())
    assert parse_config(["--config", str(path), "--epochs", "2"]) == RunConfig(epochs=2, freeze="embeddings")
    assert parse_config([f"--config={path}"]) == RunConfig(epochs=7, freeze="embeddings")


def test_the_config_of_a_file_run_takes_other_data(tmp_path: Path) -> None:
    """The task's name follows from the data: it is neither repeated on the command line nor kept for other data."""
    path = tmp_path / "config.json"
    path.write_text(RunConfig(task="reviews", train_file="reviews/train.tsv", validation_file="v.tsv").to_json())
    other = parse_config(["--config", str(path), "--train-file", "spring.tsv"])
    assert (other.task, other.train_file) == (RunConfig().task, "spring.tsv")
    assert "--task" not in RunConfig.from_json(path.read_text()).to_command()


@pytest.mark.parametrize("flag", ["--test-file", "--ood-file"])
def test_repeated_files_add_up(flag: str) -> None:
    name = flag.removeprefix("--").replace("-", "_")
    together = parse_config([flag, "a=1", "b=2"])
    assert getattr(together, name) == ("a=1", "b=2")
    assert getattr(parse_config([flag, "a=1", "--epochs", "2", f"{flag}=b=2"]), name) == ("a=1", "b=2")


def test_trackers_get_the_scores(flags: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        finetune_main([*flags, "--log-with", "tensorboard"])
    assert stop.value.code == 0
    assert list((tmp_path / "runs" / "trackers").rglob("events.out.tfevents.*"))


def test_help_answers_at_once() -> None:
    """The bound is the issue's; the best of ten at most, because machines are noisy and other tests run beside it."""
    seconds = [float("inf")]
    while min(seconds) >= 0.7 and len(seconds) <= 10:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "toolkit", "--help"], check=True, capture_output=True, cwd=ROOT)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.7


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, toolkit; print([m for m in ('torch', 'transformers', 'accelerate', 'pandas') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert out.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    import toolkit

    assert all(getattr(toolkit, name) is not None for name in toolkit.__all__)
    with pytest.raises(AttributeError, match=r"has no attribute 'measure_row'; did you mean measure_rows(, \w+)*\?$"):
        toolkit.measure_row  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'qqq'; it has: .*measure_rows"):
        toolkit.qqq  # noqa: B018


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_mistyped_flag_is_one_line_on_every_terminal(encoding: str) -> None:
    command = [sys.executable, str(ROOT / "finetune.py"), "--modle", "x"]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=environment)
    assert done.returncode == 2
    assert done.stderr == "error: unknown flag '--modle' (did you mean '--model'?)\n"


def test_finetune_py_in_a_process_of_its_own(tiny_model: Callable[[str], Path], flags: list[str]) -> None:
    """No traceback from the script itself, whatever is printed around it."""
    command = [sys.executable, str(ROOT / "finetune.py"), *flags, "--freeze", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("asked", [None, "70"])
def test_a_log_is_wide_enough_for_tables(is_terminal: bool, asked: str | None, monkeypatch) -> None:
    """What a terminal has, or a user asks for, stays; and nothing of it is left behind."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if asked:
        monkeypatch.setenv("COLUMNS", asked)
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", SimpleNamespace(isatty=lambda: is_terminal))
    found = []
    assert guarded(lambda: found.append(os.environ.get("COLUMNS")) or 0) == 0
    assert found == [asked or (None if is_terminal else LOG_COLUMNS)]
    assert os.environ.get("COLUMNS") == asked


@pytest.mark.parametrize("printed", ["print('x' * 10**6)", "from rich.console import Console; Console().print('x')"])
def test_a_reader_that_has_seen_enough_ends_the_command_as_a_shell_has_it(printed: str) -> None:
    code = f"import sys; from toolkit.cli import guarded\ndef show(): {printed}\nsys.exit(guarded(show))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == BROKEN_PIPE
    assert process.stderr is not None
    assert process.stderr.read() == b""


@pytest.mark.parametrize("width", [80, 120])
def test_help_is_in_groups_and_fits_the_terminal(width: int) -> None:
    command = [sys.executable, str(ROOT / "finetune.py"), "--help"]
    environment = os.environ | {"COLUMNS": str(width), "PYTHONIOENCODING": "utf-8"}
    shown = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, env=environment).stdout
    assert max(map(len, shown.splitlines())) <= width
    places = [shown.index(f"{group} options") for group in ("data", "model", "training", "output")]
    assert places == sorted(places)
    listed = re.findall(r"^│ (--[\w-]+)", shown, re.M)
    assert sorted(listed) == sorted(["--config", *(f"--{each.name.replace('_', '-')}" for each in fields(RunConfig))])


def test_a_mistake_of_name_or_path_is_told_before_anything_heavy_is_imported() -> None:
    """Seconds go by while torch and transformers are imported, and more until a model is read."""
    mistakes = (
        ["--freeze", "embedings"],
        ["--task", "polarty"],
        ["--train-file", "gone.tsv", "--validation-file", "gone.tsv"],
        ["--train-file", str(ROOT / "README.md"), "--validation-file", str(ROOT / "README.md")],
        ["--task-name", "mine"],
    )
    code = (
        "import sys; from toolkit.cli import finetune_main\n"
        f"for words in {mistakes!r}:\n"
        "    try: finetune_main(words)\n"
        "    except SystemExit as stop: assert stop.code == 2, words\n"
        "print([m for m in ('torch', 'transformers', 'accelerate', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
    assert len(done.stderr.splitlines()) == len(mistakes)


@pytest.mark.parametrize("words", [["--output-dir", ""], ["--output-dir="], ["--out", ""], ["--output_dir", ""]])
def test_a_folder_without_a_name_is_not_the_current_one(words, tmp_path, monkeypatch, capsys):
    """As of a shell variable that is not set."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["study", "study.py", "--dry-run", *words])
    assert stop.value.code == 2
    assert "must be a name or path" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_of_several_processes_one_says_that_they_were_interrupted(
    rank: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C reaches all of them."""

    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setenv("RANK", rank)
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert guarded(interrupted) == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    assert capsys.readouterr().err.count("interrupted: the same command goes on") == lines
