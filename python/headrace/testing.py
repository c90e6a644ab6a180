"""Checks that users can run on pipelines of their own: does a run go on exactly where it was saved?"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from .batch import Batch
from .loader import DataLoader
from .samples.batch import SampleBatch
from .state import State

__all__ = ["Checked", "check_resume"]

_NOT_BY_ROW = ("cu_seqlens", "max_seqlen")
"""What batches hold of all their rows together: it depends on which rows a rank has."""


class Checked(NamedTuple):
    """What `check_resume` compared."""

    steps: int
    """Of the unbroken run."""
    restarts: int
    """Loaders that went on from a saved state."""
    rows: int
    """Rows that were compared with those of the unbroken run."""


class _Step(NamedTuple):
    """One global batch."""

    rows: dict[int, dict[str, Any]]
    """For each row, by its number, its part of each array."""
    state: dict[str, Any]
    """After it, of all ranks."""


def check_resume(
    pipeline: Any,
    *,
    steps: int = 8,
    global_batch_size: int = 12,
    world_sizes: Sequence[int] = (1, 2, 3, 4, 6),
    restarts: int = 3,
    loader: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
) -> Checked:
    """Saves a run after each of its steps, goes on from there several restarts deep, and compares all that follows.

    The unbroken run is one rank's. Each restart has fresh loaders, on the next of the world sizes, that are given the
    states of all ranks before; all but the last save again after a step. Every row has to be what it was in the
    unbroken run, to the byte, and every state too, once the ranks' parts are merged.

    Args:
        pipeline: what a `DataLoader` takes. Its batches are dicts or `headrace.Batch`es.
        steps: after which the run is saved, and before the first one; fewer if it ends before. The unbroken run goes on
            for as many as there are restarts, and one more.
        global_batch_size: rows of all ranks in a step.
        world_sizes: ranks, each of which has to divide the batch.
        restarts: in a row.
        loader: further arguments of the loaders, such as ``{"num_workers": 2}``; by default without workers.
        state: a whole one that the run begins with; None for its beginning.

    Raises:
        AssertionError: naming what differs, where it was saved, and on how many ranks.
        TypeError: if batches are nothing that can be compared.
        ValueError: if the run has no step.

    Example:
        >>> from headrace.testing import check_resume
        >>> check_resume(samples.filter(lambda sample: sample["label"]), steps=3, world_sizes=(1, 2)).restarts
        12
    """
    arguments: dict[str, Any] = {"num_workers": 0, "global_batch_size": global_batch_size} | dict(loader or {})
    check = _Check(pipeline, arguments, list(world_sizes))
    first = DataLoader(pipeline, **arguments, rank=0, world_size=1)
    if state is not None:
        first.load_state_dict(state)
    start = [first.state_dict()]
    whole = list(islice(check.run(1, start), steps + restarts + 1))
    if not whole:
        raise ValueError("the run has no step that could be compared")
    found = _Counts()
    for saved in range(min(steps, len(whole)) + 1):
        states = start if saved == 0 else [whole[saved - 1].state]
        at = saved
        for depth in range(restarts):
            world_size = world_sizes[(saved + depth) % len(world_sizes)]
            is_last = depth == restarts - 1
            told = f"saved after step {saved}, restart {depth + 1} on {world_size} ranks"
            states, at = check.follow(world_size, states, whole, at, None if is_last else 1, told, found)
    return Checked(len(whole), found.restarts, found.rows)


class _Counts:
    restarts = 0
    rows = 0


class _Check:
    """A pipeline and how it is loaded."""

    def __init__(self, pipeline: Any, arguments: Mapping[str, Any], world_sizes: list[int]) -> None:
        self._pipeline = pipeline
        self._arguments = arguments
        for world_size in world_sizes:
            if arguments["global_batch_size"] % world_size:
                raise ValueError(
                    f"world_sizes must divide global_batch_size={arguments['global_batch_size']}, got {world_size}"
                )

    def follow(
        self,
        world_size: int,
        states: list[dict[str, Any]],
        whole: list[_Step],
        at: int,
        steps: int | None,
        told: str,
        found: _Counts,
    ) -> tuple[list[dict[str, Any]], int]:
        """Goes on from states, and compares; gives the states after some steps, and the step they are before."""
        found.restarts += 1
        parts = states
        wanted = whole[at:] if steps is None else whole[at : at + steps]
        given = self._steps(world_size, states)
        for expected in wanted:
            try:
                step, parts = next(given)
            except StopIteration:
                raise AssertionError(f"step {at}: the run ended, {told}") from None
            _compare(step, expected, f"step {at}, {told}")
            found.rows += len(step.rows)
            at += 1
        return parts, at

    def run(self, world_size: int, states: list[dict[str, Any]]) -> Iterator[_Step]:
        """The steps from states on."""
        for step, _ in self._steps(world_size, states):
            yield step

    def _steps(self, world_size: int, states: list[dict[str, Any]]) -> Iterator[tuple[_Step, list[dict[str, Any]]]]:
        """The steps from states on, each with the states of all ranks after it."""
        loaders = [
            DataLoader(self._pipeline, **self._arguments, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        before = State.merge(states)
        for one in loaders:
            one.load_state_dict(states)
        if (again := State.merge([one.state_dict() for one in loaders])) != before:
            raise AssertionError(f"a state that was loaded and saved again is another: {_difference(again, before)}")
        for batches in zip(*(_endless(one) for one in loaders), strict=True):
            given = [_rows_of(batch) for batch in batches]
            rows = {number: row for part in given for number, row in part.items()}
            if len(rows) != sum(map(len, given)):
                raise AssertionError(f"step {batches[0].step}: several of {world_size} ranks were given the same row")
            parts = [batch.state for batch in batches]
            yield _Step(rows, State.merge(parts)), parts


def _endless(loader: DataLoader) -> Iterator[Any]:
    """Batches of epoch after epoch, up to the end of the run."""
    while True:
        step = loader.step
        yield from loader
        if loader.step == step:
            return


def _rows_of(batch: Any) -> dict[int, dict[str, Any]]:
    """Each row of a batch, by its number."""
    if not isinstance(batch, Batch | SampleBatch):
        raise TypeError(f"check_resume compares batches that are dicts, got {type(batch).__name__}")
    numbers: list[int] = batch.rows.tolist()
    rows: dict[int, dict[str, Any]] = {number: {} for number in numbers}
    for name, values in batch.items():
        if name in _NOT_BY_ROW:
            continue
        if len(values) != len(numbers):
            raise TypeError(f"check_resume compares {name!r} row by row: expected {len(numbers)}, found {len(values)}")
        for number, value in zip(numbers, values, strict=True):
            rows[number][name] = value
    return rows


def _compare(found: _Step, expected: _Step, told: str) -> None:
    if set(found.rows) != set(expected.rows):
        raise AssertionError(f"{told}: expected the rows {sorted(expected.rows)}, found {sorted(found.rows)}")
    for number, wanted in expected.rows.items():
        there = found.rows[number]
        if set(there) != set(wanted):
            raise AssertionError(f"{told}: row {number}: expected {', '.join(wanted)}, found {', '.join(there)}")
        for name, value in wanted.items():
            if not _same(there[name], value):
                raise AssertionError(f"{told}: row {number}: expected {name!r} to be {value!r}, found {there[name]!r}")
    if found.state != expected.state:
        raise AssertionError(f"{told}: the state after it is another: {_difference(found.state, expected.state)}")


def _same(one: Any, other: Any) -> bool:
    if hasattr(one, "dtype") or hasattr(other, "dtype"):
        first, second = np.asarray(one), np.asarray(other)
        return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
    return type(one) is type(other) and one == other


def _difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    for key in expected:
        if found.get(key) != expected[key]:
            return f"expected {key} to be {expected[key]!r}, found {found.get(key)!r}"
    return f"expected {', '.join(expected)}, found {', '.join(found)}"
