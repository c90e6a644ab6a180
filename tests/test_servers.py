"""The servers of the tests do what they say, asked by plain HTTP: what stands on them can then be blamed on headrace."""

import json
import re
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.azure_server import AzureServer, signed_query
from tools.gcs_server import GcsServer
from tools.http_server import FileServer, signed
from tools.hub_server import HubServer
from tools.programs import AZURITE, VERSITYGW, Program, cache_folder
from tools.s3_server import S3Server
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
        if found.status == 302:
            found = call("GET", found.headers["Location"])
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
        assert (part.status, part.body, part.headers["ETag"]) == (206, BODY[5:9], found.headers["X-Linked-Etag"])
    assert urllib.parse.urlsplit(link).port == hub.content_port != hub.port
    assert hub.leaks == []
    assert call("GET", link, headers=bearer(hub.token)).status == 400
    assert len(hub.leaks) == 1
    assert call("GET", link.partition("?")[0]).status == 403
    small = call("GET", f"{where}/notes.md")
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
        assert call("GET", f"{hub.endpoint}/datasets/org/name/resolve/{revision}/a.json").body == body
    assert error_of(call("GET", f"{api}/revision/none"))[:2] == (404, "RevisionNotFound")
    assert error_of(call("GET", f"{api}/tree/main/none"))[:2] == (404, "EntryNotFound")
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
