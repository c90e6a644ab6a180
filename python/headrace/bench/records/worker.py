"""One task of the benchmark of token files, in a process of its own: `python -m headrace.bench.records.worker FILE`.

FILE holds the task as JSON and gets its result beside it, in ``FILE.result``. Imports come first and are no part of
any time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace.bench.processes import cpu_seconds
from headrace.bench.records.job import BATCH, SEQ_LEN, STEP, Reader
from headrace.bench.records.readers import READERS, loader

__all__ = ["main", "rate", "resume", "write"]

_PART = 1 << 24  # tokens that are written at once


def main(file: Path) -> None:
    """Do the task that is described in a file."""
    task: dict[str, Any] = json.loads(file.read_text())
    path = Path(task["file"])
    result: dict[str, Any] = {}
    match task["do"]:
        case "write":
            write(path, task["tokens"])
        case "resume":
            result = resume(path)
        case _:
            result = rate(READERS[task["reader"]], path, cold=task["cold"])
    file.with_suffix(".result").write_text(json.dumps(result))


def write(path: Path, tokens: int) -> None:
    """A file of random tokens of 16 bits: its name says that it is whole."""
    random = np.random.default_rng(0)
    aside = path.with_suffix(".tmp")
    with aside.open("wb") as file:
        for begin in range(0, tokens, _PART):
            random.integers(0, 50_304, min(_PART, tokens - begin), np.uint16).tofile(file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def rate(reader: Reader, path: Path, *, cold: bool) -> dict[str, Any]:
    """A pass behind the first one: tokens, wall and CPU seconds. Of each batch one number is read."""
    go = reader(path)
    for _ in go():
        if cold:  # whatever is done once is done
            break
    if cold:
        _drop(path)
    tokens = 0
    cpu, begin = cpu_seconds(), time.perf_counter()
    for batch in go():
        int(batch[0][0, 0])
        tokens += batch[0].size
    elapsed = time.perf_counter() - begin
    wanted = path.stat().st_size // 2 // SEQ_LEN // BATCH * BATCH * SEQ_LEN
    # One sequence less where a token behind each is asked for, and a loader may give the rest of a batch.
    if abs(tokens - wanted) > BATCH * SEQ_LEN:
        raise ValueError(f"wanted about {wanted} tokens in a pass, got {tokens}")
    return {"seconds": elapsed, "cpu_seconds": cpu_seconds() - cpu, "tokens": tokens}


def resume(path: Path) -> dict[str, Any]:
    """headrace: seconds for opening the file and a loader, and from a state at a late step to its first batch."""
    before = loader(path)
    before.seek(STEP)
    wanted, state = next(iter(before))["tokens"], before.state_dict()
    before.close()
    begin = time.perf_counter()
    again = loader(path)
    opened = time.perf_counter()
    again.seek(STEP)
    found = next(iter(again))["tokens"]
    done = time.perf_counter()
    if state["step"] != STEP + 1 or not np.array_equal(wanted, found):
        raise ValueError(f"wanted the batch of step {STEP}, got another one")
    return {"opening": opened - begin, "first_batch": done - opened}


def _drop(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
