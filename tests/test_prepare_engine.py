"""The engine over workers of any kind: what is done again, what is an error, and when a run is at its end."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import prepare_functions as functions
from headrace.loading.processes import ProcessDied
from headrace.prepare.engine import run
from headrace.prepare.feed import Feed, Listed
from headrace.prepare.job import SampleJob
from headrace.prepare.progress import Done
from headrace.prepare.spool import Block
from headrace.prepare.workers import MachineLost
from headrace.prepare.writing import Options

OPTIONS = Options(compression=None, serializers=None, tokens=False, chunk_size=None, chunk_bytes=None)


class Kept:
    """A sink that has what was accepted, as inputs and numbers of samples."""

    schema = None

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.failed: list[int] = []

    def keep(self, block: Block) -> Block:
        return block

    def accept(self, kept: Block) -> None:
        self.counts.update({kept.first + at: count for at, count in enumerate(kept.counts)})
        self.failed += [failure.input for failure in kept.failures]

    def wait(self, first: int, stopped: Callable[[], bool]) -> None:
        """Nothing is kept."""


class Threads:
    """Workers that are the threads that call them, and an engine that has them. What `spoil` raises is their end."""

    def __init__(self, threads: int, spoil: Callable[[Any], None], *, missing: int = 0) -> None:
        self.threads, self._spoil, self._missing = threads, spoil, missing
        self._jobs: dict[int, SampleJob] = {}
        self._closed = threading.Event()
        self.begun = 0

    def check(self, fn: Any) -> None:
        """Anything will do."""

    @contextmanager
    def workers(self, job: Any) -> "Iterator[Threads]":
        self._job = job
        yield self
        assert self._closed.is_set()

    def begin(self, number: int) -> None:
        if number < self._missing:
            self._closed.wait()
            raise RuntimeError("closed")
        # One that died has no task any more.
        self._jobs[threading.get_ident()] = SampleJob(self._job._fn, "litdata", OPTIONS, self._job._on_error)

    def __call__(self, message: Any) -> Any:
        self._spoil(message)
        return self._jobs[threading.get_ident()](message)

    def end(self, number: int) -> None:
        """Nothing is left."""

    def close(self) -> None:
        self._closed.set()


def do(fn: Any, count: int, engine: Any, on_error: Any = "raise") -> Kept:
    kept = Kept()
    feed = Feed(Listed(range(count), Done(), limit=None), alone=False)
    run(SampleJob(fn, "litdata", OPTIONS, on_error), feed, kept, engine, on_error)
    return kept


def expected(count: int) -> dict[int, int]:
    return {number: number % 3 for number in range(count)}


def inputs_of(message: Any) -> range:
    """Those of a task, or the first one if that is all that is told of it."""
    return (
        range(message, message + 1)
        if isinstance(message, int)
        else range(message.first, message.first + len(message.values))
    )


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_workers_that_never_come_are_not_waited_for(missing: int) -> None:
    kept = do(functions.several, 500, Threads(4, lambda _: None, missing=missing))
    assert kept.counts == expected(500)


@pytest.fixture
def _slow_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are put aside when they have said that a task is over, or cannot be, so that others are first."""
    finish, take = Feed.finish, Feed.take

    def finished(feed: Feed, again: Any) -> None:
        finish(feed, again)
        time.sleep(0.05)

    def taken(feed: Feed, count: int) -> Any:
        try:
            return take(feed, count)
        except KeyError:
            time.sleep(0.05)
            raise

    monkeypatch.setattr(Feed, "finish", finished)
    monkeypatch.setattr(Feed, "take", taken)


@pytest.mark.usefixtures("_slow_to_tell")
def test_an_error_is_raised_though_other_threads_find_nothing_to_do() -> None:
    def late(number: int) -> Any:
        # By now the others wait for what this one may leave.
        time.sleep(0.05)
        raise KeyError(number)

    with pytest.raises(KeyError):
        do(late, 1, Threads(4, lambda _: None))


@pytest.mark.usefixtures("_slow_to_tell")
def test_an_error_of_the_inputs_is_raised_though_other_threads_find_nothing_to_do() -> None:
    class Broken(list[int]):
        def __getitem__(self, number: Any) -> Any:
            raise KeyError(number)

    job = SampleJob(functions.several, "litdata", OPTIONS, "raise")
    with pytest.raises(KeyError):
        run(
            job, Feed(Listed(Broken([1]), Done(), limit=None), alone=False), Kept(), Threads(4, lambda _: None), "raise"
        )


class Ends:
    """Raises for tasks with some inputs, a number of times."""

    def __init__(self, error: Exception, times: dict[int, int]) -> None:
        self._error, self._left, self._lock = error, Counter(times), threading.Lock()

    def __call__(self, message: Any) -> None:
        with self._lock:
            for number in inputs_of(message):
                if self._left[number] > 0:
                    self._left[number] -= 1
                    raise self._error


def test_a_lost_machine_is_not_the_fault_of_an_input() -> None:
    kept = do(functions.several, 40, Threads(3, Ends(MachineLost("its node has died"), {0: 31, 7: 31, 39: 3})))
    assert kept.counts == expected(40)


def test_an_input_that_every_machine_is_lost_with_is_named() -> None:
    with pytest.raises(
        RuntimeError, match="input 5 was begun 32 times, and came to nothing each time: its node has died"
    ):
        do(functions.several, 40, Threads(3, Ends(MachineLost("its node has died"), {5: 1000})))


def test_blocks_that_came_are_progress() -> None:
    """Of each input there are three blocks; the machine is lost after each of them, many times."""
    lost: Counter[Any] = Counter()
    lock = threading.Lock()

    def spoil(message: Any) -> None:
        with lock:
            skip = None if isinstance(message, int) else message.skip
            if skip is None or lost[inputs_of(message)[0], skip] < 30:
                lost[inputs_of(message)[0], skip] += 1
                raise MachineLost("its node has died")

    kept = do(functions.huge, 4, Threads(2, spoil))
    assert set(kept.counts) == set(range(4))
    assert sum(kept.counts.values()) == 4 * 40
    assert max(lost[number, skip] for number, skip in lost if skip is not None) == 30


def test_an_input_whose_process_died_twice_is_named_or_skipped() -> None:
    died = ProcessDied("it ended with exit status 3")
    with pytest.raises(RuntimeError, match="input 5 was begun 2 times, and its process ended each time: it ended with"):
        do(functions.several, 40, Threads(3, Ends(died, {5: 1000})))
    kept = do(functions.several, 40, Threads(3, Ends(died, {5: 1000, 9: 1})), on_error="skip")
    assert kept.failed == [5]
    assert kept.counts == expected(40) | {5: 0}
