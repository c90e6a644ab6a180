"""The arithmetic of steps over the samples of an epoch: pure functions, the same on all ranks.

A step takes the next B rows of an epoch, whatever the number of ranks R. Of the rows after the last whole batch:

- with `drop_last` none is given;
- else they are a step of their own, shared out evenly, if each rank gets one;
- else they join the step before, so that no rank is empty and nothing is lost;
- unless `allow_empty`: then they are a step in which some ranks have none.

Everything depends on the rows that are left and no other past: B and R may change at any row.
"""

__all__ = ["epoch_steps", "rank_rows", "step_rows"]


def epoch_steps(left: int, batch: int, ranks: int, drop_last: bool, allow_empty: bool) -> int:
    """Steps that the rows that are left of an epoch make.

    Args:
        left: rows from the next one to the end of the epoch.
        batch: B, rows of all ranks in a step; a multiple of `ranks`.
        ranks: R.
        drop_last: whether the rows after the last whole batch are left out.
        allow_empty: whether a rank may have no row in a step.

    Raises:
        ValueError: if there are rows, but too few for all ranks.

    Example:
        >>> [epoch_steps(left, 4, 2, False, False) for left in (4, 5, 6, 8)]
        [1, 1, 2, 2]
    """
    whole, rest = divmod(left, batch)
    if rest == 0 or drop_last:
        return whole
    if rest >= ranks or allow_empty:
        return whole + 1
    if whole == 0:
        raise ValueError(
            f"{left} samples cannot be shared out among {ranks} ranks\n"
            "hint: allow_empty=True lets ranks have none, drop_last=True leaves these out"
        )
    return whole


def step_rows(step: int, left: int, batch: int, ranks: int, drop_last: bool, allow_empty: bool) -> tuple[int, int]:
    """The rows of all ranks in a step, as (begin, end); rows and steps count from the place where `left` are left.

    Args:
        step: in ``range(epoch_steps(left, ...))``.
        left: see `epoch_steps`, as are the others.
        batch: B.
        ranks: R.
        drop_last: whether the rows after the last whole batch are left out.
        allow_empty: whether a rank may have no row in a step.

    Example:
        >>> [step_rows(step, 9, 4, 2, False, False) for step in range(2)]
        [(0, 4), (4, 9)]
    """
    begin = step * batch
    if drop_last:
        return begin, begin + batch
    rest = left - begin - batch
    if rest <= 0 or (rest < ranks and not allow_empty):
        return begin, left
    return begin, begin + batch


def rank_rows(begin: int, end: int, rank: int, ranks: int) -> tuple[int, int]:
    """The stretch of a step's rows that a rank gets: the ranks' sizes differ by one at most.

    Example:
        >>> [rank_rows(0, 5, rank, 2) for rank in range(2)]
        [(0, 2), (2, 5)]
    """
    rows = end - begin
    return begin + rows * rank // ranks, begin + rows * (rank + 1) // ranks
