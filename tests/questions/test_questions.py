"""The list of questions decides: one that is deleted takes all of it away, one that is added brings all of it."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_layers import copy as copy
from toolkit.commands import COMMANDS
from toolkit.questions import QUESTIONS, load_questions
from toolkit.questions.__main__ import README, STUB, readme_of, stub_of
from toolkit.schema import COLUMNS, TABLES

PLANTED = {
    "__init__.py": '''"""Did it rain?"""
from toolkit.questions import declare
from toolkit.schema import Column

QUESTION = declare(
    "weather",
    readme=(("Did it rain?", "`weather`", "`measure_rain`"),),
    public={"measure_rain": "measure"},
    commands={"weather": "WeatherCommand"},
    columns=(Column("rainfall", "How much of it fell."),),
    tables={"measure_rain": "rainfall"},
)
''',
    "measure.py": "measure_rain = 'it rained'.__str__\n",
    "command.py": "class WeatherCommand:\n    '''Did it rain?'''\n",
}
NAMES = """
import json
from toolkit.commands import COMMANDS
from toolkit.schema import COLUMNS, TABLES
print(json.dumps([[*COMMANDS], [*COLUMNS], [*TABLES]]))
"""


def run(folder: Path, *words: str) -> str:
    return subprocess.run([sys.executable, *words], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def update(folder: Path, *questions: str) -> tuple[list[list[str]], str, str]:
    """Commands, columns and tables with these questions in the list; the stub and the README that are written then."""
    source = folder / "toolkit/questions/__init__.py"
    listed = "".join(f'    "{name}",\n' for name in questions)
    source.write_text(re.sub(r"(?<=^QUESTIONS = \(\n)(    .*\n)*", listed, source.read_text(), flags=re.M))
    shutil.copy(README, folder)
    run(folder, "-m", "toolkit.questions")
    names = json.loads(run(folder, "-c", NAMES))
    return names, (folder / "toolkit/__init__.pyi").read_text(), (folder / README.name).read_text()


@pytest.mark.parametrize(("path", "made"), [(STUB, stub_of), (README, readme_of)], ids=["stub", "README"])
def test_the_stub_and_the_readme_have_what_the_questions_bring(path: Path, made: Callable[[str], str]) -> None:
    text = path.read_text(encoding="utf-8")
    assert made(text) == text, f"{path.name} is not what the questions say: run python -m toolkit.questions"


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_that_is_deleted_takes_all_of_it_away(name: str, copy: Path) -> None:
    shutil.rmtree(copy / "toolkit/questions" / name)
    (commands, columns, tables), stub, readme = update(copy, *(other for other in QUESTIONS if other != name))
    by_name = {question.name: question for question in load_questions()}
    question = by_name.pop(name)
    shared = {column for other in by_name.values() for column in other.columns}
    assert COMMANDS.keys() - commands == question.commands.keys()
    assert COLUMNS.keys() - columns == question.columns - shared
    assert TABLES.keys() - tables == question.tables
    assert not [each for each in question.public if f" as {each}\n" in stub]
    assert not [cells for cells in question.readme if cells[0] in readme]


def test_a_question_that_is_added_brings_all_of_it_and_leaves_nothing(copy: Path) -> None:
    before = update(copy, *QUESTIONS)
    for name, text in PLANTED.items():
        (copy / "toolkit/questions/weather" / name).parent.mkdir(exist_ok=True)
        (copy / "toolkit/questions/weather" / name).write_text(text)
    names, stub, readme = update(copy, *QUESTIONS, "weather")
    assert [[*set(after) - set(listed)] for listed, after in zip(before[0], names, strict=True)] == [
        ["weather"],
        ["rainfall"],
        ["measure_rain"],
    ]
    assert "from .questions.weather.measure import measure_rain as measure_rain\n" in stub
    assert "\n| Did it rain? | `weather` | `measure_rain` |\n" in readme
    assert run(copy, "-c", "import toolkit; print(toolkit.measure_rain())") == "it rained\n"
    shutil.rmtree(copy / "toolkit/questions/weather")
    assert update(copy, *QUESTIONS) == before
