"""Words that lost more of their nearest neighbours than a change of that size in a random direction takes."""

import pandas as pd

from toolkit.analysis.neighbours import most_changed
from toolkit.reporting.cells import Column, number
from toolkit.reporting.page import Block, Section, TableBlock, TextBlock
from toolkit.reporting.sources import Computed, Makers, Opened, source_of

LEAD = (
    "Of each word's ten nearest neighbours by cosine: how many it kept, beside how many it would keep if every row had "
    "moved as far in a random direction. The comparison is needed because words with close rivals lose neighbours "
    "whichever way they move."
)
NONE = "No word lost more of its neighbours than if every row had moved as far in a random direction."


def makers(opened: Opened) -> Makers:
    source, epoch = source_of(opened), opened.trajectory.snapshots[-1].epoch
    return {"neighbours": lambda: most_changed(list(opened.runs) or source, epoch)}


def section(computed: Computed) -> Section:
    """The words whose neighbours changed most beyond chance, and how far the runs agree on them."""
    if "neighbours" not in computed.frames:
        return Section(id="neighbours", title="Neighbours")
    frame = computed.frames["neighbours"]
    blocks: tuple[Block, ...] = _blocks(frame) if len(frame) else (TextBlock(text=NONE),)
    return Section(id="neighbours", title="Neighbours", lead=LEAD, blocks=blocks)


def _whole(values: pd.Series) -> pd.Series:
    """Counts of one run are whole, means over runs need not be."""
    return values.astype(int) if (values % 1 == 0).all() else values


def _blocks(frame: pd.DataFrame) -> tuple[Block, ...]:
    table = pd.DataFrame(
        {
            "token": frame["token"]
            .astype(str)
            .where(frame["token"].astype(str) != "", "row " + frame["row"].astype(str)),
            "stratum": frame["stratum"].astype(str),
            "num_steps": _whole(frame["num_steps"].astype(float)),
            "kept": 100 * frame["overlap"],
            "random": 100 * frame["random_overlap"],
            "percentile": 100 * frame["percentile"],
            "num_runs": frame["num_runs"].astype(int),
        }
    )
    columns = {
        "token": Column(label="word"),
        "stratum": Column(label="rows"),
        "num_steps": Column(label="steps"),
        "kept": Column(label="neighbours kept", unit="%"),
        "random": Column(label="in a random direction", unit="%"),
        "percentile": Column(label="percentile", how="Among words of like exposure."),
        "num_runs": Column(label="runs that list it"),
    }
    if frame["num_steps"].isna().all():
        del columns["stratum"], columns["num_steps"]
    caption = "Words whose neighbours changed most beyond chance, mean over the runs."
    shown = TableBlock(table=table[list(columns)], caption=caption, columns=columns, num_shown=15)
    first = frame.iloc[0]
    if pd.isna(first["jaccard"]):
        return (shown,)
    said = (
        f"Between runs the lists of the {len(frame)} words agree with a mean Jaccard index of "
        f"{number(first['jaccard'])}, against {number(first['jaccard_random'])} when every row moves as far in a "
        f"random direction and {number(first['jaccard_permuted'])} when words of like exposure are permuted."
    )
    return (shown, TextBlock(text=said))
