"""Must I re-index the vectors that I have stored?"""

from toolkit.questions import declare
from toolkit.schema import COUNT, TEXT, Column

_NULL = "null null_low null_high null_sd"

COLUMNS = (
    Column("num_texts", "Texts that were read.", COUNT),
    Column("num_fit_texts", "Texts that the probe, or the map, was fitted on.", COUNT),
    Column("num_neighbours", "Nearest texts that a search gives.", COUNT),
    Column("num_queries", "Queries that were searched for.", COUNT, "", "queries"),
    Column("pooling", "How a vector is made of a text: the pooling, or all modules, the length, the prompt.", TEXT),
    Column("keep_at", "Least recall at which the index is kept as it is."),
    Column("map_at", "Least recall at which a linear map of it is enough."),
    Column("advice", "keep the index, map the stored vectors, re-index, or cannot tell with so few queries.", TEXT),
    Column("word", "A word of the texts, its letters folded to lower case.", TEXT),
    Column("num_texts_with", "Texts that hold the word.", COUNT, "", "texts with it"),
    Column("loss_with", "Share of their neighbours that texts with the word lost, on average.", label="lost with it"),
    Column("loss_without", "The same of the other texts.", label="lost without"),
    Column("adjusted_p", "Share of the permutations of texts in which any word is as far from 0 as this one."),
)
TABLES = {
    "measure_reindexing.verdict": (
        "first second pooling num_neighbours num_texts num_queries keep_at map_at advice reason note"
    ),
    "measure_reindexing.recall": (
        f"measure num_neighbours value low high chance {_NULL} num_texts num_queries num_fit_texts reason note"
    ),
    "measure_reindexing.words": "rank word num_texts_with value loss_with loss_without adjusted_p",
}
QUESTION = declare(
    "reindexing",
    readme=(
        (
            "Must I re-index the vectors that I have stored?",
            "`reindex BEFORE AFTER --texts FILE`",
            "`measure_reindexing`",
        ),
    ),
    public={"measure_reindexing": "measure"},
    commands={"reindex": "ReindexCommand"},
    columns=COLUMNS,
    tables=TABLES,
)
