"""Code that a checkpoint brings is never run, and nobody is asked: it is read as its plain architecture, or refused."""

import ast
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.questions.examples import commands_of_questions
from tests.refusals import check_refused, leave
from tests.run_directories import edit
from toolkit.cli import main
from toolkit.config import RunConfig
from toolkit.models.checkpoints import Source, find_checkpoint
from toolkit.models.classifier import load_classifier
from toolkit.pipeline import finetune
from toolkit.questions.models import open_model
from toolkit.studies.plan import resolve

ROOT = Path(__file__).parents[2]
CODE = """
import pathlib
pathlib.Path({marker!r}).write_text("ran")
from transformers import BertConfig, BertModel
class C(BertConfig):
    model_type = "planted"
class M(BertModel):
    config_class = C
class T:
    pass
"""

Plant = Callable[..., Path]


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """What the planted code writes as soon as it is imported."""
    return tmp_path / "the code ran"


@pytest.fixture
def plant(tiny_model: Callable[[str], Path], tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """A function that writes a checkpoint with code of its own, while the user's answer to every question is yes."""
    answers = io.StringIO("y\n" * 50)
    monkeypatch.setattr("sys.stdin", answers)

    def build(model_type: str = "bert", *, seed: int = 0) -> Path:
        folder = tmp_path / f"planted {model_type} {seed}"
        shutil.copytree(tiny_model("bert"), folder)
        names = {"AutoConfig": "code.C", "AutoModel": "code.M"}
        for file, changes in (
            ("config.json", {"model_type": model_type, "auto_map": names}),
            ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["code.T", "code.T"]}}),
        ):
            edit(folder / file, **changes)
        (folder / "code.py").write_text(CODE.format(marker=str(marker)))
        if seed:
            tensors = load_file(folder / "model.safetensors")
            noise = torch.Generator().manual_seed(seed)
            tensors = {k: v + 0.1 * torch.randn(v.shape, generator=noise) for k, v in tensors.items()}
            save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder

    yield build
    assert not marker.exists()
    assert answers.tell() == 0, "a question was asked"


def test_a_known_architecture_is_read_without_its_code(plant: Plant, tiny_model: Callable[[str], Path]) -> None:
    with pytest.warns(
        UserWarning, match=r"brings code of its own \(auto_map\), which is never run: it is read"
    ) as said:
        loaded = load_classifier(str(plant()), pooling="mean", num_outputs=2)
    assert [str(w.message).split(" of ")[0] for w in said if "auto_map" in str(w.message)] == [
        "the model",
        "the tokenizer",
    ]
    plain = load_classifier(str(tiny_model("bert")), pooling="mean", num_outputs=2)
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    assert loaded.tokenizer.get_vocab() == plain.tokenizer.get_vocab()


def test_an_unknown_architecture_is_refused_in_one_line(plant: Plant, tiny_config: RunConfig) -> None:
    folder = str(plant("planted"))
    calls = (
        lambda: find_checkpoint(folder).read_config(),
        lambda: load_classifier(folder, pooling="mean", num_outputs=2),
        lambda: load_classifier(folder, pooling="mean", num_outputs=2, init="random"),
        lambda: finetune(replace(tiny_config, model=folder)),
        lambda: resolve(replace(tiny_config, model=folder)),
        lambda: open_model(folder),
    )
    for call in calls:
        check_refused(r"its own code \(auto_map\) is never run: unknown architecture 'pl", call)


def test_tensors_that_only_the_code_reads_are_refused(plant: Plant) -> None:
    """A plain model without them would be another model, and look like this one."""
    folder = plant()
    tensors = load_file(folder / "model.safetensors")
    for extra, is_refused in (("embeddings.gate", True), ("bert.encoder.layer.0.gate", True), ("cls.head", False)):
        save_file(tensors | {extra: torch.ones(2)}, folder / "model.safetensors", {"format": "pt"})
        if is_refused:
            check_refused(
                rf"needs its own code .* a plain bert has no place for {extra}$",
                load_classifier,
                str(folder),
                pooling="mean",
                num_outputs=2,
            )
        else:
            with pytest.warns(UserWarning, match="auto_map"):
                load_classifier(str(folder), pooling="mean", num_outputs=2)


@pytest.mark.filterwarnings("ignore")
def test_random_weights_and_plans_ask_nothing(plant: Plant, tiny_config: RunConfig) -> None:
    folder = str(plant())
    load_classifier(folder, pooling="pooler", num_outputs=2, init="random")
    assert resolve(replace(tiny_config, model=folder, freeze="embeddings")).freeze == "embeddings"


@pytest.mark.slow  # every command that loads a model
@pytest.mark.filterwarnings("ignore")
def test_no_command_runs_it(plant: Plant, tiny_config: RunConfig, tmp_path: Path) -> None:
    """Fine-tuning, and every command that loads a model of a run or a checkpoint."""
    places = {"model": str(plant()), "checkpoint": str(plant(seed=1)), "texts": str(tiny_config.train_file)}
    runs = [
        str(
            finetune(
                replace(tiny_config, model=places["model"], seed=seed, save_model=True, output_dir=str(tmp_path))
            ).path
        )
        for seed in (0, 1)
    ]
    places |= {"run": runs[0], "other": runs[1], "tuned": f"{runs[0]}/model"}
    for command in (["drift", "{model}", "{checkpoint}"], ["drift", "{run}"], *commands_of_questions().values()):
        assert not leave(main, [word.format(**places) for word in command]), command


def test_every_call_that_loads_says_that_code_is_not_trusted() -> None:
    """``load_dataset`` takes no such argument any more: the library has no code of data sets left to run."""
    calls = []
    for path in [*(ROOT / "toolkit").rglob("*.py"), *(ROOT / "experiments").rglob("*.py"), ROOT / "finetune.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr in ("from_pretrained", "from_config", "pipeline"):
                calls.append(node.func.attr)
                trust = {word.arg: word.value for word in node.keywords}.get("trust_remote_code")
                assert isinstance(trust, ast.Constant), f"{path.name}, line {node.lineno}"
                assert trust.value is False, f"{path.name}, line {node.lineno}"
    assert sorted(set(calls)) == ["from_config", "from_pretrained"]
    assert len(calls) >= 5


@pytest.mark.parametrize(
    ("name", "facts", "reader"),
    [
        ("tokenizer", {"unk_token": "[GONE]"}, Source.read_tokenizer),  # no row for unknown words
        ("tokenizer", {"post_processor": {"special_tokens": {}}}, Source.read_tokenizer),  # the library panics
        ("config", {"vocab_size": [[]]}, Source.read_config),
        ("config", {"hidden_dropout_prob": "x"}, Source.read_config),
        ("config", {"vocab_size": None}, Source.read_config),
    ],
)
def test_a_file_that_transformers_cannot_take_is_one_line(
    name: str,
    facts: dict[str, object],
    reader: Callable[[Source], object],
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """transformers refuses them with an error of its own kind."""
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "model")
    values = json.loads((folder / f"{name}.json").read_text())
    for key, fact in facts.items():
        part = values["model"] if key == "unk_token" else values
        part[key] = {**part[key], **fact} if isinstance(fact, dict) else fact
    (folder / f"{name}.json").write_text(json.dumps(values))
    check_refused(rf"^cannot read the {name} of [^\n]*$", reader, find_checkpoint(str(folder)))


RUNS_CODE = {
    "allow_pickle",
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib.load",
    "torch.load",
    "eval",
    "exec",
    "marshal",
    "shelve",
}
"""Modules, functions and options that run what a file or a text holds; so does every ``read_pickle``."""


def code_runners(source: str) -> list[str]:
    """What of RUNS_CODE a program imports or names: a function may be called where it is handed to."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Name | ast.Attribute):
            found += [ast.unparse(node)]
        elif isinstance(node, ast.keyword):
            found += [node.arg or ""]
    return [name for name in found if name in RUNS_CODE or name.endswith("read_pickle")]


def test_nothing_that_is_read_is_run() -> None:
    for path in (ROOT / "toolkit").rglob("*.py"):
        assert not code_runners(path.read_text()), path


@pytest.mark.parametrize(
    "source",
    [
        *(
            "import pickle",
            "from torch import load",
            "torch.load(path)",
            "eval(text)",
            "np.load(path, allow_pickle=True)",
        ),
        *("READERS = {'.pkl': pd.read_pickle}", "from pandas import read_pickle"),
    ],
)
def test_what_would_run_it_is_seen(source: str) -> None:
    assert code_runners(source)
    assert not code_runners("import re; np.load(path); model.eval()")
