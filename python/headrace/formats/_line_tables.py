"""Tables of where the lines of files lie, made by reading each file once with several threads.

Memory is bounded by blocks of some MiB a thread, whatever the files' sizes, compressed or not.
"""

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from headrace import _core
from headrace._files import File, Store
from headrace._unpacking import PIECES, check_size
from headrace.errors import DataError

from ._lines import BOM, Block, Span, Spans, joined, look_through
from ._tables import Table, cached

__all__ = ["THREADS", "Progress", "codec_of", "find_tables", "in_order", "pieces"]

SPAN = 4 << 20
"""Bytes of a plain file that are looked through at a time, and so of a chunk but for one line: large enough for one
request, small enough that a window mixes many."""

_MADE = 128 << 10
"""Bytes that are looked through at a time, if no more are asked for, where they are made in pieces."""
_OWN_TABLE = 16 << 20
"""Bytes of a file that has a table of its own in the cache, so that others may come and go beside it."""
THREADS = min(32, 4 + (os.cpu_count() or 1))
"""Readers at once: more than processors, as a store has to be waited for."""
_AHEAD = 2 * THREADS
"""Tasks that are begun before their turn: what they give is small."""
_MEANING = 2
"""Of a table's arrays: raised when they come to mean something else."""
_CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}

Progress = Callable[[str, int, int], None]
_In = TypeVar("_In")
_Out = TypeVar("_Out")


def codec_of(path: str) -> str | None:
    """How a file is compressed, by the end of its name."""
    return next((codec for suffix, codec in _CODECS.items() if path.lower().endswith(suffix)), None)


def find_tables(
    store: Store, files: Sequence[File], *, cache_dir: Path, progress: Progress, is_json: bool
) -> list[tuple[list[int], Table]]:
    """Where the lines of files lie, from the cache or by counting.

    Args:
        store: where the files lie.
        files: the files.
        cache_dir: where tables are kept.
        progress: called with a phase, bytes done and bytes in all; from any thread, one at a time.
        is_json: whether a file that is one JSON array is to be refused.

    Returns:
        Groups of files by their numbers, each with ``spans``: int64, (spans, 5), the file's number in the group,
        start, stop, first line (from 0) and items (lines that are not blank) of each. Those of a compressed file count
        in its bytes once decompressed, and a last one without items ends with it.

    Raises:
        DataError: if a file is damaged, is one JSON array instead of lines, or does not fit into memory once
            decompressed.
        StoreError: if the store does not answer.
    """
    groups = [[number] for number, file in enumerate(files) if file.size >= _OWN_TABLE]
    if small := [number for number, file in enumerate(files) if file.size < _OWN_TABLE]:
        groups.append(small)

    def table(numbers: list[int]) -> Table:
        group = [files[number] for number in numbers]
        key = [_MEANING, SPAN, is_json, store.url, [(file.path, file.size, file.version) for file in group]]
        return cached(cache_dir, "lines", key, partial(counter.count, group))

    with _Counter(store, progress, sum(file.size for file in files), is_json=is_json) as counter:
        return list(zip(groups, in_order(counter.outer, table, groups), strict=True))


def pieces(store: Store, file: File, start: int, stop: int, size: int) -> Iterator[bytes]:
    """A range of a plain file in pieces of `size`, or a compressed one whole in pieces of at most that."""
    codec = codec_of(file.path)
    if codec is None:
        for at in range(start, stop, size):
            yield store.read(file, at, min(at + size, stop))
        return
    decompressor = _core.Decompressor(codec, name=store.uri(file.path))
    made = b""
    for at in range(0, file.size, size):
        data = memoryview(store.read(file, at, min(at + size, file.size)))
        for part in range(0, len(data), PIECES[codec]):
            made += decompressor.feed(data[part : part + PIECES[codec]])
            if len(made) >= _MADE:
                yield from _cut(made, size)
                made = b""
    decompressor.finish()
    yield from _cut(made, size)


def _cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def in_order(pool: ThreadPoolExecutor, function: Callable[[_In], _Out], values: Iterable[_In]) -> Iterator[_Out]:
    """As `map`, by the threads of a pool, but never far ahead."""
    waiting: deque[Future[_Out]] = deque()
    try:
        for value in values:
            waiting.append(pool.submit(function, value))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


class _Counter:
    """Looks through files for the ends of their lines."""

    def __init__(self, store: Store, progress: Progress, total: int, *, is_json: bool) -> None:
        self._store = store
        self._is_json = is_json
        self._progress = progress
        self._lock = threading.Lock()
        self._done, self._total = 0, total
        self._is_over = False

    def __enter__(self) -> "_Counter":
        # Two pools: those who wait for files and blocks must not take the threads that read them.
        self.outer = ThreadPoolExecutor(THREADS, "headrace-files")
        self._inner = ThreadPoolExecutor(THREADS, "headrace-lines")
        return self

    def __exit__(self, *_: object) -> None:
        # After a fault elsewhere, or Ctrl-C, nobody waits for what is left.
        self._is_over = True
        self._inner.shutdown(cancel_futures=True)
        self.outer.shutdown(cancel_futures=True)

    def count(self, files: Sequence[File]) -> Table:
        """The table of a group, called by a thread of the outer pool."""
        if len(files) > 1:
            found = list(in_order(self._inner, self._in_sequence, files))
        elif files[0].size > SPAN and codec_of(files[0].path) is None:
            found = [self._in_blocks(files[0])]
        else:
            found = [self._in_sequence(files[0])]
        rows = [(number, *span) for number, spans in enumerate(found) for span in spans]
        return {"spans": np.array(rows, np.int64).reshape(-1, 5)}

    def _in_sequence(self, file: File) -> list[Span]:
        """The spans of a file, read from its start to its end."""
        spans, head = Spans(), b""
        uri, is_packed = self._store.uri(file.path), codec_of(file.path) is not None
        for data in pieces(self._store, file, 0, file.size, SPAN):
            if self._is_over:
                raise CancelledError
            if len(head) < SPAN:
                head += data
            spans.add(look_through(data, is_start=spans.size == 0), len(data))
            if is_packed:
                check_size(spans.size, uri, "more")
        found = spans.end()
        self._check(uri, head, spans.size, found)
        self._count(file.size)
        return [*joined(found, SPAN), Span(spans.size, spans.size, 0, 0)] if is_packed and found else found

    def _in_blocks(self, file: File) -> list[Span]:
        """The spans of a large plain file, read by many."""
        spans = Spans()
        head = self._store.read(file, 0, SPAN)
        for block in in_order(self._inner, partial(self._block, file), range(0, file.size, SPAN)):
            spans.add(block, min(SPAN, file.size - spans.size))
        found = spans.end()
        self._check(self._store.uri(file.path), head, spans.size, found)
        return found

    def _check(self, uri: str, head: bytes, size: int, spans: Sequence[Span]) -> None:
        if self._is_json:
            _refuse_array(uri, head, size, sum(span.items for span in spans))

    def _block(self, file: File, start: int) -> Block:
        data = self._store.read(file, start, min(start + SPAN, file.size))
        self._count(len(data))
        return look_through(data, is_start=start == 0)

    def _count(self, size: int) -> None:
        with self._lock:
            self._done += size
            self._progress("counting lines (bytes)", self._done, self._total)


def _refuse_array(uri: str, head: bytes, size: int, items: int) -> None:
    """Refuses a file that is one JSON array: that begins like one, and not with a line that is a list.

    A list on the only line of a file whose name does not say that it is lines is taken for the array of a dataset.
    """
    text = head.removeprefix(BOM).lstrip(b" \t\r\n")
    if not text.startswith(b"["):
        return
    line, newline, _ = text.partition(b"\n")
    is_line = not newline and len(head) < size
    if not is_line:
        try:
            is_line = isinstance(json.loads(line), list)
        except (ValueError, RecursionError):
            is_line = False
    name = uri.lower() if codec_of(uri) is None else uri.lower().rpartition(".")[0]
    if not is_line or (items == 1 and name.endswith(".json")):
        raise DataError(
            f"{uri}: expected JSON Lines (a value on each line), found one JSON array\n"
            "hint: write each of its values on a line of its own, for example with `jq -c '.[]'`"
        )
