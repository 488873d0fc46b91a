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


def rows_of(table: pd.DataFrame) -> pd.DataFrame:
    cells = shown(relative_block(table, ""))
    return pd.DataFrame(cells.rows, columns=list(cells.header)).set_index("condition")


def test_failed_runs_are_counted_in_the_table(table: pd.DataFrame) -> None:
    failed = int(table.set_index("condition").loc["feature extraction", "num_failed"])
    assert failed >= 1
    assert rows_of(table).loc["feature extraction", "failed"] == str(failed)


def test_the_reference_stands_in_the_table_without_interval(table: pd.DataFrame) -> None:
    rows = rows_of(table)
    assert rows.loc[FULL, "relative quality"] == "1.000"
    assert rows.loc[FULL, "95 % interval"] == ""
    assert rows.loc[FULL, "reason"] == ITSELF
    assert len(rows) == len(SHARES)


@pytest.mark.usefixtures("drawn")
def test_the_page_escapes_and_repeats(tmp_path: Path, table: pd.DataFrame) -> None:
    for name in ("a", "b"):
        page = relative_page(table, title="T", command="one\ntwo", caveats=["not *this*"])
        write_page(page, tmp_path / name, {"relative_quality": table})
    text = (tmp_path / "a/report.md").read_text()
    assert "<toy>" not in text
    assert "<toy>" not in (tmp_path / "a/index.html").read_text()
    assert "```bash\none\ntwo\n```" in text
    assert "not &#42;this&#42;" in text
    assert "figures/relative_quality.png" in text
    for path in sorted((tmp_path / "a").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes(), path
    assert len(pd.read_csv(tmp_path / "a/tables/relative_quality.csv")) == len(table)


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
