"""``transplant RUNS``: runs that kept their models in, what the drift of each embedding component is worth out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from toolkit.naming import shown_command


@dataclass(frozen=True, slots=True)
class Transplant:
    """Put back the embeddings from before training, component by component, and see what each was worth (Shapley)."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories made with --save-model; runs that differ in their seed only are taken together."""
    split: str | None = None
    """Split to score on; default: the one that the task reports."""
    max_examples: int | None = None
    """Score this many items of it only, the same ones for every run."""
    reverse: bool = False
    """Also the tuned embeddings in the body from before training, with a logistic regression re-fitted on train."""
    coordinates: Literal["fixed", "raw"] = "fixed"
    """fixed: without what no output shows, the offsets between the tables; raw: the tables as they are."""
    num_draws: int = 5
    """Random changes of the same size and of each kind beside each transplant; each is one more pass."""
    num_reverse_draws: int = 1
    """The same in the reverse, where each is a pass over training items too."""
    dtype: Literal["float32", "float64"] = "float32"
    """Of weights and activations."""
    out: Path | None = None
    """Folder for the report with its figures; default: print the tables only."""
    title: str | None = None
    """Title of the report."""

    def run(self) -> int:
        from toolkit.probes.transplants.game import Settings
        from toolkit.probes.transplants.transplants import measure_transplants
        from toolkit.reporting.folder import check_out
        from toolkit.reporting.probes.transplant_report import print_transplants, write_transplant_report
        from toolkit.reporting.progress import counting_progress

        if self.out is not None:
            check_out(self.out)
        settings = Settings(
            split=self.split,
            max_examples=self.max_examples,
            coordinates=self.coordinates,
            num_draws=self.num_draws,
            num_reverse_draws=self.num_reverse_draws,
            dtype=self.dtype,
        )
        with counting_progress("passes") as hear:
            found = measure_transplants(self.runs, settings, reverse=self.reverse, on_progress=hear)
        print_transplants(found.tables)
        if self.out is not None:
            path = write_transplant_report(found.tables, self.out, title=self.title, command=self._command())
            print(f"Report: {path}")
        return 0

    def _command(self) -> str:
        """What makes the report again."""
        assert self.out is not None
        words = shown_command("transplant", self.runs, self.out, self.title)
        for flag, value in (("--split", self.split), ("--max-examples", self.max_examples)):
            words += f" {flag} {value}" if value is not None else ""
        words += " --reverse" if self.reverse else ""
        words += f" --coordinates {self.coordinates}" if self.coordinates != "fixed" else ""
        words += f" --num-draws {self.num_draws}" if self.num_draws != 5 else ""
        words += f" --num-reverse-draws {self.num_reverse_draws}" if self.num_reverse_draws != 1 else ""
        return words + (f" --dtype {self.dtype}" if self.dtype != "float32" else "")
