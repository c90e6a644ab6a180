"""The data of the benchmark of fetching: Parquet files of tokens that do not compress, put into a bucket once."""

# pyarrow and obstore have no complete types:
# pyright: basic

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import from_url

from headrace.bench.fetch.shape import Shape

__all__ = ["COLUMN", "Part", "parts", "write"]

COLUMN = "tokens"
DOCUMENT = 1000  # tokens
SEED = 0
TAIL = 1 << 20  # bytes that hold a footer


@dataclass(frozen=True)
class Part:
    """A byte range of an object."""

    key: str
    start: int
    stop: int


def write(url: str, shape: Shape) -> None:
    """Put the files there, unless all of them are."""
    store = from_url(url)
    there = {entry["path"] for page in obstore.list(store) for entry in page}
    if there == set(shape.files):
        return
    rows = shape.chunk // (DOCUMENT * 4)
    for number, name in enumerate(shape.files):
        generator = np.random.default_rng([SEED, number])
        tokens = generator.integers(0, 2**31 - 1, shape.groups * rows * DOCUMENT, dtype=np.int32)
        offsets = pa.array(np.arange(0, len(tokens) + 1, DOCUMENT, dtype=np.int32))
        table = pa.table({COLUMN: pa.ListArray.from_arrays(offsets, pa.array(tokens))})
        file = io.BytesIO()
        pq.write_table(table, file, row_group_size=rows, compression="none", use_dictionary=False)
        obstore.put(store, name, file.getvalue())


def parts(url: str, longest: int) -> list[Part]:
    """The column chunks of all files, in parts of `longest` bytes at most."""
    store = from_url(url)
    found: list[Part] = []
    for page in obstore.list(store):
        for entry in page:
            # The end of a file is enough for its footer.
            tail = obstore.get_range(store, entry["path"], start=max(0, entry["size"] - TAIL), end=entry["size"])
            metadata = pq.read_metadata(io.BytesIO(tail))
            for group in range(metadata.num_row_groups):
                column = metadata.row_group(group).column(0)
                start, stop = column.data_page_offset, column.data_page_offset + column.total_compressed_size
                cuts = range(start, stop, longest)
                found += [Part(entry["path"], at, min(at + longest, stop)) for at in cuts]
    return found
