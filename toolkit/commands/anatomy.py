"""``anatomy MODEL --text ...``: a model's embedding layer taken apart on one sentence."""

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True, slots=True)
class AnatomyCommand:
    """Take a model's embedding layer apart on your own sentence: eight questions, answered by measurement."""

    model: tyro.conf.Positional[str]
    """A checkpoint (minilm, a folder, a hub id) or a run directory that was made with --save-model."""
    text: str
    """The sentence that the model reads."""
    pair: str | None = None
    """A second sentence, which the model reads together with the first; None: there is none."""
    is_json: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of text: the same numbers, for all tokens. Keys: toolkit/probes/anatomy/document.py."""

    def run(self) -> int:
        import json

        from toolkit.naming import shorten
        from toolkit.probes.anatomy import as_document, open_model, take_apart
        from toolkit.reporting.topics.anatomy import print_anatomy

        anatomy = take_apart(open_model(self.model), self.text, self.pair, name=shorten(self.model))
        document = as_document(anatomy)
        if self.is_json:
            print(json.dumps(document, indent=2, allow_nan=False))
        else:
            print_anatomy(document)
        return 0
