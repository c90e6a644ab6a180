"""A real S3 server for tests: versitygw over a temporary folder, on a free port of the loopback interface.

    with S3Server() as server:
        server.make_bucket("data")
        server.storage_options()          # for headrace
        server.environment()              # AWS_* variables for a child process

`python s3_server.py --serve` runs a server until its standard input ends, and prints its settings as one line of JSON;
`--serve COMMAND...` runs a command that has them in its environment; `--run COMMAND...` runs one beside a server and a
fault proxy. Its program is installed by `programs.py`.

Needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

if __name__ == "__main__":
    # As a script it finds its neighbours as tests do.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from tools.fault_proxy import FaultProxy
from tools.programs import VERSITYGW, bin_folder
from tools.serving import HOST, ProgramServer, call, quoted

__all__ = ["VERSION", "S3Server", "bin_folder", "ensure_program", "sign"]

VERSION = VERSITYGW.version
REGION = "us-east-1"


def ensure_program() -> Path:
    """The server's program, installed if it is not there."""
    return VERSITYGW.ensure()


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


class S3Server(ProgramServer):
    """A running server; a context manager.

    Args:
        key: The access key's id.
        secret: The secret key; signatures are checked against it.
    """

    def __init__(self, key: str = "headrace-key", secret: str = "headrace-secret-0123456789") -> None:
        super().__init__()
        self.key = key
        self.secret = secret

    def url(self, bucket: str, path: str = "", endpoint: str | None = None) -> str:
        return f"s3://{bucket}/{path}"

    def storage_options(self, endpoint: str | None = None) -> dict[str, str]:
        return {
            "endpoint_url": endpoint or self.endpoint,
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "region": REGION,
        }

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }

    def command(self, folder: Path) -> list[str]:
        for name in ("data", "sidecar", "keys"):
            (folder / name).mkdir()
        command = [str(ensure_program()), "--port", f"{HOST}:{self.port}", "--access", self.key]
        command += ["--secret", self.secret, "--region", REGION, "--quiet", "--iam-dir", str(folder / "keys")]
        # Attributes (entity tags) go into a folder of their own: not every file system has extended attributes.
        return [*command, "posix", "--sidecar", str(folder / "sidecar"), str(folder / "data")]

    def ready(self) -> bool:
        return self.request("GET", "/")[0] == 200

    def request(self, method: str, path: str, body: bytes = b"", query: str = "") -> tuple[int, bytes]:
        """A signed request; `path` is raw text and is percent-encoded here.

        Returns:
            Status and body.
        """
        path = quoted(path)
        headers = sign(method, f"{HOST}:{self.port}", path, query, body, self.key, self.secret)
        answer = call(method, f"{self.endpoint}{path}" + (f"?{query}" if query else ""), body, headers)
        return answer.status, answer.body

    def add_key(self, key: str, secret: str) -> None:
        """Takes other credentials too, as after a renewal."""
        account = f"<Account><Access>{key}</Access><Secret>{secret}</Secret><Role>admin</Role></Account>"
        self._must("PATCH", "/create-user", account.encode())

    def make_bucket(self, bucket: str) -> None:
        self._must("PUT", f"/{bucket}")

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self._must("PUT", f"/{bucket}/{key}", body)

    def put_many(self, bucket: str, keys: Collection[str]) -> None:
        """Puts empty objects there as files, past the protocol: a hundred thousand take seconds."""
        root = self.folder / "data" / bucket
        for folder in {root / key.rpartition("/")[0] for key in keys}:
            folder.mkdir(parents=True, exist_ok=True)
        for key in keys:
            (root / key).touch()

    def delete(self, bucket: str, key: str) -> None:
        self._must("DELETE", f"/{bucket}/{key}")

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
    with serve() as server, FaultProxy(HOST, server.port) as proxy:
        for key in ("dir/", "x.parquet/"):
            server.put("data", f"markers/{key}", b"")
        for key in ("dir/a.parquet", "x.parquet/part-0.parquet"):
            server.put("data", f"markers/{key}", b"x")
        for number in range(2100):
            server.put("data", f"pages/{number:04}", b"x")
        found = {"HEADRACE_TEST_S3": server.endpoint, "HEADRACE_TEST_S3_PROXY": proxy.endpoint}
        return subprocess.run(command, env={**os.environ, **found}, check=False).returncode


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        with serve() as running:
            print(json.dumps({**running.environment(), "bucket": "data"}), flush=True)
            sys.stdin.read()
    elif sys.argv[1:2] == ["--serve"]:
        with serve() as running:
            settings = {**os.environ, **running.environment()}
            sys.exit(subprocess.run(sys.argv[2:], env=settings, check=False).returncode)
    elif sys.argv[1:2] == ["--run"] and len(sys.argv) > 2:
        sys.exit(run(sys.argv[2:]))
    else:
        sys.exit("usage: s3_server.py --serve [COMMAND...] | --run COMMAND...")
