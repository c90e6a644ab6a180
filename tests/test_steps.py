"""Steps give each row exactly once, and all ranks equally many of them."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.loading.steps import epoch_steps, rank_rows, step_rows

_ranks = st.integers(1, 9)
_part = st.integers(1, 12)
_left = st.integers(0, 300)


@given(_left, _part, _ranks, st.booleans())
def test_each_row_once(left: int, part: int, ranks: int, allow_empty: bool) -> None:
    assume(left == 0 or left >= ranks or allow_empty)
    batch = part * ranks
    given_rows: list[int] = []
    for step in range(epoch_steps(left, batch, ranks, False, allow_empty)):
        begin, end = step_rows(step, left, batch, ranks, False, allow_empty)
        shares = [rank_rows(begin, end, rank, ranks) for rank in range(ranks)]
        sizes = [stop - start for start, stop in shares]
        assert max(sizes) - min(sizes) <= 1
        assert allow_empty or min(sizes) > 0
        given_rows += [row for start, stop in shares for row in range(start, stop)]
    assert given_rows == list(range(left))


@given(_left, _part, _ranks, st.booleans())
def test_the_last_incomplete_batch_is_dropped_whole(left: int, part: int, ranks: int, allow_empty: bool) -> None:
    batch = part * ranks
    steps = epoch_steps(left, batch, ranks, True, allow_empty)
    assert steps == left // batch
    rows = [step_rows(step, left, batch, ranks, True, allow_empty) for step in range(steps)]
    assert rows == [(step * batch, step * batch + batch) for step in range(steps)]


@given(_left, st.lists(st.tuples(_part, _ranks), min_size=1), st.booleans(), st.booleans())
def test_batch_and_ranks_may_change_at_any_step(
    left: int, changes: list[tuple[int, int]], drop_last: bool, allow_empty: bool
) -> None:
    """Taking one step at a time from what is left is the same as counting from where the sizes began to hold."""
    row = 0
    number = 0
    while row < left:
        part, ranks = changes[number % len(changes)]
        batch = part * ranks
        if 0 < left - row < ranks and not allow_empty and not drop_last:
            with pytest.raises(ValueError, match="allow_empty=True"):
                epoch_steps(left - row, batch, ranks, drop_last, allow_empty)
            return
        steps = epoch_steps(left - row, batch, ranks, drop_last, allow_empty)
        if steps == 0:
            assert drop_last
            assert left - row < batch
            return
        begin, end = step_rows(0, left - row, batch, ranks, drop_last, allow_empty)
        assert begin == 0
        if steps > 1:
            after = step_rows(1, left - row, batch, ranks, drop_last, allow_empty)
            assert after[0] == end
            assert epoch_steps(left - row - end, batch, ranks, drop_last, allow_empty) == steps - 1
            inner = step_rows(0, left - row - end, batch, ranks, drop_last, allow_empty)
            assert (inner[0] + end, inner[1] + end) == after
        row += end
        number += 1
    assert row == left


def test_fewer_rows_than_ranks_is_an_error_with_advice() -> None:
    with pytest.raises(ValueError, match=r"3 samples cannot be shared out among 4 ranks\nhint: allow_empty=True"):
        epoch_steps(3, 4, 4, False, False)
    assert epoch_steps(3, 4, 4, True, False) == 0
    assert epoch_steps(3, 4, 4, False, True) == 1
    assert [rank_rows(0, 3, rank, 4) for rank in range(4)] == [(0, 0), (0, 1), (1, 2), (2, 3)]
    assert epoch_steps(0, 4, 4, False, False) == 0


def test_length_does_not_count_the_dropped_batch() -> None:
    assert epoch_steps(10, 4, 1, True, False) == 2
    assert epoch_steps(10, 4, 1, False, False) == 3


def test_eight_rows_over_four_ranks_come_once_each() -> None:
    shares = [rank_rows(0, 8, rank, 4) for rank in range(4)]
    assert shares == [(0, 2), (2, 4), (4, 6), (6, 8)]
