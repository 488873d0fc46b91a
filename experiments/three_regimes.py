"""Question: does it matter which parts of BERT are trained? Three regimes on two built-in tasks: a study of minutes.

It needs no data and no network: a first study to run, and a form to copy for one's own.

    python -m toolkit study experiments/three_regimes.py --dry-run
    python -m toolkit study experiments/three_regimes.py --out my_study
"""

from toolkit import Comparison, Study

STUDY = Study(
    title="Three regimes on two built-in tasks",
    question="Does it matter which parts of BERT are trained?",
    hypothesis=(
        "Feature extraction is as good where the label is in word identity (polarity) and fails where it is in word "
        "order; freezing only the embeddings costs nothing on either."
    ),
    arms={
        "full fine-tuning": {"freeze": "none"},
        "embeddings frozen": {"freeze": "embeddings"},
        "feature extraction": {
            "freeze": "backbone",
            "epochs": 30,
            "head_training": "epochs",
            "head_learning_rate": 5e-3,
        },  # cheap, and it needs them
    },
    tasks={"polarity": {"task": "polarity"}, "order": {"task": "order"}},
    common={"max_train_examples": 1000, "epochs": 3},
    seeds=range(3),
    margin_points=2.0,
    comparisons=[
        Comparison("full fine-tuning", "embeddings frozen"),
        Comparison("full fine-tuning", "feature extraction"),
    ],
)
