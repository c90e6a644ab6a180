"""Rows of any schema: chunks of Parquet and Arrow files against what pyarrow makes of them."""

import datetime
import decimal
import math
import threading
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace import _core


def silent(phase: str, done: int, total: int) -> None:
    pass


def index_of(path: Path) -> _core.Index:
    return _core.Index.open(
        [str(path)], storage_options={}, cache_dir=None, index="rebuild", columns=None, progress=silent
    )


def arrow_file(path: Path) -> _core.ArrowFile:
    found = _core.Listing.open([str(path)], storage_options={}, progress=silent)
    [file] = found.files()
    return _core.ArrowFile.open(found, *file)


def plain(value: Any) -> Any:
    """With lists for arrays, and words for numbers that are not equal to themselves."""
    match value:
        case np.ndarray():
            return [plain(item) for item in value.tolist()]
        case list():
            return [plain(item) for item in value]
        case tuple():
            return tuple(plain(item) for item in value)
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case float() if math.isnan(value):
            return "not a number"
        case np.floating():
            return plain(float(value))
    return value


def values(rows: _core.Rows) -> list[dict[str, Any]]:
    return [plain(row) for row in rows.take(list(range(len(rows))))]


def wanted(table: pa.Table) -> list[dict[str, Any]]:
    return plain(table.to_pylist())


# Random tables

ZONES = ["UTC", "Europe/Berlin", "+05:30"]
FAR = 6 * 10**10  # seconds: nearly the years of Python's types


def times(unit: str) -> st.SearchStrategy[int]:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    most = min(FAR * per_second, 2**62)
    whole = st.integers(-most, most)
    return whole.map(lambda number: number // 1000 * 1000) if unit == "ns" else whole


def leaves(*, views: bool) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    ints = [
        (kind(), st.integers(np.iinfo(kind().to_pandas_dtype()).min, np.iinfo(kind().to_pandas_dtype()).max))
        for kind in (pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64)
    ]
    floats = [(pa.float32(), st.floats(width=32)), (pa.float64(), st.floats())]
    text, binary = st.text(st.characters(codec="utf-8"), max_size=20), st.binary(max_size=20)
    units = ["s", "ms", "us", "ns"]
    kinds: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
        (pa.bool_(), st.booleans()),
        *ints,
        *floats,
        (pa.float16(), st.floats(width=16).map(np.float16)),
        (pa.string(), text),
        (pa.large_string(), text),
        (pa.binary(), binary),
        (pa.large_binary(), binary),
        (pa.binary(3), st.binary(min_size=3, max_size=3)),
        (pa.decimal128(9, 2), st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: decimal.Decimal(n).scaleb(-2))),
        (pa.decimal256(50, 5), st.integers(-(10**27), 10**27).map(lambda n: decimal.Decimal(n) / 10**5)),
        (pa.date32(), st.dates()),
        (pa.date64(), st.dates()),
        (pa.time32("s"), st.times().map(lambda t: t.replace(microsecond=0))),
        (pa.time32("ms"), st.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000))),
        (pa.time64("us"), st.times()),
        (pa.time64("ns"), st.times()),
        *[(pa.timestamp(unit), times(unit)) for unit in units],
        *[(pa.timestamp("us", zone), times("us")) for zone in ZONES],
        *[(pa.duration(unit), times(unit)) for unit in units],
        (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", "", "ü"])),
        (pa.null(), st.none()),
    ]
    if views:
        kinds += [(pa.string_view(), text), (pa.binary_view(), binary)]
    return st.sampled_from(kinds)


def nested(
    inner: st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    def lists(kind: Callable[[pa.DataType], pa.DataType]) -> st.SearchStrategy[Any]:
        return inner.map(lambda of: (kind(of[0]), st.lists(of[1] | st.none(), max_size=4)))

    fixed = inner.map(lambda of: (pa.list_(of[0], 2), st.lists(of[1] | st.none(), min_size=2, max_size=2)))
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda parts: (
            pa.struct([(f"f{number}", kind) for number, (kind, _) in enumerate(parts)]),
            st.fixed_dictionaries({f"f{number}": of | st.none() for number, (_, of) in enumerate(parts)}),
        )
    )
    maps = inner.map(
        lambda of: (
            pa.map_(pa.string(), of[0]),
            st.dictionaries(st.sampled_from("abcd"), of[1] | st.none(), max_size=3).map(lambda d: list(d.items())),
        )
    )
    return lists(pa.list_) | lists(pa.large_list) | fixed | structs | maps


KINDS = st.recursive(leaves(views=True), nested, max_leaves=4)
# pyarrow cannot write all views inside lists.
PARQUET_KINDS = st.recursive(leaves(views=False), nested, max_leaves=4)


@st.composite
def tables(draw: st.DrawFn, kinds: st.SearchStrategy[Any]) -> pa.Table:
    columns = draw(st.lists(kinds, min_size=1, max_size=4))
    rows = draw(st.integers(0, 12))
    arrays = [pa.array(draw(st.lists(of | st.none(), min_size=rows, max_size=rows)), kind) for kind, of in columns]
    return pa.table(arrays, names=[f"c{number}" for number in range(len(columns))])


def has(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    children = [kind.field(number).type for number in range(kind.num_fields)]
    return test(kind) or any(has(child, test) for child in children)


@given(
    table=tables(PARQUET_KINDS),
    size=st.integers(1, 12),
    compression=st.sampled_from(["none", "snappy", "zstd", "gzip", "lz4", "brotli"]),
    dictionary=st.booleans(),
    version=st.sampled_from(["1.0", "2.0"]),
    data=st.data(),
)
def test_row_groups_are_what_pyarrow_reads(
    tmp_path_factory: pytest.TempPathFactory,
    table: pa.Table,
    size: int,
    compression: str,
    dictionary: bool,
    version: Any,
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.parquet"
    pq.write_table(
        table,
        path,
        row_group_size=size,
        compression=compression,
        use_dictionary=dictionary,
        data_page_version=version,
        write_page_checksum=True,
    )
    index, file = index_of(path), pq.ParquetFile(path)
    assert index.row_group_count == file.num_row_groups
    sizes = np.frombuffer(index.row_group_sizes(), np.int64).tolist()
    assert sizes == [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert len(index.row_group_bytes()) == len(sizes)
    for number in range(file.num_row_groups):
        rows = index.read_rows(number)
        read = file.read_row_group(number)
        assert rows.columns == table.column_names
        assert len(rows) == read.num_rows
        assert values(rows) == wanted(read)
        some = data.draw(st.lists(st.sampled_from(table.column_names), min_size=1, unique=True))
        part = index.read_rows(number, some)
        assert part.columns == sorted(some)
        assert values(part) == wanted(read.select(sorted(some)))
        assert_arrays(rows, read)
        # view types are read by pyarrow, and equal
        back = pa.table(pa.record_batch(rows))
        assert wanted(back) == wanted(read)


def assert_arrays(rows: _core.Rows, read: pa.Table) -> None:
    for name, array in rows.arrays().items():
        column = read[name]
        assert column.null_count == 0
        assert isinstance(array, np.ndarray)
        assert not array.flags.writeable
        assert plain(array) == plain(column.to_pylist())


@given(
    table=tables(KINDS),
    size=st.integers(1, 12),
    compression=st.sampled_from([None, "lz4", "zstd"]),
    stream=st.booleans(),
    data=st.data(),
)
def test_arrow_batches_are_what_pyarrow_reads(
    tmp_path_factory: pytest.TempPathFactory,
    table: pa.Table,
    size: int,
    compression: str | None,
    stream: bool,
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.arrow"
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=size)
    batches = [batch for batch in table.to_batches(max_chunksize=size) if batch.num_rows]
    file = arrow_file(path)
    assert [name for name, _ in file.schema()] == table.column_names
    assert pa.schema(file).names == table.column_names
    found = np.frombuffer(file.batch_rows(), np.int64).tolist()
    assert [rows for rows in found if rows] == [batch.num_rows for batch in batches]
    for number, batch in enumerate(batches):
        rows = file.read(number)
        assert values(rows) == plain(batch.to_pylist())
        some = data.draw(st.lists(st.sampled_from(table.column_names), min_size=1, unique=True))
        assert values(file.read(number, some)) == plain(batch.select(sorted(some)).to_pylist())
        assert pa.record_batch(rows).to_pydict().keys() == set(table.column_names)
        assert_arrays(rows, pa.table(batch))


def written(folder: Path, column: pa.Array, *, stream: bool = False) -> Path:
    """An Arrow file with a batch of one column."""
    path, batch = folder / "rows.arrow", pa.record_batch([column], names=["c"])
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(path, batch.schema) as writer:
        writer.write_batch(batch)
    return path


WORD = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "kind, rows",
    [
        (pa.struct({"a": WORD}), [None]),
        (pa.struct({"a": WORD}), [None, {"a": None}, None]),
        (pa.struct({"a": pa.struct({"b": WORD, "c": pa.int8()})}), [None, {"a": None}, {"a": {"b": None, "c": 1}}]),
        (pa.struct({"a": pa.list_(WORD, 2)}), [None, {"a": None}, {"a": [None, None]}]),
        (pa.list_(pa.struct({"a": WORD})), [[None], [], None, [{"a": None}, None]]),
        (pa.large_list(pa.struct({"a": WORD})), [[None], [], None, [{"a": None}, None]]),
        (pa.list_(pa.struct({"a": WORD}), 2), [[None, None], None, [{"a": None}, None]]),
        (pa.map_(pa.string(), pa.struct({"a": WORD})), [[("x", None)], [], None, [("y", {"a": None})]]),
    ],
)
def test_indices_into_empty_dictionaries_that_stand_for_nothing_are_read(
    tmp_path: Path, kind: pa.DataType, rows: list[Any], stream: bool
) -> None:
    """pyarrow writes them below structs that are null."""
    column = pa.array(rows, kind)
    found = arrow_file(written(tmp_path, column, stream=stream)).read(0)
    assert values(found) == plain([{"c": row} for row in column.to_pylist()])
    assert pa.record_batch(found).to_pylist() == [{"c": row} for row in column.to_pylist()]


NOWHERE = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([], pa.string()), safe=False)
"""A word of an empty dictionary."""


@pytest.mark.parametrize(
    "column",
    [
        NOWHERE,
        pa.StructArray.from_arrays([NOWHERE], ["a"]),
        pa.FixedSizeListArray.from_arrays(NOWHERE, 1),
        pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), NOWHERE),
        pa.LargeListArray.from_arrays(pa.array([0, 1], pa.int64()), NOWHERE),
        pa.ListViewArray.from_arrays(pa.array([0], pa.int32()), pa.array([1], pa.int32()), NOWHERE),
        pa.LargeListViewArray.from_arrays(pa.array([0], pa.int64()), pa.array([1], pa.int64()), NOWHERE),
        pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), NOWHERE),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [NOWHERE]),
        pa.StructArray.from_arrays([pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), NOWHERE)], ["a"]),
    ],
    ids=lambda column: str(column.type),
)
def test_values_of_an_empty_dictionary_are_refused(tmp_path: Path, column: pa.Array) -> None:
    with pytest.raises(
        hr.errors.DataError, match=r"rows.arrow: .*batch 0 .* values of an empty dictionary in .* \"c\""
    ):
        arrow_file(written(tmp_path, column)).read(0)


def test_an_index_beyond_an_empty_dictionary_is_refused_wherever_it_is(tmp_path: Path) -> None:
    far = pa.DictionaryArray.from_arrays(pa.array([1], pa.int32()), pa.array([], pa.string()), safe=False)
    column = pa.StructArray.from_arrays([far], ["a"], mask=pa.array([True]))
    with pytest.raises(hr.errors.DataError, match=r"rows.arrow: .*batch 0 .*out of bounds"):
        arrow_file(written(tmp_path, column)).read(0)


# Single values


def rows_of(tmp_path: Path, **columns: pa.Array) -> _core.Rows:
    table = pa.table(columns)
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    return arrow_file(tmp_path / "x.arrow").read(0)


def test_times_that_python_has_not_are_those_of_numpy(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        stamp=pa.array([1001, 1000], pa.timestamp("ns")),
        zoned=pa.array([1001, 1000], pa.timestamp("ns", "Europe/Berlin")),
        far=pa.array([2**60, 0], pa.timestamp("s")),
        time=pa.array([1001, 1000], pa.time64("ns")),
        since=pa.array([1001, 1000], pa.duration("ns")),
        long=pa.array([2**62, 0], pa.duration("s")),
        day=pa.array([2**31 - 1, 0], pa.date32()),
    )
    epoch = datetime.datetime(1970, 1, 1)
    odd, even = rows.take(np.array([0, 1]))
    assert odd == {
        "stamp": np.datetime64(1001, "ns"),
        "zoned": np.datetime64(1001, "ns"),
        "far": np.datetime64(2**60, "s"),
        "time": np.timedelta64(1001, "ns"),
        "since": np.timedelta64(1001, "ns"),
        "long": np.timedelta64(2**62, "s"),
        "day": np.datetime64(2**31 - 1, "D"),
    }
    assert all(isinstance(value, np.datetime64 | np.timedelta64) for value in odd.values())
    micro = datetime.timedelta(microseconds=1)
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    assert even == {
        "stamp": epoch + micro,
        "zoned": datetime.datetime(1970, 1, 1, 1, 0, 0, 1, berlin),
        "far": epoch,
        "time": datetime.time(0, 0, 0, 1),
        "since": micro,
        "long": micro * 0,
        "day": datetime.date(1970, 1, 1),
    }
    assert type(even["stamp"]) is datetime.datetime
    assert even["zoned"].tzinfo is berlin


def test_lists_of_numbers_are_arrays_of_their_own(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        a=pa.array([[1, 2], [], [3, None], None], pa.list_(pa.int16())),
        b=pa.array([[[1.5]], [], [None], None], pa.list_(pa.large_list(pa.float32()))),
        c=pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.uint8(), 2)),
        d=pa.array([[True], [], [False], None], pa.list_(pa.bool_())),
    )
    first, empty, partly, nothing = rows.take([0, 1, 2, 3])
    assert first["a"].dtype == np.int16
    assert first["a"].flags.writeable
    first["a"][0] = 9
    assert rows.row(0)["a"].tolist() == [1, 2]
    assert (empty["a"].dtype, empty["a"].shape) == (np.int16, (0,))
    assert partly["a"] == [3, None]
    assert nothing == {"a": None, "b": None, "c": nothing["c"], "d": None}
    assert isinstance(first["b"], list)
    assert first["b"][0].dtype == np.float32
    assert partly["b"] == [None]
    assert [row["d"] for row in (first, empty, partly)] == [[True], [], [False]]
    whole = rows.arrays()
    assert whole.keys() == {"c"}
    assert whole["c"].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_unions_and_runs(tmp_path: Path) -> None:
    ids = pa.array([0, 1, 0], pa.int8())
    sparse = pa.UnionArray.from_sparse(ids, [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])])
    dense = pa.UnionArray.from_dense(ids, pa.array([0, 0, 1], pa.int32()), [pa.array([1, 3]), pa.array(["b"])])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["x", None]))
    months = pa.array([pa.MonthDayNano([1, 2, 3])] * 3)
    rows = rows_of(tmp_path, sparse=sparse, dense=dense, runs=runs, months=months)
    assert rows.take([0, 1, 2]) == [
        {"sparse": 1, "dense": 1, "runs": "x", "months": (1, 2, 3)},
        {"sparse": "b", "dense": "b", "runs": "x", "months": (1, 2, 3)},
        {"sparse": 3, "dense": 3, "runs": None, "months": (1, 2, 3)},
    ]


def test_rows_that_are_not_there(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, a=pa.array([1, 2]))
    assert rows.take([]) == []
    assert rows.take(np.array([1, 1, 0])) == [{"a": 2}, {"a": 2}, {"a": 1}]
    for number in (2, -1):
        with pytest.raises(IndexError, match="expected a row of the 2 that there are"):
            rows.row(number)
        with pytest.raises(IndexError, match=str(number)):
            rows.take([number])


def test_a_column_in_several_parts(tmp_path: Path) -> None:
    """More rows than are decoded at a time: 65,536."""
    count = 150_000
    numbers = np.arange(count)
    table = pa.table({"n": numbers, "even": numbers % 2 == 0, "text": [f"row {n % 1000}" for n in range(count)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=count)
    rows = index_of(tmp_path).read_rows(0)
    assert len(rows) == count
    assert 8 * count < rows.nbytes < 60 * count
    whole = rows.arrays()
    assert whole["n"].tolist() == numbers.tolist()
    assert whole["even"].tolist() == (numbers % 2 == 0).tolist()
    for number in (0, 65_535, 65_536, 131_072, count - 1):
        assert rows.row(number) == {"n": number, "even": number % 2 == 0, "text": f"row {number % 1000}"}
    assert pa.table(pa.record_batch(rows))["n"].to_numpy().tolist() == numbers.tolist()


# What is read


def test_only_the_bytes_of_the_columns_are_read(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = pa.table({name: random.integers(0, 2**60, 10_000) for name in "abcd"})
    for number in range(2):
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=2500, compression="none")
    index = index_of(tmp_path)
    metadata = pq.ParquetFile(tmp_path / "1.parquet").metadata
    for group in range(8):
        assert index.row_group_place(group) == (group // 4, group % 4)
    index.read_rows(4, ["b"])  # and the footer
    for columns, requests in ((["b"], 1), (["c", "b"], 1), (["a", "c"], 2), (None, 1)):
        before = index.traffic()
        index.read_rows(5, columns)
        after = index.traffic()
        chunks = [metadata.row_group(1).column(number) for number in range(4)]
        size = sum(chunk.total_compressed_size for chunk in chunks if not columns or chunk.path_in_schema in columns)
        assert (after[0] - before[0], after[1] - before[1]) == (requests, size)
    shares = np.frombuffer(index.row_group_bytes(), np.int64)
    assert len(shares) == 8
    assert shares.sum() == pytest.approx(index.bytes, abs=8)
    with pytest.raises(ValueError, match="there is no row group 8: the dataset has 8"):
        index.read_rows(8)
    with pytest.raises(ValueError, match="there is no row group 8"):
        index.row_group_place(8)
    with pytest.raises(hr.errors.DataError, match=r'1.parquet, row group 0: expected a column "x".*\n.*a, b, c, d'):
        index.read_rows(4, ["a", "x"])
    with pytest.raises(ValueError, match="no column was chosen"):
        index.read_rows(4, [])


def test_a_footer_is_read_once_by_many_threads(tmp_path: Path) -> None:
    table = pa.table({"a": range(1000)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=100)
    index = index_of(tmp_path)
    before = index.traffic()[0]
    failed = []

    def read(number: int) -> None:
        if values(index.read_rows(number)) != [{"a": n} for n in range(100 * number, 100 * number + 100)]:
            failed.append(number)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert index.traffic()[0] - before == 11


def test_dictionaries_of_a_stream_may_change(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    kind = pa.dictionary(pa.int8(), pa.string())
    words = [["a", "b"], ["c"], ["c", "d"], ["x"]]
    schema = pa.schema([("w", kind)])
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(path, schema, options=options) as writer:
        for some in words:
            indices = pa.array(range(len(some)), pa.int8())
            array = pa.DictionaryArray.from_arrays(indices, pa.array(some))
            writer.write_batch(pa.record_batch([array], schema=schema))
    file = arrow_file(path)
    for number in (3, 0, 2, 1, 1, 3):
        assert values(file.read(number)) == [{"w": word} for word in words[number]]


# Damage


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("sound")
    random = np.random.default_rng(0)
    table = pa.table(
        {
            "n": random.integers(0, 1000, 300),
            "text": [f"text {number % 7}" * (number % 3) for number in range(300)],
            "list": [[float(n)] * (n % 4) for n in range(300)],
            "deep": [{"x": [n, None], "m": [("k", str(n))]} if n % 5 else None for n in range(300)],
            "word": pa.array(["a", "b", "c"] * 100).dictionary_encode(),
        },
        schema=pa.schema(
            [
                ("n", pa.int64()),
                ("text", pa.string()),
                ("list", pa.list_(pa.float64())),
                ("deep", pa.struct([("x", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.string()))])),
                ("word", pa.dictionary(pa.int32(), pa.string())),
            ]
        ),
    )
    pq.write_table(table, folder / "x.parquet", row_group_size=100, compression="zstd")
    pq.write_table(table, folder / "plain.parquet", row_group_size=100, compression="none", write_page_checksum=True)
    for name, make, compression in [
        ("stream.arrow", pa.ipc.new_stream, None),
        ("file.arrow", pa.ipc.new_file, None),
        ("zstd.arrow", pa.ipc.new_file, "zstd"),
        ("lz4.arrow", pa.ipc.new_stream, "lz4"),
    ]:
        with make(folder / name, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(table, max_chunksize=100)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def read_all(path: Path) -> None:
    if path.suffix == ".parquet":
        index = index_of(path)
        for number in range(index.row_group_count):
            values(index.read_rows(number))
    else:
        file = arrow_file(path)
        for number in range(len(file.batch_rows())):
            values(file.read(number))


def fault_of(path: Path, otherwise: str = "") -> str:
    """The message of the DataError that reading raises; nothing else may be raised."""
    try:
        read_all(path)
    except hr.errors.DataError as error:
        return str(error)
    return otherwise


NAMES = ["x.parquet", "plain.parquet", "stream.arrow", "file.arrow", "zstd.arrow", "lz4.arrow"]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_damage_is_an_error_or_other_values(
    tmp_path_factory: pytest.TempPathFactory, sound: dict[str, bytes], name: str, data: st.DataObject
) -> None:
    content = bytearray(sound[name])
    path = tmp_path_factory.getbasetemp() / f"damaged-{name}"
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, content[place] ^ 1]))
    path.write_bytes(content)
    assert path.name in fault_of(path, otherwise=path.name)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_a_file_that_was_cut_short_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, sound: dict[str, bytes], name: str, data: st.DataObject
) -> None:
    content = sound[name]
    path = tmp_path_factory.getbasetemp() / f"cut-{name}"
    # A stream may lack its last eight bytes, which say that it ends.
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 9))])
    fault = fault_of(path)
    # A stream may be cut between two messages.
    assert path.name in fault or (not fault and name in ("stream.arrow", "lz4.arrow"))


def test_a_changed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3]}), path)
    index = index_of(path)
    pq.write_table(pa.table({"a": [1, 2, 3, 4]}), path)
    with pytest.raises(hr.errors.DataError, match=r"x.parquet: changed since it was indexed"):
        index.read_rows(0)
