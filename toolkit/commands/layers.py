"""``layers RUNS``: runs that kept their models in, how far each layer moved out."""

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True, slots=True)
class Layers:
    """Which layers moved? Similarity of each to before training, beside two seeds and shuffled labels."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories made with --save-model. Other seeds, and runs with --shuffle-labels, are the references."""
    texts: tuple[str, ...] = ()
    """Texts to compare on, NAME=PATH [NAME=PATH ...]: data files as finetune.py --test-file takes them.
    By default every scored split of the runs' task."""
    text_columns: tuple[str, ...] = ()
    """Names of the one or two text columns of these files; by default those of the runs."""
    max_texts: int = 300
    """Most texts to read of each split or file, drawn at random, the same for all models."""
    out: Path | None = None
    """Folder to write the report and its figure into; None: print the table only."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.naming import shown_command
        from toolkit.probes.layers.layer_drift import measure_layers
        from toolkit.probes.texts import read_texts
        from toolkit.reporting.folder import check_out
        from toolkit.reporting.probes.layer_findings import layer_findings
        from toolkit.reporting.probes.layer_report import groups_of, layer_rows, write_layer_report
        from toolkit.reporting.progress import reporting_progress
        from toolkit.reporting.screen import print_rows
        from toolkit.snapshots.store import open_run

        if self.out is not None:
            check_out(self.out)
        runs = [open_run(path) for path in self.runs]
        if not runs:
            raise ValueError("no runs: pass at least one run directory")
        texts = read_texts(self.texts, self.text_columns or runs[0].config.text_columns) if self.texts else None
        with reporting_progress() as hear:
            tables = measure_layers(runs, texts, max_texts=self.max_texts, on_progress=hear)
        for group, own in groups_of(tables).items():
            print_rows(f"{group}: layers before and after", *layer_rows(own), num_titles=2)
            print("\n".join(layer_findings(own)))
        if self.out is not None:
            command = shown_command("layers", self.runs, self.out, self.title)
            print(f"Report: {write_layer_report(tables, self.out, title=self.title, command=command)}")
        return 0
