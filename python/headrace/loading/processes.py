"""Worker processes, for functions that hold the GIL: spawned, each fed by two threads of a `Pool`.

A thread sends a list of keys and waits for the batch, outside the GIL. There are two for each process, so that the
next list is there when it has made a batch; they take turns, so that no batch waits for one that is needed later.
Order, limits, interrupts and ends are those of the pool.
"""

import contextlib
import json
import multiprocessing.connection
import multiprocessing.spawn
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar, cast

from headrace._frames import is_plain, plain

from . import worker
from .collate import registered
from .pool import Pool, add_note
from .wire import FAILED, MADE, Arena, above_standard, decode

__all__ = ["ProcessDied", "Processes", "as_raised_in", "check_main"]

Task = TypeVar("Task")
Result = TypeVar("Result")

_THREADS_EACH = 2
"""Threads of the pool for each process."""

_END_SECONDS = 5.0
"""How long an end that was signalled is waited for."""

_renewing = threading.Lock()
"""Of threads of a forked child, the first of which gives it processes of its own."""


class ProcessDied(RuntimeError):
    """A worker process ended in the middle of its work; another one takes its place."""


def as_raised_in(where: str, error: Exception | None, text: str) -> Exception:
    """The exception of a worker process, as it is raised here: with its traceback there, or as that alone."""
    if error is None:
        return RuntimeError(f"{where}:\n{text.rstrip()}")
    add_note(error, where if is_plain(error) else f"{where}:\n{text.rstrip()}")
    plain(error)
    return error


def check_main() -> None:
    """Refuses to start processes in one that imports its main module.

    Raises:
        RuntimeError: says what to do.
    """
    if worker.preparing:
        raise RuntimeError(
            "worker processes import the main module, which starts worker processes again\n"
            'hint: put what the script does below `if __name__ == "__main__":`'
        )


class _Here(threading.local):
    """What a thread of the pool knows."""

    place: "tuple[_Channel, int]"
    """Its process, and its arena there."""
    has_turn = False
    """Whether it alone may take keys for its process."""


class Processes:
    """Called with a list of keys, in a thread that `begin` was called in, it gives the batch.

    Args:
        fetch: makes a batch; pickled to each process.
        count: processes.
        init: called in each with its number, likewise pickled.
        seed: of the random numbers there: process n gets seed + n.

    Raises:
        TypeError: if something cannot be pickled.
    """

    def __init__(
        self, fetch: Callable[[Any], Any], count: int, *, init: Callable[[int], object] | None, seed: int
    ) -> None:
        try:
            work = pickle.dumps((fetch, init, registered()), protocol=5)
        except Exception as error:
            add_note(
                error,
                "while pickling the dataset and functions for worker processes\n"
                'hint: worker_type="thread" needs no pickling; functions must be defined at the top of a module',
            )
            raise
        self.threads = count * _THREADS_EACH
        """Threads that may call it."""
        self._make = lambda: [_Channel(number, work, seed) for number in range(count)]
        self._channels = self._make()
        self._here = _Here()
        self._process = os.getpid()

    def pool(self, call: Callable[[Task], Result]) -> Pool[Task, Result]:
        """Threads for these processes, which end with it.

        Args:
            call: this object, or what calls it with the keys of a task.
        """
        return Pool(call, self.threads, init=self.begin, turns=self, end=self.end, interrupt=self.close)

    def __call__(self, keys: Any) -> Any:
        """The batch of a list of keys."""
        channel, arena = self._here.place
        return channel.call(arena, keys, self.pass_turn)

    def begin(self, number: int) -> None:
        """Called in each thread of the pool, first; or whenever the process should be there."""
        with _renewing:
            if self._process != os.getpid():
                # A forked child: the processes are its parent's.
                for channel in self._channels:
                    channel.forget()
                self._process, self._channels = os.getpid(), self._make()
        channel = self._channels[number // _THREADS_EACH]
        self._here.place = (channel, number % _THREADS_EACH)
        channel.start()

    def take_turn(self) -> None:
        """Called in each thread of the pool before it takes keys: what its process's other one took is sent first."""
        if not self._here.has_turn:
            self._here.place[0].turn.acquire()
            self._here.has_turn = True

    def pass_turn(self) -> None:
        """Lets its process's other thread take keys."""
        if self._here.has_turn:
            self._here.has_turn = False
            self._here.place[0].turn.release()

    def end(self, number: int) -> None:
        """Called in each thread of the pool, last."""
        self._channels[number // _THREADS_EACH].reap()

    def close(self) -> None:
        """Ends the processes, also in the middle of a batch. Waits for nothing and takes no lock."""
        for channel in self._channels:
            channel.close()

    def pids(self) -> list[int]:
        """Those that run."""
        return [pid for channel in self._channels if (pid := channel.pid) is not None]


@contextlib.contextmanager
def _uninterrupted() -> Generator[None]:
    """Keeps SIGINT from this thread, and from processes that it starts until they allow it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Link:
    """A process and the connection to it."""

    def __init__(self, number: int, work: bytes, seed: int, arenas: list[Arena]) -> None:
        check_main()
        ours, theirs = (socket.socket(fileno=above_standard(end.detach())) for end in socket.socketpair())
        fds = [arena.fd for arena in arenas]
        code = (
            "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
            f"from headrace.loading.worker import main; main({theirs.fileno()}, {fds}, {os.getpid()})"
        )
        flags: list[str] = cast("Any", subprocess)._args_from_interpreter_flags()
        # A process group of its own: Ctrl-C in a terminal is for the parent, which also is quick to be seen.
        with theirs, _uninterrupted():
            self.process = subprocess.Popen(
                [sys.executable, *flags, "-c", code, json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *fds),
                process_group=0,
            )
        self._socket = ours
        self.connection = multiprocessing.connection.Connection(os.dup(ours.fileno()))
        self.dead = False
        self.asked = 0
        """Batches that it was asked for; counted by who holds the lock for sending."""
        self.given = 0
        """Those that it gave, or died of; counted by who holds the lock for reading."""
        preparation = multiprocessing.spawn.get_preparation_data(f"headrace-worker-{number}")
        # One that is pickled otherwise than by multiprocessing must be plain bytes.
        preparation["authkey"] = bytes(preparation["authkey"])
        try:
            self.connection.send_bytes(pickle.dumps((preparation, number, seed)))
            self.connection.send_bytes(work)
        except OSError:
            # It died already; whoever reads from it finds out.
            return

    def close(self) -> None:
        """Ends the process: at once if it works, else as a program ends. Waits for nothing and takes no lock."""
        if self.asked != self.given:
            self.process.kill()
            return
        # It may have gone already.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def release(self) -> None:
        """Gives up this side of the connection."""
        self.connection.close()
        self._socket.close()

    def outcome(self) -> str:
        """How the process ended."""
        try:
            status = self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "closed its connection"
        if status >= 0:
            return f"ended with exit status {status}"
        name = signal.Signals(-status).name
        return f"was killed by {name}" + (
            "\nhint: the kernel kills processes when memory runs out" if name == "SIGKILL" else ""
        )


class _Channel:
    """The place of a process: another one takes it when one died."""

    def __init__(self, number: int, work: bytes, seed: int) -> None:
        self._number = number
        self._work = work
        self._seed = seed
        self._link: _Link | None = None
        self._arenas: list[Arena] = []
        self._closed = False
        self.turn = threading.Lock()
        """Held by the thread that may take keys, until they were sent."""
        self._send = threading.Lock()
        self._read = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        link = self._link
        return None if link is None or link.dead else link.process.pid

    def start(self) -> None:
        """Starts the process, unless it was."""
        with self._send:
            self._linked()

    def call(self, arena: int, keys: Any, sent: Callable[[], object]) -> Any:
        """Sends keys, says so, and waits for their batch. Of two threads the first to send is the first to read."""
        message = pickle.dumps((arena, keys), protocol=5)
        while True:
            with self._send:
                link = self._linked()
                link.asked += 1
                # If it died whoever reads first says so.
                with contextlib.suppress(OSError):
                    link.connection.send_bytes(message)
                self._read.acquire()
            try:
                sent()
                if link.dead:
                    # It died of what came before, and had not begun with this.
                    continue
                reply = link.connection.recv_bytes()
            except (EOFError, OSError):
                link.dead = True
                raise ProcessDied(
                    f"worker process {self._number} (pid {link.process.pid}) {link.outcome()}\n"
                    "this batch is lost; another process takes its place"
                ) from None
            finally:
                link.given += 1
                self._read.release()
            return self._value(reply, self._arenas[arena], link)

    def close(self) -> None:
        """See `Processes.close`."""
        self._closed = True
        link = self._link
        if link is not None and not link.dead:
            link.close()

    def reap(self) -> None:
        """Waits for the end of a process, and gives back what it had."""
        with self._send, self._read:
            link, self._link = self._link, None
            if link is not None:
                link.close()
                link.outcome()
                link.process.wait()
                link.release()
            for arena in self._arenas:
                arena.close()
            self._arenas = []

    def forget(self) -> None:
        """Lets go of a process of the parent's, in a forked child."""
        link, self._link = self._link, None
        if link is not None:
            link.process.returncode = 0
            link.release()
        for arena in self._arenas:
            arena.close()

    def _linked(self) -> _Link:
        if self._closed:
            raise RuntimeError("this loader was closed")
        link = self._link
        if link is None or link.dead:
            if link is not None:
                link.release()
            if not self._arenas:
                self._arenas = [Arena.new() for _ in range(_THREADS_EACH)]
            link = self._link = _Link(self._number, self._work, self._seed, self._arenas)
            if self._closed:
                link.process.kill()
        return link

    def _value(self, reply: bytes, arena: Arena, link: _Link) -> Any:
        try:
            kind, value = decode(reply, arena)
        except Exception as error:
            add_note(error, f"while unpickling what worker process {self._number} made")
            raise
        if kind == MADE:
            return value
        where = f"in worker process {self._number} (pid {link.process.pid})"
        error, text = value if kind == FAILED else (None, value)
        raise as_raised_in(where, error, text)


def _begin_anew() -> None:
    """In a forked child, where nobody lets go of a lock that another thread of its parent held."""
    global _renewing
    _renewing = threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)
