"""What a format offers: chunks of items in storage order, and how to read one.

A format is a module below `headrace.formats` with one subclass of `Source`. Nothing here knows of orders, pipelines or
loaders.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace import _core
from headrace._traffic import Traffic

__all__ = [
    "Chunk",
    "Extent",
    "Hits",
    "InPlace",
    "InPlaceColumn",
    "Named",
    "Place",
    "Places",
    "Source",
    "digest",
    "files_in",
]


class Place(NamedTuple):
    """Where a sample lies.

    Example:
        >>> str(Place("shard.00001.mds", 1, 17))
        'shard.00001.mds, chunk 1, row 17'
    """

    file: str
    """The file, by its path below the dataset's root."""
    chunk: int
    """The chunk, by its number in the dataset."""
    row: int
    """The item, by its number in the chunk."""

    @property
    def id(self) -> str:
        """The same as one text, by which `DataLoader` takes documents to exclude.

        Example:
            >>> Place("shard.00001.mds", 1, 17).id
            'shard.00001.mds:1:17'
        """
        return f"{self.file}:{self.chunk}:{self.row}"

    def __str__(self) -> str:
        return f"{self.file}, chunk {self.chunk}, row {self.row}"


class Places(tuple[Place, ...]):
    """Where the parts of a sample of a zip lie: a `Place` for each source.

    Example:
        >>> str(Places([Place("a.mds", 1, 17), Place("b.jsonl", 0, 3)]))
        'a.mds, chunk 1, row 17; b.jsonl, chunk 0, row 3'
    """

    __slots__ = ()

    def __str__(self) -> str:
        return "; ".join(map(str, self))


class Extent(NamedTuple):
    """How much of a source: its first chunks."""

    chunks: int
    samples: int
    """In them: of a chunk that was not full yet, those that it had."""


class Chunk(ABC):
    """A chunk that was opened or read. Several threads may use it at once; it never changes."""

    nbytes: int = 0
    """Bytes of memory that it holds; next to nothing if it is read in place."""

    @abstractmethod
    def __len__(self) -> int:
        """Items."""

    @abstractmethod
    def __getitem__(self, row: int) -> Any:
        """A sample, made anew each time.

        Args:
            row: in ``range(len(chunk))``, checked by the caller.

        Raises:
            DataError: if the stored bytes are not such a sample.
        """

    def take(self, rows: Sequence[int]) -> list[Any]:
        """Several samples, in the order asked for."""
        return [self[row] for row in rows]

    @classmethod
    def gather(
        cls, chunks: "Sequence[Chunk]", which: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> dict[str, Any] | None:
        """The samples of a batch column by column, if that costs less than one by one.

        Args:
            chunks: of this class.
            which: int64, (samples,): which chunk each sample is in.
            rows: int64, (samples,): which item of that it is.

        Returns:
            For each column an array of its stored type, or a list of values; None if there is no such way.

        Raises:
            Exception: if a sample is damaged; which one, reading it by itself tells.
        """
        del chunks, which, rows
        return None

    def arrays(self, columns: Sequence[str]) -> Mapping[str, Any]:
        """Whole columns, for conditions: from each name to an array or list with an entry for each item."""
        samples = self.take(range(len(self)))
        return {name: [sample[name] for sample in samples] for name in columns}


class InPlaceColumn(NamedTuple):
    """An array of what the items of a batch have in common."""

    name: str
    dtype: np.dtype[Any]
    """Of the values as they come."""
    shape: tuple[int, ...]
    """Of an item."""


@dataclass(frozen=True)
class InPlace:
    """Items that are rows of one width in files: any is found by arithmetic.

    Attributes:
        files: path, size and version of each chunk's file.
        store: below whose root they lie; None for paths of this machine.
        begins: for each chunk the first byte of its first item.
        stride: bytes from one item of a chunk to the next.
        width: bytes of an item.
        convert: types of whole numbers, from one to the other; None if the bytes stay as they are.
        split: bytes of a record, and of each column's field its first byte there and its bytes; None for one column
            that is all of an item.
        columns: what becomes of an item.
    """

    files: Sequence[tuple[str, int, str]]
    store: "_core.Listing | None"
    begins: Sequence[int]
    stride: int
    width: int
    convert: tuple[str, str] | None
    split: tuple[int, list[tuple[int, int]]] | None
    columns: tuple[InPlaceColumn, ...]


class Hits(NamedTuple):
    """Items that have some places."""

    chunk: int
    """The number of their chunk."""
    rows: npt.NDArray[np.int64]
    """int64, (items,): which items of it."""
    is_there: npt.NDArray[np.bool_]
    """bool, (places,): which of the places they have."""


class Named(ABC):
    """Items in chunks, which have places.

    A place names a file by its path below the root, with the chunk's number in the dataset, or by its whole URL, with
    the chunk's number in the file.

    Attributes:
        sizes: int64, (chunks,): items in each chunk. Those of a file lie side by side.
        url: the root, without secrets.
    """

    sizes: npt.NDArray[np.int64]
    url: str

    @abstractmethod
    def file(self, chunk: int) -> str:
        """The file that a chunk lies in, by its path below the root."""

    def file_url(self, chunk: int) -> str:
        """The same by its whole URL."""
        return f"{self.url.rstrip('/')}/{self.file(chunk)}"

    def first_chunk(self, url: str) -> int | None:
        """The first chunk of a file, by its whole URL; None if there is no such file."""
        return self._first_chunks.get(url) if url.startswith(f"{self.url.rstrip('/')}/") else None

    @cached_property
    def _first_chunks(self) -> dict[str, int]:
        return {self.file_url(chunk): chunk for chunk in reversed(range(len(self.sizes)))}

    def place(self, chunk: int, row: int) -> Place:
        """Where an item lies, for messages and provenance."""
        return Place(self.file(chunk), chunk, row)

    def whole_places(self, chunk: int, rows: Iterable[int]) -> Iterator[Place]:
        """Where items of a chunk lie, with the file's whole URL."""
        url = self.file_url(chunk)
        first = self.first_chunk(url)
        assert first is not None  # it has this chunk
        return (Place(url, chunk - first, row) for row in rows)

    def items_in(self, url: str) -> list[int] | None:
        """How many items each chunk of a file has, by its whole URL; None if there is no such file."""
        first = self.first_chunk(url)
        if first is None:
            return None
        file = self.file(first)
        own = takewhile(lambda chunk: self.file(chunk) == file, range(first, len(self.sizes)))
        return [int(self.sizes[chunk]) for chunk in own]

    def named(self, file: str, chunk: int, rows: npt.NDArray[np.int64]) -> Hits | None:
        """Which items have these places.

        Args:
            file: of a place.
            chunk: of a place, 0 or more.
            rows: int64, (places,): of some places, 0 or more.

        Returns:
            None if there is no such chunk.
        """
        if (first := self.first_chunk(file)) is not None:
            file, chunk = self.file(first), first + chunk
        if chunk >= len(self.sizes) or self.file(chunk) != file:
            return None
        is_there = rows < self.sizes[chunk]
        return Hits(chunk, rows[is_there], is_there)


class Source(Named):
    """A dataset where it lies. It never changes, may be used by several threads, and pickles by address.

    Attributes:
        format: the format's name, as `headrace.open` takes it.
        stored: int64, (chunks,): bytes of each chunk in the store.
        schema: names and types of a sample's parts, as text; ``{"": type}`` if a sample is no dict.
        random_access: whether reading items at random costs as much as reading them in order, wherever they lie: it
            decides the order, which no store may change.
        dtypes: NumPy types of the columns that hold numbers, if chunks can be gathered column by column.
        remote: whether reads travel over a network, so that many at once pay.
        advice: how the same files are opened for what their samples lack as they are, if there is such a way.
    """

    format: str
    stored: npt.NDArray[np.int64]
    schema: Mapping[str, str]
    random_access: bool = False
    remote: bool = False
    dtypes: Mapping[str, np.dtype[Any]] = MappingProxyType({})
    advice: str = ""

    @abstractmethod
    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        """Opens or reads a chunk.

        Args:
            chunk: in ``range(len(sizes))``.
            columns: the parts of a sample that are wanted, in this order; None for all. A sample is then a dict of
                these. Given only if samples are dicts that have them.

        Raises:
            DataError: if it is damaged, or changed since the dataset was opened.
            StoreError: if the store does not answer.
        """

    @abstractmethod
    def identity(self, extent: Extent | None = None) -> str:
        """A digest of what decides which samples there are: the same on every machine that sees the same data.

        Args:
            extent: what it was when this was all there was, if the rest was added behind it; None for all of it.
        """

    def in_place(self, columns: tuple[str, ...] | None = None) -> InPlace | None:
        """How its items lie, if batches of them need no chunk: they are read where they lie, and checked by nothing.

        Args:
            columns: as for `load`.
        """
        del columns
        return None

    def cuts(self, chunk: int) -> npt.NDArray[np.int64] | None:
        """Where a chunk can be cut that is compressed as a whole, so that who reads it once need not hold all of it.

        Returns:
            The first item of each part, and the number of items behind the last one; None if it is not so.
        """
        del chunk
        return None

    def stream(self, chunk: int) -> Iterator[bytes]:
        """The bytes of the parts of a chunk that has `cuts`, one after another, for `part`."""
        raise NotImplementedError

    def part(self, chunk: int, number: int, data: bytes, columns: tuple[str, ...] | None = None) -> Chunk:
        """A part of a chunk that has `cuts`, made of its bytes. Its first item has the number 0."""
        raise NotImplementedError

    def traffic(self) -> Traffic:
        """What the store was asked for so far."""
        return Traffic()

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The names of a sample's parts, or None if samples are no dicts."""
        return None if "" in self.schema else tuple(self.schema)


def files_in(extent: Extent | None, owners: npt.NDArray[np.int64], count: int) -> int:
    """How many files an extent has: those before the one that the chunk behind it lies in.

    Args:
        extent: None for all.
        owners: int64, (chunks,): the file of each chunk.
        count: of all files.
    """
    return count if extent is None or extent.chunks >= len(owners) else int(owners[extent.chunks])


def digest(*parts: Any) -> str:
    """A digest of plain values, for `Source.identity`."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
