"""Token columns: every kind of file gives the tokens that pyarrow reads, and every flaw is one error that names it."""

import itertools
import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from files import (
    BESIDE_THE_BUDGET,
    INT_TYPES,
    Stored,
    assert_reads_as_pyarrow,
    assert_same,
    bounds,
    count_up,
    loaded,
    run_python,
    stored,
    write,
)

CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
ENCODINGS = ("DICTIONARY", "PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT")
LISTS = ("list", "large_list", "fixed_size_list")
FIXED = 5


def list_of(name: str, values: str, *, null_elements: bool = True) -> pa.DataType:
    element = pa.field("element", getattr(pa, values)(), nullable=null_elements)
    return {
        "list": pa.list_(element),
        "large_list": pa.large_list(element),
        "fixed_size_list": pa.list_(element, FIXED),
    }[name]


def documents_for(name: str, values: str, *, nullable: bool, seed: int) -> list[list[int] | None]:
    """Some documents with the bounds of the type, empty and null ones, and one that fills many tiny pages."""
    low, high = bounds(values)
    draw = random.Random(seed)
    few = [draw.randint(low, high) for _ in range(7)]

    def document(length: int) -> list[int]:
        one_value = draw.random() < 0.3
        return [draw.choice(few)] * length if one_value else [draw.randint(low, high) for _ in range(length)]

    if name == "fixed_size_list":
        documents: list[list[int] | None] = [document(FIXED) for _ in range(60)]
    else:
        lengths = [0, 0, 1, 2, 300, 0, 7, *(draw.randint(0, 12) for _ in range(50)), 0]
        documents = [document(length) for length in lengths]
    documents[3] = [low, high] * 2 + [low]
    if nullable:
        for row in (0, 9, 10, len(documents) - 1):
            documents[row] = None
    return documents


def write_options(encoding: str) -> dict[str, Any]:
    if encoding == "DICTIONARY":
        return {"use_dictionary": True}
    return {"use_dictionary": False, "column_encoding": encoding}


@pytest.mark.parametrize("values", INT_TYPES)
@pytest.mark.parametrize("name", LISTS)
def test_every_variant_reads_as_with_pyarrow(tmp_path: Path, name: str, values: str) -> None:
    number = itertools.count()
    paths = []
    variants = itertools.product((False, True), (False, True), CODECS, ("1.0", "2.0"), ENCODINGS)
    for nullable, null_elements, codec, version, encoding in variants:
        seed = next(number)
        field = pa.field("tokens", list_of(name, values, null_elements=null_elements), nullable=nullable)
        documents = documents_for(name, values, nullable=nullable, seed=seed)
        table = pa.Table.from_arrays([pa.array(documents, field.type)], schema=pa.schema([field]))
        path = tmp_path / f"{seed:03}-{nullable}-{null_elements}-{codec}-v{version}-{encoding}.parquet"
        pq.write_table(
            table,
            path,
            row_group_size=25,
            compression=codec,
            data_page_version=version,
            data_page_size=(1, 40, 1 << 20)[seed % 3],
            write_batch_size=(1, 3, 1024)[seed % 3],
            write_page_checksum=seed % 2 == 0,
            **write_options(encoding),
        )
        paths.append(path)
    assert len(paths) == 192
    dataset = assert_reads_as_pyarrow(tmp_path, paths)
    assert dataset.info()["columns"]["tokens"]["type"] == values


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    name, values = draw(st.sampled_from(LISTS)), draw(st.sampled_from(INT_TYPES))
    low, high = bounds(values)
    few = st.sampled_from([low, high, max(low, 0), min(high, 77)])
    token = draw(st.sampled_from([st.integers(low, high), few]))
    length = {"min_size": FIXED, "max_size": FIXED} if name == "fixed_size_list" else {"max_size": 40}
    nullable = draw(st.booleans())
    document = st.lists(token, **length)
    documents = draw(st.lists(st.one_of(st.none(), document) if nullable else document, max_size=40))
    encoding = draw(st.sampled_from(ENCODINGS))
    return {
        "field": pa.field("tokens", list_of(name, values, null_elements=draw(st.booleans())), nullable=nullable),
        "documents": documents,
        "beside": draw(st.booleans()),
        "options": write_options(encoding)
        | {
            "compression": draw(st.sampled_from(CODECS)),
            "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
            "data_page_size": draw(st.sampled_from([1, 16, 100, 4096])),
            "write_batch_size": draw(st.sampled_from([1, 2, 7, 1024])),
            "dictionary_pagesize_limit": draw(st.sampled_from([8, 64, 1 << 20])),
            "row_group_size": draw(st.integers(1, 50)),
            "write_page_checksum": draw(st.booleans()),
            "write_page_index": draw(st.booleans()),
            "write_statistics": draw(st.booleans()),
            "store_schema": draw(st.booleans()),
            "use_compliant_nested_type": draw(st.booleans()),
        },
    }


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=st.lists(files(), min_size=1, max_size=3), seq_len=st.integers(1, 50), overlap=st.booleans())
def test_any_file_reads_as_with_pyarrow(
    tmp_path: Path, wanted: list[dict[str, Any]], seq_len: int, overlap: bool
) -> None:
    folder = tmp_path / "data"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    paths = []
    for number, file in enumerate(wanted):
        fields, columns = [file["field"]], [pa.array(file["documents"], file["field"].type)]
        if file["beside"]:
            rows = len(file["documents"])
            fields = [pa.field("id", pa.int64()), *fields, pa.field("text", pa.string())]
            columns = [pa.array(range(rows)), *columns, pa.array(["text"] * rows)]
        paths.append(folder / f"{number}.parquet")
        options = dict(file["options"])
        if file["beside"] and "column_encoding" in options:
            options["column_encoding"] = {"tokens.list.element": options["column_encoding"]}
            if not options["use_compliant_nested_type"]:
                element = file["field"].type.value_field.name
                options["column_encoding"] = {
                    f"tokens.list.{element}": options["column_encoding"]["tokens.list.element"]
                }
        pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)), paths[-1], **options)
    held = as_written(paths, [file["documents"] for file in wanted])
    by_pyarrow = stored(paths)
    # pyarrow 26 drops the one row of a row group whose document is split over pages: then what was written decides.
    if len(by_pyarrow.tokens) == len(held.tokens):
        assert_same(by_pyarrow, held)
    packed = hr.open(folder, index="rebuild").pack(seq_len, overlap=int(overlap))
    assert packed.tokens == len(held.tokens)
    if len(held.tokens) <= seq_len + overlap:
        return
    if overlap:
        loader = hr.DataLoader(packed, 1, shuffle=False, epochs=1, remainder="pad")
        rows = [batch["tokens"][0][batch["loss_mask"][0].astype(bool)] for batch in loader]
        for number, row in enumerate(rows):
            start = number * seq_len
            np.testing.assert_array_equal(row, held.tokens[start : start + seq_len + 1])
    else:
        assert_same(loaded(packed), held)


def as_written(paths: list[Path], documents: list[list[list[int] | None]]) -> Stored:
    """What files hold by what was written to them."""
    tokens, sources = [np.zeros(0, np.int64)], []
    for path, rows in zip(paths, documents, strict=True):
        left = iter(rows)
        with pq.ParquetFile(path) as file:
            counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        for group, count in enumerate(counts):
            for row, document in enumerate(itertools.islice(left, count)):
                if document:
                    tokens.append(np.array(document, np.int64))
                    sources.append((str(path), group, row, 0, len(document)))
    return Stored(np.concatenate(tokens), sources)


# Shapes of files


def test_row_groups_of_no_rows_and_files_of_no_row_groups(tmp_path: Path) -> None:
    # B088: groups of 5, 0, 5 rows; row numbers do not break.
    schema = pa.schema([pa.field("tokens", pa.list_(pa.int32()))])
    paths = [tmp_path / f"{name}.parquet" for name in "abcd"]
    with pq.ParquetWriter(paths[1], schema) as writer:
        for group in (count_up(5), [], count_up(5, start=100), []):
            writer.write_table(pa.table({"tokens": pa.array(group, schema.field(0).type)}, schema=schema))
    with pq.ParquetFile(paths[1]) as file:
        assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [5, 0, 5, 0]
    for path in (paths[0], paths[3]):
        with pq.ParquetWriter(path, schema):
            pass
    write(paths[2], count_up(3, start=500))
    dataset = assert_reads_as_pyarrow(tmp_path, paths, seq_len=3)
    assert len(dataset) == 13
    assert dataset.info()["row_groups"] == 5


@pytest.mark.parametrize("documents", [[], [[]] * 10, [None] * 10, [None, [], None]])
@pytest.mark.parametrize("dictionary", [True, False])
def test_data_without_a_token_is_an_error_that_says_so(tmp_path: Path, documents: list[Any], dictionary: bool) -> None:
    # B086: a selection of no row groups has a schema; B092: a dictionary page of nothing.
    write(tmp_path / "a.parquet", documents, use_dictionary=dictionary)
    dataset = hr.open(tmp_path)
    assert len(dataset) == len(documents)
    assert list(dataset.schema) == ["tokens"]
    packed = dataset.pack(4)
    assert (packed.tokens, len(packed)) == (0, 0)
    with pytest.raises(ValueError, match="token"):
        hr.DataLoader(packed, 1)
    # Beside a file that has tokens they do no harm.
    write(tmp_path / "b.parquet", count_up(10))
    assert_reads_as_pyarrow(tmp_path, [tmp_path / "a.parquet", tmp_path / "b.parquet"], seq_len=7)


def test_an_empty_document_is_no_row_of_padding_and_no_part(tmp_path: Path) -> None:
    # B071 and B067.
    write(tmp_path / "a.parquet", [[1, 2], [], None, [3, 4], [], [5, 6, 7, 8], []])
    packed = hr.open(tmp_path).pack(2, boundaries=True)
    batches = list(hr.DataLoader(packed, 4, shuffle=False, epochs=1, remainder="pad"))
    assert [batch["tokens"].tolist() for batch in batches] == [[[1, 2], [3, 4], [5, 6], [7, 8]]]
    assert batches[0]["cu_seqlens"].tolist() == [0, 2, 4, 6, 8]
    assert batches[0]["position_ids"].tolist() == [[0, 1]] * 4


def test_eos_and_bos_come_with_documents_that_have_a_token(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [[], [1, 2], None, [3], []])
    packed = hr.open(tmp_path).pack(7, bos_id=-1, eos_id=-2)
    assert packed.weight == 7
    (batch,) = hr.DataLoader(packed, 1, shuffle=False, epochs=1)
    assert batch["tokens"].tolist() == [[-1, 1, 2, -2, -1, 3, -2]]
    name = str(tmp_path / "a.parquet")
    assert batch.sources() == [[(name, 0, 1, 0, 2), (name, 0, 3, 0, 1)]]


def test_ends_of_documents_come_from_lengths_not_from_token_values(tmp_path: Path) -> None:
    # B062 and B064: an end token inside a document, and a document without one.
    write(tmp_path / "a.parquet", [[9, 0, 9, 0], [5, 5], [0, 0]])
    packed = hr.open(tmp_path).pack(8, boundaries=True)
    (batch,) = hr.DataLoader(packed, 1, shuffle=False, epochs=1)
    assert batch["document_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 2, 2]]
    assert batch["cu_seqlens"].tolist() == [0, 4, 6, 8]


def test_nested_columns(tmp_path: Path) -> None:
    inner = pa.struct([("deep", pa.list_(pa.uint16())), ("n", pa.int32())])
    rows: list[Any] = [
        {"b": [1, 2, 3], "c": {"deep": [7], "n": 1}},
        None,
        {"b": None, "c": {"deep": [8, 9], "n": 2}},
        {"b": [], "c": None},
        {"b": [4], "c": {"deep": None, "n": 3}},
        {"b": [5, 6], "c": {"deep": [10, 11, 12], "n": 4}},
    ]
    column = pa.array(rows * 3, pa.struct([("b", pa.list_(pa.int32())), ("c", inner)]))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": column, "id": range(18)}), path, row_group_size=7, data_page_size=1)
    for name, wanted in [("a.b", [1, 2, 3, 4, 5, 6] * 3), ("a.c.deep", [7, 8, 9, 10, 11, 12] * 3)]:
        assert stored([path], name).tokens.tolist() == wanted
        assert_reads_as_pyarrow(path, [path], column=name, seq_len=4)
    assert sorted(hr.open(path).info()["columns"]) == ["a.b", "a.c.deep"]


def test_a_dot_in_a_name_is_part_of_the_name(tmp_path: Path) -> None:
    path = tmp_path / "Track 2.0 (x).parquet"
    column = pa.array([[1, 2, 3], [4]], pa.list_(pa.int32()))
    pq.write_table(pa.table({"a.b": column}), path)
    assert_reads_as_pyarrow(path, [path], column="a.b", seq_len=2)


def test_two_columns_of_one_dotted_name_are_not_mixed_up(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    flat = pa.array([[1, 2, 3, 4]], pa.list_(pa.int32()))
    nested = pa.array([{"b": [5, 6, 7, 8]}], pa.struct([("b", pa.list_(pa.int32()))]))
    pq.write_table(pa.table({"a.b": flat, "a": nested}), path)
    found, refusal = attempt(lambda: loaded(hr.open(path).pack(4, column="a.b")).tokens.tolist())
    assert found in ([1, 2, 3, 4], [5, 6, 7, 8]) if refusal is None else str(path) in refusal


def test_widths_may_differ_from_file_to_file(tmp_path: Path) -> None:
    paths = []
    for number, values in enumerate(INT_TYPES):
        for name in ("list", "large_list"):
            paths.append(tmp_path / f"{number}-{name}.parquet")
            low, high = bounds(values)
            write(paths[-1], [[low, high], [], [1, 2, 3]] * 5, list_of(name, values))
    assert_reads_as_pyarrow(tmp_path, sorted(paths))


def test_ids_around_65535_keep_their_width(tmp_path: Path) -> None:
    # B073.
    write(tmp_path / "a.parquet", [[65535, 65536, 65537, 2**31 - 1]], pa.list_(pa.uint32()))
    (batch,) = hr.DataLoader(hr.open(tmp_path).pack(4), 1, shuffle=False, epochs=1)
    assert batch["tokens"].tolist() == [[65535, 65536, 65537, 2**31 - 1]]


def test_further_columns_may_differ_from_file_to_file(tmp_path: Path) -> None:
    # B080: an extra column in one file, of other types in another.
    tokens = pa.array(count_up(5), pa.list_(pa.int32()))
    tables = [
        pa.table({"tokens": tokens}),
        pa.table({"__id__": range(5), "tokens": tokens}),
        pa.table({"text": ["a"] * 5, "id": ["x"] * 5, "tokens": tokens}),
    ]
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for table, path in zip(tables, paths, strict=True):
        pq.write_table(table, path)
    assert_reads_as_pyarrow(tmp_path, paths)


def test_ten_thousand_row_groups(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("tokens", pa.list_(pa.field("element", pa.int32())))])
    path = tmp_path / "a.parquet"
    tokens = np.arange(10_000 * 10 * 3, dtype=np.int32)
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for group in range(10_000):
            values = pa.array(tokens[group * 30 : group * 30 + 30])
            offsets = pa.array(np.arange(0, 31, 3, dtype=np.int32))
            column = pa.ListArray.from_arrays(offsets, values, type=schema.field(0).type)
            writer.write_table(pa.table({"tokens": column}, schema=schema))
    dataset = hr.open(path)
    assert (dataset.info()["row_groups"], len(dataset)) == (10_000, 100_000)
    loader = hr.DataLoader(dataset.pack(3000), 10, shuffle=False, epochs=1)
    found = np.concatenate([batch["tokens"].ravel() for batch in loader])
    np.testing.assert_array_equal(found, tokens)
    shuffled = np.concatenate([batch["tokens"].ravel() for batch in hr.DataLoader(dataset.pack(3000), 10, epochs=1)])
    assert len(tokens) - 30_000 < len(np.unique(shuffled)) == len(shuffled)


LARGE = """
import json, sys, threading, time
import numpy as np, pyarrow as pa, pyarrow.parquet as pq

path, shuffle = sys.argv[1], sys.argv[2] == "True"
import headrace as hr

peak, stop = 0, threading.Event()
def resident():
    lines = open("/proc/self/status").read().splitlines()
    held = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    return (int(held["RssAnon"]) + int(held["RssShmem"])) << 10
def watch():
    global peak
    while not stop.wait(0.005):
        peak = max(peak, resident())
watcher = threading.Thread(target=watch)
before = resident()
watcher.start()
loader = hr.DataLoader(hr.open(path).pack(4096), 64, shuffle=shuffle, epochs=1, num_workers=2, memory="256MiB")
at, total, seen = 0, 0, np.zeros(1000, np.int64)
for batch in loader:
    tokens = batch["tokens"].ravel()
    if not shuffle:
        assert np.array_equal(tokens, np.arange(at, at + tokens.size) % 1000), batch.step
    seen += np.bincount(tokens, minlength=1000)
    at += tokens.size
stop.set()
watcher.join()
stats = loader.stats()
print(json.dumps({"tokens": at, "left": stats["remainder_tokens"], "spilled": stats["windows_spilled"],
    "peak": peak, "before": before, "spread": int(seen.max() - seen.min())}))
"""


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One row group of a million documents of 100 tokens: the n-th token is n % 1000."""
    path = tmp_path_factory.mktemp("large") / "a.parquet"
    values = np.resize(np.arange(1000, dtype=np.int32), 100_000_000)
    offsets = np.arange(0, 100_000_001, 100, dtype=np.int32)
    column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
    pq.write_table(pa.table({"tokens": column}), path, compression="lz4", row_group_size=1_000_000)
    return path


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_row_group_of_a_million_documents_is_spilled(large_file: Path, shuffle: bool) -> None:
    with pq.ParquetFile(large_file) as file:
        assert (file.num_row_groups, file.metadata.num_rows) == (1, 1_000_000)
    found = json.loads(run_python(LARGE, large_file, shuffle, timeout=120))
    assert found["tokens"] + found["left"] == 100_000_000
    assert found["left"] < 64 * 4096
    # Every value comes 100,000 times but for what is left over.
    assert found["spread"] <= found["left"]
    assert found["spilled"] > 0
    assert found["peak"] - found["before"] < (256 << 20) + BESIDE_THE_BUDGET, found


# Refusals: one error that names file, row group, row and what was found


def attempt(work: Callable[[], Any]) -> tuple[Any, str | None]:
    """What `work` returns, or else the message of its DataError."""
    try:
        return work(), None
    except hr.DataError as error:
        return None, str(error)


def read_all(path: Path, column: str = "tokens", **options: Any) -> None:
    packed = hr.open(path, index="rebuild").pack(2, column=column, **options)
    for _ in hr.DataLoader(packed, 1, shuffle=False, epochs=1, num_workers=2):
        pass


@pytest.mark.parametrize(
    "values, wrong",
    [
        ("int64", 2**31),
        ("int64", -(2**31) - 1),
        ("int64", 2**63 - 1),
        ("int64", -(2**63)),
        ("uint32", 2**31),
        ("uint32", 2**32 - 1),
        ("uint64", 2**31),
        ("uint64", 2**64 - 1),
    ],
)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_value_outside_of_int32_is_refused(
    tmp_path: Path, values: str, wrong: int, encoding: str, version: str
) -> None:
    documents: list[Any] = count_up(30)
    documents[3] = []
    documents[17] = [1, wrong, 2]
    path = tmp_path / "a.parquet"
    options = write_options(encoding) | {"data_page_version": version, "row_group_size": 10, "data_page_size": 16}
    write(path, documents, pa.list_(getattr(pa, values)()), **options)
    with pytest.raises(hr.DataError) as caught:
        read_all(path)
    message = str(caught.value)
    for part in (str(path), "'tokens'", "row group 1", "row 7", str(wrong)):
        assert part.replace("'", '"') in message, message


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("name", ["list", "fixed_size_list"])
def test_a_null_inside_a_document_is_refused(tmp_path: Path, name: str, encoding: str, version: str) -> None:
    documents: list[Any] = count_up(30, FIXED)
    documents[24] = [1, 2, None, 4, 5]
    path = tmp_path / "a.parquet"
    write(
        path,
        documents,
        list_of(name, "int32"),
        **write_options(encoding) | {"data_page_version": version, "row_group_size": 10, "data_page_size": 16},
    )
    with pytest.raises(hr.DataError) as caught:
        read_all(path)
    message = str(caught.value)
    for part in (str(path), "row group 2", "row 4", "null"):
        assert part in message, message


def test_a_document_of_nothing_but_a_null_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, [[1, 2], [None], [3, 4]])
    with pytest.raises(hr.DataError, match="null"):
        read_all(path)


OTHER_TYPES: list[tuple[pa.Array, str]] = [
    (pa.array(["text"]), "string"),
    (pa.array([[1.5, 2.0]]), "list of (float|double)"),
    (pa.array([[[1, 2], [3]]]), "list of list"),
    (pa.array([[{"x": 1}]]), "struct"),
    (pa.array([1], pa.int32()), "int32"),
    (pa.array([1.0]), "(float|double)"),
    (pa.array([["a"]]), "list of string"),
    (pa.array([[True]]), "bool"),
    (pa.array([b"bytes"]), "binary|bytes"),
    (pa.array([{"x": 1}]), "struct|group"),
    (pa.array([[(1, 2)]], pa.map_(pa.int32(), pa.int32())), "map"),
    (pa.array([[1]], pa.list_(pa.timestamp("ms"))), "timestamp"),
    (pa.array([[1]], pa.list_(pa.decimal128(9, 2))), "decimal"),
]


@pytest.mark.parametrize("column, found", OTHER_TYPES, ids=[str(column.type) for column, _ in OTHER_TYPES])
def test_a_column_of_another_type_is_refused_and_named(tmp_path: Path, column: pa.Array, found: str) -> None:
    good, odd = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write(good, count_up(5))
    pq.write_table(pa.table({"id": [1], "tokens": column}), odd)
    for path in (odd, tmp_path):
        with pytest.raises(hr.DataError, match=f"(?is){found}") as caught:
            hr.open(path).pack(4)
        assert str(odd) in str(caught.value)
        assert "tokens" in str(caught.value)
        assert str(good) not in str(caught.value)


def test_a_missing_column_names_the_odd_file_and_what_it_has(tmp_path: Path) -> None:
    for name in "abd":
        write(tmp_path / f"{name}.parquet", count_up(5))
    odd = tmp_path / "c.parquet"
    pq.write_table(pa.table({"token": pa.array(count_up(5), pa.list_(pa.int32())), "id": range(5)}), odd)
    with pytest.raises(hr.DataError) as caught:
        hr.open(tmp_path).pack(4)
    message = str(caught.value)
    assert str(odd) in message
    assert "tokens" in message
    assert '"token"' in message or "'token'" in message or " token" in message
    assert "\n" not in message or message.splitlines()[1].startswith("hint:")
    with pytest.raises(hr.DataError, match=r"c\.parquet"):
        hr.open(tmp_path, columns=["tokens"])
    with pytest.raises(hr.DataError, match="nothing_of_this_name"):
        hr.open(tmp_path, columns=["nothing_of_this_name"])
    assert hr.open([tmp_path / "a.parquet", tmp_path / "b.parquet"], columns=["tokens"]).info()["files"] == 2


def test_a_column_without_rows_may_be_missing_or_not_but_is_named(tmp_path: Path) -> None:
    """A file of no rows has no token to lose: it must not fail a run, or must be named if it does."""
    write(tmp_path / "a.parquet", count_up(5))
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "b.parquet")
    found, refusal = attempt(lambda: hr.open(tmp_path).pack(4).tokens)
    assert found == 20 if refusal is None else "b.parquet" in refusal


def test_the_first_fault_is_the_same_in_every_run(tmp_path: Path) -> None:
    """With several faults and several threads, one error, that of the first place."""
    for number in range(8):
        documents: list[Any] = count_up(20)
        documents[11] = [None]
        write(tmp_path / f"{number}.parquet", documents, row_group_size=5)
    messages = set()
    for _ in range(5):
        with pytest.raises(hr.DataError) as caught:
            loaded(hr.open(tmp_path).pack(4), num_workers=8)
        messages.add(str(caught.value))
    assert len(messages) == 1
    assert "0.parquet" in messages.pop()


# Damage: an error or the right tokens; never wrong ones, a crash or a hang

DAMAGE = """
import sys
from pathlib import Path
from files import assert_same, loaded, stored
import headrace as hr

good, broken = map(Path, sys.argv[1:3])
first, last, step = map(int, sys.argv[3:6])
kind, bits = sys.argv[6], sys.argv[7:]
whole = good.read_bytes()
wanted = stored([good])
wanted = wanted._replace(sources=[(str(broken), *source[1:]) for source in wanted.sources])
outcomes = {"error": 0, "right": 0}
for at in range(first, last, step):
    print(kind, at, file=sys.stderr, flush=True)
    for bit in [None] if kind == "cut" else range(8) if bits else [at % 8, (at * 5 + 3) % 8]:
        if bit is None:
            data = whole[:at]
        else:
            data = bytearray(whole)
            data[at] ^= 1 << bit
        broken.write_bytes(data)
        try:
            # No cache folder: saving an index is the slowest part.
            dataset = hr.open(broken, index="rebuild", cache_dir="/dev/null/nowhere")
            found = loaded(dataset.pack(30), batch_size=4, memory=1 << 24, num_workers=1)
        except hr.DataError as error:
            assert broken.name in str(error), error
            outcomes["error"] += 1
        else:
            assert_same(found, wanted)
            outcomes["right"] += 1
print(outcomes["error"], outcomes["right"])
"""


def damaged_file(path: Path, version: str, codec: str, *, dictionary: bool) -> tuple[int, int]:
    """A small file with checksums of its pages; where its footer begins, and its size."""
    draw = random.Random(7)
    documents: list[Any] = [[draw.randint(0, 200) for _ in range(draw.randint(0, 12))] for _ in range(24)]
    documents[5] = None
    options: dict[str, Any] = {"use_dictionary": dictionary}
    write(
        path,
        documents,
        pa.list_(pa.uint16()),
        write_page_checksum=True,
        data_page_version=version,
        compression=codec,
        data_page_size=100,
        write_batch_size=64,
        row_group_size=16,
        store_schema=False,
        **options,
    )
    data = path.read_bytes()
    return len(data) - 8 - struct.unpack("<I", data[-8:-4])[0], len(data)


# With version 2 all bits: its page headers say more about the page that no checksum covers.
DAMAGED = [("1.0", "none", False), ("1.0", "zstd", True), ("2.0", "none", True), ("2.0", "lz4", False)]


@pytest.mark.parametrize("version, codec, dictionary", DAMAGED)
def test_a_flipped_bit_of_a_page_gives_an_error_or_the_right_tokens(
    tmp_path: Path, version: str, codec: str, dictionary: bool
) -> None:
    good = tmp_path / "good.parquet"
    footer, _ = damaged_file(good, version, codec, dictionary=dictionary)
    all_bits = ["all"] if version == "2.0" and codec == "none" else []
    counts = run_python(DAMAGE, good, tmp_path / "bad.parquet", 4, footer, 1, "flip", *all_bits, timeout=200)
    errors, right = map(int, counts.split())
    assert errors + right == (8 if all_bits else 2) * (footer - 4)
    assert errors > right, "most bytes are covered by a checksum"


def test_a_flipped_bit_of_a_footer_is_no_crash_and_no_hang(tmp_path: Path) -> None:
    good = tmp_path / "good.parquet"
    footer, size = damaged_file(good, "1.0", "snappy", dictionary=True)
    program = DAMAGE.replace("assert_same(found, wanted)", "assert len(found.tokens) <= 10 * len(wanted.tokens)")
    program = program.replace("except hr.DataError", "except (hr.DataError, ValueError)")
    program = program.replace("assert broken.name in str(error), error", "pass")
    errors, right = map(int, run_python(program, good, tmp_path / "bad.parquet", footer, size, 1, "flip").split())
    assert errors + right == 2 * (size - footer)
    assert errors > right > 0


@pytest.mark.parametrize("version, codec, dictionary", DAMAGED[:2])
def test_a_truncated_file_is_an_error(tmp_path: Path, version: str, codec: str, dictionary: bool) -> None:
    good = tmp_path / "good.parquet"
    _, size = damaged_file(good, version, codec, dictionary=dictionary)
    errors, right = map(int, run_python(DAMAGE, good, tmp_path / "bad.parquet", 0, size, 7, "cut").split())
    assert right == 0
    assert errors == len(range(0, size, 7))


def test_a_hole_in_a_file_is_an_error(tmp_path: Path) -> None:
    """Pages replaced by zeros, as after a crash of a file system; without checksums too."""
    path = tmp_path / "a.parquet"
    write(path, count_up(1000, 10), compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[4:4000] = bytes(3996)
    path.write_bytes(data)
    with pytest.raises(hr.DataError, match=r"a\.parquet"):
        read_all(path)


def varint(number: int) -> bytes:
    """A number as Thrift's compact protocol writes it."""
    number <<= 1
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def test_counts_that_a_file_declares_are_not_believed(tmp_path: Path) -> None:
    """A footer and a page that promise millions of rows make neither a huge allocation nor wrong tokens."""
    path = tmp_path / "a.parquet"
    rows = 70_001
    write(path, count_up(rows, 1), compression="none", use_dictionary=False)
    data, wrong = path.read_bytes(), varint(1_048_575)
    assert len(wrong) == len(varint(rows))
    assert data.count(varint(rows)) >= 2
    path.write_bytes(data.replace(varint(rows), wrong))
    with pytest.raises(hr.DataError, match=r"a\.parquet"):
        read_all(path)


def test_a_dictionary_offset_of_zero_means_no_dictionary(tmp_path: Path) -> None:
    # B091. pyarrow never writes it, so the footer is changed: field 11 (dictionary_page_offset) follows field 9
    # (data_page_offset), so that its head is 0x26 and its value 4 is 0x08.
    path = tmp_path / "a.parquet"
    documents = count_up(100, 5)
    write(path, documents, use_dictionary=True, compression="none", write_statistics=False, store_schema=False)
    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(0).column(0)
        assert (column.dictionary_page_offset, column.has_dictionary_page) == (4, True)
        offset = column.data_page_offset
    data = bytearray(path.read_bytes())
    end = len(data) - 8
    start = end - struct.unpack("<I", data[-8:-4])[0]
    place = data.find(b"\x26" + varint(offset) + b"\x26\x08", start)
    assert place > start
    data[place + 1 + len(varint(offset)) + 1] = 0
    path.write_bytes(data)
    with pq.ParquetFile(path) as file:
        assert file.metadata.row_group(0).column(0).dictionary_page_offset == 0
    # The dictionary page still lies before the data page, and is needed to read it: the tokens, or an error.
    found, refusal = attempt(lambda: loaded(hr.open(path).pack(50)).tokens.tolist())
    assert found == np.array(documents).ravel().tolist() if refusal is None else str(path) in refusal


def test_a_dictionary_offset_of_zero_of_a_plain_column(tmp_path: Path) -> None:
    # B091 as other writers write it. A reader that took the 0 for an offset would begin in the magic bytes.
    path = tmp_path / "a.parquet"
    write(path, count_up(100, 5), use_dictionary=False, compression="none", write_statistics=False, store_schema=False)
    data = path.read_bytes()
    end = len(data) - 8
    start = end - struct.unpack("<I", data[-8:-4])[0]
    # Field 11, a number, is put behind field 9, the offset 4 of the data page; the next field's head counts from it.
    place = data.find(b"\x26\x08", start) + 2
    assert place > start + 2
    following = data[place]
    assert following >> 4 > 2
    footer = data[start:place] + bytes([0x26, 0, following - 0x20]) + data[place + 1 : end]
    path.write_bytes(data[:start] + footer + struct.pack("<I", len(footer)) + b"PAR1")
    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(0).column(0)
        assert (column.has_dictionary_page, column.dictionary_page_offset) == (True, 0)
    assert_reads_as_pyarrow(path, [path], seq_len=50)


def test_the_first_row_needs_at_most_one_row_group(tmp_path: Path) -> None:
    # B085: large row groups are not all read before the first row.
    draw = np.random.default_rng(0)
    values = draw.integers(0, 2**31 - 1, 80 * 50_000, dtype=np.int32)
    offsets = np.arange(0, len(values) + 1, 50_000, dtype=np.int32)
    path = tmp_path / "a.parquet"
    column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
    options = {"row_group_size": 10, "compression": "none", "use_dictionary": False, "data_page_size": 1 << 16}
    pq.write_table(pa.table({"tokens": column}), path, **options)
    group = path.stat().st_size // 8
    loader = hr.DataLoader(
        hr.open(path).pack(1000), 1, shuffle=False, window=1, num_workers=1, prefetch_factor=1, memory="4MiB"
    )
    iterator = iter(loader)
    np.testing.assert_array_equal(next(iterator)["tokens"][0], values[:1000])
    # The window in use and the one ahead of it, of eight; and the footer.
    stats = loader.stats()
    assert 0 < stats["chunk_bytes"] <= 2 * group + 1000
    assert 0 < stats["bytes_read"] <= 2 * group + (64 << 10)
    np.testing.assert_array_equal(next(iterator)["tokens"][0], values[1000:2000])
