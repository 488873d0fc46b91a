"""``flow MODEL_OR_RUN ...``: where position goes, layer by layer."""

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True, slots=True)
class FlowCommand:
    """Where position goes: its share of every layer, how well it can be read off, and what changes without it."""

    places: tyro.conf.Positional[tuple[str, ...]]
    """Checkpoints (minilm, folders, hub ids) and run directories trained with --save-model; seeds are grouped."""
    texts: Path | None = None
    """A data file of texts. Default: the reported split of the runs' task; for checkpoints the task below."""
    text_columns: tuple[str, ...] = ()
    """One or two text columns of --texts; two make pairs, which segments need. Default: text, or sentence."""
    task: str = "polarity"
    """Built-in task whose validation texts checkpoints are looked at with; pair has two segments."""
    out: Path | None = None
    """Folder for the report with its figures; default: print the tables only."""
    positions: int = 32
    """Positions of the crossed design (tokens per block)."""
    blocks: int = 16
    """Blocks of tokens that the crossed design rotates."""
    shift: int = 16
    """Rows by which the counterfactual shift moves the positions."""
    num_texts: int = 200
    """Texts that the counterfactuals read."""
    seed: int = 0
    """Draws the blocks, the halves of the texts, the permutation and the bootstrap."""
    title: str | None = None
    """Title of the report."""

    def run(self) -> int:
        import sys

        from toolkit.naming import shown_command
        from toolkit.probes.flow.flow import Settings, measure_flow
        from toolkit.reporting.probes.flow_report import print_flow, write_flow_report

        numbers = {"positions": self.positions, "blocks": self.blocks, "shift": self.shift, "num_texts": self.num_texts}
        for name, value in numbers.items():
            if value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1; got {value}")
        settings = Settings(
            num_positions=self.positions,
            num_blocks=self.blocks,
            shift=self.shift,
            num_texts=self.num_texts,
            seed=self.seed,
        )
        tables = measure_flow(
            self.places,
            texts=self.texts,
            text_columns=self.text_columns,
            task=self.task,
            settings=settings,
            on_subject=lambda name: print(name, file=sys.stderr),
        )
        print_flow(tables)
        if self.out is not None:
            command = shown_command("flow", self.places, self.out, self.title)
            print(f"Report: {write_flow_report(tables, self.out, title=self.title, command=command + self._flags())}")
        return 0

    def _flags(self) -> str:
        """The flags that change the numbers, as the report's command shows them."""
        import shlex

        from toolkit.naming import shown_path

        words: list[str] = [] if self.texts is None else ["--texts", shown_path(self.texts)]
        words += ["--text-columns", *self.text_columns] if self.text_columns else []
        for name in ("task", "positions", "blocks", "shift", "num_texts", "seed"):
            if (value := getattr(self, name)) != type(self).__dataclass_fields__[name].default:
                words += [f"--{name.replace('_', '-')}", str(value)]
        return "".join(f" {shlex.quote(word)}" for word in words)
