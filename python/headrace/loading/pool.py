"""A pool of threads that belongs to one loader: tasks in, results in the same order out.

Not for users, and not for tasks that need no order. Two rules shape it. A pool or an iterator may be dropped in any
thread and at any moment, also by the garbage collector while that thread is in the middle of a call to the same pool:
so whatever a finalizer touches is a flag or a `SimpleQueue`, never a lock. And Ctrl-C may come between any two lines
of the main thread: so a drawn task is in the deque of slots before Python code runs again.
"""

import atexit
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice, repeat
from queue import Empty
from typing import Any, Final, Generic, TypeVar

from .pace import Pace
from .team import (
    CHUNK_SECONDS,
    DONE,
    FAILED,
    NEW,
    STATE,
    TASK,
    VALUE,
    Run,
    Slot,
    Team,
    Turns,
    add_note,
    as_raised,
    stack_bytes,
    work,
)

__all__ = ["NotReady", "OrderedResults", "Pool", "add_note", "as_raised"]

Task = TypeVar("Task")
Result = TypeVar("Result")

_EXIT_SECONDS: Final = 0.5
"""How long the end of the interpreter waits for tasks that are being run."""

_live: "weakref.WeakSet[Pool[Any, Any]]" = weakref.WeakSet()

_starting = threading.RLock()
"""Of those that start threads, whose stacks' size is the process's; what ends them takes none. Reentrant: an interrupt
must not lock this thread out."""


class NotReady(TimeoutError):
    """A result was not there in time; it still comes. A task's own TimeoutError is another thing."""


class Pool(Generic[Task, Result]):
    """Threads that call one function, made at the first run and kept until the pool is closed or dropped.

    After a fork the child makes its own threads when it needs them.

    Args:
        call: what is called with each task.
        workers: threads; with 0 tasks are called by the thread that asks for their results.
        init: called once in each thread with its number, before its first task.
        turns: which thread takes tasks next; None for any.
        end: called in each thread that began, with its number, when it ends.
        interrupt: called when the pool is closed, to cut tasks short; it must not wait for anything.
        name: the threads are called ``name-0`` and so on.
    """

    def __init__(
        self,
        call: Callable[[Task], Result],
        workers: int,
        *,
        init: Callable[[int], object] | None = None,
        turns: Turns | None = None,
        end: Callable[[int], object] | None = None,
        interrupt: Callable[[], object] | None = None,
        name: str = "headrace-worker",
    ) -> None:
        self.workers = workers
        self._turns = turns
        self._end = end
        self._interrupt = interrupt
        self._call = call
        self._init = init
        self._name = name
        self._process = os.getpid()
        self._form()
        self._threads: list[threading.Thread] = []

    def run(
        self, tasks: Iterator[Task], *, ahead: int = 0, label: Callable[[int], str] | None = None
    ) -> "OrderedResults[Task, Result]":
        """Begins a sequence of tasks; they are drawn by the thread that asks for the results.

        Args:
            tasks: drawn from one at a time, never further than `workers` + `ahead` beyond the last result.
            ahead: results that may be ready, beyond those that are being worked for.
            label: text for a note to an exception, from the number of its task.
        """
        return OrderedResults(self, self._call, tasks, max(1, self.workers + ahead), label)

    def put(self, run: Run, slots: list[Slot]) -> None:
        """Gives neighbouring tasks to one thread."""
        self._start()
        self._team.queue.put((run, slots))

    def lend(self, call: Callable[[], Any], times: int) -> None:
        """Has up to `times` threads call something when they come to it; what it gives or raises is not looked at."""
        run = Run(lambda task: task())
        for _ in range(times):
            self.put(run, [Slot((call, NEW, None))])

    def threads(self) -> list[threading.Thread]:
        """Those of this process."""
        return self._threads if self._process == os.getpid() else []

    def close(self) -> None:
        """Ends the threads, each after the task that it is in. Waits for nothing and takes no lock."""
        team = self._team
        team.stopped = True
        team.release(self.workers)
        if self._process == os.getpid():
            for _ in self._threads:
                team.queue.put(None)
            if self._threads and self._interrupt is not None:
                self._interrupt()

    def __del__(self) -> None:
        # One whose arguments were refused has nothing to end; at the interpreter's end modules may be gone.
        if hasattr(self, "_threads") and os is not None:  # pyright: ignore[reportUnnecessaryComparison]
            self.close()

    def _form(self) -> None:
        self._team = Team(self.workers)
        self.pace = Pace(self._team, self.workers) if self.workers > 1 and _has_gil() else None
        """Decides how many threads work at once, where there are several that share the GIL."""

    def _start(self) -> None:
        if self._process != os.getpid():
            with _starting:
                # Of several threads of the child the first one does it, and says so last.
                if self._process != os.getpid():
                    self._form()
                    self._threads, self._process = [], os.getpid()
        if self._team.stopped:
            raise RuntimeError("this loader was closed")
        if len(self._threads) < self.workers:
            with _starting:
                self._start_threads()

    def _start_threads(self) -> None:
        if not _live:
            # Once at a time, however many pools come and go.
            atexit.unregister(_close_all)
            atexit.register(_close_all)
        _live.add(self)
        before = threading.stack_size(stack_bytes())
        try:
            while len(self._threads) < self.workers:
                number = len(self._threads)
                thread = threading.Thread(
                    target=work,
                    args=(self._team, self._init, self._turns, self._end, number),
                    name=f"{self._name}-{number}",
                    daemon=True,
                )
                self._threads.append(thread)
                thread.start()
        finally:
            threading.stack_size(before)


class OrderedResults(Iterator[Result], Generic[Task, Result]):
    """The results of a run, in the order of its tasks.

    An exception of a task is raised in its place; the next call goes on behind it. So does it after Ctrl-C or a
    TimeoutError, neither of which loses a result. Dropping it ends the run: tasks that were not begun are not.
    """

    def __init__(
        self,
        pool: Pool[Task, Result],
        call: Callable[[Task], Result],
        tasks: Iterator[Task],
        limit: int,
        label: Callable[[int], str] | None,
    ) -> None:
        self._pool = pool
        self._run = Run(call)
        self._drawn = map(Slot, zip(tasks, repeat(NEW), repeat(None), strict=False))
        self._limit = limit
        self._label = label
        self._slots: deque[Slot] = deque()
        self._handed = 0
        """How many of the slots threads have, from the first on."""
        self._number = 0
        """Of the first slot's task."""
        self._ended = False
        self._broken: BaseException | None = None
        """What the iterator of tasks raised when it was last asked."""
        self.waits = 0
        """Results that were not ready when they were asked for."""
        self.waited = 0.0
        """Seconds that they were waited for."""
        self._process = os.getpid()
        # Reentrant: an interrupt between taking it and the next line must not lock this thread out.
        self._busy = threading.RLock()

    def __next__(self) -> Result:
        return self.next()

    def next(self, timeout: float | None = None) -> Result:
        """The next result.

        Args:
            timeout: seconds to wait for it; None for no end.

        Raises:
            StopIteration: after the last one.
            NotReady: if it takes longer.
            RuntimeError: if another thread is in this method, or a task raised StopIteration.
        """
        if os.getpid() != self._process:
            self._rebuild()
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("another thread is waiting for this iterator's next result")
        try:
            slot = self._next(timeout)
            number = self._number
            self._number += 1
        finally:
            self._busy.release()
        if slot[STATE] == FAILED:
            error = as_raised(slot.pop())
            try:
                if self._label is not None:
                    add_note(error, self._label(number))
                raise error
            finally:
                # The traceback refers to this frame.
                del error
        return slot[VALUE]

    def close(self) -> None:
        """Ends the run: what was not begun is not begun. Waits for nothing and takes no lock."""
        self._run.cancelled = True
        self._run.wake.put(None)
        self._ended = True
        # A thread that waits for one of the others goes on with them, and finds that the run is over.
        self._slots = deque()

    def __del__(self) -> None:
        if hasattr(self, "_run"):
            self._run.cancelled = True

    def _next(self, timeout: float | None) -> Slot:
        slots = self._slots
        if not slots:
            self._fill(0)
            if not slots:
                raise StopIteration
        head, waited = slots[0], 0.0
        if head[STATE] < DONE:
            if self._pool.workers == 0:
                self._call_here(head)
            else:
                if self._handed < len(slots):
                    self._hand_over()
                waited = self._wait(head, timeout)
        if self._pool.pace is not None:
            self._pool.pace.note(waited)
        if self._pool.workers:
            # Before the result is taken off: Ctrl-C in a sampler must not lose it.
            self._fill(1)
        # Not below 0 after an interrupt between these two lines.
        self._handed = max(0, self._handed - 1)
        return slots.popleft()

    def _call_here(self, slot: Slot) -> None:
        self._handed = 1
        try:
            value, state = self._run.call(slot[TASK]), DONE
        except KeyboardInterrupt:
            # The task stays as it was, and is called again.
            raise
        except BaseException as error:
            value, state = error, FAILED
        slot[VALUE] = value
        slot[STATE] = state

    def _wait(self, head: Slot, timeout: float | None) -> float:
        """Waits until a task is done; gives the seconds that it took."""
        run, pace = self._run, self._pool.pace
        begin = time.monotonic()
        end = None if timeout is None else begin + timeout
        try:
            run.waiting = True
            while head[STATE] < DONE:
                if run.cancelled:
                    raise RuntimeError("this iterator was ended while another thread waited for its next result")
                left = None if end is None else max(0.0, end - time.monotonic())
                patience = None if pace is None else pace.patience
                try:
                    run.wake.get(
                        timeout=left if patience is None or (left is not None and left < patience) else patience
                    )
                except Empty:
                    if head[STATE] >= DONE:
                        break
                    if pace is not None and patience is not None:
                        # Tasks may need each other.
                        pace.release()
                        if left is None or left > patience:
                            continue
                    what = "" if self._label is None else f", {self._label(self._number)}"
                    raise NotReady(f"no result after {timeout:g} s{what}") from None
        finally:
            run.waiting = False
            self.waits += 1
            took = time.monotonic() - begin
            self.waited += took
        return took

    def _fill(self, claimed: int) -> None:
        """Draws tasks up to the limit; `claimed` of the slots do not count any more."""
        slots = self._slots
        room = self._limit - len(slots) + claimed
        if room <= 0 or self._ended:
            return
        cost = self._run.cost
        if cost is not None and cost < CHUNK_SECONDS and room * 2 < self._limit:
            # Small tasks are handed over several at once, or not yet.
            return
        count = len(slots)
        try:
            slots.extend(islice(self._drawn, room))
            if len(slots) - count < room:
                self._ended = True
                if self._broken is not None and len(slots) == count:
                    error = RuntimeError("the stream of tasks ended after an error: what should have followed is lost")
                    error.__cause__ = self._broken
                    slots.append(Slot((None, FAILED, error)))
            self._broken = None
        except Exception as error:
            self._broken = error
            slots.append(Slot((None, FAILED, error)))
        except BaseException as error:
            self._broken = error
            raise
        self._hand_over()

    def _hand_over(self) -> None:
        if self._pool.workers == 0:
            return
        fresh = [slot for slot in islice(self._slots, self._handed, None) if slot[STATE] == NEW]
        cost = self._run.cost
        size = 1 if cost is None else max(1, min(len(fresh), int(CHUNK_SECONDS / max(cost, 1e-9))))
        # After an interrupt slots may be given out twice; the second thread passes them over.
        for first in range(0, len(fresh), size):
            self._pool.put(self._run, fresh[first : first + size])
        self._handed = len(self._slots)

    def _rebuild(self) -> None:
        """Begins again in a forked child what its parent's threads had begun."""
        run, self._run = self._run, Run(self._run.call)
        self._run.cancelled, self._run.cost = run.cancelled, run.cost
        for slot in self._slots:
            if slot[STATE] < DONE:
                slot[STATE] = NEW
        self._handed = 0
        self._busy = threading.RLock()
        self._process = os.getpid()
        if not run.cancelled:
            self._hand_over()


def _has_gil() -> bool:
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def _close_all() -> None:
    """At the interpreter's end: threads that are stopped within Python code can bring down C code that they call."""
    pools = list(_live)
    for pool in pools:
        pool.close()
    end = time.monotonic() + _EXIT_SECONDS
    for pool in pools:
        for thread in pool.threads():
            if thread is not threading.current_thread() and not sys.is_finalizing():
                thread.join(max(0.0, end - time.monotonic()))


def _begin_anew() -> None:
    """In a forked child, where nobody lets go of a lock that another thread of its parent held."""
    global _starting
    _starting = threading.RLock()


os.register_at_fork(after_in_child=_begin_anew)
