"""How files of `map` come to their place, from whatever process made them.

An input claims the names of its files before it puts any of them there. Claims outlive kills, as long as the run is not
finished: so it is known which files are this run's, and of which input, whatever was there before.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import MissingError, StoreError
from headrace.store import Store

from .durable import store_error

__all__ = ["Place", "StorePlace", "check_files"]

_MARK = "mark"
_CLAIMS = "claims"
_OTHER_NAMES = "hint: give each input files of its own names"
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

    def begin(self, *, anew: bool) -> None:
        """Leaves the mark, and removes what a killed run was at.

        Args:
            anew: whether all inputs that are not done are to be called again, also those that were.
        """
        for left in [*self.work.glob("input-*"), *(self.work.glob("done-*") if anew else ())]:
            shutil.rmtree(left, ignore_errors=True)
        (self.work / _CLAIMS).mkdir(exist_ok=True)
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

    def sync(self) -> None:
        """Returns when what was published is on the disk."""
        # Their names are not known here, and to sync one by one costs more than many small files do.
        os.sync()

    # An input's files

    def folder(self, number: int) -> Path:
        """A new folder for what is written for an input.

        Raises:
            StoreError: if it cannot be made.
        """
        try:
            return Path(tempfile.mkdtemp(prefix=f"input-{number}-", dir=self.work))
        except OSError as error:
            raise store_error(self.work, error) from None

    def done(self, number: int) -> Path:
        """The folder with what was written for an input."""
        return self.work / f"done-{number}"

    def keep(self, folder: Path, number: int) -> None:
        """Gives a folder the name by which what was written for an input is whole.

        Raises:
            StoreError: if that cannot be done.
        """
        try:
            folder.rename(self.done(number))
        except OSError as error:
            # Where a machine was taken for lost, another one may have been first.
            if not self.done(number).exists():
                raise store_error(folder, error) from None

    def publish(self, number: int, *, replace: bool) -> int:
        """Gives the files of an input their names in the output, each at once; gives their bytes.

        Args:
            number: of the input.
            replace: whether files of the same names may be there from before the run.

        Raises:
            FileExistsError: if there is another file of such a name; none of these files is then there.
            StoreError: if one cannot be written.
        """
        folder = self.done(number)
        sources = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
        try:
            for name, source in sources.items():
                self._claim(name, source, number, replace=replace)
            for name, source in sources.items():
                self._put(name, source)
        except FileExistsError:
            self._withdraw(sources, number)
            shutil.rmtree(folder)
            raise
        except OSError as error:
            raise store_error(self.name, error) from None
        return sum(source.stat().st_size for source in sources.values())

    def _claim(self, name: str, source: Path, number: int, *, replace: bool) -> None:
        claim = self._claim_of(name)
        while (owner := _owner(claim)) is None:
            # Looked at before it is claimed: what comes there later is of this run.
            if not replace and self._is_taken(name, source):
                raise self._taken(name, 'hint: mode="overwrite" replaces files from before the run')
            with contextlib.suppress(FileExistsError):
                # A link to an input's number: it is there with what it says, or not at all.
                claim.symlink_to(str(number))
        if owner != number:
            raise self._taken(name, _OTHER_NAMES, f", of input {owner}")

    def _withdraw(self, sources: Mapping[str, Path], number: int) -> None:
        for name, source in sources.items():
            claim = self._claim_of(name)
            if _owner(claim) == number:
                self._remove(name, source)
                claim.unlink()

    def _claim_of(self, name: str) -> Path:
        digest = hashlib.blake2b(os.fsencode(name), digest_size=16)
        return self.work / _CLAIMS / digest.hexdigest()

    def _taken(self, name: str, hint: str, what: str = "") -> FileExistsError:
        return FileExistsError(f"{self._uri(name)} is there already{what}\n{hint}")

    def _uri(self, name: str) -> str:
        return str(self.output / name)

    def _is_taken(self, name: str, source: Path) -> bool:
        """Whether there is another file of a name. Folders are found when it is put there."""
        place = self.output / name
        return os.path.lexists(place) and not place.is_dir()

    def _put(self, name: str, source: Path) -> None:
        """Puts a file in its place, in that of any other one."""
        place = self.output / name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise self._taken(name, _OTHER_NAMES, ", or a file with the name of its folder") from None
        try:
            place.hardlink_to(source)
        except FileExistsError:
            if place.is_dir():
                raise self._taken(name, _OTHER_NAMES, ", a folder") from None
            if not (place.exists() and place.samefile(source)):
                aside = self.work / f"{source.relative_to(self.work).parts[0]}.tmp"
                aside.unlink(missing_ok=True)
                aside.hardlink_to(source)
                aside.replace(place)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP):
                raise
            raise StoreError(
                f"{place}: expected a disk where a file can have two names (hard links): {error.strerror}\n"
                "hint: write to another disk, and copy the output"
            ) from None

    def _remove(self, name: str, source: Path) -> None:
        """Removes a file, if it was put there."""
        place = self.output / name
        if place.is_file() and place.samefile(source):
            place.unlink()


@dataclass(frozen=True)
class StorePlace(Place):
    """The same for a part of a store."""

    store: Store

    @property
    def name(self) -> str:
        """See `Place.name`."""
        return self.store.url

    def sync(self) -> None:
        """See `Place.sync`: what arrived stays."""

    def _uri(self, name: str) -> str:
        return self.store.uri(name)

    def _is_taken(self, name: str, source: Path) -> bool:
        """See `Place._is_taken`. One of the same content may be there: a run left it whose work folder is gone."""
        try:
            size = self.store.head(name).size
        except MissingError:
            return False
        return size != source.stat().st_size or not self._holds(name, source)

    def _put(self, name: str, source: Path) -> None:
        self.store.put(name, source)

    def _remove(self, name: str, source: Path) -> None:
        """See `Place._remove`: all names are claimed before a file is put there, and nothing else is refused."""

    def _holds(self, name: str, source: Path) -> bool:
        with source.open("rb") as file:
            at = 0
            while data := file.read(_BLOCK):
                if self.store.read(name, at, len(data)) != data:
                    return False
                at += len(data)
        return True


def check_files(folder: Path) -> None:
    """Refuses a folder with a link to another one: what is in that would not come to the output.

    Raises:
        ValueError: if there is one.
    """
    for parent, names, _ in os.walk(folder):
        for name in names:
            if (path := Path(parent) / name).is_symlink():
                raise ValueError(
                    f"expected files and folders, found {path.relative_to(folder)}, a symbolic link to a folder\n"
                    "hint: copy what is in it"
                )


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            yield Path(parent) / name


def _owner(claim: Path) -> int | None:
    """The input that has a name."""
    try:
        return int(claim.readlink().name)
    except FileNotFoundError:
        return None
