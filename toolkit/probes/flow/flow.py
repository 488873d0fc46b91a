"""Checkpoints and runs in, all tables on where position goes out: the ledger, decoding and counterfactuals."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.comparison.arms import Labels
from toolkit.config import RunConfig, check_seed
from toolkit.models.classifier import Loaded
from toolkit.probes.flow.counterfactuals import NUM_TEXTS, measure_counterfactuals
from toolkit.probes.flow.decoding import decode_positions
from toolkit.probes.flow.design import NUM_BLOCKS, NUM_POSITIONS, cross
from toolkit.probes.flow.ledger import num_segments_of, position_ledger
from toolkit.probes.flow.replacements import SHIFT
from toolkit.probes.flow.sources import Subject, TextSource, open_subjects
from toolkit.probes.flow.stages import PLACE
from toolkit.probes.flow.tokens import NUM_TOKENS
from toolkit.progress import shows_progress
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.source_hashes import NO_FUNCTION
from toolkit.snapshots.store import Run, listed

Tables = dict[str, pd.DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How closely to look."""

    num_positions: int = NUM_POSITIONS
    """Positions of the crossed design."""
    num_blocks: int = NUM_BLOCKS
    """Blocks of tokens that it rotates."""
    shift: int = SHIFT
    """Rows by which the shifted counterfactual moves."""
    num_texts: int = NUM_TEXTS
    """Texts that the counterfactuals read."""
    num_tokens: int = NUM_TOKENS
    """Tokens, at most, that the decoding probe fits on, and is scored on."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)


@shows_progress("flow of position")
@with_columns
def measure_flow(
    places: Sequence[Run | str | Path],
    *,
    texts: Path | None = None,
    text_columns: tuple[str, ...] = (),
    task: str = RunConfig().task,
    labels: Labels | None = None,
    settings: Settings | None = None,
    on_subject: Callable[[str], None] | None = None,
) -> Tables:
    """Where position goes in every model named, and in the pretrained and a random one: a dict of four DataFrames.

    ``ledger`` (shares of the variance), ``decoding`` (bits that a linear probe reads), ``counterfactuals`` (what
    changes with other position rows) and ``models`` (what was looked at, and with what; one line per model).

    Models that compute the same (feature extraction is the pretrained body) are measured once. Columns whose names end
    in ``values`` hold one value per block or text (tuples), from which intervals over seeds and differences of models
    are made. ``labels``: run directory name to condition. ``on_subject`` hears the name of each before its turn.
    """
    named = [place.path if isinstance(place, Run) else place for place in listed(places)]
    settings = settings or Settings()
    parts: dict[str, list[pd.DataFrame]] = {}
    for source, subjects in open_subjects(named, texts=texts, text_columns=text_columns, task=task, labels=labels):
        known: dict[str, Tables] = {}
        for subject in subjects:
            if on_subject:
                on_subject(f"{subject.condition}: {subject.name} on {source.title}")
            for name, table in measure_subject(subject, source, settings, known).items():
                parts.setdefault(name, []).append(table)
    return {name: pd.concat(_with_rows(tables), ignore_index=True) for name, tables in parts.items()}


def measure_subject(subject: Subject, source: TextSource, settings: Settings, known: dict[str, Tables]) -> Tables:
    """The tables of one model; ``known``: those of bodies already measured on these texts, by hash, and kept there."""
    loaded = subject.load()
    key = _fingerprint(loaded)
    if key not in known:
        known[key] = _measure_body(loaded, source, settings)
    data, split = source.encode(loaded)
    found = measure_counterfactuals(
        loaded,
        data,
        split,
        has_head=subject.has_head,
        shift=settings.shift,
        num_texts=settings.num_texts,
        seed=settings.seed,
    )
    values = (subject.name, source.title, subject.condition, subject.seed)
    place: Mapping[str, object] = dict(zip(PLACE, values, strict=True))
    tables = {**known[key], "counterfactuals": found}
    tables["models"] = tables["models"].assign(has_head=subject.has_head, split=source.split, body=key)
    return {name: _placed(table, place)[columns_of(f"measure_flow.{name}")] for name, table in tables.items()}


def _measure_body(loaded: Loaded, source: TextSource, settings: Settings) -> Tables:
    """What needs no head."""
    design = cross(
        loaded,
        source.texts,
        num_segments=num_segments_of(loaded),
        num_positions=settings.num_positions,
        num_blocks=settings.num_blocks,
        seed=settings.seed,
    )
    data, split = source.encode(loaded)
    facts = {
        "family": loaded.family.name,
        "num_positions": design.num_positions,
        "num_contents": design.num_contents,
        "num_segments": design.num_arrangements,
        "num_sequences": design.num_sequences,
        "note": design.note,
    }
    return {
        "ledger": position_ledger(loaded, design, seed=settings.seed),
        "decoding": decode_positions(loaded, data, split, num_tokens=settings.num_tokens, seed=settings.seed),
        "models": pd.DataFrame([facts]),
    }


def _fingerprint(loaded: Loaded) -> str:
    """Eight hex digits of the sha256 over what a forward pass of the body is made of: weights, config and hooks."""
    backbone: Any = loaded.model.backbone
    fields = {name: value for name, value in backbone.config.to_dict().items() if name not in NO_FUNCTION}
    is_reinjected = bool((loaded.positions or {}).get("is_reinjected"))
    digest = hashlib.sha256(json.dumps([fields, is_reinjected], sort_keys=True, default=str).encode())
    for name, tensor in sorted(backbone.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:8]


def _placed(table: pd.DataFrame, place: Mapping[str, object]) -> pd.DataFrame:
    """The table with its place in front."""
    placed = table.copy()
    for i, (name, value) in enumerate(place.items()):
        placed.insert(i, name, pd.array([value] * len(placed), dtype="Int64") if name == "seed" else value)
    return placed


def _with_rows(tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    return [table for table in tables if len(table)] or list(tables[:1])
