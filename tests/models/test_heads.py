"""Every recipe of features against plain transformers code, for every family; heads; and layers that are not there."""

import math
import shutil
from dataclasses import replace
from functools import cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.by_hand import begin
from tests.conftest import DECODERS, ENCODERS, FAMILY_CONFIGS, build_tokenizer, saved, sizes_of
from tests.refusals import check_refused
from tests.run_directories import edit
from toolkit.config import RunConfig, recipe_of
from toolkit.data.batches import make_batch
from toolkit.models.classifier import load_classifier
from toolkit.models.heads import build_head, chosen_layers, inputs_of
from toolkit.training.accelerators import build_accelerator
from toolkit.training.evaluation import evaluate, extract_features

FEATURES = ("last", "second-to-last", "layers.0", "layers.4", "last4-concat", "last4-sum", "all-concat", "mix")
NUM_BLOCKS = 5


@pytest.fixture(scope="module")
def deep_model(tmp_path_factory):
    """A function: model type to the folder of a tiny checkpoint of five blocks."""
    from transformers import AutoConfig, AutoModel

    @cache
    def build(model_type: str):
        torch.manual_seed(0)
        tokenizer = build_tokenizer(sizes_of(model_type)["pad_token_id"])
        depths = dict.fromkeys(("num_hidden_layers", "n_layers")[: 1 + (model_type == "distilbert")], NUM_BLOCKS)
        sizes = sizes_of(model_type, vocab_size=len(tokenizer) + 20) | depths
        model = AutoModel.from_config(AutoConfig.for_model(model_type, **sizes))
        return saved(model, tokenizer, tmp_path_factory.mktemp(f"deep-{model_type}"))

    return build


@cache
def plain_layers(folder, texts, pooling, *, max_length=40, batch_size=7):
    """The pooled states of every layer, (texts, hidden) each, by transformers alone; all recipes are made of these.

    They come from hooks on the blocks, and not from ``output_hidden_states``.
    """
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    kinds = ("Layer", "Block")  # of transformers' names of a block
    blocks = [
        m
        for n, m in model.named_modules()
        if type(m).__name__.endswith(kinds) and n.rpartition(".")[2].isdigit() and ".ffn." not in n  # MobileBERT's
    ]
    rows = []
    for start in range(0, len(texts), batch_size):
        columns = [list(c) for c in zip(*texts[start : start + batch_size], strict=True)]
        batch = tokenizer(*columns, truncation=True, max_length=max_length, padding=True, return_tensors="pt")
        if getattr(model.config, "type_vocab_size", 0) < 2:
            batch.pop("token_type_ids", None)
        states, first = [], []

        def keep(module, args, kwargs, output, states=states, first=first):
            if not states:
                first.append(args[0] if args else kwargs["hidden_states"])
            states.append(output[0] if isinstance(output, tuple) else output)

        def replace_first(module, args, output, states=states):
            states[0] = output  # DeBERTa's convolution belongs to the first block's output

        handles = [block.register_forward_hook(keep, with_kwargs=True) for block in blocks]
        handles += [m.register_forward_hook(replace_first) for n, m in model.named_modules() if n == "encoder.conv"]
        with torch.no_grad():
            last = model(**batch).last_hidden_state
        for handle in handles:
            handle.remove()
        states[-1] = last  # ModernBERT's final normalisation belongs to the last block's output
        layers = [*first, *states]
        assert len(layers) == NUM_BLOCKS + 1
        mask, end = batch["attention_mask"].unsqueeze(-1), batch["attention_mask"].sum(1) - 1
        pools = {
            "cls": lambda x: x[:, 0],
            "last": lambda x, end=end: x[torch.arange(len(x)), end],
            "mean": lambda x, mask=mask: (x * mask).sum(1) / mask.sum(1),
        }
        rows.append([pools[pooling](x) for x in layers])
    return [torch.cat(layer) for layer in zip(*rows, strict=True)]


def plain_vectors(folder, texts, pooling, features):
    """(texts, width) by transformers alone: ``texts`` are single ones or pairs read jointly."""
    pooled = plain_layers(folder, tuple(texts), pooling)
    recipes = {
        "last": lambda: pooled[-1],
        "second-to-last": lambda: pooled[-2],
        "layers.0": lambda: pooled[1],
        "layers.4": lambda: pooled[5],
        "last4-concat": lambda: torch.cat(pooled[-4:], 1),
        "last4-sum": lambda: sum(pooled[-4:]),
        "all-concat": lambda: torch.cat(pooled[1:], 1),
        "mix": lambda: torch.stack(pooled, 1).mean(1),  # equal shares before training
    }
    return recipes[features]().double().numpy()


def compared(u, v, *, with_cosine):
    cosine = (u * v).sum(1, keepdims=True) / np.linalg.norm(u, axis=1, keepdims=True)
    cosine = cosine / np.linalg.norm(v, axis=1, keepdims=True)
    return np.hstack([u, v, abs(u - v), u * v, *([cosine] if with_cosine else [])])


def extracted(config, num_outputs=2, split="validation"):
    """What the head reads, by the toolkit, and the texts."""
    config = replace(config, precision="no")
    loaded, data = begin(config, num_outputs=num_outputs)
    accelerator = build_accelerator(config)
    features = extract_features(accelerator, loaded.model, data, (split,))[split]
    with torch.no_grad():
        inputs = inputs_of(loaded.model.head, torch.from_numpy(features).to(accelerator.device)).cpu().numpy()
    return inputs, data.task.splits[split].texts, loaded, data


def assert_close(found, expected):
    """1e-6 relative to the size of each row's part: rounding of a mean is relative to what is summed."""
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("pooling", "family"),
    [
        *product(["mean", "cls"], ["bert"]),
        *product(["last"], ["bert", "gpt2"]),
        *(
            pytest.param(*others, marks=pytest.mark.slow)
            for others in [
                *product(["mean", "cls"], sorted(FAMILY_CONFIGS.keys() - {"bert"})),
                *product(["last"], sorted(DECODERS.keys() - {"gpt2"})),
                *product(["mean"], ENCODERS),
            ]
        ),
    ],
)
def test_features_are_plain_transformers(deep_model, tiny_config, pooling, family):
    for features in FEATURES:
        config = replace(tiny_config, model=str(deep_model(family)), pooling=pooling, features=features)
        found, texts, _, _ = extracted(config)
        assert_close(found, plain_vectors(config.model, texts, pooling, features))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("num_outputs", [1, 2])
def test_pairs_are_encoded_as_asked(deep_model, tiny_pairs, pooling, features, num_outputs):
    config = replace(tiny_pairs, model=str(deep_model("bert")), pooling=pooling, features=features)
    found, texts, _, _ = extracted(config, num_outputs)
    assert_close(found, plain_vectors(config.model, texts, pooling, features))
    found, texts, _, _ = extracted(replace(config, pair_encoding="separate"), num_outputs)
    u, v = (plain_vectors(config.model, [(t[side],) for t in texts], pooling, features) for side in (0, 1))
    assert_close(found, compared(u, v, with_cosine=num_outputs == 1))


@pytest.mark.parametrize("family", list(FAMILY_CONFIGS))
def test_separate_pairs_of_every_family(deep_model, tiny_pairs, family):
    config = replace(tiny_pairs, model=str(deep_model(family)), pair_encoding="separate")
    found, texts, loaded, data = extracted(config)
    u, v = (plain_vectors(config.model, [(t[side],) for t in texts], "mean", "last") for side in (0, 1))
    assert_close(found, compared(u, v, with_cosine=False))
    accelerator = build_accelerator(replace(config, precision="no"))
    outputs = evaluate(accelerator, loaded.model, data)["validation"]
    with torch.no_grad():
        logits = loaded.model.head.layers(torch.from_numpy(found).to(accelerator.device)).cpu().numpy()
    np.testing.assert_allclose(outputs, logits, rtol=1e-5, atol=1e-6)


def test_the_pooler_of_two_texts(tiny_pairs):
    """Pooled by the pooler, texts encoded apart are compared too."""
    found, _, loaded, _ = extracted(replace(tiny_pairs, pooling="pooler", pair_encoding="separate"))
    assert found.shape[1] == 4 * loaded.model.backbone.config.hidden_size


def test_threads_and_bf16_do_not_change_which_layers_are_read(deep_model, tiny_config, monkeypatch):
    """What makes a single CPU process fast serves the last layer alone."""
    config = replace(tiny_config, model=str(deep_model("bert")), features="last4-concat")
    expected, _, loaded, data = extracted(config)
    torch.set_num_threads(2)
    try:
        again = extract_features(build_accelerator(config), loaded.model, data, ("validation",))["validation"]
    finally:
        torch.set_num_threads(1)
    np.testing.assert_allclose(again, expected, rtol=1e-6, atol=1e-6)
    half = extract_features(build_accelerator(replace(config, precision="bf16")), loaded.model, data, ("validation",))
    np.testing.assert_allclose(half["validation"], expected, atol=0.1)
    assert not np.array_equal(half["validation"], expected)


def test_mlp_is_a_layer_of_the_hidden_size_with_tanh_and_the_models_dropout(tiny_model):
    loaded = load_classifier(str(tiny_model("bert")), pooling="mean", num_outputs=3, head="mlp", dropout=0.25)
    hidden, tanh, dropout, output = loaded.model.head.layers
    assert (hidden.in_features, hidden.out_features, output.out_features) == (16, 16, 3)
    assert isinstance(tanh, nn.Tanh)
    assert dropout.p == 0.25


def test_the_default_head_is_what_it_was(tiny_model):
    """One linear layer of the same draw, under the same names."""
    loaded = load_classifier(str(tiny_model("bert")), **recipe_of(RunConfig()), num_outputs=3, seed=5)
    names = [name for name, _ in loaded.model.named_parameters() if name.startswith("head.")]
    assert names == ["head.weight", "head.bias"]
    drawn = torch.empty(3, 16).normal_(0.0, 0.02, generator=torch.Generator().manual_seed(5))
    assert torch.equal(loaded.model.head.weight.detach(), drawn)
    assert loaded.model.asked == {}


def test_layers_that_are_not_there_are_refused(tiny_model):
    folder = str(tiny_model("bert"))  # of three blocks
    for features, told in (
        ("layers.3", "the model has the blocks layers.0 to layers.2"),
        ("last4-sum", "needs four blocks; the model has 3"),
        ("last4-concat", "needs four blocks; the model has 3"),
    ):
        check_refused(told, load_classifier, folder, pooling="mean", num_outputs=2, features=features)
    check_refused("second-to-last needs two blocks", chosen_layers, "second-to-last", 1)


@pytest.mark.parametrize("features", ["layers.x", "layers.-1", "first", "", "layers", "last5-sum"])
def test_features_that_no_model_has_are_refused(features):
    check_refused("features", RunConfig, features=features)


@pytest.mark.parametrize("features", FEATURES[1:])
def test_the_pooler_goes_with_the_last_layer_alone(features):
    check_refused(
        f"last layer's states, and cannot go with --features {features}", RunConfig, pooling="pooler", features=features
    )
    RunConfig(pooling="pooler")


def test_single_texts_are_not_encoded_apart(tiny_config):
    check_refused(
        "--pair-encoding separate needs two texts in each example",
        begin,
        replace(tiny_config, pair_encoding="separate"),
    )


@pytest.mark.parametrize("facts", [{"initializer_range": math.nan}, {"initializer_range": -1}, {"dropout": math.nan}])
def test_a_config_that_no_head_can_be_drawn_from_is_one_line(facts: dict[str, float]) -> None:
    config = SimpleNamespace(hidden_size=4, **facts)
    check_refused(
        r"config\.json has an initializer_range of .*: restore|restore the file",
        build_head,
        "linear",
        config,
        width=4,
        num_outputs=2,
        generator=torch.Generator(),
    )


def test_the_last_token_is_the_last_that_is_read():
    """Whatever is hidden after it, before it or in between."""
    model = load_classifier("minilm", pooling="last", num_outputs=2).model
    states = torch.arange(12.0).reshape(2, 6, 1)
    is_read = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 0]])
    output = SimpleNamespace(last_hidden_state=states)
    assert model.pool(output, is_read).flatten().tolist() == [3.0, 10.0]
    assert model.pool(output, is_read.bool()).flatten().tolist() == [3.0, 10.0]


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("llama", {"pooling": "cls"}, "--pooling cls: in Llama the first token sees no other.*choose from: last, mean"),
        ("gpt2", {"pooling": "pooler"}, "--pooling pooler: GPT-2 has no pooler; choose from: mean, last"),
        ("gpt2", {"pooling": "last", "is_token_task": True}, "--pooling last: a token task does not pool"),
        ("t5", {"pooling": "mean"}, "is T5, whose decoder reads what its encoder makes of a text.*toolkit.record"),
    ],
)
def test_poolings_that_a_decoder_lacks(deep_model, family, options, message):
    check_refused(message, load_classifier, str(deep_model(family)), num_outputs=2, **options)


def test_a_decoder_without_a_padding_token_pads_with_its_end_of_text(deep_model, tiny_config, tmp_path):
    """Its row is then an ordinary one: texts may hold it, and only the mask says what is padding."""
    for family in ("gpt2", "bert"):
        shutil.copytree(deep_model(family), tmp_path / family)
        tokenizer = build_tokenizer()
        tokenizer.pad_token, tokenizer.eos_token = None, "[SEP]"
        tokenizer.save_pretrained(tmp_path / family)
        edit(tmp_path / family / "config.json", pad_token_id=None)
    check_refused(
        r"the tokenizer of .* has no padding token",
        load_classifier,
        str(tmp_path / "bert"),
        pooling="mean",
        num_outputs=2,
    )
    with pytest.warns(
        UserWarning, match=r"has no padding token: texts are padded with '\[SEP\]', which the attention mask"
    ):
        loaded, data = begin(replace(tiny_config, model=str(tmp_path / "gpt2"), pooling="last"))
    assert data.pad_id == loaded.tokenizer.eos_token_id == 2
    assert (data.splits["train"].tokens == 2).any()
    batch = make_batch(data.splits["train"], np.arange(8), data)
    assert ((batch["input_ids"] == 2) | (batch["attention_mask"] == 1)).all()
    assert (batch["input_ids"] == 2)[batch["attention_mask"] == 1].any()


def test_dropout_of_any_name_is_set_and_nothing_else(deep_model):
    config = load_classifier(str(deep_model("gpt2")), pooling="mean", num_outputs=2, dropout=0.25).model.backbone.config
    assert (config.resid_pdrop, config.embd_pdrop, config.attn_pdrop) == (0.25, 0.25, 0.25)
    config = load_classifier(str(deep_model("esm")), pooling="mean", num_outputs=2, dropout=0.25).model.backbone.config
    assert config.hidden_dropout_prob == 0.25
    assert config.token_dropout is True
