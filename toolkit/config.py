"""RunConfig: every setting of one run, validated, with the digest that names its directory."""

import hashlib
import inspect
import json
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from toolkit.families import EMBEDDING_PARAMETERS, FAMILIES, REGIMES
from toolkit.naming import Described, lookup, mistyped, parse_object, reading, select, unknown

FORMAT = 1
"""Version of config.json; a reader refuses any other."""

EPOCHS = 3
"""What ``--epochs`` is where it is left out."""

SINGLE_FEATURES = ("last", "second-to-last")
JOINED_FEATURES = ("last4-concat", "last4-sum", "all-concat", "mix")
"""Values of ``--features`` beside ``layers.K``: one layer's states, and those made of several layers'."""

TYPE_NAMES = {int: "an integer", float: "a number", str: "a text", bool: "True or False", type(None): "None"}
"""What the types of fields are called."""

KEEP_THREADS = "EMBEDDING_DRIFT_KEEP_THREADS"
"""Environment variable: a study has shared the cores out among its runs, and no run takes more."""

MAX_EPOCHS = 1_000_000
"""More are a mistake, and a plan of them would not fit into memory."""

MAX_NAME = 48
"""Characters of a model's, task's or regime's name that a run directory's name has room for."""

Effect = Literal["numbers", "time", "place"]
"""What a field bears on: the numbers of a run, the seconds of its steps and scorings, or where things go.

The digest that names a run leaves out what bears on a place. A field that does not bear on numbers makes no two runs
differ in their embeddings, up to rounding.
"""

Subject = Literal["data", "examples", "model", "recipe"]
"""What a field says: which data are learned from, which examples of them there are, where training starts, what a head
reads and is."""

MLM = "mlm"
"""The objective of masked-language modelling; as a value of ``--task`` it stands for that, on texts of the user's."""

T = TypeVar("T")


def setting(
    default: T,
    affects: tuple[Effect, ...] = ("numbers", "time"),
    *,
    says: Subject | None = None,
    is_hashed: bool = False,
    is_later: bool = False,
    as_before: tuple[object, ...] = (),
) -> T:
    """A field of a config with all that other code must know of it: a new field is sorted in here and nowhere else.

    ``is_hashed``: it names files, whose sha256 stand in its place in the digest. ``is_later``: it came after others, so
    that at its default, and at ``as_before``, which mean what was done before it came, it stays out of the digest, and
    runs keep their names.
    """
    facts = {"affects": affects, "says": says, "is_hashed": is_hashed}
    return field(default=default, metadata=facts | {"as_before": (default, *as_before) if is_later else ()})


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is learned and scored."""

    task: str = setting("polarity", says="data")
    """Built-in task: polarity, order, pair, or roles (whose words are tagged).
    Task of GLUE: sst2, cola, mrpc, stsb, qqp, mnli, qnli, rte.
    Your own data: --train-file or --dataset; of these mlm, for --objective mlm, needs no labels."""
    objective: Literal["labels", "mlm"] = setting("labels", says="data", is_later=True)
    """What is learned of the texts: their labels, or mlm, tokens that are masked in them (Devlin et al. 2019, 3.1).
    mlm trains the checkpoint's own masked-LM head, at --learning-rate. A text is truncated, not joined to others.
    Of a training text other tokens are masked in each epoch, of a scored one the same always."""
    mlm_probability: float = setting(0.15, ("numbers",), is_later=True)
    """Of --objective mlm: share of a text's tokens to tell (at least one, special ones never).
    In training 80 % of them are masked, 10 % replaced by a random token, 10 % left; in scoring all are masked."""
    train_file: str | None = setting(None, says="data", is_hashed=True)
    """Your training data, in place of --task: a .tsv, .csv, .jsonl, .json, .parquet, .conll or .conllu file.
    Each may be compressed (.gz). A folder that save_to_disk wrote is read too; of --task mlm also .txt, a text a line.
    Columns of lists (words and their tags), .conll or .conllu are a token task."""
    validation_file: str | None = setting(None, says="data", is_hashed=True)
    """Your validation data; required with --train-file."""
    test_file: tuple[str, ...] = setting((), ("time",), says="examples", is_hashed=True)
    """More splits to score, each with a name of yours: NAME=PATH [NAME=PATH ...]."""
    ood_file: tuple[str, ...] = setting((), ("time",), says="examples", is_later=True)
    """The same for splits that are out of the distribution of the training data.
    Reports tell them apart by this flag, whatever the splits are called."""
    dataset: str | None = setting(None, says="data")
    """A dataset of the Hugging Face hub (optionally NAME@REVISION), in place of --task."""
    dataset_config: str | None = setting(None, says="data")
    """Configuration (subset) of --dataset."""
    text_columns: tuple[str, ...] = setting((), says="examples")
    """Names of the one or two text columns of your data; by default text, or sentence.
    Of a token task the column of words: tokens, words or form; of .conll, whose columns have numbers, 1."""
    label_column: str = setting("label", says="examples")
    """Column of the labels. Integers or strings mean classification, floats regression.
    Of a token task that of the tags: ner_tags, tags, labels, pos_tags or upos; of .conll the number of its last one.
    A word in a column that is mostly floats is refused."""
    label_kind: Literal["auto", "classes", "targets"] = setting("auto", says="examples", is_later=True)
    """What the labels of your data are: classes, targets of a regression, or, by auto, what they are written as.
    Needed where pandas wrote the classes 0 and 1 as 0.0 and 1.0, or where a rating is written as an integer.
    By auto labels that look like none, another, several or names of rows are refused; by classes taken."""
    tsv_quotes: Literal["unsure", "strip", "keep"] = setting("unsure", says="examples", is_later=True)
    """Quotation marks around cells of a .tsv: strip them, as pandas and Excel write them, or keep them as characters.
    By unsure they are kept, and a file in which they look like quoting is refused."""
    cluster_column: str | None = setting(None, ("time",), says="examples", is_later=True)
    """Column of your data with an id of what examples come from together: the review of a sentence, a reagent.
    Such examples are no independent ones: their clusters are the units of every interval over items.
    None: of pairs the first text, where it repeats within a scored split."""
    task_name: str | None = setting(None, ("place",), says="examples")
    """What your own data are called in reports and in the names of runs; None: the name of the file or dataset.

    Of a train.csv and its like that is the name of the folder."""
    max_length: int = setting(128)
    """Most tokens of an example, special tokens included. Longer texts are truncated, and how many is counted."""
    max_train_examples: int | None = setting(None)
    """Train on this many examples only, drawn with --seed; None: on all."""
    selection_fraction: float = setting(0.0, ("numbers",), is_later=True)
    """For choosing settings: hold out this share of train (0: none) as the split `selection`, and score that alone."""
    remove_near_duplicates: bool = setting(False, is_later=True)
    """Remove training examples that nearly repeat a scored one; manifest.json says how many."""
    shuffle_labels: bool = setting(False, ("numbers",), is_later=True)
    """Permute the training labels: what moves when there is nothing to learn but the examples?"""
    label_seed: int | None = setting(None, ("numbers",), is_later=True)
    """Permute them with this seed: an example then has the same wrong label in runs of every --seed.
    (Of these --max-train-examples would draw other examples.)
    None: with --seed, so that each run has another permutation."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Where training starts, what it leaves as it is, and what the head reads."""

    model: str = setting("minilm", says="model")
    """Checkpoint to start from: minilm (embedded, offline), a hub id (optionally id@revision) or a local folder."""
    freeze: str = setting("none")
    """Regime, that is what is not trained: none (full fine-tuning);
    embeddings (the five embedding parameters);
    backbone (all but the head: feature extraction);
    or components, such as position_embeddings,LayerNorm.weight,layers.0-3."""
    pooling: Literal["mean", "cls", "pooler", "last"] = setting("mean", says="recipe")
    """How token vectors become one feature vector: their mean, the first token's (cls), or the pooler's output;
    last: the last token's, which in a decoder alone has seen all others."""
    features: str = setting("last", says="recipe", is_later=True)
    """Layers whose states are pooled: last; second-to-last; layers.K (the output of block K, counted from 0);
    last4-concat or last4-sum (Devlin et al. 2019, section 5.3); all-concat (all blocks);
    or mix (all blocks and the embeddings, in learned shares; Peters et al. 2018)."""
    pair_encoding: Literal["joint", "separate"] = setting("joint", says="recipe", is_later=True)
    """How two texts are read: joint (as one sequence) or separate (each alone).
    Of separate ones the head gets u, v, |u-v| and u*v of their features (Conneau et al. 2017), and in regression
    their cosine too."""
    head: Literal["linear", "mlp", "bilstm"] = setting("linear", says="recipe", is_later=True)
    """What answers from the features: one linear layer, or mlp, a hidden layer (tanh, dropout) before it.
    Of a token task also bilstm: two layers over an example's words, in both directions (Devlin et al. 2019, 5.3)."""
    init: Literal["checkpoint", "random"] = setting("checkpoint", ("numbers",))
    """Weights to start from: the checkpoint's, or random ones of the same architecture (was pretraining worth it?)."""
    positions: Literal["checkpoint", "sinusoidal", "shuffled", "zero"] = setting("checkpoint", is_later=True)
    """Position table to start from: the checkpoint's; sinusoidal (scaled to the size of its rows);
    shuffled (its rows in random order, as far as --max-length reaches); or zero."""
    reinject_positions: bool = setting(False, is_later=True)
    """Add the positions' part of the encoder's input again before each layer after the first."""
    add_tokens: str | None = setting(None, is_hashed=True, is_later=True)
    """Add the tokens of this file, one a line, to tokenizer and word table before training; None: none."""
    new_token_init: Literal["mean", "random"] = setting("mean", is_later=True)
    """What the rows of --add-tokens start from: mean (of the rows of all older tokens);
    or random (normal, with the checkpoint's initializer_range, drawn with --seed)."""
    train_rows: Literal["all", "new"] = setting("all", is_later=True)
    """Rows of the word table to train: all; or new, those of --add-tokens alone, without weight decay.
    All others then stay as they were, bit for bit."""
    lora: tuple[str, ...] | None = setting(None, is_later=True)
    """Train adapters (LoRA, by peft) in these modules and the head, and freeze all else; None: no adapters.
    Beside --train-rows new the added rows are trained too.
    Names as in peft's target_modules (such as query value), all-linear, or a table (word_embeddings).
    They want a higher --learning-rate, such as 1e-3. --save-model merges them, and keeps them too (model/adapter),
    unless --init, --positions or --add-tokens changed what they are put on."""
    lora_rank: int = setting(8, is_later=True)
    """Rank of the adapters of --lora."""
    lora_alpha: int = setting(8, is_later=True)
    """What the adapters of --lora add is multiplied by this over their rank."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How the rest is trained."""

    seed: int = setting(0, ("numbers",))
    """One seed for all that is random: head initialisation, data order, dropout (and fresh weights)."""
    epochs: int | None = setting(None, ("numbers",))
    """Passes over the training split; None: 3."""
    head_epochs: int = setting(0, is_later=True)
    """First train the head alone for this many epochs on cached features (LP-FT); epoch 0 comes after them."""
    head_training: Literal["auto", "epochs", "early-stopping"] = setting(
        "auto", ("numbers",), is_later=True, as_before=("epochs",)
    )
    """How long to train: epochs (as many as --epochs), or early-stopping (of a frozen backbone only).
    That trains the head until the loss on a held-out part of train stops falling, whatever --epochs says.
    That part is a tenth; of fewer than 200 examples 20, or a third of them where that is less.
    A linear head then gives way to a logistic (ridge) regression, its strength chosen by cross-validation within train,
    unless it is the better one on the held-out part by more than noise.
    auto: early-stopping where the backbone is wholly frozen, else epochs."""
    max_steps: int | None = setting(None, ("numbers",))
    """Stop after this many optimizer steps, even if --epochs asks for more; None: no limit."""
    batch_size: int = setting(32)
    """Examples per optimizer step, counted over all processes and accumulation steps."""
    batch_tokens: int | None = setting(None, is_later=True)
    """Also limit a batch to this many tokens, padding included (but to no less than one example); None: no limit.
    Long texts come in smaller batches, and weigh more there, since each step is the mean of its batch."""
    gradient_accumulation_steps: int = setting(1, ("time",))
    """Split each process's share of a batch into this many parts.
    The numbers stay the same up to rounding and dropout's draws."""
    optimizer: Literal["adamw", "sgd"] = setting("adamw", is_later=True)
    """adamw, or sgd without momentum: no row moves after its last gradient, and decay is the same product as AdamW's.
    sgd's steps are as small as its gradients: at AdamW's learning rates it hardly trains; try 100 to 10,000 times."""
    learning_rate: float = setting(5e-5, ("numbers",))
    """Peak learning rate of the backbone (linear warm-up, then linear decay)."""
    embedding_learning_rate: float | None = setting(None, ("numbers",), is_later=True)
    """Peak learning rate of the five embedding parameters (same schedule); None: what --layer-decay leaves."""
    layer_decay: float = setting(1.0, ("numbers",), is_later=True)
    """Multiply the learning rate by this (above 0, at most 1) once more for each layer below the top one.
    The embeddings, below all layers, learn slowest (Sun et al. 2019); 1: all layers learn alike."""
    head_learning_rate: float = setting(1e-3, ("numbers",))
    """Peak learning rate of the head (same schedule)."""
    weight_decay: float = setting(0.01, ("numbers",))
    """Decoupled weight decay: a step multiplies weights by 1 - rate * decay. LayerNorm and biases are not decayed."""
    warmup_fraction: float = setting(0.1, ("numbers",))
    """Share (0 to 1) of all optimizer steps in which the learning rate rises to its peak."""
    max_gradient_norm: float = setting(1.0, ("numbers",))
    """Scale gradients down where their Euclidean norm, over all parameters, is above this."""
    dropout: float | None = setting(None)
    """Dropout probability (0 or more, below 1) everywhere in the backbone; None: the checkpoint's own."""
    precision: Literal["auto", "no", "bf16"] = setting("auto")
    """Precision to compute in; no is fp32, auto is bf16 where the hardware has it, else fp32. Weights stay fp32."""
    deterministic: bool = setting(False, is_later=True)
    """Take only operations that give the same bits each time, and refuse those that do not; on a CPU they all do.
    On a GPU this is slower (torch.use_deterministic_algorithms)."""


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """What is kept, and where."""

    output_dir: str = setting("runs", ("place",))
    """Folder in which the run directory is made."""
    overwrite: bool = setting(False, ("place",))
    """Replace a finished run of the same config, which is refused otherwise."""
    resume: bool = setting(True, ("place",))
    """Go on from the last state of an unfinished run of the same config, with the same bits; --no-resume: start anew.
    States are written at the ends of epochs, spaced in time, and when Ctrl-C or TERM ends the run."""
    resume_steps: int | None = setting(None, ("place",))
    """Also write the state every N optimizer steps; None: at the ends of epochs only."""
    ddp_timeout: int = setting(1800, ("place",))
    """Seconds after which a run of several processes ends when one of them no longer answers."""
    snapshot_steps: int | Literal["log"] | None = setting(None, ("time",))
    """Also snapshot every N optimizer steps, or at steps 1, 2, 4, 8, ... (log); None: after every epoch only."""
    save_model: bool = setting(False, ("place", "time"))
    """Also write the tuned model (safetensors; from_pretrained loads it).
    The commands layers, flow and transplant, and anatomy of a run, need it."""
    log_with: Literal["tensorboard", "wandb", "mlflow", "trackio"] | None = setting(None, ("place",))
    """Also send the numbers to this tracker, through Accelerate."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RunConfig(Described, OutputConfig, DataConfig, TrainingConfig, ModelConfig):
    """Fine-tune BERT under one regime and keep its embedding parameters of every epoch.

    Examples
    --------
    >>> toolkit.RunConfig(freeze="embeddings", seed=1)
    RunConfig(model: minilm, freeze: embeddings, seed: 1, task: polarity)

    Parameters
    ----------
    model
        Checkpoint to start from: minilm (embedded, offline), a hub id (optionally id@revision) or a local
        folder. Default: 'minilm'.
    freeze
        Regime, that is what is not trained: none (full fine-tuning); embeddings (the five embedding
        parameters); backbone (all but the head: feature extraction); or components, such as
        position_embeddings,LayerNorm.weight,layers.0-3. Default: 'none'.
    pooling
        How token vectors become one feature vector: their mean, the first token's (cls), or the pooler's
        output; last: the last token's, which in a decoder alone has seen all others. Default: 'mean'.
    features
        Layers whose states are pooled: last; second-to-last; layers.K (the output of block K, counted from 0);
        last4-concat or last4-sum (Devlin et al. 2019, section 5.3); all-concat (all blocks); or mix (all blocks
        and the embeddings, in learned shares; Peters et al. 2018). Default: 'last'.
    pair_encoding
        How two texts are read: joint (as one sequence) or separate (each alone). Default: 'joint'.
    head
        What answers from the features: one linear layer, or mlp, a hidden layer (tanh, dropout) before it.
        Default: 'linear'.
    init
        Weights to start from: the checkpoint's, or random ones of the same architecture (was pretraining worth
        it?). Default: 'checkpoint'.
    positions
        Position table to start from: the checkpoint's; sinusoidal (scaled to the size of its rows); shuffled
        (its rows in random order, as far as --max-length reaches); or zero. Default: 'checkpoint'.
    reinject_positions
        Add the positions' part of the encoder's input again before each layer after the first. Default: False.
    add_tokens
        Add the tokens of this file, one a line, to tokenizer and word table before training; None: none.
        Default: None.
    new_token_init
        What the rows of --add-tokens start from: mean (of the rows of all older tokens); or random (normal,
        with the checkpoint's initializer_range, drawn with --seed). Default: 'mean'.
    train_rows
        Rows of the word table to train: all; or new, those of --add-tokens alone, without weight decay.
        Default: 'all'.
    lora
        Train adapters (LoRA, by peft) in these modules and the head, and freeze all else; None: no adapters.
        Default: None.
    lora_rank
        Rank of the adapters of --lora. Default: 8.
    lora_alpha
        What the adapters of --lora add is multiplied by this over their rank. Default: 8.
    seed
        One seed for all that is random: head initialisation, data order, dropout (and fresh weights). Default:
        0.
    epochs
        Passes over the training split; None: 3. Default: None.
    head_epochs
        First train the head alone for this many epochs on cached features (LP-FT); epoch 0 comes after them.
        Default: 0.
    head_training
        How long to train: epochs (as many as --epochs), or early-stopping (of a frozen backbone only). Default:
        'auto'.
    max_steps
        Stop after this many optimizer steps, even if --epochs asks for more; None: no limit. Default: None.
    batch_size
        Examples per optimizer step, counted over all processes and accumulation steps. Default: 32.
    batch_tokens
        Also limit a batch to this many tokens, padding included (but to no less than one example); None: no
        limit. Default: None.
    gradient_accumulation_steps
        Split each process's share of a batch into this many parts. Default: 1.
    optimizer
        adamw, or sgd without momentum: no row moves after its last gradient, and decay is the same product as
        AdamW's. sgd's steps are as small as its gradients: at AdamW's learning rates it hardly trains; try 100
        to 10,000 times. Default: 'adamw'.
    learning_rate
        Peak learning rate of the backbone (linear warm-up, then linear decay). Default: 5e-05.
    embedding_learning_rate
        Peak learning rate of the five embedding parameters (same schedule); None: what --layer-decay leaves.
        Default: None.
    layer_decay
        Multiply the learning rate by this (above 0, at most 1) once more for each layer below the top one.
        Default: 1.0.
    head_learning_rate
        Peak learning rate of the head (same schedule). Default: 0.001.
    weight_decay
        Decoupled weight decay: a step multiplies weights by 1 - rate * decay. Default: 0.01.
    warmup_fraction
        Share (0 to 1) of all optimizer steps in which the learning rate rises to its peak. Default: 0.1.
    max_gradient_norm
        Scale gradients down where their Euclidean norm, over all parameters, is above this. Default: 1.0.
    dropout
        Dropout probability (0 or more, below 1) everywhere in the backbone; None: the checkpoint's own.
        Default: None.
    precision
        Precision to compute in; no is fp32, auto is bf16 where the hardware has it, else fp32. Default: 'auto'.
    deterministic
        Take only operations that give the same bits each time, and refuse those that do not; on a CPU they all
        do. Default: False.
    task
        Built-in task: polarity, order, pair, or roles (whose words are tagged). Default: 'polarity'.
    objective
        What is learned of the texts: their labels, or mlm, tokens that are masked in them (Devlin et al. 2019,
        3.1). mlm trains the checkpoint's own masked-LM head, at --learning-rate. Default: 'labels'.
    mlm_probability
        Of --objective mlm: share of a text's tokens to tell (at least one, special ones never). Default: 0.15.
    train_file
        Your training data, in place of --task: a .tsv, .csv, .jsonl, .json, .parquet, .conll or .conllu file.
        Default: None.
    validation_file
        Your validation data; required with --train-file. Default: None.
    test_file
        More splits to score, each with a name of yours: NAME=PATH [NAME=PATH ...]. Default: ().
    ood_file
        The same for splits that are out of the distribution of the training data. Default: ().
    dataset
        A dataset of the Hugging Face hub (optionally NAME@REVISION), in place of --task. Default: None.
    dataset_config
        Configuration (subset) of --dataset. Default: None.
    text_columns
        Names of the one or two text columns of your data; by default text, or sentence. Default: ().
    label_column
        Column of the labels. Default: 'label'.
    label_kind
        What the labels of your data are: classes, targets of a regression, or, by auto, what they are written
        as. Default: 'auto'.
    tsv_quotes
        Quotation marks around cells of a .tsv: strip them, as pandas and Excel write them, or keep them as
        characters. Default: 'unsure'.
    cluster_column
        Column of your data with an id of what examples come from together: the review of a sentence, a reagent.
        Default: None.
    task_name
        What your own data are called in reports and in the names of runs; None: the name of the file or
        dataset. Default: None.
    max_length
        Most tokens of an example, special tokens included. Default: 128.
    max_train_examples
        Train on this many examples only, drawn with --seed; None: on all. Default: None.
    selection_fraction
        For choosing settings: hold out this share of train (0: none) as the split `selection`, and score that
        alone. Default: 0.0.
    remove_near_duplicates
        Remove training examples that nearly repeat a scored one; manifest.json says how many. Default: False.
    shuffle_labels
        Permute the training labels: what moves when there is nothing to learn but the examples? Default: False.
    label_seed
        Permute them with this seed: an example then has the same wrong label in runs of every --seed. (Of these
        --max-train-examples would draw other examples.) None: with --seed, so that each run has another
        permutation. Default: None.
    output_dir
        Folder in which the run directory is made. Default: 'runs'.
    overwrite
        Replace a finished run of the same config, which is refused otherwise. Default: False.
    resume
        Go on from the last state of an unfinished run of the same config, with the same bits; --no-resume:
        start anew. Default: True.
    resume_steps
        Also write the state every N optimizer steps; None: at the ends of epochs only. Default: None.
    ddp_timeout
        Seconds after which a run of several processes ends when one of them no longer answers. Default: 1800.
    snapshot_steps
        Also snapshot every N optimizer steps, or at steps 1, 2, 4, 8, ... (log); None: after every epoch only.
        Default: None.
    save_model
        Also write the tuned model (safetensors; from_pretrained loads it). Default: False.
    log_with
        Also send the numbers to this tracker, through Accelerate. Default: None.
    """

    def __new__(cls, *_: Any, **values: Any) -> "RunConfig":
        """TypeError that names the nearest field for an unknown one: the generated __init__ names none."""
        names = tuple(config_field.name for config_field in fields(cls))
        for name in values:
            if name not in names:
                raise TypeError(mistyped(name, "field", names))
        return super().__new__(cls)

    @property
    def num_epochs(self) -> int:
        """Passes over the training split, the default where none is set."""
        return EPOCHS if self.epochs is None else self.epochs

    def __post_init__(self) -> None:
        """ValueError, in one line, for a setting that cannot work, alone or beside others."""
        _check_types(self)
        if self.task == MLM:
            object.__setattr__(self, "objective", MLM)
        _check_objective(self)
        for name in ("batch_size", "gradient_accumulation_steps", "max_length", "lora_rank", "lora_alpha"):
            _require(getattr(self, name) >= 1, self, name, "at least 1")
        for name in ("epochs", "head_epochs"):
            num_epochs = getattr(self, name) or 0
            _require(num_epochs <= MAX_EPOCHS, self, name, f"at most {MAX_EPOCHS} (--max-steps ends earlier)")
        # Of an empty variable: output_dir would be the current directory.
        optional_texts = ("train_file", "validation_file", "dataset", "dataset_config", "cluster_column")
        for name in ("model", *optional_texts, "output_dir", "add_tokens"):
            _require(getattr(self, name) != "", self, name, "a name or path, or left out")
        for name in ("epochs", "max_steps", "max_train_examples", "batch_tokens", "resume_steps", "ddp_timeout"):
            _require(getattr(self, name) is None or getattr(self, name) >= 1, self, name, "at least 1")
        for name in ("learning_rate", "head_learning_rate", "max_gradient_norm"):
            _require(0 < getattr(self, name) < float("inf"), self, name, "above 0 and finite")
        embedding_rate = self.embedding_learning_rate
        for name, is_within, bounds in (
            (
                "embedding_learning_rate",
                embedding_rate is None or 0 < embedding_rate < float("inf"),
                "above 0 and finite",
            ),
            ("layer_decay", 0 < self.layer_decay <= 1, "above 0 and at most 1"),
            ("weight_decay", 0 <= self.weight_decay < float("inf"), "at least 0 and finite"),
            ("warmup_fraction", 0 <= self.warmup_fraction <= 1, "between 0 and 1"),
            ("head_epochs", self.head_epochs >= 0, "at least 0"),
            ("selection_fraction", 0 <= self.selection_fraction < 1, "at least 0 and below 1"),
            ("dropout", self.dropout is None or 0 <= self.dropout < 1, "at least 0 and below 1"),
        ):
            _require(is_within, self, name, bounds)
        check_seed(self.seed)
        if self.label_seed is not None:
            check_seed(self.label_seed, "--label-seed")
            if not self.shuffle_labels:
                raise ValueError(f"--label-seed {self.label_seed} goes with --shuffle-labels: pass both, or neither")
        for name, value in (("new_token_init", "random"), ("train_rows", "new")):
            if getattr(self, name) == value and self.add_tokens is None:
                raise ValueError(
                    f"--{name.replace('_', '-')} {value} is about added tokens: pass --add-tokens FILE too"
                )
        _check_lora(self)
        steps = self.snapshot_steps
        _require(steps is None or steps == "log" or int(steps) >= 1, self, "snapshot_steps", "at least 1, or log")
        _require(len(self.text_columns) <= 2, self, "text_columns", "one or two columns")
        _check_features(self)
        _check_task_name(self.task_name)
        if self.batch_size % self.gradient_accumulation_steps:
            raise ValueError(
                f"--batch-size {self.batch_size} is per optimizer step and must be a multiple of "
                f"--gradient-accumulation-steps {self.gradient_accumulation_steps}"
            )

    @property
    def head_rate(self) -> float:
        """Peak learning rate of the head: the backbone's where the head is the checkpoint's own, not a fresh one."""
        return self.learning_rate if self.objective == MLM else self.head_learning_rate

    @property
    def adapters(self) -> str:
        """The regime of a run with adapters in words, such as ``LoRA r=8 on query, value``; empty without any."""
        beside = ", beside added rows" if self.train_rows == "new" else ""
        return f"LoRA r={self.lora_rank} on {', '.join(self.lora)}{beside}" if self.lora else ""

    def facts(self) -> dict[str, str]:
        """What is trained on what, and every other field that is not at its default."""
        always_shown = ("model", "task", "freeze", "seed")
        defaults = {config_field.name: config_field.default for config_field in fields(self)}
        values = {name: getattr(self, name) for name in defaults}
        return {name: str(value) for name, value in values.items() if name in always_shown or value != defaults[name]}

    def to_json(self) -> str:
        """The text of config.json."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"

    def to_command(self) -> str:
        """The shell command that repeats this run: the flags that differ from their defaults."""
        arguments = ["accelerate", "launch", "finetune.py"]
        for config_field in fields(self):
            value = getattr(self, config_field.name)
            is_named_by_data = config_field.name == "task" and (self.train_file or self.dataset)
            if value == config_field.default or config_field.name in ("output_dir", "overwrite") or is_named_by_data:
                continue
            arguments.append(("--no-" if value is False else "--") + config_field.name.replace("_", "-"))
            if not isinstance(value, bool):
                arguments += [shlex.quote(str(part)) for part in (value if isinstance(value, tuple) else (value,))]
        return " ".join(arguments)

    @classmethod
    def from_json(cls, text: str | bytes, source: str | Path = "config.json") -> "RunConfig":
        """Parse config.json; ValueError for an unknown field, another format or text that is not JSON."""
        values = parse_object(text, source, version=FORMAT)
        values.pop("format", None)
        arguments: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        with reading(source, "is not the config of a run", remedy="correct it, or restore it"):
            select({config_field.name: config_field for config_field in fields(cls)}, list(values), "field")
            return cls(**arguments)


RunConfig.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # help() would show that of __new__
    list(inspect.signature(RunConfig.__init__).parameters.values())[1:]
)


def fields_that(*, affect: Effect | None = None, say: Collection[str] = ()) -> tuple[str, ...]:
    """Names of the fields that bear on ``affect``, or whose subject is in ``say``, in their order."""
    metadata_of_fields = ((config_field.name, config_field.metadata) for config_field in fields(RunConfig))
    return tuple(
        name for name, metadata in metadata_of_fields if affect in metadata["affects"] or metadata["says"] in say
    )


def check_regime(config: "RunConfig") -> None:
    """ValueError for a regime that is wrong for every model, before one is read.

    That is a word of ``--freeze`` that names a component of no family, and epochs where a head stops by itself.
    Whether the model at hand has the component, :func:`toolkit.models.regimes.parse_regime` says.
    """
    if config.freeze == "backbone":
        resolve_head_training(config, is_frozen=True)
    leaves = [leaf.replace("{K}", "K") for family in FAMILIES.values() for leaf in family.components]
    known_words = tuple(dict.fromkeys((*REGIMES, "encoder", *EMBEDDING_PARAMETERS, *leaves, "head")))
    for word in (word.strip() for word in config.freeze.split(",")):
        if word and word not in known_words and not re.fullmatch(r"layers\.\d+(-\d+)?", word):
            raise ValueError(unknown(word, "regime or component", known_words))


def _check_task_name(name: str | None) -> None:
    """ValueError for a name that no table or run directory can show as it is."""
    if name is None:
        return
    is_fit = name == name.strip() and name.isprintable() and 0 < len(name) <= MAX_NAME and not set(name) & set("/\\")
    if not is_fit:
        raise ValueError(f"--task-name must be a name of 1 to {MAX_NAME} characters without / and \\; got {name!r}")


def _check_features(config: RunConfig) -> None:
    """ValueError for features that no model has, or that the pooler, which reads the last layer's states, has not."""
    if not re.fullmatch(r"layers\.\d+", config.features) and config.features not in SINGLE_FEATURES + JOINED_FEATURES:
        raise ValueError(unknown(config.features, "features", (*SINGLE_FEATURES, "layers.K", *JOINED_FEATURES)))
    if config.pooling == "pooler" and config.features != "last":
        raise ValueError(
            f"--pooling pooler reads the last layer's states, and cannot go with --features {config.features}: "
            "take mean or cls"
        )


LABEL_FIELDS = (
    *("pooling", "features", "pair_encoding", "head", "head_epochs", "head_training", "head_learning_rate"),
    *("label_column", "label_kind", "shuffle_labels", "add_tokens", "lora"),
)
"""Fields that ``--objective mlm`` leaves at their defaults: of labels, of fresh heads, and what changes the words."""


def _check_objective(config: RunConfig) -> None:
    """ValueError for a setting that the objective has no use for."""
    defaults = {config_field.name: config_field.default for config_field in fields(config)}
    if config.objective != MLM:
        if config.mlm_probability != defaults["mlm_probability"]:
            raise ValueError(f"--mlm-probability {config.mlm_probability:g} goes with --objective mlm")
        return
    _require(0 < config.mlm_probability < 1, config, "mlm_probability", "above 0 and below 1")
    for name in LABEL_FIELDS:
        if (value := getattr(config, name)) != defaults[name] and (name, value) != ("head_training", "epochs"):
            text = "" if isinstance(value, bool) else f" {' '.join(value) if isinstance(value, tuple) else value}"
            raise ValueError(
                f"--{name.replace('_', '-')}{text} is not for --objective mlm, which reads no labels and trains the "
                "checkpoint's own head and words: leave it out"
            )


EXCLUDED_BY_LORA = ("freeze", "head_epochs")
"""Fields that have to be at their defaults beside ``lora``."""


def _check_lora(config: RunConfig) -> None:
    """ValueError for adapters on nothing, beside settings that exclude them, and for their settings without them.

    Each target is kept once and in order of its name: two spellings of a regime are one run.
    """
    defaults = {config_field.name: config_field.default for config_field in fields(config)}
    if config.lora is None:
        for name in ("lora_rank", "lora_alpha"):
            if getattr(config, name) != defaults[name]:
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} {getattr(config, name)} is about adapters: pass --lora TARGETS too")
        return
    _require(bool(config.lora), config, "lora", "the names of modules, such as query value")
    for name in EXCLUDED_BY_LORA:
        if (value := getattr(config, name)) != defaults[name]:
            raise ValueError(
                f"--lora trains its adapters and the head, all at once, and freezes all else: leave "
                f"--{name.replace('_', '-')} {value} out"
            )
    if config.add_tokens is not None and config.train_rows != "new":
        raise ValueError(
            "--lora freezes the word table: --add-tokens beside it needs --train-rows new, or no added row learns"
        )
    object.__setattr__(config, "lora", tuple(sorted({*config.lora})))


def recipe_of(config: RunConfig) -> dict[str, Any]:
    """The fields on what a head reads and what it is, as ``load_classifier`` takes them."""
    return {name: getattr(config, name) for name in fields_that(say=("recipe",))}


def resolve_head_training(config: RunConfig, *, is_frozen: bool) -> RunConfig:
    """``config`` with ``head_training`` epochs or early-stopping, and a number of epochs; ``is_frozen``: the backbone.

    ValueError for early stopping of anything but a head alone, and where --epochs or --max-steps and the default of a
    frozen backbone contradict one another.
    """
    if is_frozen and config.head_epochs:
        raise ValueError("--head-epochs comes before training the backbone, which is frozen: leave it out")
    with_epochs = replace(config, epochs=config.num_epochs)
    is_head_alone = is_frozen and config.objective != MLM  # not where the head is the checkpoint's own
    if config.head_training == "early-stopping" and not is_head_alone:
        raise ValueError("--head-training early-stopping trains the head alone: it needs --freeze backbone")
    if config.head_training == "early-stopping" and config.max_steps:
        raise ValueError(f"--max-steps {config.max_steps} is not for --head-training early-stopping: leave one out")
    if config.head_training != "auto":
        return with_epochs
    # Left to itself a head alone stops early: a number of epochs would go unheeded.
    if is_head_alone and (config.epochs is not None or config.max_steps):
        flag = f"--max-steps {config.max_steps}" if config.max_steps else f"--epochs {config.epochs}"
        raise ValueError(
            f"{flag} with a frozen backbone, whose head is trained until a held-out part of train stops improving: "
            "pass --head-training epochs to train that long, or --head-training early-stopping to train until then"
        )
    return replace(with_epochs, head_training="early-stopping" if is_head_alone else "epochs")


def _check_types(config: RunConfig) -> None:
    """ValueError for a field of the wrong type, which only the API and config.json can bring: flags are parsed.

    NumPy's numbers are kept as Python's, which config.json can hold.
    """
    for name, annotation in get_type_hints(RunConfig).items():
        value = _as_python(getattr(config, name))
        object.__setattr__(config, name, value)
        if get_origin(annotation) is Literal and isinstance(value, str):
            lookup(dict.fromkeys(map(str, get_args(annotation))), value, name)
        elif not _conforms(value, annotation):
            raise ValueError(f"{name} must be {_in_words(annotation)}; got {value!r}")


def _as_python(value: object) -> object:
    """A number of NumPy's as Python's own, a path as its text, a list as a tuple; any other value as it is."""
    if isinstance(value, list):
        return tuple(map(_as_python, value))
    if isinstance(value, Path):
        return str(value)
    # Python's own numbers stay as they are: the digest of a run tells 1 from 1.0.
    if isinstance(value, int | float) and type(value).__module__ == "builtins":
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _in_words(annotation: Any) -> str:
    """A type of a field in words, such as "an integer or None"."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is tuple:
        return f"a tuple, each part of it {_in_words(arguments[0])}"
    if arguments:
        # None first: behind a tuple stands what is of its parts.
        in_order = arguments[::-1] if get_origin(arguments[0]) is tuple else arguments
        return " or ".join(repr(argument) if origin is Literal else _in_words(argument) for argument in in_order)
    return TYPE_NAMES[annotation]


def _conforms(value: object, annotation: Any) -> bool:
    """Whether a value is of a field's type; True and False are no numbers, an integer may stand for a float."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(_conforms(item, arguments[0]) for item in value)
    if arguments:
        return any(_conforms(value, argument) for argument in arguments)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, annotation) and (annotation is bool or not isinstance(value, bool))


def check_seed(seed: int, flag: str = "--seed") -> None:
    """ValueError for a seed that a random generator does not take."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"{flag} must be between 0 and 2**32 - 1; got {seed}")


def _require(is_met: bool, config: RunConfig, name: str, expected: str) -> None:
    """ValueError, which names the flag, what was expected and what came, unless the condition is met."""
    if not is_met:
        flag = "--" + name.replace("_", "-")
        raise ValueError(f"{flag} must be {expected}; got {getattr(config, name)!r}")


def is_named_by(config_field: Field[Any], value: object) -> bool:
    """Whether a field at this value is part of the digest."""
    metadata = config_field.metadata
    return not ("place" in metadata["affects"] or metadata["is_hashed"] or value in metadata["as_before"])


def digest(config: RunConfig, file_hashes: Mapping[str, str]) -> str:
    """Eight hex digits over the fields that change the numbers and the sha256 of the data files.

    ``file_hashes`` maps the role of a file (``train``, ``validation``, a test split's name; ``model`` for the weights
    of a local folder) to its sha256. The number of processes, which changes dropout's draws, is in the manifest only.
    """
    field_values = asdict(replace(config, epochs=config.num_epochs))
    # Names alone: the sha256 of the files are in file_hashes.
    field_values["ood_file"] = tuple(entry.partition("=")[0] for entry in config.ood_file)
    values = {
        config_field.name: field_values[config_field.name]
        for config_field in fields(RunConfig)
        if is_named_by(config_field, field_values[config_field.name])
    }
    text = json.dumps({"fields": values, "data": dict(file_hashes)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def run_name(config: RunConfig, file_hashes: Mapping[str, str]) -> str:
    """``<model>_<task>_freeze-<regime>_seed-<n>_<digest>``, safe as a directory name on every system.

    With adapters ``lora-<targets>`` stands in place of what is frozen.
    """
    model = Path(config.model).name if _is_folder(config.model) else config.model
    return "_".join(
        (
            _directory_part(model),
            _directory_part(config.task) + (f"-{MLM}" if config.objective == MLM else ""),
            f"lora-{_directory_part('-'.join(config.lora))}"
            if config.lora
            else f"freeze-{_directory_part(config.freeze)}",
            f"seed-{config.seed}",
            digest(config, file_hashes),
        )
    )


def _is_folder(text: str) -> bool:
    try:
        return Path(text).is_dir()
    except OSError:  # longer than a file name can be
        return False


def _directory_part(text: str) -> str:
    """A name as part of a directory's name: letters, digits and .-+ stay, of at most MAX_NAME characters."""
    return "".join(character if character.isalnum() or character in ".-+" else "-" for character in text)[:MAX_NAME]
