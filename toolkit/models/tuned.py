"""A run directory in, its classifier out: as it was tuned, or as it was before training."""

from dataclasses import replace

from toolkit.config import RunConfig
from toolkit.models.classifier import Loaded, load_classifier
from toolkit.models.positions import prepare_positions
from toolkit.snapshots.store import Run

HEAD_FILE = "head.safetensors"
"""In a run's ``model/``, beside what ``AutoModel.from_pretrained`` reads."""


def check_model(run: Run) -> None:
    """ValueError when the run did not keep its model: to be called for all runs before the first is worked on."""
    if not (run.path / "model" / HEAD_FILE).is_file():
        raise ValueError(f"{run.path} holds no model: repeat the run with --save-model --overwrite (the numbers stay)")


def load_tuned(run: Run) -> Loaded:
    """The classifier that a run ended with, in eval mode, fp32; ValueError when the run did not keep its model."""
    from safetensors.torch import load_file

    check_model(run)
    folder = run.path / "model"
    loaded = load_classifier(str(folder), pooling=run.config.pooling, num_outputs=_num_outputs(run))
    loaded.model.head.load_state_dict(load_file(folder / HEAD_FILE))
    loaded.model.eval()
    # The table is among the weights; what a forward pass does with it beside the architecture is not.
    return prepare_positions(loaded, replace(run.config, positions="checkpoint"))


def load_untuned(run: Run) -> Loaded:
    """The classifier that a run started from, in eval mode: checkpoint or random weights, positions, its seed's head.

    After ``--head-epochs`` the head is the untrained one all the same: the head stage keeps no weights.
    """
    config: RunConfig = run.config
    loaded = load_classifier(
        config.model, pooling=config.pooling, num_outputs=_num_outputs(run), init=config.init, seed=config.seed
    )
    loaded.model.eval()
    return prepare_positions(loaded, config)


def _num_outputs(run: Run) -> int:
    labels = run.manifest["task"]["label_names"]
    return len(labels) or 1
