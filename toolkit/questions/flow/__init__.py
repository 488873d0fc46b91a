"""Where does position go, layer by layer?"""

from toolkit.questions import declare
from toolkit.schema import COUNT, TEXT, VALUES, Column

_MODEL_OF_FLOW = "run group condition seed"

COLUMNS = (
    Column("num_texts", "Texts that were read.", COUNT),
    Column("reference", "What the value is to be read against, in the same unit."),
    Column("factor", "position, content, segment, or the residual: all interactions.", TEXT),
    Column("omega_squared", "ω²: share of the variance that is the factor's; 0 is chance."),
    Column("eta_squared", "η²: share of the variance, chance not taken out."),
    Column("eta_chance", "η² of unrelated states."),
    Column("shuffled_omega", "ω² of the same states dealt at random."),
    Column("unit_values", "One value per block or text, of which the interval is made.", VALUES),
    Column("bits", "Bits of a token's position that a linear probe reads."),
    Column("control_bits", "Bits that it reads of a random label for every word."),
    Column("selective_bits", "bits - control_bits, with the interval: a lower bound of what goes beyond words."),
    Column("shuffled_bits", "Bits read of labels dealt at random: 0, or a little below."),
    Column("entropy_bits", "Entropy of the position."),
    Column("control_draws", "control_bits of each draw of the control.", VALUES),
    Column("bit_values", "bits, one value per text.", VALUES),
    Column("selective_values", "selective_bits, one value per text.", VALUES),
    Column("counterfactual", "What was done to the position rows.", TEXT),
    Column("body", "First digits of a hash of the body: equal for models that compute the same.", TEXT),
)
TABLES = {
    "measure_flow.ledger": (
        f"{_MODEL_OF_FLOW} layer stage factor omega_squared low high eta_squared eta_chance shuffled_omega unit_values "
        "reason"
    ),
    "measure_flow.decoding": (
        f"{_MODEL_OF_FLOW} layer stage bits control_bits selective_bits low high shuffled_bits "
        "entropy_bits control_draws bit_values selective_values note"
    ),
    "measure_flow.counterfactuals": (
        f"{_MODEL_OF_FLOW} counterfactual layer stage measure value low high reference unit num_texts unit_values "
        "reason"
    ),
    "measure_flow.models": f"{_MODEL_OF_FLOW} split body note",
}
QUESTION = declare(
    "flow",
    readme=(("Where does position go, layer by layer?", "`flow minilm RUNS`\\*", "`measure_flow`"),),
    public={"measure_flow": "measure"},
    commands={"flow": "FlowCommand"},
    columns=COLUMNS,
    tables=TABLES,
)
