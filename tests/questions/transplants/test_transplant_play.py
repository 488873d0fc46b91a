"""Transplants on tiny models: identities that must hold bit for bit, and planted faults that must show."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score

from tests.questions.conftest import GetRun
from tests.refusals import check_refusals, check_refused
from toolkit.analysis.shapley import shapley_values
from toolkit.config import RunConfig
from toolkit.data.batches import evaluation_batches, make_batch
from toolkit.data.tasks import load_task
from toolkit.families import TABLES
from toolkit.models.classifier import load_classifier
from toolkit.models.tuned import load_tuned
from toolkit.pipeline import finetune
from toolkit.questions.transplants.games import (
    Body,
    TransplantSettings,
    build_components,
    design_of,
    draw_items,
    play_run,
    score_items,
)
from toolkit.questions.transplants.measure import measure_transplants
from toolkit.questions.transplants.players import (
    NOTHING_FIXED,
    ONE_ROW,
    UNCHANGED,
    Components,
    all_inseparable,
    fixed_components,
    raw_components,
    used_rows,
)
from toolkit.snapshots.logs import Design, Exposure, TableExposure
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.training.encoding import encode_task

LIKELIHOOD = "log-likelihood"


def opened(run):
    """The tuned classifier as it is loaded, its data, and their validation split."""
    loaded = load_tuned(run)
    data = encode_task(load_task(run.config), loaded, run.config.max_length)
    return loaded, data, data.splits["validation"]


def prepare(run, dtype="float32", coordinates="fixed"):
    loaded, data, split = opened(run)
    body = Body(loaded, data, dtype)
    after = {name: np.array(tensor) for name, tensor in run.trajectory.snapshots[-1].tensors.items()}
    return body, split, build_components(run, after, data, [split], coordinates)


def put_embeddings(loaded, tensors):
    """All five parameters of a snapshot into a model."""
    names = loaded.family.embedding_parameters
    weights = {names[name]: torch.from_numpy(np.array(tensor)) for name, tensor in tensors.items()}
    loaded.model.backbone.load_state_dict(weights, strict=False)


def reference_logits(run, *, with_first_snapshot=False):
    """The tuned classifier as it is loaded, or with all five parameters of epoch 0 copied into it."""
    loaded, data, split = opened(run)
    if with_first_snapshot:
        put_embeddings(loaded, run.trajectory.at(0).tensors)
    logits = np.empty((len(split), loaded.model.head.out_features))
    with torch.inference_mode():
        for indices in evaluation_batches(split.lengths):
            logits[indices] = loaded.model(**make_batch(split, indices, data)).numpy()
    return logits, split


def assert_same(found, expected):
    """The same bits; where there is a GPU the game is played on it, and the oracle on the CPU."""
    np.testing.assert_allclose(found, expected, rtol=1e-5 if torch.cuda.is_available() else 0, atol=0)


@pytest.mark.parametrize("task", ["single", "pair"])
def test_raw_coordinates_end_in_the_tuned_model_and_in_the_embeddings_from_before(tuned_run: GetRun, task: str) -> None:
    run = tuned_run(task)
    game = play_run(run, TransplantSettings(coordinates="raw", num_draws=0))
    assert game.players == ("word", "position", "segment", "LayerNorm")
    for coalition, is_before in ((-1, False), (0, True)):
        logits, split = reference_logits(run, with_first_snapshot=is_before)
        assert_same(game.values[LIKELIHOOD][coalition], score_items(logits, split.labels)[LIKELIHOOD])
    assert game.gauge is None


FAMILIES = ("bert", "roberta", "distilbert", "electra", "albert", "modernbert")


@pytest.mark.parametrize(("task", "model_type"), [("single", "bert"), *(("pair", family) for family in FAMILIES)])
def test_the_fixed_gauge_changes_no_output(tuned_run: GetRun, task: str, model_type: str) -> None:
    run = tuned_run(task, model_type)
    for dtype, bound in (("float32", 1e-5), ("float64", 1e-12)):
        body, split, components = prepare(run, dtype)
        raw = prepare(run, dtype, "raw")[2]
        everyone = 2 ** len(components.players) - 1
        for fixed, own in ((everyone, 2 ** len(raw.players) - 1), (0, 0)):
            logits = []
            for each, coalition in ((components, fixed), (raw, own)):
                body.place(each.place(coalition))
                logits.append(body.outputs(split))
            assert np.abs(logits[0] - logits[1]).max() <= bound
        placed = components.place(everyone)
        rows, words = placed["word_embeddings"]
        body.place({**placed, "word_embeddings": (rows, 1.1 * words)})  # no gauge: it must show
        assert np.abs(body.outputs(split) - logits[0]).max() > 1e-3


def test_the_check_of_a_game_agrees_and_shows_its_control(tuned_run: GetRun) -> None:
    game = play_run(tuned_run("pair"), TransplantSettings(num_draws=0))
    assert game.gauge is not None
    assert game.gauge.difference <= 1e-5 < 1e-3 < game.gauge.control
    assert game.players == ("word", "position", "segment", "inseparable rows", "common offset", "LayerNorm")


def test_efficiency_and_one_pass_per_coalition(tuned_run: GetRun) -> None:
    game = play_run(tuned_run("pair"), TransplantSettings(num_draws=2))
    for values in game.values.values():
        np.testing.assert_allclose(shapley_values(values).sum(axis=0), values[-1] - values[0], atol=1e-12)
    # Words, positions, segments and all have rows to rotate.
    assert (game.moving, game.num_passes) == (63, 64 + 2 * (7 + 4) + 3)


def test_single_sentences_give_segments_exactly_0_though_their_row_moved(tuned_run: GetRun) -> None:
    run = tuned_run("single")
    tables = [snapshot.tensors["token_type_embeddings"] for snapshot in run.trajectory]
    assert not np.array_equal(tables[0], tables[-1])
    game = play_run(run, TransplantSettings(num_draws=1))
    segment = game.players.index("segment")
    assert not shapley_values(game.values[LIKELIHOOD])[segment].any()
    assert (game.moving >> segment & 1, game.stillness[segment]) == (0, ONE_ROW)
    raw = play_run(run, TransplantSettings(num_draws=0, coordinates="raw"))
    assert shapley_values(raw.values[LIKELIHOOD])[segment].any()  # what the gauge takes away


FROZEN = {
    "word_embeddings": "word",
    "position_embeddings": "position",
    "token_type_embeddings": "segment",
    "LayerNorm.weight,LayerNorm.bias": "LayerNorm",
}


@pytest.mark.parametrize("coordinates", ["fixed", "raw"])
@pytest.mark.parametrize("freeze", FROZEN)
def test_what_was_frozen_gets_exactly_0(tuned_run: GetRun, freeze: str, coordinates: str) -> None:
    game = play_run(tuned_run("pair", freeze=freeze), TransplantSettings(num_draws=1, coordinates=coordinates))
    phi = dict(zip(game.players, shapley_values(game.values[LIKELIHOOD]), strict=True))
    assert [name for name in game.players if not phi[name].any()] == [FROZEN[freeze]]
    line = game.players.index(FROZEN[freeze])
    assert game.stillness[line] == UNCHANGED
    for drawn in game.perturbed.values():
        np.testing.assert_array_equal(drawn[LIKELIHOOD][line, 0], game.values[LIKELIHOOD][0])


def test_all_embeddings_frozen_is_one_pass_and_all_0(tuned_run: GetRun) -> None:
    game = play_run(tuned_run("pair", freeze="embeddings"), TransplantSettings(num_draws=2))
    assert (game.num_passes, shapley_values(game.values[LIKELIHOOD]).any()) == (1 + 3, False)


def test_a_pass_that_is_saved_would_have_given_the_same(tuned_run: GetRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run, settings = tuned_run("single", freeze="position_embeddings"), TransplantSettings(num_draws=0)
    few = play_run(run, settings)
    monkeypatch.setattr(Components, "moving", property(lambda self: 2 ** len(self.players) - 1))
    all_of_them = play_run(run, settings)
    assert few.num_passes == 16 + 3 < all_of_them.num_passes == 64 + 3
    np.testing.assert_array_equal(few.values[LIKELIHOOD], all_of_them.values[LIKELIHOOD])


def test_an_offset_between_tables_is_worth_something_in_raw_coordinates_only(
    tuned_run: GetRun,
) -> None:
    """A planted gauge change of the tuned tables: W + 1cᵀ, P - 1cᵀ, and the pair [CLS] + k, P0 - k."""
    run = tuned_run("pair")
    _, data, split = opened(run)
    design = design_of([split], data, ("word_embeddings", "position_embeddings", "token_type_embeddings"))
    before = {name: np.array(tensor, np.float64) for name, tensor in run.trajectory.at(0).tensors.items()}
    rng, after = np.random.default_rng(0), {name: tensor.copy() for name, tensor in before.items()}
    offset, pair = rng.normal(size=(2, 16))
    after["word_embeddings"] += offset
    after["position_embeddings"] -= offset
    after["word_embeddings"][1] += pair
    after["position_embeddings"][0] -= pair
    after["token_type_embeddings"] += 0.7  # Π takes it away
    fixed = fixed_components(run.trajectory, before, after, design)
    changes = [np.abs(part.after - part.before).max(initial=0) for player in fixed.players for part in player.parts]
    assert max(changes) < 1e-12
    changed = [player.name for player in raw_components(before, after, used_rows(design)).players if player.has_moved]
    assert changed == ["word", "position", "segment"]


TEMPLATE, FREE = [(5, 0, 0), (6, 1, 0), (7, 2, 0)], [(5, 0, 0), (5, 1, 0), (6, 0, 0), (6, 1, 0)]


@pytest.mark.parametrize(
    ("tokens", "moved", "word", "position", "segment"),
    [
        (TEMPLATE, TABLES, all_inseparable(1), all_inseparable(1), ONE_ROW),
        (TEMPLATE, TABLES[:1], all_inseparable(1), UNCHANGED, UNCHANGED),
        (FREE, TABLES, NOTHING_FIXED, NOTHING_FIXED, ONE_ROW),
    ],
)
def test_a_table_that_moved_is_not_called_what_it_was(tokens, moved, word, position, segment) -> None:
    """In templated texts a row stands at one place only: what is left of a table after centring may be one row, or 0.

    Every row of a table that moved is shifted alike.
    """
    combinations = np.array(tokens, np.int32)
    design = Design(TABLES, combinations, np.ones(len(tokens), np.int64))
    steps = {name: np.unique(rows, return_counts=True) for name, rows in zip(TABLES, combinations.T, strict=True)}
    exposure = Exposure(
        {
            n: TableExposure.join([TableExposure.of_step(r, c.astype(np.int32), np.ones(len(r)))])
            for n, (r, c) in steps.items()
        },
        design,
    )
    before = {name: np.zeros((9, 4)) for name in TABLES}
    after = {name: before[name] + (name in moved) * np.array([0.5, -0.25, -0.25, 0.0]) for name in TABLES}
    trajectory = Trajectory([Snapshot(0, 0, before), Snapshot(1, 1, after)], read_exposure=lambda: exposure)
    players = {player.name: player for player in fixed_components(trajectory, before, after, design).players}
    for name, why in (("word", word), ("position", position), ("segment", segment)):
        assert (players[name].has_moved, players[name].stillness) == (False, why)


def test_a_moved_row_is_seen_by_its_own_player_alone(tuned_run: GetRun) -> None:
    body, _, components = prepare(tuned_run("pair"))
    names, before = components.names, components.place(0)
    for name, table in (("word", "word_embeddings"), ("position", "position_embeddings")):
        placed = components.place(1 << names.index(name))
        assert [key for key in placed if not np.array_equal(placed[key][1], before[key][1])] == [table]
    rows, words = components.place(1 << names.index("inseparable rows"))["word_embeddings"]
    assert rows[(words != before["word_embeddings"][1]).any(axis=1)].tolist() == [1]  # [CLS] stands for the pair
    assert body.parameters["word_embeddings"].dtype == torch.float32


@pytest.mark.parametrize(
    "own", [{"model_type": "deberta-v2"}, {"reinject_positions": True}], ids=lambda own: next(iter(own))
)
def test_where_a_projection_follows_or_positions_enter_again_only_raw_coordinates_work(
    own: dict[str, object], tuned_run: GetRun
) -> None:
    run = tuned_run("single", **own)
    check_refused("raw coordinates", play_run, run, TransplantSettings())
    # The draw turns rows and LayerNorm of unlike widths.
    game = play_run(run, TransplantSettings(coordinates="raw", num_draws=1))
    logits, split = reference_logits(run)
    assert_same(game.values[LIKELIHOOD][-1], score_items(logits, split.labels)[LIKELIHOOD])
    if "model_type" in own:
        assert ("segment" in game.players, "not applicable" in game.notes[0]) == (False, True)


def test_items_are_drawn_alike_and_scored_as_among_all(tuned_run: GetRun) -> None:
    run = tuned_run("single")
    few, every = (play_run(run, TransplantSettings(num_draws=0, coordinates="raw", max_examples=n)) for n in (10, None))
    places = np.flatnonzero(np.isin(every.ids, few.ids))
    assert len(few.ids) == 10
    np.testing.assert_array_equal(every.ids[places], few.ids)
    np.testing.assert_allclose(few.values[LIKELIHOOD], every.values[LIKELIHOOD][:, places], atol=1e-5)
    split = prepare(run)[1]
    assert draw_items(split, 1000) is split


def test_mistakes_are_one_line(tuned_run: GetRun) -> None:
    run = tuned_run("single")
    check_refusals(
        ("validation", lambda: play_run(run, TransplantSettings(split="validatoin"))),
        ("fixed", lambda: play_run(run, TransplantSettings(coordinates="polar"))),
        ("--max-examples", lambda: play_run(run, TransplantSettings(max_examples=0))),
        ("--seed must be between 0", lambda: play_run(run, TransplantSettings(seed=-1))),
        ("--num-draws", lambda: play_run(run, TransplantSettings(num_draws=-1))),
        ("--num-reverse-draws", lambda: play_run(run, TransplantSettings(num_reverse_draws=-1))),
        ("float32", lambda: play_run(run, TransplantSettings(dtype="float16"))),
    )


def test_a_regression_is_scored_by_its_r2(tuned_run: GetRun, tmp_path: Path) -> None:
    """All tuned reach the R² that the run logged; none, that of the embeddings from before in the tuned body."""
    run = tuned_run("regression")
    game = play_run(run, TransplantSettings(num_draws=1))
    assert list(game.values) == ["r2"]
    logged = run.scores.query("split == 'validation'")["r2"].iloc[-1]
    assert game.values["r2"][-1].mean() == pytest.approx(logged, abs=1e-5)
    outputs, split = reference_logits(run, with_first_snapshot=True)
    assert game.values["r2"][0].mean() == pytest.approx(r2_score(split.labels, outputs[:, 0]), abs=1e-5)
    assert shapley_values(game.values["r2"]).sum(axis=0) == pytest.approx(
        game.values["r2"][-1] - game.values["r2"][0], abs=1e-9
    )
    found = measure_transplants([run], TransplantSettings(num_draws=1))
    assert set(found.shapley["unit"]) == {"points"}
    total = found.shapley.query("component == 'all'")["value"].item()
    assert total == pytest.approx(100 * (game.values["r2"][-1] - game.values["r2"][0]).mean())
    check_refusals(
        (
            r"--reverse fits a probe of classes, and .* is a regression",
            lambda: play_run(run, TransplantSettings(direction="reverse")),
        ),
        (
            "R² is undefined where all targets are equal, as on validation",
            lambda: play_run(run, TransplantSettings(max_examples=1)),
        ),
    )


def test_a_run_that_tags_words_is_refused_for_that(tuned_run: GetRun, tmp_path: Path) -> None:
    own = {"train_file": None, "validation_file": None, "test_file": (), "text_columns": (), "task": "roles"}
    config = replace(tuned_run("single").config, **own, max_train_examples=16, max_steps=1, output_dir=str(tmp_path))
    check_refusals(("by text, and roles tags words", lambda: play_run(finetune(config), TransplantSettings())))


def test_a_transplant_draws_both_texts_of_an_item(tiny_pairs: RunConfig) -> None:
    loaded = load_classifier(tiny_pairs.model, pooling="mean", num_outputs=2, pair_encoding="separate")
    data = encode_task(load_task(tiny_pairs), loaded, 40)
    split = data.splits["train"]
    drawn = draw_items(split, 7)
    chosen = np.flatnonzero(np.isin(split.ids, drawn.ids))
    for name, tensor in make_batch(drawn, np.arange(7), data).items():
        assert torch.equal(tensor, make_batch(split, chosen, data)[name])
