"""A study file: its conditions, tasks, seeds, and the settings that each condition may try."""

import math
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from pathlib import Path
from typing import Any

from toolkit.config import RunConfig
from toolkit.naming import Described, mistyped, refuse_first, select, unknown
from toolkit.snapshots.formats import HEADLINES

NAME = "STUDY"
"""What a study file must define."""

OWN_FIELDS = ("seed", "max_train_examples", "output_dir", "overwrite")
"""Fields that a study sets itself for each of its runs; ``max_train_examples`` only where it has sizes."""


@dataclass(frozen=True)
class Comparison:
    """What a study compares: the score of ``first`` minus that of ``second``, both labels of ``conditions``."""

    first: str
    second: str


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    task: str
    condition: str
    seed: int
    size: int | None
    """Training examples, where the study has sizes."""
    stage: str
    """``tuning`` or ``final``."""
    setting: int | None
    """Index into the condition's grid; None without one."""
    config: RunConfig


@dataclass(frozen=True, kw_only=True, repr=False)
class Study(Described):
    """A question and the runs that answer it: conditions x tasks x seeds (x sizes), and what is compared.

    What makes a condition, a task or a setting is a dict of fields of :class:`toolkit.RunConfig`, which ``finetune.py
    --help`` lists. An optional grid tunes every condition with the same number of tries. ValueError, in one line, for a
    study that cannot be run.
    """

    title: str
    question: str
    hypothesis: str = ""
    """What was expected before anything was run."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Data set to where it comes from and under which licence, as the report says it."""
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Label of a condition to the RunConfig fields that make it."""
    arms: InitVar[Mapping[str, Mapping[str, Any]] | None] = None
    """Another name for ``conditions``, as trials call them."""
    tasks: Mapping[str, Mapping[str, Any]]
    """Name of a task to the RunConfig fields that read it."""
    seeds: Sequence[int]
    comparisons: Sequence[Comparison]
    margin_points: float = 1.0
    """Smaller differences, in hundredths of the score, do not matter; for all comparisons."""
    score: str | None = None
    """Score that runs are judged and settings chosen by, such as r2 or macro_f1; None: each task's own."""
    common: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every run; those of a task and then of a condition win over them."""
    sizes: Sequence[int] = ()
    """Numbers of training examples: each condition is run with each."""
    grid: Mapping[str, Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Mapping[str, Any]]]] = field(
        default_factory=dict
    )
    """Condition to the settings tried on each task, or to a dict of them by task (not every recipe of features suits
    every task); each gets the same number of tries on every task."""
    tuning_seeds: Sequence[int] = (1000,)
    """Seeds of the tuning runs; none of the study's own."""
    tuning: Mapping[str, Any] = field(default_factory=lambda: {"selection_fraction": 0.2})
    """Fields that tuning runs have besides: they score a part of train and nothing else."""

    def facts(self) -> dict[str, str]:
        """Its question, its conditions and tasks, and the number of runs."""
        lists = {"conditions": self.conditions, "tasks": self.tasks, "seeds": self.seeds, "sizes": self.sizes}
        lists_given = {name: ", ".join(map(str, values)) for name, values in lists.items() if values}
        runs = {"runs": str(len(self.final_cells({}))), "tuning runs": str(len(self.tuning_cells()))}
        return {"title": self.title, "question": self.question} | lists_given | runs

    def __post_init__(self, arms: Mapping[str, Mapping[str, Any]] | None) -> None:
        """ValueError, in one line, for a study that cannot be run."""
        if arms is not None:
            _require(not self.conditions, "arms is another name for conditions: give one of the two")
            object.__setattr__(self, "conditions", arms)
        for name in ("conditions", "tasks", "common", "grid", "tuning"):
            _require(isinstance(getattr(self, name), Mapping), f"{name} must be a dict; got {getattr(self, name)!r}")
        for owner in ("conditions", "tasks"):
            for name, settings in getattr(self, owner).items():
                _require(isinstance(settings, Mapping), f"{owner}[{name!r}] must be a dict of fields; got {settings!r}")
        for name in ("seeds", "sizes", "tuning_seeds", "comparisons"):
            values = getattr(self, name)
            is_list = isinstance(values, Sequence) and not isinstance(values, str)
            _require(is_list, f"{name} must be a list; got {values!r}")
        for entry in self.comparisons:
            _require(
                isinstance(entry, Comparison),
                f'comparisons must be Comparison("first condition", "second condition"); got {entry!r}',
            )
        faults = {
            "a study needs conditions, tasks and seeds": not (self.conditions and self.tasks and self.seeds),
            f"seeds are given twice: {list(self.seeds)}": len(set(self.seeds)) < len(self.seeds),
            f"sizes are given twice: {list(self.sizes)}": len(set(self.sizes)) < len(self.sizes),
            f"margin_points must be above 0 and finite; got {self.margin_points!r}": (
                not isinstance(self.margin_points, int | float) or not 0 < self.margin_points < math.inf
            ),
            unknown(str(self.score), "score", HEADLINES): self.score not in (None, *HEADLINES),
        }
        refuse_first(faults)
        compared_pairs = [frozenset((comparison.first, comparison.second)) for comparison in self.comparisons]
        for pair in compared_pairs:
            _require(len(pair) == 2, f"a condition is compared with itself: {', '.join(pair)}")
            _require(compared_pairs.count(pair) == 1, f"{' and '.join(sorted(pair))} are compared twice")
        conditions = [
            *(condition for entry in self.comparisons for condition in (entry.first, entry.second)),
            *self.grid,
        ]
        tasks = [task for settings in self.grid.values() if isinstance(settings, Mapping) for task in settings]
        for kind, names, known_names in (("condition", conditions, self.conditions), ("task", tasks, self.tasks)):
            select(known_names, names, kind)
        self._check_grid()
        self._check_fields()
        self.final_cells({})  # every config is built once, so that a mistake shows before anything runs

    def _check_grid(self) -> None:
        """ValueError unless tuning is fair: equal numbers of settings, seeds of its own, a part of train to score."""
        if not self.grid:
            return
        for task in self.tasks:
            tries = {condition: len(self.tries(task, condition)) for condition in self.conditions}
            _require(
                len(set(tries.values())) == 1 and min(tries.values()) > 0,
                f"on task {task!r} every condition needs the same number of settings in the grid (equal budgets); got "
                + ", ".join(f"{condition}: {count}" for condition, count in tries.items()),
            )
        _require(
            bool(self.tuning_seeds) and not set(self.tuning_seeds) & set(self.seeds),
            f"tuning_seeds must be given and differ from seeds; both hold {set(self.tuning_seeds) & set(self.seeds)}",
        )
        _require(
            0 < self.tuning.get("selection_fraction", 0) < 1,
            "tuning must set selection_fraction: settings are chosen on a part of train, never on the reported split",
        )

    def _check_fields(self) -> None:
        """ValueError for a field that RunConfig lacks, that the study sets itself, or that is for tuning alone."""
        names = tuple(config_field.name for config_field in fields(RunConfig))
        settings_of_owners = (
            [("common", self.common), ("tuning", self.tuning)]
            + [(f"condition {condition!r}", values) for condition, values in self.conditions.items()]
            + [(f"task {task!r}", values) for task, values in self.tasks.items()]
        )
        settings_of_owners += [
            (f"the grid of condition {condition!r}", setting)
            for condition in self.grid
            for task in self.tasks
            for setting in self.tries(task, condition)
        ]
        for owner, values in settings_of_owners:
            for name in values:
                nearest = mistyped(name, "field", names)
                _require(name in names, f"{owner}: {nearest}; finetune.py --help lists the fields")
                is_owned = name in OWN_FIELDS and (name != "max_train_examples" or bool(self.sizes))
                _require(
                    not is_owned, f"{name} is set by the study itself: leave it out of conditions, tasks and common"
                )
                is_held_out = name == "selection_fraction" and values is not self.tuning
                _require(
                    not is_held_out, "selection_fraction is for tuning alone: a final run would score nothing else"
                )

    def tries(self, task: str, condition: str) -> Sequence[Mapping[str, Any]]:
        """The settings of a condition that are tried on a task; none without a grid."""
        settings = self.grid.get(condition, ())
        return settings.get(task, ()) if isinstance(settings, Mapping) else settings

    def settings_of(self, task: str, condition: str) -> list[dict[str, Any]]:
        """Per try of a condition on a task, the value of every field that its grid names, whoever sets it."""
        tries = self.tries(task, condition)
        names = dict.fromkeys(name for setting in tries for name in setting)
        configs = [
            self._cell(task, condition, 0, None, "tuning", index, tried).config for index, tried in enumerate(tries)
        ]
        return [{name: getattr(config, name) for name in names} for config in configs]

    def tuning_cells(self) -> list[Cell]:
        """Every setting of every condition on every task, for each tuning seed; with sizes, at the greatest of them."""
        size = max(self.sizes, default=None)
        return [
            self._cell(task, condition, seed, size, "tuning", index, {**setting, **self.tuning})
            for task in self.tasks
            for condition in self.grid
            for index, setting in enumerate(self.tries(task, condition))
            for seed in self.tuning_seeds
        ]

    def final_cells(self, chosen: Mapping[tuple[str, str], int]) -> list[Cell]:
        """The runs that are compared; ``chosen``: (task, condition) to the index of a setting, the first where absent.

        Seeds come before conditions, so that an interrupted study holds paired runs.
        """
        cells = []
        for task in self.tasks:
            for seed in self.seeds:
                for size in self.sizes or (None,):
                    for condition in self.conditions:
                        settings = self.tries(task, condition)
                        index = chosen.get((task, condition), 0) if settings else None
                        setting = settings[index] if settings and index is not None else {}
                        cells.append(self._cell(task, condition, seed, size, "final", index, setting))
        return cells

    def _cell(
        self,
        task: str,
        condition: str,
        seed: int,
        size: int | None,
        stage: str,
        index: int | None,
        setting: Mapping[str, Any],
    ) -> Cell:
        """One run of the study: fields of a setting win over the condition's, those over the task's and the common."""
        values = {**self.common, **self.tasks[task], **self.conditions[condition], **setting, "seed": seed}
        if size is not None:
            values["max_train_examples"] = size
        return Cell(task, condition, seed, size, stage, index, RunConfig(**values))


def load_study(path: str | Path) -> Study:
    """Run a study file and take its ``STUDY``; ValueError, in one line, when there is none or it cannot be run."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no study file at {path}")
    try:
        study = runpy.run_path(str(path)).get(NAME)
    except ValueError:
        raise
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    if not isinstance(study, Study):
        defined = "nothing" if study is None else f"a {type(study).__name__}"
        raise ValueError(f"{path} must define {NAME} = toolkit.Study(...); it defines {defined} of that name")
    return study


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        raise ValueError(message)
