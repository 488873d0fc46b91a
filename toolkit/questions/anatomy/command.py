"""The command `anatomy`; what it needs is imported when it runs, so that --help is quick."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from toolkit.naming import command_again


@dataclass(frozen=True, slots=True)
class AnatomyCommand:
    """Take a model's embedding layer apart on your own sentence: eight questions, answered by measurement."""

    model: tyro.conf.Positional[str]
    """A checkpoint (minilm, a folder, a hub id) or a run directory that was made with --save-model."""
    text: str
    """The sentence that the model reads."""
    pair: str | None = None
    """A second sentence, which the model reads together with the first; None: a single sentence."""
    out: Path | None = None
    """Folder to write the report and its figures into; None: print the answers only."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.naming import shorten
        from toolkit.questions.anatomy.measure import as_document, take_apart
        from toolkit.questions.anatomy.page import anatomy_page, anatomy_tables
        from toolkit.questions.models import open_model
        from toolkit.reporting.folder import check_if_asked
        from toolkit.reporting.render_terminal import show_page

        check_if_asked(self.out)
        document = as_document(take_apart(open_model(self.model), self.text, self.pair, name=shorten(self.model)))
        page = anatomy_page(
            document, title=self.title, command=command_again(self, "anatomy", (self.model,), "text", "pair")
        )
        return show_page(page, self.out, anatomy_tables(document))
