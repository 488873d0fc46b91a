"""Question: what share of small faults do the tests notice?

mutants.py plants faults that somebody thought of; here a seed draws 300, uniformly over the statements of six packages,
so that nobody chose them. A statement is the innermost one (an ``if`` is its condition); imports, docstrings, headers
of functions and classes, type hints, ``__all__`` and what only type checkers see are none. Its mutation is drawn too: a
comparison (< or <=, == or !=, in or not in ...), a sign (+ or -, * or /, a minus dropped), a constant (a number plus
one, a bool flipped), or the statement dropped (a call, an augmented assignment, one to an attribute or item, raise,
continue, break). Left out are what changes nothing where nothing else is wrong (``strict=`` of zip, ``stacklevel=``)
and signs beside a text, which make a path or a sentence.

The tests that concern a mutant are those that ran its line, by a coverage file of the same tree; where a fixture ran
it, all tests of that file, which share it; of what runs at import, all that ran any line of its file. Those that run
the fewest lines of the toolkit come first, and at most 40 are run. A mutant that no test runs survives: it is counted,
and in no table. Lines that only another process runs (of a test that starts ``python -m toolkit``) have no tests but
those that run them in their own.

    pip install pytest-cov==7.1.0
    python -m pytest -n auto --dist loadfile -m "not slow" --cov=toolkit --cov-context=test --cov-report=
    python experiments/reliability/drawn_mutants.py .coverage drawn.json
    python experiments/reliability/mutants.py --table drawn.json

drawn_mutants.json has those of eee8085 and what became of them, made when this script tried them itself, for at most
20 s of the processor each.
"""

import ast
import copy
import json
import random
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import tyro
from tyro.conf import Positional

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("data", "models", "snapshots", "training", "analysis", "comparison")
NUMBER, SEED, MOST_TESTS = 300, 0, 40
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

    file: str
    name: str
    """Function or class with those around it, or <module>; the expression around what changes, or the statement, as it
    was and becomes; which of the places of that function it is."""
    kind: str
    span: tuple[int, int]
    text: str
    """What stands there instead, by bytes of the file."""
    line: int
    """Where its statement begins."""
    lines: range


def statements(node: ast.AST, function: str = "") -> Iterator[tuple[ast.stmt, str]]:
    """Every statement that may be mutated, with its function."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield from statements(child, f"{function}.{name}".lstrip("."))
            case (
                ast.Import()
                | ast.ImportFrom()
                | ast.Expr(value=ast.Constant())
                | ast.If(test=ast.Name("TYPE_CHECKING"))
            ):
                pass
            case _:
                if isinstance(child, ast.stmt) and not ast.unparse(child).startswith("__all__"):
                    yield child, function or "<module>"
                yield from statements(child, function)


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


def sites_of(file: str, source: str) -> Iterator[Site]:
    """All places of a file that can be mutated."""
    starts = [0, *accumulate(len(line) for line in source.encode().splitlines(keepends=True))]
    ordinals: Counter[str] = Counter()
    for statement, function in statements(ast.parse(source)):
        for node, frame in [(statement, statement), *own_nodes(statement, statement)]:
            for kind, attribute, value in mutations(node):
                was, before = head_of(frame), getattr(node, attribute, False)
                setattr(node, attribute, value)
                name, text = f"{function} {ordinals[function]}: {was} -> {head_of(frame)}", head_of(node)
                setattr(node, attribute, before)
                span = (starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset)
                lines = range(node.lineno, node.end_lineno + 1)
                yield Site(file, name, kind, span, text, statement.lineno, lines)
                ordinals[function] += 1


def draw(sites: Iterable[Site]) -> Iterator[Site]:
    """Statements by the seed, and for each a kind of mutation and then a place of that kind."""
    of_statement: defaultdict[tuple[str, int], list[Site]] = defaultdict(list)
    for site in sites:
        of_statement[site.file, site.line].append(site)
    rng = random.Random(SEED)
    for key in sorted(rng.sample(sorted(of_statement), NUMBER)):
        kind = rng.choice(sorted({site.kind for site in of_statement[key]}))
        yield rng.choice([site for site in of_statement[key] if site.kind == kind])


def replaced(source: str, site: Site) -> dict[str, str]:
    """A text that stands once in the source, with as many of the lines around the place as that takes, and what it
    becomes."""
    content, (start, end) = source.encode(), site.span
    first, last = site.span
    while content.count(content[first:last]) > 1:
        first = content.rfind(b"\n", 0, max(first - 1, 0)) + 1
        last = content.find(b"\n", last + 1) % (len(content) + 1)
    new = content[first:start] + site.text.encode() + content[end:last]
    return {"old": content[first:last].decode(), "new": new.decode()}


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

    def concerning(self, site: Site) -> list[str]:
        every = range(1, 1 + max((bits.bit_length() for _, _, bits in self.of_file[site.file]), default=0))
        for lines in (site.lines, [site.line], every):
            if tests := self.running(site.file, lines):
                return tests
        return []


def main(coverage: Positional[Path], out: Positional[Path]) -> None:
    """Draw mutants of the tree as it is, and write them as a table for mutants.py, each with the tests that concern it.

    Args:
        coverage: of the fast tests on this tree, with the tests as contexts
        out: the table
    """
    paths = sorted(path for name in PACKAGES for path in (ROOT / "toolkit" / name).rglob("*.py"))
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    drawn = list(draw(site for file, source in sources.items() for site in sites_of(file, source)))
    ran, table = Coverage(coverage), []
    for site in drawn:
        if tests := ran.concerning(site)[:MOST_TESTS]:
            facts = {"id": f"{site.file} {site.name}", "file": site.file, "tests": tests}
            table.append(facts | replaced(sources[site.file], site))
    out.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(drawn)} drawn; {len(drawn) - len(table)} that no test runs, so that they survive")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
