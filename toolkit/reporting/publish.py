"""A page as the files of its report: index.html, report.md and the pictures of its charts."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from toolkit.reporting.charts import write_charts
from toolkit.reporting.comparison.markdown_report import render_markdown
from toolkit.reporting.page.model import Block, ChartBlock, FoldBlock, Page
from toolkit.reporting.page.render import render_page
from toolkit.snapshots import files


def publish(page: Page, folder: Path, tasks: Collection[str] = ()) -> None:
    """Write everything that a reader of ``page`` opens into ``folder``; ``tasks`` are those of render_markdown."""
    write_charts(folder / "figures", charts_of(page))
    files.write_text(folder / "report.md", render_markdown(page, tasks))
    files.write_text(folder / "index.html", render_page(page))


def charts_of(page: Page) -> dict[str, dict[str, Any]]:
    """The specification of every chart of a page by name, in the order in which it shows them."""
    first = (page.picture,) if page.picture else ()
    blocks = (*first, *(block for section in page.sections for block in section.blocks))
    return {block.name: block.spec for block in _charts(blocks)}


def _charts(blocks: Collection[Block]) -> Iterator[ChartBlock]:
    for block in blocks:
        if isinstance(block, ChartBlock):
            yield block
        elif isinstance(block, FoldBlock):
            yield from _charts(block.blocks)
