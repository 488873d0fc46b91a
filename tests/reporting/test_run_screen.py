"""Tables on the terminal."""

import math
from dataclasses import replace

import pytest
from rich.console import Console
from torch import nn

import toolkit
from toolkit.config import RunConfig
from toolkit.data.tasks import load_task
from toolkit.reporting import run_screen
from toolkit.reporting.run_screen import (
    _doubts,
    _drift_table,
    _fall_sentences,
    _whole_drift,
    _yardsticks,
    epoch_line,
    print_components,
    print_task,
)


@pytest.mark.parametrize(("regime", "shown"), [("none", "undefined: was 0"), ("embeddings", "0 exactly")])
def test_a_parameter_that_was_0_has_moved_or_not(read_run, capsys, regime, shown):
    run = read_run(regime, zero=("LayerNorm.bias",))
    Console().print(_drift_table(run, _whole_drift(run), _yardsticks(run.trajectory.snapshots[0])))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "LayerNorm.bias" in line]
    assert [cell.strip() for cell in line.split("│")][3:5] == [shown, "undefined: was 0"]


def test_names_are_shown_as_they_are_and_nothing_is_cut_on_a_narrow_terminal(read_run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    task = replace(load_task(RunConfig()), name="a[red]b", taken_from="texts: c[red]d;\nlabels: e")
    print_task(task, [("validation", 1_234_567, 0, 0, 0.5)], 128)
    print_components("models[/v1] (BERT)", "Of 9 [red]", toolkit.what_trains(nn.ModuleDict({"[b]": nn.Linear(2, 3)})))
    run = read_run("none", 0)
    Console().print(_drift_table(run, _whole_drift(run), _yardsticks(run.trajectory.snapshots[0])))
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert shown.startswith("texts: c[red]d; labels: e, 2 classes (")
    assert [word for word in ("a[red]b", "models[/v1]", "Of 9 [red]", "[b]") if word not in shown] == []


START = {"epoch": 0, "split": "dev", "accuracy": 0.5, "train_loss": math.nan}


FIRST = {"epoch": 1.0, "train_loss": 0.4321}


@pytest.mark.parametrize(
    ("score", "rows", "said"),
    [
        (
            "f1",
            [FIRST | {"split": "dev", "f1": 0.84}, FIRST | {"split": "ood", "f1": math.nan}],
            "epoch 1: f1 dev 0.840, ood -; train loss 0.432",
        ),
        ("accuracy", [START], "before training: accuracy dev 0.500"),
        ("accuracy", [START | {"perplexity": 12.345}], "before training: accuracy dev 0.500 (perplexity 12.35)"),
        ("accuracy", [START | {"f1": 0.8125}], "before training: accuracy dev 0.500 (f1 0.8125)"),
        ("accuracy", [START | {"f1": math.nan}], "before training: accuracy dev 0.500"),
    ],
)
def test_an_epochs_line_names_every_split(score, rows, said):
    assert epoch_line(score, rows) == said


def test_a_run_that_diverged_is_said_to_and_one_that_learned_is_not(tiny_config, tmp_path, capsys, monkeypatch):
    good = replace(tiny_config, task="polarity", epochs=6, learning_rate=3e-3, output_dir=str(tmp_path))
    learned = toolkit.finetune(good)
    assert _doubts(learned, _whole_drift(learned)) == []
    assert _fall_sentences(learned) == []
    capsys.readouterr()
    monkeypatch.setattr(run_screen, "STILL_FALLING", -math.inf)  # its loss rises
    config = replace(tiny_config, learning_rate=5.0, head_learning_rate=5.0, output_dir=str(tmp_path))
    bad = toolkit.finetune(config, screen=run_screen)
    shown = " ".join(capsys.readouterr().out.split())
    assert len(_doubts(bad, _whole_drift(bad))) == shown.count("Did this run fail?") == 3
    before, after = bad.scores.query("split == 'validation'")["loss"].iloc[-2:]
    said = [
        f"fell by {1 - after / before:.1%} in the last epoch",
        "The loss on validation is",
        "no better than always giving the same answer",
        "Moved by more than its own",
    ]
    said += ["before training: accuracy validation", "epoch 2: accuracy validation"]
    assert [each for each in said if each not in shown] == []
    assert shown.endswith(f"Next: python -m toolkit report {bad.path.parent}/* --out my_report")
