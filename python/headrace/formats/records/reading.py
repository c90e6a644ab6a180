"""Stretches of bytes of one size, from many places of files at once."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from headrace import _core
from headrace._files import File, Store
from headrace.samples.stored import BATCHES_KEPT

__all__ = ["Opened", "local_path", "open_file", "read_many"]

_Ints = npt.NDArray[np.int64]

_READERS = 16
"""Stretches of a remote store that one call reads at once."""

_gather = _core.Gather(keep=BATCHES_KEPT)

Opened = tuple[File, "_core.OpenFile | None"]
"""A file, and if it is one of this machine the same opened."""


def local_path(store: Store, file: File) -> str | None:
    """Where a file lies on this machine, if it does."""
    root = store.core.local_root
    return None if root is None else os.path.join(root, file.path)  # noqa: PTH118


def open_file(store: Store, file: File) -> Opened:
    """A file, opened if it is one of this machine.

    Raises:
        DataError: if it changed since it was listed.
    """
    path = local_path(store, file)
    return file, None if path is None else _core.OpenFile(path, file.size, file.version)


def read_many(
    store: Store,
    files: Sequence[Opened],
    which: _Ints,
    starts: _Ints,
    size: int,
    *,
    convert: tuple[str, str] | None = None,
) -> memoryview:
    """Stretches of bytes, one behind another.

    Args:
        store: where the files lie.
        files: all opened, or none.
        which: int64, (stretches,): which of the files.
        starts: int64, (stretches,): the first byte there.
        size: of a stretch, in bytes.
        convert: types of whole numbers, from one to the other; for opened files.

    Raises:
        DataError: if a file changed, or a number does not fit the type that was asked for.
        StoreError: if the store does not answer.
    """
    opened = [file for _, file in files if file is not None]
    if len(opened) == len(files):
        return memoryview(_gather.take(opened, np.ascontiguousarray(which), starts, size, convert=convert))
    memory = bytearray(len(which) * size)
    view = memoryview(memory)

    def read(at: int) -> None:
        start = int(starts[at])
        view[at * size : (at + 1) * size] = store.read(files[int(which[at])][0], start, start + size)

    if len(which) < 2:
        for at in range(len(which)):
            read(at)
        return view
    # At the same time, as each has to be waited for.
    with ThreadPoolExecutor(min(_READERS, len(which)), "headrace-records") as pool:
        futures = [pool.submit(read, at) for at in range(len(which))]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()
    return view
