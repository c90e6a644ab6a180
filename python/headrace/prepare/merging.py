"""`merge_datasets`: several datasets of one kind as one, without reading a sample."""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace._files import Store
from headrace.errors import DataError, StoreError

from . import writing
from .arguments import Prepared, local_folder
from .beginning import begun
from .durable import store_error
from .output import Output, read_json
from .target import Target
from .writing import Entry, Layout, Options

__all__ = ["merge_datasets"]


def merge_datasets(
    dirs: Iterable[str | os.PathLike[str]],
    output_dir: str | os.PathLike[str],
    *,
    resume: bool = True,
    output_options: Mapping[str, str] | None = None,
    work_dir: str | os.PathLike[str] | None = None,
) -> Prepared:
    """Makes one dataset of several that `headrace.optimize`, LitData or MosaicML Streaming wrote.

    Files are taken as they are, one folder after another; on one disk they are linked, so that nothing is copied. The
    datasets stay.

    Args:
        dirs: folders of datasets of one format, whose samples are alike.
        output_dir: an empty folder, one that is made, or a URL in a store, as `optimize` takes it.
        resume: whether to go on with a call that was killed; False forgets it.
        output_options: settings of that store.
        work_dir: see `optimize`.

    Raises:
        ValueError: if there is none, or they are of different formats or stored in different ways.
        TypeError: if their samples are not alike; says which key differs.
        DataError: if one is damaged.
        StateMismatch: if the folder has an unfinished run of something else.
        StoreError: if the folder cannot be written to, or another process writes there.

    Example:
        >>> for part in range(2):
        ...     made = headrace.optimize(str, range(5), folder / f"part-{part}", num_workers=0, verbose=False)
        >>> headrace.merge_datasets([folder / "part-0", folder / "part-1"], folder / "both").samples
        10
    """
    start = time.monotonic()
    if isinstance(dirs, str | bytes | os.PathLike):
        raise TypeError(f"dirs must be several folders, got {dirs!r}")
    folders = [local_folder(folder, "dirs") for folder in dirs]
    if not folders:
        raise ValueError("dirs must be at least one folder, got none")
    kinds = [_kind(folder) for folder in folders]
    format, options = kinds[0]
    others = [(folder, kind[0]) for folder, kind in zip(folders, kinds, strict=True) if kind[0] != format]
    if others:
        raise ValueError(f"{others[0][0]}: expected a dataset of {format} as {folders[0]}, found one of {others[0][1]}")
    layout = writing.layout(format, options)
    schema: str | None = None
    parts: list[tuple[Path, Entry]] = []
    for folder in folders:
        existing = layout.read((folder / layout.index_name).read_bytes(), Store([os.fspath(folder)], {}))
        try:
            known, schema = schema, layout.unify(schema, existing.schema)
        except TypeError as error:
            raise TypeError(f"{folder}: {error}") from None
        if known is not None and schema != known:
            raise TypeError(f"{folder}: expected the columns and types of {folders[0]}, found others")
        parts += [(folder, entry) for entry in existing.entries]
    output = Target(output_dir, output_options, work_dir).open(resume=resume)
    finished = False
    key = {
        "kind": "merge",
        "parts": [[str(folder.absolute()), entry["name"], entry["bytes"]] for folder, entry in parts],
    }
    try:
        first, _ = begun(output, key, resume, lambda: {**output.expect_empty(), "found": output.mark(layout)})
        entries = [_staged(output, layout, number, *part) for number, part in enumerate(parts)]
        output.publish(layout, entries, layout.index(entries, schema), [], first["found"])
        finished = True
    finally:
        output.close(finished=finished)
    size, samples = (sum(entry[name] for entry in entries) for name in ("bytes", "samples"))
    return Prepared(output.folder, samples, len(entries), size, [], time.monotonic() - start)


def _staged(output: Output, layout: Layout, number: int, folder: Path, entry: Entry) -> Entry:
    """A chunk, under the name that it will have."""
    source, name = folder / entry["name"], layout.name(0, number)
    try:
        if source.stat().st_size != entry["bytes"]:
            raise DataError(
                f"{source}: expected {entry['bytes']} bytes as its index says, found {source.stat().st_size}"
            )
        output.stage(source, name)
    except StoreError:
        raise
    except FileNotFoundError:
        raise DataError(f"{source}: the index names it, and it is not there") from None
    except OSError as error:
        raise store_error(source, error) from None
    return layout.renamed(entry, name)


def _kind(folder: Path) -> tuple[str, Options]:
    """The format of a dataset, and how it is stored."""
    found: list[tuple[str, Any]] = []
    for name, read in (("index.json", _of_index), ("_headrace/written.json", _of_manifest)):
        path = folder / name
        if path.exists():
            found.append(read(path))
    if not found:
        raise ValueError(
            f"{folder}: expected a dataset of {', '.join(writing.FORMATS)} with its index, found none\n"
            "hint: Parquet and Arrow files that something else wrote need no merging: headrace.open takes several"
        )
    return found[0]


def _of_index(path: Path) -> tuple[str, Options]:
    found = read_json(path)
    if isinstance(config := found.get("config"), dict):
        settings: dict[str, Any] = config  # pyright: ignore[reportUnknownVariableType]
        if settings.get("encryption"):
            raise ValueError(
                f"{path}: expected a dataset that is not encrypted: whether others have the same key cannot be told\n"
                "hint: headrace.optimize reads several datasets and writes one, encrypted with one key"
            )
        tokens = settings.get("item_loader") == "TokensLoader"
        size, most = (settings.get(name) for name in ("chunk_size", "chunk_bytes"))
        return "litdata", Options(
            compression=settings.get("compression") or None,
            tokens=tokens,
            chunk_size=size if isinstance(size, int) else None,
            chunk_bytes=most if isinstance(most, int) else None,
        )
    shards: list[Any] = found.get("shards") or [{}]
    return "mds", Options(compression=shards[0].get("compression") or None, chunk_bytes=shards[0].get("size_limit"))


def _of_manifest(path: Path) -> tuple[str, Options]:
    found = read_json(path)
    format = found.get("format")
    if format not in ("parquet", "arrow"):
        raise DataError(f"{path}: expected the format parquet or arrow, found {format!r}")
    return format, Options(metadata=found.get("metadata"))
