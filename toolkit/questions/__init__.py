"""Questions beside the core: each folder is a whole room, with its measure, page, columns, command and names.

To add or delete a question is to add or delete its folder and its line in QUESTIONS; ``python -m toolkit.questions``
then brings the public stub and the README's table up to date. Core imports no question, and a question none but core.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from toolkit import schema

QUESTIONS = (
    "changes",
    "space",
    "anatomy",
    "positions",
    "layers",
    "flow",
    "reindexing",
    "transplants",
)
"""The folders, in the order of the README and of ``--help``."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a folder brings; everything is named, and imported when it is asked for."""

    name: str
    """Of the folder."""
    readme: tuple[tuple[str, str, str], ...]
    """Lines of the README's table: question, command, and from Python."""
    public: Mapping[str, str]
    """Public name to the module of the folder that has it."""
    commands: Mapping[str, str]
    """Command to its class in ``command.py``."""
    drift: tuple[str, ...]
    """Modules whose ``PARTS`` are sections of the page of ``drift``."""
    columns: frozenset[str]
    tables: frozenset[str]
    """Names of both in the schema."""

    def module(self, name: str) -> Any:
        """A module of the folder."""
        return import_module(f"{__name__}.{self.name}.{name}")

    def load_commands(self) -> dict[str, type]:
        """Command to its class; what a command needs is imported when it runs."""
        return {command: getattr(self.module("command"), kind) for command, kind in self.commands.items()}

    def load_drift(self) -> dict[str, Any]:
        """Section to :class:`toolkit.reporting.sources.DriftPart`."""
        return {name: part for module in self.drift for name, part in self.module(module).PARTS.items()}


def declare(
    name: str,
    *,
    readme: tuple[tuple[str, str, str], ...],
    public: Mapping[str, str],
    commands: Mapping[str, str] = MappingProxyType({}),
    drift: tuple[str, ...] = (),
    columns: Collection[schema.Column] = (),
    tables: Mapping[str, str] = MappingProxyType({}),
) -> Question:
    """A question; its columns and tables are added to the schema."""
    schema.add(columns, tables)
    column_names = frozenset(column.name for column in columns)
    return Question(name, readme, public, commands, drift, column_names, frozenset(tables))


@cache
def load_questions() -> tuple[Question, ...]:
    """Every question of QUESTIONS, imported, so that the schema has their tables."""
    return tuple(import_module(f"{__name__}.{name}").QUESTION for name in QUESTIONS)
