"""One task of the benchmark, in a process of its own: `python -m headrace.bench.worker FILE`.

FILE holds the task as JSON and gets its result beside it, in ``FILE.result``: loaders print what they like to
standard output. Imports come first and are no part of any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace.bench import loaders
from headrace.bench.job import BATCH, SEQ_LEN, Module, Place
from headrace.bench.processes import cpu_seconds, memory_bytes

__all__ = ["main"]

AFTER_RESUME = 50  # batches that are compared


def main(file: Path) -> None:
    """Do the task that is described in a file."""
    task: dict[str, Any] = json.loads(file.read_text())
    place = Place(
        parquet=Path(task["parquet"]),
        copy=Path(task["copy"]),
        vocabulary=task["vocabulary"],
        epochs=1 if task["do"] in ("account", "resume") else task["passes"],
    )
    if task["do"] == "limits":
        from headrace.bench import limits  # and with it pyarrow, which most loaders do without here

        result: Any = limits.measure(place)
    else:
        module = loaders.load(task["loader"])
        # What packages need later would otherwise be imported while clocks run.
        np.random.default_rng(0).permutation(2)
        match task["do"]:
            case "convert":
                result = convert(module, place)
            case "account":
                result = account(module, place, Path(task["state"]))
            case "resume":
                result = resume(module, place, Path(task["state"]))
            case "memory":
                result = {"bytes_before": memory_bytes(os.getpid())} | rate(module, place, task["passes"])
            case _:
                result = rate(module, place, task["passes"])
    file.with_suffix(".result").write_text(json.dumps(result))


def convert(module: Module, place: Place) -> dict[str, Any]:
    """Convert the data; how long it took, in seconds. A loader that converts nothing takes None."""
    from headrace.bench.data import flat_tokens

    if not hasattr(module, "convert"):
        return {"seconds": None, "cpu_seconds": None}
    next(flat_tokens(place.files))  # pyarrow imports pandas with the first array
    begin, cpu = time.perf_counter(), cpu_seconds()
    module.convert(place)
    return {"seconds": time.perf_counter() - begin, "cpu_seconds": cpu_seconds() - cpu}


def rate(module: Module, place: Place, passes: int) -> dict[str, Any]:
    """Some passes over the data: tokens, wall and CPU seconds from opening to the last batch.

    One pass is what training does: it meets each page of a mapped file once, and its own memory too.
    """
    cpu, begin = cpu_seconds(), time.perf_counter()
    loader = module.Loader(place, None)
    tokens, first = 0, 0.0
    for number in range(passes):
        before = tokens
        for batch in loader.epoch():
            tokens += _touch(batch)
            first = first or time.perf_counter() - begin
        if tokens == before:
            raise ValueError(f"wanted at least one batch in pass {number}, got none")
    elapsed = time.perf_counter() - begin
    return {
        "seconds": elapsed,
        "cpu_seconds": cpu_seconds() - cpu,
        "first_batch_seconds": first,
        "tokens": tokens,
        "passes": passes,
    }


def account(module: Module, place: Place, state: Path) -> dict[str, Any]:
    """One epoch: its tokens counted and its batches hashed; the loader's state in the middle goes into a file."""
    counts = np.load(place.parquet.parent / "counts.npy")
    middle = max(1, int(counts.sum()) // (BATCH * SEQ_LEN) // 2)
    loader = module.Loader(place, None)
    hashes: list[str] = []
    saved = b""
    for batch in loader.epoch():
        array = _check(batch)
        hashes.append(_hash(array))
        counts -= np.bincount(array.ravel(), minlength=len(counts))
        if len(hashes) == middle:
            saved = pickle.dumps(loader.state())
    if not saved:
        raise ValueError(f"wanted more than {middle} batches in an epoch, got {len(hashes)}")
    state.write_bytes(pickle.dumps((saved, hashes[middle : middle + AFTER_RESUME])))
    return {
        "batches": len(hashes),
        "lost": int(counts[counts > 0].sum()),
        "repeated": int(-counts[counts < 0].sum()),
    }


def resume(module: Module, place: Place, state: Path) -> dict[str, Any]:
    """Go on from a state: seconds to the first batch, and whether batches are those of the unbroken run."""
    saved, wanted = pickle.loads(state.read_bytes())
    begin = time.perf_counter()
    loader = module.Loader(place, pickle.loads(saved))
    batches = loader.epoch()
    first = next(batches, None)
    if first is None:  # the state held that the epoch had ended: so much for exact
        batches = loader.epoch()
        first = next(batches)
    _touch(first)
    elapsed = time.perf_counter() - begin
    hashes = [_hash(_check(first))]
    while len(hashes) < len(wanted) and (batch := next(batches, None)) is not None:
        hashes.append(_hash(_check(batch)))
    return {"seconds": elapsed, "exact": hashes == wanted, "compared": len(wanted)}


def _touch(batch: Any) -> int:
    """Read a token, as a training loop does at the least; the number of tokens."""
    int(batch[0, 0])
    return batch.shape[0] * batch.shape[1]


def _check(batch: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(batch)
    if array.shape != (BATCH, SEQ_LEN) or array.dtype.name not in ("int32", "int64"):
        raise ValueError(f"wanted int32 or int64 of shape ({BATCH}, {SEQ_LEN}), got {array.dtype} of {array.shape}")
    return array


def _hash(array: np.ndarray[Any, Any]) -> str:
    return hashlib.blake2b(array.astype(np.int32).tobytes(), digest_size=16).hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
