"""What is being computed: on a terminal a line that goes away, in a log a line now and then."""

import inspect
import pkgutil
from contextlib import contextmanager
from itertools import chain

import pytest

from tests.questions.examples import examples
from toolkit import progress
from toolkit.progress import counting_progress, reporting_progress, say, shows_progress


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_now_and_then(clock, capsys):
    with reporting_progress() as hear:
        for _ in range(61):
            hear("drawing figures")
            clock[0] += 1
    assert capsys.readouterr().err.splitlines() == [f"{seconds} s: drawing figures" for seconds in (15, 30, 45, 60)]


def test_a_short_command_leaves_nothing_in_a_log(clock, capsys):
    with reporting_progress() as hear, counting_progress("passes") as count:
        for done in range(10):
            hear("drawing figures")
            count("run", done, 10)
            clock[0] += 1
    assert capsys.readouterr() == ("", "")


def test_what_is_counted_says_of_how_many(clock, capsys):
    with counting_progress("passes") as hear:
        clock[0] += 20
        hear("[seed 0]", 3, 40)
    assert capsys.readouterr().err == "20 s: [seed 0]: 3 of 40 passes\n"


@pytest.mark.parametrize("is_counted", [False, True])
def test_a_terminal_shows_the_text_at_once(clock, capsys, monkeypatch, is_counted):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with counting_progress("passes") if is_counted else reporting_progress() as hear:
        hear("[seed 0]", *((3, 40) if is_counted else ()))
    assert "[seed 0]" in capsys.readouterr().err


SLOW = (
    "data.tasks.load_task", "most_changed", "training.encoding.encode_task",
    "verify_run", "write_report", *chain(*examples("SLOW")),
)  # fmt: skip
"""Functions that take more than five seconds of models or reports as people have them."""


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_function_shows_progress_on_a_terminal_only(name, capsys, monkeypatch):
    """Whatever comes of it: here an error, as what it is given is none of what it takes."""
    drawn = []

    @contextmanager
    def reporting():
        yield drawn.append

    function = pkgutil.resolve_name(f"toolkit.{name}")
    given = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    monkeypatch.setattr(progress, "reporting_progress", reporting)
    for is_terminal, rank, lines in ((False, "0", 0), (True, "0", 1), (True, "1", 1)):  # of a launch the first draws
        monkeypatch.setattr(progress.sys.stderr, "isatty", lambda shown=is_terminal: shown)
        monkeypatch.setenv("RANK", rank)
        with pytest.raises((ValueError, TypeError, AttributeError)):
            function(*([] for parameter in given if parameter.kind is not parameter.VAR_KEYWORD))
        assert len(drawn) == lines
        assert is_terminal or capsys.readouterr() == ("", "")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_function_inside_another_adds_to_its_line(is_terminal, capsys, monkeypatch):
    @shows_progress("inner")
    def inner():
        say("a part")
        return 3

    @shows_progress("outer")
    def outer(*, number):
        """What it does."""
        return number + inner()

    assert outer.__doc__ == "What it does."
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    assert outer(number=4) == 7
    shown = capsys.readouterr().err
    assert ("a part" in shown, "inner" in shown) == (is_terminal, False)
    say("nobody hears this")
    assert capsys.readouterr() == ("", "")
