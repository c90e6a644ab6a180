"""Selections against a plain list of where each item lies."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.samples.selection import Selection

Item = tuple[int, int, int]
"""Origin, chunk, row."""

SIZES = st.lists(st.integers(0, 6), max_size=6)


def items_of(selection: Selection) -> list[Item]:
    located = selection.locate(np.arange(len(selection), dtype=np.int64))
    return list(zip(*(part.tolist() for part in located), strict=True))


def whole(sizes: Sequence[int], origin: int = 0) -> tuple[Selection, list[Item]]:
    items = [(origin, chunk, row) for chunk, size in enumerate(sizes) for row in range(size)]
    selection = Selection.whole(np.array(sizes, dtype=np.int64))
    return Selection.concat([selection], [origin]) if origin else selection, items


def changed(data: st.DataObject, selection: Selection, items: list[Item]) -> tuple[Selection, list[Item]]:
    """One step further: the selection and the list."""
    step = data.draw(st.sampled_from(["part", "pick", "some", "keep", "without", "repeat", "concat"]), "step")
    count = len(items)
    places = st.lists(st.integers(0, count - 1), max_size=12) if count else st.just([])
    if step == "part":
        start, stop = data.draw(st.tuples(st.integers(0, count), st.integers(0, count)), "part")
        return selection.part(start, stop), items[start:stop]
    if step == "pick":
        numbers = data.draw(places, "pick")
        return selection.pick(np.array(numbers, dtype=np.int64)), [items[number] for number in numbers]
    if step == "some":
        numbers = sorted(set(data.draw(places, "some")))
        return selection.pick(np.array(numbers, dtype=np.int64)), [items[number] for number in numbers]
    if step == "without":
        numbers = sorted(set(data.draw(places, "without")))
        left = [item for number, item in enumerate(items) if number not in numbers]
        return selection.without(np.array(numbers, dtype=np.int64)), left
    if step == "repeat":
        times = data.draw(st.integers(1, 3), "times")
        return selection.repeat(times), items * times
    if step == "concat":
        other, more = whole(data.draw(SIZES, "sizes"), origin=data.draw(st.integers(0, 2), "origin"))
        order = data.draw(st.permutations([(selection, items), (other, more)]), "order")
        return Selection.concat([part for part, _ in order], [0, 0]), [item for _, part in order for item in part]
    # Which items of each piece are kept depends on where they lie alone, as a condition does.
    modulus = data.draw(st.integers(1, 4), "modulus")
    kept = {}
    for piece in range(selection.pieces):
        every = np.arange(selection.count[piece], dtype=np.int64)
        located = replace(selection, index=None).locate(selection.starts[piece] + every)
        kept[piece] = np.flatnonzero((located.chunk + located.row) % modulus == 0)
    return selection.keep(kept), [item for item in items if (item[1] + item[2]) % modulus == 0]


@given(data=st.data(), sizes=SIZES)
def test_any_chain_is_that_of_the_list(data: st.DataObject, sizes: list[int]) -> None:
    selection, items = whole(sizes)
    for _ in range(data.draw(st.integers(0, 6), "steps")):
        selection, items = changed(data, selection, items)
        assert len(selection) == len(items)
        assert items_of(selection) == items
        assert bool((selection.count > 0).all()), "no piece is empty"
        assert not any((np.diff(rows) == 1).all() for rows in selection.rows.values()), "neighbours are a stretch"
        assert selection.starts.tolist() == [0, *np.cumsum(selection.count).tolist()]
    stored, positions = selection.in_storage_order()
    assert not stored.scattered
    assert (positions is None) == (not selection.scattered)
    numbers = list(range(len(items))) if positions is None else positions.tolist()
    assert sorted(numbers) == list(range(len(items)))
    assert items_of(stored) == [items[number] for number in numbers]
    assert stored.pieces <= selection.pieces
    numbers = list(reversed(range(len(items))))
    located = selection.locate(np.array(numbers, dtype=np.int64))
    assert list(zip(*(part.tolist() for part in located), strict=True)) == items[::-1]


@given(data=st.data(), sizes=SIZES)
def test_a_digest_tells_selections_apart(data: st.DataObject, sizes: list[int]) -> None:
    one, first = whole(sizes)
    two, second = whole(sizes)
    for _ in range(data.draw(st.integers(0, 3), "steps of the one")):
        one, first = changed(data, one, first)
    for _ in range(data.draw(st.integers(0, 3), "steps of the other")):
        two, second = changed(data, two, second)
    if first != second:
        assert one.digest() != two.digest()
    again = Selection(one.origin, one.chunk, one.first, one.count, dict(one.rows), one.index)
    assert again.digest() == one.digest()


@given(sizes=SIZES, data=st.data())
def test_the_same_items_in_storage_order_are_the_same_selection_whatever_the_way(
    sizes: list[int], data: st.DataObject
) -> None:
    every, items = whole(sizes)
    wanted = sorted(data.draw(st.sets(st.integers(0, max(0, len(items) - 1))), "wanted")) if items else []
    direct = every.pick(np.array(wanted, dtype=np.int64))
    chosen = {items[number] for number in wanted}
    kept: dict[int, Any] = {}
    for piece in range(every.pieces):
        rows = range(int(every.count[piece]))
        kept[piece] = np.array([row for row in rows if (0, int(every.chunk[piece]), row) in chosen], dtype=np.int64)
    assert not direct.scattered
    assert direct.digest() == every.keep(kept).digest()
    back = every.pick(np.arange(len(items), dtype=np.int64)[::-1]).pick(
        len(items) - 1 - np.array(wanted, dtype=np.int64)
    )
    assert items_of(back) == items_of(direct)
    assert back.digest() == direct.digest()


def test_the_order_of_storage_stays_in_few_pieces() -> None:
    every, _ = whole([5, 0, 7, 3])
    assert every.pieces == 3
    assert every.part(4, 13).pieces == 3
    assert every.part(5, 12).pieces == 1
    assert every.pick(np.arange(2, 9)).rows == {}
    assert not every.pick(np.array([0, 3, 14])).scattered
    assert every.pick(np.array([3, 0])).scattered
    assert every.pick(np.array([3, 3])).scattered
    assert every.repeat(2).pieces == 6
    assert not every.repeat(2).scattered


def test_an_order_of_its_own_is_brought_into_that_of_storage() -> None:
    every, _ = whole([5, 0, 7, 3])
    picked = every.pick(np.array([11, 3, 3, 0, 14, 2, 11]))
    stored, positions = picked.in_storage_order()
    assert positions is not None
    assert positions.tolist() == [3, 5, 1, 2, 0, 6, 4]
    assert items_of(stored) == [(0, 0, 0), (0, 0, 2), (0, 0, 3), (0, 0, 3), (0, 2, 6), (0, 2, 6), (0, 3, 2)]
    assert stored.chunk.tolist() == [0, 2, 3]
    # 0, 0, 2 spans three numbers, and is no stretch of three.
    assert items_of(every.pick(np.array([2, 0, 0])).in_storage_order().selection) == [(0, 0, 0), (0, 0, 0), (0, 0, 2)]
    assert every.in_storage_order() == (every, None)


def test_digests_tell_the_shapes_of_pieces_apart() -> None:
    one = Selection.whole(np.array([2, 2]))
    digests = [
        part.digest()
        for part in (
            one,
            Selection.whole(np.array([4])),
            Selection.whole(np.array([2, 2, 2])),
            one.part(0, 0),
            one.part(0, 2),
            one.part(2, 4),
            one.pick(np.array([1, 0, 2, 3])),
            one.pick(np.array([0, 3])),
            one.repeat(2),
            Selection.concat([one], [1]),
        )
    ]
    assert len(set(digests)) == len(digests)


def test_arithmetic_on_a_billion_items_needs_no_memory_for_each() -> None:
    every = Selection.whole(np.full(100_000, 10_000))
    middle = every.part(123_456_789, 987_654_321)
    assert len(middle) == 987_654_321 - 123_456_789
    assert [int(part[0]) for part in middle.locate(np.array([0]))] == [0, 12_345, 6_789]
    assert len(middle.repeat(3)) == 3 * len(middle)


@pytest.mark.parametrize("start, stop", [(0, 0), (3, 3), (5, 2), (12, 12)])
def test_empty_parts_are_empty(start: int, stop: int) -> None:
    every, _ = whole([5, 7])
    for selection in (every, every.pick(np.arange(12)[::-1])):
        part = selection.part(start, stop)
        assert len(part) == 0
        assert items_of(part) == []
        assert items_of(part.repeat(2)) == []
        assert items_of(Selection.concat([part, every], [0, 0])) == items_of(every)
