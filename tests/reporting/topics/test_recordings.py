"""What the name of somebody's folder says of freezing, beside what the bits say."""

from types import SimpleNamespace

import pytest

from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.reporting.topics.recordings import calls_frozen_what_moved

WORDS, POSITIONS = EMBEDDING_PARAMETERS[:2]


@pytest.mark.parametrize(
    ("name", "condition", "moved", "regime", "expected"),
    [
        ("bert-frozen-embeddings_1", None, [WORDS], "none", True),
        ("freeze_emb", None, ["layers.0"], "embeddings", False),
        ("frozen-words", None, [POSITIONS], "none", False),
        ("frozen-words", None, [WORDS], "none", True),
        ("Feature_Extraction", None, ["layers.0"], "embeddings", True),
        ("frozen_encoder", None, ["layers.0"], "embeddings", True),
        ("frozen", None, [WORDS, "layers.0"], "none", True),
        ("frozen", None, ["layers.1"], "layers.0", False),  # something was, and nothing says what was meant
        ("frozen", None, [], "backbone", False),
        ("mine", "frozen", [WORDS], "none", True),
        ("unfrozen", None, [WORDS], "none", False),
        ("freeze-none_seed-0", None, [WORDS], "none", False),
        ("mine", None, [WORDS], "none", False),
    ],
)
def test_a_name_is_corrected_only_where_it_is_wrong(name, condition, moved, regime, expected):
    run = SimpleNamespace(directory_name=name, condition=condition, recorded={"moved": moved}, regime=regime)
    assert calls_frozen_what_moved(run) is expected
