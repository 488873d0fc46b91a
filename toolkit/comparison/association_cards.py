"""The evidence of a report in, its cards on what drift is worth across tasks out."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.comparison.associations import TOO_FEW
from toolkit.comparison.card import NAN, Card, Null, Span
from toolkit.comparison.evidence import FOLDER, JOINED, PREDICTIONS, Evidence
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.verdicts import Verdict, among

VERSION = 3
"""1 ranked tasks by the drift of whole parameters, and judged by the interval; 2 judged by p, whatever the number of
claims."""

FILES = tuple(f"{FOLDER}/{name}" for name in ("settings.json", "runs.json", PREDICTIONS, "scores.csv", "drift.csv"))
FILES_OF_1 = tuple(f"{FOLDER}/{name}" for name in ("settings.json", JOINED))
NOTHING: Mapping[str, Any] = {"equivalence": Span(), "margin": NAN, "noise_floor": NAN, "detectable_gap": NAN}
"""Fields of a card that stands on no margin and no noise floor."""


def association_cards(data: ReportData) -> Iterable[Card]:
    """Across tasks, per model, arm and parameter: do tasks on which it moved further gain more from its moving?

    The verdict is that of the permutation test, by its q at the report's alpha; the interval is description.
    """
    lines, own = data.association, data.joined
    num_claims = int(lines["p"].notna().sum())
    for line in lines.to_dict("records"):
        runs = own.loc[(own["model"] == line["model"]) & (own["base"] == line["base"]), "run"]
        yield _card(data.evidence, line, list(dict.fromkeys(runs)), num_claims)


def _card(evidence: Evidence, line: Mapping[Any, Any], runs: list[str], num_claims: int) -> Card:
    level, rho, num_tasks = float(evidence.settings["level"]), float(line["spearman"]), int(line["num_tasks"])
    which, where = line["parameter"], f"{line['base']}, {line['model']}"
    q, alpha = float(line["q"]), float(evidence.settings["alpha"])
    judged = judge_association(str(line["note"]), float(line["p"]), alpha, q, num_claims)
    return Card(
        **NOTHING,
        id=f"association: {line['model']} / {line['base']} / {line['parameter']}",
        claim=f"Tasks on which {which} moved further beyond noise gained more, or less, from drift under {where}",
        kind="association",
        estimator="Spearman rank correlation over tasks of drift, as a multiple of its noise, with gain",
        version=VERSION,
        unit="1",
        value=rho,
        interval=Span(*spearman_interval(rho, num_tasks, level), level),
        null=Null("no association between tasks: every order of the tasks is as likely"),
        num_seeds=int(line["num_runs"]),
        num_items=num_tasks,
        q=q,
        is_discovery=None if math.isnan(q) else q < alpha,
        verdict=judged.name,
        reason=judged.reason,
        source="one point per task, the means over its seeds; verdict by q of the two-sided permutation test (exact up "
        "to eight tasks); the interval tanh(atanh r ± z·√((1 + r²/2)/(n - 3))) is description: Bonett & Wright 2000",
        inputs=evidence.inputs(FILES if evidence.joined is None else FILES_OF_1, runs),
    )


def judge_association(refusal: str, p: float, alpha: float, q: float = math.nan, num_claims: int = 1) -> Verdict:
    """Refused, supported where the permutation p and its ``q`` are below ``alpha``, or not supported.

    Too few tasks make the claim not applicable; any other refusal says that it cannot be measured on these tasks.
    """
    if refusal or math.isnan(p):
        name = "not applicable" if refusal.endswith(TOO_FEW) else "not measurable here"
        return Verdict(name, refusal or "the permutation test gave no p")
    if p < alpha:
        return among(Verdict("supported", f"the permutation p of {p:.3g} is below {alpha:g}"), q, num_claims, alpha)
    return Verdict("not supported", f"the permutation p of {p:.3g} is not below {alpha:g}")


def spearman_interval(rho: float, num_points: int, level: float) -> tuple[float, float]:
    """tanh(atanh r ± z·√((1 + r²/2)/(n - 3))): Bonett & Wright 2000; NaN under four points.

    A perfect order counts as one swap of neighbours short of it (ours): its own interval would have no width.
    """
    if math.isnan(rho) or num_points < 4:
        return NAN, NAN
    from scipy.stats import norm

    most = 1 - 12 / (num_points * (num_points**2 - 1))
    kept = min(max(rho, -most), most)
    half = float(norm.ppf((1 + level) / 2)) * math.sqrt((1 + kept**2 / 2) / (num_points - 3))
    return math.tanh(math.atanh(kept) - half), math.tanh(math.atanh(kept) + half)
