"""The split on which settings are chosen: a part of train, disjoint from the rest, and the only one that is scored."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import check_refused
from toolkit import finetune
from toolkit.config import RunConfig
from toolkit.data.tasks import load_task


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.75])
def test_train_and_selection_partition_what_was_train(fraction: float) -> None:
    whole = load_task(RunConfig(task="order", max_train_examples=200, seed=3))
    held = load_task(RunConfig(task="order", max_train_examples=200, seed=3, selection_fraction=fraction))
    assert (list(held.splits), held.reported_split) == (["train", "selection"], "selection")
    parts = [held.splits[name].ids for name in ("train", "selection")]
    assert (len(parts[1]), sorted(np.concatenate(parts))) == (round(200 * fraction), list(whole.splits["train"].ids))
    texts = dict(zip(whole.splits["train"].ids, whole.splits["train"].texts, strict=True))
    assert all(texts[i] == text for i, text in zip(parts[1], held.splits["selection"].texts, strict=True))


def test_the_seed_and_nothing_else_draws_it() -> None:
    def ids(**fields: Any) -> list[int]:
        return list(load_task(RunConfig(task="order", selection_fraction=0.2, **fields)).splits["selection"].ids)

    assert ids() == ids(freeze="backbone", learning_rate=1.0) != ids(seed=1)


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_an_empty_part_is_refused(fraction: float) -> None:
    check_refused(
        "leaves one part empty", load_task, RunConfig(task="order", max_train_examples=100, selection_fraction=fraction)
    )


def test_a_tuning_run_holds_no_trace_of_the_reported_split(tiny_config: RunConfig, tmp_path: Path) -> None:
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), selection_fraction=0.25, epochs=1))
    assert set(run.scores["split"]) == set(run.predictions["split"]) == {"selection"}
    assert set(run.manifest["task"]["splits"]) == {"train", "selection"}


@pytest.fixture
def repeating(tiny_files: Callable[[str], dict[str, Any]], tmp_path: Path) -> RunConfig:
    """Training repeats the whole validation split, from example 64 on."""
    files = tiny_files("polarity")
    lines = Path(files["validation_file"]).read_text().splitlines(keepends=True)[1:]
    (tmp_path / "train.tsv").write_text(Path(files["train_file"]).read_text() + "".join(lines))
    return RunConfig(**{**files, "train_file": str(tmp_path / "train.tsv")})


def test_near_duplicates_of_scored_items_leave_train_and_are_counted(repeating: RunConfig) -> None:
    kept = load_task(repeating)
    removed = load_task(replace(repeating, remove_near_duplicates=True))
    assert kept.num_near_duplicates is None
    assert removed.num_near_duplicates["validation"] >= 24
    assert max(removed.splits["train"].ids) < 64
    assert set(range(64, 88)) <= set(kept.splits["train"].ids)
    assert len(removed.splits["validation"]) == len(kept.splits["validation"]), "scored splits stay whole"


def test_no_setting_is_chosen_on_a_repeated_item_of_the_reported_split(repeating: RunConfig) -> None:
    reported = set(load_task(repeating).splits["validation"].texts)
    for is_removed, num_repeated in ((False, 24), (True, 0)):
        task = load_task(replace(repeating, selection_fraction=0.5, remove_near_duplicates=is_removed))
        assert len([text for split in task.splits.values() for text in split.texts if text in reported]) == num_repeated
    assert set(task.num_near_duplicates or ()) == {"validation", "ood", "selection"}
