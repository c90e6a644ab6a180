"""The servers of the tests do what they say, asked by plain HTTP, so that what fails on them is headrace's fault."""

import contextlib
import http.client
import json
import re
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.azure_server import AzureServer, signed_query
from tools.fault_proxy import Fault, FaultProxy, Link, Weather
from tools.gcs_server import GcsServer
from tools.http_server import FileServer, signed
from tools.hub_server import HubServer
from tools.link import depth
from tools.programs import AZURITE, VERSITYGW, Program, cache_folder
from tools.s3_server import S3Server, sign
from tools.serving import Answer, StoreServer, call, quoted

NAMES = ["plain", "a b/50%/ü+x", "q?x=1&y#z", "deep/er/and/deeper", "empty"]
BODY = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureServer]:
    with AzureServer() as server:
        yield server


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    with GcsServer() as server:
        yield server


@pytest.fixture
def files() -> Iterator[FileServer]:
    with FileServer() as server:
        server.make_bucket("data")
        server.put("data", "a", BODY)
        yield server


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(page=3) as server:
        server.make_bucket("org/name")
        yield server


def get(server: StoreServer, bucket: str, key: str) -> tuple[int, bytes]:
    """Status and body of an object, asked for as each store's own clients do."""
    if isinstance(server, S3Server):
        return server.request("GET", f"/{bucket}/{key}")
    if isinstance(server, AzureServer):
        found = server.request("GET", f"{bucket}/{key}")
    elif isinstance(server, HubServer):
        found = call("GET", f"{server.endpoint}/datasets/{bucket}/resolve/main/{quoted(key)}")
        if found.status in (302, 307):
            found = call("GET", urllib.parse.urljoin(server.endpoint, found.headers["Location"]))
    else:
        found = call("GET", f"{server.endpoint}/{bucket}/{quoted(key)}")
    return found.status, found.body


@pytest.mark.parametrize("kind", ["s3", "azure", "gcs", "files", "hub"])
def test_what_is_put_is_there_until_it_is_deleted(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: StoreServer = request.getfixturevalue(kind)
    bucket = "org/other" if kind == "hub" else "other"
    server.make_bucket(bucket)
    for name in NAMES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if name == "empty" else name.encode())
    server.put_folder(bucket, tmp_path, "in/")
    for name in NAMES:
        assert get(server, bucket, f"in/{name}") == (200, b"" if name == "empty" else name.encode())
    server.put(bucket, "in/plain", b"replaced")
    assert get(server, bucket, "in/plain") == (200, b"replaced")
    server.delete(bucket, "in/plain")
    assert get(server, bucket, "in/plain")[0] == 404
    assert get(server, bucket, "in/deep")[0] == 404
    assert bucket in server.url(bucket, "in")
    assert server.url(bucket, "in/a").endswith("in/a")


def test_a_stopped_server_does_not_answer() -> None:
    server = FileServer()
    with server:
        assert call("GET", server.endpoint).status == 404
    with pytest.raises(ConnectionRefusedError):
        call("GET", server.endpoint)


def test_a_program_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(S3Server, "command", lambda *_: [sys.executable, "-c", "exit('no room')"])
    server = S3Server()
    with pytest.raises(RuntimeError, match=r"S3Server.*ended with 1(.|\n)*no room"):
        server.start()
    assert server._process is None
    assert server._folder is None


# Programs


def test_a_missing_installer_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for program, hint in [(VERSITYGW, "install Go"), (AZURITE, "install Node.js with npm")]:
        with pytest.raises(RuntimeError, match=f"(?s){program.name}.*{tmp_path}.*hint: {hint}"):
            program.ensure()


@pytest.mark.parametrize("needs", ["go", "npm"])
def test_an_install_that_fails_says_what_to_do(needs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    installer = tmp_path / needs
    installer.write_text("#!/bin/sh\necho the registry is away >&2\nexit 3\n")
    installer.chmod(0o755)
    program = Program("thing", "1.0", needs, "thing")
    with pytest.raises(RuntimeError, match=r"(?s)install.*thing@1\.0.*exit code 3.*registry is away.*hint:"):
        program.ensure()
    assert not program.path.exists()
    # Once it works, it is installed, once.
    if needs == "go":
        installer.write_text('#!/bin/sh\necho x >>"$0.runs"\necho new >"$GOBIN/thing"\n')
    else:
        made = "mkdir -p $3/node_modules/.bin && echo new >$3/node_modules/.bin/thing"
        installer.write_text(f'#!/bin/sh\necho x >>"$0.runs"\n{made}\n')
    for _ in range(2):
        assert program.ensure().read_text() == "new\n"
    assert Path(f"{installer}.runs").read_text() == "x\n"
    assert list(cache_folder().rglob("tmp*")) == []


# Signatures


def test_s3_refuses_a_wrong_secret(s3: S3Server) -> None:
    assert s3.request("GET", "/")[0] == 200
    wrong = S3Server(s3.key, "wrong-secret-0123456789")
    wrong.port = s3.port
    status, body = wrong.request("GET", "/")
    assert status == 403
    assert b"SignatureDoesNotMatch" in body


def test_azure_refuses_a_wrong_key(azure: AzureServer) -> None:
    azure.make_bucket("signed")
    azure.put("signed", "a", BODY)
    wrong = AzureServer(azure.account, "wrong-secret-0123456789")
    wrong.port = azure.port
    assert azure.request("GET", "signed/a").status == 200
    assert wrong.request("GET", "signed/a").status == 403
    assert call("GET", f"{azure.endpoint}/{azure.account}/signed/a").status in (403, 404)


def test_azure_takes_shared_access_signatures(azure: AzureServer) -> None:
    azure.make_bucket("shared")
    azure.put("shared", "a", BODY)
    url = f"{azure.endpoint}/{azure.account}/shared"
    query = signed_query(azure.account, azure.key, "shared")
    assert call("GET", f"{url}/a?{query}").body == BODY
    assert b"<Name>a</Name>" in call("GET", f"{url}?restype=container&comp=list&{query}").body
    assert call("GET", f"{url}/a?{query.replace('sig=', 'sig=A')}").status == 403
    assert call("GET", f"{url}/a?{signed_query(azure.account, azure.key, 'shared', seconds=-5)}").status == 403
    assert call("DELETE", f"{url}/a?{query}").status == 403


def test_azure_honours_conditions_and_ranges(azure: AzureServer) -> None:
    azure.make_bucket("conditions")
    azure.put("conditions", "a", BODY)
    tag = azure.request("GET", "conditions/a").headers["ETag"]
    part = azure.request("GET", "conditions/a", headers={"range": "bytes=3-9", "if-match": tag})
    assert (part.status, part.body, part.headers["Content-Range"]) == (206, BODY[3:10], f"bytes 3-9/{len(BODY)}")
    azure.put("conditions", "a", BODY[:100])
    assert azure.request("GET", "conditions/a", headers={"if-match": tag}).status == 412


# The static files


def test_ranges_of_a_file(files: FileServer) -> None:
    url = files.url("data", "a")
    size = len(BODY)
    for asked, wanted in [
        ("0-0", (0, 1)),
        ("3-9", (3, 10)),
        ("10000-", (10_000, size)),
        ("-7", (size - 7, size)),
        (f"0-{size + 5}", (0, size)),
        (f"-{size + 5}", (0, size)),
    ]:
        found = call("GET", url, headers={"Range": f"bytes={asked}"})
        assert (found.status, found.body) == (206, BODY[slice(*wanted)]), asked
        assert found.headers["Content-Range"] == f"bytes {wanted[0]}-{wanted[1] - 1}/{size}"
    beyond = call("GET", url, headers={"Range": f"bytes={size}-"})
    assert (beyond.status, beyond.headers["Content-Range"]) == (416, f"bytes */{size}")
    for ignored in ("bytes=1-2,5-6", "lines=1-2", "bytes=x-y"):
        assert call("GET", url, headers={"Range": ignored}).status == 200
    whole = call("HEAD", url)
    assert (whole.status, whole.body, int(whole.headers["Content-Length"])) == (200, b"", size)


def test_conditions_of_a_file(files: FileServer) -> None:
    url = files.url("data", "a")
    first = call("GET", url)
    tag, modified = first.headers["ETag"], first.headers["Last-Modified"]
    assert call("GET", url, headers={"If-Match": tag}).status == 200
    assert call("GET", url, headers={"If-Match": f'"x", {tag}'}).status == 200
    assert call("GET", url, headers={"If-None-Match": tag}).status == 304
    assert call("GET", url, headers={"If-Unmodified-Since": modified}).status == 200
    assert call("GET", url, headers={"If-Unmodified-Since": "Thu, 01 Jan 2015 00:00:00 GMT"}).status == 412
    assert call("GET", url, headers={"If-Range": '"x"', "Range": "bytes=1-2"}).status == 200
    files.put("data", "a", BODY[::-1])
    assert call("GET", url, headers={"If-Match": tag, "Range": "bytes=1-2"}).status == 412
    assert call("GET", url).headers["ETag"] != tag


def test_files_with_less_than_http_offers() -> None:
    with FileServer(head=False, ranges=False, tags="none", modified=False) as server:
        server.make_bucket("data")
        server.put("data", "a", BODY)
        url = server.url("data", "a")
        assert call("HEAD", url).status == 405
        found = call("GET", url, headers={"Range": "bytes=1-2"})
        assert (found.status, found.body) == (200, BODY)
        assert "ETag" not in found.headers
        assert "Last-Modified" not in found.headers
    with FileServer(tags="weak") as server:
        server.make_bucket("data")
        server.put("data", "a", BODY)
        tag = call("GET", server.url("data", "a")).headers["ETag"]
        assert tag.startswith('W/"')
        assert call("GET", server.url("data", "a"), headers={"If-Match": tag}).status == 412


def test_signed_urls() -> None:
    with FileServer(secret="s3cret") as server:
        server.make_bucket("data")
        server.put("data", "a b", BODY)
        url = server.url("data", "a b")
        assert call("GET", url, headers={"Range": "bytes=1-2"}).body == BODY[1:3]
        bare = url.partition("?")[0]
        assert call("GET", bare).status == 403
        assert call("GET", url.replace("a%20b", "other")).status == 403
        assert b"expired" in call("GET", signed(bare, "s3cret", -1)).body
        assert call("GET", signed(bare, "another")).status == 403


def test_nothing_above_the_folder_is_served(files: FileServer) -> None:
    (files.root.parent / "headrace-outside").write_bytes(b"x")
    try:
        for path in ("../headrace-outside", "data/../../headrace-outside", "data", "", "data/a/b", "%00"):
            assert call("GET", f"{files.endpoint}/{path}").status == 404, path
    finally:
        (files.root.parent / "headrace-outside").unlink()


# The Hub


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def error_of(answer: Answer) -> tuple[int, str | None, str]:
    return answer.status, answer.headers["X-Error-Code"], answer.headers["X-Error-Message"]


def test_listings_of_the_hub_lead_on_by_links(hub: HubServer) -> None:
    names = [f"data/{number}/x y.parquet" for number in range(5)] + ["README.md"]
    for name in names:
        hub.put("org/name", name, name.encode())
    url: str | None = f"{hub.endpoint}/api/datasets/org/name/tree/main?recursive=true"
    entries, pages = [], 0
    while url is not None:
        answer = call("GET", url)
        assert answer.status == 200
        page = json.loads(answer.body)
        assert 0 < len(page) <= 3
        entries += page
        pages += 1
        link = re.fullmatch('<(.+)>; rel="next"', answer.headers["Link"] or "")
        url = link[1] if link else None
    assert pages == 4
    assert sorted(entry["path"] for entry in entries if entry["type"] == "file") == sorted(names)
    assert sum(entry["type"] == "directory" for entry in entries) == 6
    for entry in entries:
        if entry["type"] == "file":
            assert entry["size"] == len(entry["path"])
            assert ("lfs" in entry) == entry["path"].endswith(".parquet")
    below = json.loads(call("GET", f"{hub.endpoint}/api/datasets/org/name/tree/main/data/1").body)
    assert [entry["path"] for entry in below] == ["data/1/x y.parquet"]


def test_files_of_the_hub_lie_elsewhere(hub: HubServer) -> None:
    hub.put("org/name", "a b.parquet", BODY)
    hub.put("org/name", "notes.md", b"small")
    where = f"{hub.endpoint}/datasets/org/name/resolve/main"
    for method in ("GET", "HEAD"):
        found = call(method, f"{where}/a%20b.parquet", headers=bearer(hub.token))
        assert found.status == 302
        assert found.headers["X-Linked-Size"] == str(len(BODY))
        assert found.headers["X-Repo-Commit"] == hub.commit("org/name")
        link = found.headers["Location"]
        part = call("GET", link, headers={"Range": "bytes=5-8"})
        assert (part.status, part.body) == (206, BODY[5:9])
        assert part.headers["ETag"] != found.headers["X-Linked-Etag"], "the content network has tags of its own"
    assert urllib.parse.urlsplit(link).port == hub.content_port != hub.port
    assert hub.leaks == []
    assert call("GET", link, headers=bearer(hub.token)).status == 400
    assert len(hub.leaks) == 1
    assert call("GET", link.partition("?")[0]).status == 403
    small = call("GET", f"{where}/notes.md")
    assert (small.status, small.headers["X-Repo-Commit"]) == (307, hub.commit("org/name"))
    assert small.headers["Location"].startswith("/api/resolve-cache/")
    small = call("GET", hub.endpoint + small.headers["Location"], headers=bearer(hub.token))
    assert (small.status, small.body, small.headers["X-Repo-Commit"]) == (200, b"small", hub.commit("org/name"))
    hub.link_seconds = -1
    late = call("GET", f"{where}/a%20b.parquet").headers["Location"]
    assert call("GET", late).status == 403
    hub.content_endpoint = "http://127.0.0.1:1"
    assert call("GET", f"{where}/a%20b.parquet").headers["Location"].startswith("http://127.0.0.1:1/")


def test_revisions_of_the_hub_stay(hub: HubServer) -> None:
    hub.put("org/name", "a.json", b"[1]")
    first = hub.commit("org/name")
    hub.branch("org/name", "refs/convert/parquet")
    hub.put("org/name", "a.json", b"[2]")
    assert hub.commit("org/name") != first
    api = f"{hub.endpoint}/api/datasets/org/name"
    shown = json.loads(call("GET", f"{api}/revision/refs%2Fconvert%2Fparquet").body)
    assert (shown["sha"], shown["siblings"]) == (first, [{"rfilename": "a.json"}])
    assert json.loads(call("GET", api).body)["sha"] == hub.commit("org/name")
    for revision, body in [("main", b"[2]"), (first, b"[1]"), ("refs%2Fconvert%2Fparquet", b"[1]")]:
        found = call("GET", f"{hub.endpoint}/datasets/org/name/resolve/{revision}/a.json")
        assert call("GET", hub.endpoint + found.headers["Location"]).body == body
    assert error_of(call("GET", f"{api}/revision/none"))[:2] == (404, "RevisionNotFound")
    for folder in ("none", quoted("日本")):
        assert error_of(call("GET", f"{api}/tree/main/{folder}"))[:2] == (404, "EntryNotFound")
    assert error_of(call("GET", f"{hub.endpoint}/datasets/org/name/resolve/main/none"))[:2] == (404, "EntryNotFound")


def test_the_hub_refuses_as_the_hub_does(hub: HubServer) -> None:
    hub.tokens["hf_guest"] = set()
    hub.tokens["hf_member"] = {"org/gated", "org/private"}
    for access in ("gated", "private"):
        hub.make_bucket(f"org/{access}", access)
        hub.put(f"org/{access}", "a.parquet", BODY)
    gated = f"{hub.endpoint}/datasets/org/gated/resolve/main/a.parquet"
    assert error_of(call("GET", gated))[:2] == (401, "GatedRepo")
    status, code, told = error_of(call("GET", gated, headers=bearer("hf_guest")))
    assert (status, code) == (403, "GatedRepo")
    assert "https://huggingface.co/datasets/org/gated" in told
    private = f"{hub.endpoint}/datasets/org/private/resolve/main/a.parquet"
    assert error_of(call("GET", private))[:2] == (401, "RepoNotFound")
    assert error_of(call("GET", private, headers=bearer("hf_guest")))[:2] == (404, "RepoNotFound")
    for url in (gated, private):
        assert call("GET", url, headers=bearer("hf_member")).status == 302
        assert call("GET", url, headers=bearer(hub.token)).status == 302
        assert error_of(call("GET", url, headers=bearer("hf_wrong")))[:2] == (401, None)
    # What a gated repository holds is no secret.
    assert call("GET", f"{hub.endpoint}/api/datasets/org/gated/tree/main").status == 200
    assert error_of(call("GET", f"{hub.endpoint}/api/datasets/org/none"))[:2] == (401, "RepoNotFound")


# Faults


@pytest.fixture
def proxy(files: FileServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", files.port) as running:
        yield running


def read(proxy: FaultProxy, first: int = 0, last: int = 999, tag: str | None = None) -> Answer:
    """A range of the file, through the proxy."""
    condition = {} if tag is None else {"If-Match": tag}
    return call("GET", f"{proxy.endpoint}/data/a", headers={"Range": f"bytes={first}-{last}", **condition})


def _try(proxy: FaultProxy, at: int = 0) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        read(proxy, at, at + 99)


def test_a_proxy_without_faults_changes_nothing(proxy: FaultProxy, files: FileServer) -> None:
    for method, headers in [("GET", {}), ("HEAD", {}), ("GET", {"Range": "bytes=5-9"}), ("GET", {"If-Match": '"x"'})]:
        here = call(method, f"{proxy.endpoint}/data/a", headers=headers)
        there = call(method, files.url("data", "a"), headers=headers)
        assert (here.status, here.body, sorted(here.headers.items())) == (
            there.status,
            there.body,
            sorted(there.headers.items()),
        )
    assert call("GET", f"{proxy.endpoint}/none").status == 404
    assert [request["status"] for request in proxy.requests()] == [200, 200, 206, 412, 404]


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 403])
def test_statuses(proxy: FaultProxy, status: int) -> None:
    proxy.add("status", status=status, count=2, retry_after=3 if status == 429 else None)
    for _ in range(2):
        found = read(proxy)
        assert (found.status, found.headers["Retry-After"]) == (status, "3" if status == 429 else None)
        assert b"a scripted fault" in found.body
    assert read(proxy).body == BODY[:1000]
    proxy.add("status", status=status, code="OfItsOwn")
    assert b"<Code>OfItsOwn</Code>" in read(proxy).body


def test_bodies_that_end_early(proxy: FaultProxy) -> None:
    proxy.add("cut")
    with pytest.raises(http.client.IncompleteRead) as caught:
        read(proxy)
    assert caught.value.partial == BODY[:500]
    proxy.add("short")
    found = read(proxy)
    assert (found.status, found.body) == (206, BODY[:500])
    assert found.headers["Content-Range"] == f"bytes 0-999/{len(BODY)}"
    proxy.add("reset")
    with pytest.raises(ConnectionResetError):
        read(proxy)
    proxy.add("reset", before=True)
    with pytest.raises(ConnectionResetError):
        read(proxy)
    assert read(proxy).body == BODY[:1000]


def test_connections_that_are_reset(proxy: FaultProxy) -> None:
    proxy.add("connect", count=2)
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            read(proxy)
    assert read(proxy).status == 206
    assert len(proxy.requests()) == 1


@pytest.mark.parametrize("before", [False, True])
def test_answers_that_stall(proxy: FaultProxy, before: bool) -> None:
    proxy.add("stall", seconds=0.3, before=before)
    begun = time.monotonic()
    with pytest.raises(http.client.RemoteDisconnected if before else http.client.IncompleteRead):
        read(proxy)
    assert 0.3 <= time.monotonic() - begun < 5


def test_a_stop_ends_what_stalls(files: FileServer) -> None:
    with FaultProxy("127.0.0.1", files.port, [Fault("stall", before=True)]) as proxy:
        thread = threading.Thread(target=_try, args=(proxy,))
        thread.start()
        while not proxy.requests():
            time.sleep(0.01)
    thread.join(5)
    assert not thread.is_alive()


def test_answers_that_drip(proxy: FaultProxy) -> None:
    proxy.add("drip", seconds=0.01)
    begun = time.monotonic()
    assert read(proxy, 0, 29).body == BODY[:30]
    assert time.monotonic() - begun >= 0.3


def test_answers_that_lie(proxy: FaultProxy) -> None:
    proxy.add("etag")
    proxy.add("range")
    honest = call("HEAD", f"{proxy.endpoint}/data/a").headers["ETag"]
    found = read(proxy)
    assert (found.body, found.headers["ETag"]) == (BODY[:1000], '"another"')
    found = read(proxy)
    assert (found.body, found.headers["ETag"], found.headers["Content-Range"]) == (BODY[:1000], honest, "bytes 1-2/3")


def test_an_object_that_is_replaced_by_a_shorter_one(proxy: FaultProxy) -> None:
    url, half = f"{proxy.endpoint}/data/a", len(BODY) // 2
    before = read(proxy)
    proxy.add("replace")
    for _ in range(2):
        found = read(proxy, half - 10, half + 9)
        assert (found.status, found.body) == (206, BODY[half - 10 : half])
        assert found.headers["Content-Range"] == f"bytes {half - 10}-{half - 1}/{half}"
        assert found.headers["ETag"] not in (None, before.headers["ETag"])
    beyond = read(proxy, half, half + 9)
    assert (beyond.status, beyond.headers["Content-Range"]) == (416, f"bytes */{half}")
    assert read(proxy, tag=before.headers["ETag"]).status == 412
    assert call("GET", url).body == BODY[:half]
    assert call("HEAD", url).headers["Content-Length"] == str(half)
    proxy.clear()
    assert call("GET", url).body == BODY


def test_faults_strike_what_they_are_meant_for(proxy: FaultProxy) -> None:
    url = f"{proxy.endpoint}/data/a"
    proxy.add("status")
    proxy.add("status", match="list-type", status=500)
    proxy.add("status", method="HEAD", match="", status=504, skip=1)
    proxy.add("short", match="/data/", skip=2)
    assert call("GET", url).status == 200  # Not a read of a part.
    assert call("HEAD", url).status == 200  # Spared.
    assert call("HEAD", url).status == 504
    assert read(proxy).status == 503
    assert call("GET", f"{proxy.endpoint}/data?list-type=2").status == 500
    assert call("GET", url).body == BODY
    assert call("GET", url).body == BODY[: len(BODY) // 2]
    assert proxy.pending() == 0
    with pytest.raises(ValueError, match=r"kind must be one of status, cut.*'flood'"):
        proxy.add("flood")


def test_credentials_that_expire_until_they_are_renewed(hub: HubServer) -> None:
    hub.tokens["hf_second"] = None
    hub.put("org/name", "a.json", b"[]")
    with FaultProxy("127.0.0.1", hub.port) as proxy:
        url = f"{proxy.endpoint}/datasets/org/name/resolve/main/a.json"
        proxy.add("expire", status=401, match="resolve", skip=1)
        asked = [hub.token, hub.token, hub.token, "hf_second", hub.token, None]
        found = [call("GET", url, headers=bearer(token) if token else {}).status for token in asked]
        assert found == [307, 401, 401, 307, 401, 307]


def test_keys_of_s3_that_expire_until_they_are_renewed(s3: S3Server) -> None:
    s3.make_bucket("expire")
    s3.put("expire", "a", BODY)
    s3.add_key("second", "second-secret-0123456789")
    with FaultProxy("127.0.0.1", s3.port) as proxy:
        proxy.add("expire", status=400, match="expire")

        def status(key: str, secret: str) -> int:
            headers = sign("GET", f"127.0.0.1:{proxy.port}", "/expire/a", "", b"", key, secret)
            return call("GET", f"{proxy.endpoint}/expire/a", headers=headers).status

        first, second = (s3.key, s3.secret), ("second", "second-secret-0123456789")
        assert [status(*keys) for keys in (first, first, second, first)] == [400, 400, 200, 400]
        assert status("second", "another-secret") == 403


def test_pages_of_listings_that_are_cut_short(s3: S3Server) -> None:
    s3.make_bucket("pages")
    for number in range(20):
        s3.put("pages", f"{number}", b"")
    with FaultProxy("127.0.0.1", s3.port) as proxy:
        host = f"127.0.0.1:{proxy.port}"

        def pages() -> Answer:
            headers = sign("GET", host, "/pages", "list-type=2", b"", s3.key, s3.secret)
            return call("GET", f"{proxy.endpoint}/pages?list-type=2", headers=headers)

        whole = pages().body
        assert whole.count(b"<Key>") == 20
        proxy.add("short", match="list-type")
        assert pages().body == whole[: len(whole) // 2]
        proxy.add("cut", match="list-type")
        with pytest.raises(http.client.IncompleteRead):
            pages()


@pytest.mark.parametrize("kind", ["s3", "azure", "gcs", "hub"])
def test_a_proxy_stands_before_any_server(kind: str, request: pytest.FixtureRequest) -> None:
    server: StoreServer = request.getfixturevalue(kind)
    bucket = "org/proxied" if kind == "hub" else "proxied"
    server.make_bucket(bucket)
    server.put(bucket, "a b.json", BODY)
    port = server.port
    with FaultProxy("127.0.0.1", port) as proxy:
        try:
            # Whatever is signed, the proxy's own address is.
            server.port = proxy.port
            assert get(server, bucket, "a b.json") == (200, BODY)
            proxy.add("status", status=500, match="a%20b.json")
            assert get(server, bucket, "a b.json")[0] == 500
        finally:
            server.port = port
        assert [note["status"] for note in proxy.requests()][-1] == 500
        assert len(proxy.requests()) >= 2


def test_a_proxy_that_moves(proxy: FaultProxy) -> None:
    with FileServer() as other:
        proxy.move("127.0.0.1", other.port)
        assert read(proxy).status == 404


def test_a_proxy_before_nothing_says_so(proxy: FaultProxy) -> None:
    with FileServer() as gone:
        proxy.move("127.0.0.1", gone.port)
    assert read(proxy).status == 502


def test_the_proxy_is_spoken_to_by_http(proxy: FaultProxy) -> None:
    asked = json.dumps({"kind": "status", "status": 500}).encode()
    assert call("POST", f"{proxy.endpoint}/__faults__", asked).status == 200
    assert call("POST", f"{proxy.endpoint}/__faults__", b'{"kind": "flood"}').status == 400
    assert read(proxy).status == 500
    notes = json.loads(call("GET", f"{proxy.endpoint}/__requests__").body)
    assert [(note["fault"], note["status"], note["range"]) for note in notes] == [("status", 500, "bytes=0-999")]
    assert call("POST", f"{proxy.endpoint}/__reset__").status == 200
    assert json.loads(call("GET", f"{proxy.endpoint}/__requests__").body) == []


# Weather


def storm(proxy: FaultProxy, seed: int, order: Callable[[list[int]], Any] = list.copy, **settings: Any) -> list[str]:
    """What strikes forty reads, each repeated until it succeeds."""
    proxy.clear()
    settings = {"faults": [Fault("status", status=status) for status in (500, 503)]} | settings
    proxy.weather = Weather(seed, **settings)
    for at in order(list(range(40))):
        for _ in range(5):
            if read(proxy, at, at + 9).status == 206:
                break
        else:
            raise AssertionError("nothing but faults")
    notes = sorted(proxy.requests(), key=lambda note: note["range"])
    return [f"{note['range']} {note['status']}" for note in notes]


def test_weather_is_what_its_seed_says(proxy: FaultProxy) -> None:
    first = storm(proxy, 7)
    assert storm(proxy, 7) == first
    assert storm(proxy, 7, lambda reads: reversed(reads)) == first, "in whatever order things are asked for"
    assert storm(proxy, 8) != first
    struck = [line for line in first if not line.endswith("206")]
    assert 0.1 < len(struck) / len(first) < 0.3
    assert {line.rpartition(" ")[2] for line in struck} == {"500", "503"}
    assert len(storm(proxy, 7, rate=1.0, most=3)) == 160
    assert len(storm(proxy, 7, rate=0.0)) == 40


def test_weather_strikes_what_is_left_of_a_body_as_the_body(proxy: FaultProxy) -> None:
    proxy.weather = Weather(1, rate=1.0, faults=[Fault("cut")], most=1)
    with pytest.raises(http.client.IncompleteRead):
        read(proxy, 0, 999)
    assert read(proxy, 500, 999).body == BODY[500:1000]


def test_all_that_a_storm_holds_strikes(proxy: FaultProxy) -> None:
    proxy.weather = Weather(3, rate=1.0, most=1)
    for at in range(120):
        thread = threading.Thread(target=_try, args=(proxy, at), daemon=True)
        thread.start()
    while len(proxy.requests()) < 120:
        time.sleep(0.01)
    assert {note["fault"] for note in proxy.requests()} == {"status", "cut", "reset", "stall", "range"}


# The link


def test_latency_and_bandwidth(proxy: FaultProxy, files: FileServer) -> None:
    files.put("data", "large", bytes(4_000_000))
    proxy.link = Link(latency=0.1)
    begun = time.monotonic()
    for _ in range(3):
        assert read(proxy).status == 206
    assert time.monotonic() - begun >= 0.3
    proxy.link = Link(bandwidth=10e6)
    for threads in (1, 2):
        proxy.clear()
        begun = time.monotonic()
        running = [threading.Thread(target=call, args=("GET", f"{proxy.endpoint}/data/large")) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        took = time.monotonic() - begun
        # All share the link, and the link is not slower than it says but for a busy machine.
        assert 0.4 * threads <= took < 0.4 * threads + 2
        assert proxy.counts().bytes == 4_000_000 * threads


def test_counts(proxy: FaultProxy) -> None:
    proxy.link = Link(latency=0.6)
    begin = threading.Barrier(4)

    def ask() -> None:
        begin.wait()
        read(proxy)

    for _ in range(2):
        running = [threading.Thread(target=ask) for _ in range(4)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    proxy.add("status")
    read(proxy)
    found = proxy.counts()
    assert (found.requests, found.depth, found.faults) == (9, 3, 1)
    assert found.bytes == sum(note["bytes"] for note in proxy.requests()) > 8000
    assert (found.connections, found.most_connections) == (9, 4)
    proxy.clear()
    assert proxy.counts() == (0, 0, 0, 0, 0, 0)


def test_requests_on_one_connection_are_one_after_the_other(proxy: FaultProxy) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port)
    for number in range(200):
        # With and without a body, large and small.
        method = ("GET", "HEAD")[number % 2]
        connection.request(method, ("/data/a", "/none")[number % 3 == 0], headers={"Range": "bytes=0-9"})
        connection.getresponse().read()
    connection.close()
    assert proxy.counts()[:3] == (200, proxy.counts().bytes, 200)
    assert proxy.counts().connections == 1


def test_the_longest_chain_of_requests() -> None:
    assert depth([]) == 0
    assert depth([(0, 9), (1, 2), (3, 4), (8, 9.5), (9.5, 10)]) == 4
    assert depth([(0, 5), (0, 5), (4, 6)]) == 1


def test_a_server_that_allows_few_connections(files: FileServer) -> None:
    with FaultProxy("127.0.0.1", files.port, connections=2) as proxy:
        proxy.link = Link(latency=1)
        results: list[Any] = []

        def ask() -> None:
            try:
                results.append(read(proxy).status)
            except ConnectionResetError:
                results.append(None)

        running = [threading.Thread(target=ask) for _ in range(5)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert sorted(results, key=str) == [206, 206, None, None, None]
        assert proxy.counts().most_connections == 2
