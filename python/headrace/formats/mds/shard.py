"""Shards of an MDS dataset as chunks: where samples begin, and a sample from its bytes.

Shard (little-endian): ``u32 n | u32 offset[n + 1] | JSON of the columns | samples``. Sample: a ``u32`` for each column
whose values vary in size, then the values. JSON, CSV, TSV and XSV shards have their lines in one file, and the same
head (``n``, offsets, JSON) in another.
"""

import json
import struct
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from headrace._files import Blob
from headrace.errors import DataError
from headrace.samples.source import Chunk, Place

from .encodings import decoder
from .index import Layout, Shard

__all__ = ["LineChunk", "MdsChunk", "SeparatedChunk"]

_FAULTS = (ValueError, ArithmeticError, LookupError, RecursionError, struct.error)
"""What decoders raise for bytes that are no such value (decimal's errors are ArithmeticErrors)."""

_LARGE = 64 << 10
"""Bytes from which on a sample's head is read first, and then only the columns that are wanted."""
_TEXT = {"str": str, "int": int, "float": float}


class _ShardChunk(Chunk):
    """Samples of any layout: a range of bytes for each, found by a table of offsets."""

    def __init__(self, uri: str, number: int, shard: Shard, data: Blob, head: Blob) -> None:
        self._uri, self._number = uri, number
        self._data = data
        self._read = data.read
        self._offsets, config = _offsets(uri, shard.samples, data.size, head, joint=head is data)
        _check_config(uri, config, shard.layout)
        self.nbytes = data.nbytes + self._offsets.nbytes

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Any:
        offset = self._offsets.item
        start, stop = offset(row), offset(row + 1)
        try:
            return self._sample(start, stop)
        except _FAULTS as error:
            if isinstance(error, DataError):
                raise
            place = Place(self._uri, self._number, row)
            raise DataError(f"{place}: {self._explain(self._read(start, stop))}{error}") from error

    def _sample(self, start: int, stop: int) -> Any:
        return self._decode(self._read(start, stop))

    @abstractmethod
    def _decode(self, data: bytes) -> Any:
        """A sample from its bytes; raises one of `_FAULTS` if they are none."""

    def _explain(self, data: bytes) -> str:
        """Which column of the bytes of a sample is at fault, if it can be said."""
        return ""


class MdsChunk(_ShardChunk):
    """Samples of an MDS shard."""

    def __init__(
        self, uri: str, number: int, shard: Shard, data: Blob, head: Blob, columns: tuple[str, ...] | None
    ) -> None:
        super().__init__(uri, number, shard, data, head)
        layout = shard.layout
        wanted = set(layout.names if columns is None else columns)
        varying = layout.sizes.count(None)
        # (name, bytes or None, decoder or None if not wanted) of each column, in the order they are stored.
        self._plan = [
            (name, size, decoder(encoding) if name in wanted else None)
            for name, size, encoding in zip(layout.names, layout.sizes, layout.encodings, strict=True)
        ]
        if columns is not None:  # Nothing behind the last wanted column need be looked at.
            while self._plan and self._plan[-1][2] is None:
                self._plan.pop()
        self._encodings = dict(zip(layout.names, layout.encodings, strict=True))
        self._head = struct.Struct(f"<{varying}I")
        self._least = self._head.size + sum(size or 0 for size in layout.sizes)
        self._template: dict[str, Any] = {} if columns is None else dict.fromkeys(columns)
        # Whether parts of large samples are passed over: those of a file that is read in place.
        self._is_partial = len(wanted) < len(layout.names) and not data.nbytes

    def _sample(self, start: int, stop: int) -> Any:
        if not self._is_partial or stop - start < _LARGE:
            return self._decode(self._read(start, stop))
        at = start + self._head.size
        varying = iter(self._sizes(self._read(start, min(at, stop)), stop - start))
        sample = self._template.copy()
        for name, size, decode in self._plan:
            end = at + (next(varying) if size is None else size)
            if decode is not None:
                sample[name] = decode(self._read(at, end))
            at = end
        return sample

    def _decode(self, data: bytes) -> dict[str, Any]:
        sizes = self._sizes(data, len(data))
        at = self._head.size
        sample = self._template.copy()
        varying = iter(sizes)
        for name, size, decode in self._plan:
            stop = at + (next(varying) if size is None else size)
            if decode is not None:
                sample[name] = decode(data[at:stop])
            at = stop
        return sample

    def _sizes(self, data: bytes, length: int) -> tuple[int, ...]:
        """The sizes that a sample of this length begins with."""
        if length < self._least:
            raise ValueError(f"expected a sample of at least {self._least} bytes, found {length}")
        sizes: tuple[int, ...] = self._head.unpack_from(data)
        if self._least + sum(sizes) != length:
            raise ValueError(f"expected a sample of {self._least + sum(sizes)} bytes by its head, found {length}")
        return sizes

    def _explain(self, data: bytes) -> str:
        try:
            varying = iter(self._sizes(data, len(data)))
        except ValueError:
            return ""
        at = self._head.size
        for name, size, decode in self._plan:
            stop = at + (next(varying) if size is None else size)
            try:
                if decode is not None:
                    decode(data[at:stop])
            except _FAULTS:
                return f"column {name!r} ({self._encodings[name]}): "
            at = stop
        return ""


class LineChunk(_ShardChunk):
    """Samples of a JSON shard: an object on each line."""

    def __init__(
        self, uri: str, number: int, shard: Shard, data: Blob, head: Blob, columns: tuple[str, ...] | None
    ) -> None:
        super().__init__(uri, number, shard, data, head)
        self._columns = columns

    def _decode(self, data: bytes) -> dict[str, Any]:
        sample = json.loads(data.decode())
        if not isinstance(sample, dict):
            raise ValueError(f"expected a JSON object, found {type(sample).__name__}")
        sample = cast("dict[str, Any]", sample)
        if self._columns is None:
            return sample
        if missing := [name for name in self._columns if name not in sample]:
            raise ValueError(f"expected a field {missing[0]!r}, found {list(sample)}")
        return {name: sample[name] for name in self._columns}


class SeparatedChunk(_ShardChunk):
    """Samples of a CSV, TSV or XSV shard: values with a separator between them, which nothing can quote."""

    def __init__(
        self, uri: str, number: int, shard: Shard, data: Blob, head: Blob, columns: tuple[str, ...] | None
    ) -> None:
        super().__init__(uri, number, shard, data, head)
        self._layout = layout = shard.layout
        names = layout.names if columns is None else columns
        self._plan: list[tuple[str, int, Any]] = [
            (name, layout.names.index(name), _TEXT[layout.encodings[layout.names.index(name)]]) for name in names
        ]

    def _decode(self, data: bytes) -> dict[str, Any]:
        layout, text = self._layout, data.decode()
        if not text.endswith(layout.newline):
            raise ValueError(f"expected a line that ends with {layout.newline!r}, found {text[-20:]!r}")
        parts = text[: -len(layout.newline)].split(layout.separator)
        if len(parts) != len(layout.names):
            raise ValueError(f"expected {len(layout.names)} values ({', '.join(layout.names)}), found {len(parts)}")
        return {name: decode(parts[at]) for name, at, decode in self._plan}


def _offsets(uri: str, samples: int, size: int, head: Blob, *, joint: bool) -> tuple[npt.NDArray[np.uint32], bytes]:
    """Where samples begin and end, and the JSON behind these numbers.

    Args:
        uri: for messages.
        samples: how many there are by the index.
        size: bytes of the file that the samples lie in.
        head: the file that begins with the offsets.
        joint: whether samples lie in that file too.
    """
    start = 4 + 4 * (samples + 1)
    if head.size < start:
        raise DataError(f"{uri}: expected {samples} samples, whose offsets need {start} bytes, found {head.size} bytes")
    found = int.from_bytes(head.read(0, 4), "little")
    if found != samples:
        raise DataError(f"{uri}: expected {samples} samples by the index, found {found}")
    offsets = np.frombuffer(head.read(4, start), "<u4")
    first, last = int(offsets[0]), int(offsets[-1])
    if first < (start if joint else 0) or last != size or bool((offsets[1:] < offsets[:-1]).any()):
        raise DataError(
            f"{uri}: expected the offsets of samples to grow from at least {start if joint else 0} to {size}, "
            f"found {_unordered(offsets)}"
        )
    return offsets, head.read(start, first if joint else head.size)


def _unordered(offsets: npt.NDArray[np.uint32]) -> str:
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        row = int(falls[0])
        return f"{offsets[row]} before {offsets[row + 1]} at row {row}"
    return f"{offsets[0]} to {offsets[-1]}"


def _check_config(uri: str, text: bytes, layout: Layout) -> None:
    """Compares the columns in a shard with those in the index: a shard of another dataset looks as good as its own."""
    if not text:
        return
    try:
        config: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{uri}: expected the columns as JSON behind the offsets, found {error}") from None
    if not isinstance(config, dict):
        raise DataError(f"{uri}: expected the columns as a JSON object behind the offsets, found {text[:40]!r}")
    wanted: dict[str, Sequence[Any]] = (
        {"column_names": layout.names, "column_encodings": layout.encodings} if layout.format != "json" else {}
    )
    for field, values in wanted.items():
        if (found := cast("dict[str, Any]", config).get(field, values)) not in (values, list(values)):
            raise DataError(f"{uri}: expected {field} {list(values)} as in the index, found {found!r}")
