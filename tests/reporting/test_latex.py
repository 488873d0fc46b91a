"""LaTeX tables compile whatever their cells hold, and say what the cells said."""

import re
import shutil
import subprocess
import warnings
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import toolkit
from tests.refusals import check_refusals, check_refused
from tests.run_directories import HOSTILE
from toolkit.reporting import render_latex as latex
from toolkit.reporting.cells import Column
from toolkit.reporting.comparison_report import paper_tables, write_report
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


LONG = pd.DataFrame(
    {"parameter": ["a", "a", "b", "b"], "epoch": [0.0, 0.5] * 2, "percent": [0, 0.1234, 0, float("nan")]}
)
PIVOT = LONG.pivot(index="parameter", columns="epoch", values="percent")
LEVELS = LONG.assign(percent_sd=0.01).pivot(index="parameter", columns="epoch", values=["percent", "percent_sd"])


@pytest.mark.parametrize(
    ("table", "options", "lines"),
    [
        (PIVOT, {}, ["parameter & 0 & 0.5", "a & $0$ & $0.123$", "b & $0$ & ---"]),
        (LEVELS, {}, ["parameter & 0 & 0.5", r"a & $0$ & 0.123 $\pm$ 0.010", "b & $0$ & ---"]),
        (LEVELS, {"columns": [("percent", 0.5), "parameter"]}, ["percent, 0.5 & parameter", "$0.123$ & a"]),
        (LEVELS[:1], {"columns": ["percent 0.5", "percent_sd 0.5"]}, ["percent, 0.5", r"0.123 $\pm$ 0.010"]),
        (
            LONG.groupby("parameter").agg({"percent": ["min", "max"]}),
            {},
            ["parameter & least & greatest", "a & $0$ & $0.123$"],
        ),
        (LONG.set_index(["parameter", "epoch"])["percent"], {}, ["parameter & epoch & percent", "a & $0$ & $0$"]),
        (LONG[1:2], {"columns": "percent"}, ["percent", "$0.123$"]),
        (pd.DataFrame({0: [1, None], "x": [[1], {}]}, index=["p", "q"]), {}, [" & 0 & x", r"p & $1.00$ & \lbrack{}1]"]),
        (pd.DataFrame({"a": [1, 2], "b": [3, 4]}).set_axis(["n", "n"], axis=1), {}, ["n & n", "$1$ & $3$"]),
        (pd.DataFrame({"model": ["m", "m"]}), {}, ["model", "m"]),
        (pd.DataFrame({"p": [1e-47]}), {}, ["p", r"\textless{} 0.001"]),
    ],
)
def test_any_table_is_exported_with_its_index_and_its_levels(table, options, lines):
    before = table.copy()
    text = latex.export_table(table, **options)
    assert [each for each in lines if f"\n{each} \\\\\n" not in text] == []
    assert before.equals(table)


def test_what_cannot_be_exported_is_said_in_one_line():
    check_refusals(
        ("no lines", lambda: latex.export_table(pd.DataFrame({"a": []}))),
        ("expected a DataFrame or a Series; got list", lambda: latex.export_table([1])),
        ("columns names none: pass those to show", lambda: latex.export_table(LONG, columns=[])),
        (r"unknown column 'percnt' \(did you mean 'percent'", lambda: latex.export_table(LONG, columns=["percnt"])),
        ("unknown width 0.5; choose from: text", lambda: latex.export_table(LONG, width=0.5)),
        (
            "decimals must be a whole number of at least 0, or None; got -1",
            lambda: latex.export_table(LONG, decimals=-1),
        ),
        ("decimals must be a whole number", lambda: latex.export_table(LONG, decimals=2.0)),
        ("a LaTeX label is of letters.*not None", lambda: latex.export_table(LONG, label=None)),
        ("caption must be a text; got None", lambda: latex.export_table(LONG, caption=None)),
    )


def test_the_drift_table_has_a_line_per_condition_whichever_columns_are_named(read_run):
    regimes = ("none", "embeddings", "backbone", "position_embeddings")
    table = toolkit.drift_table([read_run(regime, seed) for regime in regimes for seed in range(2)])
    text = latex.export_table(table, caption="Drift")
    body = text.partition(r"\midrule")[2].partition(r"\bottomrule")[0].strip().splitlines()
    assert [line.split(" & ")[0] for line in body] == [
        "full fine-tuning", "embeddings frozen", r"position\_\allowbreak{}embeddings (frozen)", "feature extraction"
    ]  # fmt: skip
    assert {line.split(" & ", 1)[1] for line in (body[1], body[3])} == {r"$0$ & $0$ & $0$ & $0$ & $0$ \\"}
    assert body[2].split(" & ")[2] == "$0$"
    for line in table[table["condition"] == "full fine-tuning"].to_dict("records"):
        assert rf"{line['drift_percent']:#.3g} $\pm$ " in body[0]
    assert "resizebox" not in text
    assert "seeds: 2" in text
    assert r"full fine-tuning & word\_embeddings" in latex.export_table(table, columns=["condition", "parameter"])
    chosen = body_of(latex.export_table(table, columns=["condition", "LayerNorm.bias", "word_embeddings"], decimals=4))
    assert chosen[1::2] == [["embeddings frozen", "$0$", r"$0$ \\"], ["feature extraction", "$0$", r"$0$ \\"]]
    of_bias = table.query("condition == 'full fine-tuning' and parameter == 'LayerNorm.bias'").iloc[0]
    assert chosen[0][1] == rf"{of_bias['drift_percent']:.4f} $\pm$ {of_bias['drift_percent_sd']:.4f}"


def test_a_comparison_is_exported_with_its_interval_and_the_words_of_pages(read_run):
    table = toolkit.compare([read_run(regime, seed) for regime in ("none", "embeddings") for seed in range(2)])
    text = latex.export_table(table, width="both columns")
    assert text.startswith("\\begin{table*}\n")
    assert text.endswith("\\end{table*}\n")
    assert len(body_of(text)) == len(table)
    row = table.iloc[0]
    (first, *_) = body_of(latex.export_table(table, columns=["pair", "interval", "split"]))
    assert first[0] == f"{row['first']} minus {row['second']}"
    assert first[1].replace("$-$", "-") == f"{row['low_points']:+.2f} to {row['high_points']:+.2f}"
    assert "under-powered" not in latex.export_table(table.assign(verdict="under-powered"), columns=["pair", "verdict"])


def test_of_runs_a_line_per_condition_has_score_difference_verdict_and_drift(read_run):
    runs = [read_run(regime, seed) for regime in ("none", "embeddings", "backbone") for seed in range(3)]
    paths = [run.path for run in runs]
    lines = body_of(latex.export_table(paths, width="both columns"))
    drift, scores, compared = toolkit.drift_table(runs), toolkit.summarise_scores(runs), toolkit.compare(runs)
    assert [line[0] for line in lines] == ["full fine-tuning", "embeddings frozen", "feature extraction"]
    is_headline = scores["is_headline"] & scores["is_reported_split"]
    of_words = drift[drift["parameter"] == "word_embeddings"].set_index("condition")
    for line in lines:
        (score,) = scores[is_headline & (scores["condition"] == line[0])].to_dict("records")
        assert line[1].startswith(f"{score['mean']:#.3g}")
        words = of_words.loc[line[0]]
        assert line[5].startswith(f"{words['drift_percent']:#.3g}" if words["drift_percent"] else "$0$")
    assert lines[0][2:5] == ["---"] * 3
    (record,) = compared.query("second == 'feature extraction' and is_headline and is_reported_split").to_dict(
        "records"
    )
    (chosen,) = body_of(latex.export_table(runs, columns=["condition", "difference", "interval"], decimals=1))[2:]
    assert chosen[1] == f"${0 - record['difference_points']:+.2f}$"
    shown_interval = chosen[2].removesuffix(r" \\").replace("$-$", "-")
    assert shown_interval == f"{0 - record['high_points']:+.2f} to {0 - record['low_points']:+.2f}"
    assert "drift" not in latex.export_table(runs, columns=["condition", "mean"])
    assert "-0.00" not in latex.export_table(runs, columns=["condition", "difference"])
    text = latex.export_table(runs[0])
    assert (len(body_of(text)), r"\caption{With the drift of each parameter in" in text) == (1, True)


def test_the_difference_of_a_line_is_this_condition_minus_the_first(make_run):
    shares = {"none": 0.9, "backbone": 0.6}
    runs = [make_run(regime, seed, right=share) for regime, share in shares.items() for seed in range(3)]
    (record,) = toolkit.compare(runs).query("is_headline and is_reported_split").to_dict("records")
    (_, line) = body_of(latex.export_table(runs, columns=["condition", "difference", "interval", "mean"]))
    assert 0 < record["low_points"] < record["difference_points"] < record["high_points"]
    assert line[1] == f"$-{record['difference_points']:.2f}$"
    assert line[2].replace("$-$", "-") == f"-{record['high_points']:.2f} to -{record['low_points']:.2f}"


def test_a_table_for_a_narrow_column_is_set_smaller_and_shrunk_before_anything_overlaps():
    table = pd.DataFrame({f"name {i}": ["a text of some length", "b"] for i in range(6)})
    assert "resizebox" not in latex.export_table(table)
    assert r"\resizebox{\linewidth}" in latex.export_table(table, width="column")
    check_refused(
        "unknown width 'narrow'; choose from: text, column, both columns", latex.export_table, table, width="narrow"
    )


def test_lines_that_columns_leave_alike_are_told_with_what_would_tell_them_apart():
    table = pd.DataFrame({"condition": ["a", "b"], "task": "t", "seed": 0, "percent": [1.0, 1.0]})
    for columns in ("percent", ["task", "percent"]):
        with pytest.warns(UserWarning, match="lines look alike that condition would tell apart: add it to columns"):
            latex.export_table(table, columns=columns)
    with pytest.warns(UserWarning, match="that seed would tell"):
        latex.export_table(pd.DataFrame({"seed": [0, 1], "percent": [1.0, 2.0]}), columns=["percent"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        latex.export_table(table, columns=["condition", "percent"])
        latex.export_table(table[:1], columns=["percent"])


def body_of(text):
    body = re.findall(r"midrule\n(.*?)\n\\bottomrule", re.sub(r"\\allowbreak\{\}|\\(?=_)", "", text), re.S)[0]
    return [line.split(" & ") for line in body.splitlines()]


@pytest.mark.usefixtures("undrawn")
def test_groups_of_one_model_and_task_stay_apart(make_run):
    """The second's conditions are there with their numbers, also in a report and where the lines were sorted."""
    regimes = ("none", "embeddings"), ("none", "position_embeddings", "embeddings", "backbone")
    runs = [
        make_run(regime, seed, facts={"model": {"weights_sha256": str(seed)}})
        for seed, of_group in enumerate(regimes)
        for regime in of_group
    ]
    table = toolkit.drift_table(runs)
    moved = table.query("parameter == 'word_embeddings' and not is_frozen")["drift_percent"].map("{:#.3g}".format)
    texts = {
        "table": latex.export_table(table),
        "report": (write_report(runs, "out").path.parent / "tables" / "drift_compact.tex").read_text(),
        "sorted": latex.export_table(table.sort_values("condition", kind="stable")),
        "two": latex.export_table(pd.concat([toolkit.drift_table(runs[:2]), toolkit.drift_table(runs[2:])])),
    }
    expected = [
        ["toy", "embeddings frozen", "$0$"],
        ["toy", "full fine-tuning", f"${moved.iloc[0]}$"],
        ["toy (2)", "embeddings frozen", "$0$"],
        ["toy (2)", "feature extraction", "$0$"],
        ["toy (2)", "full fine-tuning", f"${moved.iloc[1]}$"],
        ["toy (2)", "position_embeddings (frozen)", f"${moved.iloc[2]}$"],
    ]
    assert [name for name, text in texts.items() if sorted(line[:3] for line in body_of(text)) != expected] == []
    assert len(body_of(latex.export_table(table.sort_values("condition", kind="stable", ignore_index=True)))) == 6


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
        (latex.cell, "0.875 ± 3.1e-05", r"0.875 $\pm$ $3.1 \times 10^{-5}$"),
        (latex.cell, "-3.54 to +2.20", "$-$3.54 to +2.20"),
        (latex.cell, "all-MiniLM-L6-v2, 1-2", "all-MiniLM-L6-v2, 1-2"),
    ],
)
def test_what_can_be_printed_is_kept_and_numbers_are_mathematics(written, text, expected):
    assert written(text) == expected


def test_a_refused_claim_has_no_number_and_each_other_its_unit():
    cards = pd.DataFrame(
        {"question": ["a", "b"], "answer": ["yes", "not recorded"], "verdict": ["supported", "not recorded"]}
        | {"value": [1.5, 9.25], "unit": ["times its noise"] * 2, "low": [1.0, 9.0], "high": [2.0, 9.5]}
    )
    text = paper_tables({"verdicts": cards})["verdicts"]
    assert ("times its noise" in text, "9." in text, "points" in text) == (True, False, False)
