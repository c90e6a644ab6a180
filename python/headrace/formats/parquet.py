"""Parquet files as samples: a row group is a chunk, and each row a dict. Reading and decoding are the core's."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace import _core
from headrace._traffic import Traffic
from headrace.errors import DataError
from headrace.samples.source import Chunk, Extent, Named, Source, digest

from ._arrow_types import fields_of

__all__ = ["OpenAgain", "ParquetSource", "RowGroups"]

_DTYPES = {
    **{f"Int{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"UInt{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"Float{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "Boolean": np.dtype(np.bool_),
}
"""NumPy types of Arrow types."""

OpenAgain = Callable[[], _core.Index]
"""Opens the same files in another process."""


class RowGroups(Named):
    """The rows of Parquet files by their places: nothing is read for them. A chunk is a row group."""

    def __init__(self, core: _core.Index) -> None:
        self._core = core
        self.url = core.url
        self.sizes = np.frombuffer(memoryview(core.row_group_sizes()), dtype=np.int64)

    @cached_property
    def paths(self) -> list[str]:
        """The files, by their paths below the root."""
        return [entry[0] for entry in self._core.file_table()]

    @cached_property
    def _all_urls(self) -> list[str]:
        return self._core.files()

    @cached_property
    def _urls(self) -> dict[str, int]:
        return {url: number for number, url in enumerate(self._all_urls)}

    def file(self, chunk: int) -> str:
        """See `Named.file`."""
        return self.paths[self._core.row_group_place(chunk)[0]]

    def file_url(self, chunk: int) -> str:
        """See `Named.file_url`."""
        return self._all_urls[self._core.row_group_place(chunk)[0]]

    def first_chunk(self, url: str) -> int | None:
        """See `Named.first_chunk`."""
        number = self._urls.get(url)
        if number is None:
            return None
        count = len(self.sizes)
        first = bisect_left(range(count), number, key=lambda group: self._core.row_group_place(group)[0])
        return first if first < count and self._core.row_group_place(first)[0] == number else None


class ParquetSource(RowGroups, Source):
    """Rows of Parquet files.

    A value is what pyarrow's `to_pylist` gives, but that lists of numbers are NumPy arrays.
    """

    format = "parquet"

    def __init__(self, core: _core.Index, open_again: OpenAgain) -> None:
        super().__init__(core)
        self.core = core
        self._open_again = open_again
        self.stored = np.frombuffer(memoryview(core.row_group_bytes()), dtype=np.int64)
        self.schema = dict(core.schema())
        self.remote = core.is_remote
        self.dtypes = {name: _DTYPES[kind] for name, kind in self.schema.items() if kind in _DTYPES}
        self._names = tuple(self.schema)
        self._types = fields_of(core.arrow_c_schema())
        self._compared = {(0, name) for name in self._names}
        """Files and columns whose types are known to fit those of the first file."""

    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        """See `Source.load`."""
        # The columns are those of the first file: what another file has beside them is left out, as nothing else could
        # be collated, and one that lacks one of them is refused.
        wanted = self._names if columns is None else columns
        rows = self.core.read_rows(chunk, list(wanted))
        self._compare_types(chunk, rows, wanted)
        return RowChunk(rows, wanted)

    def _compare_types(self, chunk: int, rows: "_core.Rows", columns: Sequence[str]) -> None:
        """Refuses columns of other types than in the first file; each is looked at once."""
        file = self.core.row_group_place(chunk)[0]
        if all((file, name) in self._compared for name in columns):
            return
        found = fields_of(rows.__arrow_c_array__()[0])
        for name in columns:
            if not found[name].fits(self._types[name]):
                first, other = (f"{self.url.rstrip('/')}/{self.paths[number]}" for number in (0, file))
                raise DataError(
                    f"{other}: expected column {name!r} to be {self._types[name]} as in {first}, found {found[name]}\n"
                    "hint: leave the column out with select, or open the files as datasets of their own"
                )
        self._compared.update((file, name) for name in columns)

    def identity(self, extent: Extent | None = None) -> str:
        """See `Source.identity`."""
        files = self.core.file_table()
        if extent is not None and extent.chunks < len(self.sizes):
            files = files[: self.core.row_group_place(extent.chunks)[0]]
        return digest(*files)

    def traffic(self) -> Traffic:
        """See `Source.traffic`."""
        return Traffic(*self.core.traffic())

    def __reduce__(self) -> Any:
        return _open_again, (self._open_again, self.identity())


class RowChunk(Chunk):
    """Decoded rows of a table, their columns in the order asked for."""

    def __init__(self, rows: "_core.Rows", columns: tuple[str, ...]) -> None:
        self._rows = rows
        self._columns = None if columns == tuple(rows.columns) else columns
        self.nbytes = rows.nbytes

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Any:
        return self._ordered(self._rows.row(row))

    def take(self, rows: Sequence[int]) -> list[Any]:
        """See `Chunk.take`."""
        taken = self._rows.take(np.array(rows, dtype=np.int64))
        return taken if self._columns is None else [self._ordered(sample) for sample in taken]

    @classmethod
    def gather(
        cls, chunks: Sequence[Chunk], which: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> dict[str, Any] | None:
        """See `Chunk.gather`."""
        mine = [chunk for chunk in chunks if isinstance(chunk, RowChunk)]
        found = _core.gather([chunk._rows for chunk in mine], which, rows)
        return None if found is None else mine[0]._ordered(found)

    def arrays(self, columns: Sequence[str]) -> Mapping[str, Any]:
        """See `Chunk.arrays`."""
        plain = self._rows.arrays()
        if all(name in plain for name in columns):
            return plain
        rows = self.take(range(len(self)))
        return {name: plain[name] if name in plain else [row[name] for row in rows] for name in columns}

    def _ordered(self, sample: dict[str, Any]) -> dict[str, Any]:
        return sample if self._columns is None else {name: sample[name] for name in self._columns}


def _open_again(open_again: OpenAgain, identity: str) -> ParquetSource:
    source = ParquetSource(open_again(), open_again)
    if source.identity() != identity:
        raise DataError(f"{source.url} changed since it was opened: a process that opened it again found other files")
    return source
