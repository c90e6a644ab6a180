"""What a dataset is made in: who may write, what lies there, and how a whole dataset becomes visible.

An `Output` is a place that readers see, and a folder on a disk, the work folder, which none looks at: it holds a
journal, the spool, and the chunks that are done. At the end chunks are brought to the place, and the index is replaced,
which makes the dataset what it is from one moment to the next, where its format has an index. Chunks' names are new
ones: a reader of the dataset that was there before goes on to find its own.

What a place is, a folder or a part of a store, is said by `local` and `remote`.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from headrace._files import Store
from headrace.errors import DataError, StateMismatch, StoreError

from .durable import kept, put_whole, store_error, sync
from .lines import Lines
from .placing import Place
from .record_shards import files_of
from .writing import Catalog, Entry, Existing

__all__ = ["INDEX", "JOURNAL", "Mode", "Output", "read_json"]

Mode = Literal["append", "overwrite"]

JOURNAL = "journal.jsonl"
INDEX = "index.json"
_LOCK = "lock"
_MANIFEST = "_headrace/written.json"


class Output(ABC):
    """A place, locked for this process until it is closed.

    Args:
        folder: the place, as messages name it.
        work: the work folder, made if it is not there.

    Attributes:
        folder: as given.
        work: as given.
        chunks: where chunks are made, below the work folder.

    Raises:
        StoreError: if it cannot be written to, or another process writes there.
    """

    def __init__(self, folder: Path | str, work: Path) -> None:
        self.folder = folder
        self.work = work
        self.chunks = work / "chunks"
        self._lock = -1
        self._journal = Lines(work / JOURNAL)
        try:
            self.chunks.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{work}: expected a folder that can be written to: {error.strerror or error}") from None
        self._lock = self._locked()

    # The journal: a line of JSON for each thing that a later run must know.

    def lines(self) -> list[Any]:
        """What an unfinished run noted; a line that was cut short is not there."""
        return self._journal.read()

    def rewrite(self, lines: Sequence[Any]) -> None:
        """Leaves only some of its lines."""
        self.replace(self.work / JOURNAL, b"".join(json.dumps(line).encode() + b"\n" for line in lines))

    def note(self, line: Any, *, sync: bool = False) -> None:
        """Adds a line. Threads may do so at the same time.

        Args:
            line: as JSON has it.
            sync: whether it, and all before it, are to outlive a power cut.

        Raises:
            StoreError: if it cannot be written.
        """
        self._journal.add(line, sync=sync)

    def forget(self) -> None:
        """Removes all of an unfinished run."""
        # The journal goes first: without it the rest means nothing.
        self._journal.remove()
        self._remove_made()
        self.chunks.mkdir(exist_ok=True)

    # What is there

    def existing(self, catalog: Catalog, mode: Mode | None) -> tuple[Existing, list[str]]:
        """The dataset that is to be added to, and the files that are to go.

        Raises:
            ValueError: if the place is not as the mode says.
            DataError: if its index is damaged.
        """
        nothing = Existing([], None)
        if mode is None:
            self.expect_empty()
            return nothing, []
        visible = [name for name in self.visible() if name != "_headrace"]
        listed = self._listed()
        if mode == "overwrite":
            self._refuse_strangers(catalog, listed, visible)
            return nothing, listed
        index = self.read(catalog.index_name)
        if index is None:
            if visible:
                raise ValueError(
                    f"{self.folder}: expected a dataset of {catalog.format} with its {catalog.index_name}, "
                    f"found {', '.join(visible[:3])}"
                )
            return nothing, []
        existing = catalog.read(index, self.files())
        names = [entry["name"] for entry in existing.entries]
        for entry in existing.entries:
            if self.size(entry["name"]) != entry["bytes"]:
                raise DataError(
                    f"{self.folder}/{entry['name']}: expected {entry['bytes']} bytes as {catalog.index_name} says, "
                    "found another file or none"
                )
        self._refuse_strangers(catalog, names, visible)
        return existing, []

    def expect_empty(self) -> dict[str, Any]:
        """Refuses a place that holds anything; there is nothing to note of it.

        Raises:
            ValueError: if it does.
        """
        if visible := self.visible():
            raise ValueError(
                f"{self.folder}: expected an empty folder, found {', '.join(visible[:3])}"
                f"{' ...' if len(visible) > 3 else ''}\n"
                'hint: mode="append" adds to what is there, mode="overwrite" replaces it'
            )
        return {}

    def base(self, catalog: Catalog) -> int:
        """The first number that no chunk in the place has, nor any that an index there lists."""
        pattern = re.compile(catalog.pattern)
        names = [*self.visible(), *self._listed()]
        numbers = [int(found.group(1)) for name in names if (found := pattern.fullmatch(name))]
        return max(numbers, default=-1) + 1

    # A run

    def expect_unchanged(self, catalog: Catalog, found: str | None, index: bytes | None = None) -> None:
        """Refuses a place where a dataset was made meanwhile.

        Args:
            catalog: of the format.
            found: what `mark` gave before.
            index: of a dataset that may be there too.

        Raises:
            StateMismatch: if there is another one.
        """
        if self.mark(catalog) != found and (index is None or self.read(catalog.index_name) != index):
            raise self.changed()

    def changed(self) -> StateMismatch:
        """The error for a place where a dataset was made meanwhile."""
        return StateMismatch(
            f"{self.folder}: another run made a dataset there since this one began\n"
            "hint: resume=False begins anew, with what is there now"
        )

    @abstractmethod
    def finished(self, catalog: Catalog, entry: Entry) -> None:
        """Says that a chunk is whole, and noted.

        Raises:
            StoreError: if one of those before could not be brought to the place.
        """

    def secure(self, entry: Entry) -> None:
        """Has a chunk outlive a power cut.

        Raises:
            StoreError: if that cannot be done.
        """
        sync(self.chunks / entry["name"])

    @abstractmethod
    def stage(self, source: Path, name: str) -> None:
        """Takes a file of another dataset as a chunk.

        Raises:
            OSError: if it cannot be read.
            StoreError: if it cannot be written.
        """

    @abstractmethod
    def place(self) -> Place:
        """What brings files of `map` to the place, in whatever process."""

    # The end

    def publish(
        self, catalog: Catalog, entries: Sequence[Entry], index: bytes, gone: Sequence[str], found: str | None
    ) -> None:
        """Makes chunks visible, then the index, and removes the files that are to go. Can be done again after a kill.

        Args:
            catalog: of the format.
            entries: chunks of the run.
            index: of the dataset.
            gone: names of files that are to go.
            found: what `mark` gave before the run.

        Raises:
            StoreError: if a file cannot be brought to the place.
            StateMismatch: if another run made a dataset there meanwhile.
        """
        try:
            self.reveal(catalog, entries)
            self.expect_unchanged(catalog, found, index)
            for other in (INDEX, _MANIFEST):
                if gone and other != catalog.index_name:
                    self.remove(other)
            self.write_index(catalog, index, found)
            for name in gone:
                self.remove(name)
        except StoreError as error:
            raise kept(error) from error
        except OSError as error:
            raise store_error(self.folder, error) from None

    def replace(self, path: Path, data: bytes) -> None:
        """Writes a file on the disk of the work folder so that it is there whole or not at all.

        Raises:
            StoreError: if it cannot be written.
        """
        put_whole(path, data, self.work / (path.name + ".tmp"))

    def close(self, *, finished: bool) -> None:
        """Gives up the place; after a finished run nothing is left but the dataset."""
        try:
            self._journal.close()
            if finished:
                # What takes time goes before the journal, by which the same call knows until then that all is done.
                self._remove_made()
                self._journal.remove()
            if not self._journal.exists():
                shutil.rmtree(self.work, ignore_errors=True)
        finally:
            self.unlock()

    def unlock(self) -> None:
        """Lets others use the work folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # The place

    @abstractmethod
    def visible(self) -> list[str]:
        """Names of files and folders there, sorted, but hidden ones."""

    @abstractmethod
    def files(self) -> Store:
        """The files there, for reading them as a dataset."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of a file there, if there is one."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """A small file there, if there is one."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Writes a small file there, whole or not at all."""

    def write_index(self, catalog: Catalog, index: bytes, found: str | None) -> None:
        """Writes the index in the place of the one that was there when the run began.

        Args:
            catalog: of the format.
            index: of the dataset.
            found: what `mark` gave then.

        Raises:
            StateMismatch: if another run made a dataset there meanwhile.
        """
        self.write(catalog.index_name, index)

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a file there, if there is one."""

    @abstractmethod
    def reveal(self, catalog: Catalog, entries: Sequence[Entry]) -> None:
        """Brings chunks there that are not there yet."""

    def mark(self, catalog: Catalog) -> str | None:
        """What tells the dataset that is there from another one, where a second run could make one in between."""
        return None

    def _remove_made(self) -> None:
        for path in self.work.glob("blocks-*"):
            path.unlink()
        shutil.rmtree(self.chunks, ignore_errors=True)

    def _locked(self) -> int:
        path = self.work / _LOCK
        while True:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                # A run that ended just now took the folder with it.
                self.chunks.mkdir(parents=True, exist_ok=True)
                continue
            except OSError as error:
                raise StoreError(f"{path}: {error.strerror}") from None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.read(fd, 100).decode(errors="replace").strip()
                os.close(fd)
                raise StoreError(
                    f"{self.folder}: another process writes a dataset there ({owner or 'it just began'})\n"
                    "hint: wait for it, or choose another folder"
                ) from None
            except OSError as error:
                os.close(fd)
                raise StoreError(f"{path}: expected a file system with locks: {error.strerror}") from None
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), path.stat()):
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
                    self.chunks.mkdir(parents=True, exist_ok=True)
                    return fd
            os.close(fd)

    def _listed(self) -> list[str]:
        """Files of the dataset that is there, by its index."""
        names: list[str] = []
        for name in (INDEX, _MANIFEST):
            data = self.read(name)
            if data is None:
                continue
            names += _names(_index(data, f"{self.folder}/{name}"))
        return [name for name in dict.fromkeys(names) if os.sep not in name and name not in ("", ".", "..")]

    def _refuse_strangers(self, catalog: Catalog, listed: Sequence[str], visible: Sequence[str]) -> None:
        """Refuses files that are in no index and would become part of a dataset that has none of its own."""
        if catalog.index_name != _MANIFEST:
            return
        if strangers := [name for name in visible if name not in listed and name != INDEX]:
            raise ValueError(
                f"{self.folder}: expected only files that headrace wrote, found {', '.join(strangers[:3])}, "
                "which would be part of the dataset\nhint: move them, or choose another folder"
            )


def read_json(path: Path) -> dict[str, Any]:
    """An index on a disk.

    Raises:
        DataError: if it is none.
    """
    return _index(path.read_bytes(), os.fspath(path))


def _index(data: bytes, where: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(data)
    except ValueError as error:
        raise DataError(f"{where}: expected JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{where}: expected the index of a dataset, found a {type(found).__name__}")
    return cast("dict[str, Any]", found)


def _names(index: Mapping[str, Any]) -> list[str]:
    """Names of files in an index of LitData, MDS, records, or our own."""
    found: list[str] = [str(chunk.get("filename", "")) for chunk in index.get("chunks", [])]
    for shard in index.get("shards", []):
        found += files_of(shard)
        for part in ("raw_data", "zip_data", "raw_meta", "zip_meta"):
            if isinstance(file := shard.get(part), dict):
                found.append(str(file.get("basename", "")))  # pyright: ignore
    return found + [str(entry.get("name", "")) for entry in index.get("files", [])]
