"""The state of an unfinished run: written now and then, and read when the run is started again.

It lies in the run directory, in ``resume/``: per state one safetensors file, and states.json, which names the last two
with their sha256. A state counts when its file and the snapshots that it names are there bit for bit, so that one that
was cut short is passed over for the one before. Nothing is pickled; a finished run has none.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from toolkit.snapshots.ownership import sha256_of_file

FOLDER = "resume/"
INDEX = f"{FOLDER}states.json"
FORMAT = 1
"""Version of both files; a state of another is no state."""
NUM_KEPT = 2

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class State:
    """A run after so many optimizer steps."""

    step: int
    tensors: Tensors
    """Weights and moments of what is trained, random states, exposure, losses: whatever its trainer has put in."""
    facts: Mapping[str, Any]
    """What must be equal for the run to go on, and small things."""
    snapshots: Mapping[str, str] = field(default_factory=dict)
    """Name, from the run directory, to sha256 of the snapshots that it follows."""

    def metadata(self) -> dict[str, str]:
        """What its file says beside the tensors."""
        values = {"format": FORMAT, "step": self.step, "facts": self.facts, "snapshots": dict(self.snapshots)}
        return {name: json.dumps(value) for name, value in values.items()}


def state_name(step: int) -> str:
    """The file of a state, from the run directory."""
    return f"{FOLDER}step-{step:08d}.safetensors"


def index_text(entries: Mapping[str, str]) -> str:
    """states.json: name to sha256 of the states that are kept, the newest first."""
    return json.dumps({"format": FORMAT, "states": dict(entries)}, indent=1) + "\n"


def read_state(run: Path) -> State | None:
    """The newest whole state of an unfinished run; None without any."""
    try:
        values = json.loads((run / INDEX).read_bytes())
        entries = dict(values["states"]) if values["format"] == FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return next((state for name, digest in entries.items() if (state := _read(run, name, digest))), None)


def _read(run: Path, name: str, digest: str) -> State | None:
    try:
        if not name.startswith(FOLDER) or sha256_of_file(run / name) != digest:
            return None
        with safe_open(run / name, "numpy") as file:
            values = {key: json.loads(text) for key, text in file.metadata().items()}
            tensors = {key: np.asarray(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118 (it has no other way)
        state = State(int(values["step"]), tensors, values["facts"], values["snapshots"])
        held = all(sha256_of_file(run / snapshot) == own for snapshot, own in state.snapshots.items())
        return state if values["format"] == FORMAT and held else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        return None
