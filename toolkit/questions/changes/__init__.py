"""What kind of change lies between two snapshots, and which rows did training expose?"""

from toolkit.questions import declare
from toolkit.schema import COUNT, TEXT, Column

COLUMNS = (
    Column("kind", "The first kind of change that holds.", TEXT),
    Column("detail", "One or two clauses on it.", TEXT),
    Column("num_moved", "Rows of which a bit differs.", COUNT),
    Column("num_decayed", "Rows that weight decay alone moved.", COUNT),
    Column("sum_lr_decay", "-ln of the factor that decay left of them."),
    Column("num_directions", "Rank of the change, where it is low.", COUNT),
    Column("exposure", "exposed, unexposed or cannot tell: by the weights before and after, without a log.", TEXT),
    Column(
        "shared_by",
        "Models that hold the row alike up to weight decay, which did not train it; groups are parted by a semicolon.",
        TEXT,
    ),
    Column("misfit", "‖Eᵗ - s·E⁰‖ / ‖E⁰‖ of the row, with the best factor s for it."),
    Column("num_unexposed_rows", "Rows that no text showed.", COUNT),
    Column("num_untold_rows", "Rows of which neither can be told.", COUNT),
    Column("misfit_unexposed", "Greatest misfit of the rows that are not called exposed."),
    Column("misfit_exposed", "Least misfit of the rows that are; below 1.2 times the other few tables are told."),
    Column("sum_lr_decay_low", "The least that any significand says of it."),
    Column("sum_lr_decay_high", "The most that any significand says of it."),
)
TABLES = {
    "measure_changes": (
        "parameter kind value unit detail relative_drift num_rows num_moved num_decayed sum_lr_decay num_directions "
        "note"
    ),
    "infer_exposure.tables": (
        "parameter num_rows num_exposed_rows num_unexposed_rows num_untold_rows misfit_unexposed misfit_exposed "
        "sum_lr_decay sum_lr_decay_low sum_lr_decay_high reason note"
    ),
    "find_ancestral_rows": "parameter row token shared_by reason",
    "infer_exposure.rows": "parameter row token exposure misfit norm relative",
}
QUESTION = declare(
    "changes",
    readme=(
        ("What changed between two checkpoints?", "`drift BEFORE AFTER`", "`import_checkpoints`, `measure_changes`"),
        (
            "Which words was a published model tuned on?",
            "`drift BEFORE AFTER`",
            "`infer_exposure`, `find_ancestral_rows`",
        ),
    ),
    public={
        "measure_changes": "measure",
        "find_ancestral_rows": "inferred_exposure",
        "infer_exposure": "inferred_exposure",
    },
    drift=("page", "inferred_exposure_page"),
    columns=COLUMNS,
    tables=TABLES,
)
