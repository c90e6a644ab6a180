"""How fast tokens come, end to end: headrace beside pyarrow reading the same column and a plain copy of the bytes.

    python -m headrace.bench tokens [FOLDER] [--column tokens] [--rounds 7] [--tokens 32]

Without FOLDER it makes Parquet files of its own: Zipf-like token ids, documents of very different lengths, zstd.

The contestants run one after the other in each round, so that a slow moment of the machine meets them all; what
counts is the median over the rounds. They do not do the same work: pyarrow reads the column in storage order, on
all cores, and stops there; headrace also shuffles and cuts the tokens into rows; the copy moves bytes that are
already in memory, which is as fast as it gets. So the ratios say what order and packing cost, and how far the
floor is.
"""

# pyarrow has no type stubs, and nothing here is public:
# pyright: basic

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr

__all__ = ["main"]

SEQ_LEN = 2048  # tokens
BATCH = 32  # rows
MEDIAN_DOCUMENT = 400  # tokens, about that of web text


def main(argv: Sequence[str] | None = None) -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(prog="python -m headrace.bench tokens")
    parser.add_argument("folder", type=Path, nargs="?", help="Parquet files with a token column (default: made anew)")
    parser.add_argument("--column", default="tokens")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=32, metavar="MILLION", help="size of the data that is made")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        folder: Path = arguments.folder or Path(scratch)
        if arguments.folder is None:
            make_data(folder, arguments.tokens * 1_000_000)
        compare(folder, arguments.column, arguments.rounds)


def compare(folder: Path, column: str, rounds: int) -> None:
    """Time each contestant once a round and print the medians."""
    files = sorted(folder.rglob("*.parquet"))
    if not files:
        sys.exit(f"bench: wanted Parquet files, found none below {folder}")
    memory = np.concatenate([read_column(file, column) for file in files])
    target = np.empty_like(memory)

    def copy() -> int:
        np.copyto(target, memory)
        return target.size

    contestants: dict[str, Callable[[], int]] = {
        "headrace": lambda: load(folder, column),
        "pyarrow": lambda: sum(read_column(file, column).size for file in files),
        "copy": copy,
    }
    wall: dict[str, list[float]] = {name: [] for name in contestants}
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            begin, cpu_begin = time.perf_counter(), time.process_time()
            tokens = run()
            elapsed, busy = time.perf_counter() - begin, time.process_time() - cpu_begin
            if number > 0:  # the first round warms caches and allocators
                wall[name].append(elapsed / tokens)
                cpu[name].append(busy / tokens)

    print(f"{memory.size:,} tokens in {len(files)} files, {sum(file.stat().st_size for file in files) / 1e6:,.1f} MB")
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, medians of {rounds} rounds\n"
    )
    print(f"{'':<10}{'Mtokens/s':>12}{'spread':>9}{'CPU ns/token':>15}{'time, headrace = 1':>21}")
    base = statistics.median(wall["headrace"])
    for name, times in wall.items():
        median = statistics.median(times)
        spread = (max(times) - min(times)) / median
        nanoseconds = statistics.median(cpu[name]) * 1e9
        print(f"{name:<10}{1e-6 / median:>12,.1f}{spread:>9.0%}{nanoseconds:>15.2f}{median / base:>21.2f}")


def load(folder: Path, column: str) -> int:
    """One epoch from opening to the last batch; the number of tokens that came."""
    packed = hr.open(str(folder)).pack(SEQ_LEN, column=column)
    return sum(batch["tokens"].size for batch in hr.DataLoader(packed, global_batch_size=BATCH, seed=0, epochs=1))


def read_column(file: Path, column: str) -> np.ndarray[Any, Any]:
    """A file's tokens, end to end in storage order, as pyarrow reads them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chunked: Any = pq.read_table(file, columns=[column])[column]
    arrays = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in chunked.chunks]
    return np.concatenate(arrays) if arrays else np.empty(0, pa.int32().to_pandas_dtype())


def make_data(folder: Path, tokens: int) -> None:
    """Eight files of 16 row groups each, the same on every machine."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    for number in range(8):
        with pq.ParquetWriter(folder / f"part-{number}.parquet", schema, compression="zstd") as writer:
            for _ in range(16):
                values = np.minimum(random.zipf(1.2, tokens // 128), 50_000).astype(np.int32)
                lengths = random.lognormal(np.log(MEDIAN_DOCUMENT), 1.0, len(values) // MEDIAN_DOCUMENT + 1)
                ends = np.cumsum(lengths.astype(np.int64))
                offsets = np.unique(np.concatenate([[0], ends[ends < len(values)], [len(values)]])).astype(np.int32)
                lists: Any = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
                writer.write_table(pa.table({"tokens": lists}, schema=schema))


if __name__ == "__main__":
    main()
