"""Values in, Markdown out that shows them and nothing else: every text is escaped, every number says what it is."""

import math
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

NOT_APPLICABLE = "not applicable"
UNDEFINED = "undefined"

RELATIVE_PATHS = (
    "Paths are relative to the directory in which the report was made; files from elsewhere go by name only."
)

_SPECIAL = frozenset("\\`*_[]<>|~$&@")
_NUMERIC = re.compile(rf"([+-]?\d[\d,.]*(e[+-]\d+)?( .*)?|{NOT_APPLICABLE}|{UNDEFINED}( .*)?)")


def escape(value: object) -> str:
    """Text that no Markdown or HTML reader takes for markup; invisible characters become U+XXXX."""
    text = str(value)
    # An underscore inside a word is no markup, and parameter names stay readable in the source.
    inner = {match.start() for match in re.finditer(r"(?<=[A-Za-z0-9])_(?=[A-Za-z0-9])", text)}
    return "".join(character if i in inner else _shown(character) for i, character in enumerate(text))


def _shown(character: str) -> str:
    if character in _SPECIAL:
        return f"&#{ord(character)};"
    if character != " " and unicodedata.category(character)[0] in "CZ":
        return f"U+{ord(character):04X}"
    return character


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose cells are escaped texts or numbers; one line that says so when there are no rows."""
    lines = [[escape(cell) if isinstance(cell, str) else number(cell) for cell in row] for row in rows]
    if not lines:
        return f"{NOT_APPLICABLE.capitalize()}: there is nothing to show."
    filled = [[line[i] for line in lines if line[i]] for i in range(len(header))]
    rule = ["---:" if cells and all(map(_NUMERIC.fullmatch, cells)) else "---" for cells in filled]
    return "\n".join(f"| {' | '.join(line)} |" for line in [[escape(name) for name in header], rule, *lines])


def bullets(lines: Iterable[str]) -> str:
    """A list, its lines escaped."""
    return "\n".join(f"- {escape(line)}" for line in lines)


def figures(captions: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """The figures of those names, each above its caption, which is Markdown."""
    return [f"![{captions[name]}](figures/{name}.png)\n\n*{captions[name]}*" for name in names]


def made_by(command: str | None, *notes: str) -> list[str]:
    """The section on how to make a report again; nothing without a command."""
    return ["## How to make this again", code_block([command]), *notes] if command else []


def number(value: object, digits: int = 3) -> str:
    """A number with ``digits`` significant digits; whole ones in full, NaN as undefined, None as not applicable."""
    if value is None:
        return NOT_APPLICABLE
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    value = float(value)  # type: ignore[arg-type]
    if math.isnan(value):
        return UNDEFINED
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    magnitude = math.floor(math.log10(abs(value)))
    if -4 <= magnitude < digits:
        return f"{value:.{max(digits - 1 - magnitude, 0)}f}"
    return f"{value:,.0f}" if digits <= magnitude < 7 else f"{value:.{digits - 1}e}"


def mean_and_sd(values: Iterable[float]) -> str:
    """Mean ± sample standard deviation over seeds; the value alone for one seed; undefined ones are counted."""
    array = np.array(list(values), dtype=np.float64)
    defined = array[~np.isnan(array)]
    if not len(array):
        return NOT_APPLICABLE
    if not len(defined):
        return f"{UNDEFINED} ({len(array)} of {len(array)})" if len(array) > 1 else UNDEFINED
    text = number(defined.mean())
    if len(defined) > 1 and defined.any():  # 0 in every seed is plain 0
        spread = defined.std(ddof=1)
        text += f" ± {number(spread if spread > 1e-12 * abs(defined.mean()) else 0.0, 2)}"  # less is rounding
    return text + (f" ({len(array) - len(defined)} undefined)" if len(defined) < len(array) else "")


def span(values: Iterable[float]) -> str:
    """One count, or the least and the greatest of several."""
    counts = list(values)
    low, high = int(min(counts)), int(max(counts))
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def stratum_text(stratum: str) -> str:
    """A stratum as one reads it aloud: ``seen in 2 to 9 steps``, ``seen in 100 or more steps``."""
    return re.sub(r"(\d)-(\d)", r"\1 to \2", re.sub(r">=(\d+)", r"\1 or more", stratum))


def p_value(value: float) -> str:
    """A p value as papers print it."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}" if value == value else UNDEFINED


def listing(names: Sequence[str]) -> str:
    """Names as one reads them aloud: a, b and c."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def code_block(lines: Iterable[str]) -> str:
    """A fenced block that no backtick inside can end."""
    text = "\n".join(lines)
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}bash\n{text}\n{fence}"


def shell_words(words: Iterable[str]) -> str:
    """Words of a command, quoted for a shell."""
    return " ".join(shlex.quote(word) for word in words)
