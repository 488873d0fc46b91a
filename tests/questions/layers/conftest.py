"""Runs that kept their models, trained once for each module."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from toolkit.config import RunConfig
from toolkit.pipeline import finetune
from toolkit.snapshots.store import Run


@pytest.fixture(scope="module")
def train(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """``train(**fields)``: a finished run with its model; equal fields give one run."""
    known = {"output_dir": str(tmp_path_factory.mktemp("runs")), "save_model": True, "dropout": 0.0}
    return lambda **changes: finetune(replace(tiny_config, **known | changes), reuse_finished=True)
