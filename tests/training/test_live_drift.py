"""What a recording says while a model trains: numbers against the definition, each warning with its control."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments

import toolkit
from tests.training.recorded_texts import TEXTS, encode, inputs, load, update
from tests.training.test_callback import Examples, arguments
from toolkit.config import RunConfig
from toolkit.training.live_drift import MOST_ROWS, LiveDrift, as_columns, drift_and_norms

WORDS = "word_embeddings"


@contextmanager
def caught() -> Iterator[list[str]]:
    """The warnings of a block, as texts."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True, action="always") as found:
        yield texts
    texts += [str(warning.message) for warning in found]


def train(recording: Any, model: Any, tokenizer: Any, optimizer: Any, num_epochs: int = 2, num_steps: int = 2) -> None:
    """One short text a step, so that most rows stay unexposed."""
    for epoch in range(1, num_epochs + 1):
        for _ in range(num_steps):
            learn(model, tokenizer, optimizer)
        recording.snapshot(epoch=epoch)


def learn(model: Any, tokenizer: Any, optimizer: Any) -> None:
    update(optimizer, model(**inputs(model, encode(tokenizer, TEXTS[:1])), labels=torch.tensor([0])).loss)


@contextmanager
def watched(model: Any, path: Path, **options: Any) -> Iterator[tuple[list[str], Any]]:
    """The warnings of a block, and the recording of what it trains, begun."""
    with caught() as texts, toolkit.record(model.train(), path, **options) as recording:
        recording.snapshot(epoch=0)
        yield texts, recording


def said_of(
    model: Any, tokenizer: Any, optimizer: Any, path: Path, **options: Any
) -> tuple[list[str], dict[str, float]]:
    """The warnings of a run, and its last numbers."""
    with watched(model, path, **options) as (texts, recording):
        train(recording, model, tokenizer, optimizer)
        live = recording.live
    return [text for text in texts if text.startswith("run: ")], live


@pytest.mark.parametrize("num_rows", [1, 4096, 9001])
def test_drift_is_the_quotient_of_two_norms(num_rows: int) -> None:
    """And the norms of the weights are there, as Lightning-AI/pytorch-lightning#20190 asks."""
    before, now = np.random.default_rng(0).normal(size=(2, num_rows, 3)).astype(np.float32)
    expected = np.linalg.norm(now.astype(float) - before) / np.linalg.norm(before.astype(float))
    found = drift_and_norms({"a": before, "b": before, "c": 0 * before}, {"a": now, "b": before, "c": now})
    norms = {f"norm/{name}": np.linalg.norm(own.astype(float)) for name, own in (("a", now), ("b", before), ("c", now))}
    wanted = norms | {"drift/a": expected, "drift/b": 0.0, "drift/c": np.nan}
    assert found == pytest.approx(wanted, rel=1e-12, nan_ok=True)


def test_of_a_large_table_some_rows_are_looked_at() -> None:
    table = torch.nn.Parameter(torch.ones(3 * MOST_ROWS + 1, 2))
    table.grad = torch.ones_like(table)
    live = LiveDrift({WORDS: table}, "run")
    live.before_update(1, [{"params": [table], "lr": 0.1}])
    ((rows, before, has_gradient),) = live._before.values()
    assert len(rows) == len(before) == len(has_gradient) <= MOST_ROWS
    assert rows[-1] > 3 * MOST_ROWS - 4


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_step_is_held_against_the_rows_with_a_gradient(is_sparse: bool) -> None:
    table = torch.nn.Parameter(torch.arange(12.0).reshape(4, 3) + 1)
    gradient = torch.zeros(4, 3)
    gradient[1], gradient[3, 0] = torch.tensor([1.0, 2.0, 2.0]), 1e-9  # which 10 does not feel
    live = LiveDrift({WORDS: table}, "run")
    for step, is_looked_at in ((1, True), (2, True), (3, False), (4, True), (6, False), (8, True)):
        table.grad = gradient.to_sparse() if is_sparse else gradient.clone()
        before, live.values = table.detach().clone(), {}
        live.before_update(step, [{"params": [table], "lr": 0.1}])
        with torch.no_grad():
            table -= 0.1 * gradient
        live.after_update()
        rows = [1, 3]
        expected = (table.detach()[rows] - before[rows]).norm() / before[rows].norm()
        wanted = {f"update_to_weight/{WORDS}": float(expected), f"lost_to_rounding/{WORDS}": 0.25}
        assert live.values == pytest.approx(wanted if is_looked_at else {}, rel=1e-6)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_nothing_is_said_of_a_sound_run(kind: Any, model: Any, tokenizer: Any, tmp_path: Path) -> None:
    said, live = said_of(model, tokenizer, kind(model.parameters(), lr=1e-3, weight_decay=0.01), tmp_path / "run")
    assert said == []
    drift = toolkit.open_run(tmp_path / "run").trajectory
    first, last = drift.snapshots[0].tensors, drift.snapshots[-1].tensors
    for name in first:
        size = np.linalg.norm(first[name].astype(float)) or np.nan  # a bias starts at 0
        expected = np.linalg.norm(last[name].astype(float) - first[name]) / size
        assert live[f"drift/{name}"] == pytest.approx(expected, rel=1e-9, nan_ok=True)
        assert live[f"update_to_weight/{name}"] > 0
    assert live[f"lost_to_rounding/{WORDS}"] < 0.1


def test_a_recording_says_how_far_it_is_by_now(model: Any, tokenizer: Any, adamw: Any, tmp_path: Path) -> None:
    with watched(model, tmp_path / "run") as (_, recording):
        assert recording.drift().isna().all()
        train(recording, model, tokenizer, adamw)
        found, live = recording.drift(), recording.live
    assert found.equals(recording.drift())
    assert found.equals(toolkit.open_run(tmp_path / "run").drift())
    for name, percent in found.items():
        assert percent == pytest.approx(100 * live[f"drift/{name}"], rel=1e-12, nan_ok=True)


NORMS = "LayerNorm.weight, LayerNorm.bias"
ALL = f"word_embeddings, position_embeddings, token_type_embeddings, {NORMS}"
UNHELD, NO_RATE = "no optimizer that stepped holds it", "the learning rate was 0 all along"


@pytest.mark.parametrize(
    ("part", "names", "reason"),
    [
        ("word_embeddings", "word_embeddings", UNHELD),
        ("embeddings", ALL, UNHELD),
        ("bert", ALL, UNHELD),
        ("embeddings.LayerNorm", NORMS, NO_RATE),
        ("", ALL, NO_RATE),
    ],
)
def test_parameters_that_no_optimizer_moves(
    part: str, names: str, reason: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """Of what has such a name: the optimizer does not hold it, or at a rate of 0."""
    still, moved = ([p for n, p in model.named_parameters() if (part in n) == is_still] for is_still in (True, False))
    groups = [{"params": still, "lr": 0.0}] * (reason == NO_RATE) + [{"params": moved}] * bool(moved)
    said, live = said_of(model, tokenizer, torch.optim.AdamW(groups, lr=1e-3), tmp_path / "run")
    (text,) = [text for text in said if "trainable" in text]
    assert text.startswith(f"run: {names}: trainable")
    assert reason in text
    assert {live[f"drift/{name}"] for name in names.split(", ") if name != "LayerNorm.bias"} == {0}


def test_what_is_frozen_now_and_then_is_not_called_either(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
    embeddings = model.bert.embeddings
    with watched(model, tmp_path / "run") as (texts, recording):
        for epoch, is_trained in enumerate((False, False, True, False, False), start=1):
            embeddings.requires_grad_(is_trained)
            learn(model, tokenizer, optimizer)
            embeddings.requires_grad_(epoch == 2)  # as a callback does that runs before the snapshot
            recording.snapshot(epoch=epoch)
    assert [text for text in texts if "frozen (" in text or "exactly as" in text] == []


def test_small_steps_of_float32_are_no_matter_of_its_rounding(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """A LayerNorm weight of 1 does not feel a step of 2e-8; it will, once the rate has grown."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-8, weight_decay=0)
    said, live = said_of(model, tokenizer, optimizer, tmp_path / "run")
    assert live["lost_to_rounding/LayerNorm.weight"] > 0.5
    assert [text for text in said if "did not change in a step" in text] == []


def test_nothing_is_said_of_a_first_step_that_warms_up(model: Any, tokenizer: Any, adamw: Any, tmp_path: Path) -> None:
    warmup = torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: step / 2)
    with watched(model, tmp_path / "run") as (texts, recording):
        for epoch in (0.5, 1):
            learn(model, tokenizer, adamw)
            warmup.step()
            recording.snapshot(epoch=epoch)
    assert [text for text in texts if text.startswith("run: ")] == []


def test_updates_below_the_spacing_of_the_weights(tiny_model: Any, tmp_path: Path) -> None:
    """Adam's first steps are of the size of the learning rate; a bf16 of .02 has neighbours 1e-4 apart."""
    for rate, is_lost in ((1e-7, True), (1e-2, False)):
        model, tokenizer = load(tiny_model("bert"))
        optimizer = torch.optim.AdamW(model.bfloat16().parameters(), lr=rate, weight_decay=0)
        said, live = said_of(model, tokenizer, optimizer, tmp_path / f"{rate}" / "run", allow_half=True)
        words = [text for text in said if WORDS in text]
        assert (live[f"lost_to_rounding/{WORDS}"] > 0.5, len(words)) == (is_lost, is_lost)
        assert all("bfloat16" in text and "float32" in text for text in words)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("num_moved", range(5))
def test_rounding_is_told_of_half_precision_where_half_of_the_values_stay_and_some_move(
    num_moved: int, dtype: torch.dtype
) -> None:
    """Where none moves, a rate of 0 or a step that was skipped may be why."""
    table = torch.nn.Parameter(torch.ones(4, 2, dtype=dtype))
    table.grad = torch.ones_like(table)
    with caught() as texts:
        live = LiveDrift({WORDS: table}, "run")
        live.before_update(1)
        with torch.no_grad():
            table[:num_moved] += 1
        live.after_update()
    is_told = dtype != torch.float32 and num_moved in (1, 2)
    assert [text.partition(" of the values")[0] for text in texts] == [
        f"run: {WORDS}: {1 - num_moved / 4:.0%}"
    ] * is_told


@pytest.mark.parametrize(
    ("has_gradient", "rates", "reason"),
    [
        (False, [1e-3, 1e-3], "no gradient was seen to reach it"),
        (True, [1e-3, 1e-3], "every update was lost to the rounding of float32"),
        (True, [0.0], ""),  # as where a warm-up begins
        (True, [0.0, 0.0], NO_RATE),
        (True, [0.0, 1e-3], "every update was lost to the rounding of float32"),
    ],
)
def test_why_what_should_move_stands_still(has_gradient: bool, rates: list[float], reason: str) -> None:
    table = torch.nn.Parameter(torch.ones(2, 2))
    table.grad = torch.ones(2, 2) if has_gradient else None
    with caught() as texts:
        live = LiveDrift({WORDS: table}, "run")
        for rate in rates:
            live.before_update(1, [{"params": [table], "lr": rate}])
            live.after_update()
        for _ in range(2):
            live.warn_of_stillness([])
    assert len(texts) == bool(reason)
    assert all(reason in text for text in texts)


def test_the_size_of_a_step_of_a_loop_is_taken_before_the_next_one(
    model: Any, tokenizer: Any, adamw: Any, tmp_path: Path
) -> None:
    table, expected = model.bert.embeddings.word_embeddings.weight, []
    with watched(model, tmp_path / "run") as (_, recording):
        for _ in range(3):
            model(**encode(tokenizer, TEXTS)).logits.square().sum().backward()
            before, rows = table.detach().double(), table.grad.any(dim=1)
            adamw.step()
            adamw.zero_grad()
            expected.append(float((table.detach() - before)[rows].norm() / before[rows].norm()))
        recording.snapshot(epoch=1)
    sizes = toolkit.measure_step_sizes(tmp_path / "run").query("parameter == @WORDS")
    assert sizes["step"].tolist() == [1, 2]
    assert sizes["update_to_weight"].tolist() == pytest.approx(expected[:2], rel=1e-6)


def test_a_frozen_parameter_that_is_written_to(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    table = model.bert.embeddings.word_embeddings.weight.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    with watched(model, tmp_path / "run") as (texts, recording):
        train(recording, model, tokenizer, optimizer, num_epochs=1)
        before = table.detach().clone()
        with torch.no_grad():
            table[3] += 1
        recording.snapshot(epoch=2)
        recording.snapshot(epoch=3)
        with torch.no_grad():
            table.copy_(before)
    assert len([text for text in texts if text.startswith("run: word_embeddings: frozen")]) == 1


@pytest.mark.parametrize(
    ("kind", "decay", "is_warned"),
    [
        (torch.optim.Adam, 0.01, True),
        (torch.optim.Adam, 0.0, False),
        (torch.optim.AdamW, 0.01, False),
    ],
)
def test_rows_that_no_text_used_move_by_l2(
    kind: Any, decay: float, is_warned: bool, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    said, _ = said_of(model, tokenizer, kind(model.parameters(), lr=1e-3, weight_decay=decay), tmp_path / "run")
    run = toolkit.open_run(tmp_path / "run")
    counts = run.trajectory.exposure.tables[WORDS].step_counts(len(run.trajectory.snapshots[0].tensors[WORDS]))
    zero = ~run.trajectory.snapshots[0].tensors[WORDS].any(axis=1)  # the padding row: nothing to decay
    assert len(said) == is_warned
    assert all(f"{np.count_nonzero((counts == 0) & ~zero):,} rows that no text used" in text for text in said)


def test_a_trainer_logs_drift_while_it_trains(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    callback = toolkit.EmbeddingSnapshotCallback(tmp_path / "run")
    settings = TrainingArguments(**arguments(tmp_path / "out"))
    examples, own = Examples(tokenizer), {"processing_class": tokenizer, "callbacks": [callback]}
    trainer = Trainer(model=model, args=settings, train_dataset=examples, **own)
    callback.log_to(trainer)
    trainer.train()
    logged = [line[f"drift/{WORDS}"] for line in trainer.state.log_history if f"drift/{WORDS}" in line]
    kept = [snapshot.tensors for snapshot in toolkit.open_run(tmp_path / "run").trajectory]
    expected = [drift_and_norms(kept[0], tensors)[f"drift/{WORDS}"] for tensors in kept]
    assert logged == pytest.approx(expected, rel=1e-12)
    assert logged[0] == 0 < logged[1] < logged[2]


def test_trackers_of_a_run_of_ours_show_its_drift(tiny_config: RunConfig, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = toolkit.finetune(replace(tiny_config, output_dir=str(tmp_path), log_with="tensorboard"))
    events = min(tmp_path.rglob("events.out.tfevents.*"), key=lambda path: len(path.parts))  # others are of settings
    found = EventAccumulator(str(events)).Reload()
    first, *others = run.trajectory.snapshots
    for name in first.tensors:
        points = found.Scalars(f"drift/{name}")
        expected = [drift_and_norms(first.tensors, own.tensors)[f"drift/{name}"] for own in (first, *others)]
        assert [point.step for point in points] == [own.step for own in (first, *others)]
        assert [point.value for point in points] == pytest.approx(expected, rel=1e-6, nan_ok=True)
        norms = [float(np.linalg.norm(own.tensors[name].astype(float))) for own in (first, *others)]
        assert [point.value for point in found.Scalars(f"norm/{name}")] == pytest.approx(norms, rel=1e-6)
    sizes = toolkit.measure_step_sizes(run)
    for kind in ("update_to_weight", "lost_to_rounding"):
        own = sizes.loc[sizes["parameter"] == WORDS].set_index("step")[kind]
        points = found.Scalars(f"{kind}/{WORDS}")
        assert {point.step: point.value for point in points} == pytest.approx(own.to_dict(), rel=1e-6)


LOW_RATE = {"learning_rate": 1e-30, "weight_decay": 0.0}
STILL: dict[str, tuple[dict[str, Any], str]] = {
    "sound": ({}, ""),
    "frozen": ({"freeze": "embeddings"}, ""),
    "new words": ({"add_tokens": "blorp zwick", "train_rows": "new", "train_file": "with blorp"}, ""),
    "a rate that is too low": (LOW_RATE, "raise the learning rate"),
    "one that is too low for the embeddings": ({"embedding_learning_rate": 1e-30, "weight_decay": 0.0}, "raise the"),
    "new words in no text": ({"add_tokens": "blorp zwick", "train_rows": "new"}, "no text used one of its trained row"),
}


@pytest.mark.parametrize("case", STILL)
def test_of_a_run_of_ours_what_stands_still_is_said_once(case: str, tiny_config: RunConfig, tmp_path: Path) -> None:
    changes, line = STILL[case]
    if "add_tokens" in changes:
        (tmp_path / "new.txt").write_text("\n".join(changes["add_tokens"].split()) + "\n")
        changes = changes | {"add_tokens": str(tmp_path / "new.txt")}
    if "train_file" in changes:
        text = Path(str(tiny_config.train_file)).read_text()
        (tmp_path / "train.tsv").write_text(text.replace(".\t", " blorp.\t"))
        changes = changes | {"train_file": str(tmp_path / "train.tsv")}
    with warnings.catch_warnings(record=True, action="always") as found:
        run = toolkit.finetune(replace(tiny_config, output_dir=str(tmp_path / "runs"), epochs=3, **changes))
    said = [str(w.message) for w in found if "exactly as before training" in str(w.message)]
    first, last = (run.trajectory.snapshots[i].tensors for i in (0, -1))
    frozen = run.manifest["regime"]["frozen_components"]
    still = [name for name in first if name not in frozen and np.array_equal(first[name], last[name])]
    assert [text.partition(":")[0] for text in said] == still
    assert bool(still) == bool(line)
    assert all(line in text and "\n" not in text for text in said)


def test_what_stands_still_is_said_before_the_end(tiny_config: RunConfig, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*exactly as before training")
        with pytest.raises(UserWarning):
            toolkit.finetune(replace(tiny_config, output_dir=str(tmp_path), epochs=3, **LOW_RATE))
    (path,) = (file.parent for file in tmp_path.rglob("unfinished.json"))
    assert [snapshot.epoch for snapshot in toolkit.open_run(path).trajectory] == [0, 1]


WAYS: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "bf16": {"precision": "bf16"},
    "two parts of a batch": {"gradient_accumulation_steps": 2},
    "SGD": {"optimizer": "sgd", "learning_rate": 0.1},
    "tight clipping": {"max_gradient_norm": 1e-3},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_size_of_a_step_is_that_of_the_snapshots_around_it(way: str, tiny_pairs: RunConfig, tmp_path: Path) -> None:
    """An oracle that knows nothing of gradients: two snapshots, and the rows that the step between them used."""
    run = toolkit.finetune(replace(tiny_pairs, output_dir=str(tmp_path), snapshot_steps=1, epochs=3, **WAYS[way]))
    sizes, tensors = toolkit.measure_step_sizes(run), {own.step: own.tensors for own in run.trajectory.snapshots}
    exposure = run.trajectory.exposure
    names = list(tensors[0])
    assert [*zip(sizes["step"], sizes["parameter"], strict=True)] == [(s, n) for s in (1, 2, 4, 8) for n in names]
    for line in sizes.itertuples():
        before, now = (tensors[step][line.parameter].astype(float) for step in (line.step - 1, line.step))
        if table := exposure.tables.get(line.parameter):
            rows = table.rows[slice(*table.offsets[line.step - 1 : line.step + 1])]
            before, now = before[rows], now[rows]
        size = np.linalg.norm(before) or np.nan  # a bias starts at 0
        assert line.update_to_weight == pytest.approx(np.linalg.norm(now - before) / size, rel=1e-4, nan_ok=True)
        assert line.lost_to_rounding == pytest.approx(np.mean(now == before), abs=0.02)  # some gradients are 0


@pytest.mark.parametrize(("rate", "low", "high"), [(1e-10, 0.9, 1.0), (1e-3, 0.0, 0.05)])
def test_steps_below_the_spacing_of_the_weights_are_told(
    rate: float, low: float, high: float, tiny_config: RunConfig, tmp_path: Path
) -> None:
    """A float32 of .02 has neighbours 1.9e-9 apart; Adam's first steps are of the size of the learning rate."""
    run = toolkit.finetune(replace(tiny_config, output_dir=str(tmp_path), learning_rate=rate, weight_decay=0.0))
    sizes = toolkit.measure_step_sizes(run)
    assert sizes.loc[sizes["parameter"] == WORDS, "lost_to_rounding"].between(low, high).tolist() == [True] * 4


def test_what_is_frozen_takes_no_steps(tiny_config: RunConfig, tmp_path: Path) -> None:
    for freeze, expected in (("embeddings", set()), ("word_embeddings", {"position_embeddings"})):
        run = toolkit.finetune(replace(tiny_config, output_dir=str(tmp_path), freeze=freeze))
        found = set(toolkit.measure_step_sizes(run)["parameter"])
        assert (WORDS in found, found >= expected, bool(found)) == (False, True, bool(expected))


@pytest.mark.parametrize("rate", [0.0, 1e-3])
def test_steps_that_do_not_move_the_embeddings_have_no_size(
    rate: float, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """Those of another optimizer before the one that holds them, or of the same at a rate of 0; both are counted."""
    head = [p for name, p in model.named_parameters() if "bert" not in name]
    first = torch.optim.AdamW(model.parameters() if not rate else head, lr=rate)
    second = torch.optim.AdamW(model.parameters(), lr=1e-3) if rate else first
    with watched(model, tmp_path / "run") as (_, recording):
        train(recording, model, tokenizer, first, num_epochs=1)
        assert not any(name.startswith("lost_to_rounding") for name in recording.live)
        second.param_groups[0]["lr"] = 1e-3
        train_on = recording.snapshot
        recording.snapshot = lambda epoch: train_on(epoch=epoch + 1)
        train(recording, model, tokenizer, second, num_epochs=1, num_steps=4)
    sizes = toolkit.measure_step_sizes(tmp_path / "run")
    assert sizes.loc[sizes["parameter"] == WORDS, "step"].tolist() == [4]
    assert (sizes["lost_to_rounding"] < 0.5).all()


def test_a_ratio_that_float32_cannot_hold_is_no_infinity_in_the_manifest(tiny_model: Any, tmp_path: Path) -> None:
    for number, expected in ((1e-25, 1e-3), (1e25, np.nan)):
        table = torch.nn.Parameter(torch.full((4, 3), number))
        table.grad = torch.ones_like(table)
        live = LiveDrift({WORDS: table})
        live.before_update(1)
        with torch.no_grad():
            table *= 1.001 if number < 1 else np.inf
        (size,) = live.after_update()
        assert size.update_to_weight == pytest.approx(expected, rel=1e-3, nan_ok=True)
        assert "Infinity" not in json.dumps(as_columns([size]))
        columns = as_columns([size])
        assert (columns["parameter"], columns["step"]) == ([WORDS], [1])
        assert columns["update_to_weight"] == [None if np.isnan(expected) else size.update_to_weight]
