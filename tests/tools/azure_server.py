"""A real Azure Blob Storage server for tests: Azurite, on a free port of the loopback interface.

    with AzureServer() as server:
        server.make_bucket("data")        # a container
        server.storage_options()          # for headrace
        server.environment()              # AZURE_* variables for a child process

It checks signatures and honours conditions. Its program is installed by `programs.py`.
"""

from __future__ import annotations

import base64
import datetime
import email.utils
import hashlib
import hmac
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from tools.programs import AZURITE
from tools.serving import HOST, Answer, ProgramServer, call, quoted

__all__ = ["AzureServer", "sign", "signed_query"]

API = "2021-12-02"  # The version of the protocol that is spoken here.

# Headers that a signature names by place and not by name.
PLACES = ("content-encoding", "content-language", "content-length", "content-md5", "content-type", "date")
PLACES += ("if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range")


def sign(method: str, url: str, headers: Mapping[str, str], account: str, key: str) -> str:
    """The `Authorization` of a request under a shared key, as the protocol's description says.

    Args:
        method: The HTTP method.
        url: The URL, as it is sent.
        headers: All headers that count, in lower case.
        account: The account's name.
        key: Its key, in base 64.
    """
    parts = urllib.parse.urlsplit(url)
    # A length of nothing is signed as no length.
    lines = [method, *("" if headers.get(name) == "0" else headers.get(name, "") for name in PLACES)]
    lines += [f"{name}:{headers[name]}" for name in sorted(headers) if name.startswith("x-ms-")]
    lines.append(f"/{account}{parts.path}")
    lines += [f"{name}:{value}" for name, value in sorted(urllib.parse.parse_qsl(parts.query))]
    digest = hmac.new(base64.b64decode(key), "\n".join(lines).encode(), hashlib.sha256).digest()
    return f"SharedKey {account}:{base64.b64encode(digest).decode()}"


def signed_query(account: str, key: str, container: str, *, seconds: float = 3600, permissions: str = "rl") -> str:
    """A shared access signature for a container: a query that stands for the key, for a while.

    Args:
        account: The account's name.
        key: Its key, in base 64.
        container: What it opens.
        seconds: How long it holds.
        permissions: What it allows: `r` to read, `l` to list, and others of the protocol.
    """
    expiry = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    fields = {"sp": permissions, "se": expiry.strftime("%Y-%m-%dT%H:%M:%SZ"), "sv": API, "sr": "c"}
    resource = f"/blob/{account}/{container}"
    # Start, identifier, address, protocol, snapshot, scope and five headers of the answer are left empty.
    lines = [permissions, "", fields["se"], resource, "", "", "", API, "c", "", "", "", "", "", "", ""]
    digest = hmac.new(base64.b64decode(key), "\n".join(lines).encode(), hashlib.sha256).digest()
    return urllib.parse.urlencode({**fields, "sig": base64.b64encode(digest).decode()})


class AzureServer(ProgramServer):
    """A running server; a context manager.

    Args:
        account: The account's name.
        secret: The account's key before it is written in base 64; signatures are checked against it.
    """

    def __init__(self, account: str = "headraceaccount", secret: str = "headrace-secret-0123456789") -> None:
        super().__init__()
        self.account = account
        self.key = base64.b64encode(secret.encode()).decode()

    def url(self, bucket: str, path: str = "", endpoint: str | None = None) -> str:
        return f"az://{bucket}/{path}"

    def storage_options(self, endpoint: str | None = None) -> dict[str, str]:
        return {
            "endpoint": f"{endpoint or self.endpoint}/{self.account}",
            "account_name": self.account,
            "account_key": self.key,
        }

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ENDPOINT": f"{endpoint or self.endpoint}/{self.account}",
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
        }

    def command(self, folder: Path) -> list[str]:
        command = [str(AZURITE.ensure()), "--blobHost", HOST, "--blobPort", str(self.port), "--location", str(folder)]
        # Clients are newer than it and name versions of the protocol that it does not know.
        return [*command, "--silent", "--skipApiVersionCheck", "--disableProductStyleUrl", "--disableTelemetry"]

    def variables(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}

    def ready(self) -> bool:
        return self.request("GET", "", "comp=list").status == 200

    def request(
        self, method: str, path: str, query: str = "", body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """A signed request; `path` is raw text below the account."""
        url = f"{self.endpoint}/{self.account}/{quoted(path)}" + (f"?{query}" if query else "")
        sent = {"x-ms-version": API, "x-ms-date": email.utils.formatdate(usegmt=True)}
        sent |= {"content-length": str(len(body))} if method == "PUT" else {}
        sent |= {name.lower(): value for name, value in (headers or {}).items()}
        return call(method, url, body, {**sent, "authorization": sign(method, url, sent, self.account, self.key)})

    def make_bucket(self, bucket: str) -> None:
        self._must("PUT", bucket, "restype=container")

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self._must("PUT", f"{bucket}/{key}", body=body, headers={"x-ms-blob-type": "BlockBlob"})

    def delete(self, bucket: str, key: str) -> None:
        self._must("DELETE", f"{bucket}/{key}")

    def _must(
        self, method: str, path: str, query: str = "", body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        answer = self.request(method, path, query, body, headers)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body[:500].decode(errors='replace')}")
