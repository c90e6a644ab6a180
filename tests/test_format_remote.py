"""MDS, WebDataset and text in a bucket: what is read is that of the local files, in few requests."""

import gzip
import json
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
import mds_files as mds
from headrace._files import Store
from headrace.errors import MissingError
from headrace.formats.mds import MdsSource
from headrace.formats.webdataset import WebDatasetSource
from headrace.samples.source import Source
from tar_files import archive
from tokenizer_files import utf8
from tools import s3_server
from tools.s3_server import S3Server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    program = os.environ.get("HEADRACE_VERSITYGW")
    found = program is not None and Path(program).is_file()
    built = s3_server.bin_folder() / f"versitygw-{s3_server.VERSION}"
    if not found and not shutil.which("go") and not built.exists():
        pytest.skip("no S3 server: neither HEADRACE_VERSITYGW nor Go is there")
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.upper().startswith("AWS_") or name.lower().endswith("_proxy"):
                patch.delenv(name)
        if found:
            patch.setattr(s3_server, "ensure_program", lambda: Path(str(program)))
        with S3Server() as running:
            yield running


def uploaded(server: S3Server, bucket: str, folder: Path) -> Store:
    server.make_bucket(bucket)
    server.put_folder(bucket, folder, "data/")
    return Store([f"s3://{bucket}/data"], server.storage_options())


def samples(source: Source) -> list[Any]:
    return [sample for chunk, size in enumerate(source.sizes) for sample in source.load(chunk).take(range(size))]


def test_mds_in_a_bucket(server: S3Server, tmp_path: Path) -> None:
    rows = [{"image": bytes([at]) * 2000, "label": struct.pack("<q", at)} for at in range(50)]
    folder = mds.write(tmp_path, [(mds.COLUMNS, rows[:30]), (mds.COLUMNS, rows[30:])])
    local = MdsSource.open(Store([str(folder)], {}))
    remote = MdsSource.open(uploaded(server, "mds", folder), verify=True)
    assert not remote.random_access
    assert remote.identity() == local.identity()
    before = remote.traffic()[0]
    assert samples(remote) == samples(local)
    assert remote.traffic()[0] - before == 2
    assert remote.load(0).nbytes > 60_000
    alone = MdsSource.open(Store.at("s3://mds/data", server.storage_options()))
    assert samples(alone) == samples(local)
    with pytest.raises(MissingError, match=r"s3://mds/none/index\.json"):
        MdsSource.open(Store.at("s3://mds/none", server.storage_options()))


def test_archives_in_a_bucket(server: S3Server, tmp_path: Path) -> None:
    for number in range(3):
        members = {f"{at:03}.{ext}": bytes([at]) * 700 for at in range(200) for ext in ("jpg", "cls")}
        archive(tmp_path / "in" / f"{number}.tar", members)
    store = uploaded(server, "tars", tmp_path / "in")

    def opened(store: Store) -> WebDatasetSource:
        return WebDatasetSource.open(store, store.files, cache_dir=tmp_path / "cache", progress=lambda *_: None)

    before = store.traffic()[0]
    remote = opened(store)
    assert store.traffic()[0] - before <= 3  # Of half a MiB each; a read for each header would be 1,200.
    again = Store(store.urls, store.options)
    assert opened(again).identity() == remote.identity()
    assert again.traffic()[0] <= 1  # Its listing: headers are in the cache.
    local = opened(Store([str(tmp_path / "in")], {}))
    assert remote.identity() == local.identity()
    before = store.traffic()[0]
    found = samples(remote)
    assert store.traffic()[0] - before == 3
    assert [sample.pop("__url__") for sample in found] == [
        f"s3://tars/data/{n}.tar" for n in range(3) for _ in range(200)
    ]
    assert found == [{name: part for name, part in sample.items() if name != "__url__"} for sample in samples(local)]


def test_text_in_a_bucket_becomes_tokens(server: S3Server, tmp_path: Path) -> None:
    lines = "".join(json.dumps({"text": f"document {number}"}) + "\n" for number in range(300)).encode()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_bytes(lines)
    (tmp_path / "in/b.jsonl.gz").write_bytes(gzip.compress(lines))
    server.make_bucket("text")
    server.put_folder("text", tmp_path / "in", "lines/")
    how: dict[str, Any] = {"eos": 255, "vocab_size": 256, "progress": False, "verbose": False}
    headrace.tokenize(
        "s3://text/lines", utf8, tmp_path / "out", num_workers=2, storage_options=server.storage_options(), **how
    )
    headrace.tokenize(tmp_path / "in", utf8, tmp_path / "local", num_workers=0, **how)
    found, local = (sorted(folder.glob("*.parquet")) for folder in (tmp_path / "out", tmp_path / "local"))
    assert [path.read_bytes() for path in found] == [path.read_bytes() for path in local]
    assert len(headrace.open(tmp_path / "out")) == 600
