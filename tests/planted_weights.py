"""A checkpoint like another one, with other weights."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file


def altered(folder: Path, out: Path, change: Callable[[dict[str, np.ndarray]], object]) -> Path:
    """A copy of a checkpoint's folder, of whose weights, which are named, ``change`` made others."""
    shutil.copytree(folder, out, dirs_exist_ok=True)
    weights = load_file(out / "model.safetensors")
    change(weights)
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    return out
