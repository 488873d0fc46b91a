"""Masked-LM training: what is masked, the steps and scores of transformers' own model, and what a tied table means."""

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import toolkit
from tests.conftest import build_tokenizer
from tests.refusals import check_refused
from tests.run_directories import edit
from toolkit.analysis.adam import unexplained_by_decay
from toolkit.config import RunConfig
from toolkit.data.batches import EncodedSplit, EncodedTask, Masking, epoch_batches, make_batch
from toolkit.data.tasks import load_task
from toolkit.models.classifier import load_classifier
from toolkit.models.tuned import load_tuned
from toolkit.questions.drift_report import show_drift
from toolkit.reporting.topics.drift import TIED
from toolkit.reporting.topics.words import packed_words
from toolkit.snapshots.store import Run
from toolkit.studies.plan import resolve, run_path
from toolkit.training.encoding import encode_task, mask_task, unknown_share
from toolkit.training.weights import is_halved

MASK, SPECIAL, ROWS = 4, (0, 1, 2, 3, 4), np.arange(5, 60)
WORDS = "word_embeddings"


def split_of(texts: list[list[int]]) -> EncodedSplit:
    sizes = np.cumsum([0, *map(len, texts)])
    tokens = np.array([row for text in texts for row in text], np.int32)
    return EncodedSplit(np.arange(len(texts)), None, tokens, np.zeros_like(tokens), sizes, 0, 0)


@given(
    texts=st.lists(st.lists(st.sampled_from(ROWS.tolist()), min_size=1, max_size=30), min_size=1, max_size=8),
    probability=st.floats(0.01, 0.99),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_of_each_text_some_ordinary_tokens_are_masked_and_nothing_else_changes(
    texts: list[list[int]], probability: float, seed: int
) -> None:
    split = split_of([[1, *text, 2] for text in texts])
    masked = Masking(MASK, ROWS, probability).mask(split, [seed])
    is_masked = np.zeros(len(split.tokens), bool)
    for i, text in enumerate(texts):
        places = masked.words.places[slice(*masked.words.offsets[i : i + 2])]
        assert max(math.floor(probability * len(text)), 1) <= len(places) <= max(math.ceil(probability * len(text)), 1)
        assert (np.diff(places) > 0).all()
        is_masked[split.offsets[i] + places] = True
    assert not np.isin(split.tokens[is_masked], SPECIAL).any()
    assert np.array_equal(masked.labels, split.tokens[is_masked])
    assert np.array_equal(masked.tokens[~is_masked], split.tokens[~is_masked])
    assert np.isin(masked.tokens[is_masked], [MASK, *ROWS]).all()


def test_shares_of_what_is_masked_and_of_what_stands_there() -> None:
    """Within five standard deviations of a binomial share; 7 tokens a text, of which the share is no whole number."""
    rng = np.random.default_rng(0)
    split = split_of([[1, *rng.choice(ROWS, 7), 2] for _ in range(20_000)])
    masked = Masking(MASK, ROWS, 0.3).mask(split, [1])
    num = len(masked.labels)
    assert num / (7 * 20_000) == pytest.approx(0.3, abs=5 * math.sqrt(0.3 * 0.7 / (7 * 20_000)))
    stands = masked.tokens[np.repeat(split.offsets[:-1], np.diff(masked.words.offsets)) + masked.words.places]
    kept = 0.1 + 0.1 / len(ROWS)  # a token drawn at random may be the same one
    for share, wanted in (((stands == MASK).mean(), 0.8), ((stands == masked.labels).mean(), kept)):
        assert share == pytest.approx(wanted, abs=5 * math.sqrt(wanted * (1 - wanted) / num))
    assert set(np.unique(stands)) == {MASK, *ROWS}
    spread = np.bincount(masked.words.places)[1:]  # no place of a text is preferred
    assert spread == pytest.approx(num / 7, abs=5 * math.sqrt(num / 7))


@pytest.fixture
def config(masked_lm: Callable[[str], Path], tiny_files: Callable[[str], dict[str, Any]], tmp_path: Path) -> RunConfig:
    """A masked-LM run of half a second: tiny BERT with its own tied head, 64 texts, two epochs of four steps."""
    return RunConfig(
        model=str(masked_lm("bert")),
        objective="mlm",
        epochs=2,
        batch_size=16,
        precision="no",
        learning_rate=1e-2,
        max_length=40,
        dropout=0.0,
        output_dir=str(tmp_path / "runs"),
        **tiny_files("polarity"),
    )


def encoded(config: RunConfig) -> tuple[Any, EncodedTask]:
    loaded = load_classifier(config.model, pooling="mean", num_outputs=1, is_masked_lm=True, dropout=config.dropout)
    return loaded, mask_task(encode_task(load_task(config), loaded, config.max_length), loaded, config)


def test_masks_are_a_function_of_seed_and_epoch_and_those_of_scored_splits_of_nothing(config: RunConfig) -> None:
    (loaded, data), (_, other) = encoded(config), encoded(replace(config, seed=1))
    for name in ("validation", "ood"):
        split, same = data.splits[name], other.splits[name]
        assert (split.tokens.tolist(), split.labels.tolist()) == (same.tokens.tolist(), same.labels.tolist())
        shown = make_batch(split, np.arange(24), data)
        assert (shown["input_ids"][shown["is_word"]] == loaded.tokenizer.mask_token_id).all()
        assert split.num_rows == len(shown["labels"]) >= 24

    def train(seed: int, epoch: int) -> bytes:
        return data.of_epoch(seed, epoch).splits["train"].tokens.tobytes()

    assert train(0, 0) == train(0, 0)
    assert len({train(seed, epoch) for seed in (0, 1) for epoch in (0, 1)}) == 4


def by_hand(config: RunConfig, data: EncodedTask) -> tuple[Any, list[float]]:
    """The same training by transformers' own model: AutoModelForMaskedLM, its own loss, AdamW and clipping.

    Batches and masks are the run's; all else shares no code with it.
    """
    from transformers import AutoConfig, AutoModelForMaskedLM

    settings = AutoConfig.from_pretrained(config.model)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "mlp_dropout"):
        if hasattr(settings, name):
            setattr(settings, name, 0.0)
    model = AutoModelForMaskedLM.from_pretrained(config.model, config=settings).train()
    plain, decayed = ([p for p in model.parameters() if (p.ndim > 1) == is_decayed] for is_decayed in (False, True))
    optimizer = torch.optim.AdamW([{"params": plain, "weight_decay": 0.0}, {"params": decayed, "weight_decay": 0.01}])
    losses, step, num_steps = [], 0, 8
    for epoch in range(2):
        train = data.of_epoch(config.seed, epoch).splits["train"]
        for indices in epoch_batches(data.splits["train"].lengths, config, epoch):
            texts = [train.tokens[slice(*train.offsets[i : i + 2])].tolist() for i in indices]
            longest = max(map(len, texts))
            ids = torch.tensor([text + [data.pad_id] * (longest - len(text)) for text in texts])
            mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
            labels = torch.full_like(ids, -100)
            for row, i in enumerate(indices):
                own = slice(*train.words.offsets[i : i + 2])
                labels[row, train.words.places[own]] = torch.from_numpy(train.labels[own])
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            rate = config.learning_rate * (1.0 if step == 0 else (num_steps - step) / (num_steps - 1))
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
            step += 1
    return model, losses


def model_folder(run: Run) -> str:
    return str(run.path / "model")


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "albert", "deberta-v2", "modernbert"])
def test_it_ends_where_transformers_own_model_ends(
    family: str, config: RunConfig, masked_lm: Callable[[str], Path]
) -> None:
    """Parameters to 1e-5, where the learning rate is 5e-4; losses of the epochs and the scored split's to 1e-5."""
    from transformers import AutoModelForMaskedLM

    config = replace(config, model=str(masked_lm(family)), save_model=True, learning_rate=5e-4)
    run, (_, data) = toolkit.finetune(config), encoded(config)
    expected, losses = by_hand(config, data)
    saved = AutoModelForMaskedLM.from_pretrained(model_folder(run))
    own = dict(saved.named_parameters())
    assert own.keys() == dict(expected.named_parameters()).keys()
    for name, parameter in expected.named_parameters():
        assert torch.allclose(own[name], parameter, rtol=0, atol=1e-5), name
    last = run.scores[run.scores["split"] == "validation"].set_index("epoch")
    assert last["train_loss"].tolist()[1:] == pytest.approx([np.mean(losses[:4]), np.mean(losses[4:])], abs=1e-5)
    split = data.splits["validation"]
    batch = make_batch(split, np.arange(len(split)), data)
    with torch.no_grad():
        logits = saved.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        right = logits[batch["is_word"]]
        loss = torch.nn.functional.cross_entropy(right, batch["labels"])
    assert last["loss"][2] == pytest.approx(float(loss), abs=1e-5)
    assert last["perplexity"][2] == pytest.approx(math.exp(last["loss"][2]))
    assert last["accuracy"][2] == float((right.argmax(dim=1) == batch["labels"]).float().mean())
    assert load_tuned(run).model(**batch).detach().numpy() == pytest.approx(right.numpy(), abs=1e-5)


def test_half_precision_is_left_to_autocast(config: RunConfig) -> None:
    assert is_halved(load_classifier(config.model, pooling="mean", num_outputs=2).model)
    assert not is_halved(encoded(config)[0].model)


def moved(run: Run) -> np.ndarray:
    first, last = run.trajectory.snapshots[0].tensors, run.trajectory.snapshots[-1].tensors
    changed: np.ndarray = (first[WORDS] != last[WORDS]).any(axis=1)
    return changed


def test_of_a_tied_table_every_row_moves_and_the_input_alone_is_known(config: RunConfig) -> None:
    run, (_, data) = toolkit.finetune(config), encoded(config)
    assert moved(run).all()
    exposure = run.trajectory.exposure
    assert (exposure.input_only, WORDS in exposure.tables) == ((WORDS,), False)
    seen = [data.of_epoch(0, epoch).splits["train"].tokens for epoch in (0, 1)]
    used = exposure.input_tokens(WORDS, len(moved(run)))
    assert np.array_equal(used, np.bincount(np.concatenate(seen), minlength=len(moved(run))))
    assert used[data.masking.mask_row] > 0  # type: ignore[union-attr]
    rows = toolkit.measure_rows(run, WORDS, 2)
    assert set(rows["stratum"].astype(str)) >= {"used at the input", "not used at the input"}
    assert rows["num_steps"].isna().all()
    assert any("output layer" in problem for problem in run.manifest["problems"])
    assert run.manifest["model"]["tied"] == ["word_embeddings"]
    refusal = "word_embeddings is the output layer too, by which each of its rows may"
    check_refused(refusal, toolkit.sign_noise, run, WORDS)
    gauge = toolkit.measure_gauge(run)
    assert set(gauge["frequencies"]) == {"run's tokens"}
    assert gauge["note"].str.contains("an offset of a word or a pair of rows").all()
    assert len(toolkit.sign_noise(run, "position_embeddings", num_replicates=5, num_coordinates=0))
    assert set(toolkit.decompose(run, WORDS)["cause"]) == {"exposure unknown"}
    assert not toolkit.explain(run, WORDS).filter(like="unexplained").fillna(0).to_numpy().any()


def test_words_of_a_tied_table_are_drawn_by_use_at_the_input(config: RunConfig) -> None:
    (packed,) = packed_words(toolkit.measure_rows(toolkit.finetune(config), WORDS, 2), [0.0])
    tokens, x = np.array(packed["num_tokens"]), np.array(packed["x"])
    assert packed["is_input"]
    assert 0.3 < x[tokens == 0].min() < x[tokens == 0].max() < 0.5  # the strip of words that were never used
    assert 0.6 < x[tokens > 0].min() < x[tokens > 0].max() < 1  # and of those that were, nobody knows how often


def test_of_an_untied_table_rows_that_no_text_used_are_only_decayed(config: RunConfig, tmp_path: Path) -> None:
    folder = shutil.copytree(config.model, tmp_path / "untied")
    edit(folder / "config.json", tie_word_embeddings=False)
    config = replace(config, model=str(folder), init="random")
    run = toolkit.finetune(config)
    assert run.trajectory.exposure.input_only == ()
    assert unexplained_by_decay(run.trajectory, run.optimizer_log) == 0
    still = toolkit.finetune(replace(config, weight_decay=0.0))
    used = still.trajectory.exposure.tables[WORDS].step_counts(len(moved(still))) > 0
    assert np.array_equal(moved(still), used)
    assert not used.all()
    assert "tied" not in run.manifest["model"]["head"]


@pytest.mark.parametrize("regime", ["embeddings", "backbone"])
def test_frozen_embeddings_freeze_the_tied_decoder(regime: str, config: RunConfig) -> None:
    from transformers import AutoModelForMaskedLM

    config = replace(config, freeze=regime, save_model=True, dropout=0.3)
    run = toolkit.finetune(config)
    before, after = (AutoModelForMaskedLM.from_pretrained(x) for x in (config.model, model_folder(run)))
    ended = dict(after.named_parameters())
    changed = {name for name, parameter in before.named_parameters() if not torch.equal(parameter, ended[name])}
    assert torch.equal(before.get_output_embeddings().weight, after.get_output_embeddings().weight)
    own = {name for name, _ in before.named_parameters() if not name.startswith("bert.")}
    assert changed == own if regime == "backbone" else changed > own
    assert run.config.head_training == "epochs"
    losses = run.scores.loc[run.scores["split"] == "validation", "loss"].tolist()
    assert losses[-1] < losses[0]


def test_a_frozen_backbone_drops_nothing(config: RunConfig) -> None:
    model = encoded(replace(config, dropout=0.5))[0].model
    assert model.train().backbone.training
    model.backbone.requires_grad_(False)
    model.train()
    assert (model.backbone.training, model.head.training) == (False, True)


def write(folder: Path, name: str, texts: list[str]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(texts) + "\n")
    return str(folder / name)


def texts_of(num: int, rng: np.random.Generator, words: list[str], is_learnable: bool) -> list[str]:
    """Six words each: one word again and again, of which each tells the others, or words at random."""
    drawn = rng.integers(len(words), size=(num, 6))
    return [" ".join(words[i] for i in (row[:1].repeat(6) if is_learnable else row)) for row in drawn]


@pytest.mark.parametrize("is_learnable", [True, False])
def test_it_learns_what_can_be_learned_and_nothing_of_random_tokens(
    is_learnable: bool, config: RunConfig, tmp_path: Path
) -> None:
    """Eight words, equally frequent: the unigram loss is ln 8. Positive control: far below it; negative: at it, since
    no model's expected loss on a token that nothing tells is below its entropy (.05: what chance may do here)."""
    words = ["hawk", "rabbit", "nurse", "painter", "train", "boat", "castle", "garden"]
    rng, folder = np.random.default_rng(0), tmp_path / "texts"
    assert set(build_tokenizer().get_vocab()) >= set(words)
    files = {
        f"{name}_file": write(folder, f"{name}.txt", texts_of(num, rng, words, is_learnable))
        for name, num in (("train", 200), ("validation", 300))
    }
    config = replace(
        config, **files, test_file=(), text_columns=(), epochs=4, batch_size=8, mlm_probability=0.3, weight_decay=0.0
    )
    scores = toolkit.finetune(config).scores.set_index("epoch")
    loss, unigram = scores["loss"][4], math.log(len(words))
    assert scores["loss"][0] > unigram
    assert loss < 0.2 * unigram if is_learnable else unigram - 0.05 < loss < unigram + 0.3


def test_task_mlm_takes_files_and_the_studys_plan_knows_the_run(config: RunConfig, tmp_path: Path) -> None:
    """--task mlm is --objective mlm on texts of the user's, labelled or not; the run goes by the name of the data."""
    labelled = replace(config, test_file=())
    asked = RunConfig(**{**vars(labelled), "task": "mlm", "objective": "labels"})
    run = toolkit.finetune(asked)
    assert run.path == run_path(resolve(asked)) == run_path(resolve(labelled))
    assert "_polarity-mlm_" in run.path.name
    assert (run.manifest["task"]["name"], run.manifest["task"]["kind"]) == ("polarity (masked LM)", "masked")
    assert (asked.objective, run.config.objective) == ("mlm", "mlm")
    assert toolkit.finetune(asked, reuse_finished=True).path == run.path
    assert run.predictions["label"].notna().all()
    assert run.manifest["floors"] is None
    toolkit.verify_run(run.path)


def test_a_builtin_task_lends_its_texts_pairs_and_words_too(masked_lm: Callable[[str], Path]) -> None:
    for name in ("pair", "roles"):
        task = load_task(RunConfig(task=name, objective="mlm", max_train_examples=50))
        assert (task.name, task.kind, len(task.splits["train"])) == (f"{name} (masked LM)", "masked", 50)
        assert {split.labels is None and split.words is None for split in task.splits.values()} == {True}


@pytest.mark.parametrize("column", ["label", "text"])
def test_labels_of_a_dataset_are_not_read(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of classes, which no other objective takes, in the column that --label-column stands for."""
    import datasets

    texts = ["the hawk was near", "the rabbit was near", "the nurse was near"]
    rows = {"text": texts, "label": [[0, 1], [1], []]} if column == "text" else {"label": texts}
    made = datasets.DatasetDict({k: datasets.Dataset.from_dict(rows) for k in ("train", "validation")})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: made)
    task = load_task(RunConfig(task="mlm", dataset="owner/name", text_columns=(column,)))
    assert task.splits["train"].texts == tuple((text,) for text in texts)
    assert task.splits["train"].labels is None


def test_the_share_of_unknown_tokens_is_that_of_the_texts(config: RunConfig, tmp_path: Path) -> None:
    file = write(tmp_path / "files", "notes.txt", ["qqq hawk near", "the nurse was near zzz"])
    loaded, data = encoded(
        replace(config, train_file=file, validation_file=file, test_file=(), text_columns=(), mlm_probability=0.9)
    )
    assert data.splits["validation"].num_rows > 2
    assert {unknown_share(split, loaded.tokenizer) for split in data.splits.values()} == {2 / 8}


def test_what_cannot_be_masked_or_trained_is_refused_in_one_line(
    config: RunConfig, tiny_model: Callable[[str], Path], masked_lm: Callable[[str], Path], tmp_path: Path
) -> None:
    unknown = write(tmp_path / "files", "notes.txt", ["the hawk was near the lake .", "qqq zzz"])
    own = {"train_file": unknown, "validation_file": unknown, "test_file": (), "text_columns": ()}
    maskless = tmp_path / "maskless"
    encoded(config)[0].tokenizer.save_pretrained(maskless)
    for file in ("config.json", "model.safetensors"):
        (maskless / file).write_bytes((masked_lm("bert") / file).read_bytes())
    edit(maskless / "tokenizer_config.json", mask_token=None)
    lines = {
        r"^minilm has no masked-LM head: it lacks cls\.predictions\.bias; .* --init random": {"model": "minilm"},
        r"^.*gpt2.* has no masked-LM head: gpt2 has none; ": {"model": str(tiny_model("gpt2"))},
        r"gpt2.* has no masked-LM head: gpt2 has none": {"model": str(tiny_model("gpt2")), "init": "random"},
        r"^the tokenizer of .*maskless has no mask token": {"model": str(maskless)},
        r"^split 'train', row 2 has no token to mask, only special or unknown ones: drop the row": own,
        r"^--mlm-probability must be above 0 and below 1; got 1\.0": {"mlm_probability": 1.0},
        r"^--head mlp is not for --objective mlm": {"head": "mlp"},
        r"^--shuffle-labels is not for --objective mlm": {"shuffle_labels": True},
        r"^--lora query value is not for": {"lora": ("query", "value")},
        r"^--head-training early-stopping is not for": {"head_training": "early-stopping"},
        r"^--head-learning-rate 0\.1 is not for": {"head_learning_rate": 0.1},
        r"^--task mlm learns from texts of your own": {
            "task": "mlm", "train_file": None, "validation_file": None, "test_file": (), "text_columns": (),
        },
    }  # fmt: skip
    for message, changes in lines.items():
        check_refused(message, lambda changes=changes: toolkit.finetune(replace(config, **changes)))
    check_refused(r"^--mlm-probability 0\.3 goes with --objective mlm", RunConfig, mlm_probability=0.3)
    files = {**own, "validation_file": unknown, "task_name": "mlm", "objective": "labels"}
    check_refused("mlm is what --task calls masked-LM training", load_task, replace(config, **files))
    assert not Path(config.output_dir).exists()


@pytest.mark.slow  # whole reports
@pytest.mark.usefixtures("undrawn")
def test_reports_say_nothing_that_is_not_so(config: RunConfig, tmp_path: Path) -> None:
    runs = [
        toolkit.finetune(replace(config, freeze=freeze, seed=seed, save_model=True))
        for freeze in ("none", "backbone")
        for seed in (0, 1)
    ]
    toolkit.write_report(runs, tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text()
    wrong = (
        "feature extraction",
        "a new head",
        "--shuffle-labels",
        "no run had shuffled labels",
        "A row that no batch",
        "exposure was not recorded",
        "was not recorded: right and left",
        "| mean | last",
    )
    assert [words for words in wrong if words in text] == []
    why, rows = (text.split(title)[1].split("|")[0] for title in ("## Why rows moved", "### Word rows, seen"))
    assert why.count(TIED) == rows.count(TIED) == 1
    told = (
        "head alone",
        "To the right stand words that the input used",
        "any (output layer)",
        "| not applicable | last | joint | masked LM",
        "only the masked-LM head",
    )
    assert [words for words in told if words not in text] == []
    show_drift([runs[0].path], tmp_path / "drift")
    text = (tmp_path / "drift" / "report.md").read_text()
    assert ("shuffle" in text, text.count(TIED), "by the count of those steps" in text) == (False, 1, False)
    (line,) = [line for line in text.splitlines() if line.startswith("| word_embeddings | all rows |")]
    num_rows, *counts = (int(cell) for cell in line.split("|")[3:9])
    assert sum(counts) == num_rows
