"""Rows of a table in Parquet files: two numbers, two texts and a vector."""

# pyarrow has no type stubs:
# pyright: basic

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["VECTOR", "write"]

VECTOR = 16  # float32
GROUP = 5_000  # rows in a row group
FILES = 8  # so that worker processes have files of their own


def write(folder: Path, samples: int) -> None:
    """The files, compressed with zstd."""
    for number, numbers in enumerate(np.array_split(np.arange(samples), FILES)):
        pq.write_table(_table(numbers), folder / f"part-{number:03}.parquet", compression="zstd", row_group_size=GROUP)


def _table(numbers: np.ndarray[Any, Any]) -> pa.Table:
    raw = np.random.PCG64([VECTOR, int(numbers[0])]).random_raw(len(numbers) * VECTOR)
    floats = (raw >> np.uint64(40)).astype(np.float32) / 2**24
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(floats), VECTOR)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "score": pa.array(floats[::VECTOR], pa.float32()),
            "url": [f"https://example.org/{number % 977}/{number}.html" for number in numbers.tolist()],
            "text": [" ".join(_WORDS[int(word)] for word in row) for row in (raw % 8).reshape(-1, VECTOR)],
            "vector": vectors.cast(pa.list_(pa.float32())),
        }
    )


_WORDS = ("water", "wheel", "mill", "race", "head", "stone", "grain", "flour")
