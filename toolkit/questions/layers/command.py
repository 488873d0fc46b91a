"""The command `layers`; what it needs is imported when it runs, so that --help is quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from toolkit.naming import command_again
from toolkit.progress import show, shows_progress

if TYPE_CHECKING:
    from toolkit.questions.layers.page import Tables


@dataclass(frozen=True, slots=True)
class LayersCommand:
    """Which layers changed? States and weights, compared with before training, other seeds and shuffled labels."""

    places: tyro.conf.Positional[tuple[str, ...]]
    """Run directories made with --save-model; other seeds, and runs with --shuffle-labels, are the references. Or two
    checkpoints, before and after (minilm, hub ids with @revision, folders, .safetensors files): their weights only."""
    texts: tuple[str, ...] = ()
    """Texts to compare states on, NAME=PATH [NAME=PATH ...]: data files as finetune.py --test-file takes them.
    By default every scored split of the runs' task."""
    text_columns: tuple[str, ...] = ()
    """Names of the one or two text columns of these files; by default those of the runs."""
    max_texts: int = 300
    """Number of texts to read of each split or file, at most; drawn at random, the same for all models."""
    out: Path | None = None
    """Folder to write the report and its figures into; None: print the tables only."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.questions.layers.page import layers_page
        from toolkit.reporting.folder import check_if_asked
        from toolkit.reporting.render_terminal import show_page
        from toolkit.snapshots.backbones import is_run
        from toolkit.snapshots.store import open_run

        if not self.places:
            raise ValueError("nothing to compare: pass at least one run directory, or two checkpoints")
        check_if_asked(self.out)
        tables = self._of_runs() if all(map(is_run, self.places)) else self._of_checkpoints()
        command = command_again(self, "layers", self.places, "texts", "text_columns", "max_texts")
        models = {open_run(place).config.model if is_run(place) else place for place in self.places}
        return show_page(layers_page(tables, models=models, title=self.title, command=command), self.out, tables)

    def _of_runs(self) -> "Tables":
        """The tables of runs: states, weights and, where it can be measured, what was forgotten."""
        from toolkit.questions.layers.forgetting import measure_forgetting
        from toolkit.questions.layers.states import measure_layers
        from toolkit.questions.models import read_texts
        from toolkit.snapshots.store import open_run

        runs = [open_run(path) for path in self.places]
        texts = read_texts(self.texts, self.text_columns or runs[0].config.text_columns) if self.texts else None
        tables = measure_layers(runs, texts, max_texts=self.max_texts)
        forgotten = measure_forgetting(runs, texts, max_texts=self.max_texts)
        return tables | ({"forgetting": forgotten} if forgotten["value"].notna().any() else {})

    def _of_checkpoints(self) -> "Tables":
        """The tables of two checkpoints, of their weights alone; ValueError for any other number, or with texts."""
        from toolkit.models.checkpoints import Source
        from toolkit.models.pipelines import warn_of_modules
        from toolkit.questions.layers.trend import weight_tables, weights_of_pair
        from toolkit.snapshots.backbones import is_run, open_backbones

        if len(self.places) != 2:
            not_a_run = next(place for place in self.places if not is_run(place))
            raise ValueError(
                f"{not_a_run} is not a run directory: pass run directories, or two checkpoints and nothing else"
            )
        if self.texts:
            raise ValueError(
                "--texts: states need runs made with --save-model; of two checkpoints weights are compared"
            )
        pair = open_backbones(*self.places)
        for note in pair.notes:
            show(note)
        for place in filter(Path.is_dir, map(Path, self.places)):
            warn_of_modules(Source(str(place), str(place)))
        with shows_progress("weights"):
            return weight_tables([weights_of_pair(pair)])
