"""Marks of lanes as text, and back, checked.

It is text for its size, and for the time that making it takes: of a mixture each lane has a mark for each source, and
of best_fit a quarter of a million documents may wait. docs/order.md says how it is written.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, cast

from headrace.errors import StateMismatch
from headrace.samples.document_pipeline import DocumentPipeline
from headrace.samples.packing import RowPacking

from .packers import Cursor, Held, Mark

__all__ = ["check_mark", "first_mark", "item_of", "items_used", "mark_from", "mark_state", "version_of"]

_COUNT = "[1-9][0-9]{0,18}"

_WORD = re.compile(rf"(0|{_COUNT})(?:-({_COUNT})|((?:\.(?:0|{_COUNT}))*\.{_COUNT})?(?:/({_COUNT}))?(?::({_COUNT}))?)")
"""Its item; the last item of a run, or else the other numbers, how much was used, and how much was left at the end: in
one way of writing each."""


_MOST_ITEMS = 2**60
"""Of all lanes: half of those that can be counted, so that a run has some to come."""


class _Run(NamedTuple):
    """A word: a document, or the first documents of items side by side."""

    numbers: tuple[int, ...]
    """Of its cursor, the item first."""
    used: int
    """How many of its tokens were used."""
    end: int
    """Before which token of it what is left ends; 0 for its own end."""
    items: int
    """How many: 1, or more where nothing was used of the first document of each."""

    def joins(self, other: "_Run") -> bool:
        """Whether another one behind it would be the same word."""
        plain = not any((self.used, self.end, other.used, other.end)) and self.numbers[1:] == other.numbers[1:] == (0,)
        return plain and self.numbers[0] + self.items == other.numbers[0]

    @property
    def last(self) -> tuple[int, ...]:
        """The numbers of the last document."""
        item, *others = self.numbers
        return (item + self.items - 1, *others)


def first_mark(pipeline: DocumentPipeline) -> Mark:
    """Where a lane begins."""
    return Mark(_nested((0,) * (len(pipeline.levels) + 1)))


def version_of(pipeline: DocumentPipeline) -> int:
    """The version of how its marks are written. Those of version 1 count parts of documents in pad and best_fit, which
    count tokens in version 2; all others are as they were.
    """  # noqa: D205
    return 2 if pipeline.packing is not None and pipeline.packing.mode in ("best_fit", "pad") else 1


def mark_state(mark: Mark) -> str:
    """A mark as text."""
    last = _word(mark.next, mark.offset, 0)
    if mark.reached is not None:
        return f"{last}>{_word(mark.reached, 0, 0)}"
    return " ".join([*_words(_joined(mark.held)), last]) if mark.held else last


def mark_from(state: str, pipeline: DocumentPipeline) -> Mark:
    """The mark of a state that was checked."""
    text, _, reached = state.partition(">")
    *waiting, last = _parsed(text, len(pipeline.levels))
    if reached:
        [behind] = _parsed(reached, len(pipeline.levels))
        return Mark(_nested(last.numbers), last.used, (), _nested(behind.numbers))
    held: list[Held] = []
    for (item, *others), used, end, count in waiting:
        held += [(_nested((item + more, *others)), used, end) for more in range(count)]
    return Mark(_nested(last.numbers), last.used, tuple(held))


def items_used(lane: int, mark: Mark, pipeline: DocumentPipeline) -> int:
    """How many of a lane's items its rows have used, be it in part.

    Raises:
        StateMismatch: if the mark does not tell.
    """
    cursor, begun = mark.next, mark.offset > 0
    if mark.reached is not None:
        cursor, begun = mark.reached, False
    elif _has_overlap(pipeline) and mark != first_mark(pipeline):
        raise StateMismatch(
            f"data cannot be added here: lane {lane} does not tell the document that its overlap is of, as states of "
            "earlier builds\nhint: load it with the data as it was; the states of later steps tell"
        )
    item, *documents = _flat(cursor)
    if any(documents[1:]) or (begun and len(documents) > 1):
        raise StateMismatch(
            f"data cannot be added here: lane {lane} is within a group of a batch_map, and no state tells how many "
            "items that holds\nhint: to start a new run, load no state"
        )
    return item + (begun or documents[0] > 0)


def item_of(state: str) -> int:
    """The item of the first document that a lane needs to go on from a state that was checked."""
    return int(re.split(r"\D", state, maxsplit=1)[0])


def check_mark(lane: int, state: Any, pipeline: DocumentPipeline, lanes: int) -> None:
    """Refuses what is no mark of a pipeline.

    Args:
        lane: which.
        state: of it.
        pipeline: see above.
        lanes: how many the run has.

    Raises:
        StateMismatch: naming the lane, what was expected and what was found.
    """
    text, sign, reached = state.partition(">") if isinstance(state, str) else ("", "", "")
    runs = _parsed(text, len(pipeline.levels))
    if runs and _fits(runs, pipeline.packing):
        behind = _parsed(reached, len(pipeline.levels))
        is_counted = all(run.numbers[0] < _MOST_ITEMS // lanes for run in (*runs[-1:], *behind))
        if is_counted and (not sign or (_has_overlap(pipeline) and _is_behind(runs[-1], behind))):
            return
    raise StateMismatch(f"state: lane {lane}: expected {_wanted(pipeline.packing)}, found {state!r}")


def _fits(runs: list[_Run], packing: RowPacking | None) -> bool:
    *waiting, last = runs
    mode = None if packing is None else packing.mode
    if last.items > 1 or last.end or (last.used and mode not in ("concat", "pad")):
        return False
    if not waiting:
        return True
    if packing is None or mode != "best_fit" or sum(run.items for run in waiting) > _most(packing):
        return False
    in_order = all(one.last < other.numbers for one, other in pairwise(runs))
    are_some = all(not run.end or run.used < run.end for run in waiting)
    return in_order and are_some and not any(one.joins(other) for one, other in pairwise(waiting))


def _has_overlap(pipeline: DocumentPipeline) -> bool:
    return pipeline.packing is not None and pipeline.packing.overlap > 0


def _is_behind(last: _Run, runs: list[_Run]) -> bool:
    """Whether these are one document, that lies behind another one or is it."""
    if len(runs) != 1 or runs[0].items > 1 or runs[0].used or runs[0].end:
        return False
    return runs[0].numbers >= last.numbers


def _most(packing: RowPacking) -> int:
    """How many documents wait at most: one may be taken where the last part of a long one has its entry."""
    return packing.lookahead + 1


def _wanted(packing: RowPacking | None) -> str:
    match packing.mode if packing else None:
        case "best_fit":
            assert packing is not None  # it has a mode
            return f"up to {_most(packing)} documents and the next one, in order, such as '3-7 9 12.1/40 14'"
        case "concat":
            return "a document and how many of its tokens were used, such as '12.1/40' or with an overlap '12.1/40>14'"
        case "pad":
            return "a document and how many of its tokens were used, such as '12.1/40'"
        case _:
            return "a document, such as '12.1'"


def _joined(held: Iterable[Held]) -> Iterator[Held]:
    """What is held of each document at once: behind its full parts lies what is left of it."""
    before: Held | None = None
    for one in held:
        if before is not None and before[0] == one[0]:
            before = (one[0], before[1], one[2])
            continue
        if before is not None:
            yield before
        before = one
    if before is not None:
        yield before


def _words(held: Iterable[Held]) -> list[str]:
    words: list[str] = []
    first, count = 0, 0
    for cursor, used, end in held:
        item, number = cursor
        is_plain = not number and not used and not end and type(item) is int
        if is_plain and count and item == first + count:
            count += 1
            continue
        if count:
            words.append(_items(first, count))
        first, count = (item, 1) if is_plain else (0, 0)
        if not is_plain:
            words.append(_word(cursor, used, end))
    if count:
        words.append(_items(first, count))
    return words


def _items(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _word(cursor: Cursor, used: int, end: int) -> str:
    item, number = cursor
    if type(item) is int and not number:
        word = str(item)
    else:
        numbers = list(_flat(cursor))
        while len(numbers) > 1 and not numbers[-1]:
            numbers.pop()
        word = ".".join(map(str, numbers))
    return word + (f"/{used}" if used else "") + (f":{end}" if end else "")


def _parsed(state: str, levels: int) -> list[_Run]:
    """The words of a state; none if it is not written as states are."""
    runs: list[_Run] = []
    for word in state.split(" "):
        found = _WORD.fullmatch(word)
        if found is None:
            return []
        item, last, others, used, end = found.groups()
        numbers = (int(item), *map(int, others[1:].split("."))) if others else (int(item),)
        count = int(last) + 1 - numbers[0] if last else 1
        if len(numbers) > levels + 1 or (last and (count < 2 or levels > 1)):
            return []
        runs.append(_Run(numbers + (0,) * (levels + 1 - len(numbers)), int(used or 0), int(end or 0), count))
    return runs


def _flat(cursor: Cursor) -> tuple[int, ...]:
    """A cursor's numbers, the item first."""
    inner, number = cursor
    return (*_flat(cast("Cursor", inner)), number) if isinstance(inner, tuple) else cursor


def _nested(numbers: tuple[int, ...]) -> Cursor:
    """The cursor that has some numbers."""
    *inner, number = numbers
    return (inner[0] if len(inner) == 1 else _nested(tuple(inner))), number
