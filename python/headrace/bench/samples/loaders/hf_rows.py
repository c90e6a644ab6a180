"""Hugging Face `datasets`, streaming Parquet with a shuffle buffer; no workers, as it has none of its own.

Arrow tables rather than Python's values or NumPy's, and one file after the other: the default fills the buffer from ten
files at a time, and takes five times as long.
"""

# datasets and pyarrow have no type stubs:
# pyright: basic, reportMissingImports=false

from collections.abc import Iterator
from typing import Any

import datasets.config

import datasets
from headrace.bench.samples.job import SEED, Place

__all__ = ["Loader", "stream"]

BUFFER = 10_000  # rows: what the documentation's examples use

# datasets sleeps for 5 s at the end of a pass, against a fault of older versions of pyarrow.
datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0


def stream(place: Place) -> Any:
    """The rows, shuffled, as dicts of NumPy's and Python's values."""
    files = sorted(str(path) for path in place.data.glob("*.parquet"))
    dataset = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    return dataset.shuffle(seed=SEED, buffer_size=BUFFER, max_buffer_input_shards=1)


class Loader:
    """An IterableDataset of Arrow tables, a batch each, whose columns become arrays and lists."""

    def __init__(self, place: Place) -> None:
        self.dataset = stream(place).with_format("arrow")
        self.batch = place.case.batch
        self.number = 0

    def epoch(self) -> Iterator[Any]:
        """Dicts of arrays and lists."""
        self.dataset.set_epoch(self.number)
        self.number += 1
        for table in self.dataset.iter(self.batch):
            rows = table.num_rows
            yield {
                "id": table["id"].to_numpy(),
                "score": table["score"].to_numpy(),
                "url": table["url"].to_pylist(),
                "text": table["text"].to_pylist(),
                "vector": table["vector"].combine_chunks().flatten().to_numpy().reshape(rows, -1),
            }
