"""Who reads the file: each opens it, and goes through it once whenever it is called."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import headrace
from headrace.bench.records.job import BATCH, SEED, SEQ_LEN, THREADS, Reader

__all__ = ["PACKAGES", "READERS", "loader"]

PACKAGES: dict[str, dict[str, str]] = {"grain": {"grain": "grain"}}
"""What those need that need more than headrace does: from the names as imported to those as installed."""

_ROW_BYTES = 2 * SEQ_LEN

_Pass = Callable[[], Iterator[Any]]


def loader(file: Path, **settings: Any) -> headrace.DataLoader:
    """headrace's, over sequences of SEQ_LEN tokens and the one behind them, as int64."""
    data = headrace.open(file, stored_dtype="uint16").sequences(SEQ_LEN, overlap=1, dtype="int64")
    return headrace.DataLoader(data, batch_size=BATCH, seed=SEED, **settings)


def _headrace_int64(file: Path) -> _Pass:
    """A sequence holds one token more, so that inputs and targets are views of it."""
    own = loader(file)

    def go() -> Iterator[Any]:
        for batch in own:
            yield batch["tokens"][:, :-1], batch["tokens"][:, 1:]

    return go


def _headrace_stored(file: Path, **settings: Any) -> _Pass:
    data = headrace.open(file, stored_dtype="uint16").sequences(SEQ_LEN)
    own = headrace.DataLoader(data, batch_size=BATCH, seed=SEED, **settings)

    def go() -> Iterator[Any]:
        for batch in own:
            yield (batch["tokens"],)

    return go


def _headrace_threads(file: Path) -> _Pass:
    return _headrace_stored(file, num_workers=THREADS)


def _memmap(file: Path) -> _Pass:
    """What nanoGPT does: random starts, stacked, and once more a token further."""
    tokens = np.memmap(file, np.uint16, mode="r")
    random = np.random.default_rng(SEED)

    def go() -> Iterator[Any]:
        for _ in range(len(tokens) // SEQ_LEN // BATCH):
            starts = random.integers(0, len(tokens) - SEQ_LEN, BATCH)
            x = np.stack([tokens[at : at + SEQ_LEN].astype(np.int64) for at in starts])
            y = np.stack([tokens[at + 1 : at + 1 + SEQ_LEN].astype(np.int64) for at in starts])
            yield x, y

    return go


class _Rows:
    """A RandomAccessDataSource: sequences of the file and the token behind each, as int64."""

    def __init__(self, file: Path) -> None:
        self.tokens = np.asarray(np.memmap(file, np.uint16, mode="r"))

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // SEQ_LEN

    def __getitem__(self, index: int) -> npt.NDArray[np.int64]:
        return self.tokens[index * SEQ_LEN : (index + 1) * SEQ_LEN + 1].astype(np.int64)


def _grain(file: Path) -> _Pass:
    """Without threads: two were slower, as what they do is Python."""
    package: Any = import_module("grain")
    dataset = package.MapDataset.source(_Rows(file)).shuffle(seed=SEED)
    dataset = dataset.batch(BATCH, drop_remainder=True, batch_fn=np.stack)

    def go() -> Iterator[Any]:
        for batch in dataset.to_iter_dataset(package.ReadOptions(num_threads=0, prefetch_buffer_size=2)):
            yield batch[:, :-1], batch[:, 1:]

    return go


def _memcpy(file: Path) -> _Pass:
    """The same rows from an array in memory to a batch that is used again: no file, no new memory, no loader."""
    tokens = np.fromfile(file, np.uint16)
    rows = tokens[: len(tokens) // SEQ_LEN * SEQ_LEN].reshape(-1, SEQ_LEN)
    batch = np.empty((BATCH, SEQ_LEN), np.uint16)

    def go() -> Iterator[Any]:
        order = np.random.default_rng(SEED).permutation(len(rows))
        for at in range(0, len(rows) - BATCH + 1, BATCH):
            # Any mode but the default one copies straight into `out`.
            np.take(rows, order[at : at + BATCH], axis=0, out=batch, mode="clip")
            yield (batch,)

    return go


def _pread(file: Path) -> _Pass:
    """Threads that read rows at random, a batch each at a time, and nothing else."""
    fd = os.open(file, os.O_RDONLY)
    count = os.fstat(fd).st_size // _ROW_BYTES

    def read(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
        batch = np.empty((BATCH, SEQ_LEN), np.uint16)
        view = batch.reshape(-1).view(np.uint8).data
        for number, row in enumerate(rows.tolist()):
            os.preadv(fd, [view[number * _ROW_BYTES : (number + 1) * _ROW_BYTES]], row * _ROW_BYTES)
        return batch

    def go() -> Iterator[Any]:
        order = np.random.default_rng(SEED).permutation(count)
        parts = [order[at : at + BATCH] for at in range(0, count - BATCH + 1, BATCH)]
        with ThreadPoolExecutor(THREADS) as pool:
            for batch in pool.map(read, parts):
                yield (batch,)

    return go


READERS: dict[str, Reader] = {
    "headrace_int64": _headrace_int64,
    "headrace_stored": _headrace_stored,
    "headrace_threads": _headrace_threads,
    "memmap": _memmap,
    "grain": _grain,
    "memcpy": _memcpy,
    "pread": _pread,
}
