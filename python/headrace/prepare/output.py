"""The folder that a dataset is made in: who may write, what lies there, and how a whole dataset becomes visible.

While a run is under way everything of it lies below ``.headrace``, which no reader looks at: a journal, the spool, and
the chunks that are done. At the end chunks are renamed into the folder, and the index is replaced, which makes the
dataset what it is from one moment to the next. Chunks' names are new ones: a reader of the dataset that was there
before goes on to find its own.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from headrace.errors import DataError, StoreError

from .durable import store_error, sync
from .writing import Entry, Existing, Layout

__all__ = ["Mode", "Output", "read_json"]

Mode = Literal["append", "overwrite"]

_WORK = ".headrace"
_JOURNAL = "journal.jsonl"
_LOCK = "lock"
_MANIFEST = "_headrace/written.json"
_INDEX = "index.json"


class Output:
    """A folder, locked for this process until it is closed.

    Args:
        folder: made if it is not there.

    Raises:
        StoreError: if it cannot be written to, or another process writes there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / _WORK
        self.chunks = self.work / "chunks"
        self._lock = -1
        self._journal: int | None = None
        self._noting = threading.Lock()
        self._made = not folder.exists()
        try:
            self.chunks.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder}: expected a folder that can be written to: {error.strerror or error}") from None
        self._lock = self._locked()

    # The journal: a line of JSON for each thing that a later run must know.

    def lines(self) -> list[Any]:
        """What an unfinished run noted; a line that was cut short is not there."""
        path = self.work / _JOURNAL
        if not path.exists():
            return []
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            os.truncate(path, end)
        return list(_parsed(data[:end]))

    def rewrite(self, lines: Sequence[Any]) -> None:
        """Leaves only some of its lines."""
        self.replace(self.work / _JOURNAL, b"".join(json.dumps(line).encode() + b"\n" for line in lines))

    def note(self, line: Any, *, sync: bool = False) -> None:
        """Adds a line. Threads may do so at the same time.

        Args:
            line: as JSON has it.
            sync: whether it, and all before it, are to outlive a power cut.

        Raises:
            StoreError: if it cannot be written.
        """
        path = self.work / _JOURNAL
        data = json.dumps(line).encode() + b"\n"
        with self._noting:
            try:
                if self._journal is None:
                    self._journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
                start = os.fstat(self._journal).st_size
                if os.write(self._journal, data) != len(data):
                    os.ftruncate(self._journal, start)
                    raise OSError(28, os.strerror(28))
                if sync:
                    os.fsync(self._journal)
            except OSError as error:
                raise store_error(path, error) from None

    def forget(self) -> None:
        """Removes all of an unfinished run."""
        if self._journal is not None:
            os.close(self._journal)
            self._journal = None
        # The journal goes first: without it the rest means nothing.
        (self.work / _JOURNAL).unlink(missing_ok=True)
        for path in self.work.glob("blocks-*"):
            path.unlink()
        shutil.rmtree(self.chunks, ignore_errors=True)
        self.chunks.mkdir(exist_ok=True)

    # What is there

    def existing(self, layout: Layout, mode: Mode | None) -> tuple[Existing, list[str]]:
        """The dataset that is to be added to, and the files that are to go.

        Raises:
            ValueError: if the folder is not as the mode says.
            DataError: if its index is damaged.
        """
        nothing = Existing([], None)
        if mode is None:
            self.expect_empty()
            return nothing, []
        visible = [name for name in self._visible() if name != "_headrace"]
        listed = self._listed()
        if mode == "overwrite":
            self._refuse_strangers(layout, listed, visible)
            return nothing, listed
        path = self.folder / layout.index_name
        if not path.exists():
            if visible:
                raise ValueError(
                    f"{self.folder}: expected a dataset of {layout.format} with its {layout.index_name}, "
                    f"found {', '.join(visible[:3])}"
                )
            return nothing, []
        existing = layout.read(self.folder, path.read_bytes())
        names = [entry["name"] for entry in existing.entries]
        for entry in existing.entries:
            file = self.folder / entry["name"]
            if not file.exists() or file.stat().st_size != entry["bytes"]:
                raise DataError(f"{file}: expected {entry['bytes']} bytes as {path} says, found another file or none")
        self._refuse_strangers(layout, names, visible)
        return existing, []

    def expect_empty(self) -> dict[str, Any]:
        """Refuses a folder that holds anything; there is nothing to note of it.

        Raises:
            ValueError: if it does.
        """
        if visible := self._visible():
            raise ValueError(
                f"{self.folder}: expected an empty folder, found {', '.join(visible[:3])}"
                f"{' ...' if len(visible) > 3 else ''}\n"
                'hint: mode="append" adds to what is there, mode="overwrite" replaces it'
            )
        return {}

    def base(self, layout: Layout) -> int:
        """The first number that no chunk in the folder has."""
        pattern = re.compile(layout.pattern)
        numbers = [int(found.group(1)) for name in self._visible() if (found := pattern.fullmatch(name))]
        return max(numbers, default=-1) + 1

    # The end

    def publish(self, layout: Layout, entries: Sequence[Entry], index: bytes, gone: Sequence[str]) -> None:
        """Makes chunks visible, then the index, and removes the files that are to go. Can be done again after a kill.

        Raises:
            StoreError: if a file cannot be renamed or written.
        """
        try:
            for entry in entries:
                staged = self.chunks / entry["name"]
                if staged.exists():
                    staged.rename(self.folder / entry["name"])
            target = self.folder / layout.index_name
            target.parent.mkdir(exist_ok=True)
            for other in (_INDEX, _MANIFEST):
                if gone and other != layout.index_name:
                    (self.folder / other).unlink(missing_ok=True)
            sync(self.folder)
            self.replace(target, index)
            sync(target.parent)
            for name in gone:
                (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise store_error(self.folder, error) from None

    def replace(self, path: Path, data: bytes) -> None:
        """Writes a file so that it is there whole or not at all.

        Raises:
            StoreError: if it cannot be written.
        """
        aside = self.work / (path.name + ".tmp")
        try:
            aside.write_bytes(data)
            sync(aside)
            aside.replace(path)
        except OSError as error:
            raise store_error(path, error) from None

    def close(self, *, finished: bool) -> None:
        """Gives up the folder; after a finished run nothing is left but the dataset."""
        try:
            if self._journal is not None:
                os.close(self._journal)
                self._journal = None
            if finished:
                # The journal goes first: without it the rest means nothing.
                (self.work / _JOURNAL).unlink(missing_ok=True)
            if not (self.work / _JOURNAL).exists():
                shutil.rmtree(self.work, ignore_errors=True)
                if self._made and not finished:
                    # Nothing was begun: no trace is left.
                    with contextlib.suppress(OSError):
                        self.folder.rmdir()
        finally:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

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

    def _visible(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))

    def _listed(self) -> list[str]:
        """Files of the dataset that is there, by its index."""
        names: list[str] = []
        for name in (_INDEX, _MANIFEST):
            path = self.folder / name
            if not path.exists():
                continue
            names += _names(read_json(path))
        return [name for name in dict.fromkeys(names) if os.sep not in name and name not in ("", ".", "..")]

    def _refuse_strangers(self, layout: Layout, listed: Sequence[str], visible: Sequence[str]) -> None:
        """Refuses files that are in no index and would become part of a dataset that has none of its own."""
        if layout.index_name != _MANIFEST:
            return
        if strangers := [name for name in visible if name not in listed and name != _INDEX]:
            raise ValueError(
                f"{self.folder}: expected only files that headrace wrote, found {', '.join(strangers[:3])}, "
                "which would be part of the dataset\nhint: move them, or choose another folder"
            )


def read_json(path: Path) -> dict[str, Any]:
    """An index.

    Raises:
        DataError: if it is none.
    """
    try:
        found: Any = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: expected JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected the index of a dataset, found a {type(found).__name__}")
    return cast("dict[str, Any]", found)


def _parsed(data: bytes) -> Iterator[Any]:
    """The lines of a journal, up to one that a power cut damaged."""
    for line in data.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def _names(index: dict[str, Any]) -> list[str]:
    """Names of files in an index of LitData, MDS, or our own."""
    found: list[str] = [str(chunk.get("filename", "")) for chunk in index.get("chunks", [])]
    for shard in index.get("shards", []):
        for part in ("raw_data", "zip_data", "raw_meta", "zip_meta"):
            if isinstance(file := shard.get(part), dict):
                found.append(str(file.get("basename", "")))  # pyright: ignore
    return found + [str(entry.get("name", "")) for entry in index.get("files", [])]
