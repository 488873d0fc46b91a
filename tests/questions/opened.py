"""A tiny model and texts in its tokens."""

from pathlib import Path
from typing import Any

from toolkit.models.classifier import Loaded, load_classifier
from toolkit.questions.models import encode_texts


def opened(folder: Path, texts: Any, **options: Any) -> tuple[Loaded, Any]:
    """The classifier of a folder, in eval mode, and these texts as its data."""
    loaded = load_classifier(str(folder), **({"pooling": "mean", "num_outputs": 2} | options))
    loaded.model.eval()
    return loaded, encode_texts(loaded, texts)
