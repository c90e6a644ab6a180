"""Every kind of store in bad weather: rows are exact, or there is one error in time."""

import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from files import environment
from headrace._files import Store
from places import LISTED, SECRET, Place
from store_data import in_storage_order, names_of, opened, opened_records, rows
from tools.azure_server import AzureServer, signed_query
from tools.fault_proxy import Link, Weather
from tools.hub_server import HubServer
from tools.s3_server import S3Server

pytestmark = pytest.mark.usefixtures("no_settings_from_outside")

WATCHDOG = 30.0
"""Seconds: what is timed takes a few, and more on a busy machine; what it is not to wait for takes longer than this."""
LISTINGS = {"s3": "list-type", "gs": "list-type", "az": "comp=list", "hf": "/tree/"}


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_are_exact_in_bad_weather(remote: Place, corpus: Path, seed: int) -> None:
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
    remote.proxies[0].add("connect", count=2)
    assert rows(opened(remote, corpus)) == rows(hr.open(corpus).pack(100))
    assert remote.proxies[0].pending() == 0


def test_more_readers_than_a_server_has_connections_for(at: Callable[[str], Place], corpus: Path) -> None:
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
    # What the variables name is asked, and nobody else.
    remote.put("in/a.parquet", b"x")
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{hole.getsockname()[1]}")
        begun = time.monotonic()
        with pytest.raises(hr.StoreError, match=r"in/a\.parquet.*attempts"):
            hr.open(remote.url("in/a.parquet"), storage_options=remote.hasty())
        assert time.monotonic() - begun < WATCHDOG
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
    packed = opened(remote, corpus, remote.hasty())
    iterator = iter(in_storage_order(packed))
    wanted = rows(hr.open(corpus).pack(100), shuffle=False)
    found = [next(iterator)["tokens"].tolist()[0]]
    remote.reads.add(kind, count=10**6, **settings)
    begun = time.monotonic()
    with pytest.raises(hr.StoreError, match=told) as caught:
        found.extend(batch["tokens"].tolist()[0] for batch in iterator)
    assert time.monotonic() - begun < WATCHDOG
    assert found == wanted[: len(found)]
    message = str(caught.value)
    assert f"{remote.bucket}/corpus/" in message
    assert "attempt" in message
    assert "\nhint: " in message
    assert SECRET not in message


@pytest.mark.parametrize(
    "kind, settings",
    [("stall", {"before": True}), ("stall", {}), ("drip", {"seconds": 60})],
    ids=["answer", "body", "drip"],
)
def test_a_read_that_stalls_is_asked_for_a_second_time(remote: Place, corpus: Path, kind: str, settings: Any) -> None:
    wanted = rows(hr.open(corpus).pack(100))
    packed = opened(remote, corpus, remote.options(hedge="0.1"))
    remote.reads.add(kind, **settings)
    loader = hr.DataLoader(packed, 8, seed=3, epochs=1, num_workers=2)
    begun = time.monotonic()
    assert [row for batch in loader for row in batch["tokens"].tolist()] == wanted
    assert time.monotonic() - begun < WATCHDOG, "or the first one was waited for"
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
    assert store.read(file) == b"x" * 1000
    assert store.traffic().hedged == 1
    assert store.traffic().retries == 0, "or the first one was waited for"
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
    place.clear()
    place.reads.add(fault)
    with pytest.raises(hr.DataError, match=r"\.parquet: changed"):
        list(iterator)
    # Who is refused the old version looks which one there is, and that may be for several parts.
    assert place.repeats("GET") == 1, "no blind retries"


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


# Credentials


@pytest.mark.parametrize("kind", ["s3", "gs", "az", "hf"])
def test_credentials_that_are_renewed_in_mid_run(at: Callable[[str], Place], corpus: Path, kind: str) -> None:
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
