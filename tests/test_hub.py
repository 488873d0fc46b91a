"""The hub: a server of our own speaks as it does, and the real huggingface_hub, transformers and datasets read it."""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load, save
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.hub import Hub, files_of
from tests.watched import Done, Watched
from toolkit import memory, open_run
from toolkit.memory import is_hub_reachable
from toolkit.snapshots.weights import INDEX, SINGLE

MAIN, TAG, PULL = "refs/heads/main", "refs/tags/v1", "refs/pr/1"
SIZES = {MAIN: 20, TAG: 24, PULL: 28}
"""Reference to the rows of the split that is scored."""
FEW = 4
"""Rows that are trained on: among more a floor's penalty is searched for, which takes as long as the rest of a run."""
WORD = "embeddings.word_embeddings.weight"
OFFLINE = {"HF_HUB_OFFLINE": "1"}
SMALL = ("--max-steps", 1, "--batch-size", 32, "--max-length", 12, "--precision", "no")


def parquet(num_rows: int, word: str = "good") -> bytes:
    rows = {"text": [f"the film {i} is {word if i % 2 else 'bad'}" for i in range(num_rows)]}
    with io.BytesIO() as file:
        pd.DataFrame(rows | {"label": [i % 2 for i in range(num_rows)]}).to_parquet(file)
        return file.getvalue()


TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "the", "film", "is", "good", "bad", "it")
ROWS = {WORD: len(TOKENS), "embeddings.position_embeddings.weight": 48, "embeddings.token_type_embeddings.weight": 2}


def bert_files() -> dict[str, bytes]:
    """A BERT without layers, by hand: transformers, which this process needs for nothing else, takes 3 s to import."""
    tensors = {name: torch.randn(num, 16, generator=torch.Generator().manual_seed(0)) for name, num in ROWS.items()}
    norm = {"weight": torch.ones(16), "bias": torch.zeros(16)}
    tensors |= {f"embeddings.LayerNorm.{name}": tensor for name, tensor in norm.items()}
    words = Tokenizer(models.WordLevel({token: i for i, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    config = {"model_type": "bert", "vocab_size": len(TOKENS), "max_position_embeddings": 48, "num_hidden_layers": 0}
    facts = {
        "config": config | {"hidden_size": 16, "num_attention_heads": 2},
        "tokenizer": json.loads(words.to_str()),
        "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"},
    }
    written = {f"{name}.json": json.dumps(fact).encode() for name, fact in facts.items()}
    return {SINGLE: save(tensors, {"format": "pt"}), **written}


@dataclass(frozen=True, slots=True)
class Served:
    """A hub, a process before it, and what they were given."""

    hub: Hub
    process: Watched
    folder: Path
    words: dict[str, torch.Tensor]
    """Revision of own/bert to its word table; that of the tag is named by its commit too; nothing to all others'."""
    commits: dict[tuple[str, str], str]
    """Repository and reference to the commit."""

    def run(self, *words: object, **env: str) -> Done:
        """A command, during which nothing is unpickled or asked elsewhere, nor a conversion asked for."""
        asked = len(self.hub.asked)
        done = self.process.run(*words, **env)
        assert not done.seen, done
        paths = [path for _, path, _ in self.hub.asked[asked:]]
        assert not any(word in path for path in paths for word in ("discussions", "/commits/", "pytorch_model")), paths
        return done

    def refused(self, *words: object, **env: str) -> str:
        """The line in which a command is refused."""
        done = self.run(*words, **env)
        assert done.code == 2, done
        (said,) = done.err.splitlines()
        return said

    def finetuned(self, *words: object, **env: str) -> Any:
        """The run that a command makes."""
        return self.trained(*words, **env)[0]

    def trained(self, *words: object, **env: str) -> tuple[Any, str]:
        """The run, and what the command printed, in one line."""
        out = self.folder / f"runs {len(list(self.folder.iterdir()))}"
        done = self.run("finetune", *words, *SMALL, "--output-dir", out, **env)
        assert not done.code, done
        return open_run(next(out.iterdir())), " ".join(done.out.split())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, generator, words, commits = tmp_path_factory.mktemp("hub"), torch.Generator(), {}, {}
    with Hub() as hub:
        process = Watched(folder, HF_ENDPOINT=hub.url, HF_HUB_ETAG_TIMEOUT="1")  # imports while the files are made
        files = bert_files()
        words[""] = load(files[SINGLE])[WORD]
        for i, (reference, size) in enumerate(SIZES.items()):
            tensors = load(files[SINGLE])
            tensors[WORD] += torch.randn(tensors[WORD].shape, generator=generator.manual_seed(i))
            bert = files | {SINGLE: save(tensors, {"format": "pt"})}
            data = {f"data/{name}.parquet": parquet(num) for name, num in (("train", FEW), ("validation", size))}
            for name, content, kind in (("own/bert", bert, "models"), ("own/texts", data, "datasets")):
                commits[name, reference] = hub.add(name, content, reference, kind)
            words[reference] = tensors[WORD]
        pickled = {name: content for name, content in files.items() if name != SINGLE} | {"pytorch_model.bin": b"PK"}
        for name, safe in (("own/converted", files), ("own/sharded", sharded(files)), ("own/pickled", None)):
            hub.add(name, pickled)
            hub.add(name, pickled | {"of another": b""}, PULL)
            if safe is not None:
                commits[name, MAIN] = hub.add(name, safe, "refs/pr/12")
        for reference in (MAIN, TAG):
            hub.add("nyu-mll/glue", glue_files(folder / "glue"), reference, "datasets")
        rows = [f"{i:03},say {i},{'' if i % 3 else 'not_'}duplicate" for i in range(60)]
        cut = {"train.csv": rows[:FEW], "test.csv": rows, "dev.csv": rows}
        head = "question1,question2,label"
        hub.add("own/words", {k: "\n".join([head, *own]).encode() for k, own in cut.items()}, kind="datasets")
        yield Served(hub, process, folder, words, commits)
        process.close()


GLUE = {
    "mrpc": ("sentence1", "sentence2", "not_equivalent", "equivalent"),
    "qqp": ("question1", "question2", "not_duplicate", "duplicate"),
}


def glue_files(folder: Path) -> dict[str, bytes]:
    """MRPC and QQP, as the hub has them: two of three pairs are of label 1, and the labels of test are withheld."""
    for name, (first, second, *names) in GLUE.items():
        plain = {k: {"dtype": "string", "_type": "Value"} for k in (first, second)}
        features = plain | {"label": {"names": names, "_type": "ClassLabel"}}
        as_datasets_writes = {"huggingface": json.dumps({"info": {"features": features}})}
        for split, labels in (("train", [0, 1, 1]), ("validation", [1, 1, 0] * 10), ("test", [-1] * 3)):
            row = range(len(labels))
            texts = {first: [f"it is {i}" for i in row], second: [f"{i} it is" for i in row]}
            (folder / name).mkdir(parents=True, exist_ok=True)
            table = pa.table(texts | {"label": labels}).replace_schema_metadata(as_datasets_writes)
            pq.write_table(table, folder / name / f"{split}-00000-of-00001.parquet")
    splits = {name: [f"{{split: {x}, path: {name}/{x}-*}}" for x in ("train", "validation", "test")] for name in GLUE}
    card = "".join(f"- {{config_name: {name}, data_files: [{', '.join(own)}]}}\n" for name, own in splits.items())
    return files_of(folder) | {"README.md": f"---\nconfigs:\n{card}---\n".encode()}


def sharded(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same checkpoint in two files, of which one holds the embeddings."""
    tensors, kept = load(files[SINGLE]), {name: content for name, content in files.items() if name != SINGLE}
    embeddings = {name: tensors.pop(name) for name in list(tensors) if name.startswith("embeddings.")}
    parts = {"one.safetensors": embeddings, "two.safetensors": tensors}
    places = {name: part for part, own in parts.items() for name in own}
    return (
        kept
        | {k: save(v, {"format": "pt"}) for k, v in parts.items()}
        | {INDEX: json.dumps({"metadata": {}, "weight_map": places}).encode()}
    )


REVISIONS = {"": MAIN, "@main": MAIN, "@v1": TAG, "@COMMIT": TAG, f"@{PULL}": PULL}
SHARDED = "own/sharded@refs/pr/12"


def test_models_and_datasets_are_read_at_a_revision(served: Served) -> None:
    """And without the hub what was kept of it, not what was kept last; one of them is a model in shards."""
    for revision, env in (*((each, {}) for each in REVISIONS), ("", OFFLINE), ("@v1", OFFLINE)):
        reference = REVISIONS[revision]
        at = [name + revision.replace("COMMIT", served.commits[name, reference]) for name in ("own/bert", "own/texts")]
        model = SHARDED if revision == "@main" else at[0]
        run = served.finetuned("--model", model, "--dataset", at[1], **env)
        words = run.trajectory.snapshots[0].tensors["word_embeddings"]
        assert np.array_equal(words, served.words["" if model == SHARDED else reference])
        assert (run.manifest["model"]["revision"], run.manifest["task"]["name"], set(run.scores["num_examples"])) == (
            served.commits[model.partition("@")[0], reference],
            "texts",
            {SIZES[reference]},
        )
        hashes, commit = run.manifest["task"]["data_sha256"], served.commits["own/texts", reference]
        assert hashes.keys() == {"train", "validation", at[1].removeprefix("own/texts")} - {""}
        assert not revision or hashes[at[1].removeprefix("own/texts")] == commit


PAIRS = {
    "mrpc": ("--task", "mrpc"),
    "qqp": ("--dataset", "nyu-mll/glue@v1", "--dataset-config", "qqp", "--text-columns", "question1", "question2"),
    "words": ("--dataset", "own/words", "--text-columns", "question1", "question2"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_scored_by_accuracy_and_by_f1_of_those_that_match(name: str, served: Served) -> None:
    """Also where labels are words, whose order is that of the alphabet; and a .csv is as it is without the hub too."""
    what = GLUE.get(name, GLUE["qqp"])[3]
    for env in ({},) if name == "mrpc" else ({}, OFFLINE):  # which is of the repository of qqp, and at no revision
        run, said = served.trained("--model", "own/bert", *PAIRS[name], **env)
        assert f", f1 of {what}" in said
        told, scores = (table.query("split == 'validation' and epoch > 0") for table in (run.predictions, run.scores))
        names, last = run.manifest["task"]["label_names"], scores.iloc[-1]
        meant, found = (told[column] == names.index(what) for column in ("label", "prediction"))
        expected = 2 * (meant & found).sum() / (meant.sum() + found.sum())
        assert last["f1"] == pytest.approx(expected)
        assert f"accuracy validation {last['accuracy']:.3f} (f1 {expected:.4g})" in said


def test_a_download_that_breaks_off_goes_on_where_it_was(served: Served) -> None:
    tensors = {WORD: served.words[TAG], "beside": torch.zeros(3_000_000)}
    served.hub.add("own/cut", {"config.json": b"{}", SINGLE: save(tensors, {"format": "pt"})})
    served.hub.cut, asked = 11_000_000, len(served.hub.asked)  # it is written to disk by 10 MiB
    assert served.run("drift", "own/cut", "own/cut").code == 0
    parts = [status for method, path, status in served.hub.asked[asked:] if method == "GET" and "/large/" in path]
    assert parts == [200, 206]


@pytest.mark.parametrize("name", ["own/converted", "own/sharded"])
@pytest.mark.parametrize("words", ["drift NAME own/bert", "finetune --model NAME", "trains NAME --freeze none"])
def test_a_repository_of_pickles_alone_is_refused_with_the_revision_that_has_safetensors(
    name: str, words: str, served: Served
) -> None:
    said = served.refused(*words.replace("NAME", name).split())
    assert f"{name} has no {SINGLE}" in said
    assert said.endswith(f"pass {name}@refs/pr/12")


def test_of_shards_only_those_with_embeddings_are_fetched(served: Served) -> None:
    asked = len(served.hub.asked)
    assert served.run("drift", SHARDED, SHARDED).code == 0
    paths = [path for _, path, _ in served.hub.asked[asked:]]
    assert any("one.safetensors" in path for path in paths)
    assert not any("two.safetensors" in path for path in paths)
    assert served.run("drift", SHARDED, SHARDED, **OFFLINE).code == 0


def test_an_answer_that_refuses_is_said_in_one_line(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.hub, "status", 403)
    assert "cannot fetch model.safetensors of 'own/another'" in served.refused("drift", "own/another", "own/another")


REFUSED = {
    "drift own/pickled own/bert": "if it has pytorch_model.bin: opening a pickle can run any code in it",
    "finetune --model own/pickled": "if it has pytorch_model.bin: opening a pickle can run any code in it",
    "finetune --model own/pickled@refs/pr/1": "own/pickled@refs/pr/1 has no model.safetensors on the hub",
    "finetune --model own/nothing": "cannot read the config of 'own/nothing'",
    "finetune --model own/bert@v2": "cannot read the config of 'own/bert@v2'",
    "finetune --dataset own/nothing": "cannot read the dataset 'own/nothing'",
    "finetune --dataset nyu-mll/glue@v1 --dataset-config c": "cannot read the dataset 'nyu-mll/glue@v1'",
    "finetune --dataset own/texts@v2": "cannot read the dataset 'own/texts@v2'",
    "drift own/nothing own/bert": "no file or folder at 'own/nothing'",
    "drift own/bert@v2 own/bert": "no file or folder at 'own/bert@v2'",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_not_there_is_said_in_one_line(words: str, served: Served) -> None:
    assert REFUSED[words] in served.refused(*words.split())


COMMANDS = {
    "a model to train": "finetune --model someone/bert",
    "a dataset": "finetune --dataset someone/texts@v1",
    "checkpoints": "drift someone/bert minilm",
    "a model to look into": "anatomy someone/bert --text good",
}
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "silent": ({"is_silent": True}, "the hub cannot be reached within the 0.2 s of HF_HUB_ETAG_TIMEOUT"),
    "down": ({"status": 503}, "the hub is down (it answers 503)"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_hub_that_does_not_answer_is_asked_once_and_named_in_one_line(
    name: str, fault: str, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, why = FAULTS[fault]
    for attribute, value in changes.items():
        monkeypatch.setattr(served.hub, attribute, value)
    asked = len(served.hub.asked)
    shorter = {"HF_HUB_ETAG_TIMEOUT": "0.2"} if fault == "silent" else {}
    assert why in served.refused(*COMMANDS[name].split(), **shorter)
    assert [method for method, _, _ in served.hub.asked[asked:]] == ["HEAD"]


def test_what_was_kept_is_read_while_the_hub_is_down(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.run("drift", "own/bert", "own/bert@v1")
    monkeypatch.setattr(served.hub, "status", 502)
    assert served.run("drift", "own/bert", "own/bert@v1").code == 0


def test_any_other_answer_is_one_and_it_is_asked_for_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 1)
    memory._ask.cache_clear()
    with Hub() as hub:
        hub.status = 501  # of a mirror that knows no HEAD
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        assert is_hub_reachable()
        assert is_hub_reachable()
        assert len(hub.asked) == 1
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert not is_hub_reachable()
        monkeypatch.delenv("HF_HUB_OFFLINE")
    now[0] = float(memory.KNOWN_SECONDS)
    assert not is_hub_reachable()
    memory._ask.cache_clear()
