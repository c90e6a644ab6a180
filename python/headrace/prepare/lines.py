"""A file of JSON lines that only grows: what a run notes, so that a later one knows of it after any kill."""

import errno
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .durable import store_error

__all__ = ["Lines"]


class Lines:
    """Threads may add lines at the same time.

    Args:
        path: of the file, made with the first line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._adding = threading.Lock()

    def read(self) -> list[Any]:
        """All lines up to one that a power cut damaged; one that was cut short is not there, and goes."""
        if not self._path.exists():
            return []
        data = self._path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            os.truncate(self._path, end)
        return list(_parsed(data[:end]))

    def add(self, line: Any, *, sync: bool = False) -> None:
        """Adds a line.

        Args:
            line: as JSON has it.
            sync: whether it, and all before it, are to outlive a power cut.

        Raises:
            StoreError: if it cannot be written; nothing of it is then there.
        """
        data = json.dumps(line).encode() + b"\n"
        with self._adding:
            try:
                if self._file is None:
                    self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
                start = os.fstat(self._file).st_size
                if os.write(self._file, data) != len(data):
                    os.ftruncate(self._file, start)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if sync:
                    os.fsync(self._file)
            except OSError as error:
                raise store_error(self._path, error) from None

    def exists(self) -> bool:
        """Whether there is such a file."""
        return self._path.exists()

    def close(self) -> None:
        """Lets go of the file, which stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def remove(self) -> None:
        """Removes the file."""
        self.close()
        self._path.unlink(missing_ok=True)


def _parsed(data: bytes) -> Iterator[Any]:
    for line in data.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return
