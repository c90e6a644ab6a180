"""`headrace.index`: what opening a dataset has to find out, found and kept beforehand."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ._progress import index_progress
from .dataset import TableDataset
from .opening import open as open_dataset

__all__ = ["Indexed", "index", "index_tables"]


@dataclass(frozen=True)
class Indexed:
    """What an index holds.

    Example:
        >>> found = headrace.index(folder, in_place=False)
        >>> found.files, found.written
        (1, None)
    """

    url: str
    """Of the data, without secrets."""
    format: str
    files: int
    chunks: int
    """Row groups, shards: what is read at once."""
    samples: int
    bytes: int
    written: str | None
    """Where it lies next to the data; None if it is in the cache folder alone."""
    notes: list[str]
    """What is odd about the files."""


def index(
    url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    in_place: bool = True,
    column: str | None = None,
    format: Literal["parquet", "jsonl", "webdataset"] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Indexed:
    """Finds where the samples of files lie that do not say so themselves, so that whoever opens them later need not.

    Of Parquet files all footers are read anew. The index goes to the cache folder and next to the data, where every
    machine finds it. Of lines and tar archives all bytes are read, unless the cache folder has their table already.

    Args:
        url: a folder, file, glob or URL, or several.
        in_place: whether to write it next to the data as well, which is possible for Parquet.
        column: of Parquet, a token column whose tokens and documents are to be counted as well.
        format: of the files; by default it is found out.
        storage_options: settings of the store.

    Raises:
        ValueError: if `in_place` or `column` is for another format than that of the files.
        DataError: if a file is damaged.
        StoreError: if the store does not answer, or cannot be written to.

    Example:
        >>> headrace.index(folder, in_place=False).format
        'parquet'
    """
    dataset = open_dataset(url, format=format, storage_options=storage_options, index="rebuild")
    source = dataset.pipeline.origins[0].source
    if not isinstance(dataset, TableDataset):
        if in_place or column is not None:
            name = "in_place" if in_place else "column"
            raise ValueError(
                f"{dataset.url}: {name} is for Parquet files, found {source.format}\n"
                "hint: in_place=False keeps what is found in the cache folder; others have an index or need none"
            )
        stored = int(source.stored.sum())
        return Indexed(dataset.url, source.format, 0, len(source.sizes), len(dataset), stored, None, [])
    return index_tables(dataset, in_place=in_place, column=column)


def index_tables(dataset: TableDataset, *, in_place: bool, column: str | None) -> Indexed:
    """Of Parquet files whose footers were read; see `index`."""
    core = dataset._core  # pyright: ignore[reportPrivateUsage]
    if column is not None:
        with index_progress() as progress:
            core = core.counted(column, documents=True, progress=progress)
    written = core.save_in_place() if in_place else None
    return Indexed(
        core.url, "parquet", core.file_count, core.row_group_count, core.rows, core.bytes, written, list(core.notes)
    )
