"""A name in, a model with everything that its files hold out: a checkpoint's pooler, a run's frozen parameters."""

from pathlib import Path

from toolkit.families import family_of
from toolkit.models.checkpoints import find_checkpoint
from toolkit.models.classifier import Loaded, load_classifier
from toolkit.models.regimes import apply_regime, list_components, parse_regime
from toolkit.models.tuned import load_tuned
from toolkit.snapshots.store import open_run


def open_model(name: str) -> Loaded:
    """The checkpoint (``minilm``, a folder, a hub id) or the tuned model of a run directory, in eval mode.

    A checkpoint's pooler is loaded where its files have one, so that parameters are counted as published; a run's
    parameters have ``requires_grad`` as its regime left them. ValueError for a name that cannot be had.
    """
    if not name.strip():
        raise ValueError("MODEL is empty: pass minilm, a folder, a hub id or a run directory")
    if (Path(name) / "snapshots").is_dir():
        run = open_run(name)
        loaded = load_tuned(run)
        apply_regime(
            loaded.model,
            parse_regime(run.config.freeze, tuple(list_components(loaded.model, loaded.family))),
            loaded.family,
        )
    else:
        loaded = _load_checkpoint(name)
    loaded.model.eval()
    return loaded


def _load_checkpoint(name: str) -> Loaded:
    if family_of(find_checkpoint(name).read_config().model_type).has_pooler:
        try:
            return load_classifier(name, pooling="pooler", num_outputs=1)
        except ValueError as error:
            if "pooler" not in str(error):
                raise
    return load_classifier(name, pooling="mean", num_outputs=1)
