"""Atomic file writes and memory-mapped reads."""

import errno
import hashlib
import json
import math
import os
import re
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from toolkit.naming import reading
from toolkit.snapshots.ownership import PIECE_BYTES, Owned, atomic_path
from toolkit.snapshots.ownership import of_temporary as of_temporary
from toolkit.snapshots.ownership import sha256_of_file as sha256_of_file

_WRITTEN = {
    **{"<u8": "U64", "<i8": "I64", "<f8": "F64", "<f4": "F32", "<u4": "U32", "<i4": "I32", "<f2": "F16"},
    **{"<u2": "U16", "<i2": "I16", "|i1": "I8", "|u1": "U8", "|b1": "BOOL"},
}
"""numpy's name of a type to that of the format, in the order in which the library puts tensors."""
_READ = {kind: dtype for dtype, kind in _WRITTEN.items()} | {"BF16": "<u2"}
"""The other way round; of bf16, which numpy lacks, the bits, for :func:`widen`."""


def write_text(path: Path, text: str, owned: Owned | None = None, *, may_replace: bool = False) -> None:
    """Write UTF-8 text atomically; what is there is replaced where ``owned`` names it, as of :func:`atomic_path`."""
    write_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), owned, may_replace=may_replace)


def write_new(path: Path, text: str) -> None:
    """Write UTF-8 text atomically; ValueError where a file lies there that holds anything else."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    owned = Owned(path.parent, "", {path.name: [digest]})
    write_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), owned)


def write_bytes(path: Path, content: bytes, owned: Owned | None = None, *, may_replace: bool = False) -> None:
    """Write bytes atomically; see :func:`write_text`."""
    write_with(path, lambda temporary: temporary.write_bytes(content), owned, may_replace=may_replace)


def write_with(
    path: Path, write: Callable[[Path], object], owned: Owned | None = None, *, may_replace: bool = False
) -> None:
    """Let ``write`` fill a temporary file and put it in place atomically; see :func:`write_text`."""
    with atomic_path(path, owned, may_replace=may_replace) as temporary:
        write(temporary)


def write_tensors(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str],
    owned: Owned | None = None,
    check: Callable[[], object] = lambda: None,
) -> str:
    """Write a safetensors file atomically; its sha256. Equal tensors and metadata give equal bytes.

    They are those of the library with the metadata in order: it writes that in a random one, and copies all tensors
    first. ``check`` is called before each piece, and what it raises ends the writing. See :func:`write_text`.
    """
    arrays = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    types, end = list(_WRITTEN), 0
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    order = sorted(arrays, key=lambda name: (types.index(arrays[name].dtype.str), name))
    for name in order:
        start, end = end, end + arrays[name].nbytes
        kind = _WRITTEN[arrays[name].dtype.str]
        header[name] = {"dtype": kind, "shape": arrays[name].shape, "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    values = (arrays[name].reshape(-1).view(np.uint8).data for name in order)
    with atomic_path(path, owned) as temporary, disk_errors(path):
        digest = _write_parts(temporary, (memoryview(struct.pack("<Q", len(text)) + text), *values), check)
        # As open as its folder, like every other file of a run.
        temporary.chmod(path.parent.stat().st_mode & 0o666)
    return digest


def _write_parts(temporary: Path, parts: Iterable[memoryview], check: Callable[[], object]) -> str:
    """Write parts of bytes one after another; the sha256 of them all."""
    hasher = hashlib.sha256()
    with temporary.open("wb") as file:
        for part in parts:
            for start in range(0, len(part), PIECE_BYTES):
                check()
                file.write(part[start : start + PIECE_BYTES])
                hasher.update(part[start : start + PIECE_BYTES])
    return hasher.hexdigest()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what safetensors raises when ``path`` cannot be written, a full disk too, into an OSError that names it."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code) if number else str(error), str(path)) from error


SETTLED_NS = 100_000_000
"""A file written less than these nanoseconds ago can change without its time changing: it is hashed again."""
_KNOWN: dict[str, tuple[tuple[int, ...], str]] = {}
"""Path to (inode, size and times of change, sha256) of every file whose hash was asked for."""
_HASHING: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""Path to who is hashing it: another thread that asks waits for the answer."""


def known_sha256(path: Path, *, again: bool = False) -> str:
    """:func:`sha256_of_file`, computed once as long as the file's inode, size and times of change stay as they are.

    ``again``: it is read whatever is known, as what a disk has lost changes none of these.
    """
    name = str(path.absolute())
    with _HASHING[name]:
        stamp = _stamp(path)
        if not again and name in _KNOWN and _KNOWN[name][0] == stamp:
            return _KNOWN[name][1]
        digest = sha256_of_file(path)
        if _stamp(path) == stamp and time.time_ns() - max(stamp[2:]) > SETTLED_NS:
            _KNOWN[name] = (stamp, digest)
        return digest


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def sha256_of_array(array: np.ndarray) -> str:
    """Hex sha256 of an array's dtype, shape and values: equal exactly when the arrays are bit-identical."""
    array = array if isinstance(array, WidenedRows) else np.ascontiguousarray(array)
    hasher = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + b"\0")
    for start in range(0, len(array) if array.size else 0, CHECKED_ROWS):
        hasher.update(np.ascontiguousarray(array[start : start + CHECKED_ROWS]).reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()


CHECKED_ROWS = 1024
"""Rows that are hashed, widened or searched for NaN at a time."""


POINTER = b"version https://git-lfs.github.com/spec/v1"
"""How a Git LFS pointer begins."""


def check_content(path: Path) -> Path:
    """The path of a file that is to be opened as content.

    ValueError where a Git LFS pointer lies there, three lines of text that stand for a file which was not fetched.
    """
    with open(path, "rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise ValueError(f"{path} is a Git LFS pointer, not the file that it stands for: git lfs pull")
    return path


def read_header(path: Path) -> tuple[dict[str, str], dict[str, tuple[str, tuple[int, ...], int]]]:
    """A safetensors file's metadata and, per tensor, its dtype, shape and absolute byte offset.

    ValueError when the file is truncated or is not a safetensors file, by the library's rules.
    """
    with reading(check_content(path), "is not a whole safetensors file"):
        # The library refuses whatever is not whole; but of no tensor does it tell the place.
        with open(path, "rb") as file, safe_open(path, "numpy"):
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        return metadata, {
            name: (entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
            for name, entry in header.items()
        }


def map_tensor(path: Path, entry: tuple[str, tuple[int, ...], int]) -> np.ndarray:
    """One tensor of a safetensors file as a read-only memory map: nothing is read before it is used."""
    dtype, shape, offset = entry
    if dtype not in _READ:
        raise ValueError(f"{path} holds a tensor of type {dtype}; this reader knows {', '.join(_READ)}")
    if 0 in shape:
        return np.empty(shape, dtype=_READ[dtype])
    # As text: numpy would resolve a Path, which takes longer than the mapping.
    return np.memmap(str(path), dtype=_READ[dtype], mode="r", offset=offset, shape=shape)


def widen(halves: np.ndarray) -> np.ndarray:
    """The fp32 equal to bf16 values, which numpy lacks, given as the bits of their upper halves (uint16)."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


class NamedTensors(Mapping[str, np.ndarray]):
    """Arrays by name, each mapped or computed when it is asked for, and never kept."""

    _names: Collection[str] = ()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self)})"


class WidenedRows:
    """A mapped table as fp32, or some of its rows: a slice is another one, and rows are widened when they are read.

    A language model's word table has a billion values: as fp32 it would take several times its file in memory, in each
    pass over it. ``np.asarray`` gives all of it.
    """

    dtype = np.dtype(np.float32)
    __eq__ = None  # type: ignore[assignment]  # of arrays it is by element, which nobody should miss

    def __init__(self, stored: np.ndarray, convert: Callable[[np.ndarray], np.ndarray], rows: Any = None) -> None:
        """``rows``: numbers of those of ``stored`` that it has, in its order; None: all of them."""
        self._stored, self._convert, self._rows = stored, convert, rows
        self.shape: tuple[int, ...] = (len(stored if rows is None else rows), *stored.shape[1:])
        self.ndim, self.size = stored.ndim, math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        if not isinstance(rows, slice):
            return self._convert(self._stored[rows if self._rows is None else self._rows[rows]])
        stored, chosen = (self._stored[rows], None) if self._rows is None else (self._stored, self._rows[rows])
        return WidenedRows(stored, self._convert, chosen)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        stored = self._stored if self._rows is None else self._stored[self._rows]
        return self._convert(stored).astype(dtype or np.float32, copy=False)
