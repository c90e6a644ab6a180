"""What a state costs: 4,096 lanes, of one source and of a mixture of twenty."""

# pyarrow has no type stubs:
# pyright: basic

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace

__all__ = ["CASES", "LANES", "SOURCES", "measure", "write"]

LANES = 4096
SOURCES = 20
STEPS = 24
"""Of a mixture before its state is made: by then most lanes have had a row of each source."""
DOCUMENTS = 16_384
"""Of a source: four a lane."""
GROUPS = 16
LONGEST = 40
SEQ_LEN = 64

CASES = ("counted", "counted mixture", "concat", "concat mixture", "best_fit")
"""Kinds of rows, of one source or of all: of Parquet files that are packed as they are, or lane by lane."""


def write(folder: Path) -> None:
    """Make the sources: Parquet files with documents of 1 to 40 tokens."""
    lengths = np.arange(DOCUMENTS) % LONGEST + 1
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    for number in range(SOURCES):
        tokens: Any = pa.ListArray.from_arrays(
            pa.array(offsets), pa.array(np.full(offsets[-1], number, dtype=np.int32))
        )
        place = _place(folder, number)
        place.mkdir()
        pq.write_table(pa.table({"tokens": tokens}), place / "a.parquet", row_group_size=DOCUMENTS // GROUPS)


def measure(folder: Path, case: str, workers: int, steps: int) -> dict[str, Any]:
    """What is done with the state after some steps of a mixture, or after one: how many ms it takes, and its bytes."""
    kind, _, mixed = case.partition(" ")
    sources = {str(number): (_source(folder, number, kind), 1) for number in range(SOURCES)}
    data = headrace.mix(sources) if mixed else sources["0"][0]
    loader = headrace.DataLoader(data, global_batch_size=LANES, lanes=LANES, num_workers=workers)
    *_, batch = islice(loader, steps if mixed else 1)
    times = [time.perf_counter()]
    state = batch.state
    times.append(time.perf_counter())
    saved = headrace.State.to_bytes(state)
    times.append(time.perf_counter())
    read = headrace.State.from_bytes(saved)
    times.append(time.perf_counter())
    other = headrace.DataLoader(data, global_batch_size=LANES, num_workers=workers)
    times.append(time.perf_counter())
    other.load_state_dict(read)
    times.append(time.perf_counter())
    made, written, parsed, _, loaded = (np.diff(times) * 1e3).tolist()
    return {
        "state_ms": made,
        "to_bytes_ms": written,
        "from_bytes_ms": parsed,
        "load_ms": loaded,
        "bytes": len(saved),
    }


def _place(folder: Path, number: int) -> Path:
    return folder / f"source-{number}"


def _source(folder: Path, number: int, kind: str) -> Any:
    data = headrace.open(_place(folder, number))
    if kind == "counted":
        return data.pack(SEQ_LEN)
    return data.select(["tokens"]).pack(SEQ_LEN, mode="concat" if kind == "concat" else "best_fit")
