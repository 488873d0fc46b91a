"""A model and a sentence in, its embedding layer taken apart out: each answer measured on that sentence."""

from toolkit.probes.anatomy.anatomy import Anatomy, take_apart
from toolkit.probes.anatomy.document import as_document
from toolkit.probes.anatomy.opening import open_model

__all__ = ["Anatomy", "as_document", "open_model", "take_apart"]
