"""The numbers of a report in, what has to be read with any of them out: one sentence each."""

import numpy as np

from toolkit.comparison.arms import differing_settings
from toolkit.comparison.pairs import pair_arms
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.reported import last_score
from toolkit.reporting.cells import listing, number
from toolkit.reporting.comparison.linear_probes import linear_probes, short_of_probe
from toolkit.reporting.comparison.selections import covered, headline, largest_size, task_names

NOT_KEPT = (
    "The evidence of this report is of an earlier version. It did not keep how single rows moved (the words' map, "
    "strata, positions, tokens), drift over epochs and its yardstick, linear probes, costs, and versions and machines."
)
MINILM = (
    "The embedded model minilm (all-MiniLM-L6-v2) is a BERT that was tuned on single sentences, through the mean of "
    "their tokens. Features of single sentences look better by it than raw BERT's would, those of pairs read as one "
    "sequence worse: a claim about BERT needs a second, raw backbone."
)
UNSTABLE_POINTS = 20
"""A chosen setting is called unstable if it scored more than this above the final runs (ours)."""


def caveats(data: ReportData) -> list[str]:
    """What has to be read with any number of the report: failed runs, settings, model, seeds."""
    sentences = [
        text
        for text in (
            broken_freezes(data),
            failures(data),
            below_floor(data),
            unstable(data),
            edge_warning(data),
        )
        if text
    ]
    sentences += short_of_probe(linear_probes([own.group for own in data.details]), _margin(data))
    sentences += data.left_out
    sentences += [] if data.is_whole else [NOT_KEPT]
    if any(str(run.model) == "minilm" for run in data.runs):
        sentences.append(MINILM)
    if data.num_seeds == 1:
        over = covered(headline(data.comparison))
        what = "intervals cover the items and say nothing of other seeds" if over else "nothing is said of other seeds"
        sentences.append(f"Every condition has one seed: {what}.")
    return sentences


def broken_freezes(data: ReportData) -> str:
    """Parameters that a run froze and that changed all the same, by its hashes or its snapshots; '' without any."""
    drift = data.evidence.drift
    drift = drift[drift["has_moved"].astype(bool)]
    moved = set(zip(drift["run"], drift["parameter"], strict=True))
    found = []
    for run in data.runs:
        names = [name for name, is_equal in run.frozen.items() if not is_equal or (run.name, name) in moved]
        found += [f"{run.name}: {', '.join(names)}"] if names else []
    return f"WARNING: these parameters were frozen and have changed all the same: {'; '.join(found)}." if found else ""


def _margin(data: ReportData) -> float:
    """The margin of the comparisons, 1 point where there are none."""
    margins = data.comparison["margin_points"].dropna() if len(data.comparison) else data.comparison
    return float(margins.max()) if len(margins) else 1.0


def failures(data: ReportData) -> str:
    """Runs that failed, and those that do not beat the majority class by more than chance; '' for one task without."""
    failed = _by_arm(data, "is_failed")
    chance = _by_arm(data, "is_at_chance")
    count = len(data.runs)
    if not failed and not chance:
        return f"None of {count} runs failed." if len(data.groups) > 1 else ""
    if failed:
        total = sum(run.is_failed for run in data.runs)
        text = f"{total} of {count} runs failed (majority class or worse, or undefined, on the reported split): "
        text += listing(failed)
    else:
        text = f"None of {count} runs failed"
    if chance:
        total = sum(bool(run.is_at_chance) for run in data.runs)
        is_all = all(run.is_at_chance for run in data.runs if run.is_failed)
        among = ", the failed ones included," if failed and is_all else ""
        text += (
            f". {total} of {count} runs{among} do not beat always giving the most frequent label by more than chance: "
        )
        text += listing(chance)
    return f"{text}."


def below_floor(data: ReportData) -> str:
    """Arms whose mean score on a split is below a bag of words that was fitted to the same examples; '' for none."""
    own = largest_size(data.floors)
    own = own[own["above_bag_of_words_points"] < -1e-9]  # and not by the rounding of a mean
    parts = [
        f"{line['base']} ({number(line['mean'])}) is below a bag of words ({number(line['bag_of_words'])}) on "
        f"{name} {line['split']}"
        for name, line in zip(task_names(own), own.to_dict("records"), strict=True)
    ]
    return f"{_sentence('; '.join(parts))}." if parts else ""


def _by_arm(data: ReportData, quality: str) -> list[str]:
    """``feature extraction 5 (pair)`` for every arm that has runs of this quality."""
    counts: dict[str, int] = {}
    tasks: dict[str, list[str]] = {}
    for group in data.groups:
        for arm in group.arms:
            label, found = arm.base or arm.label, sum(bool(getattr(run, quality, False)) for run in arm.runs)
            if found:
                counts[label] = counts.get(label, 0) + found
                tasks.setdefault(label, []).append(arm.runs[0].task)
    several = len(data.groups) > 1
    return [
        f"{label} {count}" + (f" ({listing(list(dict.fromkeys(tasks[label])))})" if several else "")
        for label, count in counts.items()
    ]


def unstable(data: ReportData) -> str:
    """Arms whose chosen setting scored far better when it was chosen than in the final runs; '' without any."""
    table = data.tuning
    if table is None or "mean_score" not in table:
        return ""
    chosen = table[table["is_chosen"].astype(bool)]
    scores = {(line["task"], line["arm"]): line for line in chosen.to_dict("records")}
    parts = []
    for arm in (arm for own in data.details for arm in own.group.arms):  # of the most training examples
        first, label = arm.runs[0], arm.base or arm.label
        line = scores.get((first.task, label))
        if line is None or line.get("score", first.score) != first.score:
            continue
        final, count = float(np.mean([last_score(run, run.reported_split) for run in arm.runs])), len(arm.runs)
        if 100 * (line["mean_score"] - final) > UNSTABLE_POINTS:
            runs = f"mean of {count} final runs" if count > 1 else "the final run"
            scored = f"{number(line['mean_score'])} when it was chosen, {number(final)} on {first.reported_split}"
            parts.append(f"{label} on {first.task} ({scored}, {runs})")
    if not parts:
        return ""
    one = len(parts) == 1
    return f"The chosen {'setting is' if one else 'settings are'} unstable: {'; '.join(parts)}."


def edge_warning(data: ReportData) -> str:
    """Arms whose chosen setting is the last of its grid on a side where the score still rose; '' without any."""
    table = data.tuning
    if table is None or "is_at_edge" not in table:
        return ""
    is_at_edge = table["is_at_edge"].fillna(False).astype(bool) & table["is_chosen"].astype(bool)
    tasks = table[is_at_edge].groupby("arm", sort=False)["task"].agg(lambda own: listing([str(task) for task in own]))
    if tasks.empty:
        return ""
    parts = [f"{arm} on {own}" for arm, own in tasks.items()]
    if is_at_edge.sum() == 1:
        return f"{_sentence(parts[0])} was chosen at the edge of its grid: it may do better."
    return f"{_sentence('; '.join(parts))} were chosen at the edge of their grids: they may do better."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def pair_caveats(data: ReportData) -> list[str]:
    """Sentences on pairs that differ in more than the regime, and on seeds that one side of a pair lacks."""
    differing: dict[tuple[str, str, str], list[str]] = {}
    for group in data.groups:
        compared = data.seeds.loc[data.seeds["group"] == group.title, ["first", "second"]].drop_duplicates()
        for pair in pair_arms(group, [(str(a), str(b)) for a, b in compared.to_numpy()]):
            names = [name.replace("_", " ") for name in differing_settings(pair.first, pair.second)]
            key = (pair.first.base or pair.first.label, pair.second.base or pair.second.label, listing(names))
            if names:
                differing.setdefault(key, []).append(group.title)
    sentences = [
        f"{first} and {second} differ, besides the regime, in {names}{_where(titles, len(data.groups))}."
        for (first, second, names), titles in differing.items()
    ]
    unpaired = data.seeds[data.seeds["split"] == ""]
    return sentences + [
        f"Seed {line.seed} of {line.first} and {line.second} is not compared: {line.note}."
        for line in unpaired.itertuples()
    ]


def _where(titles: list[str], num_groups: int) -> str:
    distinct = list(dict.fromkeys(titles))
    return f" ({listing(distinct)})" if len(distinct) < num_groups else ""
