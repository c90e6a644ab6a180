"""``index.json``: which chunks a LitData folder has, and how their samples are stored."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from headrace._files import File, Store, inside
from headrace.errors import DataError

__all__ = ["INDEX", "ChunkFile", "Index", "find_files", "is_litdata", "read_index"]

INDEX = "index.json"

_LEVELS = ("chunk", "batch", "sample")
_LOADERS = ("PyTreeLoader", "TokensLoader", "TemporalArrayLoader")


@dataclass(frozen=True, slots=True)
class Entry:
    """A chunk as the index has it."""

    name: str
    """Its file, below the root."""
    items: int
    """Stored items."""
    bytes: int
    """Bytes of the chunk, without whole-file compression."""
    tokens: int | None
    """Tokens, if items are tokens."""


@dataclass(frozen=True, slots=True)
class Index:
    """What an index says."""

    where: str
    """Its full name, for messages."""
    chunks: list[Entry]
    loader: str
    """How items are laid out: one of litdata's item loaders."""
    formats: tuple[str, ...]
    """A serialiser for each leaf of a sample."""
    spec: str | None
    """The structure that leaves are put in, as JSON."""
    compression: str | None
    """``"zstd"`` or ``"zstd:<level>"``."""
    level: str
    """What is compressed by itself: ``"chunk"``, ``"batch"`` or ``"sample"``."""
    encryption: tuple[str, str] | None
    """Algorithm and level."""
    temporal: Mapping[str, Any] | None
    """The layout of temporal items."""
    types: Mapping[str, Any]
    """Types of all keys that any sample has, where the writer noted them."""


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """The file that a chunk lies in."""

    file: File
    compressed: bool
    """Whether the whole file is compressed."""


def is_litdata(index: Any) -> bool:
    """Whether the parsed ``index.json`` at a folder's root is one of LitData.

    Example:
        >>> is_litdata({"chunks": [], "config": {}})
        True
    """
    if not isinstance(index, dict):
        return False
    found = cast("dict[str, Any]", index)
    return isinstance(found.get("chunks"), list) and isinstance(found.get("config"), dict)


def read_index(store: Store) -> Index:
    """Reads and checks the index at the root.

    Raises:
        DataError: if it is damaged or describes what cannot be read.
        MissingError: if there is none.
    """
    where = store.uri(INDEX)
    try:
        found = json.loads(store.read(store.head(INDEX)))
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{where}: expected JSON: {error}") from None
    if not is_litdata(found):
        raise DataError(f"{where}: expected an index of LitData, with chunks and config")
    config = cast("dict[str, Any]", found["config"])
    loader, formats = _loader(config, where)
    compression, level = _compression(config, where)
    types, temporal = config.get("types"), config.get("temporal_schema")
    if loader == "TemporalArrayLoader" and not isinstance(temporal, dict):
        raise DataError(f"{where}: expected temporal_schema for TemporalArrayLoader, found {temporal!r}")
    entries = cast("list[Any]", found["chunks"])
    return Index(
        where=where,
        chunks=[_entry(entry, f"{where}, chunk {number}") for number, entry in enumerate(entries)],
        loader=loader,
        formats=formats,
        spec=_typed(config, "data_spec", str, where),
        compression=compression,
        level=level,
        encryption=_encryption(config.get("encryption"), where),
        temporal=cast("dict[str, Any]", temporal) if loader == "TemporalArrayLoader" else None,
        types=cast("dict[str, Any]", types) if isinstance(types, dict) else {},
    )


def find_files(index: Index, store: Store) -> list[ChunkFile]:
    """The file of each chunk: the one that the index names, or its decompressed or compressed twin.

    Raises:
        DataError: if a chunk is not there, not of its size, or too small for its items.
    """
    listed = {file.path: file for file in store.files}
    found: list[ChunkFile] = []
    for entry in index.chunks:
        names = _twins(entry.name, index.compression if index.level == "chunk" else None)
        there = [ChunkFile(listed[name], packed) for name, packed in names if name in listed]
        fits = [chunk for chunk in there if chunk.compressed or _has_size(index, entry, chunk.file.size)]
        if fits:
            _check_count(index, entry, fits[0], store)
            found.append(fits[0])
        elif there:
            raise DataError(
                f"{store.uri(there[0].file.path)}: expected {entry.bytes} bytes as {index.where} says, "
                f"found {there[0].file.size}: the file is cut short or from another dataset"
            )
        else:
            lost = sum(not any(name in listed for name, _ in _twins(e.name, index.compression)) for e in index.chunks)
            raise DataError(
                f"{store.uri(entry.name)} is not there, though {index.where} names it "
                f"({lost} of {len(index.chunks)} chunks are missing)"
            )
    return found


def sizes_of(entry: Entry) -> tuple[int, int]:
    """Bytes that a chunk may have: old releases of litdata left its header out of ``chunk_bytes``."""
    return entry.bytes, entry.bytes + 4 + 4 * (entry.items + 1)


def _check_count(index: Index, entry: Entry, chunk: ChunkFile, store: Store) -> None:
    """Refuses more items than a file can hold: the count is believed long before the chunk is read."""
    least = 4 + 4 * (entry.items + 1) if entry.items else 0
    if not chunk.compressed and chunk.file.size < least:
        raise DataError(
            f"{store.uri(chunk.file.path)}: expected at least {least} bytes for {entry.items} items as {index.where} "
            f"says, found {chunk.file.size}"
        )


def _has_size(index: Index, entry: Entry, size: int) -> bool:
    return size in sizes_of(entry) or (index.encryption is not None and index.encryption[1] == "chunk")


def _twins(name: str, compression: str | None) -> list[tuple[str, bool]]:
    if compression is None:
        return [(name, False)]
    suffix = f".{compression}.bin"
    if name.endswith(suffix):
        return [(name.removesuffix(suffix) + ".bin", False), (name, True)]
    return [(name, False), (name.removesuffix(".bin") + suffix, True)]


def _entry(entry: Any, where: str) -> Entry:
    if not isinstance(entry, dict):
        raise DataError(f"{where}: expected an object, found {type(entry).__name__}")
    found = cast("dict[str, Any]", entry)
    name = found.get("filename")
    if not isinstance(name, str):
        raise DataError(f"{where}: expected filename as text, found {name!r}")
    tokens = found.get("dim")
    return Entry(
        name=inside(name, where),
        items=_count(found, "chunk_size", where),
        bytes=_count(found, "chunk_bytes", where),
        tokens=None if tokens is None else _count(found, "dim", where),
    )


def _count(found: Mapping[str, Any], key: str, where: str) -> int:
    value = found.get(key)
    if type(value) is not int or not 0 <= value < 2**63:
        raise DataError(f"{where}: expected a count as {key}, found {value!r}")
    return value


def _typed(config: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    value = config.get(key)
    if value is not None and not isinstance(value, kind):
        raise DataError(f"{where}: expected {kind.__name__} as {key}, found {type(value).__name__}")
    return value


def _loader(config: Mapping[str, Any], where: str) -> tuple[str, tuple[str, ...]]:
    loader = _typed(config, "item_loader", str, where)
    if loader == "ParquetLoader":
        raise DataError(
            f"{where} is litdata's index of Parquet files, not of chunks\n"
            f'hint: open the same folder with format="parquet"; the index is not needed'
        )
    formats = cast("list[Any]", _typed(config, "data_format", list, where) or [])
    if wrong := [name for name in formats if not isinstance(name, str)]:
        raise DataError(f"{where}: expected names of serialisers as data_format, found {wrong[0]!r}")
    if loader is None:
        # Releases that did not note the loader had tokens where the only leaf is a bare tensor.
        loader = "TokensLoader" if [name.split(":")[0] for name in formats] == ["no_header_tensor"] else "PyTreeLoader"
    if loader not in _LOADERS:
        raise DataError(f"{where}: expected the item loader to be one of {', '.join(_LOADERS)}, found {loader!r}")
    return loader, tuple(formats)


def _compression(config: Mapping[str, Any], where: str) -> tuple[str | None, str]:
    compression = _typed(config, "compression", str, where)
    if compression and not re.fullmatch(r"zstd(:\d{1,2})?", compression):
        raise DataError(f'{where}: expected the compression to be "zstd" or "zstd:<level>", found {compression!r}')
    level = _typed(config, "compression_level", str, where) or "chunk"
    if level not in _LEVELS:
        raise DataError(f"{where}: expected compression_level to be one of {', '.join(_LEVELS)}, found {level!r}")
    return compression or None, level


def _encryption(value: Any, where: str) -> tuple[str, str] | None:
    if value is None:
        return None
    found = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    algorithm, level = found.get("algorithm"), found.get("level")
    if not isinstance(algorithm, str) or level not in ("chunk", "sample"):
        raise DataError(
            f'{where}: expected encryption with an algorithm and level "chunk" or "sample", found {value!r}'
        )
    return algorithm, level
