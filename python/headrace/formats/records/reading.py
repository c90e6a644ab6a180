"""Stretches of bytes of one size, from many places of files at once."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from headrace import _core
from headrace._files import File, Store, files_kept
from headrace.samples.stored import BATCHES_KEPT

__all__ = ["Opened", "local_path", "open_file", "read_many"]

_Ints = npt.NDArray[np.int64]

_READERS = 16
"""Stretches of a remote store that one call reads at once."""

_gather = _core.Gather(keep=BATCHES_KEPT)


class Opened:
    """A file, kept open if it is one of this machine: so what is replaced by renaming goes on as it was.

    Only so many are open at a time in this process (`files_kept`); one that was closed is opened again when it is read.

    Args:
        file: the file.
        path: where it lies on this machine, if it does.

    Raises:
        DataError: if it changed since it was listed.
        StoreError: if it cannot be opened.
    """

    __slots__ = ("file", "local")

    def __init__(self, file: File, path: str | None) -> None:
        self.file = file
        self.local: _core.OpenFile | None = None
        if path is not None:
            self.local = _core.OpenFile(path, file.size, file.version, keep_open=files_kept())


def local_path(store: Store, file: File) -> str | None:
    """Where a file lies on this machine, if it does."""
    root = store.core.local_root
    return None if root is None else os.path.join(root, file.path)  # noqa: PTH118


def open_file(store: Store, file: File) -> Opened:
    """A file, opened if it is one of this machine.

    Raises:
        DataError: if it changed since it was listed.
        StoreError: if it cannot be opened.
    """
    return Opened(file, local_path(store, file))


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
        files: all of this machine, or none.
        which: int64, (stretches,): which of the files.
        starts: int64, (stretches,): the first byte there.
        size: of a stretch, in bytes.
        convert: types of whole numbers, from one to the other; for files of this machine.

    Raises:
        DataError: if a file changed, or a number does not fit the type that was asked for.
        StoreError: if the store does not answer.
    """
    local = [file.local for file in files if file.local is not None]
    if len(local) == len(files):
        return _read_local(local, which, starts, size, convert)
    memory = bytearray(len(which) * size)
    view = memoryview(memory)

    def read(at: int) -> None:
        start = int(starts[at])
        view[at * size : (at + 1) * size] = store.read(files[int(which[at])].file, start, start + size)

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


def _read_local(
    files: "Sequence[_core.OpenFile]", which: _Ints, starts: _Ints, size: int, convert: tuple[str, str] | None
) -> memoryview:
    """See `read_many`. Of many files some are read at a time, as those that any thread holds are open."""
    at_once = max(1, files_kept() // 4)
    if len(files) <= at_once:
        return memoryview(_gather.take(list(files), np.ascontiguousarray(which), starts, size, convert=convert))
    order = np.argsort(which, kind="stable")
    found: npt.NDArray[np.uint8] | None = None
    used, firsts = np.unique(which[order], return_index=True)
    ends = [*firsts[at_once::at_once].tolist(), len(order)]
    for number, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        some = used[number * at_once : (number + 1) * at_once]
        rows = order[first:end]
        memory = _gather.take(
            [files[int(at)] for at in some], np.searchsorted(some, which[rows]), starts[rows], size, convert=convert
        )
        part = np.frombuffer(memoryview(memory), np.uint8).reshape(len(rows), -1)
        if found is None:
            found = np.empty((len(order), part.shape[1]), np.uint8)
        found[rows] = part
    return memoryview(bytearray() if found is None else found.reshape(-1).data)
