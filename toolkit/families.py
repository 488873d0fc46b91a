"""What each architecture calls its embedding parameters and components, and the named regimes: data, imports nothing.

Names are exact for transformers 5 and relative to the backbone (``AutoModel``). A pattern's ``*`` matches the rest of a
name and ``{K}`` a number. The leaves of every family partition the parameters of its backbone.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache

EMBEDDING_PARAMETERS = (
    "word_embeddings",
    "position_embeddings",
    "token_type_embeddings",
    "LayerNorm.weight",
    "LayerNorm.bias",
)
"""The canonical names of the five embedding parameters, in the order of every table."""

TABLES = EMBEDDING_PARAMETERS[:3]
"""The embedding parameters with one row for each word, position or segment; the other two are one vector each."""

GAMMA_BETA = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Endings that old checkpoints (converted from TensorFlow) use, and what they are called now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """Parameter names of one architecture."""

    name: str
    """What people call it."""
    model_types: tuple[str, ...]
    """The ``model_type`` values of transformers configs that use these names."""
    embedding_parameters: Mapping[str, str]
    """Canonical name to the name in the backbone; a parameter that the architecture never has is left out."""
    components: Mapping[str, tuple[str, ...]]
    """Leaf component to name patterns, beside the embedding parameters, which are leaves of their own."""
    layer_parts: Mapping[str, str]
    """The parts of a layer in the field's words to the name pattern of the module, relative to the layer."""
    position_start: str = "zero"
    """``zero``: the first token has position row 0; ``after_padding``: it has row padding_idx + 1 (RoBERTa)."""
    padding_row: int | None = None
    """The padding row where transformers' code fixes it, whatever the config says (MPNet)."""
    position_kinds: tuple[str, ...] = ("absolute",)
    """The values of a config's ``position_embedding_type`` that transformers 5 computes as it should."""
    has_pooler: bool = field(default=False)
    """Whether ``--pooling pooler`` exists: the family's AutoModel can be built with one."""
    shares_layers: bool = field(default=False)
    """Whether the forward pass goes through one layer's weights several times."""
    is_causal: bool = field(default=False)
    """Whether a token sees only those before it."""
    has_decoder: bool = field(default=False)
    """Whether a decoder reads what the encoder makes of a text."""
    is_plain_sum: bool = field(default=True)
    """Whether the embedding layer is a module of its own, which gives LayerNorm of the sum of the tables' rows."""
    mark: str = ""
    """Pattern of a parameter without which a checkpoint that does not say its family is of another one."""
    unused: tuple[str, ...] = ()
    """Patterns of parameters that take no part in the forward pass: they are never trained."""

    def first_position(self, pad_token_id: int | None) -> int:
        """The position row of a text's first token, from the config's padding row."""
        if self.position_start == "zero":
            return 0
        padding = pad_token_id if self.padding_row is None else self.padding_row
        return (1 if padding is None else padding) + 1  # 1 is what transformers takes where a config names none


_BERT_NAMES = {
    "word_embeddings": "embeddings.word_embeddings.weight",
    "position_embeddings": "embeddings.position_embeddings.weight",
    "token_type_embeddings": "embeddings.token_type_embeddings.weight",
    "LayerNorm.weight": "embeddings.LayerNorm.weight",
    "LayerNorm.bias": "embeddings.LayerNorm.bias",
}
_BERT_COMPONENTS = {"layers.{K}": ("encoder.layer.{K}.*",), "pooler": ("pooler.*",)}
_BERT_PARTS = {
    "attention query": "attention.self.query",
    "attention key": "attention.self.key",
    "attention value": "attention.self.value",
    "attention output": "attention.output.dense",
    "attention LayerNorm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output LayerNorm": "output.LayerNorm",
}

_DECODER_PARTS = {
    "attention query": "self_attn.q_proj",
    "attention key": "self_attn.k_proj",
    "attention value": "self_attn.v_proj",
    "attention query, key and value": "self_attn.qkv_proj",
    "attention output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "gate and intermediate": "mlp.gate_up_proj",
    "intermediate": "mlp.up_proj",
    "output": "mlp.down_proj",
}
"""Norms keep their own names, as ``post_attention_layernorm`` stands before the feed-forward network in Llama and after
attention in Gemma 2."""

FAMILIES: Mapping[str, ModelFamily] = {
    "bert": ModelFamily(
        name="BERT",
        model_types=("bert",),
        embedding_parameters=_BERT_NAMES,
        components=_BERT_COMPONENTS,
        layer_parts=_BERT_PARTS,
        has_pooler=True,
    ),
    "roberta": ModelFamily(
        name="RoBERTa",
        model_types=("roberta", "xlm-roberta", "camembert"),
        embedding_parameters=_BERT_NAMES,
        components=_BERT_COMPONENTS,
        layer_parts=_BERT_PARTS,
        position_start="after_padding",
        has_pooler=True,
    ),
    "distilbert": ModelFamily(
        name="DistilBERT",
        model_types=("distilbert",),
        embedding_parameters={k: v for k, v in _BERT_NAMES.items() if k != "token_type_embeddings"},
        components={"layers.{K}": ("transformer.layer.{K}.*",)},
        layer_parts={
            "attention query": "attention.q_lin",
            "attention key": "attention.k_lin",
            "attention value": "attention.v_lin",
            "attention output": "attention.out_lin",
            "attention LayerNorm": "sa_layer_norm",
            "intermediate": "ffn.lin1",
            "output": "ffn.lin2",
            "output LayerNorm": "output_layer_norm",
        },
    ),
    "electra": ModelFamily(
        name="ELECTRA",
        model_types=("electra",),
        embedding_parameters=_BERT_NAMES,
        components={"projection": ("embeddings_project.*",), "layers.{K}": ("encoder.layer.{K}.*",)},
        layer_parts=_BERT_PARTS,
    ),
    "albert": ModelFamily(
        name="ALBERT",
        model_types=("albert",),
        embedding_parameters=_BERT_NAMES,
        # One group of shared weights is one component, however often the forward pass goes through it.
        components={
            "projection": ("encoder.embedding_hidden_mapping_in.*",),
            "layers.{K}": ("encoder.albert_layer_groups.{K}.*",),
            "pooler": ("pooler.*",),
        },
        layer_parts={
            "attention query": "albert_layers.*.attention.query",
            "attention key": "albert_layers.*.attention.key",
            "attention value": "albert_layers.*.attention.value",
            "attention output": "albert_layers.*.attention.dense",
            "attention LayerNorm": "albert_layers.*.attention.LayerNorm",
            "intermediate": "albert_layers.*.ffn",
            "output": "albert_layers.*.ffn_output",
            "output LayerNorm": "albert_layers.*.full_layer_layer_norm",
        },
        shares_layers=True,
        has_pooler=True,
    ),
    "deberta-v2": ModelFamily(
        name="DeBERTa-v2",
        model_types=("deberta-v2",),
        embedding_parameters=_BERT_NAMES,
        components={
            "projection": ("embeddings.embed_proj.*",),
            "layers.{K}": ("encoder.layer.{K}.*",),
            "encoder_other": ("encoder.rel_embeddings.*", "encoder.LayerNorm.*", "encoder.conv.*"),
        },
        layer_parts=_BERT_PARTS
        | {
            "attention query": "attention.self.query_proj",
            "attention key": "attention.self.key_proj",
            "attention value": "attention.self.value_proj",
            "attention position query": "attention.self.pos_query_proj",
            "attention position key": "attention.self.pos_key_proj",
        },
    ),
    "modernbert": ModelFamily(
        name="ModernBERT",
        model_types=("modernbert",),
        embedding_parameters={
            "word_embeddings": "embeddings.tok_embeddings.weight",
            "LayerNorm.weight": "embeddings.norm.weight",
            "LayerNorm.bias": "embeddings.norm.bias",
        },
        components={"layers.{K}": ("layers.{K}.*",), "encoder_other": ("final_norm.*",)},
        layer_parts={
            "attention LayerNorm": "attn_norm",
            "attention query, key and value": "attn.Wqkv",
            "attention output": "attn.Wo",
            "output LayerNorm": "mlp_norm",
            "intermediate": "mlp.Wi",
            "output": "mlp.Wo",
        },
    ),
    "mpnet": ModelFamily(
        name="MPNet",
        model_types=("mpnet",),
        embedding_parameters={k: v for k, v in _BERT_NAMES.items() if k != "token_type_embeddings"},
        components=_BERT_COMPONENTS | {"encoder_other": ("encoder.relative_attention_bias.*",)},
        layer_parts={
            "attention query": "attention.attn.q",
            "attention key": "attention.attn.k",
            "attention value": "attention.attn.v",
            "attention output": "attention.attn.o",
            "attention LayerNorm": "attention.LayerNorm",
            "intermediate": "intermediate.dense",
            "output": "output.dense",
            "output LayerNorm": "output.LayerNorm",
        },
        position_start="after_padding",
        padding_row=1,
        has_pooler=True,
    ),
    "mobilebert": ModelFamily(
        name="MobileBERT",
        model_types=("mobilebert",),
        embedding_parameters=_BERT_NAMES,
        components=_BERT_COMPONENTS | {"projection": ("embeddings.embedding_transformation.*",)},
        layer_parts=_BERT_PARTS,
        has_pooler=True,
        mark="embeddings.embedding_transformation.*",
        is_plain_sum=False,  # a projection of three words' rows, and a norm that only scales and shifts
    ),
    "esm": ModelFamily(
        name="ESM",
        model_types=("esm",),
        embedding_parameters={
            "word_embeddings": "embeddings.word_embeddings.weight",
            "position_embeddings": "embeddings.position_embeddings.weight",
            "LayerNorm.weight": "embeddings.layer_norm.weight",
            "LayerNorm.bias": "embeddings.layer_norm.bias",
        },
        components=_BERT_COMPONENTS | {"encoder_other": ("encoder.emb_layer_norm_after.*", "contact_head.*")},
        layer_parts=_BERT_PARTS | {"attention LayerNorm": "attention.LayerNorm", "output LayerNorm": "LayerNorm"},
        position_start="after_padding",
        position_kinds=("absolute", "rotary"),
        has_pooler=True,
        is_plain_sum=False,  # words are scaled by the share of masked tokens, and there may be no LayerNorm
        unused=("contact_head.*",),
    ),
    "llama": ModelFamily(
        name="Llama",
        model_types=(
            *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3", "phi3"),
            *("olmo", "olmo2", "granite", "stablelm", "starcoder2", "cohere"),
        ),
        embedding_parameters={"word_embeddings": "embed_tokens.weight"},
        components={"layers.{K}": ("layers.{K}.*",), "encoder_other": ("norm.*",)},
        layer_parts=_DECODER_PARTS,
        mark="layers.{K}.self_attn.o_proj.*",
        is_causal=True,
        is_plain_sum=False,
    ),
    "gpt2": ModelFamily(
        name="GPT-2",
        model_types=("gpt2",),
        embedding_parameters={"word_embeddings": "wte.weight", "position_embeddings": "wpe.weight"},
        components={"layers.{K}": ("h.{K}.*",), "encoder_other": ("ln_f.*",)},
        layer_parts={
            "attention LayerNorm": "ln_1",
            "attention query, key and value": "attn.c_attn",
            "attention output": "attn.c_proj",
            "output LayerNorm": "ln_2",
            "intermediate": "mlp.c_fc",
            "output": "mlp.c_proj",
        },
        mark="h.{K}.attn.c_attn.*",
        is_causal=True,
        is_plain_sum=False,
    ),
    "gpt_neox": ModelFamily(
        name="GPT-NeoX",
        model_types=("gpt_neox",),
        embedding_parameters={"word_embeddings": "embed_in.weight"},
        components={"layers.{K}": ("layers.{K}.*",), "encoder_other": ("final_layer_norm.*",)},
        layer_parts={
            "attention LayerNorm": "input_layernorm",
            "attention query, key and value": "attention.query_key_value",
            "attention output": "attention.dense",
            "output LayerNorm": "post_attention_layernorm",
            "intermediate": "mlp.dense_h_to_4h",
            "output": "mlp.dense_4h_to_h",
        },
        is_causal=True,
        is_plain_sum=False,
    ),
    "t5": ModelFamily(
        name="T5",
        model_types=("t5", "mt5", "umt5"),
        embedding_parameters={"word_embeddings": "shared.weight"},
        components={
            "layers.{K}": ("encoder.block.{K}.*",),
            "encoder_other": ("encoder.final_layer_norm.*",),
            "decoder": ("decoder.*",),
        },
        layer_parts={
            "attention query": "layer.0.SelfAttention.q",
            "attention key": "layer.0.SelfAttention.k",
            "attention value": "layer.0.SelfAttention.v",
            "attention output": "layer.0.SelfAttention.o",
            "attention position": "layer.0.SelfAttention.relative_attention_bias",
            "attention norm": "layer.0.layer_norm",
            "gate": "layer.1.DenseReluDense.wi_0",
            "intermediate": "layer.1.DenseReluDense.wi",
            "intermediate beside a gate": "layer.1.DenseReluDense.wi_1",
            "output": "layer.1.DenseReluDense.wo",
            "output norm": "layer.1.layer_norm",
        },
        mark="encoder.block.{K}.*",
        has_decoder=True,
        is_plain_sum=False,
    ),
}

BESIDE_WEIGHTS = (
    *("embeddings.position_ids", "embeddings.token_type_ids"),  # numbers of rows
    *("h.{K}.attn.bias", "h.{K}.attn.masked_bias", "layers.{K}.attention.bias", "layers.{K}.attention.masked_bias"),
    "*.inv_freq",
)
"""Patterns of what older checkpoints hold beside the weights of their backbone: row numbers, masks, angles."""

COPIES = {
    "encoder.embed_tokens.weight": "shared.weight",
    "decoder.embed_tokens.weight": "shared.weight",
}
"""Names under which older checkpoints hold a word table again, and its own name."""

OUTPUT_TABLES = ("lm_head.weight", "embed_out.weight")
"""What the output layer of a language model is called where it is a table of its own, with a row for each word."""

REGIMES: Mapping[str, tuple[str, ...]] = {"none": (), "embeddings": ("embeddings",), "backbone": ("backbone",)}
"""Named regimes and what they freeze: full fine-tuning, embeddings frozen, feature extraction.

One more is one entry of components, unions and ranges, such as ``"bottom": ("embeddings", "layers.0-2")``. It is what
``--freeze`` takes, and what runs that freeze just this, however it was spelt, are called from then on.
"""


def family_of(model_type: str) -> ModelFamily:
    """The family of a transformers ``model_type``; ValueError with the supported ones when there is none."""
    for family in FAMILIES.values():
        if model_type in family.model_types:
            return family
    supported = ", ".join(known_type for family in FAMILIES.values() for known_type in family.model_types)
    raise ValueError(f"unsupported architecture {model_type!r}; supported model types: {supported}")


OLD_ROWS = "old_rows"
"""What the rows of a word table are called beside its ``weight`` where only its added rows are trained."""


ADAPTER, BENEATH = ".lora_", ".base_layer."
"""Part of the name of every parameter that peft adds by LoRA, and of those that it is added to."""
LORA = "lora"
"""What runs are called whose adapters and head alone are trained, as REGIMES calls others."""


def component_of(family: ModelFamily, parameter: str) -> str:
    """The leaf component that holds a backbone parameter, or its adapter; ValueError when the family does not know it.

    Of a parameter with an adapter both belong to its component.
    """
    module_path, is_adapter, _ = parameter.replace(BENEATH, ".").partition(ADAPTER)
    parameter = f"{module_path}.weight" if is_adapter else module_path
    for canonical, name in family.embedding_parameters.items():
        if parameter in (name, held_name(name)):
            return canonical
    for component, patterns in family.components.items():
        for pattern in patterns:
            if match := _compile(pattern).fullmatch(parameter):
                return component.replace("{K}", match["K"]) if "{K}" in component else component
    raise ValueError(f"{family.name} has a parameter {parameter!r} that toolkit/families.py assigns to no component")


def held_name(parameter: str) -> str:
    """The name of the old rows beside a word table of this name."""
    return f"{parameter.removesuffix('weight')}{OLD_ROWS}"


def part_of(family: ModelFamily, parameter: str) -> str:
    """What the field calls the part of a layer that a backbone parameter belongs to; elsewhere its component.

    ValueError when the family does not know the name.
    """
    component = component_of(family, parameter)
    for pattern in family.components["layers.{K}"]:
        if match := _compile(pattern).fullmatch(parameter):
            module = match["rest"].rpartition(".")[0]
            parts = (part for part, modules in family.layer_parts.items() if _compile(modules).fullmatch(module))
            return next(parts, module or match["rest"])
    return component


def matches(pattern: str, parameter: str) -> bool:
    """Whether a parameter has a pattern's name."""
    return _compile(pattern).fullmatch(parameter) is not None


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\{K\}", r"(?P<K>\d+)").replace(r"\*", "(?P<rest>.+)"))


def regime_name(frozen: Collection[str], components: Collection[str]) -> str:
    """Frozen components in the words of ``--freeze``, those of a model being ``components``.

    ``none``, ``backbone`` where it is all of them, else a list: all embedding parameters as one, layers as ranges.
    """
    if not frozen or {*frozen} == {*components}:
        return "backbone" if frozen else "none"
    embeddings = [name for name in EMBEDDING_PARAMETERS if name in frozen]
    is_whole = embeddings == [name for name in EMBEDDING_PARAMETERS if name in components]
    layers = sorted(int(name.removeprefix("layers.")) for name in frozen if name.startswith("layers."))
    others = [name for name in frozen if name not in embeddings and not name.startswith("layers.")]
    ranges: list[list[int]] = []
    for number in layers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    folded = [f"layers.{layers[0]}" + (f"-{layers[-1]}" if len(layers) > 1 else "") for layers in ranges]
    return ",".join([*(["embeddings"] if embeddings and is_whole else embeddings), *folded, *others])
