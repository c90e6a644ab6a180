"""JSON Lines, plain or compressed: a value on each line."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from headrace._files import Blob, File, MemoryBlob, Store
from headrace._progress import index_progress
from headrace.errors import DataError

from ._line_keys import Stretch, find_value
from ._line_source import LineChunk, LineSource
from ._line_tables import pieces
from ._lines import Lines, Spans, find_lines, look_through
from ._tables import Table, cached

__all__ = ["JsonlSource"]

LINES_FOR_SCHEMA, BYTES_FOR_SCHEMA = 100, 256 << 10
"""What is looked at to tell the types of values."""

_MEANING = 1
"""Of the table of a key: raised when it comes to mean something else."""

_decode: Callable[[str], Any] = json.JSONDecoder().decode


class JsonlSource(LineSource):
    """Files of JSON Lines. A sample is what `json.loads` gives for a line; blank lines are passed over.

    Attributes:
        schema: what the first lines tell, and keys of other lines that were asked for since.
    """

    format = "jsonl"
    is_json = True

    def __init__(
        self, store: Store, files: Sequence[File], tables: Sequence[tuple[Sequence[int], Table]], cache_dir: Path
    ) -> None:
        super().__init__(store, files, tables, cache_dir)
        self.schema = self._types = self._find_schema()

    def make(
        self, blob: Blob, offset: int, lines: Lines, uri: str, line: int, columns: tuple[str, ...] | None
    ) -> "JsonlChunk":
        """See `LineSource.make`."""
        return JsonlChunk(blob, offset, lines, uri, line, columns)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The keys of the schema. Whether another key is among them is found out when it is asked: see `_Keys`."""
        return None if "" in self.schema else _Keys(self)

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
            stretches = [Stretch(*self.span(chunk)[:3]) for chunk in range(len(self.spans))]
            with index_progress() as progress:
                found = find_value(self.store, stretches, key, progress)
            return {"kind": np.frombuffer("".join(map(_kind, found)).encode(), np.uint8)}

        files = [(file.path, file.size, file.version) for file in self.files]
        parts = [_MEANING, self.store.url, key, files]
        table = cached(self.cache, "key", parts, look) if all(file.version for file in self.files) else look()
        kind = table["kind"].tobytes().decode()
        return kind + "?" if kind and kind != "null" else kind

    def _find_schema(self) -> dict[str, str]:
        if not len(self.spans):
            return {}
        file, start, stop, line, _ = self.span(0)
        parts: list[bytes] = []
        spans = Spans()
        for piece in pieces(self.store, file, start, stop, BYTES_FOR_SCHEMA):
            parts.append(piece)
            spans.add(look_through(piece, is_start=start + spans.size == 0), len(piece))
            if spans.spans and spans.size >= BYTES_FOR_SCHEMA:
                break
        # Without the line that goes on, unless it is the last one.
        data = b"".join(parts)[: None if start + spans.size == stop else spans.spans[-1].stop]
        uri = self.store.uri(file.path)
        lines = Lines(*(part[:LINES_FOR_SCHEMA] for part in find_lines(data, is_start=start == 0)))
        chunk = self.make(MemoryBlob(data, uri), 0, lines, uri, line, None)
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


class JsonlChunk(LineChunk):
    """Lines with a value each."""

    def __init__(
        self, blob: Blob, offset: int, lines: Lines, uri: str, line: int, columns: tuple[str, ...] | None
    ) -> None:
        super().__init__(blob, offset, lines, uri, line)
        self._columns = columns

    def arrays(self, columns: Sequence[str]) -> Mapping[str, Any]:
        """Lists of the keys' values."""
        found: dict[str, list[Any]] = {name: [] for name in columns}
        for row in range(len(self)):
            for name, value in self._pick(row, self._value(row, self.line_at(row)), columns).items():
                found[name].append(value)
        return found

    def sample(self, row: int, line: bytes) -> Any:
        """See `LineChunk.sample`."""
        value = self._value(row, line)
        return value if self._columns is None else self._pick(row, value, self._columns)

    def _value(self, row: int, line: bytes) -> Any:
        try:
            return _decode(str(line, "utf-8"))
        except (ValueError, RecursionError) as error:
            raise DataError(_fault(self.where(row), line, error)) from None

    def _pick(self, row: int, value: Any, columns: Sequence[str]) -> dict[str, Any]:
        if not isinstance(value, dict):
            names = ", ".join(map(repr, columns))
            raise DataError(f"{self.where(row)}: expected an object with {names}, found {_kind(value)}")
        sample = cast("dict[str, Any]", value)
        return {name: sample.get(name) for name in columns}


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
