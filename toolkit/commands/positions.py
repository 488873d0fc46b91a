"""``positions MODEL``: a model's position embeddings described."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from toolkit.progress import show


@dataclass(frozen=True, slots=True)
class PositionsCommand:
    """Do a model's position embeddings resemble sine and cosine? Statistics and a verdict, beside control tables."""

    model: tyro.conf.Positional[str]
    """A checkpoint (hub id, folder, .safetensors file, minilm) or a run directory."""
    out: Path | None = None
    """Folder to write the report and its figures into; None: print the tables only."""
    default_length: int | None = None
    """Tokens that the model reads by default: rows beyond are called inherited. None: what its files say."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.lookup import at_least
        from toolkit.naming import shown_command
        from toolkit.reporting.folder import check_out
        from toolkit.reporting.run_reports import print_positions, write_position_report
        from toolkit.reporting.sources import open_sources

        length = None if self.default_length is None else at_least("--default-length", self.default_length, 1)
        if self.out is not None:
            check_out(self.out)
        opened = open_sources((self.model,))
        length = length or opened.default_length
        print_positions(opened.trajectory, default_length=length)
        if self.out is not None:
            command = shown_command("positions", (self.model,), self.out, self.title)
            options = {"title": self.title, "default_length": length, "command": command}
            show(f"Report: {write_position_report(opened.trajectory, self.out, **options)}")  # type: ignore[arg-type]
        return 0
