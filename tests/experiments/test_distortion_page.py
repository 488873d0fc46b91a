"""The page on feature distortion: means and paired differences with Student's t, what is undefined, and the words."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t, ttest_rel

from distortion import apart_rows, arm_differences, arm_means, distortion_page, mean_rows, plot_distortion
from tests.chart_data import values_of
from toolkit.reporting.folder import write_page

VALUES = {"full": (2.0, 2.2, 2.5), "LP-FT": (1.0, 1.3, 1.5), "probe": (0.0, 0.0, 0.0)}
GRADIENTS = {"full": (1.0, 2.0, 3.0), "LP-FT": (1.1, 1.8, 3.2), "probe": (np.nan,) * 3}


@pytest.fixture
def table() -> pd.DataFrame:
    """Three seeds of three arms: LP-FT moves less, the probe not at all and without gradients."""
    lines = []
    for measure, place, values in (("relative_feature_distance", "ood", VALUES), ("gradient_norm", "body", GRADIENTS)):
        for arm, own in values.items():
            for seed, value in enumerate(own):
                note = "frozen: it gets no gradient" if np.isnan(value) else ""
                out = place == "ood" if measure != "gradient_norm" else pd.NA
                lines.append((arm, "m", "<toy>", seed, measure, place, out, value, note))
    columns = ["condition", "model", "task", "seed", "measure", "place", "is_out_of_distribution", "value", "reason"]
    return pd.DataFrame(lines, columns=columns).astype({"is_out_of_distribution": "boolean"})


def test_means_have_students_interval_and_count_what_is_undefined(table: pd.DataFrame) -> None:
    means = arm_means(table).set_index(["measure", "condition"])
    line, values = means.loc["relative_feature_distance", "full"], np.array(VALUES["full"])
    half = t.ppf(0.975, 2) * values.std(ddof=1) / 3**0.5
    assert line["mean"] == pytest.approx(values.mean())
    assert (line["low"], line["high"]) == pytest.approx((values.mean() - half, values.mean() + half))
    frozen = means.loc["gradient_norm", "probe"]
    assert (frozen["num_seeds"], frozen["num_undefined"]) == (0, 3)
    assert np.isnan(frozen["mean"])
    assert frozen["note"] == "frozen: it gets no gradient"
    still = means.loc["relative_feature_distance", "probe"]
    assert still["mean"] == 0
    assert np.isnan(still["low"])


def test_differences_are_paired_by_seed(table: pd.DataFrame) -> None:
    differences = arm_differences(table.sample(frac=1, random_state=0)).set_index(["measure", "first", "second"])
    names = ("full", "LP-FT") if ("gradient_norm", "full", "LP-FT") in differences.index else ("LP-FT", "full")
    line = differences.loc[("relative_feature_distance", *names)]
    expected = ttest_rel(VALUES[names[0]], VALUES[names[1]]).confidence_interval(0.95)
    assert (line["low"], line["high"]) == pytest.approx((expected.low, expected.high))
    assert line["num_seeds"] == 3


def test_what_is_distinguishable_and_what_was_frozen(table: pd.DataFrame) -> None:
    means, differences = arm_means(table), arm_differences(table)
    header, rows = apart_rows(means, differences)
    far, gradient = (dict(zip(header, row, strict=True)) for row in rows)  # the probe was frozen: nothing with it
    for line in (far, gradient):
        assert (line["first"], line["second"], line["seeds"]) == ("full", "LP-FT", 3)
    assert far["difference"].startswith("+0.967 (")
    assert gradient["difference"].startswith("-0.033 (")
    assert (far["distinguishable?"], gradient["distinguishable?"]) == ("yes", "no")
    header, rows = mean_rows(means[means["measure"] == "relative_feature_distance"])
    moved = next(dict(zip(header, row, strict=True)) for row in rows if row[1] == "ood")
    assert (moved["full"][:7], moved["LP-FT"][:7]) == ("2.233 (", "1.267 (")


def test_the_chart_draws_the_means(table: pd.DataFrame) -> None:
    means = arm_means(table)
    drawn = {value["condition"]: value for value in values_of(plot_distortion(means))}
    own = means[means["measure"] == "relative_feature_distance"].set_index("condition")
    assert {arm: value["mean"] for arm, value in drawn.items()} == pytest.approx(own["mean"].to_dict(), rel=1e-4)
    assert drawn["full"]["low"] == pytest.approx(own["low"]["full"], rel=1e-4)
    assert drawn["probe"]["interval"] == "none"
    assert plot_distortion(means[means["condition"] == "probe"]) is None


def test_the_page_says_what_is_undefined_and_what_it_cannot_tell(tmp_path: Path, table: pd.DataFrame) -> None:
    page = distortion_page(arm_means(table), arm_differences(table), command="x", caveats=["little"])
    text = write_page(page, tmp_path, {"distortion": table}).read_text()
    assert "<toy>" not in text
    assert "undefined (frozen: it gets no gradient)" in text
    assert "little" in text


def test_one_seed_has_no_interval(table: pd.DataFrame) -> None:
    one = table[table["seed"] == 0]
    assert arm_means(one)["low"].isna().all()
    header, rows = mean_rows(arm_means(one))
    assert header == ["measure", "place", *VALUES]
    assert rows[0][2:] == ["2.000", "1.000", "0.000"]
