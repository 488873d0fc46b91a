"""Every committed report at a glance: ``python experiments/gallery.py --out build/gallery`` (``make gallery``).

One offline page: of each report the title, the question, the answers in a line each and the command that makes it.
A Chromium, where there is one, draws the first screen of the reports that keep their evidence, light and dark, at that
moment; where there is none their answers are told in full. Of the other reports the first figure is shown.
"""

import base64
import html
import re
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.reporting.page import Answer, Page

REPORTS = Path(__file__).parents[1] / "reports"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,900")
THEMES: Mapping[str, tuple[str, ...]] = {"light": (), "dark": ("--blink-settings=preferredColorScheme=0",)}
MOST, WIDEST = 4, 240
"""Answers of a report that keeps no evidence, and characters of each: its own text has all of them."""


def read_page(folder: Path) -> Page:
    """The page of a report, from its evidence."""
    from toolkit.comparison.cards import make_cards
    from toolkit.comparison.evidence import making, read_evidence
    from toolkit.comparison.report_data import ReportData
    from toolkit.reporting.comparison_report import make_page

    with making(folder):
        data = ReportData(read_evidence(folder))
        page = make_page(data, make_cards(data))
        return replace(page, commands=str(data.evidence.page.get("command") or ""))


def read_text(text: str) -> tuple[Page, re.Match[str] | None]:
    """What the first screen of a report.md says, and its first figure."""
    head, _, rest = html.unescape(text).partition("\n## How to make this again\n")
    title, _, head = head.partition("\n")
    figure = re.search(r"^!\[(.*)\]\((figures/.+\.png)\)$", head, re.M)
    start, found, said = head.partition("\n## ")
    parts = re.split(r"\n(?=\d+\. |- )|\n\n", said.partition("\n")[2] if found else start)
    lines = [" ".join(re.sub(r"^(- |\d+\. )", "", part.strip()).split()) for part in parts]
    questions = [line for line in start.splitlines() if line.endswith("?")]
    lines = [line for line in lines if line and not re.match(r"[#!|]|\*[^*]", line) and line not in questions]
    cells = re.findall(r"^\| ([^|]+\?) \| ([^|]+) \|", head, re.M)
    answers = [Answer(question=question, verdict=verdict, text="") for question, verdict in cells]
    for line in lines:
        asked = re.fullmatch(r"\*\*(.+?\?) (.+?)\.\*\* (.+)", line)
        question, verdict, told = asked.groups() if asked else ("", "", line.removeprefix("**** "))
        answers.append(
            Answer(question=question, verdict=verdict, text=textwrap.shorten(told, WIDEST, placeholder=" …"))
        )
    commands = "\n".join(re.findall(r"```bash\n(.*?)\n```", rest, re.S)[:1])
    return Page(title=title[2:], question=" ".join(questions), answers=(*answers[:MOST],), commands=commands), figure


def draw(page: Page, browser: str) -> dict[str, str]:
    """The first screen of a page in each theme, as an address that holds it."""
    from toolkit.reporting.render_html import render_page

    first = replace(page, commands="", sections=tuple(replace(part, lead="", blocks=()) for part in page.sections))
    with tempfile.TemporaryDirectory() as folder:
        place, picture = Path(folder) / "index.html", Path(folder) / "first.png"
        place.write_text(render_page(first), encoding="utf-8")
        pictures = {}
        for theme, flags in THEMES.items():
            words = [browser, *FLAGS, "--virtual-time-budget=15000", *flags, f"--screenshot={picture}", place.as_uri()]
            subprocess.run(words, check=True, capture_output=True, timeout=120)
            pictures[theme] = address(picture)
    return pictures


def address(picture: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode('ascii')}"


def read_entry(folder: Path, browser: str | None) -> dict[str, Any]:
    """What the gallery shows of a report.

    Its pictures are theme to address: one for both where there is a figure alone, none where nothing could draw one.
    """
    if (folder / "evidence").is_dir():
        page = read_page(folder)
        pictures, alt = draw(page, browser) if browser else {}, f"The first screen of “{page.title}”"
        return {"name": folder.name, "page": page, "has_evidence": True, "pictures": pictures, "alt": alt}
    page, figure = read_text((folder / "report.md").read_text(encoding="utf-8"))
    pictures, alt = ({"both": address(folder / figure[2])}, figure[1]) if figure else ({}, "")
    return {"name": folder.name, "page": page, "has_evidence": False, "pictures": pictures, "alt": alt}


def main(out: Path = Path("build/gallery"), reports: Path = REPORTS) -> None:
    """Write the gallery.

    Args:
        out: folder of the gallery alone
        reports: folder of the reports
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    import toolkit.reporting
    from toolkit.progress import counted, shows_progress
    from toolkit.reporting.folder import check_out, report_folder
    from toolkit.snapshots import files

    check_out(out)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    folders = sorted(path.parent for path in reports.glob("*/report.md"))
    with shows_progress("first screens"):
        entries = [read_entry(folder, browser) for folder in counted(folders, "first screens")]
    loader = FileSystemLoader((Path(__file__).parent, Path(toolkit.reporting.__file__).parent / "templates"))
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.get_template("gallery.html.j2").render(entries=entries)
    with report_folder(out) as folder:
        files.write_text(folder / "index.html", text)
    print(f"Gallery: {out / 'index.html'}" + ("" if browser else f" (in words: no {', '.join(BROWSERS)} here to draw)"))


if __name__ == "__main__":
    import tyro

    from toolkit.cli import guarded

    raise SystemExit(guarded(lambda: tyro.cli(main, description=__doc__)))
