"""Rows that litdata keeps as an Arrow table behind the (then empty) items of a chunk."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

from headrace.errors import DataError
from headrace.samples.source import Chunk

__all__ = ["ArrowRows"]

_FILE = b"ARROW1"

# What a buffer of numbers or bits, or of the offsets of text and bytes, holds.
_FAST = {
    "bool": "B",
    "int64": "q",
    "double": "d",
    "string": "i",
    "binary": "i",
    "large_string": "q",
    "large_binary": "q",
}


class ArrowRows(Chunk):
    """The rows of an Arrow IPC file or stream, decompressed in memory. Needs pyarrow.

    Args:
        data: the file or stream.
        rows: how many there must be.
        columns: what is wanted of a row, if not all.
        known: columns of the dataset: one that the chunk lacks is None.
        where: the chunk, for messages.

    Raises:
        DataError: if it is damaged.
    """

    def __init__(
        self, data: bytes, *, rows: int, columns: tuple[str, ...] | None, known: Sequence[str], where: str
    ) -> None:
        arrow = _pyarrow()
        try:
            batches, names = _read(arrow, data, columns)
            readers = [[_reader(column) for column in batch.columns] for batch in batches]
        except (
            arrow.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError, NotImplementedError
        ) as error:  # fmt: skip
            raise DataError(f"{where}: expected rows in Arrow's layout: {error}") from None
        if len({*names}) != len(names):
            raise DataError(f"{where}: expected columns of different names, found {names}")
        self._where = where
        self._starts = [0]
        for batch in batches:
            self._starts.append(self._starts[-1] + batch.num_rows)
        if self._starts[-1] != rows:
            raise DataError(f"{where}: expected {rows} rows as the index says, found {self._starts[-1]}")
        order = list(columns) if columns is not None else [*names, *(name for name in known if name not in names)]
        places = [(name, names.index(name) if name in names else None) for name in order]
        self._readers = [[(name, _none if at is None else found[at]) for name, at in places] for found in readers]
        self._columns = [{name: batch.column(name) for name in names} for batch in batches]
        self.nbytes = max(len(data), sum(batch.get_total_buffer_size() for batch in batches))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, row: int) -> dict[str, Any]:
        number = bisect_right(self._starts, row) - 1
        row -= self._starts[number]
        try:
            return {name: read(row) for name, read in self._readers[number]}
        except (ValueError, OverflowError, ImportError) as error:
            raise DataError(f"{self._where}, row {row + self._starts[number]}: {error}") from None

    def arrays(self, columns: Sequence[str]) -> Mapping[str, Any]:
        """Whole columns, as lists."""
        found: dict[str, list[Any]] = {name: [] for name in columns}
        for number, batch in enumerate(self._columns):
            size = self._starts[number + 1] - self._starts[number]
            for name, values in found.items():
                values += batch[name].to_pylist() if name in batch else [None] * size
        return found


def _read(arrow: Any, data: bytes, columns: tuple[str, ...] | None) -> tuple[list[Any], list[str]]:
    source = arrow.py_buffer(data)
    make = arrow.ipc.open_file if data.startswith(_FILE) else arrow.ipc.open_stream
    reader = make(source)
    if columns is not None:
        wanted = [number for number, name in enumerate(reader.schema.names) if name in columns]
        # No fields to include means all of them.
        if wanted:
            reader = make(source, options=arrow.ipc.IpcReadOptions(included_fields=wanted))
    table = reader.read_all()
    # Lengths and offsets in the buffers are the file's own: nothing has looked at them yet.
    table.validate(full=True)
    return table.to_batches(), table.schema.names


def _reader(column: Any) -> Callable[[int], Any]:
    """A function from a row to its value: what `as_py` gives, for common types at a tenth of its cost."""
    kind = str(column.type)
    if column.null_count or kind not in _FAST or not len(column):
        return lambda row: column[row].as_py()
    buffers = column.buffers()
    first: int = column.offset
    ends: Any = cast("Any", memoryview(buffers[1]).cast("B")).cast(_FAST[kind])
    if kind == "bool":
        return lambda row: ends[(first + row) >> 3] >> ((first + row) & 7) & 1 == 1
    if kind in ("int64", "double"):
        return lambda row: ends[first + row]
    data: Any = memoryview(buffers[2] if buffers[2] is not None else b"").cast("B")
    if kind in ("binary", "large_binary"):
        return lambda row: bytes(data[ends[first + row] : ends[first + row + 1]])
    return lambda row: str(data[ends[first + row] : ends[first + row + 1]], "utf-8")


def _none(row: int) -> None:
    return None


def _pyarrow() -> Any:
    try:
        arrow: Any = import_module("pyarrow")
        import_module("pyarrow.ipc")
    except ImportError as error:
        raise ImportError(
            "this dataset keeps its rows in Arrow's layout, which pyarrow reads\nhint: pip install pyarrow"
        ) from error
    return arrow
