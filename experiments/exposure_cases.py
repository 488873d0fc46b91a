"""Question: does `toolkit.infer_exposure` ever name a row wrongly, whatever the training was?

Tiny models (3,000 words, 64 columns) are trained in many ways, and the word table of the embedded model on gradients of
noise; which rows their texts used is known. A name is false where a row is called exposed that no text held, or
unexposed that one did. Hypothesis: none is, and every table of which something can be known is told. Beside it stands
how many names would be false without the rule that exposed rows must lie apart from all others.

    python experiments/exposure_cases.py --out reports/inferred_exposure/cases

Minutes on one core. The trainer of sentence-transformers is among the loops: it must be installed.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
import transformers
import tyro
from numpy.typing import NDArray

from toolkit.families import TABLES
from toolkit.naming import shown_path
from toolkit.progress import show
from toolkit.questions.changes import inferred_exposure
from toolkit.questions.changes.inferred_exposure import EXPOSED, UNEXPOSED, infer_from
from toolkit.reporting.folder import check_out, write_page
from toolkit.reporting.page import Page, Section, stated, table_block
from toolkit.snapshots.importers import import_checkpoints
from toolkit.snapshots.snapshot import Snapshot, Trajectory

Table = NDArray[np.float32]
Settings = Mapping[str, Any]

DEFAULTS: Settings = {
    "loop": "own",  # a key of LOSSES or LOOPS, or this
    "optimizer": "AdamW",
    "options": {"weight_decay": 0.01},  # of the optimizer; of the trainer where the loop is one
    "rate": 1e-3,
    "steps": 60,
    "schedule": "linear",
    "warmup": 0,
    "batch": 8,
    "accumulated": 1,
    "autocast": False,  # to bf16
    "clip": math.inf,  # norm that gradients are clipped to
    "ema": 0.0,  # decay of the average of weights that is kept in their place; 0 for none
    "words": 300,  # that texts are drawn from
    "rarity": 1.0,  # the k-th word is drawn k**-rarity times as often as the first
    "texts": 192,
    "length": 24,  # tokens of the longest text
    "segments": 1,
    "seed": 0,
    "made": "",  # what is made of the weights afterwards: a key of MADE
    "second": {},  # settings of a second training, where that is of two
}
"""What a case may set, and what it is elsewhere."""

f = np.float32
MADE: Mapping[str, Callable[[Table, Table, Table], tuple[Any, Any]]] = {
    "": lambda a, b, c: (a, b),
    "a tenth of the way": lambda a, b, c: (a, a + f(0.1) * (b - a)),
    "half of the way": lambda a, b, c: (a, f(0.5) * a + f(0.5) * b),
    "twice the way": lambda a, b, c: (a, a + f(2) * (b - a)),
    "half of the way back": lambda a, b, c: (a, a - f(0.5) * (b - a)),
    "soup": lambda a, b, c: (a, (b + c) / f(2)),
    "uneven soup": lambda a, b, c: (a, f(0.3) * b + f(0.7) * c),
    "soup of fp16": lambda a, b, c: (a, (b.astype("f2").astype("f4") + c.astype("f2").astype("f4")) / f(2)),
    "sum of changes": lambda a, b, c: (a, a + (b - a) + (c - a)),
    "siblings": lambda a, b, c: (b, c),
    "both stages": lambda a, b, c: (a, c),
    "second stage": lambda a, b, c: (b, c),
    "fp16": lambda a, b, c: (a, b.astype("f2").astype("f4")),
    "bf16": lambda a, b, c: (a, torch.from_numpy(b).bfloat16().float().numpy()),
    "int8": lambda a, b, c: (a, np.rint(b / np.abs(b).max() * f(127)) * (np.abs(b).max() / f(127))),
    # Veltkamp's splitting, which rounds to 24 - 13 and 24 - 8 bits.
    "11 bits": lambda a, b, c: (a, f(8193) * b - (f(8193) * b - b)),
    "11 bits, before too": lambda a, b, c: (f(8193) * a - (f(8193) * a - a), f(8193) * b - (f(8193) * b - b)),
    "16 bits": lambda a, b, c: (a, f(257) * b - (f(257) * b - b)),
    "noise on all": lambda a, b, c: (a, b + np.random.default_rng(0).normal(0, 1e-5, b.shape).astype("f4")),
}
"""The tables that are compared, made of those before, after, and after the second training."""

LOSSES: Mapping[str, Callable[[Any, dict[str, torch.Tensor]], torch.Tensor]] = {
    "own": lambda model, batch: model(**batch).loss,
    "tied": lambda model, batch: (
        model(**batch | {"labels": batch["input_ids"].masked_fill(batch["input_ids"] == 0, -100)}).loss
    ),
    "noise": lambda model, batch: (
        (rows := model[TABLES[0]](batch["input_ids"])).mul(torch.randn_like(rows)).sum() / 1e3
    ),
}
"""Of a classifier, a language model whose output layer is the word table, and a table whose gradients are noise."""


def texts_of(case: Settings, num_words: int) -> dict[str, torch.Tensor]:
    """Texts of random words between a first and a last token, padded with 0, and their labels."""
    rng, places = np.random.default_rng(case["seed"]), np.arange(case["length"])
    words = rng.permutation(np.arange(5, num_words))[: case["words"]]
    shares = np.arange(1, len(words) + 1) ** -case["rarity"]
    ids = rng.choice(words, (case["texts"], len(places)), p=shares / shares.sum())
    lengths = rng.integers(min(4, len(places)), len(places) + 1, (len(ids), 1))
    ids = np.select([places == 0, places < lengths - 1, places < lengths], [1, ids, 2])
    segments = (places > lengths // 2) & (ids > 0) & (case["segments"] == 2)
    labels = rng.integers(2, size=len(ids))
    texts = {"input_ids": ids, "token_type_ids": segments, "attention_mask": ids > 0, "labels": labels}
    return {name: torch.from_numpy(values).long() for name, values in texts.items()}


def by_own_loop(model: Any, texts: dict[str, torch.Tensor], case: Settings) -> None:
    """The texts in order, of which each batch is a part."""
    optimizer = getattr(torch.optim, case["optimizer"])(model.parameters(), lr=case["rate"], **case["options"])
    schedule = transformers.get_scheduler(case["schedule"], optimizer, case["warmup"], case["steps"])
    swa: Any = torch.optim.swa_utils
    averaged = swa.AveragedModel(model, multi_avg_fn=swa.get_ema_multi_avg_fn(case["ema"]))
    for first in range(0, len(texts["labels"]), case["batch"]):
        batch = {name: values[first : first + case["batch"]] for name, values in texts.items()}
        with torch.autocast("cpu", torch.bfloat16, case["autocast"]):
            loss = LOSSES[case["loop"]](model, batch)
        (loss / case["accumulated"]).backward()
        if (first // case["batch"] + 1) % case["accumulated"] == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            averaged.update_parameters(model)
    model.load_state_dict(averaged.module.state_dict())


def by_trainer(model: Any, texts: dict[str, torch.Tensor], arguments: Settings) -> None:
    """transformers.Trainer, with its defaults but for some arguments."""
    dataset = [dict(zip(texts, one, strict=True)) for one in zip(*texts.values(), strict=True)]
    transformers.Trainer(model, transformers.TrainingArguments(**arguments), train_dataset=dataset).train()


def by_sentence_trainer(model: Any, texts: dict[str, torch.Tensor], arguments: Settings) -> None:
    """The trainer of sentence-transformers, with its defaults but for some arguments, on pairs of texts."""
    import datasets
    import sentence_transformers as st
    from sentence_transformers.losses import CosineSimilarityLoss  # type: ignore[import-not-found]

    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", *(f"w{i}" for i in range(5, model.config.vocab_size))]
    for part in (model.bert, transformers.BertTokenizerFast({name: i for i, name in enumerate(names)})):
        part.save_pretrained(arguments["output_dir"])
    embedder: Any = st.SentenceTransformer(arguments["output_dir"], device="cpu")
    said = [" ".join(names[i] for i in ids if i > 2) for ids in texts["input_ids"].tolist()]
    pairs = {"first": said[::2], "second": said[1::2], "score": texts["labels"][::2].float().tolist()}
    parts = st.SentenceTransformerTrainingArguments(**arguments), datasets.Dataset.from_dict(pairs)
    st.SentenceTransformerTrainer(embedder, *parts, loss=CosineSimilarityLoss(embedder)).train()
    model.bert.load_state_dict(embedder[0].auto_model.state_dict())


LOOPS = {"Trainer": by_trainer, "sentence-transformers": by_sentence_trainer}


def make_model(loop: str) -> Any:
    """Always with the same weights."""
    if loop == "noise":
        words = torch.tensor(import_checkpoints(["minilm"]).trajectory.snapshots[0].tensors[TABLES[0]])
        return torch.nn.ModuleDict({TABLES[0]: torch.nn.Embedding(len(words), words.shape[1], 0, _weight=words)})
    torch.manual_seed(0)
    sizes = {"vocab_size": 3000, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 64}
    config = transformers.BertConfig(num_hidden_layers=2, num_attention_heads=2, **sizes)
    return (transformers.BertForMaskedLM if loop == "tied" else transformers.BertForSequenceClassification)(config)


def tables_in(model: Any) -> dict[str, Table]:
    """A copy of the embedding tables."""
    weights = {name: value for name in TABLES for key, value in model.state_dict().items() if f"{name}.w" in key}
    return {name: value.numpy().copy() for name, value in weights.items()}


def train(model: Any, case: Settings) -> dict[str, set[int]]:
    """Train a model; the rows that its texts used."""
    texts = texts_of(case, len(tables_in(model)[TABLES[0]]))
    torch.manual_seed(case["seed"])
    if case["loop"] in LOOPS:
        with TemporaryDirectory() as folder:
            common = {"output_dir": folder, "report_to": "none", "save_strategy": "no", "use_cpu": True}
            LOOPS[case["loop"]](model.train(), texts, common | case["options"])
    else:
        num_read = case["steps"] * case["accumulated"] * case["batch"]
        order = np.concatenate([torch.randperm(case["texts"]) for _ in range(0, num_read, case["texts"])])[:num_read]
        texts = {name: values[order] for name, values in texts.items()}
        by_own_loop(model.train(), texts, case)
    places = torch.arange(case["length"]).expand_as(texts["input_ids"])
    rows = zip(TABLES, (texts["input_ids"], places, texts["token_type_ids"]), strict=True)
    return {name: set(values[texts["attention_mask"] > 0].tolist()) for name, values in rows}


def compared(case: Settings) -> dict[str, tuple[Table, Table, set[int]]]:
    """Each table before and after, and the rows that may have moved by more than decay."""
    model = make_model(case["loop"])
    before = tables_in(model)
    used = train(model, case)
    after = last = tables_in(model)
    if case["second"]:
        model = model if "stage" in case["made"] else make_model(case["loop"])
        more = train(model, {**case, **case["second"]})
        used = more if case["made"] == "second stage" else {name: used[name] | more[name] for name in used}
        last = tables_in(model)
    pairs = {name: MADE[case["made"]](before[name], after[name], last[name]) for name in before}
    return {name: (a, b, used[name]) for name, (a, b) in pairs.items()}


ENDS = "", "_without_rule"


def judge(case: Settings) -> list[dict[Hashable, Any]]:
    """A line per table: what is told, and what of it is false, with the rule and without it."""
    tables = compared(case)
    both = Trajectory([Snapshot(i, i, {name: (a, b)[i] for name, (a, b, _) in tables.items()}) for i in range(2)])
    is_used = np.concatenate([np.isin(np.arange(len(before)), list(used)) for before, _, used in tables.values()])
    with mock.patch.object(inferred_exposure, "LEAST_MISFIT_RATIO", 0.0):
        unruled = infer_from(both)
    told = infer_from(both)
    lines = told.tables.drop(columns=["sum_lr_decay", "sum_lr_decay_low", "sum_lr_decay_high", "note"])
    lines["num_used"] = [len(used) for *_, used in tables.values()]
    for end, rows in zip(ENDS, (told.rows, unruled.rows), strict=True):
        for name, is_wrong in {EXPOSED: ~is_used, UNEXPOSED: is_used}.items():
            false = ((rows["exposure"] == name) & is_wrong).groupby(rows["parameter"], sort=False).sum()
            lines[f"false_{name}{end}"] = false.to_numpy()
    return list(lines.to_dict("records"))


def options(**given: Any) -> dict[str, Any]:
    """Settings that are these options of the optimizer."""
    return {"options": given}


SGD, TIED = {"optimizer": "SGD", "rate": 0.1}, {"loop": "tied", "optimizer": "SGD"}
ADAM, NOISE = (
    {"optimizer": "Adam"},
    {"loop": "noise", "rarity": 0.0, "words": 2000, "batch": 1, "texts": 1000, "length": 60},
)
TRAINER, SENTENCES, TENTH = {"loop": "Trainer"}, {"loop": "sentence-transformers"}, {"options": {"weight_decay": 0.1}}
OF_TWO = {"second": {"seed": 7}}
OF_TWO_DECAYS = {"second": {"seed": 7, **TENTH}}
CASES: Mapping[str, Mapping[str, Settings]] = {
    "review, told wrongly": {
        **{
            f"momentum and L2, {steps} steps, seed {seed}": {
                **SGD,
                **options(momentum=0.9, weight_decay=0.01, nesterov=True),
                "steps": steps,
                "seed": seed,
            }
            for steps, seeds in {60: range(3), 300: range(2)}.items()
            for seed in seeds
        },
        "momentum and L2 at .01, 300 steps": {
            **SGD,
            **options(momentum=0.9, weight_decay=0.01),
            "rate": 0.01,
            "steps": 300,
        },
        **{
            f"embedded table, momentum, L2 {decay:g} at {rate:g}, {steps} steps": {
                **NOISE,
                **SGD,
                **options(momentum=0.9, weight_decay=decay),
                "rate": rate,
                "steps": steps,
            }
            for decay, rate, steps in ((1e-2, 0.01, 200), (1e-4, 0.01, 300))
        },
        **{
            f"Adam, L2 {decay:g}, eps {eps:g}": {**ADAM, **options(weight_decay=decay, eps=eps), "rate": 3e-3}
            for decay, eps in ((1e-6, 1e-4), (1e-5, 1e-3), (1e-4, 1e-2), (1e-2, 1.0))
        },
        "tied, SGD at 1e-7": {**TIED, "options": {}, "rate": 1e-7},
        "saved with 11 bits": {"made": "11 bits", "rate": 1e-6},
    },
    "review, told rightly": {
        **{
            f"AdamW at {rate:g}, decay {decay:g}": {**options(weight_decay=decay), "rate": rate}
            for rate in (1e-7, 1e-8)
            for decay in (0, 0.01, 0.1)
        },
        "one step": {"steps": 1, "schedule": "constant"},
        "one word": {"words": 1},
        "accumulation": {"accumulated": 4},
        "bf16 compute": {"autocast": True},
        "no decay, a momentum tail": {**options(weight_decay=0), "steps": 300, "schedule": "constant"},
        "AdamW, eps 1e-3": options(weight_decay=0.01, eps=1e-3),
        "AdamW, eps 1": options(weight_decay=0.01, eps=1.0),
        "clipped to 1e-8": {"clip": 1e-8},
        "clipped to 1e-12": {"clip": 1e-12},
        "SGD at 1e-5": {**SGD, "options": {}, "rate": 1e-5},
        "NAdam": {"optimizer": "NAdam", "options": {}},
        "Adagrad": {"optimizer": "Adagrad", "options": {}, "rate": 0.01},
        "Adafactor": {"optimizer": "Adafactor", "options": {}, "rate": 0.01},
        "AdamW, fused": options(weight_decay=0.01, fused=True),
        **{
            f"EMA {decay:g}": {"ema": decay, "steps": steps}
            for decay, steps in {0.9: 60, 0.99: 200, 0.999: 200, 0.9999: 300}.items()
        },
        "interpolated, .1": {"made": "a tenth of the way"},
        "interpolated, .5": {"made": "half of the way"},
        "task vector, doubled": {"made": "twice the way"},
        "x - .5(y - x)": {"made": "half of the way back"},
        "soup of two": {"made": "soup", **OF_TWO},
        "soup of two decays": {"made": "soup", **OF_TWO_DECAYS},
        "saved in fp16": {"made": "fp16"},
        "saved in bf16": {"made": "bf16"},
        "saved in int8": {"made": "int8"},
        "noise on all rows": {"made": "noise on all"},
        "soup of fp16 files": {"made": "soup of fp16", **OF_TWO},
        "two stages": {"made": "both stages", **OF_TWO_DECAYS},
        "second stage of two": {"made": "second stage", **OF_TWO_DECAYS},
        "every word": {"words": 2995, "rarity": 0.0, "texts": 960, "length": 64, "steps": 120},
        "tied, AdamW": {"loop": "tied"},
        "tied, SGD at 1e-5": {**TIED, "options": {}, "rate": 1e-5},
        "tied, SGD at .01": {**TIED, "options": {}, "rate": 0.01},
        "siblings": {"made": "siblings", **OF_TWO_DECAYS},
        **{
            f"momentum and L2 {decay:g} at {rate:g}": {
                **SGD,
                **options(momentum=0.9, weight_decay=decay),
                "rate": rate,
                "steps": 300,
            }
            for decay, rate in ((5e-4, 0.01), (5e-4, 0.1), (1e-4, 0.05))
        },
    },
    "own": {
        **{
            f"Trainer{what}": {**TRAINER, "options": {"weight_decay": 0.01, **options}, "length": length}
            for what, length, options in (
                (", defaults", 24, {"weight_decay": 0.0}),
                (", decay", 24, {}),
                (
                    ", decay .1, cosine, warm-up",
                    24,
                    {"weight_decay": 0.1, "lr_scheduler_type": "cosine", "warmup_steps": 9},
                ),
                (", accumulation", 24, {"gradient_accumulation_steps": 4}),
                (", bf16", 24, {"bf16": True}),
                (", Adafactor", 24, {"optim": "adafactor", "learning_rate": 1e-3}),
                (", SGD", 24, {"optim": "sgd", "learning_rate": 0.1}),
                (", AdamW unfused, 10 epochs", 24, {"optim": "adamw_torch", "num_train_epochs": 10}),
                (", label smoothing at 2e-5", 24, {"label_smoothing_factor": 0.1, "learning_rate": 2e-5}),
                (", long texts", 64, {}),
            )
        },
        **{
            f"sentence-transformers{what}": {**SENTENCES, "options": options}
            for what, options in (
                (", defaults", {}),
                (", decay, 2e-5", {"weight_decay": 0.01, "learning_rate": 2e-5}),
                (", decay .1, warm-up", {"weight_decay": 0.1, "warmup_steps": 9, "per_device_train_batch_size": 16}),
            )
        },
        **{
            f"AdamW at {rate:g}, decay {decay:g}, {steps} steps": {
                **options(weight_decay=decay),
                "rate": rate,
                "steps": steps,
            }
            for rate, decay, steps in (
                (2e-5, 0.01, 60),
                (5e-5, 0.1, 60),
                (3e-4, 0.1, 300),
                (1e-6, 0.1, 60),
                (1e-6, 0.1, 300),
                (3e-3, 0.3, 60),
            )
        },
        "long texts": {"length": 64},
        "few words": {"words": 5},
        "frequent words": {"words": 40, "steps": 300},
        "many words": {"words": 2000, "rarity": 0.5, "texts": 480, "length": 64},
        "two segments": {"segments": 2},
        "one text": {"texts": 1},
        "cosine, warm-up": {"schedule": "cosine", "warmup": 12},
        "polynomial": {"schedule": "polynomial"},
        "constant": {"schedule": "constant", "steps": 200},
        "amsgrad": options(weight_decay=0.01, amsgrad=True),
        "AdamW, foreach": options(weight_decay=0.01, foreach=True),
        "AdamW, table after table": options(weight_decay=0.01, foreach=False),
        "AdamW, betas .5 and .9": options(weight_decay=0.01, betas=(0.5, 0.9)),
        "NAdam, decoupled decay": {"optimizer": "NAdam", **options(weight_decay=0.01, decoupled_weight_decay=True)},
        "RAdam, decoupled decay": {"optimizer": "RAdam", **options(weight_decay=0.01, decoupled_weight_decay=True)},
        "RMSprop": {"optimizer": "RMSprop", "options": {}},
        "Adamax": {"optimizer": "Adamax", "options": {}},
        "Adam without L2": {**ADAM, "options": {}},
        "SGD, L2": SGD,
        "SGD, L2, at 1e-5": {**SGD, "rate": 1e-5},
        "SGD, L2 .1, 300 steps": {**SGD, **TENTH, "rate": 0.05, "steps": 300},
        "SGD, L2, warm-up": {**SGD, "warmup": 9},
        "SGD, L2, fused": {**SGD, "options": {"weight_decay": 0.01, "fused": True}},
        "momentum without L2": {**SGD, **options(momentum=0.9, weight_decay=0)},
        "clipped to 1": {"clip": 1.0},
        "clipped to .01, SGD": {**SGD, "clip": 0.01},
        "EMA .999, decay .1": {**TENTH, "ema": 0.999, "steps": 300},
        "EMA .99 of SGD": {**SGD, "ema": 0.99, "steps": 200},
        "uneven soup": {"made": "uneven soup", **OF_TWO},
        "sum of two task vectors": {"made": "sum of changes", **OF_TWO},
        "saved with 16 bits": {"made": "16 bits"},
        "11 bits, before too": {"made": "11 bits, before too", "rate": 1e-6},
        "saved with 11 bits, at 1e-5": {"made": "11 bits", "rate": 1e-5},
        "momentum .5, L2": {**SGD, **options(momentum=0.5, weight_decay=0.01), "steps": 200},
        "momentum .99, L2 .001": {**SGD, **options(momentum=0.99, weight_decay=0.001), "rate": 0.01, "steps": 200},
        "Adam, L2 1e-6": {**ADAM, **options(weight_decay=1e-6)},
        "Adam, L2 1e-7, eps .01": {**ADAM, **options(weight_decay=1e-7, eps=1e-2)},
        "RMSprop, L2 1e-4, eps .01": {"optimizer": "RMSprop", **options(weight_decay=1e-4, eps=1e-2)},
        "Adagrad, L2 1e-4, eps .01": {"optimizer": "Adagrad", **options(weight_decay=1e-4, eps=1e-2), "rate": 0.01},
        "tied, SGD at 1e-6": {**TIED, "options": {}, "rate": 1e-6},
        "tied, AdamW at 1e-8": {"loop": "tied", "rate": 1e-8},
        "embedded table, AdamW": {**NOISE, "rate": 5e-5, "steps": 100},
        "embedded table, SGD, L2": {**NOISE, **SGD, "steps": 100},
    },
}
"""Source of a case to its name to its settings."""


def make_page(table: pd.DataFrame, command: str) -> Page:
    """What is false with the rule and without it, and every case."""
    is_told, by_rule = table["reason"] == "", table["reason"] == inferred_exposure.OVERLAP
    false, unruled = (table[[f"false_exposed{end}", f"false_unexposed{end}"]].sum(axis=1) for end in ENDS)
    answers = [
        f"{len(table):,} tables of {table['case'].nunique():,} cases: {is_told.sum():,} were told and "
        f"{(~is_told).sum():,} refused; {false.sum():,} names are false.",
        f"The rule that exposed rows lie apart refuses {by_rule.sum():,} of them. Without it {(unruled > 0).sum():,} "
        f"would hold {unruled.sum():,} false names, and {(by_rule & (unruled == 0)).sum():,} would be told without "
        "one.",
    ]
    words = table_block(
        table[table["parameter"] == TABLES[0]],
        "source case num_used num_exposed_rows num_unexposed_rows num_untold_rows misfit_unexposed misfit_exposed "
        "false_exposed false_unexposed false_exposed_without_rule false_unexposed_without_rule reason",
        "The word table of each case; tables/cases.csv has the settings, tables/told.csv positions and segments.",
    )
    return Page(
        title="Which rows training used: cases that might mislead",
        question="Is a row ever named wrongly, whatever the training was?",
        answers=stated(answers),
        sections=(Section(id="cases", title="Cases", blocks=(words,)),),
        commands=command,
    )


def main(*, out: Path) -> None:
    """Train all cases, judge what is told of each, and write the report.

    Args:
        out: folder of the report
    """
    check_out(out)
    cases = [
        {"source": source, "case": name, **DEFAULTS, **settings}
        for source, own in CASES.items()
        for name, settings in own.items()
    ]
    told = pd.DataFrame(
        {"source": case["source"], "case": case["case"], **line} for case in cases for line in judge(case)
    )
    page = make_page(told, f"python experiments/exposure_cases.py --out {shown_path(out)}")
    show(f"Report: {write_page(page, out, {'cases': pd.DataFrame(cases).astype(str), 'told': told})}")


if __name__ == "__main__":
    from toolkit.cli import guarded

    raise SystemExit(guarded(lambda: tyro.cli(main, description=__doc__)))
