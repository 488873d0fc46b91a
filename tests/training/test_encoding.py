"""What cannot be encoded so that its exposure means anything is refused before training."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModel

from tests.by_hand import begin
from tests.refusals import check_refused
from tests.run_directories import edit
from toolkit.config import RunConfig
from toolkit.data.tasks import load_task
from toolkit.models.classifier import load_classifier
from toolkit.training.encoding import DOUBTFUL_SHARE, encode_task, unknown_share


@pytest.mark.parametrize("role", ["train", "validation"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_text_that_names_the_padding_token_is_refused(
    tiny_config: RunConfig, tiny_model, tmp_path: Path, role: str, family: str
) -> None:
    """Its row gets no gradient, and RoBERTa gives the tokens after it other positions than their places say."""
    loaded, _ = begin(replace(tiny_config, model=str(tiny_model(family))))
    path = tmp_path / "own.tsv"
    lines = Path(getattr(tiny_config, f"{role}_file")).read_text().splitlines()
    words, _, label = lines[3].partition("\t")
    path.write_text("\n".join([*lines[:3], f"{words} {loaded.tokenizer.pad_token} more\t{label}", *lines[4:]]) + "\n")
    task = load_task(replace(tiny_config, **{f"{role}_file": str(path)}))
    check_refused(
        rf"(?i)split '{role}', row 3: the text contains .*pad.*takes for padding", encode_task, task, loaded, 40
    )


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_text_that_names_the_row_that_the_model_pads_with_is_refused(
    tiny_config: RunConfig, tiny_model, tmp_path: Path, family: str
) -> None:
    """RoBERTa's config pads with row 1 where nobody says otherwise, which is [CLS] for a tokenizer of BERT's."""
    folder = shutil.copytree(tiny_model(family), tmp_path / "model")
    edit(folder / "config.json", pad_token_id=1)
    loaded = load_classifier(str(folder), pooling="mean", num_outputs=2)
    message = (
        r"row 1: the text contains '\[CLS\]', which the model takes for padding; the tokenizer pads with '\[PAD\]'"
    )
    check_refused(message, encode_task, load_task(tiny_config), loaded, 40)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pad_token_id": None}, r"config.json of .* has no pad_token_id, from which RoBERTa counts"),
        ({"position_embedding_type": "relative_key"}, r"made with position_embedding_type 'relative_key'"),
    ],
)
def test_positions_that_the_model_would_not_compute_are_refused(tiny_model, tmp_path: Path, fields, said) -> None:
    folder = shutil.copytree(tiny_model("roberta"), tmp_path / "model")
    edit(folder / "config.json", **fields)
    check_refused(said, load_classifier, str(folder), pooling="mean", num_outputs=2)


def test_a_folder_without_a_tokenizer_is_refused(tiny_model, tmp_path: Path) -> None:
    """transformers makes up one that knows no word, and a run on unknown tokens alone would look healthy."""
    AutoModel.from_pretrained(tiny_model("bert")).save_pretrained(tmp_path / "bare")
    check_refused(
        r"bare has no tokenizer, or an empty one: save it beside the weights",
        load_classifier,
        str(tmp_path / "bare"),
        pooling="mean",
        num_outputs=2,
    )


def test_texts_that_the_tokenizer_does_not_know_are_doubted(tiny_config: RunConfig, tmp_path: Path) -> None:
    (loaded, known), path = begin(tiny_config), tmp_path / "own.tsv"
    header, *lines = Path(tiny_config.train_file).read_text().splitlines()
    assert unknown_share(known.splits["train"], loaded.tokenizer) < DOUBTFUL_SHARE
    path.write_text(
        "\n".join([header, *(f"\u8a9e\u8a00 \u8a9e\t{line.rpartition(chr(9))[2]}" for line in lines)]) + "\n"
    )
    task = load_task(replace(tiny_config, train_file=str(path)))
    with pytest.warns(UserWarning, match=r"100% of the tokens of split 'train' are \[UNK\]: does the tokenizer"):
        unknown = encode_task(task, loaded, 40)
    assert unknown_share(unknown.splits["train"], loaded.tokenizer) == 1
    assert unknown_share(unknown.splits["validation"], loaded.tokenizer) < DOUBTFUL_SHARE


def test_without_an_unknown_token_its_share_is_not_known(tiny_config: RunConfig) -> None:
    loaded, data = begin(tiny_config)
    for other in (None, loaded.tokenizer.sep_token):
        loaded.tokenizer.unk_token = other
        assert math.isnan(unknown_share(data.splits["train"], loaded.tokenizer))
