"""The command `flow`; what it needs is imported when it runs, so that --help is quick."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from toolkit.naming import check_least, command_again


@dataclass(frozen=True, slots=True)
class FlowCommand:
    """Where does position go? Its share of each layer, how well it can be read off, what changes without it."""

    places: tyro.conf.Positional[tuple[str, ...]]
    """Checkpoints (minilm, folders, hub ids) and run directories made with --save-model; seeds are taken together."""
    texts: Path | None = None
    """Data file of the texts to read. None: the reported split of the runs' task; without runs, --task."""
    text_columns: tuple[str, ...] = ()
    """Names of the one or two text columns of --texts, by default text, or sentence; segments need two (pairs)."""
    task: str = "polarity"
    """Built-in task whose validation texts are read where only checkpoints are given; pair has two segments."""
    out: Path | None = None
    """Folder to write the report and its figures into; None: print the tables only."""
    positions: int = 32
    """Positions of the crossed design, and tokens of a block: every token of a block stands at each position once."""
    blocks: int = 16
    """Number of such blocks."""
    shift: int = 16
    """Rows by which positions are moved in the counterfactual `shifted`."""
    num_texts: int = 200
    """Texts on which the counterfactuals (positions shifted, permuted, replaced, taken away) are measured."""
    seed: int = 0
    """Seed of what is drawn: the blocks, the halves of the texts, the permutation and the bootstrap."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.questions.flow.measure import FlowSettings, measure_flow
        from toolkit.questions.flow.page import flow_page, flow_tables
        from toolkit.reporting.folder import check_if_asked
        from toolkit.reporting.render_terminal import show_page

        check_if_asked(self.out)
        numbers = {"positions": self.positions, "blocks": self.blocks, "shift": self.shift, "num_texts": self.num_texts}
        check_least(numbers, 1)
        settings = FlowSettings(
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
        )
        command = command_again(self, "flow", self.places, "texts", "text_columns", "task", *numbers, "seed")
        return show_page(flow_page(tables, title=self.title, command=command), self.out, flow_tables(tables))
