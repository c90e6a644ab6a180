"""A real S3 server for tests: versitygw over a temporary folder, on a free port of the loopback interface.

    with S3Server() as server:
        server.make_bucket("data")
        server.storage_options()          # for headrace
        server.environment()              # AWS_* variables for a child process

The server's program is built once with `go install` into `$XDG_CACHE_HOME/headrace-tests/bin` (or below `~/.cache`);
`ensure_program()` is what does that, so that a set-up step can do it before the tests run. `python s3_server.py
--serve` runs a server until its standard input ends, and prints its settings as one line of JSON; `--run COMMAND...`
runs a command beside a server and a fault proxy.

Needs nothing but the standard library, and `go` if the program is not there yet.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import hmac
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

__all__ = ["S3Server", "ensure_program", "sign"]

MODULE = "github.com/versity/versitygw/cmd/versitygw"
VERSION = "v1.8.0"
REGION = "us-east-1"

# Seconds: a build of the server takes four minutes on two cores, its start less than one second.
BUILD_TIMEOUT = 900
START_TIMEOUT = 30


def bin_folder() -> Path:
    """Where the server's program is kept: outside of the clone, shared by all clones."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "headrace-tests" / "bin"


def ensure_program() -> Path:
    """The server's program, built if it is not there.

    Returns:
        Its path.

    Raises:
        RuntimeError: `go` is missing or the build failed; says what to do.
    """
    program = bin_folder() / f"versitygw-{VERSION}"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        raise RuntimeError(
            f"the S3 server for tests is not at {program}, and there is no `go` to build it\n"
            f"hint: install Go, or put the program of {MODULE}@{VERSION} there"
        )
    program.parent.mkdir(parents=True, exist_ok=True)
    # Two test runs may want it at once: one builds, the other waits for it.
    with (program.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists():
            return program
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            done = subprocess.run(
                [go, "install", f"{MODULE}@{VERSION}"],
                env={**os.environ, "GOBIN": folder, "GOFLAGS": "-buildvcs=false"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=BUILD_TIMEOUT,
            )
            if done.returncode != 0:
                raise RuntimeError(f"go install {MODULE}@{VERSION} failed:\n{done.stderr[-2000:]}")
            (Path(folder) / "versitygw").replace(program)
    return program


def free_port() -> int:
    """A port of the loopback interface that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def sign(
    method: str, host: str, path: str, query: str, body: bytes, key: str, secret: str, region: str = REGION
) -> dict[str, str]:
    """The headers of a request under AWS Signature Version 4, as its specification says.

    Args:
        method: The HTTP method.
        host: The `Host` header.
        path: The path, percent-encoded, as it is sent.
        query: The query, sorted and encoded, as it is sent.
        body: The body.
        key: The access key's id.
        secret: The secret key.
        region: The region.
    """
    now = datetime.datetime.now(datetime.UTC)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": stamp}
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join([method, path, query, lines, names, digest])
    scope = f"{day}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    chain = b"AWS4" + secret.encode()
    for part in (day, region, "s3", "aws4_request"):
        chain = hmac.new(chain, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(chain, text.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


class S3Server:
    """A running server; a context manager.

    Args:
        key: The access key's id.
        secret: The secret key; signatures are checked against it.
    """

    def __init__(self, key: str = "headrace-key", secret: str = "headrace-secret-0123456789") -> None:
        self.key = key
        self.secret = secret
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def storage_options(self, endpoint: str | None = None) -> dict[str, str]:
        """What to pass as `storage_options`; `endpoint` may be that of a proxy."""
        return {
            "endpoint_url": endpoint or self.endpoint,
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "region": REGION,
        }

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """The same as variables."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        """Starts the server and returns when it answers."""
        program = ensure_program()
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-s3-")
        root = Path(self._folder.name)
        for name in ("data", "sidecar", "iam"):
            (root / name).mkdir()
        self.port = free_port()
        command = [str(program), "--port", f"127.0.0.1:{self.port}", "--access", self.key, "--secret", self.secret]
        # Attributes (entity tags) go into a folder of their own: not every file system has extended attributes.
        command += ["--region", REGION, "--quiet", "posix", "--sidecar", str(root / "sidecar"), str(root / "data")]
        self._log = (root / "log").open("wb")
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, cwd=root
        )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        assert self._process is not None
        assert self._folder is not None
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            with contextlib.suppress(OSError):
                if self.request("GET", "/")[0] == 200:
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (Path(self._folder.name) / "log").read_text(errors="replace")
                raise RuntimeError(
                    f"the S3 server did not start (exit code {self._process.returncode}):\n{log[-2000:]}"
                )
            time.sleep(0.05)

    def stop(self) -> None:
        """Stops the server and removes its data."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            self._log.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> S3Server:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def request(self, method: str, path: str, body: bytes = b"", query: str = "") -> tuple[int, bytes]:
        """A signed request; `path` is raw text and is percent-encoded here.

        Returns:
            Status and body.
        """
        host = f"127.0.0.1:{self.port}"
        encoded = urllib.parse.quote(path, safe="/-_.~")
        headers = sign(method, host, encoded, query, body, self.key, self.secret)
        connection = http.client.HTTPConnection(host, timeout=30)
        try:
            connection.request(method, encoded + (f"?{query}" if query else ""), body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def make_bucket(self, bucket: str) -> None:
        """Makes an empty bucket."""
        self._must("PUT", f"/{bucket}")

    def put(self, bucket: str, key: str, body: bytes) -> None:
        """Writes an object; the key is raw text."""
        self._must("PUT", f"/{bucket}/{key}", body)

    def delete(self, bucket: str, key: str) -> None:
        """Removes an object."""
        self._must("DELETE", f"/{bucket}/{key}")

    def put_folder(self, bucket: str, folder: str | os.PathLike[str], prefix: str = "") -> None:
        """Writes all files below a folder."""
        root = Path(folder)
        for path in sorted(root.rglob("*")):
            if path.is_file():
                self.put(bucket, prefix + path.relative_to(root).as_posix(), path.read_bytes())

    def _must(self, method: str, path: str, body: bytes = b"") -> None:
        status, answer = self.request(method, path, body)
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {answer[:500].decode(errors='replace')}")


@contextlib.contextmanager
def serve() -> Iterator[S3Server]:
    """A server with a bucket `data`."""
    with S3Server() as server:
        server.make_bucket("data")
        yield server


def run(command: list[str]) -> int:
    """Runs a command beside a server and a fault proxy, which it finds by two variables.

    The bucket `data` holds what a client of the library cannot write: markers of folders, and more objects than two
    pages of a listing show.
    """
    sys.path.insert(0, str(Path(__file__).parent))
    from fault_proxy import FaultProxy

    with serve() as server, FaultProxy("127.0.0.1", server.port) as proxy:
        for key in ("dir/", "x.parquet/"):
            server.put("data", f"markers/{key}", b"")
        for key in ("dir/a.parquet", "x.parquet/part-0.parquet"):
            server.put("data", f"markers/{key}", b"x")
        for number in range(2100):
            server.put("data", f"pages/{number:04}", b"x")
        found = {"HEADRACE_TEST_S3": server.endpoint, "HEADRACE_TEST_S3_PROXY": proxy.endpoint}
        return subprocess.run(command, env={**os.environ, **found}, check=False).returncode


if __name__ == "__main__":
    if sys.argv[1:] == ["--install"]:
        print(ensure_program())
    elif sys.argv[1:] == ["--serve"]:
        with serve() as running:
            print(json.dumps({**running.environment(), "bucket": "data"}), flush=True)
            sys.stdin.read()
    elif sys.argv[1:2] == ["--run"] and len(sys.argv) > 2:
        sys.exit(run(sys.argv[2:]))
    else:
        sys.exit("usage: s3_server.py --install | --serve | --run COMMAND...")
