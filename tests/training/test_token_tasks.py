"""Token tasks: each word answers by its first token, in every regime, and its entities are scored as CoNLL's are."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import toolkit
from tests.by_hand import begin, logits
from tests.refusals import check_refusals, check_refused
from tests.training.test_features import train_by_hand
from toolkit.config import RunConfig
from toolkit.data.batches import encode_split, make_batch
from toolkit.data.builtin import BUILTIN_TOKEN_TASKS
from toolkit.data.tasks import load_task
from toolkit.models.classifier import load_classifier
from toolkit.models.heads import answer
from toolkit.models.tuned import load_tuned
from toolkit.training import features as features_module
from toolkit.training.evaluation import compute_scores
from toolkit.training.features import standardised
from toolkit.training.optimizer import learning_rate_factors

TAGS = ("O", "B-A", "I-A", "B-B", "I-B")


@pytest.fixture(scope="module")
def config(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A token run of a second: tiny BERT, 48 sentences of `roles`."""
    folder = tmp_path_factory.mktemp("roles")
    names = BUILTIN_TOKEN_TASKS["roles"].label_names
    for name, split in BUILTIN_TOKEN_TASKS["roles"].build().items():
        rows = list(zip(split.words, split.labels, strict=True))[:48]
        sentences = ("\n".join(f"{w} {names[t]}" for w, t in zip(*row, strict=True)) for row in rows)
        (folder / f"{name}.conll").write_text("\n\n".join(sentences) + "\n")
    return RunConfig(
        model=str(tiny_model("bert")),
        train_file=str(folder / "train.conll"),
        validation_file=str(folder / "validation.conll"),
        epochs=2,
        batch_size=16,
        precision="no",
        learning_rate=1e-3,
        max_length=24,
        dropout=0.0,
    )


def entities(tags: list[str]) -> set[tuple[str, int, int]]:
    """Type, begin and end of each entity, by CoNLL's rule: B- or another type than before begins one."""
    found, begin, kind = set(), 0, ""
    for i, tag in enumerate([*tags, "O"]):
        own = tag[2:]
        if kind and (tag == "O" or tag[0] == "B" or own != kind):
            found.add((kind, begin, i))
            kind = ""
        if own and not kind:
            begin, kind = i, own
    return found


@given(st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=7), min_size=1))
@settings(deadline=None)
def test_entities_are_counted_as_conll_counts_them(sentences: list[list[tuple[int, int]]]) -> None:
    pairs = [pair for sentence in sentences for pair in sentence]
    labels, predictions = (np.array(side) for side in zip(*pairs, strict=True))
    offsets = np.cumsum([0, *map(len, sentences)])
    scores = compute_scores(
        "tokens", labels, np.eye(5, dtype=np.float32)[predictions], offsets=offsets, label_names=TAGS
    )
    true, said = (
        {(i, *e) for i, sentence in enumerate(sentences) for e in entities([TAGS[pair[k]] for pair in sentence])}
        for k in (0, 1)
    )
    both = len(true & said)
    expected = {
        "precision": both / len(said) if said else 0,
        "recall": both / len(true) if true else 0,
        "f1": 2 * both / (len(true) + len(said)) if true or said else 0,
        "accuracy": np.mean(labels == predictions),
    }
    assert {name: scores[name] for name in expected} == pytest.approx(expected)


def test_tags_that_mark_no_entity_have_no_f1() -> None:
    outputs = np.eye(2, dtype=np.float32)
    found = compute_scores("tokens", np.array([0, 1]), outputs, offsets=np.array([0, 2]), label_names=("NN", "VB"))
    assert (found["accuracy"], np.isnan(found["f1"])) == (1.0, True)


def with_words(split: Any, words: tuple[tuple[str, ...], ...], tags: Any) -> Any:
    """A split of other words, whose texts they are."""
    labels = np.empty(len(words), dtype=object)
    labels[:] = list(tags)
    return replace(split, texts=tuple((" ".join(row),) for row in words), words=words, labels=labels)


def test_words_that_get_no_token_are_counted_aloud_and_an_example_of_nothing_else_is_refused() -> None:
    loaded = load_classifier("minilm", pooling="mean", num_outputs=5, is_token_task=True)
    split = load_task(RunConfig(task="roles")).splits["ood"].take(np.arange(4))
    num_words = sum(map(len, split.words))
    with pytest.warns(UserWarning, match=f"{num_words - 8} of {num_words} words of a split have no token within"):
        encoded = encode_split(split, loaded.tokenizer, 4, 2)
    assert encoded.num_rows == 8
    words = (*split.words[:2], ("\u200b",), split.words[3])
    broken = with_words(split, words, [np.zeros(len(row), np.int64) for row in words])
    check_refused(
        r"^no word of example 2 .* has a token and a tag: remove it", encode_split, broken, loaded.tokenizer, 32, 2
    )
    check_refused("needs a fast tokenizer", encode_split, split, SimpleNamespace(is_fast=False), 32, 2)


def test_a_word_without_a_tag_is_read_but_not_answered_for_and_one_of_no_token_is_named() -> None:
    loaded = load_classifier("minilm", pooling="mean", num_outputs=5, is_token_task=True)
    split = load_task(RunConfig(task="roles")).splits["ood"].take(np.arange(4))
    whole = encode_split(split, loaded.tokenizer, 64, 2)
    untagged = replace(split, labels=split.labels.copy())
    untagged.labels[1] = np.where(np.arange(len(split.labels[1])) == 2, -100, split.labels[1])
    found = encode_split(untagged, loaded.tokenizer, 64, 2)
    assert np.array_equal(found.tokens, whole.tokens)
    out = whole.words.offsets[1] + 2
    assert np.array_equal(found.labels, np.delete(whole.labels, out))
    assert np.array_equal(found.words.places, np.delete(whole.words.places, out))
    words = (("\ufe0f", *split.words[0][1:]), *split.words[1:])
    with pytest.warns(UserWarning, match=r"^1 of \d+ words of a split become no token of this tokenizer \(\ufe0f\)"):
        encode_split(with_words(split, words, split.labels), loaded.tokenizer, 64, 2)


@pytest.mark.parametrize("max_length", [64, 8])
def test_a_word_answers_by_its_first_token(max_length: int) -> None:
    # Against the tokenizer's own count of pre-split words, which not every family offers.
    loaded = load_classifier("minilm", pooling="mean", num_outputs=5, is_token_task=True)
    split = load_task(RunConfig(task="roles")).splits["ood"].take(np.arange(60))
    words = tuple(("Unbelievablest", "(a-b)", *row, "naïve", "Übermäßig") for row in split.words or ())
    split = with_words(split, words, [np.arange(len(row)) for row in words])
    encoded = encode_split(split, loaded.tokenizer, max_length, 2)
    expected = loaded.tokenizer(
        [list(row) for row in words], is_split_into_words=True, truncation=True, max_length=max_length
    )
    for i in range(60):
        own, part = expected.word_ids(i), slice(*encoded.words.offsets[i : i + 2])
        first = {word: place for place, word in reversed(list(enumerate(own))) if word is not None}
        assert (
            dict(zip(encoded.words.numbers[part].tolist(), encoded.words.places[part].tolist(), strict=True)) == first
        )
        assert encoded.labels[part].tolist() == encoded.words.numbers[part].tolist()
        assert encoded.tokens[slice(*encoded.offsets[i : i + 2])].tolist() == expected["input_ids"][i]


@pytest.mark.parametrize("features", ["last", "all-concat", "layers.1", "mix"])
def test_what_the_head_reads_is_the_state_of_that_token(config: RunConfig, features: str) -> None:
    loaded, data = begin(replace(config, features=features))  # type: ignore[arg-type]
    split = data.splits["train"]
    batch = make_batch(split, np.array([3, 0, 7]), data)
    loaded.model.eval()
    with torch.no_grad():
        found = loaded.model.features(batch)
        inputs = {name: tensor for name, tensor in batch.items() if name != "is_word"}
        states = loaded.model.backbone(**inputs, output_hidden_states=True).hidden_states
    layers = {"last": [-1], "layers.1": [2], "all-concat": [1, 2, 3], "mix": [0, 1, 2, 3]}[features]
    row = 0
    for k, i in enumerate((3, 0, 7)):
        for place in split.words.places[slice(*split.words.offsets[i : i + 2])]:
            expected = torch.cat([states[layer][k, place] for layer in layers])
            torch.testing.assert_close(found[row], expected, rtol=1e-6, atol=1e-7)
            row += 1
    assert row == len(found)


@pytest.mark.parametrize("head", ["linear", "mlp", "bilstm"])
def test_folding_the_standardisation_away_leaves_the_head_as_it_was(config: RunConfig, head: str) -> None:
    loaded = load_classifier(config.model, pooling="mean", num_outputs=5, head=head, is_token_task=True)
    features = torch.randn(30, 16, generator=torch.Generator().manual_seed(0)) * 5 + 3
    sizes = torch.tensor([7, 0, 12, 11])
    with torch.no_grad():
        loaded.model.eval()
        before = answer(loaded.model.head, features, sizes)
        with standardised(loaded.model.head, features, np.arange(20)):
            inside = answer(loaded.model.head, features, sizes)
        after = answer(loaded.model.head, features, sizes)
    torch.testing.assert_close((inside, after), (before, before), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("freeze", "head"), [("none", "linear"), ("embeddings", "mlp"), ("backbone", "linear"), ("backbone", "bilstm")]
)
def test_a_run_keeps_a_row_per_word_and_repeats(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, freeze: str, head: str
) -> None:
    monkeypatch.setattr(features_module, "MOST_EPOCHS", 20)
    monkeypatch.setattr(features_module, "MOST_STEPS", 1)
    epochs = None if freeze == "backbone" else 2
    config = replace(config, freeze=freeze, head=head, epochs=epochs, save_model=True)  # type: ignore[arg-type]
    run, again = (toolkit.finetune(replace(config, output_dir=str(tmp_path / name))) for name in "ab")
    answers = run.predictions[run.predictions["epoch"] == run.predictions["epoch"].max()]
    assert not answers.duplicated(["split", "id", "word"]).any()
    tags = enumerate(load_task(config).splits["validation"].labels)  # type: ignore[arg-type]
    of_word = {(i, k): tag for i, own in tags for k, tag in enumerate(own)}
    assert {(r.id, r.word): r.label for r in answers.itertuples()} == of_word
    last, told = run.scores.iloc[-1], run.manifest["task"]
    assert last["accuracy"] == pytest.approx((answers["label"] == answers["prediction"]).mean())
    assert (told["kind"], told["splits"]["train"]["num_words_lost"]) == ("tokens", 0)
    assert again.scores["loss"].tolist() == run.scores["loss"].tolist()
    assert last["loss"] < run.scores.iloc[0]["loss"]
    assert (logits(load_tuned(run), run).argmax(axis=1) == answers["prediction"].to_numpy()).mean() > 0.999


def test_parts_of_a_batch_weigh_by_their_words(config: RunConfig, tmp_path: Path) -> None:
    whole, parts = (
        toolkit.finetune(replace(config, output_dir=str(tmp_path / str(n)), gradient_accumulation_steps=n))
        for n in (1, 4)
    )
    np.testing.assert_allclose(whole.scores["loss"], parts.scores["loss"], rtol=1e-4)


def test_lists_of_tokens_compare_over_seeds_and_sentences(config: RunConfig, tmp_path: Path) -> None:
    runs = [
        toolkit.finetune(replace(config, output_dir=str(tmp_path), freeze=freeze, seed=seed, epochs=epochs))
        for freeze, epochs in (("none", 2), ("embeddings", 2))
        for seed in (0, 1)
    ]
    table = toolkit.compare(runs)
    assert set(table["score"]) == {"f1", "accuracy"}
    assert (table["num_units"] == 48).all()
    assert (table["num_items"] > 48).all()
    assert toolkit.compare_seeds(runs)["mcnemar_p"].isna().all()
    # All right but one sentence in one seed: no more is known than of 48 sentences of which none differs.
    for i, run in enumerate(runs):
        answers, scored = run.predictions, run.scores.assign(f1=188 / 190 if i == 3 else 1.0)  # two entities each
        told = answers["label"].mask((answers["id"] == answers["id"].min()) & (i == 3), 0)
        vars(run).update(predictions=answers.assign(prediction=told), scores=scored)
    (line,) = toolkit.compare(runs, score="f1").query("score == 'f1'").to_dict("records")
    assert line["high90_points"] >= 100 * (1 - 0.05 ** (1 / 48))


def test_what_does_not_go_with_words_is_refused(config: RunConfig) -> None:
    check_refusals(
        ("a token task does not pool", lambda: toolkit.finetune(replace(config, pooling="cls"))),
        ("bilstm is for token tasks", lambda: toolkit.finetune(RunConfig(model=config.model, head="bilstm"))),
    )


def lstm_by_hand(weights: dict[str, torch.Tensor], words: torch.Tensor) -> torch.Tensor:
    """(words, outputs) of one sentence (words, inputs): two bidirectional LSTM layers, their equations written out."""
    states = words
    for layer in (0, 1):
        sides = []
        for end in ("", "_reverse"):
            own = {name: weights[f"layers.lstm.{name}_l{layer}{end}"] for name in ("weight_ih", "weight_hh")}
            bias = weights[f"layers.lstm.bias_ih_l{layer}{end}"] + weights[f"layers.lstm.bias_hh_l{layer}{end}"]
            h = c = torch.zeros(own["weight_hh"].shape[1], dtype=torch.float64)
            found: list[torch.Tensor] = []
            for x in states.flip(0) if end else states:
                i, f, g, o = (own["weight_ih"] @ x + own["weight_hh"] @ h + bias).chunk(4)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
                found.append(h)
            sides.append(torch.stack(found[::-1] if end else found))
        states = torch.cat(sides, 1)
    return states @ weights["layers.output.weight"].T + weights["layers.output.bias"]


def test_a_trained_bilstm_is_the_loop_written_by_hand(config: RunConfig, tmp_path: Path) -> None:
    """Features by transformers alone, the LSTM's equations and AdamW written out in float64, from the same weights."""
    own = replace(config, freeze="backbone", head="bilstm", head_training="epochs", head_learning_rate=0.01, seed=3)
    own = replace(own, max_train_examples=16, output_dir=str(tmp_path))
    run, (loaded, data) = toolkit.finetune(own), begin(own)
    weights = {name: p.detach().double().requires_grad_() for name, p in loaded.model.head.named_parameters()}

    def words_of(split: str) -> list[torch.Tensor]:
        found = []
        for words in data.task.splits[split].words or ():
            batch = loaded.tokenizer(list(words), is_split_into_words=True, return_tensors="pt")
            places = [batch.word_ids(0).index(i) for i in range(len(words))]
            with torch.no_grad():
                found.append(loaded.model.backbone.eval()(**batch).last_hidden_state[0, places].double())
        return found

    train, held = words_of("train"), words_of("validation")
    num_steps = own.num_epochs  # 16 sentences are one batch
    rates = [0.01 * factor for factor in learning_rate_factors(num_steps, own.warmup_fraction)]
    y = torch.from_numpy(np.concatenate(data.task.splits["train"].labels))
    train_by_hand(
        lambda _: torch.cat([lstm_by_hand(weights, words) for words in train]),
        list(weights.values()), torch.zeros(1), y, [slice(None)] * num_steps, rates,
    )  # fmt: skip
    expected = torch.cat([lstm_by_hand(weights, words) for words in held]).detach().numpy()
    scores = np.stack(run.predictions.query("split == 'validation' and epoch == epoch.max()")["scores"].tolist())
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    first = run.predictions.query("split == 'validation' and epoch == 0")
    assert np.abs(scores - np.stack(first["scores"].tolist())).max() > 0.05  # there was something to learn
