"""What will train, told before a step, against the bits before and after three real steps."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW
from transformers import (
    Adafactor,
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    Trainer,
    TrainingArguments,
    get_scheduler,
)

import toolkit
from tests.conftest import sizes_of
from tests.refusals import check_refusals, leave
from tests.training.test_record_adapters import adapt
from toolkit.cli import main
from toolkit.config import RunConfig
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.models.regimes import locate_embeddings
from toolkit.pipeline import finetune, plan, plan_of_trainer
from toolkit.training import trains
from toolkit.training.trains import BY_DECAY, NO, NOT_KNOWN, WHY, YES, describe_training, find_fates

IDS = torch.tensor([[7, 8, 7, 9], [10, 11, 12, 8]])
EMBEDDINGS, LAYERS = {*EMBEDDING_PARAMETERS}, {"layers.0", "layers.1", "layers.2"}
W = "word_embeddings"


def build(kind: Any = AutoModelForSequenceClassification, **changes: Any) -> Any:
    """A tiny BERT whose LayerNorm.bias is not 0, which no decay moves."""
    torch.manual_seed(0)
    model = kind.from_config(AutoConfig.for_model("bert", **sizes_of("bert", vocab_size=40)), **changes).train()
    nn.init.constant_(model.bert.embeddings.LayerNorm.bias, 0.1)
    return model


def freeze(model: nn.Module, is_frozen: bool = True) -> nn.Module:
    """Freeze the five embedding parameters, or the opposite."""
    for p in locate_embeddings(model).parameters.values():
        p.requires_grad_(not is_frozen)
    return model


def backward(model: Any) -> None:
    model(input_ids=IDS, token_type_ids=(IDS > 8).long())[0].float().square().sum().backward()


def step(model: nn.Module, optimizers: Any, set_to_none: bool = True) -> None:
    for each in optimizers:
        each.zero_grad(set_to_none=set_to_none)
    backward(model)
    for each in optimizers:
        each.step()


def words_of(model: nn.Module) -> torch.Tensor:
    """The word table as it is now."""
    return model.get_input_embeddings().weight.detach().clone()


Case = tuple[nn.Module, Any, dict[str, str]]
"""A model, its optimizers, and the kind of reason that the embeddings have, or by component where they differ."""


def frozen_late(kind: Any, **options: Any) -> Case:
    model = build()
    return freeze(model), [kind(model.parameters(), **options)], dict.fromkeys(EMBEDDINGS, "frozen but held")


def unfrozen_late() -> Case:
    model = freeze(build())
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad])
    return freeze(model, False), [optimizer], dict.fromkeys(EMBEDDINGS, "not held")


def head_alone() -> Case:
    model = build()
    return model, [AdamW(model.classifier.parameters())], dict.fromkeys({*EMBEDDINGS, *LAYERS, "pooler"}, "not held")


def tied() -> Case:
    model = build(AutoModelForMaskedLM)
    return model, [AdamW(model.parameters())], dict.fromkeys(EMBEDDINGS, "trains")


def adapted(way: str = "LoRA") -> Case:
    model, _ = adapt("bert", way)
    expected = dict.fromkeys(EMBEDDINGS, "frozen but held") | {W: "adapted"}
    return model.train(), [AdamW(model.parameters(), lr=0.05)], expected


def at_rates(rate: float, kind: str, *, is_warm_up: bool = False) -> Case:
    model = build()
    own = [*locate_embeddings(model).parameters.values()]
    others = [p for p in model.parameters() if all(p is not each for each in own)]
    optimizer = AdamW([{"params": own, "lr": rate}, {"params": others}], lr=1e-3)
    if is_warm_up:
        schedule = get_scheduler("linear", optimizer, num_warmup_steps=2, num_training_steps=9)
        optimizer.register_step_post_hook(lambda *_: schedule.step())
    return model, [optimizer], dict.fromkeys(EMBEDDINGS, kind)


def own_rate() -> Case:
    model = build()
    return model, [Adafactor(model.parameters())], dict.fromkeys(EMBEDDINGS, "trains")


def frozen_with_gradients(kind: str, optimizer: Any = AdamW, *, momentum: bool = False, **options: Any) -> Case:
    """Frozen once a backward pass was made, of which the gradients are kept, or their place."""
    model = build()
    own = optimizer(model.parameters(), **options)
    step(model, [own] * momentum)  # without an optimizer a backward pass
    if kind != "kept gradient":
        own.zero_grad(set_to_none=False)
    return freeze(model), [own], dict.fromkeys(EMBEDDINGS, kind)


def half() -> Case:
    model = build(dtype=torch.bfloat16)
    expected = dict.fromkeys(EMBEDDINGS, "trains") | dict.fromkeys(("LayerNorm.weight", "LayerNorm.bias"), "rounding")
    return model, [Accelerator(cpu=True).prepare(AdamW(model.parameters(), lr=1e-5))], expected


def in_phases(is_unfrozen: bool) -> Case:
    model = build()
    own = {id(p) for p in locate_embeddings(model).parameters.values()}
    parts = [[p for p in model.parameters() if (id(p) in own) == is_own] for is_own in (False, True)]
    freeze(model, not is_unfrozen)
    return (
        model,
        [AdamW(part) for part in parts],
        dict.fromkeys(EMBEDDINGS, "trains" if is_unfrozen else "frozen but held"),
    )


CASES: dict[str, Callable[[], Case]] = {
    "frozen after the optimizer was made": lambda: frozen_late(AdamW, weight_decay=0.5),
    "the same, of SGD with momentum and decay": lambda: frozen_late(SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "frozen after prepare": lambda: frozen_late(lambda parameters: Accelerator(cpu=True).prepare(AdamW(parameters))),
    "unfrozen after the optimizer was made": unfrozen_late,
    "nothing but the head in the optimizer": head_alone,
    "tied": tied,
    "an adapter beside a frozen table": adapted,
    "rows that are trained beside a frozen table": lambda: adapted("trainable_token_indices"),
    "a copy that is trained in place of a table": lambda: adapted("modules_to_save"),
    "rate 0": lambda: at_rates(0.0, "rate 0"),
    "a rate that the optimizer sets": own_rate,
    "warm-up begins at 0": lambda: at_rates(1e-3, "trains", is_warm_up=True),
    "decay only": lambda: frozen_with_gradients("kept zeros", weight_decay=0.5),
    "decay only, of SGD": lambda: frozen_with_gradients("kept zeros", SGD, lr=0.1, weight_decay=0.5),
    "zeros without decay": lambda: frozen_with_gradients("frozen but held", weight_decay=0.0),
    "decay below the spacing of float32": lambda: frozen_with_gradients("frozen but held", lr=1e-7, weight_decay=0.01),
    "momentum of an earlier step": lambda: frozen_with_gradients("momentum", momentum=True, weight_decay=0.0),
    "a gradient that was kept": lambda: frozen_with_gradients("kept gradient"),
    "bfloat16 at a rate of 1e-5": half,
    "gradual unfreezing, first phase": lambda: in_phases(False),
    "gradual unfreezing, second phase": lambda: in_phases(True),
}


def check(fates: dict[str, trains.Fate], take_steps: Callable[[], None]) -> None:
    """The oracle: what will not move keeps its bits, and of each line that will some bit changes."""
    before = {name: fate.parameter.detach().clone() for name, fate in fates.items()}
    take_steps()
    moved = {name for name, fate in fates.items() if not torch.equal(before[name], fate.parameter)}
    answers = {name: WHY[fate.kind].will_move for name, fate in fates.items()}
    lines = {name: (fate.component, fate.adapter, fate.kind) for name, fate in fates.items()}
    assert not [name for name in moved if answers[name] == NO]
    assert {lines[name] for name in fates if answers[name] in (YES, BY_DECAY)} <= {lines[name] for name in moved}


@pytest.mark.parametrize("case", CASES)
def test_what_will_move_moves_and_nothing_else(case: str) -> None:
    model, optimizers, expected = CASES[case]()
    fates = find_fates(model, optimizers)
    found = {fate.component: fate.kind for fate in fates.values() if fate.adapter != trains.IS_ADAPTER}
    assert {name: found[name] for name in expected} == expected
    before = {name: fate.parameter.detach().clone() for name, fate in fates.items()}
    steps = [each.step for each in optimizers] if "kept gradient" in expected.values() else []
    check(fates, lambda: [each() for each in steps] or [step(model, optimizers, set_to_none=False) for _ in range(3)])
    for name, fate in fates.items():
        if WHY[fate.kind].will_move == BY_DECAY:
            (holder,) = fate.holders
            left = before[name].double() * (1 - holder.rate * holder.decay) ** 3
            torch.testing.assert_close(fate.parameter.detach().double(), left, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("way", ["LoRA", "trainable_token_indices", "modules_to_save"])
def test_the_table_of_an_adapter_moves_though_its_parameter_does_not(way: str) -> None:
    model, optimizers, _ = adapted(way)
    table = toolkit.what_trains(model, optimizers).set_index(["component", "adapter"])
    assert table.loc[[(W, "has one"), (W, "is one")], "will_move"].tolist() == [NO, YES]
    before = locate_embeddings(model).values()[W]
    for _ in range(3):
        step(model, optimizers)
    assert (locate_embeddings(model).values()[W] != before).any()
    assert "; word_embeddings will train by adapter; position_embeddings, " in describe_training(model, optimizers)


def test_in_half_precision_no_more_values_move_than_the_note_leaves() -> None:
    model, optimizers, _ = half()
    own = toolkit.what_trains(model, optimizers).set_index("component")["note"]
    (lost,) = re.findall(r"bfloat16: an update of the rate, 1e-05, is rounded away at (\d+)% of the values", own[W])
    before = words_of(model)
    step(model, optimizers)
    assert 0 < (words_of(model) != before).float().mean() < 1 - int(lost) / 100 + 0.01 < 0.51


def test_of_half_precision_without_a_rate_no_share_is_told() -> None:
    told = {*toolkit.what_trains(build(dtype=torch.bfloat16))["note"]}
    assert told == {"bfloat16: small updates are rounded away"}


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (AdamW, {}, "rows that no text uses move by weight decay alone"),
        (SGD, {"weight_decay": 0.1}, "rows that no text uses move by weight decay alone"),
        (Adam, {"weight_decay": 0.1}, "rows that no text uses move by Adam's L2, by up to the rate a step"),
        (AdamW, {"weight_decay": 0.0}, ""),
    ],
)
def test_rows_that_no_text_uses_move_as_the_note_says(kind: Any, options: dict[str, float], said: str) -> None:
    model = build()
    optimizer = kind(model.parameters(), lr=1e-2, **options)
    assert toolkit.what_trains(model, optimizer).set_index("component").loc[W, "note"] == said
    before = words_of(model)[13:]
    for _ in range(3):
        step(model, [optimizer])
    after, factor = words_of(model)[13:], (1 - 1e-2 * optimizer.param_groups[0]["weight_decay"]) ** 3
    assert torch.allclose(after, before * factor, rtol=1e-5, atol=0) == ("L2" not in said)
    assert (after != before).any() == bool(said)


def test_under_an_output_layer_rows_that_no_text_uses_move_too() -> None:
    model = build(AutoModelForMaskedLM)
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    line = toolkit.what_trains(model, optimizer).set_index("component").loc[W]
    assert line["tied_to"] == "cls.predictions.decoder.weight"
    assert "of an output layer every row may get a gradient" in line["note"]
    before = words_of(model)
    step(model, [optimizer])
    assert (words_of(model) != before)[13:].any(dim=1).all()


def test_after_a_backward_pass_what_it_did_not_reach_is_known() -> None:
    """The pooler of a bare backbone moves only where the loss reads it."""
    model = build().bert
    optimizer = AdamW(model.parameters())
    assert {f.kind for f in find_fates(model, optimizer).values() if f.component == "pooler"} == {"loss"}
    backward(model)
    fates = find_fates(model, optimizer)
    assert {fate.kind for fate in fates.values() if fate.component == "pooler"} == {"no gradient"}
    check(fates, optimizer.step)


@pytest.mark.parametrize("family", ["albert", "modernbert", "mpnet", "mobilebert", "esm", "llama", "t5"])
def test_the_lines_partition_a_model_of_every_family(family: str, tiny_model: Callable[[str], Path]) -> None:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(tiny_model(family))
    table = toolkit.what_trains(model)
    assert table["num_parameters"].sum() == sum(p.numel() for p in model.parameters())
    assert table["share"].sum() == pytest.approx(1)
    assert {*locate_embeddings(model).parameters} == EMBEDDINGS & {*table["component"]}
    assert {*table.loc[table["will_move"] == NO, "reason_kind"]} == ({"unused"} if family == "esm" else set())


def test_wrappers_change_nothing(tiny_model: Callable[[str], Path]) -> None:
    model = freeze(build())
    plain, init = toolkit.what_trains(model, AdamW(model.parameters())), {"rank": 0, "world_size": 1}
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), **init)
    try:
        for wrapped in (torch.compile(model), DistributedDataParallel(model), nn.DataParallel(model)):
            assert toolkit.what_trains(wrapped, [AdamW(wrapped.parameters())]).equals(plain)
    finally:
        torch.distributed.destroy_process_group()
    reader = Transformer(str(tiny_model("bert")))
    sentences = toolkit.what_trains(SentenceTransformer(modules=[reader, Pooling(16)]))
    assert sentences.set_index("component")["will_move"].to_dict() == dict.fromkeys(
        [*EMBEDDING_PARAMETERS, "layers.0", "layers.1", "layers.2"], YES
    ) | {"pooler": NOT_KNOWN}


def test_any_other_model_is_told_by_its_modules_and_two_backbones_by_their_names() -> None:
    plain = nn.Sequential(nn.Embedding(9, 4), nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 2)]))
    plain[0].weight.requires_grad_(False)
    table = toolkit.what_trains(nn.ModuleDict({"model": plain}), SGD(plain.parameters(), lr=0.1))
    assert table["component"].tolist() == ["0", "1.0", "1.1"]
    assert table["reason_kind"].tolist() == ["frozen but held", "trains", "trains"]
    assert [*toolkit.what_trains(nn.ModuleDict({"answer": nn.Linear(2, 2), "bert": build().bert}))["component"]] == [
        *EMBEDDING_PARAMETERS,
        *sorted(LAYERS),
        *("pooler", "head"),
    ]
    towers = toolkit.what_trains(nn.ModuleDict({"query": build().bert, "text": build().bert}))
    assert {f"{tower}.{W}" for tower in ("query", "text")} <= {*towers["component"]}
    assert towers["num_parameters"].sum() == 2 * sum(p.numel() for p in build().bert.parameters())


def test_an_optimizer_of_parameters_that_were_replaced_is_named() -> None:
    model = build()
    optimizer = AdamW(model.parameters())
    model.bert.embeddings.word_embeddings = nn.Embedding(45, 16)
    line = toolkit.what_trains(model, optimizer).set_index("component").loc[W]
    assert (line["reason_kind"], line["optimizer_groups"]) == ("not held", "")
    assert line["note"].startswith("the optimizer holds 1 tensors that are not the model's")


def test_a_line_of_answer() -> None:
    model = freeze(build())
    assert describe_training(model) == "Of 8,450 parameters 6,978 can train; the embeddings cannot: frozen"
    model, optimizers, _ = unfrozen_late()
    said = "Of 8,450 parameters 6,978 will train; the embeddings will not: trainable, but no optimizer holds it"
    assert describe_training(model, optimizers) == said
    check_refusals(
        ("optimizer must be one or several, with param_groups; got str", lambda: toolkit.what_trains(model, "adamw")),
        ("expected a torch.nn.Module, the model itself; got str", lambda: toolkit.what_trains("minilm")),
    )


REGIMES: dict[str, dict[str, Any]] = {
    "full": {},
    "embeddings": {"freeze": "embeddings"},
    "features": {"freeze": "backbone"},
    "some": {"freeze": "word_embeddings,LayerNorm.bias,layers.0-1", "optimizer": "sgd", "learning_rate": 0.1},
    "LoRA": {"lora": (W, "query")},
    "pooler": {"pooling": "pooler"},
    "new rows": {"train_rows": "new"},
}


@pytest.mark.parametrize("regime", REGIMES)
def test_a_plan_is_what_finetune_does(regime: str, tiny_config: RunConfig, tmp_path: Path) -> None:
    tokens = tmp_path / "new.txt"
    tokens.write_text("film\u00e9\nzwick\n")
    changes = REGIMES[regime] | ({"add_tokens": str(tokens)} if regime == "new rows" else {})
    config = replace(tiny_config, output_dir=str(tmp_path), max_steps=3, **changes)
    (_, answer, table), run = plan(config), finetune(config)
    first, last = (run.trajectory.snapshots[i].tensors for i in (0, -1))
    own, model = table[table["will_move"] == YES], run.manifest["model"]
    if regime != "new rows":  # which no text uses
        assert {*own["component"]} & EMBEDDINGS == {name for name in first if (first[name] != last[name]).any()}
    sums = (own["num_parameters"].sum(), table["num_parameters"].sum())
    assert sums == (model["num_trainable"], model["num_parameters"])
    assert {rate for rates in table["learning_rates"] for rate in rates} == {
        rate for rate in (config.learning_rate, config.head_learning_rate) if regime != "features" or rate == 1e-3
    }
    assert {0.0, 0.01} >= {decay for decays in own["weight_decays"] for decay in decays} > {0.0}
    assert answer.startswith(f"Of {sums[1]:,} parameters {sums[0]:,} will")


def test_without_flags_the_command_tells_of_a_plain_trainer(
    tiny_model: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder := tiny_model("bert"))
    optimizer = Trainer(model, TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")).create_optimizer()
    expected, (title, answer, table) = toolkit.what_trains(model, optimizer), plan_of_trainer(str(folder))
    unlike = [name for name in table if not table[name].equals(expected[name])]
    assert unlike == ["optimizer_groups"]  # of which Trainer has two, alike but for a decay that is 0
    assert leave(main, ["trains", str(folder)]) == 0
    said = capsys.readouterr().out
    assert (said.startswith(f"{answer}\n"), title in " ".join(said.split())) == (True, True)
    model.bfloat16().save_pretrained(tmp_path / "half")
    assert {*plan_of_trainer(str(tmp_path / "half"))[2]["dtype"]} == {"bfloat16"}
    for regime, code, told in (
        ("none", 0, "regime none"),
        ("backbone", 0, r"layers\.0-2 +│ 6,672 .* no +│ frozen"),
        ("layers.3", 2, r"^error: unknown regime or component 'layers.3' \(did"),
    ):
        assert leave(main, ["trains", str(folder), "--freeze", regime]) == code
        assert re.search(told, "".join(capsys.readouterr()))
