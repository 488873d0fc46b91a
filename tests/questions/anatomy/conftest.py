"""Measured once a session: the anatomy of a tiny model of every family."""

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.models.classifier import Loaded
from toolkit.questions.anatomy.measure import Anatomy, take_apart
from toolkit.questions.models import open_model

TEXT, PAIR = "the film is good .", "the doctor saw a teacher ."


@pytest.fixture(scope="session")
def opened(tiny_model: Callable[[str], Path]) -> Callable[[str], Loaded]:
    """A function: model type to its tiny model, loaded once."""
    models: dict[str, Loaded] = {}

    def get(model_type: str) -> Loaded:
        if model_type not in models:
            models[model_type] = open_model(str(tiny_model(model_type)))
        return models[model_type]

    return get


@pytest.fixture(scope="session")
def anatomy_of(opened: Callable[[str], Loaded]) -> Callable[[str], Anatomy]:
    """A function: model type to the anatomy of its tiny model on the pair TEXT, PAIR."""
    found: dict[str, Anatomy] = {}

    def get(model_type: str) -> Anatomy:
        if model_type not in found:
            found[model_type] = take_apart(opened(model_type), TEXT, PAIR)
        return found[model_type]

    return get
