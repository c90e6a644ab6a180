"""JSON Lines, plain or compressed: a value on each line.

Plain files are cut at line ends into spans of about 4 MiB, each a chunk that is read in place. A file that is
compressed as a whole is one chunk, decompressed in memory.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from headrace._files import Blob, File, MemoryBlob, Store
from headrace._progress import index_progress
from headrace._traffic import Traffic
from headrace.errors import DataError
from headrace.samples.source import Chunk, Source, digest

from ._line_keys import Stretch, find_value
from ._line_tables import Progress, codec_of, find_tables, pieces
from ._lines import Lines, Spans, find_lines, look_through
from ._tables import Table, cached

__all__ = ["JsonlSource"]

IN_MEMORY = 1 << 20
"""Bytes of a file that is not worth an open descriptor for its chunk."""
LINES_FOR_SCHEMA, BYTES_FOR_SCHEMA = 100, 256 << 10
"""What is looked at to tell the types of values."""

_MEANING = 1
"""Of the table of a key: raised when it comes to mean something else."""

_decode: Callable[[str], Any] = json.JSONDecoder().decode


class JsonlSource(Source):
    """Files of JSON Lines. A sample is what `json.loads` gives for a line; blank lines are passed over.

    Attributes:
        schema: what the first lines tell, and keys of other lines that were asked for since.
    """

    format = "jsonl"

    def __init__(
        self, store: Store, files: Sequence[File], tables: Sequence[tuple[Sequence[int], Table]], cache_dir: Path
    ) -> None:
        self._store, self._cache = store, cache_dir
        self._files = list(files)
        self.url = store.url
        self.remote = store.is_remote
        parts: list[npt.NDArray[np.int64]] = []
        for numbers, table in tables:
            part = table["spans"].copy()
            part[:, 0] = np.asarray(numbers, np.int64)[part[:, 0]]
            parts.append(part)
        spans = np.concatenate([*parts, np.zeros((0, 5), np.int64)])
        self._spans = spans[np.argsort(spans[:, 0], kind="stable")]
        self.sizes = np.ascontiguousarray(self._spans[:, 4])
        owners: list[int] = self._spans[:, 0].tolist()
        compressed = np.array([codec_of(self._files[owner].path) is not None for owner in owners], np.bool_)
        lengths = np.array([self._files[owner].size for owner in owners], np.int64)
        self.stored = np.where(compressed, lengths, self._spans[:, 2] - self._spans[:, 1])
        self.schema = self._types = self._find_schema()

    @classmethod
    def open(cls, store: Store, files: Sequence[File], *, cache_dir: Path, progress: Progress) -> "JsonlSource":
        """Counts lines, or finds in the cache what was counted before.

        Args:
            store: where the files lie.
            files: those to read, in storage order.
            cache_dir: where tables are kept.
            progress: called with a phase, bytes done and bytes in all; from any thread, one at a time.

        Raises:
            DataError: if a file is damaged, or is one JSON array instead of lines.
            StoreError: if the store does not answer.
        """
        return cls(store, files, find_tables(store, files, cache_dir=cache_dir, progress=progress), cache_dir)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The keys of the schema. Whether another key is among them is found out when it is asked: see `_Keys`."""
        return None if "" in self.schema else _Keys(self)

    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        """The lines of a span, or of a compressed file."""
        file, start, stop, line, items = self._span(chunk)
        uri = self._store.uri(file.path)
        codec = codec_of(file.path)
        if codec is not None:
            data = self._store.unpack(file, codec, size=stop)
            blob = MemoryBlob(data, uri)
        elif self._store.is_remote or file.size <= IN_MEMORY:
            data = self._store.read(file, start, stop)
            blob = MemoryBlob(data, uri)
        else:
            blob = self._store.open(file)
            data = blob.read(start, stop)
        lines = find_lines(data, is_start=start == 0)
        if len(lines.starts) != items:
            raise DataError(
                f"{uri} changed since it was opened: expected {items} lines that are not blank in bytes {start} to "
                f"{stop}, found {len(lines.starts)}"
            )
        offset = 0 if isinstance(blob, MemoryBlob) else start
        return JsonlChunk(blob, offset, lines, uri, line, columns)

    def file(self, chunk: int) -> str:
        """The file that a chunk lies in."""
        return self._span(chunk)[0].path

    def identity(self) -> str:
        """A digest of the files' names, sizes and numbers of items."""
        items = np.bincount(self._spans[:, 0], self.sizes, len(self._files)).astype(np.int64)
        names = [[file.path, file.size] for file in self._files]
        return digest("jsonl", names, items.tolist())

    def traffic(self) -> Traffic:
        """What the store counted."""
        return self._store.traffic()

    def has_key(self, key: str) -> bool:
        """Whether some line has a key. One that is not in the schema is looked for, and comes into it if it is found.

        Raises:
            DataError: if a compressed file is damaged.
            StoreError: if the store does not answer.
        """
        if key not in self._types and (kind := self._kind_of(key)):
            self._types[key] = kind
        return key in self._types

    def _kind_of(self, key: str) -> str:
        """The type of a key's values as the schema has it, told by one line; no text if no line has the key."""

        def look() -> Table:
            stretches = [Stretch(*self._span(chunk)[:3]) for chunk in range(len(self._spans))]
            with index_progress() as progress:
                found = find_value(self._store, stretches, key, progress)
            return {"kind": np.frombuffer("".join(map(_kind, found)).encode(), np.uint8)}

        files = [(file.path, file.size, file.version) for file in self._files]
        parts = [_MEANING, self._store.url, key, files]
        table = cached(self._cache, "key", parts, look) if all(file.version for file in self._files) else look()
        kind = table["kind"].tobytes().decode()
        return kind + "?" if kind and kind != "null" else kind

    def _span(self, chunk: int) -> tuple[File, int, int, int, int]:
        number, start, stop, line, items = cast("list[int]", self._spans[chunk].tolist())
        return self._files[number], start, stop, line, items

    def _find_schema(self) -> dict[str, str]:
        if not len(self._spans):
            return {}
        file, start, stop, line, _ = self._span(0)
        parts: list[bytes] = []
        spans = Spans()
        for piece in pieces(self._store, file, start, stop, BYTES_FOR_SCHEMA):
            parts.append(piece)
            spans.add(look_through(piece, is_start=start + spans.size == 0), len(piece))
            if spans.spans and spans.size >= BYTES_FOR_SCHEMA:
                break
        # Without the line that goes on, unless it is the last one.
        data = b"".join(parts)[: None if start + spans.size == stop else spans.spans[-1].stop]
        uri = self._store.uri(file.path)
        lines = Lines(*(part[:LINES_FOR_SCHEMA] for part in find_lines(data, is_start=start == 0)))
        chunk = JsonlChunk(MemoryBlob(data, uri), 0, lines, uri, line, None)
        return merge_types(chunk.take(range(len(chunk))))


class _Keys(tuple[str, ...]):
    """The keys of a schema, among which are all keys that any line has: asked for another one, it is looked for."""

    def __new__(cls, source: JsonlSource) -> "_Keys":
        keys = super().__new__(cls, source.schema)
        keys._source = source
        return keys

    _source: JsonlSource

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._source.has_key(key)

    def __bool__(self) -> bool:
        return True


class JsonlChunk(Chunk):
    """Lines of one file, in place or in memory."""

    def __init__(
        self, blob: Blob, offset: int, lines: Lines, uri: str, line: int, columns: tuple[str, ...] | None
    ) -> None:
        self._read = blob.read
        self._in_memory = isinstance(blob, MemoryBlob)
        # Views give Python's own integers.
        self._starts, self._stops = _compact(lines.starts), _compact(lines.stops)
        has_blanks = bool(len(lines.numbers)) and int(lines.numbers[-1]) + 1 != len(lines.numbers)
        self._numbers = _compact(lines.numbers) if has_blanks else range(len(lines.numbers))
        self._offset = offset
        self._uri = uri
        self._line = line
        self._columns = columns
        self.nbytes = blob.nbytes + (2 + has_blanks) * self._stops.nbytes

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, row: int) -> Any:
        return self._sample(row, self._line_at(row))

    def take(self, rows: Sequence[int]) -> list[Any]:
        """Several samples; those near each other are read together."""
        if not rows or self._in_memory:
            return [self[row] for row in rows]
        starts, stops = self._starts, self._stops
        start, stop = min(starts[row] for row in rows), max(stops[row] for row in rows)
        if stop - start > 2 * sum(stops[row] - starts[row] for row in rows):
            return [self[row] for row in rows]
        data = self._read(self._offset + start, self._offset + stop)
        return [self._sample(row, data[starts[row] - start : stops[row] - start]) for row in rows]

    def arrays(self, columns: Sequence[str]) -> Mapping[str, Any]:
        """Lists of the keys' values."""
        found: dict[str, list[Any]] = {name: [] for name in columns}
        for row in range(len(self)):
            for name, value in self._pick(row, self._value(row, self._line_at(row)), columns).items():
                found[name].append(value)
        return found

    def _line_at(self, row: int) -> bytes:
        return self._read(self._offset + self._starts[row], self._offset + self._stops[row])

    def _sample(self, row: int, line: bytes) -> Any:
        value = self._value(row, line)
        return value if self._columns is None else self._pick(row, value, self._columns)

    def _value(self, row: int, line: bytes) -> Any:
        try:
            return _decode(str(line, "utf-8"))
        except (ValueError, RecursionError) as error:
            raise DataError(_fault(self._where(row), line, error)) from None

    def _pick(self, row: int, value: Any, columns: Sequence[str]) -> dict[str, Any]:
        if not isinstance(value, dict):
            names = ", ".join(map(repr, columns))
            raise DataError(f"{self._where(row)}: expected an object with {names}, found {_kind(value)}")
        sample = cast("dict[str, Any]", value)
        return {name: sample.get(name) for name in columns}

    def _where(self, row: int) -> str:
        return f"{self._uri}, line {self._line + self._numbers[row] + 1}"


def _compact(numbers: Any) -> memoryview:
    """Ascending integers, in half of the memory where they allow it."""
    return memoryview(numbers.astype(np.uint32 if not len(numbers) or numbers[-1] < 2**32 else np.int64))


def merge_types(values: Iterable[Any]) -> dict[str, str]:
    """The schema of some values, as `JsonlSource.schema` states it.

    Each key's JSON type: ``bool``, ``int``, ``float``, ``str``, ``list`` or ``dict``; ``float`` for ints and floats;
    several joined by ``|`` in that order. A ``?`` follows if the key is null or missing in some, ``null`` stands if it
    is null in all. ``{"": "json"}`` if a value is no object.

    Example:
        >>> merge_types([{"id": 1, "text": "a"}, {"id": 2.5, "text": None}, {"id": 3}])
        {'id': 'float', 'text': 'str?'}
    """
    found: dict[str, dict[str, int]] = {}
    count = 0
    for value in values:
        count += 1
        if not isinstance(value, dict):
            return {"": "json"}
        sample = cast("dict[str, Any]", value)
        for name, part in sample.items():
            kinds = found.setdefault(name, {})
            kind = _kind(part)
            kinds[kind] = kinds.get(kind, 0) + 1
    # An object may have an empty key, which stands for no object at all in a schema.
    return {"": "json"} if "" in found else {name: _merged(kinds, count) for name, kinds in found.items()}


_KINDS = {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "dict", type(None): "null"}


def _kind(value: Any) -> str:
    return _KINDS[type(value)]


def _merged(kinds: dict[str, int], count: int) -> str:
    names = [kind for kind in _KINDS.values() if kind in kinds and kind != "null"]
    if "float" in names and "int" in names:
        names.remove("int")
    if not names:
        return "null"
    is_always = sum(kinds.values()) == count and "null" not in kinds
    return "|".join(names) + ("" if is_always else "?")


def _fault(where: str, line: bytes, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        what = f"UTF-8, found the byte 0x{line[error.start]:02x} at {error.start}"
    elif isinstance(error, RecursionError):
        what = "JSON of a depth that Python can read, found deeper nesting"
    else:
        start = line[:60].decode("utf-8", "replace")
        what = f"a JSON value, found {start!r}{'…' if len(line) > 60 else ''} ({error})"
    return f"{where}: expected {what}"
