"""Tables in Markdown that also read well in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["note", "table"]

LONGEST_NOTE = 200  # characters


def note(result: Mapping[str, Any]) -> str:
    """Why a loader has no results, fit for a cell."""
    text = result.get("skipped") or f"failed: {result['failed']}"
    return text.replace("|", "/")[:LONGEST_NOTE]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is aligned left, the others right.

    The last cell of a row that is too short is a note: it may be long and does not widen its column.
    """
    whole = [row for row in rows if len(row) == len(head)]
    widths = [max(map(len, column)) for column in zip(head, *whole, strict=True)]
    lines = [
        _line(head, widths),
        "|" + "|".join([" " + "-" * widths[0] + " ", *(" " + "-" * (w - 1) + ": " for w in widths[1:])]) + "|",
    ]
    padded = [[*row, *[""] * (len(head) - len(row))] for row in rows]
    return "\n".join([*lines, *(_line(row, widths) for row in padded)])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        cells[0].ljust(widths[0]),
        *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)),
    ]
    return "| " + " | ".join(aligned) + " |"
