"""Which lanes and rows of a step are whose: pure arithmetic on N, batch sizes and ranks."""

import numpy as np
import numpy.typing as npt

from headrace.loading.schedule import check_divides

__all__ = ["check_shape", "lanes_of_rank", "rows_of_rank"]

_Ints = npt.NDArray[np.int64]


def check_shape(lanes: int, batch: int, world_size: int) -> None:
    """Refuses a batch size by which ranks would not have lanes of their own.

    Raises:
        ValueError: naming what does not fit, and the nearest that would.
    """
    check_divides(batch, world_size)
    if batch % lanes == 0:
        if lanes % world_size:
            near = _nearest([size for size in range(1, lanes + 1) if lanes % size == 0], world_size)
            raise ValueError(
                f"world_size must divide the number of lanes, {lanes}: each lane is of one rank; got {world_size}\n"
                f"hint: {near} ranks would do; lanes= is set when a run begins"
            )
    elif lanes % batch:
        sizes = [size for size in range(1, lanes) if lanes % size == 0 and size % world_size == 0]
        sizes += [lanes * (batch // lanes), lanes * (batch // lanes + 1)]
        near = _nearest([size for size in sizes if size and size % world_size == 0], batch)
        raise ValueError(
            f"the global batch size must be a multiple or a divisor of the number of lanes, {lanes}, got {batch}"
            + (f"\nhint: {near} would do" if near else "")
        )


def lanes_of_rank(lanes: int, batch: int, row: int, world_size: int, rank: int) -> _Ints:
    """The lanes that have a rank's rows of every step of a size.

    Args:
        lanes: N.
        batch: a size that `check_shape` passed.
        row: the first row of one of these steps.
        world_size: ranks.
        rank: whose.

    Returns:
        int64, increasing.
    """
    numbers = np.arange(lanes, dtype=np.int64)
    if batch % lanes == 0:
        return numbers[lanes * rank // world_size : lanes * (rank + 1) // world_size]
    place = (numbers - row) % lanes % batch
    return numbers[(place >= batch * rank // world_size) & (place < batch * (rank + 1) // world_size)]


def rows_of_rank(lanes: int, batch: int, row: int, world_size: int, rank: int) -> _Ints:
    """The rows of a rank in the step that begins with a row: int64, in order."""
    rows = np.arange(row, row + batch, dtype=np.int64)
    if batch % lanes == 0:
        return rows[rows % lanes * world_size // lanes == rank]
    return rows[batch * rank // world_size : batch * (rank + 1) // world_size]


def _nearest(sizes: list[int], wanted: int) -> str:
    """The largest of some sizes below one, and the smallest above, as text."""
    below = max((size for size in sizes if size < wanted), default=None)
    above = min((size for size in sizes if size > wanted), default=None)
    return " or ".join(str(size) for size in (below, above) if size is not None)
