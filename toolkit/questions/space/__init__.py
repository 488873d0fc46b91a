"""Is it the same space? Similarity, geometry, the update, agreement of seeds, and what the output shows of it."""

from toolkit.questions import declare
from toolkit.schema import COUNT, TEXT, Column

_NULL = "null null_low null_high null_sd"

COLUMNS = (
    Column("chance", "What the value is by chance, from a formula."),
    Column("num_columns", "Numbers in a row.", COUNT),
    Column("variant", "raw: rows as they are; centred: about their mean.", TEXT),
    Column("null_kind", "How the null was drawn.", TEXT),
    Column("value_of_null_rows", "The value over as many rows as the null has: what to hold against it."),
    Column("k", "How many directions count; NA where all do.", COUNT),
    Column("num_unmoved", "Rows of them that did not move.", COUNT),
    Column("sample", "How these were chosen.", TEXT),
)
TABLES = {
    "functional_drift": "epoch step component measure value sample reason note",
    "measure_geometry": ("epoch parameter stratum measure variant value null null_sd num_rows num_undefined reason"),
    "measure_updates": (
        "epoch parameter stratum measure k value null null_low null_high chance num_rows num_unmoved reason"
    ),
    "measure_agreement": (f"first second epoch parameter stratum measure value {_NULL} num_rows num_undefined reason"),
    "measure_similarity": (
        f"epoch parameter stratum measure value value_of_null_rows {_NULL} null_kind num_rows num_columns reason"
    ),
    "compare_rows": f"measure value value_of_null_rows {_NULL} null_kind num_rows num_columns reason",
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
        "measure_agreement": "agreement",
        "measure_updates": "updates",
    },
    drift=("page",),
    columns=COLUMNS,
    tables=TABLES,
)
