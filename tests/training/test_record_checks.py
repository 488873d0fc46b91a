"""What is handed to a recording is refused at the call, or can be read when it has ended; never lost at its end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import toolkit
from tests.refusals import check_refusals, check_refused
from tests.training.test_callback import trained
from toolkit import EmbeddingSnapshotCallback as Callback
from toolkit.training.record_checks import KEYS, answers_table

FOUR: dict[str, Any] = {"ids": range(4), "labels": [0, 1, 0, 1], "predictions": [0, 1, 1, 1]}
VALUES = st.lists(st.sampled_from([0, 1, 2, 1.5, True, "a", "b", None, float("nan"), [1, 2]]), max_size=4)


@pytest.mark.parametrize("kind", [torch.tensor, np.array, pd.Series, list, iter])
def test_answers_are_read_as_they_were_handed_over(kind: Callable[[Any], Any], model: Any, tmp_path: Path) -> None:
    with toolkit.record(model, tmp_path / "run") as recording:
        recording.keep_predictions("validation", **{name: kind(list(values)) for name, values in FOUR.items()})
        recording.keep_predictions("other", ids=[7], labels=[True], predictions=[0.25])
    kept = toolkit.open_run(tmp_path / "run").predictions.set_index("split")
    assert kept.loc["validation", ["id", "label", "prediction"]].to_numpy().T.tolist() == [*map(list, FOUR.values())]
    assert kept.loc["other", ["id", "label", "prediction"]].tolist() == [7, 1, 0.25]


@settings(max_examples=300, deadline=None)
@given(VALUES, VALUES, VALUES)
def test_whatever_is_not_refused_can_be_written_and_read(ids: list[Any], labels: list[Any], answers: list[Any]) -> None:
    try:
        table = answers_table("validation", ids, labels, answers, None)
    except ValueError:
        return
    assert table["id"].is_unique
    assert table["id"].map(type).nunique() == 1
    assert {table[name].dtype.kind for name in ("label", "prediction")} <= set("iuf")
    table.to_parquet(None)


def test_answers_that_no_table_can_hold_are_refused_at_once(model: Any, tmp_path: Path) -> None:
    with toolkit.record(model, tmp_path / "run") as recording:

        def keeping(**changes: Any) -> Callable[[], object]:
            return lambda: recording.keep_predictions("validation", **FOUR | changes)

        recording.keep_predictions("other", ids=[*"ab"], labels=[0, 1], predictions=[0, 1])
        check_refusals(
            ("must be numbers: of classes their places", keeping(labels=[*"abab"])),
            (r"one value for each item; got the shapes ids \(4,\)", keeping(predictions=[[0, 1]] * 4)),
            ("one value for each item", keeping(labels=[0])),
            ("no items", keeping(ids=[], labels=[], predictions=[])),
            ("must be whole numbers, or all texts", keeping(ids=[1, 2, 3, 4.5])),
            ("holds one id twice", keeping(ids=[1, 2, 3, 1])),
            ("'validation' and of 'other' must be of one kind", keeping()),
        )


def test_a_score_is_no_column_of_the_table_and_no_percentage(model: Any, tmp_path: Path) -> None:
    with toolkit.record(model, tmp_path / "run") as recording:
        check_refusals(
            *((f"{name} is a column", lambda name=name: recording.score(name, dev=0.5)) for name in KEYS),  # type: ignore[misc]
            ("accuracy is at most 1, got 87: give a share", lambda: recording.score("accuracy", dev=87.0)),
        )
        recording.score("mae", dev=87.0)
        recording.score("r2", dev=-3.0)
    (line,) = toolkit.open_run(tmp_path / "run").scores.to_dict("records")
    assert (line["epoch"], line["split"], line["mae"], line["r2"]) == (0, "dev", 87, -3)


@pytest.mark.parametrize("in_batches", [False, True])
def test_a_trainers_metrics_that_are_no_scores_are_left_out_and_said(
    in_batches: bool, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    def metrics(evaluated: Any, compute_result: bool = True) -> dict[str, float]:
        return {"accuracy": 0.5, "f1": 50.0, "epoch": 7.0} if compute_result else {}

    callback = Callback(tmp_path / "run")
    options = {"metrics": callback.keeping_predictions(metrics), "eval_strategy": "epoch"}
    with pytest.warns(UserWarning, match="a score is left out: f1 is at most 1, got 50") as heard:
        trained(model, tokenizer, tmp_path, callback, **options, batch_eval_metrics=in_batches)
    assert sum("f1 is at most 1" in str(warning.message) for warning in heard) == 1
    run = toolkit.open_run(tmp_path / "run")
    assert run.scores[["epoch", "accuracy"]].to_numpy().tolist() == [[1, 0.5], [2, 0.5]]
    assert "f1" not in run.scores
    assert sum("left out: epoch is a column" in problem for problem in run.manifest["problems"]) == 1
    assert run.predictions["label"].tolist() == [i % 2 for i in range(len(run.predictions))]
    assert len(run.predictions) == 4


def test_answers_are_kept_without_metrics_too(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    callback = Callback(tmp_path / "run")
    trained(model, tokenizer, tmp_path, callback, metrics=callback.keeping_predictions(), eval_strategy="epoch")
    assert len(toolkit.open_run(tmp_path / "run").predictions) == 4


def test_what_is_no_fact_of_a_run_is_refused_before_it_trains(model: Any, tmp_path: Path) -> None:
    def start(of: Any = model, **options: Any) -> Callable[[], object]:
        return lambda: toolkit.record(of, tmp_path / "run", **options)

    check_refusals(
        ("takes the model itself, a torch.nn.Module; got 'minilm'", start("minilm")),
        ("takes the model itself", start(None)),
        ("tokenizer must be the tokenizer itself", start(tokenizer="minilm")),
        ("condition must be a text or None; got 3", start(condition=3)),
        ("task must be a text or None", start(task=["a"])),
        ("seed must be a whole number or None; got 3.5", start(seed=3.5)),
        ("seed must be a whole number or None; got '3'", start(seed="3")),
        ("epoch must be a finite number; got '1'", start(epochs_before="1")),
        ("condition must be a text", lambda: Callback(tmp_path / "other", condition=3)),  # type: ignore[arg-type]
        ("seed must be a whole number", lambda: toolkit.LightningSnapshotCallback(tmp_path / "other", seed=True)),
    )
    recording = toolkit.record(model, tmp_path / "run", seed=np.int64(3))
    for epoch in (float("nan"), float("inf"), None, "2"):
        check_refused("epoch must be a finite number; got", recording.snapshot, epoch=epoch)
    recording.close()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 3
