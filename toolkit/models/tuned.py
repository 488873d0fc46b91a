"""The classifier of a finished run, as it was tuned or as it was before training."""

from dataclasses import replace
from typing import Any

from toolkit.config import RunConfig, recipe_of
from toolkit.models.checkpoints import find_checkpoint
from toolkit.models.classifier import Loaded, load_classifier
from toolkit.models.heads import MaskedHead
from toolkit.models.new_tokens import add_tokens
from toolkit.models.positions import prepare_positions
from toolkit.naming import reading
from toolkit.snapshots.backbones import how_to_keep_one
from toolkit.snapshots.store import Run

HEAD_FILE = "head.safetensors"
"""In a run's ``model/``, beside what ``AutoModel.from_pretrained`` reads."""


def check_model(run: Run) -> None:
    """ValueError when the run did not keep its model: to be called for all runs before the first is worked on."""
    if not (run.path / "model" / HEAD_FILE).is_file():
        raise ValueError(f"{run.path} holds no model: {how_to_keep_one(run)}")


def load_tuned(run: Run) -> Loaded:
    """The classifier that a run ended with, in eval mode, fp32.

    ValueError when the run did not keep its model, or the model has changed since.
    """
    from safetensors.torch import load_file

    check_model(run)
    run.check("model/")
    folder = run.path / "model"
    loaded = load_classifier(str(folder), **recipe_of(run.config), **_outputs_of(run))
    with reading(folder / HEAD_FILE, "is not this model's head"):
        # HEAD_FILE holds a whole classifier, but of a masked-LM head only what it does not share with the backbone.
        is_whole = not isinstance(loaded.model.head, MaskedHead)
        loaded.model.head.load_state_dict(load_file(folder / HEAD_FILE), strict=is_whole)
    loaded.model.eval()
    # The position table is among the weights, so it stays as it is ("checkpoint"); the hooks of --reinject-positions
    # are not, so they are put on again.
    return prepare_positions(loaded, replace(run.config, positions="checkpoint"))


def load_untuned(run: Run) -> Loaded:
    """The classifier that a run started from, in eval mode: checkpoint or random weights, positions, its seed's head.

    After ``--head-epochs`` the head is the untrained one all the same: the head stage keeps no weights.
    """
    config: RunConfig = run.config
    loaded = load_classifier(
        name_of_start(run),
        **recipe_of(config),
        **_outputs_of(run),
        init=config.init,
        seed=config.seed,
    )
    loaded.model.eval()
    if added := run.manifest.get("added_tokens"):
        loaded = add_tokens(loaded, added["tokens"], init=added["init"], seed=config.seed)
    return prepare_positions(loaded, config)


def name_of_start(run: Run) -> str:
    """The checkpoint that a run started from, one of the hub with its commit.

    ValueError where the weights, config or tokenizer that lie there now are not those that the run's manifest has the
    hash or commit of. Of a start at random the weights do not count.
    """
    name, recorded = run.config.model, run.manifest["model"]
    source = find_checkpoint(name)
    commit, sha256 = recorded.get("revision"), recorded.get("weights_sha256")
    source.check_settings(recorded, run.path.name)
    if run.config.init == "random":
        return name
    if sha256 not in (None, source.sha256) or (commit and not source.is_hub):
        raise ValueError(
            f"the weights of {name} are not those that {run.path.name} started from: put these back, or run again"
        )
    return f"{source.location}@{commit}" if commit else name


def _outputs_of(run: Run) -> dict[str, Any]:
    task = run.manifest["task"]
    kinds = {"is_token_task": task.get("kind") == "tokens", "is_masked_lm": task.get("kind") == "masked"}
    return {"num_outputs": len(task["label_names"]) or 1, **kinds}
