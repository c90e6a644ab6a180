"""Hugging Face `datasets`: an Arrow copy, mapped into memory, and documents packed from slices without a copy.

This is the fastest way that a careful user finds: the permutation is NumPy's, the documents are taken as views of the
Arrow buffers, and only written into the batch. Reading rows through the dataset itself (``dataset[i]``, or the
formats "numpy" and "torch") takes several times longer.
"""

# datasets and pyarrow have no type stubs:
# pyright: basic, reportMissingImports=false

from collections.abc import Iterator
from typing import Any

import numpy as np

import datasets
from headrace.bench.job import BATCH, COLUMN, SEED, SEQ_LEN, Place

__all__ = ["Loader", "convert"]

datasets.disable_progress_bars()


def convert(place: Place) -> None:
    """An Arrow copy of the token column, by way of the cache that `load_dataset` makes; kept once."""
    cache = str(place.copy / "cache")
    datasets.load_dataset("parquet", data_files=place.files, columns=[COLUMN], split="train", cache_dir=cache)


class Loader:
    """No worker: slicing and copying is less than handing rows between processes would be."""

    def __init__(self, place: Place, state: Any) -> None:
        paths = [str(path) for path in sorted((place.copy / "cache").rglob("*.arrow"))]
        dataset = datasets.concatenate_datasets([datasets.Dataset.from_file(path) for path in paths])
        self.values: list[np.ndarray[Any, Any]] = []
        chunks, begins, ends = [], [], []
        for number, chunk in enumerate(dataset.data.column(COLUMN).chunks):
            offsets = chunk.offsets.to_numpy()
            self.values.append(chunk.values.to_numpy())
            chunks.append(np.full(len(chunk), number))
            begins.append(offsets[:-1])
            ends.append(offsets[1:])
        self.chunks, self.begins, self.ends = np.concatenate(chunks), np.concatenate(begins), np.concatenate(ends)
        self.number, self.document, self.used = state or (0, 0, 0)

    def epoch(self) -> Iterator[Any]:
        """Documents of a permutation, one behind the other, cut into batches."""
        order = np.random.default_rng((SEED, self.number)).permutation(len(self.chunks))[self.document :]
        size, filled = BATCH * SEQ_LEN, 0
        batch = np.empty(size, np.int32)
        used = self.used
        places = zip(self.chunks[order].tolist(), self.begins[order].tolist(), self.ends[order].tolist(), strict=True)
        for document, (chunk, begin, end) in enumerate(places, self.document):
            begin += used
            values = self.values[chunk]
            while (room := size - filled) <= end - begin:
                batch[filled:] = values[begin : begin + room]
                begin += room
                used += room
                self.document, self.used, filled = document, used, 0
                yield batch.reshape(BATCH, SEQ_LEN)
                batch = np.empty(size, np.int32)
            rest = end - begin
            batch[filled : filled + rest] = values[begin:end]
            filled += rest
            used = 0
        self.number, self.document, self.used = self.number + 1, 0, 0

    def state(self) -> Any:
        """The pass, the place in its permutation, and the tokens of that document that were given."""
        return self.number, self.document, self.used
