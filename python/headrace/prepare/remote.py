"""A part of a store as the place of an output. The work folder is on a disk; chunks go to the store as they are done.

Chunks have their final names at once: no reader looks at them before the index, which comes last. Where readers look at
files without an index (Parquet, Arrow), chunks wait on the disk until all of them are done.
"""

import secrets
import uuid
from collections.abc import Sequence
from pathlib import Path

from headrace._files import Store as Files
from headrace.errors import MissingError, StoreError
from headrace.store import Store

from .durable import kept
from .lease import Lease
from .output import INDEX, Output
from .placing import Place, StorePlace
from .uploading import Uploads
from .writing import Catalog, Entry

__all__ = ["RemoteOutput"]

_OWNER = "owner"
_PLACE = "place"
_STEP_BYTES = 8 << 20
"""The largest file that stores write under a condition."""


class RemoteOutput(Output):
    """A part of a store.

    Args:
        store: the place.
        work: the work folder: a run goes on where it is called again with the same one.
        files: the place, for reading.
    """

    def __init__(self, store: Store, work: Path, files: Files) -> None:
        super().__init__(store.url, work)
        self._store, self._files = store, files
        self._listing: dict[str, int] | None = None
        try:
            self._lease = Lease(store, self._owner())
        except Exception:
            super().close(finished=False)
            raise
        except BaseException:
            # The lease may be there: whoever comes with the same work folder is its owner.
            self.unlock()
            raise
        self._uploads = Uploads(store, work, self.chunks, self._lease.check)

    def forget(self) -> None:
        """See `Output.forget`; chunks that are in the store and no dataset go too."""
        super().forget()
        self._uploads.forget(self._listed())
        self._listing = None

    def finished(self, catalog: Catalog, entry: Entry) -> None:
        """See `Output.finished`."""
        if catalog.index_name != INDEX:
            return
        try:
            self._uploads.add(entry["name"])
        except StoreError as error:
            raise kept(error) from error

    def secure(self, entry: Entry) -> None:
        """See `Output.secure`: what has arrived is not on the disk any more."""
        try:
            super().secure(entry)
        except StoreError:
            if (self.chunks / entry["name"]).exists():
                raise

    def stage(self, source: Path, name: str) -> None:
        """See `Output.stage`: it is brought to the store at once."""
        self._uploads.take(source, name)

    def place(self) -> Place:
        """See `Output.place`."""
        return StorePlace(self.chunks.absolute(), Path(self._store.url), secrets.token_hex(8), self._store)

    def close(self, *, finished: bool) -> None:
        """See `Output.close`."""
        self._uploads.close()
        try:
            self._lease.release()
        finally:
            super().close(finished=finished)

    def visible(self) -> list[str]:
        """See `Output.visible`."""
        names = {key.partition("/")[0] for key in self._sizes()}
        return sorted(name for name in names if not name.startswith("."))

    def files(self) -> Files:
        """See `Output.files`."""
        return self._files

    def size(self, name: str) -> int | None:
        """See `Output.size`."""
        return self._sizes().get(name)

    def read(self, name: str) -> bytes | None:
        """See `Output.read`."""
        try:
            return self._store.read(name)
        except MissingError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """See `Output.write`."""
        self._store.put(name, data)

    def write_index(self, catalog: Catalog, index: bytes, found: str | None) -> None:
        """See `Output.write_index`: in one step with the look at what is there."""
        name = catalog.index_name
        if found == "" or len(index) > _STEP_BYTES:
            self.write(name, index)
            return
        try:
            if found is None:
                written = self._store.put(name, index, only_new=True)
            else:
                written = self._store.swap(name, index, found)
        except FileExistsError:
            written = None
        # It may be this very index, from before a kill.
        if written is None and self.read(name) != index:
            raise self.changed()

    def remove(self, name: str) -> None:
        """See `Output.remove`."""
        self._store.delete(name)

    def reveal(self, catalog: Catalog, entries: Sequence[Entry]) -> None:
        """See `Output.reveal`."""
        self._uploads.finish(entries)
        # Nobody else may have begun meanwhile.
        self._lease.check()

    def mark(self, catalog: Catalog) -> str | None:
        """See `Output.mark`: the version of its index."""
        try:
            return self._store.head(catalog.index_name).version
        except MissingError:
            return None

    def _sizes(self) -> dict[str, int]:
        if self._listing is None:
            self._listing = {file.key: file.size for file in self._store.list(ordered=False)}
        return self._listing

    def _owner(self) -> str:
        path = self.work / _OWNER
        if not path.exists():
            self.replace(self.work / _PLACE, f"{self.folder}\n".encode())
            self.replace(path, uuid.uuid4().hex.encode())
        return path.read_text()
