"""Question: is what this repository found of a small tuned BERT true of bert-base-uncased as it was pretrained?

Three regimes, five seeds, on two tasks of GLUE. It asks the hub for the model and the data and wants a GPU: it was not
run here, where there is no network, and no finding of this repository is of a raw English BERT.

    python -m toolkit study experiments/raw_english_bert.py
"""

from toolkit import Comparison, Study

STUDY = Study(
    title="Feature extraction against fine-tuning of bert-base-uncased",
    question="Is feature extraction as good as fine-tuning, and does the drift of the embeddings matter?",
    hypothesis="As with minilm: freezing the embeddings costs next to nothing, feature extraction several points.",
    conditions={
        "full fine-tuning": {"freeze": "none"},
        "embeddings frozen": {"freeze": "embeddings"},
        "feature extraction": {"freeze": "backbone", "features": "last4-concat"},
    },
    tasks={"sst2": {"task": "sst2"}, "cola": {"task": "cola"}},
    common={"model": "google-bert/bert-base-uncased", "max_train_examples": 2000},
    seeds=range(5),
    margin_points=1.5,
    comparisons=[
        Comparison("full fine-tuning", "embeddings frozen"),
        Comparison("full fine-tuning", "feature extraction"),
    ],
)
