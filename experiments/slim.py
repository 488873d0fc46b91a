"""Remove what need not be committed of a report: python experiments/slim.py reports/NAME ...

The page, SVG, PDF, LaTeX, Parquet, pictures that report.md does not show and CSV files above 50 kB go; a report with
evidence gets them again by `python -m toolkit report --from reports/NAME`, any other by the command that made it.
`python -m toolkit verify` accepts that they are not kept, and report.md says so instead of linking to them. Pictures of
at most 256 colours get a palette: the same pixels in less than half the bytes.
"""

import io
import re
from pathlib import Path
from typing import Any

import tyro
from PIL import Image, ImageChops
from tyro.conf import Positional

from toolkit.comparison.evidence import WRITTEN, spare_files, written_files
from toolkit.naming import read_object
from toolkit.snapshots import files
from toolkit.snapshots.ownership import seal


def slim(out: Path) -> int:
    """Bytes that were removed of a report, by its own list of files."""
    names = [name for name in written_files(out) if (out / name).is_file()]
    known = read_object(out / WRITTEN)
    spare = [out / name for name in spare_files(out, names)]
    size = sum(path.stat().st_size for path in spare)
    for name in names:
        if name.endswith(".png") and (content := with_palette(out / name)):
            size += (out / name).stat().st_size - len(content)
            files.write_bytes(out / name, content, may_replace=True)
            known["files"][name] = files.sha256_of_file(out / name)
    for path in spare:
        path.unlink(missing_ok=True)
    if (report := out / "report.md").is_file():
        files.write_text(report, without_dead_links(report.read_text(encoding="utf-8"), out), may_replace=True)
        known["files"][report.name] = files.sha256_of_file(report)
    files.write_text(out / WRITTEN, seal(known), may_replace=True)
    return size


def without_dead_links(text: str, out: Path) -> str:
    """report.md without links to pictures that are not kept, and with a line that says what makes them again."""
    kept = re.sub(
        r" \(\[SVG\]\((?P<file>[^)]*)\), \[PDF\]\([^)]*\)\)", lambda m: m[0] * (out / m["file"]).is_file(), text
    )
    has_evidence = (out / "evidence").is_dir()
    how = f"`python -m toolkit report --from {out.as_posix()} --out FOLDER`" if has_evidence else "the command below"
    title, _, rest = kept.partition("\n\n")
    note = f"*Not kept in this copy: index.html, SVG, PDF, LaTeX and large tables; {how} makes them.*"
    is_whole = kept == text and ("index.html" not in text or (out / "index.html").is_file())
    return kept if is_whole or note in kept else f"{title}\n\n{note}\n\n{rest}"


def with_palette(path: Path) -> bytes | None:
    """A picture with a palette; None where that would change a pixel, or save nothing."""
    with Image.open(path) as picture:
        pixels: Any = picture.convert("RGB")
    if len(pixels.getcolors(1 << 24)) > 256:
        return None
    small = pixels.quantize(256, dither=Image.Dither.NONE)
    content = io.BytesIO()
    small.save(content, "PNG", optimize=True)
    is_same = ImageChops.difference(small.convert("RGB"), pixels).getbbox() is None
    return content.getvalue() if is_same and len(content.getvalue()) < path.stat().st_size else None


def main(reports: Positional[tuple[Path, ...]]) -> int:
    """Slim each report, and say by how much.

    Args:
        reports: folders of reports
    """
    for out in reports:
        size = slim(out)
        left = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        print(f"{out}: {size / 1e6:.1f} MB removed, {left / 1e6:.1f} MB left")
    return 0


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main, description=__doc__))
