"""Ceilings: code, the files beside it and the names that users meet are no more than tests/house_budget.json allows.

What is counted has to be read and understood: comments, docstrings, decorators, imports and blank lines are free. Who
needs more raises an entry, and lowers another of the same kind by as much in the same commit.
"""

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from textwrap import dedent
from typing import get_args

import pytest

import toolkit
from toolkit.cli import Flags
from toolkit.schema import COLUMNS

ROOT = Path(__file__).parents[1]
BUDGET: dict[str, dict[str, int]] = json.loads((ROOT / "tests" / "house_budget.json").read_text())
"""Kind of count to name to ceiling; ``total`` is what the ceilings of a kind may add up to."""
BROWSER = re.compile(r"\bdatum\b|=>|\bfunction\s*\(|\b(const|let|var) \w+ =")
"""What JavaScript and Vega's expressions have, and English has not."""


def nodes_of(root: Path) -> Iterator[tuple[str, list[ast.AST]]]:
    """(package, all nodes) of every module: a package is all below a folder of toolkit, tests or experiments.

    Below ``questions`` each folder is a package of its own.
    """
    for path in [path for top in ("toolkit", "tests", "experiments") for path in (root / top).rglob("*.py")]:
        folder = path.relative_to(root).parent.parts
        package = "/".join(folder[: 3 if folder[1:2] == ("questions",) else 2])
        yield package, list(ast.walk(ast.parse(path.read_text())))


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def statements(nodes: Iterable[ast.AST]) -> list[ast.stmt]:
    """All but imports and docstrings."""
    found = [node for node in nodes if isinstance(node, ast.stmt)]
    found = [node for node in found if not (isinstance(node, ast.Expr) and is_text(node.value))]
    return [node for node in found if not isinstance(node, ast.Import | ast.ImportFrom)]


def texts(nodes: list[ast.AST]) -> Iterator[str]:
    """Every string that is no docstring; an f-string whole, with a name in place of each value."""
    left_out = {node.value for node in nodes if isinstance(node, ast.Expr)}
    left_out.update(*(node.values for node in nodes if isinstance(node, ast.JoinedStr)))
    for node in [node for node in nodes if node not in left_out and (is_text(node) or isinstance(node, ast.JoinedStr))]:
        yield "".join(part.value if is_text(part) else "_" for part in getattr(node, "values", [node]))


def code_in(text: str) -> int:
    """Statements of Python in a string: two or more, or it is prose that parses by chance."""
    try:
        # Two statements need one of these signs; to parse all other strings too would take long.
        found = statements(ast.walk(ast.parse(dedent(text)))) if re.search("[\n;:]", text) else []
    except (SyntaxError, ValueError):
        return 0
    # "task: sst2" is an annotation without a value, "no, never" an expression.
    found = [node for node in found if not (isinstance(node, ast.AnnAssign) and node.value is None)]
    found = [node for node in found if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call)]
    return len(found) if len(found) > 1 else 0


def running(nodes: list[ast.AST]) -> int:
    """Calls that run a text."""
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    return sum(isinstance(call, ast.Name) and call.id in ("exec", "eval", "compile") for call in called)


def counts_of(root: Path) -> dict[str, Counter[str]]:
    """Kind to name to count, of the code and files of a tree; names are those of the package that is imported."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in BUDGET}
    sizes: Counter[str] = Counter()
    for package, nodes in nodes_of(root):
        top, strings = package.partition("/")[0], list(texts(nodes))
        counts["statements"][package] += len(statements(nodes))
        counts["statements in strings"][top] += running(nodes) + sum(map(code_in, strings))
        sizes["scripts in strings"] += sum(len(text) for text in strings if top == "toolkit" and BROWSER.search(text))
    found = [path for path in (root / "toolkit").rglob("*") if "__pycache__" not in path.parts and path.is_file()]
    # A stub holds public names, which are counted, and never runs.
    for path in [path for path in found if path.suffix not in (".py", ".pyi")]:
        sizes[path.suffix or path.name] += path.stat().st_size
    counts["KiB"].update({name: math.ceil(size / 1024) for name, size in sizes.items()})
    counts["names"].update({"public names": len(toolkit.__all__), "columns": len(COLUMNS), "flags": num_flags()})
    return counts


def num_flags() -> int:
    """How many flags finetune.py has."""
    parts = [get_args(part.type)[0] for part in fields(Flags)]
    return sum(len(fields(part)) if is_dataclass(part) else 1 for part in parts)


def over(kind: str, counts: Mapping[str, int], ceilings: Mapping[str, int]) -> list[str]:
    """A line each: what is above its ceiling, and whether the ceilings add up to more than their total."""
    found = []
    for name in sorted(name for name in counts if counts[name] > ceilings.get(name, 0)):
        change = f"raise {name!r}" if name in ceilings else f"add {name!r}"
        found.append(
            f"{name}: {counts[name] - ceilings.get(name, 0)} {kind} above its ceiling of {ceilings.get(name, 0)}; take "
            f"as many out, or {change} in tests/house_budget.json and lower another by as much in the same commit"
        )
    excess = sum(ceilings.values()) - 2 * ceilings["total"]
    if excess > 0:
        found.append(f"total: the ceilings add up to {excess} {kind} above {ceilings['total']}; lower one by as much")
    return found


def over_all(counts: Mapping[str, Mapping[str, int]], budget: Mapping[str, Mapping[str, int]]) -> list[str]:
    return [line for kind in counts for line in over(kind, counts[kind], budget[kind])]


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of prose with a backslash
def test_nothing_is_above_its_ceiling() -> None:
    found = over_all(counts_of(ROOT), BUDGET)
    assert not found, "\n".join(found)


PLANTED = {
    "toolkit/cli.py": "A = 1\n",
    "toolkit/reporting/topics/words.py": "def f():\n    return 1\n",
    "toolkit/questions/flow/measure.py": "A = 1\n",
    "toolkit/reporting/templates/page.css": "x" * 1024,
    "tests/questions/flow/test_flow.py": "A = 1\n",
}
SCRIPT = "'''\nimport sys\nfor i in range(9):\n    print(i)\n'''"


@pytest.mark.parametrize(
    ("path", "more", "said"),
    [
        ("toolkit/cli.py", "@cache\ndef f():\n    '''It.'''", ["toolkit: 1 statements"]),
        ("toolkit/cli.py", "# why\nimport os\n'''What A is.'''\n", []),
        ("toolkit/reporting/topics/words.py", "B = 2; C = 3", ["toolkit/reporting: 2 statements"]),
        ("toolkit/questions/flow/measure.py", "B = 2", ["toolkit/questions/flow: 1 statements"]),
        ("toolkit/questions/new/page.py", "B = 2", ["toolkit/questions/new: 1 statements"]),
        ("tests/questions/flow/test_flow.py", "B = 2", ["tests/questions/flow: 1 statements"]),
        ("toolkit/reporting/templates/page.css", "x", [".css: 1 KiB"]),
        ("toolkit/code.json", "[]", [".json: 1 KiB"]),
        ("toolkit/cli.py", f"A = {SCRIPT}", ["toolkit: 1 statements", "toolkit: 2 statements in strings"]),
        ("experiments/mine.py", f"f(f{SCRIPT})", ["experiments: 1 statements", "experiments: 2 statements in strings"]),
        ("toolkit/cli.py", "exec(A)", ["toolkit: 1 statements", "toolkit: 1 statements in strings"]),
        ("toolkit/cli.py", "A = '''task: sst2\nno, never''', 'accuracy (points)'", ["toolkit: 1 statements"]),
        ("toolkit/cli.py", "A = 'datum.a < 1'", ["toolkit: 1 statements", "scripts in strings: 1 KiB"]),
    ],
)
def test_one_too_many_is_found_and_what_is_free_is_not(path: str, more: str, said: list[str], tmp_path: Path) -> None:
    for name, text in PLANTED.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    budget = {kind: {"total": 9999, **counts} for kind, counts in counts_of(tmp_path).items()}
    (tmp_path / path).parent.mkdir(exist_ok=True)
    with (tmp_path / path).open("a") as file:
        file.write(more)
    assert [line.partition(" above")[0] for line in over_all(counts_of(tmp_path), budget)] == said


@pytest.mark.parametrize("name", ["public names", "flags", "columns"])
def test_a_name_too_many_is_found_and_no_ceiling_rises_alone(name: str) -> None:
    ceilings = {key: ceiling for key, ceiling in BUDGET["names"].items() if key != "total"}
    exact = {**ceilings, "total": sum(ceilings.values())}
    assert over("names", ceilings, exact) == over("names", {}, exact) == []  # what is gone leaves its ceiling
    more = {**ceilings, name: ceilings[name] + 1}
    (line,) = over("names", more, exact)
    assert line.startswith(f"{name}: 1 names above its ceiling of {ceilings[name]}; take as many out, or raise")
    (line,) = over("names", more, {**exact, **more})
    assert line == f"total: the ceilings add up to 1 names above {exact['total']}; lower one by as much"
