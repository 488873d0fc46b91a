"""Sizes in, pages and words out: what the tests of the page are about, hostile texts among them."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from toolkit.reporting.cells import Column
from toolkit.reporting.page import (
    Answer,
    Block,
    ChartBlock,
    FoldBlock,
    NoteBlock,
    Page,
    Section,
    TableBlock,
    TextBlock,
    Tile,
)

INJECTION = "<script>window.injected = true</script>"
HOSTILE = (INJECTION, "</script><img src=x onerror='window.injected=true'>", '"&\u2028\u2029', "\u202ertl", "\ud800")


def tables_of(blocks: Iterable[Block]) -> Iterator[TableBlock]:
    """Every table, also under folds."""
    for block in blocks:
        if isinstance(block, TableBlock):
            yield block
        elif isinstance(block, FoldBlock):
            yield from tables_of(block.blocks)


def make_words(num_words: int = 60, num_epochs: int = 3, run: str = "full fine-tuning, seed 0") -> pd.DataFrame:
    """Random words of one run at epochs 1 to ``num_epochs``: good, better, the injection, then word3, word4, ...

    The first has not moved, the second has most, and training never saw the last.
    """
    rng = np.random.default_rng([num_words, len(run)])
    steps = rng.integers(1, 5000, num_words)
    steps[-1:] = 0
    frames = []
    for epoch in range(1, num_epochs + 1):
        norm = epoch * rng.uniform(0.01, 0.05, num_words)
        norm[:1], norm[1:2] = 0, 0.5 * epoch
        frame = {"run": run, "epoch": float(epoch), "row": np.arange(num_words) + 100, "norm": norm}
        frames.append(pd.DataFrame(frame | {"num_steps": steps, "num_tokens": 2 * steps, "angle_degrees": 50 * norm}))
    names = ["good", "better", INJECTION, *(f"word{i}" for i in range(3, num_words))][:num_words]
    near = {name: [f"{name} of {token} 0.90" for token in names] for name in ("before", "after")}
    return pd.concat([frame.assign(token=names, **near) for frame in frames], ignore_index=True)


def make_words_section(num_words: int = 60) -> Section:
    """The words of two runs, as reports have them."""
    from toolkit.reporting.topics.words import words_chart

    words = pd.concat([make_words(num_words), make_words(num_words, run=f"LP-FT {INJECTION}")])
    last = words[words["epoch"] == 3].nlargest(3, "norm")[["token", "norm"]]
    blocks = (
        ChartBlock(name="words", chart=words_chart(words), caption=f"Words of {INJECTION}.", alt="A scatter of words."),
        TableBlock(table=last, caption="Words that moved most"),
    )
    return Section(id="words", title="Words", blocks=blocks)


def make_chart(title: str = INJECTION) -> Any:
    """Two points under a title, and a regime to pick."""
    import altair

    from toolkit.naming import visible
    from toolkit.reporting.charts import data_of

    table = pd.DataFrame({"x": [0, 1], "y": [0, 1], "regime": ["a < b & c", visible(title)]})
    return altair.Chart(data_of(table), title=visible(title)).mark_point().encode(x="x:Q", y="y:Q", color="regime:N")


def make_page(words: Section | None = None, text: str = "A text.", **fields: Any) -> Page:
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
        ChartBlock(name="drift", chart=make_chart(text), caption=text, alt=text),
        FoldBlock(title=text, blocks=(TextBlock(text=text),)),
    )
    tiles = (
        Tile(title=text, value="0.812", detail=text, lines=(("words moved", text),), colour="#0072B2"),
        Tile(title="embeddings frozen", value="0.809", lines=(("embeddings moved", "0 exactly"),)),
    )
    answers = (
        Answer(question="Does it matter?", verdict="undecided", text=f"+2.0 (95 %: -1.0 to +5.0). {text}"),
        Answer(text=text),
    )
    values: dict[str, Any] = {
        "title": text,
        "question": text,
        "lead": text,
        "tiles": tiles,
        "answers": answers,
        "picture": ChartBlock(name="first", chart=make_chart(text), caption=text, alt=text),
        "sections": (
            Section(id="scores", title="Scores", lead=text, blocks=blocks),
            *([words] if words else []),
            Section(id="drift", title="Drift"),
        ),
        "commands": text,
        "footer": text,
    }
    return Page(**(values | fields))
