"""Weights in rounds: what a schedule over steps or tokens means for the lanes of a mixture. Pure arithmetic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace import _core
from headrace.mixing import WeightSchedule

from .lengths import Lengths

__all__ = ["Phase", "Weighting", "check_enough", "largest_shares", "phases"]

Phase = tuple[int, int, int, list[float]]
"""What holds from a round on: the round, its draw, rounds a draw, and the weights; see docs/order.md, "Mixtures"."""


@dataclass(frozen=True)
class Weighting:
    """Weights that hold from a round on, as they were given: names are those of the sources at that time."""

    round: int
    schedule: WeightSchedule

    @property
    def names(self) -> set[str]:
        """Of the sources that the mixture has then."""
        return set(next(iter(self.schedule.points.values())))

    def state(self) -> dict[str, Any]:
        """Plain JSON types."""
        schedule = self.schedule
        points = [[at, dict(weights)] for at, weights in schedule.points.items()]
        return {"round": self.round, "over": schedule.over, "shape": schedule.shape, "points": points}

    @staticmethod
    def load(entry: Mapping[str, Any]) -> "Weighting":
        """What `state` gave."""
        points = {at: dict(weights) for at, weights in entry["points"]}
        return Weighting(entry["round"], WeightSchedule(points, entry["over"], entry["shape"]))


def largest_shares(weighting: Weighting, names: Sequence[str]) -> list[int]:
    """The largest share that each source ever has, in parts of 2^48."""
    pieces = [
        _core.weight_points([weights.get(name, 0.0) for name in names]) for _, weights in weighting.schedule.pieces()
    ]
    return [max(shares) for shares in zip(*pieces, strict=True)]


def check_enough(core: _core.Mixture, steps: _core.Steps, limits: Mapping[str, int | None]) -> None:
    """Refuses a mixture that ends before its first batch.

    Args:
        core: the mixture.
        steps: of the run.
        limits: the rows that each source has, by its name; None for no end.

    Raises:
        ValueError: saying how many rows there are.
    """
    if core.rows is not None and core.rows < steps.batch_of(0):
        short = ", ".join(f"{name!r} {limit}" for name, limit in limits.items() if limit is not None)
        raise ValueError(
            f"too little data: the mixture ends after {core.rows} rows; a global batch needs {steps.batch_of(0)}; rows "
            f"of the sources: {short}\n"
            "hint: a smaller global batch size or seq_len, or other weights, max_epochs or on_exhausted"
        )


def phases(
    weights: Sequence[Weighting],
    names: Sequence[str],
    steps: _core.Steps,
    lanes: int,
    lengths: Lengths,
    *,
    per_batch: bool,
) -> list[Phase]:
    """What holds from which round on.

    Args:
        weights: in order; the first from round 0.
        names: of the sources by number.
        steps: of the run.
        lanes: N.
        lengths: tokens of rows, for schedules over tokens.
        per_batch: whether a draw decides all rounds of a step.

    Raises:
        ValueError: if steps are not made of whole rounds, and have to be.
    """
    if per_batch and (odd := [batch for _, _, batch in steps.segments if batch % lanes]):
        raise ValueError(f"with per_batch each global batch must be a multiple of lanes={lanes}, got {odd[0]}")
    changes: dict[int, list[float]] = {}
    for number, weighting in enumerate(weights):
        end = weights[number + 1].round if number + 1 < len(weights) else _core.Mixture.MOST_ROUNDS
        for at, piece in weighting.schedule.pieces():
            row = steps.row_of(at) if weighting.schedule.over == "steps" else lengths.row_of(at)
            if per_batch:
                row = steps.row_of(_step_at(steps, row))
            first = max(weighting.round, -(-row // lanes))
            if first < end:
                # Of several that begin with the same round the last one holds.
                changes[first] = [piece.get(name, 0.0) for name in names]
    if not per_batch:
        return [(first, first, 1, piece) for first, piece in sorted(changes.items())]
    begins = {row // lanes: (step, batch // lanes) for step, row, batch in steps.segments}
    found: list[Phase] = []
    piece, step, begin, every = changes[0], 0, 0, 1
    for first in sorted(changes | begins):
        piece = changes.get(first, piece)
        if first in begins:
            begin, (step, every) = first, begins[first]
        found.append((first, step + (first - begin) // every, every, piece))
    return found


def _step_at(steps: _core.Steps, row: int) -> int:
    """The first step that begins with a row or a later one."""
    step = steps.whole(row)
    return step if steps.row_of(step) >= row else step + 1
