"""S3: a real server, and a proxy before it that breaks what a network breaks."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from files import assert_same, count_up, environment, loaded, run_python, stored, write
from tools import s3_server
from tools.fault_proxy import FaultProxy
from tools.s3_server import S3Server

SECRET = "headrace-secret-0123456789"
NUMBERS = count()


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    """versitygw: that of HEADRACE_VERSITYGW, or else one that is built with Go, once."""
    program = os.environ.get("HEADRACE_VERSITYGW")
    found = program is not None and Path(program).is_file()
    if (
        not found
        and not shutil.which("go")
        and not (s3_server.bin_folder() / f"versitygw-{s3_server.VERSION}").exists()
    ):
        reason = "no S3 server: neither HEADRACE_VERSITYGW nor Go is there, so NOTHING of S3 is tested"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        if found:
            patch.setattr(s3_server, "ensure_program", lambda: Path(str(program)))
        with S3Server(secret=SECRET) as running:
            yield running


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", server.port) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six files of five row groups of 4,000 tokens, which do not compress."""
    folder = tmp_path_factory.mktemp("s3")
    values = np.random.default_rng(0).integers(0, 2**31 - 1, (6, 20_000), dtype=np.int32)
    for number in range(6):
        offsets = pa.array(np.arange(0, 20_001, 100, dtype=np.int32))
        table = pa.table({"tokens": pa.ListArray.from_arrays(offsets, pa.array(values[number]))})
        path = folder / "sub" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path, row_group_size=40, compression="none", use_dictionary=False)
    return folder


@pytest.fixture(scope="session")
def bucket(server: S3Server, folder: Path) -> str:
    server.make_bucket("tokens")
    server.put_folder("tokens", folder, "data/")
    return "tokens"


@pytest.fixture
def fresh(server: S3Server) -> str:
    """A bucket of the test's own."""
    name = f"own-{next(NUMBERS)}"
    server.make_bucket(name)
    return name


def fast(options: dict[str, str], **more: str) -> dict[str, str]:
    """Settings with which what cannot succeed fails soon."""
    return {**options, "timeout": "1", "retry_timeout": "3", "max_retries": "3"} | more


def tokens_of(packed: hr.PackedDataset, **options: Any) -> list[list[int]]:
    options = {"seed": 3, "epochs": 1, "num_workers": 2} | options
    return [row for batch in hr.DataLoader(packed, 8, **options) for row in batch["tokens"].tolist()]


def steps_in_storage_order(packed: hr.PackedDataset, **options: Any) -> Iterator[hr.Batch]:
    """One row group after the other, as little ahead as can be."""
    loader = hr.DataLoader(
        packed, 1, shuffle=False, window=1, num_workers=1, prefetch_factor=1, epochs=1, memory="16MiB", **options
    )
    return iter(loader)


# The same data


def test_the_stream_is_that_of_the_local_files(server: S3Server, bucket: str, folder: Path) -> None:
    remote = hr.open(f"s3://{bucket}/data", storage_options=server.storage_options())
    local = hr.open(folder)
    assert remote.url == f"s3://{bucket}/data"
    assert remote.files == [f"s3://{bucket}/data/sub/{number}.parquet" for number in range(6)]
    assert len(remote) == len(local)
    assert dict(remote.schema) == dict(local.schema)
    for options in ({}, {"shuffle": False}, {"memory": "16MiB"}, {"window": 3, "lanes": 4}):
        assert tokens_of(remote.pack(100), **options) == tokens_of(local.pack(100), **options)
    # A run moves to another store with the same data, if asked to.
    state = hr.DataLoader(local.pack(100), 8, seed=3).state_dict()
    hr.DataLoader(remote.pack(100), 8).load_state_dict(state)


def test_ways_to_name_the_same_objects(server: S3Server, bucket: str, folder: Path) -> None:
    paths = sorted((folder / "sub").iterdir())
    wanted = stored(paths)
    for urls in (
        f"s3://{bucket}",
        f"s3://{bucket}/",
        f"s3://{bucket}/data/",
        f"s3://{bucket}/data/sub",
        f"s3://{bucket}/data/*/*.parquet",
        f"s3://{bucket}/**/*.parquet",
        f"s3://{bucket}/data/sub/[0-9].parquet",
        [f"s3://{bucket}/data/sub/{path.name}" for path in reversed(paths)],
    ):
        found = loaded(hr.open(urls, storage_options=server.storage_options()).pack(500), num_workers=1)
        names = {f"s3://{bucket}/data/sub/{path.name}": str(path) for path in paths}
        assert_same(found._replace(sources=[(names[name], *rest) for name, *rest in found.sources]), wanted)


@pytest.mark.parametrize(
    "name", ["a b", "50%25", "%2F", "#1", "a+b&c=d", "wh?t", "ü-日本", "a[1]", "{x}", "'q'", "time=2024-01-01 00:00:00"]
)
def test_any_key_works(server: S3Server, fresh: str, tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a.parquet", count_up(5))
    options = server.storage_options()
    for key in (f"in/{name}/x.parquet", f"{name}.parquet"):
        server.put(fresh, key, Path(path).read_bytes())
    both = hr.open(f"s3://{fresh}", storage_options=options)
    assert sorted(both.files) == sorted([f"s3://{fresh}/in/{name}/x.parquet", f"s3://{fresh}/{name}.parquet"])
    assert loaded(both.pack(1)).tokens.tolist() == [*range(20), *range(20)]
    for url in (f"s3://{fresh}/in/{name}", f"s3://{fresh}/in/{name}/x.parquet", f"s3://{fresh}/{name}.parquet"):
        dataset = hr.open(url, storage_options=options)
        assert len(dataset.files) == 1
        assert loaded(dataset.pack(1)).tokens.tolist() == list(range(20))


def test_hidden_objects_and_markers_are_left_out(server: S3Server, fresh: str, tmp_path: Path) -> None:
    content = Path(write(tmp_path / "a.parquet", count_up(5))).read_bytes()
    for key in ("x/a.parquet", "x/_temporary/b.parquet", "x/.hidden.parquet", "x-other/c.parquet"):
        server.put(fresh, key, content)
    for key in ("x/_SUCCESS", "x/done", "x/"):
        server.put(fresh, key, b"")
    dataset = hr.open(f"s3://{fresh}/x", storage_options=server.storage_options())
    assert dataset.files == [f"s3://{fresh}/x/a.parquet"]


def test_settings_from_the_environment(server: S3Server, bucket: str) -> None:
    with environment(**server.environment()):
        assert hr.open(f"s3://{bucket}/data").info()["files"] == 6
    # What is given goes before what is in the environment.
    wrong = server.environment() | {
        "AWS_SECRET_ACCESS_KEY": "wrong-wrong-wrong",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    }
    with environment(**wrong):
        assert hr.open(f"s3://{bucket}/data", storage_options=server.storage_options()).info()["files"] == 6


def test_options_that_are_not_known_are_refused(bucket: str, server: S3Server) -> None:
    for options, part in [
        ({"acces_key_id": "x"}, "access_key_id"),
        ({"endpoint_url": "127.0.0.1:9000"}, "http"),
        ({"timeout": "soon"}, "timeout"),
        ({"max_retries": "-1"}, "max_retries"),
        ({"bucket": "other"}, "bucket"),
    ]:
        with pytest.raises(ValueError, match=part):
            hr.open(f"s3://{bucket}/data", storage_options=server.storage_options() | options)


def test_an_index_next_to_the_data(server: S3Server, fresh: str, tmp_path: Path, proxy: FaultProxy) -> None:
    for number in range(3):
        path = write(tmp_path / f"{number}.parquet", count_up(5, start=20 * number))
        server.put(fresh, f"x/{number}.parquet", Path(path).read_bytes())
    options = server.storage_options(proxy.endpoint)
    first = hr.open(f"s3://{fresh}/x", storage_options=options, cache_dir=tmp_path / "one")
    assert first.save_index() == f"s3://{fresh}/x/_headrace/index.arrow"
    proxy.clear()
    again = hr.open(f"s3://{fresh}/x", storage_options=options, cache_dir=tmp_path / "two")
    asked = [request["target"] for request in proxy.requests() if request["method"] == "GET" and request["range"]]
    assert asked
    assert all("_headrace/index.arrow" in target for target in asked), asked
    assert loaded(again.pack(1)).tokens.tolist() == list(range(60))


# Refusals


def test_a_wrong_secret(server: S3Server, bucket: str) -> None:
    options = server.storage_options() | {"secret_access_key": "not-the-secret-at-all"}
    begun = time.monotonic()
    with pytest.raises(hr.StoreError, match=f"s3://{bucket}") as caught:
        hr.open(f"s3://{bucket}/data", storage_options=options)
    assert not isinstance(caught.value, hr.MissingError)
    assert "403" in str(caught.value) or "Signature" in str(caught.value)
    assert "hint:" in str(caught.value)
    assert "not-the-secret" not in str(caught.value)
    assert time.monotonic() - begun < 5, "what cannot succeed is not tried again"


def test_an_unknown_key_id(server: S3Server, bucket: str) -> None:
    options = server.storage_options() | {"access_key_id": "nobody"}
    with pytest.raises(hr.StoreError, match="403 InvalidAccessKeyId"):
        hr.open(f"s3://{bucket}/data", storage_options=options)


def test_a_missing_bucket(server: S3Server) -> None:
    with pytest.raises(hr.MissingError, match="no-such-bucket") as caught:
        hr.open("s3://no-such-bucket/data", storage_options=server.storage_options())
    assert "hint:" in str(caught.value)


def test_a_missing_key(server: S3Server, bucket: str) -> None:
    for url in (f"s3://{bucket}/gone", f"s3://{bucket}/data/gone.parquet", f"s3://{bucket}/data/gone/"):
        with pytest.raises(hr.MissingError, match="gone"):
            hr.open(url, storage_options=server.storage_options())
    with pytest.raises(ValueError, match="gone"):
        hr.open(f"s3://{bucket}/data/gone*", storage_options=server.storage_options())


def test_a_key_that_goes_during_a_run(server: S3Server, fresh: str, tmp_path: Path, folder: Path) -> None:
    server.put_folder(fresh, folder)
    packed = hr.open(f"s3://{fresh}", storage_options=server.storage_options()).pack(100)
    iterator = steps_in_storage_order(packed)
    next(iterator)
    server.delete(fresh, "sub/5.parquet")
    with pytest.raises(hr.MissingError, match=r"sub/5\.parquet"):
        list(iterator)


def test_no_server_at_all() -> None:
    options = {"endpoint_url": "http://127.0.0.1:1", "access_key_id": "k", "secret_access_key": "secret-secret"}
    begun = time.monotonic()
    with pytest.raises(hr.StoreError, match="s3://bucket") as caught:
        hr.open("s3://bucket/data", storage_options=fast(options, region="us-east-1"))
    assert "hint:" in str(caught.value)
    assert time.monotonic() - begun < 20


def test_two_stores_in_one_dataset_are_refused(server: S3Server, bucket: str, folder: Path) -> None:
    with pytest.raises(ValueError, match="stores"):
        hr.open([f"s3://{bucket}/data", str(folder)], storage_options=server.storage_options())


# Faults that pass


def through(proxy: FaultProxy, server: S3Server, bucket: str, **more: str) -> hr.PackedDataset:
    """The dataset behind the proxy, opened without a fault and without a saved index."""
    options = server.storage_options(proxy.endpoint) | more
    packed = hr.open(f"s3://{bucket}/data", storage_options=options, index="rebuild").pack(100)
    proxy.clear()
    return packed


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("status", {"status": 503, "count": 3}),
    ("status", {"status": 503, "count": 1, "retry_after": 1}),
    ("status", {"status": 500, "count": 2}),
    ("status", {"status": 429, "count": 2}),
    ("cut", {"count": 4}),
    ("reset", {"count": 2}),
    ("reset", {"count": 2, "before": True}),
    ("stall", {"count": 1}),
    ("stall", {"count": 1, "before": True}),
    ("range", {"count": 1}),
]


@pytest.mark.parametrize("kind, settings", FAULTS, ids=[f"{kind} {settings}" for kind, settings in FAULTS])
def test_a_fault_in_mid_run_is_got_over(
    proxy: FaultProxy, server: S3Server, bucket: str, folder: Path, kind: str, settings: dict[str, Any]
) -> None:
    packed = through(proxy, server, bucket, timeout="1")
    wanted = iter(steps_in_storage_order(hr.open(folder).pack(100)))
    loader = hr.DataLoader(
        packed, 1, shuffle=False, window=1, num_workers=1, prefetch_factor=1, epochs=1, memory="16MiB"
    )
    iterator = iter(loader)
    before = loader.stats().get("retries", 0)
    found = [next(iterator)]
    proxy.add(kind, **settings)
    found.extend(iterator)
    assert proxy.pending() == 0
    for batch, other in zip(found, wanted, strict=True):
        assert batch["tokens"].tolist() == other["tokens"].tolist()
    retries = loader.stats()["retries"] - before
    assert retries >= settings["count"]


def test_faults_while_opening_are_got_over(proxy: FaultProxy, server: S3Server, bucket: str) -> None:
    options = server.storage_options(proxy.endpoint)
    proxy.add("status", status=503, match="list-type", count=2)
    proxy.add("status", status=503, count=2)
    proxy.add("cut", count=2)
    dataset = hr.open(f"s3://{bucket}/data", storage_options=options, index="rebuild")
    assert proxy.pending() == 0
    assert dataset.info()["files"] == 6


def test_a_body_that_was_cut_is_continued_under_its_tag(proxy: FaultProxy, server: S3Server, bucket: str) -> None:
    packed = through(proxy, server, bucket)
    proxy.add("cut")
    next(steps_in_storage_order(packed))
    requests = [request for request in proxy.requests() if request["range"]]
    cut = next(at for at, request in enumerate(requests) if request["fault"] == "cut")
    first, last = map(int, requests[cut]["range"].removeprefix("bytes=").split("-"))
    half = first + (last + 1 - first) // 2
    again = [request for request in requests[cut + 1 :] if request["range"] == f"bytes={half}-{last}"]
    assert again, "only what is missing is asked for"
    assert all(request["if_match"] for request in requests), "all bytes come from one version of the object"


# Faults that do not


def test_a_store_that_stays_broken_is_an_error_that_tells_all(proxy: FaultProxy, server: S3Server, bucket: str) -> None:
    packed = through(proxy, server, bucket, timeout="1", retry_timeout="4", max_retries="3")
    iterator = steps_in_storage_order(packed)
    next(iterator)
    proxy.add("status", status=503, count=10**6)
    with pytest.raises(hr.StoreError, match="503") as caught:
        list(iterator)
    message = str(caught.value)
    assert f"s3://{bucket}/data/sub/" in message
    assert "4 attempts" in message
    assert "bytes" in message


@pytest.mark.parametrize("before", [False, True])
def test_a_stalling_store_ends_at_the_deadline(proxy: FaultProxy, server: S3Server, bucket: str, before: bool) -> None:
    packed = through(proxy, server, bucket, timeout="300ms", retry_timeout="1.5", max_retries="2")
    proxy.add("stall", count=10**6, before=before)
    begun = time.monotonic()
    with pytest.raises(hr.StoreError, match=r"attempts") as caught:
        next(steps_in_storage_order(packed))
    assert time.monotonic() - begun < 10
    assert f"s3://{bucket}/data/sub/0.parquet" in str(caught.value)
    assert "0.3 s" in str(caught.value)


def test_a_dripping_store_ends_at_the_deadline(proxy: FaultProxy, server: S3Server, bucket: str) -> None:
    """A byte now and then is no progress."""
    packed = through(proxy, server, bucket, timeout="2", retry_timeout="2", max_retries="2")
    proxy.add("drip", count=10**6, seconds=0.1)
    begun = time.monotonic()
    with pytest.raises(hr.StoreError, match=f"s3://{bucket}/data/sub/0.parquet"):
        next(steps_in_storage_order(packed))
    assert time.monotonic() - begun < 30


def test_a_timeout_of_the_loader_loses_nothing(proxy: FaultProxy, server: S3Server, bucket: str) -> None:
    packed = through(proxy, server, bucket, timeout="1")
    wanted = [batch["tokens"].tolist() for batch in steps_in_storage_order(packed)]
    proxy.add("stall", count=1, before=True)
    iterator = steps_in_storage_order(packed, timeout=0.2)
    with pytest.raises(TimeoutError, match=r"timeout=0\.2"):
        next(iterator)
    found = []
    while len(found) < len(wanted):
        try:
            found.append(next(iterator)["tokens"].tolist())
        except TimeoutError:
            continue
    assert found == wanted


CTRL_C = """
import os, signal, sys, threading, time
import headrace as hr
from tools.fault_proxy import FaultProxy

url, port = sys.argv[1], int(sys.argv[2])
with FaultProxy("127.0.0.1", port) as proxy:
    options = {"endpoint_url": proxy.endpoint, "timeout": "2"}
    packed = hr.open(url, storage_options=options).pack(100)
    wanted = [batch["tokens"].tolist() for batch in hr.DataLoader(packed, 8, seed=3, epochs=1)]
    proxy.clear()
    proxy.add("stall", count=1, before=True)
    loader = hr.DataLoader(packed, 8, seed=3, epochs=1, num_workers=1)
    iterator = iter(loader)
    sent = []
    def interrupt():
        # The stalled request is what the main thread waits for.
        while not any(request["fault"] == "stall" for request in proxy.requests()):
            time.sleep(0.01)
        time.sleep(0.2)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        next(iterator)
    except KeyboardInterrupt:
        late = time.monotonic() - sent[0]
    thread.join()
    same = [batch["tokens"].tolist() for batch in iterator] == wanted
    print(late, same)
"""


def test_ctrl_c_acts_while_a_batch_is_waited_for(server: S3Server, bucket: str) -> None:
    output = run_python(CTRL_C, f"s3://{bucket}/data", server.port, **server.environment())
    late, same = output.split()
    assert float(late) < 0.5
    assert same == "True", "the loader goes on, and nothing is lost"


def test_dropping_an_iterator_ends_a_stalled_read_at_once(proxy: FaultProxy, server: S3Server, bucket: str) -> None:
    packed = through(proxy, server, bucket)
    proxy.add("stall", count=10**6)
    loader = hr.DataLoader(packed, 8, timeout=0.2, num_workers=2)
    iterator = iter(loader)
    with pytest.raises(TimeoutError):
        next(iterator)
    begun = time.monotonic()
    del iterator, loader
    assert time.monotonic() - begun < 1


# Objects that change


@pytest.mark.parametrize("change", ["as long", "shorter", "longer"])
def test_an_object_replaced_in_mid_run_is_an_error(
    server: S3Server, fresh: str, folder: Path, tmp_path: Path, change: str
) -> None:
    server.put_folder(fresh, folder)
    packed = hr.open(f"s3://{fresh}", storage_options=server.storage_options()).pack(100)
    wanted = [batch["tokens"].tolist() for batch in steps_in_storage_order(hr.open(folder).pack(100))]
    iterator = steps_in_storage_order(packed)
    found = [next(iterator)["tokens"].tolist()]
    whole = bytearray((folder / "sub" / "5.parquet").read_bytes())
    whole[1000] ^= 1
    content = {"as long": whole, "shorter": whole[: len(whole) // 2], "longer": whole + b"more"}[change]
    server.put(fresh, "sub/5.parquet", bytes(content))
    begun = time.monotonic()
    with pytest.raises(hr.DataError, match=r"sub/5\.parquet: changed"):
        found.extend(batch["tokens"].tolist() for batch in iterator)
    assert time.monotonic() - begun < 10, "no blind retries"
    assert found == wanted[: len(found)]
    # Opened again, the change is seen and the old index is not used.
    if change == "as long":
        again = hr.open(f"s3://{fresh}", storage_options=server.storage_options()).pack(100)
        assert len(list(steps_in_storage_order(again))) == len(wanted)


def test_another_tag_in_mid_body_is_an_error(proxy: FaultProxy, server: S3Server, bucket: str) -> None:
    packed = through(proxy, server, bucket)
    proxy.add("etag")
    with pytest.raises(hr.DataError, match="changed"):
        list(steps_in_storage_order(packed))


# Requests


def test_requests_are_few(proxy: FaultProxy, server: S3Server, bucket: str, tmp_path: Path) -> None:
    options = server.storage_options(proxy.endpoint)
    dataset = hr.open(f"s3://{bucket}/data", storage_options=options, cache_dir=tmp_path)
    requests = proxy.requests()
    assert len([request for request in requests if "list-type" in request["target"]]) == 1
    for number in range(6):
        own = [request for request in requests if f"/sub/{number}.parquet" in request["target"]]
        assert 1 <= len(own) <= 2, own
    assert len(requests) <= 1 + 12 + 1
    # From a saved index only the listing is asked for.
    proxy.clear()
    hr.open(f"s3://{bucket}/data", storage_options=options, cache_dir=tmp_path)
    assert [request for request in proxy.requests() if "list-type" not in request["target"]] in (
        [],
        [request for request in proxy.requests() if "_headrace" in request["target"]],
    )
    # A pass asks for each row group once.
    packed = dataset.pack(100)
    proxy.clear()
    loader = hr.DataLoader(packed, 8, shuffle=False, epochs=1)
    assert len(list(loader)) == 150
    reads = [(request["target"], request["range"]) for request in proxy.requests()]
    assert len(reads) == len(set(reads)) == 30
    sizes = [int(last) + 1 - int(first) for first, last in (r.removeprefix("bytes=").split("-") for _, r in reads)]
    assert sum(sizes) == loader.stats()["chunk_bytes"]


def test_sources_ask_only_for_what_rows_touch(proxy: FaultProxy, server: S3Server, bucket: str) -> None:
    packed = through(proxy, server, bucket)
    loader = hr.DataLoader(packed, 4, seed=3, lanes=4, window=3, epochs=1)
    assert loader.sources(200) != []
    assert 0 < len(proxy.requests()) <= 6
    assert loader.step == 0


def test_one_file_of_many_is_looked_up_alone(proxy: FaultProxy, server: S3Server, bucket: str) -> None:
    options = server.storage_options(proxy.endpoint)
    hr.open(f"s3://{bucket}/data/sub/3.parquet", storage_options=options, index="rebuild")
    assert all("/sub/3.parquet" in request["target"] for request in proxy.requests())
    assert len(proxy.requests()) <= 3


# Credentials


def test_renewed_credentials_of_the_environment_are_picked_up(
    proxy: FaultProxy, server: S3Server, bucket: str, folder: Path
) -> None:
    # In mid-run the store takes another secret, and the variables hold it by then.
    wanted = [batch["tokens"].tolist() for batch in steps_in_storage_order(hr.open(folder).pack(100))]
    with S3Server(secret="another-secret-0123456789") as renewed:
        renewed.make_bucket(bucket)
        renewed.put_folder(bucket, folder, "data/")
        with environment(**server.environment(proxy.endpoint)):
            packed = hr.open(f"s3://{bucket}/data").pack(100)
            iterator = steps_in_storage_order(packed)
            found = [next(iterator)["tokens"].tolist()]
            proxy._server.backend = ("127.0.0.1", renewed.port)
            # Refused with what was given; the same run goes on with what is given now.
            with environment(**renewed.environment(proxy.endpoint)):
                found.extend(batch["tokens"].tolist() for batch in iterator)
            assert found == wanted
            # The old ones are refused, so the test can fail.
            with environment(**server.environment(proxy.endpoint)), pytest.raises(hr.StoreError, match="403"):
                hr.open(f"s3://{bucket}/data", index="rebuild")


def test_refused_credentials_that_did_not_change_are_an_error(proxy: FaultProxy, server: S3Server, bucket: str) -> None:
    packed = through(proxy, server, bucket)
    iterator = steps_in_storage_order(packed)
    next(iterator)
    proxy.add("status", status=403, count=10**6)
    with pytest.raises(hr.StoreError, match="403"):
        list(iterator)


def test_secrets_are_never_told(server: S3Server, bucket: str, proxy: FaultProxy, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    options = server.storage_options(proxy.endpoint) | {"session_token": ""}
    options = {name: value for name, value in options.items() if value}
    dataset = hr.open(f"s3://{bucket}/data", storage_options=fast(options), cache_dir=cache)
    packed = dataset.pack(100)
    loader = hr.DataLoader(packed, 8, seed=3)
    told = [repr(dataset), repr(packed), repr(loader), json.dumps(loader.state_dict()), json.dumps(dataset.info())]
    told += [json.dumps(packed.info()), json.dumps(loader.stats()), dataset.url, *dataset.files, repr(dataset.schema)]
    told.append(repr(loader.sources(0)))
    told.append(hr.State.to_bytes(loader.state_dict()).decode("latin-1"))
    for status in (403, 404, 503, 400):
        proxy.add("status", status=status, count=10**6)
        with pytest.raises(hr.HeadraceError) as caught:
            list(hr.DataLoader(packed, 8, seed=3, epochs=1))
        told += [str(caught.value), repr(caught.value)]
        proxy.clear()
    for more in ({"access_key_id": "nobody"}, {"region": "mars-1"}, {"endpoint_url": "http://127.0.0.1:1"}):
        with pytest.raises(hr.StoreError) as caught:
            hr.open(f"s3://{bucket}/other", storage_options=fast(options) | more)
        told.append(str(caught.value))
    with pytest.raises(ValueError, match="secret_acess_key") as refused:
        hr.open(f"s3://{bucket}/data", storage_options={"secret_acess_key": SECRET})
    told.append(str(refused.value))
    files = [path for path in cache.rglob("*") if path.is_file()]
    assert files
    told += [str(path) for path in files] + [path.read_bytes().decode("latin-1") for path in files]
    for text in told:
        assert SECRET not in text


def test_secrets_in_an_endpoint_are_never_told(server: S3Server, bucket: str, tmp_path: Path) -> None:
    options = server.storage_options(f"http://user:{SECRET}@127.0.0.1:{server.port}")
    told = []
    try:
        dataset = hr.open(f"s3://{bucket}/data", storage_options=fast(options), cache_dir=tmp_path / "cache")
        told += [repr(dataset), str(dataset.info())]
    except (hr.HeadraceError, ValueError) as error:
        told.append(str(error))
    told += [path.read_bytes().decode("latin-1") for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert told
    assert all(SECRET not in text for text in told), told


def test_many_readers_share_one_cap_of_connections(proxy: FaultProxy, server: S3Server, bucket: str) -> None:
    # Sixteen loaders at once, with many threads each, all get their rows.
    packed = through(proxy, server, bucket)
    iterators = [iter(hr.DataLoader(packed, 8, seed=3, epochs=1, num_workers=8)) for _ in range(16)]
    firsts = [next(iterator)["tokens"].tolist() for iterator in iterators]
    assert all(rows == firsts[0] for rows in firsts)
