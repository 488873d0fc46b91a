"""Question: how much of BERT must be trained? Embeddings and the first k layers frozen, for every k.

From nothing frozen over the embeddings, the embeddings and one layer, two, ... to the whole backbone (feature
extraction). Each arm is compared with full fine-tuning; the report says which differences are sure.

    python -m toolkit study experiments/freeze_sweep.py --dry-run
    python -m toolkit study experiments/freeze_sweep.py

Relative quality, each arm's score as a share of full fine-tuning's with its interval, printed and, with OUT, written
as a CSV file (the runs of the study alone, whatever else lies in the folder):

    python experiments/freeze_sweep.py runs [OUT.csv]
"""

import sys
from pathlib import Path

from toolkit import Study
from toolkit.studies.study import Comparison

NUM_LAYERS = 6
"""Of the embedded model."""
FULL = "nothing frozen"


def frozen_up_to(k: int) -> str:
    """The regime that freezes the embeddings and the first ``k`` layers."""
    return "embeddings" if k == 0 else f"embeddings,layers.0-{k - 1}"


ARMS = {FULL: "none", "embeddings": "embeddings"}
ARMS |= {f"embeddings and {k} layer{'s' if k > 1 else ''}": frozen_up_to(k) for k in range(1, NUM_LAYERS)}
ARMS |= {"backbone": "backbone"}  # with mean pooling the embeddings and all layers are all of it

STUDY = Study(
    title="Freeze sweep",
    question="How much of BERT must be trained?",
    hypothesis=(
        "On polarity freezing costs little whatever k is; on order and pair quality holds while the top two layers are "
        "trained, and falls towards feature extraction after that."
    ),
    arms={label: {"freeze": regime} for label, regime in ARMS.items()},
    tasks={"polarity": {"task": "polarity"}, "order": {"task": "order"}, "pair": {"task": "pair"}},
    common={"max_train_examples": 1000, "epochs": 3},
    seeds=range(3),
    margin_points=2.0,
    comparisons=[Comparison(FULL, label) for label in ARMS if label != FULL],
)


def main(runs: str, out: str | None = None) -> None:
    """Print the relative quality of the study's finished runs below ``runs``; write it to ``out``."""
    from toolkit.analysis.comparison.relative import relative_quality
    from toolkit.studies.plan import plan_runs

    finished = [run for run in plan_runs(STUDY.final_cells({}), runs) if run.is_finished]
    if not finished:
        sys.exit(f"no finished run of the study below {runs}: run it first (see the top of {Path(__file__).name})")
    labels = {run.name: run.cell.arm for run in finished}
    table = relative_quality([run.path for run in finished], FULL, labels=labels)
    shown = ["task", "split", "arm", "num_seeds", "relative_quality", "low", "high", "majority_quality", "note"]
    print(table[shown].to_string(index=False, float_format="{:.3f}".format))
    if out:
        table.to_csv(out, index=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
