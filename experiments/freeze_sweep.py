"""Question: how much of BERT must be trained? Embeddings and the first k layers frozen, for every k.

From nothing frozen over the embeddings, the embeddings and one layer, two, ... to the whole backbone (feature
extraction). Each arm is compared with full fine-tuning; the report says which differences are sure.

    python -m toolkit study experiments/freeze_sweep.py --dry-run
    python -m toolkit study experiments/freeze_sweep.py

Relative quality, each arm's score as a share of full fine-tuning's with its interval, printed and, with OUT, written
as a report with a figure (the runs of the study alone, whatever else lies in the folder):

    python experiments/freeze_sweep.py runs reports/freeze_sweep/relative_quality
"""

import sys
from pathlib import Path
from typing import Any

from toolkit import Comparison, Study

NUM_LAYERS = 6
"""Of the embedded model."""
FULL = "nothing frozen"
ARMS = {
    FULL: "none",
    "embeddings": "embeddings",
    **{f"embeddings and {k} layer{'s' * (k > 1)}": f"embeddings,layers.0-{k - 1}" for k in range(1, NUM_LAYERS)},
    "backbone": "backbone",  # with mean pooling the embeddings and all layers are all of it
}

STUDY = Study(
    title="Freeze sweep",
    question="How much of minilm, a BERT of six layers, must be trained?",
    hypothesis=(
        "On polarity freezing costs little whatever k is; on order and pair quality holds while the top two layers are "
        "trained, and falls towards feature extraction after that."
    ),
    arms={label: {"freeze": regime} for label, regime in ARMS.items()},
    tasks={"polarity": {"task": "polarity"}, "order": {"task": "order"}, "pair": {"task": "pair"}},
    common={"max_train_examples": 1000, "epochs": 3, "head_training": "epochs"},
    seeds=range(3),
    margin_points=2.0,
    comparisons=[Comparison(FULL, label) for label in ARMS if label != FULL],
)


CAVEATS = (
    "One learning rate and three epochs for every arm, none tuned: an arm that trains little may be behind because it "
    "was trained too shortly. For the head alone that is known: with 30 epochs at a tuned rate it is 18 points behind "
    "full fine-tuning on order, not 46 (reports/feature_extraction_vs_finetuning).",
    "The built-in tasks are controlled and small, and full fine-tuning is near their ceiling in distribution.",
    "The embedded model minilm (all-MiniLM-L6-v2) is a BERT that was tuned on single sentences: no claim about raw "
    "BERT.",
    "Three seeds; that an arm is not told apart from the reference is no proof that it is as good.",
)


def main(runs: str, out: str | None = None) -> None:
    """Print the relative quality of the study's finished runs below ``runs``; write its report into ``out``."""
    from toolkit.naming import shown_path
    from toolkit.reporting.folder import check_out, write_page
    from toolkit.studies.plan import plan_runs

    if out:
        check_out(out)
    planned = plan_runs(STUDY.final_cells({}), runs)
    finished = [run for run in planned if run.is_finished]
    if not finished:
        sys.exit(f"no finished run of the study below {runs}: run it first (see the top of {Path(__file__).name})")
    from relative_quality import relative_page, relative_quality  # the file beside this one

    table = relative_quality([run.path for run in finished], FULL, labels={run.name: run.cell.arm for run in finished})
    shown = ["task", "split", "condition", "num_seeds", "relative_quality", "low", "high", "majority_quality", "reason"]
    print(table[shown].to_string(index=False, float_format="{:.3f}".format))
    if out:
        left = len(planned) - len(finished)
        caveats = [
            *CAVEATS,
            *_ceilings(finished),
            *([f"{left} of {len(planned)} runs of the study are missing."] if left else []),
        ]
        script = "experiments/freeze_sweep.py"
        command = f"python -m toolkit study {script}\npython {script} runs {shown_path(out)}"
        title = f"{STUDY.title}: {STUDY.question[0].lower()}{STUDY.question[1:]}"
        page = relative_page(table, title=title, command=command, caveats=caveats)
        print(f"Report: {write_page(page, out, {'relative_quality': table}, float_format='%.10g')}")


def _ceilings(finished: list[Any]) -> list[str]:
    """What the best linear head reaches on the features of feature extraction, beside what its trained head does."""
    from toolkit.comparison.runs import last_score, read_reported
    from toolkit.snapshots.store import open_run

    found: dict[str, list[tuple[float, float]]] = {}
    for run in (read_reported(open_run(one.path), one.name) for one in finished if one.cell.arm == "backbone"):
        split = run.reported_split
        best = run.linear_probe.get(split, {}).get(run.score)
        if best is not None:
            found.setdefault(f"{run.task}, {split}", []).append((best, last_score(run, split)))
    means = {place: [sum(side) / len(side) for side in zip(*pairs, strict=True)] for place, pairs in found.items()}
    return [
        f"{place}: cross-validation finds a linear head that reaches {best:.3f} on the features of backbone, "
        f"whose trained head reaches {own:.3f}."
        for place, (best, own) in means.items()
    ]


if __name__ == "__main__":
    import tyro

    from toolkit.cli import guarded

    raise SystemExit(guarded(lambda: tyro.cli(main, config=(tyro.conf.Positional,))))
