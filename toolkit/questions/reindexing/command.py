"""The command `reindex`; what it needs is imported when it runs, so that --help is quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from toolkit.naming import command_again


@dataclass(frozen=True, slots=True)
class ReindexCommand:
    """Must I re-index? What searches by a tuned model find among vectors that were stored before, as is and mapped."""

    before: tyro.conf.Positional[str]
    """The model that made the stored vectors: a checkpoint (minilm, a folder, a hub id) or a run directory made with
    --save-model."""
    after: tyro.conf.Positional[str]
    """The tuned model, likewise; its tokenizer and width may differ."""
    texts: Path
    """Data file of the texts whose vectors are stored."""
    queries: Path | None = None
    """Data file of the texts that are searched for. None: a fifth of --texts, drawn and left out of the index."""
    text_columns: tuple[str, ...] = ()
    """Names of the one or two text columns of both files, by default text, or sentence."""
    k: int = 10
    """Texts that a search gives."""
    pooling: Literal["mean", "cls", "last"] | None = None
    """What a text's vector is by the encoder alone: the mean of its tokens, its first token, or its last; compared by
    cosine. None: the mean, and of a sentence-transformers folder what its encode() gives, with all of its modules."""
    keep_at: float = 0.95
    """Least recall at which the index is kept as it is."""
    map_at: float = 0.95
    """Least recall at which a linear map of the stored vectors is enough."""
    seed: int = 0
    """Seed of what is drawn: the queries, the folds of the maps, the nulls and the bootstrap."""
    out: Path | None = None
    """Folder to write the report and its figures into; None: print the tables only."""
    title: str | None = None
    """Title of the report; None: the default one."""

    def run(self) -> int:
        from toolkit.questions.reindexing.measure import measure_reindexing
        from toolkit.questions.reindexing.page import reindex_page
        from toolkit.reporting.folder import check_if_asked
        from toolkit.reporting.render_terminal import show_page

        check_if_asked(self.out)
        options = ("queries", "text_columns", "k", "pooling", "keep_at", "map_at", "seed")
        chosen = {name: getattr(self, name) for name in options}
        tables = measure_reindexing(self.before, self.after, self.texts, **chosen)
        command = command_again(self, "reindex", (self.before, self.after), "texts", *options)
        return show_page(reindex_page(tables, title=self.title, command=command), self.out, tables)
