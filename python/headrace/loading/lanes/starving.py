"""The error of a lane of whose items nothing is left, however many it comes to."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.errors import DataError

__all__ = ["starved"]

_NAMED: Final = 5
"""Items that are named one by one."""

_MEETINGS: Final = 4
"""How often a lane met its items, on average, if they are the only ones that it comes to."""


def starved(
    positions: npt.NDArray[np.int64],
    *,
    name: str | None,
    lane: int,
    begin: int,
    items: int,
    lanes: int,
    window: int,
    steps: Sequence[str],
) -> DataError:
    """What is raised when a lane is given up.

    Args:
        positions: int64: the items that it came to, by their numbers in the dataset.
        name: of the source in a mixture; None outside of one.
        lane: its number.
        begin: the number in the lane of the first of these items.
        items: of the dataset.
        lanes: N.
        window: W.
        steps: the user's functions.
    """
    lines = [
        f"{'' if name is None else f'source {name!r}, '}lane {lane}: nothing is left of its items from number {begin} "
        f"on, through {len(positions)} of them: all are empty, too long, or dropped"
        + (f" by {', '.join(steps)}" if steps else "")
    ]
    met = np.unique(positions)
    if len(met) < items and len(met) * _MEETINGS <= len(positions):
        numbers = ", ".join(map(str, met[:_NAMED].tolist())) + (", ..." if len(met) > _NAMED else "")
        lines.append(f"of the {items} items it comes to {len(met)} only, again and again: {numbers}")
        smaller = f", or a smaller window than {window} (window=)" if window > 1 else ""
        lines.append(f"hint: with fewer lanes than {lanes} (lanes=){smaller} a lane comes to more of them")
    return DataError("\n".join(lines))
