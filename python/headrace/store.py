"""`Store`: a place of files that can be listed, read and written, on a disk or in a store; see docs/stores.md."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, SupportsIndex

from . import _core
from ._paths import address, expanded, options_of
from ._units import as_int

__all__ = ["Store", "StoredFile"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What a store knows of a file without reading it.

    Example:
        >>> file = headrace.Store(folder).head("a.parquet")
        >>> file.key, file.size > 0, file.etag is None, file.modified.tzinfo
        ('a.parquet', True, True, datetime.timezone.utc)
    """

    key: str
    """Its path below the store's root, with ``/`` between its parts."""
    size: int
    """Bytes."""
    version: str
    """Tells this content from another: ``m`` and nanoseconds since 1970, ``e`` and the entity tag, or nothing."""
    modified: datetime | None
    """When it was written, in UTC, if the store tells."""

    @property
    def etag(self) -> str | None:
        """The entity tag with its quotes, if the store has any."""
        return self.version[1:] if self.version.startswith("e") else None


class Store:
    """The files below a folder, a bucket or a prefix of it, or whatever else a URL names.

    Names of files (keys) are paths below that root with ``/`` between their parts, taken as they stand; only below web
    servers they are parts of URLs, and percent-encoded. Nothing is asked of the store before it is used. It pickles
    with its options as they were given, and may be used by several threads, and by forked processes.

    Args:
        url: a path or URL, as `headrace.open` takes it. A folder may still have to be made. A ``{%Y-%m-%d}`` in it is
            filled in now, by the local clock and `datetime.strftime`.
        storage_options: settings of the store, on top of the environment variables of its provider.

    Raises:
        ValueError: if the URL or an option cannot be used.
        StoreError: if a local path cannot be looked at.

    Example:
        >>> store = headrace.Store(folder / "results")
        >>> store.put("run-1/loss.txt", b"0.25").size
        4
        >>> [file.key for file in store.list("run-1/")]
        ['run-1/loss.txt']
        >>> store.read("run-1/loss.txt", offset=2)
        b'25'
        >>> store.delete("run-1/loss.txt")
    """

    def __init__(self, url: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None) -> None:
        self._set(expanded(address(url, "url")), options_of(storage_options))

    def _set(self, given: str, options: dict[str, str]) -> None:
        self._given, self._options = given, options
        self._core = _core.Store(given, storage_options=options)

    @property
    def url(self) -> str:
        """The root, without secrets; of a folder its whole path."""
        return self._core.url

    @property
    def endpoint(self) -> str | None:
        """The server, where the URL does not name it and it is not the provider's own; without secrets."""
        return self._core.endpoint

    @property
    def is_remote(self) -> bool:
        """Whether files travel over a network."""
        return self._core.is_remote

    @property
    def local_root(self) -> Path | None:
        """The root, if it is a folder of this machine."""
        root = self._core.local_root
        return None if root is None else Path(root)

    def uri(self, key: str) -> str:
        """The full name of a file, without secrets: what `headrace.open` takes.

        Example:
            >>> headrace.Store("s3://bucket/web").uri("a b.parquet")
            's3://bucket/web/a b.parquet'
        """
        return self._core.uri(_key(key))

    def list(self, prefix: str = "", *, ordered: bool = True) -> Iterator[StoredFile]:
        """All files whose keys begin with a text, hidden ones too.

        Args:
            prefix: with a ``/`` at its end a folder; all files by default.
            ordered: whether they come sorted, by the bytes of their keys. All of them are known then before the first
                is given. Otherwise they come as the store tells of them, and only a few thousand are in memory.

        Raises:
            ValueError: if the store cannot say which files it has, as web servers.
            StoreError: if it does not answer.

        Example:
            >>> [file.key for file in headrace.Store(folder).list()]
            ['a.parquet']
        """
        pages = self._core.list(_key(prefix, "prefix"), ordered=ordered)
        return (_stored(entry) for page in iter(pages.next, []) for entry in page)

    def head(self, key: str) -> StoredFile:
        """A file as it is now, without its content.

        Raises:
            MissingError: if there is none.
            StoreError: if the store does not answer.

        Example:
            >>> headrace.Store(folder).head("a.parquet").key
            'a.parquet'
        """
        return _stored(self._core.head(_key(key)))

    def read(self, key: str, offset: SupportsIndex = 0, length: SupportsIndex | None = None) -> bytes:
        """The bytes of a file, or a range of them. All are of one version of it.

        Args:
            key: of the file.
            offset: bytes before the range.
            length: bytes of the range, by default all that follow.

        Raises:
            ValueError: if the range does not lie within the file.
            MissingError: if there is no such file.
            DataError: if it was replaced while it was read.
            StoreError: if the store does not answer.

        Example:
            >>> headrace.Store(folder).read("a.parquet", 0, 4)
            b'PAR1'
        """
        start = as_int(offset, "offset", least=0)
        count = None if length is None else as_int(length, "length", least=0)
        return bytes(memoryview(self._core.read(_key(key), offset=start, length=count)))

    def put(
        self, key: str, data: bytes | bytearray | memoryview | os.PathLike[str], *, only_new: bool = False
    ) -> StoredFile:
        """Stores a file: readers see what was there before, or all of the new one.

        What is large goes to S3, Google Cloud Storage and Azure in parts, a few of which are in memory at a time. What
        was stored is looked at before this returns. Faults that pass are got over as with reads, see docs/stores.md.

        Args:
            key: of the file; folders on the way to it are made.
            data: bytes, or the path of a local file (a `pathlib.Path`, not text).
            only_new: whether a file that is there is left as it is, which is an error then. At most 8 MiB.

        Returns:
            What the store knows of it now.

        Raises:
            TypeError: if `data` is neither.
            ValueError: if the store is read only (web servers, the Hugging Face Hub), or the key cannot be one.
            FileExistsError: if `only_new`, and there is one.
            DataError: if a local file changed while it was read.
            StoreError: if it cannot be stored; what was there before still is.

        Example:
            >>> store = headrace.Store(folder / "copies")
            >>> store.put("b.parquet", folder / "a.parquet").size == (folder / "a.parquet").stat().st_size
            True
        """
        condition = "new" if only_new else ""
        if isinstance(data, os.PathLike):
            found = self._core.put_file(_key(key), os.fspath(data), condition=condition)
        else:
            found = self._core.put(_key(key), _bytes(data), condition=condition)
        if found is None:
            raise FileExistsError(f"{self.uri(key)}: expected no file of this name, found one")
        return _stored(found)

    def swap(self, key: str, data: bytes | bytearray | memoryview, version: str) -> StoredFile | None:
        """Stores a file in the place of a version of it, in one step: of several who do so one succeeds.

        On a disk and through fsspec it is two steps: the version is looked at, and then the file is stored.

        Args:
            key: of the file.
            data: at most 8 MiB.
            version: what has to be there, as `StoredFile.version` tells it.

        Returns:
            What the store knows of the new one; None if something else or nothing was there, and then still is.

        Raises:
            ValueError: if the store is read only, or knows no versions.
            StoreError: if it cannot be stored.

        Example:
            >>> store = headrace.Store(folder / "counts")
            >>> before = store.put("count", b"1")
            >>> store.swap("count", b"20", before.version).size
            2
            >>> store.swap("count", b"300", before.version) is None
            True
        """
        if not version:
            raise ValueError(f"{self.uri(key)}: expected the version that has to be there, got none")
        found = self._core.put(_key(key), _bytes(data), condition=f"={version}")
        return None if found is None else _stored(found)

    def delete(self, key: str) -> None:
        """Removes a file; does nothing if there is none.

        Raises:
            ValueError: if the store is read only.
            StoreError: if it cannot be removed.

        Example:
            >>> headrace.Store(folder / "copies").delete("no such file")
        """
        self._core.delete(_key(key))

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def __reduce__(self) -> Any:
        # A relative path is found from another folder too.
        url = self._given if self._core.local_root is None else self.url
        return _again, (url, self._options)


def _again(url: str, options: dict[str, str]) -> Store:
    """A store in another process. Templates were filled in where it was made."""
    store = Store.__new__(Store)
    store._set(url, options)  # pyright: ignore[reportPrivateUsage]
    return store


def _key(key: Any, name: str = "key") -> str:
    if not isinstance(key, str):
        raise TypeError(f"{name} must be text, the path of a file below the store's root, got {key!r}")
    return key


def _stored(entry: tuple[str, int, str, int | None]) -> StoredFile:
    key, size, version, written = entry
    modified = None if written is None else _EPOCH + timedelta(microseconds=written // 1000)
    return StoredFile(key, size, version, modified)


def _bytes(data: Any) -> memoryview:
    if not isinstance(data, str):
        try:
            return memoryview(data).cast("B")
        except TypeError:
            pass
    hint = "\nhint: text.encode() gives bytes, and pathlib.Path(text) names a file" if isinstance(data, str) else ""
    raise TypeError(f"data must be bytes or the path of a file, got a {type(data).__name__}{hint}")
