"""Records where they lie: sequences of one length, and documents of any."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from ._units import as_int
from .formats.records import DocumentSource, PieceSource, Records, SequenceSource, stretches
from .samples.cache import ChunkCache
from .samples.dataset import SampleDataset
from .samples.document_pipeline import DocumentPipeline
from .samples.pipeline import Origin, Pipeline
from .samples.selection import Selection
from .samples.source import Source

__all__ = ["DocumentDataset", "StreamDataset", "records_dataset"]

Numbers = Literal["int32", "int64"]


class _RecordDataset(SampleDataset):
    """What streams and documents have in common."""

    def __init__(self, records: Records, source: Source, cache: ChunkCache) -> None:
        super().__init__(Pipeline((Origin(source),), Selection.whole(source.sizes)), cache)
        self._records = records

    @property
    def dtype(self) -> np.dtype[Any]:
        """A record as it is stored: a type with a field for each column."""
        return self._records.dtype

    @property
    def records(self) -> int:
        """Records (tokens) in all files."""
        return sum(shard.records for shard in self._records.shards)

    @property
    def has_documents(self) -> bool:
        """Whether the files say where documents end."""
        return self._records.has_documents

    def sequences(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        length: SupportsIndex,
        *,
        overlap: SupportsIndex = 0,
        dtype: Numbers | None = None,
        within_documents: bool = False,
        pad_id: SupportsIndex = 0,
    ) -> "StreamDataset":
        """Sequences of one length, each a sample: a dict with an array for each column, (length + overlap,).

        They are cut from each file, from its first record on; what is left at its end, less than a sequence, is left
        out.

        Args:
            length: records from one sequence to the next, at least 1.
            overlap: further records in a sequence, with which the next one begins. With 1, ``row[:-1]`` and ``row[1:]``
                are inputs and targets and each token is a target once. At most `length`.
            dtype: what numbers come as; as they are stored by default. For one column of whole numbers.
            within_documents: whether no sequence crosses the end of a document. Then each document gives sequences of
                its own, of which the last is filled up, samples also hold ``loss_mask`` (uint8: 1 for records, 0 for
                what fills up), and nothing is left out.
            pad_id: what fills up, in the first column; zero in others.

        Raises:
            ValueError: if an argument is out of range.
            TypeError: if it is not known where documents end, or numbers cannot be converted.

        Example:
            >>> headrace.open(stream).sequences(4, overlap=1, dtype="int64")[1]["tokens"]
            array([1, 1, 1, 1, 2])
        """
        stride = as_int(length, "length", least=1, most=2**31 - 1)
        shared = as_int(overlap, "overlap", least=0, most=stride)
        convert = _converted(self._records, dtype)
        source: SequenceSource | PieceSource
        if within_documents:
            self._need_documents("within_documents")
            pad = as_int(pad_id, "pad_id", least=-(2**31), most=2**31 - 1)
            source = PieceSource(self._records, length=stride, overlap=shared, pad=pad, convert=convert)
            first = source.type_of(self._records.columns[0]).base
            if first.kind in "iu" and not np.iinfo(first).min <= pad <= np.iinfo(first).max:
                raise ValueError(f"pad_id must fit into {first}, got {pad}")
        else:
            source = SequenceSource(self._records, length=stride, overlap=shared, convert=convert)
        return StreamDataset(self._records, source, self._cache)

    def documents(self, *, dtype: Numbers | None = None) -> "DocumentDataset":
        """Whole documents, each a sample: a dict with an array for each column, (records of the document,), and what
        was stored with the document.

        Args:
            dtype: what numbers come as; as they are stored by default. For one column of whole numbers.

        Raises:
            TypeError: if it is not known where documents end, or numbers cannot be converted.

        Example:
            >>> headrace.open(stream).sequences(6).documents()[1]["tokens"]
            array([1, 1, 1, 1], dtype=uint16)
        """  # noqa: D205
        self._need_documents("documents")
        source = DocumentSource(self._records, convert=_converted(self._records, dtype))
        return DocumentDataset(self._records, source, self._cache)

    def info(self) -> dict[str, Any]:
        """As `SampleDataset.info`, with ``records`` and ``dtype``.

        Example:
            >>> headrace.open(stream).info()["records"]
            12
        """
        return super().info() | {"records": self.records, "dtype": str(self.dtype.descr)}

    def _need_documents(self, what: str) -> None:
        if not self.has_documents:
            raise TypeError(
                f"{what}: {self.url} does not say where documents end\n"
                "hint: StreamWriter(documents=True), DocumentWriter and Megatron-LM's files do"
            )


class StreamDataset(_RecordDataset):
    """Records one behind another, cut to sequences, as `headrace.open` and `sequences` give them.

    ``len()`` is the number of sequences; without a length a sample is one record.

    Example:
        >>> data = headrace.open(stream, sequence_length=6)
        >>> len(data), data.sequence_length, data[1]["tokens"]
        (2, 6, array([1, 1, 2, 2, 2, 2], dtype=uint16))
    """

    @property
    def sequence_length(self) -> int | None:
        """Records from one sequence to the next; None if a sample is one record."""
        source = self.pipeline.origins[0].source
        return source.length if isinstance(source, SequenceSource | PieceSource) else None

    def stretches(self, count: SupportsIndex, *, start: SupportsIndex = 0) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Records in their order, read so many at once; the last ones of a file are fewer. It is not shuffled.

        Args:
            count: records at once, at least 1.
            start: the first one.

        Example:
            >>> data = headrace.open(stream, sequence_length=6)
            >>> [len(part["tokens"]) for part in data.stretches(8)]
            [8, 4]
            >>> [len(part["tokens"]) for part in data.stretches(8, start=3)]
            [8, 1]
        """
        begin = as_int(start, "start", least=0)
        return stretches(self._records, as_int(count, "count", least=1), begin)

    def _with_parts(self, names: tuple[str, ...]) -> DocumentPipeline:
        if self.sequence_length is None:
            more = ", or documents()" if self.has_documents else ""
            raise TypeError(
                f"pack: expected samples that are lists of tokens, got single records of {self.url}\n"
                f"hint: sequences(length){more} makes them"
            )
        return super()._with_parts(names)

    def __repr__(self) -> str:
        return (
            f"StreamDataset({self.url!r}, sequence_length={self.sequence_length}, samples={len(self.pipeline):,}, "
            f"records={self.records:,}, columns={list(self.pipeline.origins[0].source.schema)})"
        )


class DocumentDataset(_RecordDataset):
    """Documents, each read by its number, as `headrace.open` and `documents` give them. ``len()`` counts them.

    Example:
        >>> data = headrace.open(stream)
        >>> len(data), data[2]["tokens"]
        (3, array([2, 2, 2, 2], dtype=uint16))
    """

    def __repr__(self) -> str:
        return (
            f"DocumentDataset({self.url!r}, documents={len(self.pipeline):,}, records={self.records:,}, "
            f"columns={list(self.pipeline.origins[0].source.schema)})"
        )


def records_dataset(
    records: Records, kind: Literal["stream", "documents"], length: int | None, cache: ChunkCache
) -> StreamDataset | DocumentDataset:
    """What `headrace.open` gives for files of records.

    Args:
        records: the files.
        kind: what their samples are, if no length is given.
        length: of sequences; None for what the files say themselves.
        cache: where opened shards are kept.
    """
    if length is None and kind == "documents":
        return DocumentDataset(records, DocumentSource(records), cache)
    length = records.length if length is None else length
    return StreamDataset(records, SequenceSource(records, length=length), cache)


def _converted(records: Records, dtype: str | None) -> np.dtype[Any] | None:
    if dtype is None:
        return None
    if dtype not in ("int32", "int64"):
        raise ValueError(f'dtype must be None, "int32" or "int64", got {dtype!r}')
    fields: Iterable[np.dtype[Any]] = records.types.values()
    if len(records.columns) != 1 or any(field.kind not in "iu" or field.shape for field in fields):
        raise TypeError(f"dtype is for one column of whole numbers, got it for {records.dtype.descr}")
    return np.dtype(dtype)
