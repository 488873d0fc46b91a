"""The page of drift from a few tables, and what stands in it."""

from collections.abc import Sequence

import pandas as pd

from tests.reporting.pages import tables_of as blocks_of_tables
from toolkit.questions.drift_report import drift_page, drift_parts, makers_of
from toolkit.reporting.page import Page, Section
from toolkit.reporting.sources import Computed, open_sources
from toolkit.reporting.topics import movement

QUICK = ("changes", "words", "kinds", "exposure", "new-tokens", "rows")


def page_of(places: Sequence[object], **known: pd.DataFrame) -> Page:
    """The page of what is opened, from these tables, those on movement, and those that are quick."""
    computed = Computed(open_sources([str(place) for place in places], at_least=2), dict(known))
    quick = [movement.HEAD, *(part for name, part in drift_parts().items() if name in QUICK)]
    computed.add(makers_of(quick, computed.opened))
    return drift_page(computed)


def tables_of(section: Section) -> list[pd.DataFrame]:
    return [block.table for block in blocks_of_tables(section.blocks)]


def section_of(page: Page, name: str) -> Section:
    (found,) = [section for section in page.sections if section.id == name]
    return found
