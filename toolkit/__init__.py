"""The embedding drift toolkit: how far a model's embeddings moved in fine-tuning, why, and whether it mattered.

It measures change of a model, not of incoming data. Names are imported on first use: ``import toolkit`` is cheap.
"""

from importlib import import_module
from typing import Any

import lazy_loader

_load, _, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("embedding-drift-toolkit")
    if name not in __all__:
        from toolkit.naming import near

        nearest = near(name, __all__)
        hint = f"did you mean {', '.join(nearest)}?" if nearest else f"it has: {', '.join(__all__)}"
        raise AttributeError(f"module 'toolkit' has no attribute {name!r}; {hint}")
    import_module("toolkit.questions").load_questions()  # from now on the schema has their columns
    return _load(name)


def __dir__() -> list[str]:
    return list(__all__)
