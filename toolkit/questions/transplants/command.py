"""The command `transplant`; what it needs is imported when it runs, so that --help is quick."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import tyro

from toolkit.naming import command_again


@dataclass(frozen=True, slots=True)
class TransplantCommand:
    """Which component's drift does the tuned model need? Put embeddings from before back, one by one (Shapley)."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories made with --save-model; those that differ in nothing but the seed are taken together."""
    split: str | None = None
    """Split to score on; None: the one that the task reports."""
    max_examples: int | None = None
    """Score this many items of the split only, the same ones for every run; None: all."""
    reverse: bool = False
    """Also the reverse: tuned embeddings in the body from before training,
    under a logistic regression that is fitted again on train."""
    coordinates: Literal["fixed", "raw"] = "fixed"
    """fixed: without the offsets between tables, on which no output depends. raw: the tables as they are."""
    num_draws: int = 5
    """Random changes of the same size and of each kind beside each transplant; each costs one more pass."""
    num_reverse_draws: int = 1
    """The same for --reverse, where each also costs a pass over training items."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of weights and activations."""
    out: Path | None = None
    """Folder to write the report and its figures into; None: print the tables only."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.questions.transplants.games import TransplantSettings
        from toolkit.questions.transplants.measure import measure_transplants
        from toolkit.questions.transplants.page import transplants_page
        from toolkit.reporting.folder import check_if_asked
        from toolkit.reporting.render_terminal import show_page

        check_if_asked(self.out)
        settings = TransplantSettings(
            split=self.split,
            max_examples=self.max_examples,
            coordinates=self.coordinates,
            num_draws=self.num_draws,
            num_reverse_draws=self.num_reverse_draws,
            dtype=self.dtype,
        )
        tables = measure_transplants(self.runs, settings, reverse=self.reverse).tables
        command = command_again(self, "transplant", self.runs, "reverse", *(field.name for field in fields(settings)))
        return show_page(transplants_page(tables, title=self.title, command=command), self.out, tables)
