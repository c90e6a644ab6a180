"""Parquet and Arrow files: samples are rows, keys are columns.

Types are found for each stretch of samples by itself, and brought together in the order of samples: they do not depend
on which samples were encoded together.
"""

import base64
import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]

from headrace._files import Store
from headrace.errors import DataError

from .base import Encoder, Entry, Existing, Layout, Options, Piece, at_key, kind_of
from .cells import NULL, SCALARS, cell, merge, scalar_bytes

__all__ = ["ArrowLayout", "ParquetLayout", "TableEncoder"]

_arrow: Any = pa
_parquet: Any = pq

_MANIFEST = "_headrace/written.json"
_VERSION = 1


class TableEncoder(Encoder):
    """Samples are dicts; a key that one lacks is null there."""

    def __init__(self, options: Options) -> None:
        self._schema: str | None = None
        self._reset()

    @property
    def schema(self) -> str | None:
        """That of the samples since the last time that bytes were taken."""
        return self._schema

    @schema.setter
    def schema(self, value: str | None) -> None:
        """Samples need not be like others: the layout brings their types together."""

    def add(self, sample: Any) -> int:
        """See `Encoder.add`."""
        if type(sample) is not dict:
            raise TypeError(
                f"expected a dict, found {kind_of(sample)}\nhint: name what it is, as in {{'tokens': tokens}}"
            )
        size = 0
        row: dict[str, Any] = {}
        types: dict[str, Any] = {}
        for name, value in cast("dict[Any, Any]", sample).items():
            known = self._types.get(name)
            try:
                if known is not None and SCALARS.get(cast("Any", type(value))) is known:
                    row[name] = value
                    size += scalar_bytes(value)
                    continue
                if type(name) is not str:
                    raise TypeError(f"expected keys of text, found {name!r}")
                row[name], found, taken = cell(value)
                size += taken
                if known is None or found is not known:
                    merged = merge(NULL if known is None else known, found)
                    if merged is not known:
                        # One object for each type, so that it is known again by `is`.
                        types[name] = self._same.setdefault(merged, merged)
            except (TypeError, ValueError) as error:
                raise at_key(str(name), error) from None
        if types:
            self._before.append((len(self._rows), {name: self._types.get(name) for name in types}))
            self._types.update(types)
        self._rows.append(row)
        return size

    def drop(self, count: int) -> None:
        """See `Encoder.drop`."""
        del self._rows[len(self._rows) - count :]
        while self._before and self._before[-1][0] >= len(self._rows):
            for name, kind in self._before.pop()[1].items():
                if kind is None:
                    del self._types[name]
                else:
                    self._types[name] = kind

    def take(self) -> bytes:
        """See `Encoder.take`."""
        rows, types = self._rows, self._types
        self._reset()
        schema = _arrow.schema(list(types.items()))
        self._schema = _text(schema)
        arrays = [_column([row.get(name) for row in rows], kind) for name, kind in types.items()]
        if not arrays:
            return len(rows).to_bytes(8, "little")
        batch = _arrow.record_batch(arrays, schema=schema)
        sink = _arrow.BufferOutputStream()
        with _arrow.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()

    def _reset(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._types: dict[str, Any] = {}
        # What rows changed in them, and what was there before: rows as they are kept do not tell their types.
        self._before: list[tuple[int, dict[str, Any]]] = []
        self._same: dict[Any, Any] = {kind: kind for kind in SCALARS.values()}


class TableLayout(Layout):
    """Files of rows, and below ``_headrace`` a list of them, since such datasets have none of their own."""

    index_name = _MANIFEST
    most_bytes = 2**30
    """A file's rows are in memory while it is written."""
    suffix: str
    shows_buffers: bool = False
    """Whether a file has buffers as they lie in memory, and with them what its rows were cut from."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @property
    def pattern(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Layout.pattern`."""
        return rf"part-(\d+)\.{self.suffix}"

    def name(self, base: int, number: int) -> str:
        """See `Layout.name`."""
        return f"part-{base + number:05}.{self.suffix}"

    def write(self, path: Path, name: str, pieces: Sequence[Piece], schema: str | None) -> Entry:
        """See `Layout.write`."""
        wanted = _schema(schema)
        if not len(wanted):
            raise TypeError("expected a sample with at least one key, found an empty dict")
        table = _arrow.Table.from_batches([_batch(piece, wanted) for piece in pieces], wanted)
        table = table.combine_chunks()
        if self.shows_buffers:
            # Taken anew, buffers are those of the rows alone: what they were cut from leaves no trace.
            table = table.take(_arrow.array(np.arange(table.num_rows)))
        content = sum(int(piece.sizes.sum()) for piece in pieces)
        self._save(
            path, self._labelled(table), max(1, -(-table.num_rows // (1 + content // self._options.group_bytes)))
        )
        return {"name": name, "samples": table.num_rows, "bytes": path.stat().st_size}

    def index(self, entries: Sequence[Entry], schema: str | None) -> bytes:
        """See `Layout.index`."""
        found: dict[str, Any] = {"version": _VERSION, "format": self.format, "schema": schema, "files": list(entries)}
        if self._options.metadata:
            found["metadata"] = dict(self._options.metadata)
        return json.dumps(found, sort_keys=True).encode()

    def read(self, index: bytes, there: Store) -> Existing:
        """See `Layout.read`."""
        where = there.uri(self.index_name)
        try:
            found: Any = json.loads(index)
            if (found["version"], found["format"]) != (_VERSION, self.format):
                raise ValueError(f"version {found['version']} of {found['format']}")
            entries: list[Entry] = [dict(entry) for entry in found["files"]]
            existing, metadata = Existing(entries, found["schema"]), dict(found.get("metadata", {}))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{where}: expected the list of {self.format} files of a dataset: {error}") from None
        wanted = dict(self._options.metadata or {})
        for name in sorted({*wanted, *metadata}):
            if wanted.get(name) != metadata.get(name):
                raise ValueError(
                    f"{there.url}: expected a dataset whose {name} is {wanted.get(name)}, to be able to add to it, "
                    f"found {metadata.get(name)}"
                )
        return existing

    def bring_together(self, known: str, found: str) -> str:
        """See `Layout.unify`."""
        types = {field.name: field.type for field in _schema(known)}
        for field in _schema(found):
            try:
                types[field.name] = merge(types.get(field.name, NULL), field.type)
            except TypeError as error:
                raise at_key(field.name, error) from None
        return _text(_arrow.schema(list(types.items())))

    def settle(self, folder: Path, entries: list[Entry], schema: str | None) -> list[Entry]:
        """See `Layout.settle`."""
        wanted = _schema(schema)
        settled: list[Entry] = []
        for entry in entries:
            path = folder / entry["name"]
            found, rows = self._read_shape(path)
            if found.remove_metadata() != wanted:
                aside = path.with_name(path.name + ".tmp")
                self._save(aside, self._labelled(_aligned(self._load(path), wanted)), rows)
                aside.replace(path)
            # It may have been brought to the schema before a kill, too.
            settled.append({**entry, "bytes": path.stat().st_size})
        return settled

    def _labelled(self, table: Any) -> Any:
        """The same rows, with what files say of themselves."""
        metadata = self._options.metadata
        return table.replace_schema_metadata(dict(metadata)) if metadata else table

    @abstractmethod
    def _save(self, path: Path, table: Any, rows: int) -> None:
        """Writes a file, with so many rows in a group."""

    @abstractmethod
    def _load(self, path: Path) -> Any: ...

    @abstractmethod
    def _read_shape(self, path: Path) -> tuple[Any, int]:
        """A file's schema, and the rows of its groups."""

    def _codec(self) -> tuple[str | None, int | None]:
        name, _, level = (self._options.compression or "").partition(":")
        return name or None, int(level) if level else None


class ParquetLayout(TableLayout):
    """``part-00000.parquet``."""

    format = "parquet"
    suffix = "parquet"

    def _save(self, path: Path, table: Any, rows: int) -> None:
        for field in table.schema:
            if _has_empty_struct(field.type):
                error = TypeError("expected dicts with keys, found only empty ones, which Parquet cannot hold")
                raise at_key(field.name, error)
        codec, level = self._codec()
        _parquet.write_table(
            table, path, compression=codec or "none", compression_level=level, row_group_size=rows, store_schema=True
        )

    def _load(self, path: Path) -> Any:
        return _parquet.read_table(path, partitioning=None)

    def _read_shape(self, path: Path) -> tuple[Any, int]:
        with _parquet.ParquetFile(path) as file:
            return file.schema_arrow, file.metadata.row_group(0).num_rows


class ArrowLayout(TableLayout):
    """``part-00000.arrow``, in Arrow's file format."""

    format = "arrow"
    suffix = "arrow"
    shows_buffers = True

    def _save(self, path: Path, table: Any, rows: int) -> None:
        codec, level = self._codec()
        packing = None if codec is None else _arrow.Codec(codec, compression_level=level)
        options = _arrow.ipc.IpcWriteOptions(compression=packing)
        with _arrow.OSFile(str(path), "wb") as out, _arrow.ipc.new_file(out, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=rows)

    def _load(self, path: Path) -> Any:
        with _arrow.OSFile(str(path), "rb") as file:
            return _arrow.ipc.open_file(file).read_all()

    def _read_shape(self, path: Path) -> tuple[Any, int]:
        with _arrow.OSFile(str(path), "rb") as file:
            found = _arrow.ipc.open_file(file)
            return found.schema, found.get_batch(0).num_rows


def _column(values: list[Any], kind: Any) -> Any:
    """Values as an array. Arrays of numbers are laid end to end, which costs a tenth of taking them one by one."""
    if _arrow.types.is_list(kind) and all(type(value) is np.ndarray for value in values):
        numbers = _arrow.array(np.concatenate(values))
        if numbers.type == kind.value_type and len(numbers) < 2**31:
            offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
            return _arrow.ListArray.from_arrays(_arrow.array(offsets), numbers, type=kind)
    return _arrow.array(values, kind)


def _batch(piece: Piece, schema: Any) -> Any:
    data = piece.stored.read(0, piece.stored.nbytes)
    count = piece.stop - piece.start
    if len(data) == 8:
        # Samples without a key.
        return _arrow.record_batch([_arrow.nulls(count, field.type) for field in schema], schema=schema)
    return _aligned(next(_batches(data)).slice(piece.start, count), schema)


def _batches(data: memoryview) -> Iterator[Any]:
    with _arrow.ipc.open_stream(_arrow.py_buffer(data)) as reader:
        yield from reader


def _aligned(table: Any, schema: Any) -> Any:
    """The same rows with all columns of a schema; those that they lack are null."""
    there = {name: number for number, name in enumerate(table.schema.names)}
    columns = [
        _cast(table.column(there[field.name]), field.type)
        if field.name in there
        else _arrow.nulls(table.num_rows, field.type)
        for field in schema
    ]
    kind = cast("Any", type(table))
    return kind.from_arrays(columns, schema=schema)


def _cast(column: Any, kind: Any) -> Any:
    # pyarrow casts lists of nulls to their own type by leaving out values.
    return column if column.type == kind else column.cast(kind)


def _has_empty_struct(kind: Any) -> bool:
    if _arrow.types.is_struct(kind):
        return not kind.num_fields or any(_has_empty_struct(field.type) for field in kind)
    return _arrow.types.is_list(kind) and _has_empty_struct(kind.value_type)


def _text(schema: Any) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema(text: str | None) -> Any:
    return _arrow.schema([]) if text is None else _arrow.ipc.read_schema(_arrow.py_buffer(base64.b64decode(text)))
