"""Tables found by reading through files, kept in the cache folder so that it happens once.

A table is a dict of NumPy arrays. It is an optimisation only: whatever cannot be read or is damaged is built anew, and
whatever cannot be written is not kept. Processes may share the folder: a table appears whole or not at all.
"""

import io
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt

from headrace.samples.source import digest

__all__ = ["Table", "cached"]

Table = dict[str, npt.NDArray[Any]]

_VERSION = 1
"""Of the file around the arrays; what the arrays mean is the caller's, who puts a version of his own in `key_parts`."""
_KEY = "__key__"
_CHECK = 16
"""Bytes of the checksum behind the archive; NumPy and unzip pass over it."""


def cached(cache_dir: Path, kind: str, key_parts: Sequence[Any], build: Callable[[], Mapping[str, Any]]) -> Table:
    """A table from the cache, or from `build` if the cache does not have it.

    Args:
        cache_dir: the cache folder; the table lies in ``tables`` below it.
        kind: what sort of table it is: letters, digits and ``-``, the first part of the file's name.
        key_parts: plain values (as `json` takes them) that decide what the table holds: a version of its meaning, and
            the path, size and version of each file that it tells of.
        build: makes the table. Its errors are the caller's; it runs again in the next call then.

    Returns:
        The arrays, which cannot be written to.

    Raises:
        TypeError: if an array of `build` holds Python objects.

    Example:
        >>> import numpy as np
        >>> table = cached(folder, "lines", [1, "a.jsonl", 12, "m7"], lambda: {"starts": np.array([0, 5])})
        >>> table["starts"].tolist()
        [0, 5]
    """
    key = digest(_VERSION, kind, list(key_parts))
    path = cache_dir / "tables" / f"{kind}-{key}.npz"
    table = _read(path, key)
    if table is None:
        table = {name: np.asarray(array) for name, array in build().items()}
        for name, array in table.items():
            if array.dtype.hasobject:
                raise TypeError(f"a table holds plain values, got {array.dtype} in {name!r} of {kind!r}")
        with suppress(OSError):
            _write(path, table, key)
    for array in table.values():
        array.flags.writeable = False
    return table


def _read(path: Path, key: str) -> Table | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    archive, check = data[:-_CHECK], data[-_CHECK:]
    # The checksum is looked at first: the shapes in a damaged archive could ask for any amount of memory.
    if blake2b(archive, digest_size=_CHECK).digest() != check:
        return None
    try:
        with np.load(io.BytesIO(archive), allow_pickle=False) as found:
            table: Table = {name: found[name] for name in found.files}
        return table if table.pop(_KEY).tobytes() == key.encode() else None
    except Exception:  # Any fault at all: whole but by another program, or another NumPy.
        return None


def _write(path: Path, table: Table, key: str) -> None:
    buffer = io.BytesIO()
    # Not numpy.savez, whose own arguments would be names that no array can have.
    with ZipFile(buffer, "w") as parts:
        for name, array in {**table, _KEY: np.frombuffer(key.encode(), np.uint8)}.items():
            with parts.open(f"{name}.npy", "w", force_zip64=True) as part:
                np.lib.format.write_array(part, np.ascontiguousarray(array), allow_pickle=False)
    archive = buffer.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    # Made anew, with the permissions that the user's mask leaves: others may share the folder.
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123
            file.write(archive)
            file.write(blake2b(archive, digest_size=_CHECK).digest())
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
