"""The saved form of where a run is: a small dict of plain JSON types.

A state says which data (by digests), in which order (seed, lanes, window, order version), packed how, and how far.
World size, batch memory, threads and the location of the data are not in it: they may change at any restart.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, Final, cast

from . import _core
from ._changes import check_changes
from .errors import StateMismatch

__all__ = ["State"]

SCHEMA: Final = 1
"""The version of the dict's layout."""

ORDER: Final = _core.version()[1]
"""The version of the order that this build gives (docs/order.md)."""

MAX_LANES: Final = 2**20
"""More lanes than rows of any batch."""

_MAGIC: Final = b"HEADRACE"
_HEADER: Final = struct.Struct("<8sIQ")
_CHECKSUM_BYTES: Final = 16

_Keys = Mapping[str, type[Any] | tuple[type[Any], ...]]

_COUNTED: Final[_Keys] = {
    "schema": int,
    "order": int,
    "kind": str,
    "seed": int,
    "shuffle": bool,
    "lanes": int,
    "window": int,
    "step": int,
    "position": int,
    "history": list,
    "skipped": list,
    "changes": list,
    "pipeline": dict,
    "sources": list,
}

_DYNAMIC: Final[_Keys] = {
    **_COUNTED,
    "window": (int, NoneType),
    "functions": list,
    "part": bool,
    "lane_states": dict,
}

_MIXTURE: Final[_Keys] = {key: kind for key, kind in _COUNTED.items() if key != "window"}
"""Each source has a window of its own."""

_KINDS: Final[Mapping[str, _Keys]] = {
    "counted": _COUNTED,
    "mixture": _MIXTURE,
    "samples": _COUNTED,
    "dynamic": _DYNAMIC,
    "map": {
        "schema": int,
        "order": int,
        "kind": str,
        "seed": int,
        "shuffle": bool,
        "keys": str,
        "size": (int, NoneType),
        "batch": int,
        "step": int,
        "position": int,
        "epoch": int,
        "row": int,
        "epoch_step": int,
        "changes": list,
    },
}
"""What a state of each kind holds: packed tokens, mixtures of them, samples, dynamic pipelines, and objects of the
user's, which may hold more.
"""


class State:
    """What can be done with saved states, which are plain dicts (see `DataLoader.state_dict`)."""

    @staticmethod
    def to_bytes(state: Mapping[str, Any]) -> bytes:
        """A state as bytes for a file: magic, version, length, JSON, checksum.

        Raises:
            StateMismatch: if it is no state.

        Example:
            >>> headrace.State.to_bytes(loader.state_dict())[:8]
            b'HEADRACE'
        """
        body = json.dumps(check_state(state), sort_keys=True, separators=(",", ":")).encode()
        head = _HEADER.pack(_MAGIC, SCHEMA, len(body))
        return head + body + _checksum(head + body)

    @staticmethod
    def from_bytes(data: bytes | bytearray | memoryview) -> dict[str, Any]:
        """The state that `to_bytes` was given.

        Raises:
            StateMismatch: if the bytes are damaged, cut, of another version, or no state.

        Example:
            >>> saved = headrace.State.to_bytes(loader.state_dict())
            >>> headrace.State.from_bytes(saved) == loader.state_dict()
            True
        """
        data = bytes(data)
        if len(data) < _HEADER.size or not data.startswith(_MAGIC):
            raise StateMismatch(f"no saved state: expected it to begin with {_MAGIC!r}, found {data[:8]!r}")
        _, version, length = _HEADER.unpack_from(data)
        wanted = _HEADER.size + length + _CHECKSUM_BYTES
        if version != SCHEMA:
            raise StateMismatch(f"saved state: expected schema version {SCHEMA}, found {version}")
        if len(data) != wanted:
            raise StateMismatch(f"saved state is damaged: expected {wanted} bytes, found {len(data)}")
        if _checksum(data[:-_CHECKSUM_BYTES]) != data[-_CHECKSUM_BYTES:]:
            raise StateMismatch("saved state is damaged: its checksum does not match")
        try:
            state = json.loads(data[_HEADER.size : -_CHECKSUM_BYTES])
        except (ValueError, RecursionError) as error:
            raise StateMismatch(f"saved state: expected JSON: {error}") from None
        return check_state(state)

    @staticmethod
    def merge(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """One whole state from those of all ranks.

        The state of a counted pipeline is whole on each rank, so its parts must be equal.

        Raises:
            StateMismatch: if parts differ; it names the first difference.
            ValueError: if there is no part.

        Example:
            >>> headrace.State.merge([loader.state_dict()]) == loader.state_dict()
            True
        """
        if not isinstance(parts, Iterable) or isinstance(parts, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StateMismatch(f"no state: expected a dict or a list of dicts, found {type(parts).__name__}")
        states = [check_state(part) for part in parts]
        if not states:
            raise ValueError("State.merge needs at least one part, got none")
        if states[0]["kind"] == "dynamic":
            states = _joined(states)
        for number, state in enumerate(states[1:], 1):
            for key in states[0] | state:
                if state.get(key) != states[0].get(key):
                    raise StateMismatch(
                        f"parts 0 and {number} are not of one step of one run: "
                        f"{key} is {states[0].get(key)!r} in the one and {state.get(key)!r} in the other"
                    )
        return states[0]


def check_state(state: Mapping[str, Any], kind: str | None = None) -> dict[str, Any]:
    """A copy of a state whose form is right.

    Args:
        state: what was given for one.
        kind: what it must be a state of; None for any.

    Raises:
        StateMismatch: naming the first thing that is not.
    """
    if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise StateMismatch(f"no state: expected a dict, found {type(state).__name__}")
    schema = state.get("schema")
    if schema is None and "order" not in state:
        raise StateMismatch(f"no state of headrace: expected the keys {', '.join(_COUNTED)}; found {_keys(state)}")
    if schema != SCHEMA:
        raise StateMismatch(f"state: expected schema version {SCHEMA}, found {schema!r}")
    if "kind" not in state:
        raise StateMismatch("state: key 'kind' is missing")
    found = state["kind"]
    if not isinstance(found, str) or found not in _KINDS or kind not in (None, found):
        raise StateMismatch(f"state: expected kind {kind or 'counted'!r}, found {found!r}")
    keys = _KINDS[found]
    # States of earlier builds have none.
    state = {"changes": [], **state}
    if found != "map" and (unknown := [key for key in state if key not in keys]):
        raise StateMismatch(f"state: unknown key {unknown[0]!r}; expected {', '.join(keys)}")
    for key, wanted in keys.items():
        if key not in state:
            raise StateMismatch(f"state: key {key!r} is missing")
        value = state[key]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise StateMismatch(f"state: expected {key!r} to be {_names(wanted)}, found {value!r}")
    if state["order"] != ORDER:
        raise StateMismatch(f"state: this build gives order version {ORDER}, the state is of version {state['order']}")
    for key in ("seed", "step", "position", "epoch", "row", "epoch_step"):
        if key in keys and not 0 <= state[key] < 2**64:
            raise StateMismatch(f"state: expected {key!r} in 0..2**64, found {state[key]}")
    check_changes(state["changes"])
    if found == "map":
        _check_epoch(state)
    else:
        _check_run(state)
    if found == "dynamic":
        _check_lanes(state)
    if found in ("counted", "mixture", "dynamic"):
        steps = steps_of(state["history"])
        if steps.row_of(state["step"]) != state["position"]:
            raise StateMismatch(
                f"state: by its history step {state['step']} begins with row {steps.row_of(state['step'])}, "
                f"its position is {state['position']}"
            )
    try:
        return cast("dict[str, Any]", json.loads(json.dumps(dict(state))))
    except (TypeError, ValueError) as error:
        raise StateMismatch(f"state: expected plain JSON types: {error}") from None


def _check_run(state: Mapping[str, Any]) -> None:
    for key, most in (("lanes", MAX_LANES), ("window", 2**32 - 1)):
        if state.get(key) is not None and not 1 <= state[key] <= most:
            raise StateMismatch(f"state: expected {key!r} in 1..{most}, found {state[key]}")
    _check_numbers(state["history"], "history", 3)
    _check_numbers(state["skipped"], "skipped", 2)
    before = -1
    for start, stop in state["skipped"]:
        if not before < start < stop < 2**63:
            raise StateMismatch(f"state: expected 'skipped' to hold ranges in order, found {state['skipped'][:8]}")
        before = stop


def _check_lanes(state: Mapping[str, Any]) -> None:
    lanes = {str(lane) for lane in range(state["lanes"])}
    if wrong := [key for key in state["lane_states"] if key not in lanes]:
        raise StateMismatch(f"state: expected 'lane_states' to be of lanes 0..{state['lanes']}, found {wrong[0]!r}")
    if state["part"] != (len(state["lane_states"]) < len(lanes)):
        raise StateMismatch(
            f"state: expected 'part' to say whether lanes are missing, found {state['part']} with "
            f"{len(state['lane_states'])} of {state['lanes']} lanes"
        )


def _check_epoch(state: Mapping[str, Any]) -> None:
    """Of a loader over an object of the user's: its place in an epoch, against that in the run."""
    for key, least in (("size", 0), ("batch", 1)):
        if state[key] is not None and state[key] < least:
            raise StateMismatch(f"state: expected {key!r} to be {least} or more, found {state[key]}")
    if state["keys"] == "order" and state["size"] is not None and state["row"] > state["size"]:
        raise StateMismatch(f"state: expected 'row' in 0..{state['size']}, the dataset's length, found {state['row']}")
    for key, inside in (("position", "row"), ("step", "epoch_step")):
        # Later epochs come after others, of which any part was given.
        if state[key] < state[inside] or (state["epoch"] == 0 and state[key] != state[inside]):
            wanted = "the same" if state["epoch"] == 0 else "as many or more"
            raise StateMismatch(
                f"state: its {inside!r} is {state[inside]} in epoch {state['epoch']}: expected {key!r} to be {wanted}, "
                f"found {state[key]}"
            )
    # States of earlier builds have none.
    drawn = state.get("drawn")
    if drawn is not None and (type(drawn) is not int or not 0 <= drawn < 2**32):
        raise StateMismatch(f"state: expected 'drawn' to be a checksum of 32 bits, found {drawn!r}")


def _joined(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts of a dynamic state, each with the lanes of all: they are to be equal then.

    Raises:
        StateMismatch: if a lane is in none of them, or is elsewhere in another one.
    """
    lanes: dict[str, Any] = {}
    for number, part in enumerate(parts):
        for lane, state in cast("dict[str, Any]", part.get("lane_states", {})).items():
            if lanes.setdefault(lane, state) != state:
                raise StateMismatch(
                    f"the parts are not of one step of one run: lane {lane} is at {lanes[lane]} in one and at {state} "
                    f"in part {number}"
                )
    count = parts[0]["lanes"]
    if missing := [lane for lane in range(count) if str(lane) not in lanes]:
        raise StateMismatch(f"the parts lack lanes: {missing_lanes(missing)} of {count}\nhint: give those of all ranks")
    ordered = {lane: lanes[lane] for lane in sorted(lanes, key=int)}
    return [part | {"part": False, "lane_states": ordered} for part in parts]


def missing_lanes(lanes: Sequence[int]) -> str:
    """Numbers of lanes as text of bounded length."""
    return ", ".join(map(str, lanes[:8])) + (f", ... ({len(lanes)})" if len(lanes) > 8 else "")


def steps_of(history: Sequence[Sequence[int]]) -> _core.Steps:
    """The steps that a history of (step, row, batch size) describes.

    Raises:
        StateMismatch: if it describes none.
    """
    try:
        return _core.Steps([(step, row, batch) for step, row, batch in history])
    except (ValueError, OverflowError) as error:
        raise StateMismatch(f"state: {error}") from None


def _check_numbers(rows: Sequence[Any], key: str, width: int) -> None:
    for row in rows:
        numbers = cast("list[Any]", row) if isinstance(row, list | tuple) else []
        if len(numbers) != width or any(type(number) is not int or number < 0 for number in numbers):
            raise StateMismatch(f"state: expected {key!r} to hold lists of {width} counts, found {row!r}")


def _names(kinds: type[Any] | tuple[type[Any], ...]) -> str:
    several = kinds if isinstance(kinds, tuple) else (kinds,)
    return " or ".join("None" if kind is NoneType else kind.__name__ for kind in several)


def _keys(state: Mapping[str, Any]) -> str:
    return ", ".join(repr(key) for key in list(state)[:8]) or "none"


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES).digest()
