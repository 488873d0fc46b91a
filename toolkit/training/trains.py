"""What of a model will train, before a step is taken: in which optimizer, at which rate and decay, and why not."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import nn

from toolkit.families import BENEATH, EMBEDDING_PARAMETERS, TABLES, ModelFamily, component_of, matches
from toolkit.models.regimes import find_backbones, rank_of
from toolkit.schema import columns_of, with_columns
from toolkit.training.optimizer import DECAY

YES, BY_DECAY, NO, NOT_KNOWN = "yes", "by decay only", "no", "not known"
"""Whether the numbers of a line will move."""

IS_ADAPTER, HAS_ADAPTER = "is one", "has one"
"""What parameters have to do with an adapter of peft; empty where nothing."""


class Why(NamedTuple):
    """What follows from a kind of reason, and its sentence."""

    will_move: str
    sentence: str


WHY: Mapping[str, Why] = {
    "trains": Why(YES, "trainable, and an optimizer holds it"),
    "trainable": Why(YES, "trainable, if an optimizer takes it"),
    "kept gradient": Why(YES, "frozen, but it has kept a gradient, by which the next step moves it: zero_grad() first"),
    "momentum": Why(YES, "frozen, but its gradient is kept as zeros, so that momentum of earlier steps goes on"),
    "kept zeros": Why(BY_DECAY, "frozen, but its gradient is kept as zeros, so that weight decay goes on"),
    "frozen": Why(NO, "frozen"),
    "frozen but held": Why(NO, "frozen: the optimizer that holds it skips what has no gradient"),
    "adapted": Why(NO, "frozen; peft trains an adapter, or a copy, in its place"),
    "not held": Why(NO, "trainable, but no optimizer holds it"),
    "rate 0": Why(NO, "its learning rate is 0"),
    "no gradient": Why(NO, "the backward pass gave it no gradient, and the next step skips it"),
    "unused": Why(NO, "trainable, but no part of the forward pass"),
    "rounding": Why(NO, "rounded away: the largest update at this rate changes no bit of it"),
    "loss": Why(NOT_KNOWN, "it moves only if the loss reads the pooler"),
}
"""Kind of reason, as ``reason_kind`` has it, to what follows."""

SURPRISES = ("not held", "rate 0", "no gradient", "kept gradient", "momentum", "kept zeros", "rounding", "loss")
"""Kinds that a line of answer names wherever they are: nobody sets a model up for them."""

HALF = (torch.bfloat16, torch.float16)


class Holder(NamedTuple):
    """An optimizer's parameter group that holds a parameter."""

    place: str
    """Of the optimizer and of the group in it, both counted from 0: ``0.1``."""
    optimizer: Any
    """What steps: beneath Accelerate's wrapper."""
    group: Mapping[str, Any]

    @property
    def rate_now(self) -> float:
        """The learning rate; NaN for one that the optimizer sets itself."""
        rate = self.group.get("lr")
        return math.nan if rate is None else float(rate)

    @property
    def rate(self) -> float:
        """The learning rate; where it is 0 now, as warm-up begins, what the schedule multiplies."""
        return self.rate_now or float(self.group.get("initial_lr", 0.0))

    @property
    def decay(self) -> float:
        return float(self.group.get(DECAY) or self.group.get("weight_decay") or 0.0)


class Fate(NamedTuple):
    """What is known of one parameter."""

    component: str
    adapter: str
    kind: str
    """Of its reason: a key of WHY."""
    holders: tuple[Holder, ...]
    parameter: nn.Parameter
    tied: tuple[str, ...]
    """Its names in other modules."""


@with_columns
def what_trains(model: nn.Module, optimizer: Any = None) -> pd.DataFrame:
    """What of a model will move when the optimizer steps: by component, at which rate and decay, and why not.

    Ask before the first step. Nothing is changed, and nothing is run.

    Parameters
    ----------
    model
        Any ``torch.nn.Module``. Of the supported families (also inside sentence-transformers, peft, DDP, torch.compile)
        the components have the names of ``--freeze``, what is around the backbone is the head, and of several backbones
        each name begins with the backbone's; other models are told by their top-level modules.
    optimizer
        What will step: a ``torch.optim.Optimizer``, several, or None, where ``requires_grad`` alone decides.

    Returns
    -------
    pandas.DataFrame
        A line for the parameters of a component that have the same fate, so that ``num_parameters`` adds up to the
        model's.

    Raises
    ------
    ValueError
        ``model`` is no ``torch.nn.Module``, or ``optimizer`` has no ``param_groups``.

    Notes
    -----
    *yes* takes for granted that the loss depends on the parameter: before a backward pass nobody knows. Between
    ``backward()`` and ``step()`` the gradients that are there are taken into account: what has none is skipped. torch's
    optimizers skip it whatever its decay, so that a frozen parameter moves only where its gradient was kept.

    Examples
    --------
    >>> import torch, toolkit
    >>> model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 2))
    >>> model[0].weight.requires_grad_(False).shape
    torch.Size([10, 4])
    >>> table = toolkit.what_trains(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    >>> table[["component", "num_parameters", "will_move", "reason_kind"]].to_string(index=False, header=False)
    '0 40  no frozen but held\\n1 10 yes          trains'
    """
    fates = find_fates(model, optimizer)
    fates_by_record: dict[tuple[str, str, str], list[Fate]] = defaultdict(list)
    for fate in fates.values():
        fates_by_record[fate.component, fate.adapter, fate.kind].append(fate)
    total = sum(fate.parameter.numel() for fate in fates.values())
    num_foreign = len(_find_holders(optimizer).keys() - {id(fate.parameter) for fate in fates.values()})
    rows = [
        _record(group, total, is_given=optimizer is not None, num_foreign=num_foreign)
        for group in fates_by_record.values()
    ]
    return pd.DataFrame(rows, columns=columns_of("what_trains"))


def describe_training(model: nn.Module, optimizer: Any = None) -> str:
    """:func:`what_trains` in a line: ``Of 22.7 M parameters 10.6 M will train; the embeddings will not: frozen``."""
    return in_one_line(what_trains(model, optimizer))


def in_one_line(table: pd.DataFrame) -> str:
    """A table of :func:`what_trains` as one line."""
    num_by_answer = table.groupby("will_move")["num_parameters"].sum()
    # Without an optimizer what is trainable can train: whether it will, nobody has said.
    verb = "can" if (table["optimizer_groups"] == NOT_KNOWN).all() else "will"
    total = _count(table["num_parameters"].sum())
    clauses = [f"Of {total} parameters {_count(num_by_answer.get(YES, 0))} {verb} train"]
    is_embedding = table["component"].isin(EMBEDDING_PARAMETERS)
    embeddings = table[is_embedding & (table["reason_kind"] != "adapted")]
    embeddings = embeddings.assign(is_adapter=embeddings["adapter"] == IS_ADAPTER)
    names_by_fate = embeddings.groupby(["is_adapter", "reason_kind"], sort=False)["component"].unique()
    for (is_adapter, kind), names in names_by_fate.items():
        subject = "the embeddings" if len(names_by_fate) == 1 and not is_adapter else ", ".join(names)
        clauses.append(f"{subject} {_predicate(kind, verb)}{' by adapter' * is_adapter}")
    num_by_kind = table[~is_embedding].groupby("reason_kind", sort=False)["num_parameters"].sum()
    for kind, num_parameters in num_by_kind.items():
        if kind in SURPRISES:
            clauses.append(f"{_count(num_parameters)} others: {WHY[str(kind)].sentence}")
    return "; ".join(clauses)


def _predicate(kind: str, verb: str) -> str:
    """What follows the name of parameters in a sentence, by their kind of reason; ``verb``: can or will."""
    if kind in ("trains", "trainable"):
        return f"{verb} train"
    no = "cannot" if verb == "can" else "will not"
    answers = {YES: verb, NO: no, BY_DECAY: f"{verb} by weight decay alone", NOT_KNOWN: "may"}
    return f"{answers[WHY[kind].will_move]}: {WHY[kind].sentence}"


def _count(number: int) -> str:
    return f"{number / 1e6:.1f} M" if number >= 1e6 else f"{number:,}"


def find_fates(model: nn.Module, optimizer: Any = None) -> dict[str, Fate]:
    """Parameter name to its fate, in the order of the components."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"expected a torch.nn.Module, the model itself; got {type(model).__name__}")
    parameters = dict(model.named_parameters())
    holders_by_id = _find_holders(optimizer)
    has_pass = any(p.requires_grad and p.grad is not None and _any(p.grad) for p in parameters.values())
    adapted_modules = {path for name in parameters if (path := _adapted_module(name)) is not None}
    names_by_id = _names_in_modules(model)
    fates: dict[str, Fate] = {}
    for name, (component, doubt) in _components(model).items():
        p = parameters[name]
        holders = holders_by_id.get(id(p), ())
        adapter = HAS_ADAPTER if _adapted_module(name) is not None else ""
        if not adapter and not adapted_modules.isdisjoint(_modules_above(name)):
            adapter = IS_ADAPTER
        kind = _reason_kind(p, holders, doubt, is_given=optimizer is not None, has_pass=has_pass)
        other_names = tuple(other_name for other_name in names_by_id[id(p)] if other_name != name)
        fates[name] = Fate(component, adapter, kind, holders, p, other_names)
    # What is frozen beneath an adapter that moves is not simply frozen: the module changes all the same.
    moving_modules = {
        path
        for name, fate in fates.items()
        if fate.adapter == IS_ADAPTER and WHY[fate.kind].will_move == YES
        for path in _modules_above(name)
    }
    for name, fate in fates.items():
        if fate.kind in ("frozen", "frozen but held") and _adapted_module(name) in moving_modules:
            fates[name] = fate._replace(kind="adapted")
    return fates


def _find_holders(optimizer: Any) -> dict[int, tuple[Holder, ...]]:
    """Identity of a parameter to the groups that hold it."""
    holders: dict[int, tuple[Holder, ...]] = defaultdict(tuple)
    for i, single in enumerate(_as_list(optimizer)):
        if not hasattr(single, "param_groups"):
            raise ValueError(f"optimizer must be one or several, with param_groups; got {type(single).__name__}")
        for j, group in enumerate(single.param_groups):
            for p in group["params"]:
                holders[id(p)] += (Holder(f"{i}.{j}", getattr(single, "optimizer", single), group),)
    return dict(holders)


def _as_list(optimizer: Any) -> list[Any]:
    if optimizer is None:
        return []
    return list(optimizer) if isinstance(optimizer, Iterable) and not isinstance(optimizer, str) else [optimizer]


def _components(model: nn.Module) -> dict[str, tuple[str, str]]:
    """Parameter name to its component and, where it may take no part in the loss, the kind of reason why; in order."""
    backbones = list(find_backbones(model))
    names = [name for name, _ in model.named_parameters()]
    if not backbones:
        return {name: (module, "") for name, module in zip(names, _top_modules(names), strict=True)}
    # Rank in the order of the answer, component, and the kind of doubt, of each parameter of a backbone.
    entry_by_id: dict[int, tuple[tuple[int, ...], str, str]] = {}
    for i, (backbone_path, backbone, family) in enumerate(backbones):
        reads_pooler = _reads_pooler(model, backbone)
        for name, p in backbone.named_parameters():
            component = _component(family, name)
            doubt = "unused" if any(matches(pattern, name) for pattern in family.unused) else ""
            doubt = "loss" if component == "pooler" and not reads_pooler else doubt
            shown_name = f"{backbone_path}.{component}" if len(backbones) > 1 else component
            entry_by_id.setdefault(id(p), ((i, *rank_of(component)), shown_name, doubt))
    head_entry = ((len(backbones),), "head", "")  # behind all backbones
    ranked = [(*entry_by_id.get(id(p), head_entry), name) for name, p in model.named_parameters()]
    return {name: (component, doubt) for _, component, doubt, name in sorted(ranked, key=lambda entry: entry[0])}


def _component(family: ModelFamily, name: str) -> str:
    """The component of a parameter of the backbone, of what peft puts there the component of what it changes."""
    path = name.split(".")
    for end in range(len(path) - 1, 0, -1):
        for leaf in (path[-1], "weight"):
            try:
                return component_of(family, ".".join([*path[:end], leaf]))
            except ValueError:
                continue
    return "encoder_other"


def _reads_pooler(model: nn.Module, backbone: nn.Module) -> bool:
    """Whether a head that reads the pooler's output is around a backbone: transformers' own, or this toolkit's."""
    return any(
        getattr(module, "pooling", "") == "pooler"
        or getattr(module, str(getattr(module, "base_model_prefix", "")), None) is backbone
        for module in model.modules()
    )


def _top_modules(names: list[str]) -> list[str]:
    """The top-level module of each name, with its number in a list; what all have in common is left out."""
    split_names = [name.split(".") for name in names]
    while len({parts[0] for parts in split_names}) == 1 and all(len(parts) > 2 for parts in split_names):
        split_names = [parts[1:] for parts in split_names]
    return [".".join(parts[: 2 if len(parts) > 2 and parts[1].isdecimal() else 1]) for parts in split_names]


def _adapted_module(name: str) -> str | None:
    """The path of the module that has an adapter, of a parameter beneath one; None of any other."""
    for base in (BENEATH, ".original_module."):
        if base in name:
            return name.partition(base)[0]
    return None


def _modules_above(name: str) -> Iterator[str]:
    """The paths of the modules that a parameter is in, from within outwards."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _names_in_modules(model: nn.Module) -> dict[int, list[str]]:
    """Identity of a parameter to its name in each module that has it."""
    names: dict[int, list[str]] = defaultdict(list)
    for module_path, module in model.named_modules():
        for leaf, p in module.named_parameters(recurse=False, remove_duplicate=False):
            names[id(p)].append(f"{module_path}.{leaf}" if module_path else leaf)
    return names


def _reason_kind(p: nn.Parameter, holders: tuple[Holder, ...], doubt: str, *, is_given: bool, has_pass: bool) -> str:
    """The kind of reason why a parameter will move, or will not."""
    if not p.requires_grad:
        return _kind_of_frozen(p, [holder for holder in holders if holder.rate_now], bool(holders))
    if doubt == "unused":
        return doubt
    if not holders:
        return "not held" if is_given else doubt or "trainable"
    if not any(holder.rate for holder in holders):
        return "rate 0"
    if has_pass and p.grad is None:
        return "no gradient"
    if all(_is_lost(p, holder) for holder in holders):
        return "rounding"
    return "trains" if p.grad is not None else doubt or "trains"


def _kind_of_frozen(p: nn.Parameter, stepping: list[Holder], is_held: bool) -> str:
    """``stepping``: the groups that hold it and whose rate is not 0."""
    if p.grad is None or not stepping:
        return "frozen but held" if is_held else "frozen"
    if _any(p.grad):
        return "kept gradient"
    states = [holder.optimizer.state.get(p, {}).values() for holder in stepping]
    if any(isinstance(value, torch.Tensor) and value.ndim and value.any() for state in states for value in state):
        return "momentum"
    return "kept zeros" if any(_decays(p, holder) for holder in stepping) else "frozen but held"


def _any(gradient: torch.Tensor) -> bool:
    return bool(_local(gradient).any())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """What this process has of a tensor: nothing here waits for others."""
    detached: Any = tensor.detach()
    return detached.to_local() if hasattr(detached, "to_local") else detached  # type: ignore[no-any-return]


def _decays(p: nn.Parameter, holder: Holder) -> bool:
    """Whether weight decay changes a bit of a parameter, as a product that AdamW takes first."""
    factor = 1 - holder.rate * holder.decay
    values = _local(p)
    return holder.decay > 0 and (values.is_meta or bool((values * factor != values).any()))


def _is_lost(p: nn.Parameter, holder: Holder) -> bool:
    """Whether in half precision no update that Adam can make changes a bit.

    Adam's are at most rate * max(1, (1 - beta1) / sqrt(1 - beta2)) in each value (Kingma & Ba 2015, section 2.1); twice
    that leaves room for the rounding of its own steps. Of other optimizers there is no such bound.
    """
    if p.dtype not in HALF or p.is_meta or not isinstance(holder.optimizer, torch.optim.Adam | torch.optim.AdamW):
        return False
    beta1, beta2 = (float(beta) for beta in holder.group["betas"])
    largest = holder.rate * max(1.0, (1 - beta1) / math.sqrt(1 - beta2))
    return bool(_is_stuck(p, 2 * largest).all()) and not _decays(p, holder)


def _is_stuck(p: nn.Parameter, size: float) -> torch.Tensor:
    """Which values an update of a size leaves as they are."""
    values = _local(p)
    return (values + size == values) & (values - size == values)


def _record(fates: list[Fate], total: int, *, is_given: bool, num_foreign: int) -> dict[str, Any]:
    """The record of the parameters that have a component and a kind of reason in common."""
    first = fates[0]
    why = WHY[first.kind]
    holders = {holder.place: holder for fate in fates for holder in fate.holders}
    num_parameters = sum(fate.parameter.numel() for fate in fates)
    return {
        "component": first.component,
        "adapter": first.adapter,
        "num_parameters": num_parameters,
        "share": num_parameters / total,
        "requires_grad": first.parameter.requires_grad,
        "optimizer_groups": ", ".join(sorted(holders)) if is_given else NOT_KNOWN,
        "learning_rates": tuple(sorted({holder.rate_now for holder in holders.values()})),
        "weight_decays": tuple(sorted({holder.decay for holder in holders.values()})),
        "dtype": ", ".join(sorted({str(fate.parameter.dtype).removeprefix("torch.") for fate in fates})),
        "tied_to": ", ".join(name for fate in fates for name in fate.tied),
        "will_move": why.will_move,
        "reason_kind": first.kind,
        "reason": why.sentence,
        "note": "; ".join(_notes(fates, num_foreign)),
    }


def _notes(fates: list[Fate], num_foreign: int) -> Iterator[str]:
    """What must be known beside the record of these parameters."""
    kind = fates[0].kind
    held_by = [(fate.parameter, holder) for fate in fates for holder in fate.holders]
    if kind == "not held" and num_foreign:
        yield (
            f"the optimizer holds {num_foreign} tensors that are not the model's: it was made before the model's were "
            "replaced"
        )
    if kind not in ("trains", "trainable"):
        return
    is_table = fates[0].component.rpartition(".")[2] in TABLES
    is_tied = any(fate.tied for fate in fates)
    if is_table and is_tied:
        yield "another module uses it, and both move alike: of an output layer every row may get a gradient"
    if any(not holder.rate_now for _, holder in held_by):
        yield f"its rate is 0 now, and the schedule starts from {max(holder.rate for _, holder in held_by):g}"
    if is_table and not (is_tied or fates[0].adapter) and any(_decays(p, holder) for p, holder in held_by):
        # Adam adds decay to the gradient, and its moments then scale it up.
        is_l2 = torch.optim.Adam in {type(h.optimizer) for _, h in held_by if not h.group.get("decoupled_weight_decay")}
        cause = "Adam's L2, by up to the rate a step" if is_l2 else "weight decay alone"
        yield f"rows that no text uses move by {cause}"
    half_precision = [fate.parameter for fate in fates if fate.parameter.dtype in HALF]
    if half_precision:
        dtype = str(half_precision[0].dtype).removeprefix("torch.")
        rate = max((holder.rate for _, holder in held_by), default=0.0)
        text = "small updates are rounded away"
        if rate > 0 and not half_precision[0].is_meta:
            lost_share = torch.cat([_is_stuck(p, rate).flatten() for p in half_precision]).float().mean().item()
            text = f"an update of the rate, {rate:g}, is rounded away at {lost_share:.0%} of the values"
        yield f"{dtype}: {text}"
