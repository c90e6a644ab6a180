"""A static file server for tests, on a free port of the loopback interface.

    with FileServer() as server:
        server.make_bucket("data")        # a folder
        server.put("data", "a.parquet", content)
        server.url("data", "a.parquet")   # for headrace

It answers `GET` and `HEAD` with ranges, entity tags, modification times and conditions, and lists nothing. What servers
out there lack can be left out: ranges, `HEAD`, strong tags, any tag, times; with a secret only signed URLs are
answered, as those that object stores hand out, and with a login only who knows it. Only the standard library.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import tempfile
import time
import urllib.parse
from pathlib import Path
from typing import Literal

from tools.serving import Entity, Handler, HttpService, StoreServer, quoted

__all__ = ["FileServer", "check_signature", "signed"]


def signed(url: str, secret: str, seconds: float = 3600) -> str:
    """A URL with a query that proves that the secret's owner made it; it covers the path and the time it holds."""
    expires = f"{time.time() + seconds:.3f}"
    query = {"expires": expires, "signature": _signature(urllib.parse.urlsplit(url).path, expires, secret)}
    return f"{url}?{urllib.parse.urlencode(query)}"


def check_signature(target: str, secret: str) -> str | None:
    """What is wrong with a signed URL, or None."""
    parts = urllib.parse.urlsplit(target)
    fields = dict(urllib.parse.parse_qsl(parts.query))
    expires = fields.get("expires", "0")
    if not hmac.compare_digest(fields.get("signature", ""), _signature(parts.path, expires, secret)):
        return "the signature is missing or does not match"
    return "the signature has expired" if float(expires) < time.time() else None


def _signature(path: str, expires: str, secret: str) -> str:
    return hmac.new(secret.encode(), f"{path}\n{expires}".encode(), hashlib.sha256).hexdigest()


class FileServer(StoreServer):
    """A running server; a context manager.

    Args:
        head: Whether `HEAD` is answered; if not, with 405.
        ranges: Whether `Range` is understood; if not, whole files are sent.
        tags: What entity tags are like.
        modified: Whether modification times are sent.
        secret: If given, only URLs that :meth:`url` signed with it are answered.
        login: If given, ``user:password`` without which nothing is answered; `url` puts it into URLs.
    """

    def __init__(
        self,
        *,
        head: bool = True,
        ranges: bool = True,
        tags: Literal["strong", "weak", "none"] = "strong",
        modified: bool = True,
        secret: str | None = None,
        login: str | None = None,
    ) -> None:
        self.head = head
        self.ranges = ranges
        self.tags = tags
        self.modified = modified
        self.secret = secret
        self.login = login
        self._service: HttpService | None = None

    def url(self, bucket: str, path: str = "", endpoint: str | None = None) -> str:
        place = endpoint or self.endpoint
        if self.login is not None:
            place = place.replace("://", f"://{self.login}@")
        url = f"{place}/{quoted(f'{bucket}/{path}')}"
        return url if self.secret is None else signed(url, self.secret)

    def storage_options(self, endpoint: str | None = None) -> dict[str, str]:
        return {}

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        return {}

    def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-http-")
        self.root = Path(self._folder.name)
        self._service = HttpService(_Files, self)
        self.port = self._service.port
        self._service.start()

    def stop(self) -> None:
        if self._service is not None:
            self._service.stop()
            self._folder.cleanup()
            self._service = None

    def make_bucket(self, bucket: str) -> None:
        (self.root / bucket).mkdir()

    def put(self, bucket: str, key: str, body: bytes) -> None:
        path = self.root / bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        # A file that is replaced is never seen half-written.
        new = self.root / f".{hashlib.sha256(key.encode()).hexdigest()}"
        new.write_bytes(body)
        new.replace(path)

    def delete(self, bucket: str, key: str) -> None:
        (self.root / bucket / key).unlink()

    def find(self, path: str) -> Entity | None:
        """The file at a path of raw text."""
        parts = path.strip("/").split("/")
        if not {"", ".", ".."}.isdisjoint(parts):
            return None
        file = self.root.joinpath(*parts)
        if not file.is_file():
            return None
        found = file.stat()
        etag = f'"{found.st_mtime_ns:x}-{found.st_ino:x}"'

        def read(start: int, stop: int) -> bytes:
            with file.open("rb") as opened:
                opened.seek(start)
                return opened.read(stop - start)

        return Entity(
            found.st_size,
            read,
            {"strong": etag, "weak": f"W/{etag}", "none": None}[self.tags],
            found.st_mtime if self.modified else None,
        )


class _Files(Handler):
    def handle_any(self) -> None:
        owner: FileServer = self.server.owner
        self.body()
        allowed = ("GET", "HEAD") if owner.head else ("GET",)
        if self.command not in allowed:
            self.answer(405, [("Allow", ", ".join(allowed))])
            return
        if owner.login is not None:
            wanted = f"Basic {base64.b64encode(owner.login.encode()).decode()}"
            if self.headers.get("Authorization") != wanted:
                self.answer(401, [("WWW-Authenticate", "Basic")])
                return
        fault = None if owner.secret is None else check_signature(self.path, owner.secret)
        if fault is not None:
            self.answer(403, content=fault.encode())
            return
        entity = None
        with contextlib.suppress(OSError):
            entity = owner.find(urllib.parse.unquote(urllib.parse.urlsplit(self.path).path, errors="strict"))
        if entity is None:
            self.answer(404, content=b"no such file")
        else:
            self.answer_entity(entity, ranges=owner.ranges)
