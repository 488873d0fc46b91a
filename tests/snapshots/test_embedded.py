"""The embedded model is the published one, file by file, or it is refused."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.refusals import check_refused
from toolkit.snapshots.tokenizer_files import EMBEDDED, find_embedded

FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@pytest.mark.parametrize("name", [*FILES, "vocab.txt"])
def test_a_changed_file_of_the_embedded_model_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a copy, which is found in place of the installed one."""
    known, copy = find_embedded(EMBEDDED), tmp_path / "model"
    assert known is not None
    copy.mkdir()
    for path in known.iterdir():
        (copy / path.name).symlink_to(path)
    package = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: package)
    assert find_embedded(EMBEDDED) == copy
    (copy / name).unlink()
    check_refused(rf"not as it was published \({name}\)", find_embedded, EMBEDDED)
    (copy / name).write_bytes((known / name).read_bytes()[:1_000_000] + b" ")
    check_refused(rf"not as it was published \({name}\): pip install --force-reinstall", find_embedded, EMBEDDED)
