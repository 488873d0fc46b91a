"""What was found of one claim in, an evidence card out: its number, what that was held against, its verdict."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from toolkit.comparison.verdicts import VERDICTS
from toolkit.lookup import unknown
from toolkit.naming import Described
from toolkit.snapshots import files

FORMAT = 1
"""Version of cards.json; a reader refuses a higher one."""

CARDS = "cards.json"
DIGITS = 10
"""Significant digits of a number on a card: a library that adds up in another order must not make another card."""

NAN = math.nan
MAY_BE_NONE = ("num_items", "is_discovery")


@dataclass(frozen=True, slots=True)
class Span:
    """An interval at a level, such as .95; NaN where there is none."""

    low: float = NAN
    high: float = NAN
    level: float = NAN


@dataclass(frozen=True, slots=True)
class Null:
    """What the number would be if the claim were empty, as a range."""

    what: str
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Card(Described):
    """One claim; every number in ``unit``, NaN (null in JSON) where it is unknown or does not apply."""

    id: str
    claim: str
    kind: str
    """score, forbid, labels, drift, offset or association."""
    estimator: str
    version: int
    """Of the estimator: another number means another formula."""
    unit: str
    value: float
    interval: Span
    equivalence: Span
    """The interval that decides equivalence."""
    margin: float
    null: Null
    noise_floor: float
    """The same quantity between two seeds of one arm."""
    num_seeds: int
    num_items: int | None
    detectable_gap: float
    q: float
    """Benjamini-Hochberg over the claims of this kind in the report: a claim with another test is no help to it."""
    is_discovery: bool | None = None
    """Whether q is below the report's alpha; None where the claim has no q."""
    verdict: str
    """Of VERDICTS; "supported" only where ``q`` is below the report's alpha too."""
    reason: str
    source: str
    """The formula and where it comes from."""
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """``files``: evidence file to sha256; ``runs``: run to the sha256 of its manifest."""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(unknown(self.verdict, "verdict", VERDICTS))

    @property
    def deciding(self) -> Span:
        """The interval that decided the verdict, which is the one to print and to draw: that of equivalence, or .95."""
        return self.equivalence if self.verdict == "equivalent" else self.interval

    def facts(self) -> dict[str, str]:
        """The claim, its number with the interval that decided, and the verdict with its reason."""
        low, high, level = self.deciding.low, self.deciding.high, self.deciding.level
        known = {"interval": f"{low:.4g} to {high:.4g} ({100 * level:g} %)"} if low == low else {}
        known = {"claim": self.claim, "value": f"{self.value:.4g} {self.unit}".strip()} | known
        return known | {"seeds": str(self.num_seeds), "verdict": self.verdict, "reason": self.reason}

    def to_dict(self) -> dict[str, Any]:
        """What is written: numbers to ten digits, null for NaN."""
        written: dict[str, Any] = _written(asdict(self))
        return written

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Card":
        """The card that was written; ValueError for a field that is missing or that cards do not have."""
        names = {f.name for f in fields(cls)}
        if set(values) != names:
            raise ValueError(f"a card has the fields {', '.join(sorted(names))}; got {', '.join(sorted(values))}")
        own: dict[str, Any] = {k: NAN if v is None and k not in MAY_BE_NONE else v for k, v in values.items()}
        parts: dict[str, Any] = {"interval": Span, "equivalence": Span, "null": Null}
        for name, kind in parts.items():
            own[name] = kind(**{k: NAN if v is None else v for k, v in values[name].items()})
        return cls(**own)


NOTHING: Mapping[str, Any] = {"equivalence": Span(), "margin": NAN, "noise_floor": NAN, "detectable_gap": NAN}
"""Fields of a card that stands on no margin and no noise floor."""


def save_cards(cards: list[Card], folder: str | Path, hashes: Mapping[str, str]) -> Path:
    """Write ``folder``/cards.json with the sha256 of the evidence files beside the cards; its path."""
    path = Path(folder) / CARDS
    values = {"format": FORMAT, "evidence": dict(hashes), "cards": [card.to_dict() for card in cards]}
    files.write_text(path, json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def load_cards(folder: str | Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The cards of a report as they are written, and the sha256 of each evidence file.

    ValueError when cards.json is missing, no JSON, of a newer format, or no list of cards.
    """
    path = Path(folder) / CARDS
    if not path.is_file():
        raise ValueError(f"{folder} is not a report with cards: it has no {CARDS}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{CARDS} is not JSON ({error})") from None
    is_known = isinstance(values, dict) and isinstance(values.get("cards"), list)
    if not is_known or not isinstance(values.get("evidence"), dict):
        raise ValueError(f"{CARDS} must hold format, evidence and cards")
    if values.get("format", FORMAT + 1) > FORMAT:
        raise ValueError(f"{CARDS} has a newer format than {FORMAT}: update the toolkit")
    return values["cards"], values["evidence"]


def _written(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _written(v) for k, v in value.items()}
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") + 0.0 if math.isfinite(value) else None
    return value
