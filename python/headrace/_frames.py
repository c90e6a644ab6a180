"""Tracebacks and warnings as users read them: from their own lines on."""

import inspect
import traceback
import warnings
from pathlib import Path
from types import TracebackType

__all__ = ["told", "warn", "within"]

_OURS = str(Path(__file__).parent) + "/"


def told(error: BaseException, begin: TracebackType | None) -> str:
    """What Python prints of an exception, notes included, with the frames of its traceback from one on."""
    return "".join(traceback.format_exception(type(error), error, begin))


def within(error: BaseException) -> TracebackType | None:
    """An exception's traceback from the first frame on that is not headrace's; None if all are."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_OURS):
        found = found.tb_next
    return found


def warn(text: str) -> None:
    """Warns of something, and points at the line that called headrace, however many calls lie between."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"headrace: {text}", stacklevel=level)
