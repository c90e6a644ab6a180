"""A Google Cloud Storage server for tests: fake-gcs-server, behind `gcs_writes.py`, on a free port of the loopback
interface.

    with GcsServer() as server:
        server.make_bucket("data")
        server.storage_options()          # for headrace
        server.environment()              # variables for a child process

It takes any credentials and ignores some conditions; `fault_proxy.py` before it refuses or changes what a test needs
refused or changed. Its program is installed by `programs.py`.
"""

from __future__ import annotations

import json
import urllib.parse
from pathlib import Path

from tools.gcs_writes import WritesService
from tools.programs import FAKE_GCS
from tools.serving import HOST, Answer, ProgramServer, call

__all__ = ["GcsServer"]


class GcsServer(ProgramServer):
    """A running server; a context manager."""

    _writes: WritesService | None = None

    def start(self) -> None:
        super().start()
        self._writes = WritesService(self.port)
        self._writes.start()
        self.port = self._writes.port

    def stop(self) -> None:
        if self._writes is not None:
            self._writes.stop()
            self._writes = None
        super().stop()

    def url(self, bucket: str, path: str = "", endpoint: str | None = None) -> str:
        return f"gs://{bucket}/{path}"

    def storage_options(self, endpoint: str | None = None) -> dict[str, str]:
        return {"endpoint_url": endpoint or self.endpoint, "anon": "true"}

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": endpoint or self.endpoint}

    def command(self, folder: Path) -> list[str]:
        command = [str(FAKE_GCS.ensure()), "-scheme", "http", "-host", HOST, "-port", str(self.port)]
        # The public host is what a client calls it by; without a port it is that of a proxy too.
        command += ["-public-host", HOST, "-external-url", self.endpoint, "-log-level", "warn"]
        return [*command, "-backend", "memory", "-data", str(folder / "none")]

    def ready(self) -> bool:
        return call("GET", f"{self.endpoint}/storage/v1/b?project=test").status == 200

    def make_bucket(self, bucket: str) -> None:
        self._must("POST", "/storage/v1/b?project=test", json.dumps({"name": bucket}).encode())

    def put(self, bucket: str, key: str, body: bytes) -> None:
        name = urllib.parse.quote(key, safe="")
        self._must("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", body)

    def delete(self, bucket: str, key: str) -> None:
        self._must("DELETE", f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(key, safe='')}")

    def _must(self, method: str, target: str, body: bytes = b"") -> Answer:
        answer = call(method, self.endpoint + target, body, {"Content-Type": "application/octet-stream"})
        if answer.status >= 300:
            raise RuntimeError(f"{method} {target}: {answer.status} {answer.body[:500].decode(errors='replace')}")
        return answer
