"""Changes of a run that were made on purpose, as its state tells them: a line for each, kept for as long as the run.

They are in the order in which they were made. A run may have been moved back before a change, so that is not always the
order of steps; of several that say the same, the last one holds.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

from .errors import StateMismatch

__all__ = ["Adapted", "batch_changes", "changes_of", "check_changes", "noted", "told"]

_BATCH_SIZE: Final = "batch size"
"""The kind of lines that follow from a state's history."""

_FIELDS: Final = ("kind", "step", "row", "before", "after")


class Adapted(NamedTuple):
    """A state as the beginning of a run that may differ from that which saved it."""

    state: dict[str, Any]
    warning: str | None
    """What its user is to be told of a difference when the run has begun: until then it may be refused."""


def changes_of(state: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """What was changed in the run of a state whose form was checked."""
    return [] if state is None else list(state["changes"])


def noted(state: Mapping[str, Any], kind: str, before: Any, after: Any, *, row: int | None = None) -> dict[str, Any]:
    """A state with a line more: what was changed where it is loaded.

    Args:
        state: whose form is right.
        kind: what was changed, such as ``"data moved"``.
        before: what held so far, as plain JSON types; small.
        after: what holds from now on, likewise.
        row: from which row on it holds, if that is not the state's next one.
    """
    line = {
        "kind": kind,
        "step": state["step"],
        "row": state["position"] if row is None else row,
        "before": before,
        "after": after,
    }
    return dict(state) | {"changes": [*state["changes"], line]}


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
