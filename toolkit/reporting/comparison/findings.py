"""The tables of a group in, its main findings out: three to six plain sentences that hold whatever the runs were."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from toolkit.analysis.causes.nulls import unexplained_by_decay
from toolkit.analysis.comparison.arms import Arm, ReportedRun
from toolkit.analysis.comparison.reported import last_score
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.reporting.comparison.tables import GroupTables
from toolkit.reporting.markdown import listing, mean_and_sd, number

MOST = 6


def findings(tables: GroupTables) -> list[str]:
    """At most six plain sentences, in the order in which a reader asks."""
    moved = [arm for arm in tables.group.arms if any(_has_moved(tables, arm, name) for name in EMBEDDING_PARAMETERS)]
    sentences = [_what_moved(tables, moved), _others(tables, moved[1:]), _frozen(tables), _seen(tables, moved)]
    sentences += [_scores(tables), _lacking(tables)]
    return [sentence for sentence in sentences if sentence][:MOST]


def _relative(tables: GroupTables, arm: Arm, parameter: str) -> pd.Series:
    """Whole-parameter relative drift at the last epoch of each run."""
    return tables.whole(arm, parameter).groupby("run", sort=False)["value"].last()


def _has_moved(tables: GroupTables, arm: Arm, parameter: str) -> bool:
    return bool((tables.whole(arm, parameter, "norm").groupby("run")["value"].last() > 0).any())


def _spoken(arm: Arm) -> str:
    seeds = f"mean of {len(arm.runs)} seeds" if len(arm.runs) > 1 else f"seed {arm.runs[0].config.seed}"
    return f"{arm.label}, {seeds}"


def _epoch(runs: Iterable[ReportedRun]) -> str:
    return listing([f"{epoch:.3g}" for epoch in sorted({run.last_epoch for run in runs})])


def _percent(values: Iterable[float]) -> str:
    mean = float(np.nanmean(array)) if not np.isnan(array := np.array(list(values), dtype=float)).all() else np.nan
    return "undefined" if np.isnan(mean) else f"{number(100 * mean)} %"


def _what_moved(tables: GroupTables, moved: list[Arm]) -> str:
    if not moved:
        return (
            f"No embedding parameter moved in any run: at epoch {_epoch(tables.group.runs)} every value is exactly "
            "what it was before training."
        )
    arm = moved[0]
    parts = [f"{name} {_amount(tables, arm, name)}" for name in EMBEDDING_PARAMETERS if arm.has(name)]
    yardstick = tables.whole(arm, "word_embeddings", statistic="reinitialised")["value"]
    compared = f"; re-initialised word_embeddings would read {_percent(yardstick)}" if len(yardstick) else ""
    return (
        f"Under {_spoken(arm)}, the embedding parameters had moved by epoch {_epoch(arm.runs)}, relative to their norm "
        f"before training, by: {', '.join(parts)}{compared}."
    )


def _amount(tables: GroupTables, arm: Arm, parameter: str) -> str:
    return _percent(_relative(tables, arm, parameter)) if _has_moved(tables, arm, parameter) else "exactly 0"


def _others(tables: GroupTables, moved: list[Arm]) -> str:
    """The parameter that moved most in each of the other arms in which any did."""
    parts = []
    for arm in moved:
        amounts = {name: _relative(tables, arm, name).mean() for name in EMBEDDING_PARAMETERS if arm.has(name)}
        defined = {name: value for name, value in amounts.items() if value == value}
        if defined:
            most = max(defined, key=lambda name: defined[name])
            words = "" if most == "word_embeddings" else f" (word_embeddings {_amount(tables, arm, 'word_embeddings')})"
            parts.append(f"{_spoken(arm)}: {most} {_amount(tables, arm, most)}{words}")
    return f"Greatest relative change under the other regimes: {'; '.join(parts)}." if parts else ""


def _frozen(tables: GroupTables) -> str:
    """What the manifests prove of frozen parameters; a contradiction comes first."""
    broken = [
        f"{run.name}: {listing(names)}"
        for arm in tables.group.arms
        for run in arm.runs
        if (names := [name for name, is_equal in run.frozen.items() if not is_equal or _moved_in(tables, run, name)])
    ]
    if broken:
        return f"WARNING: these parameters were frozen and have changed all the same: {'; '.join(broken)}."
    parts = []
    for arm in tables.group.arms:
        names = [name for name in arm.runs[0].frozen if arm.is_proven_frozen(name)]
        if names:
            own = [name for name in EMBEDDING_PARAMETERS if name in names]
            every = own == [name for name in EMBEDDING_PARAMETERS if arm.has(name)]
            shown = f"all {len(own)} embedding parameters" if every else listing(own) or "no embedding parameter"
            others = len(names) - len(own)
            more = f" and {others} other{'s' if others > 1 else ''}" if others else ""
            parts.append(f"under {arm.label}, {shown}{more}")
    if not parts:
        return ""
    return f"Frozen, and bit-identical before and after training (equal sha256): {'; '.join(parts)}."


def _moved_in(tables: GroupTables, run: ReportedRun, parameter: str) -> bool:
    lines = tables.whole(Arm("", (run,)), parameter, "norm")
    return bool((lines["value"] > 0).any())


def _seen(tables: GroupTables, moved: list[Arm]) -> str:
    """Word rows with and without gradient, in the first arm whose word rows moved."""
    arm = next((each for each in moved if _has_moved(tables, each, "word_embeddings")), None)
    if arm is None:
        return ""
    words = tables.words[tables.words["run"].isin(arm.names)]
    steps = pd.to_numeric(words["num_steps"])
    if steps.isna().all():
        return "How often each word row was seen was not recorded, so drift cannot be split by exposure."
    seen, unseen = words.loc[steps > 0, "norm"], words.loc[steps == 0, "norm"]
    average = words["run"].nunique()
    seed = f", seed {arm.runs[0].config.seed}," if len(arm.runs) > 1 else ""
    text = f"Under {arm.label}{seed} the {len(seen) / average:,.0f} word rows seen in training"
    text += f" moved by a median of {number(float(seen.median()))} weight units" if len(seen) else " are none"
    if not len(unseen):
        return f"{text}; there is no row that training never showed."
    share = float((unseen == 0).mean())
    far = "not at all" if share == 1 else f"by {number(float(unseen.median()))}"
    still = f"; {number(100 * share)} % of these are exactly as before" if 0 < share < 1 else ""
    decay = _decay(arm) if share < 1 else ""
    return f"{text}, the {len(unseen) / average:,.0f} never seen, which no gradient reached, {far}{still}{decay}."


def _decay(arm: Arm) -> str:
    """How much of the never-seen rows' drift the replayed weight decay leaves unexplained, in the first seed."""
    logged = [(run.run.trajectory, log) for run in arm.runs[:1] if (log := run.run.optimizer_log) is not None]
    shares = [unexplained_by_decay(trajectory, log) for trajectory, log in logged]
    most = max((share for share in shares if share == share), default=float("nan"))
    if most != most:
        return ""
    return (
        "; the replayed weight decay explains all of it, bit for bit"
        if most == 0
        else (f"; the replayed weight decay leaves {number(100 * most)} % of their squared drift unexplained")
    )


def _scores(tables: GroupTables) -> str:
    """The score of a single arm before training and after; several are compared in study_findings.py."""
    arms, score = tables.group.arms, tables.group.runs[0].score
    split = tables.group.runs[0].reported_split
    if len(arms) > 1:
        return ""
    parts = [f"{_spoken(arm)}: {_before_and_after(arm, split, score)}" for arm in arms]
    return f"{score.capitalize()} on {split}, before training and after: {'; '.join(parts)}."


def _before_and_after(arm: Arm, split: str, score: str) -> str:
    first, last = (mean_and_sd(last_score(run, split, score, at=at) for run in arm.runs) for at in ("first", "last"))
    return f"{first} → {last}"


def _lacking(tables: GroupTables) -> str:
    lacking = [name for name in EMBEDDING_PARAMETERS if not any(arm.has(name) for arm in tables.group.arms)]
    return f"Not applicable, because the model has none: {listing(lacking)}." if lacking else ""
