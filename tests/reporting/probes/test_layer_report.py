"""The page on layers says what its tables say, keeps groups apart, draws every arm, and takes odd names as text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from toolkit.analysis.weights import layer_trend
from toolkit.analysis.weights.layer_trend import ArmWeights, weight_tables
from toolkit.probes.layers import means, similarities
from toolkit.probes.layers.means import ArmSimilarities, average, contrast
from toolkit.probes.layers.similarities import Similarity
from toolkit.reporting.probes import layer_figures, layer_findings
from toolkit.reporting.probes.layer_report import contrast_rows, groups_of, layer_rows, write_layer_report

pytestmark = pytest.mark.usefixtures("drawn")

GROUP = "m on <script>"
AFTER = {"full": 0.5, "embeddings frozen": 0.51, "shuffled labels": 0.8}


def found(value: float, seed: Any, spread: float = 0.02) -> dict[similarities.Place, Similarity]:
    """Three layers of one domain; the last one is at ``value``, and every text group differs a little."""
    pseudo = np.random.default_rng(seed).normal(0, spread, 30)
    pseudo -= pseudo.mean()
    return {
        ("ood", layer, measure): Similarity(mean, mean + pseudo * (mean < 1), 300)
        for layer, mean in enumerate((1.0, 0.9, value))
        for measure in similarities.MEASURES
    }


def arm_of(name: str, value: float, between: float = 0.7, group: str = GROUP) -> ArmSimilarities:
    """Three seeds at ``value`` - .01, ``value`` and ``value`` + .01."""
    to_before = {seed: found(value + (seed - 1) / 100, [seed, *name.encode()]) for seed in range(3)}
    pairs = {pair: found(between, 9) for pair in ((0, 1), (0, 2), (1, 2))}
    return ArmSimilarities(group, name, name == "shuffled labels", 100, to_before, pairs)


def tables_of(*arms: ArmSimilarities) -> dict[str, pd.DataFrame]:
    weights = [weights_of(arm.group, arm.arm, list(arm.to_before)) for arm in arms]
    return {"means": average(arms), "contrasts": contrast(arms), **weight_tables(weights)}


def weights_of(group: str, arm: str, seeds: list[int], by_layer: tuple[float, ...] = (0.03, 0.01)) -> ArmWeights:
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
                "stored_before": "float32",
                "stored_after": "float32",
                "note": "",
            }
        )
    return ArmWeights(group, arm, arm == "shuffled labels", tables)


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return tables_of(*(arm_of(name, value) for name, value in AFTER.items()))


def test_the_words_of_the_probe_and_of_its_page_are_one() -> None:
    for name in ("BEFORE_AND_AFTER", "SEED_AND_SEED"):
        assert getattr(layer_figures, name) == getattr(means, name)
    for name in ("OWN_SEEDS", "SHUFFLED", "OTHER_ARM"):
        assert getattr(layer_findings, name) == getattr(means, name)
    assert set(layer_figures.SHOWN) == set(similarities.MEASURES)


def test_findings_hold_the_layer_against_two_seeds_and_shuffled_labels(tables: dict[str, pd.DataFrame]) -> None:
    full, frozen, shuffled, against = layer_findings.layer_findings(tables)
    assert "full, texts ood: least similar to before is layer 2, 0.500 (" in full
    assert "with standardised columns 0.500 (" in full
    assert "Its seeds with each other 0.700: it is further from before than that, -0.200 (" in full
    assert "Under shuffled labels 0.800: it is further from before than that, -0.300 (" in full
    assert "beyond the 0.013 by which two seeds of one arm differ in this" in full
    assert "embeddings frozen, texts ood" in frozen
    assert "it is less far from before than that, +0.100 (" in shuffled
    assert "Under" not in shuffled
    assert "where two seeds of one arm differ by 0.013" in against
    assert against.startswith("embeddings frozen against full: told apart in")
    assert "not told apart is not the same as equal" in against


def test_what_cannot_be_told_apart_says_so() -> None:
    own = tables_of(arm_of("full", 0.7), arm_of("shuffled labels", 0.7))
    first, second = layer_findings.layer_findings(own)
    assert "Its seeds with each other 0.700: not told apart from that, " in first
    assert "Under shuffled labels 0.700: not told apart from that, " in first
    assert "not told apart from that, " in second
    same = arm_of("full", 0.7).to_before  # every text as in the other arm: nothing varies
    twice = [ArmSimilarities(GROUP, name, name == "shuffled labels", 100, same, {}) for name in AFTER]
    assert "a difference of +0.000, without interval." in layer_findings.layer_findings(tables_of(*twice))[0]


def test_one_seed_makes_no_claim_about_an_arm() -> None:
    full, frozen, shuffled = (arm_of(name, value) for name, value in AFTER.items())
    one = [replace(arm, to_before={1: arm.to_before[1]}, between={}) for arm in (frozen, shuffled)]
    lines = layer_findings.layer_findings(tables_of(full, *one))
    assert "Under shuffled labels 0.800: a difference of -0.300 (" in lines[0]
    assert "one seed, so it says nothing of the arm" in lines[0]
    assert "one seed in common, so it says nothing of the arms" in lines[-1]
    assert not any("told apart" in line or "from before than that" in line for line in lines[1:])


@pytest.mark.parametrize("least", [1.0, 0.9996])
def test_an_arm_that_did_not_move(least: float) -> None:
    """Also where it moved by less than is printed: no layer of similarity 1.000 changed most."""
    still = {0: {place: Similarity(least if place[1] == 2 else 1.0, np.ones(30), 300) for place in found(1.0, 0)}}
    own = tables_of(ArmSimilarities(GROUP, "probe", False, None, still, {}))
    assert layer_findings.layer_findings(own) == [
        "probe, texts ood: the states of no layer changed visibly (similarity 1.000)."
    ]
    said = "probe: the states of no layer changed visibly (similarity 1.000); the weights moved most"
    assert layer_findings.main_findings(own)[0].startswith(said)
    alike = {0: {place: Similarity(0.9, np.ones(30), 300) for place in found(1.0, 0)}}
    (line,) = layer_findings.layer_findings(tables_of(ArmSimilarities(GROUP, "full", False, None, alike, {})))
    assert line == "full, texts ood: the states of all layers changed alike (similarity 0.900)."
    assert own["contrasts"].empty
    assert own["means"].low.isna().all()


def test_one_interval_for_one_number(tables: dict[str, pd.DataFrame]) -> None:
    """Findings and table show the same interval, that of the mean."""
    full = layer_findings.layer_findings(tables)[0]
    _, rows = layer_rows(tables)
    cell = next(str(row[3]) for row in rows if row[:3] == ["full", "ood", "2"])
    assert cell in full
    gap = next(str(row[4]) for row in contrast_rows(tables)[1] if row[:3] == ["full", "ood", "2"])
    assert gap in full


def test_groups_are_never_averaged() -> None:
    own = tables_of(arm_of("full", 0.5), arm_of("full", 0.9, group="other"))
    parts = groups_of(own)
    assert list(parts) == [GROUP, "other"]
    assert [layer_rows(part)[1][2][3] for part in parts.values()] == [
        layer_findings.with_interval(
            *own["means"].query("group == @group and layer == 2").iloc[0][["mean", "low", "high"]]
        )
        for group in parts
    ]


def test_the_page_escapes_and_repeats(tmp_path: Path, tables: dict[str, pd.DataFrame]) -> None:
    first, second = (write_layer_report(tables, tmp_path / name, command="x") for name in ("a", "b"))
    text = first.read_text()
    assert "<script>" not in text
    assert "figures/similarity_by_layer.png" in text
    assert "Texts: 300 of ood. Seeds: 3 of full, 3 of embeddings frozen, 3 of shuffled labels." in text
    assert "no claim about raw BERT" in text
    for path in sorted((tmp_path / "a").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes(), path
    for name, table in tables.items():
        assert pd.read_csv(tmp_path / f"a/tables/{name}.csv").shape == table.shape
    assert second.is_file()


def test_the_first_sentence_says_whether_states_or_weights(tables: dict[str, pd.DataFrame]) -> None:
    full, frozen, shuffled = layer_findings.main_findings(tables)
    assert full.startswith(
        "full: the states change most in layer 2 (on ood, similarity 0.500 (0.475 to 0.525); they inherit all layers "
        "below); the weights moved most in layer 1, by 3.06 % ("
    )
    assert "of their norm, least in layer 2, by 1.02 % (" in full
    assert " times as far as the bottom third: more at the bottom." in full
    assert frozen.startswith("embeddings frozen: the states change most in layer 2")
    assert shuffled.startswith("shuffled labels: ")


def test_what_few_seeds_or_still_weights_cannot_say() -> None:
    one = weight_tables([weights_of("g", "full", [0])])
    (line,) = layer_findings.main_findings(one)
    assert "how the states change is not known of two checkpoints" in line
    assert "by 3.00 % of their norm" in line
    assert "0.333 times as far as the bottom third: not judged (1 of the 3 seeds that a verdict needs" in line
    still = weight_tables([weights_of("g", "probe", [0, 1, 2], (0.0, 0.0))])
    assert layer_findings.main_findings(still)[0].endswith("; the weights of no layer moved.")
    half = weight_tables([weights_of("g", "half", [0, 1, 2], (0.0, 0.01))])
    assert "of the weights only those of layer 2 moved, by 1.02 % (" in layer_findings.main_findings(half)[0]
    none = weight_tables([ArmWeights("g", "random init", False, {}, layer_trend.RANDOM_START)])
    assert "nothing can be said (started from random weights, " in layer_findings.main_findings(none)[0]
    assert layer_figures.draw_weights(none) == {}
    flat = weight_tables([weights_of("g", "flat", [0, 1, 2], (0.02, 0.02, 0.02))])
    assert layer_findings.main_findings(flat)[0].endswith(
        f"{round(100 * (layer_trend.MARGIN - 1))} % from the mean of the layers."
    )


def test_a_report_of_two_checkpoints_has_weights_only(tmp_path: Path) -> None:
    own = weight_tables([weights_of("a and b", "after with before", [0])])
    text = write_layer_report(own, tmp_path / "out", command="x").read_text()
    assert "figures/weight_drift_by_layer.png" in text
    assert "similarity" not in text.lower()
    assert "| after with before | 1 | 3.00 % / 0.30 |" in text
    assert "| after with before | word embeddings" not in text  # the components of the embeddings are put together
    assert "| after with before | embeddings | 0 % | 0 | 2.00 | 0 | 16 | bit-identical |" in text


def test_weights_are_drawn_group_by_group() -> None:
    arms = [weights_of(f"task {k}", "full", [0, 1, 2]) for k in range(4)]
    arms.append(ArmWeights("task 4", "random init", False, {}, layer_trend.RANDOM_START))
    image = layer_figures.draw_weights(weight_tables(arms))["weight_drift_by_layer"]["svg"].decode()
    assert all(f"task {k}" in image for k in range(4))


def test_every_arm_and_measure_is_drawn(tables: dict[str, pd.DataFrame]) -> None:
    image = layer_figures.draw_layers(tables["means"])["similarity_by_layer"]["svg"].decode()
    assert "embeddings frozen: after with before" in image
    assert "full: its seeds with each other" in image
    assert "standardised columns" in image


def test_a_file_is_no_folder(tmp_path: Path, tables: dict[str, pd.DataFrame]) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        write_layer_report(tables, tmp_path / "out")
