"""Tokens that were added: did the new words learn, did the old ones stay?"""

from collections.abc import Sequence

import pandas as pd

from toolkit.analysis.added_rows import has_added, measure_added_rows
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.verdicts import Card
from toolkit.reporting.page import Section, TextBlock, folds, table_block
from toolkit.reporting.sources import Computed, Makers, Opened
from toolkit.reporting.topics.caveats import claims_block, group_of

ID, TITLE = "new-tokens", "Did the new words learn, did the old ones stay?"
LEAD = (
    "A row that learns leaves its start; that it left it does not show that it learned, for which scores are held "
    "against those of a run that trains nothing of the backbone. Rows of added tokens are counted neither among the "
    "words that training exposed nor among the others."
)


def makers(opened: Opened) -> Makers:
    """The table of added rows, where there are any."""
    return {"added_rows": lambda: measure_added_rows(opened.source)} if has_added(opened.trajectory) else {}


def section(computed: Computed) -> Section:
    """How many added rows moved, then each of them at the last snapshot, with its neighbours before and after."""
    rows = computed.get("added_rows")
    if rows.empty:
        return Section(id=ID, title=TITLE)
    last = rows[rows["epoch"] == rows["epoch"].max()]
    steps = pd.to_numeric(last["num_steps"])
    moved, num_starts = last["norm"] > 0, last["norm"].notna().sum()
    said = f"{len(last):,} tokens were added, of which the first checkpoint has no rows to start from."
    if num_starts:
        said = (
            f"{len(last):,} tokens were added. The first checkpoint has a row already where {num_starts:,} of them "
            f"stand, and {moved.sum():,} of these rows moved."
        )
    if steps.notna().any():
        is_seen = steps > 0
        said = (
            f"Of {len(last):,} added tokens training showed {is_seen.sum():,}, of which {(moved & is_seen).sum():,} "
            f"left their start; of the other {(~is_seen).sum():,} {(moved & ~is_seen).sum():,} did."
        )
        first = rows[rows["epoch"] == rows["epoch"].min()].set_index("row")["nearest_old"]
        last = last.assign(nearest_before=last["row"].map(first))
    names = "token num_steps num_tokens norm relative length times_old_length nearest_before nearest_old reason"
    shown = last.assign(**{name: pd.to_numeric(last[name]) for name in ("num_steps", "num_tokens")})
    shown = shown.dropna(axis="columns", how="all").sort_values("row")
    caption = "The added tokens at the last snapshot; epochs before are in tables/added_rows.csv."
    own = {"norm": "‖Δ‖", "relative": "relative drift", "nearest_before": "nearest at first", "nearest_old": "nearest"}
    return Section(
        id=ID, title=TITLE, lead=LEAD, blocks=(TextBlock(text=said), table_block(shown, names, caption, **own))
    )


def cards_section(data: ReportData, cards: Sequence[Card]) -> Section | None:
    """The cards on added tokens; None where no run added any. How far rows moved by stratum stands with all words."""
    titles = list(dict.fromkeys(group.title for group in data.groups))
    own = {title: [card for card in cards if card.kind == "tokens" and group_of(card) == title] for title in titles}
    titles = [title for title in titles if own[title]]
    if not titles:
        return None
    bodies = [[claims_block(own[title], f"Added tokens on {title}")] for title in titles]
    return Section(id=ID, title=TITLE, lead=LEAD, blocks=folds(titles, bodies))
