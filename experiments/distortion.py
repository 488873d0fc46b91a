"""How far fine-tuning distorted the features, measured and shown: movement, alignment of the head, first gradients.

For experiments/feature_distortion.py, which asks it of three regimes.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from toolkit import schema
from toolkit.comparison.intervals import seeds_interval
from toolkit.comparison.runs import splits_out_of_distribution
from toolkit.data.batches import EncodedTask, evaluation_batches
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.models.classifier import Loaded
from toolkit.models.heads import example_losses
from toolkit.models.lora import put_adapters
from toolkit.models.new_tokens import hold_old_rows
from toolkit.models.regimes import Regime, apply_regime, list_components
from toolkit.models.tuned import load_tuned, load_untuned
from toolkit.naming import at_least, unknown
from toolkit.progress import shows_progress
from toolkit.questions.models import ANSWERED, batch_on, task_of
from toolkit.reporting.cells import UNDEFINED, estimate_text
from toolkit.reporting.charts import WIDTH, Chart, altair, colour, data_of, intervals, panels, pick, shape, tips
from toolkit.reporting.page import (
    Page,
    Rows,
    Section,
    folds,
    picture,
    rows_block,
    texts_section,
    wide_rows,
)
from toolkit.snapshots.store import Run, runs_of
from toolkit.training.accelerators import build_accelerator
from toolkit.training.encoding import encode_task
from toolkit.training.evaluation import compute_scores, extract_features
from toolkit.training.features import linear_probe, train_head_first

schema.add(
    (
        schema.Column("regime", "The components that were frozen; lora: all but adapters and head.", schema.TEXT),
        schema.Column("head_epochs", "Epochs of the head alone, before the rest.", schema.COUNT),
        schema.Column("place", "A split, or a part of the model.", schema.TEXT),
        schema.Column("num_examples", "Examples behind the value.", schema.COUNT),
    ),
    {
        "measure_distortion": (
            "run model task regime head_epochs seed measure place is_out_of_distribution value num_examples reason"
        ),
    },
)

STILL = "no feature moved"
NO_SPREAD = "all features are equal: no spread to hold a distance against"
CONSTANT = "a head gives every text one answer"

Features = NDArray[np.floating[Any]]


def feature_movement(before: Features, after: Features) -> dict[str, tuple[float, str]]:
    """How far (texts, hidden) pooled features moved, each with a note where it is undefined; float64 inside.

    ``feature_distance``: mean over texts of ‖f' - f‖, in the features' unit. ``relative_feature_distance``:
    √(Σ‖f' - f‖² / Σ‖f - f̄‖²), in spreads of the features before: 0 when nothing moved, √2 where f' is as f and has
    nothing to do with it; invariant to a rotation or scaling of both. ``shared_share``: ‖mean Δ‖² / mean ‖Δ‖², the
    part of the movement that all texts share and a bias could undo; 1 is a translation. Ours.
    """
    first, second = np.asarray(before, np.float64), np.asarray(after, np.float64)
    change = second - first
    total, spread = float((change**2).sum()), float(((first - first.mean(axis=0)) ** 2).sum())
    shared = len(change) * float((change.mean(axis=0) ** 2).sum())
    return {
        "feature_distance": (float(np.linalg.norm(change, axis=1).mean()), ""),
        "relative_feature_distance": ((total / spread) ** 0.5, "") if spread else (float("nan"), NO_SPREAD),
        "shared_share": (shared / total, "") if total else (float("nan"), STILL),
    }


def head_alignment(start: Features, best: Features) -> tuple[float, str]:
    """Cosine of two heads on the same features, from their (texts, outputs) outputs, and a note where it is undefined.

    Outputs are centred over texts (a bias is no direction) and, of several, over outputs (which softmax cannot see);
    the cosine is that of what is left, so that heads v and v* have ⟨v, v*⟩_Σ / ‖v‖_Σ‖v*‖_Σ with Σ the covariance of
    the features. 1: the same direction, however long; 0 on average for a random head. The plain cosine
    of the weights would be ruled by directions in which no feature varies, and which no data determine (our choice).
    """
    sides = []
    for outputs in (start, best):
        centred = np.asarray(outputs, np.float64)
        centred = centred - centred.mean(axis=0)
        sides.append(centred - centred.mean(axis=1, keepdims=True) if centred.shape[1] > 1 else centred)
    first, second = sides
    size = float(np.linalg.norm(first) * np.linalg.norm(second))
    return (float((first * second).sum()) / size, "") if size else (float("nan"), CONSTANT)


PARTS = ("embeddings", "body", "head")


def start_gradients(loaded: Loaded, data: EncodedTask, indices: NDArray[np.int64]) -> dict[str, float]:
    """Part in PARTS to the Euclidean norm of the gradient of the mean loss over some training examples, in eval mode.

    The parameters that have requires_grad count; NaN for a part that has none. Gradients are left at None.
    """
    model, split = loaded.model, data.splits["train"]
    assert split.labels is not None
    model.eval()
    model.zero_grad()
    for places in evaluation_batches(split.lengths[indices]):
        chosen = indices[places]
        outputs = model(**batch_on(model, split, chosen, data))
        losses = example_losses(data.task.kind, outputs, torch.from_numpy(split.labels[chosen]).to(outputs.device))
        (losses.sum() / len(indices)).backward()  # type: ignore[no-untyped-call]
    parameters, found = dict(model.named_parameters()), {}
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    for leaf, own in list_components(model, loaded.family).items():
        parts["head" if leaf == "head" else "embeddings" if leaf in EMBEDDING_PARAMETERS else "body"] += own
    for part, names in parts.items():
        gradients = [p.grad for name in names if (p := parameters[name]).requires_grad and p.grad is not None]
        squared = sum(float(gradient.double().square().sum()) for gradient in gradients)
        found[part] = squared**0.5 if gradients else float("nan")
    model.zero_grad()
    return found


FROZEN = "frozen: it gets no gradient"
NO_PROBE = "no best linear head: a class has fewer than two training examples"


@shows_progress("feature distortion")
@schema.with_columns
def measure_distortion(
    runs: Sequence[Run | str | Path],
    *,
    out_of_distribution: Collection[str] | None = None,
    num_gradient_examples: int = 512,
    seed: int = 0,
) -> pd.DataFrame:
    """How far fine-tuning moved the features (feature distortion), and how well the head fitted them at the start.

    Parameters
    ----------
    runs
        Finished runs with ``--save-model``, or the paths of their directories.
    out_of_distribution
        Names of the splits that are out of distribution, or one name; None takes those that each run's manifest names.
    num_gradient_examples
        Number of training examples behind the gradient norms.
    seed
        Seed of every random draw.

    Returns
    -------
    pandas.DataFrame
        One value per line; ``place`` is a split (all but train) or a part of the model. All is computed in fp32 and
        eval mode, whatever the run computed in. Undefined is NaN, and ``reason`` says why.

        Per split, ``feature_distance``, ``relative_feature_distance`` and ``shared_share`` of pooled features before
        and after the run: see :func:`feature_movement`.

        Per split, ``head_alignment`` of the head that training began with (with ``--head-epochs`` the one after the
        head stage, which is repeated) and the linear probe on the features before: see
        :func:`head_alignment`. ``start_loss`` and ``ceiling_loss`` are the losses of the two
        (nats, or squared error).

        Per part (embeddings, body, head), ``gradient_norm``: Euclidean norm of the gradient of the mean loss at step 0,
        without dropout or clipping. Body: all of the backbone but the embedding parameters. Of a part that is frozen in
        part, that of the rest.

    Raises
    ------
    ValueError
        There are no runs, no saved model or no split of that name, or the data can no longer be read.

    References
    ----------
    Kumar et al. 2022 (arXiv 2202.10054): a head that is not yet aligned with the features makes fine-tuning distort
    them, those of in-distribution texts above all; training the head first (LP-FT) prevents it. The definitions are
    ours (their theory is for two-layer linear networks).
    """
    opened = runs_of(runs)
    if not opened:
        raise ValueError("no runs to measure: pass at least one finished run with --save-model")
    for run in opened:
        if run.manifest["task"].get("kind") == "masked":
            raise ValueError(f"{run.path} {ANSWERED['masked']}: distortion is of features that a fresh head reads")
    at_least("num_gradient_examples", num_gradient_examples, 1)
    splits = [split for run in opened for split in run.manifest["task"]["splits"] if split != "train"]
    if isinstance(out_of_distribution, str):
        out_of_distribution = (out_of_distribution,)
    for split in out_of_distribution or ():
        if split not in splits:
            raise ValueError(f"out_of_distribution: {unknown(split, 'split', tuple(dict.fromkeys(splits)))}")
    lines = [line for run in opened for line in _lines_of(run, out_of_distribution, num_gradient_examples, seed)]
    return pd.DataFrame(lines, columns=schema.columns_of("measure_distortion")).astype(
        {"is_out_of_distribution": "boolean"}
    )


def _lines_of(run: Run, out: Collection[str] | None, num_gradient_examples: int, seed: int) -> Iterator[dict[str, Any]]:
    tuned, loaded = load_tuned(run), load_untuned(run)
    config = replace(run.config, precision="no", log_with=None)
    accelerator, data = build_accelerator(config), encode_task(task_of(run), loaded, config.max_length)
    before = extract_features(accelerator, loaded.model, data)
    after = extract_features(accelerator, tuned.model, data, before.keys() - {"train"})
    if config.head_epochs:
        train_head_first(accelerator, loaded.model, data, config)
    head = loaded.model.head
    probe = linear_probe(head, before, data, config.seed)
    task, regime = run.manifest["task"], run.manifest["regime"]
    out = splits_out_of_distribution(task, after) if out is None else out
    lead = {
        "run": run.path.resolve().name,
        "model": Path(config.model).name,
        "task": task["name"],
        "regime": regime["label"],
        "head_epochs": config.head_epochs,
        "seed": config.seed,
    }
    for split in after:
        place = {"place": split, "is_out_of_distribution": split in out, "num_examples": len(after[split])}
        with torch.inference_mode():
            start = head(torch.from_numpy(before[split]).to(next(head.parameters()).device)).cpu().numpy()
        best = None if probe is None else probe.outputs.get(split)
        found = feature_movement(before[split], after[split])
        none, labels = (float("nan"), NO_PROBE), data.splits[split].labels
        unlabelled = "" if labels is not None else "no labels"
        found["head_alignment"] = none if best is None else head_alignment(start, best)
        for measure, outputs in (("start_loss", start), ("ceiling_loss", best)):
            loss = float("nan") if outputs is None else compute_scores(data.task.kind, labels, outputs)["loss"]
            found[measure] = none if outputs is None else (loss, unlabelled)
        for measure, (value, reason) in found.items():
            yield lead | {"measure": measure} | place | {"value": value, "reason": reason}
    drawn = np.random.default_rng([*b"gradients", seed]).permutation(len(data.splits["train"]))
    chosen = np.sort(drawn[:num_gradient_examples])
    if config.train_rows == "new":
        hold_old_rows(loaded)
    put_adapters(loaded, config)
    apply_regime(loaded.model, Regime(regime["label"], frozenset(regime["frozen_components"])), loaded.family)
    for part, value in start_gradients(loaded, data, chosen).items():
        place = {"place": part, "is_out_of_distribution": pd.NA, "num_examples": len(chosen)}
        reason = FROZEN if np.isnan(value) else ""
        yield lead | {"measure": "gradient_norm"} | place | {"value": value, "reason": reason}


PLACE = ["model", "task", "measure", "place"]
MEANS = [*PLACE, "is_out_of_distribution", "condition", "num_seeds", "num_undefined", "mean", "low", "high", "note"]
"""Columns of :func:`arm_means`."""
DIFFERENCES = [*PLACE, "is_out_of_distribution", "first", "second", "num_seeds", "difference", "low", "high", "note"]
"""Columns of :func:`arm_differences`: first minus second."""

TITLE = "How far features were distorted"
QUESTION = (
    "How far does fine-tuning move the features that the head reads, and does a head that starts right spare them?"
)
DISTANCE = "relative_feature_distance"
SAID = {
    DISTANCE: "distance of the features, in spreads of the features before",
    "head_alignment": "cosine of the head at the start and the best linear one",
    "gradient_norm": "norm of the first gradient",
}
"""What is drawn and compared between regimes; everything is in the tables."""
CAPTION = (
    "How far the features of each split's texts moved, in spreads of the features before (√2: nothing to do with "
    "those before): mean over seeds, line: 95 % interval."
)

DEFINITIONS = (
    "feature_distance: mean over texts of the distance of the pooled features before and after; "
    "relative_feature_distance: √(Σ‖f' - f‖² / Σ‖f - f̄‖²), √2 where the features after have nothing to do with those "
    "before; shared_share: the part of the squared movement that all texts share.",
    "head_alignment: cosine, under the covariance of the features before, of the head that training of the backbone "
    "began with and the best linear head; start_loss and ceiling_loss: their losses. With LP-FT the head that the head "
    "stage ended with.",
    "gradient_norm: Euclidean norm of the gradient of the mean loss at step 0, in eval mode.",
    "Interval: 95 % of the mean over new seeds, Student's t; texts stay the same. None is adjusted for how many there "
    "are. Differences are paired by seed.",
)
LIMITS = ("Not distinguishable is not equal, and no interval is adjusted for how many there are.",)


def distortion_page(
    means: pd.DataFrame,
    differences: pd.DataFrame,
    *,
    title: str | None = None,
    command: str = "",
    caveats: Sequence[str] = (),
) -> Page:
    """What :func:`arm_means` and :func:`arm_differences` say; ``caveats``: what the runs do not, in sentences."""
    tasks = [(f"{model} on {task}", own) for (model, task), own in means.groupby(["model", "task"], sort=False)]
    names = [name for name, _ in tasks]
    apart = [[rows_block(*apart_rows(own, differences), "First minus second, paired by seed.")] for _, own in tasks]
    every = [[rows_block(*mean_rows(own), "Mean over seeds (95 % interval).")] for _, own in tasks]
    return Page(
        title=title or TITLE,
        question=QUESTION,
        picture=picture("feature_distance", plot_distortion(means), CAPTION),
        sections=(
            Section(id="differences", title="Which regimes differ?", blocks=folds(names, apart)),
            Section(id="means", title="All quantities", blocks=folds(names, every)),
            texts_section("limits", "What this cannot tell", [*caveats, *LIMITS]),
            texts_section("definitions", "Definitions", DEFINITIONS),
        ),
        commands=command,
    )


def arm_means(table: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds of every measure, place and condition with Student's t interval, columns MEANS."""
    lines = [
        _line(key, own) | _mean(own["value"].to_numpy(float), own["reason"])
        for key, own in table.groupby([*PLACE, "condition"], sort=False)
    ]
    return pd.DataFrame(lines, columns=MEANS)


def arm_differences(table: pd.DataFrame) -> pd.DataFrame:
    """First minus second of every two conditions, paired by seed, of every measure and place; columns DIFFERENCES."""
    lines = []
    for key, own in table.groupby(PLACE, sort=False):
        values = own.pivot(index="seed", columns="condition", values="value")[list(dict.fromkeys(own["condition"]))]
        for first, second in combinations(values, 2):
            found = _mean((values[first] - values[second]).dropna().to_numpy(float), own["reason"].iloc[:0])
            found["difference"] = found.pop("mean")
            lines.append(_line(key, own) | found | {"first": first, "second": second})
    return pd.DataFrame(lines, columns=DIFFERENCES)


def _line(key: Any, own: pd.DataFrame) -> dict[str, Any]:
    return {
        **dict(zip([*PLACE, "condition"], key, strict=False)),
        "is_out_of_distribution": own["is_out_of_distribution"].iloc[0],
    }


def _mean(values: Any, reasons: "pd.Series") -> dict[str, Any]:
    defined = values[~np.isnan(values)]
    found = seeds_interval(defined)
    undefined = len(values) - len(defined)
    reason = next((each for each in reasons if each), "")
    ends = {"mean": found.estimate, "low": found.low, "high": found.high}
    return {"num_seeds": len(defined), "num_undefined": undefined, **ends, "note": reason if undefined else found.note}


def _comparable(means: pd.DataFrame, differences: pd.DataFrame) -> pd.DataFrame:
    """Differences of what is compared, with an interval; without what was frozen, which is bound to differ."""
    frozen = means[(means["mean"] == 0) & means["low"].isna()]
    still = pd.MultiIndex.from_frame(frozen[[*PLACE, "condition"]])
    own = differences[differences["measure"].isin(list(SAID)) & differences["low"].notna()]
    sides = [pd.MultiIndex.from_frame(own[[*PLACE, side]]) for side in ("first", "second")]
    return own[~(sides[0].isin(still) | sides[1].isin(still))]


def apart_rows(means: pd.DataFrame, differences: pd.DataFrame) -> Rows:
    """Header and rows of one task: the differences of what is compared, and whether they are distinguishable from 0."""
    known = _comparable(means, differences).merge(means[["model", "task"]].drop_duplicates())
    rows: list[list[object]] = [
        [
            SAID[line["measure"]],
            *(line[name] for name in ("place", "first", "second")),
            cell_text(line, "difference"),
            "yes" if line["low"] > 0 or line["high"] < 0 else "no",
            int(line["num_seeds"]),
        ]
        for line in known.to_dict("records")
    ]
    return ["measure", "place", "first", "second", "difference", "distinguishable?", "seeds"], rows


def mean_rows(means: pd.DataFrame) -> Rows:
    """Header and rows of one task: per quantity and place a row, per regime a column."""
    arms, rows = wide_rows(means, ["measure", "place"], "condition", cell_text)
    return ["measure", "place", *arms], rows


def cell_text(line: Any, column: str = "mean") -> str:
    """A mean, or a difference with its sign, and its interval; why there is none."""
    value, low, high = (float(line[name]) for name in (column, "low", "high"))
    if value != value:
        return f"{UNDEFINED} ({line['note']})" if line["note"] else UNDEFINED
    return estimate_text(value, low, high, is_signed=column == "difference")


def plot_distortion(means: pd.DataFrame) -> Chart | None:
    """A panel per task: how far the features of each split moved, a mark per regime; None where none moved.

    ``means`` is :func:`arm_means`'s table.
    """
    own = means[(means["measure"] == DISTANCE) & means["mean"].notna()]
    if not (own["mean"] > 0).any():
        return None
    arms, places = list(dict.fromkeys(own["condition"])), list(dict.fromkeys(own["place"]))
    picker = pick("condition", arms, "Regime")
    hue, marks = colour("condition", arms), shape("condition", arms)
    said = tips(place="split", condition="regime", mean=("distance", ".3f"), interval="95 % interval")
    x = altair.X("mean:Q", title="distance (spreads before)", scale=altair.Scale(zero=True))
    grouped = list(own.groupby(["model", "task"], sort=False))
    columns = min(len(grouped), 2)
    size = {"width": (WIDTH - 90 * columns) // columns, "height": len(places) * (13 * len(arms) + 6)}
    drawn = []
    for (model, task), lines in grouped:
        ends = zip(lines["low"], lines["high"], strict=True)
        shown = lines.assign(interval=["none" if low != low else f"{low:.3f} to {high:.3f}" for low, high in ends])
        base = altair.Chart(data_of(shown, ["place", "condition", "mean", "low", "high", "interval"])).encode(
            y=altair.Y("place:N", sort=places, title=None, axis=altair.Axis(domain=False, ticks=False)),
            yOffset=altair.YOffset("condition:N", scale=altair.Scale(domain=arms)),
            color=hue,
            opacity=picker.opacity,
            tooltip=said,
        )
        dots = base.mark_point(filled=True, size=36).encode(x=x, shape=marks)
        drawn.append(altair.layer(*intervals(base, x), dots, title=f"{model} on {task}", **size))
    return panels(drawn, columns, picker)
