"""The plain values of a pickle, read without unpickling: nothing in the file can run.

litdata keeps what it notes of a graph (names, a tree of text) as a pickle of dicts, lists, tuples, text, numbers and
None. Those few opcodes are read here; any other one, and whatever could grow beyond the file's own size, is refused.
"""

import pickletools
from typing import Any, cast

from headrace.errors import DataError

__all__ = ["plain_pickle"]

_SCALARS = (str, bytes, int, float, bool, type(None))
_MARK = object()
_VALUES = frozenset({
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
    "SHORT_BINBYTES", "BINBYTES",
})  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


def plain_pickle(data: bytes) -> Any:
    """The value.

    Raises:
        DataError: if the pickle holds anything else than plain values.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                (value,) = stack
                return value
            _step(opcode.name, argument, stack, memo)
    except DataError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise DataError(f"expected a pickle of plain values: {type(error).__name__}: {error}") from None
    raise DataError("expected the end of a pickle")


def _step(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    if name in _VALUES:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in ("BINGET", "LONG_BINGET"):
        stack.append(_shared(memo[argument]))
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in ("BINPUT", "LONG_BINPUT"):
        memo[argument] = stack[-1]
    elif name == "MARK":
        stack.append(_MARK)
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name == "EMPTY_LIST":
        stack.append([])
    elif name == "EMPTY_TUPLE":
        stack.append(())
    elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        size = int(name[-1])
        if len(stack) < size:
            raise DataError(f"expected {size} values in a pickle, found {len(stack)}")
        stack[-size:] = [tuple(stack[-size:])]
    elif name == "TUPLE":
        stack.append(tuple(_marked(stack)))
    elif name in ("APPEND", "APPENDS"):
        _list(stack, [stack.pop()] if name == "APPEND" else _marked(stack))
    elif name in ("SETITEM", "SETITEMS"):
        _dict(stack, [stack.pop(-2), stack.pop()] if name == "SETITEM" else _marked(stack))
    elif name not in ("PROTO", "FRAME"):
        raise DataError(f"expected a pickle of plain values, found the opcode {name}")


def _shared(value: Any) -> Any:
    """A value that is used again. Containers of containers are not: they could hold themselves, or grow by powers."""
    parts = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
    if not all(isinstance(part, _SCALARS) for part in parts):
        raise DataError("expected a pickle of plain values, found a container that is used twice")
    return cast("Any", value)


def _marked(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1
    while stack[at] is not _MARK:
        at -= 1
        if at < 0:
            raise DataError("expected a mark in a pickle")
    values = stack[at + 1 :]
    del stack[at:]
    return values


def _list(stack: list[Any], values: list[Any]) -> None:
    target = stack[-1]
    if not isinstance(target, list):
        raise DataError("expected a list in a pickle")
    cast("list[Any]", target).extend(values)


def _dict(stack: list[Any], values: list[Any]) -> None:
    target = stack[-1]
    if not isinstance(target, dict):
        raise DataError("expected a dict in a pickle")
    cast("dict[Any, Any]", target).update(zip(values[::2], values[1::2], strict=True))
