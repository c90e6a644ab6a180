"""`headrace.Store` over every kind of store: the same calls, the same answers, and the same faults got over."""

import os
import pickle
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fsspec
import pytest

import headrace as hr
from files import start_python
from headrace._paths import expanded
from places import SECRET, WRITTEN, Place
from tools.fault_proxy import Weather
from tools.s3_server import S3Server

pytestmark = pytest.mark.usefixtures("no_settings_from_outside")

NAMES = [
    "plain.bin",
    "deep/er/and/deeper.bin",
    "a b/50%/ü+x.bin",
    "50%25.bin",
    "q?x=1&y#z.bin",
    "[x]{y}*.bin",
    "日本/'q'=~.bin",
    "time=2024-01-01 00:00:00/x.bin",
    ".hidden/_too.bin",
    "empty.bin",
]
PART = 8 << 20
FAR = ["s3", "gs", "az"]


def opened(place: Place, path: str = "in", **options: str) -> hr.Store:
    return hr.Store(place.url(path), storage_options=place.options(**options))


def content(name: str) -> bytes:
    return b"" if name.startswith("empty") else random.Random(name).randbytes(5000 + len(name))


def large(parts: float = 2.5) -> bytes:
    return random.Random(parts).randbytes(1 << 20) * int(parts * 8) + b"end"


def keys(store: hr.Store, prefix: str = "", *, ordered: bool = True) -> list[str]:
    return [file.key for file in store.list(prefix, ordered=ordered)]


# Writing


def test_what_is_put_is_listed_looked_up_and_read(written: Place) -> None:
    store = opened(written)
    assert keys(store) == []
    begun = datetime.now(UTC)
    stored = {name: store.put(name, content(name)) for name in NAMES}
    assert keys(store) == sorted(NAMES, key=str.encode)
    assert sorted(keys(store, ordered=False)) == sorted(NAMES)
    for file in store.list():
        assert (file.key, file.size) == (file.key, len(content(file.key)))
        assert store.read(file.key) == content(file.key), file.key
        now = store.head(file.key)
        assert (now.key, now.size, now.version) == (file.key, file.size, file.version), file.key
        assert stored[file.key] == now
        assert file.modified is not None
        assert now.modified is not None
        # Listings of some stores tell of milliseconds, and other answers of seconds.
        assert abs(file.modified - now.modified) < timedelta(seconds=1)
        assert abs(file.modified - begun) < timedelta(minutes=1)
        assert (file.etag is not None) == (written.kind not in ("local", "fsspec"))
    # Nothing lies around that another listing would show.
    whole = hr.Store(written.url(), storage_options=written.options())
    assert keys(whole) == [f"in/{name}" for name in sorted(NAMES, key=str.encode)]


def test_a_listing_begins_with_a_text(written: Place) -> None:
    store = opened(written)
    for name in ("a/b1", "a/b2/c", "a/c", "a-", "ab", "b"):
        store.put(name, b"x")
    assert keys(store) == ["a-", "a/b1", "a/b2/c", "a/c", "ab", "b"]
    assert keys(store, "a/") == ["a/b1", "a/b2/c", "a/c"]
    assert keys(store, "a/b") == ["a/b1", "a/b2/c"]
    assert keys(store, "a") == ["a-", "a/b1", "a/b2/c", "a/c", "ab"]
    assert keys(store, "a/b1") == ["a/b1"]
    assert keys(store, "none/") == keys(store, "x") == []
    assert keys(opened(written, "in/a")) == ["b1", "b2/c", "c"]


def test_a_file_is_replaced_and_deleted(written: Place) -> None:
    store = opened(written)
    first = store.put("a/x", b"one")
    if written.kind in ("local", "fsspec"):
        time.sleep(0.02)  # The clock of files ticks some hundred times a second.
    second = store.put("a/x", b"three")
    assert store.read("a/x") == b"three"
    assert first.version != second.version
    store.delete("a/x")
    store.delete("a/x")
    store.delete("never/there")
    assert keys(store) == []
    for call in (store.head, store.read):
        with pytest.raises(hr.MissingError, match="a/x"):
            call("a/x")


def test_files_and_views_are_stored(written: Place, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for data in (b"", b"small", large(0.5)):
        source.write_bytes(data)
        store = opened(written)
        for form in (source, bytearray(data), memoryview(data)):
            assert store.put("x", form).size == len(data)
            assert store.read("x") == data
    with pytest.raises(TypeError, match=r"got a str\nhint: text.encode"):
        opened(written).put("x", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got a int"):
        opened(written).put("x", 1)  # type: ignore[arg-type]
    with pytest.raises(hr.MissingError, match="gone"):
        opened(written).put("x", tmp_path / "gone")
    with pytest.raises(ValueError, match="expected a regular file"):
        opened(written).put("x", tmp_path)
    assert opened(written).read("x") == data


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_large_file_is_stored_in_parts(kind: str, at: Callable[[str], Place], tmp_path: Path) -> None:
    place, data = at(kind), large()
    source = tmp_path / "source"
    source.write_bytes(data)
    for number, form in enumerate((source, data)):
        assert opened(place).put(f"{number}", form).size == len(data)
        assert opened(place).read(f"{number}") == data
        assert opened(place).read(f"{number}", PART - 2, 5) == data[PART - 2 : PART + 3]
    if kind in FAR:
        writes = [target for target in place.requests("PUT") if "partNumber=" in target or "comp=block&" in target]
        assert len(writes) == 6


def test_only_new_files(written: Place) -> None:
    store = opened(written)
    assert store.put("x", b"mine", only_new=True).size == 4
    with pytest.raises(FileExistsError, match="x: expected no file of this name, found one"):
        store.put("x", b"other", only_new=True)
    assert store.read("x") == b"mine"
    won: list[int] = []
    start = threading.Barrier(4)

    def write(number: int) -> None:
        own = opened(written)
        start.wait()
        try:
            own.put("y", bytes([number]) * 1000, only_new=True)
            won.append(number)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # fsspec has no such condition that all of its stores know: it is looked before.
    assert len(won) == 1 or (written.kind == "fsspec" and won)
    if len(won) == 1:
        assert store.read("y") == bytes(won) * 1000


def test_ranges_are_exact(place: Place) -> None:
    body = content("ranges")
    place.put("in/a.bin", body)
    store, size = opened(place), len(body)
    for offset, length in [(0, 0), (0, 1), (size - 1, 1), (size, 0), (0, size), (3, 7), (17, None), (size, None)]:
        stop = size if length is None else offset + length
        assert store.read("a.bin", offset, length) == body[offset:stop], (offset, length)
    for offset, length in [(0, size + 1), (size, 1), (size + 1, None), (size + 1, 0)]:
        with pytest.raises(ValueError, match=rf"a\.bin: expected a range within its {size} bytes"):
            store.read("a.bin", offset, length)
    with pytest.raises(ValueError, match="offset"):
        store.read("a.bin", -1)


@pytest.mark.parametrize("key", ["", "/x", "x/", "a//b", "../x", "a/./b", "a\0b"])
def test_keys_do_not_lead_out_of_the_root(written: Place, key: str) -> None:
    store = opened(written)
    for call in (store.head, store.read, store.delete, lambda key: store.put(key, b"x")):
        with pytest.raises(ValueError, match=r"names alone|cannot be read"):
            call(key)


@pytest.mark.parametrize("kind", ["http", "hf"])
def test_what_is_read_only_says_so(kind: str, at: Callable[[str], Place]) -> None:
    place = at(kind)
    place.put("in/a.bin", b"abc")
    store = opened(place)
    assert store.read("a.bin", 1) == b"bc"
    for call in (store.delete, lambda key: store.put(key, b"x")):
        with pytest.raises(ValueError, match=r"in/a\.bin: files cannot be written there\nhint: .* is read only"):
            call("a.bin")
    if kind == "hf":
        assert keys(store) == ["a.bin"]
    else:
        assert store.head("a.bin").modified is not None
        with pytest.raises(hr.StoreError, match="cannot say which files it has"):
            keys(store)


def test_secrets_are_not_shown_and_it_pickles(written: Place) -> None:
    store = opened(written)
    store.put("a", b"x")
    again = pickle.loads(pickle.dumps(store))
    assert again.read("a") == b"x"
    assert repr(again) == repr(store) == f"Store({store.url!r})"
    assert SECRET not in repr(store)
    assert store.uri("a b") == f"{store.url}/a b"
    assert store.is_remote == (written.kind != "local")


def test_a_forked_child_has_connections_of_its_own(written: Place) -> None:
    store = opened(written)
    store.put("a", b"x" * 5000)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            store.put("b", store.read("a"))
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert store.read("b") == store.read("a")


def test_a_local_path_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = hr.Store("out/new")
    store.put("a", b"x")
    assert (tmp_path / "out" / "new" / "a").read_bytes() == b"x"
    again = pickle.dumps(store)
    monkeypatch.chdir("/")
    assert pickle.loads(again).read("a") == b"x"
    assert store.url == str(tmp_path / "out" / "new")
    assert hr.Store(f"local:{tmp_path}/out").read("new/a") == b"x"
    assert hr.Store(f"file://{tmp_path}/ou%74").read("new/a") == b"x"
    with pytest.raises(ValueError, match="expected a folder, found a file"):
        hr.Store(tmp_path / "out" / "new" / "a")
    with pytest.raises(ValueError, match=r"found a pattern(?s:.*)hint: a new folder whose name has"):
        hr.Store(tmp_path / "none-[1]")


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="url must be a path or URL, got None"):
        hr.Store(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="url must be a path or URL, got no text"):
        hr.Store("")
    with pytest.raises(TypeError, match="got a int for 'timeout'"):
        hr.Store("s3://bucket/x", storage_options={"timeout": 3})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="unknown option"):
        hr.Store("s3://bucket/x", storage_options={"tiemout": "3"})


def test_templates_are_filled_in_once(tmp_path: Path) -> None:
    noon = datetime(2024, 3, 1, 12, 30, tzinfo=UTC)
    assert expanded("a/{%Y-%m-%d}/b-{%H%M}", noon) == "a/2024-03-01/b-1230"
    for plain in ("a/{b}", "a/%Y", "{}", "a}%Y{"):
        assert expanded(plain, noon) == plain
    store = hr.Store(tmp_path / "{run-%Y}")
    store.put("a-{%Y}", b"x")
    assert store.url == str(tmp_path / f"run-{datetime.now().year}")
    assert keys(store) == ["a-{%Y}"], "names of files are taken as they stand"


def test_a_store_of_fsspec_that_cannot_rename(tmp_path: Path) -> None:
    fsspec.filesystem("memory").store.clear()
    store = hr.Store("memory://place")
    store.put("a/x", b"one")
    source = tmp_path / "source"
    source.write_bytes(b"three")
    store.put("a/x", source)
    assert keys(store) == ["a/x"]
    assert store.read("a/x") == b"three"
    store.delete("a/x")
    assert keys(store) == []


def test_a_listing_of_many_pages_is_taken_bit_by_bit(at: Callable[[str], Place]) -> None:
    place = at("gs")
    for number in range(2300):
        place.put(f"in/{number:05}", b"x")
    store = opened(place)
    wanted = [f"{number:05}" for number in range(2300)]
    before = set(threading.enumerate())
    assert keys(store) == wanted
    assert sorted(keys(store, ordered=False)) == wanted
    some = store.list(ordered=False)
    assert next(some).size == 1
    started = set(threading.enumerate()) - before
    assert [thread.name for thread in started if thread.name.startswith("headrace")] == []


# Local files


def test_a_local_file_is_whole_or_not_there(tmp_path: Path) -> None:
    store = hr.Store(tmp_path / "out")
    data = large(4)
    (tmp_path / "source").write_bytes(data)
    program = """
        import pathlib, sys
        import headrace as hr
        print("begun", flush=True)
        while True:
            hr.Store(sys.argv[1]).put("x", pathlib.Path(sys.argv[2]))
    """
    for delay in (0.0, 0.005, 0.02, 0.05, 0.1):
        process = start_python(program, tmp_path / "out", tmp_path / "source")
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(delay)
        process.kill()
        process.communicate()
        assert keys(store) in ([], ["x"])
        if keys(store):
            assert store.read("x") == data


def test_a_file_that_changes_while_it_is_stored_is_refused(at: Callable[[str], Place], tmp_path: Path) -> None:
    place, source = at("s3"), tmp_path / "source"
    source.write_bytes(large(12))
    stop = threading.Event()

    def grow() -> None:
        while not stop.wait(0.005):
            with source.open("ab") as file:
                file.write(b"more")

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        with pytest.raises(hr.DataError, match=r"source: changed while it was read(?s:.*)hint: store it once"):
            opened(place).put("x", source)
    finally:
        stop.set()
        thread.join()
    assert keys(opened(place)) == []


# Faults


@pytest.mark.parametrize("kind", FAR)
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "status", "status": 503, "count": 2, "retry_after": 0},
        {"kind": "status", "status": 500},
        {"kind": "reset", "before": True},
        {"kind": "connect"},
        {"kind": "stall", "before": True, "seconds": 30},
        {"kind": "cut"},
        {"kind": "reset"},
    ],
    ids=lambda fault: f"{fault['kind']}{fault.get('status', '')}{'-before' * fault.get('before', False)}",
)
def test_a_put_gets_over_what_passes(kind: str, fault: dict[str, object], at: Callable[[str], Place]) -> None:
    place = at(kind)
    store = opened(place, timeout="1")
    settings = {"match": "", "method": "PUT"} | fault
    place.proxies[0].add(**settings)  # type: ignore[arg-type]
    data = content("put")
    assert store.put("x", data).size == len(data)
    assert store.read("x") == data
    place.proxies[0].add(**settings)  # type: ignore[arg-type]
    with_condition = store.put("y", data, only_new=True)
    assert with_condition.size == len(data), "its own first attempt is not in its way"
    if fault["kind"] != "connect":
        assert place.proxies[0].pending() == 0


@pytest.mark.parametrize("kind", FAR)
@pytest.mark.parametrize("seed", [1, 2])
def test_parts_get_over_a_storm(kind: str, seed: int, at: Callable[[str], Place]) -> None:
    place, data = at(kind), large()
    store = opened(place, timeout="1", retry_timeout="60")
    place.proxies[0].weather = Weather(seed, rate=0.3)
    assert store.put("x", data).size == len(data)
    place.proxies[0].weather = None
    assert store.read("x") == data


@pytest.mark.parametrize("kind", FAR)
def test_a_part_that_fails_for_good_leaves_what_was_there(kind: str, at: Callable[[str], Place]) -> None:
    place = at(kind)
    store = opened(place, timeout="1", retry_timeout="1.5", max_retries="2")
    store.put("x", b"before")
    match = {"s3": "partNumber=2", "gs": "partNumber=2", "az": "comp=block&"}[kind]
    place.proxies[0].add("status", match=match, method="PUT", status=503, count=100)
    with pytest.raises(hr.StoreError, match=r"/in/x: write bytes \d+\.\.\d+ failed after 3 attempts(?s:.*)503"):
        store.put("x", large())
    place.clear()
    assert store.read("x") == b"before"
    assert keys(store) == ["x"]
    # And the same again succeeds.
    assert store.put("x", large()).size == len(large())
    if kind == "s3":
        assert isinstance(place.server, S3Server)
        status, answer = place.server.request("GET", f"/{place.bucket}", query="uploads=")
        assert status == 200
        assert b"<UploadId>" not in answer, "parts of the failed upload were forgotten"


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_an_upload_that_the_server_forgot_is_done_again(kind: str, at: Callable[[str], Place]) -> None:
    place, data = at(kind), large()
    store = opened(place)
    place.proxies[0].add("status", match="uploadId=", method="POST", status=404, code="NoSuchUpload")
    assert store.put("x", data).size == len(data)
    assert store.read("x") == data


@pytest.mark.parametrize("kind", FAR)
def test_an_end_that_was_not_heard_of_is_no_fault(kind: str, at: Callable[[str], Place]) -> None:
    place, data = at(kind), large()
    store = opened(place)
    match, method = ("comp=blocklist", "PUT") if kind == "az" else ("uploadId=", "POST")
    place.proxies[0].add("cut", match=match, method=method)
    assert store.put("x", data).size == len(data)
    assert store.read("x") == data


@pytest.mark.parametrize("kind", FAR)
def test_what_is_stored_is_looked_at(kind: str, at: Callable[[str], Place]) -> None:
    place = at(kind)
    store = opened(place)
    place.proxies[0].add("etag", match="", method="HEAD")
    assert store.put("x", b"one").size == 3, "once more, and it is right"
    place.proxies[0].add("etag", match="", method="HEAD", count=2)
    with pytest.raises(
        hr.StoreError, match=r"expected 3 bytes of version .* to be stored, found 3 of version .*another"
    ):
        store.put("x", b"two")


def test_credentials_that_are_renewed_in_mid_upload(
    at: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, data = at("s3"), large()
    server = place.server
    assert isinstance(server, S3Server)
    for name, value in server.environment(place.endpoint).items():
        monkeypatch.setenv(name, value)
    store = hr.Store(place.url("in"))
    server.add_key("renewed-key", "renewed-secret-0123456789")
    place.proxies[0].add("expire", match="partNumber=2", method="PUT", status=400)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "renewed-secret-0123456789")
    assert store.put("x", data).size == len(data)
    assert store.read("x") == data


def test_refused_credentials_are_told_without_them(at: Callable[[str], Place]) -> None:
    place = at("s3")
    wrong = hr.Store(place.url("in"), storage_options=place.options(secret_access_key="wrong-secret-0123456789"))
    for call in (wrong.delete, lambda key: wrong.put(key, b"x"), lambda key: wrong.put(key, large())):
        with pytest.raises(hr.StoreError, match=r"SignatureDoesNotMatch(?s:.*)AWS_ACCESS_KEY_ID") as caught:
            call("x")
        assert "wrong-secret" not in str(caught.value)
    nowhere = hr.Store(f"s3://no-such-bucket-{place.bucket}/in", storage_options=place.options())
    for data in (b"x", large()):
        with pytest.raises(hr.MissingError, match=r"NoSuchBucket(?s:.*)hint: check the bucket's name"):
            nowhere.put("x", data)
