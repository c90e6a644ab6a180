"""Marks of lanes as plain JSON types and back, checked."""

from collections.abc import Mapping
from typing import Any, cast

from headrace.errors import StateMismatch
from headrace.samples.dynamic import DocumentPipeline
from headrace.samples.packing import RowPacking

from .packers import Cursor, Held, Mark

__all__ = ["check_mark", "mark_from", "mark_state"]


def mark_state(mark: Mark, packing: RowPacking | None) -> dict[str, Any]:
    """A mark as plain JSON types: only what the mode knows."""
    state: dict[str, Any] = {"next": _listed(mark.next)}
    match None if packing is None else packing.mode:
        case "concat":
            state["offset"] = mark.offset
        case "pad":
            state["part"] = mark.offset
        case "best_fit":
            # There may be a quarter of a million of them, in all lanes.
            nested = any(isinstance(cursor[0], tuple) for cursor, _ in mark.held)
            state["held"] = [[_listed(cursor) if nested else list(cursor), part] for cursor, part in mark.held]
        case _:
            pass
    return state


def mark_from(state: Mapping[str, Any] | None, pipeline: DocumentPipeline) -> Mark:
    """The mark of a state that was checked; of None the beginning."""
    if state is None:
        cursor: Cursor = (0, 0)
        for _ in pipeline.levels[1:]:
            cursor = (cursor, 0)
        return Mark(cursor)
    offset: int = state.get("offset", state.get("part", 0))
    held: tuple[Held, ...] = tuple((_tupled(cursor), part) for cursor, part in state.get("held", ()))
    return Mark(_tupled(state["next"]), offset, held)


def check_mark(lane: int, state: Any, pipeline: DocumentPipeline) -> None:
    """Refuses what is no mark of a pipeline.

    Raises:
        StateMismatch: naming the lane, what was expected and what was found.
    """
    wanted = mark_state(mark_from(None, pipeline), pipeline.packing)
    if not isinstance(state, Mapping) or set(cast("Mapping[Any, Any]", state)) != set(wanted):
        raise StateMismatch(f"state: lane {lane}: expected {', '.join(wanted)}, found {state!r}")
    depth = len(pipeline.levels)
    there = cast("Mapping[str, Any]", state)
    if not _is_cursor(there["next"], depth):
        raise StateMismatch(f"state: lane {lane}: expected 'next' to be {_shown(depth)}, found {there['next']!r}")
    for key in ("offset", "part"):
        if key in there and not _is_count(there[key]):
            raise StateMismatch(f"state: lane {lane}: expected {key!r} to be a count, found {there[key]!r}")
    held = there.get("held", [])
    if not isinstance(held, list):
        raise StateMismatch(f"state: lane {lane}: expected 'held' to be a list, found {held!r}")
    before: tuple[Any, ...] = ()
    for entry in cast("list[Any]", held):
        pair = cast("list[Any]", entry) if isinstance(entry, list) else []
        if len(pair) != 2 or not _is_cursor(pair[0], depth) or not _is_count(pair[1]):
            raise StateMismatch(
                f"state: lane {lane}: expected 'held' to hold pairs of {_shown(depth)} and a count, found {entry!r}"
            )
        here = (_tupled(pair[0]), pair[1])
        if here <= before or here[0] >= _tupled(there["next"]):
            raise StateMismatch(
                f"state: lane {lane}: expected 'held' to be in order and before 'next', found {entry!r} there"
            )
        before = here


def _listed(cursor: Cursor) -> list[Any]:
    inner, part = cursor
    return [_listed(cast("Cursor", inner)) if isinstance(inner, tuple) else inner, part]


def _tupled(cursor: list[Any]) -> Cursor:
    inner, part = cursor
    return _tupled(cast("list[Any]", inner)) if isinstance(inner, list) else inner, part


def _is_cursor(value: Any, depth: int) -> bool:
    if not isinstance(value, list):
        return False
    pair = cast("list[Any]", value)
    if len(pair) != 2 or not _is_count(pair[1]):
        return False
    return _is_cursor(pair[0], depth - 1) if depth > 1 else _is_count(pair[0])


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _shown(depth: int) -> str:
    return "[" * depth + "item, document]" + ", document]" * (depth - 1)
