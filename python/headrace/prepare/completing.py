"""`complete_dataset`: one index of several, each of a part of a dataset that is in its place already."""

import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from headrace._files import inside
from headrace.errors import DataError
from headrace.formats.mds.index import is_mds

from .arguments import Prepared, local_folder
from .local import LocalOutput
from .output import Output, read_json
from .record_parts import hold_parts, parts_of, whole_of

__all__ = ["complete_dataset"]

_INDEX = "index.json"
_PARTS = re.compile(r"(\d+)(?:-(\d+))?[.-]index\.json")
"""LitData's: ``{rank}.index.json`` of a worker, ``{node}-index.json`` or ``{node}-{rank}.index.json``."""
_FILES = ("raw_data", "zip_data", "raw_meta", "zip_meta")
"""What an MDS shard has files for."""
_OWN = ("types", "temporal_schema")
"""What LitData's workers may say of their own samples alone."""


def complete_dataset(output_dir: str | os.PathLike[str]) -> Prepared:
    """Makes one dataset of the parts that workers or machines left in a folder, each with an index of its own.

    These are LitData's indexes of workers and nodes (``0.index.json``, ``0-index.json``) beside the chunks, or those of
    `StreamWriter` and `DocumentWriter` with ``part=``, which are removed when the whole one is there; or sub-folders
    that are MDS datasets, which stay as they are. No sample is read, but each file has to be there with the size that
    its index says. Parts of a store of records that is complete already are added to it.

    Args:
        output_dir: the folder, which becomes the dataset.

    Raises:
        ValueError: if there is nothing to complete, or an index is there that has none of it.
        TypeError: if the parts' samples are not alike.
        DataError: if an index is damaged, or a file is missing or of another size.
        StoreError: if the folder cannot be written to, or another process writes there.

    Example:
        >>> how = {"format": "mds", "num_workers": 0, "verbose": False}
        >>> for part in range(2):
        ...     made = headrace.optimize(lambda n: {"n": n}, range(5), folder / "whole" / str(part), **how)
        >>> headrace.complete_dataset(folder / "whole").samples
        10
    """
    start = time.monotonic()
    folder = local_folder(output_dir, "output_dir")
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder with the parts of a dataset, found none")
    output = LocalOutput(folder)
    try:
        if output.lines():
            raise ValueError(f"{folder}: expected parts that are finished, found an unfinished run of headrace")
        with ExitStack() as held:
            files = _complete(folder, output, held)
    finally:
        output.close(finished=False)
    counts = [samples for _, _, samples in files if samples is not None]
    size = sum((folder / name).stat().st_size for name, _, _ in files)
    return Prepared(folder, sum(counts), len(counts), size, [], time.monotonic() - start)


_Files = list[tuple[str, int | None, int | None]]
"""Files' names, bytes if they are known, and samples; None for a file that belongs to another one."""


def _complete(folder: Path, output: Output, held: ExitStack) -> _Files:
    """Writes the index of what is there."""
    if parts := parts_of(folder):
        hold_parts(folder, held)
        files, index = whole_of(folder, parts)
    else:
        parts = sorted(
            (path for path in folder.iterdir() if _PARTS.fullmatch(path.name)),
            key=lambda path: [int(number or -1) for number in _numbers(path.name)],
        )
        if parts:
            files, index = _begun(folder / _INDEX, *_of_litdata(parts))
        else:
            files, index = _of_mds(folder, sorted(path for path in folder.rglob(_INDEX) if path.parent != folder))
        if not files:
            raise ValueError(
                f"{folder}: expected indexes of workers (such as 0.index.json or part-00000.json), or folders that are "
                "MDS datasets, found none"
            )
        _expect_same(folder / _INDEX, index)
    _check_there(folder, files)
    output.replace(folder / _INDEX, json.dumps(index, sort_keys=True).encode())
    for path in parts:
        path.unlink()
    return files


def _numbers(name: str) -> Sequence[str | None]:
    found = _PARTS.fullmatch(name)
    assert found is not None
    return found.groups()


def _of_litdata(parts: Sequence[Path]) -> tuple[_Files, dict[str, Any]]:
    files: _Files = []
    chunks: list[Any] = []
    first: dict[str, Any] = {}
    for path in parts:
        index = read_json(path)
        config: Any = index.get("config")
        if not isinstance(index.get("chunks"), list):
            raise DataError(f"{path}: expected an index of LitData, with chunks")
        if not index["chunks"]:
            # A worker that had nothing to do knows of no samples.
            continue
        if not isinstance(config, dict):
            raise DataError(f"{path}: expected an index of LitData, with config")
        known = cast("dict[str, Any]", config)
        if not first:
            first = known
        for name in {**first, **known}:
            if name not in _OWN and first.get(name) != known.get(name):
                wanted, found = first.get(name), known.get(name)
                raise TypeError(f"{path}: expected {name} to be {wanted!r} as in {parts[0].name}, found {found!r}")
        for chunk in index["chunks"]:
            name = inside(str(chunk["filename"]), str(path))
            whole = not known.get("compression") and not known.get("encryption")
            files.append((name, chunk["chunk_bytes"] if whole else None, chunk["chunk_size"]))
            chunks.append(chunk)
    return files, {"chunks": chunks, "config": first, "updated_at": str(time.time())}


def _begun(path: Path, files: _Files, index: dict[str, Any]) -> tuple[_Files, dict[str, Any]]:
    """What a call wrote that was ended while it removed the parts' indexes, if it was; else what is given."""
    there: Any = read_json(path).get("chunks") if path.exists() else None
    if isinstance(there, list) and there[len(cast("list[Any]", there)) - len(index["chunks"]) :] == index["chunks"]:
        return _of_litdata([path])
    return files, index


def _of_mds(folder: Path, parts: Sequence[Path]) -> tuple[_Files, dict[str, Any]]:
    files: _Files = []
    shards: list[Any] = []
    columns: Any = None
    for path in parts:
        index = read_json(path)
        if not is_mds(index):
            raise DataError(f"{path}: expected the index of an MDS dataset, with shards")
        below = path.parent.relative_to(folder).as_posix()
        for shard in index["shards"]:
            found = [shard.get(name) for name in ("format", "column_names", "column_encodings")]
            columns = columns or found
            if found != columns:
                raise TypeError(
                    f"{path}: expected shards of {columns[0]} with {columns[1:]} as in {parts[0]}, found {found[0]} "
                    f"with {found[1:]}"
                )
            moved: dict[str, dict[str, Any]] = {}
            for name in _FILES:
                if shard.get(name):
                    moved[name] = {**shard[name], "basename": f"{below}/{shard[name]['basename']}"}
            # Of a shard that is there compressed and as it is, the second may be left out.
            stored: Any = moved.get("zip_data") or moved["raw_data"]
            files.append((inside(stored["basename"], str(path)), stored["bytes"], shard["samples"]))
            shards.append({**shard, **moved})
    return files, {"version": 2, "shards": shards}


def _check_there(folder: Path, files: _Files) -> None:
    for name, size, _ in files:
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path}: an index names it, and it is not there")
        if size is not None and path.stat().st_size != size:
            raise DataError(f"{path}: expected {size} bytes as its index says, found {path.stat().st_size}")
    if len({name for name, _, _ in files}) < len(files):
        raise DataError(f"{folder}: expected each file to be in one index, found one in several")


def _expect_same(path: Path, index: dict[str, Any]) -> None:
    """Refuses to replace an index that is not of the same parts."""
    if not path.exists():
        return
    there = read_json(path)
    kind = "shards" if is_mds(index) else "chunks"
    if there.get(kind) != index[kind]:
        raise ValueError(
            f"{path}: expected no index yet, found one of other files\n"
            "hint: remove it if the parts have what it lists; headrace.merge_datasets makes one of two datasets"
        )
