"""Records cut to sequences of one length: any of them is as cheap to read as the next."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace._traffic import Traffic
from headrace.errors import DataError
from headrace.samples.source import Chunk, Extent, InPlace, InPlaceColumn, Source, digest

from .layout import Records, Shard
from .reading import Opened, local_path, open_file, read_many

__all__ = ["SequenceSource", "Shards", "read_rows", "stretches"]

_Ints = npt.NDArray[np.int64]


class Shards(Source):
    """What the sources over records have in common: a shard is a chunk.

    Args:
        records: the files.
        convert: the type that numbers come as; None as they are stored. For records of one field of whole numbers.
    """

    random_access = True

    def __init__(self, records: Records, convert: np.dtype[Any] | None) -> None:
        self.records = records
        self.convert = convert
        self.format = records.format
        self.url = records.store.url
        self.remote = records.store.is_remote
        self.stored = np.array([shard.records * records.dtype.itemsize for shard in records.shards], np.int64)

    def file(self, chunk: int) -> str:
        """See `Source.file`."""
        return self.records.shards[chunk].file.path

    def traffic(self) -> Traffic:
        """See `Source.traffic`."""
        return self.records.store.traffic()

    def type_of(self, name: str) -> np.dtype[Any]:
        """The type of a column's numbers, as they come."""
        return self.records.types[name] if self.convert is None else self.convert

    @property
    def conversion(self) -> tuple[str, str] | None:
        """From which type to which the core can convert numbers; None if it is not asked for, or the core cannot."""
        stored = self.records.types[self.records.columns[0]]
        if self.convert is None or not stored.isnative:
            return None
        return stored.name, self.convert.name


class SequenceSource(Shards):
    """Sequences that are cut from each shard, from its first record on; a rest shorter than one is left out.

    A sample is a dict with an array for each field of a record, (length + overlap, ...); without a length a sample is
    one record, and its values are scalars.

    Args:
        records: the files.
        length: records from one sequence to the next; None for single records.
        overlap: further records in a sequence, with which the next one begins.
        convert: see `Shards`.
    """

    def __init__(
        self, records: Records, *, length: int | None, overlap: int = 0, convert: np.dtype[Any] | None = None
    ) -> None:
        super().__init__(records, convert)
        self.length, self.overlap = length, overlap
        stride = 1 if length is None else length
        self.width = stride + overlap
        self.stride = stride
        counts = np.array([shard.records for shard in records.shards], np.int64)
        self.sizes = np.maximum(0, counts - overlap) // stride
        self.schema = {name: _described(self.type_of(name), length, self.width) for name in records.columns}
        self.dtypes = {name: self.type_of(name).base for name in records.columns}

    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        """See `Source.load`."""
        self.records.verify(chunk)
        return SequenceChunk(self, self.records.shards[chunk], int(self.sizes[chunk]), columns or self.records.columns)

    def in_place(self, columns: tuple[str, ...] | None = None) -> InPlace | None:
        """See `Source.in_place`: records whose files are not compared with digests."""
        records = self.records
        names = columns or records.columns
        is_made = self.convert is not None and self.conversion is None
        if is_made or records.digests or not all(records.types[name].itemsize for name in names):
            return None
        shape = () if self.length is None else (self.width,)
        types = {name: self.type_of(name) for name in names}
        fields = [(records.offsets[name], records.types[name].itemsize) for name in names]
        size = records.dtype.itemsize
        files = [shard.file for shard in records.shards]
        paths = [local_path(records.store, file) or file.path for file in files]
        return InPlace(
            files=[(path, file.size, file.version) for path, file in zip(paths, files, strict=True)],
            store=records.store.core if self.remote else None,
            begins=[shard.begin for shard in records.shards],
            stride=self.stride * size,
            width=self.width * size,
            convert=self.conversion,
            split=None if fields == [(0, size)] else (size, fields),
            columns=tuple(InPlaceColumn(name, kind.base, (*shape, *kind.shape)) for name, kind in types.items()),
        )

    def identity(self, extent: Extent | None = None) -> str:
        """See `Source.identity`."""
        return digest(*self.records.identity(extent), self.length, self.overlap)


class SequenceChunk(Chunk):
    """A shard of which nothing was read yet."""

    def __init__(self, source: SequenceSource, shard: Shard, count: int, columns: tuple[str, ...]) -> None:
        self.source, self.shard = source, shard
        self.columns = columns
        self._count = count
        self._file = open_file(source.records.store, shard.file)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.take([row])[0]

    def take(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """See `Chunk.take`."""
        number = np.array(rows, np.int64)
        found = self.gather([self], np.zeros(len(number), np.int64), number)
        return [{name: values[at] for name, values in found.items()} for at in range(len(number))]

    @classmethod
    def gather(cls, chunks: Sequence[Chunk], which: _Ints, rows: _Ints) -> dict[str, Any]:
        """See `Chunk.gather`; here there is always such a way."""
        mine = [chunk for chunk in chunks if isinstance(chunk, SequenceChunk)]
        first = mine[0]
        source = first.source
        shards, files = [chunk.shard for chunk in mine], [chunk._file for chunk in mine]
        values = read_rows(source, shards, files, which, rows * source.stride, source.width)
        found = {name: values[name] for name in first.columns}
        return {name: value[:, 0] for name, value in found.items()} if source.length is None else found


def stretches(records: Records, count: int, start: int) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """All records from one on, in their order, read so many at once; the last ones of a shard are fewer.

    Raises:
        DataError: if a file changed, or its bytes are not those of its digest and that was asked for.
        StoreError: if the store does not answer.
    """
    source = SequenceSource(records, length=None)
    place = np.zeros(1, np.int64)
    for chunk, shard in enumerate(records.shards):
        begin, start = start, max(0, start - shard.records)
        if begin >= shard.records:
            continue
        records.verify(chunk)
        files = [open_file(records.store, shard.file)]
        for first in range(begin, shard.records, count):
            width = min(count, shard.records - first)
            values = read_rows(source, [shard], files, place, np.array([first], np.int64), width)
            yield {name: value[0] for name, value in values.items()}


def read_rows(
    source: Shards, shards: Sequence[Shard], files: Sequence[Opened], which: _Ints, firsts: _Ints, width: int
) -> dict[str, npt.NDArray[Any]]:
    """Stretches of records: for each field an array, (stretches, width, ...), contiguous.

    Args:
        source: whose records.
        shards: where they lie.
        files: those of the shards.
        which: int64, (stretches,): which of the shards.
        firsts: int64, (stretches,): the first record there.
        width: records in a stretch.

    Raises:
        DataError: if a file changed, or a number does not fit the type that was asked for.
        StoreError: if the store does not answer.
    """
    records, convert = source.records, source.convert
    pair = None if source.remote else source.conversion
    begins = np.array([shard.begin for shard in shards], np.int64)
    starts = begins[which] + firsts * records.dtype.itemsize
    name = records.columns[0]
    memory = read_many(records.store, files, which, starts, width * records.dtype.itemsize, convert=pair)
    if pair is not None:
        return {name: np.frombuffer(memory, convert).reshape(len(which), width)}
    values = np.frombuffer(memory, records.dtype).reshape(len(which), width)
    fields = {key: values[key] for key in records.columns}
    if convert is not None:
        fields[name] = _converted(fields[name], convert)
    return {key: np.ascontiguousarray(value) for key, value in fields.items()}


def _converted(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    limits = np.iinfo(dtype)
    if values.size and (int(values.max()) > limits.max or int(values.min()) < limits.min):
        raise DataError(f"expected numbers that fit into {dtype}, found {values.min()} to {values.max()}")
    return values.astype(dtype)


def _described(dtype: np.dtype[Any], length: int | None, width: int) -> str:
    if length is None:
        return str(dtype)
    return f"{dtype}[{width}]"
