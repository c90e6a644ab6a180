"""Grain over a flat token file, mapped into memory.

Rows lie where they lie: a pass shuffles rows, not documents, and cuts the data at the same places every time.

From the Parquet files themselves (ParquetIterDataset for each, InterleaveIterDataset, a WindowShuffleIterDataset of
10,000 documents, packed by a generator) it took about ten times as much CPU time for a token.
"""

# Pyright takes this module itself for the package:
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Iterator
from typing import Any

import grain
import numpy as np

from headrace.bench.data import flat_tokens
from headrace.bench.job import BATCH, SEED, SEQ_LEN, Place

__all__ = ["Loader", "convert"]

THREADS = 0  # two were slower: what they do is Python, one at a time


def convert(place: Place) -> None:
    """One file of int32, so that nothing is left to do with a row."""
    with (place.copy / "tokens.bin").open("wb") as file:
        for tokens in flat_tokens(place.files):
            tokens.tofile(file)


class _Rows:
    """A RandomAccessDataSource: rows of the file, as views."""

    def __init__(self, path: str) -> None:
        tokens = np.asarray(np.memmap(path, np.int32, mode="r"))
        self.rows = tokens[: len(tokens) // SEQ_LEN * SEQ_LEN].reshape(-1, SEQ_LEN)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        return self.rows[index]


class Loader:
    """A MapDataset, shuffled and batched; a pass is an iterator of its own."""

    def __init__(self, place: Place, state: Any) -> None:
        self.rows = _Rows(str(place.copy / "tokens.bin"))
        self.number, self.resumed = state or (0, None)
        self.iterator: Any = None

    def epoch(self) -> Iterator[Any]:
        """NumPy arrays."""
        dataset = grain.MapDataset.source(self.rows).shuffle(seed=SEED + self.number)
        dataset = dataset.batch(BATCH, drop_remainder=True, batch_fn=np.stack)
        self.iterator = iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=2)))
        if self.resumed:
            self.iterator.set_state(self.resumed)
            self.resumed = None
        yield from self.iterator
        self.number += 1

    def state(self) -> Any:
        """The number of the pass, and the tool's own."""
        return self.number, self.iterator.get_state()
