"""What the facade asks of a driver, and the iterator over the rest of an epoch that most drivers give."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace import _disk_cache

__all__ = ["END", "Driver", "EpochDriver", "Mark"]

END: Any = object()
"""Stands for the batch after the last one: any other value, None included, may be a batch."""


@dataclass(frozen=True)
class Mark:
    """Where a driver stood. Made for each batch, so it costs little: the state is built when it is asked for."""

    step: int
    position: int
    epoch: int
    state: Callable[[], dict[str, Any]]
    where: Any
    """For the driver that made it."""


class Driver(ABC):
    """What feeds a loader: one kind for each kind of dataset. `headrace.DataLoader` documents the methods."""

    kind: str
    """What it feeds from, for messages."""
    dataset: Any

    @property
    @abstractmethod
    def rank(self) -> int:
        """Whose part of each batch it gives."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Ranks."""

    @property
    @abstractmethod
    def step(self) -> int:
        """The next step, counted through the whole run."""

    @property
    @abstractmethod
    def position(self) -> int:
        """Rows of all ranks given so far."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The epoch of the next step."""

    @property
    @abstractmethod
    def global_batch_size(self) -> int:
        """Rows of all ranks in the next step."""

    @abstractmethod
    def length(self) -> int:
        """Batches of the current epoch."""

    @abstractmethod
    def iterate(self) -> Iterator[Any]:
        """A new iterator; those before it raise when used."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The state after the last batch that was given."""

    def gather(self, group: Any) -> dict[str, Any]:
        """The state of all ranks: a collective where ranks know only their own part."""
        del group
        return self.state()

    @abstractmethod
    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, strict: bool) -> None:
        """Goes on from a state; on an error everything is as it was."""

    @abstractmethod
    def mark(self) -> Mark:
        """Where it stands, after the last batch that was given."""

    @abstractmethod
    def go_back(self, mark: Mark) -> None:
        """Stands where it stood at a mark, as if nothing had been given since. No batch may be on its way."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Counts for people and logs."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The arguments that were given, for `repr`."""

    @abstractmethod
    def close(self) -> None:
        """Ends the threads; the position stays."""

    def seek(self, step: int) -> None:
        """Goes to a step of the run."""
        raise self._cannot("seek", step)

    def skip(self, steps: range) -> None:
        """Passes over some of the steps to come."""
        raise self._cannot("skip", steps)

    def set_global_batch_size(self, rows: int) -> None:
        """Changes the rows of all ranks in a step, from the next step on."""
        raise self._cannot("set_global_batch_size", rows)

    def sources(self, step: int, rank: int | None) -> list[Any]:
        """Where the rows of a step come from."""
        raise self._cannot("sources", step, rank)

    def _cannot(self, method: str, *arguments: object) -> TypeError:
        del arguments
        return TypeError(f"{method}: a loader over {self.kind} cannot do that")


class EpochDriver(Driver):
    """A driver whose iterators each give the rest of the current epoch."""

    iteration: int = 0
    """Counts up whenever an iterator that is alive must not go on."""

    def __init__(self) -> None:
        self._exclusive = _Exclusive()

    def exclusive(self) -> "_Exclusive":
        """For one thread at a time: taking a batch, and going elsewhere.

        Raises:
            RuntimeError: if another thread is at it.
        """
        return self._exclusive

    @abstractmethod
    def next(self, epoch: int) -> Any:
        """The next batch, or `END` if the next step comes after `epoch`."""

    @abstractmethod
    def left(self, epoch: int) -> int:
        """Batches from the next step to the end of `epoch`."""

    def iterate(self) -> Iterator[Any]:
        """See `Driver.iterate`."""
        return _Epoch(self)


class _Exclusive:
    """Refuses a second thread. A class, as entering a generator costs a tenth of a small batch."""

    __slots__ = ("_busy",)

    def __init__(self) -> None:
        # Reentrant: an interrupt between taking it and the next line must not lock this thread out.
        self._busy = threading.RLock()

    def __enter__(self) -> None:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("another thread is waiting for this loader's next batch")

    def __exit__(self, *_: object) -> None:
        self._busy.release()


class _Epoch(Iterator[Any]):
    """The rest of one epoch. `len()` is the number of batches left."""

    def __init__(self, driver: EpochDriver) -> None:
        self._epoch = driver.epoch
        driver.iteration += 1
        self._driver = driver
        self._number = driver.iteration
        self._done = False

    def __next__(self) -> Any:
        driver = self._current()
        batch = END if self._done else driver.next(self._epoch)
        if batch is END:
            self._done = True
            _disk_cache.warn()
            raise StopIteration
        return batch

    def __len__(self) -> int:
        driver = self._current()
        return 0 if self._done else driver.left(self._epoch)

    def __iter__(self) -> "_Epoch":
        return self

    def __del__(self) -> None:
        # A half-used iterator that goes ends the threads that work for it; the position stays.
        # One that could not be made has nothing to end.
        if not getattr(self, "_done", True) and self._driver.iteration == self._number:
            self._driver.close()

    def _current(self) -> EpochDriver:
        if self._driver.iteration != self._number:
            raise RuntimeError(
                "this iterator is not the loader's latest: a newer one was made, or the loader was moved by seek or "
                "load_state_dict\nhint: iterate over the loader again"
            )
        return self._driver
