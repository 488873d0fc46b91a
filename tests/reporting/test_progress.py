"""What is being computed: on a terminal a line that goes away, in a log a line now and then."""

import pytest

from toolkit.reporting import progress
from toolkit.reporting.progress import counting_progress, reporting_progress


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
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{seconds} s: drawing figures" for seconds in (15, 30, 45, 60)]


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
    if is_counted:
        with counting_progress("passes") as hear:
            hear("[seed 0]", 3, 40)
    else:
        with reporting_progress() as say:
            say("[seed 0]")
    assert "[seed 0]" in capsys.readouterr().err
