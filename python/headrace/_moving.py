"""Loaders whose batches go elsewhere ahead of use: to a device's memory, say."""

import atexit
import queue
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

from .loader import DataLoader
from .loading.base import Driver, Mark

__all__ = ["MovingLoader"]

_POLL_SECONDS = 0.05
"""How long a thread waits before it looks whether it is still wanted, and a caller before Ctrl-C acts."""


_END_SECONDS = 5.0
"""How long the end of the process waits for a thread, which may wait for a store."""


class MovingLoader(DataLoader, ABC):
    """A `DataLoader` whose batches are sent elsewhere by a thread, so that the next ones are there before they are
    asked for.

    Where it stands is behind the last batch that was given, whatever was sent after that. The arguments are those of
    `DataLoader`.

    Args:
        ahead: batches that are sent ahead of use; 0 sends each when it is asked for, without a thread.
    """  # noqa: D205

    def __init__(self, *arguments: Any, ahead: int, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._ahead = ahead
        self._course: _Course | None = None
        """That of the latest iterator."""

    @abstractmethod
    def _send(self, batch: Any) -> Any:
        """Begins to move a batch; by the thread, if there is one."""

    @abstractmethod
    def _receive(self, sent: Any) -> Any:
        """What the training loop gets of what `_send` gave."""

    # Where it stands

    @property
    def step(self) -> int:
        """See `DataLoader.step`."""
        mark = self._mark()
        return super().step if mark is None else mark.step

    @property
    def position(self) -> int:
        """See `DataLoader.position`."""
        mark = self._mark()
        return super().position if mark is None else mark.position

    @property
    def epoch(self) -> int:
        """See `DataLoader.epoch`."""
        mark = self._mark()
        return super().epoch if mark is None else mark.epoch

    def state_dict(self) -> dict[str, Any]:
        """See `DataLoader.state_dict`: what was sent ahead does not count."""
        mark = self._mark()
        return super().state_dict() if mark is None else mark.state()

    # Going elsewhere

    def __iter__(self) -> Iterator[Any]:
        self._settle()
        if self._course is not None:
            self._course.latest = False
        self._course = _Course(self._driver, super().__iter__(), self._send, self._receive, self._ahead)
        return _Moving(self._course)

    def seek(self, step: SupportsIndex) -> None:
        """See `DataLoader.seek`."""
        self._settle()
        super().seek(step)

    def skip(self, steps: range) -> None:
        """See `DataLoader.skip`."""
        self._settle()
        super().skip(steps)

    def set_global_batch_size(self, rows: SupportsIndex) -> None:
        """See `DataLoader.set_global_batch_size`."""
        self._settle()
        super().set_global_batch_size(rows)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True) -> None:
        """See `DataLoader.load_state_dict`."""
        self._settle()
        super().load_state_dict(state, strict)

    def close(self) -> None:
        """See `DataLoader.close`."""
        self._settle()
        super().close()

    def _mark(self) -> Mark | None:
        """Where it stands, while a thread is ahead of that."""
        return None if self._course is None else self._course.mark

    def _settle(self) -> None:
        """Takes back what was sent ahead: the driver stands where the loader does."""
        if self._course is not None:
            self._course.settle()


class _Moving(Iterator[Any]):
    """The rest of an epoch, sent ahead of use. When it goes, so does the thread; what was sent is taken back later."""

    def __init__(self, course: "_Course") -> None:
        self._course = course

    def __next__(self) -> Any:
        return self._course.next()

    def __del__(self) -> None:
        self._course.stop()


class _Course:
    """An iterator's batches, what was sent of them, and where the loader stands."""

    def __init__(
        self,
        driver: Driver,
        batches: Iterator[Any],
        send: Callable[[Any], Any],
        receive: Callable[[Any], Any],
        ahead: int,
    ) -> None:
        self._driver, self._batches, self._send, self._receive = driver, batches, send, receive
        self._ahead = ahead
        self._sender: _Sender | None = None
        self.mark: Mark | None = None
        """Where it stands, while a thread is ahead of that."""
        self.latest = True

    def next(self) -> Any:
        """The next batch.

        Raises:
            StopIteration: after the last one.
            Exception: in place of a batch that could not be made or sent.
        """
        if not self._ahead or not self.latest:
            # One that is not the latest raises.
            return self._receive(self._send(next(self._batches)))
        if self._sender is None:
            self.mark = self._driver.mark()
            self._sender = _Sender(self._batches, self._send, self._driver.mark, self._ahead)
        found = self._sender.next()
        if isinstance(found, BaseException):
            # It sends nothing more: the driver stands where the loader does.
            self._sender = self.mark = None
            raise found
        sent, self.mark = found
        return self._receive(sent)

    def settle(self) -> None:
        """Ends the thread, and has the driver stand behind the last batch that was given."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.stop()
            # Wakes it if it waits for a batch.
            self._driver.close()
            sender.join()
        mark, self.mark = self.mark, None
        if mark is not None:
            self._driver.go_back(mark)

    def stop(self) -> None:
        """Has the thread end soon. Waits for nothing."""
        sender = self._sender
        if sender is not None:
            sender.stop()


class _Sender:
    """A thread that takes batches, sends them, and notes where the driver stands behind each."""

    def __init__(
        self,
        batches: Iterator[Any],
        send: Callable[[Any], Any],
        mark: Callable[[], Mark],
        ahead: int,
    ) -> None:
        self._batches, self._send, self._mark = batches, send, mark
        self._found: queue.Queue[tuple[Any, Mark] | BaseException] = queue.Queue(ahead)
        self._stopped = threading.Event()
        _senders.add(self)
        self._thread = threading.Thread(target=self._run, name="headrace-sender", daemon=True)
        self._thread.start()

    def next(self) -> tuple[Any, Mark] | BaseException:
        """What was sent and where the driver stood then; or what was raised instead, `StopIteration` at the end."""
        while True:
            try:
                return self._found.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue

    def stop(self) -> None:
        """Has the thread end soon."""
        self._stopped.set()

    def join(self, seconds: float | None = None) -> None:
        """Waits until it has ended, so long at most."""
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                sent = self._send(next(self._batches))
                self._put((sent, self._mark()))
            except BaseException as error:
                self._put(error)
                return

    def _put(self, found: tuple[Any, Mark] | BaseException) -> None:
        while not self._stopped.is_set():
            try:
                self._found.put(found, timeout=_POLL_SECONDS)
                return
            except queue.Full:
                continue


_senders: "weakref.WeakSet[_Sender]" = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """A device that is asked for copies while the process ends may take that badly."""
    senders = list(_senders)
    for sender in senders:
        sender.stop()
    for sender in senders:
        sender.join(_END_SECONDS)
