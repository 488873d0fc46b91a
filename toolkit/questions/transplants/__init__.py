"""Which component's drift does the tuned model need?"""

from toolkit.questions import declare
from toolkit.schema import TEXT, Column

_GAME = "model task condition split direction coordinates"
_GAME_OF_SEED = "model task condition seed split direction coordinates"

COLUMNS = (
    Column("direction", "forward: into the tuned body; reverse: into the one from before.", TEXT),
    Column("coordinates", "fixed: without what no output shows; raw: as stored.", TEXT),
    Column("coalition", "The components that are tuned.", TEXT),
    Column("least", "The least draw of any seed."),
    Column("greatest", "The greatest draw of any seed."),
    Column("gauge_difference", "Largest change of a logit by the fixed gauge, which should change none."),
    Column("control_difference", "The same by a change that should."),
)
TABLES = {
    "measure_transplants.shapley": (
        f"{_GAME} component score value low high share unit num_seeds num_items reason note"
    ),
    "measure_transplants.singles": (
        f"{_GAME} component score change value low high least greatest unit num_seeds num_items reason note"
    ),
    "measure_transplants.coalitions": f"{_GAME_OF_SEED} coalition score value unit",
    "measure_transplants.checks": (f"{_GAME_OF_SEED} gauge_difference control_difference num_items note"),
}
QUESTION = declare(
    "transplants",
    readme=(("Which component's drift does the tuned model need?", "`transplant RUNS`\\*", "`measure_transplants`"),),
    public={"measure_transplants": "measure"},
    commands={"transplant": "TransplantCommand"},
    columns=COLUMNS,
    tables=TABLES,
)
