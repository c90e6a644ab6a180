"""Who does the work: what the engine asks of processes, wherever they are, and those of this machine."""

import contextlib
import pickle
from collections.abc import Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headrace.loading.processes import ProcessDied, Processes

from .job import Reply, Start

__all__ = ["SEED", "Engine", "Job", "Local", "MachineLost", "Workers"]


class Job(Protocol):
    """What processes do; pickled to each of them."""

    def check_machine(self) -> None:
        """Refuses a machine where it cannot be done. Called on other machines, first."""
        ...

    def __call__(self, message: Start | int, /) -> Reply | str:
        """Begins a task, or goes on with one."""
        ...


SEED: Final = 0
"""Of the random numbers in workers."""


class MachineLost(ProcessDied):
    """A worker process is gone with its machine, or cannot be reached: what it was at is not why."""


class Workers(Protocol):
    """Worker processes that have a job each, and are replaced when they die. Threads that have a number call them."""

    @property
    def threads(self) -> int:
        """How many threads; several may share a process, so that it has its next task when it ends one."""
        ...

    def begin(self, number: int) -> None:
        """Called in each thread before each task: returns once its process is there. Raises what it fails with."""
        ...

    def __call__(self, message: Start | int, /) -> Reply | str:
        """What the job gives for a message.

        Raises:
            ProcessDied: if the process died in the middle of it.
            Exception: whatever the job raised.
        """
        ...

    def end(self, number: int) -> None:
        """Called in each thread, last."""
        ...

    def close(self) -> None:
        """Ends the processes, and whatever threads wait for."""
        ...


class Engine(Protocol):
    """Where work is done."""

    def check(self, name: str, value: Any) -> None:
        """Refuses an argument that cannot be sent there.

        Raises:
            TypeError: says what to do.
        """
        ...

    def workers(self, job: Job) -> AbstractContextManager[Workers | None]:
        """Processes that do a job; None if this process does it."""
        ...


@dataclass(frozen=True)
class Local:
    """So many processes of this machine; with none this process does all work."""

    count: int

    def check(self, name: str, value: Any) -> None:
        """See `Engine`."""
        if not self.count:
            return
        try:
            pickle.dumps(value, protocol=5)
        except Exception as error:
            raise TypeError(
                f"{name} cannot be sent to worker processes: {error}\n"
                "hint: define it at the top of a module; or say num_workers=0, which runs it in this process"
            ) from None

    @contextlib.contextmanager
    def workers(self, job: Job) -> Generator[Workers | None]:
        """See `Engine`."""
        yield Processes(job, self.count, init=None, seed=SEED) if self.count else None
