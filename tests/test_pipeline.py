"""The main job on a tiny model: what a regime freezes does not move, what it does not freeze does, and why."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from tests import planted_weights
from tests.conftest import DECODERS, ENCODERS, FAMILY_CONFIGS, saved
from tests.questions.examples import examples
from tests.refusals import check_refused, leave
from tests.training.recorded_texts import totals_of_tables
from toolkit import (
    Run,
    Snapshot,
    Trajectory,
    explain,
    finetune,
    open_run,
    replay_decay,
    verify_report,
    verify_run,
    write_report,
)
from toolkit.analysis.adam import unexplained_by_decay
from toolkit.cli import main
from toolkit.config import RunConfig
from toolkit.data.tasks import load_task
from toolkit.families import TABLES
from toolkit.models.classifier import Classifier, load_classifier
from toolkit.models.regimes import Embeddings, list_components
from toolkit.training.features import HeadStepper
from toolkit.training.optimizer import NonFiniteLossError
from toolkit.training.step import Stepper


def run(config: RunConfig, tmp_path: Path, **changes: object) -> Run:
    return finetune(replace(config, output_dir=str(tmp_path), **changes))


def first_and_last(run: Run, parameter: str) -> tuple[np.ndarray, np.ndarray]:
    snapshots = run.trajectory.snapshots
    return np.array(snapshots[0].tensors[parameter]), np.array(snapshots[-1].tensors[parameter])


OTHERWISE = {
    "modernbert": ("position_embeddings,", ""),  # it has no position table
    "albert": ("layers.0-1", "layers.0"),
    "mobilebert": ("encoder_other", "projection"),
}
"""Model type to a part of a regime, and what stands for it there."""
REGIMES = ["none", "embeddings", "backbone", "position_embeddings,LayerNorm.weight,layers.0-1"]


@pytest.mark.parametrize(
    ("model_type", "regime"),
    [
        *product(FAMILY_CONFIGS, REGIMES),
        *product([*ENCODERS, *DECODERS], ["none", "embeddings", "layers.0-1,encoder_other"]),
    ],
)
def test_frozen_components_are_bit_identical_and_every_other_moves(
    model_type: str, regime: str, tiny_model: Callable[[str], Path], tiny_pairs: RunConfig, tmp_path: Path
) -> None:
    regime = regime.replace(*OTHERWISE.get(model_type, ("", "")))
    pooling = "last" if model_type in DECODERS else "mean"
    config = replace(tiny_pairs, model=str(tiny_model(model_type)), freeze=regime, epochs=1, pooling=pooling)
    finished = run(config, tmp_path, save_model=True)
    loaded = load_classifier(config.model, pooling="mean", num_outputs=2)
    before = dict(loaded.model.named_parameters())
    after = {f"backbone.{k}": v for k, v in AutoModel.from_pretrained(finished.path / "model").named_parameters()}
    frozen, wanted = finished.manifest["frozen"], set(finished.manifest["regime"]["frozen_components"])
    for leaf, names in list_components(loaded.model, loaded.family).items():
        for name in names if leaf != "head" else ():
            is_unused = "contact_head" in name
            assert (name in frozen["parameters"]) == (leaf in wanted or is_unused), name
            assert torch.equal(before[name], after[name]) == (name in frozen["parameters"]), name
    assert frozen["is_bit_identical"]
    settings = loaded.model.backbone.config
    eps = getattr(settings, "layer_norm_eps", getattr(settings, "norm_eps", 1e-12))  # DistilBERT's is in its code
    has_norm = model_type in FAMILY_CONFIGS or model_type == "mpnet"
    assert finished.trajectory.layer_norm_eps == (eps if has_norm else None)
    assert verify_run(finished.path) == []


@pytest.fixture(scope="module")
def decoder_run(
    tiny_model: Callable[[str], Path], tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    config = replace(tiny_config, model=str(tiny_model("llama")), pooling="last", epochs=1, save_model=True)
    return run(config, tmp_path_factory.mktemp("decoder"))


@pytest.mark.parametrize(("command", "said"), list(chain(*examples("NOT_OF_A_DECODER"))))
def test_what_a_command_cannot_say_of_a_decoder_is_one_line(
    command: str, said: str, decoder_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"RUN": str(decoder_run.path), "MODEL": decoder_run.config.model}
    assert leave(main, [places.get(word, word) for word in command.split()]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert said.replace("MODEL", places["MODEL"]) in line


@pytest.mark.parametrize("command", ["drift RUN", "drift MODEL RUN/model", *chain(*examples("OF_A_DECODER"))])
def test_commands_that_read_the_weights_of_a_decoder(
    command: str, decoder_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    path, model = str(decoder_run.path), decoder_run.config.model
    assert not leave(main, [word.replace("RUN", path).replace("MODEL", model) for word in command.split()])
    out = capsys.readouterr().out
    assert "embeddings" in out
    assert "nan" not in out.lower().split()


@pytest.mark.slow  # whole reports
def test_a_decoder_in_a_report(decoder_run: Run, tmp_path: Path, undrawn: None) -> None:
    write_report([decoder_run], tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text()
    assert all(f"| {name} | not applicable |" in text for name in ("position_embeddings", "LayerNorm.weight"))
    assert "The offset that the tables share" not in text
    assert not verify_report(tmp_path / "report")


def test_deterministic_algorithms_are_asked_for_while_a_run_trains(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU they give the bits of any other run."""
    asked: list[bool] = []
    own = Embeddings.values

    def values(embeddings: Embeddings) -> dict[str, np.ndarray]:
        asked.append(torch.are_deterministic_algorithms_enabled())
        return own(embeddings)

    monkeypatch.setattr(Embeddings, "values", values)
    runs = [run(tiny_config, tmp_path, deterministic=value, max_steps=2) for value in (False, True)]
    assert asked == [False] * (len(asked) // 2) + [True] * (len(asked) // 2)
    assert not torch.are_deterministic_algorithms_enabled()
    for name in runs[0].trajectory.parameters:
        np.testing.assert_array_equal(*(own.trajectory.snapshots[-1].tensors[name] for own in runs))
    monkeypatch.setattr("toolkit.pipeline.train", fail)
    with pytest.raises(RuntimeError, match="planted"):
        run(tiny_config, tmp_path, deterministic=True, max_steps=3)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [({"snapshot_steps": 3}, [4, 4]), ({"max_steps": 6}, [4, 2]), ({"freeze": "backbone"}, [4, 4])],
    ids=str,
)
def test_what_each_epoch_took_sums_to_what_training_took(
    changes: dict[str, Any], seconds: list[int], tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which a step takes a second, and reading the tables for a snapshot a hundred."""
    spent: list[int] = []

    def taking(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *values: spent.append(number) or function(*values)

    monkeypatch.setattr("toolkit.training.loop.time", SimpleNamespace(perf_counter=lambda: sum(spent)))
    for kind in (Stepper, HeadStepper):
        monkeypatch.setattr(kind, "take", taking(1, kind.take))
    monkeypatch.setattr(Embeddings, "values", taking(100, Embeddings.values))
    manifest = run(tiny_config, tmp_path, **changes).manifest
    assert manifest["cost"]["epoch_seconds"] == seconds
    assert manifest["cost"]["seconds_training"] == sum(seconds)
    assert manifest.get("cuda_graph") is None  # which is said of a GPU alone


def fail(*_: object) -> None:
    raise RuntimeError("planted")


def test_without_decay_rows_without_gradient_do_not_move_at_all(tiny_config: RunConfig, tmp_path: Path) -> None:
    finished = run(tiny_config, tmp_path, weight_decay=0.0)
    exposure = finished.trajectory.exposure
    for name in TABLES:
        before, after = first_and_last(finished, name)
        seen = exposure.tables[name].step_counts(len(before)) > 0
        # Never-seen words, [PAD], positions beyond, the unused segment.
        np.testing.assert_array_equal((before != after).any(axis=1), seen)
    assert not seen[1]
    assert not (exposure.tables["word_embeddings"].rows == finished.trajectory.vocabulary.pad_row).any()


def test_with_decay_they_move_exactly_as_the_replayed_decay(tiny_config: RunConfig, tmp_path: Path) -> None:
    finished = run(tiny_config, tmp_path, weight_decay=0.1, precision="bf16")
    for name in TABLES:
        before, after = first_and_last(finished, name)
        unseen = finished.trajectory.exposure.tables[name].step_counts(len(before)) == 0
        replayed = replay_decay(before[unseen], finished.optimizer_log, name)
        np.testing.assert_array_equal(replayed, after[unseen])
        assert (replayed != before[unseen]).any()  # the control: decay did something


@pytest.mark.usefixtures("undrawn")
def test_a_report_says_what_decay_explains_and_finds_what_it_does_not(tiny_config: RunConfig, tmp_path: Path) -> None:
    finished = run(tiny_config, tmp_path, weight_decay=0.1)
    assert unexplained_by_decay(finished.trajectory, finished.optimizer_log) == 0
    assert "| 0, bit for bit |" in write_report([finished], tmp_path / "report").path.read_text()
    # The positive control: one never-seen row is moved as far again by another cause.
    last = finished.trajectory.snapshots[-1]
    words, before = (
        np.array(last.tensors["word_embeddings"]),
        finished.trajectory.snapshots[0].tensors["word_embeddings"],
    )
    unseen = np.flatnonzero(finished.trajectory.exposure.tables["word_embeddings"].step_counts(len(words)) == 0)
    words[unseen[0]] += np.linalg.norm(words[unseen] - before[unseen]) / 4
    moved = Trajectory(
        [finished.trajectory.snapshots[0], Snapshot(last.epoch, last.step, {"word_embeddings": words})],
        finished.vocabulary,
        lambda: finished.trajectory.exposure,
    )
    assert 0.4 < unexplained_by_decay(moved, finished.optimizer_log) < 1


def test_exposure_equals_a_count_by_hand(tiny_pairs: RunConfig, tmp_path: Path) -> None:
    """Brute force: every example of the task is in every epoch once, whatever the batches were."""
    config = replace(tiny_pairs, max_length=12)  # some pairs are truncated
    finished = run(config, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    counts, together = {name: Counter() for name in TABLES}, Counter()
    for first, second in load_task(config).splits["train"].texts:
        encoded = tokenizer(first, second, truncation=True, max_length=12)
        for place, (word, segment) in enumerate(zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)):
            together[word, place, segment] += config.epochs
            for name, row in zip(TABLES, (word, place, segment), strict=True):
                counts[name][row] += config.epochs
    assert totals_of_tables(finished) == counts
    design = finished.trajectory.exposure.design
    assert design.tables == TABLES
    found = zip(design.combinations.tolist(), design.counts.tolist(), strict=True)
    assert {tuple(rows): n for rows, n in found} == together
    assert finished.manifest["task"]["splits"]["train"]["num_truncated"] > 0


def test_feature_extraction_runs_the_backbone_once_and_in_eval_mode(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    original = Classifier.pool

    def counted(self: Classifier, output: Any, attention_mask: torch.Tensor) -> torch.Tensor:
        assert not any(module.training for module in self.backbone.modules())
        calls.append(len(attention_mask))
        return original(self, output, attention_mask)

    monkeypatch.setattr(Classifier, "pool", counted)
    finished = run(tiny_config, tmp_path, freeze="backbone", epochs=4)
    sizes = finished.manifest["task"]["splits"]
    assert sum(calls) == sum(split["num_examples"] for split in sizes.values())
    assert set(finished.manifest["linear_probe"]) == set(sizes) - {"train"}
    norms = finished.trajectory.exposure.tables["word_embeddings"].norms
    assert np.isnan(norms).all()  # frozen: no gradient, not a gradient of 0


@pytest.mark.parametrize("freeze", ["none", "backbone"])
def test_accumulation_and_repetition_change_nothing(tiny_config: RunConfig, tmp_path: Path, freeze: str) -> None:
    config = replace(tiny_config, dropout=0.0, freeze=freeze, max_train_examples=60)  # the last batch is incomplete
    runs = [run(config, tmp_path / str(i), gradient_accumulation_steps=parts) for i, parts in enumerate((1, 1, 4))]
    tensors = [first_and_last(r, "word_embeddings")[1] for r in runs]
    outputs = [np.stack(r.predictions["scores"].to_list()) for r in runs]
    for (one, again, in_parts), tolerance in ((tensors, 2e-4), (outputs, 2e-3)):
        np.testing.assert_array_equal(one, again)
        np.testing.assert_allclose(one, in_parts, atol=tolerance)


@pytest.mark.parametrize("plain", [{}, {"optimizer": "sgd", "gradient_accumulation_steps": 2}, {"freeze": "backbone"}])
def test_steps_are_counted_from_1_and_the_loss_of_an_epoch_is_their_mean(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: dict[str, Any]
) -> None:
    logs: list[Any] = []
    monkeypatch.setattr("toolkit.pipeline._Progress.on_step", lambda _, log, __: logs.append(log))
    scores = run(tiny_config, tmp_path, learning_rate=1e-2, **plain).scores
    assert [log.step for log in logs] == list(range(1, 9))
    expected = [np.mean([log.loss for log in logs[start : start + 4]]) for start in (0, 4)]
    assert scores.drop_duplicates("epoch").set_index("epoch")["train_loss"][1:].tolist() == expected
    assert all(loss != log.loss for loss, log in zip(expected, logs[3::4], strict=True))


def test_snapshots_between_epochs_and_their_order(tiny_config: RunConfig, tmp_path: Path) -> None:
    finished = run(tiny_config, tmp_path, snapshot_steps=3)
    assert [(s.epoch, s.step) for s in finished.trajectory] == [(0, 0), (0.75, 3), (1, 4), (1.5, 6), (2, 8)]
    logged = run(tiny_config, tmp_path, snapshot_steps="log", epochs=3)
    assert [s.step for s in logged.trajectory] == [0, 1, 2, 4, 8, 12]
    cut = run(tiny_config, tmp_path, batch_size=20, max_steps=1)
    last = cut.scores["epoch"].max()
    assert (0 < last < 1, cut.trajectory.at(last).step) == (True, 1)


@pytest.mark.parametrize("freeze", ["none", "backbone"])
def test_a_budget_of_tokens_makes_more_and_smaller_steps(tiny_config: RunConfig, tmp_path: Path, freeze: str) -> None:
    plain = run(tiny_config, tmp_path, freeze=freeze)
    finished = run(
        tiny_config, tmp_path, freeze=freeze, batch_tokens=60, snapshot_steps=3, head_epochs=int(freeze == "none")
    )
    ends = [snapshot.step for snapshot in finished.trajectory if snapshot.is_epoch_end]
    assert [snapshot.epoch for snapshot in finished.trajectory if snapshot.is_epoch_end] == [0, 1, 2]
    assert set(finished.scores["epoch"]) == {0, 1, 2}
    assert ends[-1] > plain.trajectory.snapshots[-1].step
    assert [s.step for s in finished.trajectory] == sorted({*ends, *range(0, ends[-1] + 1, 3)})
    used = [own.trajectory.read_exposure().tables["word_embeddings"].counts.sum() for own in (plain, finished)]
    assert used[0] == used[1] > 0, "every token once per epoch"
    assert len(finished.optimizer_log.learning_rates) == ends[-1]


@pytest.fixture
def altered(tiny_model: Callable[[str], Path], tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], object]], str]:
    """A function: a change of tiny BERT's weights to the folder of that checkpoint, always the same folder."""

    return lambda change: str(planted_weights.altered(tiny_model("bert"), tmp_path / "altered", change))


def test_other_weights_in_the_same_folder_are_another_run(altered: Any, tiny_config: RunConfig, tmp_path: Path) -> None:
    first = run(tiny_config, tmp_path, model=altered(lambda _: None), max_steps=1)
    model = altered(lambda weights: weights["embeddings.word_embeddings.weight"][5].fill(1))
    assert run(tiny_config, tmp_path, model=model, max_steps=1).path != first.path


def test_a_run_repeats_from_its_config(tiny_config: RunConfig, tmp_path: Path) -> None:
    finished = run(tiny_config, tmp_path)
    again = finetune(replace(RunConfig.from_json((finished.path / "config.json").read_text()), overwrite=True))
    assert again.path == finished.path
    assert not verify_run(again.path)
    check_refused("pass --overwrite", run, tiny_config, tmp_path)
    check_refused("finetune takes a RunConfig or a dict of its fields; got 'minilm'", finetune, "minilm")


def test_divergence_names_the_step_and_keeps_what_is_on_disk(tiny_config: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLossError, match=r"not finite at step \d+"):
        run(tiny_config, tmp_path, learning_rate=1e30, head_learning_rate=1e30, warmup_fraction=0.0)
    (path,) = tmp_path.glob("tiny-*") or tmp_path.iterdir()
    unfinished = open_run(path)
    assert (unfinished.is_finished, unfinished.has_diverged) == (False, True)
    assert np.isfinite(unfinished.trajectory.snapshots[0].tensors["word_embeddings"]).all()
    check_refused("unfinished", verify_run, path)


@pytest.mark.parametrize(
    ("freeze", "rate"),
    [
        ("none", 1e20),
        # Of so high a rate torch's own step on a GPU is an error.
        pytest.param("backbone", 3e38, marks=pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU")),
    ],
)
def test_a_last_step_that_diverges_is_no_finished_run(
    freeze: str, rate: float, tiny_config: RunConfig, tmp_path: Path
) -> None:
    """No gradient comes after it, and the greatest of NaN outputs is class 0, which has an accuracy."""
    with pytest.raises(NonFiniteLossError, match=r"outputs for validation are not finite at step 1: training stopped"):
        run(
            tiny_config,
            tmp_path,
            freeze=freeze,
            max_steps=1,
            learning_rate=rate,
            head_learning_rate=rate,
            warmup_fraction=0.0,
        )
    (path,) = tmp_path.iterdir()
    left = open_run(path)
    assert (left.is_finished, left.has_diverged) == (False, True)
    assert (set(left.scores["epoch"]), [snapshot.step for snapshot in left.trajectory]) == ({0}, [0])


@pytest.mark.parametrize("freeze", ["none", "backbone"])
def test_a_checkpoint_whose_outputs_are_not_finite_is_named_before_training(
    freeze: str, altered: Any, tiny_config: RunConfig, tmp_path: Path
) -> None:
    model = altered(lambda weights: weights["embeddings.LayerNorm.bias"][:1].fill(np.nan))
    with pytest.raises(NonFiniteLossError, match=r"not finite before training: .* use another checkpoint or pass"):
        run(tiny_config, tmp_path / "runs", model=model, freeze=freeze)


def test_random_initialisation_is_another_model_of_the_same_shape(tiny_config: RunConfig, tmp_path: Path) -> None:
    kinds: list[dict[str, Any]] = [{}, {"init": "random"}, {"init": "random", "seed": 1}]
    tables = [first_and_last(run(tiny_config, tmp_path, max_steps=1, **own), "word_embeddings")[0] for own in kinds]
    assert not np.allclose(tables[0], tables[1])
    assert not np.allclose(tables[1], tables[2])


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_the_pooler_is_built_only_when_it_is_used(tiny_config: RunConfig, tmp_path: Path, pooling: str) -> None:
    freeze = "pooler" if pooling == "pooler" else "none"
    manifest = run(tiny_config, tmp_path, max_steps=1, pooling=pooling, freeze=freeze).manifest
    expected = ["backbone.pooler.dense.bias", "backbone.pooler.dense.weight"] if freeze == "pooler" else []
    assert (manifest["model"]["pooling"], sorted(manifest["frozen"]["parameters"])) == (pooling, expected)


def test_a_half_precision_checkpoint_trains_in_fp32(
    tiny_model: Callable[[str], Path], tiny_config: RunConfig, tmp_path: Path
) -> None:
    model, tokenizer = (kind.from_pretrained(tiny_model("bert")) for kind in (AutoModel, AutoTokenizer))
    folder = saved(model.to(torch.bfloat16), tokenizer, tmp_path / "half")
    finished = run(tiny_config, tmp_path, model=str(folder), learning_rate=1e-7, weight_decay=0.0, max_steps=2)
    before, after = first_and_last(finished, "word_embeddings")
    assert before.dtype == np.float32
    assert (before != after).any()  # a step of 1e-7 is far below what bf16 weights could hold


def test_a_checkpoint_that_lacks_an_embedding_tensor_is_refused(
    altered: Any, tiny_config: RunConfig, tmp_path: Path
) -> None:
    model = altered(lambda weights: weights.pop("embeddings.position_embeddings.weight"))
    check_refused(
        r"lacks embedding tensors .*embeddings.position_embeddings.weight",
        run,
        tiny_config,
        tmp_path / "runs",
        model=model,
    )
    assert not (tmp_path / "runs").exists()
    file = Path(model, "model.safetensors")
    file.write_bytes(file.read_bytes()[:1000])
    check_refused("cannot read the weights", run, tiny_config, tmp_path / "runs", model=model)


def test_old_gamma_and_beta_names_load(altered: Any, tiny_config: RunConfig, tmp_path: Path) -> None:
    def rename(weights: dict[str, Any]) -> None:
        for new, old in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
            for name in [name for name in weights if new in name]:
                weights[name.replace(new, old)] = weights.pop(name)

    finished = run(tiny_config, tmp_path, model=altered(rename), max_steps=1)
    assert "LayerNorm.weight" in finished.trajectory.parameters


def test_manifest_names_what_is_needed_to_repeat(tiny_config: RunConfig, tmp_path: Path) -> None:
    finished = run(tiny_config, tmp_path, freeze="embeddings")
    manifest = json.loads((finished.path / "manifest.json").read_text())
    assert (manifest["model"]["head"], manifest["precision"]) == ("linear", "no")
    assert {"torch", "transformers", "accelerate"} <= manifest["versions"].keys()
    assert str(tmp_path) not in json.dumps({k: v for k, v in manifest.items() if k != "model"})
    log = finished.optimizer_log
    assert "word_embeddings" not in log.weight_decay  # frozen: nothing is applied to it
    assert (log.num_steps, log.weight_decay["head.bias"], log.weight_decay["head.weight"]) == (8, 0.0, 0.01)


def write_task(folder: Path, label: Callable[[int], object]) -> dict[str, object]:
    """RunConfig fields of a small task with a label of any kind and a test split that has none, and a new text."""
    folder.mkdir()
    for name, size in (("train", 48), ("validation", 16), ("blind", 16)):
        rows = [
            f"the nurse saw the {'cow' if (name, i) == ('blind', 5) else 'dog' if i % 3 else 'cat'}"
            + ("" if name == "blind" else f"\t{label(i)}")
            for i in range(size)
        ]
        (folder / f"{name}.tsv").write_text("\n".join(["text" if name == "blind" else "text\tlabel", *rows]) + "\n")
    return {
        "train_file": str(folder / "train.tsv"),
        "validation_file": str(folder / "validation.tsv"),
        "test_file": (f"blind={folder / 'blind.tsv'}",),
        "text_columns": (),
    }


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("freeze", ["none", "backbone"])
@pytest.mark.parametrize(
    ("label", "columns"),
    [
        (lambda i: f"{(i % 3) / 2:.2f}", ["pearson", "spearman"]),
        (lambda i: "abc"[i % 3], ["accuracy", "macro_f1", "matthews"]),
    ],
    ids=["regression", "three classes"],
)
def test_kinds_of_label_and_a_split_without_labels(
    label: Callable[[int], object], columns: list[str], freeze: str, tiny_config: RunConfig, tmp_path: Path
) -> None:
    task = write_task(tmp_path / "task", label) | {"cluster_column": "label"}
    finished = run(tiny_config, tmp_path, **task, freeze=freeze)
    scores = finished.scores.set_index("split")
    assert scores.loc["blind", ["loss", *columns]].isna().all(axis=None)
    assert np.isfinite(scores.loc["validation", "loss"]).all()
    blind = finished.predictions[finished.predictions["split"] == "blind"]
    assert (len(blind), blind["label"].count(), blind["prediction"].count()) == (16 * 3, 0, 16 * 3)
    held = finished.predictions[finished.predictions["split"] == "validation"]
    assert held["cluster"].tolist() == ([0, 1, 2] * 5 + [0]) * 3
    told = finished.manifest["task"]
    assert [told["splits"][name].get("num_clusters") for name in ("train", "validation", "blind")] == [None, 3, None]
    assert (told["score"], told["splits"]["blind"]["num_repeated_texts"]) == (columns[0], 13)
    in_train = [told["splits"][name].get("num_in_train") for name in ("train", "validation", "blind")]
    assert in_train == [None, 16, 15]
    assert {len(values) for values in blind["scores"]} == {1 if columns[0] == "pearson" else 3}
    assert write_report([finished], tmp_path / "report").path.exists()


@pytest.mark.parametrize("regime", ["none", "backbone"])
def test_sgd_is_recorded_and_replayed(regime: str, tiny_config: RunConfig, tmp_path: Path) -> None:
    """No momentum, decay to the bit, and every step of one word's row is lr times the gradient of recorded norm."""
    config = replace(tiny_config, optimizer="sgd", learning_rate=0.5, weight_decay=0.1, freeze=regime, snapshot_steps=1)
    finished = run(config, tmp_path)
    log = finished.optimizer_log
    assert (log.algorithm, log.is_fused, finished.manifest["optimizer"]) == ("torch.optim.SGD", False, "sgd")
    assert np.isnan([*log.betas, log.eps]).all()
    assert verify_run(finished.path) == []
    if regime == "backbone":
        assert set(log.weight_decay) == {"head.weight", "head.bias"}
        return
    assert unexplained_by_decay(finished.trajectory, log) == 0
    assert (explain(finished, "word_embeddings")["num_momentum_after_its_last_exposure"] == 0).all()
    table = finished.trajectory.exposure.tables["word_embeddings"]
    rows, norms = (part[table.offsets[0] : table.offsets[1]] for part in (table.rows, table.norms))
    before, after = (np.array(s.tensors["word_embeddings"])[rows] for s in finished.trajectory.snapshots[:2])
    moved = np.linalg.norm(after.astype(float) - replay_decay(before, log, "word_embeddings", 1), axis=1)
    np.testing.assert_allclose(moved, log.learning_rates[0] * log.clipping_factors[0] * norms, rtol=1e-3, atol=1e-7)
