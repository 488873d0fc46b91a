"""Question: does ``study --dry-run`` say how long a study then takes?

Hypothesis: within 25 %, start-up included, one run at a time and two, whatever the arms are.

    python experiments/benchmarks/dry_run.py
    python experiments/benchmarks/dry_run.py --data ../shared/data/sst2 --examples 2000 --repeats 3

Each study is estimated as the command does it, then its runs are carried out by the local executor (the report apart),
below a temporary folder. Without --data the built-in task polarity stands in; experiments/data.sha256 has the source,
licence and sha256 of SST-2. Exit status 1 when an estimate is further off than a quarter.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from toolkit import Comparison, Study
from toolkit.studies.executors import ExecutorOptions
from toolkit.studies.progress import makespan
from toolkit.studies.runner import EXECUTORS, make_jobs, plan_study
from toolkit.studies.trial import estimate

BOUND = 0.25
REGIMES: dict[str, dict[str, Any]] = {
    "full": {},
    "frozen embeddings": {"freeze": "embeddings"},
    "feature extraction": {"freeze": "backbone", "epochs": 3, "head_training": "epochs"},
}


def make_study(data: str | None, examples: int) -> Study:
    """Three regimes, two seeds."""
    files = {"train_file": f"{data}/train.tsv", "validation_file": f"{data}/dev.tsv"} if data else {"task": "polarity"}
    return Study(
        title="Dry run",
        question="How long?",
        arms=REGIMES,
        tasks={"data": files},
        seeds=range(2),
        comparisons=[Comparison("full", "feature extraction")],
        common={"epochs": 1, "max_train_examples": examples},
    )


def compare(study: Study, workers: int) -> tuple[float, float]:
    """Seconds that were estimated, and those that it took."""
    with tempfile.TemporaryDirectory() as folder:
        runs = plan_study(study, Path(folder)).final
        executor = EXECUTORS["local"](ExecutorOptions(workers=workers))
        seconds, _ = estimate(runs, executor, Path(folder), Console(quiet=True))
        estimated = makespan((seconds[run.name] for run in runs), workers)
        started = time.perf_counter()
        executor.run(make_jobs(runs), lambda event: None)
        taken = time.perf_counter() - started
        if unfinished := [run.name for run in runs if not run.is_finished]:
            sys.exit(f"{len(unfinished)} runs did not finish, {unfinished[0]} for one")
    return estimated, taken


def main() -> None:
    """Print every comparison; exit status 1 when one is beyond the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with train.tsv and dev.tsv (default: the built-in task polarity)")
    parser.add_argument("--examples", type=int, default=1000, help="training examples (default: 1000)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="runs at a time (default: 1 and 2)")
    parser.add_argument("--repeats", type=int, default=1, help="times each is compared (default: 1)")
    arguments = parser.parse_args()
    study, is_within = make_study(arguments.data, arguments.examples), True
    for workers in arguments.workers * arguments.repeats:
        estimated, taken = compare(study, workers)
        off = estimated / taken - 1
        is_within &= abs(off) <= BOUND
        print(f"{workers} at a time: estimated {estimated:.0f} s, took {taken:.0f} s: {off:+.0%}", flush=True)
    sys.exit(0 if is_within else 1)


if __name__ == "__main__":
    main()
