"""Finding out what a folder or some files hold."""

import json
import re
from collections.abc import Sequence
from typing import Any, cast

from headrace._files import File, Store
from headrace.errors import DataError

__all__ = ["FORMATS", "RECORDS", "detect", "has_own_index", "of_format"]

FORMATS = (
    "parquet",
    "litdata",
    "mds",
    "huggingface",
    "arrow",
    "webdataset",
    "jsonl",
    "text",
    "records",
    "megatron",
    "tokens",
    "files",
)

RECORDS = ("records", "megatron", "tokens")
"""Those of fixed-size records."""

_SUFFIXES = {
    "parquet": (".parquet", ".parq", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc", ".arrows"),
    # Also those that are refused: an error then names them.
    "webdataset": (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tzst", ".tar.xz", ".txz", ".tar.bz2", ".tbz2"),
    "jsonl": tuple(
        name + packing for name in (".jsonl", ".ndjson", ".jsonlines") for packing in ("", ".gz", ".zst", ".zstd")
    ),
}

_PART = re.compile(r"part-\d{5}\.json")
"""The index of one of several writers of a store of records."""
_MOST_PART_BYTES = 64 << 20

_TOKEN_SUFFIXES = {"megatron": (".bin", ".idx"), "tokens": (".bin", ".npy")}
"""Of files that may be anything else too: they are looked into, or the format has to be asked for."""

_ASIDE = ("readme", "license", "licence", "dataset_info.json", "dataset_infos.json", "notice", "citation")
"""Beginnings of names that lie beside data and are none, in lower case; so are Markdown files."""

_INDEXES = ("index.json", "state.json", "dataset_dict.json")

_TAR_MAGIC = 257
"""Where ``ustar`` stands in a tar file."""


def detect(store: Store, *, tokens: bool = False) -> str:
    """The format of a store's files, from an index at its root, their names, or the beginning of the first.

    Args:
        store: whose files.
        tokens: whether something was asked for that only token files have.

    Raises:
        DataError: if an index at the root is of no known kind, or there is nothing but empty token files.
    """
    files = store.files
    names = {file.path: file for file in files if "/" not in file.path}
    if "dataset_dict.json" in names or ("state.json" in names and "dataset_info.json" in names):
        return "huggingface"
    if "index.json" in names and store.is_folder:
        return _of_index(store, names["index.json"])
    if parts := [name for name in names if _PART.fullmatch(name)]:
        _check_complete(store, names[parts[0]])
    data = [file for file in files if _is_data(file)]
    _check_clear(store, data)
    for name, suffixes in _SUFFIXES.items():
        mine = [file for file in data if file.name.lower().endswith(suffixes)]
        # Below a folder with Parquet files whatever else lies there is left out, as it always was.
        if mine and (len(mine) == len(data) or name == "parquet"):
            return name
    if data and all(file.name.endswith(_TOKEN_SUFFIXES["megatron"]) for file in data):
        from .records import has_megatron

        if has_megatron(store, data):
            return "megatron"
    if tokens and data and all(file.name.endswith(_TOKEN_SUFFIXES["tokens"]) for file in data):
        return "tokens"
    if tokens and not data:
        _check_filled(store, "tokens")
    # Names tell nothing: Spark's have no suffix, and a dot in a name makes none.
    return _of_content(store, data[0]) if data else "files"


def _check_complete(store: Store, file: File) -> None:
    """Refuses a store of records whose writers' parts were not put together.

    Raises:
        DataError: if the file is the index of such a part.
    """
    if file.size < _MOST_PART_BYTES and b'"headrace-records"' in store.read(file):
        raise DataError(
            f"{store.url}: expected index.json, found {file.path} of a writer with part=\n"
            "hint: when all writers are done, headrace.complete_dataset(folder) makes one store of their parts"
        )


def _check_clear(store: Store, data: Sequence[File]) -> None:
    """Refuses what is several datasets, or can be read in two ways.

    Raises:
        DataError: naming what there is.
    """
    below = sorted({file.path.rpartition("/")[0] for file in data if file.name in _INDEXES and "/" in file.path})
    if below and store.is_folder:
        some = ", ".join(below[:5]) + (", ..." if len(below) > 5 else "")
        raise DataError(
            f"{store.url}: there are datasets in the folders below it: {some}\n"
            'hint: open one of them, or a list of them; format="files" reads all as raw files'
        )
    stems = {
        name: {file.path.partition(".")[0] for file in data if file.name.lower().endswith(_SUFFIXES[name])}
        for name in ("parquet", "webdataset")
    }
    if both := stems["parquet"] & stems["webdataset"]:
        raise DataError(
            f"{store.url}: {sorted(both)[0]} is there as tar and as Parquet\n"
            'hint: say format="webdataset" for the tar files, or format="parquet" for the tables beside them'
        )


def of_format(store: Store, name: str) -> list[File]:
    """The files of a format that is known by suffixes: those that have one, or all if none has one.

    Any file may be text, notes too.

    Raises:
        DataError: if there is nothing but empty token files.
    """
    if name == "text":
        return [file for file in store.files if file.size]
    data = [file for file in store.files if _is_data(file)]
    if not data and name in _TOKEN_SUFFIXES:
        _check_filled(store, name)
    suffixes = _SUFFIXES.get(name) or _TOKEN_SUFFIXES[name]
    return [file for file in data if file.name.lower().endswith(suffixes)] or data


def _check_filled(store: Store, name: str) -> None:
    """Refuses token files where all are empty, which are no data."""
    if empty := [file for file in store.files if file.name.endswith(_TOKEN_SUFFIXES[name])]:
        others = f", and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise DataError(f"{store.uri(empty[0].path)}: expected tokens, found an empty file{others}")


def has_own_index(files: Sequence[File]) -> bool:
    """Whether folders among the files say themselves what they hold."""
    return any(file.name in _INDEXES for file in files)


def _of_index(store: Store, file: File) -> str:
    try:
        index: Any = json.loads(store.read(file))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{store.uri(file.path)}: expected JSON: {error}") from None
    if isinstance(index, dict):
        # Imported when there is such an index: `import headrace` is to take a moment.
        from .litdata import is_litdata
        from .mds import is_mds
        from .records import is_records

        found = cast("dict[str, Any]", index)
        if is_records(found):
            return "records"
        if is_litdata(found):
            return "litdata"
        if is_mds(found):
            return "mds"
    raise DataError(
        f"{store.uri(file.path)}: expected the index of LitData (chunks), MDS (shards) or records, found none of them\n"
        f"hint: say format=..., one of {', '.join(FORMATS)}"
    )


def _of_content(store: Store, file: File) -> str:
    head = store.read(file, 0, min(file.size, 512))
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"ARROW1"):
        return "arrow"
    return "webdataset" if head[_TAR_MAGIC : _TAR_MAGIC + 5] == b"ustar" else "files"


def _is_data(file: File) -> bool:
    """Whether a file is more than a marker or a note. An empty one with a suffix once held something."""
    name = file.name.lower()
    if name.startswith(_ASIDE) or name.endswith(".md"):
        return False
    return file.size > 0 or name.endswith(tuple(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes))
