"""Documents: the texts among a dataset's samples, and what else is to be kept of each."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from headrace._unpacking import unpack
from headrace.errors import DataError
from headrace.formats._line_tables import codec_of
from headrace.samples.dataset import SampleDataset
from headrace.samples.pipeline import Fetched, OnError, Pipeline
from headrace.samples.source import Place
from headrace.samples.stages import Map

from .job import Refused
from .parts import Part, PartReader, Parts
from .writing.base import kind_of

__all__ = ["FILE", "ROW", "Document", "Documents"]

FILE, ROW = "file", "row"
"""What the columns are called that say where a document comes from: its file, and its number there."""
_ID = "id"
_PATH, _DATA = _FILES = ("path", "data")
"""The columns of raw files."""


class Document(NamedTuple):
    """A text, and what is kept beside it."""

    position: int
    """Its number in the dataset."""
    text: str
    kept: dict[str, Any]


class Documents:
    """The documents of a dataset, read part by part. It pickles.

    Args:
        dataset: its samples are dicts with a text, or texts.
        column: what the text is called. Of raw files it is their content.
        keep: columns to keep. By default that is ``id``, if there is such a column, and else where the document comes
            from: ``file`` and ``row``, which may also be named. The row counts in its file.
        limit: how many samples to take at most.
        on_error: ``"skip"`` gives a `Refused` for what is no text or cannot be read.

    Raises:
        ValueError: if there is no such column.
    """

    def __init__(
        self, dataset: SampleDataset, *, column: str, keep: Sequence[str] | None, limit: int | None, on_error: OnError
    ) -> None:
        stages = [stage for origin in dataset.pipeline.origins for stage in origin.stages]
        self._is_made = any(isinstance(stage, Map) for stage in stages)
        names = () if self._is_made else tuple(dataset.schema)
        self._is_files = names == _FILES and dataset.pipeline.origins[0].source.format == "files"
        self._column = _DATA if self._is_files else column
        self.keep = _default(names, self._is_files) if keep is None else tuple(keep)
        self._places = [name for name in (FILE, ROW) if name in self.keep and name not in names]
        self._columns = [name for name in self.keep if name not in self._places]
        if not stages and "" not in names:
            dataset = _narrowed(dataset, [*([_PATH] if self._is_files else ()), self._column, *self._columns])
        pipeline = dataset.pipeline
        self._pipeline = Pipeline(
            pipeline.origins, pipeline.selection.part(0, len(pipeline) if limit is None else limit)
        )
        self._reader = PartReader(self._pipeline)
        self._on_error: OnError = on_error
        self._first_rows: dict[tuple[int, int], int] = {}

    @property
    def identity(self) -> list[Any]:
        """What tells these documents from others, as JSON."""
        origins = [
            [origin.source.identity(), origin.columns, [repr(stage) for stage in origin.stages]]
            for origin in self._pipeline.origins
        ]
        return [origins, self._pipeline.selection.digest(), self._column, list(self.keep)]

    def __len__(self) -> int:
        return len(self._pipeline)

    def parts(self) -> Parts:
        """All of them, for `read`."""
        return Parts(self._pipeline)

    def place(self, position: int) -> Place:
        """Where one lies."""
        return self._pipeline.place(position)

    def read(self, part: Part) -> Iterator[Document | Refused]:
        """The documents of a part, in order.

        Raises:
            DataError: if one is damaged, or no text.
            StoreError: if the store does not answer.
        """
        fetched = self._reader.fetch(part, self._on_error)
        skipped = {skip.position: skip for skip in fetched.skipped}
        samples = iter(fetched.samples)
        for position in _positions(part, fetched):
            if (skip := skipped.get(position)) is not None:
                yield Refused(str(skip.place), skip.error)
                continue
            try:
                yield self._document(position, next(samples))
            except DataError as error:
                if self._on_error == "raise":
                    raise
                yield Refused(str(self.place(position)), f"{type(error).__name__}: {error}")

    def _document(self, position: int, sample: Any) -> Document:
        if not isinstance(sample, dict):
            return Document(position, self._text(position, sample), self._kept(position, {}))
        parts = cast("dict[str, Any]", sample)
        lacking = [name for name in [self._column, *self._columns] if name not in parts] if self._is_made else ()
        if lacking:
            raise DataError(
                f"{self.place(position)}: expected a sample with {lacking[0]!r}, found {', '.join(map(repr, parts))}"
            )
        text: Any = parts.get(self._column)
        if self._is_files and (codec := codec_of(parts[_PATH])) is not None:
            text = bytes(unpack(codec, memoryview(text), size=None, where=parts[_PATH]))
        return Document(position, self._text(position, text), self._kept(position, parts))

    def _text(self, position: int, value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, bytes):
            try:
                # A byte order mark stands at the beginning of files alone.
                return str(value, "utf-8-sig" if self._is_files else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{self.place(position)}: expected UTF-8, found the byte 0x{value[error.start]:02x} at "
                    f"{error.start}"
                ) from None
        found = "null" if value is None else kind_of(value)
        raise DataError(f"{self.place(position)}: expected text in {self._column!r}, found {found}")

    def _kept(self, position: int, parts: dict[str, Any]) -> dict[str, Any]:
        kept = {name: parts.get(name) for name in self._columns}
        if self._places:
            origin, chunk, row = (int(part[0]) for part in self._pipeline.selection.locate(np.array([position])))
            place = self._pipeline.origins[origin].source.place(chunk, row)
            where = {FILE: place.file, ROW: 0 if self._is_files else self._first_row(origin, chunk) + row}
            kept |= {name: where[name] for name in self._places}
        return {name: kept[name] for name in self.keep}

    def _first_row(self, origin: int, chunk: int) -> int:
        """The number that a chunk's first item has in its file."""
        source, known = self._pipeline.origins[origin].source, self._first_rows
        first = chunk
        while first and (origin, first) not in known and source.file(first - 1) == source.file(chunk):
            first -= 1
        row = known.get((origin, first), 0)
        for number in range(first, chunk):
            known[origin, number] = row
            row += int(source.sizes[number])
        known[origin, chunk] = row
        return row


def _default(names: Sequence[str], is_files: bool) -> tuple[str, ...]:
    if is_files:
        return (FILE,)
    return (_ID,) if _ID in names else (FILE, ROW)


def _narrowed(dataset: SampleDataset, names: Sequence[str]) -> SampleDataset:
    """Only the columns that are needed.

    Raises:
        ValueError: if one is not there.
    """
    for origin in dataset.pipeline.origins:
        there = origin.columns or origin.source.columns
        if there is None:
            return dataset
        if lacking := [name for name in names if name not in there]:
            raise ValueError(
                f"{origin.source.url}: expected a column {lacking[0]!r}, found {', '.join(map(repr, there))}\n"
                "hint: column says which one has the text, keep which others are wanted"
            )
    return dataset.select(dict.fromkeys(names))


def _positions(part: Part, fetched: Fetched) -> list[int]:
    """Those of the samples, and of those that were skipped."""
    kept = range(part.stop - part.start) if fetched.kept is None else fetched.kept
    return sorted([part.start + slot for slot in kept] + [skip.position for skip in fetched.skipped])
