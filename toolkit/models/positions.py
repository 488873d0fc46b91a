"""The position table that training starts from, and positions added again at every layer."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from toolkit.config import RunConfig
from toolkit.families import ModelFamily
from toolkit.models.classifier import Loaded
from toolkit.models.regimes import find_parameter
from toolkit.naming import lookup
from toolkit.sinusoid import sinusoidal_table
from toolkit.snapshots.files import sha256_of_array
from toolkit.snapshots.snapshot import to_array


class Reinjection:
    """Adds the positions' part of the encoder's input to the input of each layer after the first, by hooks.

    The model must have a position table. The hooks are not part of what ``save_pretrained`` writes: whoever loads the
    weights again has to do this again.

    The LayerNorm of the embeddings is, for a given standard deviation sd(e) of each token's sum e = w + p + s, linear
    in the parts of the sum: LN(e) = Σ weight⊙Π(part)/sd(e) + bias with Πx = x - mean(x). The part that is added again
    is weight⊙Πp/sd(e): (examples, tokens, hidden), just what the position is of the first layer's input. We do not add
    the raw row, because that LayerNorm multiplies rows by an order of magnitude: raw rows would be lost in the states,
    and "it changes nothing" would be no answer. Ours. Where the family projects the embeddings to the encoder's width
    (ELECTRA, ALBERT, DeBERTa-v2), so is the part, without the projection's bias, which is not the positions'. There is
    no dropout on it. LayerNorm, projection and rows stay in the graph: gradients are those of the whole function.
    ALBERT's shared layer counts each time that the forward pass goes through it. A table whose rows are all 0, or each
    constant over columns, changes nothing.

    Two things hold no longer: a common offset moved from the position rows to the word rows shows in the outputs (it is
    no gauge), and the ``hidden_states`` that a backbone hands out are those before the positions are added.
    """

    def __init__(self, backbone: nn.Module, family: ModelFamily) -> None:
        names = family.embedding_parameters
        self._norm = _module_of(backbone, names["LayerNorm.weight"])
        projections = [p.removesuffix(".*") for p in family.components.get("projection", ())]
        modules = dict(backbone.named_modules())
        self._projection = next((modules[name] for name in projections if name in modules), None)
        self._rows: torch.Tensor | None = None
        self._part: torch.Tensor | None = None
        self._is_first = True
        self._handles = [
            _module_of(backbone, names["position_embeddings"]).register_forward_hook(self._on_look_up),
            self._norm.register_forward_hook(self._on_norm),
            backbone.register_forward_hook(self._on_end, always_call=True),
            *(layer.register_forward_pre_hook(self._on_layer, with_kwargs=True) for layer in _layers(backbone, family)),
        ]

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def _on_look_up(self, module: nn.Module, args: Any, output: torch.Tensor) -> None:
        self._rows = output

    def _on_norm(self, module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        assert self._rows is not None
        self._part, self._is_first, self._rows = self._part_of(self._rows, args[0]), True, None

    def _part_of(self, rows: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """(examples, tokens, hidden): what position rows contribute to the encoder's input, behind LayerNorm.

        ``rows``: (1 or examples, tokens, width). ``total``: what LayerNorm reads, the sum that the rows are part of.
        """
        # DeBERTa-v2 projects before LayerNorm, so that its rows are narrower than the sum; ELECTRA and ALBERT after it.
        is_projected_first = rows.shape[-1] != total.shape[-1]
        rows = self._project(rows) if is_projected_first else rows
        # A projection in half precision hands its type on to the sum; LayerNorm takes the variance in float32.
        precise_total = total.to(torch.promote_types(total.dtype, torch.float32))
        variance = precise_total.var(dim=-1, unbiased=False, keepdim=True)
        scale: torch.Tensor = self._norm.weight * torch.rsqrt(variance + self._norm.eps)
        part = (rows - rows.mean(dim=-1, keepdim=True)) * scale
        return part if is_projected_first else self._project(part)

    def _project(self, part: torch.Tensor) -> torch.Tensor:
        if self._projection is None:
            return part
        return functional.linear(part, self._projection.weight.to(part.dtype))  # which may be a half-precision copy

    def _on_layer(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Add the positions' part to what a layer reads; the first layer has it already."""
        if self._is_first:
            self._is_first = False
            return None
        if self._part is None:
            raise RuntimeError("a layer ran without the embeddings before it: its positions are not known")
        if args:
            return (args[0] + self._part.to(args[0].dtype), *args[1:]), kwargs
        states = kwargs["hidden_states"]
        return args, {**kwargs, "hidden_states": states + self._part.to(states.dtype)}

    def _on_end(self, module: nn.Module, args: Any, output: Any) -> None:
        """Let go of the pass's graph."""
        self._rows = self._part = None


def _module_of(backbone: nn.Module, parameter: str) -> Any:
    return backbone.get_submodule(parameter.rpartition(".")[0])


def _layers(backbone: nn.Module, family: ModelFamily) -> list[nn.Module]:
    """The modules that the components ``layers.K`` are."""
    (pattern,) = family.components["layers.{K}"]
    return list(backbone.get_submodule(pattern.partition(".{K}")[0]).children())


PositionRows = NDArray[np.float32]


def prepare_positions(loaded: Loaded, config: RunConfig) -> Loaded:
    """Do what ``--positions`` and ``--reinject-positions`` ask, in place; what was done is in ``.positions``.

    Both act on the table that the run would have started from (with ``--init random`` a fresh one), before training
    and before anything is frozen. Rows below that of a text's first token (RoBERTa's padding row and what precedes it)
    stay. ValueError where the model has no position table, or the table cannot be had.
    """
    parameter = loaded.family.embedding_parameters.get("position_embeddings", "")
    located = find_parameter(loaded.model.backbone, parameter) if parameter else None
    if located is None:
        flags = [f"--positions {config.positions}"] * (config.positions != "checkpoint")
        flags += ["--reinject-positions"] * config.reinject_positions
        if flags:
            name = f"{loaded.source.name} ({loaded.family.name})"
            raise ValueError(f"{' '.join(flags)}: not applicable, {name} has no position table")
        return loaded
    if config.reinject_positions and not loaded.family.is_plain_sum:
        raise ValueError(
            f"--reinject-positions: not applicable, the embedding layer of {loaded.family.name} is not LayerNorm of a "
            "sum of rows"
        )
    table = located.parameter
    rows_before = to_array(table)
    first_row = loaded.position_offset
    num_reached = min(config.max_length, len(rows_before) - first_row)
    if config.positions != "checkpoint":
        rows = position_rows(config.positions, rows_before[first_row:], num_reached=num_reached, seed=config.seed)
        with torch.no_grad():
            table[first_row:] = torch.from_numpy(rows).to(table)
    if config.reinject_positions:
        Reinjection(loaded.model.backbone, loaded.family)
        loaded.model.is_hooked = True
    return replace(loaded, positions=_describe(config, rows_before, to_array(table), first_row, num_reached))


def position_rows(kind: str, rows: PositionRows, *, num_reached: int, seed: int = 0) -> PositionRows:
    """(rows, hidden) fp32: the rows that stand in for a checkpoint's position ``rows`` (of texts' first token on).

    ``checkpoint``: themselves. ``zero``: zeros. ``sinusoidal``: the table of Vaswani et al. 2017, times one number that
    gives its rows, which all have one norm, the root mean square norm of ``rows``: unscaled it would be a multiple of
    what the words beside it in the sum are, and drown them in the LayerNorm. ``shuffled``: the first ``num_reached``
    rows (those that texts of --max-length reach) in a random order in which none keeps its place, the rest as they
    are: had rows that no text reaches taken part, the LayerNorm would see norms that it never saw. The rules are ours.
    ValueError for an unknown kind, an odd hidden size (sinusoidal) or fewer than two rows (shuffled).
    """
    return lookup(POSITION_TABLES, kind, "positions")(rows, num_reached, seed)


def _sinusoidal(rows: PositionRows, num_reached: int, seed: int) -> PositionRows:
    table = sinusoidal_table(*rows.shape)
    size = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1).mean())
    scaled: PositionRows = (table * (size / np.sqrt(rows.shape[1] / 2))).astype(np.float32)
    return scaled


def _shuffled(rows: PositionRows, num_reached: int, seed: int) -> PositionRows:
    order = derangement(num_reached, seed)
    return np.concatenate([rows[:num_reached][order], rows[num_reached:]])


def derangement(num: int, seed: int = 0) -> NDArray[np.int64]:
    """(num,) a random permutation that leaves nothing in its place, each of them as likely; ValueError below two."""
    if num < 2:
        raise ValueError(f"--positions shuffled needs at least two rows to shuffle; --max-length reaches {num}")
    generator = np.random.default_rng([*b"positions", seed])
    while True:  # 1 draw in 2.7 (e) leaves nothing in its place
        order = generator.permutation(num)
        if not (order == np.arange(num)).any():
            return order


POSITION_TABLES: Mapping[str, Callable[[PositionRows, int, int], PositionRows]] = {
    "checkpoint": lambda rows, num_reached, seed: rows,
    "sinusoidal": _sinusoidal,
    "shuffled": _shuffled,
    "zero": lambda rows, num_reached, seed: np.zeros_like(rows),
}
"""What ``--positions`` takes: rows, how many of them texts reach, and a seed in; the rows instead out."""


def _describe(
    config: RunConfig, rows_before: PositionRows, rows_after: PositionRows, first_row: int, num_reached: int
) -> dict[str, Any]:
    """What the manifest says: enough to see which table training started from, and which one it replaced."""
    return {
        "table": config.positions,
        "is_reinjected": config.reinject_positions,
        "first_row": first_row,
        "num_reached": num_reached,
        "checkpoint_sha256": sha256_of_array(rows_before),
        "start_sha256": sha256_of_array(rows_after),
    }
