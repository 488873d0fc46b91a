"""The numbers of a report in, its section on real against shuffled labels out."""

from toolkit.analysis.comparison.shuffled_labels import MEASURES
from toolkit.reporting.blocks import folds, rows_block
from toolkit.reporting.cells import interval
from toolkit.reporting.comparison.data import ReportData
from toolkit.reporting.markdown import number
from toolkit.reporting.page.model import Section

HOWS = {
    "real": "Mean over seeds of the measure under real labels; of ratios the geometric mean.",
    "shuffled": "The same of the runs that learned shuffled labels, at the same settings.",
    "real labels add": "The difference, or of ratios how much further in per cent, with its interval over seeds.",
    "smallest detectable": "What these seeds would show with 80 % power.",
} | {name: measure.how for name, measure in MEASURES.items()}


def labels_section(data: ReportData) -> Section | None:
    """What real labels add to drift; no section where no labels were shuffled."""
    if data.labels.empty:
        return None
    header = ["condition", "control", "parameter", "measure", "real", "shuffled", "real labels add", "interval"]
    header += ["smallest detectable", "q", "verdict", "why"]
    titles = list(dict.fromkeys(data.labels["group"]))
    bodies = []
    for title in titles:
        rows: list[list[object]] = []
        for line in data.labels[data.labels["group"] == title].to_dict("records"):
            unit = str(line["unit"])
            row: list[object] = [line["arm"], line["control"], line["parameter"], line["measure"].replace("_", " ")]
            row += [number(line["real"]), number(line["shuffled"]), f"{number(line['value'])} {unit}"]
            row += [interval(line["low"], line["high"]), f"{number(line['detectable_gap'])} {unit}", number(line["q"])]
            rows.append([*row, line["verdict"], line["reason"]])
        bodies.append([rows_block(header, rows, f"Drift under real and under shuffled labels on {title}", HOWS)])
    lead = (
        "Runs on shuffled labels can only memorise. What they share with runs on real labels, a multiple of sign noise "
        "above 1 for one, is no sign of learning; what real labels add is. Seeds agree where they have the same "
        "targets, so that agreement is held against one permutation for all seeds."
    )
    return Section(id="shuffled-labels", title="Real against shuffled labels", lead=lead, blocks=folds(titles, bodies))
