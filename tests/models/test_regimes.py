"""Regimes: unions, ranges, one label per set, and laws that hold for any list of components."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.models.regimes import REGIMES, parse_regime

LEAVES = (*EMBEDDING_PARAMETERS, "projection", *(f"layers.{k}" for k in range(12)), "encoder_other", "pooler", "head")
EMBEDDINGS = frozenset(EMBEDDING_PARAMETERS)


def test_named_regimes() -> None:
    assert parse_regime("none", LEAVES).frozen == frozenset()
    assert parse_regime("embeddings", LEAVES).frozen == EMBEDDINGS
    assert parse_regime("backbone", LEAVES).frozen == frozenset(LEAVES) - {"head"}
    assert parse_regime("encoder", LEAVES).frozen == frozenset(LEAVES) - EMBEDDINGS - {"pooler", "head"}
    assert [parse_regime(name, LEAVES).label for name in REGIMES] == list(REGIMES)


def test_ranges() -> None:
    regime = parse_regime("position_embeddings,LayerNorm.weight,layers.0-3", LEAVES)
    assert regime.frozen == {"position_embeddings", "LayerNorm.weight", *(f"layers.{k}" for k in range(4))}
    assert parse_regime("layers.10-11", LEAVES).frozen == {"layers.10", "layers.11"}


@given(st.sets(st.sampled_from(LEAVES)).filter(lambda s: s != set(LEAVES)))
def test_a_label_names_its_set_and_only_that(frozen: set[str]) -> None:
    """Any spelling of a set gives one label, and the label gives the set back."""
    text = ",".join(sorted(frozen)) or "none"
    regime = parse_regime(text, LEAVES)
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
    with pytest.raises(ValueError, match=message):
        parse_regime(text, LEAVES)


def test_a_component_that_the_model_lacks_is_not_applicable() -> None:
    leaves = tuple(leaf for leaf in LEAVES if leaf not in ("token_type_embeddings", "projection"))
    for name in ("token_type_embeddings", "projection"):
        with pytest.raises(ValueError, match="not applicable, this model has none"):
            parse_regime(name, leaves)
    assert parse_regime("embeddings", leaves).frozen == EMBEDDINGS - {"token_type_embeddings"}
