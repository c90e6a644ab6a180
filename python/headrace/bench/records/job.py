"""What the parts of the benchmark of token files agree upon: its cases, and who reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["BATCH", "CASES", "RESUME", "SEED", "SEQ_LEN", "STEP", "THREADS", "Case", "Reader"]

SEQ_LEN = 2048  # tokens in a sequence
BATCH = 32  # sequences
SEED = 0  # of every order
THREADS = 8  # that read at once from a disk
STEP = 1_000_000  # that a run goes on at
RESUME = 0.05  # seconds that it may take

Reader = Callable[[Path], Callable[[], Iterator[Any]]]
"""Opens the file, and gives what goes through it once: batches whose first number is read."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing that is measured, and what is hoped for.

    Args:
        name: of the case.
        about: what it is, in a line.
        readers: by the names that are shown, those in `headrace.bench.records.readers`.
        aims: how many times as fast as another one headrace is to be.
        cold: whether the file is dropped from the page cache before each pass.
    """

    name: str
    about: str
    readers: Mapping[str, str]
    aims: Mapping[str, float]
    cold: bool = False


_ALL: Sequence[Case] = (
    Case(
        name="int64",
        about="inputs and targets in int64",
        readers={"headrace": "headrace_int64", "memmap": "memmap", "grain": "grain"},
        aims={"memmap": 1.5, "grain": 4},
    ),
    Case(
        name="stored",
        about="as the file has them",
        readers={"headrace": "headrace_stored", "memcpy": "memcpy"},
        aims={"memcpy": 1 / 1.3},
    ),
    Case(
        name="cold",
        about="as the file has them, nothing of it in the page cache",
        readers={"headrace": "headrace_threads", "pread": "pread"},
        aims={"pread": 0.8},
        cold=True,
    ),
)

CASES = {case.name: case for case in _ALL}
