"""A folder as the place of an output. While a run is under way everything of it lies below ``.headrace`` in it."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from headrace._files import Store

from .durable import sync
from .output import Output
from .placing import Place
from .writing import Catalog, Entry

__all__ = ["WORK", "LocalOutput"]

WORK = ".headrace"
"""The work folder, below the output's own."""


class LocalOutput(Output):
    """A folder, made if it is not there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = not folder.exists()
        super().__init__(folder, folder / WORK)

    def finished(self, catalog: Catalog, entry: Entry) -> None:
        """See `Output.finished`: chunks wait until all of them are."""

    def stage(self, source: Path, name: str) -> None:
        """See `Output.stage`: on one disk the file is linked."""
        target = self.chunks / name
        # A killed run may have left it, linked to the very file that it would be copied from.
        target.unlink(missing_ok=True)
        try:
            target.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, target)

    def place(self) -> Place:
        """See `Output.place`."""
        return Place(self.chunks.absolute(), self._folder.absolute(), secrets.token_hex(8))

    def close(self, *, finished: bool) -> None:
        """See `Output.close`."""
        super().close(finished=finished)
        if self._made and not finished:
            # If nothing was begun, no trace is left.
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def visible(self) -> list[str]:
        """See `Output.visible`."""
        return sorted(path.name for path in self._folder.iterdir() if not path.name.startswith("."))

    def files(self) -> Store:
        """See `Output.files`."""
        return Store([os.fspath(self._folder)], {})

    def size(self, name: str) -> int | None:
        """See `Output.size`."""
        try:
            return (self._folder / name).stat().st_size
        except FileNotFoundError:
            return None

    def read(self, name: str) -> bytes | None:
        """See `Output.read`."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """See `Output.write`."""
        target = self._folder / name
        target.parent.mkdir(exist_ok=True)
        # What it tells of is on the disk before it is, and then it is.
        sync(self._folder)
        self.replace(target, data)
        sync(target.parent)

    def remove(self, name: str) -> None:
        """See `Output.remove`."""
        (self._folder / name).unlink(missing_ok=True)

    def reveal(self, catalog: Catalog, entries: Sequence[Entry]) -> None:
        """See `Output.reveal`."""
        for entry in entries:
            staged = self.chunks / entry["name"]
            if staged.exists():
                staged.rename(self._folder / entry["name"])
