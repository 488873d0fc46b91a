"""Which layers features are made of, the heads that read them, and the losses of their outputs."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

HEAD_DESCRIPTIONS = {
    "linear": "linear",
    "mlp": "mlp (one hidden layer of the hidden size, tanh, dropout)",
    "bilstm": "bilstm (two layers over the words of an example, as wide as the hidden size; dropout)",
}
"""``--head`` to the head, as manifests name it. All compute in fp32; linear alone has no dropout of its own."""

DROPOUTS = ("hidden_dropout_prob", "dropout", "mlp_dropout", "resid_pdrop", "hidden_dropout")
"""What families call the dropout of their hidden states in a config, the first that is there."""


def num_blocks(config: Any) -> int:
    """Transformer blocks that a backbone's states go through (ALBERT's few weights many times)."""
    return int(config.num_hidden_layers * getattr(config, "inner_group_num", 1))


def chosen_layers(features: str, blocks: int) -> tuple[int, ...] | None:
    """Places in transformers' ``hidden_states`` of what ``--features`` names; None for ``last``.

    Place 0 is what the first block reads: the embeddings, after a projection where the family has one. Place K + 1 is
    the output of block K; that of the last block is ``last_hidden_state``, which in ModernBERT has gone through the
    final normalisation. ValueError for a block that the model has not.
    """
    match features:
        case "last":
            return None
        case "mix":
            return tuple(range(blocks + 1))
        case "all-concat":
            return tuple(range(1, blocks + 1))
        case "last4-concat" | "last4-sum":
            if blocks < 4:
                raise ValueError(f"--features {features} needs four blocks; the model has {blocks}: take all-concat")
            return tuple(range(blocks - 3, blocks + 1))
        case "second-to-last":
            if blocks < 2:
                raise ValueError("--features second-to-last needs two blocks, and the model has one: take last")
            return (blocks - 1,)
    number = int(features.removeprefix("layers."))
    if number >= blocks:
        raise ValueError(f"--features {features}: the model has the blocks layers.0 to layers.{blocks - 1}")
    return (number + 1,)


class Mix(nn.Module):
    """One vector from those of several layers: gamma * sum of softmax(weights) * layer (Peters et al. 2018, 3.2).

    They scale by gamma and sum the layers' states of each token; here each layer's states are pooled before, which is
    the same, since means and sums change places.
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """(..., hidden) from (..., layers, hidden)."""
        return self.gamma * torch.einsum("l,...lh->...h", torch.softmax(self.weights, dim=0), vectors)


class Head(nn.Module):
    """Mixes layers, compares two texts, and answers: as far as there are layers to mix and texts to compare."""

    def __init__(
        self, mix: Mix | None, is_paired: bool, has_cosine: bool, layers: "nn.Sequential | BiLstm", width: int
    ) -> None:
        """``layers``: what reads the inputs, its first module linear or an LSTM; ``width``: of the features."""
        super().__init__()
        self.mix, self.is_paired, self.has_cosine, self.in_features = mix, is_paired, has_cosine, width
        self.layers = layers

    def inputs(self, features: torch.Tensor) -> torch.Tensor:
        """(examples, inputs) what the first linear layer reads, from features (examples, width).

        Of two texts with vectors u and v these are u, v, |u-v|, u*v (Conneau et al. 2017, section 3), and in
        regression the cosine of u and v.
        """
        num_examples, num_texts = len(features), 2 if self.is_paired else 1
        texts = features.reshape(num_examples, num_texts, -1)
        if self.mix is not None:
            texts = self.mix(features.reshape(num_examples, num_texts, len(self.mix.weights), -1))
        if not self.is_paired:
            return texts.squeeze(1)
        u, v = texts.unbind(dim=1)
        columns = [u, v, (u - v).abs(), u * v]
        if self.has_cosine:
            columns.append(nn.functional.cosine_similarity(u, v, dim=1).unsqueeze(1))
        return torch.cat(columns, dim=1)

    def forward(self, features: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """(examples, outputs) logits or values, of a token task (words, outputs); ``sizes``: words of each example."""
        inputs = self.inputs(features)
        outputs: torch.Tensor = self.layers(inputs, sizes) if isinstance(self.layers, BiLstm) else self.layers(inputs)
        return outputs


class BiLstm(nn.Module):
    """Two bidirectional LSTM layers over the words of each example, dropout and one linear layer.

    The head on frozen features of Devlin et al. 2019, section 5.3, with dropout; theirs is 768 wide.
    """

    def __init__(self, num_inputs: int, width: int, num_outputs: int, dropout: float) -> None:
        """``width``: of the states, both directions together."""
        super().__init__()
        self.entry = nn.Identity()
        """What the LSTM reads passes through it."""
        self.lstm = nn.LSTM(num_inputs, width // 2, num_layers=2, bidirectional=True, dropout=dropout, batch_first=True)
        self.dropout, self.output = nn.Dropout(dropout), nn.Linear(2 * (width // 2), num_outputs)

    def forward(self, inputs: torch.Tensor, sizes: torch.Tensor | None) -> torch.Tensor:
        """(words, outputs) from (words, inputs), those of one example after another; ``sizes``: (examples,) int64."""
        assert sizes is not None
        sizes = sizes[sizes > 0].cpu()
        examples = self.entry(inputs).split(sizes.tolist())
        states, _ = self.lstm(nn.utils.rnn.pack_sequence(examples, enforce_sorted=False))
        padded, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True)
        is_word = torch.arange(padded.shape[1]) < sizes[:, None]
        outputs: torch.Tensor = self.output(self.dropout(padded[is_word.to(padded.device)]))
        return outputs


class MaskedHead(nn.Module):
    """The masked-LM head of a checkpoint: all that its AutoModelForMaskedLM does after the backbone, to single states.

    A decoder that is tied to the word table shares that parameter with the backbone, here too.
    """

    def __init__(self, model: Any, name: str) -> None:
        """``model``: the AutoModelForMaskedLM, from which the backbone is taken out; ``name``: of the checkpoint.

        ValueError where the head reads more than the backbone's last states.
        """
        super().__init__()
        self.backbone_name = str(model.base_model_prefix)
        backbone = model.base_model
        setattr(model, self.backbone_name, _GivenStates())
        self.model = model.eval()
        try:
            with torch.inference_mode():
                self(torch.zeros(1, backbone.config.hidden_size))
        except AttributeError:
            raise ValueError(
                f"the masked-LM head of {name} reads more than the last states of its backbone: it is not trained here"
            ) from None

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(tokens, rows of the vocabulary) logits from states (tokens, hidden)."""
        logits: torch.Tensor = self.model(inputs_embeds=features[None]).logits[0]
        return logits

    def tied(self, parameters: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
        """Those of some parameters of the backbone, by name, that the head uses too."""
        own_ids = {id(p) for p in self.parameters()}
        return tuple(name for name, p in parameters.items() if id(p) in own_ids)

    @contextlib.contextmanager
    def whole(self, backbone: nn.Module) -> Iterator[Any]:
        """The AutoModelForMaskedLM with the backbone in its place again."""
        stand_in = getattr(self.model, self.backbone_name)
        setattr(self.model, self.backbone_name, backbone)
        try:
            yield self.model
        finally:
            setattr(self.model, self.backbone_name, stand_in)


class _GivenStates(nn.Module):
    """In a backbone's place: what it is given are its last states."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(last_hidden_state=inputs_embeds)


def build_head(
    kind: str,
    config: Any,
    *,
    width: int,
    num_outputs: int,
    generator: torch.Generator,
    num_mixed: int = 0,
    is_paired: bool = False,
) -> nn.Linear | Head:
    """A fresh head: weights normal with the backbone's ``initializer_range``, drawn from the bottom up; biases 0.

    Parameters
    ----------
    kind : str
        ``linear`` or ``mlp``: a hidden layer of ``config.hidden_size`` units, tanh and the backbone's dropout before
        the last, as in transformers' RobertaClassificationHead without its dropout on the features, which are cached.
        Or ``bilstm``: see :class:`BiLstm`; its recurrent weights are uniform, as torch's.
    config : PretrainedConfig
        The backbone's.
    width : int
        Of one text's features.
    num_outputs : int
        Classes, or 1 in regression; then a pair's cosine is an input too.
    generator : torch.Generator
        Draws the weights.
    num_mixed : int
        Layers that are mixed, concatenated in the features; 0: none.
    is_paired : bool
        Whether the features are those of two texts, one after the other.
    """
    has_cosine = is_paired and num_outputs == 1
    num_inputs = (width // max(num_mixed, 1)) * (4 if is_paired else 1) + has_cosine
    probability = next((float(getattr(config, name)) for name in DROPOUTS if hasattr(config, name)), 0.0)
    spread = float(getattr(config, "initializer_range", 0.02))
    if not (0 <= spread < math.inf and 0 <= probability <= 1):
        raise ValueError(
            f"the checkpoint's config.json has an initializer_range of {spread:g} and a dropout of {probability:g}: "
            "a head needs one from 0 and one from 0 to 1; restore the file"
        )
    layers: nn.Sequential | BiLstm
    if kind == "bilstm":
        layers = BiLstm(num_inputs, config.hidden_size, num_outputs, probability)
        with torch.no_grad():
            for weight in layers.lstm.parameters():
                weight.uniform_(-(layers.lstm.hidden_size**-0.5), layers.lstm.hidden_size**-0.5, generator=generator)
    elif kind == "mlp":
        hidden, output = nn.Linear(num_inputs, config.hidden_size), nn.Linear(config.hidden_size, num_outputs)
        layers = nn.Sequential(hidden, nn.Tanh(), nn.Dropout(probability), output)
    else:
        layers = nn.Sequential(nn.Linear(num_inputs, num_outputs))
    for layer in layers.modules():
        if isinstance(layer, nn.Linear):
            with torch.no_grad():
                layer.weight.normal_(0.0, spread, generator=generator)
                layer.bias.zero_()
    if kind == "linear" and not (num_mixed or is_paired):
        plain: Any = next(iter(layers.children()))
        return plain  # type: ignore[no-any-return]
    mix = Mix(num_mixed) if num_mixed else None
    return Head(mix, is_paired, has_cosine, layers, width * (2 if is_paired else 1))


def inputs_of(head: nn.Module, features: torch.Tensor) -> torch.Tensor:
    """(examples, inputs) what the first linear layer of any head reads."""
    return head.inputs(features) if isinstance(head, Head) else features


def answer(head: nn.Module, features: torch.Tensor, sizes: torch.Tensor | None) -> torch.Tensor:
    """(rows, outputs) of any head; ``sizes``: (examples,) words of each example of a token task, else None."""
    outputs: torch.Tensor = head(features, sizes) if isinstance(head, Head) else head(features)
    return outputs


def entry_of(head: nn.Module) -> nn.Module:
    """The module that the inputs of any head go through first."""
    if not isinstance(head, Head):
        return head
    return head.layers.entry if isinstance(head.layers, BiLstm) else head.layers[0]


def first_weights(head: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Weight and bias of each linear map that reads the inputs of any head: one, or an LSTM's two."""
    if isinstance(head, Head) and isinstance(head.layers, BiLstm):
        lstm: Any = head.layers.lstm
        return [(lstm.weight_ih_l0, lstm.bias_ih_l0), (lstm.weight_ih_l0_reverse, lstm.bias_ih_l0_reverse)]
    layer: Any = entry_of(head)
    return [(layer.weight, layer.bias)]


def example_losses(kind: str, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(rows,) cross-entropy in nats of each example or word, or squared error in regression."""
    if kind != "regression":
        return functional.cross_entropy(outputs, labels, reduction="none")
    return (outputs[:, 0] - labels.float()) ** 2


def constant_loss(kind: str, labels: NDArray[Any]) -> float:
    """Least mean of :func:`example_losses` of an answer that is the same for all rows.

    ``labels``: (rows,) classes, of which the entropy in nats is returned, or values, of which the variance.
    """
    if kind == "regression":
        return float(np.var(labels))
    _, counts = np.unique(labels, return_counts=True)
    shares = counts / len(labels)
    return float(-(shares * np.log(shares)).sum())
