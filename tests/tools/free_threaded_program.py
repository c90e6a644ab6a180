"""What `test_free_threaded.py` runs in a CPython without a GIL: prints one line of JSON.

    python free_threaded_program.py FOLDER     # with `lines` (JSON Lines) and `tokens` (Parquet) in it

Needs headrace and NumPy.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from headrace.samples.order import PermutedOrder

THREADS = 4
WAIT_SECONDS = 60


def digest(batches: Iterator[Any], name: str) -> str:
    """Of all batches' arrays of a name, in their order."""
    whole = hashlib.sha256()
    for batch in batches:
        whole.update(batch[name].tobytes())
    return whole.hexdigest()


def at_once(call: Callable[[], Any]) -> list[Any]:
    """What each of several threads gets that begin at the same moment."""
    start = threading.Barrier(THREADS)

    def begin(_: int) -> Any:
        start.wait()
        return call()

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


def samples(folder: Path) -> list[str]:
    """Three epochs of one dataset by a loader in each thread, of which the caches hold a part."""
    dataset = hr.open(folder / "lines", cache_dir=folder / "cache")

    def read() -> str:
        loader = hr.DataLoader(dataset, batch_size=16, seed=7, num_workers=2, items_in_parallel=2, memory="1MiB")
        return "".join(digest(iter(loader), "id") for _ in range(3))

    return at_once(read)


def single_samples(folder: Path) -> list[int]:
    """The sum of a dataset's samples, asked for one by one in each thread; and the hits and loads that it counted."""
    dataset = hr.open(folder / "lines", cache_dir=folder / "cache")
    sums = at_once(lambda: sum(dataset[number]["id"] for number in range(len(dataset))))
    info = dataset.info()
    return [*sums, info["chunk_hits"] + info["chunks_loaded"]]


def tokens(folder: Path) -> list[str]:
    """An epoch of packed tokens by a loader in each thread."""
    dataset = hr.open(folder / "tokens", cache_dir=folder / "cache").pack(seq_len=64)

    def read() -> str:
        return digest(iter(hr.DataLoader(dataset, batch_size=8, seed=7, num_workers=2, epochs=1)), "tokens")

    return at_once(read)


class Faulty:
    """``dataset[i] == i``, but for every tenth."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        if index % 10 == 3:
            raise KeyError(index)
        return index


def faults() -> list[list[int]]:
    """The keys that loaders in several threads got, and those of errors, negative, in their order."""
    dataset = Faulty()

    def read() -> list[int]:
        got: list[int] = []
        batches = iter(hr.DataLoader(dataset, 1, num_workers=3, prefetch_factor=4))
        while True:
            try:
                got += next(batches).tolist()
            except StopIteration:
                return got
            except KeyError as error:
                got.append(-error.args[0])

    return at_once(read)


class Numbers:
    """``dataset[i] == i``."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> int:
        return index


def shared_iterator() -> dict[str, Any]:
    """What several threads get of one iterator, each refused while another is in it; and where the loader stands."""
    loader = hr.DataLoader(Numbers(), 4, num_workers=2)
    batches = iter(loader)

    def read() -> list[int]:
        got: list[int] = []
        while True:
            try:
                got += next(batches).tolist()
            except StopIteration:
                return got
            except RuntimeError as error:
                if "another thread" not in str(error):
                    raise

    got = sorted(number for part in at_once(read) for number in part)
    return {"complete": got == list(range(4000)), "step": loader.step, "position": loader.position}


def orders() -> list[bool]:
    """Whether each of several threads that ask one order for other epochs than the others gets its own."""
    order = PermutedOrder(64, seed=7)
    epochs = iter(range(THREADS))

    def read() -> bool:
        begin = next(epochs) * order.size
        expected = PermutedOrder(order.size, seed=7).positions(begin, begin + order.size)
        return all(np.array_equal(order.positions(begin, begin + order.size), expected) for _ in range(5000))

    return at_once(read)


def dropped() -> list[str]:
    """Iterators that are dropped in other threads than theirs, in the middle: the threads that are left after it."""

    def drop() -> None:
        for number in range(50):
            batches = iter(hr.DataLoader(Numbers(), 4, num_workers=2, items_in_parallel=1 + number % 2))
            next(batches)
            given: list[Any] = [batches]
            del batches
            other = threading.Thread(target=given.clear)
            other.start()
            other.join()

    at_once(drop)
    end = time.monotonic() + WAIT_SECONDS
    while (left := [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace")]) and (
        time.monotonic() < end
    ):
        gc.collect()
        time.sleep(0.02)
    return left


class Meeting:
    """Two items, each of which is made only while the other one is, in Python code that never waits."""

    def __init__(self) -> None:
        self.here = [False, False]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        self.here[index] = True
        end = time.monotonic() + WAIT_SECONDS
        while not self.here[1 - index]:
            if time.monotonic() > end:
                raise TimeoutError("the other item was not made meanwhile")
        return index


def meeting() -> list[int]:
    """Items that only threads which run at the same time can make: with a GIL the first one would keep it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(10 * WAIT_SECONDS)
    try:
        return [int(batch[0]) for batch in hr.DataLoader(Meeting(), 1, num_workers=2)]
    finally:
        sys.setswitchinterval(before)


class Loops:
    """Items of pure Python, some milliseconds each."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        total = 0
        for number in range(100_000):
            total += number & index
        return total


def seconds(workers: int) -> float:
    """How long pure Python takes a number of workers; the best of three."""
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        for _batch in hr.DataLoader(Loops(), 4, num_workers=workers):
            pass
        best = min(best, time.perf_counter() - begin)
    return best


def main(folder: Path) -> None:
    """Prints everything."""
    found = {
        "python": sys.version,
        "samples": samples(folder),
        "single_samples": single_samples(folder),
        "tokens": tokens(folder),
        "faults": faults(),
        "shared_iterator": shared_iterator(),
        "orders": orders(),
        "dropped": dropped(),
        "meeting": meeting(),
        "seconds": {workers: round(seconds(workers), 3) for workers in (1, 2)},
        # Last: a module that needs the GIL switches it on for good.
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
