"""Every ``plot_*``: all take the same things, and all give a chart.

``source`` is a run or its path, several of them or a pattern (``"runs/*"``), or the table of the measure that the
function names, which may be filtered first; where no score is drawn it may be imported checkpoints too. The chart has
one panel, which Altair's own methods restyle, its colours by ``configure_range(category=[...])``; with ``panels`` it
has one for each task, split or parameter, as in a report. Where there is nothing to draw it is empty, and its title
says why.

``properties(width=...)`` is that of the panel, without its axes; with ``autosize={"type": "fit", "contains":
"padding"}`` that of the whole figure, where it has one panel: 238 for a paper's column of 3.3 inches, as a pixel of a
PDF is a point. A font that ``configure(font=...)`` names must be installed: of another one the PDF has no text.
"""

import warnings
from collections.abc import Callable, Iterable
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias

import pandas as pd

from toolkit.analysis.added_rows import measure_added_rows
from toolkit.analysis.drift import measure_drift, measure_rows
from toolkit.comparison.compare import compare
from toolkit.comparison.conditions import arrange
from toolkit.comparison.drift_and_score import join_drift
from toolkit.comparison.summaries import last_scores
from toolkit.families import TABLES
from toolkit.naming import lookup, refuse_first, select
from toolkit.reporting.charts import Chart, altair, regimes_of, themed
from toolkit.reporting.topics.causes import NothingToPlot, exposure_chart, measure_exposure
from toolkit.reporting.topics.caveats import largest_size, task_names
from toolkit.reporting.topics.comparison import differences_chart
from toolkit.reporting.topics.drift import drift_chart, position_chart, word_drift_chart
from toolkit.reporting.topics.drift_and_score import drift_and_score_chart
from toolkit.reporting.topics.movement import change_chart, names_of_snapshots
from toolkit.reporting.topics.new_tokens import added_rows_chart
from toolkit.reporting.topics.scores import cost_chart, epochs_chart, scores_chart
from toolkit.reporting.topics.words import words_chart
from toolkit.snapshots.importers import Imported
from toolkit.snapshots.output_folder import open_runs
from toolkit.snapshots.snapshot import Trajectory
from toolkit.snapshots.store import Run, Source

Plotted: TypeAlias = Source | Iterable[Run | str | Path] | pd.DataFrame
"""What every ``plot_*`` takes."""

P = ParamSpec("P")


def of_tables(plot: Callable[P, Chart]) -> Callable[P, Chart]:
    """A decorator: where the table lacks a column that is drawn, a ValueError of one line in place of a KeyError."""

    @wraps(plot)
    def draw(*arguments: P.args, **options: P.kwargs) -> Chart:
        try:
            return plot(*arguments, **options)
        except KeyError as error:
            raise ValueError(
                f"expected the table of what help(toolkit.{plot.__name__}) names; got one without {error}"
            ) from error

    return draw


@of_tables
def plot_drift(
    source: Plotted,
    parameter: str = TABLES[0],
    *,
    panels: bool = False,
    regimes: Iterable[str] | None = None,
) -> Chart:
    """Relative drift ‖Δ‖ / ‖E⁰‖ of a whole embedding parameter after each epoch, a line per condition.

    ``source``: run, path, several, or :func:`toolkit.measure_drift`'s table, of several runs with the columns ``run``
    and ``regime`` (or ``condition``). A mark is the mean over the seeds, its bar from the least to the greatest; what
    is exactly 0 before it moves stands on the floor. Conditions under which nothing moved are not drawn. Where several
    moved, the dotted line is the same number for a re-initialised parameter. ``panels``: all parameters, a panel each,
    or, where one condition moved, a line each. ``regimes``: their order, which gives the colours.

    Examples
    --------
    >>> toolkit.plot_drift(runs, "position_embeddings").configure_axis(labelFontSize=14).save("drift.svg")
    """
    drift = _with_value(_table_of_each(source, measure_drift), "parameter", parameter, panels)
    why = "No embedding parameter moved" if panels else f"{parameter} did not move"
    return _or_empty(drift_chart(drift, regimes=_known(regimes, drift)), why)


@of_tables
def plot_change(source: Plotted) -> Chart:
    """Relative drift of each whole embedding parameter, in % of its norm.

    ``source``: run, path, several, imported checkpoints, or :func:`toolkit.measure_drift`'s table. Lines over time of
    one condition (means over its seeds), a bar per parameter where there are two snapshots; of several conditions bars
    at their last snapshots.

    Examples
    --------
    >>> toolkit.plot_change(runs).save("drift.svg")
    >>> Path("drift.svg").exists()
    True
    """
    opened = source if isinstance(source, pd.DataFrame) else _opened(source)
    drift = _table_of_each(opened, partial(measure_drift, measures=("norm", "relative")))
    is_one = isinstance(opened, list) and len(opened) == 1
    names = names_of_snapshots(opened[0]) if is_one else {}
    return _or_empty(change_chart(drift, names), "Nothing moved")


@of_tables
def plot_word_drift(source: Plotted, *, regimes: Iterable[str] | None = None) -> Chart:
    """How far the word rows moved, in %, by how often training showed them: quartiles, 5 to 95 %, rows and zeros.

    ``source``: run, path, several (the first seed of each condition), or :func:`toolkit.measure_rows`' table of
    ``word_embeddings``. Box and line are of the rows that moved; how many are exactly 0 stands beside them, and fewer
    than five are drawn one by one. ``regimes`` as in :func:`toolkit.plot_drift`.

    Examples
    --------
    >>> chart = toolkit.plot_word_drift(runs)
    """
    rows = _rows_of_each(source, TABLES[0])
    return _or_empty(word_drift_chart(rows, regimes=_known(regimes, rows)), "No word moved")


@of_tables
def plot_position_drift(source: Plotted, *, panels: bool = False, regimes: Iterable[str] | None = None) -> Chart:
    """How far each position row moved: ‖Δ‖ by position, a line per condition, and where the longest training text ends.

    ``source``: run, path, several (the first seed of each condition), or :func:`toolkit.measure_rows`' table of
    ``position_embeddings``, with a column ``position`` where rows are not positions. What is exactly 0 stands on the
    floor. ``panels``: where most positions lie beyond the longest text, a first panel shows those that do not.

    Examples
    --------
    >>> chart = toolkit.plot_position_drift(runs)
    """
    rows = _rows_of_each(source, TABLES[1])
    return _or_empty(position_chart(rows, regimes=_known(regimes, rows), is_zoomed=panels), "No position moved")


@of_tables
def plot_words(source: Plotted) -> Chart:
    """How far each word's row moved against the steps that saw it; words can be searched, epoch and run be picked.

    ``source``: run, path, several (the first seed of each condition, one shown at a time), or tables of
    :func:`toolkit.measure_rows` of ``word_embeddings``: a line per word, or per word and ``epoch``; [PAD] is left out.
    ``before`` and ``after`` may be there too, the word's neighbours as texts. Every line is drawn: where they are too
    many, choose before.

    Examples
    --------
    >>> chart = toolkit.plot_words(run)
    """
    return _or_empty(words_chart(_rows_of_each(source, TABLES[0])), "No word moved")


@of_tables
def plot_exposure(source: Plotted, parameter: str = TABLES[0], *, with_null: bool = False) -> Chart:
    """How far each row moved against the optimizer steps that showed it.

    ``source``: run, path, or several, of which the first whose rows moved is drawn. ``parameter``: one of the three
    tables. ``with_null``: also the null of :func:`toolkit.sign_noise`, which needs the optimizer's log. A table has the
    columns series, token, num_steps, drift_percent, low, high and num_rows.

    Examples
    --------
    >>> toolkit.plot_exposure(run, "position_embeddings").save("exposure.svg")
    """
    if isinstance(source, pd.DataFrame):
        return _or_empty(exposure_chart(source), "")
    why = ""
    for run in _opened(source):
        try:
            return _or_empty(exposure_chart(measure_exposure(run, parameter, with_null=with_null)), "")
        except NothingToPlot as reason:
            why = str(reason)
    return _or_empty(None, why)


@of_tables
def plot_added_rows(source: Plotted, *, panels: bool = False) -> Chart:
    """Distance from their start of the rows of added tokens over epochs.

    ``source``: run, path, or :func:`toolkit.measure_added_rows`' table. Of more than 60 tokens 60 are drawn, evenly
    from the most shown to the least. ``panels``: their length beside it.

    Examples
    --------
    >>> chart = toolkit.plot_added_rows(run)
    """
    rows = _table_of_each(source, measure_added_rows, are_seeds=False)
    return _or_empty(added_rows_chart(rows, has_lengths=panels), "No added token at two snapshots")


@of_tables
def plot_scores(source: Plotted, *, panels: bool = False, regimes: Iterable[str] | None = None) -> Chart:
    """Last scores: a line per task, split and condition with a dot per seed, their mean and its interval.

    ``source``: run, path, several, or :func:`toolkit.last_scores`' table. The interval is Student's of 95 % over seeds,
    from three of them on, and ends where the score does; the dot of a failed run is hollow. Of several sizes the
    largest is shown. ``panels``: one per task. ``regimes``: their order, which gives the colours.

    Examples
    --------
    >>> chart = toolkit.plot_scores(runs).properties(width=300, title="Scores")
    """
    scores = _in_one_panel(_table_of_all(source, last_scores), "split", panels)
    return _or_empty(scores_chart(scores, regimes=_known(regimes, scores)), "No score was kept")


@of_tables
def plot_scores_over_epochs(
    source: Plotted,
    score: str | None = None,
    split: str | None = None,
    *,
    panels: bool = False,
    regimes: Iterable[str] | None = None,
) -> Chart:
    """A score on a split at every epoch, before training too, a line per condition.

    ``source``: run, path, several, or a table such as ``Run.scores``, of several runs with columns ``run`` and
    ``regime`` (or ``condition``). ``score``: by default the first that it has of accuracy, macro_f1, matthews, pearson
    ...; ``split``: by default the first. A mark is the mean over the seeds, its bar from the least to the greatest.
    ``panels``: all splits, a panel each. ``regimes`` as in :func:`toolkit.plot_scores`.

    Examples
    --------
    >>> chart = toolkit.plot_scores_over_epochs(runs, "accuracy", "validation")
    """
    table = _table_of_each(
        source,
        lambda run: _opened(run, have_scores=True)[0].scores,
        has=lambda run: run.has("scores.csv"),
    )
    scores = _with_value(table, "split", split, panels)
    return _or_empty(epochs_chart(scores, score, regimes=_known(regimes, scores)), "No two epochs were scored")


@of_tables
def plot_cost(source: Plotted, *, panels: bool = False, regimes: Iterable[str] | None = None) -> Chart:
    """The score on the reported split by the seconds that a run took, a mark per run.

    ``source``: runs, or :func:`toolkit.last_scores`' table; of several sizes the largest is shown. ``panels``: one per
    task. ``regimes`` as in :func:`toolkit.plot_scores`.

    Examples
    --------
    >>> chart = toolkit.plot_cost(runs)
    """
    scores = _in_one_panel(_table_of_all(source, last_scores), "base", panels)
    return _or_empty(
        cost_chart(scores, regimes=_known(regimes, scores)), "Fewer than two runs recorded seconds and a score"
    )


@of_tables
def plot_differences(source: Plotted, *, panels: bool = False) -> Chart:
    """Differences between conditions in points: a line per pair, task and split, the interval that decided, the margin.

    ``source``: runs, or :func:`toolkit.compare`'s table. The interval is of 90 % for ``equivalent`` and else of 95 %,
    dotted where it is over items alone, from one seed; it ends where differences of this score end. ``panels``: one per
    pair.

    Examples
    --------
    >>> toolkit.plot_differences(toolkit.compare(runs, margin_points=2)).save("differences.svg")
    """
    why = "Nothing to compare: no two conditions of one model and task have scores of one split"
    return _or_empty(differences_chart(_table_of_all(source, compare), is_one_panel=not panels), why)


@of_tables
def plot_drift_and_score(
    source: Plotted, parameter: str = TABLES[0], *, margin_points: float = float("nan"), panels: bool = False
) -> Chart:
    """Drift of a parameter against the score minus the frozen run's: a mark per run and per task and condition.

    ``source``: runs, or :func:`toolkit.join_drift`'s table. A small mark is a run, the large one of its colour the mean
    of the task. Shaded across: ``margin_points`` around no gain; shaded upright: the drift that counts as equal to
    noise. ``panels``: one per condition.

    Examples
    --------
    >>> chart = toolkit.plot_drift_and_score(runs, margin_points=1)
    """
    joined = _in_one_panel(_with_value(_table_of_all(source, join_drift), "parameter", parameter, False), "", panels)
    chart = drift_and_score_chart(joined, parameter, margin_points=margin_points)
    return _or_empty(chart, f"No run moved {parameter} beside one that froze it")


def _opened(source: Any, *, have_scores: bool = False) -> list[Any]:
    """The runs or checkpoints of a source, opened; ``have_scores``: runs alone.

    ValueError for anything else, and for none.
    """
    is_one = isinstance(source, Run | Imported | Trajectory | str | Path | pd.Series)
    places = list(source) if isinstance(source, Iterable) and not is_one else [source]
    if len(places) == 1 and isinstance(places[0], Imported | Trajectory) and not have_scores:
        return places
    refused_types = [type(place).__name__ for place in places if not isinstance(place, Run | str | Path)]
    first_refused = refused_types[0] if refused_types else "none"
    refuse_first(
        {
            "expected a run or its path, several of these, a table, or, where no score is drawn, imported checkpoints "
            f"alone; got {first_refused}": refused_types or not places
        }
    )
    return list(open_runs(places))


def _table_of_each(
    source: Plotted,
    measure: Callable[..., pd.DataFrame],
    *,
    are_seeds: bool = True,
    has: Callable[[Any], bool] = lambda _: True,
) -> pd.DataFrame:
    """The table itself, or that of each run; those of several are led by run and condition.

    ``are_seeds``: of all seeds of a condition, else of its first alone. ``has``: whether a run has what is measured;
    among several those that do not are left out.
    """
    if isinstance(source, pd.DataFrame):
        return source
    opened = _opened(source)
    if len(opened) > 1:
        opened = [run for run in opened if has(run)] or opened
    if len(opened) == 1:
        return measure(opened[0])
    groups = arrange(opened)
    is_one_group = len(groups) == 1
    tables = [
        measure(run.run).assign(
            run=run.name, condition=condition.label if is_one_group else f"{group.title}: {condition.label}"
        )
        for group in groups
        for condition in group.conditions
        for run in condition.runs[: None if are_seeds else 1]
    ]
    return pd.concat(tables, ignore_index=True)


def _rows_of_each(source: Plotted, parameter: str) -> pd.DataFrame:
    """The rows of one table of embeddings, of the first seed of each condition."""
    return _table_of_each(
        source,
        partial(measure_rows, parameter=parameter),
        are_seeds=False,
        has=lambda run: parameter in run.trajectory.parameters,
    )


def _table_of_all(source: Plotted, measure: Callable[[list[Any]], pd.DataFrame]) -> pd.DataFrame:
    """The table itself, or that of all runs together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is nothing to compare: the chart's title says so
        return source if isinstance(source, pd.DataFrame) else measure(_opened(source, have_scores=True))


def _with_value(table: pd.DataFrame, column: str, value: str | None, has_panels: bool) -> pd.DataFrame:
    """The lines of one value of a column (None: its first); with panels, or of a table without it, all lines."""
    if has_panels or column not in table or table.empty:
        return table
    values = dict.fromkeys(map(str, table[column]))
    chosen = next(iter(values)) if value is None else value
    lookup(values, chosen, column)
    return table[table[column] == chosen]


def _known(regimes: Iterable[str] | None, table: pd.DataFrame) -> list[str]:
    """The order of regimes that a user gives, all of which the table has."""
    return list(select(dict.fromkeys(regimes_of(table)), regimes or (), "regime"))


def _in_one_panel(table: pd.DataFrame, column: str, has_panels: bool) -> pd.DataFrame:
    """Several tasks as one, each named before what a column of the table says; ``""``: conditions as tasks too.

    Of several sizes the largest of each task are left.
    """
    if has_panels or table.empty or not {"group", "model", "size"} <= set(table):
        return table
    table = largest_size(table)
    tasks, conditions = task_names(table), regimes_of(table)
    if not column:
        return table.assign(group=tasks + ", " + conditions, base="", model="", size=None)
    if table["group"].nunique() == 1:
        return table
    names = tasks + ": " + (table[column] if column == "split" else conditions)
    score = " or ".join(dict.fromkeys(table["score"]))
    return table.assign(group="", model="", size=None, score=score, **{column: names})


def _or_empty(chart: Chart | None, why: str) -> Chart:
    """The chart, or an empty one whose title says why."""
    nothing = altair.Chart(altair.Data(values=[]), title=why, width=440, height=60).mark_point()
    return themed(nothing if chart is None else chart)
