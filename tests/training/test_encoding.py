"""What cannot be encoded so that its exposure means anything is refused before training."""

from dataclasses import replace
from pathlib import Path

import pytest

from toolkit.config import RunConfig
from toolkit.data.tasks import load_task
from toolkit.models.classifier import load_classifier
from toolkit.training.encoding import encode_task


@pytest.mark.parametrize("role", ["train", "validation"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_text_that_names_the_padding_token_is_refused(
    tiny_config: RunConfig, tiny_model, tmp_path: Path, role: str, family: str
) -> None:
    """Its row gets no gradient, and RoBERTa gives the tokens after it other positions than their places say."""
    loaded = load_classifier(str(tiny_model(family)), pooling="mean", num_outputs=2)
    path = tmp_path / "own.tsv"
    lines = Path(getattr(tiny_config, f"{role}_file")).read_text().splitlines()
    words, _, label = lines[3].partition("\t")
    path.write_text("\n".join([*lines[:3], f"{words} {loaded.tokenizer.pad_token} more\t{label}", *lines[4:]]) + "\n")
    task = load_task(replace(tiny_config, **{f"{role}_file": str(path)}))
    with pytest.raises(ValueError, match=rf"(?i)split '{role}', row 3: the text contains .*pad.*takes for padding"):
        encode_task(task, loaded, 40)
    encode_task(load_task(tiny_config), loaded, 40)
