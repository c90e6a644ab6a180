"""Inputs from a queue that others put into, while the run is under way.

An input gets its number when it comes, and a digest of it is written down before it is given to anyone. So a run that
goes on knows what a queue that gives everything again has given before, in whatever order that comes.
"""

import hashlib
import multiprocessing
import pickle
import queue as queues
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, cast

from headrace._units import as_int
from headrace.errors import StateMismatch

from .feed import InputSource, Task
from .progress import Done

__all__ = ["Producers", "Queued"]

_LOOK_SECONDS = 0.1
"""How often whoever waits for an input looks whether the producers live."""
_SILENCE_SECONDS = 1.0
"""What a producer put before it ended is there after so long."""
_AHEAD = 64
"""Inputs that are taken from the queue and not yet given to a process."""
_FEEDER = "QueueFeederThread"
"""The thread in which multiprocessing sends what was put; it ends with the program."""
_OWN = "headrace-"
"""What the names of our own threads begin with: none of them puts."""

_NOTHING: Any = object()


class Producers:
    """Who puts inputs, and whether more may come.

    Args:
        queue: has ``get(timeout=)``, as those of `multiprocessing` and `queue` do.
        producers: how many there are, or they themselves, processes or threads. Each puts None when it has no more.

    Raises:
        TypeError: if one of them is neither.
        ValueError: if there is none.
    """

    def __init__(self, queue: Any, producers: SupportsIndex | Sequence[Any]) -> None:
        self._named: list[Any] = list(producers) if isinstance(producers, Iterable) else []
        self._count = len(self._named) if isinstance(producers, Iterable) else as_int(producers, "producers", least=1)
        if not self._count:
            raise ValueError(f"producers must be at least one, got {producers!r}")
        if wrong := [one for one in self._named if not hasattr(one, "is_alive")]:
            raise TypeError(
                f"producers must be a number, or processes and threads with is_alive(), got a {type(wrong[0]).__name__}"
            )
        self._ends = 0
        self._queue = queue
        self._others = None if self._named else _who_may_put(queue)

    def end(self) -> bool:
        """Counts a None; says whether it was the last one."""
        self._ends += 1
        return self._ends >= self._count

    def check(self, silent: float) -> None:
        """Called while nothing comes.

        Args:
            silent: seconds since the last thing came.

        Raises:
            RuntimeError: if a producer ended that did not say so, or nobody is left who could.
        """
        if silent < _SILENCE_SECONDS:
            return
        said = f"{self._ends} of {self._count} Nones came"
        if self._named:
            gone = [one for one in self._named if not one.is_alive()]
            if len(gone) > self._ends:
                names = ", ".join(_ending(one) for one in sorted(gone, key=_how_bad)[: len(gone) - self._ends])
                raise RuntimeError(
                    f"a producer of the queue ended without a None: {said}, and {len(gone)} ended, of which: {names}\n"
                    "hint: put None when there is no more; the same call goes on, if the queue gives all inputs again"
                )
        elif self._others is not None and not any(one.is_alive() for one in self._others):
            if not self._others and _is_sending(self._queue):
                return
            names = ", ".join(_ending(one) for one in sorted(self._others, key=_how_bad)[:3])
            who = f"all who could put more have ended: {names}" if names else "nobody is there who could put more"
            raise RuntimeError(
                f"the queue is empty, {said}, and {who}\n"
                "hint: put None when there is no more; the same call goes on, if the queue gives all inputs again"
            )


def _who_may_put(queue: Any) -> list[Any] | None:
    """All who may have a queue and were there before the run; None if that cannot be known."""
    here = threading.current_thread()
    # The main thread may put what it likes, whatever it waits for now.
    if multiprocessing.parent_process() is not None or not _is_own(queue) or here is not threading.main_thread():
        return None
    threads = [
        one
        for one in threading.enumerate()
        if one is not here and one.name != _FEEDER and not one.name.startswith(_OWN)
    ]
    return [*multiprocessing.active_children(), *threads]


def _is_sending(queue: Any) -> bool:
    """Whether this process has put something that is still on its way."""
    return any(one.name == _FEEDER for one in threading.enumerate()) and queue.qsize() > 0


def _is_own(queue: Any) -> bool:
    """Whether a queue reaches no further than this process and its children."""
    import multiprocessing.queues

    return isinstance(queue, queues.Queue | queues.SimpleQueue | multiprocessing.queues.Queue)


def _how_bad(producer: Any) -> bool:
    """Whether a producer ended well: those that did not come first."""
    return getattr(producer, "exitcode", 0) == 0


def _ending(producer: Any) -> str:
    code = getattr(producer, "exitcode", None)
    return f"{producer.name}" + ("" if code is None else f" (exit code {code})")


class Queued(InputSource):
    """The inputs of a queue.

    Args:
        queue: see `Producers`.
        producers: of it.
        split: what one of its things is as inputs.
        done: what earlier runs did.
        known: digests of inputs by their numbers, of earlier runs.
        limit: inputs to take at most.
        note: writes down the digests of inputs, by their numbers.
    """

    total = None

    def __init__(
        self,
        queue: Any,
        producers: Producers,
        *,
        split: Callable[[Any], Iterable[Any]],
        done: Done,
        known: Mapping[int, str],
        limit: int | None,
        note: Callable[[Sequence[tuple[int, str]]], None],
    ) -> None:
        self._queue, self._producers, self._split, self._note = queue, producers, split, note
        self._next = max(known, default=-1) + 1
        self._left = limit
        self._taken = dict(done.taken)
        numbers = done.numbers()
        self._done = Counter(digest for number, digest in known.items() if number in numbers)
        self._begun: dict[str, deque[int]] = defaultdict(deque)
        for number, digest in known.items():
            if number not in numbers:
                self._begun[digest].append(number)
        self._ready: deque[Task] = deque()
        self._parts: deque[Any] = deque()
        # What came, the error if none could be taken, and whether it is the last thing.
        self._ahead: queues.SimpleQueue[tuple[Any, BaseException | None, bool]] = queues.SimpleQueue()
        # What is behind the inputs of a limit is for others: each thing is taken when it is asked for.
        self._wanted = threading.Semaphore(_AHEAD if limit is None else 0)
        self._asked = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._over = False

    def next(self, count: int, *, in_order: bool) -> Task | None:
        """See `InputSource.next`.

        Raises:
            RuntimeError: if a producer ended that did not say so.
            StateMismatch: if all has come, but for inputs of the run that goes on.
        """
        while not self._ready:
            new: list[Any] = []
            noted: list[tuple[int, str]] = []
            # It waits for the first one alone.
            while len(new) < count and not self._over and (value := self._get(wait=not new)) is not _NOTHING:
                digest = _digest(value)
                if self._done[digest]:
                    self._done[digest] -= 1
                elif self._begun[digest]:
                    number = self._begun[digest].popleft()
                    self._ready.append(Task(number, [value], self._taken.pop(number, 0)))
                    break
                else:
                    noted.append((self._next + len(new), digest))
                    new.append(value)
            if new:
                self._note(noted)
                self._ready.append(Task(self._next, new))
                self._next += len(new)
            if not self._ready:
                if self._over:
                    self._expect_all()
                if self._over or self._stopped.is_set():
                    return None
        return self._ready.popleft()

    def stop(self) -> None:
        """See `InputSource.stop`."""
        self._stopped.set()

    def _get(self, *, wait: bool) -> Any:
        """The next input; nothing if there is none now, or will be none."""
        since = time.monotonic()
        while not self._parts:
            if self._stopped.is_set() or self._over:
                return _NOTHING
            if self._thread is None:
                self._thread = threading.Thread(target=self._pull, name="headrace-queue", daemon=True)
                self._thread.start()
            if self._left is not None and wait and not self._asked:
                self._asked = True
                self._wanted.release()
            try:
                value, error, over = self._ahead.get(block=wait, timeout=_LOOK_SECONDS)
            except queues.Empty:
                if not wait:
                    return _NOTHING
                self._producers.check(time.monotonic() - since)
                continue
            if error is not None:
                error.add_note("while an input was taken from the queue")
                raise error
            self._asked = False
            if self._left is None:
                self._wanted.release()
            if value is None:
                self._over = over
                continue
            self._parts.extend(self._split(value))
        if self._left is not None:
            self._left -= 1
            self._over = not self._left
        return self._parts.popleft()

    def _pull(self) -> None:
        """Takes from the queue, in a thread of its own: one who dies while putting keeps it waiting for ever."""
        over = False
        while not over and not self._stopped.is_set():
            if not self._wanted.acquire(timeout=_LOOK_SECONDS):
                continue
            found = self._take()
            if found is None:
                return
            value, error = found
            # What follows the last None is for another run.
            over = error is not None or (value is None and self._producers.end())
            self._ahead.put((value, error, over))

    def _take(self) -> tuple[Any, BaseException | None] | None:
        """The queue's next thing, or the error that it raised; None if it was stopped."""
        while not self._stopped.is_set():
            try:
                return self._queue.get(timeout=_LOOK_SECONDS), None
            except queues.Empty:
                continue
            except BaseException as raised:
                return None, raised
        return None

    def _expect_all(self) -> None:
        missing = sum(self._done.values()) + sum(map(len, self._begun.values()))
        if missing and self._left is None:
            raise StateMismatch(
                f"the queue gave all but {missing:,} inputs that the unfinished run had taken from it before\n"
                "hint: to go on with a run the queue has to give all inputs again, in any order; resume=False forgets "
                "the run"
            )


def _digest(value: Any) -> str:
    try:
        return hashlib.blake2b(pickle.dumps(value, protocol=5), digest_size=12).hexdigest()
    except Exception as error:
        raise cast("Any", type(error))(f"an input from the queue cannot be pickled: {error}") from None
