"""Dynamic lanes again, slow and written from docs/order.md alone: lane by lane, token by token, from the beginning.

Only which item comes when is taken from the library: that order has a reference of its own (`reference.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby, islice
from typing import Any, NamedTuple

import numpy as np

from headrace.samples.order import Order

GOLDEN = 0x9E3779B97F4A7C15


class Starved(Exception):
    """Nothing is left of a lane's documents, however far it goes."""


class Step(NamedTuple):
    """A stage: ``"map"``, ``"filter"``, ``"flat_map"`` or ``"batch_map"``."""

    kind: str
    fn: Callable[..., Any]
    size: int = 0
    random: bool = False


class Token(NamedTuple):
    """An entry of a row, and where it is from."""

    value: int
    item: int
    """The dataset's item."""
    number: int
    """Which document of the lane."""
    place: int
    """Which entry of the document."""
    stored: int
    """Entries of the document without bos and eos."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How rows are made; None for `mode` if each document is one."""

    mode: str | None
    seq_len: int = 0
    overlap: int = 0
    bos_id: int | None = None
    eos_id: int | None = None
    lookahead: int = 64
    long: str = "split"
    max_documents: int | None = None


class _Keyed(NamedTuple):
    document: Any
    epoch: int
    position: int
    number: int
    item: int
    """Of the lane; of a group that of its first document."""


@dataclass(frozen=True, kw_only=True)
class LaneReference:
    """A run: which documents and rows each lane has."""

    items: Sequence[Any]
    order: Order
    lanes: int
    seed: int
    steps: Sequence[Step]
    packing: Packing
    epochs: int | None = None
    pad: bool = False
    patience: int = 600
    """Items without a token after which a lane is given up."""
    lengths: dict[int, int] = field(default_factory=dict)
    """From which row of each lane on `seq_len` is another one; to be told before a row from there on is asked for."""
    useful: dict[int, int] = field(default_factory=dict)
    memo: dict[int, tuple[Iterator[Any], list[Any]]] = field(default_factory=dict)

    def row(self, number: int) -> Any:
        """Row g of the run; None if its lane has ended."""
        lane, place = number % self.lanes, number // self.lanes
        rows, known = self.memo.setdefault(lane, (self.rows(lane), []))
        known += islice(rows, max(0, place + 1 - len(known)))
        return known[place] if place < len(known) else None

    def documents(self, lane: int) -> Iterator[_Keyed]:
        """A lane's documents, as the steps leave them."""
        found = self._items(lane)
        for number, step in enumerate(self.steps):
            found = self._grouped(found, step, number) if step.kind == "batch_map" else self._each(found, step, number)
        for group in found:
            yield from group

    def rows(self, lane: int) -> Iterator[Any]:
        """A lane's rows."""
        packing = self.packing
        if packing.mode is None:
            yield from self.documents(lane)
            return
        documents = self._tokens(lane)
        yield from {"concat": self._concat, "best_fit": self._best_fit, "pad": self._alone, "truncate": self._alone}[
            packing.mode
        ](documents)

    def item(self, row: int) -> tuple[int, int]:
        """Which item stands at a row of the items' order: its pass, and its position in the dataset."""
        return row // len(self.items), int(self.order.positions(row, row + 1)[0])

    # Documents: a stream of groups, each what one item (or one group of a batch_map) became.

    def _items(self, lane: int) -> Iterator[list[_Keyed]]:
        place = 0
        self.useful[lane] = 0
        while True:
            if place - self.useful[lane] > self.patience:
                raise Starved
            epoch, position = self.item(place * self.lanes + lane)
            if self.epochs is not None and epoch >= self.epochs:
                return
            yield [_Keyed(self.items[position], epoch, position, 0, place)]
            place += 1

    def _each(self, groups: Iterator[list[_Keyed]], step: Step, number: int) -> Iterator[list[_Keyed]]:
        for group in groups:
            made: list[_Keyed] = []
            for place, keyed in enumerate(group):
                found = self._call(step, number, keyed, keyed.document, place)
                if step.kind == "map":
                    made.append(keyed._replace(document=found))
                elif step.kind == "filter":
                    made += [keyed] if found else []
                else:
                    made += [keyed._replace(document=one) for one in found]
            yield made

    def _grouped(self, groups: Iterator[list[_Keyed]], step: Step, number: int) -> Iterator[list[_Keyed]]:
        flat = (
            keyed._replace(number=(keyed.number * GOLDEN + place) % 2**64)
            for group in groups
            for place, keyed in enumerate(group)
        )
        while group := list(islice(flat, step.size)):
            first = group[0]
            made = self._call(step, number, first, [keyed.document for keyed in group], 0)
            yield [first._replace(document=document) for document in made]

    def _call(self, step: Step, number: int, keyed: _Keyed, value: Any, place: int) -> Any:
        if not step.random:
            return step.fn(value)
        part = (keyed.number * GOLDEN + place) % 2**64
        key = np.array([self.seed, number], dtype=np.uint64)
        counter = np.array([0, part, keyed.position, keyed.epoch], dtype=np.uint64)
        return step.fn(value, rng=np.random.Generator(np.random.Philox(key=key, counter=counter)))

    def _tokens(self, lane: int) -> Iterator[list[Token]]:
        """Documents that have a token, with bos and eos."""
        packing = self.packing
        for number, keyed in enumerate(self.documents(lane)):
            values = [int(value) for value in keyed.document["tokens"]]
            if not values:
                continue
            stored = len(values)
            if packing.bos_id is not None:
                values.insert(0, packing.bos_id)
            if packing.eos_id is not None:
                values.append(packing.eos_id)
            if not (packing.long == "drop" and len(values) > min([packing.seq_len, *self.lengths.values()])):
                self.useful[lane] = keyed.item
            yield [Token(value, keyed.position, number, place, stored) for place, value in enumerate(values)]

    # Packing

    def size(self, number: int) -> int:
        """`seq_len` of a row of each lane."""
        begins = [begin for begin in self.lengths if begin <= number]
        return self.lengths[max(begins)] if begins else self.packing.seq_len

    def _concat(self, documents: Iterator[list[Token]]) -> Iterator[list[Token]]:
        overlap = self.packing.overlap
        stream = (token for document in documents for token in document)
        row: list[Token] = []
        for number in count():
            size = self.size(number)
            row += islice(stream, size + overlap - len(row))
            if len(row) < size + overlap:
                if self.pad and len(row) > overlap:
                    yield row
                return
            yield row
            row = row[size:]

    def _alone(self, documents: Iterator[list[Token]]) -> Iterator[list[Token]]:
        number = 0
        for document in documents:
            rest = document
            if self.packing.long == "drop" and len(document) > self.size(number):
                continue
            while rest:
                size = self.size(number)
                number += 1
                yield rest[:size]
                rest = [] if self.packing.mode == "truncate" else rest[size:]

    def _best_fit(self, documents: Iterator[list[Token]]) -> Iterator[list[Token]]:
        packing, size = self.packing, self.size(0)
        parts: list[list[list[Token]]] = []
        """What is held: of a long document all its full parts are one entry."""

        def hold(document: list[Token]) -> None:
            if len(document) > size and packing.long == "drop":
                return
            full = [part for part in _parts(document, size) if len(part) == size]
            rest = [part for part in _parts(document, size) if len(part) < size]
            parts.extend([entry for entry in (full, rest) if entry])

        def fill() -> None:
            while len(parts) < packing.lookahead:
                document = next(documents, None)
                if document is None:
                    return
                hold(document)

        fill()
        for number in count(1):
            if not parts:
                return
            row: list[Token] = []
            used = 0
            chosen: int | None = 0
            while chosen is not None:
                row += parts[chosen].pop(0)
                if not parts[chosen]:
                    del parts[chosen]
                used += 1
                chosen = None
                if len(row) < size and used != packing.max_documents:
                    fill()
                    fitting = [place for place, entry in enumerate(parts) if len(entry[0]) <= size - len(row)]
                    if fitting:
                        longest = max(len(parts[place][0]) for place in fitting)
                        chosen = next(place for place in fitting if len(parts[place][0]) == longest)
            yield row
            if self.size(number) != size:
                size = self.size(number)
                held = [token for entry in parts for part in entry for token in part]
                parts.clear()
                for _, tokens in groupby(held, lambda token: token.number):
                    hold(list(tokens))
            fill()


def _parts(document: list[Token], size: int) -> list[list[Token]]:
    return [document[begin : begin + size] for begin in range(0, len(document), size)]
