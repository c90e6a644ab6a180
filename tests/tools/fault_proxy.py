"""A proxy in front of an HTTP server that breaks chosen answers, for tests of what a client does then.

    with FaultProxy("127.0.0.1", server.port) as proxy:
        proxy.add("status", count=2, status=503, retry_after=1)   # the next two GETs of bytes
        proxy.add("cut")                                          # then one body ends half-way
        proxy.endpoint                                            # give this to the client
        proxy.requests()                                          # what came, in order

Requests are passed on with all their headers as they came, `Host` too: an S3 signature covers it, and the server
checks the signature against the header it gets, so the client must only ever be given the proxy's own address. One
connection a request to the server behind, no caching, no rewriting of whole answers.

Faults are used up one by one, by requests that match them: by default by GETs with a `Range` header, which is how
objects are read; `match=` takes a substring of the request's target instead, `method=` another method.

| kind | what the client sees |
| --- | --- |
| `status` | `status` with an S3 error body, and `Retry-After` if `retry_after` is given |
| `cut` | the whole head, half of the body, then an orderly close |
| `reset` | half of the body, then a connection reset; with `before=True` no answer at all |
| `stall` | half of the body, then nothing for `seconds`; with `before=True` not even a head |
| `drip` | the body a byte at a time, `seconds` apart |
| `etag` | the right bytes under another entity tag |
| `range` | the right bytes with a `Content-Range` of others |

The same from other processes by HTTP: `POST /__faults__` with a JSON object of `add`'s arguments (`kind` included),
`GET /__requests__`, `POST /__reset__`. `python fault_proxy.py HOST PORT` runs it until its standard input ends, and
prints its address. Only the standard library.
"""

from __future__ import annotations

import http.client
import json
import socket
import socketserver
import struct
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

__all__ = ["Fault", "FaultProxy"]

KINDS = ("status", "cut", "reset", "stall", "drip", "etag", "range")

# Headers of one hop, which a proxy must not pass on.
HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}


@dataclass
class Fault:
    """A fault that waits for requests."""

    kind: str
    count: int = 1
    status: int = 503
    retry_after: int | None = None
    seconds: float = 60.0
    before: bool = False
    match: str | None = None
    method: str = "GET"
    skip: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")

    def fits(self, method: str, target: str, ranged: bool) -> bool:
        """Whether it is meant for such a request."""
        if method != self.method:
            return False
        return ranged if self.match is None else self.match in target


@dataclass
class _State:
    faults: list[Fault] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopping: threading.Event = field(default_factory=threading.Event)

    def take(self, method: str, target: str, ranged: bool) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.count > 0 and fault.fits(method, target, ranged):
                    if fault.skip > 0:
                        fault.skip -= 1
                        continue
                    fault.count -= 1
                    return fault
        return None


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, backend: tuple[str, int], state: _State) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.backend = backend
        self.state = state

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of what is tested."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/__"):
            self._control(body)
            return
        state = self.server.state
        wanted = self.headers.get("Range")
        fault = state.take(self.command, self.path, wanted is not None)
        note: dict[str, Any] = {
            "method": self.command,
            "target": self.path,
            "range": wanted,
            "if_match": self.headers.get("If-Match"),
            "fault": fault.kind if fault else None,
            "time": time.monotonic(),
        }
        with state.lock:
            state.requests.append(note)
        if fault is not None and fault.kind == "status":
            self._refuse(fault)
            return
        if fault is not None and fault.before and fault.kind in ("stall", "reset"):
            if fault.kind == "stall":
                state.stopping.wait(fault.seconds)
            self._drop(reset=fault.kind == "reset")
            return
        try:
            status, reason, headers, content = self._forward(body)
        except OSError as error:
            self._answer(502, "Bad Gateway", [], str(error).encode(), None)
            return
        note["status"] = status
        self._answer(status, reason, headers, content, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def _forward(self, body: bytes) -> tuple[int, str, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self.server.backend, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.reason, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _refuse(self, fault: Fault) -> None:
        code = {503: "SlowDown", 500: "InternalError", 403: "AccessDenied", 404: "NoSuchKey"}.get(fault.status, "Fault")
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>a scripted fault</Message></Error>"
        headers = [("Content-Type", "application/xml")]
        if fault.retry_after is not None:
            headers.append(("Retry-After", str(fault.retry_after)))
        self._answer(fault.status, code, headers, text.encode(), None)

    def _answer(
        self, status: int, reason: str, headers: list[tuple[str, str]], content: bytes, fault: Fault | None
    ) -> None:
        kind = fault.kind if fault else None
        length = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
        self.send_response_only(status, reason)
        for name, value in headers:
            lower = name.lower()
            if lower in HOP or lower == "content-length":
                continue
            if kind == "etag" and lower == "etag":
                value = '"another"'
            if kind == "range" and lower == "content-range":
                value = "bytes 1-2/3"
            self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault is None or kind in ("etag", "range"):
            self.wfile.write(content)
            return
        if kind == "drip":
            for at in range(len(content)):
                self.wfile.write(content[at : at + 1])
                self.wfile.flush()
                if self.server.state.stopping.wait(fault.seconds):
                    break
            return
        self.wfile.write(content[: len(content) // 2])
        self.wfile.flush()
        if kind == "stall":
            self.server.state.stopping.wait(fault.seconds)
        self._drop(reset=kind == "reset")

    def _drop(self, *, reset: bool) -> None:
        self.close_connection = True
        if reset:
            # Lingering for no time makes the close a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _control(self, body: bytes) -> None:
        state = self.server.state
        content = b"{}"
        status = 200
        if self.path == "/__faults__":
            try:
                fault = Fault(**json.loads(body))
                with state.lock:
                    state.faults.append(fault)
            except (TypeError, ValueError) as error:
                status, content = 400, json.dumps({"error": str(error)}).encode()
        elif self.path == "/__requests__":
            with state.lock:
                content = json.dumps(state.requests).encode()
        elif self.path == "/__reset__":
            with state.lock:
                state.faults.clear()
                state.requests.clear()
        else:
            status = 404
        self._answer(status, "control", [("Content-Type", "application/json")], content, None)


class FaultProxy:
    """A running proxy; a context manager.

    Args:
        host: The server's address.
        port: The server's port.
        faults: Faults to begin with.
    """

    def __init__(self, host: str, port: int, faults: list[Fault] | None = None) -> None:
        self._state = _State(faults=list(faults or []))
        self._server = _Server((host, port), self._state)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_address[1]

    @property
    def endpoint(self) -> str:
        """The URL to give to a client."""
        return f"http://127.0.0.1:{self.port}"

    def add(self, kind: str, **settings: Any) -> None:
        """Adds a fault behind those that are waiting; see :class:`Fault` for the settings."""
        fault = Fault(kind, **settings)
        with self._state.lock:
            self._state.faults.append(fault)

    def pending(self) -> int:
        """How many times faults are still going to strike."""
        with self._state.lock:
            return sum(fault.count for fault in self._state.faults)

    def requests(self) -> list[dict[str, Any]]:
        """What came so far, in order."""
        with self._state.lock:
            return list(self._state.requests)

    def clear(self) -> None:
        """Forgets faults and requests."""
        with self._state.lock:
            self._state.faults.clear()
            self._state.requests.clear()

    def start(self) -> None:
        """Begins to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it, and all that stalls."""
        self._state.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> FaultProxy:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: fault_proxy.py HOST PORT")
    with FaultProxy(sys.argv[1], int(sys.argv[2])) as running:
        print(running.endpoint, flush=True)
        sys.stdin.read()
