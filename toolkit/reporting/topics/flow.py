"""Where position goes, layer by layer: its share of the states, how well it is read off, what changes without it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.intervals import Interval
from toolkit.reporting.cells import estimate_text, number
from toolkit.reporting.charts import Chart, draw
from toolkit.reporting.curves import Panel, curve_panels
from toolkit.reporting.folder import publish, report_folder, write_csvs
from toolkit.reporting.page import (
    Block,
    ChartBlock,
    FoldBlock,
    Page,
    Section,
    TextBlock,
    chart_blocks,
    folds,
    rows_block,
    stated,
)
from toolkit.reporting.topics.flow_numbers import (
    COUNTERFACTUALS,
    FACTORS,
    NO_SHARE,
    PRETRAINED,
    RANDOM,
    ROUNDING,
    FlowGroup,
    Tables,
    dominance,
    estimate,
    giving_way,
    groups_of,
    intervals_of,
    is_rounding,
    shares_of,
    stage_cell,
    stage_name,
)

Rows = tuple[list[str], list[list[object]]]

TITLE = "Where position goes"
EXPECTATION = "Published expectation: position dominates the lower layers and gives way to content."
TICKS = {-1: "Σ", 0: "in"}
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
    "The interval of one model covers blocks or texts, and no other seed.",
)


def write_flow_report(tables: Tables, out: str | Path, *, title: str | None = None, command: str | None = None) -> Path:
    """Write the page on ``measure_flow``'s tables, its figures/ and tables/ into ``out``; the path of report.md.

    tables/ holds a CSV per table, without the values per block or text, and intervals.csv, which is made from these.
    ``command`` is shown as what makes the report again. ValueError as :func:`check_out`.
    """
    with report_folder(out) as folder:
        kept = {name: table[[c for c in table if not str(c).endswith("_values")]] for name, table in tables.items()}
        write_csvs(folder / "tables", kept | {"intervals": intervals_of(tables)})
        publish(flow_page(tables, title=title, command=command), folder)
    return Path(out) / "report.md"


def flow_page(tables: Tables, *, title: str | None = None, command: str | None = None) -> Page:
    """What ``measure_flow``'s tables say."""
    groups = groups_of(tables)
    titles = [group.title for group in groups]
    charts = draw(
        {
            "where_position_goes": lambda: plot_position_shares(tables),
            "decoding": lambda: plot_decoding(tables),
            "counterfactuals": lambda: plot_counterfactuals(tables),
        }
    )
    first = chart_blocks(charts, "where_position_goes", SHARES_CAPTION, "Share of position, content, segment by layer.")
    bits = chart_blocks(charts, "decoding", BITS_CAPTION, "Bits of position that a linear probe reads, by layer.")
    outputs = chart_blocks(charts, "counterfactuals", OUTPUTS_CAPTION, "Change of states with other positions.")
    sections = (
        Section(
            id="expectation",
            title="Does position dominate, and then give way?",
            blocks=folds(titles, [_judged(group) for group in groups]),
        ),
        Section(
            id="regimes",
            title="Does fine-tuning move it?",
            lead="Share of position in a tuned model minus that in the pretrained one, on the same blocks.",
            blocks=folds(titles, [[rows_block(*drift_rows(g), "Against the pretrained model.")] for g in groups]),
        ),
        Section(
            id="decoding",
            title="Can position be read off a state?",
            blocks=(*bits, *folds(titles, [_decoded(group) for group in groups])),
        ),
        Section(
            id="counterfactuals",
            title="What changes with other positions?",
            blocks=(*outputs, *folds(titles, [_outputs(group) for group in groups])),
        ),
        Section(
            id="shares",
            title="All shares, by layer",
            blocks=folds(titles, [[rows_block(*share_rows(g), "Share of variance in %.")] for g in groups]),
        ),
        Section(
            id="references",
            title="What would chance give?",
            blocks=folds(titles, [[rows_block(*null_rows(g), "References beside their chance.")] for g in groups]),
        ),
        Section(
            id="models",
            title="What was looked into",
            blocks=folds(titles, [[rows_block(*model_rows(g), "Models and texts.")] for g in groups]),
        ),
        Section(id="limits", title="What this cannot tell", blocks=(TextBlock(text="\n\n".join(LIMITS)),)),
        Section(id="definitions", title="Definitions", blocks=(TextBlock(text="\n\n".join([*METHOD, *RULES])),)),
    )
    return Page(
        title=title or TITLE,
        question=f"Where in the model is the position of a token, and does fine-tuning move it? {EXPECTATION}",
        answers=stated(flow_answers(groups)),
        picture=next((block for block in first if isinstance(block, ChartBlock)), None),
        sections=sections,
        commands=command or "",
    )


def _judged(group: FlowGroup) -> list[Block]:
    segments = rows_block(*segment_rows(group), "Segments: their largest share and that in the last layer.")
    return [
        rows_block(*dominance_rows(group), "Does position dominate the lower layers?"),
        rows_block(*giving_way_rows(group), "Does it give way to content? Change from its largest share to the end."),
        segments,
    ]


def _decoded(group: FlowGroup) -> list[Block]:
    every = rows_block(*bit_rows(group), "Decoding position, in bits.")
    return [
        rows_block(*decoding_rows(group), "Bits of position at the input and in the last layer."),
        FoldBlock(title=f"{group.title}: every layer", blocks=(every,)),
    ]


def _outputs(group: FlowGroup) -> list[Block]:
    return [
        rows_block(*score_rows(group), "Change of the score of runs that have a head."),
        rows_block(*output_rows(group), "Other positions: states of the last layer, logits and predictions."),
    ]


def judged_arms(group: FlowGroup) -> list[str]:
    """Arms of which something is expected: all but the random weights."""
    return [arm for arm in group.arms if arm != RANDOM]


def flow_answers(groups: Sequence[FlowGroup]) -> tuple[str, ...]:
    """At most three sentences: the two halves of the expectation, and where fine-tuning moved position most."""
    arms = [(group, arm) for group in groups for arm in judged_arms(group)]
    shown = [(group, arm) for group, arm in arms if not is_rounding(group, arm)]
    first = [lower.verdict for group, arm in shown if (lower := dominance(group, arm)) is not None]
    second = [upper.verdict for group, arm in shown if (upper := giving_way(group, arm)) is not None]
    none = [NO_SHARE] * (len(arms) - len(shown))
    moves = [
        (abs(change.estimate), change, group, arm, layer)
        for group in groups
        for arm in _compared(group)
        if "random init" not in arm  # which was never that pretrained model
        for layer, change in group.drift(arm).items()
    ]
    lines = [
        f"Does position dominate the lower layers? Verdicts, by number of models and tasks: {_counts(first + none)}.",
        f"Does it give way to content further up? {_counts(second + none)}.",
    ]
    if moves:
        _, change, group, arm, layer = max(moves, key=lambda move: move[0])
        lines.append(
            f"Fine-tuning moved position's share most at {stage_name(layer)} of {group.labels[arm]} ({group.title}): "
            f"by {points(change)} points of the variance."
        )
    return tuple(lines)


def _counts(verdicts: Sequence[str]) -> str:
    return "; ".join(f"{name}: {verdicts.count(name)}" for name in dict.fromkeys(verdicts)) or "not applicable"


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
    """Header and rows: per arm whether position dominates the lower layers, and its largest share there."""
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
    for arm in judged_arms(group):
        judged = dominance(group, arm)
        if is_rounding(group, arm) or judged is None:
            rows.append([group.labels[arm], NO_SHARE, *[None] * 5])
            continue
        position, content = shares_of(group, arm)
        at = ", ".join(map(stage_cell, judged.stages)) or "none"
        shares = [share_text(position.loc[judged.peak]), stage_cell(judged.peak), share_text(content.loc[judged.peak])]
        rows.append([group.labels[arm], judged.verdict, at, stage_cell(judged.last), *shares])
    return header, rows


def giving_way_rows(group: FlowGroup) -> Rows:
    """Header and rows: per arm how each factor changes from position's largest share to the last layer, in points."""
    header = ["regime", "verdict", "from", "position: from", "to", "change (points)"]
    header += ["content: from", "to", "change (points)", "segments (points)", "interactions (points)"]
    rows: list[list[object]] = []
    for arm in judged_arms(group):
        judged = giving_way(group, arm)
        if is_rounding(group, arm) or judged is None:
            rows.append([group.labels[arm], NO_SHARE, *[None] * 9])
            continue
        cells: list[object] = []
        for factor, shares in zip(("position", "content"), shares_of(group, arm), strict=True):
            ends = [percent(shares["mean"][layer]) for layer in (judged.peak, judged.last)]
            cells += [*ends, points(judged.changes.get(factor))]
        others = [points(judged.changes.get(factor)) for factor in ("segment", "residual")]
        verdict = judged.verdict if judged.changes else f"{judged.verdict}: its share is largest in the last layer"
        rows.append([group.labels[arm], verdict, stage_cell(judged.peak), *cells, *others])
    return header, rows


def _compared(group: FlowGroup) -> list[str]:
    """Arms that are held against the pretrained model: without a share in either nothing can move."""
    if PRETRAINED not in group.arms:
        return []
    is_empty = is_rounding(group, PRETRAINED)
    own = [arm for arm in group.arms if arm not in (PRETRAINED, RANDOM)]
    return [arm for arm in own if not (is_empty and is_rounding(group, arm))]


def drift_rows(group: FlowGroup) -> Rows:
    """Header and rows: where each arm's share of position differs from the pretrained model's, on the same blocks."""
    header = ["regime", "models", "moves most at", "pretrained", "tuned", "change (points)"]
    header += ["distinguishable at", "not distinguishable at", "exactly equal at"]
    rows: list[list[object]] = []
    for arm in _compared(group):
        drift = group.drift(arm)
        if not drift:
            continue
        apart = [layer for layer, change in drift.items() if change.low > 0 or change.high < 0]
        equal = [layer for layer, change in drift.items() if change.estimate == 0 and np.isnan(change.low)]
        rest = [layer for layer in drift if layer not in apart and layer not in equal]
        most = max(drift, key=lambda layer: abs(drift[layer].estimate))
        ends = [percent(shares_of(group, each)[0]["mean"][most]) for each in (PRETRAINED, arm)]
        stages = [", ".join(map(stage_cell, layers)) or "none" for layers in (apart, rest, equal)]
        rows.append([group.labels[arm], group.num_models(arm), stage_cell(most), *ends, points(drift[most]), *stages])
    return header, rows


def segment_rows(group: FlowGroup) -> Rows:
    """Header and rows: per arm the largest share of segments and that in the last layer; why there is none."""
    header = ["regime", "largest share", "at", "in the last layer", "note"]
    lines = group.tables["ledger"]
    lines = lines[lines["factor"] == "segment"]
    if lines["omega_squared"].isna().all():
        note = next((str(note) for note in lines["reason"].dropna() if note), "not applicable")
        return header, [["all", None, None, None, note]]
    rows: list[list[object]] = []
    for arm in judged_arms(group):
        own = group.over_seeds("ledger", arm, "omega_squared", factor="segment")
        if len(own):
            peak = int(own["mean"].idxmax())
            shares = [share_text(own.loc[peak]), stage_cell(peak), share_text(own.iloc[-1])]
            rows.append([group.labels[arm], *shares, ""])
    return header, rows


def decoding_rows(group: FlowGroup) -> Rows:
    """Header and rows: per arm the bits at the input and in the last layer, beyond the word and the control task."""
    header = ["regime", "bits there are", "word alone", "at the input", "in the last layer", "beyond the word, last"]
    header += ["beyond the control, input", "beyond the control, last"]
    table = group.tables["decoding"]
    rows: list[list[object]] = []
    for arm in group.arms:
        bits, words, beyond = (group.over_seeds("decoding", arm, name) for name in BITS)
        last = max(bits.index)
        cells = [_bits(bits.loc[0]), _bits(bits.loc[last]), _bits(words.loc[last]), _bits(beyond.loc[0])]
        whole = [float(table["entropy_bits"].mean()), float(table["word_bits"].mean())]
        rows.append([group.labels[arm], *whole, *cells, _bits(beyond.loc[last])])
    return header, rows


def _bits(line: "pd.Series") -> str:
    return estimate_text(line["mean"], line["low"], line["high"], 2)


def bit_rows(group: FlowGroup) -> Rows:
    """Header and rows: arm and layer with the bits, beyond words and beyond the control, and the references."""
    references = {"word_bits": "word alone", "control_bits": "control", "shuffled_bits": "shuffled"}
    references |= {"entropy_bits": "entropy", "control_entropy_bits": "entropy of control"}
    header = ["regime", "layer", *(name for title in BITS.values() for name in (title, "low", "high"))]
    rows: list[list[object]] = []
    for arm in group.arms:
        values = {name: group.over_seeds("decoding", arm, name) for name in (*BITS, *references)}
        for layer in values["bits"].index:
            cells = [float(values[name][part][layer]) for name in BITS for part in ("mean", "low", "high")]
            cells += [float(values[name]["mean"][layer]) for name in references]
            rows.append([group.labels[arm], stage_cell(int(layer)), *cells])
    return [*header, *references.values()], rows


def share_rows(group: FlowGroup) -> Rows:
    """Header and rows: arm and layer with ω² of each factor in percent (mean over seeds) and what is left."""
    header = ["regime", "layer", "position", "low", "high", *FACTORS[1:], "position, equal dimensions"]
    header += ["position x text (η²)", "left to interactions (η²)"]
    rows: list[list[object]] = []
    for arm in group.arms:
        columns = [group.over_seeds("ledger", arm, "omega_squared", factor=factor) for factor in FACTORS]
        columns += [
            group.over_seeds("ledger", arm, name, factor="position") for name in ("omega_standardised", "by_block_eta")
        ]
        columns.append(group.over_seeds("ledger", arm, "eta_squared", factor="residual"))
        for layer in group.layers:
            bounds = [_share_cell(columns[0], layer, name) for name in ("low", "high")]
            cells = [_share_cell(column, layer) for column in columns]
            rows.append([group.labels[arm], stage_cell(layer), cells[0], *bounds, *cells[1:]])
    return header, rows


def _share_cell(values: pd.DataFrame, layer: int, name: str = "mean") -> object:
    if layer not in values.index:
        return None
    share = 100 * float(values[name][layer])
    return 0.0 if abs(share) < 1e-9 else share  # rounding is shown as 0


def score_rows(group: FlowGroup) -> Rows:
    """Header and rows: per arm and counterfactual the change of the score, and whether it is distinguishable from 0."""
    header = ["regime", "positions", "score", "before", "change", "distinguishable from 0?", "seeds", "texts"]
    table = group.tables["counterfactuals"]
    scores = table[(table["measure"] == "score") & table["value"].notna()]
    rows: list[list[object]] = []
    for arm in dict.fromkeys(scores["condition"]):
        for name in COUNTERFACTUALS:
            lines = scores[(scores["condition"] == arm) & (scores["counterfactual"] == name)]
            if lines.empty:
                continue
            change, unit = estimate(lines, "value"), str(lines["unit"].iloc[0])
            factor, digits, shown = (100, 1, f"{unit} (points)") if unit in IN_POINTS else (1, 3, unit)
            value, low, high = (factor * end for end in (change.estimate, change.low, change.high))
            apart = "undefined" if np.isnan(change.low) else "yes" if change.low > 0 or change.high < 0 else "no"
            before = factor * float(lines["reference"].mean())
            cells = [before, estimate_text(value, low, high, digits, is_signed=True), apart, group.num_models(str(arm))]
            rows.append([str(arm), name, shown, *cells, int(lines["num_texts"].max())])
    return header, rows


def output_rows(group: FlowGroup) -> Rows:
    """Header and rows: arm and counterfactual with the change of the last layer, logits and predictions."""
    rows: list[list[object]] = []
    for arm in dict.fromkeys(group.tables["models"]["condition"]):
        own = group.of("counterfactuals", arm)
        for name in COUNTERFACTUALS:
            lines = own[own["counterfactual"] == name]
            if lines.empty:
                continue
            state, logits, predictions = (lines[lines["measure"] == q] for q in ("state", "logits", "predictions"))
            last = state.loc[state["layer"] == state["layer"].max(), "value"].mean()
            rows.append([arm, name, float(last), _mean(logits["value"]), _mean(100 * predictions["value"])])
    return ["regime", "positions", "last layer", "logits", "predictions changed (%)"], rows


def _mean(values: pd.Series) -> object:
    """None where there are none: not applicable."""
    return float(values.mean()) if len(values) else None


def null_rows(group: FlowGroup) -> Rows:
    """Header and rows: what shuffled states and labels, the sum before LayerNorm and random weights read."""
    ledger, bits = group.tables["ledger"], group.tables["decoding"]
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
    if RANDOM in group.arms:
        own = group.over_seeds("ledger", RANDOM, "omega_squared", factor="position")["mean"]
        if (own.abs() >= ROUNDING).any():
            rows.append(["random weights: ω² of position in the first stage", number(own.iloc[0], 2), ""])
            rows.append(["random weights: ω² of position in the last layer", number(own.iloc[-1], 2), ""])
    return ["reference", "value", "chance"], rows


def _range(values: pd.Series) -> str:
    return f"{number(values.min(), 2)} to {number(values.max(), 2)}"


def model_rows(group: FlowGroup) -> Rows:
    """Header and rows: what was looked into, and with what."""
    header = ["regime", "model", "family", "positions", "contents", "segments", "sequences", "split", "body", "note"]
    columns = ["condition", "run", "family", "num_positions", "num_contents", "num_segments", "num_sequences", "split"]
    lines = group.tables["models"][[*columns, "body", "note"]].to_numpy(dtype=object).tolist()
    return header, [[*line] for line in lines]


def plot_position_shares(tables: Tables) -> Chart | None:
    """ω² of each factor by layer: a row per group of texts, a column per factor, a line per arm."""
    groups = groups_of(tables)
    panels = []
    for group in groups:
        for factor in FACTORS:
            curves = _curves(groups, group, "ledger", "omega_squared", factor=factor)
            ledger = group.tables["ledger"]
            notes = ledger.loc[ledger["factor"] == factor, "reason"].dropna()
            panels.append(
                Panel(
                    title=factor,
                    subtitle=group.title,
                    curves=curves.assign(mean=100 * curves["mean"], low=100 * curves["low"], high=100 * curves["high"]),
                    y_title="ω² (% of variance)",
                    reference=_level(group, {"": 0.0}),
                    note=next((str(note) for note in notes if note), "not applicable"),
                )
            )
    return _drawn(groups, panels, len(FACTORS))


def plot_decoding(tables: Tables) -> Chart | None:
    """Bits of position that a linear probe reads, those beyond words, and those beyond its control task."""
    groups = groups_of(tables)
    panels = []
    for group in groups:
        lines = group.tables["decoding"]
        ends = {"all of it": float(lines["entropy_bits"].max()), "word alone": float(lines["word_bits"].max())}
        for name, title in BITS.items():
            levels = {"": 0.0} | (ends if name == "bits" else {})
            panels.append(
                Panel(
                    title=title,
                    subtitle=group.title,
                    curves=_curves(groups, group, "decoding", name),
                    y_title="bits",
                    reference=_level(group, levels),
                    low=0.0 if name == "bits" else None,
                    high=1.12 * ends["all of it"] if name == "bits" else None,
                )
            )
    return _drawn(groups, panels, len(BITS))


def plot_counterfactuals(tables: Tables) -> Chart | None:
    """How far every layer moves under each counterfactual: a row per group, a column per counterfactual."""
    groups = groups_of(tables)
    panels = []
    for group in groups:
        for name in COUNTERFACTUALS:
            where = {"counterfactual": name, "measure": "state"}
            unrelated = group.over_seeds("counterfactuals", group.arms[0], "reference", **where)
            panels.append(
                Panel(
                    title=name,
                    subtitle=group.title,
                    curves=_curves(groups, group, "counterfactuals", "value", **where),
                    y_title="relative change\nof states",
                    reference=unrelated.rename_axis("layer").reset_index().assign(label=""),
                    low=0.0,
                )
            )
    return _drawn(groups, panels, len(COUNTERFACTUALS), is_shared=True)


def _drawn(
    groups: Sequence[FlowGroup], panels: Sequence[Panel], columns: int, *, is_shared: bool = False
) -> Chart | None:
    series = list(_series(groups).values())
    return curve_panels(panels, columns=columns, series=series, layer_names=TICKS, is_shared=is_shared, label="Model")


def _series(groups: Sequence[FlowGroup]) -> Mapping[str, str]:
    """Arm to its name in a legend, with its number of seeds; the random weights last."""
    names = {arm: group.labels[arm] for group in reversed(groups) for arm in group.arms}
    counts = {arm: max(group.num_models(arm) for group in groups if arm in group.arms) for arm in names}
    order = sorted(names, key=lambda arm: arm == RANDOM)
    return {arm: names[arm] + (f" [{counts[arm]} seeds]" if counts[arm] > 1 else "") for arm in order}


def _curves(groups: Sequence[FlowGroup], group: FlowGroup, table: str, column: str, **where: Any) -> pd.DataFrame:
    """Mean over an arm's models with its interval, for every arm of a group."""
    names = _series(groups)
    parts = [
        values.rename_axis("layer").reset_index().assign(series=names[arm])
        for arm in group.arms
        if len(values := group.over_seeds(table, arm, column, **where))
    ]
    return pd.concat(parts) if parts else pd.DataFrame(columns=["layer", "mean", "low", "high", "series"])


def _level(group: FlowGroup, levels: Mapping[str, float]) -> pd.DataFrame:
    """Horizontal lines over all layers of a group."""
    ends = (min(group.layers), max(group.layers))
    return pd.DataFrame([{"label": name, "layer": x, "mean": y} for name, y in levels.items() for x in ends])
