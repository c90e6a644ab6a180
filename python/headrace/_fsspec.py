"""Schemes that headrace does not know itself, through fsspec: what the core calls for them.

fsspec is imported when such a URL is first opened. Calls come from threads of the core. Filesystems that are not made
for several threads, all but the asynchronous ones, are given to one call at a time, and made anew after a fault.
"""

import atexit
import importlib
import json
import os
import queue
import threading
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, datetime
from typing import Any

from .errors import MissingError

__all__ = ["FileSystem", "place", "trouble"]

_TAGS = (
    "ETag",
    "etag",
    "e_tag",
    "md5Hash",
    "md5",
    "checksum",
    "sha",
    "sha256",
    "hex",
    "CRC",
    "generation",
    "version_id",
)
"""Fields of fsspec that tell one content of a file from another, those that tell most first."""

_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "modify", "created", "date_time")
"""Fields that say when it was written, for filesystems that have no tag."""

_TEXT = ("user", "name", "pass", "secret", "token", "key", "cred")
"""What the name of an option holds whose value is always text, were it made of digits alone."""

_LONGEST = 500
"""Letters of an error that are told."""

_PATIENCE = 5.0
"""Seconds that the end of the process waits for calls that are under way: a thread that comes back from one after the
interpreter has gone would end it badly."""


def place(url: str, options: Mapping[str, str]) -> tuple[str, str, str] | str:
    """What keys follow, what follows them, and the key of a URL; or a hint, if fsspec does not know the scheme.

    Raises:
        ValueError: if the URL cannot be used.
    """
    try:
        fsspec = _library("fsspec")
    except ImportError:
        return 'other schemes are read through fsspec: pip install "headrace[fsspec]"'
    first, separator, rest = url.partition("::")
    scheme, _, after = first.partition("://")
    try:
        own: Any = fsspec.get_filesystem_class(scheme)
        _refuse_passwords(scheme, own, first)
        for part in rest.split("::") if separator else []:
            inner = part.partition("://")[0]
            _refuse_passwords(inner, fsspec.get_filesystem_class(inner), part)
    except ImportError as error:
        raise ValueError(f"{scheme}://: fsspec lacks a package for it: {_told(error)}") from None
    except ValueError as error:
        if "rotocol not known" not in str(error):
            raise
        return "fsspec does not know it either; a package for it may have to be installed"
    key = _plain(own._strip_protocol(first)).strip("/")
    after = after.rstrip("/")
    before = after[: len(after) - len(key)] if after.endswith(key) else ""
    return f"{scheme}://{before.rstrip('/')}", separator + rest, key


def trouble(error: BaseException) -> tuple[str, str]:
    """The kind of an error, and what it says."""
    match error:
        case FileNotFoundError() | IsADirectoryError() | NotADirectoryError():
            kind = "missing"
        case PermissionError():
            kind = "denied"
        case TimeoutError():
            kind = "timeout"
        case ArithmeticError() | AssertionError() | AttributeError() | ImportError() | LookupError() | NameError():
            kind = "other"
        case NotImplementedError() | TypeError() | ValueError():
            kind = "other"
        case _:
            kind = "passing"
    return kind, f"fsspec: {_told(error)}"


class FileSystem:
    """The files of a filesystem, by keys as `place` gives them. It belongs to one process."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._url = url
        self._options = {name: _value(name, text) for name, text in options.items()}
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._filesystem() as (_, path):
            # What stands before keys in the paths of this filesystem: a slash, a scheme, or nothing.
            scheme, separator, _ = path.partition("://")
            self._lead = scheme + separator if separator else "/" * path.startswith("/")

    def read(self, key: str, start: int, stop: int) -> tuple[bytes, int, str]:
        """Bytes of a range, with size and version after they were read."""
        with self._filesystem() as (filesystem, _):
            data = filesystem.cat_file(self._lead + key, start, stop)
            return bytes(data), *_facts(filesystem.info(self._lead + key), key)

    def head(self, key: str) -> tuple[int, str, int | None]:
        """Size, version and time of writing of a file."""
        with self._filesystem() as (filesystem, _):
            info = filesystem.info(self._lead + key)
            return *_facts(info, key), _written(info)

    def list(self, start: str) -> list[tuple[str, tuple[int, str, int | None]]]:
        """Keys of all files that begin with `start`, with what `head` says of each."""
        folder = start.rpartition("/")[0]
        with self._filesystem() as (filesystem, _):
            found = _found(filesystem, self._lead + folder)
        files: list[tuple[str, tuple[int, str, int | None]]] = []
        for path, info in found.items():
            key = path.removeprefix(self._lead).lstrip("/")
            if info["type"] != "directory" and key.startswith(start):
                files.append((key, (*_facts(info, key), _written(info))))
        return files

    def put(self, key: str, data: bytes) -> None:
        """Writes a file whole."""
        with self._filesystem() as (filesystem, _):
            self._write(filesystem, key, lambda path: filesystem.pipe_file(path, data))

    def put_file(self, key: str, source: str | os.PathLike[str]) -> None:
        """Writes a copy of a local file whole."""
        with self._filesystem() as (filesystem, _):
            self._write(filesystem, key, lambda path: filesystem.put_file(os.fspath(source), path))

    def delete(self, key: str) -> None:
        """Removes a file; nothing, if there is none."""
        with self._filesystem() as (filesystem, _), suppress(FileNotFoundError):
            filesystem.rm_file(self._lead + key)

    def _write(self, filesystem: Any, key: str, write: Callable[[str], Any]) -> None:
        target = self._lead + key
        folder = filesystem._parent(target)
        filesystem.makedirs(folder, exist_ok=True)
        if not _renames(filesystem):
            write(target)
            return
        # A file with its name is whole: it is written under another one.
        aside = f"{folder.rstrip('/')}/.headrace-{uuid.uuid4().hex}.tmp"
        try:
            write(aside)
            filesystem.mv(aside, target)
        except BaseException:
            with suppress(Exception):
                filesystem.rm_file(aside)
            raise

    @contextmanager
    def _filesystem(self) -> Generator[tuple[Any, str]]:
        with _calls.one():
            try:
                own = self._free.get_nowait()
            except queue.Empty:
                own = self._made()
            is_shared = own[0].async_impl
            if is_shared:
                self._free.put(own)
            is_sound = False
            try:
                yield own
                is_sound = True
            except FileNotFoundError:
                is_sound = True
                raise
            finally:
                if is_sound and not is_shared:
                    self._free.put(own)

    def _made(self) -> tuple[Any, str]:
        # An instance of our own: what is listed must not be remembered, or a change would not be seen.
        filesystem, path = _library("fsspec.core").url_to_fs(self._url, skip_instance_cache=True, **self._options)
        filesystem.dircache.use_listings_cache = False
        return filesystem, path


class _Calls:
    """The calls of this process that are under way."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._closed = False

    @contextmanager
    def one(self) -> Generator[None]:
        with self._changed:
            if self._closed:
                raise RuntimeError("the process is ending")
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._count == 0, timeout=_PATIENCE)


_calls = _Calls()
atexit.register(_calls.end)
os.register_at_fork(after_in_child=_calls.reset)


def _found(filesystem: Any, folder: str) -> Mapping[str, dict[str, Any]]:
    """All files below a folder, with what is known of them; none, if there is no such folder."""
    try:
        return _walked(filesystem, folder) if _walks(filesystem) else filesystem.find(folder, detail=True)
    except FileNotFoundError:
        if filesystem.exists(folder):
            raise ConnectionError("a folder went away while it was listed") from None
        return {}


def _walked(filesystem: Any, folder: str) -> dict[str, dict[str, Any]]:
    """The same by folders: fsspec's own walk leaves out what it cannot list, and does not tell."""
    found: dict[str, dict[str, Any]] = {}
    pending = [folder]
    while pending:
        above = pending.pop()
        for info in filesystem.ls(above, detail=True):
            path = str(info["name"]).rstrip("/")
            if info["type"] != "directory":
                found[path] = info
            elif path != above.rstrip("/"):
                pending.append(path)
    return found


def _walks(filesystem: Any) -> bool:
    """Whether its `find` is fsspec's own, which goes from folder to folder."""
    own: Any = filesystem.__class__
    if filesystem.async_impl:
        return own._find is _library("fsspec.asyn").AsyncFileSystem._find
    return own.find is _library("fsspec").AbstractFileSystem.find


def _renames(filesystem: Any) -> bool:
    """Whether it renames files. Stores of objects, which write them whole, are asynchronous here."""
    return not filesystem.async_impl and filesystem.__class__.mv is not _library("fsspec").AbstractFileSystem.mv


def _facts(info: Mapping[str, Any], key: str) -> tuple[int, str]:
    """Size and version of a file, the latter as the core writes it."""
    if info["type"] == "directory":
        raise MissingError(f"{key} is a folder")
    size = info.get("size")
    if not isinstance(size, int):
        raise ValueError(f"the filesystem does not say how long {key} is")
    for name in _TAGS:
        if (tag := info.get(name)) not in (None, ""):
            return size, f"e{tag.hex() if isinstance(tag, bytes) else tag}"
    if (time := _written(info)) is not None:
        return size, f"m{time}"
    for name in _TIMES:
        if (time := info.get(name)) is not None and not isinstance(time, bool):
            return size, f"e{time.isoformat() if isinstance(time, date) else time}"
    return size, ""


def _written(info: Mapping[str, Any]) -> int | None:
    """When a file was written, in nanoseconds since 1970, if the first of the fields that say so is a time."""
    for name in _TIMES:
        match info.get(name):
            case bool() | None:
                continue
            case int() | float() as seconds:
                return round(seconds * 1e9)
            case datetime() as time:
                return round(time.timestamp() * 1e9)
            case _:
                return None
    return None


def _value(name: str, text: str) -> Any:
    """The value of an option: what JSON's notation says, if it is that of a number, a list and such, or else text."""
    if any(part in name.lower() for part in _TEXT):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _refuse_passwords(scheme: str, own: Any, url: str) -> None:
    if own._get_kwargs_from_urls(url).get("password"):
        raise ValueError(
            f"{scheme}://: the URL holds a password, which messages and states would show\n"
            'hint: pass it as storage_options={"password": ...}'
        )


def _library(name: str) -> Any:
    """A module of fsspec, which is imported when it is wanted and has no types."""
    return importlib.import_module(name)


def _plain(path: Any) -> str:
    """A path without a scheme, which some filesystems keep."""
    text = str(path)
    return text.partition("://")[2] if "://" in text else text


def _told(error: BaseException) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
