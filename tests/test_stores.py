"""Every kind of store, asked for the same things through the same code."""

import json
import pickle
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace._files import Store
from places import SECRET, Place
from store_data import LINES, PARTS, content, names_of, opened, opened_records, rows
from tools.azure_server import AzureServer
from tools.http_server import FileServer
from tools.hub_server import HubServer

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
]


# Files


def test_files_are_listed_and_read_by_any_name(place: Place) -> None:
    for name in NAMES:
        place.put(f"in/{name}", content(name))
    place.put("in-other/x.bin", b"x")
    store = Store(place.urls("in", NAMES), place.options())
    assert {place.name(file, "in"): file.size for file in store.files} == {name: len(content(name)) for name in NAMES}
    assert [file.path.encode() for file in store.files] == sorted(file.path.encode() for file in store.files)
    for file in store.files:
        assert store.read(file) == content(place.name(file, "in"))
        assert store.head(file.path) == file
    # Each by itself too, and below a folder of an odd name.
    for name in NAMES:
        alone = Store([place.url(f"in/{name}")], place.options())
        assert [alone.read(file) for file in alone.files] == [content(name)], name


def test_ranges_are_exact(place: Place) -> None:
    body = content("ranges")
    place.put("in/a.bin", body)
    store = Store(place.urls("in", ["a.bin"]), place.options())
    (file,) = store.files
    size = len(body)
    chance = random.Random(1)
    ranges = [(0, 0), (0, 1), (size - 1, size), (size, size), (0, size), (3, 10)]
    ranges += [tuple(sorted(chance.choices(range(size + 1), k=2))) for _ in range(20)]
    for start, stop in ranges:
        assert store.read(file, start, stop) == body[start:stop], (start, stop)
    with pytest.raises(hr.DataError, match=rf"a\.bin.*{size}"):
        store.read(file, 0, size + 1)


def test_empty_files_are_there(place: Place) -> None:
    for name in ("a.parquet", "b.bin"):
        place.put(f"in/{name}", b"")
    place.put("in/c.bin", b"c")
    store = Store([place.url("in/b.bin")], place.options())
    assert [(file.size, store.read(file)) for file in store.files] == [(0, b"")]
    assert store.head(store.files[0].path).size == 0
    with pytest.raises(hr.DataError, match=r"a\.parquet"):
        hr.open(place.url("in/a.parquet"), storage_options=place.options())


@pytest.mark.parametrize("size", ["as long", "shorter", "longer"])
def test_a_file_that_is_replaced_is_never_mixed(place: Place, size: str) -> None:
    old = content("old")
    new = {"as long": old[::-1], "shorter": old[: len(old) // 2], "longer": old + b"more"}[size]
    place.put("in/a.bin", old)
    store = Store(place.urls("in", ["a.bin"]), place.options())
    (file,) = store.files
    if place.kind == "local":
        time.sleep(0.02)  # The clock of files ticks some hundred times a second.
    place.put("in/a.bin", new)
    if place.kind == "hf":
        # A commit stays what it is.
        assert store.read(file) == old
    else:
        with pytest.raises(hr.DataError, match=r"a\.bin.*changed"):
            store.read(file, 10, 20)
    again = Store(place.urls("in", ["a.bin"]), place.options())
    assert [again.read(file) for file in again.files] == [new]
    assert [again_file.version for again_file in again.files] != [file.version]


def test_a_file_that_is_deleted_is_named(remote: Place) -> None:
    remote.put("in/a.bin", b"x" * 100)
    store = Store(remote.urls("in", ["a.bin"]), remote.options())
    (file,) = store.files
    remote.server.delete(remote.bucket, "in/a.bin")
    if remote.kind == "hf":
        assert store.read(file) == b"x" * 100
    else:
        with pytest.raises(hr.MissingError, match=r"in/a\.bin") as caught:
            store.read(file)
        assert "\n" not in str(caught.value), "no raw answer"


def test_what_is_missing_is_named(place: Place) -> None:
    place.put("in/a.bin", b"x")
    for path in ("gone", "gone/b.parquet", "in/b.bin"):
        with pytest.raises(hr.MissingError, match=path.rpartition("/")[2]) as caught:
            hr.open(place.url(path), storage_options=place.options())
        assert SECRET not in str(caught.value)
    if place.kind != "http":
        with pytest.raises(ValueError, match="none"):
            hr.open(place.url("in/none*"), storage_options=place.options())


def test_a_missing_bucket_is_named(remote: Place) -> None:
    if remote.kind == "gs":
        # The server of the tests answers 500, Google 404.
        remote.proxies[0].add("status", status=404, code="NoSuchBucket", match="list-type", count=100)
    bucket = "org/no-such-bucket" if remote.kind == "hf" else "no-such-bucket"
    url = remote.server.url(bucket, "data", remote.endpoint)
    with pytest.raises(hr.MissingError, match="no-such-bucket") as caught:
        hr.open(url, storage_options=remote.options())
    assert remote.repeats() == 1, "what cannot succeed is not tried again"
    if remote.kind != "http":
        assert "hint:" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_refused_credentials_are_told_and_not_shown(remote: Place) -> None:
    remote.put("in/a.parquet", b"x")
    wrong = "not-the-secret-at-all"
    url, options = remote.url("in/a.parquet"), remote.options()
    if remote.kind == "s3":
        options["secret_access_key"] = wrong
    elif remote.kind == "az":
        options["account_key"] = AzureServer(secret=wrong).key
    elif remote.kind == "hf":
        options["token"] = wrong
    elif remote.kind == "gs":
        options = {"endpoint_url": options["endpoint_url"], "bearer_token": wrong}
        remote.proxies[0].add("status", status=401, match="", count=100)
        remote.proxies[0].add("status", status=401, match="", count=100, method="HEAD")
    else:
        options["bearer_token"] = wrong
        url += f"?signature={wrong}"
        for method in ("GET", "HEAD"):
            remote.proxies[0].add("status", status=403, match="", count=100, method=method)
    with pytest.raises(hr.StoreError, match=r"40[13]") as caught:
        hr.open(url, storage_options=options)
    assert remote.repeats() == 1, "what cannot succeed is not tried again"
    text = f"{caught.value} {caught.value!r}"
    assert not isinstance(caught.value, hr.MissingError)
    assert remote.bucket in text
    assert "hint:" in text
    for secret in (SECRET, wrong, AzureServer(secret=wrong).key):
        assert secret not in text


# Datasets


def test_tokens_are_those_of_the_local_files(place: Place, corpus: Path) -> None:
    local = hr.open(corpus).pack(100)
    packed = opened(place, corpus)
    for options in ({}, {"shuffle": False}, {"window": 3, "lanes": 4}):
        assert rows(packed, **options) == rows(local, **options)
    # A run moves to another store with the same data, if asked to.
    state = hr.DataLoader(local, 8, seed=3).state_dict()
    hr.DataLoader(packed, 8).load_state_dict(state)
    batch = next(iter(hr.DataLoader(packed, 8, seed=3)))
    assert {Path(part.file).name for row in batch.sources() for part in row} <= set(PARTS)


def test_samples_are_those_of_the_local_files(place: Place, records: Path) -> None:
    data = opened_records(place, records)
    wanted = hr.open(records)
    assert len(data) == len(wanted) == 600
    assert data[[3, 499, 177]] == wanted[[3, 499, 177]]
    assert names_of(data) == names_of(wanted)


def test_secrets_are_never_told(remote: Place, corpus: Path, tmp_path: Path) -> None:
    packed = opened(remote, corpus, remote.hasty())
    loader = hr.DataLoader(packed, 8, seed=3)
    told = [repr(packed), repr(loader), json.dumps(loader.state_dict()), json.dumps(packed.info())]
    told += [json.dumps(loader.stats()), repr(loader.sources(0))]
    for kind, settings in [("status", {"status": 403}), ("status", {"status": 503}), ("reset", {"before": True})]:
        for proxy in remote.proxies:
            proxy.add(kind, count=10**6, match="", **settings)
        with pytest.raises(hr.HeadraceError) as caught:
            rows(packed)
        told += [str(caught.value), repr(caught.value)]
        remote.clear()
    hidden = [SECRET, AzureServer(secret=SECRET).key]
    assert all(text and not any(secret in text for secret in hidden) for text in told), told


def test_pages_of_a_listing_are_put_together(at: Callable[[str], Place]) -> None:
    place = at("s3")
    for number in range(1001):
        place.put(f"in/{number:04}.bin", b"x")
    assert len(Store([place.url("in")], place.options()).files) == 1001
    assert len(place.proxies[0].requests()) == 2
    hub = at("hf")
    assert isinstance(hub.server, HubServer)
    hub.server.page, before = 7, hub.server.page
    try:
        names = [f"{number % 5}/{number:02}.bin" for number in range(30)]
        for name in names:
            hub.put(f"in/{name}", b"x")
        assert [file.path for file in Store([hub.url("in")], hub.options()).files] == sorted(names)
    finally:
        hub.server.page = before


# The Hub


def test_the_hub_is_read_at_one_commit_without_telling_its_token(at: Callable[[str], Place], corpus: Path) -> None:
    place = at("hf")
    hub = place.server
    assert isinstance(hub, HubServer)
    packed = opened(place, corpus)
    wanted = rows(packed)
    for name in PARTS:
        place.put(f"corpus/{name}", b"other")
    assert rows(packed) == wanted
    assert hub.leaks == []
    assert place.reads.requests(), "or nobody could have been told"
    hub.branch(place.bucket, "refs/convert/parquet")
    place.put("corpus/0.parquet", b"newer")
    url = hub.url(place.bucket, "corpus/0.parquet", revision="refs%2Fconvert%2Fparquet")
    store = Store([url], place.options())
    assert [store.read(file) for file in store.files] == [b"other"]


def test_gated_data_says_how_to_get_access(at: Callable[[str], Place]) -> None:
    place = at("hf")
    hub = place.server
    assert isinstance(hub, HubServer)
    hub.tokens["hf_guest"] = set()
    bucket = "org/gated"
    hub.make_bucket(bucket, "gated")
    hub.put(bucket, "a.parquet", b"x")
    for options in (place.options(token="hf_guest"), {"endpoint": place.options()["endpoint"]}):
        with pytest.raises(hr.StoreError, match=f"(?s){bucket}.*access") as caught:
            hr.open(hub.url(bucket, "a.parquet"), storage_options=options)
        assert f"/datasets/{bucket}" in str(caught.value)
        assert "hf_guest" not in str(caught.value)


# Web servers


def test_web_servers_that_can_do_less(corpus: Path, records: Path) -> None:
    wanted, names = rows(hr.open(corpus).pack(100)), names_of(hr.open(records))
    less: list[dict[str, Any]] = [{"head": False}, {"ranges": False}, {"tags": "weak"}, {"tags": "none"}]
    for settings in [*less, {"secret": SECRET}]:
        with FileServer(**settings) as server:
            server.make_bucket("data")
            server.put_folder("data", corpus)
            urls = [server.url("data", name) for name in PARTS]
            dataset = hr.open(urls, index="rebuild")
            assert rows(dataset.pack(100)) == wanted, settings
            # Lines are read from the first byte on.
            server.put_folder("data", records)
            lines = hr.open([server.url("data", name) for name in LINES])
            assert names_of(lines) == names, settings
            assert "signature" not in f"{dataset!r} {dataset.url} {dataset.info()}"


# Other processes


@pytest.mark.parametrize("settings", [{"secret": SECRET}, {"login": f"reader:{SECRET}"}], ids=["signed", "login"])
def test_processes_send_what_the_urls_say(records: Path, settings: dict[str, str]) -> None:
    with FileServer(**settings) as server:  # type: ignore[arg-type]
        server.make_bucket("data")
        server.put_folder("data", records)
        data = hr.open([server.url("data", name) for name in LINES])
        assert names_of(data, worker_type="process", num_workers=2) == names_of(hr.open(records))
        store = pickle.loads(pickle.dumps(Store([server.url("data", LINES[0])], {})))
        assert SECRET not in f"{store.url} {store.uri(LINES[0])}"


def test_processes_read_the_commit_that_was_opened(at: Callable[[str], Place], corpus: Path, records: Path) -> None:
    place = at("hf")
    lines, packed = opened_records(place, records), opened(place, corpus)
    for folder, names in (("records", LINES), ("corpus", PARTS)):
        for name in names:
            place.put(f"{folder}/{name}", b"moved on")
    assert names_of(lines, worker_type="process", num_workers=2) == names_of(hr.open(records))
    assert rows(pickle.loads(pickle.dumps(packed))) == rows(hr.open(corpus).pack(100))
