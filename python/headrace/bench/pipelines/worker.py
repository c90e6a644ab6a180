"""One task of the benchmark of pipelines, in a process of its own: `python -m headrace.bench.pipelines.worker FILE`.

FILE holds the task as JSON and gets its result beside it, in ``FILE.result``. Imports come first and are no part of
any time.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, cast

import numpy as np

import headrace
from headrace.bench.pipelines import states
from headrace.bench.preparing.data import text
from headrace.bench.preparing.job import Place
from headrace.bench.processes import cpu_seconds

__all__ = ["load", "main"]

SEQ_LEN = 2048
ROWS = 32
"""In a batch, one a lane."""
PADDED_STEPS = 128

Mode = Literal["concat", "best_fit", "pad", "truncate"]


def main(file: Path) -> None:
    """Do the task that is described in a file."""
    task: dict[str, Any] = json.loads(file.read_text())
    folder, workers = Path(task["data"]), int(task["workers"])
    # As many threads of tokenizers for whoever calls it.
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    match task["do"]:
        case "write":
            text.write(folder, task["size"])
            states.write(folder)
            result: dict[str, Any] = {}
        case "tokenizers":
            result = encode(folder, workers)
        case "state":
            result = states.measure(folder, task["case"], workers, task["steps"])
        case "padding":
            result = pad(folder, task["mode"])
        case _:
            result = load(folder, task["mode"], workers, task["tokens"])
    file.with_suffix(".result").write_text(json.dumps(result))


def encode(folder: Path, workers: int) -> dict[str, Any]:
    """The tokenizers package alone, on texts in memory, with its own threads."""
    from headrace.bench.preparing.makers import tokenizers_batch

    maker = tokenizers_batch.Maker(Place(data=folder, output=folder, workers=workers))
    cpu, begin = cpu_seconds(), time.perf_counter()
    tokens = maker.run()
    return {"seconds": time.perf_counter() - begin, "cpu_seconds": cpu_seconds() - cpu, "tokens": tokens}


def load(folder: Path, mode: str, workers: int, tokens: int) -> dict[str, Any]:
    """Text from its file to batches of rows, until so many tokens are there.

    Half as many come before the clock, so that what is held ready, once for all, is no part of it.
    """
    loader = headrace.DataLoader(rows(folder, mode), global_batch_size=ROWS, num_workers=workers)
    batches = iter(loader)
    before = _until(loader, batches, tokens // 2)
    cpu, begin = cpu_seconds(), time.perf_counter()
    after = _until(loader, batches, before["tokens"] + tokens)
    seconds, used = time.perf_counter() - begin, cpu_seconds() - cpu
    return {
        "seconds": seconds,
        "cpu_seconds": used,
        "tokens": after["tokens"] - before["tokens"],
    }


def pad(folder: Path, mode: str) -> dict[str, Any]:
    """How much of rows is padding, with documents as long as those of the web."""
    data = headrace.open(folder / text.LINES).map(_web).pack(SEQ_LEN, mode=cast("Mode", mode))
    loader = headrace.DataLoader(data, global_batch_size=ROWS)
    for _ in islice(iter(loader), PADDED_STEPS):
        pass
    stats = loader.stats()
    return {"padding": stats["padding"] / (stats["padding"] + stats["tokens"])}


def _until(loader: headrace.DataLoader, batches: Iterator[Any], tokens: int) -> dict[str, Any]:
    """The statistics of a loader that has given so many tokens."""
    while True:
        next(batches)
        stats = loader.stats()
        if stats["tokens"] >= tokens:
            return stats


def rows(folder: Path, mode: str) -> Any:
    """The pipeline."""
    data = headrace.open(folder / text.LINES).tokenize(folder / text.TOKENIZER, eos=True)
    return data.pack(SEQ_LEN, mode=cast("Mode", mode))


def _web(document: dict[str, str]) -> dict[str, Any]:
    """As many tokens as a log-normal distribution with a median of 400 has it."""
    share = (zlib.crc32(document["id"].encode()) + 0.5) / 2**32
    return {"tokens": np.zeros(max(1, round(400 * math.exp(NormalDist().inv_cdf(share)))), dtype=np.int32)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
