"""Changes of a run that were made on purpose, as its state tells them: a line for each, kept for as long as the run.

They are in the order in which they were made. A run may have been moved back before a change, so that is not always the
order of steps; of several that say the same, the last one holds.

The user is told of each where the state is loaded. Those that check a state for a change note it there (`Adapted`), and
warn of nothing: whoever checks next may refuse the state. Who puts the run in its place warns.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

from .errors import StateMismatch

__all__ = ["Adapted", "batch_changes", "changes_of", "check_changes", "told"]

_BATCH_SIZE: Final = "batch size"
"""The kind of lines that follow from a state's history."""

_FIELDS: Final = ("kind", "step", "row", "before", "after")


class Adapted(NamedTuple):
    """A state as the beginning of a run that may differ from that which saved it."""

    state: dict[str, Any]
    told: tuple[str, ...] = ()
    """What its user is to be told of differences when all was checked: a text for each."""

    def noted(self, kind: str, before: Any, after: Any, *texts: str, row: int | None = None) -> "Adapted":
        """The same with a change more, made where the state is loaded.

        Args:
            kind: what was changed, such as ``"data moved"``.
            before: what held so far, as plain JSON types; small.
            after: what holds from now on, likewise.
            texts: what its user is to be told of it.
            row: from which row on it holds, if that is not the state's next one.
        """
        state = self.state
        line = {
            "kind": kind,
            "step": state["step"],
            "row": state["position"] if row is None else row,
            "before": before,
            "after": after,
        }
        return Adapted(state | {"changes": [*state["changes"], line]}, self.told + texts)

    def then(self, further: "Adapted") -> "Adapted":
        """What was made of this state in turn, with all that is to be told."""
        return Adapted(further.state, self.told + further.told)


def changes_of(state: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """What was changed in the run of a state whose form was checked."""
    return [] if state is None else list(state["changes"])


def told(changes: Sequence[Mapping[str, Any]], history: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """What a state tells of changes: those that were noted, in their order, and among them, by their steps, the batch
    sizes of its history.
    """  # noqa: D205
    kept = [dict(line) for line in changes if line["kind"] != _BATCH_SIZE]
    sizes = batch_changes(history)
    # Where the run was moved back, the history from there on was made later than what had been noted.
    noted_at = [*accumulate((line["step"] for line in reversed(kept)), min)][::-1]
    steps = [*noted_at, *(line["step"] for line in sizes)]
    return [line for _, line in sorted(zip(steps, [*kept, *sizes], strict=True), key=itemgetter(0))]


def batch_changes(history: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Lines about the batch sizes of a history of (step, row, batch size)."""
    return [
        {"kind": _BATCH_SIZE, "step": step, "row": row, "before": before, "after": after}
        for (_, _, before), (step, row, after) in pairwise(history)
        if before != after
    ]


def check_changes(changes: Sequence[Any]) -> None:
    """Refuses what are no lines.

    Raises:
        StateMismatch: naming the first that is not.
    """
    for found in changes:
        line = cast("dict[str, Any]", found) if isinstance(found, Mapping) else {}
        counts = [line.get("step"), line.get("row")]
        if set(line) != set(_FIELDS) or not isinstance(line["kind"], str) or not all(map(_is_count, counts)):
            raise StateMismatch(f"state: expected 'changes' to hold dicts of {', '.join(_FIELDS)}, found {found!r}")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**64
