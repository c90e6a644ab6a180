"""Datasets of remote stores begin with few requests, and wait for a network that is not there for a while."""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from files import run_python
from headrace._files import Store
from tools.fault_proxy import FaultProxy
from tools.s3_server import S3Server
from tools.serving import HOST, Handler, HttpService

COUNT = 100_000
OPTIONS = {"anon": "true", "region": "us-east-1"}
OBJECT = (
    "<Contents><Key>{}</Key><Size>7</Size><ETag>&quot;e&quot;</ETag>"
    "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
)


class Many(HttpService):
    """A bucket of many objects below nested prefixes, which says which they are and no more."""

    def __init__(self, count: int, latency: float = 0.0) -> None:
        super().__init__(_Lists, self)
        self.keys = sorted(f"data/{n % 7}/{n % 11}/part={n % 13}/{n:06}.bin" for n in range(count))
        self.latency = latency
        self.asked: list[str] = []

    @property
    def options(self) -> dict[str, str]:
        return OPTIONS | {"endpoint_url": f"http://{HOST}:{self.port}"}

    def __enter__(self) -> "Many":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class _Lists(Handler):
    def handle_any(self) -> None:
        bucket: Any = self.server.owner
        bucket.asked.append(f"{self.command} {self.path}")
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        # A name is resolved for each connection.
        self.close_connection = True
        if query.get("list-type") != "2" or "delimiter" in query:
            self.answer(404, [], b"<Error><Code>NoSuchKey</Code></Error>")
            return
        time.sleep(bucket.latency)
        keys = [key for key in bucket.keys if key.startswith(query.get("prefix", ""))]
        first = int(query.get("continuation-token", 0))
        last = min(first + int(query.get("max-keys", 1000)), len(keys))
        found = "".join(OBJECT.format(key) for key in keys[first:last])
        more, is_more = "", "false"
        if last < len(keys):
            more, is_more = f"<NextContinuationToken>{last}</NextContinuationToken>", "true"
        end = f"<IsTruncated>{is_more}</IsTruncated>{more}</ListBucketResult>"
        self.answer(200, [("Content-Type", "application/xml")], f"<ListBucketResult>{found}{end}".encode())


def test_a_hundred_thousand_objects_take_a_page_a_thousand() -> None:
    with Many(COUNT) as bucket:
        store = Store(["s3://bucket/data"], bucket.options)
        assert [f"data/{file.path}" for file in store.files] == bucket.keys
        assert len(bucket.asked) == COUNT // 1000
        bucket.asked.clear()
        # A pattern lists what its first part leaves.
        wanted = [key for key in bucket.keys if key.startswith("data/3/") and "/part=5/" in key]
        pattern = Store(["s3://bucket/data/3/*/part=5/*.bin"], bucket.options)
        assert [f"data/3/{file.path}" for file in pattern.files] == wanted
        assert len(bucket.asked) == -(-sum(key.startswith("data/3/") for key in bucket.keys) // 1000)
        bucket.asked.clear()
        # So does a dataset: nothing is listed twice, and no file is asked for.
        assert len(hr.open("s3://bucket/data", format="files", storage_options=bucket.options)) == COUNT
        assert len(bucket.asked) == COUNT // 1000


def test_a_long_listing_shows_how_far_it_is() -> None:
    program = """
        import os, sys
        import headrace as hr
        from test_store_start import Many
        with Many(20_000, latency=0.1) as bucket:
            # Standard error is a terminal of the program's own.
            mine, terminal = os.openpty()
            os.dup2(terminal, 2)
            hr.open("s3://bucket/data", format="files", storage_options=bucket.options)
            os.write(2, b"#")
            shown = b""
            while not shown.endswith(b"#"):
                shown += os.read(mine, 1 << 16)
        sys.stdout.write(shown.decode().replace("\\r", "|"))
    """
    shown = run_python(program)
    lines = [line for line in shown.split("|") if line.startswith("headrace: files found, ")]
    counts = [int(line.split()[-1].replace(",", "")) for line in lines]
    assert counts
    assert counts == sorted(counts)
    assert 5_000 <= counts[-1] <= 20_000
    assert shown.split("|")[-1] == "#", "the line goes away"


@pytest.mark.slow
def test_a_real_server_lists_a_hundred_thousand_objects_in_few_requests() -> None:
    keys = sorted(f"data/{n % 7}/{n % 11}/part={n % 13}/{n:06}.bin" for n in range(COUNT))
    program = """
        import json, os, sys
        import headrace as hr
        # Standard error is a terminal of the program's own.
        mine, terminal = os.openpty()
        os.dup2(terminal, 2)
        data = hr.open("s3://many/data", format="files", storage_options=json.loads(sys.argv[1]))
        os.write(2, b"#")
        shown = b""
        while not shown.endswith(b"#"):
            shown += os.read(mine, 1 << 16)
        print(json.dumps({"files": len(data), "shown": shown.decode()}))
    """
    with S3Server() as server, FaultProxy(HOST, server.port) as proxy:
        server.make_bucket("many")
        server.put_many("many", keys)
        found = json.loads(run_python(program, json.dumps(server.storage_options(proxy.endpoint))))
        asked = [note["target"] for note in proxy.requests()]
        assert found["files"] == COUNT
        # As many as there are pages, each asked for once.
        assert len(asked) == len(set(asked)) == COUNT // 1000
        assert all("list-type=2" in target and "delimiter" not in target for target in asked)
        counts = [int(count.replace(",", "")) for count in re.findall(r"files found, ([\d,]+)", found["shown"])]
        assert len(counts) >= 2
        assert counts == sorted(counts)
        store = Store(["s3://many/data"], server.storage_options())
        assert [f"data/{file.path}" for file in store.files] == keys


# Names


def test_a_name_that_does_not_resolve_is_told() -> None:
    options = OPTIONS | {"endpoint_url": "http://headrace.invalid:9"}
    with pytest.raises(hr.StoreError, match=r"(?s)6 attempts: headrace\.invalid cannot be reached: .*hint: ") as caught:
        hr.open("s3://bucket/data", storage_options=options)
    assert "s3://bucket/data" in str(caught.value)


RESOLVER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* headrace.invalid is this machine while the file of HEADRACE_TEST_NAMES is there, and fails else. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    int (*whole)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    whole = dlsym(RTLD_NEXT, "getaddrinfo");
    if (node == NULL || strcmp(node, "headrace.invalid") != 0) return whole(node, service, hints, found);
    if (access(getenv("HEADRACE_TEST_NAMES"), F_OK) != 0) return EAI_AGAIN;
    return whole("127.0.0.1", service, hints, found);
}
"""


@pytest.fixture(scope="module")
def resolver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that stands before the system's resolver."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("resolver")
    (folder / "resolver.c").write_text(RESOLVER)
    library = folder / "resolver.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "resolver.c", "-ldl"], check=True)
    return library


def test_a_name_that_does_not_resolve_for_a_while(resolver: Path, tmp_path: Path) -> None:
    # A second at the start, when the address may be wrong; in a run for longer.
    with Many(10) as bucket:
        run_python(
            """
            import os, sys, threading, time
            from pathlib import Path
            from headrace._files import Store
            names = Path(os.environ["HEADRACE_TEST_NAMES"])
            options = {"anon": "true", "region": "us-east-1", "endpoint_url": f"http://headrace.invalid:{sys.argv[1]}"}
            store = Store(["s3://bucket/data"], options)
            for seconds, use in ((1.0, lambda: store.files), (6.0, lambda: store.read(store.files[0]))):
                names.unlink(missing_ok=True)
                timer = threading.Timer(seconds, names.touch)
                timer.start()
                begun = time.monotonic()
                try:
                    use()
                except FileNotFoundError:
                    assert seconds == 6.0  # The server has no bodies.
                assert time.monotonic() - begun >= seconds
                timer.join()
            """,
            bucket.port,
            HEADRACE_TEST_NAMES=str(tmp_path / "names"),
            LD_PRELOAD=str(resolver),
        )
        assert len(bucket.asked) == 2
