"""Question: what share of small faults do the tests notice, and is it the same share after the code was moved?

mutants.py plants faults that somebody thought of; here a seed draws 300, uniformly over the statements of six packages,
so that nobody chose them. A statement is the innermost one (an ``if`` is its condition); imports, docstrings, headers
of functions and classes, type hints, ``__all__`` and what only type checkers see are none. Its mutation is drawn too: a
comparison (< or <=, == or !=, in or not in ...), a sign (+ or -, * or /, a minus dropped), a constant (a number plus
one, a bool flipped), or the statement dropped (a call, an augmented assignment, one to an attribute or item, raise,
continue, break). Left out are what changes nothing where nothing else is wrong (``strict=`` of zip, ``stacklevel=``)
and signs beside a text, which make a path or a sentence.

The tests that concern a mutant are those that ran its line, by a coverage file of the same commit; where a fixture ran
it, all tests of that file, which share it; of what runs at import, tests that ran a line of the file that names it, and
then all that ran any line of it. Those that run the fewest lines of the toolkit come first. At most 40 are run, until
one fails, and none begins after 20 s of the processor; ``concern`` and ``run`` say how many. Where one test takes more
than 120 s the result is "time limit", which counts as caught; a mutant that no test runs survived. A test that fails on
the tree as it is catches nothing: each that caught something is run there too. Lines that only another process runs (of
a test that starts ``python -m toolkit``) have no tests but those that run them in their own.

    pip install pytest-cov==7.1.0
    python -m pytest -n auto --dist loadfile -m "not slow" --cov=toolkit --cov-context=test --cov-report=
    TMPDIR=/dev/shm python experiments/reliability/drawn_mutants.py --coverage .coverage
    python experiments/reliability/drawn_mutants.py --coverage .coverage --out again.json \\
        --against experiments/reliability/drawn_mutants.json

Both work on copies of the commit that is checked out, which the coverage has to be of, and go on where they were ended.
The last tries the mutants of another commit on this one, first with the test that caught each: at the same place of the
same function, or where a function of that name now has the same text (which may have become public, and call others
that have); else it is "gone", and no rate counts it.
"""

import ast
import copy
import gc
import importlib.util
import json
import os
import platform
import py_compile
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from typing import Any

# As tests/conftest.py has it, before torch is imported: children are forked and cannot set it any more.
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

import pytest
import tyro

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = ("data", "models", "snapshots", "training", "analysis", "comparison")
NUMBER, SEED = 300, 0
CAP, BUDGET, LIMIT, MOST_BYTES = 40, 20, 120, 8 << 30
"""Tests; seconds of the processor after which none begins; seconds of one; and what a mutant may fill of the memory."""
RESULTS = ("caught", "time limit", "survived", "gone")
LIBRARIES = (
    *("torch", "torch.utils.data", "torch._dynamo", "transformers", "transformers.models.auto.modeling_auto"),
    *("transformers.trainer", "transformers.models.bert.modeling_bert", "accelerate", "datasets", "huggingface_hub"),
    *(
        "sklearn.linear_model",
        "sklearn.model_selection",
        "sklearn.feature_extraction.text",
        "pandas",
        "pyarrow.parquet",
    ),
    *(
        "scipy.stats",
        "scipy.optimize",
        "scipy.sparse.linalg",
        "statsmodels.api",
        "altair",
        "vl_convert",
        "jinja2",
        "rich",
    ),
    *("seqeval.metrics", "hypothesis", "hypothesis.extra.numpy"),
)
"""Imported once, before children are forked: that takes longer than to try most mutants."""
OTHER: dict[type[ast.AST], type[ast.AST]] = {
    another: one
    for first, second in (
        *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot)),
        *((ast.Add, ast.Sub), (ast.Mult, ast.Div)),
    )
    for one, another in ((first, second), (second, first))
}


@dataclass(frozen=True)
class Site:
    """A place that can be mutated, and how."""

    place: dict[str, Any]
    """File; function or class with those around it, or <module>; which of its places it is; kind; the expression around
    what changes, or the statement, as it was and becomes."""
    likeness: tuple[str, ...]
    span: tuple[int, int]
    text: str
    """What stands there instead, by bytes of the file."""
    line: int
    """Where its statement begins."""
    lines: range
    names: set[str] | None
    """What its statement gives a value, where it runs at import: what reads them is tested."""


def statements(node: ast.AST, function: str = "", at_import: bool = True) -> Iterator[tuple[ast.stmt, str, bool]]:
    """Every statement that may be mutated, with its function and whether it runs when the module is imported."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                is_early = at_import and isinstance(child, ast.ClassDef)
                yield from statements(child, f"{function}.{name}".lstrip("."), is_early)
            case (
                ast.Import()
                | ast.ImportFrom()
                | ast.Expr(value=ast.Constant())
                | ast.If(test=ast.Name("TYPE_CHECKING"))
            ):
                pass
            case _:
                if isinstance(child, ast.stmt) and not ast.unparse(child).startswith("__all__"):
                    yield child, function or "<module>", at_import
                yield from statements(child, function, at_import)


def own_nodes(node: ast.AST, frame: ast.AST) -> Iterator[tuple[Any, ast.AST]]:
    """All below a node that is in no statement below it, each with the expression (or statement) around it."""
    if isinstance(node, ast.expr | ast.pattern | ast.stmt) and not isinstance(node, ast.Slice):
        frame = node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if (
                isinstance(child, ast.AST)
                and not isinstance(child, ast.stmt | ast.JoinedStr)
                and name != "annotation"
                and getattr(child, "arg", "") not in ("strict", "stacklevel")
            ):
                yield child, child if isinstance(child, ast.Compare | ast.BinOp | ast.UnaryOp) else frame
                yield from own_nodes(child, frame)


def mutations(node: ast.AST) -> Iterator[tuple[str, str, Any]]:
    """The kind of each mutation of a node itself, and the attribute that takes another value."""
    match node:
        case ast.Compare(ops=ops):
            yield from (("comparison", "ops", [*ops[:i], OTHER[type(op)](), *ops[i + 1 :]]) for i, op in enumerate(ops))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OTHER:
            if not any(
                isinstance(side, ast.JoinedStr) or isinstance(getattr(side, "value", 0), str) for side in (left, right)
            ):
                yield "sign", "op", OTHER[type(op)]()
        case ast.UnaryOp(op=ast.USub()):
            yield "sign", "op", ast.UAdd()
        case ast.Constant(value=bool(value)):
            yield "constant", "value", not value
        case ast.Constant(value=int(value) | float(value)) if value + 1 != value:
            yield "constant", "value", value + 1
        case (
            (ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break())
            | ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
            | ast.AnnAssign(target=ast.Attribute(), value=ast.expr())
        ):
            yield "dropped", "is_dropped", True


def head_of(node: ast.AST) -> str:
    """The text of an expression, or of a statement without the statements in it."""
    if isinstance(node, ast.stmt):
        node = ast.Pass() if getattr(node, "is_dropped", False) else copy.copy(node)
        vars(node).update(
            {name: [] for name in ("body", "orelse", "finalbody", "handlers", "cases") if hasattr(node, name)}
        )
    return ast.unparse(node)


def likeness_of(place: dict[str, Any]) -> tuple[str, ...]:
    """Equal for a place before and after a move, which may make a function public."""
    return tuple(re.sub(r"\b_+(?=\w)", "", place[name]) for name in ("kind", "function", "was", "becomes"))


def sites_of(file: str, source: str) -> Iterator[Site]:
    """All places of a file that can be mutated."""
    starts = [0, *accumulate(len(line) for line in source.encode().splitlines(keepends=True))]
    ordinals: Counter[str] = Counter()
    for statement, function, at_import in statements(ast.parse(source)):
        stored = {
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        for node, frame in [(statement, statement), *own_nodes(statement, statement)]:
            for kind, attribute, value in mutations(node):
                place = {
                    "file": file,
                    "function": function,
                    "ordinal": ordinals[function],
                    "kind": kind,
                    "was": head_of(frame),
                }
                before = getattr(node, attribute, False)
                setattr(node, attribute, value)
                place["becomes"], text = head_of(frame), head_of(node)
                setattr(node, attribute, before)
                span = (starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset)
                where = (statement.lineno, range(node.lineno, node.end_lineno + 1), stored if at_import else None)
                yield Site(place, likeness_of(place), span, text, *where)
                ordinals[function] += 1


def draw(sites: list[Site]) -> Iterator[dict[str, Any]]:
    """Statements by the seed, and for each a kind of mutation and then a place of that kind."""
    of_statement: defaultdict[tuple[str, int], list[Site]] = defaultdict(list)
    for site in sites:
        if Path(site.place["file"]).parts[1] in PACKAGES:
            of_statement[site.place["file"], site.line].append(site)
    rng = random.Random(SEED)
    for key in sorted(rng.sample(sorted(of_statement), NUMBER)):
        kind = rng.choice(sorted({site.place["kind"] for site in of_statement[key]}))
        site = rng.choice([site for site in of_statement[key] if site.place["kind"] == kind])
        yield {"package": Path(key[0]).parts[1], **site.place}


def find(mutant: dict[str, Any], sites: list[Site]) -> Site | None:
    """The place of a mutant in a tree that may be another one."""
    wanted = likeness_of(mutant)
    alike = [site for site in sites if site.likeness == wanted]
    for some in ([site for site in alike if site.place["file"] == mutant["file"]], alike):
        for narrowed in ([site for site in some if site.place["ordinal"] == mutant["ordinal"]], some):
            if len(narrowed) == 1:
                return narrowed[0]
    return None


class Coverage:
    """Which tests ran which lines: a coverage file with the tests as contexts."""

    def __init__(self, path: Path) -> None:
        self.of_file: defaultdict[str, list[tuple[str, str, int]]] = defaultdict(list)
        self.breadth: Counter[str] = Counter()
        """How many lines of the toolkit each test ran itself: the fewer, the closer it is to them."""
        with closing(sqlite3.connect(path)) as connection:
            files, contexts = (dict(connection.execute(f"select * from {name}")) for name in ("file", "context"))
            for file, context, bits in connection.execute("select file_id, context_id, numbits from line_bits"):
                test, _, phase = contexts[context].rpartition("|")
                ran = int.from_bytes(bits, "little")
                if test:  # and not what was imported before any
                    self.of_file[files[file][files[file].rindex("/toolkit/") + 1 :]].append((test, phase, ran))
                    self.breadth[test] += ran.bit_count() * (phase == "run")

    def running(self, file: str, lines: Iterable[int]) -> list[str]:
        """The tests that ran one of the lines, and then those of a file a fixture of which did; the closest first."""
        wanted = sum(1 << line for line in set(lines))
        own = {test for test, phase, bits in self.of_file[file] if bits & wanted and phase == "run"}
        files = {test.split("::")[0] for test, phase, bits in self.of_file[file] if bits & wanted and phase != "run"}
        tests = own | {test for test in self.breadth if test.split("::")[0] in files}
        return sorted(tests, key=lambda test: (test not in own, self.breadth[test], test))

    def concerning(self, site: Site, source: str) -> list[str]:
        if site.names is None:
            return self.running(site.place["file"], site.lines) or self.running(site.place["file"], [site.line])
        names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name | ast.Attribute)]
        read = [node.lineno for node in names if getattr(node, "id", getattr(node, "attr", "")) in site.names]
        wanted = (read, range(source.count("\n") + 1))
        return [test for lines in wanted for test in self.running(site.place["file"], lines)]


def killer_of(by: str, tests: Iterable[str]) -> list[str]:
    """What caught a mutant on another tree: the test of its name, in a file of the same name where several have it."""
    file, _, name = by.partition("::")
    alike = [test for test in tests if name and test.partition("::")[2] == name]
    return sorted(alike, key=lambda test: (test != by, Path(test.partition("::")[0]).name != Path(file).name))[:1]


class Watch:
    """A plugin of pytest: which tests run, in what order and until when, and which fail."""

    def __init__(self, now: Path, tests: list[str], until: float) -> None:
        self.tests, self.now, self.until, self.failed = tests, now, until, dict[str, str]()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """By file, so that what a module's tests share is made once; the file of the closest test is first."""
        files = [test.split("::")[0] for test in self.tests]
        items[:] = [item for item in items if item.nodeid in self.tests]
        items.sort(key=lambda item: (files.index(item.nodeid.split("::")[0]), self.tests.index(item.nodeid)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.now.write_text(f"{self.now.read_text()}{nodeid}\n")

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if sum(os.times()[:4]) > self.until:  # with the processes that tests waited for
            item.session.shouldstop = "the budget is spent"

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            said = getattr(getattr(report.longrepr, "reprcrash", None), "message", str(report.longrepr)[-200:])
            self.failed.setdefault(report.nodeid, " ".join(said.split())[:200])

    pytest_collectreport = pytest_runtest_logreport


def settle(folder: str, commit: str) -> None:
    """Work in a folder of this process's own that has a copy of the tree, with the bytecode of all tests."""
    os.chdir(tempfile.mkdtemp(dir=folder))
    subprocess.run(f"git -C '{ROOT}' archive --prefix=tree/ {commit} | tar -x", shell=True, check=True)
    if failed := attempt([], None)[1]:
        raise SystemExit(f"the tests cannot be collected: {failed}")


def run_tests(tests: list[str], is_clean: bool) -> None:
    """In a process of its own, on the copy; without tests all are collected."""
    folder, tree = Path.cwd(), Path.cwd() / "tree"
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    for number, path in enumerate([Path(os.devnull), folder / "log", folder / "log"]):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), number)
    os.chdir(tree)
    sys.path[0] = str(tree)  # in the place of this script's folder
    sys.dont_write_bytecode = not is_clean
    os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "" if is_clean else "1"}
    assert importlib.util.find_spec("toolkit").origin == f"{tree}/toolkit/__init__.py"  # type: ignore[union-attr]
    watch = Watch(folder / "now", tests, float("inf") if is_clean else BUDGET)
    options = [
        "-q",
        "-m",
        "not slow",
        "--tb=short",
        "--hypothesis-seed=0",
        f"--basetemp={folder / 'made'}",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:cov",
        *([] if is_clean else ["-x"]),
    ]
    files = dict.fromkeys(test.split("::")[0] for test in tests) or ["tests", "--collect-only"]
    code = pytest.main([*options, *files], plugins=[watch])
    (folder / "said").write_text(json.dumps([int(code), watch.failed]))


def end_processes(pid: int) -> None:
    """Also those that tests started and left: this folder is in their environment."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if os.fsencode(f"{Path.cwd()}/") in environment.read_bytes():
                os.kill(int(environment.parent.name), signal.SIGKILL)


def attempt(tests: list[str], site: Site | None) -> tuple[dict[str, Any], dict[str, str]]:
    """What becomes of a mutant (or of the tree as it is), and of the tests that fail what they say."""
    said, log, now = (Path(name) for name in ("said", "log", "now"))
    for file in (said, log, now):
        file.write_text("")
    path = Path("tree", site.place["file"] if site else "finetune.py")
    source = path.read_bytes()
    if site:
        path.write_bytes(source[: site.span[0]] + site.text.encode() + source[site.span[1] :])
        Path(importlib.util.cache_from_source(str(path))).unlink()  # or another text might be seen
    if not (pid := os.fork()):
        try:
            run_tests(tests, site is None)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    try:
        while not (is_late := time.time() - now.stat().st_mtime > LIMIT) and not os.waitpid(pid, os.WNOHANG)[0]:
            time.sleep(0.02)
    finally:
        end_processes(pid)
    path.write_bytes(source)
    py_compile.compile(str(path))
    for name in ("made", "tree/.hypothesis"):
        shutil.rmtree(name, ignore_errors=True)
    ran = now.read_text().splitlines()
    code, failed = json.loads(said.read_text() or "[-1, {}]")
    if is_late or (code not in (0, 2, 5) and not failed):  # neither passed nor stopped, nor without any of the tests
        failed = {ran[-1] if ran else "tests/conftest.py": "time limit" if is_late else log.read_text()[-200:]}
    result = "time limit" if is_late else "caught" if failed else "survived"
    return {"result": result, "run": len(ran), "by": next(iter(failed), "")}, failed


def try_all(table: dict[str, Any], pool: ProcessPoolExecutor, coverage: Coverage, out: Path) -> None:
    """Give each mutant of the table its result, and write it down."""
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "toolkit").rglob("*.py"))
    }
    sites = [site for file, source in sources.items() for site in sites_of(file, source)]
    mutants = table["mutants"] = table["mutants"] or list(draw(sites))
    tried, failing = set[str](), set[str]()
    while table["failing anyway"] is None:
        waiting = {}
        for mutant in mutants:
            if mutant.setdefault("result", None) is None:
                site, tests = find(mutant, sites), []
                if site:
                    mutant |= site.place
                    tests = coverage.concerning(site, sources[mutant["file"]])
                    tests = [*killer_of(mutant.get("by", ""), coverage.breadth), *tests]
                tests = [test for test in dict.fromkeys(tests) if test not in failing]
                if tests:
                    waiting[pool.submit(attempt, tests[:CAP], site)] = mutant
                else:
                    mutant |= {"result": "survived" if site else "gone", "run": 0, "by": ""}
                mutant["concern"] = len(tests)
        for future in as_completed(waiting):
            facts, said = future.result()
            waiting[future].update(facts)
            print(facts["result"], named(waiting[future]), facts["run"], *said.items(), flush=True)
            save(table, out)
        killing = sorted({mutant["by"] for mutant in mutants} - tried - {""})
        parts = [part for part in (killing[::2], killing[1::2]) if part]
        for part, (facts, said) in zip(parts, pool.map(attempt, parts, [None] * len(parts)), strict=True):
            failing |= said.keys()
            tried |= said.keys() if said and facts["run"] < sum("::" in test for test in part) else set(part)
        for mutant in mutants:
            if mutant["by"] in failing:
                mutant["result"] = None
        if not killing:
            table["failing anyway"] = sorted(failing)
        save(table, out)


def named(mutant: dict[str, Any]) -> str:
    was, becomes = (" ".join(mutant[key].split())[:90] for key in ("was", "becomes"))
    return f"{mutant['file']} {mutant['function']}: {was} -> {becomes}"


def save(table: dict[str, Any], path: Path) -> None:
    """With the rate of each package, the share that was caught of those still there; a mutant a line."""
    for package in (*PACKAGES, "all"):
        results = [mutant["result"] for mutant in table["mutants"] if package in (mutant["package"], "all")]
        row = {"drawn": len(results)} | {result: results.count(result) for result in RESULTS}
        caught = row["caught"] + row["time limit"]
        table["rates"][package] = row | {"rate": round(caught / (caught + row["survived"] or 1), 3)}
    lines = ",\n".join(f"  {json.dumps(mutant, ensure_ascii=False)}" for mutant in table["mutants"])
    text = json.dumps({**table, "mutants": 0}, indent=1).replace('"mutants": 0', f'"mutants": [\n{lines}\n ]')
    path.with_suffix(".part").write_text(f"{text}\n", encoding="utf-8")
    path.with_suffix(".part").replace(path)  # a run may be ended at any moment


def main(
    coverage: Path, against: Path | None = None, out: Path = HERE / "drawn_mutants.json", workers: int = 2
) -> None:
    """Write the result of each mutant to ``out``; ``against``: what was written on another commit."""
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    subprocess.run(["git", "diff", "--exit-code", "--stat", "HEAD", "toolkit", "tests"], cwd=ROOT, check=True)
    old = json.loads(against.read_text(encoding="utf-8")) if against else {"mutants": []}
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    table: dict[str, Any] = {
        "commit": commit,
        "seed": SEED,
        "python": platform.python_version(),
        "torch": version("torch"),
        "failing anyway": None,
        "rates": {},
        "mutants": [{**mutant, "result": None} for mutant in old["mutants"]],
    }
    if out.exists():
        table = json.loads(out.read_text(encoding="utf-8"))
    if table["commit"] != commit:
        raise SystemExit(f"{out} is of another commit, {table['commit']}: pass --against it, and another --out")
    get_pool = partial(ProcessPoolExecutor, mp_context=get_context("fork"), initializer=settle)
    with tempfile.TemporaryDirectory() as folder, get_pool(workers, initargs=(folder, commit)) as pool:
        try_all(table, pool, Coverage(coverage), out)
    print("package".ljust(12), *(name.rjust(10) for name in ("drawn", *RESULTS, "rate", "before")))
    for package, row in table["rates"].items():
        before = old["rates"][package]["rate"] if against else ""
        print(package.ljust(12), *(str(cell).rjust(10) for cell in (*row.values(), before)))
    for once, now in zip(old["mutants"], table["mutants"], strict=False):
        if once["by"] and now["result"] == "survived":
            print(f"survives now: {named(now)}; was caught by {once['by']}")


if __name__ == "__main__":
    tyro.cli(main)
