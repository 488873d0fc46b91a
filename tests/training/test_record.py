"""Recording anybody's training loop: exposure against a count by hand, whatever the loop does around it."""

import gc
import warnings
import weakref
from pathlib import Path
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import toolkit
from tests.conftest import DECODERS, FAMILY_CONFIGS, SEQ2SEQ, sizes_of
from tests.refusals import check_refusals, check_refused
from tests.training.recorded_texts import (
    TEXTS,
    count,
    encode,
    ended,
    inputs,
    load,
    recorded,
    start,
    totals,
    totals_of_tables,
    update,
)
from toolkit import EmbeddingSnapshotCallback as Callback
from toolkit.analysis.adam import unexplained_by_decay
from toolkit.comparison.measure import measure
from toolkit.comparison.recorded import facts_of_recording
from toolkit.families import EMBEDDING_PARAMETERS, TABLES, component_of
from toolkit.models.regimes import locate_embeddings
from toolkit.reporting.sources import open_sources
from toolkit.snapshots.run_writer import RunWriter
from toolkit.training.record import _gather, num_examples_of


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_a_plain_loop_of_every_family(family: str, tiny_model: Any, tmp_path: Path) -> None:
    model, tokenizer = load(tiny_model(family))
    batches = [encode(tokenizer, TEXTS[:2]), encode(tokenizer, TEXTS[2:])]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    with toolkit.record(model, tmp_path / "run", tokenizer=tokenizer) as recording:
        recording.snapshot(epoch=0, step=0)
        for epoch in (1, 2):
            model.train()
            for batch in batches:
                update(optimizer, model(**inputs(model, batch), labels=torch.tensor([0, 1])).loss)
            model.eval()
            model(**inputs(model, encode(tokenizer, ["film film film"])))  # evaluation exposes nothing
            model.train()
            with torch.no_grad():
                model(**inputs(model, encode(tokenizer, ["film film film"])))  # nor does a pass without gradients
            recording.snapshot(epoch=epoch, step=2 * epoch)
    run = toolkit.open_run(tmp_path / "run")
    assert (run.is_finished, toolkit.verify_run(run.path)) == (True, [])
    assert totals_of_tables(run) == count(model, 2 * batches)
    assert run.trajectory.vocabulary is not None
    assert unexplained_by_decay(run.trajectory, run.optimizer_log) == 0
    drift = toolkit.measure_drift(run.trajectory, ("norm",))
    whole = drift[(drift["stratum"] == "whole parameter") & (drift["statistic"] == "value") & (drift["epoch"] == 2)]
    assert set(whole.loc[whole["value"] > 0, "parameter"]) == set(run.trajectory.parameters)


@pytest.mark.parametrize("regime", ["none", "embeddings", "layers.0", "embeddings,layers.0", "backbone"])
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_the_regime_of_a_recording_is_what_stayed_frozen(
    family: str, regime: str, tiny_model: Any, tmp_path: Path
) -> None:
    """Not what was frozen at the end, nor at the start alone."""
    model, _ = load(tiny_model(family))
    backbone = locate_embeddings(model)
    for name, parameter in backbone.backbone.named_parameters():
        component = component_of(backbone.family, name)
        parts = {"embeddings": EMBEDDING_PARAMETERS, "backbone": (component,)}
        frozen = [each for part in regime.split(",") for each in parts.get(part, (part,))]
        parameter.requires_grad_(component not in frozen)
    assert start(model, tmp_path / "run").finish().manifest["regime"]["label"] == regime


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_padding_is_what_the_mask_hides(padding_idx: int | None, model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """A config may name no padding row, or another one than the tokenizer pads with."""
    model.bert.embeddings.word_embeddings.padding_idx = padding_idx
    run = recorded(model, tokenizer, torch.optim.AdamW(model.parameters(), lr=1e-3), tmp_path / "run").finish()
    assert run.manifest["problems"] == []
    expected = count(model, [encode(tokenizer, TEXTS)])
    expected["word_embeddings"].pop(padding_idx, None)  # [UNK], of which torch drops the gradient then
    assert totals_of_tables(run) == expected


def finish_with_a_problem(recording: Any, said: str) -> toolkit.Run:
    """The run, of which the only problem is warned of."""
    with pytest.warns(UserWarning, match=said):
        run: toolkit.Run = recording.finish()
    assert len(run.manifest["problems"]) == 1
    return run


def without_dropout_of_embeddings(model: Any) -> None:
    """In training all the same, as far as the recorder sees it: a gradient can be computed again."""
    model.eval()
    model.bert.embeddings.train()
    model.bert.embeddings.dropout.eval()


@pytest.mark.parametrize("way", ["before", "positional", "keyword"])
def test_recorded_norms_and_rates_are_those_of_the_update(
    way: str, model: Any, tokenizer: Any, adamw: Any, tmp_path: Path
) -> None:
    """``optimizer.step(closure)``, as Lightning calls it, runs the passes within the step, after its hooks."""
    batch, gradients = encode(tokenizer, TEXTS), []
    without_dropout_of_embeddings(model)

    def passes() -> torch.Tensor:
        adamw.zero_grad()
        for half in (slice(0, 2), slice(2, 4)):  # two passes, one update: accumulation
            loss: torch.Tensor = model(**{k: v[half] for k, v in batch.items()}, labels=torch.tensor([0, 1])).loss
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        gradients.append(model.bert.embeddings.word_embeddings.weight.grad.clone())
        return loss

    steps = {
        "before": lambda: (passes(), adamw.step()),
        "positional": lambda: adamw.step(passes),
        "keyword": lambda: adamw.step(closure=passes),
    }
    recording = start(model, tmp_path / "run")
    for step, rate in enumerate((1e-3, 5e-4), start=1):
        adamw.param_groups[0]["lr"] = rate
        assert steps[way]() is not None
        recording.snapshot(epoch=step, step=step)
    run = recording.finish()
    log, table = run.optimizer_log, run.trajectory.exposure.tables["word_embeddings"]
    assert (run.manifest["problems"], table.num_steps) == ([], 2)
    assert (log.learning_rates.tolist(), log.clipping_factors.tolist()) == ([1e-3, 5e-4], [1, 1])
    assert unexplained_by_decay(run.trajectory, log) == 0
    assert totals_of_tables(run) == count(model, 2 * [batch])
    for step, gradient in enumerate(gradients):
        own = slice(table.offsets[step], table.offsets[step + 1])
        expected = gradient.norm(dim=1).numpy()
        assert np.array_equal(np.flatnonzero(expected), table.rows[own])
        np.testing.assert_allclose(table.norms[own], expected[table.rows[own]], rtol=1e-6)


def test_an_optimizer_of_several_closure_calls_leaves_exposure_unknown(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=3)
    recording = start(model.train(), tmp_path / "run")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(**encode(tokenizer, TEXTS)).logits[:, 0].sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    recording.snapshot(epoch=1, step=2)
    run = finish_with_a_problem(recording, "called its closure more than once in a step")
    assert (run.trajectory.exposure, run.optimizer_log) == (None, None)


@pytest.mark.parametrize("way", ["zero_grad", "zeros", "scaler"])
def test_a_discarded_batch_is_no_exposure(way: str, model: Any, tokenizer: Any, adamw: Any, tmp_path: Path) -> None:
    """Its gradients were thrown away before any step, and a row's exposure is a step that gave it a gradient."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    kept, dropped = encode(tokenizer, ["the film"]), encode(tokenizer, ["bad bad end"])
    recording = start(model.train(), tmp_path / "run")
    for batch, factor in ((dropped, float("inf")), (kept, 1.0)):
        loss = model(**batch).logits[:, 0].sum()
        if way == "scaler":
            scaler.scale(loss * factor).backward()
            scaler.step(adamw)
            scaler.update()
        else:
            loss.backward()
            if batch is kept:
                adamw.step()
        adamw.zero_grad(set_to_none=way != "zeros")
    tables = ended(recording, epoch=1, step=1).trajectory.exposure.tables
    expected = {name: sorted(rows.items()) for name, rows in count(model, [kept]).items()}
    found = {name: list(zip(table.rows.tolist(), table.counts.tolist(), strict=True)) for name, table in tables.items()}
    assert found == expected
    assert all((table.norms > 0).all() for table in tables.values())


@pytest.mark.parametrize("way", ["layers", "re-entrant", "not re-entrant"])
def test_a_recomputed_pass_counts_once(way: str, model: Any, tokenizer: Any, adamw: Any, tmp_path: Path) -> None:
    from torch.utils.checkpoint import checkpoint

    batch, calls = encode(tokenizer, TEXTS), []
    if way == "layers":
        model.gradient_checkpointing_enable()
    anchor = torch.ones(1, requires_grad=True)  # re-entrant checkpointing wants an input that needs a gradient
    model.bert.embeddings.register_forward_hook(lambda *_: calls.append(1))

    def forward(x: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, attention_mask=mask).logits * x

    recording = start(model.train(), tmp_path / "run")
    for _ in range(2):
        if way == "layers":
            logits = model(**batch).logits
        else:
            arguments = (forward, anchor, batch["input_ids"], batch["attention_mask"])
            logits = checkpoint(*arguments, use_reentrant=way == "re-entrant")
        update(adamw, logits.sum())
    recording.snapshot(epoch=1, step=2)
    assert len(calls) == (2 if way == "layers" else 4)
    assert totals_of_tables(recording.finish()) == count(model, 2 * [batch])


@pytest.mark.parametrize(
    ("rates", "expected"),
    [([[1e-2]], 1e-2), ([[1e-2, 1e-3]], None), ([[1e-2], [1e-2]], 1e-2), ([[1e-2], [1e-3]], None)],
)
def test_where_embeddings_are_frozen_the_rate_is_that_of_all_else(
    rates: list[list[float]], expected: float | None, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """Where it has one: of one optimizer or several, with one group or several."""
    model.bert.embeddings.requires_grad_(False)
    rest = iter([p for p in model.parameters() if p.requires_grad])
    groups = [[{"params": [next(rest)], "lr": rate} for rate in of_optimizer] for of_optimizer in rates]
    groups[0][0]["params"] += list(rest)
    optimizers = [torch.optim.AdamW(of_optimizer, weight_decay=0.1) for of_optimizer in groups]
    recording = start(model, tmp_path / "run", condition="frozen", task="mine", seed=0)
    model(**encode(tokenizer, TEXTS), labels=torch.tensor([0, 1, 0, 1])).loss.backward()
    _ = [optimizer.step() for optimizer in optimizers]
    recording.snapshot(epoch=1, step=1)
    arguments = facts_of_recording(recording.finish())["arguments"]
    assert (arguments.get("learning_rate"), arguments.keys() & {"weight_decay"}) == (expected, set())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "changes", "algorithm"),
    [
        ("RMSprop", {}, "RMSprop"),
        ("Adafactor", {}, "Adafactor"),
        ("Adam", {}, "Adam"),
        ("Rprop", {}, "Rprop"),
        ("SGD", {"momentum": 0.9}, "SGD (momentum)"),
        ("SGD", {"weight_decay": 0.1}, "SGD (weight_decay)"),
        ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, "SGD (momentum, weight_decay)"),
    ],
)
def test_no_optimizer_stops_the_training(
    name: str, changes: dict[str, Any], algorithm: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """Another optimizer's settings are of other kinds; its run is recorded and reported, and only the replay is
    refused. torch's SGD adds decay to the gradient, and rounds it so: another product than the one that is replayed."""
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-2, **changes)
    run = recorded(model, tokenizer, optimizer, tmp_path / "run", TEXTS, TEXTS).finish()
    assert run.optimizer_log.algorithm == f"torch.optim.{algorithm}"
    assert run.optimizer_log.learning_rates.tolist() == [1e-2, 1e-2]
    assert {*run.optimizer_log.weight_decay.values()} == {changes.get("weight_decay", 0)}
    (record,) = measure([run]).exposed.to_dict("records")
    assert (record["has_log"], record["num_exposed"]) == (False, len(totals(run, "word_embeddings")))
    check_refused(
        rf"only torch\.optim\.AdamW, .* can be replayed; this run used torch\.optim\.{name}",
        toolkit.explain,
        run,
        "word_embeddings",
        1,
    )


def test_plain_sgd_is_replayed(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    run = recorded(model, tokenizer, optimizer, tmp_path / "run", TEXTS, TEXTS[1:2], TEXTS[1:2]).finish()
    assert run.optimizer_log.algorithm == "torch.optim.SGD"
    table = toolkit.decompose(run, "word_embeddings", 1)
    assert set(table["cause"]) == {"gradient", "did not move"}
    assert (table["last_step"] == 1).any()


def test_an_optimizer_that_was_used_before_is_not_replayed(
    model: Any, tokenizer: Any, adamw: Any, tmp_path: Path
) -> None:
    """Its moments move rows that the recording never saw: to replay it from nothing would call them unexplained."""
    update(adamw, model.train()(**encode(tokenizer, TEXTS[:2])).logits.sum())
    recording = recorded(model, tokenizer, adamw, tmp_path / "run", TEXTS[2:])
    run = finish_with_a_problem(recording, "had taken 1 steps before recording began")
    assert run.optimizer_log is None
    assert run.manifest["begins_after_steps"] == 1
    assert run.trajectory.exposure is not None


@pytest.mark.parametrize(
    ("way", "problem"),
    [
        ("another optimizer", "position_embeddings.*: held by another optimizer than the one logged"),
        ("a second optimizer of the same", "word_embeddings: held by another optimizer than the one logged"),
        ("by hand", "position_embeddings: changed, but not by the optimizer that was logged"),
        ("no optimizer", None),
        ("the head's optimizer", None),
        ("a wrapper", None),
    ],
)
def test_what_another_optimizer_updates_is_not_called_frozen(
    way: str, problem: str | None, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """One optimizer is logged: what it does not hold is frozen only where nothing else moves it."""
    words, positions = (getattr(model.bert.embeddings, f"{name}_embeddings").weight for name in ("word", "position"))
    optimizer = torch.optim.AdamW([words], lr=1e-3)
    rest = {
        "another optimizer": [p for p in model.parameters() if p is not words],
        "a second optimizer of the same": [words],
        "the head's optimizer": model.classifier.parameters(),
    }
    optimizers = [optimizer, *([torch.optim.AdamW(rest[way], lr=1e-3)] if way in rest else [])]
    if way == "a wrapper":
        outer = torch.optim.AdamW([words], lr=1e-3)
        outer.param_groups = optimizer.param_groups
        outer.register_step_pre_hook(lambda *_: optimizer.step())
        optimizers = [outer]
    recording = start(model.train(), tmp_path / "run")
    model(**encode(tokenizer, TEXTS)).logits.sum().backward()
    for each in optimizers:
        each.step()
    if way == "by hand":
        with torch.no_grad():
            positions -= 1e-3 * positions.grad
    recording.snapshot(epoch=1, step=1)
    if problem is None:
        assert recording.finish().optimizer_log is not None
        return
    with pytest.warns(UserWarning, match=problem):
        run = recording.finish()
    assert run.optimizer_log is None
    for analysis in (toolkit.sign_noise, toolkit.decompose):
        check_refused(rf"has no optimizer\.json: .*{problem}", analysis, run, "position_embeddings", 1)


@pytest.mark.parametrize("is_overflowing", [False, True])
def test_a_gradient_scaler_with_a_fused_optimizer(
    is_overflowing: bool, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """The scaler leaves the division to the optimizer, or tells it to skip the step."""
    without_dropout_of_embeddings(model)
    batch = encode(tokenizer, TEXTS)
    model(**batch).logits.sum().backward()
    expected = model.bert.embeddings.word_embeddings.weight.grad.norm(dim=1)
    model.zero_grad()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    recording = start(model, tmp_path / "run")
    scaler.scale(model(**batch).logits.sum() * (float("inf") if is_overflowing else 1.0)).backward()
    scaler.step(optimizer)
    scaler.update()
    table = ended(recording, epoch=1, step=0 if is_overflowing else 1).trajectory.exposure.tables["word_embeddings"]
    assert (table.num_steps, len(table.rows) == 0) == (0 if is_overflowing else 1, is_overflowing)
    np.testing.assert_allclose(table.norms, expected[table.rows].numpy(), rtol=1e-5)


def test_what_analysis_needs_of_the_model_is_in_an_unfinished_run(tiny_model: Any, tmp_path: Path) -> None:
    model, tokenizer = load(tiny_model("roberta"))
    recording = start(model.train(), tmp_path / "run")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    update(optimizer, model(**inputs(model, encode(tokenizer, TEXTS))).logits.sum())
    recording.snapshot(epoch=1)
    recording.close()
    run = toolkit.open_run(tmp_path / "run")
    assert not run.is_finished
    assert run.trajectory.exposure.tables["word_embeddings"].num_steps == 1
    assert run.optimizer_log.learning_rates.tolist() == [1e-2]
    assert run.trajectory.position_offset == locate_embeddings(model).position_offset > 0
    assert run.trajectory.layer_norm_eps == model.config.layer_norm_eps


def test_of_a_recording_that_has_ended_no_hook_is_left(model: Any, tokenizer: Any, adamw: Any, tmp_path: Path) -> None:
    def hooks() -> list[Any]:
        of_modules = (own for each in model.modules() for own in (each._forward_hooks, each._forward_pre_hooks))
        return [
            hook for own in (_global_optimizer_pre_hooks, _global_optimizer_post_hooks, *of_modules) for hook in own
        ]

    before = hooks()
    recording = recorded(model, tokenizer, adamw, tmp_path / "run")
    assert len(hooks()) > len(before) + 2
    recording.finish()
    assert hooks() == before


def test_a_recorder_that_an_exception_left_locks_nobody_out(model: Any, tmp_path: Path) -> None:
    try:
        with toolkit.record(model, tmp_path / "run"):
            assert (tmp_path / ".run.lock").exists()
            raise MemoryError
    except MemoryError:
        assert not (tmp_path / ".run.lock").exists()
    left = toolkit.record(model, tmp_path / "run")  # never closed: its hooks keep it alive
    with toolkit.record(model, tmp_path / "run") as recording:
        recording.snapshot(epoch=0, step=0)
    assert toolkit.open_run(tmp_path / "run").is_finished
    assert not (tmp_path / ".run.lock").exists()
    check_refused("started again while it was being written", left.finish)


def test_half_precision_is_refused_unless_asked_for(tiny_model: Any, tmp_path: Path) -> None:
    model = load(tiny_model("bert"))[0].to(torch.bfloat16)
    check_refused("bfloat16, where most small updates are rounded away", toolkit.record, model, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with toolkit.record(model, tmp_path / "run", allow_half=True) as recording:
        assert ended(recording, epoch=0, step=0).is_finished  # the end of the block finds it done
    assert toolkit.open_run(tmp_path / "run").optimizer_log is None  # no step was taken
    for parameter in locate_embeddings(model).parameters.values():
        parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with toolkit.record(model, tmp_path / "frozen"):
        optimizer.step()  # frozen embeddings may have any precision
        model.bert.embeddings.requires_grad_(True)
        check_refused("bfloat16, where most small updates are rounded away", optimizer.step)


def test_what_cannot_be_recorded_is_refused(model: Any, tiny_model: Any, tmp_path: Path) -> None:
    two = torch.nn.ModuleDict({"a": model, "b": load(tiny_model("bert"))[0]})
    mine, finished = tmp_path / "thesis", tmp_path / "run"
    mine.mkdir()
    (mine / "chapter.tex").write_text("words")
    recording = start(model, finished)
    check_refusals(
        (
            r"step 5 was given, but 0 optimizer steps.* GradScaler .* not a torch\.optim",
            lambda: recording.snapshot(epoch=1, step=5),
        ),
        ("snapshots come in order", lambda: recording.snapshot(epoch=0, step=0)),
        ("needs the value of at least one split", lambda: recording.score("accuracy")),
    )
    run = recording.finish()
    _, grown = load(tiny_model("bert"))
    grown.add_tokens([f"w{i}" for i in range(model.config.vocab_size)])
    done = "holds a finished run: pass overwrite=True to replace it"
    check_refusals(
        ("holds no backbone of a supported family", lambda: toolkit.record(torch.nn.Linear(2, 2), tmp_path / "other")),
        (r"holds 2 backbones \('a\.bert', 'b\.bert'\)", lambda: toolkit.record(two, tmp_path / "other")),
        ("not empty and holds no run", lambda: toolkit.record(model, mine)),
        (done, lambda: toolkit.record(model, finished)),
        (done, lambda: Callback(finished)),
        (
            rf"has tokens beyond its {model.config.vocab_size} word rows",
            lambda: toolkit.record(model, tmp_path / "other", tokenizer=grown),
        ),
        ("has no RunConfig", lambda: run.config),
    )
    assert (mine / "chapter.tex").read_text() == "words"
    assert not (tmp_path / "other").exists()
    Callback(finished, overwrite=True)


def test_forgotten_snapshots(model: Any, tokenizer: Any, adamw: Any, tmp_path: Path) -> None:
    """That of epoch 0 is taken at the first step, before it changes anything; steps after the last one are told of."""
    before = model.bert.embeddings.word_embeddings.weight.detach().clone().numpy()
    model.train()
    recording = toolkit.record(model, tmp_path / "run")
    check_refused(r"call snapshot\(epoch=0\) before training", recording.snapshot, epoch=1)
    for step in range(1, 4):
        update(adamw, model(**encode(tokenizer, TEXTS)).logits[:, 0].sum())
        if step == 1:
            recording.snapshot(epoch=1)
    with pytest.warns(
        UserWarning, match=r"no snapshot covers the last 2 optimizer steps \(the last is of epoch 1, step 1\)"
    ):
        run = recording.finish()
    assert [(s.epoch, s.step) for s in run.trajectory] == [(0, 0), (1, 1)]
    assert np.array_equal(run.trajectory.snapshots[0].tensors["word_embeddings"], before)


def test_frozen_parameters_are_proven(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    model.bert.embeddings.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    run = recorded(model, tokenizer, optimizer, tmp_path / "run").finish()
    assert run.manifest["regime"]["frozen_components"] == sorted(run.trajectory.parameters)
    assert np.isnan(run.trajectory.exposure.tables["word_embeddings"].norms).all()
    recording = toolkit.record(model, tmp_path / "run", overwrite=True)
    recording.snapshot(epoch=0)
    with torch.no_grad():
        model.bert.embeddings.LayerNorm.bias += 1  # "frozen", but moved behind the optimizer's back
    # And no error: the model is still to be saved.
    problem = r"frozen parameters have changed: bert\.embeddings\.LayerNorm\.bias"
    manifest = finish_with_a_problem(recording, problem).manifest
    assert not manifest["frozen"]["is_bit_identical"]
    moved = [name for name, own in manifest["frozen"]["parameters"].items() if own["before"] != own["after"]]
    assert moved == ["bert.embeddings.LayerNorm.bias"]
    assert manifest["regime"]["frozen_components"] == sorted({*run.trajectory.parameters} - {"LayerNorm.bias"})


@pytest.mark.parametrize("part", ["encoder", "embeddings"])
def test_gradual_unfreezing(part: str, model: Any, tokenizer: Any, adamw: Any, tmp_path: Path) -> None:
    """What was frozen at first and trained later is not called frozen; the rest of what was frozen still is."""
    for frozen in (getattr(model.bert, part), model.bert.pooler):
        frozen.requires_grad_(False)
    recording = start(model.train(), tmp_path / "run")
    for step in (1, 2):
        update(adamw, model(**encode(tokenizer, TEXTS)).logits[:, 0].sum())
        recording.snapshot(epoch=step, step=step)
        getattr(model.bert, part).requires_grad_(True)
    model.bert.embeddings.requires_grad_(False)  # too late to call it frozen
    with warnings.catch_warnings(record=True, action="always") as caught:
        run = recording.finish()
    assert set(run.manifest["frozen"]["parameters"]) == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert run.manifest["regime"]["frozen_components"] == []
    first, second, third = (snapshot.tensors["word_embeddings"] for snapshot in run.trajectory)
    assert np.array_equal(first, second) == (part == "embeddings")
    assert not np.array_equal(second, third)
    assert (run.optimizer_log is None) == (part == "embeddings")  # the encoder is not what the log is of
    assert any("what it updates changed" in str(w.message) for w in caught) == (part == "embeddings")


def test_a_copy_of_the_model_is_not_watched(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """An average of the weights is a copy with a copy of the hook, which no step and no end would ever empty."""
    model.train()
    recording = toolkit.record(model, tmp_path / "run")
    model(**encode(tokenizer, TEXTS))
    torch.save(model, tmp_path / "model.pt")
    copies = [torch.optim.swa_utils.AveragedModel(model).module, torch.load(tmp_path / "model.pt", weights_only=False)]
    recording.close()
    for copy in copies:
        (hook,) = copy.bert.embeddings._forward_hooks.values()
        copy.train()(**encode(tokenizer, TEXTS))
        assert list(vars(hook.__self__)) == ["problem"]


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_embeddings_given_as_vectors_leave_exposure_unknown(family: str, model: Any, tmp_path: Path) -> None:
    model = model if family == "bert" else language_model(family, is_tied=False)
    recording = start(model.train(), tmp_path / "run")
    update(torch.optim.AdamW(model.parameters(), lr=1e-3), model(inputs_embeds=torch.randn(2, 3, 16)).logits.sum())
    recording.snapshot(epoch=1, step=1)
    with pytest.warns(UserWarning, match="inputs_embeds"):
        run = recording.finish()
    assert run.trajectory.exposure is None
    rows = toolkit.measure_rows(run, "word_embeddings", 1)
    assert set(rows["stratum"]) == {"exposure unknown"}
    assert rows["num_steps"].isna().all()


def language_model(model_type: str, *, is_tied: bool) -> Any:
    import transformers

    kind = transformers.AutoModelForSeq2SeqLM if model_type in SEQ2SEQ else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    sizes = sizes_of(model_type, vocab_size=40) | {"tie_word_embeddings": is_tied}
    return kind.from_config(transformers.AutoConfig.for_model(model_type, **sizes))


IDS = torch.tensor([[7, 8, 7, 9, 0, 0], [10, 7, 11, 12, 8, 13]])
"""Two texts, the first padded with row 0, which none of them uses."""


def record_causal(model: Any, path: Path, **batch: torch.Tensor) -> toolkit.Run:
    """Two steps on one batch, padding masked and not scored."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    batch = {"input_ids": IDS, "attention_mask": (IDS != 0).long()} | batch
    with warnings.catch_warnings(), toolkit.record(model, path) as recording:
        warnings.simplefilter("ignore")
        model.train()
        for _ in range(2):
            update(optimizer, model(**batch, labels=IDS.masked_fill(IDS == 0, -100)).loss)
        recording.snapshot(epoch=1)
    return toolkit.open_run(path)


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("model_type", DECODERS)
def test_a_causal_language_model(model_type: str, is_tied: bool, tmp_path: Path) -> None:
    """What a text ends with answers for nothing, and gets no gradient where the output layer is another table."""
    run = record_causal(language_model(model_type, is_tied=is_tied), tmp_path / "run")
    words, exposure = [7, 8, 7, 9, 10, 7, 11, 12, 8, 13], run.trajectory.exposure
    counts = {row: 2 * words.count(row) for row in words}
    assert bool(exposure.input_only) == is_tied
    if is_tied:
        assert {row: int(n) for row, n in enumerate(exposure.input_tokens("word_embeddings", 40)) if n} == counts
        strata = toolkit.measure_rows(run, "word_embeddings", 1)["stratum"]
        assert set(strata.astype(str)) >= {"used at the input", "not used at the input"}
        assert any("also serves elsewhere" in problem for problem in run.manifest["problems"])
    else:
        assert totals(run, "word_embeddings") == {row: n for row, n in counts.items() if row not in (9, 13)}
        assert run.manifest["problems"] == []
        assert unexplained_by_decay(run.trajectory, run.optimizer_log) == 0
    if model_type == "gpt2":  # of the sixth position no text makes use
        assert totals(run, "position_embeddings") == dict.fromkeys(range(4), 4) | {4: 2}
    assert run.trajectory.layer_norm_eps is None
    check_refused("not applicable: no LayerNorm follows the embeddings", toolkit.measure_gauge, run)
    for snapshot in run.trajectory:
        assert list(snapshot.tensors) == ["word_embeddings", "position_embeddings"][: 1 + (model_type == "gpt2")]


def test_positions_that_a_decoder_is_given(tmp_path: Path) -> None:
    run = record_causal(
        language_model("gpt2", is_tied=False), tmp_path / "run", position_ids=torch.arange(6)[None] + 20
    )
    assert set(totals(run, "position_embeddings")) == set(range(20, 25))


def test_encoder_and_decoder_read_one_word_table(tmp_path: Path) -> None:
    """T5's decoder reads its labels shifted by a start token, row 0 here; its output layer is the table too."""
    run = record_causal(language_model("t5", is_tied=True), tmp_path / "run")
    assert run.trajectory.exposure.input_only == ("word_embeddings",)
    used = run.trajectory.exposure.input_tokens("word_embeddings", 40)
    encoder = np.bincount(IDS[IDS != 0].numpy(), minlength=40)
    decoder = np.bincount([0, 7, 8, 7, 9, 0, 0, 10, 7, 11, 12, 8], minlength=40)
    assert used[1:].tolist() == (2 * (encoder + decoder))[1:].tolist()
    assert used[0] > 0


def test_a_table_under_two_names_that_only_looks_rows_up_is_an_ordinary_one(tmp_path: Path) -> None:
    """T5's encoder alone: its word table is ``shared`` and ``encoder.embed_tokens``, and no output layer."""
    from transformers import AutoConfig, T5EncoderModel

    torch.manual_seed(0)
    model = T5EncoderModel(AutoConfig.for_model("t5", **sizes_of("t5", vocab_size=40)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    recording = start(model.train(), tmp_path / "run")
    states = model(input_ids=IDS, attention_mask=(IDS != 0).long()).last_hidden_state
    update(optimizer, states[IDS != 0].square().mul(torch.arange(16)).sum())
    run = ended(recording, epoch=1)
    assert run.manifest["problems"] == []
    assert totals(run, "word_embeddings") == {7: 3, 8: 2, 9: 1, 10: 1, 11: 1, 12: 1, 13: 1}


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("way", ["another encoder", "penalty", "decay", "accumulation", "zeroed"])
def test_gradients_of_rows_that_no_pass_used(
    way: str, is_sparse: bool, model: Any, tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    """Two encoders of one word table, of which one is recorded: "never seen" would be wrong of the other's words."""
    other, _ = load(tiny_model("bert"))
    words = model.bert.embeddings.word_embeddings
    other.bert.embeddings.word_embeddings.weight = words.weight
    for each in (words, other.bert.embeddings.word_embeddings):
        each.sparse = is_sparse
    decay = 0.1 if way == "decay" and not is_sparse else 0.0  # torch refuses that of sparse gradients
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, weight_decay=decay)
    recording = start(model.train(), tmp_path / "run")
    for step in (1, 2):
        optimizer.zero_grad(set_to_none=way != "zeroed")
        for text in (TEXTS[1], TEXTS[3]) if way == "accumulation" else (TEXTS[step],):
            model(**encode(tokenizer, [text])).logits[:, 0].sum().backward()
        if way == "another encoder":
            other(**encode(tokenizer, ["the end"])).logits[:, 0].sum().backward()
        if way == "penalty":
            (words(torch.arange(4, 9)) ** 2).sum().backward()
        optimizer.step()
    recording.snapshot(epoch=1, step=2)
    if way not in ("another encoder", "penalty"):
        run = recording.finish()
        assert (run.trajectory.exposure.tables["word_embeddings"].num_steps, run.manifest["problems"]) == (2, [])
        return
    run = finish_with_a_problem(recording, "word_embeddings: rows that no recorded forward pass used got gradients")
    assert set(run.trajectory.exposure.tables) == set(TABLES[1:])
    assert set(toolkit.measure_rows(run, "word_embeddings", 1)["stratum"]) == {"exposure unknown"}


def test_recorded_runs_stand_beside_each_other_without_seeds(tiny_model: Any, tmp_path: Path) -> None:
    """Whoever trained them knows; two runs of which none is known are not two of one seed."""
    for name in ("one", "other"):
        start(load(tiny_model("bert"))[0], tmp_path / name).finish()
    assert len(open_sources([tmp_path / "one", tmp_path / "other"]).runs) == 2


@pytest.mark.parametrize(
    "start", [lambda model: toolkit.record(model, ""), lambda _: toolkit.EmbeddingSnapshotCallback("")]
)
def test_a_folder_without_a_name_is_refused(
    start: Any, tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would mean the current one."""
    monkeypatch.chdir(tmp_path)
    check_refused("must be a name or path", start, load(tiny_model("bert"))[0])
    assert not any(tmp_path.iterdir())


def test_the_examples_of_a_dataloader_are_counted_where_it_says_them() -> None:
    loader = torch.utils.data.DataLoader(range(5), batch_size=2, drop_last=True)
    assert num_examples_of(loader) == num_examples_of(accelerate.Accelerator(cpu=True).prepare(loader)) == 5

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(range(5))

    # Of batches that come ready-made their number is no number of examples.
    for unknown in (torch.utils.data.DataLoader(range(5), batch_size=None), torch.utils.data.DataLoader(Stream()), []):
        assert num_examples_of(unknown) is None


def test_a_recording_that_was_finished_is_as_it_was(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """As where a with block ends after finish(); and the model is watched no longer."""
    with recorded(model, tokenizer, torch.optim.SGD(model.parameters(), lr=1e-2), tmp_path / "run") as recording:
        manifest, watch = recording.finish().manifest, weakref.ref(recording._watch)
        written = (tmp_path / "run" / "manifest.json").stat().st_mtime_ns
    assert (recording.finish().manifest, (tmp_path / "run" / "manifest.json").stat().st_mtime_ns) == (manifest, written)
    del recording
    gc.collect()
    assert watch() is None


def test_a_recording_that_cannot_be_finished_lets_its_folder_go(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = start(model, tmp_path / "run")
    with monkeypatch.context() as full:
        full.setattr(RunWriter, "finish", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(OSError, match="no space left"):
            recording.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # without the lock beside it
    assert start(model, tmp_path / "run").finish().is_finished


def test_the_rows_of_all_processes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a second process, of three passes, beside those of this one."""
    other = {"word_embeddings": np.array([7, 7])}
    monkeypatch.setattr("toolkit.training.record._world_size", lambda: 2)

    def gather(gathered: list[Any], own: Any) -> None:
        gathered[:] = [own, (other, 3)][: len(gathered)]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    tokens, num_passes = _gather([{"word_embeddings": np.array([5])}], ["word_embeddings"])
    assert (tokens["word_embeddings"].tolist(), num_passes) == ([5, 7, 7], 4)


def test_a_table_in_half_precision_is_named_with_its_type(model: Any, tmp_path: Path) -> None:
    model.bert.embeddings.position_embeddings.half()
    check_refused("position_embeddings would be trained in float16", toolkit.record, model, tmp_path / "run")


def test_a_table_that_no_step_changed_has_no_exposure(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Somebody writes to it between two snapshots: which rows that used is not known, those of other tables are."""
    table = model.bert.embeddings.word_embeddings.weight
    recording = start(model.train(), tmp_path / "run")
    others = [parameter for parameter in model.parameters() if parameter is not table]
    update(torch.optim.SGD(others, lr=1e-2), model(**encode(tokenizer, TEXTS)).logits.sum())
    with torch.no_grad():
        table += 1
    with pytest.warns(UserWarning, match="word_embeddings"):
        run = ended(recording, epoch=1)
    assert run.trajectory.exposure.tables.keys() == {"position_embeddings", "token_type_embeddings"}


def test_rows_that_decay_moves_through_adams_moments_are_told(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    before = model.bert.embeddings.word_embeddings.weight.detach().numpy().copy()
    with pytest.warns(UserWarning, match="rows that no text used move, by") as told:
        run = recorded(
            model, tokenizer, torch.optim.Adam(model.parameters(), weight_decay=0.1), tmp_path / "run"
        ).finish()
    unused = run.trajectory.exposure.tables["word_embeddings"].step_counts(len(before)) == 0
    now = run.trajectory.snapshots[-1].tensors["word_embeddings"]
    shares = (np.linalg.norm(now - before, axis=1) / np.linalg.norm(before, axis=1).clip(1e-30))[unused]
    assert any(
        f"{(shares > 0).sum()} rows that no text used move, by {np.median(shares[shares > 0]):.2%} " in str(own.message)
        for own in told
    )
