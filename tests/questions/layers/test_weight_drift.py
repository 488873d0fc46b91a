"""Weight drift: equal to numpy on the saved tensors, silent where nothing was done, found where it was planted."""

import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import toolkit
from tests.conftest import FAMILY_CONFIGS, OTHERS
from tests.refusals import check_refusals
from tests.snapshots.test_importers import save_older
from toolkit.config import RunConfig
from toolkit.families import EMBEDDING_PARAMETERS, family_of
from toolkit.questions.layers import weights as weight_drift
from toolkit.questions.layers.weights import NOT_APPLICABLE, SHARED, measure_weight_drift
from toolkit.snapshots.store import Run

Tensors = dict[str, np.ndarray]


@pytest.fixture
def change(tiny_model: Callable[[str], Path], tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """``change(edit, model_type)``: a tiny checkpoint without zeros, and a copy whose tensors ``edit`` has changed."""

    def make(edit: Callable[[Tensors], Tensors | None], model_type: str = "bert") -> tuple[Path, Path]:
        before, after = tmp_path / f"{model_type}-before", tmp_path / f"{model_type}-after"
        for folder in (before, after):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(tiny_model(model_type), folder)
        tensors = noisy(load_file(before / "model.safetensors"))
        save_file(tensors, before / "model.safetensors")
        edited = {name: tensor.copy() for name, tensor in tensors.items()}
        returned = edit(edited)
        save_file(edited if returned is None else returned, after / "model.safetensors")
        return before, after

    return make


def noisy(tensors: Tensors, scale: float = 0.1, seed: int = 1) -> Tensors:
    rng = np.random.default_rng(seed)
    return {n: t + rng.normal(0, scale, t.shape).astype(np.float32) for n, t in tensors.items()}


def add_noise(tensors: Tensors) -> Tensors:
    return noisy(tensors, 0.003, 2)


def expected(old: np.ndarray, new: np.ndarray) -> tuple[float, float, float, float]:
    """Norms, share and angle in extended precision, by formulas of their own: the angle from the tangential part."""
    a, b = (tensor.astype(np.longdouble).ravel() for tensor in (old, new))
    before, change = np.sqrt((a * a).sum()), np.sqrt(((b - a) ** 2).sum())
    along = (a * b).sum() / before
    across = np.sqrt(((b - along * a / before) ** 2).sum())
    return float(before), float(change), float(change / before), math.degrees(float(np.arctan2(across, along)))


@pytest.mark.parametrize("model_type", FAMILY_CONFIGS)
def test_equal_to_numpy_on_the_saved_tensors(model_type: str, change: Callable[..., tuple[Path, Path]]) -> None:
    before, after = change(add_noise, model_type)
    old, new = (load_file(folder / "model.safetensors") for folder in (before, after))
    table = measure_weight_drift(before, after)
    there = table[table["num_values"] > 0].set_index("parameter")
    assert set(there.index) == set(old)
    for name, line in there.iterrows():
        values = expected(old[name], new[name])
        found = line[["norm_before", "norm_change", "relative_drift", "angle_degrees"]].astype(float)
        assert found.to_numpy() == pytest.approx(values, rel=1e-12), name
        assert line["shape"] == "x".join(map(str, old[name].shape))
        assert not line["is_identical"]
    by_layer = measure_weight_drift(before, after, by="layer").set_index("component")
    for component, own in there.groupby("component"):
        if component.startswith("layers."):
            squares = [sum(float((t.astype(np.float64) ** 2).sum()) for t in ts) for ts in sides(own.index, old, new)]
            assert by_layer.relative_drift[component] == pytest.approx(math.sqrt(squares[1] / squares[0]), rel=1e-12)
            matrices = [name for name in own.index if old[name].ndim > 1]
            assert by_layer.median_angle_degrees[component] == there.angle_degrees[matrices].median()


def sides(names: object, old: Tensors, new: Tensors) -> tuple[list[np.ndarray], list[np.ndarray]]:
    changes = [new[name].astype(np.float64) - old[name] for name in names]  # type: ignore[attr-defined]
    return [old[name] for name in names], changes  # type: ignore[attr-defined]


@pytest.mark.parametrize("model_type", [*FAMILY_CONFIGS, *OTHERS])
def test_no_parameter_of_the_backbone_is_left_out(model_type: str, tiny_model: Callable[[str], Path]) -> None:
    from transformers import AutoModel

    counts = {name: p.numel() for name, p in AutoModel.from_pretrained(tiny_model(model_type)).named_parameters()}
    family = family_of(model_type)
    embeddings = set(family.embedding_parameters.values())
    table = measure_weight_drift(tiny_model(model_type), tiny_model(model_type))
    encoder = table[~table.component.isin(EMBEDDING_PARAMETERS)]
    assert encoder.num_values.sum() == sum(n for name, n in counts.items() if name not in embeddings)
    assert table.num_values.sum() == sum(counts.values())
    by_layer = measure_weight_drift(tiny_model(model_type), tiny_model(model_type), by="layer")
    assert by_layer.num_values.sum() == sum(counts.values())
    layers = table[table.component.str.startswith("layers.")]
    if model_type in FAMILY_CONFIGS:  # the words of the others serve several model types
        assert set(layers.part) == set(family.layer_parts)  # every part of a layer has its word, and every word a part
    assert set(layers.part) & set(family.layer_parts)
    assert table.is_identical[table.num_values > 0].all()
    assert (table.norm_change[table.num_values > 0] == 0).all()
    assert (set(table.relative_drift.dropna()), set(table.angle_degrees.dropna())) == ({0.0}, {0.0})
    zero = table[(table.norm_before == 0)]
    assert zero.reason.str.contains("0 before: it has no share and no angle").all()
    assert zero.relative_drift.isna().all()
    absent = table[table.num_values == 0]
    assert set(absent.reason) <= {NOT_APPLICABLE}
    assert absent.norm_change.isna().all()
    assert set(absent.component) == {*EMBEDDING_PARAMETERS, *family.components, "pooler"} - {"layers.{K}"} - set(
        table.component[table.num_values > 0]
    )


def test_a_family_that_shares_its_layers_says_so(tiny_model: Callable[[str], Path]) -> None:
    layers = measure_weight_drift(tiny_model("albert"), tiny_model("albert")).query("component == 'layers.0'")
    assert set(layers.layer) == {1}
    assert layers.note.str.startswith(SHARED).all()
    assert not measure_weight_drift(tiny_model("bert"), tiny_model("bert")).note.str.contains(SHARED).any()


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-6, 3.0), st.booleans())
def test_scaling_is_its_share_and_no_angle(share: float, is_shrunk: bool) -> None:
    factor = 1 - share / 4 if is_shrunk else 1 + share
    old = np.random.default_rng(0).normal(size=5000)
    line = weight_drift._with_measures(*sides_of(old, old * factor))
    assert line["relative_drift"] == pytest.approx(abs(factor - 1), rel=1e-9)
    assert line["angle_degrees"] < 1e-13  # an arc cosine would give 1e-6


def sides_of(old: np.ndarray, new: np.ndarray) -> tuple[dict[str, object], object, object]:
    class Side:
        def __init__(self, tensor: np.ndarray) -> None:
            self.tensor = tensor

        def values(self, name: str) -> np.ndarray:
            return self.tensor

    return {"parameter": "w", "note": ""}, Side(old), Side(new)


def test_angles_that_are_known() -> None:
    for turn in (1e-10, 1e-4, 30.0, 90.0, 179.0):
        new = np.array([math.cos(math.radians(turn)), math.sin(math.radians(turn))])
        assert weight_drift._with_measures(*sides_of(np.array([1.0, 0.0]), new))["angle_degrees"] == pytest.approx(
            turn, rel=1e-6, abs=0
        )
    opposite = weight_drift._with_measures(*sides_of(np.array([1.0, 2.0]), -np.array([1.0, 2.0])))
    assert (opposite["angle_degrees"], opposite["relative_drift"]) == (180, 2)


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = np.random.default_rng(0).normal(size=(2, 10_000)).astype(np.float32)
    whole = weight_drift._with_measures(*sides_of(old, new))
    monkeypatch.setattr(weight_drift, "VALUES_AT_ONCE", 333)
    monkeypatch.setattr(weight_drift, "FIRST_VALUES", 7)
    parts = weight_drift._with_measures(*sides_of(old, new))
    for name in ("norm_before", "norm_change", "relative_drift", "angle_degrees"):
        assert parts[name] == pytest.approx(whole[name], rel=1e-13)
    new = old.copy()
    new[-1] = np.nextafter(new[-1], np.float32(9))
    assert not weight_drift._with_measures(*sides_of(old, new))["is_identical"]
    assert weight_drift._with_measures(*sides_of(old, old.copy()))["is_identical"]


def test_a_sign_of_zero_is_a_bit() -> None:
    line = weight_drift._with_measures(*sides_of(np.array([0.0, 1.0]), np.array([-0.0, 1.0])))
    assert (line["is_identical"], line["norm_change"]) == (False, 0)


def test_a_change_in_one_layer_is_found_there_alone(change: Callable[..., tuple[Path, Path]]) -> None:
    name = "encoder.layer.1.intermediate.dense.weight"
    before, after = change(lambda tensors: tensors | {name: tensors[name] * np.float32(1.5)})
    table = measure_weight_drift(before, after).query("num_values > 0").set_index("parameter")
    assert (list(table.index[~table.is_identical]), table.part[name], table.layer[name]) == ([name], "intermediate", 2)
    assert table.relative_drift[name] == pytest.approx(0.5, rel=1e-6)  # fp32 rounds the planted tensor
    by_layer = measure_weight_drift(before, after, by="layer")
    assert list(by_layer.layer[by_layer.norm_change > 0]) == [2]


def test_layers_in_another_order_are_no_small_change(change: Callable[..., tuple[Path, Path]]) -> None:
    def edit(tensors: Tensors) -> None:
        for name in [name for name in tensors if "layer.0." in name and name.endswith("dense.weight")]:
            other = name.replace("layer.0.", "layer.2.")
            tensors[name], tensors[other] = tensors[other], tensors[name]

    before, after = change(edit)
    by_layer = measure_weight_drift(before, after, by="layer").set_index("component")
    assert (by_layer.relative_drift[["layers.0", "layers.2"]] > 0.5).all()
    assert by_layer.loc["layers.1", ["relative_drift", "is_identical"]].tolist() == [0, True]


def test_prefixes_wrappers_heads_and_old_names(change: Callable[..., tuple[Path, Path]]) -> None:
    """However a checkpoint was saved, it is the same drift."""
    plain = measure_weight_drift(*change(add_noise))

    def rename(tensors: Tensors) -> Tensors:
        named = {f"module._orig_mod.bert.{name}": tensor for name, tensor in add_noise(tensors).items()}
        old = {".LayerNorm.weight": ".LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"}
        for new_name, old_name in old.items():
            named = {name.replace(new_name, old_name): tensor for name, tensor in named.items()}
        buffer = {"module._orig_mod.bert.embeddings.position_ids": np.arange(4)}
        return named | buffer | {"classifier.weight": np.ones((2, 16), np.float32)}

    before, after = change(rename)
    pd.testing.assert_frame_equal(measure_weight_drift(before, after), plain)
    (note,) = weight_drift.open_backbones(before, after).notes
    assert "classifier.weight" in note
    assert "position_ids" not in note  # a buffer, and no weight
    for folder in (before, after):
        (folder / "config.json").unlink()
    pd.testing.assert_frame_equal(measure_weight_drift(before, after), plain)


def test_a_cast_is_no_training(change: Callable[..., tuple[Path, Path]]) -> None:
    import torch
    from safetensors.torch import save_file as save_torch

    before, after = change(lambda tensors: {n: t.astype(np.float16) for n, t in tensors.items()})
    old = load_file(before / "model.safetensors")
    for kind, stored in (("fp16", "float16"), ("bf16", "bfloat16")):
        if kind == "bf16":
            halves = {n: torch.from_numpy(t).to(torch.bfloat16) for n, t in old.items()}
            save_torch(halves, after / "model.safetensors")
        table = measure_weight_drift(before, after).query("num_values > 0")
        moved = table[~table.is_identical]
        assert len(moved) > 30
        assert moved.note.str.contains(f"a cast: every value is the old one rounded to {kind}").all()
        assert stored in " ".join(weight_drift.open_backbones(before, after).notes)
        by_layer = measure_weight_drift(before, after, by="layer")
        assert by_layer.note[by_layer.layer.isin([1, 2, 3])].str.contains("of 16 tensors are a cast").all()
    save_file({n: np.float32(np.float16(t)) for n, t in old.items()}, after / "model.safetensors")
    assert "a cast" in measure_weight_drift(before, after).note[0]  # stored as fp32 again
    save_file({n: np.nextafter(t, np.float32(9)) for n, t in old.items()}, after / "model.safetensors")
    assert not measure_weight_drift(before, after).note.str.contains("a cast").any()


def test_a_float64_checkpoint_is_read_as_it_is(change: Callable[..., tuple[Path, Path]]) -> None:
    before, after = change(lambda tensors: {n: t.astype(np.float64) * (1 + 1e-12) for n, t in tensors.items()})
    table = measure_weight_drift(before, after).query("norm_before > 0")
    assert table.relative_drift.to_numpy() == pytest.approx(1e-12, rel=1e-3, abs=0)  # fp32 would lose it


def test_what_only_one_has_is_not_compared(change: Callable[..., tuple[Path, Path]]) -> None:
    before, after = change(lambda tensors: {n: t for n, t in add_noise(tensors).items() if "pooler" not in n})
    for pair, side in (((before, after), "after"), ((after, before), "before")):
        table = measure_weight_drift(*pair)
        pooler = table[table.component == "pooler"]
        assert (len(pooler), pooler.norm_change.count()) == (2, 0)
        assert pooler.reason.str.contains(f"not compared: there is none {side}").all()
        line = measure_weight_drift(*pair, by="layer").set_index("component").loc["pooler"]
        assert (math.isnan(line.relative_drift), "not compared" in line.reason) == (True, True)


def test_a_grown_vocabulary_is_left_to_drift(change: Callable[..., tuple[Path, Path]]) -> None:
    words = "embeddings.word_embeddings.weight"
    before, after = change(lambda tensors: tensors | {words: np.concatenate([tensors[words], tensors[words][:1]])})
    table = measure_weight_drift(before, after)
    assert re.search("not compared: .*python -m toolkit drift", table.reason[0])
    assert table.is_identical[1:][table.num_values > 0].all()
    assert math.isnan(measure_weight_drift(before, after, by="layer").relative_drift[0])


REFUSED = {
    "a missing layer": (
        lambda t: {n: x for n, x in t.items() if "layer.2." not in n},
        r"bert-after lacks encoder\.layer\.2\..* of the same size",
    ),
    "a missing tensor": (
        lambda t: {n: x for n, x in t.items() if n != "encoder.layer.1.output.dense.bias"},
        "bert-after lacks encoder.layer.1.output.dense.bias: is it a whole checkpoint",
    ),
    "another size": (
        lambda t: t | {"encoder.layer.0.output.dense.bias": np.zeros(17, np.float32)},
        r"encoder.layer.0.output.dense.bias has the shape \(16,\) in bert-before but \(17,\) in bert-after",
    ),
    "NaN": (
        lambda t: t | {"encoder.layer.0.output.dense.bias": np.full(16, np.nan, np.float32)},
        "holds NaN or infinity",
    ),
    "numbers of eight bits": (
        lambda t: t | {"encoder.layer.0.output.dense.weight": np.zeros((16, 32), np.int8)},
        "as I8, which is not a floating-point weight: dequantise",
    ),
    "an adapter": (
        lambda t: t | {"encoder.layer.0.attention.self.query.lora_A.default.weight": np.zeros((2, 16), np.float32)},
        "merge the adapter",
    ),
    "a name twice": (
        lambda t: t | {"encoder.layer.0.output.LayerNorm.gamma": np.zeros(16, np.float32)},
        "holds encoder.layer.0.output.LayerNorm.weight twice",
    ),
    "no layers": (
        lambda t: {n: x for n, x in t.items() if n.startswith("embeddings")},
        "bert-after lacks encoder.layer.0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_refused_in_one_line(name: str, change: Callable[..., tuple[Path, Path]]) -> None:
    edit, said = REFUSED[name]
    before, after = change(edit)
    check_refusals((said, lambda: measure_weight_drift(before, after)))


def test_places_that_hold_no_single_checkpoint_are_refused(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    bert = tiny_model("bert")
    for step in (1, 2):
        shutil.copytree(bert, tmp_path / f"checkpoint-{step}")
    (tmp_path / "model.bin").write_bytes(b"")
    check_refusals(
        (
            r"is BERT, .* is DistilBERT: compare checkpoints of one architecture",
            lambda: measure_weight_drift(bert, tiny_model("distilbert")),
        ),
        ("is one checkpoint: pass a second one, or a run", lambda: measure_weight_drift(bert)),
        ("unknown by 'layers'", lambda: measure_weight_drift(bert, bert, by="layers")),  # type: ignore[arg-type]
        ("holds 2 checkpoints: pass one of them", lambda: measure_weight_drift(bert, tmp_path)),
        ("pickle", lambda: measure_weight_drift(bert, tmp_path / "model.bin")),
    )


def test_a_run_is_compared_with_what_it_started_from(train: Callable[..., Run], tiny_config: RunConfig) -> None:
    run = train(freeze="embeddings,layers.0")
    table = toolkit.measure_weight_drift(run)
    pd.testing.assert_frame_equal(table, measure_weight_drift(str(run.path)))
    pair = measure_weight_drift(tiny_config.model, run.path / "model")
    same = ["parameter", "norm_before", "norm_change", "relative_drift", "angle_degrees", "is_identical"]
    pd.testing.assert_frame_equal(table[same], pair[same])
    pd.testing.assert_frame_equal(measure_weight_drift(tiny_config.model, run)[same], pair[same])
    by_layer = measure_weight_drift(run, by="layer").set_index("layer")
    assert by_layer.is_identical[[0, 1, 2, 3]].tolist() == [True, True, False, False]
    assert (by_layer.relative_drift[[2, 3]] > 0).all()
    words = train().trajectory.snapshots
    drift = measure_weight_drift(train()).set_index("component")
    for name in run.trajectory.parameters:
        old, new = (words[i].tensors[name].astype(np.float64) for i in (0, -1))
        assert drift.norm_change[name] == pytest.approx(np.linalg.norm(new - old), rel=1e-12)


def test_a_table_that_was_put_in_before_training_is_before(train: Callable[..., Run]) -> None:
    run = train(positions="zero", freeze="backbone")
    line = measure_weight_drift(run).set_index("component").loc["position_embeddings"]
    # The checkpoint's own table is not what the run started from.
    assert (line.norm_before, line.norm_change) == (0, 0)


def test_runs_that_cannot_tell_say_why(
    train: Callable[..., Run], tiny_config: RunConfig, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    check_refusals(
        (
            "holds no model: make it again with one, by python",
            lambda: measure_weight_drift(train(save_model=False, output_dir=str(tmp_path))),
        ),
        ("started from random weights, which no checkpoint holds", lambda: measure_weight_drift(train(init="random"))),
    )
    start = shutil.copytree(tiny_model("bert"), tmp_path / "start")
    run = train(model=str(start))
    with pytest.raises(ValueError, match="is a snapshot of embedding parameters only"):
        measure_weight_drift(start, next((run.path / "snapshots").glob("*.safetensors")))
    save_file(add_noise(load_file(start / "model.safetensors")), start / "model.safetensors")
    check_refusals((r"are not those that .* started from", lambda: measure_weight_drift(run)))
    shutil.rmtree(start)
    check_refusals((r"which .* started from: put it back", lambda: measure_weight_drift(run)))
    model = run.path / "model" / "model.safetensors"
    save_file(add_noise(load_file(model)), model)
    check_refusals(("is not as its manifest says", lambda: measure_weight_drift(tiny_config.model, run)))


def test_no_model_is_built(tiny_model: Callable[[str], Path]) -> None:
    path = str(tiny_model("bert"))
    code = (
        f"import sys, toolkit; toolkit.measure_weight_drift({path!r}, {path!r}); "
        "assert not {'torch', 'transformers'} & set(sys.modules), 'a model library was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(toolkit.__file__).parents[1])


@pytest.mark.parametrize("model_type", ["gpt2", "gpt_neox", "t5"])
def test_what_older_checkpoints_hold_beside_their_weights_is_none(model_type: str, tmp_path: Path) -> None:
    before, after = save_older(model_type, tmp_path)
    drift = measure_weight_drift(before, after)
    assert not drift["reason"].str.contains("not compared").any()
    assert drift["parameter"][drift["norm_change"] > 0].tolist() == [
        family_of(model_type).embedding_parameters["word_embeddings"]
    ]
    assert len(drift) == len(measure_weight_drift(after, after))
