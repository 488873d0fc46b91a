"""What we say decides nothing: in other words there are the same numbers, verdicts, answers and refusals."""

import importlib
import pkgutil
import re
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.comparison.conftest import write_logged_run
from tests.run_directories import write_run
from toolkit.comparison import measure as measuring
from toolkit.comparison.cards import make_cards
from toolkit.comparison.evidence import save_evidence
from toolkit.comparison.measure import measure
from toolkit.comparison.parameter_noise import drift_of
from toolkit.comparison.report_data import ReportData
from toolkit.reporting.topics.caveats import decided, limits_section
from toolkit.reporting.topics.first_screen import answers_of

PACKAGES = ("analysis", "comparison", "snapshots", "reporting")
SMALL_WORDS = {"the", "a", "an", "of", "is", "are", "was", "not", "no", "in", "to", "its", "and", "for"}


def modules_of(package: str) -> list[ModuleType]:
    root = importlib.import_module(f"toolkit.{package}")
    names = [each.name for each in pkgutil.walk_packages(root.__path__, f"{root.__name__}.")]
    return [importlib.import_module(name) for name in names]


def is_sentence(value: object) -> bool:
    return isinstance(value, str) and len(value.split()) > 3 and not SMALL_WORDS.isdisjoint(value.split())


def in_other_words(held: Any) -> Any:
    """Every word of a sentence reversed but for what stands in braces; of a table, in its keys and values."""
    if isinstance(held, dict):
        return {in_other_words(key): in_other_words(value) for key, value in held.items()}
    return re.sub(r"[A-Za-z-]+(?![^{]*\})", lambda word: word[0][::-1], held) if is_sentence(held) else held


def plant(monkeypatch: pytest.MonkeyPatch, package: str) -> int:
    """Give each sentence that a module of the package holds other words, wherever it is known by its name."""
    known = [module for name, module in sys.modules.items() if name.startswith("toolkit.")]
    held = [item for module in modules_of(package) for item in vars(module).items() if item[0].isupper()]
    found = [(name, value) for name, value in held if is_sentence(value) or isinstance(value, dict)]
    for name, value in found:
        for module in [module for module in known if vars(module).get(name) is value]:
            monkeypatch.setattr(module, name, in_other_words(value))
    return sum(isinstance(value, str) for _, value in found)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Three seeds each with a log, with frozen embeddings, without a log, and without exposure."""
    folder = tmp_path_factory.mktemp("runs")
    made = [write_logged_run(folder, regime, seed) for regime in ("none", "embeddings") for seed in range(3)]
    made += [write_run(folder, "none", seed, task="unlogged") for seed in range(3)]
    return made + [write_run(folder, "none", seed, task="other", has_exposure=False) for seed in range(3)]


def outcome(runs: list[Any], folder: Any) -> dict[str, Any]:
    data = ReportData(save_evidence(measure(runs), folder))
    cards = make_cards(data)
    limits = limits_section(data, cards)
    numbers = [
        (card.kind, card.subject, card.verdict, card.value, card.interval, card.null.low, card.q, card.num_claims)
        for card in cards
    ]
    return {
        "cards": repr(numbers),
        "open": [card.needs_control for card in cards],
        "decided": [card.subject for card in decided(cards)],
        "answers": [(answer.tone, [part.tone for part in answer.parts]) for answer in answers_of(data)],
        "limits": [type(block).__name__ for block in limits.blocks],
        "kinds": data.evidence.drift["reason_kind"].tolist(),
        "drift": data.evidence.drift.drop(columns="reason").to_csv(),
    }


@pytest.fixture(scope="module")
def expected(runs: list[Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return outcome(runs, tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("package", PACKAGES)
def test_other_words_change_no_number_and_no_verdict(package, runs, expected, tmp_path, monkeypatch) -> None:
    assert {"not recorded", "not identifiable", "not applicable"} <= set(expected["kinds"])
    monkeypatch.setattr(measuring, "drift_of", drift_of)  # which conftest.py has called once for equal runs
    assert plant(monkeypatch, package) > 3
    for name, value in outcome(runs, tmp_path).items():
        assert value == expected[name], name
