"""The page on where position goes: complete, the same twice, and with sentences that follow planted tables."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from toolkit.reporting.probes.flow_figures import draw_flow
from toolkit.reporting.probes.flow_findings import flow_findings, null_findings
from toolkit.reporting.probes.flow_report import print_flow, share_rows, write_flow_report
from toolkit.reporting.probes.flow_tables import COUNTERFACTUALS, PRETRAINED, RANDOM, groups_of

ARMS = ((PRETRAINED, None, "aa"), ("full", 0, "bb"), ("full", 1, "cc"), ("extraction", 0, "aa"), (RANDOM, None, "dd"))
LAYERS = (-1, 0, 1, 2)


def planted(position=(0.5, 0.6, 0.3, 0.1), content=(0.4, 0.35, 0.6, 0.8), segment=None, score=-0.1):
    """Tables of four models on one task; position falls and content rises unless told otherwise."""
    places = [{"group": "a|task", "arm": a, "name": f"{a} {s}", "seed": s, "body": b} for a, s, b in ARMS]
    ledger, decoding, outputs = [], [], []
    for i, place in enumerate(places):
        own = {k: v for k, v in place.items() if k != "body"}
        for layer, *shares in zip(LAYERS, position, content, segment or [np.nan] * 4, strict=True):
            for factor, value in zip(("position", "content", "segment"), shares, strict=True):
                value = value + 0.001 * i
                note = "not applicable: single texts use one segment" if np.isnan(value) else ""
                ledger.append(
                    own
                    | {
                        "layer": layer,
                        "stage": "",
                        "factor": factor,
                        "omega_squared": value,
                        "low": value - 0.01,
                        "high": value + 0.01,
                        "omega_standardised": value,
                        "eta_squared": value,
                        "eta_chance": 0.01,
                        "shuffled_omega": 0.0001,
                        "shuffled_eta": 0.011,
                        "df": 7,
                        "sum_of_squares": 1.0,
                        "note": note,
                    }
                )
            ledger.append(own | {"layer": layer, "stage": "", "factor": "residual", "eta_squared": 1e-16, "note": ""})
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
                        "quantity": "state",
                        "layer": layer,
                        "stage": "",
                        "value": 0.4,
                        "low": 0.3,
                        "high": 0.5,
                        "reference": 1.3,
                        "unit": "1",
                        "note": "",
                    }
                )
        if place["arm"] in ("full", "extraction"):
            for name in COUNTERFACTUALS:
                outputs.append(
                    own
                    | {
                        "counterfactual": name,
                        "quantity": "score",
                        "value": score,
                        "low": score - 0.05,
                        "high": score + 0.05,
                        "reference": 0.9,
                        "unit": "accuracy",
                        "note": "",
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


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_file_is_there_and_the_same_twice(tmp_path):
    names = ("where_position_goes", "decoding", "counterfactuals")
    for out in ("one", "two"):
        assert write_flow_report(planted(), tmp_path / out, title="A | page", command="the command") == (
            tmp_path / out / "report.md"
        )
    first = contents(tmp_path / "one")
    assert first == contents(tmp_path / "two")
    images = {f"figures/{name}.{kind}" for name in names for kind in ("png", "svg", "pdf")}
    tables = {f"tables/{name}.csv" for name in planted()}
    assert set(first) == {"report.md", *images, *tables}
    text = first["report.md"].decode()
    assert "# A &#124; page" in text
    assert "the command" in text
    assert "nan" not in text.lower().replace("finance", "")


@pytest.mark.parametrize(
    ("position", "content", "dominates", "gives_way"),
    [
        ((0.5, 0.6, 0.3, 0.1), (0.4, 0.35, 0.6, 0.8), "Supported: it has more than content at", "Supported: from"),
        ((0.1, 0.1, 0.05, 0.01), (0.9, 0.9, 0.9, 0.95), "Not supported: its largest share", "Supported: from"),
        ((0.1, 0.1, 0.1, 0.2), (0.9, 0.9, 0.9, 0.7), "Not supported: its largest share", "Not supported: from"),
        ((0.6, 0.6, 0.2, 0.1), (0.4, 0.4, 0.3, 0.2), "Supported: it has more than", "Half of it: position falls"),
    ],
)
def test_the_expectation_is_judged_by_the_numbers(position, content, dominates, gives_way):
    (group,) = groups_of(planted(position, content))
    lines = [line for line in flow_findings(group) if line.startswith("pretrained")]
    assert dominates in lines[0]
    assert gives_way in lines[1]


def test_equal_bodies_are_one_line_and_random_weights_come_last():
    (group,) = groups_of(planted())
    assert group.arms == (PRETRAINED, "full", RANDOM)
    assert group.labels[PRETRAINED] == "pretrained = extraction"
    assert group.num_models("full") == 2
    assert list(dict.fromkeys(row[0] for row in share_rows(group)[1])) == list(group.labels.values())


def test_what_does_not_apply_is_said_and_never_0():
    (group,) = groups_of(planted())
    assert "Segments: not applicable: single texts use one segment." in flow_findings(group)
    assert all(row[4] is None for row in share_rows(group)[1])
    tables = planted()
    tables["counterfactuals"] = tables["counterfactuals"].iloc[:1].assign(value=np.nan, counterfactual=None)
    assert "counterfactuals" not in draw_flow(tables)
    assert "no position table" in " ".join(flow_findings(groups_of(tables)[0]))


def test_an_interval_that_holds_0_is_said():
    for score, expected in ((-0.1, False), (-0.02, True)):
        line = next(
            x for x in flow_findings(groups_of(planted(score=score))[0]) if x.startswith("Other positions, full")
        )
        assert ("interval holds 0" in line) == expected


def test_the_nulls_are_printed(capsys):
    tables = planted(segment=[0.01, 0.01, 0.0, 0.0])
    assert len(null_findings(groups_of(tables)[0])) == 4
    print_flow(tables)
    out = capsys.readouterr().out
    assert "Shuffled states" in out
    assert "Segments, full" in out


def test_a_file_in_the_way_is_one_line(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ValueError, match="is a file where the report's folder should go"):
        write_flow_report(planted(), tmp_path / "out")
