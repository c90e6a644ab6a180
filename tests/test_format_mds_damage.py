"""MDS that is damaged, or was made to do harm: refused with its place, in bounded memory."""

import os
import pickle
import shutil
import struct
import sys
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import mds_files as mds
from headrace.errors import DataError
from mds_files import COLUMNS, one, opened, rows, samples


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return mds.write(tmp_path / "data", [(COLUMNS, rows(5)), (COLUMNS, rows(3))])


def test_pickled_objects_need_leave(tmp_path: Path) -> None:
    folder = mds.write(tmp_path, [({"a": "int", "b": "pkl"}, [{"a": bytes(8), "b": pickle.dumps([1])}])])
    source = opened(folder)
    with pytest.raises(
        DataError, match=r"'b' holds pickled objects; reading them runs whatever code(.|\n)*allow_pickle"
    ):
        source.load(0)
    assert samples(source, ("a",)) == [{"a": 0}]
    assert samples(opened(folder, allow_pickle=True)) == [{"a": 0, "b": [1]}]


def test_images_need_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = one(tmp_path, {"a": "png", "b": "int"}, a=b"", b=bytes(8))
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert samples(source, ("b",)) == [{"b": 0}]
    with pytest.raises(ImportError, match="pip install pillow"):
        samples(source)


CELLS = [
    ("str", b"\xff", "invalid start byte"),
    ("str_int", b"1x", "invalid literal"),
    ("str_float", b"", "could not convert"),
    ("str_decimal", b"one", "ConversionSyntax"),
    ("json", b'{"a":', "Expecting value"),
    ("json", b"[" * 100_000, "recursion"),
    ("pkl", b"\x80\x04.", "expected a pickled object"),
    ("ndarray", b"", "expected an array's dtype"),
    ("ndarray", b"\x07\x04\x01\0", "expected an array's dtype among .* found 7"),
    ("ndarray", b"\x08", "expected an array's shape"),
    ("ndarray", b"\x08\x09\x01", "expected the 2 dimensions"),
    ("ndarray", b"\x42\x07" + b"\xff" * 8 + b"x", "expected .* bytes for a float64 array .* found 1"),
    ("ndarray:uint8", b"\x08\x03\x04abcdefgh", "expected 12 bytes for a uint8 array of shape .3, 4., found 8"),
    ("pil", b"", "expected an image with a head"),
    ("pil", struct.pack("<3I", 1, 1, 3) + b"XYZabc", "expected an image in a mode among"),
    ("pil", struct.pack("<3I", 65535, 65535, 3) + b"RGBabc", "expected 12884508675 bytes for an image"),
    ("pil", struct.pack("<3I", 0, 2**32 - 1, 1) + b"L", "without pixels"),
    ("pil", struct.pack("<3I", 1, 1, 2**32 - 1) + b"L", "expected the name of an image's mode"),
    ("jpeg", b"no image", "cannot read"),
    ("jpeg_array", b"\0\0\0\0", "at least one image"),
    ("jpeg_array", b"\xff\xff\xff\xff", "expected the sizes of 4294967295 values"),
    ("list[png]", b"\0\0\0\0\xff\xff\xff\x7f", "expected the sizes of 2147483647 values"),
    ("list[png]", b"\0\0\0\0\1\0\0\0\xff\xff\xff\xff", "expected 1 values of together 4294967295 bytes, found 0"),
]


@pytest.mark.parametrize("encoding,cell,message", CELLS)
def test_a_value_that_is_none(tmp_path: Path, encoding: str, cell: bytes, message: str) -> None:
    source = one(tmp_path, {"a": "int", "b": encoding, "c": "str"}, a=bytes(8), b=cell, c=b"")
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message) as caught:
            source.load(0)[0]
        assert tracemalloc.get_traced_memory()[1] < 4 << 20, "memory by what damaged bytes declare"
    finally:
        tracemalloc.stop()
    assert f"{tmp_path}/shard.00000.mds, chunk 0, row 0: column 'b' ({encoding}): " in str(caught.value)


@given(st.sampled_from(sorted({encoding for encoding, _, _ in CELLS} - {"pkl"})), st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(encoding: str, cell: bytes) -> None:
    from headrace.formats.mds.encodings import decoder
    from headrace.formats.mds.shard import _FAULTS  # pyright: ignore[reportPrivateUsage]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, of images that are huge by their heads.
            decoder(encoding)(cell)
    except _FAULTS:
        pass


@given(st.lists(st.tuples(st.binary(max_size=9), st.text(max_size=5), st.integers(-(2**63), 2**63 - 1)), max_size=9))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[bytes, str, int]]) -> None:
    columns = {"a": "bytes", "b": "str", "c": "int", "d": "ndarray:int32:2"}
    array = np.array([1, -2], np.int32).tobytes()
    stored = [{"a": a, "b": b.encode(), "c": struct.pack("<q", c), "d": array} for a, b, c in cells]
    found = samples(opened(mds.write(tmp_path_factory.mktemp("any"), [(columns, stored)])))
    assert [(one["a"], one["b"], one["c"], one["d"].tolist()) for one in found] == [(*cell, [1, -2]) for cell in cells]


def test_a_shard_that_was_cut_short(small: Path) -> None:
    path = small / "shard.00000.mds"
    data = path.read_bytes()
    entries = mds.read_entries(small)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        entries[0]["raw_data"]["bytes"] = len(data)
        mds.write_index(small, entries)
        with pytest.raises(DataError, match=f"expected {len(data)} bytes by the index, found {length}"):
            opened(small)
        entries[0]["raw_data"]["bytes"] = length
        mds.write_index(small, entries)
        with pytest.raises(DataError, match=r"shard\.00000\.mds: expected"):
            opened(small).load(0)


def test_a_flipped_byte_is_refused_or_read_but_nothing_else(small: Path) -> None:
    path = small / "shard.00000.mds"
    data = path.read_bytes()
    source = opened(small, verify=True)
    refused = 0
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x81]) + data[at + 1 :])
        os.utime(path, ns=(source._listed[path.name].size, int(source._listed[path.name].version[1:])))  # pyright: ignore[reportPrivateUsage]
        try:
            samples(opened(small))
        except DataError:
            refused += 1
        with pytest.raises(DataError, match="expected sha1"):
            source.load(0)
    assert refused > 30


def test_a_shard_of_another_dataset(small: Path, tmp_path: Path) -> None:
    other = mds.write(
        tmp_path / "other",
        [({"image": "bytes", "lebal": "int"}, [{"image": r["image"], "lebal": r["label"]} for r in rows(5)])],
    )
    shutil.copyfile(other / "shard.00000.mds", small / "shard.00000.mds")
    with pytest.raises(
        DataError, match=r"expected column_names \['image', 'label'\] as in the index, found \['image', 'lebal'\]"
    ):
        opened(small).load(0)


def test_a_sample_whose_head_is_wrong(tmp_path: Path) -> None:
    folder = mds.write(tmp_path, [(COLUMNS, rows(2))])
    path = folder / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    data[-13] = 9  # The size of the last image: 1.
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"chunk 0, row 1: expected a sample of 21 bytes by its head, found 13"):
        opened(folder).load(0)[1]


def test_a_shard_that_changes_after_it_was_listed(small: Path) -> None:
    source = opened(small)
    os.utime(small / "shard.00001.mds", (1, 1))
    assert len(source.load(0)) == 5
    with pytest.raises(DataError, match="changed since it was indexed"):
        source.load(1)


INDEXES = [
    ({"version": 1}, "expected version 2"),
    ({"format": "parquet"}, "expected a shard in the format mds, json, csv, tsv or xsv, found 'parquet'"),
    ({"samples": -1}, "expected 'samples' to be a count"),
    ({"samples": "5"}, "expected 'samples' to be of type int"),
    ({"samples": 4}, "expected 4 samples by the index, found 5"),
    ({"samples": 2**40}, "for 1099511627776 samples by the index, found 172"),
    ({"compression": "lz4"}, "expected a compression among br, bz2, gz, snappy, zstd, found 'lz4'"),
    ({"column_names": ["image"]}, "expected as many encodings as columns"),
    ({"column_names": ["image", "image"]}, "each column once"),
    ({"column_names": None}, "expected 'column_names' to be of type list"),
    ({"column_encodings": ["bytes", "integer"]}, "column 'label': expected an encoding among .* found 'integer'"),
    ({"column_encodings": ["ndarray:void", "int"]}, "expected a dtype among"),
    ({"column_encodings": ["ndarray:int8:0,-1", "int"]}, "expected a shape of positive numbers as 2,3, found '0,-1'"),
    ({"column_sizes": [None, 4]}, "expected column_sizes .None, 8. for columns encoded as"),
    ({"raw_data": None}, "raw_data: expected an object, found None"),
    ({"raw_data": {"basename": "../x", "bytes": 1, "hashes": {}}}, "expected the path of a file below"),
    ({"raw_data": {"basename": "/etc/passwd", "bytes": 1, "hashes": {}}}, "expected the path of a file below"),
    ({"raw_data": {"basename": "shard.00001.mds", "bytes": 1, "hashes": {}}}, "found 'shard.00001.mds' twice"),
    ({"raw_data": {"basename": "shard.00000.mds", "bytes": 1, "hashes": {}}}, "expected 1 bytes by the index"),
    ({"raw_data": {"basename": "a", "bytes": 1, "hashes": [1]}}, "expected digests by algorithm"),
    ({"zip_data": {"basename": "x.gz", "bytes": 1}}, "expected no compressed file without a compression"),
]


@pytest.mark.parametrize("change,message", INDEXES)
def test_an_index_that_is_wrong(small: Path, change: dict[str, Any], message: str) -> None:
    entries = mds.read_entries(small)
    mds.write_index(small, [{**entries[0], **change}, entries[1]])
    with pytest.raises(DataError, match=message):
        opened(small).load(0)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"chunks": []}', '{"shards": [1]}', "[" * 10**5, "\udcff"])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=r"index\.json"):
        opened(tmp_path)


def test_digests_that_are_missing(small: Path) -> None:
    entries = mds.read_entries(small)
    for hashes, message in [({}, "the index has none"), ({"crc9": "0"}, "can be computed here, the index has crc9")]:
        entries[1]["raw_data"]["hashes"] = hashes
        mds.write_index(small, entries)
        assert len(samples(opened(small))) == 8
        with pytest.raises(DataError, match=message):
            opened(small, verify=True)


@pytest.mark.parametrize("packed", [False, True])
def test_a_shard_that_has_no_sample_by_the_index(small: Path, packed: bool) -> None:
    entries = mds.read_entries(small)
    entries[1]["samples"] = 0
    name = entries[1]["raw_data"]["basename"]
    if packed:
        path = small / name
        path.write_bytes(data := zstandard.compress(path.read_bytes()))
        name = "shard.zstd"
        path.rename(small / name)
        entries[1] |= {"compression": "zstd", "zip_data": {"basename": name, "bytes": len(data), "hashes": {}}}
    mds.write_index(small, entries)
    with pytest.raises(DataError, match=rf"{small / name}: expected 0 samples by the index, found 3"):
        opened(small)


def test_a_shard_that_has_no_sample(small: Path) -> None:
    folder = mds.write(small, [(COLUMNS, rows(2)), (COLUMNS | {"c": "pkl"}, []), (COLUMNS, rows(1))])
    source = opened(folder)
    assert source.sizes.tolist() == [2, 0, 1]
    assert [sample["label"] for sample in samples(source, ("label",))] == [0, 1, 0]


@pytest.mark.parametrize("kind", ["mds", "json"])
def test_more_samples_than_a_shard_can_hold(small: Path, kind: str) -> None:
    entries = mds.read_entries(small)
    size = entries[1]["raw_data"]["bytes"]
    most = (size - 8) // {"mds": 4 + 4 + 8, "json": 4}[kind]
    if kind == "json":
        (small / "lines").write_bytes(b"{}\n")
        lines = {"basename": "lines", "bytes": 3, "hashes": {}}
        entries[1] |= {"format": "json", "columns": {}, "raw_meta": entries[1]["raw_data"], "raw_data": lines}
    for count in (most + 1, 2**40):
        entries[1]["samples"] = count
        mds.write_index(small, entries)
        with pytest.raises(
            DataError, match=rf"shard\.00001\.mds: expected at least \d+ bytes for {count} samples .* found {size}$"
        ):
            opened(small)
    entries[1]["samples"] = most
    mds.write_index(small, entries)
    with pytest.raises(DataError, match=f"expected {most} samples by the index, found 3"):
        opened(small).load(1)
