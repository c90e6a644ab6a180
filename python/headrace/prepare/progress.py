"""Which inputs are done, and what is shown of that while a run is under way."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from headrace._units import show_bytes

from .spool import Block

__all__ = ["Done", "Meter"]

_TERMINAL_SECONDS = 0.2
_LOG_SECONDS = 30.0
_MOST_SHOWN = 8
"""Workers that are shown one by one."""


class Done:
    """Inputs that need not be done again, and how far one came that has to."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        self.taken: dict[int, int] = {}
        """Samples that are kept of inputs which are not done."""

    def add(self, first: int, last: int) -> None:
        """Marks inputs as done, the last one included."""
        if last < first:
            return
        if self._ranges and self._ranges[-1][1] + 1 == first:
            self._ranges[-1] = (self._ranges[-1][0], last)
        else:
            self._ranges.append((first, last))

    def block(self, block: Block) -> None:
        """Marks what a block holds."""
        self.add(block.first, block.last if block.done else block.last - 1)
        if not block.done:
            start = block.skip if block.last == block.first else 0
            self.taken[block.last] = max(self.taken.get(block.last, 0), start + block.counts[-1])

    def clear(self) -> "Done":
        """Gives what is marked, and forgets it."""
        found = Done()
        found._ranges, self._ranges = self._ranges, []
        found.taken, self.taken = self.taken, {}
        return found

    def ranges(self) -> list[tuple[int, int]]:
        """The inputs that are done, in order, as first and last ones."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(self._ranges):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return merged

    def numbers(self) -> set[int]:
        """The inputs that are done."""
        return {number for first, last in self.ranges() for number in range(first, last + 1)}

    def count(self) -> int:
        """How many inputs are done."""
        return sum(last - first + 1 for first, last in self.ranges())

    def rest(self, stop: int | None) -> Iterator[tuple[int, int | None]]:
        """The inputs that are not done, as ranges; the last one is open if their number is not known."""
        at = 0
        for first, last in self.ranges():
            if at < first:
                yield at, first if stop is None else min(first, stop)
            at = last + 1
        if stop is None or at < stop:
            yield at, stop

    def update(self, ranges: Iterable[Iterable[int]], taken: Iterable[Iterable[int]]) -> None:
        """Marks what another one had, as JSON has it."""
        for first, last in ranges:
            self._ranges.append((first, last))
        for number, count in taken:
            self.taken[number] = max(self.taken.get(number, 0), count)


class Meter:
    """A line on a terminal, or now and then one in a log, also while nothing comes in.

    Args:
        what: the work, in a word.
        shown: whether anything is printed.
    """

    def __init__(self, what: str, *, shown: bool) -> None:
        self._what, self._shown = what, shown
        self._total: int | None = None
        self._done = self._before = self._bytes = self._samples = 0
        self._start = self._last = time.monotonic()
        self._workers: Counter[str] = Counter()
        self._terminal = sys.stderr.isatty()
        self._drawn = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, total: int | None, done: int) -> None:
        """Says how many inputs there are, if that is known, and how many were done before."""
        with self._lock:
            self._total = total
            self._done = self._before = done
            self._bytes = self._samples = 0
            self._start = self._last = time.monotonic()
        if self._shown:
            if done:
                sys.stderr.write(f"headrace {self._what}: going on with an unfinished run, {done:,} inputs are done\n")
                sys.stderr.flush()
            self._thread = threading.Thread(target=self._watch, name="headrace-meter", daemon=True)
            self._thread.start()

    def add(self, inputs: int, samples: int, size: int, worker: str) -> None:
        """Counts what came in, and from which process; an earlier run's has no name."""
        with self._lock:
            self._done += inputs
            if worker:
                self._workers[worker] += inputs
            self._samples += samples
            self._bytes += size
            self._show_if_due()

    def close(self) -> None:
        """Clears the line."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._drawn:
            sys.stderr.write("\r" + " " * self._drawn + "\r")
            sys.stderr.flush()
            self._drawn = 0

    def _watch(self) -> None:
        while not self._ended.wait(self._seconds):
            with self._lock:
                self._show_if_due()

    @property
    def _seconds(self) -> float:
        return _TERMINAL_SECONDS if self._terminal else _LOG_SECONDS

    def _show_if_due(self) -> None:
        now = time.monotonic()
        if self._shown and now - self._last >= self._seconds:
            self._last = now
            self._show(now)

    def _show(self, now: float) -> None:
        seconds = max(now - self._start, 1e-9)
        rate = (self._done - self._before) / seconds
        of = f" of {self._total:,}" if self._total is not None else ""
        parts = [
            f"{self._done:,}{of} inputs",
            f"{rate:,.1f}/s",
            f"{self._samples:,} samples",
            f"{show_bytes(self._bytes)} ({show_bytes(int(self._bytes / seconds))}/s)",
        ]
        if self._total is not None and rate > 0:
            parts.append(f"{_clock((self._total - self._done) / rate)} left")
        if len(self._workers) > 1:
            parts.append(self._shares())
        line = f"headrace {self._what}: {', '.join(parts)}"
        if self._terminal:
            sys.stderr.write("\r" + line.ljust(self._drawn))
            self._drawn = len(line)
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def _shares(self) -> str:
        """How many of the inputs each process did: of many the least and the most."""
        rates = sorted(self._workers.values(), reverse=True)
        total = max(sum(rates), 1)
        shown = rates if len(rates) <= _MOST_SHOWN else [rates[0], rates[-1]]
        between = " " if shown is rates else " to "
        return f"{len(rates)} workers: " + between.join(f"{rate / total:.0%}" for rate in shown)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
