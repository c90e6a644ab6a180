"""The files of a dataset, wherever they lie, for formats that are read in Python.

Paths, listings and remote reads are the core's; this adds what formats need of them: a file opened for many small
reads, or taken whole and decompressed. Everything here pickles by address, so that another process can open it again.
"""

import os
import resource
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from . import _core, _disk_cache
from ._progress import index_progress
from ._traffic import Traffic
from ._unpacking import unpack, unpacked
from .errors import DataError

__all__ = ["Blob", "File", "MemoryBlob", "Store", "files_kept", "inside"]

_MOST_KEPT = 256
"""Files that stay open in this process when nobody reads them, if it may have eight times as many. Opening one again
takes some microseconds."""


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

    def close(self) -> None:
        """Lets go of the bytes: it cannot be read any more."""
        self._data.release()


class _LocalBlob:
    """A file on disk, read in place: what is replaced by renaming does not disturb it while it is open.

    Only so many are open at a time in this process (`files_kept`); one that was closed is opened again when it is read.
    """

    __slots__ = ("_file", "_path", "nbytes", "size")

    def __init__(self, path: str, file: File) -> None:
        self._path = path
        self._file = _core.OpenFile(path, file.size, file.version, keep_open=files_kept())
        self.size, self.nbytes = file.size, 0

    def read(self, start: int, stop: int) -> bytes:
        _check_range(self._path, start, stop, self.size)
        return self._file.read(start, stop)


def files_kept() -> int:
    """How many files stay open in this process when nobody reads them."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_KEPT if most == resource.RLIM_INFINITY else max(1, min(_MOST_KEPT, most // 8))


class Store:
    """The files below one root, as they were when it was opened.

    It pickles without the list, as that root with the URLs, options and revision that it was made of: secrets among
    them are in the pickle as they were given. Those of the environment are not: they are looked up again.

    Attributes:
        urls: what was asked for.
        options: settings of the store; never shown.
        revision: what to read of a store with revisions, if that was found before; else what the URLs name is found.
    """

    def __init__(
        self,
        urls: Sequence[str],
        options: Mapping[str, str],
        cache: _disk_cache.Place | None = None,
        *,
        revision: str | None = None,
        listed: bool = True,
        root: str | None = None,
    ) -> None:
        self.urls = list(urls)
        self.options = dict(options)
        self.revision = revision
        self._cache = cache
        self._listed = listed
        self._root = root

    @classmethod
    def at(cls, url: str, options: Mapping[str, str], cache: _disk_cache.Place | None = None) -> "Store":
        """The files below a folder, whose names something else than a listing tells."""
        return cls([url], options, cache, listed=False)

    @classmethod
    def again(
        cls,
        urls: Sequence[str],
        options: Mapping[str, str],
        cache: _disk_cache.Place | None,
        revision: str | None,
        root: str,
    ) -> "Store":
        """The files below the root that was found for the URLs in another process. Nothing is listed again."""
        return cls(urls, options, cache, revision=revision, listed=False, root=root)

    @cached_property
    def core(self) -> _core.Listing:
        """The core's side of it.

        Raises:
            ValueError: if nothing matches, or a path is not UTF-8.
            StoreError: if the store does not answer.
        """
        for url in self.urls:
            if any("\ud800" <= letter <= "\udfff" for letter in url):
                raise ValueError(f"{url!r}: the path is not UTF-8, so no state could hold it\nhint: rename it")
        cache = None if self._cache is None else _disk_cache.opened(self._cache)
        if self._listed:
            with index_progress() as progress:
                return _core.Listing.open(
                    self.urls, storage_options=self.options, revision=self.revision, cache=cache, progress=progress
                )
        if self._root is not None:
            return _core.Listing.again(
                self.urls, self._root, storage_options=self.options, revision=self.revision, cache=cache
            )
        return _core.Listing.root(self.urls[0], storage_options=self.options, cache=cache)

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
            codec: how it is compressed, see `_unpacking.unpack`.
            size: bytes that it must have once decompressed, if that is known.

        Raises:
            DataError: if it is no longer what was listed, is damaged, has another size once decompressed, or then does
                not fit into memory.
            StoreError: if the store does not answer.
        """
        root = self.core.local_root
        if codec is None and root is not None:
            return _LocalBlob(os.path.join(root, file.path), file)  # noqa: PTH118
        data = self._whole(file) if codec is None else self.unpack(file, codec, size=size)
        return MemoryBlob(data, self.uri(file.path))

    def unpack(self, file: File, codec: str, *, size: int | None) -> memoryview:
        """The bytes of a compressed file, decompressed; see `open`."""
        return unpack(codec, self._whole(file), size=size, where=self.uri(file.path))

    @contextmanager
    def opened(self, file: File, *, codec: str | None) -> Generator[Blob]:
        """As `open`, for a file that is let go of at the end: until then its memory is counted."""
        if codec is None:
            yield self.open(file)
            return
        uri = self.uri(file.path)
        with unpacked(codec, self._whole(file), where=uri) as data:
            blob = MemoryBlob(data, uri)
            try:
                yield blob
            finally:
                # An error holds on to whoever had the bytes.
                blob.close()
                data.release()

    def _whole(self, file: File) -> memoryview:
        return memoryview(self.core.read(file.path, file.size, file.version, 0, file.size))

    def traffic(self) -> Traffic:
        """What was asked for so far; local files opened in place are not counted."""
        return Traffic(*self.core.traffic())

    def __reduce__(self) -> Any:
        # Whoever takes it to another process knows which files it reads.
        return Store.again, (self.urls, self.options, self._cache, self.core.revision, self.url)


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
