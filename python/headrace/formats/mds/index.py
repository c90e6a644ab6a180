"""The ``index.json`` of an MDS dataset, checked: which shards there are, in which files, and what is in them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from headrace._files import inside
from headrace.errors import DataError

from .encodings import stored_size

__all__ = ["CODECS", "Layout", "Part", "Shard", "is_mds", "read_index"]

CODECS = {"br": "brotli", "bz2": "bz2", "gz": "gzip", "snappy": "snappy", "zstd": "zstd"}
"""What the index calls a compression, without its level, and what it is called here."""

_SEPARATORS = {"csv": ",", "tsv": "\t"}
_TEXT_ENCODINGS = ("str", "int", "float")


@dataclass(frozen=True, slots=True)
class Layout:
    """What the shards of one writer have in common."""

    format: str
    """``"mds"``, ``"json"`` or ``"xsv"`` (CSV and TSV too)."""
    codec: str | None
    """How the compressed files are compressed, if there are any."""
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...] = ()
    """Bytes of a column's values, None if they vary; MDS only."""
    separator: str = ""
    newline: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a shard, which may be there as it is, compressed, or both."""

    name: str
    size: int
    """Bytes, not compressed."""
    hashes: tuple[tuple[str, str], ...]
    """(algorithm, digest as hexadecimal digits) of the bytes that are not compressed."""
    packed_name: str | None
    packed_size: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as the index has it."""

    layout: Layout
    samples: int
    data: Part
    meta: Part | None
    """Where samples begin, for those formats that have this in a file of its own."""

    @property
    def least_bytes(self) -> int:
        """Bytes without which the file that begins with the offsets cannot tell of as many samples."""
        sample = sum(4 if size is None else size for size in self.layout.sizes) if self.meta is None else 0
        return 4 + 4 * (self.samples + 1) + self.samples * sample


def is_mds(index: Mapping[str, Any]) -> bool:
    """Whether an ``index.json`` is that of an MDS dataset.

    Example:
        >>> is_mds({"version": 2, "shards": []}), is_mds({"chunks": [], "config": {}})
        (True, False)
    """
    return isinstance(index.get("shards"), list)


def read_index(text: bytes, uri: str) -> list[Shard]:
    """The shards of an index.

    Args:
        text: the file.
        uri: its name, for messages.

    Raises:
        DataError: if it is no index, names files outside its folder or twice, or has what headrace does not read.
    """
    try:
        index: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{uri}: expected JSON, found {error}") from None
    if not isinstance(index, dict) or not is_mds(cast("dict[str, Any]", index)):
        raise DataError(f'{uri}: expected the index of an MDS dataset, with a list "shards"')
    reader = _Reader(uri)
    shards = [reader.shard(number, shard) for number, shard in enumerate(cast("dict[str, list[Any]]", index)["shards"])]
    seen: set[str] = set()
    for shard in shards:
        for part in (shard.data, shard.meta):
            if part is not None and part.name in seen:
                raise DataError(
                    f"{uri}: expected each file once, found {part.name!r} twice\n"
                    "Were folders of equal names merged, as a/00 and b/00? Their paths are then cut to 00."
                )
            if part is not None:
                seen.add(part.name)
    return shards


class _Reader:
    """Reads one index; layouts that are equal become one."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._layouts: dict[Layout, Layout] = {}

    def shard(self, number: int, shard: Any) -> Shard:
        where = f"{self._uri}, shard {number}"
        shard = _Fields(shard, where)
        if (version := shard.get("version", int)) != 2:
            raise DataError(f"{where}: expected version 2 of the format, found {version}")
        layout = self._layout(shard)
        layout = self._layouts.setdefault(layout, layout)
        samples = shard.count("samples")
        data = _part(shard, "data", where)
        meta = None if layout.format == "mds" else _part(shard, "meta", where)
        return Shard(layout, samples, data, meta)

    def _layout(self, shard: "_Fields") -> Layout:
        where, kind = shard.where, shard.get("format", str)
        codec = shard.codec()
        if kind == "json":
            columns = shard.get("columns", dict)
            if not all(isinstance(encoding, str) for encoding in columns.values()):
                raise DataError(f"{where}: expected columns with names of encodings, found {columns!r}")
            return Layout("json", codec, tuple(columns), tuple(columns.values()))
        if kind not in ("mds", "xsv", *_SEPARATORS):
            raise DataError(f"{where}: expected a shard in the format mds, json, csv, tsv or xsv, found {kind!r}")
        names, encodings = shard.texts("column_names"), shard.texts("column_encodings")
        if len(set(names)) != len(names) or len(names) != len(encodings):
            raise DataError(
                f"{where}: expected as many encodings as columns, each column once, found {list(names)} "
                f"and {list(encodings)}"
            )
        if kind == "mds":
            sizes = tuple(shard.get("column_sizes", list))
            wanted = tuple(
                stored_size(encoding, f"{where}, column {name!r}")
                for name, encoding in zip(names, encodings, strict=True)
            )
            if sizes != wanted:
                raise DataError(
                    f"{where}: expected column_sizes {list(wanted)} for columns encoded as {list(encodings)}, "
                    f"found {list(sizes)!r}"
                )
            return Layout("mds", codec, names, encodings, wanted)
        if wrong := [encoding for encoding in encodings if encoding not in _TEXT_ENCODINGS]:
            raise DataError(f"{where}: expected columns of str, int or float in a {kind} shard, found {wrong[0]!r}")
        separator = _SEPARATORS.get(kind) or shard.get("separator", str)
        newline = shard.get("newline", str)
        if not separator or not newline:
            raise DataError(f"{where}: expected a separator and a newline, found {separator!r} and {newline!r}")
        return Layout("xsv", codec, names, encodings, (), separator, newline)


class _Fields:
    """The fields of an object in the index, which must be of the types asked for."""

    def __init__(self, fields: Any, where: str) -> None:
        if not isinstance(fields, dict):
            raise DataError(f"{where}: expected an object, found {_short(fields)}")
        self._fields = cast("dict[str, Any]", fields)
        self.where = where

    def optional(self, name: str) -> Any:
        return self._fields.get(name)

    def get(self, name: str, kind: type) -> Any:
        value = self._fields.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise DataError(f"{self.where}: expected {name!r} to be of type {kind.__name__}, found {_short(value)}")
        return value

    def count(self, name: str) -> int:
        value = self.get(name, int)
        if not 0 <= value < 2**62:
            raise DataError(f"{self.where}: expected {name!r} to be a count, found {value}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.get(name, list)
        if not all(isinstance(value, str) for value in values):
            raise DataError(f"{self.where}: expected {name!r} to be a list of text, found {_short(values)}")
        return tuple(values)

    def codec(self) -> str | None:
        compression = self.optional("compression")
        if not compression:
            return None
        family = str(compression).partition(":")[0]
        if family not in CODECS:
            raise DataError(
                f"{self.where}: expected a compression among {', '.join(CODECS)}, found {_short(compression)}"
            )
        return CODECS[family]


def _part(shard: _Fields, which: str, where: str) -> Part:
    raw = _Fields(shard.optional(f"raw_{which}"), f"{where}, raw_{which}")
    hashes = cast("dict[Any, Any]", raw.optional("hashes") or {})
    if not isinstance(hashes, dict) or not all(isinstance(text, str) for pair in hashes.items() for text in pair):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DataError(f"{raw.where}: expected digests by algorithm, found {_short(hashes)}")
    name = inside(raw.get("basename", str), raw.where)
    size = raw.count("bytes")
    packed_name, packed_size = None, 0
    if (zipped := shard.optional(f"zip_{which}")) is not None:
        packed = _Fields(zipped, f"{where}, zip_{which}")
        packed_name, packed_size = inside(packed.get("basename", str), packed.where), packed.count("bytes")
        if shard.codec() is None:
            raise DataError(f"{packed.where}: expected no compressed file without a compression, found {packed_name!r}")
    return Part(name, size, tuple(hashes.items()), packed_name, packed_size)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
