"""Parquet rows as samples: batches column by column are those made sample by sample, but for the types of numbers."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.formats import _arrow_types

ROWS = 300


def table() -> pa.Table:
    numbers = np.arange(ROWS)
    return pa.table(
        {
            "id": numbers,
            "small": numbers.astype("u1"),
            "score": (numbers / 7).astype("f4"),
            "flag": numbers % 3 == 0,
            "text": [f"text {number}" for number in numbers],
            "blob": [bytes([number % 256] * (number % 5)) for number in numbers],
            "vector": pa.array([[number, number + 1.5] for number in numbers], pa.list_(pa.float32())),
            "fixed": pa.array([[number, number, 1] for number in numbers], pa.list_(pa.int16(), 3)),
            "meta": [{"lang": "en", "n": int(number)} for number in numbers],
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for part in range(3):
        pq.write_table(table().slice(part * 100, 100), folder / f"{part}.parquet", row_group_size=17)
    return folder


def test_samples_are_rows(folder: Path) -> None:
    data = hr.open(folder)
    assert isinstance(data, hr.TableDataset)
    assert len(data) == ROWS
    rows = table().to_pylist()
    for number in (0, 16, 17, 99, 100, 299, -1):
        sample = data[number]
        found = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in sample.items()}
        assert found == rows[number]
    assert data.place(117) == hr.Place("1.parquet", 7, 0)


def test_a_batch_has_the_stored_types(folder: Path) -> None:
    batch = next(iter(hr.DataLoader(hr.open(folder), batch_size=50, shuffle=False)))
    kinds = {name: (value.dtype.name, value.shape) for name, value in batch.items() if isinstance(value, np.ndarray)}
    assert kinds == {
        "id": ("int64", (50,)),
        "small": ("uint8", (50,)),
        "score": ("float32", (50,)),
        "flag": ("bool", (50,)),
        "vector": ("float32", (50, 2)),
        "fixed": ("int16", (50, 3)),
    }
    assert all(batch[name].flags.writeable for name in kinds)
    assert batch["text"] == [f"text {number}" for number in range(50)]
    assert batch["meta"]["n"].tolist() == list(range(50))


def same(one: Any, two: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[name], two[name]) for name in one)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, np.asarray(two, dtype=one.dtype)))
    return one == two


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 70),
    st.booleans(),
    st.integers(0, 2**64 - 1),
    st.lists(st.sampled_from(table().column_names), min_size=1, unique=True),
    st.integers(0, 2),
)
def test_columns_at_once_are_samples_one_by_one(
    folder: Path, batch: int, shuffle: bool, seed: int, columns: list[str], workers: int
) -> None:
    data = hr.open(folder).select(columns)
    whole, single = (
        list(hr.DataLoader(each, batch_size=batch, shuffle=shuffle, seed=seed, num_workers=workers))
        for each in (data, data.map(lambda sample: sample))
    )
    assert len(whole) == len(single) > 0
    for one, two in zip(whole, single, strict=True):
        assert list(one) == columns
        assert same(dict(one), dict(two))
        assert one.state == two.state


def outcome(data: hr.SampleDataset) -> str:
    try:
        return repr(next(iter(hr.DataLoader(data, batch_size=3, shuffle=False))))
    except ValueError as error:
        return str(error)


def test_nulls_and_lists_of_other_lengths_are_as_they_are_sample_by_sample(tmp_path: Path) -> None:
    lists = pa.array([[1], [2, 3], [4]], pa.list_(pa.int32()))
    pq.write_table(pa.table({"a": pa.array([1, None, 3]), "b": ["x", None, "z"], "c": lists}), tmp_path / "a.parquet")
    data = hr.open(tmp_path)
    for columns in (["a"], ["b"], ["a", "b"]):
        one, two = (outcome(each) for each in (data.select(columns), data.select(columns).map(lambda sample: sample)))
        assert one == two
        assert ("cannot collate" in one) == ("a" in columns), columns
    with pytest.raises(ValueError, match=r"cannot collate \['c'\]|\['c'\]"):
        next(iter(hr.DataLoader(data.select(["c"]), batch_size=3)))
    loader = hr.DataLoader(data.select(["c"]), batch_size=3, shuffle=False, collate_fn=list)
    assert [sample["c"].tolist() for sample in next(iter(loader))] == [[1], [2, 3], [4]]


def test_files_of_other_columns_are_refused_and_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2], "b": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": [3, 4]}), tmp_path / "b.parquet")
    with pytest.raises(hr.DataError, match=r"b\.parquet"):
        list(hr.DataLoader(hr.open(tmp_path), batch_size=4, shuffle=False))
    chosen = hr.open(tmp_path).select(["a"])
    assert [batch["a"].tolist() for batch in hr.DataLoader(chosen, batch_size=4, shuffle=False)] == [[1, 2, 3, 4]]


STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])
OTHER_TYPES = [
    (pa.array(["x"]), pa.array([1]), "string", "int64"),
    (pa.array([1]), pa.array(["x"]), "int64", "string"),
    (pa.array([b"x"]), pa.array(["x"]), "binary", "string"),
    (pa.array([1.5]), pa.array([1], pa.decimal128(5, 2)), "float64", "decimal"),
    (pa.array([1], pa.date32()), pa.array([1], pa.timestamp("s")), "date", "timestamp"),
    (
        pa.array([1], pa.timestamp("s", "UTC")),
        pa.array([1], pa.timestamp("s")),
        "timestamp with a time zone",
        "timestamp",
    ),
    (pa.array([[1]]), pa.array([1]), "list<int64>", "int64"),
    (pa.array([[1]]), pa.array([["x"]]), "list<int64>", "list<string>"),
    (pa.array([{"a": 1, "b": "x"}], STRUCT), pa.array([["x"]]), "struct<a: int64, b: string>", "list<string>"),
    (pa.array([{"a": 1, "b": "x"}], STRUCT), pa.array([{"a": 1}]), "struct<a: int64, b: string>", "struct<a: int64>"),
    (pa.array([[{"a": 1}]]), pa.array([[{"a": "x"}]]), "list<struct<a: int64>>", "list<struct<a: string>>"),
]


@pytest.mark.parametrize("one,two,wanted,found", OTHER_TYPES)
def test_columns_of_other_types_are_refused_and_named(
    one: Any, two: Any, wanted: str, found: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": [0], "x": one}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1], "x": two}), tmp_path / "b.parquet")
    data = hr.open(tmp_path)
    first, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    match = re.escape(f"{other}: expected column 'x' to be {wanted} as in {first}, found {found}\nhint: ")
    for read in (lambda: data[1], lambda: list(data), lambda: data.select(["x"])[1]):
        with pytest.raises(hr.DataError, match=match):
            read()
    with pytest.raises(hr.DataError, match=match):
        list(hr.DataLoader(data, batch_size=1, shuffle=False, collate_fn=list))
    assert data[0]["id"] == 0
    assert list(data.select(["id"])) == [{"id": 0}, {"id": 1}]


SAME_TYPES = [
    (pa.array([1], pa.int8()), pa.array([2.5])),
    (pa.array(["x"]), pa.array(["y"], pa.large_string())),
    (pa.array(["x"]), pa.array(["y"], pa.string_view())),
    (pa.array(["x"]), pa.array(["y"]).dictionary_encode()),
    (pa.array([1], pa.timestamp("s")), pa.array([1], pa.timestamp("us"))),
    (pa.nulls(1), pa.array(["y"])),
    (pa.array([[]], pa.list_(pa.null())), pa.array([[{"a": 1}]])),
    (pa.array([[1]], pa.list_(pa.int8(), 1)), pa.array([[1]], pa.large_list(pa.float32()))),
    (pa.array([{"a": 1, "b": "x"}], STRUCT), pa.array([{"b": "y", "a": None}])),
    (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())), pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))),
]


@pytest.mark.parametrize("one,two", SAME_TYPES)
def test_columns_whose_values_are_alike_are_read(one: Any, two: Any, tmp_path: Path) -> None:
    for number, column in enumerate((one, two)):
        pq.write_table(pa.table({"x": column}), tmp_path / f"{number}.parquet")
    assert len(list(hr.open(tmp_path))) == 2


def test_types_are_those_of_arrow() -> None:
    assert doctest.testmod(_arrow_types) == (0, 2)
    types = {
        "a": pa.run_end_encoded(pa.int32(), pa.string()), "b": pa.list_(pa.struct([("c", pa.uint8())])),
        "d": pa.map_(pa.string(), pa.float16()), "e": pa.dictionary(pa.int8(), pa.binary(3)), "f": pa.time64("ns"),
    }  # fmt: skip
    found = {name: str(kind) for name, kind in _arrow_types.fields_of(pa.schema(types).__arrow_c_schema__()).items()}
    assert found == {
        "a": "string", "b": "list<struct<c: uint8>>", "d": "map<entries: struct<key: string, value: float16>>",
        "e": "binary", "f": "time",
    }  # fmt: skip


def test_where_reads_only_its_columns(folder: Path) -> None:
    data = hr.open(folder)
    kept = data.where((hr.col("small") >= 40) & hr.col("flag") & (hr.col("text") != "text 42"))
    wanted = [number for number in range(ROWS) if number % 256 >= 40 and number % 3 == 0 and number != 42]
    assert [sample["id"] for sample in kept] == wanted
