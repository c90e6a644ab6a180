"""What the servers of the tests have in common.

`StoreServer` is what tests know of a store: buckets, objects, and how a client is to reach them. `ProgramServer` is one
whose work a program does (`programs.py`), `HttpService` one that is written here, in threads of this process, whose
`Handler` answers with whole files, ranges and conditions as HTTP says. All listen on free ports of the loopback
interface and are context managers. Only the standard library.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import os
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Answer", "Entity", "Handler", "HttpService", "ProgramServer", "StoreServer", "call", "free_port", "quoted"]

HOST = "127.0.0.1"

# Seconds until a program answers: less than one for those written in Go, about two for Node.
START_TIMEOUT = 60
REQUEST_TIMEOUT = 30

BLOCK = 1 << 20  # Bytes that are read and sent at a time.


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


def free_port() -> int:
    """A port of the loopback interface that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def quoted(path: str) -> str:
    """A path of raw text as it stands in a URL."""
    return urllib.parse.quote(path, safe="/-_.~")


def call(method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    """One request on a connection of its own, without following redirects.

    Args:
        method: The HTTP method.
        url: The URL, percent-encoded.
        body: The body.
        headers: Headers beside those that HTTP needs.
    """
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=REQUEST_TIMEOUT)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target, body or None, dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


class StoreServer(ABC):
    """A running server of objects in buckets; a context manager.

    A bucket is what its store calls so: a container, a repository, a folder. Keys are raw text.
    """

    port: int = 0

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://{HOST}:{self.port}"

    @abstractmethod
    def url(self, bucket: str, path: str = "", endpoint: str | None = None) -> str:
        """What to give to headrace; `endpoint` may be that of a proxy."""

    @abstractmethod
    def storage_options(self, endpoint: str | None = None) -> dict[str, str]:
        """What to pass as `storage_options`; `endpoint` may be that of a proxy."""

    @abstractmethod
    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """The same as variables."""

    @abstractmethod
    def start(self) -> None:
        """Starts the server and returns when it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Stops the server and removes its data."""

    @abstractmethod
    def make_bucket(self, bucket: str) -> None:
        """Makes an empty bucket."""

    @abstractmethod
    def put(self, bucket: str, key: str, body: bytes) -> None:
        """Writes an object."""

    @abstractmethod
    def delete(self, bucket: str, key: str) -> None:
        """Removes an object."""

    def put_folder(self, bucket: str, folder: str | os.PathLike[str], prefix: str = "") -> None:
        """Writes all files below a folder."""
        root = Path(folder)
        for path in sorted(root.rglob("*")):
            if path.is_file():
                self.put(bucket, prefix + path.relative_to(root).as_posix(), path.read_bytes())

    def __enter__(self) -> Any:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class ProgramServer(StoreServer):
    """A server that is a process of its own, over a temporary folder."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def folder(self) -> Path:
        """The folder that it keeps its data in, while it runs."""
        assert self._folder is not None
        return Path(self._folder.name)

    @abstractmethod
    def command(self, folder: Path) -> list[str]:
        """What to run, to listen on `self.port` and keep data in the folder."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether it answers; may raise OSError."""

    def variables(self) -> dict[str, str]:
        """Variables for the process."""
        return {}

    def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-server-", ignore_cleanup_errors=True)
        root = Path(self._folder.name)
        try:
            self.port = free_port()
            with (root / "log").open("wb") as log:
                self._process = subprocess.Popen(
                    self.command(root),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=root,
                    env={**os.environ, **self.variables()},
                )
            self._wait(root / "log")
        except BaseException:
            self.stop()
            raise

    def _wait(self, log: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.ready():
                    return
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                how = f"ended with {code}" if code is not None else f"did not answer in {START_TIMEOUT} s"
                text = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{type(self).__name__}: {self._process.args} {how}:\n{text}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class HttpService(socketserver.ThreadingTCPServer):
    """An HTTP server in threads of this process, on a free port; a context manager.

    Args:
        handler: What answers; it finds this object as `self.server`.
        owner: What the handler asks, as `self.server.owner`.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[Handler], owner: Any) -> None:
        super().__init__((HOST, 0), handler)
        self.owner = owner
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of what is tested."""

    def start(self) -> None:
        """Begins to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it."""
        self.shutdown()
        self.server_close()
        self._thread.join()


@dataclass(frozen=True)
class Entity:
    """A file as HTTP sees it."""

    size: int
    read: Callable[[int, int], bytes]
    """The bytes from one place to another."""
    etag: str | None = None
    """With its quotes."""
    modified: float | None = None
    """Seconds since 1970."""

    @classmethod
    def of(cls, content: bytes, etag: str | None = None, modified: float | None = None) -> Entity:
        """Bytes in memory."""
        return cls(len(content), lambda start, stop: content[start:stop], etag, modified)


class Handler(BaseHTTPRequestHandler):
    """Answers requests; `handle_any` is called for each."""

    protocol_version = "HTTP/1.1"
    # Head and body are written one after the other: the second must not wait until the first is acknowledged.
    disable_nagle_algorithm = True
    server: HttpService

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle_any(self) -> None:
        """Answers one request."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self.handle_any()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_PROPFIND = do_OPTIONS = do_GET

    def body(self) -> bytes:
        """The body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, headers: Iterable[tuple[str, str]] = (), content: bytes = b"") -> None:
        """Sends a whole answer."""
        self._head(status, headers, len(content))
        if self.command != "HEAD":
            self.wfile.write(content)

    def answer_entity(self, entity: Entity, headers: Iterable[tuple[str, str]] = (), *, ranges: bool = True) -> None:
        """Sends a file, or what of it the request asks for, or that it is not the one that the request means.

        Args:
            entity: The file.
            headers: Headers beside those of the file.
            ranges: Whether `Range` is understood; if not, the whole file is sent, as HTTP allows.
        """
        headers = list(headers)
        if entity.etag is not None:
            headers.append(("ETag", entity.etag))
        if entity.modified is not None:
            headers.append(("Last-Modified", email.utils.formatdate(entity.modified, usegmt=True)))
        headers.append(("Accept-Ranges", "bytes" if ranges else "none"))
        if not self._holds(entity):
            self.answer(412, headers)
            return
        if entity.etag is not None and self.headers.get("If-None-Match") == entity.etag:
            self.send_response_only(304)
            self._send_headers(headers)
            return
        wanted = self.headers.get("Range") if ranges and self.headers.get("If-Range") in (None, entity.etag) else None
        part = None if wanted is None else _parse_range(wanted, entity.size)
        if part is None:
            self._stream(200, headers, entity, 0, entity.size)
        elif part[0] >= part[1]:
            self.answer(416, [*headers, ("Content-Range", f"bytes */{entity.size}")])
        else:
            headers.append(("Content-Range", f"bytes {part[0]}-{part[1] - 1}/{entity.size}"))
            self._stream(206, headers, entity, *part)

    def _holds(self, entity: Entity) -> bool:
        """Whether the file is the one that the request's conditions name."""
        tags = self.headers.get("If-Match")
        if tags is not None:
            # A weak tag never matches: the bytes may differ.
            known = {tag.strip() for tag in tags.split(",")} - {""}
            return known == {"*"} or (entity.etag in known and not str(entity.etag).startswith("W/"))
        since = self.headers.get("If-Unmodified-Since")
        if since is not None and entity.modified is not None:
            return int(entity.modified) <= email.utils.parsedate_to_datetime(since).timestamp()
        return True

    def _stream(self, status: int, headers: list[tuple[str, str]], entity: Entity, start: int, stop: int) -> None:
        self._head(status, headers, stop - start)
        if self.command == "HEAD":
            return
        for at in range(start, stop, BLOCK):
            self.wfile.write(entity.read(at, min(at + BLOCK, stop)))

    def _head(self, status: int, headers: Iterable[tuple[str, str]], length: int) -> None:
        self.send_response_only(status)
        self._send_headers([*headers, ("Content-Length", str(length))])

    def _send_headers(self, headers: Iterable[tuple[str, str]]) -> None:
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()


def _parse_range(text: str, size: int) -> tuple[int, int] | None:
    """The bytes that a `Range` header means; empty if there are none, None if it is to be ignored."""
    unit, _, wanted = text.partition("=")
    first, dash, last = wanted.strip().partition("-")
    if unit.strip() != "bytes" or not dash or "," in wanted:
        return None
    try:
        if not first:
            return max(0, size - int(last)), size
        return int(first), min(size, int(last) + 1 if last else size)
    except ValueError:
        return None
