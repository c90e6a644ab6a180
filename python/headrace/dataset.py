"""What is read: datasets where they lie, and what is made of them."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, SupportsIndex

from . import _core
from ._base import Dataset
from ._progress import index_progress
from ._units import as_int, show_bytes

__all__ = ["Dataset", "PackedDataset", "Schema", "TableDataset", "open"]

_INT32 = range(-(2**31), 2**31)


def open(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    format: Literal["parquet"] | None = None,
    columns: Iterable[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    index: str | os.PathLike[str] = "auto",
) -> "TableDataset":
    """Opens a dataset where it lies, reading nothing but footers.

    Files sort by path (as UTF-8 bytes, below the dataset's root). Below a folder or a glob, files are left out whose
    name, or that of a folder on the way, begins with ``.`` or ``_``, and empty files without a Parquet suffix; of the
    rest those with a Parquet suffix (``.parquet``, ``.parq``, ``.pq``) are taken, or all if none has one. A file that
    is named itself is always taken. Symbolic links are followed, each folder once.

    Args:
        urls: a folder (with all below it), a file, a glob (``*``, ``?``, ``[...]``, ``**``), or several of these, all
            on one store: a local path, ``file://`` or ``s3://bucket/prefix``. Local paths and keys are taken as they
            are; only ``file://`` is percent-decoded.
        format: the format, or None to find out.
        columns: token columns that every file must have; checked now rather than when they are used.
        storage_options: settings of the store, on top of the AWS_* environment variables for S3.
        cache_dir: where the index is kept (and other things to come); by default ``$HEADRACE_CACHE``,
            ``$XDG_CACHE_HOME/headrace`` or ``~/.cache/headrace``.
        index: ``"auto"`` takes a saved index as far as files have not changed, ``"rebuild"`` reads all footers anew,
            a path (to ``name.arrow``, or with a ``/`` in it) names a file to keep the index in.

    Raises:
        ValueError: if nothing matches, a file is named twice, or an argument cannot be used.
        DataError: if a file is damaged or lacks a column.
        StoreError: if the store does not answer; `MissingError` if it has no such thing.

    Example:
        >>> data = headrace.open(folder)
        >>> len(data), data.info()["columns"]["tokens"]["type"]
        (200, 'int32')
    """
    if format not in (None, "parquet"):
        raise ValueError(f'format must be None or "parquet", got {format!r}')
    if isinstance(urls, bytes) or not isinstance(urls, str | os.PathLike | Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"open takes a path or URL as text, or several, got {urls!r}")
    names = [os.fspath(urls)] if isinstance(urls, str | os.PathLike) else [os.fspath(url) for url in urls]
    if not names:
        raise ValueError("open needs at least one path or URL, got none")
    if wrong := [name for name in names if not isinstance(name, str) or not name]:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"a path or URL must be non-empty text, got {wrong[0]!r}")
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names, got {columns!r}")
    index = os.fspath(index)
    if index not in ("auto", "rebuild") and not index.endswith(".arrow") and os.sep not in index:
        raise ValueError(
            f'index must be "auto", "rebuild" or the path of a file (name.arrow or with a /), got {index!r}'
        )
    options = dict(storage_options or {})
    if wrong := [pair for pair in options.items() if not all(isinstance(part, str) for part in pair)]:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"storage_options must map text to text, got a {type(wrong[0][1]).__name__} for {wrong[0][0]!r}"
        )
    cache = None if cache_dir is None else os.fspath(cache_dir)
    with index_progress() as progress:
        core = _core.Index.open(
            names,
            storage_options=options,
            cache_dir=cache,
            index=index,
            columns=None if columns is None else list(columns),
            progress=progress,
        )
    return TableDataset(core, cache_folder(cache))


def cache_folder(given: str | None) -> Path:
    """The folder that caches are kept in: the given one, or that which the environment names."""
    if given is not None:
        return Path(given)
    if own := os.environ.get("HEADRACE_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headrace"


class Schema(Mapping[str, str]):
    """Names and Arrow types of a dataset's columns, as text; `pyarrow.schema(schema)` gives the Arrow schema.

    Example:
        >>> dict(data.schema)
        {'tokens': "List(Int32, field: 'element')"}
    """

    def __init__(self, core: _core.Index) -> None:
        self._core = core
        self._types = dict(core.schema())

    def __getitem__(self, name: str) -> str:
        return self._types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def __arrow_c_schema__(self) -> object:
        """The schema by the Arrow PyCapsule interface."""
        return self._core.arrow_c_schema()

    def __repr__(self) -> str:
        return "Schema(" + ", ".join(f"{name}: {kind}" for name, kind in self._types.items()) + ")"


class TableDataset(Dataset):
    """Files of rows, as `headrace.open` gives them. `len()` is the number of rows (documents)."""

    def __init__(self, core: _core.Index, cache: Path) -> None:
        self._core = core
        self._cache = cache
        self._schema: Schema | None = None

    @property
    def url(self) -> str:
        """The root, without secrets."""
        return self._core.url

    @property
    def schema(self) -> Schema:
        """The columns of the first file."""
        if self._schema is None:
            self._schema = Schema(self._core)
        return self._schema

    @property
    def files(self) -> list[str]:
        """The files, in storage order, by the names that `Batch.sources` shows."""
        return self._core.files()

    def __len__(self) -> int:
        return self._core.rows

    def info(self) -> dict[str, Any]:
        """Files, row groups, rows, bytes, and the token columns with what the footers say of them.

        Returns:
            ``url``, ``files``, ``row_groups``, ``rows``, ``bytes`` (of all files), ``notes`` and ``columns``: a dict
            from the name of each token column that all files have to ``type``, ``tokens``, ``documents`` (those with
            a token; both None if only reading can tell), ``bytes`` (stored), ``codecs`` and ``encodings``.

        Example:
            >>> data.info()["columns"]["tokens"]["tokens"]
            10000
        """
        core = self._core
        return {
            "url": core.url,
            "files": core.file_count,
            "row_groups": core.row_group_count,
            "rows": core.rows,
            "bytes": core.bytes,
            "columns": {name: core.column_info(name) for name in core.columns if core.is_whole(name)},
            "notes": core.notes,
        }

    def save_index(self) -> str:
        """Writes the index next to the data (``_headrace/index.arrow`` below the root), where `open` finds it.

        Returns:
            Where it was written.

        Raises:
            ValueError: if the dataset is not one folder.
            StoreError: if it cannot be written.

        Example:
            >>> data.save_index().endswith("_headrace/index.arrow")
            True
        """
        return self._core.save_in_place()

    def pack(
        self,
        seq_len: SupportsIndex,
        *,
        column: str = "tokens",
        mode: Literal["concat"] = "concat",
        eos_id: SupportsIndex | None = None,
        bos_id: SupportsIndex | None = None,
        overlap: SupportsIndex = 0,
        boundaries: bool = False,
        dtype: Literal["int32", "int64"] = "int32",
        name: str = "tokens",
        pad_id: SupportsIndex = 0,
    ) -> "PackedDataset":
        """Documents laid end to end and cut into rows, every row full and no token lost.

        Args:
            seq_len: tokens from one row's start to the next, at least 1.
            column: a column of lists of integers; ``"a.b"`` for one inside a struct.
            mode: ``"concat"``.
            eos_id: put behind each document that has a token; int32.
            bos_id: put before each document that has a token; int32.
            overlap: further tokens in a row, with which the next row begins. With 1, rows hold seq_len + 1 tokens, so
                that ``row[:-1]`` and ``row[1:]`` are inputs and targets and each token is a target once. At most
                seq_len.
            boundaries: whether batches also hold ``document_ids`` (int32, as `tokens`: 0, 1, 2 … for the parts of a
                row), ``position_ids`` (int32, as `tokens`: from 0 in each part), ``cu_seqlens`` (int32: where the
                parts begin and end if the first seq_len tokens of all rows are laid end to end, strictly increasing)
                and ``max_seqlen`` (int: the longest of these).
            dtype: of the tokens in a batch.
            name: of the tokens in a batch.
            pad_id: what fills up the last rows with ``remainder="pad"``; int32.

        Raises:
            ValueError: if an argument is out of range.
            DataError: if a file has no such column or one of another type; it names the file.

        Example:
            >>> packed = data.pack(64, column="tokens", eos_id=0)
            >>> packed.info()["weight"] == packed.info()["tokens"] + 200
            True
        """
        if mode != "concat":
            raise ValueError(f'mode must be "concat", got {mode!r}')
        if dtype not in ("int32", "int64"):
            raise ValueError(f'dtype must be "int32" or "int64", got {dtype!r}')
        if not isinstance(column, str) or not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"column and name must be text, got {column!r} and {name!r}")
        reserved = ("document_ids", "position_ids", "cu_seqlens", "max_seqlen", "loss_mask")
        if name in reserved:
            raise ValueError(f"name must be none of {', '.join(reserved)}, got {name!r}")
        length = as_int(seq_len, "seq_len", least=1, most=2**31 - 1)
        packing = Packing(
            seq_len=length,
            column=column,
            bos_id=_token(bos_id, "bos_id"),
            eos_id=_token(eos_id, "eos_id"),
            overlap=as_int(overlap, "overlap", least=0, most=length),
            boundaries=bool(boundaries),
            wide=dtype == "int64",
            name=name,
            pad_id=as_int(pad_id, "pad_id", least=_INT32.start, most=_INT32.stop - 1),
        )
        with index_progress() as progress:
            added = packing.bos_id is not None or packing.eos_id is not None
            core = self._core.counted(column, documents=added, progress=progress)
        return PackedDataset(core, self._cache, packing)

    def __repr__(self) -> str:
        core = self._core
        return (
            f"Dataset({core.url!r}, files={core.file_count:,}, row_groups={core.row_group_count:,}, "
            f"rows={core.rows:,}, bytes={show_bytes(core.bytes)!r}, token_columns={core.columns})"
        )


def _token(value: SupportsIndex | None, name: str) -> int | None:
    return None if value is None else as_int(value, name, least=_INT32.start, most=_INT32.stop - 1)


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The arguments of `TableDataset.pack`, checked."""

    seq_len: int
    column: str
    bos_id: int | None
    eos_id: int | None
    overlap: int
    boundaries: bool
    wide: bool
    name: str
    pad_id: int

    def identity(self) -> dict[str, Any]:
        """What of it decides which token stands where, for the state."""
        return {
            "mode": "concat",
            "column": self.column,
            "seq_len": self.seq_len,
            "overlap": self.overlap,
            "bos_id": self.bos_id,
            "eos_id": self.eos_id,
        }


class PackedDataset(Dataset):
    """Documents packed to rows, as `TableDataset.pack` gives them. `len()` is the whole rows in one pass' tokens."""

    def __init__(self, core: _core.Index, cache: Path, packing: Packing) -> None:
        self.core = core
        self.cache = cache
        self.packing = packing
        info = core.column_info(packing.column)
        self.rows = core.rows
        self.tokens = int(info["tokens"])
        added = sum(token is not None for token in (packing.bos_id, packing.eos_id))
        self.weight = self.tokens + (added * int(info["documents"]) if added else 0)
        """Tokens of a pass with those that packing adds."""

    def __len__(self) -> int:
        return self.weight // self.packing.seq_len

    def info(self) -> dict[str, Any]:
        """What is packed: ``url``, ``files``, ``row_groups``, ``rows`` (documents), ``tokens`` (stored),
        ``weight`` (with bos and eos), and the arguments of `pack` that shape the rows.

        Example:
            >>> packed.info()["seq_len"]
            64
        """  # noqa: D205
        core = self.core
        return {
            "url": core.url,
            "files": core.file_count,
            "row_groups": core.row_group_count,
            "rows": self.rows,
            "tokens": self.tokens,
            "weight": self.weight,
            **self.packing.identity(),
        }

    def __repr__(self) -> str:
        packing = self.packing
        return (
            f"Dataset({self.core.url!r}).pack({packing.seq_len}, column={packing.column!r}, "
            f"documents={self.rows:,}, tokens={self.tokens:,}, rows={len(self):,})"
        )
