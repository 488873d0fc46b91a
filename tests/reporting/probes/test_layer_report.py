"""The page on layers says what its table says, draws every arm, and takes odd names as text."""

from pathlib import Path

import pandas as pd
import pytest

from toolkit.probes.layers import layer_drift
from toolkit.reporting.probes.layer_figures import SEED_AND_SEED, draw_layers
from toolkit.reporting.probes.layer_report import layer_findings, write_layer_report


def a_table(last: float = 0.5, between: float = 0.7) -> pd.DataFrame:
    """One arm, two seeds, one domain, three layers: the last one moves to ``last``."""
    lines = []
    for layer, value in enumerate((1.0, 0.9, last)):
        for measure in ("debiased CKA", "RSA"):
            for seed in ("seed 0", "seed 1"):
                lines.append(("before and after", "before", seed, layer, measure, value))
            lines.append((SEED_AND_SEED, "seed 0", "seed 1", layer, measure, 1.0 if layer < 2 else between))
    table = pd.DataFrame(lines, columns=["comparison", "first", "second", "layer", "measure", "value"])
    facts = {"group": "m on <script>", "arm": "full", "is_shuffled": False, "texts": "ood", "num_texts": 40}
    return table.assign(**facts, low=table.value - 0.01, high=table.value + 0.01, refusal="")


def test_the_words_of_the_probe_and_of_its_page_are_one() -> None:
    assert SEED_AND_SEED == layer_drift.SEED_AND_SEED
    assert set(a_table().columns) == set(layer_drift.COLUMNS)


def test_findings_name_the_layer_and_hold_it_against_two_seeds() -> None:
    (far,) = layer_findings(a_table(0.5, 0.7))
    assert "layer 2 (0.500)" in far
    assert "further from before than two seeds are from each other (0.700)" in far
    (near,) = layer_findings(a_table(0.8, 0.7))
    assert "no further from before than" in near
    frozen = a_table().assign(value=1.0)
    assert layer_findings(frozen) == ["m on <script>, full, texts ood: no layer moved."]


def test_the_page_escapes_and_repeats(tmp_path: Path) -> None:
    first, second = (write_layer_report(a_table(), tmp_path / name, command="x") for name in ("a", "b"))
    text = first.read_text()
    assert "<script>" not in text
    assert "figures/similarity_by_layer.png" in text
    for path in sorted((tmp_path / "a").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes(), path
    assert pd.read_csv(tmp_path / "a/tables/layer_drift.csv").shape == a_table().shape
    assert second.is_file()


def test_every_arm_is_drawn() -> None:
    table = pd.concat([a_table(), a_table().assign(arm="embeddings frozen")])
    image = draw_layers(table)["similarity_by_layer"]["svg"].decode()
    assert "embeddings frozen: after with before" in image
    assert "full: its seeds with each other" in image


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        write_layer_report(a_table(), tmp_path / "out")
