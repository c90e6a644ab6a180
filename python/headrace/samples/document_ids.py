"""Names of documents, by which users say which ones they mean: file, chunk and row, as batches tell them.

As text that is ``file:chunk:row``, such as ``"part-003.jsonl:3:17"``: what `Place.id` and `headrace.Source.id` give.
Nothing here knows which documents there are.
"""

import hashlib
import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from headrace._paths import address, expanded, in_home
from headrace.store import Store

from .source import Place, Places

__all__ = ["DocumentIds", "read_ids"]

_Ints = npt.NDArray[np.int64]
_Id = tuple[str, int, int]

_MOST: Final = 10**18
"""More chunks, or rows of one, than there are anywhere."""

_TEXT: Final = re.compile(r"(.+):([0-9]{1,18}):([0-9]{1,18})", re.DOTALL)

_WANTED: Final = "expected file:chunk:row, such as 'part.jsonl:0:17'"


class DocumentIds:
    """Some documents by their names, each once, in the order in which they were given.

    Attributes:
        files: the names of files.
        file: int64, (ids,): which of the files.
        chunk: int64, (ids,).
        row: int64, (ids,).
    """

    def __init__(self, ids: Iterable[_Id]) -> None:
        files: dict[str, int] = {}
        numbers = array("q")
        for file, chunk, row in ids:
            numbers.extend((files.setdefault(file, len(files)), chunk, row))
        table = np.frombuffer(numbers, dtype=np.int64).reshape(-1, 3)
        order = np.lexsort((table[:, 2], table[:, 1], table[:, 0]))
        is_first = np.ones(len(order), dtype=np.bool_)
        is_first[1:] = (np.diff(table[order], axis=0) != 0).any(axis=1)
        table = table[np.sort(order[is_first])]
        self.files = list(files)
        self.file, self.chunk, self.row = (np.ascontiguousarray(table[:, part]) for part in range(3))

    def __len__(self) -> int:
        return len(self.row)

    def text(self, number: int) -> str:
        """One of them as text."""
        return Place(self.files[self.file[number]], int(self.chunk[number]), int(self.row[number])).id

    def digest(self, count: int) -> str:
        """What tells the first `count` of them from others."""
        used = self.files[: int(self.file[:count].max(initial=-1)) + 1]
        state = hashlib.blake2b(json.dumps(used).encode(), digest_size=16)
        for part in (self.file, self.chunk, self.row):
            state.update(part[:count].astype("<i8").tobytes())
        return state.hexdigest()

    def by_chunk(self) -> Iterator[tuple[str, int, _Ints, _Ints]]:
        """A file, a chunk, the rows there in ascending order, and their numbers among the ids."""
        if not len(self):
            return
        order = np.lexsort((self.row, self.chunk, self.file))
        file, chunk = self.file[order], self.chunk[order]
        ends = np.flatnonzero((np.diff(file) != 0) | (np.diff(chunk) != 0)) + 1
        for numbers in np.split(order, ends):
            first = int(numbers[0])
            yield self.files[self.file[first]], int(self.chunk[first]), self.row[numbers], numbers

    def __repr__(self) -> str:
        return f"<{len(self):,} documents>"


def read_ids(what: Any) -> Iterator[_Id]:
    """The documents that a file or a list names.

    Args:
        what: the path or URL of a file, or an iterable. A line of the file is ``file:chunk:row``, or JSON: that as a
            text, or an object with ``file``, ``row_group`` or ``chunk``, and ``row``. An entry of the iterable is such
            a text, or a tuple that begins with these three, as `Place` and `headrace.Source` do; `Places` are several,
            and so is a list of entries, such as `batch.sources()` has for each packed row.

    Raises:
        TypeError: if it is neither, or has no order.
        ValueError: if a line or an entry is no name; it says which one.
        MissingError: if there is no such file.
        StoreError: if its store does not answer.
    """
    if isinstance(what, str | os.PathLike):
        yield from _of_file(cast("str | os.PathLike[str]", what))
        return
    if isinstance(what, bytes) or not isinstance(what, Iterable):
        raise TypeError(
            "exclude must be a file of documents' names, a list of them, a function of a place or a dataset of "
            f"samples, got {what!r}"
        )
    if isinstance(what, set | frozenset):
        # Which comes first differs from process to process.
        raise TypeError(
            f"exclude must come in an order, which states note, got a {type(cast('object', what)).__name__}\n"
            "hint: sorted(...) gives it one; a list stays the same from restart to restart"
        )
    for number, entry in enumerate(cast("Iterable[Any]", what)):
        where = f"exclude[{number}]"
        if isinstance(entry, list) and isinstance((entry or [()])[0], tuple | list):
            for part, one in enumerate(cast("list[Any]", entry)):
                yield from _of_entry(one, f"{where}[{part}]")
        else:
            yield from _of_entry(entry, where)


def _of_entry(entry: Any, where: str) -> Iterator[_Id]:
    if isinstance(entry, str):
        yield _of_text(entry, where)
    elif isinstance(entry, Places):
        yield from entry
    else:
        parts = cast("Sequence[Any]", entry if isinstance(entry, tuple | list) else ())
        yield _checked(parts[:3], entry, where)


def _of_file(path: str | os.PathLike[str]) -> Iterator[_Id]:
    text = in_home(expanded(address(path, "exclude")))
    folder, name = os.path.split(text)
    data = Store(folder or ".").read(name)
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{text}, line {line}: {_WANTED} as UTF-8, found other bytes") from None
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line:
            continue
        if line[0] in '{"':
            yield _of_json(line, f"{text}, line {number}")
        else:
            yield _of_text(line, f"{text}, line {number}")


def _of_text(text: str, where: str) -> _Id:
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"{where}: {_WANTED}, found {text!r}")
    file, chunk, row = found.groups()
    return file, int(chunk), int(row)


def _of_json(line: str, where: str) -> _Id:
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: expected JSON: {error}") from None
    if isinstance(found, str):
        return _of_text(found, where)
    entry = cast("dict[str, Any]", found)
    return _checked((entry.get("file"), entry.get("row_group", entry.get("chunk")), entry.get("row")), found, where)


def _checked(parts: Sequence[Any], found: Any, where: str) -> _Id:
    if len(parts) == 3 and isinstance(parts[0], str) and parts[0]:
        chunk, row = (_count(part) for part in parts[1:])
        if chunk is not None and row is not None:
            return parts[0], chunk, row
    raise ValueError(f"{where}: {_WANTED}, found {found!r}")


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    number = int(value)
    return number if 0 <= number < _MOST else None
