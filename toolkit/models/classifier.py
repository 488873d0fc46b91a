"""The classifier: a backbone in fp32, which of its states are pooled and how, and a head."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from toolkit.families import ModelFamily, family_of
from toolkit.models.checkpoints import NoHeadError, Source, find_checkpoint
from toolkit.models.heads import MaskedHead, answer, build_head, chosen_layers, num_blocks
from toolkit.models.pipelines import warn_of_modules
from toolkit.models.regimes import locate_embeddings
from toolkit.naming import refuse_first


class Classifier(nn.Module):
    """A backbone, what is read of its states, and a head."""

    def __init__(
        self,
        backbone: nn.Module,
        pooling: str,
        num_outputs: int,
        generator: torch.Generator,
        *,
        features: str = "last",
        pair_encoding: str = "joint",
        head: str = "linear",
        is_token_task: bool = False,
    ) -> None:
        """``generator`` draws the head's weights, as :func:`toolkit.models.heads.build_head` says.

        The other arguments are fields of RunConfig. ValueError for layers that the backbone has not.
        """
        super().__init__()
        config: Any = backbone.config
        self.backbone = backbone
        self.pooling, self.pair_encoding, self.is_token_task = pooling, pair_encoding, is_token_task
        self.layers = chosen_layers(features, num_blocks(config))
        """Which states are pooled, as places in transformers' ``hidden_states``; None: ``last_hidden_state``."""
        self.is_summed = features == "last4-sum"
        self.asked: dict[str, bool] = {} if self.layers is None else {"output_hidden_states": True}
        """What the backbone must be asked for besides."""
        self.is_hooked = False
        """Whether hooks hand something from one module to a later one, so that passes must not run side by side."""
        self.make_head = partial(
            build_head,
            head,
            config,
            width=config.hidden_size * (1 if self.layers is None or self.is_summed else len(self.layers)),
            num_mixed=len(self.layers) if self.layers is not None and features == "mix" else 0,
            is_paired=pair_encoding == "separate",
        )
        """Called with ``num_outputs`` and ``generator`` it gives a fresh head for these features."""
        self.head: nn.Module = self.make_head(num_outputs=num_outputs, generator=generator)

    def features(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """(examples, width) fp32 pooled vectors of a batch of (sequences, longest) id tensors: what the head reads."""
        return self.pool(*self.run(self.backbone, batch))

    def run(self, backbone: Callable[..., Any], batch: Mapping[str, torch.Tensor]) -> tuple[Any, torch.Tensor]:
        """What ``backbone`` (this one, or one that stands in for it) makes of a batch, and the tokens that are read."""
        inputs = {name: tensor for name, tensor in batch.items() if name not in ("is_word", "labels")}
        return backbone(**inputs | self.asked), batch.get("is_word", batch["attention_mask"])

    def pool(self, output: Any, is_read: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """(examples, width) pooled vectors, fp32, from the backbone's output, whatever computed that.

        ``width`` is the hidden size; times the number of layers where several are concatenated or mixed, the lowest
        first; times two where the texts of an example are encoded apart, the first text first. Nothing in it is
        learned, so that a frozen backbone has to give it only once. ``is_read``: (sequences, tokens) the tokens that
        count, 1 or True. Of a token task nothing is pooled: each of them gives a row, (words, width); there it may also
        be their places in the batch, (words,) int64.
        """
        if self.pooling == "pooler":
            pooled = output.pooler_output.to(dtype)
        elif self.layers is None:
            pooled = self._pool_states(output.last_hidden_state, is_read, dtype)
        else:
            states = [output.hidden_states[layer] for layer in self.layers]
            by_layer = [self._pool_states(layer_states, is_read, dtype) for layer_states in states]
            pooled = torch.stack(by_layer).sum(dim=0) if self.is_summed else torch.cat(by_layer, dim=1)
        vectors: torch.Tensor = pooled.reshape(len(pooled) // 2, -1) if self.pair_encoding == "separate" else pooled
        return vectors

    def _pool_states(self, states: torch.Tensor, is_read: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """(sequences, hidden) vectors, or (words, hidden), from (sequences, tokens, hidden) states."""
        states = states.to(dtype)
        if self.is_token_task:
            return states[is_read] if is_read.dtype == torch.bool else states.flatten(0, 1).index_select(0, is_read)
        if self.pooling == "cls":
            return states[:, 0]
        if self.pooling == "last":
            last = (is_read * torch.arange(is_read.shape[1], device=is_read.device)).argmax(dim=1)
            return states[torch.arange(len(states), device=states.device), last]
        mask = is_read.unsqueeze(-1).to(states.dtype)
        return (states * mask).sum(dim=1) / mask.sum(dim=1)

    def train(self, mode: bool = True) -> "Classifier":
        """A backbone of which nothing is trained stays in eval mode: its dropout would be noise on fixed features."""
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.backbone.parameters()):
            self.backbone.eval()
        return self

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        """(examples, outputs) fp32 logits, or values in regression."""
        return self.classify(*self.run(self.backbone, batch))

    def classify(self, output: Any, is_read: torch.Tensor) -> torch.Tensor:
        """(examples, outputs) fp32 logits, or values, from the backbone's output, whatever computed that.

        Of a token task (words, outputs). ``is_read`` as in :meth:`pool`.
        """
        features = self.pool(output, is_read)
        # The head is a few thousand weights: fp32 costs nothing and keeps logits exact under autocast.
        with torch.autocast(features.device.type, enabled=False):
            sizes = is_read.sum(dim=1) if self.is_token_task and is_read.ndim == 2 else None
            logits: torch.Tensor = answer(self.head, features, sizes)
        return logits


@dataclass(frozen=True, slots=True)
class Loaded:
    """A classifier with what belongs to it."""

    model: Classifier
    tokenizer: Any
    family: ModelFamily
    source: Source
    position_offset: int
    """Position row of a text's first token."""
    max_length: int | None
    """Longest text the position table (or the config) allows; None when nothing limits it."""
    positions: Mapping[str, Any] | None = None
    """What was done to the position table, for the manifest; None where that is not known or there is no table."""
    added: Mapping[str, Any] | None = None
    """Tokens that were added, their first row, and how their rows began, for the manifest; None where none were."""


def load_classifier(
    name: str,
    *,
    pooling: str,
    num_outputs: int,
    features: str = "last",
    pair_encoding: str = "joint",
    head: str = "linear",
    is_token_task: bool = False,
    is_masked_lm: bool = False,
    init: str = "checkpoint",
    seed: int = 0,
    dropout: float | None = None,
) -> Loaded:
    """Load a checkpoint and put a fresh head on it, or with ``is_masked_lm`` its own masked-LM head.

    ``pooling``, ``features``, ``pair_encoding``, ``head``: fields of a RunConfig (:func:`toolkit.config.recipe_of`).
    The pooler is built only for ``pooling="pooler"``: unused it would get no gradient. ValueError for a name that
    cannot be had, an unsupported architecture, a pooling that the family lacks, layers that the model lacks, or a
    checkpoint with missing tensors, such as those of a masked-LM head.
    """
    source = find_checkpoint(name).pinned()
    config = source.read_config()
    family = family_of(config.model_type)
    _refuse_misfits(name, family, config, pooling=pooling, head=head, is_token_task=is_token_task)
    if dropout is not None:
        _set_dropout(config, dropout)
    options = {"add_pooling_layer": pooling == "pooler"} if family.has_pooler else {}
    chosen_layers(features, num_blocks(config))  # a mistake shows before the weights are read
    masked_head: MaskedHead | None = None
    if is_masked_lm:
        masked_lm = _masked_lm(source, config, init, seed)
        backbone: nn.Module = masked_lm.base_model
        masked_head = MaskedHead(masked_lm, name)
    elif init == "random":
        backbone = _random_backbone(config, seed, options)
    else:
        backbone = source.read_backbone(config, options)
        warn_of_modules(source)
    tokenizer = source.read_tokenizer()
    if is_masked_lm and tokenizer.mask_token_id is None:
        raise ValueError(f"the tokenizer of {name} has no mask token, which --objective mlm puts in place of others")
    if tokenizer.pad_token_id is None:
        _pad_with_eos(tokenizer, family, name)
    if family.position_start == "after_padding" and family.padding_row is None and config.pad_token_id is None:
        raise ValueError(f"the config.json of {name} has no pad_token_id, from which {family.name} counts positions")
    generator = torch.Generator().manual_seed(seed)
    offset = family.first_position(config.pad_token_id)
    limit = getattr(config, "max_position_embeddings", None)
    model = Classifier(
        backbone,
        pooling,
        num_outputs,
        generator,
        features=features,
        pair_encoding=pair_encoding,
        head=head,
        is_token_task=is_token_task or is_masked_lm,
    )
    if masked_head is not None:
        model.head = masked_head
    return Loaded(
        model,
        tokenizer,
        family,
        source,
        offset,
        limit - offset if limit else None,
    )


def _refuse_misfits(
    name: str, family: ModelFamily, config: Any, *, pooling: str, head: str, is_token_task: bool
) -> None:
    """ValueError, before weights are read, for a checkpoint that no head fits, or settings that do not fit it."""
    position_kind = getattr(config, "position_embedding_type", "absolute")
    poolings = "mean, last" if family.is_causal else "mean, cls, last"
    faults = {
        f"{name} is {family.name}, whose decoder reads what its encoder makes of a text: it has no one state to "
        "classify by; train it in a loop of your own under toolkit.record": family.has_decoder,
        # ModernBERT has any text there.
        f"{name} was made with position_embedding_type {position_kind!r}, which transformers 5 ignores, so that it "
        "would compute something else than it was trained to: take a checkpoint with absolute positions": (
            position_kind not in family.position_kinds and "position_embeddings" in family.embedding_parameters
        ),
        f"--pooling {pooling}: a token task does not pool, since each word has its own label: leave it out": (
            is_token_task and pooling != "mean"
        ),
        "--head bilstm is for token tasks: take linear or mlp": head == "bilstm" and not is_token_task,
        f"--pooling pooler: {family.name} has no pooler; choose from: {poolings}": (
            pooling == "pooler" and not family.has_pooler
        ),
    }
    refuse_first(faults)
    check_first_token(family, pooling)


def tied_tables(loaded: Loaded) -> tuple[str, ...]:
    """The embedding parameters that the head uses too: of a masked-LM head the word table, where the two are tied."""
    parameters = locate_embeddings(loaded.model.backbone).parameters
    head = loaded.model.head
    return head.tied(parameters) if isinstance(head, MaskedHead) else ()


def check_first_token(family: ModelFamily, pooling: str) -> None:
    """ValueError where the first token's state is asked for and tells nothing of a text."""
    if family.is_causal and pooling == "cls":
        raise ValueError(
            f"--pooling cls: in {family.name} the first token sees no other, so that its state is the same for all "
            "texts that begin alike; choose from: last, mean"
        )


def _pad_with_eos(tokenizer: Any, family: ModelFamily, name: str) -> None:
    """Have a decoder's tokenizer pad with its end-of-text token, which the attention mask hides; else ValueError."""
    if not family.is_causal or tokenizer.eos_token is None:
        raise ValueError(f"the tokenizer of {name} has no padding token")
    tokenizer.pad_token = tokenizer.eos_token
    warnings.warn(
        f"the tokenizer of {name} has no padding token: texts are padded with {tokenizer.eos_token!r}, which the "
        "attention mask hides",
        stacklevel=3,
    )


def _set_dropout(config: Any, probability: float) -> None:
    """Set every dropout probability of a config, whatever the family calls it."""
    for field in vars(config):
        value = getattr(config, field)
        is_probability = isinstance(value, int | float) and not isinstance(value, bool)
        if ("dropout" in field or field.endswith("pdrop")) and is_probability and field != "classifier_dropout":
            setattr(config, field, probability)


def _random_backbone(config: Any, seed: int, options: dict[str, Any]) -> nn.Module:
    """A backbone of the config with weights that the seed draws."""
    from transformers import AutoModel

    with torch.random.fork_rng(devices=[]):  # torch's generator is as it was afterwards
        torch.manual_seed(seed)
        backbone: nn.Module = AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False, **options)
    return backbone


def _masked_lm(source: Source, config: Any, init: str, seed: int) -> Any:
    """The AutoModelForMaskedLM of a checkpoint, or one of random weights; ValueError where it has none."""
    from transformers import AutoModelForMaskedLM

    try:
        if init == "checkpoint":
            return source.read_masked_lm(config)
        source.check_masked_lm(config)
    except NoHeadError as error:
        instead = "a checkpoint of pretraining, such as google-bert/bert-base-uncased, or --init random to begin anew"
        raise ValueError(f"{error}; --objective mlm needs one: {instead}") from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForMaskedLM.from_config(config, dtype=torch.float32, trust_remote_code=False)


@contextlib.contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """No dropout inside the block; the mode is put back after it."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
