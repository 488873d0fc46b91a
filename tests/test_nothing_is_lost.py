"""What a user has put into a folder survives every command and every function that writes, byte for byte."""

import ast
import runpy
from collections import ChainMap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerState, TrainingArguments

import toolkit
from tests.planted_folder import FILES, LINKS, contents, plant
from tests.questions.examples import GONE, examples, experiment
from tests.refusals import check_refused
from tests.run_directories import write_run
from toolkit.commands import DriftCommand, ReportCommand, StudyCommand, VerifyCommand
from toolkit.config import RunConfig
from toolkit.reporting.folder import write_page
from toolkit.reporting.page import Page
from toolkit.snapshots.run_writer import start_run
from toolkit.snapshots.store import Run
from toolkit.studies.plan import resolve, run_path

ROOT = Path(__file__).parents[1]
REPORTS: dict[str, Callable[[Path], object]] = {
    "report": lambda out: ReportCommand(runs=(GONE,), out=out).run(),
    "drift": lambda out: DriftCommand(places=("nowhere", "neither"), out=out).run(),
    "study": lambda out: StudyCommand(file=ROOT / "experiments/three_regimes.py", out=out, output_dir=GONE).run(),
    "write_report": lambda out: toolkit.write_report([GONE], out),
    "write_page": lambda out: write_page(Page(title="of tables"), out, {}),
    "sst2_three_regimes.py": experiment("sst2_three_regimes", "--data", "nowhere", "--out", "OUT"),
    "learning_rates.py": experiment("learning_rates", "nowhere", "OUT"),
    "position_tables.py": experiment("position_tables", "nowhere", "OUT"),
    **ChainMap(*examples("REPORTS")),
}
"""Everything that makes a report in a folder."""

ALONE = [(name,) for name in (*FILES, *LINKS)]


def refuse(write: Callable[[Path], object], place: Path) -> str:
    """The one line with which something is refused; everything around is as it was."""
    before = contents(place.parent)
    with pytest.raises((ValueError, SystemExit)) as refused:
        write(place)
    assert contents(place.parent) == before
    said = str(refused.value)
    assert (len(said.splitlines()), place.name in said) == (1, True)
    return said


@pytest.mark.parametrize("name", REPORTS)
def test_a_folder_of_a_users_own_takes_no_report(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for i, names in enumerate([(*FILES, *LINKS), *ALONE]):
        refuse(REPORTS[name], plant(tmp_path / str(i), names))


@pytest.fixture(scope="module")
def model(tiny_model: Callable[[str], Path]) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(tiny_model("bert"))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("how", ["record", "callback", "train begin", "start_run"])
def test_a_folder_of_a_users_own_takes_no_run(how: str, overwrite: bool, model: Any, tmp_path: Path) -> None:
    def begin(place: Path) -> object:
        """The folder is filled between the making of the callback and training."""
        aside = place.rename(place.with_name("aside"))
        callback = toolkit.EmbeddingSnapshotCallback(place, overwrite=overwrite)
        aside.rename(place)
        arguments = TrainingArguments(str(tmp_path / "elsewhere"), seed=0, report_to="none", use_cpu=True)
        return callback.on_train_begin(arguments, TrainerState(epoch=0.0), None, model=model)

    ways: dict[str, Callable[[Path], object]] = {
        "start_run": lambda place: start_run(place, overwrite=overwrite),
        "record": lambda place: toolkit.record(model, place, overwrite=overwrite),
        "callback": lambda place: toolkit.EmbeddingSnapshotCallback(place, overwrite=overwrite),
        "train begin": begin,
    }
    for i, names in enumerate([(*FILES, *LINKS), *ALONE]):
        said = refuse(ways[how], plant(tmp_path / str(i), names))
        assert "pass a folder of its own" in said or how == "start_run"


def test_a_folder_of_a_users_own_takes_no_finetuning(tiny_config: RunConfig, tmp_path: Path) -> None:
    for i, names in enumerate([(*FILES, *LINKS), ("config.json",), ("snapshots/keep.txt",)]):
        config = replace(tiny_config, output_dir=str(tmp_path / str(i)), max_steps=1)
        mine = plant(tmp_path / str(i), names)
        path = run_path(resolve(config))
        mine.rename(path)
        for given in (config, replace(config, overwrite=True)):
            refuse(lambda _, given=given: toolkit.finetune(given), path)
        path.rename(mine)
        before = contents(mine)
        run = toolkit.finetune(replace(config, output_dir=str(mine)))  # beside what is there, in a folder of its own
        after = contents(mine)
        assert toolkit.verify_run(run.path) == []
        assert before.items() <= after.items()
        assert all(name.split("/")[0] == run.path.name for name in after.keys() - before.keys())


def test_an_experiment_leaves_the_tables_of_a_user_alone(tmp_path: Path) -> None:
    refuse(experiment("position_tables", "nowhere", "OUT"), plant(tmp_path / "of-user") / "data/train.csv")


def test_data_that_an_experiment_draws_replace_no_others(tmp_path: Path) -> None:
    write = runpy.run_path(str(ROOT / "experiments" / "shuffled_labels.py"))["write_data"]
    place = Path(write("order", 10, tmp_path)["train_file"])
    assert write("order", 10, tmp_path)["train_file"] == str(place)
    place.write_text("mine")
    refuse(lambda _: write("order", 10, tmp_path), place)


@pytest.mark.parametrize("kind", ["config", "another config", "log", "link"])
def test_a_study_writes_over_nothing_beside_its_runs(kind: str, tiny_config: RunConfig, tmp_path: Path) -> None:
    from tests.studies.tiny_studies import make_study
    from toolkit.studies.plan import plan_runs
    from toolkit.studies.runner import FOLDER, make_jobs

    runs = plan_runs(make_study(tiny_config).final_cells({}), tmp_path / "runs")
    make_jobs(runs[:1])
    (written,) = (tmp_path / "runs" / FOLDER).iterdir()
    place = written if "config" in kind else written.with_name(f"{runs[0].name}.log")
    (tmp_path / "mine").write_text("")
    if kind == "link":
        place.symlink_to(tmp_path / "mine")
    mine = {"config": '{"mine": 1}', "another config": RunConfig(seed=7).to_json(), "log": "a diary", "link": ""}
    place.write_text(mine[kind])
    refuse(lambda _: make_jobs(runs[:1]), place)
    place.unlink()
    assert [job.command for job in make_jobs(runs)] == [job.command for job in make_jobs(runs)]
    kept = place.with_name(f"{runs[0].name}.json")  # anybody's
    kept.write_text(RunConfig(seed=7).to_json())
    before = contents(kept.parent)
    saved = replace(runs[0], config=replace(runs[0].config, save_model=not runs[0].config.save_model))
    make_jobs([saved])  # whose run has the same name
    assert before.items() <= contents(kept.parent).items()


def test_a_report_lies_in_no_run(tmp_path: Path, make_run: Callable[..., Run]) -> None:
    run = make_run()
    started = start_run(tmp_path / "unfinished")
    started.write_recorded_config({})
    for place in (run.path, run.path / "model" / "report", started.path, started.path / "report"):
        before = contents(tmp_path)
        for write in (REPORTS["drift"], REPORTS["write_page"]):
            check_refused("the report would lie inside the run", write, place)
        assert contents(tmp_path) == before


def test_what_a_user_puts_beside_a_report_stays_and_is_not_written_over(tmp_path: Path) -> None:
    """A name that this report writes and the one before did not is found before anything is moved."""
    from toolkit.reporting.folder import report_folder

    def fill(folder: Path, text: str, *names: str) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    def write(out: Path, *names: str) -> None:
        with report_folder(out) as folder:
            fill(folder, "ours", *names)

    out = tmp_path / "out"
    write(out, "report.md", "tables/a.csv")
    fill(out, "mine", "thesis.tex", "tables/mine.csv", ".hidden", ".unfinished-chapter/notes.txt", "figures")
    mine = {name: state for name, state in contents(out).items() if name != "files.json"}
    for names in (("tables/a.csv", "tables/mine.csv"), ("figures/a.png",), ("thesis.tex/a",)):
        refuse(lambda place, names=names: write(place, "report.md", *names), out)
    write(out, "report.md", "tables/b.csv")
    after = contents(out)
    assert "tables/a.csv" not in after
    assert all(after[name] == state for name, state in mine.items() if state[0] == b"mine")
    (out / "tables").rename(tmp_path / "tables")
    (out / "tables").symlink_to(tmp_path / "tables")
    refuse(lambda place: write(place, "report.md", "tables/b.csv"), out)


@pytest.mark.usefixtures("undrawn")
def test_a_command_writes_its_report_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where it is started, nor beside the report, nor in the runs that it reads."""
    runs = [write_run(tmp_path / "runs", "none", seed).path for seed in range(2)]
    monkeypatch.chdir(plant(tmp_path))
    for command in (
        ReportCommand(runs=tuple(runs), out=tmp_path / "comparison"),
        DriftCommand(places=tuple(map(str, runs)), out=tmp_path / "drift"),
        DriftCommand(places=(str(runs[0]),)),
        VerifyCommand(directory=tmp_path / "comparison", more=tuple(runs)),
    ):
        before, out = contents(tmp_path), getattr(command, "out", None)
        assert command.run() == 0
        after = contents(tmp_path)
        assert {name: after[name] for name in after if out is None or name.split("/")[0] != out.name} == before


REMOVING = {"unlink", "rmtree", "rmdir", "remove", "removedirs", "rename", "renames", "move"}
NO_FILES = ("running", "pending", "hook", "handle", "self._handle", "element", "self._trained")
"""Lists, hooks and XML that things are removed from."""
WRITING = {"write_text", "write_bytes", "savefig", "save_pretrained", "save_file", "touch"}
VALUES = {"to_dict", "to_numpy", "to_numeric", "to_array", "to_device", "to_bytes"}
"""What else begins with ``to_`` and is given something; all others of such a name write a file, as pandas' do."""


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """File, function or method, and call, of every call in the package."""
    for path in sorted((ROOT / "toolkit").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                yield path.relative_to(ROOT / "toolkit").as_posix(), name, node


def test_one_module_alone_removes_and_replaces() -> None:
    """Another would not know whose the file is."""
    found = set()
    for file, name, call in calls():
        text = ast.unparse(call)
        owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        is_path_replace = name == "replace" and (owner == "os" or (len(call.args) == 1 and not call.keywords and owner))
        is_path_replace = is_path_replace and not text.startswith(
            ("frame[", "table[", "lines[", "ordered[", "defined[")
        )  # of values
        is_removing = (name in REMOVING and owner not in NO_FILES and not call.keywords) or (
            owner == "shutil" and name not in ("which", "disk_usage", "get_terminal_size")
        )
        mode = next((k.value for k in call.keywords if k.arg == "mode"), call.args[1] if len(call.args) > 1 else None)
        if name == "open" and owner not in ("os",):
            mode = call.args[0] if isinstance(call.func, ast.Attribute) and call.args else mode
            is_opened = isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) & set("wax+")
        else:
            is_opened = name == "open" and "O_CREAT" in text
        is_written = name in WRITING or (name.startswith("to_") and name not in VALUES)
        is_written = is_written and owner != "files" and bool(call.args or name == "touch")
        is_temporary = name in ("mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile") and "dir=" in text
        if is_path_replace or is_removing or is_opened or is_written or is_temporary:
            found.add((file, text))
    assert {(file, text) for file, text in found if file != "snapshots/ownership.py"} == ALLOWED


ALLOWED = {
    # into a temporary file or folder that snapshots/ownership.py made
    ("snapshots/files.py", "temporary.write_text(text, encoding='utf-8')"),
    ("snapshots/files.py", "temporary.write_bytes(content)"),
    ("snapshots/files.py", "temporary.open('wb')"),
    (
        "comparison/evidence.py",
        "table.to_parquet(path, index=False, use_dictionary=other_columns, use_byte_stream_split=floats, **packed)",
    ),
    (
        "reporting/comparison_report.py",
        "table.astype(dict.fromkeys(mixed, str)).to_parquet(path, index=False, compression='zstd')",
    ),
    ("models/lora.py", "settings.save_pretrained(folder)"),
    ("training/saver.py", "masked_lm.save_pretrained(folder)"),
    (
        "training/saver.py",
        "backbone.save_pretrained(folder, state_dict=whole_state(backbone, merged_state(backbone)))",
    ),
    ("training/saver.py", "self.loaded.tokenizer.save_pretrained(folder)"),
    # into memory
    # logs, to which lines are added when they are ours
    ("studies/executors.py", "job.log.open('ab')"),
}
"""What writes elsewhere, and why it may."""
