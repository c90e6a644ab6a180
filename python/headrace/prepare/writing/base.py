"""What a format offers for writing: an `Encoder`, which lives where samples are made, and a `Layout` of its files.

An encoder turns samples into bytes, some at a time. A layout, in the process that owns the output, turns stretches of
such bytes into chunks, and chunks into a dataset. What both have to agree on is the schema, as JSON text: it is that of
the dataset's first sample, or of the dataset that is added to.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from headrace._files import Store
from headrace.encryption import Encryption

__all__ = [
    "Catalog",
    "Encoder",
    "Entry",
    "Existing",
    "Layout",
    "Options",
    "Piece",
    "Stored",
    "at_key",
    "below",
    "joined",
    "kind_of",
    "zstd",
]

Entry = dict[str, Any]
"""What an index says of a chunk, as JSON has it; all have ``name``, ``samples`` and ``bytes``, those of its file."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How samples are to be stored."""

    compression: str | None = None
    """``"zstd"`` or ``"zstd:<level>"``."""
    serializers: Mapping[str, Any] | None = None
    """The user's own, for LitData: objects with ``can_serialize(value)`` and ``serialize(value)``."""
    encryption: Encryption | None = field(default=None, repr=False)
    """What encrypts samples or chunks, in LitData."""
    tokens: bool = False
    """Whether samples are arrays of tokens, which LitData stores without anything between them."""
    chunk_size: int | None = None
    chunk_bytes: int | None = None
    group_bytes: int = 16 << 20
    """Bytes of values in a row group or a batch, about: what a reader takes at once."""
    metadata: Mapping[str, str] | None = None
    """What Parquet and Arrow files say of themselves, beside the types of their columns. Samples that are added to a
    dataset have to be of the same."""


class Stored(Protocol):
    """Encoded samples, wherever they are kept."""

    sizes: npt.NDArray[np.int64]
    """Bytes that each sample counts for."""

    def read(self, start: int, stop: int) -> memoryview:
        """A range of the encoded bytes."""
        ...

    @property
    def nbytes(self) -> int:
        """All of the encoded bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of samples that were encoded together."""

    stored: Stored
    start: int
    """The first sample."""
    stop: int
    """Behind the last one."""

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes that each sample counts for."""
        return self.stored.sizes[self.start : self.stop]

    def rows(self) -> memoryview:
        """The bytes of the samples, for an encoder whose samples lie one behind another."""
        begin = int(self.stored.sizes[: self.start].sum())
        return self.stored.read(begin, begin + int(self.sizes.sum()))


@dataclass(frozen=True, slots=True)
class Existing:
    """A dataset that is there already."""

    entries: list[Entry]
    """Its chunks."""
    schema: str | None
    """That of its samples."""


class Encoder(ABC):
    """Turns samples into bytes."""

    @property
    @abstractmethod
    def schema(self) -> str | None:
        """What samples are like, None before the first one; setting it decides for all that follow."""

    @schema.setter
    @abstractmethod
    def schema(self, value: str | None) -> None: ...

    @abstractmethod
    def add(self, sample: Any) -> int:
        """Takes a sample, and says how many bytes it counts for in a chunk.

        Raises:
            TypeError: if the format cannot hold it, or it is not like the first one; names the key.
            ValueError: if a value is beyond what the format can hold.
        """

    @abstractmethod
    def drop(self, count: int) -> None:
        """Forgets the last samples of those that were not taken."""

    @abstractmethod
    def take(self) -> bytes:
        """The bytes of all samples since the last time."""


class Catalog(ABC):
    """What makes a dataset of files: the index that lists them."""

    format: str
    index_name: str
    """The file that lists the chunks, below the dataset's folder."""
    pattern: str
    """A regular expression of chunks' names, whose first group is the number that new ones must not have."""

    @abstractmethod
    def index(self, entries: Sequence[Entry], schema: str | None) -> bytes:
        """The index of a dataset of these chunks."""

    @abstractmethod
    def read(self, index: bytes, there: Store) -> Existing:
        """A dataset by its index.

        Args:
            index: its content.
            there: the files of the dataset.

        Raises:
            DataError: if the index is damaged.
            ValueError: if samples cannot be added to it.
        """


class Layout(Catalog):
    """How a format's files look: a chunk's, and the index that makes a dataset of them."""

    most_bytes: int
    """The largest chunk that the format can hold, in the bytes that samples count for."""

    @abstractmethod
    def name(self, base: int, number: int) -> str:
        """The file of a chunk of a run.

        Args:
            base: the first number that no file in the folder has.
            number: of the chunk, from 0.
        """

    @abstractmethod
    def write(self, path: Path, name: str, pieces: Sequence[Piece], schema: str | None) -> Entry:
        """Writes a chunk, whose name will be `name`; gives what the index says of it."""

    def renamed(self, entry: Entry, name: str) -> Entry:
        """What the index says of the same chunk in a file of another name."""
        return {**entry, "name": name}

    def weights(self, sizes: npt.NDArray[np.int64], schema: str | None) -> npt.NDArray[np.int64]:
        """What samples of these sizes count for in `chunk_size`: one each."""
        return np.ones_like(sizes)

    def unify(self, known: str | None, found: str | None) -> str | None:
        """The schema of samples of both kinds.

        Raises:
            TypeError: if there is none; says where they differ.
        """
        if known is None or found is None or known == found:
            return known if found is None else found
        return self.bring_together(known, found)

    @abstractmethod
    def bring_together(self, known: str, found: str) -> str:
        """See `unify`."""

    def settle(self, folder: Path, entries: list[Entry], schema: str | None) -> list[Entry]:
        """Brings chunks, which are not yet part of a dataset, to the schema that was found in the end."""
        return entries


class _AtKey(NamedTuple):
    """What an error is about, and its text."""

    key: str
    text: str


def at_key(name: str, error: Exception) -> Exception:
    """The same error, with the key that it is about, or the path of what lies there; raised where it was."""
    if not name:
        return error
    if type(error) not in (TypeError, ValueError):
        # Of a type that may be made of something else than a text.
        error.add_note(f"in key {name!r}")
        return error
    inner = getattr(error, "at", None)
    found = _AtKey(below(name, inner.key), inner.text) if isinstance(inner, _AtKey) else _AtKey(name, str(error))
    whole = type(error)(f"key {found.key!r}: {found.text}")
    setattr(whole, "at", found)  # noqa: B010
    return whole.with_traceback(error.__traceback__)


def below(name: str, key: Any) -> str:
    """The path of what lies at a key, or a place, of something with a path: ``"meta.tags.0"``."""
    return f"{name}.{key}" if name else str(key)


def kind_of(value: Any) -> str:
    """What a value is, in a word or two."""
    if isinstance(value, np.ndarray):
        array: Any = cast("Any", value)
        return f"an array of {array.dtype} with {array.ndim} dimensions"
    module = type(value).__module__
    if module.startswith("headrace."):
        module = "headrace"
    return type(value).__name__ if module == "builtins" else f"{module}.{type(value).__name__}"


def zstd(compression: str) -> Any:
    """What compresses as asked: an object with ``compress(data, asbytes=True)``.

    Raises:
        ImportError: if pyarrow is not installed.
    """
    try:
        import pyarrow  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise ImportError("compression needs pyarrow\nhint: pip install 'headrace[prepare]'") from error
    _, _, level = compression.partition(":")
    arrow: Any = pyarrow
    return arrow.Codec("zstd", compression_level=int(level) if level else None)


def joined(pieces: Sequence[Piece]) -> Iterator[memoryview]:
    """The bytes of pieces, one after another."""
    for piece in pieces:
        yield piece.rows()
