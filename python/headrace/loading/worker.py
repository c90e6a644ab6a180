"""What a worker process does: it makes batches until its parent closes the connection, or is gone."""

import contextlib
import multiprocessing.connection
import multiprocessing.spawn
import os
import pickle
import random
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace._frames import told_in_worker

from .wire import FAILED, MADE, TEXT, Arena, encode

__all__ = ["begin", "main", "preparing"]

preparing = False
"""Whether this is a worker whose main module is being imported: a bad moment to start more of them."""


def main(connection_fd: int, arena_fds: list[int], parent: int) -> None:
    """Runs in a fresh interpreter; returns when there is nothing more to do."""
    global preparing
    # Ctrl-C is for the parent, which started this process with the signal blocked.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    connection = multiprocessing.connection.Connection(connection_fd)
    arenas: list[Arena] = [Arena(fd) for fd in arena_fds]
    arena: int
    # A descriptor of its own, which stays open while handlers of atexit run.
    threading.Thread(target=_watch, args=(os.dup(connection_fd), parent), daemon=True).start()
    fetch: Callable[[Any], Any] | None = None
    failure: BaseException | None = None
    try:
        preparation, number, seed = pickle.loads(connection.recv_bytes())
        work = connection.recv_bytes()
        preparing = True
        multiprocessing.spawn.prepare(preparation)
        preparing = False
        fetch = begin(work, number, seed)
    except (EOFError, ConnectionError):
        return
    except Exception as error:
        failure = error
    while True:
        try:
            arena, keys = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            return
        if fetch is None:
            reply = _failed(failure)
        else:
            try:
                reply = encode(MADE, fetch(keys), arenas[arena])
            except Exception as error:
                reply = _failed(error)
        with contextlib.suppress(BrokenPipeError):
            connection.send_bytes(reply)
        # A large one must not wait here for the next; nor what was printed.
        del reply
        # There may be none, or a full disk: no batch depends on it.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stdout.flush()


def begin(work: bytes, number: int, seed: int) -> Any:
    """Seeds what is random, and gives the function that makes batches."""
    fetch, init, rules = pickle.loads(work)
    from .collate import register_collate

    for kind, function in rules.items():
        register_collate(kind, function)
    own = (seed + number) % 2**64
    random.seed(own)
    np.random.seed([own & 0xFFFFFFFF, own >> 32])
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
        torch.manual_seed(own)
    if init is not None:
        try:
            init(number)
        except Exception as error:
            error.add_note(f"in worker_init_fn({number})")
            raise
    return fetch


def _failed(error: BaseException | None) -> bytes:
    text = told_in_worker(error) if error is not None else "it could not begin"
    try:
        whole = encode(FAILED, (error, text), None)
        # What cannot be read again is of no use there either.
        pickle.loads(pickle.dumps(error))
    except Exception:
        return encode(TEXT, text, None)
    return whole


def _watch(fd: int, parent: int) -> None:
    """Ends this process with its parent, also in the middle of a batch or of its own end.

    A child that the parent forked may keep the connection open, so its id is looked at as well.
    """
    poll = select.poll()
    poll.register(fd, select.POLLHUP)
    while True:
        if poll.poll(1000) or os.getppid() != parent:
            os._exit(1)
