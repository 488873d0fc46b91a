"""Names and paths as a report or a terminal may show them: distinct, visible, and never an absolute path."""

import html
import os
import shlex
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

MOST_UP = 2
"""Folders that a command's path goes up at most."""

_INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Unicode's categories. Vega's expressions break off at a line separator."""


def visible(text: str) -> str:
    """A text with invisible characters (control, format, lone surrogates, breaks but line feeds) as U+XXXX."""
    return "".join(f"U+{ord(c):04X}" if unicodedata.category(c) in _INVISIBLE and c != "\n" else c for c in text)


def shown_path(path: str | Path) -> str:
    """A path relative to the current directory, or, when it lies elsewhere, its last part: never an absolute one."""
    path, here = Path(path).resolve(), Path.cwd().resolve()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name


def command_path(path: str | Path) -> str:
    """A path that a command takes in the current directory: relative to it, also from beside or above it.

    Of what lies elsewhere the last part, as in :func:`shown_path`: the way there would name folders of this machine.
    """
    path, here = Path(path).resolve(), Path.cwd().resolve()
    shared = Path(os.path.commonpath([path, here]))
    up = len(here.relative_to(shared).parts)
    is_near = not up or (up <= MOST_UP and shared not in (Path(shared.anchor), Path.home().parent))
    return Path(os.path.relpath(path, here)).as_posix() if is_near else path.name


def command_place() -> str:
    """The line that says where the commands of a report are to be given: a folder of the repository where it is one."""
    here = Path.cwd().resolve()
    for root in (here, *here.parents):
        if (root / "finetune.py").is_file() and (root / "toolkit").is_dir():
            folder = here.relative_to(root).as_posix()
            return f"# in {'the root' if folder == '.' else folder} of the repository"
    return "# in the folder in which this report was made; what lies far from it has its name only"


def shorten(value: Any, show: Callable[[str], str] = shown_path) -> Any:
    """A value of a config, an absolute path as ``show`` shows it and anything else as it is."""
    return show(value) if isinstance(value, str) and Path(value).expanduser().is_absolute() else value


def names_of(directories: Iterable[Path]) -> list[str]:
    """One name per run directory, its last part; ValueError for one that is given twice."""
    paths = [path.resolve() for path in directories]
    for path in paths:
        if paths.count(path) > 1:
            raise ValueError(f"{path.name} is given twice: pass each run directory once")
    return distinct(path.name for path in paths)


def distinct(names: Iterable[str]) -> list[str]:
    """The names, with " (2)", " (3)" after a name that came before."""
    result: list[str] = []
    for name in names:
        count = sum(1 for earlier in result if earlier == name or earlier.startswith(f"{name} ("))
        result.append(f"{name} ({count + 1})" if count else name)
    return result


def shown_command(command: str, places: Iterable[str | Path], out: str | Path, title: str | None) -> str:
    """The shell command that makes a report again, with no absolute path in it, below the line that says where."""
    shown = [command_path(place) if Path(place).exists() else str(place) for place in places]
    words = ["python", "-m", "toolkit", command, *shown, "--out", command_path(out)]
    return f"{command_place()}\n{shlex.join([*words, *(('--title', title) if title is not None else ())])}"


def shown_flags(command: Any, *names: str) -> str:
    """The flags of a command (a dataclass) that are not at their defaults, to go after its other words in a shell."""
    words: list[str] = []
    for field in (each for each in fields(command) if each.name in names):
        value = getattr(command, field.name)
        if value != field.default:
            words += [f"--{field.name.replace('_', '-')}"]
            if isinstance(value, tuple):  # of names, or NAME=PATH
                words += ["=".join(map(shorten, each.split("=", 1))) for each in value]
            elif value is not True:
                words += [shown_path(value) if isinstance(value, Path) else str(value)]
    return "".join(f" {shlex.quote(word)}" for word in words)


class Described:
    """A result that says what it is: in lines of 80 letters where it is printed, and as a table in a notebook."""

    __slots__ = ()

    def facts(self) -> Mapping[str, str]:
        """Name to text of everything that a reader wants to know first."""
        raise NotImplementedError

    def __repr__(self) -> str:
        said = f"{type(self).__name__}({', '.join(f'{name}: {value}' for name, value in self.facts().items())})"
        return textwrap.fill(said, 80, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)

    def _repr_html_(self) -> str:
        cells = ((html.escape(name), html.escape(value)) for name, value in self.facts().items())
        return f"<table>{''.join(f'<tr><th>{name}</th><td>{value}</td></tr>' for name, value in cells)}</table>"
