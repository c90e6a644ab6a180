"""Tracebacks as those who wrote a function read them: from their own lines on."""

import traceback
from pathlib import Path
from types import TracebackType

__all__ = ["told", "within"]

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
