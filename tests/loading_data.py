"""Datasets for the tests of loaders over objects.

Worker processes import them from here, which takes seconds with PyTorch: it is not needed for these.
"""

import atexit
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


class Numbers:
    """``dataset[i] == i``."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return index


class Asked(Numbers):
    """Tells how many samples this process was asked for before."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.before = -1

    def __getitem__(self, index: int) -> int:
        self.before += 1
        return self.before

    def __call__(self, task: int) -> int:
        return self[task]


class SlowToSend(int):
    """A key that takes its time to reach a process."""

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        time.sleep(0.2)
        return int, (int(self),)


class Lists(Numbers):
    """Takes whole lists of keys."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        assert isinstance(indices, list)
        return list(indices)


class Rows(Numbers):
    """Samples of several parts, some of them large."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return {
            "index": index,
            "image": np.full((20, 20, 3), index % 256, np.uint8),
            "text": f"sample {index}",
            "pair": (float(index), np.arange(3) + index),
        }


class Faulty(Numbers):
    """Some samples cannot be read."""

    def __init__(self, size: int, faults: dict[int, str]) -> None:
        super().__init__(size)
        self.faults = faults

    def __getitem__(self, index: int) -> int:
        fault = self.faults.get(index)
        if fault == "key":
            raise KeyError(index)
        if fault == "stop":
            raise StopIteration
        if fault == "own":
            raise Unpicklable(index, lambda: None)
        if fault == "exit":
            os._exit(7)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "sleep":
            time.sleep(60)
        return index


class Unpicklable(Exception):
    """Holds what cannot be pickled."""

    def __init__(self, index: int, function: Any) -> None:
        super().__init__(index, function)


class ResumableSampler:
    """Knows where it is, and gives an order of its own in each epoch."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pass_number = 0
        self.at = 0
        self.drawn = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng(self.pass_number).permutation(self.size).tolist()
        while self.at < self.size:
            self.at += 1
            self.drawn += 1
            yield order[self.at - 1]
        self.at = 0
        self.pass_number += 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "pass": self.pass_number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.pass_number = state["at"], state["pass"]


def process_of(_: list[int]) -> int:
    """Collates to the process that did it."""
    return os.getpid()


def note_process(path: str, number: int) -> None:
    """Writes down who began."""
    with Path(path, str(number)).open("a") as file:
        file.write(f"{os.getpid()}\n")


def note_end(path: str, number: int) -> None:
    """Writes down that a process ended as programs do, with handlers that take their time."""
    atexit.register(Path(path, str(number)).touch)
    atexit.register(time.sleep, 2)
