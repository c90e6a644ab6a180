"""Hugging Face `datasets` in streaming mode: Parquet as it is, a shuffle buffer, packed by a generator of the user's.

Its state does not hold the shuffle buffer, so that after a resume the buffer is filled anew and its documents are
lost: that is documented, and shows here. No workers: with two, each reads half of the files and every document goes
from process to process, which took longer on two cores.

Of the ways to get there this one is the fastest by far: Arrow tables rather than rows (lists of Python's integers, and
NumPy arrays of a row each, take twice as long), 64 documents at a time (a row at a time takes twice as long), and one
file after the other (the default fills the buffer from ten files at a time, and takes three times as long).
"""

# datasets and pyarrow have no type stubs:
# pyright: basic, reportMissingImports=false

from collections.abc import Iterator
from typing import Any

import datasets.config
import numpy as np
import torch  # noqa: F401 # which datasets would import when a stream is opened

import datasets
from headrace.bench.job import BATCH, COLUMN, SEED, SEQ_LEN, Place

__all__ = ["Loader"]

BUFFER = 10_000  # documents: what the documentation's examples use
AT_ONCE = 64  # documents

# datasets sleeps for 5 s at the end of a pass, against a fault of older versions of pyarrow.
datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0


class Loader:
    """An IterableDataset of Arrow tables."""

    def __init__(self, place: Place, state: Any) -> None:
        dataset = datasets.load_dataset(
            "parquet", data_files=place.files, columns=[COLUMN], split="train", streaming=True
        )
        self.dataset = dataset.shuffle(seed=SEED, buffer_size=BUFFER, max_buffer_input_shards=1).with_format("arrow")
        self.number, self.rest = 0, np.empty(0, np.int32)
        self.resumed: Any = None
        if state:
            self.number, self.rest, self.resumed = state

    def epoch(self) -> Iterator[Any]:
        """Documents as they come, cut into batches; what is left of the last document is carried over."""
        self.dataset.set_epoch(self.number)
        if self.resumed:
            self.dataset.load_state_dict(self.resumed)
            self.resumed = None
        size = BATCH * SEQ_LEN
        parts, held = [self.rest], len(self.rest)
        table: Any  # though typed as a dict of lists
        for table in self.dataset.iter(AT_ONCE):
            documents = [chunk.flatten().to_numpy() for chunk in table[COLUMN].chunks]
            parts += documents
            held += sum(map(len, documents))
            if held >= size:
                joined = np.concatenate(parts)
                for begin in range(0, held - size + 1, size):
                    self.rest = joined[begin + size :]
                    yield joined[begin : begin + size].reshape(BATCH, SEQ_LEN)
                parts, held = [self.rest], len(self.rest)
        self.number, self.rest = self.number + 1, np.empty(0, np.int32)

    def state(self) -> Any:
        """The tool's state, and the tokens that the packer holds."""
        return self.number, self.rest.copy(), self.dataset.state_dict()
