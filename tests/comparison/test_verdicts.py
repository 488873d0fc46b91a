"""Ten verdicts, tried in one order: the rules as laws, the order over all of them, and a planted study for each."""

import math
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import check_refusals
from toolkit.comparison.intervals import two_way_interval
from toolkit.comparison.verdicts import CLAIMED, LEAST_SEEDS, REFUSALS, SAME_IN_THESE, VERDICTS, Verdict, among, verdict

NAN = math.nan
finite = st.floats(-10, 10).map(lambda x: round(x, 3))
spans = st.tuples(finite, finite).map(sorted)
positive = st.floats(0.01, 10)
seeds = st.integers(0, 8)
q_values = st.one_of(st.just(NAN), st.floats(0, 1))
refusals = st.one_of(st.none(), st.sampled_from(REFUSALS).map(lambda name: Verdict(name, "because")))
PLAIN = {"num_seeds": 5, "low": 1, "high": 3, "low90": 1.2, "high90": 2.8, "margin": 0.5, "gap": 0.4}
NAMES = (
    "refusal",
    "num_seeds",
    "low",
    "high",
    "low90",
    "high90",
    "margin",
    "null_low",
    "null_high",
    "gap",
    "q",
    "side",
)
sides = st.sampled_from(["either", "above"])
cases = st.tuples(refusals, seeds, spans, spans, positive, spans, positive, q_values, sides).map(
    lambda drawn: dict(zip(NAMES, (*drawn[:2], *drawn[2], *drawn[3], drawn[4], *drawn[5], *drawn[6:]), strict=True))
)
judged_cases = cases.map(lambda case: case | {"refusal": None, "num_seeds": max(case["num_seeds"], LEAST_SEEDS)})


def test_the_order_is_that_of_the_science():
    assert VERDICTS == (
        "not applicable",
        "not recorded",
        "not measurable here",
        "not identifiable",
        "not judged",
        "equivalent",
        "supported",
        "the other way",
        "under-powered",
        "not supported",
    )


def rules(*, refusal, num_seeds, low, high, low90, high90, margin, null_low, null_high, gap, q, side):
    """Each rule on its own, straight from their definitions, in the order of VERDICTS."""
    is_apart = not low <= 0 <= high and (high < null_low or low > null_high)
    is_below = side == "above" and high < 0 and high < null_low
    if side == "above":
        is_apart = is_below or (low > 0 and low > null_high)
    return [
        *(refusal is not None and refusal.name == name for name in REFUSALS),
        num_seeds < 3,
        abs(low90) < margin and abs(high90) < margin,
        is_apart and not is_below and not q >= 0.05,
        is_below and not q >= 0.05,
        gap > margin and not is_apart,  # apart, and among too many claims: power is not what was missing
        True,
    ]


@given(cases)
def test_the_first_rule_that_holds_decides(case):
    found = verdict(**case)
    assert found.name == VERDICTS[rules(**case).index(True)]
    assert found.reason


@pytest.mark.parametrize("holds", list(product([True, False], repeat=5)))
def test_every_combination_of_rules_that_hold(holds):
    """All 32 combinations, each made from numbers: every verdict is reached, and none out of turn."""
    is_refused, is_few, is_equivalent, is_apart, is_weak = holds
    numbers = {
        "num_seeds": 2 if is_few else 3,
        "margin": 5.0,
        "gap": 6.0 if is_weak else 4.0,
        "low90": 2.0,
        "high90": 3.0 if is_equivalent else 30.0,
        "low": 1.0 if is_apart else -1.0,
        "high": 4.0,
    }
    for name in REFUSALS:
        found = verdict(refusal=Verdict(name, "because") if is_refused else None, **numbers)
        others = [other for other in VERDICTS[len(REFUSALS) :] if other != "the other way"]
        assert found.name == (name, *others)[[*holds, True].index(True)]


@given(cases)
def test_mirrored_numbers_have_the_same_verdict_or_of_a_direction_that_of_the_other_side(case):
    pairs = (("low", "high"), ("low90", "high90"), ("null_low", "null_high"))
    turned = {end: -case[other] for low, high in pairs for end, other in ((low, high), (high, low))}
    mirrored = dict(zip(CLAIMED, reversed(CLAIMED), strict=True)) if case["side"] == "above" else {}
    name = verdict(**case).name
    assert verdict(**case | turned).name == mirrored.get(name, name)


@given(cases, st.sets(st.sampled_from(["low", "high", "low90", "high90", "gap"])))
def test_what_is_unknown_never_helps_a_claim(case, unknown):
    before = verdict(**case).name
    after = verdict(**case | dict.fromkeys(unknown, NAN)).name
    if after in ("equivalent", *CLAIMED):
        assert after == before or before == "equivalent"
    if before in VERDICTS[:5]:
        assert after == before  # no number decides these
    elif unknown & {"low", "high"} and unknown & {"low90", "high90"}:
        assert after == "under-powered"


@given(cases)
def test_a_refusal_is_final_whatever_the_numbers(case):
    refusals = [Verdict(name, "because") for name in REFUSALS]
    assert [verdict(**case | {"refusal": refusal}) for refusal in refusals] == refusals


@given(cases)
def test_no_claim_stands_on_fewer_than_three_seeds(case):
    """Two seeds leave one degree of freedom; and a seed more takes no claim away that the same numbers support."""
    found = [verdict(**case | {"refusal": None, "num_seeds": number}) for number in range(6)]
    assert [one.name for one in found[:3]] == ["not judged"] * 3
    assert len({one.name for one in found[3:]}) == 1
    assert "not judged" not in found[3].name
    assert len({one.reason for one in found[:3]}) == 3
    assert all("at least 3 are needed" in one.reason for one in found[:3])


@given(judged_cases, st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_a_greater_q_only_ever_takes_support_away(case, values):
    found = [verdict(**case | {"q": q}).name for q in sorted(values)]
    for q, name in zip(sorted(values), found, strict=True):
        assert (name in CLAIMED) <= (q < 0.05)
    for before, after in pairwise(found):
        assert after == before or (before in CLAIMED and after == "not supported")
    alone = verdict(**case | {"q": NAN}).name
    assert set(found) <= {alone, "not supported"}
    assert alone in CLAIMED or set(found) == {alone}


@given(judged_cases, positive)
def test_a_wider_margin_only_ever_makes_equivalent_or_powered(case, more):
    before, after = (verdict(**case | {"margin": margin}).name for margin in (case["margin"], case["margin"] + more))
    assert before != "equivalent" or after == "equivalent"
    assert after in (before, "equivalent") or (before, after) == ("under-powered", "not supported")


@given(cases)
def test_reasons_say_whether_an_equivalent_interval_excludes_zero_and_whether_seeds_differ(case):
    """Three equal seeds were called equivalent as if they bounded a fourth: rare collapses passed in .91 of studies."""
    found, same = verdict(**case), verdict(**case, do_seeds_differ=False)
    if found.name == "equivalent":
        assert ("excludes 0" in found.reason) == (case["low90"] > 0 or case["high90"] < 0)
    said = f"; {SAME_IN_THESE.format(case['num_seeds'])}"
    is_judged = found.name not in VERDICTS[:5]
    assert (same.name, same.reason) == (found.name, found.reason + said * is_judged)


UNKNOWN_90 = PLAIN | {"low90": NAN, "high90": NAN}


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (PLAIN | {"q": 0.049, "num_claims": 12}, "supported"),
        (PLAIN | {"q": 0.05}, "not supported"),
        (PLAIN | {"q": 0.0612, "alpha": 0.1}, "supported"),
        (PLAIN | {"q": NAN, "num_claims": 12}, "supported"),  # a claim without a test has no family
        # half an interval supports nothing
        (UNKNOWN_90, "supported"),
        (UNKNOWN_90 | {"low": NAN}, "under-powered"),
        (UNKNOWN_90 | {"low": NAN, "side": "above"}, "under-powered"),
        (UNKNOWN_90 | {"high": NAN}, "under-powered"),
        (UNKNOWN_90 | {"high": NAN, "side": "above"}, "under-powered"),
        # an unknown null supports nothing
        (PLAIN | {"null_low": NAN, "null_high": NAN}, "not supported"),
        (PLAIN | {"null_low": -1, "null_high": NAN, "side": "above"}, "not supported"),
        # the ends of the margin and of zero do not count
        (PLAIN | {"low90": -0.5, "high90": 0.4, "low": 0.0}, "not supported"),
        (PLAIN | {"low90": -0.4, "high90": 0.4, "low": -0.5}, "equivalent"),
        (PLAIN | {"low": 0.0}, "not supported"),
        (PLAIN | {"low": 0.0, "gap": 0.5}, "not supported"),
    ],
)
def test_ends_and_what_is_unknown(numbers, expected):
    assert verdict(**numbers).name == expected


@pytest.mark.parametrize("null", [(-3, -2), (-1, 1), (2, 3)])
@pytest.mark.parametrize("interval", [(-1.5, -0.5), (-0.5, 4), (0.5, 1.5), (1.5, 4), (3.5, 4)])
def test_a_claim_with_a_direction_needs_an_interval_above_0_and_its_null(interval, null):
    """A null below 0, as of what falls by chance, lets nothing through that is below 0 itself."""
    (low, high), (null_low, null_high) = interval, null
    ends = {"low": low, "high": high, "low90": low, "high90": high, "null_low": null_low, "null_high": null_high}
    found = verdict(**PLAIN | ends | {"side": "above", "q": 0.01}).name
    assert (found == "supported") == (low > 0 and low > null_high)


def test_q_and_the_number_of_claims_are_the_reason():
    found = verdict(**PLAIN, q=0.0612, num_claims=12)
    assert found.name == "not supported"
    assert "the interval 1 to 3 points excludes 0; the q of 12 claims, 0.0612, is not below 0.05" in found.reason


@pytest.mark.parametrize("name", VERDICTS)
def test_only_support_depends_on_the_other_claims(name):
    alone = Verdict(name, "why")
    assert among(alone, 0.01, 3, 0.05) == alone
    assert among(alone, 0.5, 3, 0.05).name == ("not supported" if name in CLAIMED else name)


def test_bad_input_is_one_clear_line():
    cases = [
        ({"low": 4}, "interval runs from 4 to 3"),
        ({"low90": 4}, "90 % interval"),
        ({"null_low": 1, "null_high": 0}, "null runs"),
        ({"margin": 0}, "margin is 0"),
        ({"margin": -1}, "margin is -1"),
        ({"side": "abov"}, "did you mean 'above'"),
        ({"refusal": Verdict("not recordet", "x")}, "did you mean 'not recorded'"),
        ({"refusal": Verdict("supported", "x")}, "unknown refusal 'supported'"),
    ]
    check_refusals(*((said, partial(verdict, **PLAIN | changes)) for changes, said in cases))


def test_reasons_name_the_gap_and_why_there_is_no_interval():
    numbers = {"num_seeds": 3, "low": -2.0, "high": 2.0, "low90": -1.5, "high90": 1.5, "margin": 1.0, "gap": 3.0}
    assert verdict(**numbers).reason == "the smallest detectable gap is 3 points, above the margin of 1"
    none = numbers | {"low": math.nan, "high": math.nan}
    assert verdict(**none).reason.startswith("no interval could be computed")


PLANTED = {
    **{name: {"effect": 0.05, "num_items": 400, "refusal": Verdict(name, "because")} for name in REFUSALS},
    "not judged": {"effect": 0.08, "num_items": 2_000, "num_seeds": 2},
    "equivalent": {"effect": 0.001, "num_items": 20_000},
    "supported": {"effect": 0.08, "num_items": 2_000, "q": 0.01},
    "the other way": {"effect": -0.08, "num_items": 2_000, "q": 0.01, "side": "above"},
    "under-powered": {"effect": 0.0, "num_items": 60, "gap": 5.0},
    "not supported": {"effect": 0.0, "num_items": 60, "gap": 0.5},
}


@pytest.mark.parametrize("expected", VERDICTS)
def test_a_planted_study_gets_its_verdict(expected):
    """Eight seeds, items of which a tenth are discordant, and an effect that is there, tiny, or absent."""
    planted = {"num_seeds": 8, "gap": 0.5, "q": NAN, "refusal": None} | PLANTED[expected]
    effect, num_items = planted.pop("effect"), planted.pop("num_items")
    shares = [0.05 - effect / 2, 0.9, 0.05 + effect / 2]
    size = (planted["num_seeds"], num_items)
    differences = np.random.default_rng(3).choice([-1.0, 0.0, 1.0], size=size, p=shares)
    wide, narrow = (two_way_interval(differences, level) for level in (0.95, 0.90))
    ends = {"low": wide.low, "high": wide.high, "low90": narrow.low, "high90": narrow.high}
    numbers = {name: 100 * end for name, end in ends.items()} | planted | {"margin": 1.0}
    assert verdict(**numbers).name == expected
    assert expected not in CLAIMED or verdict(**numbers | {"q": 0.07}).name == "not supported"
