"""A loaded classifier and a config in, the same with the position table that training is to start from out."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.config import RunConfig
from toolkit.lookup import lookup
from toolkit.models.classifier import Loaded
from toolkit.models.reinjection import reinject
from toolkit.sinusoid import sinusoidal_table
from toolkit.snapshots.capture import to_array
from toolkit.snapshots.files import sha256_of_array

Rows = NDArray[np.float32]


def prepare_positions(loaded: Loaded, config: RunConfig) -> Loaded:
    """Do what ``--positions`` and ``--reinject-positions`` ask, in place; what was done is in ``.positions``.

    Both act on the table that the run would have started from (with ``--init random`` a fresh one), before training
    and before anything is frozen. Rows below that of a text's first token (RoBERTa's padding row and what precedes it)
    stay. ValueError where the model has no position table, or the table cannot be had.
    """
    table = _find_table(loaded)
    if table is None:
        if flags := _flags(config):
            name = f"{loaded.source.name} ({loaded.family.name})"
            raise ValueError(f"{' '.join(flags)}: not applicable, {name} has no position table")
        return loaded
    before = to_array(table)
    first = loaded.position_offset
    num_reached = min(config.max_length, len(before) - first)
    if config.positions != "checkpoint":
        rows = position_rows(config.positions, before[first:], num_reached=num_reached, seed=config.seed)
        with torch.no_grad():
            table[first:] = torch.from_numpy(rows).to(table)
    if config.reinject_positions:
        reinject(loaded.model.backbone, loaded.family)
    return replace(loaded, positions=_describe(config, before, to_array(table), first, num_reached))


def position_rows(kind: str, rows: Rows, *, num_reached: int, seed: int = 0) -> Rows:
    """(rows, hidden) fp32: the rows that stand in for a checkpoint's position ``rows`` (of texts' first token on).

    ``checkpoint``: themselves. ``zero``: zeros. ``sinusoidal``: the table of Vaswani et al. 2017, times one number that
    gives its rows, which all have one norm, the root mean square norm of ``rows``: unscaled it would be a multiple of
    what the words beside it in the sum are, and drown them in the LayerNorm. ``shuffled``: the first ``num_reached``
    rows (those that texts of --max-length reach) in a random order in which none keeps its place, the rest as they
    are: had rows that no text reaches taken part, the LayerNorm would see norms that it never saw. The rules are ours.
    ValueError for an unknown kind, an odd hidden size (sinusoidal) or fewer than two rows (shuffled).
    """
    return lookup(POSITION_TABLES, kind, "positions")(rows, num_reached, seed)


def _sinusoidal(rows: Rows, num_reached: int, seed: int) -> Rows:
    table = sinusoidal_table(*rows.shape)
    size = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1).mean())
    scaled: Rows = (table * (size / np.sqrt(rows.shape[1] / 2))).astype(np.float32)
    return scaled


def _shuffled(rows: Rows, num_reached: int, seed: int) -> Rows:
    order = derangement(num_reached, seed)
    return np.concatenate([rows[:num_reached][order], rows[num_reached:]])


def derangement(num: int, seed: int = 0) -> NDArray[np.int64]:
    """(num,) a random permutation that leaves nothing in its place, each of them as likely; ValueError below two."""
    if num < 2:
        raise ValueError(f"--positions shuffled needs at least two rows to shuffle; --max-length reaches {num}")
    generator = np.random.default_rng([*b"positions", seed])
    while True:  # one draw in e is one
        order = generator.permutation(num)
        if not (order == np.arange(num)).any():
            return order


POSITION_TABLES: Mapping[str, Callable[[Rows, int, int], Rows]] = {
    "checkpoint": lambda rows, num_reached, seed: rows,
    "sinusoidal": _sinusoidal,
    "shuffled": _shuffled,
    "zero": lambda rows, num_reached, seed: np.zeros_like(rows),
}
"""What ``--positions`` takes: rows, how many of them texts reach, and a seed in; the rows instead out."""


def _find_table(loaded: Loaded) -> torch.nn.Parameter | None:
    name = loaded.family.embedding_parameters.get("position_embeddings")
    return dict(loaded.model.backbone.named_parameters()).get(name) if name else None


def _flags(config: RunConfig) -> list[str]:
    """The flags of a config that need a position table."""
    table = [] if config.positions == "checkpoint" else [f"--positions {config.positions}"]
    return table + (["--reinject-positions"] if config.reinject_positions else [])


def _describe(config: RunConfig, before: Rows, after: Rows, first: int, num_reached: int) -> dict[str, Any]:
    """What the manifest says: enough to see which table training started from, and which one it replaced."""
    return {
        "table": config.positions,
        "is_reinjected": config.reinject_positions,
        "first_row": first,
        "num_reached": num_reached,
        "checkpoint_sha256": sha256_of_array(before),
        "start_sha256": sha256_of_array(after),
    }
