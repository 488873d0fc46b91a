"""The page on layers says what its tables say, keeps groups apart, draws all conditions, takes odd names as text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from tests.chart_data import values_of
from tests.questions.headings import lines
from toolkit.comparison.intervals import two_way_interval
from toolkit.questions.layers import page as layers
from toolkit.questions.layers import states as layer_drift
from toolkit.questions.layers import trend as layer_trend
from toolkit.questions.layers.page import (
    answers,
    groups_of,
    layers_page,
    moved_rows,
    plot_similarity,
    plot_weight_drift,
    reference_rows,
    regime_rows,
    similarity_rows,
)
from toolkit.questions.layers.states import ConditionSimilarities, LayerSimilarity, average, contrast
from toolkit.questions.layers.trend import ConditionWeights, weight_tables
from toolkit.reporting.cells import estimate_text, percent_text
from toolkit.reporting.folder import write_page

GROUP = "m on <script>"
AFTER = {"full": 0.5, "embeddings frozen": 0.51, "shuffled labels": 0.8}


def found(value: float, seed: Any, spread: float = 0.02) -> dict[layer_drift.ValueKey, LayerSimilarity]:
    """Three layers of one domain; the last one is at ``value``, and every text group differs a little."""
    pseudo = np.random.default_rng(seed).normal(0, spread, 30)
    pseudo -= pseudo.mean()
    return {
        ("ood", layer, measure): LayerSimilarity(mean, mean + pseudo * (mean < 1), 300)
        for layer, mean in enumerate((1.0, 0.9, value))
        for measure in layer_drift.MEASURES
    }


def condition_of(name: str, value: float, between: float = 0.7, group: str = GROUP) -> ConditionSimilarities:
    """Three seeds at ``value`` - .01, ``value`` and ``value`` + .01."""
    to_before = {seed: found(value + (seed - 1) / 100, [seed, *name.encode()]) for seed in range(3)}
    pairs = {pair: found(between, 9) for pair in ((0, 1), (0, 2), (1, 2))}
    return ConditionSimilarities(group, name, name == "shuffled labels", 100, to_before, pairs)


def tables_of(*conditions: ConditionSimilarities) -> dict[str, pd.DataFrame]:
    weights = [weights_of(condition.group, condition.condition, list(condition.to_before)) for condition in conditions]
    return {"means": average(conditions), "contrasts": contrast(conditions), **weight_tables(weights)}


def weights_of(
    group: str, condition: str, seeds: list[int], by_layer: tuple[float, ...] = (0.03, 0.01)
) -> ConditionWeights:
    """One matrix in each of two layers, the embeddings still; seeds differ by a few per cent of the drift."""
    tables = {}
    for seed in seeds:
        drift = [0.0, *(own * (1 + 0.02 * seed + 0.001 * (seed * k) ** 2) for k, own in enumerate(by_layer))]
        names = ["word_embeddings", *(f"layers.{k}" for k in range(len(by_layer)))]
        tables[seed] = pd.DataFrame(
            {
                "layer": pd.array(range(len(names)), dtype="Int64"),
                "component": names,
                "part": ["word_embeddings", *["attention query"] * len(by_layer)],
                "parameter": names,
                "shape": "4x4",
                "num_values": 16,
                "norm_before": 2.0,
                "norm_change": [2 * own for own in drift],
                "relative_drift": drift,
                "angle_degrees": [10 * own for own in drift],
                "is_identical": [own == 0 for own in drift],
                "is_shared": False,
                "is_cast": False,
                "reason": "",
                "note": "",
            }
        )
    return ConditionWeights(group, condition, condition == "shuffled labels", tables)


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return tables_of(*(condition_of(name, value) for name, value in AFTER.items()))


def test_the_layer_is_held_against_two_seeds_and_shuffled_labels(tables: dict[str, pd.DataFrame]) -> None:
    found = {(line["regime"], line["held against"]): line for line in lines(reference_rows(tables))}
    own, shuffled = found["full", "its seeds with each other"], found["full", "shuffled labels"]
    for line, other, gap in ((own, "0.700", "-0.200 ("), (shuffled, "0.800", "-0.300 (")):
        assert line["least similar"] == "layer 2"
        assert line["similarity"].startswith("0.500 (")
        assert line["standardised columns"].startswith("0.500 (")
        assert line["other"] == other
        assert line["difference"].startswith(gap)
        assert line["distinguishable?"].startswith("yes: changed more")
    assert (own["two seeds differ by"], shuffled["two seeds differ by"]) == (None, "0.013")
    assert shuffled["distinguishable?"].endswith(", beyond what two seeds differ by")
    (less,) = (line for (regime, _), line in found.items() if regime == "shuffled labels")
    assert (less["held against"], less["difference"][:7]) == ("its seeds with each other", "+0.100 ")
    assert less["distinguishable?"] == "yes: changed less"
    (against,) = lines(regime_rows(tables))
    assert against == against | {
        "regime": "embeddings frozen",
        "against": "full",
        "two seeds differ by": "0.013",
        "compared": 2,  # of three layers, one is 1 for all texts and has no interval
    }


def test_what_cannot_be_distinguished_says_so() -> None:
    own = tables_of(condition_of("full", 0.7), condition_of("shuffled labels", 0.7))
    assert {line["distinguishable?"] for line in lines(reference_rows(own))} == {"not distinguishable"}
    same = condition_of("full", 0.7).to_before  # every text as in the other condition: nothing varies
    twice = [ConditionSimilarities(GROUP, name, name == "shuffled labels", 100, same, {}) for name in AFTER]
    first = lines(reference_rows(tables_of(*twice)))[0]
    assert (float(first["difference"]), first["distinguishable?"]) == (0, "undefined: no interval")


def test_one_seed_makes_no_claim_about_a_regime() -> None:
    full, frozen, shuffled = (condition_of(name, value) for name, value in AFTER.items())
    one = [replace(condition, to_before={1: condition.to_before[1]}, between={}) for condition in (frozen, shuffled)]
    own = tables_of(full, *one)
    line = next(x for x in lines(reference_rows(own)) if x["held against"] == "shuffled labels")
    assert line["difference"].startswith("-0.300 (")
    assert line["distinguishable?"] == "not judged: one seed"
    (against,) = lines(regime_rows(own))
    assert against["changed more"] == against["changed less"] == "not judged: one seed"


@pytest.mark.parametrize("least", [1.0, 0.9996])
def test_a_condition_that_did_not_move(least: float) -> None:
    """Also where it moved by less than is printed: no layer of similarity 1.000 changed most."""
    still = {0: {place: LayerSimilarity(least if place[1] == 2 else 1.0, np.ones(30), 300) for place in found(1.0, 0)}}
    own = tables_of(ConditionSimilarities(GROUP, "probe", False, None, still, {}))
    assert layers.least_similar(own["means"]) == layers.NO_CHANGE
    alike = {0: {place: LayerSimilarity(0.9, np.ones(30), 300) for place in found(1.0, 0)}}
    same = tables_of(ConditionSimilarities(GROUP, "full", False, None, alike, {}))
    assert layers.least_similar(same["means"]) == layers.EQUAL_CHANGE
    assert (len(own["contrasts"]), own["means"].low.count()) == (0, 0)


def test_one_interval_for_one_number(tables: dict[str, pd.DataFrame]) -> None:
    """Comparison and table show the same interval, that of the mean."""
    every = {(line["regime"], line["layer"]): line for line in lines(similarity_rows(tables))}
    cell = every["full", "2"]["debiased CKA"]
    assert {x["similarity"] for x in lines(reference_rows(tables)) if x["regime"] == "full"} == {cell}
    contrasts = (
        tables["contrasts"].query("condition == 'full' and layer == 2 and measure == 'debiased CKA'").to_dict("records")
    )
    shown = [x["difference"] for x in lines(reference_rows(tables)) if x["regime"] == "full"]
    assert shown == [estimate_text(x["value"], x["low"], x["high"], is_signed=True) for x in contrasts]


def test_groups_are_never_averaged() -> None:
    own = tables_of(condition_of("full", 0.5), condition_of("full", 0.9, group="other"))
    parts = groups_of(own)
    assert list(parts) == [GROUP, "other"]
    assert [similarity_rows(part)[1][2][3] for part in parts.values()] == [
        estimate_text(*own["means"].query("group == @group and layer == 2").iloc[0][["value", "low", "high"]])
        for group in parts
    ]


def test_the_page_escapes_and_repeats(tmp_path: Path, tables: dict[str, pd.DataFrame]) -> None:
    for name in ("a", "b"):
        write_page(layers_page(tables, models=(), command="x"), tmp_path / name, tables)
    for name in ("index.html", "report.md"):
        text = (tmp_path / "a" / name).read_text()
        assert "on <script>" not in text
        assert tables["means"].num_texts.iloc[0] == 300
        assert "300" in text
    assert {path.name for path in (tmp_path / "a/figures").iterdir()} == {
        f"{name}.{kind}" for name in ("similarity_by_layer", "weight_drift_by_layer") for kind in ("png", "svg", "pdf")
    }
    for path in sorted((tmp_path / "a").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes(), path
    for name, table in tables.items():
        assert pd.read_csv(tmp_path / f"a/tables/{name}.csv").shape == table.shape


def test_the_rows_name_the_farthest(tables: dict[str, pd.DataFrame]) -> None:
    most = tables["weight_means"].query("component == 'layers.0' and condition == 'full'").iloc[0]
    full = lines(moved_rows(tables))[0]
    assert full["relative drift"] == percent_text(*most[["relative_drift", "low", "high"]])
    assert [line["verdict"] for line in lines(moved_rows(tables))] == ["more at the bottom"] * 3
    assert (full["weights moved most in"], full["least in"]) == ("layer 1", "layer 2")
    assert full["relative drift"].startswith("3.06 % (")
    assert full["relative drift*"].startswith("1.02 % (")


def test_what_few_seeds_or_still_weights_cannot_say() -> None:
    one = weight_tables([weights_of("g", "full", [0])])
    (line,) = lines(moved_rows(one))
    assert (line["relative drift"], line["top to bottom"]) == ("3.00 %", "0.333")
    assert line["verdict"].startswith("not judged (1 of the 3 seeds that a verdict needs")
    still = weight_tables([weights_of("g", "probe", [0, 1, 2], (0.0, 0.0))])
    assert lines(moved_rows(still))[0]["weights moved most in"] == "no layer: their weights did not move"
    assert plot_weight_drift(still["weight_means"], still["weight_drift"]) is None
    (line,) = lines(moved_rows(weight_tables([weights_of("g", "half", [0, 1, 2], (0.0, 0.01))])))
    check_said((line["weights moved most in"], line["relative drift"]), "layer 2 alone", "1.02 % (")
    none = weight_tables([ConditionWeights("g", "random init", False, {}, layer_trend.RANDOM_START)])
    (line,) = lines(moved_rows(none))
    check_said((line["weights moved most in"], line["verdict"]), layers.NOT_COMPARED, layer_trend.RANDOM_START)
    assert plot_weight_drift(none["weight_means"], none["weight_drift"]) is None
    flat = weight_tables([weights_of("g", "flat", [0, 1, 2], (0.02, 0.02, 0.02))])
    assert lines(moved_rows(flat))[0]["verdict"].startswith(layers.FLAT)


def said(tables: dict[str, pd.DataFrame]) -> list[tuple[str, str]]:
    return [(each.verdict, each.text) for each in answers(tables, groups_of(tables))]


def check_said(answer: tuple[str, str], verdict: str, *parts: str) -> None:
    """An answer has this verdict, and its text these parts."""
    assert (answer[0], [part for part in parts if part not in answer[1]]) == (verdict, []), answer


def test_the_first_screen_says_where_weights_moved_most() -> None:
    own = weights_of("g", "full", [0, 1, 2])
    logs = np.log([table["relative_drift"][2] / table["relative_drift"][1] for table in own.tables.values()])
    half = t.ppf(0.975, 2) * logs.std(ddof=1) / 3**0.5
    ratio = estimate_text(*np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]))
    weights, states = said(weight_tables([own]))
    moved = f"g, full: the top third moved {ratio} times as far as the bottom third; 1 means equally far. Seeds: 3. q: "
    check_said(weights, "more at the bottom", moved)
    assert states == ("not judged", layers.NO_STATES)
    turned = {
        2: weights_of("g", "full", [2], (0.01, 0.03)).tables[2],
        1: weights_of("g", "full", [1], (1, 1)).tables[1],
    }
    assert said(weight_tables([replace(own, tables={**own.tables, **turned})]))[0][0] == "not decided"
    moved = "0.333 times as far as the bottom third; 1 means equally far. Seeds: 1. Not judged: 1 of the 3 seeds"
    check_said(said(weight_tables([weights_of("g", "full", [0])]))[0], "not judged", moved)
    none = said(weight_tables([ConditionWeights("g", "random init", False, {}, layer_trend.RANDOM_START)]))[0]
    check_said(none, "not judged", f"Not judged: {layer_trend.RANDOM_START}.")


@pytest.mark.parametrize(("value", "verdict"), [(0.5, "yes"), (0.8, "no"), (0.7, "not decided")])
def test_the_first_screen_holds_states_against_two_seeds(value: float, verdict: str) -> None:
    condition = condition_of("full", value)
    place = ("ood", 2, layers.CKA)
    own, pairs = (
        np.array([each[place].pseudo for each in side.values()]) for side in (condition.to_before, condition.between)
    )
    gap = two_way_interval(own - pairs)  # three equal pairs: leaving a seed out changes nothing
    text = estimate_text(round(gap.estimate, 9), gap.low, gap.high, is_signed=True)
    least = f" like before on ood, two seeds 0.700; difference {text}. Least like before: layer 2."
    found = said(tables_of(condition, condition_of("shuffled labels", 0.9)))[1]
    check_said(found, verdict, f"{GROUP}, full: layer 2 is {value:.3f} (", least)


def test_the_first_screen_judges_no_states_of_one_seed_or_undefined_ones() -> None:
    condition = condition_of("full", 0.5)
    one = said(tables_of(replace(condition, to_before={1: condition.to_before[1]}, between={})))[1]
    check_said(one, "not judged", "two seeds undefined; difference undefined. ", "Not judged: one seed.")
    why = {place: LayerSimilarity(np.nan, num_texts=3, reason="too few texts") for place in found(0.5, 0)}
    undefined = replace(
        condition, to_before=dict.fromkeys(range(3), why), between=dict.fromkeys(condition.between, why)
    )
    check_said(said(tables_of(undefined))[1], "not judged", "Not judged: too few texts.")


def test_a_report_of_two_checkpoints_has_weights_only(tmp_path: Path) -> None:
    own = weight_tables([weights_of("a and b", "after with before", [0])])
    text = write_page(layers_page(own, models=(), command="x"), tmp_path / "out", own).read_text()
    for part, is_there in {
        "figures/weight_drift_by_layer.png": True,
        "debiased CKA": False,
        "| after with before | word embeddings": False,  # the components of the embeddings are put together
        "| after with before | embeddings | 0 % | 0 | 2.00 | 0 | 16 | bit-identical |": True,
    }.items():
        assert (part in text) == is_there, part


@pytest.mark.parametrize(
    ("conditions", "models", "there"),
    [
        ((), ("start", "tuned"), (False, False, False, False)),
        ((), ("minilm", "tuned"), (True, False, False, False)),
        ((condition_of("full", 0.5),), ("start",), (False, True, False, False)),
        ((condition_of("full", 0.5), condition_of("shuffled labels", 0.8)), ("start",), (False, True, True, False)),
        (
            (replace(ONE := condition_of("full", 0.5), to_before={1: ONE.to_before[1]}, between={}),),
            (),
            (False, True, False, True),
        ),
    ],
)
def test_a_caveat_is_said_only_of_what_it_is_of(conditions: Any, models: Any, there: Any) -> None:
    own = tables_of(*conditions) if conditions else weight_tables([weights_of("g", "after with before", [0])])
    asked = (layers.EMBEDDED_MODEL, layers.STATE_LIMITS[0], layers.MEMORISED, layers.ONE_SEED)
    (said,) = next(each for each in layers_page(own, models=models).sections if each.id == "limits").blocks
    assert tuple(text in said.text for text in asked) == there


def test_weights_are_drawn_group_by_group() -> None:
    conditions = [weights_of(f"task {k}", "full", [0, 1, 2]) for k in range(4)]
    conditions.append(ConditionWeights("task 4", "random init", False, {}, layer_trend.RANDOM_START))
    own = weight_tables(conditions)
    chart = plot_weight_drift(own["weight_means"], own["weight_drift"])
    assert [panel["title"]["text"] for panel in chart.to_dict()["concat"]] == [f"task {k}" for k in range(4)]
    drawn = values_of(chart)
    means_of = own["weight_means"].query("component in ('layers.0', 'layers.1', 'embeddings') and condition == 'full'")
    single = own["weight_drift"].query("component in ('layers.0', 'layers.1')")["relative_drift"]
    assert {value["mean"] for value in drawn} == {
        float(f"{100 * value:.5g}") for value in [*means_of["relative_drift"], *single]
    }


def test_every_condition_and_measure_is_drawn(tables: dict[str, pd.DataFrame]) -> None:
    chart = plot_similarity(tables["means"])
    known = tables["means"][tables["means"]["value"].notna()]
    lines_of = zip(
        known["condition"],
        known["comparison"].map(layers.COMPARISON_NAMES),
        known["layer"],
        known["value"],
        strict=True,
    )
    drawn = {(line["series"], line["kind"], line["layer"], line["mean"]) for line in values_of(chart)}
    assert drawn == {(condition, kind, layer, float(f"{mean:.5g}")) for condition, kind, layer, mean in lines_of}
    titles = [panel["title"]["text"] for panel in chart.to_dict()["concat"]]
    assert [title if isinstance(title, str) else " ".join(title) for title in titles] == list(layer_drift.MEASURES)
    assert plot_similarity(tables["means"].iloc[:0]) is None
