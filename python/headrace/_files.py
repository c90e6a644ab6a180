"""The files of a dataset, wherever they lie, for formats that are read in Python.

Paths, listings and remote reads are the core's; this adds what formats need of them: a file opened for many small
reads, or taken whole and decompressed. Everything here pickles by address, so that another process can open it again.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from . import _core
from .errors import DataError

__all__ = ["Blob", "File", "MemoryBlob", "Store", "inside"]

MOST_DECOMPRESSED = 2**40
"""Bytes that a compressed file may become if nothing says how many it should: a bound on damage, not on memory."""


@dataclass(frozen=True, slots=True)
class File:
    """A file or object as it was listed."""

    path: str
    """Below the store's root, with ``/`` between its parts."""
    size: int
    """Bytes."""
    version: str = ""
    """Tells this content from another: a modification time or an entity tag."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class Blob(Protocol):
    """Bytes that can be read at any place, from several threads."""

    size: int
    """Bytes that can be read."""
    nbytes: int
    """Bytes of memory that it holds."""

    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes of ``range(start, stop)``.

        Raises:
            DataError: if the file does not hold them (any more).
        """
        ...


class MemoryBlob:
    """Bytes in memory."""

    __slots__ = ("_data", "_uri", "nbytes", "size")

    def __init__(self, data: bytes | memoryview, uri: str) -> None:
        self._data = memoryview(data).cast("B")
        self._uri = uri
        self.size = self.nbytes = len(self._data)

    def read(self, start: int, stop: int) -> bytes:
        _check_range(self._uri, start, stop, self.size)
        return self._data[start:stop].tobytes()


class _LocalBlob:
    """A file on disk, read in place: what is replaced by renaming does not disturb it."""

    __slots__ = ("_descriptor", "_uri", "nbytes", "size")

    def __init__(self, path: str, file: File) -> None:
        self._uri = path
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self._descriptor)
        self.size, self.nbytes = file.size, 0
        changed = file.version.startswith("m") and f"m{found.st_mtime_ns}" != file.version
        if found.st_size != file.size or changed:
            raise DataError(
                f"{path} changed since it was listed: expected {file.size} bytes of version {file.version!r}, "
                f"found {found.st_size} of m{found.st_mtime_ns}"
            )

    def read(self, start: int, stop: int) -> bytes:
        _check_range(self._uri, start, stop, self.size)
        data = os.pread(self._descriptor, stop - start, start)
        while len(data) < stop - start:
            more = os.pread(self._descriptor, stop - start - len(data), start + len(data))
            if not more:
                raise DataError(
                    f"{self._uri} changed while it was read: expected {stop - start} bytes at {start}, "
                    f"found {len(data)}"
                )
            data += more
        return data

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class Store:
    """The files below one root, as they were when it was opened. It pickles as that root, without the list.

    Attributes:
        urls: what was asked for.
        options: settings of the store; never shown.
    """

    def __init__(self, urls: Sequence[str], options: Mapping[str, str], *, listed: bool = True) -> None:
        self.urls = list(urls)
        self.options = dict(options)
        self._listed = listed

    @classmethod
    def at(cls, url: str, options: Mapping[str, str]) -> "Store":
        """The files below a folder, whose names something else than a listing tells."""
        return cls([url], options, listed=False)

    @cached_property
    def core(self) -> _core.Listing:
        """The core's side of it."""
        if self._listed:
            return _core.Listing.open(self.urls, storage_options=self.options, progress=_silent)
        return _core.Listing.root(self.urls[0], storage_options=self.options)

    @property
    def url(self) -> str:
        """The root, without secrets."""
        return self.core.url

    @property
    def is_folder(self) -> bool:
        """Whether one folder was asked for."""
        return self.core.is_folder

    @property
    def is_remote(self) -> bool:
        """Whether reads travel over a network."""
        return self.core.is_remote

    @cached_property
    def files(self) -> list[File]:
        """All files, by path as UTF-8 bytes; those below a folder or a glob without hidden ones."""
        return [File(*entry) for entry in self.core.files()]

    def uri(self, path: str) -> str:
        """The full name of a path, for messages."""
        return self.core.uri(path)

    def head(self, path: str) -> File:
        """A file as it is now.

        Raises:
            MissingError: if there is none.
        """
        return File(*self.core.head(path))

    def read(self, file: File, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes of a range of a file, all of them by default.

        Raises:
            DataError: if the file is no longer what was listed.
            StoreError: if the store does not answer.
        """
        stop = file.size if stop is None else stop
        _check_range(self.uri(file.path), start, stop, file.size)
        return bytes(memoryview(self.core.read(file.path, file.size, file.version, start, stop)))

    def open(self, file: File, *, codec: str | None = None, size: int | None = None) -> Blob:
        """A file for many reads: in place if it lies on a disk and is not compressed, else in memory.

        Args:
            file: the file.
            codec: how it is compressed: ``"zstd"``, ``"gzip"``, ``"snappy"`` or ``"brotli"``.
            size: bytes that it must have once decompressed, if that is known.
        """
        root = self.core.local_root
        if codec is None and root is not None:
            return _LocalBlob(os.path.join(root, file.path), file)  # noqa: PTH118
        data = memoryview(self.core.read(file.path, file.size, file.version, 0, file.size))
        if codec is not None:
            data = memoryview(
                _core.decompress(codec, data, size=size, most=MOST_DECOMPRESSED, name=self.uri(file.path))
            )
        return MemoryBlob(data, self.uri(file.path))

    def traffic(self) -> tuple[int, int, int]:
        """Requests, bytes and retries so far; local files opened in place are not counted."""
        return self.core.traffic()

    def __reduce__(self) -> Any:
        # Whoever takes it to another process knows which files it reads: nothing is listed again.
        return Store.at, (self.url, self.options)


def inside(name: str, where: str) -> str:
    """A path that an index names, which must not leave the dataset's folder.

    Raises:
        DataError: if it does, or is no path.
    """
    parts = name.split("/")
    if not name or "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise DataError(f"{where}: expected the path of a file below the dataset's folder, found {name!r}")
    return name


def _check_range(uri: str, start: int, stop: int, size: int) -> None:
    if not 0 <= start <= stop <= size:
        raise DataError(f"{uri}: expected to read bytes {start} to {stop}, the file has {size}")


def _silent(phase: str, done: int, total: int) -> None:
    pass
