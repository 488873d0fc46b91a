"""The page on relative quality: intervals, the majority and failed runs in the table and in the chart."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from relative_quality import (
    ITSELF,
    plot_relative_quality,
    relative_block,
    relative_page,
    relative_quality,
    shown_splits,
)
from tests.comparison.planted import plant
from tests.refusals import check_refused
from tests.reporting.chart_data import alone, lines_of, panels_of
from tests.run_directories import write_run
from toolkit.reporting.folder import write_page
from toolkit.reporting.page import shown

SHARES = {"none": 0.95, "embeddings": 0.95, "position_embeddings": 0.7, "backbone": 0.5}
FULL = "full fine-tuning"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Three seeds of four arms on 200 items: as good, clearly worse, and at chance with one failed run."""
    folder, generator = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    made = []
    for regime, share in SHARES.items():
        for seed in range(3):
            right = np.random.default_rng(seed).random(200) < share if share > 0.9 else generator.random(200) < share
            if (regime, seed) == ("backbone", 0):
                right[:] = np.arange(200) % 2 == 0  # always answers 0: the majority class
            if regime == "embeddings":
                flipped = [generator.choice(np.flatnonzero(right == side), 3, replace=False) for side in (True, False)]
                right[np.concatenate(flipped)] ^= True  # as good, on other items
            made.append(plant(write_run(folder, regime, seed, epochs=1, task="<toy>").path, right))
    return relative_quality(made, FULL)


def test_the_table_counts_failed_runs_and_has_no_interval_of_the_reference(table: pd.DataFrame) -> None:
    cells = shown(relative_block(table, ""))
    rows = pd.DataFrame(cells.rows, columns=list(cells.header)).set_index("condition")
    assert rows.loc[FULL, ["relative quality", "95 % interval", "reason"]].tolist() == ["1.000", "", ITSELF]
    assert rows["failed"].tolist() == table["num_failed"].astype(str).tolist()
    assert table["num_failed"].max() >= 1
    assert len(rows) == len(SHARES)


@pytest.mark.usefixtures("drawn")
def test_the_page_has_its_command_its_limits_and_its_chart(tmp_path: Path, table: pd.DataFrame) -> None:
    page = relative_page(table, title="T", command="one\ntwo", caveats=["not *this*"])
    text = write_page(page, tmp_path, {"relative_quality": table}).read_text()
    told = ("```bash\none\ntwo\n```", "not &#42;this&#42;", "figures/relative_quality.png")
    assert [words for words in told if words not in text] == []
    assert "<toy>" not in text


def test_every_arm_split_and_majority_is_drawn(table: pd.DataFrame) -> None:
    both = pd.concat([table, table.assign(split="ood", is_reported_split=False, relative_quality=0.9)])
    (panel,) = panels_of(plot_relative_quality(both))
    drawn = lines_of(panel, "relative_quality")
    for name in ("relative_quality", "low", "high"):
        np.testing.assert_allclose(drawn[name].astype(float), both[name], rtol=1e-4)
    assert list(drawn["condition"]) == list(both["condition"])
    (floors,) = [data for data in alone(panel) if list(data) == ["split", "majority_quality"]]
    assert floors["split"] == ["validation", "ood"]
    np.testing.assert_allclose(floors["majority_quality"], both["majority_quality"].mean(), rtol=1e-4)


def test_the_reference_alone_is_no_chart(table: pd.DataFrame) -> None:
    assert plot_relative_quality(table[table["condition"] == FULL]) is None
    check_refused("expected the table of relative_quality", plot_relative_quality, table[["condition"]])


def test_of_validation_and_test_the_reported_one_is_drawn(table: pd.DataFrame) -> None:
    test, ood = (table.assign(split=name, is_reported_split=False) for name in ("test", "ood"))
    assert set(shown_splits(pd.concat([table, test, ood]))["split"]) == {"validation", "ood"}
    reported = [table.assign(is_reported_split=False), test.assign(is_reported_split=True), ood]
    assert set(shown_splits(pd.concat(reported))["split"]) == {"test", "ood"}
