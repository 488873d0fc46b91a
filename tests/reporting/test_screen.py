"""Tables on the terminal."""

import pytest
from rich.console import Console

from toolkit.reporting.screen import _drift_table, print_components, print_rows, print_task


def test_a_table_of_intervals_fits_80_columns_and_cuts_nothing(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    header = ["arm", "texts", "layer", "debiased CKA", "standardised columns", "RSA", "two seeds, debiased CKA"]
    cells = ["0.123 (0.056 to 0.789)", "0.5 (0.1 to 0.9)", "-0.123 (-0.456 to 0.789)", "0.123 (0.056 to 0.789)"]
    arms = ("none (full fine-tuning)", "shuffled labels, [bold]")
    print_rows("minilm [x]", header, [[arm, "test", "embeddings", *cells] for arm in arms], num_titles=2)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 and "…" not in line for line in lines)
    assert [line.strip() for line in lines if "test" in line] == [f"{arm}, test" for arm in arms]
    assert sum("(0.056 to 0.789) (0.1 to 0.9)" in line and "(-0.456 to 0.789) (" in line for line in lines) == 2
    assert lines[0] == "minilm [x]"


@pytest.mark.parametrize(("regime", "shown"), [("none", "undefined: was 0"), ("embeddings", "0 exactly")])
def test_a_parameter_that_was_0_has_moved_or_not(read_run, capsys, regime, shown):
    Console().print(_drift_table(read_run(regime, zero=("LayerNorm.bias",))))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "LayerNorm.bias" in line]
    assert [cell.strip() for cell in line.split("│")][3:5] == [shown, "undefined: was 0"]


def test_names_are_shown_as_they_are_and_nothing_is_cut_on_a_narrow_terminal(read_run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_task("a[red]b", None, [("validation", 1_234_567, 0, 0, 0.5)], 128)
    print_components("models[/v1] (BERT)", [("token_type_embeddings", 22_566_146, True)])
    Console().print(_drift_table(read_run("none", 0)))
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "a[red]b" in shown
    assert "models[/v1]" in shown
