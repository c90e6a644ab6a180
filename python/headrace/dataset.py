"""Parquet files as tables, and tokens packed to rows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import numpy as np

from . import _core
from ._base import Dataset
from ._progress import index_progress
from ._units import as_int, show_bytes
from .errors import DataError
from .formats.parquet import OpenAgain, ParquetSource
from .samples.cache import ChunkCache
from .samples.dataset import SampleDataset
from .samples.document_pipeline import DocumentPipeline
from .samples.packing import Mode, PackedColumn, RowPacking, packed_columns, part_of, token_id
from .samples.pipeline import Origin, Pipeline
from .samples.selection import Selection

__all__ = ["PackedDataset", "Schema", "TableDataset"]


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


class TableDataset(SampleDataset):
    """Parquet files, as `headrace.open` gives them: rows as samples, or a column of tokens to pack.

    ``len()`` is the number of rows (documents).
    """

    def __init__(self, core: _core.Index, folder: Path, chunks: ChunkCache, open_again: OpenAgain) -> None:
        self._core = core
        self._folder = folder
        self._cache = chunks
        self._open_again = open_again
        self._schema: Schema | None = None

    @cached_property
    def pipeline(self) -> Pipeline:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Its rows as samples, made when they are asked for."""
        source = ParquetSource(self._core, self._open_again)
        return Pipeline((Origin(source),), Selection.whole(source.sizes))

    def __reduce__(self) -> Any:
        return _again, (self.pipeline.origins[0].source, self._folder, self._cache, self._open_again)

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
        columns: Iterable[str] | Mapping[str, str] | None = None,
        mode: Mode = "concat",
        eos_id: SupportsIndex | None = None,
        bos_id: SupportsIndex | None = None,
        overlap: SupportsIndex = 0,
        boundaries: bool = False,
        dtype: Literal["int32", "int64"] = "int32",
        name: str = "tokens",
        pad_id: SupportsIndex = 0,
        ignore_index: SupportsIndex = -100,
        pad_values: Mapping[str, int | float] | None = None,
        lookahead: SupportsIndex | None = None,
        long: Literal["split", "drop"] | None = None,
        max_documents: SupportsIndex | None = None,
        cu_seqlens_size: SupportsIndex | None = None,
    ) -> Any:
        """Documents of a stored column packed to rows.

        With ``mode="concat"`` and one column nothing but tokens is read, by the core, and any row is found without
        those before it: what this gives has a length, and a loader over it a position that is one number. With another
        mode, several `columns` or a fixed size of ``cu_seqlens`` it is what `SampleDataset.pack` gives; the arguments
        that are not explained here are explained there.

        Args:
            seq_len: tokens from one row's start to the next, at least 1.
            column: a column of lists of integers; ``"a.b"`` for one inside a struct.
            columns: see `SampleDataset.pack`.
            mode: ``"concat"`` lays documents end to end and cuts them into rows, every row full and no token lost; for
                the others see `SampleDataset.pack`.
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
            ignore_index: see `SampleDataset.pack`.
            pad_values: what fills up `column` instead, by its name; int32.
            lookahead: see `SampleDataset.pack`.
            long: see `SampleDataset.pack`.
            max_documents: see `SampleDataset.pack`.
            cu_seqlens_size: see `SampleDataset.pack`.

        Returns:
            A `PackedDataset`, or a dataset of rows that are made lane by lane.

        Raises:
            ValueError: if an argument is out of range.
            DataError: if a file has no such column or one of another type; it names the file.

        Example:
            >>> packed = data.pack(64, column="tokens", eos_id=0)
            >>> packed.info()["weight"] == packed.info()["tokens"] + 200
            True
        """
        if mode != "concat" or columns is not None or cu_seqlens_size is not None:
            return super().pack(
                seq_len,
                column=column,
                columns=columns,
                mode=mode,
                eos_id=eos_id,
                bos_id=bos_id,
                overlap=overlap,
                boundaries=boundaries,
                dtype=dtype,
                name=name,
                pad_id=pad_id,
                ignore_index=ignore_index,
                pad_values=pad_values,
                lookahead=lookahead,
                long=long,
                max_documents=max_documents,
                cu_seqlens_size=cu_seqlens_size,
            )
        for given, value in (("lookahead", lookahead), ("long", long), ("max_documents", max_documents)):
            if value is not None:
                raise ValueError(f"{given} has no meaning for mode='concat', got {value!r}")
        [tokens] = packed_columns(
            column,
            None,
            name=name,
            dtype=dtype,
            pad_id=pad_id,
            ignore_index=ignore_index,
            pad_values=pad_values,
        )
        length = as_int(seq_len, "seq_len", least=1, most=2**31 - 1)
        packing = Packing(
            seq_len=length,
            column=column,
            bos_id=token_id(bos_id, "bos_id"),
            eos_id=token_id(eos_id, "eos_id"),
            overlap=as_int(overlap, "overlap", least=0, most=length),
            boundaries=bool(boundaries),
            wide=dtype == "int64",
            name=name,
            pad_id=as_int(int(tokens.pad), f"pad_values[{column!r}]", least=-(2**31), most=2**31 - 1),
        )
        return _packed(self._core, self._folder, packing, self._open_again)

    def __repr__(self) -> str:
        core = self._core
        return (
            f"Dataset({core.url!r}, files={core.file_count:,}, row_groups={core.row_group_count:,}, "
            f"rows={core.rows:,}, bytes={show_bytes(core.bytes)!r}, token_columns={core.columns})"
        )


def _again(source: ParquetSource, folder: Path, chunks: ChunkCache, open_again: OpenAgain) -> TableDataset:
    """A dataset in another process; the source has been compared with what it was."""
    return TableDataset(source.core, folder, chunks, open_again)


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
        """What of it decides what rows hold, for the state."""
        return {
            "mode": "concat",
            "column": self.column,
            "seq_len": self.seq_len,
            "overlap": self.overlap,
            "bos_id": self.bos_id,
            "eos_id": self.eos_id,
            "pad_id": self.pad_id,
        }

    def lane_rows(self) -> RowPacking:
        """The same rows where they come lane by lane."""
        dtype = np.dtype("int64" if self.wide else "int32")
        return RowPacking.of_tokens(
            self.seq_len,
            PackedColumn(self.column, self.name, dtype, self.pad_id),
            overlap=self.overlap,
            bos_id=self.bos_id,
            eos_id=self.eos_id,
            boundaries=self.boundaries,
        )


class PackedDataset(Dataset):
    """Documents packed to rows, as `TableDataset.pack` gives them. `len()` is the whole rows in one pass' tokens.

    It pickles: another process opens the same files again, by the paths and options that `headrace.open` was given, and
    takes their index from the cache folder. Secrets among the options are in the pickle as they were given; those of
    the environment are not, and are looked up there. Files that have changed are a `DataError`.
    """

    def __init__(self, core: _core.Index, cache: Path, packing: Packing, open_again: OpenAgain) -> None:
        self.open_again = open_again
        self.core = core
        self.cache = cache
        self.packing = packing
        info = core.column_info(packing.column)
        self.rows = core.rows
        self.tokens = int(info["tokens"])
        added = sum(token is not None for token in (packing.bos_id, packing.eos_id))
        self.weight = self.tokens + (added * int(info["documents"]) if added else 0)
        """Tokens of a pass with those that packing adds."""

    def __reduce__(self) -> Any:
        identity, _ = self.core.identity(self.packing.column)
        return _packed_again, (self.open_again, identity, self.cache, self.packing)

    def __len__(self) -> int:
        return self.weight // self.packing.seq_len

    @cached_property
    def documents(self) -> DocumentPipeline:
        """The same documents and how they are packed, for mixtures whose rows come lane by lane."""
        source = ParquetSource(self.core, self.open_again)
        origin = Origin(source, (part_of(self.packing.column, source.schema),))
        return DocumentPipeline(Pipeline((origin,), Selection.whole(source.sizes)), packing=self.packing.lane_rows())

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


def _packed(index: _core.Index, cache: Path, packing: Packing, open_again: OpenAgain) -> PackedDataset:
    """A packed dataset over an index, whose tokens are counted where footers do not tell them."""
    added = packing.bos_id is not None or packing.eos_id is not None
    with index_progress() as progress:
        core = index.counted(packing.column, documents=added, progress=progress)
    return PackedDataset(core, cache, packing, open_again)


def _packed_again(open_again: OpenAgain, identity: str, cache: Path, packing: Packing) -> PackedDataset:
    """A dataset in another process.

    Raises:
        DataError: if the files are not those that it was made of.
    """
    again = _packed(open_again(), cache, packing, open_again)
    if again.core.identity(packing.column)[0] != identity:
        raise DataError(
            f"{again.core.url} changed since it was opened: a process that opened it again found other files"
        )
    return again
