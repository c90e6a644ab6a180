"""What a run began with: the first line of its journal, by which a later call goes on with it or is refused."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from headrace.errors import StateMismatch

from .durable import boot
from .output import Output

__all__ = ["begun"]

_VERSION = 3
_SHOWN = 200
"""Letters of a value that are shown."""
_DIGEST = re.compile("[0-9a-f]{32}")

_PARTS: Final[Mapping[str, Mapping[str, int]]] = {
    "options": {"chunk_size": 0, "chunk_bytes": 1, "compression": 2, "tokens": 3, "serializers": 4},
    "documents": {"keep": 3, "column": 2, "selection": 1, "data": 0},
}
"""Of settings that are lists, what stands where; that from which another one follows is before it."""

_NAMES: Final = {"content": "content of the inputs", "inputs": "number of inputs"}


def begun(
    output: Output, key: Mapping[str, Any], resume: bool, begin: Callable[[], Mapping[str, Any]]
) -> tuple[Mapping[str, Any], Sequence[Any]]:
    """What the run that is to be done noted when it began, and what it noted since.

    Args:
        output: its folder.
        key: what tells it from others.
        resume: whether to go on with one that was left.
        begin: gives what is to be noted if there is none.

    Raises:
        StateMismatch: if the unfinished run is another one.
    """
    lines = output.lines()
    if lines and not resume:
        lines = []
    wanted = json.loads(json.dumps(key))
    if not lines:
        output.forget()
        first = {"version": _VERSION, "boot": boot(), "key": wanted, **begin()}
        output.note(first)
        return first, []
    found = lines[0]
    if found["version"] == _VERSION and found["key"] == {**wanted, "on_error": "raise"} != wanted:
        # Nothing that is there was left out; from here on something may be, which cannot be taken back.
        found = {**found, "key": wanted}
        output.rewrite([found, *lines[1:]])
    if found["version"] != _VERSION or found["key"] != wanted:
        raise StateMismatch(
            f"{output.folder} has an unfinished run with other arguments: "
            f"{_difference({'version': found['version'], **found['key']}, {'version': _VERSION, **wanted})}\n"
            "hint: call it as before to go on with it; resume=False forgets what it did"
        )
    return found, lines[1:]


def _difference(was: Mapping[str, Any], now: Mapping[str, Any], of: str = "") -> str:
    """Where two keys differ first."""
    name = next(name for name in {**was, **now} if was.get(name) != now.get(name))
    before: Any = _named(name, was.get(name))
    after: Any = _named(name, now.get(name))
    what, told = f"{_NAMES.get(name, name)}{of}", f"was {_shown(before)}, and is {_shown(after)}"
    if isinstance(before, dict) and isinstance(after, dict):
        return _difference(cast("dict[str, Any]", before), cast("dict[str, Any]", after), f" of {name}")
    if _tells_nothing(before) and _tells_nothing(after):
        return f"{what} is not what it was"
    return f"{what} {told}"


def _tells_nothing(value: Any) -> bool:
    """Whether it is a digest, or a list with one."""
    if isinstance(value, list):
        return any(_tells_nothing(part) for part in cast("list[Any]", value))
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _named(name: str, value: Any) -> Any:
    if name not in _PARTS or not isinstance(value, list):
        return value
    values = cast("list[Any]", value)
    return {part: values[at] for part, at in _PARTS[name].items() if at < len(values)}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
