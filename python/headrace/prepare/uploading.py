"""Chunks on their way to a store: brought there by threads as they are done, and noted, so that none goes twice."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from headrace.errors import DataError, StoreError
from headrace.store import Store

from .lines import Lines
from .writing import Entry

__all__ = ["NOTED", "Uploads"]

NOTED = "uploads.jsonl"
"""What has arrived, in the work folder."""
_THREADS = 2
"""Each sends a chunk in parts, several at once: while one begins or ends, the other one sends."""
_MOST_WAITING = 4
"""Chunks that wait to be sent, before those who make more of them wait: they take room on the disk."""


class Uploads:
    """Brings chunks to a store.

    Args:
        store: where they go, by their names.
        work: the work folder.
        chunks: where they lie until they have arrived.
        check: raises a StoreError if somebody else writes to the place by now: is called before each of them is sent.
    """

    def __init__(self, store: Store, work: Path, chunks: Path, check: Callable[[], None]) -> None:
        self._store, self._chunks, self._check = store, chunks, check
        self._noted = Lines(work / NOTED)
        self.arrived: dict[str, dict[str, Any]] = {line["name"]: line for line in self._noted.read()}
        """What is known of each chunk that has arrived."""
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._added: set[str] = set()
        self._changed = threading.Condition()
        self._waiting = 0
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def add(self, name: str) -> None:
        """Sends a chunk, once there is a thread for it; one that was added before is on its way.

        Raises:
            StoreError: if one before it could not be sent.
        """
        if name in self._added:
            return
        self._added.add(name)
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._waiting < _MOST_WAITING)
            self._raise()
            self._waiting += 1
        if not self._threads:
            for number in range(_THREADS):
                thread = threading.Thread(target=self._serve, name=f"headrace-upload-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._queue.put(name)

    def finish(self, entries: Iterable[Entry]) -> None:
        """Returns when all of these chunks are in the store, and looks whether they are.

        Raises:
            StoreError: if one could not be sent.
            DataError: if one that had arrived is not there any more.
        """
        entries = list(entries)
        for entry in entries:
            # What lies here still has not arrived, or was made anew.
            if (self._chunks / entry["name"]).exists():
                self.add(entry["name"])
        self._wait()
        there = {file.key: file for file in self._store.list(ordered=False)}
        for entry in entries:
            name, known = entry["name"], self.arrived.get(entry["name"], {})
            file = there.get(name)
            if file is not None and file.size == entry["bytes"] and file.version == known.get("version"):
                continue
            found = "none" if file is None else f"{file.size} bytes of version {file.version!r}"
            raise DataError(
                f"{self._store.uri(name)}: expected {entry['bytes']} bytes of version {known.get('version')!r} as they "
                f"were brought there, found {found}\nhint: another program writes there; resume=False begins anew"
            )

    def forget(self, keep: Iterable[str]) -> None:
        """Removes what has arrived, but files that a dataset has."""
        for name in set(self.arrived) - set(keep):
            self._store.delete(name)
        self.arrived = {}
        self._noted.remove()

    def take(self, source: Path, name: str) -> None:
        """Sends a file that lies elsewhere, at once."""
        if name not in self.arrived:
            self._send(source, name)

    def close(self) -> None:
        """Ends the threads, each after the chunk that it is at; what was not sent stays."""
        with self._changed:
            self._error = self._error or StoreError("closed")
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._noted.close()

    def _serve(self) -> None:
        while (name := self._queue.get()) is not None:
            path = self._chunks / name
            try:
                if self._error is None:
                    self._send(path, name)
                    path.unlink()
            except BaseException as error:
                self._error = self._error or error
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    def _send(self, source: Path, name: str) -> None:
        self._check()
        stored = self._store.put(name, source)
        line = {"name": name, "bytes": stored.size, "version": stored.version}
        self._noted.add(line, sync=True)
        self.arrived[name] = line

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting == 0)
            self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
