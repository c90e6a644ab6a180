"""How files of `map` come to their place, from whatever process made them."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import MissingError, StoreError
from headrace.store import Store

__all__ = ["Place", "StorePlace"]

_MARK = "mark"
_BLOCK = 8 << 20
"""Bytes of two files that are compared at once."""


@dataclass(frozen=True)
class Place:
    """Where files of `map` go, under the paths that all workers know it by: a folder on the disk of the work folder."""

    work: Path
    """Where folders are made."""
    output: Path
    mark: str
    """What a file there says: it tells this place from others of its name, on other machines."""

    @property
    def name(self) -> str:
        """The place, as messages name it."""
        return str(self.output)

    def begin(self) -> None:
        """Leaves the mark, and removes what a killed run was at."""
        for left in self.work.glob("input-*"):
            shutil.rmtree(left, ignore_errors=True)
        (self.work / _MARK).write_text(self.mark)

    def check(self) -> None:
        """Refuses a machine that has another folder there, or none.

        Raises:
            StoreError: if it has.
        """
        path = self.work / _MARK
        if not path.exists() or path.read_text() != self.mark:
            raise StoreError(
                f"{self.name}: expected the folder that this run writes to, {os.uname().nodename} has another one or "
                "none there\nhint: choose a folder that all machines share"
            )

    def done(self, number: int) -> Path:
        """The folder with what was written for an input."""
        return self.work / f"done-{number}"

    def publish(self, folder: Path, *, replace: bool) -> int:
        """Gives files their names in the output, each at once; gives their bytes.

        Raises:
            FileExistsError: if there is another file of such a name; none of these files is then there.
        """
        size = 0
        published: list[Path] = []
        for parent, _, names in os.walk(folder):
            target = self.output / Path(parent).relative_to(folder)
            target.mkdir(parents=True, exist_ok=True)
            for name in sorted(names):
                source, place = Path(parent) / name, target / name
                size += source.stat().st_size
                try:
                    # Fails if there is such a file, which renaming would replace.
                    place.hardlink_to(source)
                except FileExistsError:
                    if not place.samefile(source):
                        if not replace:
                            for path in published:
                                path.unlink()
                            shutil.rmtree(folder)
                            raise _taken(place) from None
                        aside = folder.with_name(f"{folder.name}.tmp")
                        aside.unlink(missing_ok=True)
                        aside.hardlink_to(source)
                        aside.replace(place)
                published.append(place)
        return size


@dataclass(frozen=True)
class StorePlace(Place):
    """The same for a part of a store."""

    store: Store

    @property
    def name(self) -> str:
        """See `Place.name`."""
        return self.store.url

    def publish(self, folder: Path, *, replace: bool) -> int:
        """See `Place.publish`. One of the same content may be there: a killed run left it."""
        size = 0
        published: list[str] = []
        for source in _files(folder):
            name = source.relative_to(folder).as_posix()
            size += source.stat().st_size
            if replace or (there := self._size(name)) is None:
                self.store.put(name, source)
                published.append(name)
            elif there != source.stat().st_size or not self._holds(name, source):
                for other in published:
                    self.store.delete(other)
                shutil.rmtree(folder)
                raise _taken(self.store.uri(name))
        return size

    def _size(self, name: str) -> int | None:
        try:
            return self.store.head(name).size
        except MissingError:
            return None

    def _holds(self, name: str, source: Path) -> bool:
        with source.open("rb") as file:
            at = 0
            while data := file.read(_BLOCK):
                if self.store.read(name, at, len(data)) != data:
                    return False
                at += len(data)
        return True


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            yield Path(parent) / name


def _taken(name: object) -> FileExistsError:
    return FileExistsError(
        f'{name} is there already\nhint: give each input files of its own names; mode="overwrite" replaces files'
    )
