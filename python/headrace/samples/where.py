"""Conditions evaluated chunk by chunk, so that what is left can be counted."""

import numpy as np
import numpy.typing as npt

from headrace._ranks import default_workers

from .expression import Expression
from .pipeline import Pipeline
from .selection import Selection

__all__ = ["keep_rows"]


def keep_rows(pipeline: Pipeline, condition: Expression) -> Selection:
    """The items whose columns meet a condition; reads these columns of every chunk, on several threads.

    Raises:
        TypeError: if functions come before the condition, or it is none.
        ValueError: if a column is missing.
        DataError: if a chunk is damaged.
    """
    columns = tuple(sorted(condition.columns))
    for origin in pipeline.origins:
        if origin.stages:
            raise TypeError(
                f"where({condition!r}) looks at stored columns, but {origin.stages[0]!r} comes before it\n"
                "hint: put where first, or use filter(fn)"
            )
        there = origin.source.columns or ()
        if missing := [name for name in columns if name not in there]:
            raise ValueError(
                f"where({condition!r}): {origin.source.url} has no column {missing[0]!r}, only {', '.join(there)}"
            )
    selection = pipeline.selection
    # Several pieces may be parts of one chunk, which is then read once.
    chunks: dict[tuple[int, int], list[int]] = {}
    for piece, key in enumerate(zip(selection.origin.tolist(), selection.chunk.tolist(), strict=True)):
        chunks.setdefault(key, []).append(piece)

    def evaluate(key: tuple[int, int]) -> dict[int, npt.NDArray[np.int64]]:
        origin, number = key
        source = pipeline.origins[origin].source
        chunk = source.load(number, columns)
        arrays = chunk.arrays(columns)
        try:
            mask = condition.mask(arrays, len(chunk))
        except Exception as error:
            error.add_note(f"headrace: raised in where({condition!r}) for {source.file(number)}, chunk {number}")
            raise
        kept: dict[int, npt.NDArray[np.int64]] = {}
        for piece in chunks[key]:
            count, first = int(selection.count[piece]), int(selection.first[piece])
            rows = selection.rows.get(piece)
            kept[piece] = np.flatnonzero(mask[first : first + count] if rows is None else mask[rows])
        return kept

    kept: dict[int, npt.NDArray[np.int64]] = {}
    from concurrent.futures import ThreadPoolExecutor  # not with `import headrace`, which is to take a moment

    with ThreadPoolExecutor(default_workers(), thread_name_prefix="headrace-where") as pool:
        for found in pool.map(evaluate, chunks):
            kept |= found
    return selection.keep(kept)
