"""Question: the mean of the tokens, the first token or the pooled output: which serves better, as features and tuned?

Feature extraction and full fine-tuning with each of the three, on three real tasks, five seeds each. Every condition
gets four settings per task, chosen on a fifth of the training split.

    python -m toolkit study experiments/pooling.py --dry-run
    python -m toolkit study experiments/pooling.py

The embedded model was tuned on single sentences through the mean of its tokens, and what it learned there is in the
mean: for the model as it was pretrained, pass another ``model`` in ``common``. The data are those of
experiments/feature_extraction_vs_finetuning.py; experiments/data.sha256 has their sources, licences and sha256.
"""

import os

from toolkit import Comparison, Study

DATA = os.environ.get("EMBEDDING_DRIFT_DATA", "../shared/data")
POOLINGS = {"mean": "mean", "first token": "cls", "pooler": "pooler"}
# A head on cached features needs many epochs, and each takes a second.
FROZEN = {"freeze": "backbone", "epochs": 30, "head_training": "epochs"}
HEAD_RATES = tuple({"head_learning_rate": rate} for rate in (2e-4, 1e-3, 5e-3, 2e-2))
RATES = tuple({"learning_rate": rate} for rate in (5e-5, 2e-5, 1.5e-4, 3e-4))

STUDY = Study(
    title="Mean of the tokens, first token or pooled output",
    question="Which pooling serves better, as features and when everything is tuned?",
    hypothesis=(
        "As features the mean is better by points, since this model was tuned through it; when everything is tuned, "
        "the three are equivalent."
    ),
    sources={
        "sst2": "SST-2 (Socher et al. 2013): no licence stated, released for research",
        "cr": "CR (Hu and Liu 2004): no explicit licence",
        "yelp": "Sentiment Labelled Sentences (Kotzias et al. 2015): CC BY 4.0 at UCI",
        "amazon": "Sentiment Labelled Sentences (Kotzias et al. 2015): CC BY 4.0 at UCI",
        "trec": "TREC questions (Li and Roth 2002): no licence stated, free for research",
        "cad_nli_original": (
            "a sample of SNLI (acmi-lab/counterfactually-augmented-data): Apache-2.0, its sentences CC BY-SA 4.0"
        ),
        "all of them": "experiments/data.sha256 has where each was taken from, how it was made, and its sha256",
    },
    conditions={f"frozen {name}": {**FROZEN, "pooling": pooling} for name, pooling in POOLINGS.items()}
    | {f"tuned {name}": {"freeze": "none", "pooling": pooling} for name, pooling in POOLINGS.items()},
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
            "tsv_quotes": "keep",  # a few sentences stand in marks of their own
            "remove_near_duplicates": True,
        },
    },
    seeds=range(5),
    grid={f"frozen {name}": HEAD_RATES for name in POOLINGS} | {f"tuned {name}": RATES for name in POOLINGS},
    margin_points=1.5,
    comparisons=[
        Comparison(f"{regime} mean", f"{regime} {other}")
        for regime in ("frozen", "tuned")
        for other in ("first token", "pooler")
    ],
)
