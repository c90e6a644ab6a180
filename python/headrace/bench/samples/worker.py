"""One task of the benchmark of samples, in a process of its own: `python -m headrace.bench.samples.worker FILE`.

FILE holds the task as JSON and gets its result beside it, in ``FILE.result``: loaders print what they like to
standard output. Imports come first and are no part of any time.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from headrace.bench.processes import cpu_seconds, memory_bytes
from headrace.bench.samples import data, loaders
from headrace.bench.samples.cases import CASES
from headrace.bench.samples.job import LoaderModule, Place

__all__ = ["check", "main", "rate"]


def main(file: Path) -> None:
    """Do the task that is described in a file."""
    task: dict[str, Any] = json.loads(file.read_text())
    if task["do"] == "write":
        data.load(task["kind"]).write(Path(task["data"]), task["samples"])
        file.with_suffix(".result").write_text("{}")
        return
    place = Place(case=CASES[task["case"]], samples=task["samples"], data=Path(task["data"]), copy=Path(task["copy"]))
    module = loaders.load(task["loader"])
    # What packages need later would otherwise be imported while clocks run.
    np.random.default_rng(0).permutation(2)
    match task["do"]:
        case "check":
            result: Any = check(module, place, task["epochs"])
        case _:
            result = rate(module, place)
    file.with_suffix(".result").write_text(json.dumps(result))


def rate(module: LoaderModule, place: Place) -> dict[str, Any]:
    """The epochs behind the first one: samples, wall and CPU seconds. Of each batch one number is read."""
    begin = time.perf_counter()
    loader = module.Loader(place)
    first = 0.0
    for batch in loader.epoch():
        int(ids(batch)[0])
        first = first or time.perf_counter() - begin
    samples = 0
    nexts: list[float] = []
    cpu, begin = cpu_seconds(), time.perf_counter()
    for _ in range(place.case.epochs):
        asked, waiting = time.perf_counter(), True
        for batch in loader.epoch():
            numbers = ids(batch)
            int(numbers[0])
            samples += len(numbers)
            if waiting:
                nexts.append(time.perf_counter() - asked)
                waiting = False
    elapsed = time.perf_counter() - begin
    return {
        "seconds": elapsed,
        "cpu_seconds": cpu_seconds() - cpu,
        "samples": samples,
        "first_batch_seconds": first,
        "next_epoch_seconds": statistics.median(nexts),
    }


def check(module: LoaderModule, place: Place, epochs: int) -> dict[str, Any]:
    """Some epochs: what the first one holds, and the memory in the middle of each, with everything at work."""
    before = memory_bytes(os.getpid())
    loader = module.Loader(place)
    middle = place.samples // place.case.batch // 2
    seen: list[np.ndarray[Any, Any]] = []
    amount = 0.0
    memory: list[int] = []
    for number in range(epochs):
        for step, batch in enumerate(loader.epoch()):
            if number == 0:
                seen.append(np.asarray(ids(batch)).copy())
                amount += content(batch)
            if step == middle:
                memory.append(memory_bytes(os.getpid()))
    found = np.concatenate(seen)
    counts = np.bincount(found, minlength=place.samples)
    return {
        "lost": int((counts == 0).sum()),
        "repeated": int((counts - 1)[counts > 1].sum()),
        "shuffled": bool((found[1:] < found[:-1]).any()),
        "content": amount,
        "memory": memory,
        "memory_before": before,
    }


def ids(batch: Any) -> Any:
    """The numbers of the samples in a batch."""
    return cast(Mapping[str, Any], batch)["id"] if isinstance(batch, Mapping) else batch


def content(part: Any) -> float:
    """A number that two loaders agree in if they gave the same samples, in any order."""
    if isinstance(part, Mapping):
        return sum(content(value) for value in cast(Mapping[str, Any], part).values())
    if isinstance(part, list | tuple):  # of text
        return float(sum(len(value) for value in cast(Sequence[str], part)))
    return float(np.asarray(part).sum(dtype=np.float64))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
