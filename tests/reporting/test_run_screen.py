"""Tables on the terminal."""

import math
from dataclasses import replace

import pytest
from rich.console import Console
from torch import nn

import toolkit
from toolkit.reporting import run_screen
from toolkit.reporting.run_screen import (
    _doubts,
    _drift_table,
    _duration,
    _whole_drift,
    epoch_line,
    print_components,
    print_task,
)


@pytest.mark.parametrize(("regime", "shown"), [("none", "undefined: was 0"), ("embeddings", "0 exactly")])
def test_a_parameter_that_was_0_has_moved_or_not(read_run, capsys, regime, shown):
    run = read_run(regime, zero=("LayerNorm.bias",))
    Console().print(_drift_table(run, _whole_drift(run)))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "LayerNorm.bias" in line]
    assert [cell.strip() for cell in line.split("│")][3:5] == [shown, "undefined: was 0"]


def test_names_are_shown_as_they_are_and_nothing_is_cut_on_a_narrow_terminal(read_run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_task("a[red]b", "texts: c[red]d;\nlabels: e", None, [("validation", 1_234_567, 0, 0, 0.5)], 128)
    print_components("models[/v1] (BERT)", "Of 9 [red]", toolkit.what_trains(nn.ModuleDict({"[b]": nn.Linear(2, 3)})))
    run = read_run("none", 0)
    Console().print(_drift_table(run, _whole_drift(run)))
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "a[red]b" in shown
    assert shown.startswith("texts: c[red]d; labels: e\n")
    assert all(word in shown for word in ("models[/v1]", "Of 9 [red]", "[b]"))


def test_an_epochs_line_names_every_split():
    rows = [
        {"epoch": 1.0, "split": name, "f1": f1, "train_loss": 0.4321} for name, f1 in (("dev", 0.84), ("ood", math.nan))
    ]
    assert epoch_line("f1", rows) == "epoch 1: f1 dev 0.840, ood -; train loss 0.432"
    rows = [{"epoch": 0, "split": "dev", "accuracy": 0.5, "train_loss": math.nan}]
    assert epoch_line("accuracy", rows) == "before training: accuracy dev 0.500"
    rows = [{**rows[0], "perplexity": 12.345}]
    assert epoch_line("accuracy", rows) == "before training: accuracy dev 0.500 (perplexity 12.35)"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.6, "1 s"), (59.6, "1 min 0 s"), (3599, "59 min 59 s"), (7260, "2 h 1 min")]
)
def test_durations(seconds, said):
    assert _duration(seconds) == said


def test_a_run_that_diverged_is_said_to_and_one_that_learned_is_not(tiny_config, tmp_path, capsys):
    good = toolkit.finetune(
        replace(tiny_config, task="polarity", epochs=6, learning_rate=3e-3, output_dir=str(tmp_path))
    )
    assert _doubts(good, _whole_drift(good)) == []
    capsys.readouterr()
    config = replace(tiny_config, learning_rate=5.0, head_learning_rate=5.0, output_dir=str(tmp_path))
    bad = toolkit.finetune(config, screen=run_screen)
    shown = " ".join(capsys.readouterr().out.split())
    assert len(_doubts(bad, _whole_drift(bad))) == 3
    assert shown.count("Did this run fail?") == 3
    for said in (
        "The loss on validation is",
        "no better than always giving the same answer",
        "Moved by more than its own",
    ):
        assert said in shown
    assert "before training: accuracy validation" in shown
    assert "epoch 2: accuracy validation" in shown
    assert shown.endswith(f"Next: python -m toolkit report {bad.path} --out my_report")
