"""The page on relative quality: intervals, the majority and failed runs in words and in the figure."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.comparison.planted import plant
from tests.run_directories import write_run
from toolkit.analysis.comparison.relative import ITSELF, relative_quality
from toolkit.reporting.comparison.relative_figure import draw_relative, shown_splits
from toolkit.reporting.comparison.relative_report import relative_findings, relative_rows, write_relative_report

pytestmark = pytest.mark.usefixtures("drawn")

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


def test_findings_sort_the_arms_by_what_their_intervals_say(table: pd.DataFrame) -> None:
    (line,) = relative_findings(table)
    below, rest = line.split("; not told apart from it ")
    assert f"beside {FULL} (0.9" in below
    assert "below it " in below
    assert "position_embeddings frozen 0.7" in below
    assert rest.startswith("embeddings frozen ")
    assert " embeddings frozen" not in below
    failed = int(table.set_index("arm").loc["feature extraction", "num_failed"])
    assert failed >= 1
    assert f"failed runs: {failed} of 3 of feature extraction" in rest
    assert "always answering the commonest class: feature extraction." in rest


def test_an_arm_above_is_said_to_be_above(table: pd.DataFrame) -> None:
    up = table.assign(relative_quality=1.2, low=1.1, high=1.3, majority_quality=0.5, num_failed=0)
    (line,) = relative_findings(up)
    assert "above it" in line
    assert "failed" not in line
    assert "commonest" not in line


def test_the_reference_stands_in_the_table_without_interval(table: pd.DataFrame) -> None:
    header, rows = relative_rows(table)
    (reference,) = [row for row in rows if row[1] == FULL]
    assert reference[header.index("relative quality")] == "1.000"
    assert reference[header.index("95 % interval")] == ""
    assert reference[header.index("note")] == ITSELF
    assert len(rows) == len(SHARES)


def test_the_page_escapes_and_repeats(tmp_path: Path, table: pd.DataFrame) -> None:
    for name in ("a", "b"):
        write_relative_report(table, tmp_path / name, title="T", command="one\ntwo", caveats=["not *this*"])
    text = (tmp_path / "a/report.md").read_text()
    assert "<toy>" not in text
    assert "```bash\none\ntwo\n```" in text
    assert "not &#42;this&#42;" in text
    assert "figures/relative_quality.png" in text
    for path in sorted((tmp_path / "a").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes(), path
    assert len(pd.read_csv(tmp_path / "a/tables/relative_quality.csv")) == len(table)
    with pytest.raises(ValueError, match="is a file"):
        write_relative_report(table, tmp_path / "a/report.md")


def test_every_arm_split_and_majority_is_drawn(table: pd.DataFrame) -> None:
    both = pd.concat([table, table.assign(split="ood", is_reported_split=False, relative_quality=0.9)])
    image = draw_relative(both)["relative_quality"]["svg"].decode()
    for words in (*table["arm"], "validation", "ood: majority class", "relative quality"):
        assert words in image, words


def test_of_validation_and_test_the_reported_one_is_drawn(table: pd.DataFrame) -> None:
    test, ood = (table.assign(split=name, is_reported_split=False) for name in ("test", "ood"))
    assert set(shown_splits(pd.concat([table, test, ood]))["split"]) == {"validation", "ood"}
    reported = [table.assign(is_reported_split=False), test.assign(is_reported_split=True), ood]
    assert set(shown_splits(pd.concat(reported))["split"]) == {"test", "ood"}
