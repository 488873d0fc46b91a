"""Regimes: unions, ranges, one label per set, and laws that hold for any list of components."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import check_refusals, check_refused
from toolkit.cli import parse_config
from toolkit.comparison.conditions import arrange
from toolkit.config import RunConfig
from toolkit.families import EMBEDDING_PARAMETERS, REGIMES
from toolkit.models.regimes import Regime, parse_regime
from toolkit.pipeline import finetune
from toolkit.reporting import run_screen
from toolkit.studies.plan import resolve, run_path

LEAVES = (*EMBEDDING_PARAMETERS, "projection", *(f"layers.{k}" for k in range(12)), "encoder_other", "pooler", "head")
EMBEDDINGS = frozenset(EMBEDDING_PARAMETERS)


def test_named_regimes() -> None:
    assert parse_regime("none", LEAVES).frozen == frozenset()
    assert parse_regime("embeddings", LEAVES).frozen == EMBEDDINGS
    assert parse_regime("backbone", LEAVES).frozen == frozenset(LEAVES) - {"head"}
    assert parse_regime("encoder", LEAVES).frozen == frozenset(LEAVES) - EMBEDDINGS - {"pooler", "head"}
    assert [parse_regime(name, LEAVES).label for name in REGIMES] == list(REGIMES)


@pytest.fixture
def bottom(monkeypatch: pytest.MonkeyPatch) -> str:
    """One more named regime: one entry."""
    monkeypatch.setitem(REGIMES, "bottom", ("embeddings", "layers.0-2"))  # type: ignore[arg-type]
    return "bottom"


def test_a_named_regime_is_one_entry(bottom: str) -> None:
    expected = EMBEDDINGS | {"layers.0", "layers.1", "layers.2"}
    for text in (bottom, "embeddings,layers.0-2", "layers.2, layers.0-1, embeddings", "bottom,layers.1"):
        assert parse_regime(text, LEAVES) == Regime(bottom, expected)
    assert parse_regime("bottom,pooler", LEAVES).frozen == expected | {"pooler"}
    assert parse_regime("bottom,pooler", LEAVES).label == parse_regime("pooler,embeddings,layers.0-2", LEAVES).label
    for name in ("none", "embeddings", "backbone"):
        assert parse_regime(name, LEAVES).label == name
    check_refusals(
        (
            r"'botom' \(did you mean 'bottom'\?\); choose from: .*backbone, bottom, encoder",
            lambda: parse_regime("botom", LEAVES),
        ),
        ("--freeze is empty: pass none, embeddings, backbone, bottom or components", lambda: parse_regime("", LEAVES)),
    )


def test_a_named_regime_that_a_model_is_too_small_for_is_refused_and_harms_no_other(bottom: str) -> None:
    leaves = (*EMBEDDING_PARAMETERS, "layers.0", "layers.1", "head")
    check_refused(
        r"--freeze layers\.0-2: the model has the layers layers\.0 to layers\.1", parse_regime, bottom, leaves
    )
    assert parse_regime("embeddings,layers.0-1", leaves).label == "backbone"
    assert parse_regime("embeddings,layers.0", leaves).label == "embeddings,layers.0"


def test_runs_of_a_named_regime_have_its_name_everywhere(
    bottom: str, tiny_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two spellings are one run, and plan, manifest, conditions and --help use the name."""
    # Two of the tiny model's three layers: with all three it is the backbone, which has a name already.
    REGIMES[bottom] = ("embeddings", "layers.0-1")  # type: ignore[index]
    config = replace(tiny_config, output_dir=str(tmp_path), max_steps=1, freeze="layers.1,layers.0,embeddings")
    named = replace(config, freeze=bottom)
    run = finetune(config, screen=run_screen)
    assert run.config.freeze == run.manifest["regime"]["label"] == bottom
    assert "_freeze-bottom_seed-0_" in run.path.name
    assert run_path(resolve(config)) == run_path(resolve(named)) == run.path
    assert finetune(named, reuse_finished=True).path == run.path
    assert [condition.label for group in arrange([run]) for condition in group.conditions] == ["bottom (frozen)"]
    assert "bottom (37 parameters), bit-identical" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        parse_config(["--help"])
    assert "Named regimes for --freeze: none, embeddings, backbone, bottom." in " ".join(
        re.sub("[│]", " ", capsys.readouterr().out).split()
    )


def test_ranges() -> None:
    regime = parse_regime("position_embeddings,LayerNorm.weight,layers.0-3", LEAVES)
    assert regime.frozen == {"position_embeddings", "LayerNorm.weight", *(f"layers.{k}" for k in range(4))}
    assert parse_regime("layers.10-11", LEAVES).frozen == {"layers.10", "layers.11"}


@given(st.sets(st.sampled_from(LEAVES)).filter(lambda s: s != set(LEAVES)))
def test_a_label_names_its_set_and_only_that(frozen: set[str]) -> None:
    """Any spelling of a set gives one label, and the label gives the set back."""
    regime = parse_regime(",".join(sorted(frozen)) or "none", LEAVES)
    assert regime.frozen == frozen
    assert parse_regime(regime.label, LEAVES) == regime
    assert parse_regime(",".join(sorted(frozen, reverse=True)) or "none", LEAVES).label == regime.label


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("embedings", r"unknown regime or component 'embedings' \(did you mean 'embeddings'\?\)"),
        ("layers.3-14", r"has the layers layers\.0 to layers\.11"),
        ("layers.5-3", r"has the layers"),
        ("layers.12", r"unknown regime or component 'layers\.12'"),
        ("", r"--freeze is empty"),
        ("backbone,head", r"leaves nothing to train"),
        ("none,embeddings", r"unknown regime or component 'none' beside others: leave it out"),
        ("layers.0-99999999999999", r"has the layers layers\.0 to layers\.11"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    check_refused(message, parse_regime, text, LEAVES)


def test_a_component_that_the_model_lacks_is_not_applicable() -> None:
    leaves = tuple(leaf for leaf in LEAVES if leaf not in ("token_type_embeddings", "projection"))
    for name in ("token_type_embeddings", "projection"):
        check_refused("not applicable, this model has none", parse_regime, name, leaves)
    assert parse_regime("embeddings", leaves).frozen == EMBEDDINGS - {"token_type_embeddings"}
