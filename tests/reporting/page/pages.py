"""Sizes in, pages and words out: what the tests of the page are about, hostile texts among them."""

from typing import Any

import numpy as np
import pandas as pd

from toolkit.reporting.page.model import (
    Column,
    FigureBlock,
    FoldBlock,
    NoteBlock,
    Page,
    Section,
    TableBlock,
    TextBlock,
    VerdictLine,
    WordMap,
    WordsData,
    WordsRun,
)

INJECTION = "<script>window.injected = true</script>"
HOSTILE = (INJECTION, "</script><img src=x onerror='window.injected=true'>", '"&\u2028\u2029', "\u202ertl", "\ud800")


def make_words(
    num_words: int = 60, num_epochs: int = 3, label: str = "full fine-tuning, seed 0", **fields: Any
) -> WordsRun:
    """Random words of one run, n of them, at epochs 0 to ``num_epochs``; word 0 has not moved, word 1 has most."""
    rng = np.random.default_rng(num_words)
    words = np.arange(num_words)
    norm = rng.uniform(0.01, 0.05, (num_epochs, num_words))
    norm[:, :1], norm[:, 1:2] = 0, 0.5
    near = rng.integers(0, num_words, (2, num_words, 5))
    start = rng.normal(size=(1, num_words, 2))
    moves = np.cumsum(rng.normal(0, 0.05, (num_epochs, num_words, 2)), axis=0)
    moves[:, :1] = 0
    coordinates = np.concatenate([start, start + moves])
    drawn = WordMap(title="of words", how="Axes.", coordinates=coordinates, word_shares=(0.2, 0.1), drift_share=0.05)
    values = {
        "label": label,
        "vocabulary": 0,
        "epochs": tuple(float(epoch) for epoch in range(num_epochs + 1)),
        "words": words,
        "rows": words + 100,
        "num_steps": rng.integers(1, 5000, num_words),
        "num_tokens": rng.integers(1, 90_000, num_words),
        "norm_before": np.ones(num_words),
        "norm": norm,
        "angle_degrees": 50 * norm,
        "before": near[0],
        "before_similarity": np.sort(rng.random((num_words, 5)))[:, ::-1],
        "after": near[1],
        "after_similarity": np.sort(rng.random((num_words, 5)))[:, ::-1],
        "maps": (drawn, WordMap(**{**vars(drawn), "title": "of the drift", "coordinates": coordinates[..., ::-1]})),
    }
    return WordsRun(**(values | fields))


def texts(num_words: int) -> tuple[str, ...]:
    """Word texts: good, better, the injection, then word3, word4, ..."""
    return ("good", "better", INJECTION, *(f"word{i}" for i in range(3, num_words)))


def make_svg() -> bytes:
    """A figure as the toolkit's figures are drawn."""
    from toolkit.reporting.images import image_of, styled

    with styled():
        import matplotlib.figure

        figure = matplotlib.figure.Figure(figsize=(7.2, 2))
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], "o-", label="a < b & c")
        axes.set_title(INJECTION)
        axes.legend()
        return image_of(figure, "svg")


def make_page(words: WordsData | None = None, text: str = "A text.", **fields: Any) -> Page:
    """A page with one of everything; ``text`` stands wherever a text can."""
    names = pd.Series(["b", text, "c"], dtype=object)  # as text columns hold what comes from files
    table = pd.DataFrame({"task": names, "score": [0.5, 0.25, float("nan")], "n": [1000, 20, 3]})
    columns = {
        "task": Column(label=text),
        "score": Column(label="score", how=f"How: {text}", unit="points"),
        "n": Column(label="items"),
    }
    blocks = (
        TextBlock(text=f"One.\n\n{text}"),
        NoteBlock(text=text, is_warning=True),
        TableBlock(table=table, caption=text, columns=columns, num_shown=2),
        FigureBlock(name="drift", svg=make_svg(), caption=text, alt=text),
        FoldBlock(title=text, blocks=(TextBlock(text=text),)),
    )
    lines = [
        VerdictLine(
            claim=text,
            verdict="supported",
            value="+2.0 points",
            interval="[+1.0, +3.0]",
            detail=text,
            group="a",
            estimate=2,
            low=1,
            high=3,
            margin=1,
            unit="points",
        ),
        VerdictLine(claim="Costs nothing", verdict="equivalent", value=text, group="a"),
        VerdictLine(claim="Drift predicts gain", verdict=text, value="0.1", group="b"),
    ]
    values: dict[str, Any] = {
        "title": text,
        "question": text,
        "lead": text,
        "findings": (text, "Another."),
        "verdicts": tuple(lines),
        "sections": (
            Section(id="scores", title="Scores", lead=text, blocks=blocks),
            Section(id="drift", title="Drift"),
        ),
        "words": words,
        "commands": text,
        "footer": text,
    }
    return Page(**(values | fields))


def make_data(num_words: int = 60) -> WordsData:
    """Two runs on one vocabulary."""
    runs = make_words(num_words), make_words(num_words, label=f"LP-FT {INJECTION}")
    return WordsData(vocabularies=(texts(num_words),), runs=runs, left_out=(f"{INJECTION}: too large",))
