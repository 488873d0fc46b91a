"""The question's tables, reports and slow functions, for the tests of the core."""

from dataclasses import replace

import pandas as pd

from tests.questions.examples import GONE, Inputs, experiment
from toolkit.comparison.conditions import arrange
from toolkit.pipeline import finetune
from toolkit.questions.layers.command import LayersCommand
from toolkit.questions.layers.forgetting import measure_forgetting
from toolkit.questions.layers.states import measure_layer_drift, measure_layers
from toolkit.questions.layers.trend import weight_tables, weights_of_conditions
from toolkit.questions.layers.weights import measure_weight_drift

REPORTS = {
    "layers": lambda out: LayersCommand(places=(GONE,), out=out).run(),
    "layer_drift.py": experiment("layer_drift", "--out", "OUT", "--runs", "nowhere"),
}
SLOW = ("measure_layer_drift",)
COMMANDS = {
    "layers of runs": ["layers", "{run}", "{other}", "--max-texts", "8"],
    "layers on texts": ["layers", "{run}", "--texts", "mine={texts}"],
    "layers of checkpoints": ["layers", "{model}", "{tuned}"],
}
OF_A_DECODER = ("layers RUN", "layers MODEL RUN/model")


def tables(inputs: Inputs) -> dict[str, pd.DataFrame]:
    layers = measure_layers(inputs.runs)
    weights = weight_tables(weights_of_conditions(arrange([*inputs.runs, *inputs.shuffled])))
    headed = finetune(replace(inputs.config, model=str(inputs.masked_lm("bert")), max_steps=2))
    return {
        "measure_weight_drift": measure_weight_drift(inputs.runs[0]),
        "measure_weight_drift.layer": measure_weight_drift(inputs.runs[0], by="layer"),
        "measure_layer_drift": measure_layer_drift(inputs.runs),
        "measure_layers.means": layers["means"],
        "measure_layers.contrasts": layers["contrasts"],
        "average_weights": weights["weight_means"],
        "find_trends": weights["weight_trends"],
        "measure_forgetting": measure_forgetting([headed], max_texts=4),
    }
