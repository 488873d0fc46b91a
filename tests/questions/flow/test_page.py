"""The page on where position goes: complete, the same twice, and with sentences that follow planted tables."""

import re

import numpy as np
import pandas as pd
import pytest

from tests.chart_data import values_of
from tests.questions.headings import lines
from tests.reporting.conftest import contents
from toolkit.comparison.intervals import seeds_interval, two_way_interval
from toolkit.questions.flow import numbers as flow_numbers
from toolkit.questions.flow.measure import COUNTERFACTUALS, PRETRAINED, RANDOM
from toolkit.questions.flow.numbers import groups_of, intervals_of
from toolkit.questions.flow.page import (
    ONE_SEED,
    answers,
    bit_rows,
    decoding_rows,
    dominance_rows,
    drift_rows,
    flow_page,
    flow_tables,
    giving_way_rows,
    null_rows,
    plot_counterfactuals,
    plot_decoding,
    plot_position_shares,
    score_rows,
    segment_rows,
    share_rows,
)
from toolkit.reporting.folder import write_page
from toolkit.reporting.render_terminal import print_page

CONDITIONS = (
    (PRETRAINED, None, "aa"),
    ("full", 0, "bb"),
    ("full", 1, "cc"),
    ("extraction", 0, "aa"),
    (RANDOM, None, "dd"),
)
LAYERS = (-1, 0, 1, 2)
NUM_UNITS = 10


def units(value: float, sd: float = 0.01, seed: int = 0) -> tuple[float, ...]:
    """Values per block or text whose mean is ``value``: the same noise for the same seed."""
    noise = np.random.default_rng(seed).normal(size=NUM_UNITS)
    return tuple((value + sd * (noise - noise.mean())).tolist())


def planted(
    position=(0.5, 0.6, 0.3, 0.1),
    content=(0.4, 0.35, 0.6, 0.8),
    segment=None,
    score=-0.4,
    residual=(0.0, 0.0, 0.1, 0.2),
):
    """Tables of five models on one task; position falls and content rises unless told otherwise.

    Tuned models lie .001 above the pretrained one and share their blocks' noise but for a hundredth of it. ``score``:
    the change of right answers.
    """
    places = [{"group": "a|task", "condition": a, "run": f"{a} {s}", "seed": s, "body": b} for a, s, b in CONDITIONS]
    ledger, decoding, outputs = [], [], []
    rights = np.sign(score) * (np.arange(NUM_UNITS) < abs(score) * NUM_UNITS)

    def both(value: float, layer: int, model: int) -> tuple[float, ...]:
        return tuple((np.array(units(0, 0.02, layer)) + np.array(units(value, 0.0002, 60 + model))).tolist())

    for i, place in enumerate(places):
        own = {k: v for k, v in place.items() if k != "body"}
        for layer, *shares in zip(LAYERS, position, content, segment or [np.nan] * 4, strict=True):
            for factor, value in zip(("position", "content", "segment"), shares, strict=True):
                value = value + 0.001 * min(i, 1)
                note = "not applicable: single texts use one segment" if np.isnan(value) else ""
                ledger.append(
                    own
                    | {
                        "layer": layer,
                        "stage": "",
                        "factor": factor,
                        "omega_squared": value,
                        "low": np.nan,
                        "high": np.nan,
                        "by_block_eta": 0.002,
                        "unit_values": () if np.isnan(value) else both(value, LAYERS.index(layer), i),
                        "omega_standardised": value,
                        "eta_squared": value,
                        "eta_chance": 0.01,
                        "shuffled_omega": 0.0001,
                        "shuffled_eta": 0.011,
                        "df": 7,
                        "sum_of_squares": 1.0,
                        "reason": note,
                    }
                )
            left = residual[LAYERS.index(layer)]
            line = {"layer": layer, "stage": "", "factor": "residual", "eta_squared": left, "reason": ""}
            ledger.append(own | line | {"unit_values": units(left, 0.01, LAYERS.index(layer))})
            decoding.append(
                own
                | {
                    "layer": layer,
                    "stage": "",
                    "bits": 2 - 0.3 * layer,
                    "control_bits": 0.5,
                    "selective_bits": 1.5 - 0.3 * layer,
                    "low": 1.0,
                    "high": 2.0,
                    "beyond_word_bits": 1.4 - 0.3 * layer,
                    "control_draws": (0.4, 0.5, 0.6),
                    "bit_values": units(2 - 0.3 * layer, 0.1, 20 + i),
                    "selective_values": units(1.5 - 0.3 * layer, 0.1, 30 + i),
                    "beyond_word_values": units(1.4 - 0.3 * layer, 0.1, 40 + i),
                    "control_entropy_bits": 2.8,
                    "word_bits": 0.6,
                    "shuffled_bits": -0.01,
                    "entropy_bits": 3.0,
                    "note": "",
                }
            )
            for name in COUNTERFACTUALS:
                outputs.append(
                    own
                    | {
                        "counterfactual": name,
                        "measure": "state",
                        "layer": layer,
                        "stage": "",
                        "value": 0.4,
                        "low": 0.3,
                        "high": 0.5,
                        "num_texts": NUM_UNITS,
                        "unit_values": units(0.4, 0.1, 50 + i),
                        "reference": 1.3,
                        "unit": "1",
                        "reason": "",
                    }
                )
        if place["condition"] in ("full", "extraction"):
            for name in COUNTERFACTUALS:
                outputs.append(
                    own
                    | {
                        "counterfactual": name,
                        "measure": "score",
                        "value": score,
                        "low": np.nan,
                        "high": np.nan,
                        "num_texts": NUM_UNITS,
                        "unit_values": tuple(np.random.default_rng(i).permutation(rights).tolist()),
                        "reference": 0.9,
                        "unit": "accuracy",
                        "reason": "",
                    }
                )
    facts = {
        "family": "BERT",
        "num_positions": 8,
        "num_contents": 24,
        "num_segments": 1,
        "num_sequences": 24,
        "note": "",
        "has_head": False,
        "split": "validation",
    }
    return {
        "ledger": pd.DataFrame(ledger),
        "decoding": pd.DataFrame(decoding),
        "counterfactuals": pd.DataFrame(outputs),
        "models": pd.DataFrame([p | facts for p in places]),
    }


def cells(rows, first) -> dict:
    """The cells by heading of the row that begins with ``first``."""
    first = (first,) if isinstance(first, str) else first
    (line,) = (line for line in lines(rows) if tuple(line.values())[: len(first)] == first)
    return line


BEFORE = "pretrained = extraction"


@pytest.mark.slow  # whole reports
def test_every_file_is_there_and_the_same_twice(tmp_path):
    names = ("where_position_goes", "decoding", "counterfactuals")
    for out in ("one", "two"):
        page = flow_page(planted(), title="A | page", command="the command")
        assert write_page(page, tmp_path / out, flow_tables(planted())) == tmp_path / out / "report.md"
    first = contents(tmp_path / "one")
    assert first == contents(tmp_path / "two")
    images = {f"figures/{name}.{kind}" for name in names for kind in ("png", "svg", "pdf")}
    tables = {f"tables/{name}.csv" for name in (*planted(), "intervals")}
    assert set(first) == {"report.md", "index.html", "files.json", *images, *tables}
    text = first["report.md"].decode()
    assert ("# A &#124; page" in text, "the command" in text) == (True, True)
    assert "nan" not in text.lower().replace("finance", "")
    assert not any(b"_values" in data for name, data in first.items() if name.endswith(".csv"))


@pytest.mark.parametrize(
    ("position", "content", "dominates", "stages", "gives_way"),
    [
        ((0.5, 0.6, 0.5, 0.1), (0.4, 0.35, 0.4, 0.8), "supported", "sum, input, 1", "supported"),
        ((0.5, 0.6, 0.3, 0.1), (0.4, 0.35, 0.6, 0.8), "in part", "sum, input", "supported"),
        ((0.1, 0.1, 0.05, 0.01), (0.9, 0.9, 0.9, 0.95), "not supported", "none", "supported"),
        ((0.1, 0.1, 0.1, 0.2), (0.9, 0.9, 0.9, 0.7), "not supported", "none", "not supported: its share is largest"),
        ((0.6, 0.6, 0.2, 0.1), (0.4, 0.4, 0.3, 0.2), "in part", "sum, input", "half of it"),
        ((0.6, 0.6, 0.2, 0.1), (0.4, 0.4, 0.3, 0.4), "in part", "sum, input", "half of it"),
        ((0.05, 0.05, 0.05, 0.9), (0.9, 0.9, 0.9, 0.1), "not supported", "none", "not supported"),
        ((0.41, 0.41, 0.41, 0.1), (0.4, 0.4, 0.4, 0.8), "not supported", "none", "supported"),
    ],
    ids=[
        "whole",
        "lower part",
        "little",
        "grows",
        "interactions",
        "content stays",
        "top layer only",
        "intervals overlap",
    ],
)
def test_the_expectation_is_judged_by_the_numbers(position, content, dominates, stages, gives_way):
    (group,) = groups_of(planted(position, content))
    lower, upper = cells(dominance_rows(group), BEFORE), cells(giving_way_rows(group), BEFORE)
    assert (lower["verdict"], lower["above content at"], lower["of the stages up to"]) == (dominates, stages, "1")
    assert upper["verdict"].startswith(gives_way)


def test_shares_that_are_rounding_are_no_findings():
    """As of a model without position rows."""
    tables = planted()
    ledger = tables["ledger"]
    is_position = ledger["factor"] == "position"
    ledger.loc[is_position, ["omega_squared", "by_block_eta"]] *= 1e-12
    ledger["unit_values"] = [
        tuple(1e-12 * v for v in values) if own else values
        for own, values in zip(is_position, ledger["unit_values"], strict=True)
    ]
    (group,) = groups_of(tables)
    for rows in (dominance_rows(group), giving_way_rows(group)):
        assert {row[1] for row in rows[1]} == {flow_numbers.NO_SHARE}
        assert {cell for row in rows[1] for cell in row[2:]} == {None}
    assert drift_rows(group)[1] == []
    assert [verdict for verdict, _ in said(tables)] == ["not judged", "yes", "not judged"]
    assert said(tables)[0][1].endswith(f"Not judged: {flow_numbers.NO_SHARE}.")
    names, values = zip(*(row[:2] for row in null_rows(group)[1]), strict=True)
    assert ("random weights" in " ".join(names), "0 % up to rounding" in values) == (False, True)


def test_what_takes_over_is_read_and_not_presumed():
    falls = {"position": (0.6, 0.6, 0.2, 0.1), "content": (0.4, 0.4, 0.3, 0.2)}
    shown = [
        cells(giving_way_rows(groups_of(planted(**falls, **more))[0]), BEFORE)
        for more in (
            {},
            {"residual": (0.1, 0.1, 0.1, 0.1)},
            {"residual": (0.0,) * 4, "segment": [0.0, 0.0, 0.2, 0.4]},
        )
    ]
    assert shown[0]["interactions (points)"].startswith("+20.00 (")
    assert [float(line["interactions (points)"].split(" ")[0]) for line in shown[1:]] == [0, 0]
    assert [line["segments (points)"] for line in shown[:2]] == [None, None]
    assert shown[2]["segments (points)"].startswith("+40.00 (")


def test_an_interval_over_seeds_is_that_of_their_mean_everywhere():
    tables = planted()
    (group,) = groups_of(tables)
    own = tables["ledger"].query("condition == 'full' and factor == 'position' and layer == 1")
    expected = two_way_interval(np.array(own["unit_values"].to_list()))
    found = group.over_seeds("ledger", "full", "omega_squared", factor="position").loc[1]
    assert (found["mean"], found["low"], found["high"]) == pytest.approx(
        (own["omega_squared"].mean(), expected.low, expected.high)
    )
    row = next(row for row in share_rows(group)[1] if row[:2] == ["full", "1"])
    assert row[2:5] == pytest.approx([100 * found["mean"], 100 * expected.low, 100 * expected.high])
    line = (
        intervals_of(tables).query("condition == 'full' and against == '' and of == 'position' and layer == 1").iloc[0]
    )
    assert line[["low", "high", "num_models", "num_units"]].to_list() == [expected.low, expected.high, 2, NUM_UNITS]
    drawn = [v for v in values_of(plot_position_shares(tables)) if v.get("series") == "full [2 seeds]"]
    (mark,) = (v for v in drawn if v["layer"] == 1 and v["mean"] == float(f"{100 * found['mean']:.5g}"))
    assert (mark["low"], mark["high"]) == pytest.approx((100 * expected.low, 100 * expected.high), rel=1e-4)
    bits = np.array(tables["decoding"].query("condition == 'full' and layer == 2")["bit_values"].to_list())
    expected = two_way_interval(bits)
    row = next(row for row in bit_rows(group)[1] if row[:2] == ["full", "2"])
    assert row[2:5] == pytest.approx([1.4, expected.low, expected.high])
    last = f"1.40 ({expected.low:.2f} to {expected.high:.2f})"
    assert cells(decoding_rows(group), "full")["in the last layer"] == last
    drawn = [v for v in values_of(plot_decoding(tables)) if v.get("series") == "full [2 seeds]"]
    mark = next(v for v in drawn if v["mean"] == 1.4)
    assert (mark["low"], mark["high"]) == pytest.approx((expected.low, expected.high), rel=1e-4)


def test_the_spread_of_the_control_draws_is_in_the_interval():
    tables = planted()
    wide, _ = (groups_of(tables)[0].over_seeds("decoding", "full", "selective_bits").loc[1, n] for n in ("low", "high"))
    tables["decoding"]["control_draws"] = [(0.5, 0.5, 0.5)] * len(tables["decoding"])
    alone = groups_of(tables)[0].over_seeds("decoding", "full", "selective_bits").loc[1]
    values = np.array(tables["decoding"].query("condition == 'full' and layer == 1")["selective_values"].to_list())
    assert alone["low"] == pytest.approx(two_way_interval(values).low)
    assert wide < alone["low"] - 0.02


def test_regimes_are_held_against_the_pretrained_model_on_the_same_blocks():
    """A difference far below the spread of blocks is distinguishable, since blocks share it; one of 0 is not."""
    tables = planted()
    (group,) = groups_of(tables)
    line = cells(drift_rows(group), "full")
    spread = group.over_seeds("ledger", "full", "omega_squared", factor="position")
    assert (spread["high"] - spread["low"] > 0.01).all()  # the intervals themselves overlap
    assert line == line | {"models": 2, "distinguishable at": "sum, input, 1, 2", "not distinguishable at": "none"}
    ledger = tables["ledger"]
    rows = (ledger["condition"] == "full") & (ledger["factor"] == "position")
    same = ledger[(ledger["condition"] == PRETRAINED) & (ledger["factor"] == "position")]["unit_values"].to_list()
    noise = [units(0, 0.01, seed) for seed in (1, 2)]
    for at, (index, line) in enumerate(ledger[rows].iterrows()):
        values = np.array(same[at % 4]) + (noise[int(line["seed"])] if line["layer"] > 0 else 0)
        ledger.at[index, "unit_values"] = tuple(values.tolist())
        ledger.at[index, "omega_squared"] = values.mean()
    line = cells(drift_rows(groups_of(tables)[0]), "full")
    assert (line["not distinguishable at"], line["exactly equal at"]) == ("1, 2", "sum, input")


def test_equal_bodies_are_one_line_and_random_weights_come_last():
    (group,) = groups_of(planted())
    assert (group.conditions, group.labels[PRETRAINED], group.num_models("full")) == (
        (PRETRAINED, "full", RANDOM),
        BEFORE,
        2,
    )
    assert list(dict.fromkeys(row[0] for row in share_rows(group)[1])) == list(group.labels.values())
    series = list(dict.fromkeys(v["series"] for v in values_of(plot_position_shares(planted())) if "series" in v))
    assert series == [BEFORE, "full [2 seeds]", RANDOM]


def test_what_does_not_apply_is_said_and_never_0():
    (group,) = groups_of(planted())
    assert segment_rows(group)[1] == [["all", None, None, None, "not applicable: single texts use one segment"]]
    assert all(row[6] is None for row in share_rows(group)[1])
    tables = planted()
    tables["counterfactuals"] = tables["counterfactuals"].iloc[:1].assign(value=np.nan, counterfactual=None)
    assert plot_counterfactuals(tables) is None
    assert score_rows(groups_of(tables)[0])[1] == []


@pytest.mark.parametrize(("score", "is_apart"), [(-0.8, "yes"), (-0.1, "no")])
def test_a_change_of_score_has_the_interval_over_seeds_and_texts(score, is_apart):
    tables = planted(score=score)
    (group,) = groups_of(tables)
    own = tables["counterfactuals"].query("condition == 'full' and measure == 'score' and counterfactual == 'zero'")
    expected = two_way_interval(np.array(own["unit_values"].to_list()))
    line = cells(score_rows(group), ("full", "zero"))
    assert line == line | {
        "change": f"{100 * score:+.1f} ({100 * expected.low:+.1f} to {100 * expected.high:+.1f})",
        "score": "accuracy (points)",
        "before": pytest.approx(90),
        "distinguishable from 0?": is_apart,
        "seeds": 2,
        "texts": 10,
    }


def test_a_score_that_is_no_share_has_its_own_unit_and_an_interval_over_seeds():
    tables = planted()
    outputs = tables["counterfactuals"]
    rows = outputs["measure"] == "score"
    outputs["unit_values"] = outputs["unit_values"].where(~rows, ())
    outputs.loc[rows, "unit"] = "pearson"
    outputs.loc[rows & (outputs["seed"] == 1), "value"] = -0.2
    line = cells(score_rows(groups_of(tables)[0]), ("full", "zero"))
    expected = seeds_interval([-0.4, -0.2])
    assert (line["change"], line["score"]) == (f"-0.300 ({expected.low:+.3f} to {expected.high:+.3f})", "pearson")


def test_the_nulls_are_printed(capsys):
    tables = planted(segment=[0.01, 0.01, 0.0, 0.0])
    (group,) = groups_of(tables)
    nulls = null_rows(group)[1]
    assert len(nulls) == 10  # two of them of the random weights
    assert next(row for row in nulls if "block x position" in row[0])[1] == "0.200 %"
    assert [row[0] for row in segment_rows(group)[1]] == [BEFORE, "full"]
    print_page(flow_page(tables))
    assert "shuffled states" in " ".join(capsys.readouterr().out.split())


SHARE = r"([\d.]+) % \(([\d.]+) to ([\d.]+) %\)"


def said(tables):
    return [(each.verdict, each.text) for each in answers(groups_of(tables))]


def values_at(tables, table, column, layer, **where):
    """(models, units) values of the pretrained model, or of another condition."""
    own = tables[table].query("layer == @layer")
    for name, value in ({"condition": PRETRAINED} | where).items():
        own = own[own[name] == value]
    return np.array(own[column].to_list())


@pytest.mark.parametrize(
    ("position", "verdict", "half"),
    [
        ((0.5, 0.6, 0.2, 0.1), "yes", "1"),
        ((0.1, 0.1, 0.1, 0.3), "no", "none"),
        ((0.1, 0.1, 0.04, 0.1), "not decided", "1"),
    ],
)
def test_the_first_screen_says_whether_position_fades(position, verdict, half):
    tables = planted(position)
    first, last = (values_at(tables, "ledger", "unit_values", layer, factor="position") for layer in (0, 2))
    found = [two_way_interval(values) for values in (first, last, last - first)]
    assert ("yes" if found[2].high < 0 else "no" if found[2].low > 0 else "not decided") == verdict
    answered, text = said(tables)[0]
    assert answered == verdict
    shares = [number for each in found[:2] for number in (each.estimate, each.low, each.high)]
    shown = re.fullmatch(
        rf"a\|task, {BEFORE}: position is {SHARE} of the variance at the input \(.*\) and {SHARE} in layer 2\. .*",
        text,
    )
    assert [float(number) / 100 for number in shown.groups()] == pytest.approx(shares, abs=5e-4)
    assert f"(first layer below half of that: {half})" in text
    assert "Chance is 0 %; shuffled states: at most 0.0100 %." in text


def test_the_first_screen_says_what_is_read_beyond_words():
    tables = planted()
    beyond = two_way_interval(values_at(tables, "decoding", "beyond_word_values", 2))
    verdict, text = said(tables)[1]
    told = f"1.40 of 3.00 bits, 0.80 ({beyond.low:.2f} to {beyond.high:.2f}) more than the word alone tells."
    assert (verdict, told in text) == ("yes", True)
    none = {"beyond_word_values": [units(0.0, 0.1, 7)] * len(tables["decoding"]), "beyond_word_bits": 0.0}
    tables["decoding"] = tables["decoding"].assign(**none)
    assert said(tables)[1][0] == "not decided"


def test_the_first_screen_says_whether_tuning_changes_the_last_layer():
    tables = planted()
    own, before = (
        values_at(tables, "ledger", "unit_values", 2, factor="position", condition=condition)
        for condition in ("full", PRETRAINED)
    )
    change = two_way_interval(100 * (own - before))
    verdict, text = said(tables)[2]
    told = f"full: +0.10 ({change.low:+.2f} to {change.high:+.2f}) points; 0 means no change. Seeds: 2."
    assert (verdict, told in text) == ("yes", True)
    ledger = tables["ledger"]
    for index, line in ledger[ledger["condition"] == "full"].iterrows():  # as far to one side as to the other
        ledger.at[index, "unit_values"] = tuple(np.array(line["unit_values"]) + 0.01 * (-1) ** int(line["seed"]))
    assert said(tables)[2][0] == "not decided"
    same = ledger[ledger["condition"] == PRETRAINED]
    copies = [same, *(same.assign(condition="full", run=f"full {seed}", seed=seed) for seed in (0, 1))]
    assert said(tables | {"ledger": pd.concat(copies)})[2][0] == "no"
    one = {name: table[table["seed"].fillna(0) == 0] for name, table in tables.items()}
    assert said(one)[2][0] == "not judged"
    assert said(one)[2][1].endswith("Not judged: one seed.")


def test_the_first_screen_judges_nothing_that_is_undefined():
    tables = planted()
    for name in ("ledger", "decoding"):  # as read from the CSV files of a report
        tables[name] = tables[name][[column for column in tables[name] if not column.endswith("_values")]]
    found = said(tables)
    assert [verdict for verdict, _ in found] == ["not judged"] * 3
    assert found[0][1].endswith("Not judged: no interval: no values per block or text.")
    tables["ledger"]["omega_squared"] = tables["decoding"]["bits"] = np.nan
    found = said(tables)
    assert [verdict for verdict, _ in found] == ["not judged"] * 3
    assert ("undefined %" in found[0][1], "undefined of undefined bits" in found[1][1]) == (True, True)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_single_model_is_no_seed_only_where_there_is_one(is_alone):
    tables = planted()
    if not is_alone:
        models = tables["models"]
        tables["models"] = pd.concat([models.assign(seed=0), models.assign(seed=1)])
    (said,) = next(each for each in flow_page(tables).sections if each.id == "limits").blocks
    assert (ONE_SEED in said.text) == is_alone
