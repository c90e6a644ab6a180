"""How fast the machine allows any loader to be: what is measured beside them, in the same run.

A row is ``{"name": ..., "tokens": ..., "seconds": ...}``, of CPU time on one core, best of some repeats.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace import _core
from headrace.bench.data import flat_tokens
from headrace.bench.job import BATCH, COLUMN, SEQ_LEN, Place
from headrace.bench.loaders.headrace import packed_tokens

__all__ = ["measure"]

MOST = 64_000_000  # tokens held in memory: 256 MB, far beyond any cache
FRESH = 128 << 20  # bytes
SECONDS = 0.3  # of CPU time for each copy
CHUNKS = 12  # row groups that are decoded, spread over the data


def measure(place: Place) -> list[dict[str, Any]]:
    """Measure each limit."""
    return [*_copies(place), *_decoding(place)]


def _copies(place: Place) -> list[dict[str, Any]]:
    parts: list[np.ndarray[Any, Any]] = []
    for tokens in flat_tokens(place.files):
        parts.append(tokens)
        if sum(map(len, parts)) >= MOST:
            break
    source = np.concatenate(parts)
    size = BATCH * SEQ_LEN
    source = np.resize(source, max(1, len(source) // size) * size)
    target = np.empty_like(source)
    batch = np.empty(size, np.int32)

    def copy() -> None:
        np.copyto(target, source)

    def touch() -> None:
        with mmap.mmap(-1, FRESH) as memory:
            np.frombuffer(memory, np.int32).fill(1)

    def write() -> None:
        for begin in range(0, len(source), size):
            np.copyto(batch, source[begin : begin + size])

    return [
        _row("copy once in memory", copy, len(source)),
        _row("write into a reused batch", write, len(source)),
        _row("write into memory that is new to the process", touch, FRESH // 4),
    ]


def _decoding(place: Place) -> list[dict[str, Any]]:
    core = packed_tokens(place, place.parquet).core
    alone = _core.limits(core, COLUMN, most_chunks=CHUNKS)
    # What two threads that share nothing cost each other: as much as a loader can gain by the second core.
    together: list[dict[str, int]] = []

    def run() -> None:
        together.append(_core.limits(core, COLUMN, most_chunks=CHUNKS))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tokens = alone["tokens"]

    def row(name: str, nanoseconds: float) -> dict[str, Any]:
        return {"name": name, "tokens": tokens, "seconds": nanoseconds * 1e-9}

    return [
        row("find the documents' lengths", alone["levels_ns"]),
        row("decompress the pages", alone["decompress_ns"]),
        row("decode the pages, decompression included", alone["decode_ns"]),
        row("the same, on each of two cores at once", sum(one["decode_ns"] for one in together) / len(together)),
    ]


def _row(name: str, run: Callable[[], None], tokens: int) -> dict[str, Any]:
    run()  # touches all pages
    best, begin = float("inf"), time.process_time()
    while (now := time.process_time()) - begin < SECONDS:
        run()
        best = min(best, time.process_time() - now)
    return {"name": name, "tokens": tokens, "seconds": best}
