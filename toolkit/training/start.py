"""A run's path in, its writer out, on the main process; all processes of a launch go on together, or none does."""

from pathlib import Path

import torch

from toolkit.snapshots.store import RunWriter, start_run


def start_together(path: Path, *, overwrite: bool, is_main: bool, is_recorded: bool = False) -> RunWriter | None:
    """:func:`start_run` on the main process, None on the others; what it raises is raised on all of them.

    Every process calls this: one that did not hear of the error would wait for the main process.
    """
    writer, told = None, list[Exception | None]([None])
    if is_main:
        try:
            writer = start_run(path, overwrite=overwrite, is_recorded=is_recorded)
        except (ValueError, OSError) as error:
            told = [error]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.broadcast_object_list(told)
    if told[0] is not None:
        raise told[0]
    return writer
