"""Every kind of store, asked for the same things through the same code, in good weather and in bad."""

import json
import pickle
import random
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from files import environment
from headrace._files import Store
from places import LISTED, SECRET, Place
from tools.azure_server import AzureServer, signed_query
from tools.fault_proxy import Link, Weather
from tools.http_server import FileServer
from tools.hub_server import HubServer
from tools.s3_server import S3Server

pytestmark = pytest.mark.usefixtures("no_settings_from_outside")

LISTINGS = {"s3": "list-type", "gs": "list-type", "az": "comp=list", "hf": "/tree/"}
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


def content(name: str) -> bytes:
    return random.Random(name).randbytes(5000 + len(name))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of five row groups of 4,000 tokens, which do not compress."""
    folder = tmp_path_factory.mktemp("corpus")
    values = np.random.default_rng(0).integers(0, 2**31 - 1, (4, 20_000), dtype=np.int32)
    offsets = pa.array(np.arange(0, 20_001, 100, dtype=np.int32))
    for number in range(4):
        table = pa.table({"tokens": pa.ListArray.from_arrays(offsets, pa.array(values[number]))})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=40, compression="none", use_dictionary=False)
    return folder


PARTS = [f"{number}.parquet" for number in range(4)]


def opened(place: Place, corpus: Path, options: dict[str, str] | None = None) -> hr.PackedDataset:
    """The corpus at a place, which is put there first."""
    place.server.put_folder(place.bucket, corpus, "corpus/")
    urls = place.urls("corpus", PARTS)
    return hr.open(urls, storage_options=place.patient() if options is None else options, index="rebuild").pack(100)


def rows(packed: hr.PackedDataset, **options: Any) -> list[list[int]]:
    options = {"seed": 3, "epochs": 1, "num_workers": 2} | options
    loader = hr.DataLoader(packed, 8, **options)
    return [row for batch in loader for row in batch["tokens"].tolist()]


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of two hundred lines, in blocks that are read one by one."""
    folder = tmp_path_factory.mktemp("records")
    for number in range(3):
        lines = [json.dumps({"id": f"{number}-{line}", "text": "ü" * line}) for line in range(200)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    return folder


LINES = [f"{number}.jsonl" for number in range(3)]


def opened_records(place: Place, records: Path) -> hr.SampleDataset:
    """The records at a place, which are put there first."""
    place.server.put_folder(place.bucket, records, "records/")
    urls = place.urls("records", LINES)
    return hr.open(urls, storage_options=place.patient())


def names_of(data: hr.SampleDataset, **options: Any) -> list[str]:
    return [name for batch in hr.DataLoader(data, 10, seed=1, epochs=1, **options) for name in batch["id"]]


def in_storage_order(packed: hr.PackedDataset) -> hr.DataLoader:
    """One row group after the other, as little ahead as can be."""
    return hr.DataLoader(packed, 1, shuffle=False, window=1, num_workers=1, prefetch_factor=1, epochs=1, memory="16MiB")


# Files


def test_files_are_listed_and_read_by_any_name(place: Place) -> None:
    # B097.
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
    # B110.
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
    begun = time.monotonic()
    with pytest.raises(hr.MissingError, match="no-such-bucket") as caught:
        hr.open(url, storage_options=remote.options())
    assert time.monotonic() - begun < 5, "what cannot succeed is not tried again"
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
    begun = time.monotonic()
    with pytest.raises(hr.StoreError, match=r"40[13]") as caught:
        hr.open(url, storage_options=options)
    text = f"{caught.value} {caught.value!r}"
    assert not isinstance(caught.value, hr.MissingError)
    assert remote.bucket in text
    assert "hint:" in text
    assert time.monotonic() - begun < 5, "what cannot succeed is not tried again"
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


# Weather


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_are_exact_in_bad_weather(remote: Place, corpus: Path, seed: int) -> None:
    # B100, B101.
    wanted = rows(hr.open(corpus).pack(100))
    for number, proxy in enumerate(remote.proxies):
        proxy.weather = Weather(10 * seed + number, rate=0.3)
    packed = opened(remote, corpus)
    loader = hr.DataLoader(packed, 8, seed=3, epochs=1, num_workers=2)
    assert [row for batch in loader for row in batch["tokens"].tolist()] == wanted
    struck = remote.count("faults")
    assert struck >= 5, "or nothing was tested"
    assert loader.stats()["retries"] > 0


def test_connections_that_are_reset_at_once_are_made_again(remote: Place, corpus: Path) -> None:
    # B101.
    remote.proxies[0].add("connect", count=2)
    assert rows(opened(remote, corpus)) == rows(hr.open(corpus).pack(100))
    assert remote.proxies[0].pending() == 0


def test_more_readers_than_a_server_has_connections_for(at: Callable[[str], Place], corpus: Path) -> None:
    # B107.
    place = at("s3")
    wanted = rows(hr.open(corpus).pack(100))
    packed = opened(place, corpus, place.options())
    place.proxies[0].connections = 8
    place.proxies[0].link = Link(latency=0.01)
    iterators = [iter(hr.DataLoader(packed, 8, seed=3, epochs=1, num_workers=4)) for _ in range(16)]
    found = [[row for batch in iterator for row in batch["tokens"].tolist()] for iterator in iterators]
    assert all(rows == wanted for rows in found)
    assert place.proxies[0].counts().most_connections <= 8


def test_a_proxy_of_the_network_that_answers_nothing_is_an_error_in_time(
    remote: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # B106: what the variables name is asked, and nobody else.
    remote.put("in/a.parquet", b"x")
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{hole.getsockname()[1]}")
        begun = time.monotonic()
        with pytest.raises(hr.StoreError, match=r"in/a\.parquet.*attempts"):
            hr.open(remote.url("in/a.parquet"), storage_options=remote.hasty())
        assert time.monotonic() - begun < 10
    assert remote.count("requests") == 0


def test_samples_are_exact_in_bad_weather(remote: Place, records: Path) -> None:
    for number, proxy in enumerate(remote.proxies):
        proxy.weather = Weather(number, rate=0.5)
    assert names_of(opened_records(remote, records)) == names_of(hr.open(records))
    assert remote.count("faults") > 0, "or nothing was tested"


FOREVER: list[tuple[str, dict[str, Any], str]] = [
    ("status", {"status": 503}, "503"),
    ("status", {"status": 429, "retry_after": 60}, "429"),
    ("stall", {"before": True}, r"0\.5 s"),
    ("stall", {}, r"0\.5 s"),
    ("reset", {"before": True}, "reset|closed"),
    ("drip", {"seconds": 0.2}, "bytes"),
]


@pytest.mark.parametrize(
    "kind, settings, told", FOREVER, ids=[" ".join(map(str, (kind, *s.values()))) for kind, s, _ in FOREVER]
)
def test_what_stays_broken_is_one_error_in_time(
    remote: Place, corpus: Path, kind: str, settings: dict[str, Any], told: str
) -> None:
    # B106.
    packed = opened(remote, corpus, remote.hasty())
    iterator = iter(in_storage_order(packed))
    wanted = rows(hr.open(corpus).pack(100), shuffle=False)
    found = [next(iterator)["tokens"].tolist()[0]]
    remote.reads.add(kind, count=10**6, **settings)
    begun = time.monotonic()
    with pytest.raises(hr.StoreError, match=told) as caught:
        found.extend(batch["tokens"].tolist()[0] for batch in iterator)
    assert time.monotonic() - begun < 12
    assert found == wanted[: len(found)]
    message = str(caught.value)
    assert f"{remote.bucket}/corpus/" in message
    assert "attempt" in message
    assert "\nhint: " in message
    assert SECRET not in message


@pytest.mark.parametrize(
    "kind, settings",
    [("stall", {"before": True}), ("stall", {}), ("drip", {"seconds": 5})],
    ids=["answer", "body", "drip"],
)
def test_a_read_that_stalls_is_asked_for_a_second_time(remote: Place, corpus: Path, kind: str, settings: Any) -> None:
    wanted = rows(hr.open(corpus).pack(100))
    packed = opened(remote, corpus, remote.options(hedge="0.1"))
    remote.reads.add(kind, **settings)
    loader = hr.DataLoader(packed, 8, seed=3, epochs=1, num_workers=2)
    begun = time.monotonic()
    assert [row for batch in loader for row in batch["tokens"].tolist()] == wanted
    assert time.monotonic() - begun < 4, "or the first one was waited for"
    assert remote.reads.pending() == 0
    stats = loader.stats()
    # Others may be slow by chance; each has one second request at most.
    assert 1 <= stats["hedged"] <= stats["requests"] // 2
    assert stats["retries"] == 0


def test_no_read_is_asked_for_twice_unless_that_is_wanted(remote: Place, corpus: Path) -> None:
    packed = opened(remote, corpus)
    for proxy in remote.proxies:
        proxy.link = Link(latency=0.2)
    loader = hr.DataLoader(packed, 8, seed=3, epochs=1)
    list(loader)
    assert (loader.stats()["hedged"], loader.stats()["retries"]) == (0, 0)


def test_a_second_request_that_is_refused_does_not_matter(at: Callable[[str], Place], corpus: Path) -> None:
    place = at("s3")
    packed = opened(place, corpus, place.options(hedge="0.1"))
    place.reads.add("stall", seconds=0.5, before=False)
    place.reads.add("status", status=403)
    loader = in_storage_order(packed)
    assert [row for batch in loader for row in batch["tokens"].tolist()] == rows(packed, shuffle=False)
    assert loader.stats()["hedged"] >= 1


def test_the_environment_may_ask_for_second_requests(
    at: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = at("s3")
    place.put("in/a.bin", b"x" * 1000)
    monkeypatch.setenv("HEADRACE_HEDGE", "100ms")
    store = Store([place.url("in")], place.options())
    (file,) = store.files
    place.reads.add("stall", before=True)
    begun = time.monotonic()
    assert store.read(file) == b"x" * 1000
    assert time.monotonic() - begun < 2
    assert store.traffic().hedged == 1
    monkeypatch.setenv("HEADRACE_HEDGE", "soon")
    with pytest.raises(ValueError, match=r"HEADRACE_HEDGE must be seconds.*'?soon"):
        _ = Store([place.url("in")], place.options()).files


@pytest.mark.parametrize("fault", ["etag", "replace"])
@pytest.mark.parametrize("kind", ["s3", "gs", "az", "http"])
def test_another_version_in_mid_run_is_an_error(
    at: Callable[[str], Place], corpus: Path, kind: str, fault: str
) -> None:
    # A commit of the Hub is one version, and the tags of its content network mean nothing.
    place = at(kind)
    iterator = iter(in_storage_order(opened(place, corpus)))
    next(iterator)
    place.reads.add(fault)
    begun = time.monotonic()
    with pytest.raises(hr.DataError, match=r"\.parquet: changed"):
        list(iterator)
    assert time.monotonic() - begun < 5, "no blind retries"


def listed(place: Place) -> list[str]:
    """Thirty files at a place."""
    names = [f"{number:02}.bin" for number in range(30)]
    for name in names:
        place.put(f"in/{name}", b"x")
    return names


@pytest.mark.parametrize("kind", LISTED)
@pytest.mark.parametrize("fault", ["cut", "short"])
def test_a_listing_that_breaks_off_is_asked_for_again(at: Callable[[str], Place], kind: str, fault: str) -> None:
    place = at(kind)
    names = listed(place)
    place.proxies[0].add(fault, match=LISTINGS[kind], count=2)
    store = Store([place.url("in")], place.options())
    assert [file.path for file in store.files] == names
    assert place.proxies[0].pending() == 0


@pytest.mark.parametrize("fault", ["cut", "short"])
@pytest.mark.parametrize("kind", LISTED)
def test_a_listing_that_stays_cut_short_is_an_error(at: Callable[[str], Place], kind: str, fault: str) -> None:
    place = at(kind)
    listed(place)
    place.proxies[0].add(fault, match=LISTINGS[kind], count=100)
    with pytest.raises(hr.StoreError, match=f"{place.bucket}/in/: list failed after [234] attempts") as caught:
        _ = Store([place.url("in")], place.hasty()).files
    if fault == "short":
        assert re.search("broke off|cannot be read", str(caught.value))
    assert "\nhint: " in str(caught.value)


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


# Credentials


@pytest.mark.parametrize("kind", ["s3", "gs", "az", "hf"])
def test_credentials_that_are_renewed_in_mid_run(at: Callable[[str], Place], corpus: Path, kind: str) -> None:
    # B103, B104.
    place = at(kind)
    server, endpoint = place.server, place.endpoint
    if isinstance(server, S3Server):
        old = server.environment(endpoint)
        server.add_key(f"key-{place.bucket}", "second-secret-0123456789")
        new = old | {
            "AWS_ACCESS_KEY_ID": f"key-{place.bucket}",
            "AWS_SECRET_ACCESS_KEY": "second-secret-0123456789",
        }
    elif isinstance(server, AzureServer):
        whole = server.environment(endpoint)
        whole.pop("AZURE_STORAGE_ACCOUNT_KEY")
        old, new = (
            whole | {"AZURE_STORAGE_SAS_TOKEN": signed_query(server.account, server.key, place.bucket, seconds=seconds)}
            for seconds in (1000, 2000)
        )
    elif isinstance(server, HubServer):
        server.tokens["hf_second"] = None
        old = server.environment(endpoint)
        new = old | {"HF_TOKEN": "hf_second"}
    else:
        old, new = ({"GOOGLE_BASE_URL": str(endpoint), "GOOGLE_BEARER_TOKEN": token} for token in ("one", "two"))
    wanted = rows(hr.open(corpus).pack(100), shuffle=False)
    # So slow that the rest is not read ahead.
    for proxy in place.proxies:
        proxy.link = Link(latency=0.1)
    with environment(**old):
        iterator = iter(in_storage_order(opened(place, corpus, {})))
        found = [next(iterator)["tokens"].tolist()[0]]
        status = {"s3": 400, "gs": 401, "az": 403, "hf": 401}[kind]
        place.proxies[0].add("expire", status=status, match="")
        if kind == "hf":
            # Where files lie is known for a while, and then asked for again.
            place.reads.add("expire", match="")
        with environment(**new):
            found.extend(batch["tokens"].tolist()[0] for batch in iterator)
    assert found == wanted
    refused = [note for note in place.proxies[0].requests() if note["fault"] == "expire"]
    assert refused, "or nothing was tested"


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


# The link


def test_a_first_batch_takes_few_round_trips(at: Callable[[str], Place], corpus: Path) -> None:
    # B116.
    place = at("s3")
    place.server.put_folder(place.bucket, corpus, "corpus/")
    place.proxies[0].link = Link(latency=0.1, bandwidth=50e6)
    packed = hr.open(place.url("corpus"), storage_options=place.options(), index="rebuild").pack(100)
    next(iter(hr.DataLoader(packed, 8, seed=3)))
    # The listing, the footers, the first window.
    assert place.proxies[0].counts().depth <= 5


def test_the_link_is_kept_busy(at: Callable[[str], Place], tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 2**31 - 1, (8, 4_000_000), dtype=np.int32)
    offsets = pa.array(np.arange(0, 4_000_001, 1000, dtype=np.int32))
    for number in range(8):
        table = pa.table({"tokens": pa.ListArray.from_arrays(offsets, pa.array(values[number]))})
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=250, compression="none", use_dictionary=False)
    place = at("s3")
    place.server.put_folder(place.bucket, tmp_path)
    packed = hr.open(place.url(), storage_options=place.options()).pack(2048)
    place.clear()
    place.proxies[0].link = Link(latency=0.02, bandwidth=50e6)
    assert len(list(hr.DataLoader(packed, 8, seed=3, epochs=1))) > 1900
    requests = place.proxies[0].requests()
    took = max(note["end"] for note in requests) - min(note["time"] for note in requests)
    found = place.proxies[0].counts().bytes
    assert found > 128_000_000
    assert found / 50e6 >= 0.9 * took, (found / 50e6 / took, took)
