"""What the page of drift says of gauge, neighbours and the output of the embedding layer."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import toolkit
from tests.planted_weights import altered
from tests.questions.pages import page_of, section_of, tables_of
from toolkit.questions.drift_report import makers_of
from toolkit.questions.space import page as space
from toolkit.questions.space.functional import functional_drift
from toolkit.reporting.page import ChartBlock, TextBlock
from toolkit.reporting.render_markdown import render_markdown
from toolkit.reporting.sources import Computed, open_sources


def test_the_page_has_its_tables_and_the_picture_of_the_output(runs: list[toolkit.Run]) -> None:
    made = makers_of(space.PARTS.values(), open_sources([run.path for run in runs[:2]]))
    assert made.keys() == {
        "gauge", "design", "functional", "neighbours", "similarity", "geometry", "updates", "agreement"
    }  # fmt: skip
    page = page_of([runs[0].path], functional=functional_drift(runs[0]))
    assert "functional" in [block.name for block in section_of(page, "gauge").blocks if isinstance(block, ChartBlock)]


def shares_of(folders: Sequence[Path]) -> pd.Series:
    """What the page says over all tables, by quantity."""
    opened = open_sources(folders)
    computed = Computed(opened).add({"gauge": space.gauge_makers(opened)["gauge"]})
    return tables_of(space.gauge_section(computed))[1].set_index("measure")["value"]


def test_the_share_that_layer_norm_takes_away_follows_the_change(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """One number added to every coordinate of a row is what LayerNorm takes away; what was 0 before has no share."""

    def move(tensors: dict[str, np.ndarray], times: float) -> None:
        for key in tensors:
            if key.endswith("word_embeddings.weight"):
                tensors[key][9] += 0.1 * times
            if key.endswith("embeddings.LayerNorm.bias"):
                tensors[key][:] = 0.25 * times

    folder = tiny_model("bert")
    shares = shares_of([altered(folder, tmp_path / str(times), partial(move, times=times)) for times in (0, 1)])
    assert shares["squared drift that LayerNorm takes away (%)"] == pytest.approx(100)


def test_no_share_of_layer_norm_where_a_projection_stands_before_it(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """What DeBERTa-v2's LayerNorm takes away of narrow rows is not what it would take away of the rows themselves."""
    folder = tiny_model("deberta-v2")
    moved = altered(
        folder, tmp_path / "moved", lambda own: own.update({n: t * np.float32(1.1) for n, t in own.items()})
    )
    assert np.isnan(shares_of([folder, moved])["squared drift that LayerNorm takes away (%)"])
    page = page_of([folder, moved], gauge=toolkit.measure_gauge(toolkit.import_checkpoints([folder, moved])))
    assert "the sums are projected before LayerNorm" in render_markdown(page)


def test_an_empty_list_of_words_is_said_as_what_it_is(runs: list[toolkit.Run]) -> None:
    (block,) = section_of(page_of([runs[2].path], neighbours=toolkit.most_changed(runs[2], 2)), "neighbours").blocks
    assert isinstance(block, TextBlock)
    assert block.text == space.NO_WORD
