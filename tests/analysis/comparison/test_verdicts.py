"""Five verdicts, tried in one order: the rules as laws, the order over all of them, and a planted study for each."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.comparison.intervals import two_way_interval
from toolkit.analysis.comparison.verdicts import VERDICTS, verdict

NAN = math.nan
finite = st.floats(-10, 10).map(lambda x: round(x, 3))
spans = st.tuples(finite, finite).map(sorted)
positive = st.floats(0.01, 10)
PLAIN = {"low": 1, "high": 3, "low90": 1.2, "high90": 2.8, "margin": 0.5, "gap": 0.4}


def rules(refusal, low, high, low90, high90, margin, null_low, null_high, gap):
    """Each rule on its own, straight from their definitions, in the order of VERDICTS."""
    excludes_zero = not low <= 0 <= high
    excludes_null = high < null_low or low > null_high
    return [
        refusal is not None,
        abs(low90) < margin and abs(high90) < margin,
        excludes_zero and excludes_null,
        gap > margin,
        True,
    ]


@given(st.sampled_from([None, "a gauge quantity"]), spans, spans, positive, spans, positive)
def test_the_first_rule_that_holds_decides(refusal, wide, narrow, margin, null, gap):
    numbers = (refusal, *wide, *narrow, margin, *null, gap)
    names = ("refusal", "low", "high", "low90", "high90", "margin", "null_low", "null_high", "gap")
    found = verdict(**dict(zip(names, numbers, strict=True)))
    assert found.name == VERDICTS[rules(*numbers).index(True)]
    assert found.reason


@pytest.mark.parametrize("holds", list(product([True, False], repeat=4)))
def test_every_combination_of_rules_that_hold(holds):
    """All 16 combinations, each made from numbers: every verdict is reached, and none out of turn."""
    is_refused, is_equivalent, is_apart, is_weak = holds
    margin = 5.0
    narrow = (2.0, 3.0) if is_equivalent else (2.0, 30.0)
    wide = (1.0, 4.0) if is_apart else (-1.0, 4.0)
    found = verdict(
        refusal="because" if is_refused else None,
        low=wide[0],
        high=wide[1],
        low90=narrow[0],
        high90=narrow[1],
        margin=margin,
        gap=6.0 if is_weak else 4.0,
    )
    assert found.name == VERDICTS[[*holds, True].index(True)]


@given(spans, spans, positive, spans, positive)
def test_mirrored_numbers_have_the_same_verdict(wide, narrow, margin, null, gap):
    def of(sign):
        ends = [sorted((sign * a, sign * b)) for a, b in (wide, narrow, null)]
        names = (("low", "high"), ("low90", "high90"), ("null_low", "null_high"))
        values = {name: x for pair, end in zip(names, ends, strict=True) for name, x in zip(pair, end, strict=True)}
        return verdict(**values, margin=margin, gap=gap).name

    assert of(1) == of(-1)


@given(spans, spans, positive, spans, positive, st.sets(st.sampled_from(["low", "high", "low90", "high90", "gap"])))
def test_what_is_unknown_never_helps_a_claim(wide, narrow, margin, null, gap, unknown):
    numbers = dict(zip(("low", "high", "low90", "high90"), (*wide, *narrow), strict=True))
    numbers |= {"margin": margin, "null_low": null[0], "null_high": null[1], "gap": gap}
    before = verdict(**numbers).name
    after = verdict(**(numbers | dict.fromkeys(unknown, NAN))).name
    if after in ("equivalent", "supported"):
        assert after == before or before == "equivalent"
    if unknown & {"low", "high"} and unknown & {"low90", "high90"}:
        assert after == "under-powered"


@given(spans, spans)
def test_a_claim_with_a_direction_needs_an_interval_above(wide, null):
    numbers = {"low90": NAN, "high90": NAN, "margin": NAN, "gap": NAN}
    ends = {"low": wide[0], "high": wide[1], "null_low": null[0], "null_high": null[1]}
    found = verdict(**ends, **numbers, side="above").name
    assert (found == "supported") == (wide[0] > max(0, null[1]))
    if found == "supported":
        assert verdict(**ends, **numbers).name == "supported"


@pytest.mark.parametrize("unknown", ["low", "high"])
def test_half_an_interval_supports_nothing(unknown):
    numbers = PLAIN | {"low90": NAN, "high90": NAN}
    assert verdict(**numbers).name == "supported"
    assert verdict(**numbers | {unknown: NAN}).name == "under-powered"
    assert verdict(**numbers | {unknown: NAN}, side="above").name == "under-powered"


def test_an_unknown_null_supports_nothing():
    assert verdict(**PLAIN, null_low=NAN, null_high=NAN).name == "not supported"
    assert verdict(**PLAIN, null_low=-1, null_high=NAN, side="above").name == "not supported"


def test_ends_of_the_margin_and_of_zero_do_not_count():
    assert verdict(**PLAIN | {"low90": -0.5, "high90": 0.4, "low": 0.0}).name == "not supported"
    assert verdict(**PLAIN | {"low90": -0.4, "high90": 0.4, "low": -0.5}).name == "equivalent"
    assert verdict(**PLAIN | {"low": 0.0}).name == "not supported"
    assert verdict(**PLAIN | {"low": 0.0, "gap": 0.5}).name == "not supported"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"low": 4}, "interval runs from 4 to 3"),
        ({"low90": 4}, "90 % interval"),
        ({"null_low": 1, "null_high": 0}, "null runs"),
        ({"margin": 0}, "margin is 0"),
        ({"margin": -1}, "margin is -1"),
        ({"side": "abov"}, "did you mean 'above'"),
    ],
)
def test_bad_input_is_one_clear_line(changes, words):
    with pytest.raises(ValueError, match=words) as error:
        verdict(**(PLAIN | changes))
    assert "\n" not in str(error.value)


PLANTED = {
    "not identifiable": {"effect": 0.05, "num_items": 400, "refusal": "a gauge quantity"},
    "equivalent": {"effect": 0.001, "num_items": 20_000},
    "supported": {"effect": 0.08, "num_items": 2_000},
    "under-powered": {"effect": 0.0, "num_items": 60, "gap": 5.0},
    "not supported": {"effect": 0.0, "num_items": 60, "gap": 0.5},
}


@pytest.mark.parametrize("expected", VERDICTS)
def test_a_planted_study_gets_its_verdict(expected):
    """Eight seeds, items of which a tenth are discordant, and an effect that is there, tiny, or absent."""
    planted = PLANTED[expected]
    rng = np.random.default_rng(3)
    shares = [0.05 - planted["effect"] / 2, 0.9, 0.05 + planted["effect"] / 2]
    differences = rng.choice([-1.0, 0.0, 1.0], size=(8, planted["num_items"]), p=shares)
    wide, narrow = (two_way_interval(differences, level) for level in (0.95, 0.90))
    found = verdict(
        refusal=planted.get("refusal"),
        low=100 * wide.low,
        high=100 * wide.high,
        low90=100 * narrow.low,
        high90=100 * narrow.high,
        margin=1.0,
        gap=planted.get("gap", 0.5),
    )
    assert found.name == expected


def test_reasons_name_the_gap_and_why_there_is_no_interval():
    numbers = {"low": -2.0, "high": 2.0, "low90": -1.5, "high90": 1.5, "margin": 1.0, "gap": 3.0}
    assert verdict(**numbers).reason == "the smallest detectable gap is 3 points, above the margin of 1"
    none = numbers | {"low": math.nan, "high": math.nan}
    assert verdict(**none).reason.startswith("no interval could be computed")
    assert verdict(**none, missing="one seed").reason == "one seed"
    assert verdict(**numbers, missing="one seed").reason != "one seed"
