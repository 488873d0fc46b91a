"""The command `positions`; what it needs is imported when it runs, so that --help is quick."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from toolkit.naming import command_again


@dataclass(frozen=True, slots=True)
class PositionsCommand:
    """Do a model's position embeddings resemble sine and cosine? Statistics and a verdict, beside control tables."""

    model: tyro.conf.Positional[str]
    """A checkpoint (hub id, folder, .safetensors file, minilm) or a run directory."""
    before: str | None = None
    """The checkpoint that the model was tuned from: positions that tuning exposed are then told apart from raw ones.
    None: only a run directory says which they are."""
    out: Path | None = None
    """Folder to write the report and its figures into; None: print the tables only."""
    default_length: int | None = None
    """Tokens that the model reads by default: rows beyond are called inherited. None: what its files say."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.naming import at_least
        from toolkit.questions.drift_report import open_places
        from toolkit.questions.positions.page import csv_tables, position_page
        from toolkit.questions.positions.tables import collect_positions
        from toolkit.reporting.folder import check_if_asked
        from toolkit.reporting.render_terminal import show_page

        length = None if self.default_length is None else at_least("--default-length", self.default_length, 1)
        check_if_asked(self.out)
        opened = open_places((self.model,) if self.before is None else (self.before, self.model))
        length = length or opened.default_length
        tables = collect_positions(opened.trajectory, default_length=length, is_brief=self.out is None)
        command = command_again(self, "positions", (self.model,), "before")
        return show_page(position_page(tables, title=self.title, command=command), self.out, csv_tables(tables))
