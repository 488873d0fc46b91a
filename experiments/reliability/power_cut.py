"""What is left of a run when the power goes; a part of faults.py.

Every call that writes, renames, removes or syncs in the folder of a tiny run is recorded, and of one that replaces a
finished run. The disk is then put together as it may be when the power goes before each of these calls. In the worst
case a file has the data of its last fsync and a folder the names; else any part of what was written since is there too.
The same command is given on each of these disks: no finished run there has other bytes than its manifest says, and it
ends with the bits of the run that was left alone. What is written, is written in turn here, without threads.
"""

import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from crash import changes_a_file, contents

from toolkit import RunConfig, finetune, verify_run
from toolkit.naming import refuse_first
from toolkit.snapshots.ownership import JOURNAL, MANIFEST
from toolkit.snapshots.run_writer import BackgroundWriter
from toolkit.snapshots.unfinished import find_state

POWER_CUT = "power cut"
Number = tuple[int, int]
"""Of a file or folder: its inode, which another may be given later, and the moment at which it came."""
Versions = list[dict[str, Number] | bytes]
"""What a folder named, or a file held, when it was synced and at every change since."""


@dataclass
class Disk:
    """A folder as its disk may have it when the power goes, at each moment at which this process changes it."""

    root: Path
    moments: list[dict[Number, Versions]] = field(default_factory=list)
    _now: dict[Number, Versions] = field(default_factory=dict)
    _numbers: dict[int, Number] = field(default_factory=dict)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, what this process does to the folder is recorded."""
        sync, is_over = os.fsync, list[bool]()

        def fsync(descriptor: int) -> None:
            sync(descriptor)
            self._look()
            number = self._numbers.get(os.fstat(descriptor).st_ino, (0, 0))
            self._now[number] = self._now.get(number, [b""])[-1:]

        def hear(event: str, arguments: tuple[Any, ...]) -> None:
            if not is_over and changes_a_file(event, arguments, str(self.root)):
                self._look()

        self._look(is_synced=True)
        sys.addaudithook(hear)
        with patch.object(os, "fsync", fsync), patch.object(BackgroundWriter, "start", BackgroundWriter._call):
            yield
        is_over.append(True)
        self._look()

    def _look(self, *, is_synced: bool = False) -> None:
        places = {place.stat().st_ino: place for place in (self.root, *self.root.rglob("*"))}
        self._numbers = {inode: self._numbers.get(inode, (inode, len(self.moments))) for inode in places}
        for inode, place in places.items():
            names = {path.name: self._numbers[path.stat().st_ino] for path in place.iterdir()} if place.is_dir() else {}
            found = names if place.is_dir() else place.read_bytes()
            since = self._now.get(self._numbers[inode], [found if is_synced else type(found)()])
            self._now[self._numbers[inode]] = since if since[-1] == found else [*since, found]
        self.moments.append(dict(self._now))

    def cut(self, moment: int, place: Path, rng: random.Random | None) -> None:
        """Put the folder together at ``place`` as the power leaves it; in the worst case where ``rng`` is None."""

        def fill(number: Number, place: Path) -> None:
            versions = self.moments[moment][number]
            left = rng.choice(versions) if rng else versions[0]
            if isinstance(left, bytes):
                place.write_bytes(left if left is versions[0] or not rng else left[: rng.randrange(len(left) + 1)])
            else:
                place.mkdir()
                for name, inner in left.items():
                    fill(inner, place / name)

        fill(self._numbers[self.root.stat().st_ino], place)


def outcome_of(place: Path, config: RunConfig, expected: dict[str, bytes]) -> str:
    """What becomes of the same command on a disk after a power cut."""
    lists = [path for path in place.glob("*/*.json") if path.name in (MANIFEST, JOURNAL)]
    is_kept = any(find_state(path.parent)[0] for path in lists)
    is_finished = any(path.name == MANIFEST for path in lists)
    try:
        refuse_first({str(verify_run(path.parent)): verify_run(path.parent) for path in lists if path.name == MANIFEST})
        run = finetune(replace(config, output_dir=str(place)), reuse_finished=True)
    except (ValueError, OSError) as error:
        return f"fault: {error}"
    if contents(run.path) != expected:
        return "fault: other bits"
    return "finished" if is_finished else "goes on, same bits" if is_kept else "starts anew, same bits"


def power_cuts(config: RunConfig, root: Path, every: int) -> dict[str, dict[str, int]]:
    """What becomes of runs in the folder ``root`` whose power is cut at every Nth call, twice each; by kind of run."""
    rng, figures = random.Random(0), {}
    root.mkdir()
    for way in ("a new run", "a run that replaces another"):
        # Many a call changes nothing that was synced: each disk is tried once.
        disk, counts, known = Disk(root), Counter[str](), dict[int, str]()
        with disk.watched():
            finetune(replace(config, output_dir=str(root), overwrite=True))
        expected = contents(root)
        for moment, how in product(range(0, len(disk.moments), every), (None, rng)):
            disk.cut(moment, place := root.with_name("cut"), how)
            key = hash(frozenset((str(p.relative_to(place)), p.is_file() and p.read_bytes()) for p in place.rglob("*")))
            known[key] = known.get(key) or outcome_of(place, replace(config, overwrite=True), expected)
            counts[known[key]] += 1
            print(f"  {way}, call {moment}: {known[key]}\n" * known[key].startswith("fault"), end="", flush=True)
            shutil.rmtree(place)
        figures[f"{POWER_CUT}: {way}"] = dict(counts)
        print(f"{way:30} {len(disk.moments)} calls, {len(known)} disks: {dict(counts)}", flush=True)
    return figures
