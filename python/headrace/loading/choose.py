"""Whether threads or processes suit a dataset: measured on some of its samples, and said why."""

import resource
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from headrace._ranks import default_workers

__all__ = ["Choice", "choose"]

_PROBE_SECONDS: Final = 0.05
"""About how long samples are read for one measurement."""

_WORTH_SECONDS: Final = 1e-3
"""A batch that takes less is made sooner than it is handed to another process and back."""

_WAITING: Final = 0.5
"""A thread that computes for less than this share of the time mostly waits, and waiting is done in parallel."""

_IN_TURN: Final = 1.6
"""Two threads at once that take this many times as long as one work in turn: at 2 wholly, at 1 not at all."""


class Choice(NamedTuple):
    """What was chosen."""

    worker_type: str
    reason: str


def choose(fetch: Callable[[list[Any]], Any], keys: list[Any], workers: int) -> Choice:
    """Reads some samples in one thread, then in two at once.

    Args:
        fetch: makes a batch of a list of keys.
        keys: of the first batch; at most twice its samples are read, and thrown away.
        workers: how many there will be.
    """
    if workers == 0 or default_workers() == 1:
        return Choice("thread", "there is one worker's worth of CPU")
    try:
        some = _some(fetch, keys)
        if not some:
            return Choice("thread", "there is no sample to measure")
        wall, cpu, waited = _alone(fetch, some)
        batch = wall * len(keys) / len(some)
        if batch < _WORTH_SECONDS:
            return Choice("thread", f"a batch takes {batch * 1e3:.2g} ms, too little to hand to a process")
        if waited and cpu < _WAITING * wall:
            return Choice("thread", f"reading waits: it computes for {cpu / wall:.0%} of the time")
        ratio = min(_two(fetch, some) / min(wall, _alone(fetch, some)[0]) for _ in range(2))
    except Exception as error:
        return Choice("thread", f"samples could not be measured: {type(error).__name__}: {error}")
    if ratio > _IN_TURN:
        return Choice("process", f"two threads take {ratio:.1f} times as long as one: reading holds the GIL")
    return Choice("thread", f"two threads take {ratio:.1f} times as long as one: reading runs in parallel")


def _some(fetch: Callable[[list[Any]], Any], keys: list[Any]) -> list[Any]:
    """As many keys as are read in the time for a measurement; what is done once for all is done then."""
    end = time.perf_counter() + _PROBE_SECONDS
    for number, key in enumerate(keys):
        fetch([key])
        if time.perf_counter() > end:
            return keys[: number + 1]
    return keys


def _alone(fetch: Callable[[list[Any]], Any], keys: list[Any]) -> tuple[float, float, bool]:
    """Seconds of the clock and of this thread's work; whether it waited more often than it was put aside."""
    before = resource.getrusage(resource.RUSAGE_THREAD)
    wall, cpu = time.perf_counter(), time.thread_time()
    fetch(keys)
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    after = resource.getrusage(resource.RUSAGE_THREAD)
    return wall, cpu, after.ru_nvcsw - before.ru_nvcsw > after.ru_nivcsw - before.ru_nivcsw


def _two(fetch: Callable[[list[Any]], Any], keys: list[Any]) -> float:
    errors: list[Exception] = []

    def read() -> None:
        try:
            fetch(keys)
        except Exception as error:
            errors.append(error)

    begin = time.perf_counter()
    other = threading.Thread(target=read, name="headrace-probe", daemon=True)
    other.start()
    read()
    other.join()
    if errors:
        raise errors[0]
    return time.perf_counter() - begin
