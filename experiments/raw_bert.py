"""Question: what does fine-tuning do to the embeddings of a BERT that nobody tuned before?

minilm, the embedded model, was tuned on sentence pairs. This is a raw masked-LM BERT (12 layers, hidden size 256, 591
words) and it reads chemical reactions, not English: nothing here is a claim about English. It is the `bert_pretrained`
of the PyPI package rxnfp 0.1.0 (MIT), tuned on the yields of Buchwald-Hartwig reactions.

    python -m pip download --no-deps rxnfp==0.1.0 --dest wheels
    python experiments/raw_bert.py --wheel wheels/rxnfp-0.1.0-py3-none-any.whl    # models and data, into runs/raw_bert
    python -m toolkit study experiments/raw_bert.py --output-dir runs/raw_bert/runs    # 27 runs, and reports/raw_bert
    python experiments/raw_bert.py --wheel ... --inferred        # what its two published descendants tell of exposure
    python experiments/raw_bert.py --wheel ... --starts --seeds 0 1 2       # R² of LP-FT, and from random weights
    python experiments/raw_bert.py --wheel ... --others          # R² on the splits that the study leaves out
    python experiments/raw_bert.py --wheel ... --poolings        # R² of features by pooling
    python experiments/raw_bert.py --wheel ... --forms           # R² of 16 forms of features, on a fifth of each train

Anchor, published with the data: full fine-tuning reaches R² .951 ± .005 on the random splits (fullcv_*), .838, .836,
.738 and .538 on test1 to test4, with the settings below; the head is a fresh linear layer on the published pooler.
They differ in the dropout. The published runs name .7987, but the library that made them (simpletransformers 0.34.4,
classification_model.py) calls model.train() once, before the epochs, and its evaluation at the end of each leaves the
model in eval mode: from the second epoch on nothing was dropped. Here nothing is dropped at all. With .7987 throughout
(--dropout-throughout) the model learns nothing in three epochs.

The files are taken out of the wheel by sha256 and read with torch.load(weights_only=True); the tokenizer is built here,
and must reproduce the fingerprint that the package's own page prints. The data are not part of this repository:
../shared/data, or the folder that EMBEDDING_DRIFT_DATA names, holds them; experiments/data.sha256 has their source,
licence and sha256. Yields are standardised by those of train, as published. A step takes about a second on two cores,
a full run of ten epochs half an hour; the committed runs that train the encoder ran on an H100, 8 or 13 of them at a
time in three minutes. Finished runs are kept, and unfinished ones go on with the same command.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit import Comparison, Study

DATA = Path(os.environ.get("EMBEDDING_DRIFT_DATA", "../shared/data"))
FILES = {
    "fullcv_01": {"train": "rxn_yields/fullcv_01/train.tsv", "test": "rxn_yields/fullcv_01/test.tsv"},
    "fullcv_02": {"train": "rxn_yields/fullcv_02/train.tsv", "test": "rxn_yields/fullcv_02/test.tsv"},
    "fullcv_03": {"train": "rxn_yields/fullcv_03/train.tsv", "test": "rxn_yields/fullcv_03/test.tsv"},
    "test1": {"train": "rxn_yields/test1/train.tsv", "test": "rxn_yields/test1/test.tsv"},
    "test2": {"train": "rxn_yields/test2/train.tsv", "test": "rxn_yields/test2/test.tsv"},
    "test3": {"train": "rxn_yields/test3/train.tsv", "test": "rxn_yields/test3/test.tsv"},
    "test4": {"train": "rxn_yields/test4/train.tsv", "test": "rxn_yields/test4/test.tsv"},
}
FOLDER = "rxnfp/models/transformers"
SHA256 = {
    "bert_pretrained/pytorch_model.bin": "50a6ed263d33ae759affa82c1e85554cc5ea9f56145f5c7fb39b6c25d4356437",
    "bert_pretrained/vocab.txt": "399868a653e85549ce150af4a1f6cd2776240c6a3d951ced2120565f00f027fd",
    "bert_ft/pytorch_model.bin": "5bb7f9f5831ec16a4b90545f95394853caf19ff9a8272291c86e0b231e0ff2ba",
    "bert_ft_10k_25s/pytorch_model.bin": "f9bcac41c7c09eb0ca2c0b355494fe92ca03aa5085e0f2b7a44f716212e61c71",
}
MODELS = ("bert_pretrained", "bert_ft", "bert_ft_10k_25s")
TOKEN = r"\[[^\]]+\]|Br|Cl|>>|%\([0-9]{3}\)|%[0-9]{2}|[BCNOSPFIbcnosp|().=#\-+\\/:~@?>*$0-9]"
"""A word of a reaction: a bracket atom, an element of two letters, a ring number, or a sign."""
REACTION = (
    "Nc1cccc2cnccc12.O=C(O)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1"
    ">>O=C(Nc1cccc2cnccc12)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1"
)
FINGERPRINT = (-2.0174953937530518, 1.7602033615112305, -1.3323537111282349, -1.1095019578933716, 1.2254549264907837)
"""Of REACTION by bert_ft, as the package's page prints its first five numbers."""

HIDDEN_DROPOUT = 0.7987
FOLDER_HERE = Path("runs/raw_bert")
"""Models and data that this script makes, and the study reads."""
SPLITS = ("fullcv_01", "test1", "test4")
"""What the study has, of FILES: one random split, and those that are easiest and hardest out of sample."""
PUBLISHED: dict[str, Any] = {
    "model": str(FOLDER_HERE / "models" / MODELS[0]),
    "epochs": 10,
    "learning_rate": 9.659e-5,
    "head_learning_rate": 9.659e-5,
    "batch_size": 16,
    "weight_decay": 0.0,
    "warmup_fraction": 0.0,
    "pooling": "pooler",
    "max_length": 300,
    "text_columns": ("reaction",),
    "label_column": "yield",
    "label_kind": "targets",
    "save_model": True,
    "precision": "no",
    "dropout": 0.0,
}

FROZEN: dict[str, Any] = {"freeze": "backbone", "head_training": "early-stopping", "head_learning_rate": 1e-3}
TASKS = {
    split: {
        "train_file": str(FOLDER_HERE / "data" / split / "train.tsv"),
        "validation_file": str(FOLDER_HERE / "data" / split / "test.tsv"),
        "task_name": split,
    }
    for split in FILES
}
STUDY = Study(
    title="A raw BERT: yields of reactions",
    question="Does a BERT that nobody tuned before answer as minilm does?",
    hypothesis="Freezing the embeddings costs nothing, and feature extraction much: it was never trained on sentences.",
    sources={
        "the reactions": "Ahneman et al. 2018, splits of Sandfort et al. 2020 (rxn4chemistry/rxn_yields): MIT",
        "the model": "bert_pretrained of the PyPI package rxnfp 0.1.0: MIT",
        "all of them": "experiments/data.sha256 has where each was taken from, how it was made, and its sha256",
    },
    conditions={
        "full fine-tuning": {"freeze": "none"},
        "embeddings frozen": {"freeze": "embeddings"},
        "feature extraction": FROZEN | {"pooling": "cls", "features": "last4-concat", "head": "mlp"},
    },
    tasks={split: TASKS[split] for split in SPLITS},
    common=PUBLISHED,
    seeds=range(3),
    margin_points=1.0,
    score="r2",
    comparisons=[
        Comparison("full fine-tuning", "embeddings frozen"),
        Comparison("full fine-tuning", "feature extraction"),
    ],
)
STARTS: dict[str, dict[str, Any]] = {
    "head first": {"freeze": "none", "head_epochs": 30},
    "random weights": {"freeze": "none", "init": "random"},
}
POOLED = {pooling: FROZEN | {"pooling": pooling} for pooling in ("mean", "cls", "pooler")}
"""Features of the last layer under a linear head."""
FORMS = {
    f"{pooling} of {features}, {head}": FROZEN | {"pooling": pooling, "features": features, "head": head}
    for pooling, features, head in product(
        ("mean", "cls"), ("last", "second-to-last", "last4-concat", "mix"), ("linear", "mlp")
    )
}
"""Of which the study takes what scores best on a fifth of the training split of fullcv_01."""


def take_models(wheel: Path, out: Path) -> None:
    """Each model of the wheel as a folder that transformers opens; ValueError for a file with another sha256."""
    import torch
    from safetensors.torch import save_file

    with zipfile.ZipFile(wheel) as files:
        vocabulary = _read(files, "bert_pretrained/vocab.txt").decode().splitlines()
        for name in MODELS:
            folder = out / name
            folder.mkdir(parents=True, exist_ok=True)
            weights = folder / "pytorch_model.bin"
            weights.write_bytes(_read(files, f"{name}/pytorch_model.bin"))
            tensors = torch.load(weights, weights_only=True, map_location="cpu")
            weights.unlink()
            save_file(
                {key: tensor.contiguous().clone() for key, tensor in tensors.items()}, folder / "model.safetensors"
            )
            config = json.loads(files.read(f"{FOLDER}/{name}/config.json"))
            config |= {"model_type": "bert", "pad_token_id": 0, "hidden_dropout_prob": HIDDEN_DROPOUT}
            (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
            make_tokenizer(vocabulary).save_pretrained(folder)


def _read(files: zipfile.ZipFile, name: str) -> bytes:
    data = files.read(f"{FOLDER}/{name}")
    if hashlib.sha256(data).hexdigest() != SHA256[name]:
        raise ValueError(f"{name} has another sha256 than that of rxnfp 0.1.0: download the wheel again")
    return data


def make_tokenizer(vocabulary: list[str]) -> Any:
    """Words of a reaction, [CLS] before and [SEP] after them."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    rows = {word: row for row, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(rows, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN), "removed", invert=True)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", rows["[SEP]"]), ("[CLS]", rows["[CLS]"]))
    names = {name: f"[{name[:-6].upper()}]" for name in ("unk_token", "sep_token", "pad_token", "cls_token")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", **names)


def check_fingerprint(folder: Path) -> float:
    """The largest difference from the published fingerprint; ValueError where it is more than rounding."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "bert_ft", trust_remote_code=False)
    model = AutoModel.from_pretrained(folder / "bert_ft", trust_remote_code=False).eval()
    with torch.no_grad():
        state = model(**tokenizer(REACTION, return_tensors="pt")).last_hidden_state[0, 0, : len(FINGERPRINT)]
    difference = float(np.abs(state.numpy() - FINGERPRINT).max())
    if difference > 1e-4:
        raise ValueError(f"the fingerprint is off by {difference:.3g}: the tokenizer is not the published one")
    return difference


def write_data(split: str, out: Path) -> None:
    """Reactions with yields standardised by those of train."""
    parts = {part: pd.read_csv(DATA / name, sep="\t", quoting=3) for part, name in FILES[split].items()}
    mean, deviation = parts["train"]["yield"].mean(), parts["train"]["yield"].std(ddof=0)
    out.mkdir(parents=True, exist_ok=True)
    for part, table in parts.items():
        table.assign(**{"yield": (table["yield"] - mean) / deviation}).to_csv(
            out / f"{part}.tsv", sep="\t", index=False, quoting=3
        )


def train(
    conditions: Mapping[str, Mapping[str, Any]], splits: Iterable[str], seeds: Iterable[int], **others: float
) -> None:
    """Print R² of each condition on each split."""
    from toolkit import RunConfig
    from toolkit.pipeline import finetune

    for seed, (condition, settings), split in product(seeds, conditions.items(), splits):
        own = {**PUBLISHED, **TASKS[split], **settings, **others, "seed": seed, "save_model": False}
        run = finetune(RunConfig(**own, output_dir=str(FOLDER_HERE / "runs")), reuse_finished=True)
        print(f"{split}, {condition}, seed {seed}: R² {run.scores['r2'].iloc[-1]:.3f}", flush=True)


def main(
    *,
    wheel: Path,
    inferred: bool = False,
    others: bool = False,
    poolings: bool = False,
    starts: bool = False,
    forms: bool = False,
    seeds: tuple[int, ...] = (0,),
    dropout_throughout: bool = False,
) -> None:
    """Take the models out of the wheel, check them, and write the data as the study reads them.

    Args:
        wheel: of rxnfp 0.1.0
        inferred: print what the descendants tell of exposure
        others: train on the other splits, and print R²
        poolings: print R² of features of the last layer, by pooling
        starts: train from a head first and from random weights
        forms: print R² of forms of features on a fifth of each split's train
        seeds: of the four before
        dropout_throughout: train the first full run with the dropout of the config
    """
    from toolkit.questions.changes.inferred_exposure import find_ancestral_rows, infer_exposure

    models = FOLDER_HERE / "models"
    if not (models / MODELS[-1] / "tokenizer.json").exists():
        take_models(wheel, models)
    print(f"fingerprint: off by {check_fingerprint(models):.2g} at most")
    if inferred:
        for name in MODELS[1:]:
            print(name, infer_exposure(models / MODELS[0], models / name), sep="\n")
        for names in (MODELS, MODELS[1:]):
            rows = find_ancestral_rows([models / name for name in names])
            print(rows.groupby(["parameter", "shared_by"]).size().to_string())
        return
    for split in FILES:
        write_data(split, FOLDER_HERE / "data" / split)
    if others:
        train(STUDY.conditions, [split for split in FILES if split not in SPLITS], seeds)
    if starts:
        train(STARTS, SPLITS[:1], seeds)
    if poolings:
        train(POOLED, SPLITS[:1], seeds)
    if forms:
        train(FORMS, SPLITS, seeds, selection_fraction=0.2)
    if dropout_throughout:
        from toolkit.pipeline import finetune

        config = STUDY.final_cells({})[0].config
        run = finetune(replace(config, dropout=None, output_dir=str(FOLDER_HERE / "runs")), reuse_finished=True)
        print(run.scores[["epoch", "split", "train_loss", "r2"]].to_string(index=False))


if __name__ == "__main__":
    import tyro

    from toolkit.cli import guarded

    raise SystemExit(guarded(lambda: tyro.cli(main, description=__doc__)))
