"""Tasks: named splits of texts and encoded labels, whatever source they come from."""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.config import MLM, RunConfig
from toolkit.data.builtin import BUILTIN_TASKS, BUILTIN_TOKEN_TASKS, OUT_OF_DISTRIBUTION, BuiltinTask
from toolkit.data.duplicates import near_duplicates
from toolkit.data.files import GLUE, check_file, read_dataset, read_file, read_glue
from toolkit.data.labels import (
    MANY,
    SHOWN_ROWS,
    RawSplit,
    RawTask,
    encode_labels,
    has_entities,
    hold_out,
    partly_missing,
    rows_without,
)
from toolkit.data.splits import Kind, Split, Task, flat
from toolkit.data.tokens import UNTAGGED, by_example, encode_tags
from toolkit.naming import cut, first_few, lookup, refuse_first, unknown
from toolkit.progress import shows_progress
from toolkit.snapshots.files import sha256_of_file

LONGEST = 40
"""Letters of a text that a warning quotes."""

SELECTION = "selection"
"""The split that --selection-fraction holds out of train."""


def _read_builtin(task: BuiltinTask) -> RawTask:
    return RawTask(task.build(), task.label_names, carrier=task.carrier, out_of_distribution=OUT_OF_DISTRIBUTION)


HALF = re.compile("[\ud800-\udfff]")
"""Half a character, which JSON can escape alone and no file can hold."""
REPEATED_SHARE = 0.01
"""Of the rows of train: where more of them repeat an earlier one, that is said."""
RARE = 5
"""With fewer training examples a class is said to be rare."""

TASKS: Mapping[str, Callable[[], RawTask]] = {
    **{name: partial(_read_builtin, task) for name, task in {**BUILTIN_TASKS, **BUILTIN_TOKEN_TASKS}.items()},
    **{name: partial(read_glue, name) for name in GLUE},
}
"""Task name to the function that reads its splits."""


@shows_progress("reading data")
def load_task(config: RunConfig) -> Task:
    """Read, check and encode the task of a config; ValueError, in one line, for anything that cannot be trained on."""
    check_sources(config)
    hashes: dict[str, str] = {}
    label_column = None if config.objective == MLM else config.label_column
    if config.train_file:
        paths = file_roles(config)
        splits = {
            role: read_file(path, config.text_columns, label_column, config.tsv_quotes, config.cluster_column)
            for role, path in paths.items()
        }
        raw = RawTask(splits, out_of_distribution=tuple(entry.partition("=")[0] for entry in config.ood_file))
        hashes = {k: sha256_of_file(path) if path.is_file() else splits[k].sha256() for k, path in paths.items()}
    elif config.dataset:
        columns = config.text_columns, label_column
        raw = read_dataset(config.dataset, config.dataset_config, *columns, config.tsv_quotes, config.cluster_column)
    else:
        raw = TASKS[config.task]()
    if config.objective == MLM:
        texts = {
            k: RawSplit(own.texts, None, taken_from=own.taken_from.partition("; ")[0], clusters=own.clusters)
            for k, own in raw.splits.items()
        }
        raw = replace(raw, splits=texts, carrier=None)
    name = task_name(config)
    return _build(f"{name} (masked LM)" if config.objective == MLM else name, raw, hashes, config)


NEEDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("task_name", "text_columns", "label_column"), ("train_file", "dataset")),
    **dict.fromkeys(("label_kind", "tsv_quotes", "cluster_column"), ("train_file", "dataset")),
    **dict.fromkeys(("validation_file", "test_file", "ood_file"), ("train_file",)),
    "dataset_config": ("dataset",),
}
"""Field of a config to those one of which says what data it is about."""


def check_sources(config: RunConfig) -> None:
    """ValueError for what shows before any data or model is read: a name of no task, a file that is not there, a flag
    without the data that it is about."""
    if config.train_file and config.dataset:
        raise ValueError("--train-file and --dataset are two sources of data: pass one of them")
    for name, sources in NEEDS.items():
        if getattr(config, name) != getattr(RunConfig(), name) and not any(getattr(config, own) for own in sources):
            flags = (f"--{own.replace('_', '-')}" for own in (name, *sources))
            raise ValueError(f"{next(flags)} goes with {' or '.join(flags)}: it would be ignored")
    task_name(config)  # for its ValueError alone: a name that is taken, or --task beside data of one's own
    if config.train_file:
        for path in file_roles(config).values():
            check_file(path)
    elif not config.dataset and config.task == MLM:
        raise ValueError(
            "--task mlm learns from texts of your own: pass --train-file or --dataset, or --task polarity --objective "
            "mlm for the texts of a built-in task"
        )
    elif not config.dataset:
        lookup(TASKS, config.task, "task")  # for its ValueError alone


def task_name(config: RunConfig) -> str:
    """The name that tables show: that of the task, the dataset, or of the training file (its folder's if generic)."""
    if config.train_file:
        path = Path(config.train_file)
        stem = Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem
        name = path.resolve().parent.name if stem in ("train", "training", "all") else stem
    elif config.dataset:
        name = config.dataset.partition("@")[0].split("/")[-1]
        name = "-".join(part for part in (name, config.dataset_config) if part)
    else:
        return config.task
    name = config.task_name or name
    if config.objective != MLM and name == MLM:
        raise ValueError(f"{MLM} is what --task calls masked-LM training: give your data another --task-name")
    if config.task not in (RunConfig().task, MLM, name):
        raise ValueError(f"--task {config.task} and data of your own are two sources of data: leave --task out")
    return name


def file_roles(config: RunConfig) -> dict[str, Path]:
    """Role to path of each data file of a config."""
    if not config.validation_file:
        raise ValueError("--train-file needs --validation-file: rows to score, split off from those to train on")
    assert config.train_file is not None
    roles = {"train": Path(config.train_file), "validation": Path(config.validation_file)}
    for flag, entries in (("--test-file", config.test_file), ("--ood-file", config.ood_file)):
        for entry in entries:
            name, path = named_path(flag, entry, roles)
            roles[name] = path
    return roles


def named_path(flag: str, entry: str, taken: Collection[str]) -> tuple[str, Path]:
    """What a flag's ``NAME=PATH`` names; ValueError for another entry, and for a name that is taken."""
    name, _, path = entry.partition("=")
    faults = {
        f"{flag} takes NAME=PATH, got {entry!r}": not (name and path),
        f"{flag}: the name {name!r} is taken; choose another": name in taken,
    }
    refuse_first(faults)
    return name, Path(path)


def _build(name: str, raw: RawTask, hashes: Mapping[str, str], config: RunConfig) -> Task:
    refuse_first(
        {f"split {split_name!r} of {name} is empty": not split.texts for split_name, split in raw.splits.items()}
    )
    train = raw.splits["train"]
    if train.labels is None and train.columns:
        raise ValueError(
            f"split 'train' has no labels: {unknown(config.label_column, '--label-column', train.columns)}"
        )
    # All at once: who mends a table wants to do it in one go.
    faults = [
        *(line for split_name, split in raw.splits.items() for line in text_faults(split_name, split.texts)),
        *(
            line
            for split_name, split in raw.splits.items()
            if not split.words
            for line in partly_missing(split_name, rows_without(split.labels), split.labels)
        ),
    ]
    if faults:
        raise ValueError(f"{'; '.join(faults)}: fill them or drop the rows ({COUNTED})")
    for split_name, split in raw.splits.items():
        warn_of_one_text(split_name, split.texts)
    kind, label_names, labels = _encode(name, raw, config)
    splits = {
        k: Split(
            np.arange(len(s.texts)),
            tuple(s.texts),
            labels[k],
            None if s.words is None else tuple(s.words),
            _clusters(k, s, config),
        )
        for k, s in raw.splits.items()
    }
    reported = next(k for k in splits if k.startswith("validation"))
    if config.max_train_examples is not None:
        num_drawn = min(config.max_train_examples, len(splits["train"]))
        _, splits["train"] = hold_out(splits["train"], num_drawn, [config.seed, 1])
        drawn = splits["train"].labels
        if drawn is not None and len(np.unique(flat(drawn))) == 1:
            raise ValueError(f"the {len(splits['train'])} training examples drawn have one label only: draw more")
    removed: dict[str, int] | None = {} if config.remove_near_duplicates else None
    _warn_of_repeats(splits, is_train_cleared=removed is not None)
    _warn_of_repeats_in_train(splits["train"])
    if removed is not None:
        scored = {name: split for name, split in splits.items() if name != "train"}
        splits["train"], removed = remove_near_duplicates(splits["train"], scored)
    if config.selection_fraction:  # after that: settings must not be chosen on items of another split either
        splits, reported = _hold_out(splits["train"], config), SELECTION
        if removed is not None:
            splits["train"], also = remove_near_duplicates(splits["train"], {SELECTION: splits[SELECTION]})
            removed |= also
    if kind == "classification" and len(splits["train"]) >= MANY:
        _warn_of_rare_classes(splits["train"], label_names)
    if config.shuffle_labels:
        splits["train"] = _shuffle_labels(splits["train"], labels["train"], config)
    headline = "f1" if kind == "tokens" and has_entities(label_names) else "accuracy"
    return Task(
        name=name,
        kind=kind,
        label_names=label_names,
        splits=splits,
        reported_split=reported,
        score="accuracy" if kind == "masked" else raw.score or ("pearson" if kind == "regression" else headline),
        file_hashes=hashes,
        split_hashes=raw.hashes,
        commits=raw.commits,
        carrier=raw.carrier,
        out_of_distribution=tuple(k for k in raw.out_of_distribution if k in splits),
        num_near_duplicates=removed,
        taken_from=train.taken_from,
        clusters_of=config.cluster_column or "first text",
    )


def _warn_of_repeats(splits: Mapping[str, Split], *, is_train_cleared: bool) -> None:
    """A warning for each scored split of which rows stand in train, unless that is cleared of them, and for two that
    are one."""
    known = set(splits["train"].texts)
    for name, split in splits.items():
        num_repeats = sum(texts in known for texts in split.texts)
        if num_repeats and name != "train" and not is_train_cleared:
            told = f"{num_repeats:,} of {len(split):,} rows of {name!r} stand in train word for word"
            warnings.warn(f"{told}: --remove-near-duplicates takes such rows out of train", stacklevel=2)
    for (name, split), (other_name, other) in combinations(list(splits.items())[1:], 2):
        if split.texts == other.texts:
            warnings.warn(f"the splits {name!r} and {other_name!r} hold the same texts", stacklevel=2)


def _warn_of_repeats_in_train(train: Split) -> None:
    """A warning where rows of train stand there twice, and where a text does with several labels."""
    if train.labels is None or train.words is not None:
        return
    labelled_texts = dict.fromkeys(zip(train.texts, train.labels.tolist(), strict=True))  # each once, in their order
    num_repeats = len(train) - len(labelled_texts)
    if num_repeats > REPEATED_SHARE * len(train):
        told = f"{num_repeats:,} of {len(train):,} rows of train are an earlier one again, with its label"
        warnings.warn(told, stacklevel=2)
    num_labels = Counter(texts for texts, _ in labelled_texts)
    if several := [" | ".join(texts) for texts, number in num_labels.items() if number > 1]:
        others = " and others" if len(several) > 1 else ""
        told = f"{len(several):,} texts stand in train with several labels: {cut(several[0], LONGEST)!r}{others}"
        warnings.warn(told, stacklevel=2)


def _warn_of_rare_classes(train: Split, label_names: tuple[str, ...]) -> None:
    counts = np.bincount(np.asarray(train.labels), minlength=len(label_names))
    if rare := [f"{name}: {num}" for name, num in zip(label_names, counts, strict=True) if num < RARE]:
        warnings.warn(
            f"classes with fewer than {RARE} rows in train can hardly be learned: {first_few(rare)}", stacklevel=2
        )


def _clusters(name: str, split: RawSplit, config: RunConfig) -> NDArray[np.int64] | None:
    """(examples,) numbers of clusters by --cluster-column, or of pairs by the first text; None where all differ.

    ValueError for a split whose labels are scored and that lacks the column.
    """
    ids, has_answers = split.clusters, split.labels is not None or config.objective == MLM
    if config.cluster_column and ids is None and has_answers and (name != "train" or config.selection_fraction):
        raise ValueError(f"split {name!r}: {unknown(config.cluster_column, 'column', split.columns)}")
    if ids is None and len(split.texts[0]) == 2:
        ids = [first for first, _ in split.texts]
    numbers = {own: i for i, own in enumerate(dict.fromkeys(ids or []))}
    return np.array([numbers[own] for own in ids]) if ids and len(numbers) < len(ids) else None


def _encode(
    name: str, raw: RawTask, config: RunConfig
) -> tuple[Kind, tuple[str, ...], Mapping[str, NDArray[Any] | None]]:
    """The kind of a task, the names of its labels, and the encoded labels of each split."""
    if config.objective == MLM:
        return "masked", (), dict.fromkeys(raw.splits)
    with_words = [split_name for split_name, split in raw.splits.items() if split.words is not None]
    if with_words and len(with_words) < len(raw.splits):
        others = ", ".join(split_name for split_name in raw.splits if split_name not in with_words)
        raise ValueError(f"{', '.join(with_words)} of {name} hold words with tags, {others} texts: one kind for all")
    names = raw.label_names or raw.splits["train"].names
    named = {k: split.named_as(names) for k, split in raw.splits.items()}
    if with_words:
        return "tokens", *encode_tags(named, names, config.label_kind)
    return encode_labels({k: s.labels for k, s in named.items()}, names, config.label_kind)


def remove_near_duplicates(train: Split, scored: Mapping[str, Split]) -> tuple[Split, dict[str, int]]:
    """The training split without examples that nearly repeat an item of any scored split; ValueError when none stays.

    Returned are the examples that stay, in their old order with their old ids, and per scored split how many of the
    given training examples nearly repeat one of its items (an example that repeats items of two splits counts in both).
    """
    repeats = {name: near_duplicates(train.texts, split.texts) for name, split in scored.items()}
    stays = ~np.any(list(repeats.values()), axis=0)
    if not stays.any():
        raise ValueError(
            f"every one of the {len(train)} training examples nearly repeats an example of {', '.join(scored)}: "
            "are these the same data? Give other files or keep near-duplicates"
        )
    return train.take(np.flatnonzero(stays)), {name: int(repeated.sum()) for name, repeated in repeats.items()}


def _shuffle_labels(train: Split, every: NDArray[Any] | None, config: RunConfig) -> Split:
    """The same texts with labels that are related to them by chance alone.

    With a label seed the labels of the whole split as it was read, ``every``, are permuted once, whatever part of it a
    run draws: runs of other seeds draw other examples, and an example that two of them share must have one label.
    Without one the run's own labels are permuted with its seed, and their counts stay as they were.
    """
    if train.labels is None or every is None:
        return train
    if config.label_seed is None:
        return replace(train, labels=_permuted(train.labels, config.seed))
    labels = _permuted(every, config.label_seed)[train.ids]
    if len(np.unique(flat(labels))) == 1:
        raise ValueError(
            f"--label-seed {config.label_seed} gives all {len(train)} training examples one label: take another seed, "
            "or draw more examples"
        )
    return replace(train, labels=labels)


def _permuted(labels: NDArray[Any], seed: int) -> NDArray[Any]:
    """(examples,) the labels in random order; of a token task the tags of all words, whatever example they are in."""
    generator = np.random.default_rng([seed, 3])
    if labels.dtype != object:
        return generator.permutation(labels)
    tags = np.concatenate(labels)
    tags[tags != UNTAGGED] = generator.permutation(tags[tags != UNTAGGED])
    return by_example(tags, labels)


def _hold_out(train: Split, config: RunConfig) -> dict[str, Split]:
    """Train and ``selection``, drawn with the run's seed; no other split, so that no choice can see one."""
    num_held = round(config.selection_fraction * len(train))
    if not 0 < num_held < len(train):
        raise ValueError(
            f"--selection-fraction {config.selection_fraction} of {len(train)} training examples leaves one part empty"
        )
    return dict(zip(("train", SELECTION), hold_out(train, num_held, [config.seed, 2]), strict=True))


COUNTED = "counted from 1, without a header"


def text_faults(split_name: str, texts: list[tuple[str, ...]]) -> list[str]:
    """A line for each fault that texts have, with their rows: one that is missing or that no file can hold, or none but
    empty ones."""
    kinds: dict[str, Callable[[tuple[str, ...]], bool]] = {
        "a text is missing (NaN)": lambda example: not all(isinstance(x, str) for x in example),
        "a text holds half a character (a lone surrogate)": lambda example: any(
            isinstance(x, str) and HALF.search(x) for x in example
        ),
        "the text is empty": lambda example: not any(not isinstance(x, str) or x.strip() for x in example),
    }
    rows = {fault: [str(i) for i, example in enumerate(texts, 1) if is_so(example)] for fault, is_so in kinds.items()}
    return [f"split {split_name!r}, row {first_few(own, SHOWN_ROWS)}: {fault}" for fault, own in rows.items() if own]


def check_texts(split_name: str, texts: list[tuple[str, ...]]) -> None:
    """ValueError for any of :func:`text_faults`; see :func:`warn_of_one_text` too."""
    refuse_first({f"{line}: fill it or drop the row ({COUNTED})": True for line in text_faults(split_name, texts)})
    warn_of_one_text(split_name, texts)


def warn_of_one_text(split_name: str, texts: list[tuple[str, ...]]) -> None:
    """A warning where most texts are one, as where they were withheld."""
    for often, count in Counter(texts).most_common(1):
        if len(texts) >= MANY and 2 * count > len(texts):
            told = f"{count:,} of {len(texts):,} texts are {cut(' | '.join(often), LONGEST)!r}"
            warnings.warn(f"split {split_name!r}: {told}: withheld?", stacklevel=2)
