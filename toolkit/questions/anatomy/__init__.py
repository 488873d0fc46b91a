"""What does the embedding layer do with my sentence?"""

from toolkit.questions import declare
from toolkit.schema import COUNT, FLAG, TEXT, Column

COLUMNS = (
    Column("num_used", "Rows of them that were used.", COUNT),
    Column("num_columns", "Numbers in a row.", COUNT),
    Column("num_values", "Numbers in all.", COUNT),
    Column("part", "What a parameter is within its layer, or a row within a token's sum.", TEXT),
    Column("name", "Name of the parameter in the model; empty for several.", TEXT),
    Column("number", "Its place among all parameters, from 1; of several, how many they are.", COUNT),
    Column("index", "Place of the token in the text, from 0.", COUNT),
    Column("computed", "What was computed by hand.", TEXT),
    Column("left_out", "What was left out of it.", TEXT),
    Column("computed_in", "Precision of the module.", TEXT),
    Column("largest_difference", "Largest absolute difference of one number."),
    Column("rounding", "How far rounding lets them differ."),
    Column("is_equal", "Whether they differ by rounding only.", FLAG),
    Column("num_with_gradient", "Rows that got a gradient.", COUNT),
    Column("gradient_norm", "Euclidean norm of the gradient; NaN where it is frozen."),
    Column("other", "What the token is compared with.", TEXT),
    Column("relative_difference", "‖a - b‖ / ‖b‖ in float64."),
    Column("without", "What was taken away; empty for the model as it is.", TEXT),
)
TABLES = {
    "take_apart.parameters": "parameter name number num_rows num_columns num_values share requires_grad reason",
    "take_apart.tokens": "index token part row length share",
    "take_apart.layer_sum": "computed left_out computed_in largest_difference rounding is_equal",
    "take_apart.one_hot": "parameter num_tokens num_rows num_columns largest_difference",
    "take_apart.gradients.parameters": (
        "parameter requires_grad num_rows num_used num_with_gradient gradient_norm reason"
    ),
    "take_apart.gradients.rows": "parameter row token num_tokens gradient_norm reason",
    "take_apart.special_tokens.table": "token other stage relative_difference is_equal",
    "take_apart.segments.changes": "change stage relative_difference largest_difference is_equal",
    "take_apart.permutation.table": "without relative_difference largest_difference is_equal",
}
QUESTION = declare(
    "anatomy",
    readme=(("What does the embedding layer do with my sentence?", '`anatomy minilm --text "..."`', "`take_apart`"),),
    public={"take_apart": "measure"},
    commands={"anatomy": "AnatomyCommand"},
    columns=COLUMNS,
    tables=TABLES,
)
