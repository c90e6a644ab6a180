"""Places of every kind of store for tests: servers that are started when they are wanted, a bucket for each test, and
proxies before it. The fixtures are known to all tests through `conftest`.
"""

import os
import urllib.parse
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from headrace._files import File
from tools.azure_server import AzureServer
from tools.fault_proxy import FaultProxy
from tools.gcs_server import GcsServer
from tools.http_server import FileServer
from tools.hub_server import HubServer
from tools.s3_server import S3Server
from tools.serving import StoreServer

__all__ = [
    "LISTED",
    "REMOTE",
    "SECRET",
    "Folder",
    "Place",
    "at",
    "no_settings_from_outside",
    "place",
    "remote",
    "servers",
]

REMOTE = ["s3", "gs", "az", "http", "hf"]
LISTED = ["s3", "gs", "az", "hf"]  # A web server does not say which files it has.
WRITTEN = ["local", "s3", "gs", "az", "fsspec"]
SECRET = "headrace-secret-0123456789"


class Folder(StoreServer):
    """Local folders, as if they were a server's."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def url(self, bucket: str, path: str = "", endpoint: str | None = None) -> str:
        return f"{self.root / bucket}/{path}"

    def storage_options(self, endpoint: str | None = None) -> dict[str, str]:
        return {}

    environment = storage_options

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def make_bucket(self, bucket: str) -> None:
        (self.root / bucket).mkdir()

    def put(self, bucket: str, key: str, body: bytes) -> None:
        path = self.root / bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def delete(self, bucket: str, key: str) -> None:
        (self.root / bucket / key).unlink()


class Shelf(LocalFileSystem):
    """A folder that only fsspec knows."""

    protocol = "shelf"

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return "/" + str(path).removeprefix("shelf://").strip("/")


class FsspecFolder(Folder):
    """Local folders that only fsspec knows, as if they were a server's."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        fsspec.register_implementation("shelf", Shelf, clobber=True)

    def url(self, bucket: str, path: str = "", endpoint: str | None = None) -> str:
        return f"shelf://{super().url(bucket, path)}"


@dataclass
class Place:
    """A bucket of a store, with proxies before it."""

    kind: str
    server: StoreServer
    bucket: str
    proxies: list[FaultProxy] = field(default_factory=list)
    """In front of the store, and of where the Hub keeps large files."""

    @property
    def endpoint(self) -> str | None:
        return self.proxies[0].endpoint if self.proxies else None

    @property
    def reads(self) -> FaultProxy:
        """The proxy that reads of files go through at last."""
        return self.proxies[-1]

    def put(self, key: str, body: bytes) -> None:
        self.server.put(self.bucket, key, body)

    def url(self, path: str = "") -> str:
        return self.server.url(self.bucket, path, self.endpoint)

    def urls(self, folder: str, names: list[str]) -> list[str]:
        """What to open for these files of a folder, which has no others."""
        return [self.url(f"{folder}/{name}") for name in names] if self.kind == "http" else [self.url(folder)]

    def name(self, file: File, folder: str) -> str:
        """What a file is called below a folder."""
        if self.kind == "http":
            return urllib.parse.unquote(file.path).removeprefix(f"{self.bucket}/{folder}/")
        return file.path

    def options(self, **more: str) -> dict[str, str]:
        return self.server.storage_options(self.endpoint) | more

    def patient(self, **more: str) -> dict[str, str]:
        """Settings under which what stalls is given up soon."""
        return {} if self.kind == "local" else self.options(timeout="0.5", retry_timeout="20") | more

    def hasty(self) -> dict[str, str]:
        """Settings under which everything is given up soon."""
        return self.options(timeout="0.5", retry_timeout="1.5", max_retries="3")

    def clear(self) -> None:
        for proxy in self.proxies:
            proxy.clear()

    def requests(self, method: str) -> list[str]:
        """What the proxies were asked for so far by such requests."""
        notes = [note for proxy in self.proxies for note in proxy.requests()]
        return [note["target"] for note in notes if note["method"] == method]

    def repeats(self, *methods: str) -> int:
        """How often the same was asked for at most, by such requests or by any."""
        notes = [note for proxy in self.proxies for note in proxy.requests()]
        asked = [note for note in notes if not methods or note["method"] in methods]
        return max(Counter((note["method"], note["target"], note["range"]) for note in asked).values())

    def count(self, what: str) -> int:
        return sum(getattr(proxy.counts(), what) for proxy in self.proxies)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], StoreServer]]:
    """Servers by the kind of store, started when they are first wanted."""
    kinds: dict[str, Callable[[], StoreServer]] = {
        "local": lambda: Folder(tmp_path_factory.mktemp("local")),
        "fsspec": lambda: FsspecFolder(tmp_path_factory.mktemp("shelf")),
        "s3": lambda: S3Server(secret=SECRET),
        "gs": GcsServer,
        "az": lambda: AzureServer(secret=SECRET),
        "http": FileServer,
        "hf": lambda: HubServer(SECRET),
    }
    running: dict[str, StoreServer] = {}
    with ExitStack() as stack:

        def server(kind: str) -> StoreServer:
            if kind not in running:
                running[kind] = stack.enter_context(kinds[kind]())
            return running[kind]

        yield server


@pytest.fixture
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "HF_", "STORAGE_EMULATOR")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def at(request: pytest.FixtureRequest, servers: Callable[[str], StoreServer]) -> Iterator[Callable[[str], Place]]:
    """An empty bucket of the test's own at a kind of store, called the same in every run: weather depends on names."""
    own = f"own-{zlib.crc32(request.node.name.encode()):08x}"
    numbers = count()
    with ExitStack() as stack:

        def place(kind: str) -> Place:
            server = servers(kind)
            name = f"{own}-{next(numbers)}"
            bucket = f"org/{name}" if kind == "hf" else name
            server.make_bucket(bucket)
            ports = [] if isinstance(server, Folder) else [server.port]
            if isinstance(server, HubServer):
                ports.append(server.content_port)
            proxies = [stack.enter_context(FaultProxy("127.0.0.1", port)) for port in ports]
            if isinstance(server, HubServer):
                server.content_endpoint = proxies[1].endpoint
            return Place(kind, server, bucket, proxies)

        yield place


@pytest.fixture(params=["local", *REMOTE])
def place(request: pytest.FixtureRequest, at: Callable[[str], Place]) -> Place:
    return at(request.param)


@pytest.fixture(params=REMOTE)
def remote(request: pytest.FixtureRequest, at: Callable[[str], Place]) -> Place:
    return at(request.param)


@pytest.fixture(params=WRITTEN)
def written(request: pytest.FixtureRequest, at: Callable[[str], Place]) -> Place:
    return at(request.param)
