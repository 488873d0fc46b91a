"""Question: how far behind fine-tuning is feature extraction in the forms in which it is defended?

Full fine-tuning and frozen embeddings beside feature extraction in its plain form (last layer, mean, pairs as one
sequence, a linear head) and in its usual one: the last four layers concatenated for single sentences and words
(Devlin et al. 2019, section 5.3), pairs encoded apart with u, v, |u-v| and u*v (Conneau et al. 2017), a BiLSTM over
words. Three real tasks, the built-in `order` and the token task `roles`, five seeds. Nothing is tuned: one learning
rate (5e-5) and three epochs where the encoder is trained, and heads that are trained until a held-out part of train
stops improving. Training sets are small (500 to 1,666 examples).

    python -m toolkit study experiments/feature_recipes.py --dry-run
    python -m toolkit study experiments/feature_recipes.py

The data are not part of this repository: ../shared/data, or the folder that EMBEDDING_DRIFT_DATA names, holds sst2/,
trec/ and cad_nli_original/ as .tsv files; experiments/data.sha256 has their sources, licences and sha256.
"""

import os
from typing import Any

from toolkit import Comparison, Study

DATA = os.environ.get("EMBEDDING_DRIFT_DATA", "../shared/data")
PLAIN: dict[str, Any] = {"features": "last", "pair_encoding": "joint", "head": "linear"}
LAST_FOUR: dict[str, Any] = {"features": "last4-concat"}
"""A task's recipe is that of the usual form; the other conditions overrule it with the plain one."""

STUDY = Study(
    title="Feature extraction in its usual forms",
    question="How far behind fine-tuning is feature extraction in the forms in which it is defended?",
    hypothesis=(
        "The usual form closes most of the gap on pairs and about half of it on question types, and next to nothing on "
        "SST-2; full fine-tuning stays ahead everywhere. Freezing the embeddings costs less than the margin."
    ),
    arms={
        "full fine-tuning": {"freeze": "none", **PLAIN},
        "embeddings frozen": {"freeze": "embeddings", **PLAIN},
        "features, usual form": {"freeze": "backbone"},
        "features, plain": {"freeze": "backbone", **PLAIN},
    },
    tasks={
        "sst2": {
            "train_file": f"{DATA}/sst2/train.tsv",
            "validation_file": f"{DATA}/sst2/dev.tsv",
            "max_train_examples": 1000,
            "remove_near_duplicates": True,
            **LAST_FOUR,
        },
        "trec": {
            "train_file": f"{DATA}/trec/train.tsv",
            "validation_file": f"{DATA}/trec/test.tsv",
            "max_train_examples": 1000,
            "remove_near_duplicates": True,
            **LAST_FOUR,
        },
        "cad_nli_original": {
            "train_file": f"{DATA}/cad_nli_original/train.tsv",
            "validation_file": f"{DATA}/cad_nli_original/dev.tsv",
            "test_file": (f"test={DATA}/cad_nli_original/test.tsv",),
            "text_columns": ("sentence1", "sentence2"),
            "remove_near_duplicates": True,
            "pair_encoding": "separate",
        },
        "order": {"task": "order", "max_train_examples": 500, **LAST_FOUR},
        "roles": {"task": "roles", "max_train_examples": 500, "head": "bilstm", **LAST_FOUR},
    },
    seeds=range(5),
    margin_points=1.5,
    comparisons=[
        Comparison("full fine-tuning", "features, usual form"),
        Comparison("full fine-tuning", "features, plain"),
        Comparison("features, usual form", "features, plain"),
        Comparison("full fine-tuning", "embeddings frozen"),
    ],
)
