"""Where position goes, layer by layer: its share of the states, how well it is read off, what changes without it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.intervals import Interval
from toolkit.questions.flow.ledger import FACTORS
from toolkit.questions.flow.measure import COUNTERFACTUALS, PRETRAINED, RANDOM
from toolkit.questions.flow.numbers import (
    HALF,
    IN_PART,
    NO_SHARE,
    NOT_SUPPORTED,
    ROUNDING,
    SUPPORTED,
    FlowGroup,
    Tables,
    estimate,
    groups_of,
    intervals_of,
    is_rounding,
    shares_of,
    stage_cell,
)
from toolkit.reporting.cells import estimate_text, number
from toolkit.reporting.charts import Chart, draw
from toolkit.reporting.curves import Panel, curve_panels
from toolkit.reporting.page import (
    Answers,
    Block,
    Case,
    ChartBlock,
    FoldBlock,
    Page,
    Rows,
    Section,
    answer,
    folds,
    judged,
    rows_block,
    texts_section,
)

TITLE = "Where position goes"
EXPECTATION = "Published expectation: position dominates the lower layers and gives way to content."
LAYER_NAMES = {-1: "Σ", 0: "in"}
"""On the axes of charts; every other layer by its number."""
IN_POINTS = ("accuracy", "macro_f1", "f1")
"""Scores that are shares: a hundredth is a point."""
BITS = {"bits": "bits read", "beyond_word_bits": "beyond the word", "selective_bits": "beyond the control"}

SHARES_CAPTION = (
    "Share of each layer's variance (ω²) that is position, content or segment, in the crossed design; dotted: "
    "shuffled states, 0. Σ: word + position + segment before LayerNorm; in: what layer 1 reads. Bands: 95 % interval "
    "of the mean over seeds and blocks; of one model, over blocks. Vertical scales differ between panels."
)
BITS_CAPTION = (
    "Bits of a token's position that a linear probe reads off its state, on texts that it was not fitted on; beyond "
    "what the word alone tells; and what is left after its control task, a lower bound. Dotted: shuffled labels (0), "
    "the word alone, all of it. Bands: 95 % interval of the mean over seeds and texts; of one model, over texts."
)
OUTPUTS_CAPTION = (
    "How far the states move when the model reads other position rows. Dotted: the distance of the states of two "
    "unrelated tokens, in the same unit. Bands: 95 % interval of the mean over seeds and texts; of one model, texts."
)
METHOD = (
    "Crossed design: blocks of consecutive tokens are rotated inside a frame of special tokens, so that every token "
    "stands at every position once, with the same neighbours but where the block closes; in pairs the middle frame "
    "halves the block, and every rotation is read with the segments as they are and exchanged. Special tokens are no "
    "cells. Position is therefore the place in the text, the distance to its edges included.",
    "ω² = (SS - df·MS_err) / (SS_tot + MS_err), SS traced over dimensions: chance is 0 and negative values are kept. "
    "MS_err of position and of segment is their interaction with the blocks, so that what they do to single texts is "
    "not counted as theirs; of content it is the residual. omega_standardised is the same with all dimensions at equal "
    "variance.",
    "Intervals: 95 %, of the mean over seeds and units. Units are blocks (ω²) or texts (the rest); each has one value, "
    "of a mean its own, of anything else the jackknife's; seeds x units of them have the two-way interval by Student's "
    "t. Of one model it covers units, not seeds. Differences are taken on the same units first.",
    "Decoding: (entropy of the label - cross-entropy) / ln 2 of a multinomial logistic regression on held-out texts; "
    "the label is the position in bins. Control task (idea of Hewitt & Liang 2019): a random label for every word, the "
    "same in all texts, the mean of several draws, whose spread is in the interval. Its difference is a lower bound: "
    "it takes off all that words tell of random labels, more than they tell of position.",
    "Counterfactuals: the position rows in use are shifted, permuted (none stays), replaced by a sinusoid of equal "
    "mean square norm, by their mean (order goes, the common offset stays), or by zero. Nothing is trained for them.",
)
RULES = (
    "'Dominates the lower layers' looks at the lower half of the stages (the sum, the input and layers up to half of "
    "their number): supported where position's interval lies above content's at each of them, in part where at some.",
    "'Gives way' looks at the change from position's largest share to the last layer, of position and of content, each "
    "with the interval of its change on the same blocks: supported where the first falls and the second rises; half of "
    "it where the first falls and the second is not seen to rise.",
    "'Distinguishable': the 95 % interval of the difference on the same blocks excludes 0.",
)
LIMITS = (
    "The largest share is chosen by looking, so that without any change position's share would seem to fall in 10 to "
    "16 of 100 models: read a small fall with that in mind.",
    "There is one interval per stage, none corrected for their number. What is not distinguishable may still differ.",
)
ONE_SEED = "The interval of one model covers blocks or texts, and no other seed."


def flow_page(tables: Tables, *, title: str | None = None, command: str = "") -> Page:
    """What ``measure_flow``'s tables say."""
    groups = groups_of(tables)
    num_seeds = tables["models"].groupby(["group", "condition"])["seed"].nunique(dropna=False)
    has_single_seeds = num_seeds.eq(1).any()
    charts = draw({name: partial(plot, tables) for name, (plot, _) in CHARTS.items()})
    pictures = {}
    for name, chart in charts.items():
        _, caption = CHARTS[name]
        pictures[name] = ChartBlock(name=name, chart=chart, caption=caption, alt=caption)
    sections = []
    for id, (heading, lead, makers) in SECTIONS.items():
        bodies = [[_table(group, *maker) for maker in makers] for group in groups]
        blocks = folds([group.title for group in groups], bodies)
        picture = (pictures[id],) if id in pictures else ()
        sections.append(Section(id=id, title=heading, lead=lead, blocks=(*picture, *blocks)))
    return Page(
        title=title or TITLE,
        question=f"Where in the model is the position of a token, and does fine-tuning move it? {EXPECTATION}",
        answers=answers(groups),
        picture=pictures.get("where_position_goes"),
        sections=(
            *sections,
            texts_section("limits", "What this cannot tell", [*LIMITS, *([ONE_SEED] if has_single_seeds else ())]),
            texts_section("definitions", "Definitions", [*METHOD, *RULES]),
        ),
        commands=command,
    )


def flow_tables(tables: Tables) -> dict[str, pd.DataFrame]:
    """What stands beside the page: the tables without the values per block or text, and intervals made from these."""
    without_values = {
        name: table[[column for column in table if not str(column).endswith("_values")]]
        for name, table in tables.items()
    }
    return without_values | {"intervals": intervals_of(tables)}


def answers(groups: Sequence[FlowGroup]) -> Answers:
    """Whether position fades, whether it can still be read at the end, and whether fine-tuning changes its share."""
    changes = (
        _change_case(group, condition, drift)
        for group in groups
        for condition in _compared_conditions(group)
        if (drift := group.drift(condition))
    )
    return (
        answer("Does position fade from the input to the last layer?", map(_fading_case, groups)),
        answer("Can position still be read in the last layer?", map(_decoding_case, groups)),
        answer("Does fine-tuning change position's share in the last layer?", changes, NOT_TUNED),
    )


def _fading_case(group: FlowGroup) -> Case:
    """Whether position's share fell from input to last layer, as a case; neither is chosen by looking."""
    condition, last = group.conditions[0], group.layers[-1]
    position, _ = shares_of(group, condition)
    position = position.reindex(group.layers)
    change = group.change(condition, "position", last, since=0)
    halved = (layer for layer in group.layers if layer > 0 and position["mean"][layer] < position["mean"][0] / 2)
    text = (
        f"{group.title}, {group.labels[condition]}: position is {share_text(position.loc[0])} of the variance at the "
        f"input (first layer below half of that: {next(halved, 'none')}) and {share_text(position.loc[last])} in layer "
        f"{last}. Chance is 0 %; shuffled states: at most "
        f"{percent(group.tables['ledger']['shuffled_omega'].abs().max())}."
    )
    if is_rounding(group, condition):
        return judged(text, np.nan, -change.low, NO_SHARE)
    return judged(text, -change.high, -change.low, change.note)


def _decoding_case(group: FlowGroup) -> Case:
    """Whether the last layer tells more of position than the word alone does, as a case."""
    records = group.lines("decoding", group.conditions[0], "bits", layer=group.layers[-1])
    bits, entropy, shuffled = records[["bits", "entropy_bits", "shuffled_bits"]].mean()
    beyond = estimate(records, "beyond_word_bits")
    text = (
        f"{group.title}, {group.labels[group.conditions[0]]}: a linear probe reads {number(bits)} of {number(entropy)} "
        f"bits, {estimate_text(beyond.estimate, beyond.low, beyond.high, 2)} more than the word alone tells. "
        f"Chance is 0; shuffled labels: {number(shuffled, 2)}."
    )
    return judged(text, beyond.low, beyond.high, beyond.note)


def _change_case(group: FlowGroup, condition: str, drift: Mapping[int, Interval]) -> Case:
    """Whether a condition's share of position in the last layer is not the pretrained model's, as a case."""
    change = drift[max(drift)]  # in the last layer
    num_seeds = group.num_models(condition)
    text = f"{group.title}, {group.labels[condition]}: {points(change)} points; 0 means no change. Seeds: {num_seeds}."
    is_equal = change.estimate == 0 and np.isnan(change.low)
    low, high = (0.0, 0.0) if is_equal else (change.low, change.high)
    return judged(text, low, high, change.note, below="yes", num_seeds=num_seeds)


def _table(group: FlowGroup, make_rows: Callable[[FlowGroup], Rows], caption: str) -> Block:
    """A table of a group; the one with a line per layer is folded."""
    table = rows_block(*make_rows(group), caption)
    return FoldBlock(title=f"{group.title}: every layer", blocks=(table,)) if make_rows is bit_rows else table


def judged_conditions(group: FlowGroup) -> list[str]:
    """Conditions of which something is expected: all but the random weights."""
    return [condition for condition in group.conditions if condition != RANDOM]


def percent(share: float) -> str:
    """A share with its unit."""
    return "0 % up to rounding" if 0 < abs(share) < ROUNDING else f"{number(100 * share)} %"


def share_text(line: "pd.Series") -> str:
    """A share with its interval: ``12.3 % (11.9 to 12.7 %)``."""
    if np.isnan(line["low"]):
        return percent(line["mean"])
    return f"{percent(line['mean'])} ({number(100 * line['low'])} to {number(100 * line['high'])} %)"


def points(change: Interval | None) -> str | None:
    """A change of a share in points of the variance; None where there is none."""
    if change is None:
        return None
    return estimate_text(100 * change.estimate, 100 * change.low, 100 * change.high, 2, is_signed=True)


def dominance_rows(group: FlowGroup) -> Rows:
    """Header and rows: per condition whether position dominates the lower layers, and its largest share there."""
    header = [
        "regime",
        "verdict",
        "above content at",
        "of the stages up to",
        "largest share there",
        "at",
        "content there",
    ]
    rows: list[list[object]] = []
    for condition in judged_conditions(group):
        position, content = shares_of(group, condition)
        lower = [int(layer) for layer in position.index if layer <= max(group.layers) // 2]
        if is_rounding(group, condition) or not lower:
            rows.append([group.labels[condition], NO_SHARE, *[None] * 5])
            continue
        above = [layer for layer in lower if position["low"][layer] > content["high"][layer]]
        some_verdict = IN_PART if above else NOT_SUPPORTED
        verdict = SUPPORTED if len(above) == len(lower) else some_verdict
        peak = int(position["mean"][lower].idxmax())
        above_names = ", ".join(map(stage_cell, above)) or "none"
        shares = [share_text(position.loc[peak]), stage_cell(peak), share_text(content.loc[peak])]
        rows.append([group.labels[condition], verdict, above_names, stage_cell(lower[-1]), *shares])
    return header, rows


def giving_way_rows(group: FlowGroup) -> Rows:
    """Header and rows: per condition how each factor changes from position's largest share to the last layer."""
    header = [
        "regime",
        "verdict",
        "from",
        "position: from",
        "to",
        "change (points)",
        "content: from",
        "to",
        "change (points)",
        "segments (points)",
        "interactions (points)",
    ]
    rows: list[list[object]] = []
    for condition in judged_conditions(group):
        position, content = shares_of(group, condition)
        if is_rounding(group, condition) or len(position) < 2:
            rows.append([group.labels[condition], NO_SHARE, *[None] * 9])
            continue
        last = int(position.index[-1])
        peak = int(position["mean"].idxmax())
        changes: dict[str, Interval] = {}
        verdict = f"{NOT_SUPPORTED}: its share is largest in the last layer"
        if peak != last:
            for factor in ("position", "content", "segment", "residual"):
                if len(group.lines("ledger", condition, "eta_squared", factor=factor, layer=peak)):
                    changes[factor] = group.change(condition, factor, last, since=peak)
            falls, rises = changes["position"].high < 0, changes["content"].low > 0
            half_verdict = HALF if falls else NOT_SUPPORTED
            verdict = SUPPORTED if falls and rises else half_verdict
        cells: list[object] = []
        for factor, shares in (("position", position), ("content", content)):
            cells += [percent(shares["mean"][peak]), percent(shares["mean"][last]), points(changes.get(factor))]
        other_changes = [points(changes.get(factor)) for factor in ("segment", "residual")]
        rows.append([group.labels[condition], verdict, stage_cell(peak), *cells, *other_changes])
    return header, rows


def _compared_conditions(group: FlowGroup) -> list[str]:
    """The conditions to compare with the pretrained model, where either of the two has a share of position."""
    if PRETRAINED not in group.conditions:
        return []
    has_no_share = is_rounding(group, PRETRAINED)
    tuned_conditions = [condition for condition in group.conditions if condition not in (PRETRAINED, RANDOM)]
    return [condition for condition in tuned_conditions if not (has_no_share and is_rounding(group, condition))]


def drift_rows(group: FlowGroup) -> Rows:
    """Header and rows: where a condition's share of position differs from the pretrained model's on the same blocks."""
    header = [
        "regime",
        "models",
        "moves most at",
        "pretrained",
        "tuned",
        "change (points)",
        "distinguishable at",
        "not distinguishable at",
        "exactly equal at",
    ]
    rows: list[list[object]] = []
    for condition in _compared_conditions(group):
        drift = group.drift(condition)
        if not drift:
            continue
        differing = [layer for layer, change in drift.items() if change.low > 0 or change.high < 0]
        equal = [layer for layer, change in drift.items() if change.estimate == 0 and np.isnan(change.low)]
        undecided = [layer for layer in drift if layer not in differing and layer not in equal]
        most_moved = max(drift, key=lambda layer: abs(drift[layer].estimate))
        position_before, _ = shares_of(group, PRETRAINED)
        position, _ = shares_of(group, condition)
        row = [group.labels[condition], group.num_models(condition), stage_cell(most_moved)]
        row += [percent(shares["mean"][most_moved]) for shares in (position_before, position)]
        stages = [", ".join(map(stage_cell, layers)) or "none" for layers in (differing, undecided, equal)]
        rows.append([*row, points(drift[most_moved]), *stages])
    return header, rows


def segment_rows(group: FlowGroup) -> Rows:
    """Header and rows: per condition the largest share of segments and that in the last layer; why there is none."""
    header = ["regime", "largest share", "at", "in the last layer", "note"]
    records = group.tables["ledger"]
    records = records[records["factor"] == "segment"]
    if records["omega_squared"].isna().all():
        note = next((str(note) for note in records["reason"].dropna() if note), "not applicable")
        return header, [["all", None, None, None, note]]
    rows: list[list[object]] = []
    for condition in judged_conditions(group):
        shares = group.over_seeds("ledger", condition, "omega_squared", factor="segment")
        if len(shares):
            peak = int(shares["mean"].idxmax())
            cells = [share_text(shares.loc[peak]), stage_cell(peak), share_text(shares.iloc[-1])]
            rows.append([group.labels[condition], *cells, ""])
    return header, rows


def decoding_rows(group: FlowGroup) -> Rows:
    """Header and rows: per condition the bits at the input and in the last layer, beyond the word and the control."""
    header = [
        "regime",
        "bits there are",
        "word alone",
        "at the input",
        "in the last layer",
        "beyond the word, last",
        "beyond the control, input",
        "beyond the control, last",
    ]
    references = group.tables["decoding"][["entropy_bits", "word_bits"]].mean()
    rows: list[list[object]] = []
    for condition in group.conditions:
        bits, beyond_word, beyond_control = (group.over_seeds("decoding", condition, name) for name in BITS)
        last = max(bits.index)
        readings = [bits.loc[0], bits.loc[last], beyond_word.loc[last], beyond_control.loc[0], beyond_control.loc[last]]
        rows.append([group.labels[condition], *references, *map(_bits, readings)])
    return header, rows


def _bits(reading: "pd.Series") -> str:
    """Bits with their interval."""
    return estimate_text(reading["mean"], reading["low"], reading["high"], 2)


REFERENCES = {
    "word_bits": "word alone",
    "control_bits": "control",
    "shuffled_bits": "shuffled",
    "entropy_bits": "entropy",
    "control_entropy_bits": "entropy of control",
}


def bit_rows(group: FlowGroup) -> Rows:
    """Header and rows: condition and layer with the bits, beyond words and beyond the control, and the references."""
    rows = []
    for condition in group.conditions:
        bits = [group.over_seeds("decoding", condition, name) for name in BITS]
        references = [group.over_seeds("decoding", condition, name)["mean"] for name in REFERENCES]
        for layer, *cells in pd.concat([*bits, *references], axis=1).itertuples():
            rows.append([group.labels[condition], stage_cell(layer), *cells])
    heads = [name for title in BITS.values() for name in (title, "low", "high")]
    return ["regime", "layer", *heads, *REFERENCES.values()], rows


def share_rows(group: FlowGroup) -> Rows:
    """Header and rows: condition and layer with ω² of each factor in percent (mean over seeds) and what is left."""
    header = [
        "regime",
        "layer",
        "position",
        "low",
        "high",
        *FACTORS[1:],
        "position, equal dimensions",
        "position x text (η²)",
        "left to interactions (η²)",
    ]
    other_columns = [("omega_squared", factor) for factor in FACTORS[1:]] + [
        ("omega_standardised", "position"),
        ("by_block_eta", "position"),
        ("eta_squared", "residual"),
    ]
    rows: list[list[object]] = []
    for condition in group.conditions:
        columns = [group.over_seeds("ledger", condition, "omega_squared", factor="position")] + [
            group.over_seeds("ledger", condition, name, factor=factor)["mean"] for name, factor in other_columns
        ]
        percents = 100 * pd.concat(columns, axis=1).reindex(group.layers)
        for layer, *cells in percents.mask(percents.abs() < 1e-9, 0.0).itertuples():  # rounding is shown as 0
            shown_cells = [None if np.isnan(cell) else cell for cell in cells]
            rows.append([group.labels[condition], stage_cell(layer), *shown_cells])
    return header, rows


def score_rows(group: FlowGroup) -> Rows:
    """Header and rows: per condition and counterfactual the change of the score, and whether it can be told from 0."""
    header = ["regime", "positions", "score", "before", "change", "distinguishable from 0?", "seeds", "texts"]
    table = group.tables["counterfactuals"]
    scores = table[(table["measure"] == "score") & table["value"].notna()]
    rows: list[list[object]] = []
    for condition in dict.fromkeys(scores["condition"]):
        for name in COUNTERFACTUALS:
            records = scores[(scores["condition"] == condition) & (scores["counterfactual"] == name)]
            if records.empty:
                continue
            change = estimate(records, "value")
            unit = str(records["unit"].iloc[0])
            factor, digits, unit_text = (100, 1, f"{unit} (points)") if unit in IN_POINTS else (1, 3, unit)
            value, low, high = (factor * bound for bound in (change.estimate, change.low, change.high))
            is_distinguishable = "yes" if low > 0 or high < 0 else "no"
            cells = [
                factor * float(records["reference"].mean()),
                estimate_text(value, low, high, digits, is_signed=True),
                "undefined" if np.isnan(low) else is_distinguishable,
                group.num_models(str(condition)),
                int(records["num_texts"].max()),
            ]
            rows.append([str(condition), name, unit_text, *cells])
    return header, rows


def output_rows(group: FlowGroup) -> Rows:
    """Header and rows: condition and counterfactual with the change of the last layer, logits and predictions."""
    rows: list[list[object]] = []
    for condition in dict.fromkeys(group.tables["models"]["condition"]):
        table = group.of("counterfactuals", condition)
        for name in COUNTERFACTUALS:
            records = table[table["counterfactual"] == name]
            if records.empty:
                continue
            states = records[records["measure"] == "state"]
            last_change = states.loc[states["layer"] == states["layer"].max(), "value"].mean()
            means = records.groupby("measure")["value"].mean()  # no logits nor predictions of an untrained head
            predictions = means.get("predictions")
            predictions_percent = None if predictions is None else 100 * float(predictions)
            rows.append([condition, name, float(last_change), means.get("logits"), predictions_percent])
    return ["regime", "positions", "last layer", "logits", "predictions changed (%)"], rows


def null_rows(group: FlowGroup) -> Rows:
    """Header and rows: what shuffled states and labels, the sum before LayerNorm and random weights read."""
    ledger = group.tables["ledger"]
    bits = group.tables["decoding"]
    residual = ledger[(ledger["factor"] == "residual") & (ledger["layer"] == -1)]["eta_squared"].abs().max()
    position = ledger[(ledger["factor"] == "position") & ledger["shuffled_eta"].notna()]
    by_block = ledger.loc[ledger["factor"] == "position", "by_block_eta"].max()
    omega = ledger["shuffled_omega"].abs().max()
    chance = float(position["eta_chance"].mean())
    rows: list[list[object]] = [
        ["left unexplained before LayerNorm (rounding: embeddings add up)", number(residual, 2), "0"],
        ["what position does to single texts and not to all (block x position), at most", percent(by_block), ""],
        ["shuffled states: |ω²| of any factor and layer, at most", number(omega, 2), "0"],
        ["shuffled states: η² of position, mean", number(position["shuffled_eta"].mean(), 2), number(chance, 2)],
        ["shuffled labels: bits of position", _range(bits["shuffled_bits"]), "0, or a little below"],
        ["control task (a random label for every word): its bits", _range(bits["control_bits"]), ""],
        ["control task: its entropy in bits", number(bits["control_entropy_bits"].mean()), ""],
        ["position: its entropy in bits", number(bits["entropy_bits"].mean()), ""],
    ]
    if RANDOM in group.conditions:
        random_shares = group.over_seeds("ledger", RANDOM, "omega_squared", factor="position")["mean"]
        if (random_shares.abs() >= ROUNDING).any():
            rows.append(["random weights: ω² of position in the first stage", number(random_shares.iloc[0], 2), ""])
            rows.append(["random weights: ω² of position in the last layer", number(random_shares.iloc[-1], 2), ""])
    return ["reference", "value", "chance"], rows


def _range(values: pd.Series) -> str:
    """``0.01 to 0.2``."""
    return f"{number(values.min(), 2)} to {number(values.max(), 2)}"


def model_rows(group: FlowGroup) -> Rows:
    """Header and rows: what was looked into, and with what."""
    columns = {
        "condition": "regime",
        "run": "model",
        "family": "family",
        "num_positions": "positions",
        "num_contents": "contents",
        "num_segments": "segments",
        "num_sequences": "sequences",
        "split": "split",
        "body": "body",
        "note": "note",
    }
    return list(columns.values()), group.tables["models"][list(columns)].to_numpy(dtype=object).tolist()


def plot_position_shares(tables: Tables) -> Chart | None:
    """ω² of each factor by layer: a row per group of texts, a column per factor, a line per condition."""

    def panel(group: FlowGroup, factor: str, series: Mapping[str, str]) -> Panel:
        curves = _curves(series, group, "ledger", "omega_squared", factor=factor)
        ends = ["mean", "low", "high"]
        ledger = group.tables["ledger"]
        notes = ledger.loc[ledger["factor"] == factor, "reason"].dropna()
        return Panel(
            title=factor,
            subtitle=group.title,
            curves=curves.assign(**100 * curves[ends]),
            y_title="ω² (% of variance)",
            reference=_level(group, {"": 0.0}),
            note=next((str(note) for note in notes if note), "not applicable"),
        )

    return _grid(tables, FACTORS, panel)


def plot_decoding(tables: Tables) -> Chart | None:
    """Bits of position that a linear probe reads, those beyond words, and those beyond its control task."""

    def panel(group: FlowGroup, name: str, series: Mapping[str, str]) -> Panel:
        is_whole = name == "bits"  # the other two are what is left of it
        references = group.tables["decoding"][["entropy_bits", "word_bits"]].max()
        levels = {"": 0.0}
        if is_whole:
            levels |= {"all of it": references["entropy_bits"], "word alone": references["word_bits"]}
        return Panel(
            title=BITS[name],
            subtitle=group.title,
            curves=_curves(series, group, "decoding", name),
            y_title="bits",
            reference=_level(group, levels),
            low=0.0 if is_whole else None,
            high=1.12 * references["entropy_bits"] if is_whole else None,
        )

    return _grid(tables, tuple(BITS), panel)


def plot_counterfactuals(tables: Tables) -> Chart | None:
    """How far every layer moves under each counterfactual: a row per group, a column per counterfactual."""

    def panel(group: FlowGroup, name: str, series: Mapping[str, str]) -> Panel:
        key = {"counterfactual": name, "measure": "state"}
        unrelated = group.over_seeds("counterfactuals", group.conditions[0], "reference", **key)
        return Panel(
            title=name,
            subtitle=group.title,
            curves=_curves(series, group, "counterfactuals", "value", **key),
            y_title="relative change\nof states",
            reference=unrelated.rename_axis("layer").reset_index().assign(label=""),
            low=0.0,
        )

    return _grid(tables, tuple(COUNTERFACTUALS), panel, is_shared=True)


def _grid(
    tables: Tables,
    names: Sequence[str],
    panel: Callable[[FlowGroup, str, Mapping[str, str]], Panel],
    *,
    is_shared: bool = False,
) -> Chart | None:
    """A row per group of texts, a column per name."""
    groups = groups_of(tables)
    series = _series(groups)
    return curve_panels(
        [panel(group, name, series) for group in groups for name in names],
        columns=len(names),
        series=list(series.values()),
        layer_names=LAYER_NAMES,
        is_shared=is_shared,
        label="Model",
    )


def _series(groups: Sequence[FlowGroup]) -> Mapping[str, str]:
    """Each condition's name in a legend, with its number of seeds; the random weights last."""
    # Of two names of a condition the first group's holds.
    names = {condition: group.labels[condition] for group in reversed(groups) for condition in group.conditions}
    series = {}
    for condition in sorted(names, key=lambda condition: condition == RANDOM):
        num_seeds = max(group.num_models(condition) for group in groups if condition in group.conditions)
        series[condition] = names[condition] + (f" [{num_seeds} seeds]" if num_seeds > 1 else "")
    return series


def _curves(series: Mapping[str, str], group: FlowGroup, table: str, column: str, **where: Any) -> pd.DataFrame:
    """Mean over a condition's models with its interval, for every condition of a group."""
    curves = {series[condition]: group.over_seeds(table, condition, column, **where) for condition in group.conditions}
    defined = {name: values for name, values in curves.items() if len(values)}
    if not defined:
        return pd.DataFrame(columns=["layer", "mean", "low", "high", "series"])
    return pd.concat(defined, names=["series", "layer"]).reset_index()


def _level(group: FlowGroup, levels: Mapping[str, float]) -> pd.DataFrame:
    """Horizontal lines over all layers of a group."""
    ends = (min(group.layers), max(group.layers))
    return pd.DataFrame(
        [{"label": name, "layer": layer, "mean": level} for name, level in levels.items() for layer in ends]
    )


CHARTS: Mapping[str, tuple[Callable[[Tables], Chart | None], str]] = {
    "where_position_goes": (plot_position_shares, SHARES_CAPTION),
    "decoding": (plot_decoding, BITS_CAPTION),
    "counterfactuals": (plot_counterfactuals, OUTPUTS_CAPTION),
}
NOT_TUNED = "No tuned model stands beside the pretrained one, or neither has a share of position."
DIFFERENCE_LEAD = "Share of position in a tuned model minus that in the pretrained one, on the same blocks."
SECTIONS: Mapping[str, tuple[str, str, Sequence[tuple[Callable[[FlowGroup], Rows], str]]]] = {
    "expectation": (
        "Does position dominate, and then give way?",
        "",
        (
            (dominance_rows, "Does position dominate the lower layers?"),
            (giving_way_rows, "Does it give way to content? Change from its largest share to the end."),
            (segment_rows, "Segments: their largest share and that in the last layer."),
        ),
    ),
    "regimes": ("Does fine-tuning move it?", DIFFERENCE_LEAD, ((drift_rows, "Against the pretrained model."),)),
    "decoding": (
        "Can position be read off a state?",
        "",
        (
            (decoding_rows, "Bits of position at the input and in the last layer."),
            (bit_rows, "Decoding position, in bits."),
        ),
    ),
    "counterfactuals": (
        "What changes with other positions?",
        "",
        (
            (score_rows, "Change of the score of runs that have a head."),
            (output_rows, "Other positions: states of the last layer, logits and predictions."),
        ),
    ),
    "shares": ("All shares, by layer", "", ((share_rows, "Share of variance in %."),)),
    "references": ("What would chance give?", "", ((null_rows, "References beside their chance."),)),
    "models": ("What was looked into", "", ((model_rows, "Models and texts."),)),
}
"""Id of a section to its title, what stands above it, and its tables, each with its caption."""
