"""Floors are what plain code gives: counts, scikit-learn, seqeval and transformers."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import hstack
from scipy.stats import pearsonr
from seqeval.metrics import f1_score
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold

import toolkit
from tests.by_hand import begin
from toolkit.comparison.runs import read_reported
from toolkit.config import RunConfig
from toolkit.data.builtin import BUILTIN_TASKS
from toolkit.reporting import run_screen
from toolkit.training import floors as floors_module
from toolkit.training.encoding import encode_task
from toolkit.training.floors import Floors, bag_of_words, measure_floors, tags_by_word

WORDS = {"sublinear_tf": True, "token_pattern": r"(?u)\b\w+\b"}
GRID = (0.1, 1.0, 10.0, 100.0)


@pytest.fixture(scope="session")
def opened(tiny_model):
    """A function: a config with the tiny BERT, its task in tokens, and what was loaded."""

    def get(**fields):
        config = RunConfig(model=str(tiny_model("bert")), precision="no", max_length=40, **fields)
        loaded, data = begin(config)
        return config, data, loaded

    return get


@pytest.fixture(scope="session")
def similarity(tmp_path_factory):
    """Fields of a config on pairs with the share of words that they have in common, noisily, as the target."""
    folder, rng = tmp_path_factory.mktemp("similarity"), np.random.default_rng(0)
    texts = [text for (text,) in BUILTIN_TASKS["polarity"].build()["train"].texts[:120]]
    for name, size in (("train", 80), ("validation", 40)):
        lines = ["first\tsecond\tlabel"]
        for _ in range(size):
            one, other = (texts[i] for i in rng.integers(len(texts), size=2))
            shared = len({*one.split()} & {*other.split()}) + rng.normal(0, 0.3)
            lines.append(f"{one}\t{other}\t{shared:.4f}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    files = {f"{name}_file": str(folder / f"{name}.tsv") for name in ("train", "validation")}
    return {**files, "text_columns": ("first", "second"), "label_kind": "targets"}


def floors_of(opened, **fields) -> Floors:
    config, data, _ = opened(**fields)
    found = measure_floors(data, config)
    assert found is not None
    return found


def plain_bags(texts, vectorizer):
    bags = [vectorizer.transform(column) for column in zip(*texts, strict=True)]
    if len(bags) == 1:
        return bags[0]
    u, v = bags
    return hstack([u, v, abs(u - v), u.multiply(v)]).tocsr()


def plain(task, split, seed):
    """What scikit-learn's own search answers to a split, and the strength that it finds."""
    train = task.splits["train"]
    vectorizer = TfidfVectorizer(**WORDS).fit([text for example in train.texts for text in example])
    if task.kind == "regression":
        model, grid, scoring = Ridge(), {"alpha": [1 / c for c in GRID]}, "neg_mean_squared_error"
        folds = KFold(5, shuffle=True, random_state=seed)
    else:
        model, grid, scoring = LogisticRegression(max_iter=300, tol=1e-3), {"C": GRID}, "neg_log_loss"
        folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    search = GridSearchCV(model, grid, cv=folds, scoring=scoring).fit(plain_bags(train.texts, vectorizer), train.labels)
    (value,) = search.best_params_.values()
    strength = 1 / value if task.kind == "regression" else value
    return search.predict(plain_bags(task.splits[split].texts, vectorizer)), strength


@pytest.mark.parametrize(("name", "size"), [("polarity", 300), ("pair", 300)])
def test_a_bag_of_words_is_scikit_learns_to_the_item(opened, name, size):
    _, data, _ = opened(task=name, max_train_examples=size, seed=3)
    choice = {}
    outputs = bag_of_words(data, 3, choice)
    for split in ("validation", "ood"):
        expected, strength = plain(data.task, split, 3)
        np.testing.assert_array_equal(outputs[split].argmax(axis=1), expected)
    assert choice == {"strength": strength, "num_fitted": size, "num_compared": size}


def test_a_ridge_on_pairs_and_the_mean_are_plain_codes(opened, similarity):
    config, data, _ = opened(**similarity)
    outputs = bag_of_words(data, config.seed, {})
    expected, _ = plain(data.task, "validation", config.seed)
    np.testing.assert_allclose(outputs["validation"][:, 0], expected, rtol=1e-5, atol=1e-6)
    scores = measure_floors(data, config).scores
    labels, mean = data.task.splits["validation"].labels, data.task.splits["train"].labels.mean()
    r2 = 1 - ((labels - mean) ** 2).sum() / ((labels - labels.mean()) ** 2).sum()
    assert scores["majority"]["validation"] == {"pearson": None, "spearman": None, "r2": pytest.approx(r2, abs=1e-6)}
    assert scores["bag_of_words"]["validation"]["pearson"] == pytest.approx(
        pearsonr(labels, expected).statistic, abs=1e-5
    )


def test_what_words_alone_can_do_on_the_controlled_tasks(opened):
    """Word identity is all of `polarity` and nothing of `order`, of which each bag has both labels.

    In `pair` each text has a bag of its own, and which word stands in which text tells: that is no matter of meaning.
    """
    found = {name: floors_of(opened, task=name).scores for name in BUILTIN_TASKS}
    bags = {name: {k: own["accuracy"] for k, own in scores["bag_of_words"].items()} for name, scores in found.items()}
    assert bags["polarity"] == {"validation": 1.0, "test": 1.0, "ood": 0.5}
    assert bags["order"] == {"validation": 0.5, "test": 0.5, "ood": 0.5}
    assert bags["pair"] == {"validation": 1.0, "test": 1.0, "ood": pytest.approx(0.5, abs=0.05)}
    for scores in found.values():
        assert {own["accuracy"] for own in scores["majority"].values()} == {0.5}


def test_the_majority_is_that_of_training_and_not_of_the_split(opened, tmp_path):
    for name, labels in (("train", "aaab"), ("validation", "bbba")):
        lines = [f"word {i}\t{label}" for i, label in enumerate(labels * 5)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    found = floors_of(opened, train_file=str(tmp_path / "train.tsv"), validation_file=str(tmp_path / "validation.tsv"))
    assert found.scores["majority"]["validation"]["accuracy"] == 0.25


def test_the_tag_of_each_word_is_a_hand_counts(opened):
    config, data, _ = opened(task="roles", max_train_examples=300)
    train, names = data.task.splits["train"], data.task.label_names
    counts, by_word = Counter(), defaultdict(Counter)
    for words, tags in zip(train.words, train.labels, strict=True):
        counts.update(tags.tolist())
        for word, tag in zip(words, tags.tolist(), strict=True):
            by_word[word][tag] += 1
    assert counts.most_common(1)[0][0] == 0

    def best(word):
        ranked = sorted(by_word[word].items(), key=lambda item: (-item[1], -counts[item[0]], item[0]))
        return ranked[0][0] if ranked else 0

    scores = measure_floors(data, config).scores
    for name in ("validation", "ood"):
        split = data.task.splits[name]
        said = [[names[best(word)] for word in words] for words in split.words]
        true = [[names[tag] for tag in tags] for tags in split.labels]
        assert scores["bag_of_words"][name]["f1"] == pytest.approx(f1_score(true, said, zero_division=0))
        outside, majority = np.mean(np.concatenate(split.labels) == 0), scores["majority"][name]
        assert (majority["accuracy"], majority["f1"]) == (pytest.approx(outside), 0)


def test_words_that_were_truncated_are_neither_counted_nor_scored(opened):
    config, data, loaded = opened(task="roles", max_train_examples=60)
    short = encode_task(data.task, loaded, 6)
    assert short.splits["validation"].num_rows < data.splits["validation"].num_rows
    assert tags_by_word(short)["validation"].shape == (short.splits["validation"].num_rows, 5)
    assert measure_floors(short, config).scores["majority"]["validation"]["f1"] == 0


def test_few_examples_no_words_and_caps(opened, tmp_path, monkeypatch):
    files = {f"{name}_file": str(tmp_path / f"{name}.tsv") for name in ("train", "validation")}
    (tmp_path / "train.tsv").write_text("text\tlabel\nword0\ta\nword1\tb\n" + "word0\ta\nword1\tb\n")
    (tmp_path / "validation.tsv").write_text("text\tlabel\nword0\ta\n")
    found = floors_of(opened, **files)
    assert found.choice["strength"] is None
    assert found.scores["bag_of_words"]["validation"]["accuracy"] == 1
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"!{'?' * i}\t{'ab'[i % 2]}\n" for i in range(4)))
    assert set(floors_of(opened, **files).scores) == {"majority"}
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + 5 * "good\ta\nbad\tb\n" + 4 * "odd\tc\n")
    assert floors_of(opened, **files).choice["num_compared"] == 10  # those of c are fewer than the folds
    monkeypatch.setattr(floors_module, "MOST_FITTED", 100)
    monkeypatch.setattr(floors_module, "MOST_COMPARED", 60)
    capped, again = (floors_of(opened, task="polarity", max_train_examples=300) for _ in range(2))
    assert (capped.choice["num_fitted"], capped.choice["num_compared"]) == (100, 60)
    assert (capped.scores, capped.choice) == (again.scores, again.choice)


def test_a_run_records_its_floors_says_them_and_none_under_shuffled_labels(tiny_config, tmp_path, capsys):
    config = replace(tiny_config, output_dir=str(tmp_path), epochs=1)
    run = toolkit.finetune(config, screen=run_screen)
    floors, cost = run.manifest["floors"], run.manifest["cost"]
    assert list(floors) == ["majority", "bag_of_words"]
    shown = [f"{name.replace('_', ' ')} {own['validation']['accuracy']:.3f}" for name, own in floors.items()]
    assert f"Floors: {', '.join(shown)} (accuracy, validation)" in " ".join(capsys.readouterr().out.split())
    assert cost["floors_seconds"] > 0
    assert toolkit.measure_cost([run])["seconds"].item() == pytest.approx(cost["seconds_training"])
    shuffled = toolkit.finetune(replace(config, shuffle_labels=True), screen=run_screen)
    assert shuffled.manifest["floors"] is None
    for split, own in floors["majority"].items():  # known of a run without floors too
        rates = [read_reported(each, "run").majority_rate(split) for each in (run, shuffled)]
        assert rates == [pytest.approx(own["accuracy"])] * 2
    assert "Floors" not in capsys.readouterr().out
    assert list(toolkit.summarise_floors([run, shuffled])["num_seeds"]) == [1, 1]  # validation and ood of the first
