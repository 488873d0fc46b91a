"""Must I re-index the vectors that I have stored?"""

from toolkit.questions import declare
from toolkit.schema import COUNT, TEXT, Column

_NULL = "null null_low null_high null_sd"

COLUMNS = (
    Column("chance", "What the value is by chance, from a formula."),
    Column("num_texts", "Texts that were read.", COUNT),
    Column("num_neighbours", "Nearest texts that a search gives.", COUNT),
    Column("num_queries", "Queries that were searched for.", COUNT, "", "queries"),
    Column("pooling", "How a vector is made of a text: the pooling, or all modules, the length, the prompt.", TEXT),
    Column("keep_at", "Least recall at which the index is kept as it is."),
    Column("map_at", "Least recall at which a linear map of it is enough."),
    Column("advice", "keep the index, map the stored vectors, re-index, or cannot tell with so few queries.", TEXT),
)
TABLES = {
    "measure_reindexing.verdict": (
        "first second pooling num_neighbours num_texts num_queries keep_at map_at advice reason note"
    ),
    "measure_reindexing.recall": (
        f"measure num_neighbours value low high chance {_NULL} num_texts num_queries reason note"
    ),
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
