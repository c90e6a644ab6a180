"""Keys that only some lines have, found by looking for their names in the files.

To note all keys of all lines while lines are counted would take many times as long as counting them. A key is looked
for as programs write it, at about the speed of counting, and only lines that have it are parsed.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

from headrace._files import File, Store

from ._line_tables import THREADS, Progress, in_order, pieces

__all__ = ["Stretch", "find_value"]

_PIECE = 1 << 20
"""Bytes that are looked through at a time."""


class Stretch(NamedTuple):
    """Neighbouring whole lines of a file."""

    file: File
    start: int
    stop: int
    """Of all lines if the file is compressed: it is read from its start to its end."""


def find_value(store: Store, stretches: Sequence[Stretch], key: str, progress: Progress) -> list[Any]:
    """A value that the object on some line has under a key; reads on only until there is one.

    Args:
        store: where the files lie.
        stretches: lines of files.
        key: the key.
        progress: called with a phase, stretches done and stretches in all.

    Returns:
        The value in a list, which is empty if no line has the key.

    Raises:
        DataError: if a compressed file is damaged.
        StoreError: if the store does not answer.
    """
    ways = _ways(key)

    def look(stretch: Stretch) -> list[Any]:
        for lines in whole_lines(pieces(store, *stretch, _PIECE)):
            for line in _lines_with(lines, ways):
                value = _object(line)
                if key in value:
                    return [value[key]]
        return []

    with ThreadPoolExecutor(THREADS, "headrace-keys") as pool:
        for done, found in enumerate(in_order(pool, look, stretches), 1):
            progress(f"looking for a line with the key {key!r}", done, len(stretches))
            if found:
                return found
    return []


def _ways(key: str) -> set[bytes]:
    """How programs write a key: letters as they are, or escaped in either case; slashes too."""
    escaped = json.dumps(key)
    upper = re.sub(r"(?<=\\u)....", lambda digits: digits[0].upper(), escaped)
    texts = {json.dumps(key, ensure_ascii=False), escaped, upper}
    return {way.encode("utf-8", "surrogatepass") for text in texts for way in (text, text.replace("/", r"\/"))}


def whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, cut behind the ends of lines."""
    begun: list[bytes] = []
    for block in blocks:
        if end := block.rfind(b"\n") + 1:
            yield b"".join([*begun, block[:end]])
            begun = []
        begun.append(block[end:])
    yield b"".join(begun)


def _lines_with(lines: bytes, ways: Iterable[bytes]) -> Iterator[bytes]:
    for way in ways:
        at = 0
        while (found := lines.find(way, at)) >= 0:
            stop = lines.find(b"\n", found)
            at = len(lines) if stop < 0 else stop
            yield lines[lines.rfind(b"\n", 0, found) + 1 : at]


def _object(line: bytes) -> dict[str, Any]:
    """The object on a line, or an empty one if there is none: what is wrong with a line is told when it is read."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
