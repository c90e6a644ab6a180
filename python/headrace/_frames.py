"""Tracebacks and warnings as users read them: from their own lines on."""

import functools
import inspect
import os
import traceback
import warnings
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, cast

__all__ = ["given_by", "is_plain", "plain", "shortened", "told", "told_in_worker", "warn", "within"]

_OURS = str(Path(__file__).parent) + "/"

_PYTHON = str(Path(os.__file__).parent) + "/"
"""Where its standard library lies, and packages in folders of their own below that."""

_PLAIN: Final = "_headrace_plain"
"""An attribute of exceptions, which is pickled with them."""


def told(error: BaseException, begin: TracebackType | None) -> str:
    """What Python prints of an exception, notes included, with the frames of its traceback from one on."""
    return "".join(traceback.format_exception(type(error), error, begin))


def within(error: BaseException) -> TracebackType | None:
    """An exception's traceback from the first frame on that is neither headrace's nor Python's; None if all are."""
    found = error.__traceback__
    while found is not None and (_is_ours(found.tb_frame.f_code) or _is_pythons(found.tb_frame.f_code)):
        found = found.tb_next
    return found


def plain(error: BaseException) -> None:
    """Marks an exception whose text and notes say it all: it is of a value, or was told where it was raised, and frames
    of headrace's would add nothing.
    """  # noqa: D205
    setattr(error, _PLAIN, True)


def is_plain(error: BaseException) -> bool:
    """Whether `plain` marked it, here or in a process that it came from."""
    return getattr(error, _PLAIN, False)


def told_in_worker(error: BaseException) -> str:
    """What a worker process says of an exception: the frames from the user's first line on. If there is none those are
    headrace's, or none if it is plain.
    """  # noqa: D205
    return told(error, within(error) or (None if is_plain(error) else error.__traceback__))


def shortened(error: BaseException) -> BaseException:
    """An exception for the frame that caught it to raise again, with the frames below that `told_in_worker` shows."""
    begin = within(error)
    if begin is None and not is_plain(error) and error.__traceback__ is not None:
        begin = error.__traceback__.tb_next
    return error.with_traceback(begin)


def given_by(fn: Any, result: Any) -> str:
    """The user's line that a value came from, as a traceback shows it: where a generator stands, or a function begins.

    Args:
        fn: what was called.
        result: what it gave.

    Returns:
        The text, indented; empty if it is no function of the user's, or not written in Python.
    """
    frame: FrameType | None = getattr(result, "gi_frame", None)
    code = _code_of(fn) if frame is None else frame.f_code
    if code is None or _is_ours(code):
        return ""
    line = code.co_firstlineno if frame is None else frame.f_lineno
    found = traceback.FrameSummary(code.co_filename, line, code.co_name)
    return "".join(traceback.format_list([found])).rstrip()


def warn(text: str) -> None:
    """Warns of something, and points at the line that called headrace, however many calls lie between."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and _is_ours(frame.f_code):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"headrace: {text}", stacklevel=level)


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_OURS)


def _is_pythons(code: CodeType) -> bool:
    name = code.co_filename
    return name.startswith("<frozen ") or (name.startswith(_PYTHON) and "-packages/" not in name[len(_PYTHON) :])


def _code_of(fn: Any) -> CodeType | None:
    """The code of a function, whatever it is wrapped in, or of an object that can be called."""
    try:
        found = inspect.unwrap(fn)
        while isinstance(found, functools.partial):
            found = inspect.unwrap(cast("functools.partial[Any]", found).func)
    except ValueError:
        # It is wrapped without an end: an object that has whatever it is asked for.
        found = fn
    found = getattr(found, "__func__", found)
    code = getattr(found, "__code__", None) or getattr(type(found).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
