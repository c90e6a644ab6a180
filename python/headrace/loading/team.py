"""What the threads of a pool do, and what they know: never the pool itself, so that it can be dropped.

Finalizers touch a `Team` and a `Run` from any thread: what they touch are flags and `SimpleQueue`s, never a lock. Of
two threads that each set a flag and then read the other's, one at least sees it, also without a GIL: to set one takes
its object's lock for a moment, and that orders memory.
"""

import resource
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, Protocol

__all__ = [
    "CHUNK_SECONDS",
    "DONE",
    "FAILED",
    "NEW",
    "RUNNING",
    "STATE",
    "TASK",
    "VALUE",
    "Run",
    "Slot",
    "Team",
    "Turns",
    "add_note",
    "as_raised",
    "stack_bytes",
    "work",
]

# What a slot holds, by position: a list is made in C, without a moment for Ctrl-C between drawing and keeping a task.
TASK: Final = 0
STATE: Final = 1
VALUE: Final = 2

# The states of a slot, in order.
NEW: Final = 0
RUNNING: Final = 1
DONE: Final = 2
FAILED: Final = 3

CHUNK_SECONDS: Final = 200e-6
"""Work that is handed over at once, if tasks are that small: waking a thread costs about a twentieth of it."""


class Slot(list[Any]):
    """A task, its state, and its value or error."""

    __slots__ = ()


class Turns(Protocol):
    """Who of some threads may take tasks next; called by these."""

    def take_turn(self) -> None:
        """Waits until it is this thread's turn, unless it is. A task that needs it no more passes it on."""

    def pass_turn(self) -> None:
        """Gives up this thread's turn, if it has it."""


class Team:
    """What the threads of a pool share; they do not refer to the pool, so that it can be dropped."""

    __slots__ = ("claim", "limit", "parked", "queue", "stopped")

    def __init__(self, workers: int) -> None:
        self.queue: SimpleQueue[tuple[Run, list[Slot]] | None] = SimpleQueue()
        self.stopped = False
        self.claim = threading.Lock()
        """Held by a thread for a look at a slot's state and the change of it; by no finalizer."""
        self.limit = workers
        """Threads that work: the first so many."""
        self.parked: SimpleQueue[None] = SimpleQueue()
        """Wakes those that do not; one that is woken for nothing waits again."""

    def release(self, workers: int) -> None:
        """Has so many threads work."""
        self.limit = workers
        for _ in range(workers):
            self.parked.put(None)

    def next(self, number: int, turns: Turns | None) -> "tuple[Run, list[Slot]] | None":
        """What a thread is to do next, when it is one of those that work and has its turn; None for nothing more."""
        while number >= self.limit and not self.stopped:
            if turns is not None:
                # Of tasks that came to nothing.
                turns.pass_turn()
            self.parked.get()
        if turns is not None:
            turns.take_turn()
        return self.queue.get()


class Run:
    """What the threads know of one sequence of tasks."""

    __slots__ = ("call", "cancelled", "cost", "waiting", "wake")

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call
        self.cancelled = False
        self.waiting = False
        """Set before the consumer looks at its slot for the last time; read after a slot was set."""
        self.wake: SimpleQueue[None] = SimpleQueue()
        self.cost: float | None = None
        """Seconds for a task, about."""


def as_raised(error: BaseException) -> BaseException:
    """The exception to raise for one of a task: itself, but for StopIteration, which would end an epoch silently."""
    if not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError("StopIteration was raised while a batch was made; it would have ended the epoch silently")
    wrapped.__cause__ = error
    return wrapped


def add_note(error: BaseException, note: str) -> None:
    """Adds a note to an exception, once; one that takes none is left as it is."""
    try:
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    except Exception:
        return


def work(
    team: Team,
    init: Callable[[int], object] | None,
    turns: Turns | None,
    end: Callable[[int], object] | None,
    number: int,
) -> None:
    """The life of a thread."""
    clock = time.perf_counter
    failure = _begin(init, number)
    while (given := team.next(number, turns)) is not None:
        run, slots = given
        begin = before = clock()
        for slot in slots:
            if run.cancelled or team.stopped:
                break
            with team.claim:
                if slot[STATE] != NEW:
                    continue
                slot[STATE] = RUNNING
            if failure is None:
                try:
                    value, state = run.call(slot[TASK]), DONE
                except BaseException as error:
                    value, state = error, FAILED
            else:
                value, state = failure, FAILED
                failure = _begin(init, number)
            slot[VALUE] = value
            slot[STATE] = state
            value = None
            now = clock()
            # A thread that is put aside for a moment says nothing about the task.
            cost = run.cost
            run.cost = now - before if cost is None else cost + (min(now - before, 4 * cost) - cost) / 4
            before = now
            if run.waiting and now - begin > CHUNK_SECONDS:
                run.wake.put(None)
        if run.waiting:
            run.wake.put(None)
        # Whatever the tasks hold may go while this thread waits.
        given = run = slots = slot = None
    if turns is not None:
        turns.pass_turn()
    if end is not None:
        end(number)


def _begin(init: Callable[[int], object] | None, number: int) -> BaseException | None:
    if init is None:
        return None
    try:
        init(number)
    except BaseException as error:
        add_note(error, f"in worker_init_fn({number})")
        return error
    return None


def stack_bytes() -> int:
    """As much as the main thread may use, so that recursion that works there works here; used when touched."""
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    bounded = 64 << 20 if limit == resource.RLIM_INFINITY else min(max(limit, 8 << 20), 1 << 30)
    return bounded & ~0xFFFF
