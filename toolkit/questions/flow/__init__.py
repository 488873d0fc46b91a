"""Where does position go, layer by layer?"""

from toolkit.questions import declare
from toolkit.schema import COUNT, FLAG, TEXT, VALUES, Column

_MODEL_OF_FLOW = "run group condition seed"

COLUMNS = (
    Column("num_texts", "Texts that were read.", COUNT),
    Column("num_fit_texts", "Texts that the probe, or the map, was fitted on.", COUNT),
    Column("reference", "What the value is to be read against, in the same unit."),
    Column("family", "Architecture of the model.", TEXT),
    Column("factor", "position, content, segment, or the residual: all interactions.", TEXT),
    Column("omega_squared", "ω²: share of the variance that is the factor's; 0 is chance."),
    Column("omega_standardised", "ω² with every dimension at unit variance."),
    Column("eta_squared", "η²: share of the variance, chance not taken out."),
    Column("by_block_eta", "η² of the factor's interaction with the blocks: what it does to single texts."),
    Column("eta_chance", "η² of unrelated states."),
    Column("shuffled_omega", "ω² of the same states dealt at random."),
    Column("shuffled_eta", "η² of the same states dealt at random."),
    Column("sum_of_squares", "Sum of squares, over all dimensions."),
    Column("unit_values", "One value per block or text, of which the interval is made.", VALUES),
    Column("bits", "Bits of a token's position that a linear probe reads."),
    Column("control_bits", "Bits that it reads of a random label for every word."),
    Column("selective_bits", "bits - control_bits, with the interval: a lower bound of what goes beyond words."),
    Column("word_bits", "Bits that the word alone tells."),
    Column("beyond_word_bits", "bits - word_bits."),
    Column("shuffled_bits", "Bits read of labels dealt at random: 0, or a little below."),
    Column("entropy_bits", "Entropy of the position."),
    Column("control_entropy_bits", "Entropy of the control's label."),
    Column("num_bins", "Bins of positions.", COUNT),
    Column("bins", "Their first positions.", TEXT),
    Column("num_held_out_texts", "Texts that it was scored on.", COUNT),
    Column("num_fit_tokens", "Tokens of the first.", COUNT),
    Column("num_held_out_tokens", "Tokens of the second.", COUNT),
    Column("inverse_penalty", "The probe's C."),
    Column("control_draws", "control_bits of each draw of the control.", VALUES),
    Column("bit_values", "bits, one value per text.", VALUES),
    Column("selective_values", "selective_bits, one value per text.", VALUES),
    Column("beyond_word_values", "beyond_word_bits, one value per text.", VALUES),
    Column("counterfactual", "What was done to the position rows.", TEXT),
    Column("num_positions", "Positions of the crossed design.", COUNT),
    Column("num_contents", "Tokens that stand at each of them.", COUNT),
    Column("num_segments", "Ways in which segments are given to them.", COUNT),
    Column("num_sequences", "Sequences that this takes.", COUNT),
    Column("has_head", "Whether the model has a head that was trained on the task.", FLAG),
    Column("body", "First digits of a hash of the body: equal for models that compute the same.", TEXT),
)
TABLES = {
    "measure_flow.ledger": (
        f"{_MODEL_OF_FLOW} layer stage factor omega_squared low high omega_standardised eta_squared by_block_eta "
        "eta_chance shuffled_omega shuffled_eta df sum_of_squares unit_values reason"
    ),
    "measure_flow.decoding": (
        f"{_MODEL_OF_FLOW} layer stage bits control_bits selective_bits low high word_bits beyond_word_bits "
        "shuffled_bits entropy_bits control_entropy_bits num_bins bins num_fit_texts num_held_out_texts "
        "num_fit_tokens num_held_out_tokens inverse_penalty control_draws bit_values selective_values "
        "beyond_word_values note"
    ),
    "measure_flow.counterfactuals": (
        f"{_MODEL_OF_FLOW} counterfactual layer stage measure value low high reference unit num_texts unit_values "
        "reason"
    ),
    "measure_flow.models": (
        f"{_MODEL_OF_FLOW} split family num_positions num_contents num_segments num_sequences has_head body note"
    ),
}
QUESTION = declare(
    "flow",
    readme=(("Where does position go, layer by layer?", "`flow minilm RUNS`\\*", "`measure_flow`"),),
    public={"measure_flow": "measure"},
    commands={"flow": "FlowCommand"},
    columns=COLUMNS,
    tables=TABLES,
)
