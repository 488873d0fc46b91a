"""Question: what does it cost that a run can go on where it was cut short?

Hypothesis: at most 2 % of a run of ten minutes or more, and two states on the disk. The embedded model is fine-tuned
fully on `polarity`, and the time that the training loop waits for each state is added up. A state holds the weights,
both moments of AdamW, what is recorded so far and the random states; how often one is written follows from what the
last one cost (training/going_on.py).

    python experiments/reliability/resume_cost.py --epochs 60      # ten minutes and more; prints and writes the figures
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tyro

from toolkit import RunConfig, finetune
from toolkit.training.going_on import GoingOn

OUT = Path(__file__).with_suffix(".json")


def main(*, epochs: int = 40) -> None:
    """Train, and say what the states cost."""
    costs: list[float] = []
    most_bytes = 0
    write: Callable[..., None] = GoingOn.__dict__["_write"]

    with tempfile.TemporaryDirectory() as folder:

        def timed(self: GoingOn, *parts: Any) -> None:
            nonlocal most_bytes
            started = time.perf_counter()
            write(self, *parts)
            costs.append(time.perf_counter() - started)
            states = [path for path in Path(folder).rglob("*") if path.is_file() and "resume" in path.parts]
            most_bytes = max(most_bytes, sum(path.stat().st_size for path in states))

        config = RunConfig(task="polarity", epochs=epochs, max_train_examples=1000, output_dir=folder)
        started = time.perf_counter()
        with patch.object(GoingOn, "_write", timed):
            finetune(config)
        seconds = time.perf_counter() - started
    found = {
        "seconds": round(seconds, 1),
        "states_written": len(costs),
        "seconds_in_states": round(sum(costs), 2),
        "share": round(sum(costs) / seconds, 4),
        "megabytes_at_most": round(most_bytes / 1e6, 1),
        "epochs": epochs,
    }
    print(json.dumps(found))
    if seconds >= 600:
        OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
