"""Question: how much of BERT must be trained? Embeddings and the first k layers frozen, for every k.

From nothing frozen over the embeddings, the embeddings and one layer, two, ... to the whole backbone (feature
extraction). Each condition is compared with full fine-tuning; the report says which differences are sure.

    python -m toolkit study experiments/freeze_sweep.py --dry-run
    python -m toolkit study experiments/freeze_sweep.py
"""

from toolkit import Comparison, Study

NUM_LAYERS = 6
"""Of the embedded model."""
FULL = "nothing frozen"
CONDITIONS = {
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
    conditions={label: {"freeze": regime} for label, regime in CONDITIONS.items()},
    tasks={"polarity": {"task": "polarity"}, "order": {"task": "order"}, "pair": {"task": "pair"}},
    common={"max_train_examples": 1000, "epochs": 3, "head_training": "epochs"},
    seeds=range(3),
    margin_points=2.0,
    comparisons=[Comparison(FULL, label) for label in CONDITIONS if label != FULL],
)
