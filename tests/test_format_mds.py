"""MDS: what MosaicML Streaming writes is read as it reads it; what is damaged is refused, with its place."""

import doctest
import os
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mds_files as mds
from headrace._files import Store
from headrace.errors import DataError, MissingError
from headrace.formats.mds import MdsSource, index, is_mds
from mds_files import COLUMNS, one, opened, rows, samples, wanted
from plain_values import plain

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".venv-peers/bin/python"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return mds.write(tmp_path / "data", [(COLUMNS, rows(5)), (COLUMNS, rows(3))])


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Datasets that the package wrote, and what it reads in them."""
    if not PEERS.exists():
        pytest.skip("MosaicML Streaming is not installed: make .venv-peers/.installed")
    folder = tmp_path_factory.mktemp("mds")
    done = subprocess.run([PEERS, ROOT / "tests/tools/write_mds.py", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, pickle.loads((folder / "values.pkl").read_bytes())


def equal(written: tuple[Path, dict[str, Any]], names: list[str], **options: Any) -> None:
    folder, values = written
    assert names
    for name in names:
        found = samples(opened(folder / name, allow_pickle=True, **options))
        assert found, name
        assert [plain(sample) for sample in found] == values[name], name


# What the package writes


def test_every_encoding_is_read_as_streaming_reads_it(written: tuple[Path, dict[str, Any]]) -> None:
    names = [name for name in written[1] if name.startswith("encoding-")]
    assert len(names) >= 27
    equal(written, names, verify=True)
    assert opened(written[0] / "encoding-ndarray_float64_2x3").schema == {"value": "ndarray:float64:2,3"}


def test_all_encodings_in_one_sample(written: tuple[Path, dict[str, Any]]) -> None:
    equal(written, ["mixed"])
    source = opened(written[0] / "mixed", allow_pickle=True)
    assert list(source.schema) == written[1]["mixed encodings"]
    assert not source.random_access
    assert source.load(0).nbytes < 1000
    for name in source.schema:
        found = [plain(sample) for sample in samples(source, (name,))]
        assert found == [{name: sample[name]} for sample in written[1]["mixed"]]


def test_arrays_can_be_written_to(written: tuple[Path, dict[str, Any]]) -> None:
    array = opened(written[0] / "encoding-ndarray").load(0)[1]["value"]
    assert array.flags.writeable
    assert array.flags.aligned


@pytest.mark.parametrize("codec", ["zstd", "zstd:3", "zstd:19", "gz", "gz:1", "bz2", "bz2:1", "snappy", "br", "br:3"])
def test_every_compression(written: tuple[Path, dict[str, Any]], codec: str) -> None:
    equal(written, ["packed-" + codec])
    source = opened(written[0] / ("packed-" + codec))
    assert not source.random_access
    assert source.load(0).nbytes > 400
    assert source.file(0).endswith("." + codec.partition(":")[0])
    assert source.stored[0] == (written[0] / ("packed-" + codec) / source.file(0)).stat().st_size


FAULTS = ["packed-zstd:3", "packed-gz", "packed-snappy", "merged/part-0"]
FAULTS += [f"encoding-{name}" for name in ("png", "pkl", "ndarray", "ndarray_int32", "float32", "uint8", "int32")]


@pytest.mark.parametrize("name", FAULTS)
def test_what_litdata_cannot_open_of_mds(written: tuple[Path, dict[str, Any]], name: str) -> None:
    equal(written, [name])


@pytest.mark.parametrize("kind", ["json", "csv", "tsv", "xsv"])
def test_shards_of_text(written: tuple[Path, dict[str, Any]], kind: str) -> None:
    equal(written, [kind, f"{kind}-packed"])
    equal(written, [f"{kind}-packed"], verify=True)
    source = opened(written[0] / kind)
    assert source.schema == {"label": "int", "score": "float", "text": "str"}
    assert source.load(0, ("text", "label"))[1] == {"text": "täxt 1", "label": -1}
    assert list(source.load(0, ("text", "label"))[1]) == ["text", "label"]


def test_a_merged_index_has_the_shards_of_folders(written: tuple[Path, dict[str, Any]]) -> None:
    equal(written, ["merged", "merged/part-1"])
    source = opened(written[0] / "merged")
    assert source.file(0) == "part-0/shard.00000.mds"
    assert source.file(len(source.sizes) - 1).startswith("part-2/")


def test_a_dataset_without_samples(written: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source = opened(written[0] / "empty")
    assert (len(source.sizes), samples(source), source.schema) == (0, [], {})
    source = opened(mds.write(tmp_path / "none", [(COLUMNS, []), (COLUMNS, rows(2)), (COLUMNS, [])]))
    assert (source.sizes.tolist(), samples(source)) == ([0, 2, 0], wanted(2))


def test_every_digest_is_checked(written: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written[0] / "hashed", tmp_path / "hashed"))
    entries = mds.read_entries(folder)
    assert len(written[1]["hash names"]) > 12
    for name in written[1]["hash names"]:
        for entry in entries:
            entry["raw_data"]["hashes"] = {name: mds.read_entries(written[0] / "hashed")[0]["raw_data"]["hashes"][name]}
        mds.write_index(folder, entries)
        source = opened(folder, verify=True)
        source.load(0)
        with pytest.raises(DataError, match=f"expected {name} "):
            source.load(1)


# Files


def test_either_file_of_a_shard_is_enough(written: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written[0] / "packed-gz", tmp_path / "gz"))
    identity = opened(folder).identity()
    data = MdsSource.open(Store([os.fspath(folder)], {}))
    plain_bytes = data._open(data._shards[1].data, "gzip")  # pyright: ignore[reportPrivateUsage]
    (folder / "shard.00001.mds").write_bytes(plain_bytes.read(0, plain_bytes.size))
    values = written[1]["packed-gz"]
    for left_out in (None, "shard.00001.mds.gz"):
        if left_out:
            (folder / left_out).unlink()
        source = opened(folder)
        assert source.file(1) == "shard.00001.mds"
        assert [plain(sample) for sample in samples(source)] == values
        assert source.identity() == identity
    (folder / "shard.00001.mds").unlink()
    with pytest.raises(MissingError, match=r"shard\.00001\.mds: .* or shard\.00001\.mds\.gz, found no such file"):
        opened(folder)


def test_names_that_no_listing_has(tmp_path: Path) -> None:
    folder = mds.write(tmp_path, [(COLUMNS, rows(3))])
    (folder / "_hidden").mkdir()
    (folder / "shard.00000.mds").rename(folder / "_hidden/shard.00000.mds")
    entries = mds.read_entries(folder)
    entries[0]["raw_data"]["basename"] = "_hidden/shard.00000.mds"
    mds.write_index(folder, entries)
    assert samples(opened(folder)) == wanted(3)
    assert samples(MdsSource.open(Store.at(os.fspath(folder), {}))) == wanted(3)
    source = opened(folder)
    (folder / "_hidden/shard.00000.mds").unlink()
    with pytest.raises(MissingError):
        source.load(0)


def test_columns_come_in_the_order_asked_for(small: Path) -> None:
    source = opened(small)
    assert source.columns == ("image", "label")
    assert samples(source) == wanted(5) + wanted(3)
    assert list(source.load(0, ("label", "image"))[4].items()) == [("label", 4), ("image", b"\4" * 4)]
    assert samples(source, ("label",)) == [{"label": at} for at in [0, 1, 2, 3, 4, 0, 1, 2]]
    assert source.load(1).arrays(["label"]) == {"label": [0, 1, 2]}


def test_only_wanted_columns_are_decoded(tmp_path: Path) -> None:
    source = one(tmp_path, {"a": "json", "b": "png", "c": "int"}, a=b"{", b=b"no", c=bytes(8))
    assert samples(source, ("c",)) == [{"c": 0}]
    with pytest.raises(
        DataError, match=r"shard\.00000\.mds, chunk 0, row 0: column 'b' \(png\): expected an image file"
    ):
        samples(source, ("c", "b"))


def test_of_large_samples_only_wanted_columns_are_read(tmp_path: Path) -> None:
    columns = {"a": "str", "image": "bytes", "label": "int", "z": "json"}
    cells = [
        {"a": b"x" * at, "image": bytes(at * 50_000), "label": struct.pack("<q", at), "z": b"%d" % at}
        for at in range(4)
    ]
    chunk: Any = opened(mds.write(tmp_path, [(columns, cells)])).load(0, ("z", "label", "a"))
    read, ranges = chunk._read, list[int]()

    def counted(start: int, stop: int) -> bytes:
        ranges.append(stop - start)
        return read(start, stop)

    chunk._read = counted
    assert chunk.take(range(4)) == [{"z": at, "label": at, "a": "x" * at} for at in range(4)]
    assert ranges == [21, 50_022, 12, 2, 8, 1, 12, 3, 8, 1]
    path = tmp_path / "shard.00000.mds"
    path.write_bytes(path.read_bytes()[:-1] + b"{")
    source = opened(tmp_path)
    with pytest.raises(DataError, match=r"chunk 0, row 3: column 'z' \(json\): "):
        source.load(0, ("z",))[3]
    assert source.load(0, ("label",))[3] == {"label": 3}


def test_shards_with_other_columns(tmp_path: Path) -> None:
    source = opened(mds.write(tmp_path, [(COLUMNS, rows(1)), ({"label": "str"}, [{"label": b"a"}])]))
    assert source.schema == {"image": "bytes", "label": "int | str"}
    assert samples(source) == [{"image": b"", "label": 0}, {"label": "a"}]
    assert samples(source, ("label",)) == [{"label": 0}, {"label": "a"}]
    with pytest.raises(DataError, match=r"shard\.00001\.mds, chunk 1: expected a column 'image', this shard has label"):
        source.load(1, ("image",))


def test_a_source_is_read_in_another_process(small: Path) -> None:
    source = opened(small, verify=True)
    samples(source)
    code = (
        "import pickle, sys; s = pickle.load(sys.stdin.buffer); print([s.identity(), s.load(1)[2], str(s.place(1, 2))])"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(source), capture_output=True, check=True)
    expected = [source.identity(), {"image": b"\2\2", "label": 2}, "shard.00001.mds, chunk 1, row 2"]
    assert done.stdout.decode().strip() == str(expected)


def test_the_identity_is_of_what_is_stored(small: Path, tmp_path: Path) -> None:
    identity = opened(small).identity()
    copy = Path(shutil.copytree(small, tmp_path / "copy", copy_function=shutil.copyfile))
    assert opened(copy).identity() == identity
    others = {
        opened(mds.write(tmp_path / str(number), shards)).identity()
        for number, shards in enumerate([
            [(COLUMNS, rows(5)), (COLUMNS, rows(2))],
            [(COLUMNS, rows(3)), (COLUMNS, rows(5))],
            [({"image": "str", "label": "int"}, rows(5)), (COLUMNS, rows(3))],
        ])
    }  # fmt: skip
    assert len(others | {identity}) == 4


def test_a_folder_without_an_index(written: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written[0] / "merged", tmp_path / "merged"))
    (folder / "index.json").unlink()
    with pytest.raises(MissingError, match="There is one in part-0/, part-1/, part-2/"):
        opened(folder)


@pytest.mark.parametrize("codec", ["gz", "bz2", "zstd", "br", "snappy"])
def test_a_compressed_shard_that_is_damaged(written: tuple[Path, dict[str, Any]], tmp_path: Path, codec: str) -> None:
    folder = Path(shutil.copytree(written[0] / f"packed-{codec}", tmp_path / codec))
    entries = mds.read_entries(folder)
    path = folder / entries[0]["zip_data"]["basename"]
    data = path.read_bytes()
    for length in range(0, len(data), 11):
        path.write_bytes(data[:length])
        entries[0]["zip_data"]["bytes"] = length
        mds.write_index(folder, entries)
        with pytest.raises(DataError, match=path.name):
            opened(folder).load(0)
    path.write_bytes(data)
    entries[0]["zip_data"]["bytes"] = len(data)
    size = entries[0]["raw_data"]["bytes"]
    for wrong, match in (
        (size - 1, f"expected {size - 1} bytes of .* data once decompressed"),
        (size + 1, f"expected {size + 1} bytes of .* data once decompressed"),
        (2**50, f"once decompressed, half of the memory there is, found a declared size of {2**50}"),
    ):
        entries[0]["raw_data"]["bytes"] = wrong
        mds.write_index(folder, entries)
        with pytest.raises(DataError, match=match):
            opened(folder).load(0)


def test_what_an_mds_index_is() -> None:
    assert doctest.testmod(index) == (0, 1)
    assert not is_mds({"shards": None})
