"""How chunks come to stay: a thread writes them, notes what they took of the spool, and syncs them now and then."""

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Any

from .durable import store_error, sync
from .output import Output
from .spool import Spool, StoredBlock
from .writing import Entry, Layout, Piece

__all__ = ["Settler"]

_WAITING = 1
"""Chunks that wait while another one is written: their samples are in memory."""
_SYNC_BYTES = 64 << 20
_SYNC_SECONDS = 30.0
"""What a power cut may cost: so many bytes of chunks, or so much time, are done again."""


@dataclass(slots=True)
class _Chunk:
    name: str
    pieces: Sequence[Piece]
    schema: str | None
    line: dict[str, Any]
    used: list[StoredBlock]


class Settler:
    """Writes chunks one after another, in a thread.

    Args:
        output: where they go.
        spool: whose blocks they take.
        layout: of the format.
    """

    def __init__(self, output: Output, spool: Spool, layout: Layout) -> None:
        self._output, self._spool, self._layout = output, spool, layout
        self.entries: list[Entry] = []
        """What the index says of those that are written."""
        self._queue: Queue[_Chunk | None] = Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._unsynced: list[Entry] = []
        self._synced_at = time.monotonic()
        self._synced_blocks = -1

    def put(
        self,
        name: str,
        pieces: Sequence[Piece],
        schema: str | None,
        line: dict[str, Any],
        used: list[StoredBlock],
    ) -> None:
        """Has a chunk written, and a line noted then, to which what the index says of it is added.

        Args:
            name: of the file; none is written if there are no pieces.
            pieces: its samples.
            schema: of them.
            line: for the journal.
            used: blocks that are not needed any more once that is noted.

        Raises:
            StoreError: if it, or one before it, cannot be written.
        """
        self._raise()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="headrace-settle", daemon=True)
            self._thread.start()
        self._queue.put(_Chunk(name, pieces, schema, line, used))

    def finish(self) -> list[Entry]:
        """Returns when all is written and synced.

        Raises:
            StoreError: if something cannot be.
        """
        self.close()
        self._raise()
        self._sync()
        return self.entries

    def close(self) -> None:
        """Returns when all that was put is written, or could not be."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while True:
            try:
                chunk = self._queue.get(timeout=_SYNC_SECONDS)
                if chunk is None:
                    return
                if self._error is None:
                    self._settle(chunk)
            except Empty:
                pass
            except BaseException as error:
                # Whoever puts the next one is told; what is put until then is taken, so that nobody waits.
                self._error = error
            try:
                if self._error is None and self._is_due():
                    self._sync()
            except BaseException as error:
                self._error = error

    def _settle(self, chunk: _Chunk) -> None:
        entry = None
        if chunk.pieces:
            path = self._output.chunks / chunk.name
            aside = path.with_name(chunk.name + ".tmp")
            try:
                entry = self._layout.write(aside, chunk.name, chunk.pieces, chunk.schema)
                aside.rename(path)
            except OSError as error:
                # Where nothing can be written nothing can be removed either, maybe; what was wrong first is told.
                with contextlib.suppress(OSError):
                    aside.unlink()
                raise store_error(path, error) from None
            self.entries.append(entry)
            self._unsynced.append(entry)
        self._output.note({**chunk.line, "chunk": entry})
        self._spool.release(chunk.used)
        if entry is not None:
            self._output.finished(self._layout, entry)

    def _is_due(self) -> bool:
        size = sum(entry["bytes"] for entry in self._unsynced)
        return size >= _SYNC_BYTES or time.monotonic() - self._synced_at >= _SYNC_SECONDS

    def _sync(self) -> None:
        """Syncs chunks and the spool, and says so in the journal."""
        self._synced_at = time.monotonic()
        blocks = self._spool.sync()
        if not self._unsynced and blocks == self._synced_blocks:
            return
        for entry in self._unsynced:
            self._output.secure(entry)
        sync(self._output.chunks)
        self._unsynced, self._synced_blocks = [], blocks
        self._output.note({"synced": blocks}, sync=True)
