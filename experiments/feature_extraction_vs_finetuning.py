"""Question: is feature extraction as good as fine-tuning, and does the drift of the embeddings matter?

Full fine-tuning, frozen embeddings and feature extraction, on three real tasks, the three built-in ones and a token
task with a known answer, five seeds each. Every condition gets three tries per task, chosen on a fifth of the training
split: a learning rate where the encoder is trained, a recipe where only the head is (which layers, how pairs are
encoded, which head). A frozen head is trained until a held-out part of train stops improving; majority class, bag of
words and the linear probe on the same features stand beside it. SST-2 is scored out of distribution too.

    python -m toolkit study experiments/feature_extraction_vs_finetuning.py --dry-run
    python -m toolkit study experiments/feature_extraction_vs_finetuning.py

The data are not part of this repository: ../shared/data, or the folder that EMBEDDING_DRIFT_DATA names, holds sst2/,
trec/, cad_nli_original/, uci_amazon/ and uci_yelp/ as .tsv files; experiments/data.sha256 says where they come from.
"""

import os
from typing import Any, TypeAlias

from toolkit import Comparison, Study

Settings: TypeAlias = tuple[dict[str, Any], ...]
DATA = os.environ.get("EMBEDDING_DRIFT_DATA", "../shared/data")
RATES: Settings = tuple({"learning_rate": rate} for rate in (5e-5, 1.5e-4, 3e-4))
TEXTS: Settings = ({}, {"features": "last4-concat"}, {"features": "mix"})
PAIRS: Settings = (
    {},
    {"pair_encoding": "separate"},
    {"pair_encoding": "separate", "features": "last4-concat"},
)
WORDS: Settings = ({}, {"features": "last4-concat"}, {"head": "bilstm"})
"""Recipes in the forms in which feature extraction is defended: Devlin et al. 2019 (section 5.3), Peters et al. 2018,
Conneau et al. 2017."""
BUILT_IN = {"max_train_examples": 500}

STUDY = Study(
    title="Feature extraction against fine-tuning",
    question="Is feature extraction as good as fine-tuning, and does the drift of the embeddings matter?",
    hypothesis=(
        "Full fine-tuning beats feature extraction, in the best of its usual forms, by a few points on single "
        "sentences and by several on pairs; freezing the embeddings costs less than the margin."
    ),
    arms={
        "full fine-tuning": {"freeze": "none"},
        "embeddings frozen": {"freeze": "embeddings"},
        "feature extraction": {"freeze": "backbone"},
    },
    tasks={
        "sst2": {
            "train_file": f"{DATA}/sst2/train.tsv",
            "validation_file": f"{DATA}/sst2/dev.tsv",
            "test_file": (f"yelp={DATA}/uci_yelp/all.tsv", f"amazon={DATA}/uci_amazon/all.tsv"),
            "max_train_examples": 1000,
            "remove_near_duplicates": True,
        },
        "trec": {
            "train_file": f"{DATA}/trec/train.tsv",
            "validation_file": f"{DATA}/trec/test.tsv",
            "max_train_examples": 1000,
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
        "roles": {"task": "roles", "max_train_examples": 500},
    },
    seeds=range(5),
    grid={
        "full fine-tuning": RATES,
        "embeddings frozen": RATES,
        "feature extraction": {
            **dict.fromkeys(("sst2", "trec", "polarity", "order"), TEXTS),
            **dict.fromkeys(("cad_nli_original", "pair"), PAIRS),
            "roles": WORDS,
        },
    },
    margin_points=1.5,
    comparisons=[
        Comparison("full fine-tuning", "feature extraction"),
        Comparison("full fine-tuning", "embeddings frozen"),
    ],
)
