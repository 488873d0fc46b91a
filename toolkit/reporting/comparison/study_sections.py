"""The numbers of a report in, its sections on the study out: scores, comparison, what they cost, and the tuning."""

from toolkit.reporting.blocks import folds, table_block
from toolkit.reporting.comparison.caveats import caveats as caveats
from toolkit.reporting.comparison.caveats import edge_warning, unstable
from toolkit.reporting.comparison.comparison_section import DIFFERENCE as DIFFERENCE
from toolkit.reporting.comparison.comparison_section import TESTS as TESTS
from toolkit.reporting.comparison.comparison_section import comparison_section
from toolkit.reporting.comparison.comparison_section import shown_comparison as shown_comparison
from toolkit.reporting.comparison.data import ReportData
from toolkit.reporting.comparison.label_sections import labels_section
from toolkit.reporting.comparison.score_sections import SUMMARY as SUMMARY
from toolkit.reporting.comparison.score_sections import scores_section
from toolkit.reporting.comparison.worth_sections import cost_section, drift_and_score_section, efficiency_section
from toolkit.reporting.images import Images
from toolkit.reporting.page.model import NoteBlock, Section


def study_sections(data: ReportData, images: Images) -> list[Section]:
    """Scores, comparison, cost, data efficiency, drift and score, tuning: those that there is something to say of."""
    sections = [scores_section(data, images), comparison_section(data, images), cost_section(data, images)]
    sections += [efficiency_section(data, images), labels_section(data), drift_and_score_section(data, images)]
    sections += [tuning_section(data)]
    return [section for section in sections if section is not None]


def tuning_section(data: ReportData) -> Section | None:
    """What was tried for each arm, on which split it was chosen, and what was chosen."""
    if data.tuning is None:
        return None
    table = data.tuning
    if table.empty:
        return Section(
            id="tuning", title="Tuning", lead="Nothing was tuned: every arm was run with the settings given."
        )
    warned = tuple(NoteBlock(text=text, is_warning=True) for text in (unstable(data), edge_warning(data)) if text)
    counts = table.groupby([c for c in ("task", "arm") if c in table], sort=False).size()
    budget = f"{int(counts.min())}" if counts.min() == counts.max() else f"{int(counts.min())} to {int(counts.max())}"
    lead = (
        f"Every arm had the same budget ({budget} settings per task), chosen by the score on the split selection, "
        "which was held out of the training data. No setting was chosen on the reported split."
    )
    tasks = [str(task) for task in dict.fromkeys(table["task"])] if "task" in table else []
    bodies = [
        [table_block(table[table["task"] == task], list(table.columns), f"Settings tried on {task}")] for task in tasks
    ]
    blocks = folds(tasks, bodies) if tasks else (table_block(table, list(table.columns), "Settings tried"),)
    return Section(id="tuning", title="Tuning", lead=lead, blocks=(*warned, *blocks))
