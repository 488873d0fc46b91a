"""Names: looked up, with errors that name the choices and the nearest match, and shown without paths or commands."""

import html
import json
import operator
import os
import shlex
import textwrap
import unicodedata
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar


def at_least(name: str, value: Any, minimum: int) -> int:
    """``value`` as an int; ValueError with the argument's ``name`` unless it is whole (numpy's too) and large enough.

    A float is refused even where it is whole: what divided two counts is seldom a count.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    if number < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}; got {value!r}")
    return number


def check_least(numbers: Mapping[str, float | None], least: float) -> None:
    """ValueError for a number below the ``least``, by the name of its field, as a flag; None is one not given."""
    below = {name: value for name, value in numbers.items() if value is not None and value < least}
    refuse_first({f"--{name.replace('_', '-')} must be at least {least}; got {below[name]}": True for name in below})


class UnreadableError(ValueError):
    """What :func:`reading` says of a named file."""


class OtherFormatError(UnreadableError):
    """A file is of another version of this toolkit: it may well be whole."""


REFUSALS = NOT_APPLICABLE, NOT_RECORDED, NOT_MEASURABLE, NOT_IDENTIFIABLE = (
    "not applicable",
    "not recorded",
    "not measurable here",
    "not identifiable",
)
"""No number decides these. In turn: the claim has no meaning here; what it needs was not kept; it cannot be measured on
these data; no data could tell, because a gauge moves it and no output."""


class Refusal(ValueError):
    """Why a number is not given, raised or handed on; ``kind`` is one of REFUSALS."""

    def __init__(self, reason: str, kind: str) -> None:
        super().__init__(reason)
        self.kind = kind


REMEDY = "restore it or make it again"
MOST_LETTERS = 300
"""Of why something failed."""


def is_failure(error: BaseException) -> bool:
    """Whether something failed: libraries in Rust panic with what is no Exception; to be stopped is no failure."""
    return not isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


def reason_of(error: BaseException) -> str:
    """Why something failed, in one line; libraries write several, and whole contents of files into them."""
    text = " ".join(str(error).split())[:MOST_LETTERS]
    is_sentence = text and isinstance(error, ValueError | OSError | RuntimeError)
    return text if is_sentence else f"{type(error).__name__}: {text}".removesuffix(": ")


@contextmanager
def reading(
    source: str | Path, fault: str = "cannot be read", *passed: type[Exception], remedy: str = REMEDY
) -> Iterator[None]:
    """The one wall around the reading of a named file: whatever fails there becomes one line, an UnreadableError.

    ``fault`` completes the sentence that ``source`` begins, ``remedy`` says what to do. What an inner wall says is
    passed on, and so are errors of the disk, which name their file, and ``passed``, which are such a line already.
    """
    try:
        yield
    except BaseException as error:  # libraries raise dozens of types
        is_of_disk = isinstance(error, OSError) and error.filename is not None
        if is_of_disk or not is_failure(error) or isinstance(error, (UnreadableError, MemoryError, *passed)):
            raise
        raise UnreadableError(f"{source} {fault} ({reason_of(error)}): {remedy}") from None


KINDS = {dict: "object", list: "list", int: "integer"}
"""Python's type of a field to JSON's word for it."""


def read_json(path: Path) -> Any:
    """The content of a JSON file; ValueError when it is damaged."""
    return _parse(path.read_bytes(), path)


def read_object(path: Path, fields: Mapping[str, type] | None = None, *, version: int | None = None) -> dict[str, Any]:
    """The object that a JSON file holds; ValueError as of :func:`parse_object`."""
    return parse_object(path.read_bytes(), path, fields, version=version)


def parse_object(
    text: str | bytes, source: str | Path, fields: Mapping[str, type] | None = None, *, version: int | None = None
) -> dict[str, Any]:
    """The object that the text of ``source`` holds.

    ``fields`` are those that must be there, each with a type of KINDS; ``version`` is the one ``format`` that the
    reader knows. ValueError for text that is not JSON, no object, or lacks a field, and for another format.
    """
    values: dict[str, Any] = _parse(text, source)
    refuse_damaged(source, {f"must hold one JSON object, not a {type(values).__name__}": not isinstance(values, dict)})
    is_there = {f"{KINDS[kind]} {name!r}": isinstance(values.get(name), kind) for name, kind in (fields or {}).items()}
    refuse_damaged(source, {f"lacks the {what}": not is_so for what, is_so in is_there.items()})
    if version is not None:
        check_format(values.get("format", version), version, source)
    return values


def check_format(stored: object, version: int, source: str | Path) -> None:
    """ValueError unless the ``stored`` format of ``source`` is the ``version`` that its one reader knows."""
    refuse_damaged(source, {f"has the format {stored!r}, which is no integer": not isinstance(stored, int)})
    newer = f"{source} has a newer format than {version}: update the toolkit"
    older = f"{source} has an older format than {version}: make it again, or read it as it was made"
    refuse_first({newer: stored > version, older: stored < version}, OtherFormatError)  # type: ignore[operator]


MOST_QUOTED = 80
"""Letters of a text that a line quotes: a cell, or a header, may be a whole file."""


def cut(text: str, longest: int = MOST_QUOTED) -> str:
    """A text, or its beginning where it is long."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def first_few(names: Collection[str], most: int = 3, mark: str = ", ") -> str:
    """The first names, none of them long, and how many more there are."""
    shown = mark.join(cut(name) for name in list(names)[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def refuse_first(faults: Mapping[str, object], kind: type[ValueError] = ValueError) -> None:
    """ValueError of the first fault, in words, that is so."""
    for fault in (fault for fault, is_so in faults.items() if is_so):
        raise kind(fault)


def refuse_damaged(source: str | Path, faults: Mapping[str, object]) -> None:
    """:func:`refuse_first`, as an UnreadableError, of the faults of a file or a folder that was whole once."""
    refuse_first({f"{source} {fault}: {REMEDY}": is_so for fault, is_so in faults.items()}, UnreadableError)


def _parse(text: str | bytes, source: str | Path) -> Any:
    with reading(source, "is not JSON"):
        return json.loads(text if isinstance(text, str) else text.decode("utf-8"))


T = TypeVar("T")


class Table(dict[str, T]):
    """Named entries that show as their names: a table that is an argument's default would fill the screen of help()."""

    def __repr__(self) -> str:
        return f"<{', '.join(self)}>"


def lookup(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return ``table[name]``; raise ValueError with the nearest match and all choices when there is none."""
    if isinstance(name, Hashable) and name in table:
        return table[name]
    raise ValueError(unknown(name, kind, tuple(table)))


def select(table: Mapping[str, T], chosen: Mapping[str, T] | Iterable[str], kind: str) -> dict[str, T]:
    """The entries of a mapping, or those of ``table`` with the given names (or the one name)."""
    if isinstance(chosen, Mapping):
        return dict(chosen)
    return {name: lookup(table, name, kind) for name in ((chosen,) if isinstance(chosen, str) else chosen)}


MOST_CHOICES = 50
"""Named in one line: a table may have thousands of columns."""


def unknown(name: str, kind: str, choices: tuple[str, ...]) -> str:
    """One line that says which ``kind`` is unknown, what was probably meant, and everything that is known."""
    return f"{mistyped(name, kind, choices)}; choose from: {first_few(choices, MOST_CHOICES)}"


def mistyped(name: str, kind: str, choices: tuple[str, ...]) -> str:
    """:func:`unknown` without everything, where --help has that."""
    hint = "".join(f" (did you mean {cut(nearest)!r}?)" for nearest in near(name, choices)[:1])
    return f"unknown {kind} {name!r}{hint}"


SHORT_FOR = {
    "lr": "learning-rate",
    "bs": "batch-size",
    "batch": "batch-size",
    "wd": "weight-decay",
    "f1": "macro_f1",
    "frozen": "backbone",
    "feature-extraction": "backbone",
    "full": "none",
    "no": "none",
}
"""What is typed out of habit, to the name here."""


def near(name: str, choices: Iterable[str]) -> list[str]:
    """At most three of the choices that a mistyped name may have meant, the likeliest first."""
    name, choices = str(name), list(choices)
    meant = SHORT_FOR.get(name.lstrip("-"), "")
    for choice in choices:  # as a flag, a field or a score is spelt
        if meant and choice.lstrip("-").replace("_", "-") == meant.replace("_", "-"):
            return [choice]
    holding = [choice for choice in choices if len(name) > 2 and name in choice]  # cka: debiased_cka rather than svcca
    close = get_close_matches(name, choices, n=3)
    return list(dict.fromkeys([*sorted(holding, key=len)[:1], *close]))[:3]


def meant_by(path: str | Path) -> str:
    """Of a path where nothing is, what may be meant: what is like the first part of it that is not there, or what its
    folder holds; empty where nothing tells."""
    place = Path(path).expanduser()
    folder = next((parent for parent in place.parents if parent.is_dir()), place)
    if place.exists() or folder == place:
        return ""
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    for name in get_close_matches(place.relative_to(folder).parts[0], names, n=1, cutoff=ALIKE):
        return f" (did you mean {cut(str(folder / name))!r}?)"
    return f" ({folder} holds {first_few(names)})" if names and folder != Path() else ""


ALIKE = 0.7
"""Least similarity of a file's name to one that is not there: of all files of a folder some are a little like it."""


MOST_UP = 2
"""Folders that a command's path goes up at most."""

_INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Unicode's categories. Vega's expressions break off at a line separator."""


def visible(text: str) -> str:
    """A text with invisible characters (control, format, lone surrogates, breaks but line feeds) as U+XXXX."""
    return "".join(
        f"U+{ord(character):04X}" if unicodedata.category(character) in _INVISIBLE and character != "\n" else character
        for character in text
    )


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
    """The names, no two alike: a name that came before has " (2)" after it, or the first number that is free."""
    result: list[str] = []
    for name in names:
        numbered = chain([name], (f"{name} ({number})" for number in count(2)))
        result.append(next(each for each in numbered if each not in result))
    return result


def shown_command(command: str, places: Iterable[str | Path], out: str | Path, title: str | None, *flags: str) -> str:
    """The shell command that makes a report again, with no absolute path in it, below the line that says where."""
    shown = [command_path(place) if Path(place).exists() else str(place) for place in places]
    words = ["python", "-m", "toolkit", command, *shown, "--out", command_path(out)]
    return f"{command_place()}\n{shlex.join([*words, *(('--title', title) if title is not None else ()), *flags])}"


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


def command_again(command: Any, name: str, places: Iterable[str | Path], *flags: str) -> str:
    """The words that make the report of a command again; none where it writes none."""
    if command.out is None:
        return ""
    return shown_command(name, places, command.out, command.title) + shown_flags(command, *flags)


class Described:
    """A result that says what it is: in lines of 80 letters where it is printed, and as a table in a notebook."""

    __slots__ = ()

    def facts(self) -> Mapping[str, str]:
        """Name to text of everything that a reader wants to know first."""
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}: {value}" for name, value in self.facts().items())
        return textwrap.fill(
            f"{type(self).__name__}({facts})",
            80,
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )

    def _repr_html_(self) -> str:
        cells = ((html.escape(name), html.escape(value)) for name, value in self.facts().items())
        return f"<table>{''.join(f'<tr><th>{name}</th><td>{value}</td></tr>' for name, value in cells)}</table>"
