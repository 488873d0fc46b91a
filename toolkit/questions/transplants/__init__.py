"""Which component's drift does the tuned model need?"""

from toolkit.questions import declare
from toolkit.schema import COUNT, NUMBER, TEXT, Column

_GAME = "model task condition split direction coordinates"
_GAME_OF_SEED = "model task condition seed split direction coordinates"

COLUMNS = (
    Column("direction", "forward: into the tuned body; reverse: into the one from before.", TEXT),
    Column("coordinates", "fixed: without what no output shows; raw: as stored.", TEXT),
    Column("coalition", "The components that are tuned.", TEXT),
    Column("num_tuned", "How many those are.", COUNT),
    Column("least", "The least draw of any seed."),
    Column("greatest", "The greatest draw of any seed."),
    Column("rms_change", "Root mean square of the component's change.", NUMBER, "weight units"),
    Column("gauge_difference", "Largest change of a logit by the fixed gauge, which should change none."),
    Column("control_difference", "The same by a change that should."),
    Column("num_draws", "Random changes of each kind.", COUNT),
    Column("num_passes", "Passes over the items.", COUNT),
)
TABLES = {
    "measure_transplants.shapley": (
        f"{_GAME} component score value low high share unit num_seeds num_items reason note"
    ),
    "measure_transplants.interactions": (
        f"{_GAME} first second score value low high unit num_seeds num_items reason note"
    ),
    "measure_transplants.singles": (
        f"{_GAME} component score change value low high least greatest rms_change unit num_seeds num_items reason note"
    ),
    "measure_transplants.coalitions": f"{_GAME_OF_SEED} coalition num_tuned score value unit",
    "measure_transplants.checks": (
        f"{_GAME_OF_SEED} gauge_difference control_difference num_draws num_passes num_items note"
    ),
}
QUESTION = declare(
    "transplants",
    readme=(("Which component's drift does the tuned model need?", "`transplant RUNS`\\*", "`measure_transplants`"),),
    public={"measure_transplants": "measure"},
    commands={"transplant": "TransplantCommand"},
    columns=COLUMNS,
    tables=TABLES,
)
