"""Is it the same space? Similarity, geometry, the update itself, and what the output shows of it."""

from toolkit.questions import declare
from toolkit.schema import COUNT, TEXT, Column

_NULL = "null null_low null_high null_sd"

COLUMNS = (
    Column("num_used", "Rows of them that were used.", COUNT),
    Column("num_columns", "Numbers in a row.", COUNT),
    Column("reference_epoch", "The epoch that the change is counted from."),
    Column("variant", "raw: rows as they are; centred: about their mean.", TEXT),
    Column("side", "Which of two versions an asymmetric measure starts from.", TEXT),
    Column("k", "How many directions count; NA where all do.", COUNT),
    Column("null_kind", "How the null was drawn.", TEXT),
    Column("num_null", "Draws of the null that gave a value.", COUNT),
    Column("num_null_rows", "Rows of each draw.", COUNT),
    Column("value_of_null_rows", "The value over as many rows as the null has: what to hold against it."),
    Column("num_unmoved", "Rows of them that did not move.", COUNT),
    Column("common_scale", "Scale of all tables over the reference's, which no output shows."),
    Column("num_combinations", "Distinct combinations of rows that were computed.", COUNT),
    Column("sample", "How these were chosen.", TEXT),
    Column("eps", "Of the embedding LayerNorm."),
)
TABLES = {
    "functional_drift": "epoch step component measure value common_scale num_combinations sample eps reason note",
    "measure_geometry": ("epoch parameter stratum measure variant value null null_sd num_rows num_undefined reason"),
    "measure_updates": (
        "epoch parameter stratum measure k value null null_low null_high chance num_rows num_unmoved reason"
    ),
    "measure_agreement": (f"first second epoch parameter stratum measure value {_NULL} num_rows num_undefined reason"),
    "measure_similarity": (
        f"epoch reference_epoch parameter stratum measure side value low high value_of_null_rows {_NULL} null_kind "
        "num_null num_null_rows num_rows num_used num_columns reason"
    ),
    "compare_rows": (
        f"measure side value low high value_of_null_rows {_NULL} null_kind num_null num_null_rows num_rows "
        "num_used num_columns reason"
    ),
}
QUESTION = declare(
    "space",
    readme=(("Is it the same space?", "`drift`", "`measure_similarity`, `measure_geometry`, `measure_gauge`"),),
    public={
        "functional_drift": "functional",
        "GEOMETRY": "geometry",
        "measure_geometry": "geometry",
        "measure_similarity": "similarity",
        "SIMILARITIES": "similarity_table",
        "measure_agreement": "updates",
        "measure_updates": "updates",
    },
    drift=("page",),
    columns=COLUMNS,
    tables=TABLES,
)
