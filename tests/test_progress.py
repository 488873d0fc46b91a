"""What is being computed: on a terminal a line that goes away, in a log a line now and then, with the time left."""

import inspect
import pkgutil
import re
import time
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path

import pytest

from tests.questions.examples import commands_of_questions, examples
from tests.refusals import leave
from toolkit import progress
from toolkit.cli import FINETUNE, main
from toolkit.commands import COMMANDS
from toolkit.config import RunConfig
from toolkit.pipeline import finetune
from toolkit.progress import counted, say, shows_progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "FIRST_SECONDS", 2.0)
    return now


def test_a_log_gets_a_line_after_two_seconds_and_then_now_and_then(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with shows_progress("opening files"):
        for _ in range(33):
            say("drawing figures")
            clock[0] += 1
    assert capsys.readouterr().err.splitlines() == [f"{seconds} s: drawing figures" for seconds in (2, 17, 32)]


def test_a_log_hears_of_a_long_step_that_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_SECONDS", "LOG_SECONDS"):
        monkeypatch.setattr(progress, name, 0.1)
    with shows_progress("opening files"):
        say("one long table", 0, 3)
        time.sleep(1.5)
    assert capsys.readouterr().err.splitlines().count("1 s: one long table: 0 of 3 done") > 1


def test_a_short_command_leaves_nothing_in_a_log(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with shows_progress("opening files"):
        for _ in counted(range(10), "rows"):
            clock[0] += 0.1
    assert capsys.readouterr() == ("", "")


def test_what_is_counted_says_how_long_the_rest_takes(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """Of several things at once each by its own pace; one that begins again has begun anew."""
    with shows_progress("opening files"):
        for _ in counted(range(3), "models"):
            for _ in counted(range(40), "[batches]"):
                clock[0] += 20
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["20 s: [batches]: 1 of 40, about 13 min left", "40 s: [batches]: 2 of 40, about 13 min left"]
    assert "800 s: models: 1 of 3, about 27 min left" not in said, "said at once after the line before"
    assert said[37:41] == [
        "760 s: [batches]: 38 of 40, about 40 s left",
        "780 s: [batches]: 39 of 40, about 20 s left",
        "800 s: [batches]: 40 of 40 done",
        "820 s: [batches]: 1 of 40, about 13 min left",
    ]


def test_a_terminal_shows_the_text_at_once(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with shows_progress("opening files"):
        say("[seed 0]", 0, 40)
    assert "[seed 0]: 0 of 40 done" in capsys.readouterr().err


SLOW = (
    "data.tasks.load_task", "most_changed", "training.encoding.encode_task", "take_apart", "open_model",
    "verify_run", "verify_report", "write_report", *chain(*examples("SLOW")),
)  # fmt: skip
"""Functions that take more than two seconds of models or reports as people have them."""


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_function_shows_progress(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes of it: here an error, as what it is given is none of what it takes."""
    begun: list[str] = []
    stages = progress.Stages
    monkeypatch.setattr(progress, "Stages", lambda: begun.append(name) or stages())
    function = pkgutil.resolve_name(f"toolkit.{name}")
    given = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    for rank in ("0", "1"):  # of a launch the first alone
        monkeypatch.setenv("RANK", rank)
        with pytest.raises((ValueError, TypeError, AttributeError)):
            function(*([] for parameter in given if parameter.kind is not parameter.VAR_KEYWORD))
        assert begun == [name]


def test_a_function_inside_another_adds_to_its_line(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    @shows_progress("inner")
    def inner() -> int:
        clock[0] += 20
        say("a part")
        return 3

    @shows_progress("outer")
    def outer(*, number: int) -> int:
        """What it does."""
        clock[0] += 20
        return number + inner()

    assert outer.__doc__ == "What it does."
    assert outer(number=4) == 7
    assert capsys.readouterr().err == "20 s: inner\n40 s: a part\n"
    say("nobody hears this")
    assert capsys.readouterr() == ("", "")


CALLS = {
    "report": "report {run} {other} --out {out}",
    "drift": "drift {run}",
    "trains": "trains {model} --freeze none",
    "study": "study {study} --dry-run",
    "verify": "verify {run}",
    FINETUNE: "finetune --config {run} --max-steps 2 --output-dir {out}",
}
"""Of the core's commands; their questions bring their own."""
LEFT = r"^\d+ s: .+: \d+ of \d+, about \d+ (s|min) left$|\d+/\d+ \[\d\d:\d\d<\d\d:\d\d"
"""What is shown of the time left: by :mod:`toolkit.progress`, and by the bar of a training loop."""


@pytest.fixture(scope="module")
def places(
    tiny_model: Callable[[str], Path], tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    root = tmp_path_factory.mktemp("places")
    config = replace(tiny_config, output_dir=str(root / "runs"), save_model=True)
    runs = [finetune(replace(config, seed=seed)).path for seed in (0, 1)]
    given = {each.name: getattr(config, each.name) for each in fields(config)}
    common = {
        name: value for name, value in given.items() if value != getattr(RunConfig(), name) and name != "output_dir"
    }
    study = root / "study.py"
    study.write_text(
        "from toolkit import Study\nSTUDY = Study(title='t', question='q', conditions={'full': {}}, "
        f"tasks={{'mine': {{}}, 'short': {{'max_length': 8}}}}, seeds=range(2), comparisons=[], common={common!r})\n"
    )
    tuned, model, texts = runs[0] / "model", tiny_model("bert"), tiny_config.train_file
    names = {"run": runs[0], "other": runs[1], "tuned": tuned, "model": model, "texts": texts, "study": study}
    return {name: str(place) for name, place in names.items()}


@pytest.mark.slow  # every command, carried out
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", [FINETUNE, *COMMANDS])
def test_every_command_says_how_long_it_will_take(
    command: str,
    places: dict[str, str],
    tmp_path: Path,
    undrawn: None,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where each works for longer than two seconds: with small models all of them are quicker."""
    for name in ("FIRST_SECONDS", "LOG_SECONDS"):
        monkeypatch.setattr(progress, name, 0.0)
    calls = [words for words in commands_of_questions().values() if words[0] == command] or [CALLS[command].split()]
    for i, words in enumerate(calls):
        assert not leave(main, [word.format(**places, out=tmp_path / f"out{i}") for word in words])
        assert re.search(LEFT, capfd.readouterr().err, re.MULTILINE), words
