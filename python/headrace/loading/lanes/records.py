"""What rows of documents were made of: their parts, and where the items of these lie."""

from typing import Any, NamedTuple

from headrace.batch import Source
from headrace.samples.document_pipeline import DocumentPipeline

from .items import Dealing
from .packers import Part, first_item
from .source import Record

__all__ = ["Origin", "RowRecord", "SampleRecord"]


class Origin(NamedTuple):
    """What documents of a run are made of."""

    dealing: Dealing
    """Which item of the dataset a lane's item is."""
    pipeline: DocumentPipeline


class RowRecord(Record):
    """What a packed row was made of.

    Args:
        origin: of its documents.
        lane: that it is of.
        parts: of documents, in order.
    """

    __slots__ = ("_lane", "_origin", "_parts")

    def __init__(self, origin: Origin, lane: int, parts: list[Part]) -> None:
        self._origin = origin
        self._lane = lane
        self._parts = parts

    @property
    def lengths(self) -> list[int]:
        """See `Record.lengths`."""
        return [part.entries for part in self._parts]

    @property
    def masked(self) -> list[bool]:
        """See `Record.masked`."""
        return [part.masked for part in self._parts]

    @property
    def position(self) -> int:
        """See `Record.position`."""
        return self._origin.dealing.position(self._lane, first_item(self._parts[0].cursor))

    def sources(self) -> list[Source]:
        """See `Record.sources`."""
        dealing, pipeline = self._origin
        packing = pipeline.packing
        assert packing is not None  # of a packed row
        before = int(packing.bos_id is not None)
        added = before + (packing.eos_id is not None)
        found: list[Source] = []
        for part in self._parts:
            place = pipeline.base.place(dealing.position(self._lane, first_item(part.cursor)))
            stored = part.length - added
            first, end = (min(max(0, at - before), stored) for at in (part.first, part.first + part.entries))
            found.append(Source(place.file, place.chunk, place.row, first, end - first))
        return found


class SampleRecord(Record):
    """Which item a document was made of.

    Args:
        origin: of the document.
        lane: that it is of.
        item: the number of the item in its lane.
        masked: whether it does not count for the loss.
    """

    __slots__ = ("_item", "_lane", "_masked", "_origin")

    def __init__(self, origin: Origin, lane: int, item: int, masked: bool) -> None:
        self._origin = origin
        self._lane = lane
        self._item = item
        self._masked = masked

    @property
    def lengths(self) -> list[int]:
        """See `Record.lengths`."""
        return []

    @property
    def masked(self) -> list[bool]:
        """See `Record.masked`."""
        return [self._masked]

    @property
    def position(self) -> int:
        """See `Record.position`."""
        return self._origin.dealing.position(self._lane, self._item)

    def sources(self) -> list[Any]:
        """See `Record.sources`."""
        return [self._origin.pipeline.base.place(self.position)]
