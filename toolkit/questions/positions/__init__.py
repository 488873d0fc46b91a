"""Do learned positions resemble sine and cosine?"""

from toolkit.questions import declare
from toolkit.schema import COUNT, TEXT, Column

COLUMNS = (
    Column("window", "Positions, the first and the last, counted from 0.", TEXT),
    Column("sinusoid", "Of the sinusoidal table."),
    Column("gaussian", "Of independent Gaussian rows."),
    Column("smooth", "Of smooth random curves."),
    Column("shuffled", "Of the table's own rows in a random order."),
    Column("wave", "Place in the list, from 1: the strongest first.", COUNT),
    Column("period", "Rows in which the wave goes round once."),
    Column("roundness", "Smaller over larger variance in the wave's plane: 1 is a circle."),
    Column("spread", "Over how many columns of the table the wave is spread."),
    Column("lag", "Distance of two rows.", COUNT),
)
TABLES = {
    "measure_positions": ("epoch window measure value sinusoid gaussian smooth shuffled unit num_rows reason note"),
    "find_waves": "wave period share roundness spread",
    "cosine_by_lag": "lag value low high",
}
QUESTION = declare(
    "positions",
    readme=(
        (
            "Do learned positions resemble sine and cosine?",
            "`positions minilm`, `positions AFTER --before BEFORE`",
            "`measure_positions`",
        ),
    ),
    public={"measure_positions": "measure"},
    commands={"positions": "PositionsCommand"},
    columns=COLUMNS,
    tables=TABLES,
)
