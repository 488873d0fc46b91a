"""Tiny checkpoints of every family and a tiny config, built once per test session; no network, no weights shipped."""

import copy
import gc
import hashlib
import math
import os
import pickle
import pkgutil
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import altair
import hypothesis
import pytest

# Before torch is imported: processes that share the cores would stop one another. A test of threads sets their number.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
if not os.environ.get("TEST_ON_GPU"):  # many an oracle is to the bit, on a CPU
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch

# Runs and reports are thousands of small files: in memory, where there is room for them, they take half the system's
# time. Docker's /dev/shm of 64 MB has none.
if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 4e9:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

from tests.run_directories import MakeRun, SharedRuns
from toolkit.comparison import measure, verify
from toolkit.comparison.conditions import Condition
from toolkit.comparison.runs import ReportedRun
from toolkit.config import RunConfig
from toolkit.data.builtin import BUILTIN_TASKS
from toolkit.memory import keep_freed_memory
from toolkit.reporting import chart_files, charts, render_html
from toolkit.snapshots.store import MANIFEST, Run

CHART_OF = chart_files.image_of
CHART_LIBRARY = render_html.chart_library
START_LIBRARY = render_html.start_library
NOT_MEASURED = ("scores.csv", "predictions.parquet", "config.json", MANIFEST)
"""Files of a run in which no tensor is."""
MOST_WORKERS = 8
"""Each imports torch and transformers, about a gigabyte."""

LONGEST = {
    "test_interrupted.py",
    "test_processes.py",
    "test_builtin_slow.py",
    "test_dry_run.py",
    "test_reliability_slow.py",
}

# An example that takes long because other processes have the cores is no fault.
hypothesis.settings.register_profile("shared cores", deadline=None)
hypothesis.settings.load_profile("shared cores")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What ``-n auto`` means: every core that this process may use, hyper-threads too, and of slow tests, which wait
    for processes, locks and downloads, one more at a time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min((cores or 1) + (config.option.markexpr == "slow"), MOST_WORKERS)


def pytest_configure() -> None:
    """As the commands do: the pages of large arrays that tests make and drop are not mapped again each time.

    Nor does the garbage collector go through all that is imported again and again."""
    keep_freed_memory()
    gc.set_threshold(100_000, 20, 50)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: a process that meets one last keeps the others waiting."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
    for item in items:
        if os.environ.get("TEST_ON_GPU") and "step" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason="held against the plain step on a CPU"))


def pytest_collection_finish() -> None:
    """What was imported is not gone through at all: a tenth of the time. The first tests that need it import more."""
    gc.collect()
    gc.freeze()


NUM_THREADS = torch.get_num_threads()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """A test that leaves torch other threads than it found slows all that follow in its process: they wait by turns."""
    yield
    if (left := torch.get_num_threads()) != NUM_THREADS:
        torch.set_num_threads(NUM_THREADS)
        pytest.fail(f"leaves torch {left} threads, and found {NUM_THREADS}")


FAMILY_CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"type_vocab_size": 1},
    "distilbert": {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 32},
    "electra": {"embedding_size": 8},
    "albert": {"embedding_size": 8},
    "deberta-v2": {
        "embedding_size": 8,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "norm_rel_ebd": "layer_norm",
        "conv_kernel_size": 3,
        "type_vocab_size": 0,
    },
    "modernbert": {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
}
"""Model type to what its config needs beside the common sizes."""

_ONE_HEAD = {"num_key_value_heads": 1, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2}

ENCODERS: dict[str, dict[str, Any]] = {
    "mpnet": {"pad_token_id": 1},  # as its code has it, whatever the config says
    "mobilebert": {
        "embedding_size": 8,
        "true_hidden_size": 8,
        "intra_bottleneck_size": 8,
        "initializer_range": 0.2,  # its norms do not normalise: of small weights gradients would vanish
    },
    "esm": {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 4},
}
"""Encoders beside those of FAMILY_CONFIGS, in what does not depend on the inside of the embedding layer."""

DECODERS: dict[str, dict[str, Any]] = {
    "llama": _ONE_HEAD,
    "qwen3": _ONE_HEAD | {"tie_word_embeddings": True},
    "gemma3_text": _ONE_HEAD,  # which ties by itself
    "gpt2": {"bos_token_id": 1, "eos_token_id": 2},
    "gpt_neox": {"bos_token_id": 1, "eos_token_id": 2},
}
"""Language models that read from left to right."""

SEQ2SEQ: dict[str, dict[str, Any]] = {
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 3, "num_heads": 2, "decoder_start_token_id": 0},
}
OTHERS = ENCODERS | DECODERS | SEQ2SEQ

COMMON = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 48,
    "pad_token_id": 0,
}


def words_of_builtin_tasks() -> list[str]:
    """Every word of the built-in tasks' training splits, so that tiny models see no unknown words there."""
    splits = [task.build()["train"] for task in BUILTIN_TASKS.values()]
    texts = {text for split in splits for example in split.texts for text in example}
    return sorted({word for text in texts for word in text.lower().replace(".", " .").split()})


def sizes_of(model_type: str, **changes: Any) -> dict[str, Any]:
    """What a tiny config of any family takes."""
    return COMMON | (FAMILY_CONFIGS | OTHERS)[model_type] | changes


def build_tokenizer(padding: int = 0) -> Any:
    """A word-level tokenizer with BERT's special tokens and segments; ``padding``: 0 or 1, the row that pads."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "[unused0]", "[unused1]"]
    special[:2] = special[:2] if padding == 0 else special[1::-1]
    vocabulary = {word: i for i, word in enumerate([*special, *words_of_builtin_tasks()])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1 - padding), ("[SEP]", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def saved(model: Any, tokenizer: Any, folder: Path) -> Path:
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function: model type to the folder of a tiny checkpoint with random weights and a word-level tokenizer."""
    from transformers import AutoConfig, AutoModel

    @cache
    def build(model_type: str) -> Path:
        torch.manual_seed(0)
        tokenizer = build_tokenizer(sizes_of(model_type)["pad_token_id"])
        sizes = sizes_of(model_type, vocab_size=len(tokenizer) + 20)
        model = AutoModel.from_config(AutoConfig.for_model(model_type, **sizes))
        return saved(model, tokenizer, tmp_path_factory.mktemp(f"tiny-{model_type}"))

    return build


@pytest.fixture(scope="session")
def masked_lm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Model type to a tiny checkpoint with a masked-LM head, random but for its word table, which is not small."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    @cache
    def build(model_type: str) -> Path:
        torch.manual_seed(1)
        tokenizer = build_tokenizer()
        sizes = COMMON | {"vocab_size": len(tokenizer)} | FAMILY_CONFIGS[model_type]
        model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(model_type, **sizes))
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(20)
        return saved(model, tokenizer, tmp_path_factory.mktemp(f"masked-lm-{model_type}"))

    return build


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """A function: built-in task to RunConfig fields that read a small part of it (64/24/24) from files."""

    @cache
    def write(task: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp(task) / task
        folder.mkdir()
        columns = ("text", "other")[: 2 if task == "pair" else 1]
        for name, split in BUILTIN_TASKS[task].build().items():
            size = 64 if name == "train" else 24
            rows = zip(split.texts[:size], split.labels[:size], strict=True)
            lines = ["\t".join((*texts, str(label))) for texts, label in rows]
            (folder / f"{name}.tsv").write_text("\n".join(["\t".join((*columns, "label")), *lines]) + "\n")
        return {
            "train_file": str(folder / "train.tsv"),
            "validation_file": str(folder / "validation.tsv"),
            "test_file": (f"ood={folder / 'ood.tsv'}",),
            "text_columns": columns,
        }

    return write


@pytest.fixture(scope="session")
def tiny_config(tiny_model: Callable[[str], Path], tiny_files: Callable[[str], dict[str, Any]]) -> RunConfig:
    """A run of half a second: tiny BERT, 64 examples, two epochs of four steps."""
    return RunConfig(
        model=str(tiny_model("bert")),
        epochs=2,
        batch_size=16,
        precision="no",
        learning_rate=1e-3,
        max_length=40,
        head_training="epochs",
        **tiny_files("polarity"),
    )


@pytest.fixture(scope="session")
def tiny_pairs(tiny_config: RunConfig, tiny_files: Callable[[str], dict[str, Any]]) -> RunConfig:
    """The same with pairs of sentences, so that both segments are in use."""
    return replace(tiny_config, **tiny_files("pair"))


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """No wait for the disk: only the power can go between a write and its fsync, and in tests it stays on.

    No line of progress either: whether a test takes two seconds hangs on the machine.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr("toolkit.progress.FIRST_SECONDS", math.inf)
        yield


@pytest.fixture(scope="session", autouse=True)
def _choices_once() -> Iterator[None]:
    """The cross-validations of the bag of words and of the linear probe run once for equal input: they are half the
    time of a tiny run. Their own tests call them by the names they imported before this."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("toolkit.training.floors._best_strength", "toolkit.training.features.choose_strength"):
            patch.setattr(
                name,
                _remembered(pkgutil.resolve_name(name), lambda values: hashlib.sha256(pickle.dumps(values)).digest()),
            )
        yield


def _remembered(function: Callable[..., Any], key_of: Callable[[tuple[Any, ...]], Any]) -> Callable[..., Any]:
    """The same function, called once for values of equal keys."""
    known: dict[Any, Any] = {}

    def call(*values: Any) -> Any:
        key = key_of(values)
        if key not in known:
            known[key] = function(*values)
        return copy.deepcopy(known[key])

    return call


@pytest.fixture(scope="session", autouse=True)
def _measured_once() -> Iterator[None]:
    """What a report measures of a run's tensors is measured once for equal ones: most reports are on the same runs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "drift_of",
            "gauge_of",
            "measure_first",
            "strata_of",
            "measure_condition_words",
            "distance_of_seeds",
        ):
            is_named = name in ("measure_first", "drift_of")  # the second where it says why there is no number
            once = _remembered(
                getattr(measure, name), lambda values, n=is_named: repr([_measured(value, n) for value in values])
            )
            for module in (measure, verify):
                patch.setattr(module, name, once, raising=False)  # verify measures some through the other
        yield


def _measured(value: Any, is_named: bool) -> Any:
    """What is read of a run to measure its tensors: the hash of each such file and what its manifest says of it, and
    its name where that is written into the table."""
    if isinstance(value, Condition):
        return [_measured(run, is_named) for run in value.runs]
    if isinstance(value, ReportedRun):
        return (value.name, value.run.path.name) if is_named else "", _measured(value.run, is_named)
    if not isinstance(value, Run):
        return value
    said = value.manifest if value.is_finished else {"path": str(value.path)}
    paths = [path for path in sorted(value.path.rglob("*")) if path.is_file() and path.name not in NOT_MEASURED]
    hashes = {path.relative_to(value.path).as_posix(): hashlib.sha256(path.read_bytes()).digest() for path in paths}
    claims = [said.get(part, {}).get(name) for part in ("files", "sizes") for name in hashes]
    return hashes, claims, [said.get(name) for name in ("path", "problems", "frozen", "regime", "added_tokens")]


@pytest.fixture(scope="session")
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedRuns]:
    """Runs that are written once per session; whoever changes one fails the session."""
    runs = SharedRuns(tmp_path_factory.mktemp("shared"))
    yield runs
    assert not runs.changed(), "a test changed a run that others read: let it take make_run's copy"


@pytest.fixture(scope="session")
def read_run(shared_runs: SharedRuns) -> MakeRun:
    """``read_run(regime, seed, **oddities)``: as ``make_run``, for tests that change nothing and name no place."""
    return shared_runs.get


@pytest.fixture
def make_run(shared_runs: SharedRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRun:
    """``make_run(regime, seed, **oddities)``: a run of the test's own below the current directory, a temporary one."""
    monkeypatch.chdir(tmp_path)

    def make(regime: str = "none", seed: int = 0, **oddities: Any) -> Run:
        return shared_runs.copy_into(tmp_path / "runs", regime, seed, **oddities)

    return make


def leave_undrawn(patch: pytest.MonkeyPatch) -> None:
    """Reports without figures, for tests of the text: drawing is what takes the time."""
    patch.setattr("toolkit.reporting.topics.drift.draw", lambda makers: {})
    patch.setattr("toolkit.reporting.topics.runs.draw", lambda makers: {})
    patch.setattr("toolkit.reporting.comparison_report.picture_of", lambda data: None)
    patch.setattr("toolkit.reporting.topics.words.words_chart", lambda words: altair.Chart().mark_point())


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """:func:`leave_undrawn` for one test."""
    leave_undrawn(monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def _sketched() -> Iterator[None]:
    """Figures and charts are made, but saved as a few bytes: the formats are most of a report's time.

    Tests of what is in the files ask for ``drawn`` or ``as_files``.
    """

    def chart_of(chart: Any, kind: str) -> bytes:
        if not isinstance(chart, dict):
            charts.spec_of(chart)  # against Vega-Lite's schema, as a block's chart was before
        return b"<svg xmlns='http://www.w3.org/2000/svg'/>" if kind == "svg" else kind.encode()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chart_files, "image_of", chart_of)
        patch.setattr(render_html, "chart_library", lambda: "")
        patch.setattr(render_html, "start_library", lambda: None)
        yield


@pytest.fixture(scope="session")
def as_files() -> Callable[[], AbstractContextManager[None]]:
    """``with as_files():`` figures are files as users get them."""

    @contextmanager
    def context() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chart_files, "image_of", CHART_OF)
            patch.setattr(render_html, "chart_library", CHART_LIBRARY)
            patch.setattr(render_html, "start_library", START_LIBRARY)
            yield

    return context


@pytest.fixture(scope="module")
def drawn(as_files: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """The same for all of a module's tests."""
    with as_files():
        yield
