"""What waits in one lane between being made and being packed: documents of each level, in their order."""

from collections import deque
from typing import Any

from headrace.errors import StateMismatch
from headrace.samples.document_pipeline import DocumentPipeline
from headrace.samples.draws import Key
from headrace.samples.stages import BatchMap

from .make import Block, Failure, Group
from .packers import Cursor, Document, Mark

__all__ = ["LaneBuffer", "Sample"]


class Sample:
    """A document that is not packed.

    Attributes:
        value: the document.
        cursor: where it is in its lane.
        after: where the lane goes on behind it.
        key: what tells its random numbers apart.
        masked: whether it does not count for the loss.
    """

    __slots__ = ("after", "cursor", "key", "masked", "value")
    length = 1

    def __init__(self, value: Any, cursor: Cursor, after: Cursor, key: Key | None, masked: bool) -> None:
        self.value = value
        self.cursor = cursor
        self.after = after
        self.key = key
        self.masked = masked


class LaneBuffer:
    """One lane, from the items that are asked for to the documents that its packer is given.

    Args:
        pipeline: what makes documents.
        mark: where the lane stands.
        end: the number of items that the lane has; None for no end.
    """

    def __init__(self, pipeline: DocumentPipeline, mark: Mark, end: int | None) -> None:
        self._sizes = [stages[0].size for stages in pipeline.levels[1:] if isinstance(stages[0], BatchMap)]
        levels = len(pipeline.levels)
        self._last = levels - 1
        self._end = end
        self._next = mark.next
        self._held = frozenset(held[0] for held in mark.held)
        cursor: Any = mark.begin
        self._passed: list[int] = [0] * levels
        """Documents of the next item or group of each level that lie before the mark."""
        for level in reversed(range(levels)):
            cursor, self._passed[level] = cursor
        self._needed: list[deque[tuple[Any, int]]] = [deque() for _ in range(levels)]
        """For each level items or groups to come that the mark tells of, in order: each has a document of a number."""
        self._need(mark.next, begun=mark.offset > 0)
        if mark.reached is not None:
            self._need(mark.reached, begun=False)
        self._wanted: deque[int] = deque()
        """Items to be asked for before the one that `_coming` says."""
        self._coming: int = cursor
        if self._held and not self._last:
            # What lies between the documents that are held is not needed.
            self._wanted.extend(sorted({held[0] for held in self._held} - {mark.next[0]}))
            self._coming = mark.next[0]
        self._asked: list[deque[Any]] = [deque() for _ in range(levels)]
        """For each level what was asked for and is not there: numbers of items; cursors of groups, and those after."""
        self._made: list[deque[Sample]] = [deque() for _ in range(self._last)]
        """Documents of each level that wait to be grouped."""
        self._ready: deque[Any] = deque()
        """Those of the last level."""
        self._failure: Failure | None = None
        is_over = end is not None and not self._wanted and self._coming >= end
        self._closed = [is_over] * levels
        """Whether a level gives no more documents."""

    # Asking

    @property
    def is_open(self) -> bool:
        """Whether more items can be asked for."""
        return not self._closed[0] and (bool(self._wanted) or self._end is None or self._coming < self._end)

    def ask(self, count: int) -> list[int]:
        """The numbers of the next items, at most `count`, which are then on their way."""
        numbers: list[int] = []
        while self._wanted and len(numbers) < count:
            numbers.append(self._wanted.popleft())
        rest = count - len(numbers)
        stop = self._coming + rest if self._end is None else min(self._coming + rest, self._end)
        numbers.extend(range(self._coming, stop))
        self._coming = max(self._coming, stop)
        self._asked[0].extend(numbers)
        return numbers

    # What was made

    def add(self, level: int, block: Block, count: int) -> list[tuple[int, Group]]:
        """Takes what became of the oldest items or groups of a level that are on their way.

        Args:
            level: which.
            block: what became of them.
            count: how many they are.

        Returns:
            Groups that are complete now, and are then on their way, each with its level.

        Raises:
            StateMismatch: if a document that the mark tells of is not among them.
        """
        asked = [self._asked[level].popleft() for _ in range(count)]
        groups: list[tuple[int, Group]] = []
        if self._closed[level]:
            return groups  # what failed came before
        self._keep(level, block, asked)
        if block.failure is not None:
            self._failure = self._failure or block.failure
            self._closed[level] = True
        for each in range(level, self._last + 1):
            before = self.is_open if each == 0 else not self._closed[each - 1]
            self._closed[each] = self._closed[each] or not (before or self._asked[each])
            if each < self._last:
                self._group(each, groups)
        return groups

    @property
    def reached(self) -> int:
        """The number of the first item that nothing was made of yet."""
        return self._asked[0][0] if self._asked[0] else self._coming

    # Taking

    @property
    def is_done(self) -> bool:
        """Whether nothing will be ready that is not."""
        return self._closed[self._last]

    @property
    def ready(self) -> bool:
        """Whether a document can be taken."""
        return bool(self._ready)

    def take(self) -> Any:
        """The next document, if one is ready that the lane's packer does not have; None if none is.

        Raises:
            BaseException: of the item that stands where the next document would.
        """
        while self._ready:
            document = self._ready.popleft()
            if self._held and document.cursor < self._next and document.cursor not in self._held:
                continue
            return document
        if self.is_done and self._failure is not None:
            raise self._failure.raised()
        return None

    # Inside

    def _keep(self, level: int, block: Block, asked: list[Any]) -> None:
        target: deque[Any] = self._ready if level == self._last else self._made[level]
        flat = block.flat
        place = begin = 0
        for number, documents in enumerate(block.counts):
            inner, beyond = (asked[number], asked[number] + 1) if level == 0 else asked[number]
            if self._needed[level]:
                self._check_there(level, inner, documents)
            passed, self._passed[level] = self._passed[level], 0
            masked = bool(block.masked) and block.masked[number]
            for part in range(documents):
                cursor = (inner, part)
                after = (inner, part + 1) if part + 1 < documents else (beyond, 0)
                if flat is None:
                    key = _of_part(block.keys[number], part) if block.keys else None
                    document: Any = Sample(block.documents[place], cursor, after, key, masked)
                else:
                    length = flat.lengths[place]
                    document = Document(flat.arrays, begin, length, cursor, after, masked)
                    begin += length
                place += 1
                if part >= passed:
                    target.append(document)

    def _need(self, cursor: Any, *, begun: bool) -> None:
        """Notes which documents there are if a mark has a cursor: if it is not the first one, or was `begun`."""
        for needed in reversed(self._needed):
            cursor, number = cursor
            begun = begun or number > 0
            if begun:
                needed.append((cursor, number))

    def _check_there(self, level: int, inner: Any, documents: int) -> None:
        needed = self._needed[level]
        while needed and needed[0][0] <= inner:
            wanted, number = needed.popleft()
            if wanted != inner or documents <= number:
                raise StateMismatch(
                    f"the documents are not those of the state: expected one at {(wanted, number)}, found "
                    f"{documents} documents of {'group' if level else 'item'} {inner}\n"
                    "hint: functions of a pipeline must give the same whenever they are called with the same"
                )

    def _group(self, level: int, groups: list[tuple[int, Group]]) -> None:
        """Makes groups of a level's documents: whole ones, and at its end one of what is left."""
        waiting, size = self._made[level], self._sizes[level]
        while len(waiting) >= size or (waiting and self._closed[level] and self._failure is None):
            some = [waiting.popleft() for _ in range(min(size, len(waiting)))]
            first = some[0]
            assert first.key is not None  # all but the last level keep keys
            self._asked[level + 1].append((first.cursor, some[-1].after))
            groups.append((level + 1, Group([one.value for one in some], first.key)))


def _of_part(key: Key, part: int) -> Key:
    return Key(key.seed, key.epoch, key.position, key.part(part))
