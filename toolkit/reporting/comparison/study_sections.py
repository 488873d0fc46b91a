"""The numbers of a report in, its sections on the study out: scores, comparison, what they cost, and the tuning."""

import pandas as pd

from toolkit.comparison.report_data import ReportData, order_of
from toolkit.comparison.shuffled_labels import MEASURES
from toolkit.reporting.cells import interval, number
from toolkit.reporting.charts import Charts, draw
from toolkit.reporting.comparison.caveats import caveats as caveats
from toolkit.reporting.comparison.caveats import edge_warning, unstable
from toolkit.reporting.comparison.comparison_section import DIFFERENCE as DIFFERENCE
from toolkit.reporting.comparison.comparison_section import TESTS as TESTS
from toolkit.reporting.comparison.comparison_section import comparison_section
from toolkit.reporting.comparison.comparison_section import shown_comparison as shown_comparison
from toolkit.reporting.comparison.score_sections import SUMMARY as SUMMARY
from toolkit.reporting.comparison.score_sections import scores_section
from toolkit.reporting.comparison.worth_sections import cost_section, drift_and_score_section, efficiency_section
from toolkit.reporting.page import NoteBlock, Section, folds, rows_block, table_block
from toolkit.reporting.topics.differences import plot_differences
from toolkit.reporting.topics.drift_and_score import plot_drift_and_score
from toolkit.reporting.topics.scores import plot_cost, plot_data_efficiency, plot_scores

LABEL_HOWS = {
    "real": "Mean over seeds of the measure under real labels; of ratios the geometric mean.",
    "shuffled": "The same of the runs that learned shuffled labels, at the same settings.",
    "real labels add": "The difference, or of ratios how much further in per cent, with its interval over seeds.",
    "smallest detectable": "What these seeds would show with 80 % power.",
} | {name: measure.how for name, measure in MEASURES.items()}


def study_charts(data: ReportData) -> Charts:
    """The charts of all groups together, those that there is something to draw of."""
    regimes = order_of(data.details)
    margin = float(pd.to_numeric(data.comparison["margin_points"]).max())
    return draw(
        {
            "differences": lambda: plot_differences(data.comparison),
            "scores_by_arm": lambda: plot_scores(data.scores, regimes=regimes),
            "data_efficiency": lambda: plot_data_efficiency(data.scores, regimes=regimes),
            "cost_against_score": lambda: plot_cost(data.scores, regimes=regimes),
            # One task is one point, and no relation.
            "drift_against_gain": lambda: (
                plot_drift_and_score(data.joined, margin_points=margin) if len(data.groups) > 1 else None
            ),
        }
    )


def study_sections(data: ReportData) -> list[Section]:
    """Scores, comparison, cost, data efficiency, drift and score, tuning: those that there is something to say of."""
    charts = study_charts(data)
    sections = [scores_section(data, charts), comparison_section(data, charts), cost_section(data, charts)]
    sections += [efficiency_section(data, charts), labels_section(data), drift_and_score_section(data, charts)]
    sections += [tuning_section(data)]
    return [section for section in sections if section is not None]


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
        bodies.append([rows_block(header, rows, f"Drift under real and under shuffled labels on {title}", LABEL_HOWS)])
    lead = (
        "Runs on shuffled labels can only memorise. What they share with runs on real labels, a multiple of sign noise "
        "above 1 for one, is no sign of learning; what real labels add is. Seeds agree where they have the same "
        "targets, so that agreement is held against one permutation for all seeds."
    )
    return Section(id="shuffled-labels", title="Real against shuffled labels", lead=lead, blocks=folds(titles, bodies))


def tuning_section(data: ReportData) -> Section | None:
    """What was tried for each arm, on which split it was chosen, and what was chosen."""
    if data.tuning is None:
        return None
    table = data.tuning
    if table.empty:
        return Section(
            id="tuning", title="Tuning", lead="Nothing was tuned: every condition was run with the settings given."
        )
    warned = tuple(NoteBlock(text=text, is_warning=True) for text in (unstable(data), edge_warning(data)) if text)
    counts = table.groupby([c for c in ("task", "arm") if c in table], sort=False).size()
    budget = f"{int(counts.min())}" if counts.min() == counts.max() else f"{int(counts.min())} to {int(counts.max())}"
    lead = (
        f"Every condition had the same budget ({budget} settings per task), chosen by the score on the split "
        "selection, which was held out of the training data. No setting was chosen on the reported split."
    )
    tasks = [str(task) for task in dict.fromkeys(table["task"])] if "task" in table else []
    bodies = [
        [table_block(table[table["task"] == task], list(table.columns), f"Settings tried on {task}")] for task in tasks
    ]
    blocks = folds(tasks, bodies) if tasks else (table_block(table, list(table.columns), "Settings tried"),)
    return Section(id="tuning", title="Tuning", lead=lead, blocks=(*warned, *blocks))
