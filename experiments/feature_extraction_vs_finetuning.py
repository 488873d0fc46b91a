"""Question: is feature extraction as good as fine-tuning, and does the drift of the embeddings matter?

Three regimes, LP-FT and full fine-tuning from random weights, on three real and the three built-in tasks, five seeds
each. Every arm gets four settings per task, chosen on a fifth of the training split; sentiment is also scored out of
distribution.

    python -m toolkit study experiments/feature_extraction_vs_finetuning.py --dry-run
    python -m toolkit study experiments/feature_extraction_vs_finetuning.py

The data are not part of this repository: ../shared/data, or the folder that EMBEDDING_DRIFT_DATA names, holds sst2/,
trec/, cad_nli_original/, cr/, uci_amazon/ and uci_yelp/ as .tsv files; experiments/data.sha256 has their sources,
licences and sha256.
"""

import os

from toolkit import Comparison, Study

DATA = os.environ.get("EMBEDDING_DRIFT_DATA", "../shared/data")
RATES = tuple({"learning_rate": rate} for rate in (5e-5, 2e-5, 1.5e-4, 3e-4))
RATES_FROM_SCRATCH = tuple({"learning_rate": rate} for rate in (1.5e-4, 5e-4, 1e-3, 2e-3))
HEAD_RATES = tuple({"head_learning_rate": rate} for rate in (1e-3, 5e-3, 2e-2, 5e-2))
BUILT_IN = {"max_train_examples": 1000}

STUDY = Study(
    title="Feature extraction against fine-tuning",
    question="Is feature extraction as good as fine-tuning, and does the drift of the embeddings matter?",
    hypothesis=(
        "Full fine-tuning beats feature extraction by several points wherever the label is not in word identity alone; "
        "freezing the embeddings costs less than the margin; training the head first helps out of distribution."
    ),
    arms={
        "full fine-tuning": {"freeze": "none"},
        "LP-FT": {"freeze": "none", "head_epochs": 3},
        "embeddings frozen": {"freeze": "embeddings"},
        # The plain form: last layer, mean, pairs as one sequence. experiments/feature_recipes.py tries the usual ones.
        "feature extraction": {"freeze": "backbone", "head_training": "epochs", "epochs": 30},
        "random init": {"freeze": "none", "init": "random"},
    },
    tasks={
        "sst2": {
            "train_file": f"{DATA}/sst2/train.tsv",
            "validation_file": f"{DATA}/sst2/dev.tsv",
            "test_file": (
                f"cr={DATA}/cr/all.tsv",
                f"yelp={DATA}/uci_yelp/all.tsv",
                f"amazon={DATA}/uci_amazon/all.tsv",
            ),
            "max_train_examples": 2000,
            "remove_near_duplicates": True,
        },
        "trec": {
            "train_file": f"{DATA}/trec/train.tsv",
            "validation_file": f"{DATA}/trec/test.tsv",
            "max_train_examples": 2000,
            "remove_near_duplicates": True,
        },
        "cad_nli_original": {
            "train_file": f"{DATA}/cad_nli_original/train.tsv",
            "validation_file": f"{DATA}/cad_nli_original/dev.tsv",
            "test_file": (f"test={DATA}/cad_nli_original/test.tsv",),
            "text_columns": ("sentence1", "sentence2"),
            "remove_near_duplicates": True,
        },
        "polarity": {"task": "polarity", **BUILT_IN},
        "order": {"task": "order", **BUILT_IN},
        "pair": {"task": "pair", **BUILT_IN},
    },
    seeds=range(5),
    grid={
        "full fine-tuning": RATES,
        "LP-FT": RATES,
        "embeddings frozen": RATES,
        "feature extraction": HEAD_RATES,
        "random init": RATES_FROM_SCRATCH,
    },
    margin_points=1.5,
    comparisons=[
        Comparison("full fine-tuning", "feature extraction"),
        Comparison("full fine-tuning", "embeddings frozen"),
        Comparison("full fine-tuning", "LP-FT"),
        Comparison("full fine-tuning", "random init"),
    ],
)
