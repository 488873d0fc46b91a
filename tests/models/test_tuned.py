"""What a run saved is what it was scored with."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tests.refusals import check_refused, refused
from tests.run_directories import edit, rehash, write_manifest
from toolkit.config import RunConfig
from toolkit.models.checkpoints import find_checkpoint
from toolkit.models.tuned import load_tuned, load_untuned
from toolkit.pipeline import finetune
from toolkit.snapshots.backbones import hash_tokenizer
from toolkit.snapshots.store import open_run
from toolkit.studies.plan import plan_runs, resolve, run_path
from toolkit.studies.study import Cell


def test_a_head_of_another_form_is_refused_in_one_line(tiny_config: RunConfig, tmp_path: Path) -> None:
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), save_model=True, max_steps=1))
    path = run.path / "model" / "head.safetensors"
    whole = load_file(path)
    cut = {name: tensor[:1].clone() for name, tensor in whole.items()}
    renamed = {f"old.{name}": tensor for name, tensor in whole.items()}
    for changed in (cut, renamed, dict(list(whole.items())[:1]), None):
        save_file(changed, path) if changed is not None else path.write_bytes(b"")
        rehash(run.path, "model/head.safetensors")
        check_refused(
            rf"^{path} is not this model's head \([^\n]*\): restore it or make it", load_tuned, open_run(run.path)
        )


def test_a_checkpoint_that_was_replaced_is_not_what_the_run_started_from(
    tiny_config: RunConfig, tmp_path: Path
) -> None:
    """Measured from other weights, everything that a probe says of training would be wrong without a word."""
    folder = tmp_path / "base"
    shutil.copytree(tiny_config.model, folder)
    run = finetune(replace(tiny_config, model=str(folder), output_dir=str(tmp_path / "runs"), max_steps=1))
    load_untuned(run)
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor + 0.1 for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    refusal = r"the weights of .*base are not those that .* started from: put these back"
    check_refused(refusal, load_untuned, run)
    manifest = json.loads((run.path / "manifest.json").read_text())
    model = manifest["model"]
    for changed, is_refused in (
        (model | {"weights_sha256": None}, False),  # from before it was kept
        ({name: value for name, value in model.items() if name not in ("weights_sha256", "revision")}, False),
        (model | {"weights_sha256": None, "revision": "a" * 40}, True),  # a folder has taken a hub id's name
    ):
        write_manifest(run.path, manifest | {"model": changed})
        with pytest.raises(ValueError, match=refusal) if is_refused else nullcontext():
            load_untuned(open_run(run.path))
    random = finetune(replace(run.config, init="random", overwrite=True))
    save_file({name: tensor - 0.1 for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    load_untuned(random)  # which never read these weights


def swap_words(path: Path) -> None:
    """Give every word another row."""
    content = json.loads(path.read_text())
    words = [word for word in content["model"]["vocab"] if not word.startswith("[")]
    rows = [content["model"]["vocab"][word] for word in words]
    content["model"]["vocab"].update(zip(words, reversed(rows), strict=True))
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("init", ["checkpoint", "random"])
@pytest.mark.parametrize("changed", ["config.json", "tokenizer"])
def test_a_run_does_not_stand_for_another_config_or_tokenizer(
    changed: str, init: str, tiny_config: RunConfig, tmp_path: Path
) -> None:
    """The run's name knows the weights alone."""
    folder = tmp_path / "base"
    shutil.copytree(tiny_config.model, folder)
    out = tmp_path / "runs"
    config = replace(tiny_config, model=str(folder), init=init, output_dir=str(out), max_steps=1)  # type: ignore[arg-type]
    run = finetune(config)
    edit(folder / "config.json", transformers_version="4.0.0", architectures=None)
    edit(folder / "tokenizer.json", truncation=None)
    assert finetune(config, reuse_finished=True).path == run.path
    cell = Cell("toy", "full", 0, None, "final", None, config)
    plan_runs([cell], out)
    if changed == "tokenizer":
        swap_words(folder / "tokenizer.json")
    else:
        edit(folder / "config.json", hidden_act="relu")
    looks = (
        lambda: finetune(config, reuse_finished=True),
        lambda: load_untuned(run),
        lambda: plan_runs([cell], out),
    )
    for look in looks:
        refusal = rf"^the {changed} of .*base changed since {run.path.name} was trained: put back what it was, or run"
        check_refused(refusal, look)


def test_a_tokenizer_that_is_saved_again_is_the_same_one(tmp_path: Path) -> None:
    """Saved again it is one tokenizer.json, which remembers the last call; what overrules that file counts."""
    source, first, again = Path(find_checkpoint("minilm").location), tmp_path / "first", tmp_path / "again"
    first.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copy(source / name, first)
    tokenizer = find_checkpoint(str(first)).read_tokenizer()
    tokenizer("a word", truncation=True, max_length=3, padding="max_length")
    tokenizer.save_pretrained(again)
    known = hash_tokenizer(first)
    assert known == hash_tokenizer(again) is not None
    edit(again / "tokenizer_config.json", do_lower_case=False)
    assert find_checkpoint(str(again)).read_tokenizer().tokenize("A Word") != tokenizer.tokenize("A Word")
    assert hash_tokenizer(again) != known
    (first / "tokenizer.json").unlink()
    separate = hash_tokenizer(first)
    (first / "vocab.txt").write_text("\n".join(reversed((first / "vocab.txt").read_text().split("\n"))))
    assert hash_tokenizer(first) != separate is not None
    assert hash_tokenizer(tmp_path) is None


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("model/adapter_config.json", r"not in the manifest: model/adapter_config.json\): move it away"),
        ("model/config.json", r"is not as its manifest says \(changed: model/config.json\): restore it"),
        ("notes.txt", None),
    ],
)
def test_a_tuned_model_is_loaded_from_the_files_of_its_manifest_alone(
    file: str, said: str | None, tiny_config: RunConfig, tmp_path: Path
) -> None:
    """from_pretrained reads whatever of its names lies there: an adapter, added tokens, weights of another kind."""
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), max_steps=1, save_model=True))
    with (run.path / file).open("a") as opened:
        opened.write("{}" if "adapter" in file else " ")
    with refused(said) if said else nullcontext():
        load_tuned(run)


def test_the_embedded_model_is_known_by_its_name() -> None:
    """Its weights are checked elsewhere; in the digest they would give every run of it another name."""
    assert find_checkpoint("minilm").pinned().digest_entry() == {}


def test_a_hub_that_hangs_up_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang_up(*_: object, **__: object) -> None:
        raise Exception("Server disconnected without sending a response.")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", hang_up)
    assert find_checkpoint("someone/bert").pinned().revision is None


def test_a_checkpoint_of_the_hub_is_known_by_its_commit(
    tiny_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch moves on between two seeds, in a cache laid out like the hub's: two runs, each with its own start."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    asked: list[str] = []
    # peft makes transformers look for an adapter: a minute of retries for each run where there is no network.
    monkeypatch.setattr("huggingface_hub.file_download.get_hf_file_metadata", lambda url, **_: asked.append(url))
    cached = tmp_path / "cache" / "models--acme--tiny"
    (cached / "refs").mkdir(parents=True)
    for commit, shift in (("a" * 40, 0.0), ("b" * 40, 0.1)):
        shutil.copytree(tiny_config.model, cached / "snapshots" / commit)
        path = cached / "snapshots" / commit / "model.safetensors"
        save_file({name: tensor + shift for name, tensor in load_file(path).items()}, path, {"format": "pt"})
    runs = []
    for commit in ("a" * 40, "b" * 40):
        (cached / "refs" / "main").write_text(commit)
        config = replace(tiny_config, model="acme/tiny", output_dir=str(tmp_path / "runs"), max_steps=1)
        runs.append(finetune(config))
    assert run_path(resolve(config)) == runs[-1].path, "a study must know what is finished"
    assert [run.manifest["model"]["revision"] for run in runs] == ["a" * 40, "b" * 40]
    words = "embeddings.word_embeddings.weight"
    for run in runs:
        found = load_untuned(run).model.backbone.state_dict()[words].numpy()
        assert np.array_equal(found, run.trajectory.at(0).tensors["word_embeddings"])
    assert not asked, "a hub that cannot be reached was asked, file by file"


def test_a_run_without_its_model_says_what_to_do(tiny_config: RunConfig, tmp_path: Path) -> None:
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), max_steps=1))
    check_refused("--save-model", load_tuned, run)
