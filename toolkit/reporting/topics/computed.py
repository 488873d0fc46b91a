"""The tables of one run, or of checkpoints in order, each computed once, or the reason why it does not apply."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from toolkit.reporting.sources import Opened
from toolkit.snapshots.store import Source

Makers = Mapping[str, Callable[[], pd.DataFrame]]
"""Name of a table, which is that of its CSV file, to what computes it."""


@dataclass
class Computed:
    """Every table of one report by name, and why others are missing."""

    opened: Opened
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        return source_of(self.opened)

    @property
    def epoch(self) -> float:
        """The last snapshot's epoch: every table but those over time is of it."""
        return float(self.opened.trajectory.snapshots[-1].epoch)

    def add(self, makers: Makers, on_table: Callable[[str], None] = lambda name: None) -> "Computed":
        """Compute what is not known yet; ``on_table`` is told the name of each table before it is computed."""
        for name, make in makers.items():
            if name in self.frames:
                continue
            on_table(name)
            try:
                self.frames[name] = make()
            except ValueError as error:  # every analysis says in one line why it does not apply
                self.missing[name] = str(error)
        return self

    def get(self, name: str, **where: Any) -> pd.DataFrame:
        """The lines of a table that have these values; an empty table where it is missing."""
        return lines_of(self.frames.get(name, pd.DataFrame()), **where)


def source_of(opened: Opened) -> Source:
    """What the analysis takes: the run, for its exposure and its log, or the snapshots alone."""
    return opened.runs[0] if opened.is_run else opened.trajectory


def lines_of(frame: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """The lines of a table that have these values; an empty table stays empty, whatever its columns."""
    for column, value in where.items():
        frame = frame[frame[column] == value] if len(frame) else frame
    return frame


def refused(frames: Mapping[str, pd.DataFrame]) -> Iterable[tuple[str, str]]:
    """What an analysis would not say although its table exists, with its reason: pairs of both."""
    for name, frame in frames.items():
        if "reason" not in frame or frame.empty:
            continue
        if "step" in frame:  # of every snapshot: before the first step nothing has moved, and that is no refusal
            frame = frame[frame["epoch"] == frame["epoch"].max()]
        for reason, own in frame[frame["reason"] != ""].groupby("reason", sort=False):
            of = [column for column in ("parameter", "measure", "variant") if column in own]
            parts = dict.fromkeys(" ".join(map(str, line)).replace("_", " ") for line in own[of].to_numpy())
            yield f"{name.replace('_', ' ')}: {', '.join(parts)}", str(reason)


def computed(frame: pd.DataFrame) -> pd.DataFrame:
    """Without the lines that an analysis refused: :func:`refused` says them once, for the whole page."""
    return frame[frame["reason"] == ""] if len(frame) else frame
