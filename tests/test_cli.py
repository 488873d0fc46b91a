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
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from safetensors import SafetensorError

from tests.questions.examples import examples
from tests.refusals import leave
from toolkit.cli import BROKEN_PIPE, LOG_COLUMNS, finetune_main, guarded, main, parse, parse_config
from toolkit.commands import COMMANDS
from toolkit.config import RunConfig
from toolkit.schema import COLUMNS, TABLES

ROOT = Path(__file__).parents[1]


@pytest.fixture
def flags(tiny_config: RunConfig, tmp_path: Path) -> list[str]:
    """Flags of a tiny run from files."""
    return [*tiny_config.to_command().split()[3:], "--output-dir", str(tmp_path / "runs")]


def fail(words: list[str], capsys: pytest.CaptureFixture[str], entry: Callable = finetune_main) -> str:
    """Run an entry point, by default finetune.py's, expect a user error, and return its one line."""
    assert leave(entry, words) == 2
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.strip() and "step/s" not in line and "s/step" not in line]
    assert len(lines) == 1, lines
    return lines[0]


PICTURE = str(Path(__file__).parents[1] / "reports" / "first_screen.png")
MISTAKES = {
    "flag": (["--modle", "x"], r"unknown flag '--modle' \(did you mean '--model'\?\)$"),
    "choice": (["--precision", "fp8"], r"invalid choice 'fp8'.*auto.*no.*bf16"),
    "number": (["--epochs", "three"], r"^error: --epochs: 'three' is not INT; finetune\.py --help has all flags$"),
    "neither": (["--max-steps", "2.5"], r"--max-steps: '2\.5' is not INT;"),
    "no value": (["--learning-rate"], r"Missing value for argument '--learning-rate'"),
    "stray": (["stray"], r"Unrecognized options: stray"),
    "empty": (["--dataset", ""], r"error: --dataset must be a name or path, or left out; got ''"),
    "no model": (
        ["--model", "."],
        r"error: \. holds neither model\.safetensors .* pass the folder that save_pretrained wrote",
    ),
    "range": (["--epochs", "0"], r"error: --epochs must be at least 1; got 0"),
    "regime": (["--freeze", "embedings"], r"unknown regime or component 'embedings' \(did you mean 'embeddings'\?\)"),
    "layers": (["--freeze", "layers.2-7"], r"the model has the layers layers\.0 to layers\.2"),
    "absent component": (["--freeze", "projection"], r"not applicable, this model has none"),
    "all frozen": (["--freeze", "backbone,head"], r"leaves nothing to train"),
    "decay of frozen": (["--freeze", "backbone", "--layer-decay", "0.9"], r"--layer-decay 0\.9: all layers are frozen"),
    "stage of a head alone": (
        ["--freeze", "backbone", "--head-epochs", "1"],
        r"comes before training the backbone, which is frozen: leave it out",
    ),
    "stage of no head": (["--freeze", "head", "--head-epochs", "1"], r"leave one of them out"),
    "rate of frozen": (
        ["--freeze", "embeddings", "--embedding-learning-rate", "1e-3"],
        r"--embedding-learning-rate 0\.001: all",
    ),
    "column": (["--text-columns", "txt"], r"unknown column 'txt' \(did you mean 'text'\?\)"),
    "label column": (
        ["--label-column", "y"],
        r"no labels: unknown --label-column 'y'; choose from: text, label",
    ),
    "file": (["--validation-file", "gone.tsv"], r"no file at gone\.tsv"),
    "length": (["--max-length", "4000"], r"--max-length 4000 is more than the 48 positions"),
    "no room": (["--max-length", "2"], r"--max-length 2 leaves no room for text beside 2 special tokens"),
    "test file": (["--test-file", "x.tsv"], r"--test-file takes NAME=PATH, got 'x\.tsv'"),
    "ood file": (["--ood-file", "x.tsv"], r"--ood-file takes NAME=PATH, got 'x\.tsv'"),
    "task name": (["--task-name", "a/b"], r"--task-name must be a name of 1 to 48 characters without / and"),
    "taken name": (["--test-file", "train=x.tsv"], r"the name 'train' is taken"),
    "batch": (["--batch-size", "6", "--gradient-accumulation-steps", "4"], r"must be a multiple of"),
    "tracker": (["--log-with", "trackio"], r"needs the package: pip install trackio"),
    "folder": (["--validation-file", "."], r"\. is a folder: pass a data file \(\.tsv, "),
    "config": (["--config", "gone.json"], r"--config: no file at gone\.json"),
    "config of bytes": (
        ["--config", PICTURE],
        r"first_screen\.png is not JSON \(.*utf-8.*: restore it or make it again",
    ),
    "two sources": (["--dataset", "owner/name"], r"two sources of data"),
    "named task": (["--task", "order"], r"--task order and data of your own are two sources"),
    # What the validation file holds.
    "empty split": ("text\tlabel\n", r"split 'validation' .* is empty"),
    "new label": ("text\tlabel\nfine\t7\n", r"'validation' has the label 7, which training lacks \(it has: 0, 1\)"),
    "empty text": (
        "text\tlabel\nfine\t1\n \t0\ngood\t1\n\t1\n",
        r"split 'validation', row 2, 4: the text is empty: fill them or drop the rows \(counted from 1",
    ),
    "missing label": ("text\tlabel\nfine\t1\ndull\t\n", r"split 'validation', row 2: the label is missing"),
    "no labels": ("text\nfine\n", r"split 'validation' has no labels"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_written(
    name: str, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = MISTAKES[name]
    if isinstance(words, str):
        (tmp_path / "v.tsv").write_text(words)
        words = ["--validation-file", str(tmp_path / "v.tsv")]
    assert re.search(message, fail([*flags, *words], capsys))
    assert not (tmp_path / "runs").exists()


def test_names_without_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hub can be reached: the line says what to pass instead, and there is no half minute of retries."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    started = time.perf_counter()
    for words, message in (
        (
            ["--task", "polarty"],
            r"unknown task 'polarty' \(did you mean 'polarity'\?\); choose from: polarity, order, pair, roles, sst2",
        ),
        (["--model", "minilmm"], r"unknown model 'minilmm' \(did you mean 'minilm'\?\)"),
        (["--model", "owner/name"], r"hub cannot be reached \(HF_HUB_OFFLINE\); pass minilm"),
        (["--model", "./gone"], r"no folder at './gone'"),
        (["--task", "rte"], r"cannot read the dataset 'nyu-mll/glue'.*pass --train-file"),
        (["--validation-file", "x.tsv"], r"--validation-file goes with --train-file"),
    ):
        assert re.search(message, fail(words, capsys))
    assert time.perf_counter() - started < 20
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_full_disk_is_one_line(
    error: Exception,
    flags: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk fills up while the first snapshot is written: no manifest, no torn file, and the reason."""
    from toolkit.snapshots import files

    monkeypatch.setattr(files, "_write_parts", Mock(side_effect=error))
    assert re.search("No space left on device.*; free some space or pass another --output-dir$", fail(flags, capsys))
    (run,) = (tmp_path / "runs").iterdir()
    assert not (run / "manifest.json").exists()
    assert not [path for path in run.rglob("*") if ".tmp" in path.name or path.suffix == ".safetensors"]


def test_divergence_is_one_line_with_the_step(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    extra = ["--learning-rate", "1e30", "--head-learning-rate", "1e30", "--warmup-fraction", "0"]
    assert re.search(r"not finite at step \d+: training stopped", fail([*flags, *extra], capsys))


def test_a_finished_run_is_refused_and_verified(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(finetune_main, flags) == 0
    out = capsys.readouterr().out
    (run,) = (tmp_path / "runs").iterdir()
    assert ("accuracy per epoch" in out, "Drift from epoch 0" in out) == (True, True)
    assert str(run) in out.replace("\n", "")
    assert re.search(r"finished run of this config: pass --overwrite", fail(flags, capsys))
    assert leave(main, ["verify", str(run)]) == 0
    scores = run / "scores.csv"
    scores.write_text(scores.read_text() + "9,9,x,1\n")
    (run / "stray").write_text("")
    (run / "vocabulary.json").unlink()
    capsys.readouterr()
    assert leave(main, ["verify", str(run)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "missing: vocabulary.json",
        "changed: scores.csv",
        "not in the manifest: stray",
    ]


UNKNOWN_FLAG = r"^error: unknown flag '%s' \(did you mean '%s'\?\)$"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], r"Expected one of \{finetune, report, .*verify\}"),
        (["finetune", "--lr", "1e-4"], UNKNOWN_FLAG % ("--lr", "--learning-rate")),
        (["finetune", "--epochs", "three"], "'three' is not INT; .* finetune --help has all flags"),
        (["finetune", "--freeze", "backbone", "--epochs", "1"], "--epochs 1 with a frozen backbone"),
        (["studdy", "mine.py"], r"unknown command 'studdy' \(did you mean 'study'\?\); choose from: finetune, report"),
        (["report"], "error: report needs run directories and --out FOLDER, or --from with the folder of"),
        (["report", "runs"], "error: report needs --out FOLDER, a new folder to write the report into"),
        (["report", "--out"], "Missing value for argument '--out'"),
        (["report", "gone", "--out", "x"], "gone"),
        (["report", "--from", "no", "--out", "x"], "error: no report at no"),
        (["drift"], "error: nothing to open: pass run directories, or checkpoints"),
        (["verify"], r"^error: Missing from .* verify: PATH Run directory, or folder of a report; .* --help has"),
        (["verify", "gone"], "no run directory and no report at gone"),
        (["study", "gone.py", "--executor", "locl"], "invalid choice 'locl'"),
        # A variable of the shell that is not set: the folder without a name is not the current one.
        *(
            (["study", "study.py", "--dry-run", *words], "must be a name or path")
            for words in (["--output-dir", ""], ["--output-dir="], ["--out", ""], ["--output_dir", ""])
        ),
        # Before a positional argument the parser takes that for the flag's value and misses it instead.
        (["study", "--dry-runn", "mine.py"], UNKNOWN_FLAG % ("--dry-runn", "--dry-run")),
        (["study", "mine.py", "--dry-runn"], UNKNOWN_FLAG % ("--dry-runn", "--dry-run")),
        (["study", "--worker=3", "mine.py"], UNKNOWN_FLAG % ("--worker", "--workers")),
        (["study", "mine.py", "--output_dri", "x"], UNKNOWN_FLAG % ("--output_dri", "--output-dir")),
        (["report", "--titel", "x", "runs", "--out", "r"], UNKNOWN_FLAG % ("--titel", "--title")),
        (["report", "runs", "--ouut", "r"], UNKNOWN_FLAG % ("--ouut", "--out")),
        (["drift", "--outt", "r", "a", "b"], UNKNOWN_FLAG % ("--outt", "--out")),
        (["verify", "--run", "x", "r"], UNKNOWN_FLAG % ("--run", "--runs")),
        *chain(*examples("MISTAKES")),
    ],
)
def test_a_mistake_of_the_toolkit_command_is_one_line_and_nothing_is_written(
    command: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert re.search(message, fail(command, capsys, main))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_names_an_unknown_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave(main, [name, "--help"]) == 0
    assert " ".join((COMMANDS[name].__doc__ or "").split()) in " ".join(capsys.readouterr().out.split())
    # Nothing like any flag, nor as short as --k.
    assert fail([name, "--zzzzzz"], capsys, main) == "error: unknown flag '--zzzzzz'"


def test_a_value_may_begin_like_a_flag() -> None:
    needy = make_dataclass("Needy", [("text", str)])
    assert parse(needy, ["--text", "-- she said"], prog="x").text == "-- she said"  # type: ignore[attr-defined]


def test_of_several_processes_one_speaks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first says what all meet; another waits until the launcher has ended it, or says what it alone has met."""
    said_after: list[str] = []
    monkeypatch.setattr("toolkit.cli.time.sleep", lambda _: said_after.append(capsys.readouterr().err))
    for rank, waits in (("0", 0), ("1", 1)):
        monkeypatch.setenv("RANK", rank)
        assert guarded(lambda: RunConfig(epochs=0).num_epochs) == 2
        assert said_after == [""] * waits
        assert "--epochs must be at least 1" in capsys.readouterr().err
    assert leave(finetune_main, ["--epochs", "three"]) == 2
    assert said_after == ["", ""]


def test_a_config_file_gives_defaults_that_flags_change(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(RunConfig(epochs=7, freeze="embeddings", overwrite=True).to_json())
    assert parse_config(["--config", str(path), "--epochs", "2"]) == RunConfig(epochs=2, freeze="embeddings")
    assert parse_config([f"--config={path}"]) == RunConfig(epochs=7, freeze="embeddings")
    # The task's name follows from the data: it is neither repeated on the command line nor kept for other data.
    path.write_text(RunConfig(task="reviews", train_file="reviews/train.tsv", validation_file="v.tsv").to_json())
    other = parse_config(["--config", str(path), "--train-file", "spring.tsv"])
    assert (other.task, other.train_file) == (RunConfig().task, "spring.tsv")
    assert "--task" not in RunConfig.from_json(path.read_text()).to_command()


@pytest.mark.parametrize("flag", ["--test-file", "--ood-file"])
def test_repeated_files_add_up(flag: str) -> None:
    name = flag.removeprefix("--").replace("-", "_")
    for words in ([flag, "a=1", "b=2"], [flag, "a=1", "--epochs", "2", f"{flag}=b=2"]):
        assert getattr(parse_config(words), name) == ("a=1", "b=2")


def test_help_answers_at_once() -> None:
    """The bound is the issue's; the best of ten at most, because machines are noisy and other tests run beside it."""
    seconds = [float("inf")]
    while min(seconds) >= 0.7 and len(seconds) <= 10:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "toolkit", "--help"], check=True, capture_output=True, cwd=ROOT)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.7


def test_importing_the_package_imports_nothing_heavy() -> None:
    """Nor does the first name, after which the schema has every question's tables and columns."""
    code = (
        "import sys; from toolkit import RunConfig; from toolkit.schema import COLUMNS, TABLES; "
        "print([m for m in ('torch', 'transformers', 'accelerate', 'pandas') if m in sys.modules], *COLUMNS, *TABLES)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    # In what order questions were imported here depends on the tests before this one.
    assert sorted(out.stdout.split()) == sorted(["[]", *COLUMNS, *TABLES])


def test_every_public_name_is_there() -> None:
    import toolkit

    assert all(getattr(toolkit, name) is not None for name in dir(toolkit))
    with pytest.raises(AttributeError, match=r"has no attribute 'measure_row'; did you mean measure_rows(, \w+)*\?$"):
        toolkit.measure_row  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'qqq'; it has: .*measure_rows"):
        toolkit.qqq  # noqa: B018


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["finetune.py", "--modle", "x"], "error: unknown flag '--modle' (did you mean '--model'?)\n"),
        (["finetune.py", "--freeze", "nothing"], "unknown regime or component 'nothing'"),
        (["-m", "toolkit", "verify"], "error: Missing from python -m toolkit verify: PATH Run directory, or folder"),
        (["-m", "toolkit", "report"], "error: report needs run directories and --out FOLDER"),
    ],
)
def test_a_mistake_is_one_line_on_every_terminal(words: list[str], said: str, encoding: str) -> None:
    """In a process of its own: no traceback from the script itself, whatever is printed around it."""
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert said in done.stderr


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
    process.stdout.close()
    assert process.wait(60) == BROKEN_PIPE
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


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_of_several_processes_one_says_that_they_were_interrupted(
    rank: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C reaches all of them."""
    monkeypatch.setenv("RANK", rank)
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert guarded(Mock(side_effect=KeyboardInterrupt)) == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    assert capsys.readouterr().err.count("interrupted: the same command goes on") == lines


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["drift", "runs/demos"],
            ["layers", "runs/demos", "minilm"],
            ["verify", "runs/demos"],
            ["trains", "runs/demos"],
        ),
        *(["report", "runs/demos", "--out", "x"], ["report", "--from", "runs/demos", "--out", "x"]),
        ["finetune", "--train-file", "runs/demo.cvs", "--validation-file", "runs/demo.cvs"],
        ["finetune", "--model", "./runs/demos"],
    ],
)
def test_of_a_mistyped_path_what_is_near_it_is_named(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "runs" / "demo.csv").touch()
    assert re.search(r"\(did you mean 'runs/demo(\.csv)?'\?\)", fail(words, capsys, main))
    assert "(runs holds demo, demo.csv)" in fail(["report", "runs/x", "--out", "x"], capsys, main)


def test_of_a_flag_that_is_given_twice_the_last_one_counts_and_that_is_said() -> None:
    with pytest.warns(UserWarning, match="^--max-length is given 2 times, and the last one counts$"):
        config = parse_config(["--max_length", "8", "--test-file", "a=1", "--test-file", "b=2", "--max-length=16"])
    assert (config.max_length, config.test_file) == (16, ("a=1", "b=2"))
