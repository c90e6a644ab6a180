"""A proxy in front of an HTTP server that breaks and slows down answers, for tests of what a client does then.

    with FaultProxy("127.0.0.1", server.port) as proxy:
        proxy.add("status", count=2, status=503, retry_after=1)   # the next two GETs of bytes
        proxy.add("cut")                                          # then one body ends half-way
        proxy.weather = Weather(seed=7)                           # and then a fifth of all requests break
        proxy.link = Link(latency=0.1, bandwidth=50e6)            # through a link of 50 MB/s
        proxy.endpoint                                            # give this to the client
        proxy.requests()                                          # what came, in order
        proxy.counts()                                            # and what it amounts to

Requests are passed on with all their headers as they came, `Host` too: an S3 signature covers it, and the server
checks the signature against the header it gets, so the client must only ever be given the proxy's own address. One
connection a request to the server behind, no caching, no rewriting of whole answers.

What faults there are is told in `faults.py`. They are used up one by one, by requests that match them: by default by
GETs with a `Range` header, which is how objects are read; `match=` takes a substring of the request's target instead,
`method=` another method. What no fault is waiting for is left to the weather.

The same from other processes by HTTP: `POST /__faults__` with a JSON object of `add`'s arguments (`kind` included),
`GET /__requests__`, `POST /__reset__`. `python fault_proxy.py HOST PORT` runs it until its standard input ends, and
prints its address. Only the standard library.
"""

from __future__ import annotations

import email.utils
import http.client
import json
import re
import socket
import struct
import sys
import threading
import time
from email.message import Message
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # As a script it finds its neighbours as tests do.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from tools.faults import Fault, Weather, credentials
from tools.link import Counts, Link, depth
from tools.serving import HOST, Handler, HttpService

__all__ = ["Fault", "FaultProxy", "Link", "Weather"]

# Headers of one hop, which a proxy must not pass on.
HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}

BLOCK = 1 << 16  # Bytes that take their turn on the link at once: 1.3 ms at 50 MB/s.

REPLACED = '"replaced"'  # The tag of an object that was replaced.

CODES = {503: "SlowDown", 500: "InternalError", 403: "AccessDenied", 404: "NoSuchKey", 429: "TooManyRequests"}


class FaultProxy:
    """A running proxy; a context manager.

    Args:
        host: The server's address.
        port: The server's port.
        faults: Faults to begin with.
        connections: The most connections at a time; others are reset.
    """

    def __init__(
        self, host: str, port: int, faults: list[Fault] | None = None, *, connections: int | None = None
    ) -> None:
        self.weather: Weather | None = None
        """What else strikes."""
        self.link = Link()
        """How slow it is."""
        self.connections = connections
        self._faults = list(faults or [])
        self._requests: list[dict[str, Any]] = []
        self._expired: dict[str, Fault] = {}
        self._replaced: dict[str, float] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._server = _Service(self, (host, port))

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    @property
    def endpoint(self) -> str:
        """The URL to give to a client."""
        return f"http://{HOST}:{self.port}"

    def add(self, kind: str, **settings: Any) -> None:
        """Adds a fault behind those that are waiting; see :class:`Fault` for the settings."""
        fault = Fault(kind, **settings)
        with self._lock:
            self._faults.append(fault)

    def pending(self) -> int:
        """How many times faults are still going to strike, the weather's left out."""
        with self._lock:
            return sum(fault.count for fault in self._faults)

    def requests(self) -> list[dict[str, Any]]:
        """What came so far, in order."""
        with self._lock:
            return [dict(note) for note in self._requests]

    def counts(self) -> Counts:
        """What came so far, in numbers; requests that are not answered yet do not count as a round trip."""
        requests = self.requests()
        return Counts(
            len(requests),
            sum(note["bytes"] for note in requests),
            depth((note["time"], note["end"]) for note in requests if note["end"] is not None),
            sum(note["fault"] is not None for note in requests),
            self._server.connected,
            self._server.most_connections,
        )

    def clear(self) -> None:
        """Forgets faults, weather and requests, and that anything expired or was replaced; the link stays as it is."""
        with self._lock:
            self.weather = None
            self._faults.clear()
            self._requests.clear()
            self._expired.clear()
            self._replaced.clear()
            self._server.forget()

    def move(self, host: str, port: int) -> None:
        """Stands before another server from now on."""
        self._server.backend = (host, port)

    def start(self) -> None:
        """Begins to serve."""
        self._server.start()

    def stop(self) -> None:
        """Ends it, and all that stalls."""
        self._stopping.set()
        self._server.stop()

    def __enter__(self) -> FaultProxy:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    # What its handlers ask.

    def note(self, note: dict[str, Any], headers: Message) -> Fault | None:
        """Writes down a request, and says what is to happen to it."""
        method, target, wanted = note["method"], note["target"], note["range"]
        who = credentials(headers, target)
        with self._lock:
            self._requests.append(note)
            fault = self._expired.get(who or "")
            fault = fault or self._take(method, target, wanted is not None)
            if fault is None and self.weather is not None:
                fault = self.weather.strike(method, target, wanted)
            if fault is not None and fault.kind == "expire" and who is not None:
                self._expired[who] = fault
            if fault is not None and fault.kind == "replace":
                self._replaced[_path(target)] = time.time()
            note["fault"] = fault.kind if fault else None
        return fault

    def _take(self, method: str, target: str, ranged: bool) -> Fault | None:
        for fault in self._faults:
            if fault.count > 0 and fault.fits(method, target, ranged):
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.count -= 1
                return fault
        return None

    def refuses(self, connected: int) -> bool:
        """Whether a connection is to be reset, that would be one of so many."""
        if self.connections is not None and connected > self.connections:
            return True
        with self._lock:
            for fault in self._faults:
                if fault.kind == "connect" and fault.count > 0:
                    fault.count -= 1
                    return True
        return False

    def replaced(self, target: str) -> float | None:
        """When the object was replaced, in seconds since 1970, if it was."""
        with self._lock:
            return self._replaced.get(_path(target))

    def wait(self, seconds: float) -> bool:
        """Waits, but not beyond the proxy's end; whether that came."""
        return self._stopping.wait(seconds) if seconds > 0 else self._stopping.is_set()


class _Service(HttpService):
    """Counts connections, and resets those that are to be reset."""

    def __init__(self, owner: FaultProxy, backend: tuple[str, int]) -> None:
        super().__init__(_Handler, owner)
        self.backend = backend
        self._counting = threading.Lock()
        self._now = self.connected = self.most_connections = 0

    def forget(self) -> None:
        """Counts connections from none on; those that are open stay open."""
        with self._counting:
            self.connected = self.most_connections = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._counting:
            self._now += 1
            now = self._now
        if self.owner.refuses(now):
            _reset_when_closed(request)
            self.close_request(request)
            with self._counting:
                self._now -= 1
            return
        with self._counting:
            self.connected += 1
            self.most_connections = max(self.most_connections, now)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        try:
            super().finish_request(request, client_address)
        finally:
            with self._counting:
                self._now -= 1


class _Handler(Handler):
    server: _Service

    def handle_any(self) -> None:
        body = self.body()
        if self.path.startswith("/__"):
            self._control(body)
            return
        self._note: dict[str, Any] = {
            "method": self.command,
            "target": self.path,
            "range": self.headers.get("Range"),
            "if_match": self.headers.get("If-Match"),
            "fault": None,
            "time": time.monotonic(),
            "end": None,
            "bytes": 0,
        }
        try:
            self._serve(body)
        finally:
            self._ended()

    @property
    def _proxy(self) -> FaultProxy:
        return self.server.owner

    def _ended(self) -> None:
        """Notes when the client has it all. Said before the last byte is sent: the next request may come at once."""
        if self._note["end"] is None:
            self._note["end"] = time.monotonic()

    def _serve(self, body: bytes) -> None:
        proxy = self._proxy
        fault = proxy.note(self._note, self.headers)
        proxy.wait(proxy.link.latency)
        if fault is not None and fault.kind in ("status", "expire"):
            self._refuse(fault)
            return
        if fault is not None and fault.before and fault.kind in ("stall", "reset"):
            if fault.kind == "stall":
                proxy.wait(fault.seconds)
            self._drop(reset=fault.kind == "reset")
            return
        connection = http.client.HTTPConnection(*self.server.backend, timeout=60)
        try:
            self._relay(self._forward(connection, body), fault)
        except (ConnectionRefusedError, http.client.HTTPException) as error:
            self._send(502, [], str(error).encode())
        finally:
            connection.close()

    def _forward(self, connection: http.client.HTTPConnection, body: bytes) -> http.client.HTTPResponse:
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in HOP:
                connection.putheader(name, value)
        connection.endheaders(body or None)
        return connection.getresponse()

    def _relay(self, answer: http.client.HTTPResponse, fault: Fault | None) -> None:
        """Passes an answer on, changed as the fault says."""
        status, kind = answer.status, fault.kind if fault else None
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
        declared = answer.headers.get("Content-Length")
        # Of an answer in pieces the length is known when all are there.
        content = answer.read() if declared is None and self.command != "HEAD" else None
        length = len(content or b"") if declared is None else int(declared)
        headers.pop(next((name for name in headers if name.lower() == "content-length"), ""), None)
        replaced = self._proxy.replaced(self.path)
        if replaced is not None and status in (200, 206):
            status, length = self._replace(status, headers, length, replaced)
        for name in headers:
            if kind == "etag" and name.lower() == "etag":
                headers[name] = '"another"'
            if kind == "range" and name.lower() == "content-range":
                headers[name] = "bytes 1-2/3"
        if kind == "short" and self.command != "HEAD":
            length //= 2
        self._note["status"] = status
        bare = self.command == "HEAD" or status in (204, 304) or length == 0
        if bare:
            self._ended()
        self.send_response_only(status, answer.reason if status == answer.status else None)
        self._send_headers([*headers.items(), ("Content-Length", str(length))])
        if bare:
            return
        broken = kind in ("cut", "reset", "stall")
        self._pour(
            answer, content, length // 2 if broken else length, fault if kind == "drip" else None, last=not broken
        )
        if fault is not None and broken:
            if kind == "stall":
                self._proxy.wait(fault.seconds)
            self._drop(reset=kind == "reset")

    def _replace(self, status: int, headers: dict[str, str], length: int, when: float) -> tuple[int, int]:
        """The answer for an object of which only the first half is left: status and length; changes the headers."""
        names = {name.lower(): name for name in headers}
        headers[names.get("etag", "ETag")] = REPLACED
        headers[names.get("last-modified", "Last-Modified")] = email.utils.formatdate(when, usegmt=True)
        if self.headers.get("If-Match") not in (None, REPLACED):
            return 412, 0
        if status == 200:
            return 200, length // 2
        name = names["content-range"]
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers[name])
        assert found is not None, headers[name]
        first, last, size = map(int, found.groups())
        if first >= size // 2:
            headers[name] = f"bytes */{size // 2}"
            return 416, 0
        last = min(last, size // 2 - 1)
        headers[name] = f"bytes {first}-{last}/{size // 2}"
        return 206, last + 1 - first

    def _pour(
        self, answer: http.client.HTTPResponse, content: bytes | None, length: int, drip: Fault | None, *, last: bool
    ) -> None:
        """Sends so many bytes of the body, as fast as the link lets them through."""
        proxy, sent = self._proxy, 0
        while sent < length:
            most = 1 if drip else min(BLOCK, length - sent)
            block = answer.read(most) if content is None else content[sent : sent + most]
            if not block:
                return
            sent += len(block)
            if proxy.wait(drip.seconds if drip else proxy.link.delay(len(block))):
                return
            self._note["bytes"] += len(block)
            if last and sent == length:
                self._ended()
            self.wfile.write(block)

    def _refuse(self, fault: Fault) -> None:
        usual = "ExpiredToken" if fault.kind == "expire" else CODES.get(fault.status, "Fault")
        code = fault.code or usual
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>a scripted fault</Message></Error>"
        headers = [("Content-Type", "application/xml")]
        if fault.retry_after is not None:
            headers.append(("Retry-After", str(fault.retry_after)))
        self._send(fault.status, headers, text.encode())

    def _send(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self._note["status"] = status
        self._note["bytes"] = len(content) if self.command != "HEAD" else 0
        self._ended()
        self.answer(status, headers, content)

    def _drop(self, *, reset: bool) -> None:
        self.close_connection = True
        if reset:
            _reset_when_closed(self.connection)
        self.connection.close()

    def _control(self, body: bytes) -> None:
        status, content = 200, b"{}"
        if self.path == "/__faults__":
            try:
                self._proxy.add(**json.loads(body))
            except (TypeError, ValueError) as error:
                status, content = 400, json.dumps({"error": str(error)}).encode()
        elif self.path == "/__requests__":
            content = json.dumps(self._proxy.requests()).encode()
        elif self.path == "/__reset__":
            self._proxy.clear()
        else:
            status = 404
        self.answer(status, [("Content-Type", "application/json")], content)


def _path(target: str) -> str:
    return target.partition("?")[0]


def _reset_when_closed(connection: socket.socket) -> None:
    # Lingering for no time makes the close a reset.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: fault_proxy.py HOST PORT")
    with FaultProxy(sys.argv[1], int(sys.argv[2])) as running:
        print(running.endpoint, flush=True)
        sys.stdin.read()
