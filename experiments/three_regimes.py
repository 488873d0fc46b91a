"""Question: does it matter which parts of BERT are trained? Three regimes, three seeds, one built-in task: `make demo`.

It needs no data and no network: a first study to run, and a form to copy for one's own.

    python -m toolkit study experiments/three_regimes.py --dry-run
    python -m toolkit study experiments/three_regimes.py --workers 2 --out my_study
"""

from toolkit import Comparison, Study

STUDY = Study(
    title="Three ways to train minilm on word order",
    question="Do the embeddings move, and does it matter?",
    hypothesis="Freezing only the embeddings costs nothing; feature extraction, which reads no word order well, does.",
    conditions={
        "full fine-tuning": {"freeze": "none"},
        "embeddings frozen": {"freeze": "embeddings"},
        "feature extraction": {"freeze": "backbone", "head_training": "early-stopping"},
    },
    tasks={"order": {"task": "order"}},
    common={"max_train_examples": 1000, "epochs": 2},
    seeds=range(3),
    margin_points=1.0,
    comparisons=[
        Comparison("full fine-tuning", "embeddings frozen"),
        Comparison("full fine-tuning", "feature extraction"),
    ],
)
