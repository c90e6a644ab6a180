"""What headrace writes is read by the packages that the formats come from, and by headrace, value for value."""

import io
import json
import math
import pickle
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import headrace
import litdata_files
import prepare_functions as functions
from headrace.prepare import output as outputs
from headrace.prepare import writing
from litdata_files import same, theirs
from plain_values import plain

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".venv-peers/bin/python"
FORMATS = ("litdata", "mds", "parquet", "arrow")


def write(folder: Path, samples: list[Any], **how: Any) -> headrace.Prepared:
    """Writes samples as they are."""
    how = {"num_workers": 0, "progress": False, "verbose": False, "keep_data_ordered": True} | how
    return headrace.optimize(samples.__getitem__, range(len(samples)), folder, **how)


def ours(folder: Path, **how: Any) -> list[Any]:
    data = headrace.open(folder, **how)
    return [data[number] for number in range(len(data))]


def pixels(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


LEAVES: dict[str, Any] = {
    "text": "ä€\U0001f600\n\0",
    "bytes": b"\0\xff",
    "true": True,
    "int": -(2**63),
    "float": math.inf,
    "vector": np.arange(3, dtype=np.uint16),
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "complex": np.array([[1 + 2j]]),
    "empty": np.zeros(0, np.int8),
    "number": np.float32(1.5),
    "tensor": torch.arange(4, dtype=torch.int16),
    "tensor of two": torch.ones(2, 2, dtype=torch.float64),
    "pil": Image.fromarray(pixels(4, 5, 3)),
    "grey": Image.fromarray(pixels(4, 5)),
    "nested": {"list": [1, "two"], "tuple": (b"3", {"four": 4.0})},
}

# LitData


@pytest.mark.parametrize("compression", [None, "zstd", "zstd:7"])
def test_litdata_reads_every_leaf_as_it_was(tmp_path: Path, compression: str | None) -> None:
    made = write(tmp_path / "data", [LEAVES] * 5, chunk_size=2, compression=compression)
    assert (made.samples, made.chunks) == (5, 3)
    for found in (theirs(tmp_path / "data"), ours(tmp_path / "data", tensors="torch")):
        assert len(found) == 5
        for one in found:
            assert float(one.pop("number")) == 1.5
            same(one, {name: value for name, value in LEAVES.items() if name != "number"})


def test_litdata_reads_images_and_files(tmp_path: Path) -> None:
    array = pixels(6, 7, 3)
    path = tmp_path / "image.png"
    Image.fromarray(array).save(path)
    sample = {
        "array": headrace.Image(array),
        "path": headrace.Image(path),
        "jpeg": headrace.Image(array, quality=90),
        "again": headrace.Image(path, format="JPEG", quality=80),
        "file": headrace.File(path),
    }
    write(tmp_path / "data", [sample])
    (found,), (mine,) = theirs(tmp_path / "data"), ours(tmp_path / "data")
    assert mine["file"] == path.read_bytes()
    for name in ("array", "path"):
        np.testing.assert_array_equal(mine[name], array.transpose(2, 0, 1))
        np.testing.assert_array_equal(found[name].numpy(), mine[name])
    for name, quality in (("jpeg", 90), ("again", 80)):
        out = io.BytesIO()
        Image.fromarray(array).save(out, format="JPEG", quality=quality)
        np.testing.assert_array_equal(mine[name], np.asarray(Image.open(out)).transpose(2, 0, 1))
        np.testing.assert_array_equal(found[name].numpy(), mine[name])


def test_litdata_reads_tokens(tmp_path: Path) -> None:
    from litdata import StreamingDataset, TokensLoader

    samples = [np.arange(at, at + 7, dtype=np.int32) for at in range(0, 70, 7)]
    made = write(tmp_path / "data", samples, tokens=True, chunk_size=21)
    assert made.chunks == 4
    entries = json.loads((tmp_path / "data" / "index.json").read_text())["chunks"]
    assert [entry["dim"] for entry in entries] == [21, 21, 21, 7]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = StreamingDataset(str(tmp_path / "data"), item_loader=TokensLoader(block_size=7))
        found = np.concatenate([np.asarray(data[number]) for number in range(len(data))])
        del data
    np.testing.assert_array_equal(found, np.arange(70))
    np.testing.assert_array_equal(np.concatenate(ours(tmp_path / "data", block_size=7)), np.arange(70))


def test_bfloat16_is_kept(tmp_path: Path) -> None:
    samples = [{"one": torch.ones(3, dtype=torch.bfloat16), "two": torch.ones(1, 2, dtype=torch.bfloat16) * 2}]
    write(tmp_path / "data", samples)
    same(ours(tmp_path / "data", tensors="torch"), samples)
    same(theirs(tmp_path / "data"), samples)


def test_big_endian_and_strided_arrays_are_kept(tmp_path: Path) -> None:
    array = np.arange(12, dtype=">i4").reshape(3, 4).T
    for format in FORMATS:
        write(tmp_path / format, [{"matrix": array, "row": array[0]}], format=format)
        (found,) = ours(tmp_path / format)
        assert np.array(found["matrix"]).tolist() == array.tolist(), format
        assert found["row"].tolist() == array[0].tolist(), format


class Point:
    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y


class PointSerializer:
    def can_serialize(self, value: Any) -> bool:
        return isinstance(value, Point)

    def serialize(self, value: Point) -> bytes:
        return f"{value.x},{value.y}".encode()

    def deserialize(self, data: bytes) -> tuple[int, ...]:
        return tuple(map(int, bytes(data).split(b",")))


def test_values_of_your_own_in_litdata(tmp_path: Path) -> None:
    serializers = {"point": PointSerializer()}
    write(tmp_path / "data", [{"at": Point(number, 2)} for number in range(3)], serializers=serializers)
    assert ours(tmp_path / "data", serializers=serializers) == [{"at": (number, 2)} for number in range(3)]


# MDS


@pytest.fixture(scope="module")
def mds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Any]]]:
    """Datasets that headrace wrote, and what MosaicML Streaming reads in them."""
    if not PEERS.exists():
        pytest.skip("MosaicML Streaming is not installed: make .venv-peers/.installed")
    folder = tmp_path_factory.mktemp("mds")
    for name, compression in (("plain", None), ("packed", "zstd"), ("packed-more", "zstd:9")):
        write(folder / name, MDS, format="mds", chunk_size=2, compression=compression)
    names = ("plain", "packed", "packed-more")
    command = [PEERS, ROOT / "tests/tools/read_mds.py", folder / "values", *(folder / name for name in names)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, pickle.loads((folder / "values").read_bytes())


MDS: list[dict[str, Any]] = [
    {
        "text": "ä" * number,
        "data": bytes(number),
        "int": 2**63 - 1 - number,
        "float": 0.1 * number,
        "json": [None, True, {"a": number}],
        "bool": number == 1,
        "half": np.float16(number),
        "code": np.uint8(number),
        "vector": np.arange(number + 1, dtype=np.int64),
        "matrix": np.ones((300, number + 1), np.float32),
        "tensor": torch.full((2, 2), number, dtype=torch.int32),
        "pil": Image.fromarray(pixels(4, 5, 3)),
        "png": headrace.Image(pixels(4, 5, 3)),
        "jpeg": headrace.Image(pixels(4, 5, 3), quality=90),
    }
    for number in range(5)
]


def test_streaming_reads_every_encoding_as_it_was(mds: tuple[Path, dict[str, list[Any]]]) -> None:
    folder, values = mds
    for name, found in values.items():
        assert found == [plain(one) for one in ours(folder / name, verify=True)], name
        for one, wanted in zip(ours(folder / name), MDS, strict=True):
            for key in ("text", "data", "int", "float", "json", "bool", "half", "code"):
                assert one[key] == wanted[key]
            for key in ("vector", "matrix", "tensor"):
                array = np.asarray(wanted[key])
                assert (one[key].dtype, one[key].tolist()) == (array.dtype, array.tolist())
            for key in ("pil", "png"):
                np.testing.assert_array_equal(np.asarray(one[key]), pixels(4, 5, 3))
            assert one["jpeg"].format == "JPEG"


# Parquet and Arrow

TABLE: list[dict[str, Any]] = [
    {
        "text": "ä" * number,
        "data": bytes(number),
        "int": number - 2,
        "float": 0.5 * number,
        "bool": number == 1,
        "maybe": None if number % 2 else "x",
        "list": ["a", None][: number % 3],
        "struct": {"a": number, "b": [{"c": 0.5}] * number},
        "vector": np.arange(number, dtype=np.uint16),
        "number": np.int8(number),
    }
    for number in range(7)
]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("compression", [None, "zstd", "zstd:9"])
def test_pyarrow_reads_rows_as_they_were(tmp_path: Path, format: str, compression: str | None) -> None:
    write(tmp_path / "data", TABLE, format=format, chunk_size=3, compression=compression)
    files = sorted((tmp_path / "data").glob(f"part-*.{format}"))
    assert len(files) == 3
    read = pq.read_table if format == "parquet" else feather.read_table
    table = pa.concat_tables([read(file) for file in files])
    assert table.schema.field("vector").type == pa.list_(pa.uint16())
    assert table.schema.field("number").type == pa.int8()
    wanted = [{**row, "vector": row["vector"].tolist(), "number": int(row["number"])} for row in TABLE]
    assert table.to_pylist() == wanted
    found = ours(tmp_path / "data")
    assert all(isinstance(row["vector"], np.ndarray) for row in found)
    assert [{**row, "vector": row["vector"].tolist(), "struct": row["struct"]} for row in found] == wanted


class Narrow:
    """Gives types that Python has not; and other ones before it raises."""

    def __init__(self) -> None:
        self.fails = True

    def __call__(self, number: int) -> Iterator[dict[str, Any]]:
        yield {"a": np.uint8(number), "b": np.float32(0.5)}
        if number == 2 and self.fails:
            yield {"c": "x", "a": None, "b": np.float32(1.5)}
            raise RuntimeError("of its own")


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_what_is_dropped_leaves_the_types_of_the_rest(tmp_path: Path, format: Any) -> None:
    how: dict[str, Any] = {"format": format, "num_workers": 0, "progress": False, "verbose": False}
    fn = Narrow()
    with pytest.raises(RuntimeError, match="of its own"):
        headrace.optimize(fn, range(3), tmp_path, **how)
    fn.fails = False
    headrace.optimize(fn, range(3), tmp_path, **how)
    table = (pq.read_table if format == "parquet" else feather.read_table)(tmp_path / f"part-00000.{format}")
    assert dict(zip(table.column_names, table.schema.types, strict=True)) == {"a": pa.uint8(), "b": pa.float32()}
    assert table.column("a").to_pylist() == [0, 1, 2]


CHANGES = ({"a": np.uint8(1)}, {"a": None}, {"b": []}, {"b": [1]}, {"b": None}, {"c": {"x": 1}}, {"c": {"y": "t"}}, {})


@given(st.lists(st.sampled_from(CHANGES)), st.data())
def test_a_table_is_as_if_what_was_dropped_had_never_come(samples: list[Any], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(samples)))
    taken: list[tuple[bytes, str | None]] = []
    for dropped in (True, False):
        encoder = writing.encoder("parquet", writing.Options())
        for sample in samples if dropped else samples[: len(samples) - count]:
            encoder.add(sample)
        if dropped:
            encoder.drop(count)
        taken.append((encoder.take(), encoder.schema))
    assert taken[0] == taken[1]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_columns_that_later_samples_bring_are_in_all_files(tmp_path: Path, format: str) -> None:
    samples = [
        {"a": 1, "b": None, "c": []},
        {"a": 2, "b": None, "c": []},
        {"a": 3, "b": "x", "c": [1.5], "d": {"e": 1}},
    ]
    write(tmp_path / "data", samples, format=format, chunk_size=1)
    found = ours(tmp_path / "data")
    assert [(row["a"], row["b"], list(row["c"]), row["d"]) for row in found] == [
        (1, None, [], None),
        (2, None, [], None),
        (3, "x", [1.5], {"e": 1}),
    ]
    read = pq.read_schema if format == "parquet" else lambda file: feather.read_table(file).schema
    schemas = [read(file) for file in sorted((tmp_path / "data").glob("part-*"))]
    assert len(schemas) == 3
    assert schemas[0] == schemas[1] == schemas[2]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_the_list_of_files_has_their_sizes_after_a_kill_too(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [{"a": 1}, {"a": 2}, {"a": 3, "late": "x" * 99}]
    note, noted = outputs.Output.note, dict[str, int]()

    def ends(self: outputs.Output, line: Any, *, sync: bool = False) -> None:
        if "whole" in line:
            raise KeyboardInterrupt
        if line.get("chunk"):
            noted[line["chunk"]["name"]] = line["chunk"]["bytes"]
        note(self, line, sync=sync)

    def slowly(number: int) -> Any:
        # A block of samples is sent after a twentieth of a second.
        time.sleep(0.2)
        return samples[number]

    def run() -> None:
        how: dict[str, Any] = {"num_workers": 0, "keep_data_ordered": True, "progress": False, "verbose": False}
        headrace.optimize(slowly, range(3), tmp_path / "data", format=format, chunk_size=1, **how)

    with monkeypatch.context() as patch:
        patch.setattr(outputs.Output, "note", ends)
        with pytest.raises(KeyboardInterrupt):
            run()
    run()
    listed = json.loads((tmp_path / "data/_headrace/written.json").read_bytes())["files"]
    there = {path.name: path.stat().st_size for path in (tmp_path / "data").glob("part-*")}
    assert {entry["name"]: entry["bytes"] for entry in listed} == there != noted
    write(tmp_path / "data", samples, format=format, chunk_size=1, mode="append")
    assert [row["a"] for row in ours(tmp_path / "data")] == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_files_that_are_brought_to_the_schema_keep_their_groups(tmp_path: Path, format: Any) -> None:
    table = pa.table({"a": pa.array(range(10), pa.int64())})
    if format == "parquet":
        pq.write_table(table, tmp_path / "part", row_group_size=4)
    else:
        feather.write_feather(table, tmp_path / "part", "uncompressed", chunksize=4)
    options = writing.Options()
    encoder = writing.encoder(format, options)
    encoder.add({"a": 1, "late": "x"})
    encoder.take()
    entry = {"name": "part", "samples": 10, "bytes": 1}
    (settled,) = writing.layout(format, options).settle(tmp_path, [entry], encoder.schema)
    assert settled == {**entry, "bytes": (tmp_path / "part").stat().st_size}
    if format == "parquet":
        file = pq.ParquetFile(tmp_path / "part")
        groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    else:
        groups = [len(batch) for batch in feather.read_table(tmp_path / "part", memory_map=False).to_batches()]
    assert groups == [4, 4, 2]


# All formats


@pytest.mark.parametrize("format", FORMATS)
def test_chunks_have_the_size_that_was_asked_for(tmp_path: Path, format: str) -> None:
    samples = [{"data": bytes(1000)} for _ in range(10)] + [{"data": bytes(5000)}] + [{"data": bytes(1000)}]
    write(tmp_path / "size", samples, format=format, chunk_size=5)
    assert headrace.open(tmp_path / "size").pipeline.origins[0].source.sizes.tolist() == [5, 5, 2]
    write(tmp_path / "bytes", samples, format=format, chunk_bytes=3100)
    data = headrace.open(tmp_path / "bytes")
    sizes = data.pipeline.origins[0].source.sizes.tolist()
    assert sizes == [3, 3, 3, 1, 1, 1]
    assert ours(tmp_path / "bytes") == samples


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "samples,message",
    [
        ([{"a": {1, 2}}], "key 'a': expected a value that .* hold, found set"),
        ([{"a": 1}, {"a": "x"}], "key 'a': expected int.*, found str"),
        ([{"a": 2**63}], "expected an int of 64 bits"),
        ([{"a": np.array(["x"])}], "key 'a': .*found"),
        ([{"a": np.zeros(3, "datetime64[s]")}], "key 'a': .*datetime64"),
        ([{"a": "\ud800"}], "key 'a': expected text that UTF-8 can hold: surrogates not allowed at 0"),
        ([{"a": {"b": [1, {2}]}}], r"key 'a\.b\.1': expected .* that .* can hold, found set"),
        ([{1.5: 1}], "expected keys of text"),
        ([{}], "found an empty dict"),
    ],
)
def test_what_a_format_cannot_hold_is_named(tmp_path: Path, format: str, samples: list[Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        write(tmp_path / "data", samples, format=format)


@pytest.mark.parametrize(
    "samples,message",
    [
        ([{"a": [1]}, {"a": [1, 2]}], r"key 'a': expected a list of 1 as in the first sample, found one of 2"),
        ([{"a": 1}, {"a": 1, "b": 2}], "expected the keys a as in the first sample, found a, b"),
        ([{"a": 1}, {"a": 1.5}], "key 'a': expected int as in the first sample, found float"),
        (
            [{"a": np.zeros(2)}, {"a": np.zeros(2, "f4")}],
            "key 'a': expected an array of float64 .* found an array of float32",
        ),
        ([{"a": np.zeros(2)}, {"a": np.zeros((2, 2))}], "key 'a': .*with 2 dimensions"),
        ([{"a": {"b": None}}], "key 'a.b': expected a value that LitData can hold, found NoneType"),
        ([{"a": torch.zeros(2)}, {"a": torch.zeros(2).double()}], "key 'a': expected a tensor of float32"),
    ],
)
def test_litdata_refuses_what_it_would_give_back_changed(tmp_path: Path, samples: list[Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        write(tmp_path / "data", samples)


@pytest.mark.parametrize(
    "samples,message",
    [
        ([{"a": (1, 2)}], "key 'a': .*found tuple"),
        ([{"a": [(1, 2)]}], "key 'a.0': .*found tuple"),
        ([{"a": {1: 2}}], "key 'a': expected keys of text, as JSON has them"),
        ([{"a": np.zeros(0)}], "key 'a': expected an array of at least one element"),
        ([{"a": np.zeros(2, bool)}], "key 'a': expected an array or number of .*found one of bool"),
        ([{"a": headrace.Image(b"GIF89a")}], "key 'a': expected an image as JPEG or PNG"),
        ([{"a": "x"}, {"a": None}], "key 'a': expected str as in the first sample, found NoneType"),
        (["x"], "expected a dict, found str"),
    ],
)
def test_mds_refuses_what_it_would_give_back_changed(tmp_path: Path, samples: list[Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        write(tmp_path / "data", samples, format="mds")


scalars = st.one_of(
    st.text(),
    st.binary(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
)


def alike(value: Any) -> st.SearchStrategy[Any]:
    """Values of the structure and types of one."""
    if isinstance(value, dict):
        return st.fixed_dictionaries({key: alike(part) for key, part in value.items()})
    if isinstance(value, list | tuple):
        parts = st.tuples(*map(alike, value))
        return parts.map(list) if isinstance(value, list) else parts
    kinds: dict[type, st.SearchStrategy[Any]] = {
        str: st.text(),
        bytes: st.binary(),
        bool: st.booleans(),
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False),
    }
    return kinds[type(value)]


trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.dictionaries(st.text(), inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=6,
)


@given(data=st.data(), size=st.integers(1, 4))
def test_any_tree_comes_back_from_litdata(
    data: st.DataObject, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = data.draw(trees)
    samples = [first, *data.draw(st.lists(alike(first), max_size=6))]
    folder = tmp_path_factory.mktemp("tree")
    write(folder, samples, chunk_size=size)
    assert litdata_files.ours(folder) == samples


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"a": st.none() | st.text(), "b": st.lists(st.none() | st.text(), max_size=3)},
            optional={
                "c": st.integers(-(2**63), 2**63 - 1),
                "d": st.fixed_dictionaries({"e": st.none() | st.booleans()}),
            },
        ),
        min_size=1,
        max_size=8,
    ),
    size=st.integers(1, 4),
    format=st.sampled_from(["parquet", "arrow"]),
)
def test_any_rows_come_back_from_tables(
    rows: list[Any], size: int, format: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    write(folder, rows, format=format, chunk_size=size)
    names = {name for row in rows for name in row}
    assert ours(folder) == [{**dict.fromkeys(names), **row} for row in rows]


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "text": st.text(),
                "data": st.binary(),
                "int": st.integers(-(2**63), 2**63 - 1),
                "float": st.floats(allow_nan=False),
                "json": st.none() | st.booleans() | st.lists(st.text() | st.integers(), max_size=3),
                "array": st.lists(st.integers(0, 255), min_size=1, max_size=5),
            }
        ),
        min_size=1,
        max_size=6,
    ),
    size=st.integers(1, 4),
    compression=st.sampled_from([None, "zstd"]),
)
def test_any_rows_come_back_from_mds(
    rows: list[Any], size: int, compression: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    samples = [{**row, "array": np.array(row["array"], np.uint8)} for row in rows]
    write(folder, samples, format="mds", chunk_size=size, compression=compression)
    assert [{**row, "array": row["array"].tolist()} for row in ours(folder, verify=True)] == rows


def test_images_of_a_run_are_read_in_every_format(tmp_path: Path) -> None:
    for format in FORMATS:
        headrace.optimize(functions.image, range(3), tmp_path / format, format=format, num_workers=0, verbose=False)
        for number, one in enumerate(ours(tmp_path / format)):
            found = one["image"]
            if isinstance(found, bytes):
                found = Image.open(io.BytesIO(found))
            assert np.asarray(found).reshape(-1).tolist() == [number] * 216


def test_samples_of_two_processes_that_differ_in_structure_alone() -> None:
    from headrace.prepare import writing

    options = writing.Options()
    schemas: list[str | None] = []
    for sample in ({"a": [1], "b": 2}, {"a": (1,), "b": 2}, {"b": 2, "a": [1]}, {"a": [1], "b": "x"}):
        encoder = writing.encoder("litdata", options)
        encoder.add(sample)
        schemas.append(encoder.schema)
    layout = writing.layout("litdata", options)
    assert layout.unify(schemas[0], schemas[0]) == layout.unify(None, schemas[0]) == schemas[0]
    for other in schemas[1:3]:
        with pytest.raises(TypeError, match="containers of the same types, and keys in the same order"):
            layout.unify(schemas[0], other)
    with pytest.raises(TypeError, match="key 'b': expected int as in the first sample, found str"):
        layout.unify(schemas[0], schemas[3])
