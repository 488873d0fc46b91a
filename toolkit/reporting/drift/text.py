"""The tables of a drift report in, the Markdown of every section out; nothing is computed but medians over rows."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from toolkit.analysis.causes.sign_noise import is_beyond_both
from toolkit.analysis.rows.drift import WHOLE
from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.reporting import markdown
from toolkit.reporting.comparison.tables import ordered_strata
from toolkit.reporting.drift.structure import agreement, functional, gauge, geometry, similarity, updates
from toolkit.reporting.drift.tables import DriftTables, lines_of
from toolkit.reporting.markdown import number

NUM_WORDS = 20
REGRESSION_TERMS = {"constant": "constant", "log_num_steps": "log steps", "log_norm": "log ‖E⁰‖"}


def sections(tables: DriftTables) -> dict[str, str]:
    """Section name to its tables; one that is missing says why."""
    makers: Mapping[str, Callable[[DriftTables], str]] = {
        "changes": changes,
        "drift": whole,
        "causes": causes,
        "sign_noise": noise,
        "regression": regression,
        "gauge": gauge,
        "functional": functional,
        "similarity": similarity,
        "geometry": geometry,
        "updates": updates,
        "agreement": agreement,
        "neighbours": neighbours,
        "segments": segments,
    }
    texts = {}
    for name, make in makers.items():
        if name in tables.frames:
            texts[name] = make(tables)
        else:
            reason = tables.missing.get(name, "it needs a run directory" if name != "agreement" else "one run only")
            texts[name] = f"Not applicable: {markdown.escape(reason)}."
    return texts | {f"strata_{name}": strata(tables, name) for name in TABLES}


def changes(tables: DriftTables) -> str:
    """One line per parameter: what kind of change, how large."""
    header = ["parameter", "kind of change", "size", "unit", "relative drift", "rows that moved", "detail", "farthest"]
    rows: list[list[object]] = []
    for line in tables.frames["changes"].to_dict("records"):
        if line["kind"] == markdown.NOT_APPLICABLE:
            rows.append([line["parameter"], line["kind"], None, "", None, None, "", ""])
            continue
        moved = f"{number(int(line['num_moved']))} of {number(int(line['num_rows']))}"
        detail = "; ".join(str(line[key]) for key in ("detail", "note") if line[key])
        drift = line["relative_drift"]
        farthest = str(line["farthest"])
        rows.append([line["parameter"], line["kind"], line["size"], str(line["unit"]), drift, moved, detail, farthest])
    return markdown.table(header, rows)


def whole(tables: DriftTables) -> str:
    """Relative drift of each parameter at each snapshot, and of a re-initialisation."""
    frame = lines_of(tables.frames["drift"], stratum=WHOLE, measure="relative")
    frame = frame[frame["epoch"] > 0]
    names = {s.epoch: s.name or f"epoch {s.epoch:g}" for s in tables.opened.trajectory}
    values = lines_of(frame, statistic="value")
    yardsticks = lines_of(frame, statistic="reinitialised").groupby("parameter")["value"].first()
    present = [name for name in EMBEDDING_PARAMETERS if name in set(values["parameter"])]
    epochs = _thinned(list(dict.fromkeys(values["epoch"])))
    rows: list[list[object]] = []
    for name in present:
        own = values[values["parameter"] == name].set_index("epoch")["value"]
        rows.append([name, *(own[epoch] for epoch in epochs), yardsticks[name]])
    return markdown.table(["parameter", *(names[epoch] for epoch in epochs), "re-initialised (yardstick)"], rows)


def _thinned(epochs: Sequence[float]) -> list[float]:
    """At most eight of them, the first and the last included."""
    places = np.unique(np.linspace(0, len(epochs) - 1, min(len(epochs), 8)).round().astype(int))
    return [epochs[place] for place in places]


def strata(tables: DriftTables, parameter: str) -> str:
    """One line per stratum of a table's rows at the last snapshot."""
    frame = lines_of(tables.get("drift"), parameter=parameter, epoch=tables.epoch)
    frame = frame[frame["stratum"] != WHOLE] if len(frame) else frame
    if frame.empty:
        return f"Not applicable: there is no {parameter} to compare."
    header = ["stratum", "rows", "median ‖Δ‖", "greatest ‖Δ‖", "median relative", "median angle (degrees)"]
    header += ["median radial change"]
    wanted = [("norm", "median"), ("norm", "max"), *((m, "median") for m in ("relative", "angle_degrees", "radial"))]
    rows: list[list[object]] = []
    for name in ordered_strata(frame["stratum"]):
        own = lines_of(frame, stratum=name)
        cells = [lines_of(own, measure=m, statistic=s)["value"].iloc[0] for m, s in wanted]
        rows.append([name, int(own["num_rows"].iloc[0]), *cells])
    return markdown.table(header, rows)


def causes(tables: DriftTables) -> str:
    """One line per table and stratum: how many rows moved why."""
    header = ["parameter", "stratum", "rows", "decay alone", "momentum only", "gradient", "unexplained", "Σ‖Δ‖²"]
    header += ["share of Adam's update", "never-seen drift unexplained"]
    rows: list[list[object]] = []
    for line in tables.frames["causes"].to_dict("records"):
        counts = ("weight_decay_alone", "momentum_after_its_last_exposure", "gradient", "unexplained")
        cells = [int(line[f"num_{name}"]) for name in counts]
        shares = [line["squared_drift"], line["update_share"], line["unexplained_share"]]
        rows.append([line["parameter"], line["stratum"], int(line["num_rows"]), *cells, *shares])
    return markdown.table(header, rows)


def noise(tables: DriftTables) -> str:
    """Per stratum: the observed drift as a ratio to that of random gradient signs."""
    header = ["stratum", "rows sampled", "median ‖Δ‖", "median of the null", "median ratio", "5 to 95 % of the ratios"]
    header += ["rows beyond both nulls", "median ratio, random directions"]
    rows: list[list[object]] = []
    frame = tables.frames["sign_noise"]
    for stratum in ordered_strata(frame["stratum"].astype(str)):
        own = frame[frame["stratum"].astype(str) == stratum]
        own = own[own["num_steps"] > 0]
        if own.empty:
            continue
        low, high = own["ratio"].quantile([0.05, 0.95])
        beyond = int(is_beyond_both(own).sum())
        middle = [own[column].median() for column in ("drift", "null_median", "ratio")]
        spread = f"{number(low)} to {number(high)}"
        rows.append([stratum, len(own), *middle, spread, beyond, own["direction_ratio"].median()])
    return markdown.table(header, rows)


def regression(tables: DriftTables) -> str:
    """The slopes of the observed drift beside those of the null."""
    header = ["outcome", "term", "coefficient", "95 % interval", "rows"]
    rows: list[list[object]] = [
        [
            f"log ‖Δ‖, {line['outcome']}",
            REGRESSION_TERMS.get(line["term"], line["term"]),
            line["coefficient"],
            f"{number(line['ci_low'])} to {number(line['ci_high'])}",
            int(line["num_rows"]),
        ]
        for line in tables.frames["regression"].to_dict("records")
    ]
    return markdown.table(header, rows)


def neighbours(tables: DriftTables) -> str:
    """The words whose neighbours changed most beyond chance, and how far the runs agree on them."""
    frame = tables.frames["neighbours"]
    if frame.empty:
        return "No word lost more of its neighbours than if every row had moved as far in a random direction."
    header = ["rank", "token", "stratum", "steps", "neighbours kept (%)", "kept in a random direction (%)"]
    header += ["percentile among words of like exposure", "runs that list it"]
    rows: list[list[object]] = []
    for line in frame.head(NUM_WORDS).to_dict("records"):
        steps = None if pd.isna(line["num_steps"]) else float(line["num_steps"])
        kept = [100 * line["overlap"], 100 * line["random_overlap"], 100 * line["percentile"]]
        token = str(line["token"]) or f"(row {line['row']})"
        rows.append([line["rank"], token, str(line["stratum"]), steps, *kept, int(line["num_runs"])])
    text = markdown.table(header, rows)
    first = frame.iloc[0]
    if pd.isna(first["jaccard"]):
        return text
    return (
        f"{text}\n\nBetween runs the lists of the {len(frame)} words agree with a mean Jaccard index of "
        f"{number(first['jaccard'])}, against {number(first['jaccard_random'])} when every row moves as far in a "
        f"random direction and {number(first['jaccard_permuted'])} when words of like exposure are permuted."
    )


def segments(tables: DriftTables) -> str:
    """Norm, cosine and drift of the segment rows at the last snapshot."""
    frame = lines_of(tables.frames["segments"], epoch=tables.epoch)
    rows: list[list[object]] = [
        [line["of"], line["statistic"].replace("_", " "), line["value"], line["unit"], line["note"]]
        for line in frame.to_dict("records")
    ]
    text = markdown.table(["of", "statistic", "value", "unit", "note"], rows)
    if len(rows) and not (frame["statistic"] == "cosine").any():
        text += "\n\nCosine, difference and mean are not applicable: the model has one segment row."
    return text
