"""No pickle is opened at any door: every command, on planted ones, watched by a hook of the whole process.

A pickle can run code as it is opened. Each that is planted here would make a folder, and is seen by the hook as well.
"""

import ast
import io
import json
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.hub import Hub, files_of
from tests.questions.examples import commands_of_questions
from tests.refusals import check_refused
from tests.run_directories import edit
from tests.watched import Done, Watched
from toolkit.commands import COMMANDS
from toolkit.config import RunConfig
from toolkit.models.checkpoints import find_checkpoint
from toolkit.pipeline import finetune
from toolkit.snapshots.weights import INDEX, SINGLE


class Trap:
    """Makes a folder when its pickle is opened."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.place,)


BESIDE = (
    *("pytorch_model.bin", "adapter_model.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"),
    *("model.ckpt", "rows.pkl", "embeddings.npy", "data.npz"),
)
"""Pickles as they lie beside weights and data."""
NO_PICKLES = ("weights.safetensors", "rows.tsv", "rows.csv", "rows.jsonl", "rows.parquet", "rows.conll", "rows.txt")
"""Names of other kinds of file, whose content is a pickle."""


def planted(folder: Path, names: tuple[str, ...], trap: Path, tensors: Any) -> Path:
    """A folder with pickles, each as its name says."""
    folder.mkdir(exist_ok=True)
    for name in names:
        with open(folder / name, "wb") as file:
            if name.endswith((".bin", ".pt", ".pth")) and name != "training_args.bin":
                torch.save({**tensors, "trap": Trap(trap)} if name == "optimizer.pt" else tensors, file)
            elif name.endswith(".npy"):
                np.save(file, np.array([Trap(trap)], dtype=object), allow_pickle=True)
            elif name.endswith(".npz"):
                np.savez(file, rows=np.array([Trap(trap)], dtype=object))
            else:
                pickle.dump(Trap(trap), file)
    return folder


CALLS: dict[str, list[str]] = {
    "report": [
        "report {run} --out {out}",
        "report {trainer} --base {model} --out {out}",
        "report --from {run} --out {out}",
    ],
    "drift": ["drift {model} {tuned}", "drift {run}", "drift {trainer}"],
    "trains": ["trains {model}", "trains {model} --freeze none"],
    "study": ["study {run} --output-dir {out}"],
    "verify": ["verify {run}"],
    "finetune": [
        f"finetune {words} --model {{model}} --max-steps 1 --max-length 12 --output-dir {{out}}"
        for words in (
            "--task order",
            "--train-file {texts} --validation-file {texts}",
            "--dataset {data}",
            "--config {run}",
            "--add-tokens {texts}",
        )
    ],
}
"""Calls of the core's commands, every place of a user's own in braces."""
NOT_OF_A_RUN = ("report\t--from", "study")
"""Those that a run is no place for."""
FILES = ("{texts}", "{data}")
"""The places that may be a file of any name; what stands for a checkpoint may be two of them."""


def slots() -> Iterator[tuple[str, str]]:
    """Every call, and one of its places to put a pickle into."""
    for words in [*(call.split(" ") for own in CALLS.values() for call in own), *commands_of_questions().values()]:
        places = dict.fromkeys(word.partition("=")[2] or word for word in words if word.endswith("}"))
        yield from (("\t".join(words), place) for place in places if place != "{out}")


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a pickle makes which is opened."""
    return tmp_path_factory.mktemp("trap") / "it was opened"


@pytest.fixture(scope="module")
def good(
    trap: Path, tiny_model: Callable[[str], Path], tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Places that can be read, with pickles beside."""
    root = tmp_path_factory.mktemp("good")
    tensors = load_file(tiny_model("bert") / SINGLE)
    model = planted(shutil.copytree(tiny_model("bert"), root / "model"), BESIDE, trap, tensors)
    data = shutil.copytree(
        Path(str(tiny_config.train_file)).parent, planted(root / "data", BESIDE, trap, tensors), dirs_exist_ok=True
    )
    files = {"train_file": str(data / "train.tsv"), "validation_file": str(data / "validation.tsv"), "test_file": ()}
    config = replace(
        tiny_config, model=str(model), output_dir=str(planted(root / "runs", BESIDE, trap, tensors)), **files
    )
    runs = [finetune(replace(config, seed=seed, save_model=True, max_steps=2)).path for seed in (0, 1)]
    for step in (1, 2):
        folder = shutil.copytree(model, root / "trainer" / f"checkpoint-{step}")
        log = [{"epoch": k, "step": k, "eval_accuracy": 0.5} for k in range(1, step + 1)]
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "epoch": step, "log_history": log}))
    return {
        "{model}": str(model),
        "{run}": str(runs[0]),
        "{other}": str(runs[1]),
        "{tuned}": str(planted(runs[0] / "model", (), trap, tensors)),
        "{trainer}": str(planted(root / "trainer", BESIDE, trap, tensors)),
        "{texts}": str(data / "train.tsv"),
        "{data}": str(data),
    }


@pytest.fixture(scope="module")
def bad(
    trap: Path, good: dict[str, str], tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What holds a pickle in place of what is looked for: what it is to its place."""
    root, tensors = tmp_path_factory.mktemp("bad"), load_file(tiny_model("bert") / SINGLE)
    planted(root, (*BESIDE, *NO_PICKLES), trap, tensors)
    found = {name: str(root / name) for name in (*BESIDE, *NO_PICKLES)}

    def folder(name: str, of: str = "") -> Path:
        made = planted(shutil.copytree(of or tiny_model("bert"), root / name), BESIDE, trap, tensors)
        found[f"folder: {name}"] = str(made)
        return made

    found["folder: pickles alone"] = str(planted(root / "alone", BESIDE, trap, tensors))
    (folder("no safetensors") / SINGLE).unlink()
    sharded = folder("an index of pickles")
    (sharded / SINGLE).unlink()
    (sharded / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "pytorch_model.bin")}))
    edit(folder("a config that names one") / "config.json", transformers_weights="adapter_model.bin")
    settings = {"peft_type": "LORA", "r": 1, "target_modules": ["query"], "base_model_name_or_path": good["{model}"]}
    (folder("an adapter beside") / "adapter_config.json").write_text(json.dumps(settings))
    adapter = planted(root / "adapter", ("adapter_model.bin",), trap, tensors)
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    found["folder: an adapter"] = str(adapter)
    for name in (SINGLE, "config.json", "tokenizer.json"):
        (folder(f"{name} is one") / name).write_bytes(pickle.dumps(Trap(trap)))
    run = folder("a run of them", of=good["{run}"])
    for path in [path for path in run.rglob("*") if path.is_file() and path.name != "manifest.json"]:
        path.write_bytes(pickle.dumps(Trap(trap)))
    run = folder("a run with them", of=good["{run}"])
    for path in [*run.rglob("*.safetensors"), *run.rglob("*.parquet")]:
        path.rename(path.with_suffix(".pt"))
        planted(path.parent, (path.with_suffix(".pt").name,), trap, tensors)
    for path in folder("a Trainer's", of=good["{trainer}"]).rglob(SINGLE):
        path.unlink()
    (root / "tar").mkdir()
    with tarfile.open(root / "tar" / "train.tar", "w") as archive, io.BytesIO() as file:
        torch.save({"text": "good"}, file)
        for i in range(3):
            for name, content in (
                ("pth", file.getvalue()),
                ("txt", b"good"),
                ("cls", b"1"),
                ("pyd", pickle.dumps(Trap(trap))),
            ):
                facts = tarfile.TarInfo(f"{i}.{name}")
                facts.size = len(content)
                archive.addfile(facts, io.BytesIO(content))
    return found | {"folder: a tar": str(root / "tar"), "of the hub": "own/pickled"}


@pytest.fixture(scope="module")
def watched(bad: dict[str, str], trap: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with Hub() as hub:
        hub.add("own/pickled", files_of(Path(bad["folder: no safetensors"])))
        hub.add("own/pickled", files_of(Path(bad["folder: pickles alone"])), kind="datasets")
        process = Watched(tmp_path_factory.mktemp("watched"), HF_ENDPOINT=hub.url)
        yield process
        process.close()


def carry_out(process: Watched, call: str, places: dict[str, str], out: Path, trap: Path) -> Done:
    """A call with places put in, which opens no pickle, asks nobody elsewhere, and is refused in one line if it is."""
    out.mkdir()
    for name, place in (places | {"{out}": str(out / "out")}).items():
        call = call.replace(name, place)
    done = process.run(*call.split("\t"))
    assert not done.seen, done
    assert not trap.exists(), done
    assert len([line for line in done.err.splitlines() if line.startswith("error: ")]) == (done.code == 2), done
    assert done.code in (0, 1, 2), done
    return done


def test_every_command_is_tried() -> None:
    assert {call.split("\t")[0] for call, _ in slots()} == {*COMMANDS, "finetune"}


@pytest.mark.slow  # every command that reads something, carried out
@pytest.mark.parametrize("call", dict.fromkeys(call for call, _ in slots()))
def test_pickles_beside_are_passed_over(
    call: str, watched: Watched, good: dict[str, str], tmp_path: Path, trap: Path
) -> None:
    done = carry_out(watched, call, good, tmp_path / "0", trap)
    assert (done.code == 0) == (not call.startswith(NOT_OF_A_RUN)), done


@pytest.mark.slow  # 700 commands
@pytest.mark.parametrize(("call", "slot"), slots())
def test_pickles_in_place_of_files_are_not_opened(
    call: str, slot: str, watched: Watched, good: dict[str, str], bad: dict[str, str], tmp_path: Path, trap: Path
) -> None:
    few = {*BESIDE, *NO_PICKLES} - {"rows.pkl", "pytorch_model.bin"} - ({*bad} if slot in FILES else set())
    for i, place in enumerate(place for name, place in bad.items() if name not in few):
        carry_out(watched, call, good | {slot: place}, tmp_path / str(i), trap)


def test_every_call_that_loads_weights_asks_for_safetensors() -> None:
    """Whatever looks at the folder before: transformers would take the pickle where that look is passed by."""
    for path in (Path(__file__).parents[1] / "toolkit").rglob("*.py"):
        for node in [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]:
            owner, _, name = ast.unparse(node.func).rpartition(".")
            if name == "from_pretrained" and owner not in ("AutoConfig", "AutoTokenizer"):
                assert "use_safetensors=True" in map(ast.unparse, node.keywords), f"{path.name}, line {node.lineno}"


SAID = {
    "folder: no safetensors": r"holds weights only as a pickle \(adapter_model.bin\)",
    "folder: an index of pickles": r"in part no safetensors \(pytorch_model.bin\): pass a folder that save_pretrained",
    "folder: a config that names one": r"in part no safetensors \(adapter_model.bin\)",
    "folder: an adapter beside": "holds an adapter beside the weights: merge it",
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_refused_says_why(name: str, bad: dict[str, str]) -> None:
    source = find_checkpoint(bad[name])
    check_refused(SAID[name], source.read_backbone, source.read_config(), {})
