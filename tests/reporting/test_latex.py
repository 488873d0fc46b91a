"""LaTeX tables compile whatever their cells hold, and say what the cells said."""

import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.run_directories import HOSTILE
from toolkit.reporting import render_latex as latex
from toolkit.reporting.cells import Column
from toolkit.reporting.comparison_report import write_report
from toolkit.reporting.page import TableBlock, shown

SPECIAL = "[]*\\{}&%$#_~^<>|\"'`±→Δ‖²⁰°≤≥—…é\u00d7\u2212\u03c1\u2013\u2019\u00a0\u4e2d\u202e\x00\n"


def fragment(table: pd.DataFrame, caption: str = "A caption") -> str:
    columns = {str(name): Column(label=str(name)) for name in table.columns}
    return latex.booktabs(shown(TableBlock(table=table, caption=caption, columns=columns)), "test")


@given(st.text())
def test_no_character_of_a_text_is_obeyed(text):
    """After the commands that escape writes are taken out, nothing is left that TeX acts on."""
    known = r"\\(?:(?:text\w+|ldots|lbrack)\{\}|[{}&%$#_]|[`'^~\"vc]\{\w\})|\$(?:[-]|\^(?:2|0|\\circ)|\\[A-Za-z]+)\$|~"
    rest = re.sub(known, "", latex.escape(text))
    assert not set(rest) & set("\\{}&%$#_^~[*\n")
    assert rest.isascii()


def test_a_fragment_is_a_booktabs_table_with_a_label():
    text = fragment(pd.DataFrame({"condition": ["a&b", "c"], "score": [0.8754, 0.8]}))
    once = (r"\toprule", r"\midrule", r"\bottomrule", r"\caption{A caption}\label{tab:test}")
    assert {command: text.count(command) for command in once} == dict.fromkeys(once, 1)
    assert r"a\&b & $0.875$ \\" in text
    assert r"\begin{tabular}{lr}" in text


def test_a_long_table_is_continued_and_labelled_once():
    text = fragment(pd.DataFrame({"n": range(2 * latex.MOST_LINES + 1)}))
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 3
    assert text.count(r"\label") == 1
    assert text.count("(continued)") == 2
    assert [int(n) for n in re.findall(r"^\$(\d+)\$ \\\\$", text, re.M)] == list(range(2 * latex.MOST_LINES + 1))


def compile_document(folder: Path, name: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", name], cwd=folder, capture_output=True, timeout=120
    )


needs_tex = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here (Debian: texlive-latex-base)")


@needs_tex
def test_every_hostile_text_compiles(tmp_path):
    texts = [*HOSTILE, *SPECIAL, SPECIAL, r"\input{/etc/passwd}", "$x^2$", "% comment", ""]
    table = pd.DataFrame({text or "empty": [text, "plain"] for text in dict.fromkeys(texts)})
    assert "[" in list(table), "a row may begin with it"
    for i, part in enumerate((table.iloc[:, :12], table.iloc[:, 12:24], table.iloc[:, 24:])):
        (tmp_path / f"part{i}.tex").write_text(fragment(part, caption=SPECIAL))
    rows = pd.DataFrame({"row": ["[PAD]", "*", "{"], "value": [1.0, 2.0, 3.0], "value_sd": [0.1, float("nan"), 0.0]})
    (tmp_path / "part3.tex").write_text(latex.export_table(rows, caption="[PAD] after a rule"))
    (tmp_path / "tables.tex").write_text(latex.document(["part0", "part1", "part2", "part3"], SPECIAL))
    done = compile_document(tmp_path, "tables.tex")
    assert done.returncode == 0, done.stdout[-2000:].decode(errors="replace")
    assert (tmp_path / "tables.pdf").stat().st_size > 1000


@needs_tex
@pytest.mark.usefixtures("undrawn")
def test_the_tables_of_a_report_compile(study):
    runs, labels = study(tasks=("toy", "a_b&c%"), num_seeds=2)
    write_report(runs, "out", labels=labels, title="50 % & more_$")
    done = compile_document(Path("out/tables"), "tables.tex")
    assert done.returncode == 0, done.stdout[-2000:].decode(errors="replace")
    assert b"Overfull" not in done.stdout
    assert "drift_compact.tex" in {path.name for path in Path("out/tables").glob("*.tex")}
    for path in Path("out/tables").glob("*.tex"):
        if path.name != "tables.tex":
            assert path.read_text().count(r"\begin{table}") >= 1


@pytest.mark.parametrize(
    ("written", "text", "expected"),
    [
        (latex.escape, "50 % of R&D_1", r"50 \% of R\&D\_1"),
        (latex.escape, "naïve café", r"na\"{i}ve caf\'{e}"),
        (latex.escape, "中", "U+4E2D"),
        (latex.escape, r"\input{x}", r"\textbackslash{}input\{x\}"),
        (latex.cell, "-1.25", "$-1.25$"),
        (latex.cell, "30,522", "$30{,}522$"),
        (latex.cell, "1.20e-05", r"$1.20 \times 10^{-5}$"),
        (latex.cell, "0.875 ± 0.003", r"0.875 $\pm$ 0.003"),
    ],
)
def test_what_can_be_printed_is_kept_and_numbers_are_mathematics(written, text, expected):
    assert written(text) == expected
