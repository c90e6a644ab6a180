"""Answers that mean something else than they seem to: what is not a file's bytes must not pass for them."""

import gzip
import json
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace._files import Store
from tools.serving import HOST, Entity, Handler, HttpService

pytestmark = pytest.mark.usefixtures("no_settings_from_outside")

SECRET = "hunter2-hunter2"
BODY = json.dumps({"id": 1, "text": "x" * 5000}).encode()
HASTY = {"timeout": "1", "retry_timeout": "2", "max_retries": "2"}


@dataclass
class Odd:
    """What a server answers: a body of its own, with what is said of it."""

    body: bytes = BODY
    tag: str = '"a"'
    head_tag: str | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    status: int | None = None
    """For reads, instead of that of a file."""
    moved: str | None = None
    """Where every path leads that does not begin with it."""


class _Answers(Handler):
    def handle_any(self) -> None:
        odd: Odd = self.server.owner
        is_head = self.command == "HEAD"
        if odd.moved is not None and not self.path.startswith(odd.moved):
            self.answer(301, [("Location", odd.moved)])
        elif odd.status is not None and not is_head:
            self.answer(odd.status, odd.headers)
        else:
            tag = odd.head_tag if is_head and odd.head_tag else odd.tag
            # A weak one would never match.
            del self.headers["If-Match"]
            self.answer_entity(Entity.of(odd.body, tag), odd.headers)


@pytest.fixture
def serve() -> Any:
    """Starts a server of one file, and gives the URL of whatever name."""
    running: list[HttpService] = []

    def start(odd: Odd) -> Callable[[str], str]:
        service = HttpService(_Answers, odd)
        running.append(service)
        service.start()
        return lambda name: f"http://{HOST}:{service.port}/{name}"

    yield start
    for service in running:
        service.stop()


def read(url: str) -> list[bytes]:
    store = Store([url], HASTY)
    return [store.read(file) for file in store.files]


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate", "identity, gzip"])
def test_a_file_that_comes_compressed_is_refused(serve: Any, coding: str) -> None:
    url = serve(Odd(body=gzip.compress(BODY), headers=[("Content-Encoding", coding)]))
    with pytest.raises(hr.StoreError, match=rf"(?s)a\.json.*Content-Encoding: {coding.split()[-1]}.*hint: "):
        read(url("a.json"))


def test_a_compressed_file_may_be_called_that(serve: Any) -> None:
    packed = gzip.compress(BODY)
    url = serve(Odd(body=packed, headers=[("Content-Encoding", "x-gzip")]))
    assert read(url("a.json.gz")) == [packed]
    assert read(serve(Odd(headers=[("Content-Encoding", "identity")]))("a.json")) == [BODY]


@pytest.mark.parametrize("status", [201, 202, 204, 205])
def test_an_answer_without_the_file_is_an_error(serve: Any, status: int) -> None:
    url = serve(Odd(status=status))
    with pytest.raises(hr.StoreError, match=rf"a\.json.*answered {status}"):
        read(url("a.json"))


@pytest.mark.parametrize(
    "head, get, is_same",
    [('W/"a"', '"a"', True), ('"a"', 'W/"a"', True), ('W/"a"', 'W/"a"', True), ('W/"a"', '"b"', False)],
)
def test_a_tag_that_is_weak_in_one_answer_is_the_same_tag(serve: Any, head: str, get: str, is_same: bool) -> None:
    url = serve(Odd(tag=get, head_tag=head))("a.json")
    if is_same:
        assert read(url) == [BODY]
    else:
        with pytest.raises(hr.DataError, match=r"a\.json: changed"):
            read(url)


@pytest.mark.parametrize("path", ["", "data/"])
def test_a_folder_of_a_web_server_says_what_can_be_opened(serve: Any, path: str) -> None:
    url = serve(Odd(body=b"<html>Index of /</html>", headers=[("Content-Type", "text/html")]))
    with pytest.raises(ValueError, match=r"(?s)a folder.*cannot say which files.*hint: give the URLs of all files"):
        hr.open(url(path))


def test_a_folder_that_a_web_server_leads_to_says_what_can_be_opened(serve: Any) -> None:
    url = serve(Odd(body=b"<html>Index of /data/</html>", moved="/data/"))
    with pytest.raises(hr.StoreError, match=r"(?s)/dat.*a folder.*cannot list.*hint: give the URLs of its files"):
        hr.open(url("dat"))


# Listings


class _Endless(Handler):
    """A bucket that says that its listing goes on, but not where."""

    def handle_any(self) -> None:
        self.server.owner.append(urllib.parse.urlsplit(self.path).query)
        entry = (
            "<Contents><Key>in/a.bin</Key><Size>1</Size><ETag>&quot;e&quot;</ETag>"
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
        )
        body = f"<ListBucketResult>{entry}<IsTruncated>true</IsTruncated></ListBucketResult>"
        self.answer(200, [("Content-Type", "application/xml")], body.encode())


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_listing_that_goes_on_nowhere_is_not_taken_for_whole(scheme: str) -> None:
    asked: list[str] = []
    service = HttpService(_Endless, asked)
    service.start()
    try:
        options = {"anon": "true", "endpoint_url": f"http://{HOST}:{service.port}"} | HASTY
        with pytest.raises(hr.StoreError, match=r"(?s)bucket/in/: list failed.*goes on.*NextContinuationToken.*hint: "):
            _ = Store([f"{scheme}://bucket/in"], options).files
    finally:
        service.stop()
    assert 2 <= len(asked) <= 4, "it is asked for again, as after any broken answer"


# Secrets


@pytest.mark.parametrize(
    "url",
    [
        f"s3://me:{SECRET}@bucket/key",
        f"s3://me:a/{SECRET}@bucket/key",
        f"r2://me:{SECRET}@bucket/key",
        f"gs://me:{SECRET}@bucket/key",
        f"abfss://me:{SECRET}@data@account.dfs.core.windows.net/key",
        f"az://me:{SECRET}/key",
        f"hf://me:{SECRET}@datasets/org/name",
    ],
)
def test_a_login_in_a_url_is_refused_and_not_shown(url: str, tmp_path: Path) -> None:
    ways: list[Callable[[], object]] = [
        lambda: hr.open(url),
        lambda: hr.open([url, url]),
        lambda: hr.open(url, format="mds"),
        lambda: hr.open(f"{url}/*.parquet"),
        lambda: Store([url], {}).files,
        lambda: hr.map(len, [], output_dir=url),
    ]
    for way in ways:
        with pytest.raises(ValueError, match=r"storage_options|output_dir") as caught:
            way()
        assert SECRET not in f"{caught.value} {caught.value!r}"


def test_options_of_one_account_and_the_url_of_another_are_refused() -> None:
    string = f"AccountName=mine;AccountKey={'A' * 86}=="
    with pytest.raises(ValueError, match=r"(?s)\"yours\".*\"mine\".*hint: ") as caught:
        hr.open("abfss://data@yours.dfs.core.windows.net/x", storage_options={"connection_string": string})
    assert "A" * 20 not in str(caught.value)
