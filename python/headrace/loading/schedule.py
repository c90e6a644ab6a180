"""What is decided about the steps of a run: their batch sizes, and which are passed over."""

from collections.abc import Mapping
from typing import SupportsIndex

from headrace._units import as_int

__all__ = ["Schedule", "Skipped", "check_divides", "check_schedule"]

Schedule = Mapping[int, int]
"""Step to the global batch size from that step on."""


def check_divides(batch: int, world_size: int) -> None:
    """Refuses a global batch that cannot be shared out equally."""
    if batch % world_size:
        below, above = batch // world_size * world_size, -(-batch // world_size) * world_size
        nearest = f"{below} or {above}" if below else str(above)
        raise ValueError(
            f"the global batch size must be a multiple of world_size={world_size}, got {batch}\n"
            f"hint: {nearest} would do"
        )


def check_schedule(value: SupportsIndex | Mapping[int, int]) -> dict[int, int]:
    """A batch size, or a dict from steps to batch sizes, as a schedule."""
    if not isinstance(value, Mapping):
        return {0: as_int(value, "global_batch_size", least=1, most=2**32 - 1)}
    schedule = {
        as_int(step, "a step of global_batch_size", least=0, most=2**62): as_int(
            batch, f"global_batch_size[{step!r}]", least=1, most=2**32 - 1
        )
        for step, batch in value.items()
    }
    if 0 not in schedule:
        raise ValueError(f"global_batch_size must say what holds from step 0 on, got {value!r}")
    return dict(sorted(schedule.items()))


class Skipped(tuple[tuple[int, int], ...]):
    """Ranges of steps that are passed over, as (start, stop), in order and apart from each other."""

    __slots__ = ()

    def plus(self, steps: range, step: int) -> "Skipped":
        """These, and neighbouring steps of which none is before `step`.

        Raises:
            ValueError: if they are no such steps.
        """
        if steps.step != 1 or not steps or steps.start < step or steps.stop >= 2**63:
            raise ValueError(f"skip takes neighbouring steps from {step} on, got {steps!r}")
        merged: list[tuple[int, int]] = []
        for start, stop in sorted([*self, (steps.start, steps.stop)]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        return Skipped(merged)

    def first_left(self, step: int) -> int:
        """The first step from `step` on that is not passed over."""
        for start, stop in self:
            if start <= step < stop:
                step = stop
        return step

    def left(self, start: int, stop: int) -> int:
        """How many steps in ``range(start, stop)`` are not passed over."""
        out = sum(max(0, min(stop, last) - max(start, first)) for first, last in self)
        return max(0, stop - start - out)
