"""Tables as arrays in, what the gauge makes of them out: a corpus, W', P', S' and m, and the gauge share."""

from types import SimpleNamespace

import numpy as np

from toolkit.analysis.gauge import measure_centres, project, sum_drifts
from toolkit.analysis.tokens_in_use import ReferenceCorpus, label_groups
from toolkit.snapshots.snapshot import Snapshot


def corpus_of(frequencies, design=None) -> ReferenceCorpus:
    """A corpus from arrays: table to (rows,) counts of tokens; inseparable rows only as a design tells."""
    shares = {name: np.asarray(values, np.float64) / np.sum(values) for name, values in frequencies.items()}
    groups = {name: np.where(values > 0, 0, -1) for name, values in shares.items()}
    if design is not None:
        groups = label_groups(design, {name: len(values) for name, values in shares.items()})
    return ReferenceCorpus(shares, groups, design, "given", "")


def fix_gauge(tables, corpus) -> SimpleNamespace:
    """``tables``: W', P', S', NaN in rows that the corpus never uses; ``offset``: m. Πe_x = w'_i + p'_j + s'_k + m."""
    centre = measure_centres([Snapshot(0, 0, tables)], corpus)[0]
    fixed = {}
    for name in corpus.tables:
        used = corpus.frequencies[name] > 0
        fixed[name] = np.full(np.shape(tables[name]), np.nan)
        fixed[name][used] = centre.fix(name, project(tables[name][used]), corpus.groups[name][used])
    return SimpleNamespace(tables=fixed, offset=centre.offset)


def gauge_share(reference, current, corpus) -> float:
    snapshots = [Snapshot(0, 0, reference), Snapshot(1, 0, current)]
    return sum_drifts(snapshots, measure_centres(snapshots, corpus), corpus)[0].gauge_share
