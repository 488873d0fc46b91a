"""From runs that somebody made without our loop to the tables, the page and the figure of a paper."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file, save_file

import toolkit
from tests.refusals import refused
from tests.reporting.test_latex import compile_document
from tests.run_directories import write_run
from tests.trainer_outputs import PARTS, train
from tests.training.recorded_texts import TEXTS, encode, load, update
from toolkit.commands import DriftCommand, ReportCommand
from toolkit.comparison.verify import describe
from toolkit.questions.drift_report import show_drift
from toolkit.reporting.comparison_report import report_from
from toolkit.reporting.page import spoken

REGIMES = {"full fine-tuning": "none", "embeddings frozen": "embeddings", "feature extraction": "backbone"}
OWN = "bert.embeddings."


@pytest.fixture(scope="module")
def base(tiny_model):
    return tiny_model("bert")


@pytest.fixture(scope="module")
def made(base, tmp_path_factory):
    """Six output folders, and one that is called frozen and is not."""
    folder = tmp_path_factory.mktemp("made") / "old_runs"
    for regime in REGIMES.values():
        for seed in (0, 1):
            train(base, folder / f"{regime}_{seed}", regime, seed)
    train(base, folder / "frozen_2", "none", 2)
    return folder


@pytest.fixture
def folders(made, tmp_path, monkeypatch):
    """A copy of them below the current directory, a temporary one."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(made, tmp_path / "old_runs")


def by_trainer(base, run_dir, regime, condition, seed):
    snapshots = toolkit.EmbeddingSnapshotCallback(run_dir, condition=condition, task="mine")
    train(base, run_dir.parent.with_name("made") / run_dir.name, regime, seed, callbacks=[snapshots])


def by_sentence_transformers(base, run_dir, regime, condition, seed):
    """Its trainer logs what an evaluator of the user's own says."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.evaluation import SentenceEvaluator
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.models import Dense

    class Share(SentenceEvaluator):
        def __call__(self, model, *_, **__):
            return {"accuracy": float((model.encode(TEXTS) > 0).mean())}

    torch.manual_seed(seed)
    model = SentenceTransformer(str(base), device="cpu")
    model.append(Dense(16, 8))
    for name, parameter in model[0].auto_model.named_parameters():
        is_frozen = regime == "backbone" or (regime == "embeddings" and name.startswith("embeddings."))
        parameter.requires_grad_(not is_frozen)
    SentenceTransformerTrainer(
        model=model,
        args=Arguments(str(run_dir.parent.with_name("made")), num_train_epochs=2, eval_strategy="epoch", seed=seed,
                       learning_rate=1e-2, use_cpu=True, report_to=[], disable_tqdm=True),
        train_dataset=Dataset.from_dict({"anchor": TEXTS, "positive": TEXTS[::-1]}),
        loss=MultipleNegativesRankingLoss(model),
        evaluator=Share(),
        callbacks=[toolkit.EmbeddingSnapshotCallback(run_dir, condition=condition, task="mine")],
    ).train()  # fmt: skip


def by_loop(base, run_dir, regime, condition, seed):
    model, tokenizer = load(base)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not PARTS[regime] or not name.startswith(PARTS[regime]))
    optimizer, labels = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.tensor([0, 1, 0, 1])
    given = {"tokenizer": tokenizer, "condition": condition, "seed": seed, "task": "mine"}
    with toolkit.record(model.train(), run_dir, **given) as recording:
        recording.snapshot(epoch=0)
        for epoch in (1, 2):
            logits = model(**encode(tokenizer, TEXTS)).logits
            update(optimizer, torch.nn.functional.cross_entropy(logits, labels))
            recording.snapshot(epoch=epoch)
            recording.score("accuracy", validation=float((logits.argmax(1) == labels).float().mean()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "way", [by_trainer, *(pytest.param(way, marks=pytest.mark.slow) for way in (by_sentence_transformers, by_loop))]
)
def test_recordings_become_a_paper(way, base, tmp_path, monkeypatch, capsys):
    """Three regimes, two seeds each."""
    monkeypatch.chdir(tmp_path)
    for condition, regime in REGIMES.items():
        for seed in (0, 1):
            way(base, tmp_path / "runs" / f"{regime}_{seed}", regime, condition, seed)
    runs = toolkit.open_runs("runs/*")
    assert len(runs) == 6
    table = toolkit.drift_table(runs)
    latex = toolkit.export_table(table)
    assert all(label in latex for label in REGIMES)
    is_frozen = table.set_index(["condition", "parameter"])["is_frozen"]
    assert [is_frozen[label, "word_embeddings"] for label in REGIMES] == [False, True, True]
    capsys.readouterr()
    assert ReportCommand(tuple(run.path for run in runs), Path("out")).run() == 0
    answered = capsys.readouterr().out
    assert "What is to know of these runs?" in answered
    names = {path.name for path in Path("out").rglob("*")}
    assert names >= {"index.html", "drift_compact.tex", "comparison.tex", "first_screen.svg", "cards.json"}
    (question,) = [line for line in answered.split("\n") if line.startswith("Does freezing")]
    assert question.startswith(
        "Does freezing the embeddings change the score? not judged: two seeds, three are needed."
    )
    if shutil.which("pdflatex"):
        assert compile_document(Path("out/tables"), "tables.tex").returncode == 0
    if way is by_trainer:  # whose checkpoints, without the callback, tell the same
        of_folders = toolkit.drift_table(toolkit.open_runs("made/*", base=base))
        np.testing.assert_allclose(of_folders["drift_percent"], table["drift_percent"], rtol=1e-6)


@pytest.mark.parametrize("with_base", [True, False], ids=["base", "first kept"])
def test_drift_of_one_output_folder_says_since_when(folders, base, with_base, capsys):
    (place,) = folders.glob("none_0")
    DriftCommand((str(place),), base=str(base) if with_base else None).run()
    assert ("before training: --base" in " ".join(capsys.readouterr().out.split())) != with_base


@pytest.mark.parametrize(
    ("places", "has_base"),
    [(["none_0", "none_1"], True), (["none_*"], False), (["none_0/checkpoint-4", "none_1/checkpoint-4"], True)],
)
def test_checkpoints_of_several_trainings_are_no_trajectory(folders, base, places, has_base):
    with refused("are trainings of their own, and no one trajectory"):
        show_drift([str(folders / place) for place in places], base=str(base) if has_base else None)


def test_what_training_did_not_start_from_is_no_base(folders, base, tmp_path):
    other = shutil.copytree(base, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    generator = np.random.default_rng(0)
    new = {name: generator.normal(0, 0.02, tensor.shape).astype(np.float32) for name, tensor in tensors.items()}
    save_file(new, other / "model.safetensors")
    place = folders / "embeddings_0"
    with refused("is not what training to"):
        show_drift([str(place)], base=str(other))
    with refused("is not what training to"):
        toolkit.open_runs([place], base=other)
    with refused("is not what training to"):
        toolkit.write_report([place], "out", base=other)
    run = write_run(tmp_path, "none", 0).path
    with refused("a run directory holds its own"):
        show_drift([str(run)], base=str(base))
    for training in (run, folders / "none_0"):
        for take in (
            lambda own: show_drift([str(place)], base=str(own)),
            lambda own: toolkit.open_runs([place], base=own),
            lambda own: toolkit.write_report([place], "out", base=own),
        ):
            with refused("is a training of its own"):
                take(training)


@pytest.mark.parametrize("with_base", [True, False], ids=["base", "first kept"])
def test_output_folders_become_a_paper_without_any_callback(folders, base, with_base):
    given = base if with_base else None
    before = {path: path.stat().st_mtime_ns for path in folders.rglob("*")}
    runs = toolkit.open_runs("old_runs/*", base=given)
    table = toolkit.drift_table(runs).set_index(["condition", "parameter"])
    assert list(dict.fromkeys(table.index.get_level_values(0))) == list(REGIMES)
    own = [run for run in runs if run.path.name.startswith(("none", "frozen"))]
    drifts = [drift_by_hand(run.path, base if with_base else None) for run in own]
    line = table.loc[("full fine-tuning", "word_embeddings")]
    np.testing.assert_allclose(line["drift_percent"], np.mean(drifts), rtol=1e-6)
    assert line["num_seeds"] == 3
    assert table.loc[("embeddings frozen", "word_embeddings"), "is_frozen"]
    report = toolkit.write_report(runs, "out", base=given)
    told = [line for answer in report.answers for line in spoken(answer).split("\n")]
    assert any("since checkpoint-2, the first one kept" in line for line in told) != with_base
    assert any(line.endswith("taken as replicates.") for line in told)
    assert any(line.startswith("Which words training used was not recorded of frozen_2") for line in told)
    text = toolkit.methods_of("out")
    assert ("since checkpoint-2" in text, "kept before training" in text) == (not with_base, with_base)
    highest = max(run.recorded["arguments"]["highest_logged_rate"] for run in own)
    assert f"learning rate {highest:g} or more (as logged)" in text
    table = pd.read_csv("out/tables/runs.csv", dtype=str)
    assert set(table["sha256 of config.json"]) == set(table["sha256 of manifest.json"]) == {"not kept"}
    assert (Path("out") / "figures" / "first_screen.svg").is_file()
    assert {path: path.stat().st_mtime_ns for path in folders.rglob("*")} == before
    assert report_from("out", "again").path.read_text() == report.path.read_text()
    lines, has_changed = describe(Path("again"), folders)
    assert not has_changed
    # A base of an absolute path is known by its name alone, so that nobody can measure again from it.
    assert with_base or lines[-1] == "7 of 7 runs were at hand and measured again"


def drift_by_hand(folder, base):
    """Relative drift of the word table in %, by numpy on the files that the Trainer wrote."""
    places = [folder / "checkpoint-2" if base is None else base, folder / "checkpoint-4"]
    first, last = ({k.removeprefix("bert."): v for k, v in load_file(p / "model.safetensors").items()} for p in places)
    one, other = (each["embeddings.word_embeddings.weight"].astype(float) for each in (first, last))
    return 100 * np.linalg.norm(other - one) / np.linalg.norm(one)
