"""Doing tasks: in worker processes, which threads feed, or in this thread.

Blocks come to `accept` in this thread, in the order in which they are done. What was kept of a task when its process
ends stays; the rest is done again, an input at a time. An input whose process ended twice is an error.
"""

import contextlib
import pickle
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from headrace.loading.processes import ProcessDied

from .feed import Feed, Task
from .job import LOST, OnError, Reply, Start, short
from .spool import Block, Failure
from .workers import Engine, Job, MachineLost, Workers

__all__ = ["Sink", "run"]

_TASK_SECONDS = 0.02
"""Inputs that are handed over at once take about so long: what it costs to do so is a hundredth of it."""
_MOST_INPUTS = 1024
_DEATHS = 2
"""Processes that an input may take with it."""
_LOSSES = 32
"""Machines that may be lost one after another in the middle of an input: mostly it has nothing to do with that."""
_LOOK_SECONDS = 0.1
"""How often whoever waits for threads looks whether that is in vain."""


class Sink(Protocol):
    """Where blocks go."""

    @property
    def schema(self) -> str | None:
        """That of the dataset, as far as it is known."""
        ...

    def keep(self, block: Block) -> Any:
        """Keeps a block, so that it outlives this process. Called by several threads."""
        ...

    def accept(self, kept: Any) -> None:
        """Takes what `keep` gave, in the thread that runs."""
        ...

    def wait(self, first: int, stopped: Callable[[], bool]) -> None:
        """Waits while too much was kept that could not be accepted yet; not for what the others wait for."""
        ...


def run(job: Job, feed: Feed, sink: Sink, engine: Engine, on_error: OnError) -> None:
    """Does all tasks of a feed.

    Raises:
        Exception: the first one that a task raised; or that no process survives an input, as a RuntimeError.
    """
    with engine.workers(job) as workers:
        if workers is not None:
            _Team(workers, feed, sink, on_error).run()
            return
        server = _Server(job, feed, sink, on_error, sink.accept)
        try:
            while server.one():
                pass
        finally:
            feed.stop()


class _Server:
    """Does tasks one after another."""

    def __init__(
        self,
        call: Callable[[Start | int], Reply | str],
        feed: Feed,
        sink: Sink,
        on_error: OnError,
        accept: Callable[[Any], None],
        *,
        sends: bool = False,
    ) -> None:
        self._sends = sends
        self._call, self._feed, self._sink, self._on_error, self._accept = call, feed, sink, on_error, accept
        self._cost: float | None = None
        self.stopped = False

    def one(self) -> bool:
        """Does a task; says whether there was one."""
        count = 1
        if self._cost is not None:
            count = max(1, min(_MOST_INPUTS, int(_TASK_SECONDS / max(self._cost, 1e-9))))
        task = self._feed.take(count)
        if task is None:
            return False
        start = time.perf_counter()
        count = len(task.values)
        # After an error it stays under way, so that no other thread takes the run to be at its end.
        self._feed.finish(self._do(task))
        cost = (time.perf_counter() - start) / count
        # Of two threads that share a process each waits for the other: that is part of it, and makes tasks smaller.
        self._cost = cost if self._cost is None else self._cost + (cost - self._cost) / 2
        return True

    def _do(self, task: Task) -> list[Task]:
        """Does a task; gives what of it has to be done again."""
        message: Start | int = Start(task.first, task.values, task.skip, self._sink.schema)
        at, skip = task.first, task.skip
        while True:
            try:
                reply = self._call(message)
            except ProcessDied as error:
                return self._after_death(task, at, skip, error)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                if self._sends and not hasattr(error, "__notes__"):
                    error.add_note(f"while input {task.first}, or one behind it, was sent to a worker process")
                raise
            if isinstance(reply, str):
                assert reply == LOST
                return _rest(task, at, skip, deaths=task.deaths, losses=task.losses)
            block, more = reply
            last = block.last
            at, skip = last + 1, 0
            if not block.done:
                at -= 1
                skip = block.counts[-1] + (block.skip if len(block.counts) == 1 else 0)
            self._accept(self._sink.keep(block))
            # Its memory is free while the next one is made.
            del reply, block
            self._sink.wait(last, lambda: self.stopped)
            if not more:
                return []
            message = task.first

    def _after_death(self, task: Task, at: int, skip: int, error: ProcessDied) -> list[Task]:
        if isinstance(error, MachineLost):
            moved = (at, skip) != (task.first, task.skip)
            if moved or task.losses + 1 < _LOSSES:
                return _rest(task, at, skip, deaths=task.deaths, losses=0 if moved else task.losses + 1)
            raise RuntimeError(f"input {task.first} was begun {_LOSSES} times, and came to nothing each time: {error}")
        if len(task.values) > 1 or task.deaths + 1 < _DEATHS:
            # Which of several inputs it was is found out by doing each for itself.
            return _rest(task, at, skip, deaths=task.deaths + (len(task.values) == 1), losses=task.losses)
        said = str(error).partition("\n")[0]
        if self._on_error == "skip":
            failure = Failure(task.first, short(task.values[0]), said, skip)
            self._accept(self._sink.keep(_nothing(task.first, skip, failure)))
            return []
        raise RuntimeError(
            f"input {task.first} was begun {_DEATHS} times, and its process ended each time: {said}\n"
            "hint: one that is killed by SIGKILL took more memory than there is, most likely, and fewer num_workers "
            "need less; one that ends with a status was ended by what it did"
        ) from None


class _Team:
    """Threads that feed workers."""

    def __init__(self, workers: Workers, feed: Feed, sink: Sink, on_error: OnError) -> None:
        self._workers, self._feed, self._sink = workers, feed, sink
        self._queue: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._servers = [
            _Server(workers, feed, sink, on_error, lambda kept: self._queue.put(("kept", kept)), sends=True)
            for _ in range(workers.threads)
        ]
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"headrace-prepare-{number}", daemon=True)
            for number in range(workers.threads)
        ]

    def run(self) -> None:
        """Returns when all is done and the threads are gone."""
        for thread in self._threads:
            thread.start()
        try:
            # The first thread that finds nothing to do comes behind all that was kept.
            while (given := self._queue.get())[0] != "ended":
                kind, value = given
                if kind == "failed":
                    self._drain()
                    raise value
                self._sink.accept(value)
        finally:
            self._stop()

    def _drain(self) -> None:
        """Accepts what was kept before the error: it need not be done again."""
        self._stop()
        while not self._queue.empty():
            kind, value = self._queue.get()
            if kind == "kept":
                self._sink.accept(value)

    def _stop(self) -> None:
        self._feed.stop()
        for server in self._servers:
            server.stopped = True
        self._workers.close()
        for thread in self._threads:
            # One that waits in the user's iterator may never come back.
            while thread.is_alive() and thread is not self._feed.puller:
                thread.join(_LOOK_SECONDS)

    def _serve(self, number: int) -> None:
        server = self._servers[number]
        try:
            self._workers.begin(number)
            while not server.stopped and server.one():
                self._workers.begin(number)
            self._queue.put(("ended", None))
        except BaseException as error:
            if not server.stopped:
                self._queue.put(("failed", error))
        finally:
            with contextlib.suppress(Exception):
                self._workers.end(number)


def _rest(task: Task, at: int, skip: int, *, deaths: int, losses: int) -> list[Task]:
    """What is left of a task, an input at a time; the first one is what the process was at when it was lost."""
    values = task.values[at - task.first :]
    return [
        Task(number, [value], skip, deaths, losses) if number == at else Task(number, [value])
        for number, value in enumerate(values, at)
    ]


def _nothing(first: int, skip: int, failure: Failure) -> Block:
    """The end of an input that gave nothing more."""
    return Block(first, skip, [0], True, None, np.zeros(0, np.int64), b"", [failure])
