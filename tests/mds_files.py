"""A writer of MDS for tests, from the format's description: it writes what the package would, and what it would not."""

import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace._files import Store
from headrace.formats.mds import MdsSource
from headrace.samples.source import Source

COLUMNS = {"image": "bytes", "label": "int"}
SIZES = {"int": 8, "uint8": 1, "int32": 4, "float32": 4, "ndarray:int32:2": 8}


def sample(cells: Mapping[str, bytes], columns: Mapping[str, str]) -> bytes:
    """A sample of values that are encoded already."""
    head = [len(cells[name]) for name in sorted(columns) if columns[name] not in SIZES]
    return struct.pack(f"<{len(head)}I", *head) + b"".join(cells[name] for name in sorted(columns))


def shard(samples: Sequence[bytes], columns: Mapping[str, str]) -> bytes:
    """The file of a shard."""
    names = sorted(columns)
    config = {"column_names": names, "column_encodings": [columns[name] for name in names]}
    text = json.dumps(config).encode()
    offsets = [4 + 4 * (len(samples) + 1) + len(text)]
    for one in samples:
        offsets.append(offsets[-1] + len(one))
    return struct.pack(f"<I{len(offsets)}I", len(samples), *offsets) + text + b"".join(samples)


def entry(name: str, data: bytes, count: int, columns: Mapping[str, str]) -> dict[str, Any]:
    """What the index says of a shard."""
    names = sorted(columns)
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": ["sha1"],
        "size_limit": None,
        "samples": count,
        "column_names": names,
        "column_encodings": [columns[name] for name in names],
        "column_sizes": [SIZES.get(columns[name]) for name in names],
        "raw_data": {"basename": name, "bytes": len(data), "hashes": {"sha1": hashlib.sha1(data).hexdigest()}},
        "zip_data": None,
    }


def write(folder: Path, shards: Sequence[tuple[Mapping[str, str], Sequence[Mapping[str, bytes]]]]) -> Path:
    """A dataset of shards of encoded values."""
    entries: list[dict[str, Any]] = []
    folder.mkdir(parents=True, exist_ok=True)
    for number, (columns, rows) in enumerate(shards):
        data = shard([sample(row, columns) for row in rows], columns)
        name = f"shard.{number:05}.mds"
        (folder / name).write_bytes(data)
        entries.append(entry(name, data, len(rows), columns))
    write_index(folder, entries)
    return folder


def write_index(folder: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": list(entries)}))


def read_entries(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "index.json").read_text())["shards"]


def rows(count: int) -> list[dict[str, bytes]]:
    return [{"image": bytes([at]) * at, "label": struct.pack("<q", at)} for at in range(count)]


def wanted(count: int) -> list[dict[str, Any]]:
    return [{"image": bytes([at]) * at, "label": at} for at in range(count)]


def opened(folder: Path, **options: Any) -> MdsSource:
    return MdsSource.open(Store([os.fspath(folder)], {}), **options)


def samples(source: Source, columns: tuple[str, ...] | None = None) -> list[Any]:
    found: list[Any] = []
    for chunk, size in enumerate(source.sizes):
        loaded = source.load(chunk, columns)
        assert len(loaded) == size
        found += loaded.take(range(len(loaded)))
    return found


def one(folder: Path, columns: dict[str, str], **cells: bytes) -> MdsSource:
    """A dataset of one sample."""
    return opened(write(folder, [(columns, [cells])]), allow_pickle=True)
