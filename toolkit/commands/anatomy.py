"""``anatomy MODEL --text ...``: a model's embedding layer taken apart on one sentence."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from toolkit.progress import show


@dataclass(frozen=True, slots=True)
class AnatomyCommand:
    """Take a model's embedding layer apart on your own sentence: eight questions, answered by measurement."""

    model: tyro.conf.Positional[str]
    """A checkpoint (minilm, a folder, a hub id) or a run directory that was made with --save-model."""
    text: str
    """The sentence that the model reads."""
    pair: str | None = None
    """A second sentence, which the model reads together with the first; None: a single sentence."""
    is_json: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of text: the same numbers. Keys: toolkit/probes/anatomy.py."""
    out: Path | None = None
    """Folder to write the report and its figures into; None: print the answers only."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        import json

        from toolkit.naming import shorten, shown_command, shown_flags
        from toolkit.probes.anatomy import as_document, take_apart
        from toolkit.probes.embedding_layer import open_model
        from toolkit.reporting.folder import check_out
        from toolkit.reporting.render_terminal import print_page
        from toolkit.reporting.topics.anatomy import anatomy_page, write_anatomy_report

        if self.out is not None:
            check_out(self.out)
        anatomy = take_apart(open_model(self.model), self.text, self.pair, name=shorten(self.model))
        document = as_document(anatomy)
        if self.is_json:
            print(json.dumps(document, indent=2, allow_nan=False))
        else:
            print_page(anatomy_page(document, title=self.title), has_charts=self.out is not None)
        if self.out is not None:
            command = shown_command("anatomy", (self.model,), self.out, self.title) + shown_flags(self, "text", "pair")
            report = write_anatomy_report(document, self.out, title=self.title, command=command)
            show(f"Report: {report}", is_result=not self.is_json)
        return 0
