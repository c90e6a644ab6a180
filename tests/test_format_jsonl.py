"""JSON Lines: what is read is what `json.loads` gives for each line, wherever files are cut and however lines end."""

import contextlib
import doctest
import gzip
import json
import math
import os
import pickle
import tracemalloc
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

import headrace
from headrace._files import Store
from headrace.errors import DataError
from headrace.formats import _line_source, _line_tables, jsonl
from headrace.formats._line_keys import find_value, whole_lines
from headrace.formats._line_tables import codec_of
from headrace.formats._lines import Spans, find_lines, look_through
from headrace.formats.jsonl import JsonlSource, merge_types

BOM = b"\xef\xbb\xbf"


def silent(phase: str, done: int, total: int) -> None:
    assert 0 <= done <= total, phase


def open_lines(folder: Path, cache: Path | None = None) -> JsonlSource:
    store = Store([str(folder)], {})
    return JsonlSource.open(store, store.files, cache_dir=cache or folder / ".cache", progress=silent)


def samples(source: JsonlSource, columns: tuple[str, ...] | None = None) -> list[Any]:
    return [sample for chunk in range(len(source.sizes)) for sample in chunk_samples(source, chunk, columns)]


def chunk_samples(source: JsonlSource, chunk: int, columns: tuple[str, ...] | None = None) -> list[Any]:
    loaded = source.load(chunk, columns)
    assert len(loaded) == source.sizes[chunk]
    one_by_one = [loaded[row] for row in range(len(loaded))]
    assert pickle.dumps(loaded.take(range(len(loaded)))) == pickle.dumps(one_by_one)
    return one_by_one


def expected(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.removeprefix(BOM).split(b"\n") if line.strip(b" \t\r")]


def compress(name: str, data: bytes) -> bytes:
    if name.endswith(".gz"):
        # Two members, as tools that append write them.
        return gzip.compress(data[:100]) + gzip.compress(data[100:])
    if name.endswith(".zst"):
        return b"".join(zstandard.ZstdCompressor().compress(part) for part in (data[:50], data[50:]))
    return data


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(compress(name, data))
    return folder


def lines(values: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


@pytest.fixture
def small_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts everywhere, and files that are read in place."""
    monkeypatch.setattr(_line_tables, "SPAN", 32)
    monkeypatch.setattr(_line_source, "IN_MEMORY", 0)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)
blank_lines = st.sampled_from([b"", b" ", b"\t", b"\r", b"  \t ", b" " * 100])


@st.composite
def text_files(draw: st.DrawFn) -> bytes:
    parts = draw(
        st.lists(
            st.tuples(st.booleans(), json_values, blank_lines, st.sampled_from([b"\n", b"\r\n"]), blank_lines),
            max_size=12,
        )
    )
    ascii_only = draw(st.booleans())
    data = draw(st.sampled_from([b"", BOM]))
    for is_blank, value, blank, end, indent in parts:
        text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace")
        data += (blank if is_blank else indent + text) + end
    return data if draw(st.booleans()) else data.rstrip(b"\r\n")


@given(text_files(), st.lists(st.integers(0, 400), max_size=8))
@example(b"", [])
@example(BOM, [1])
@example(b"1", [0, 1])
@example(b"\n\n1\n\n", [1, 2, 3])
def test_blocks_tell_the_same_wherever_a_file_is_cut(data: bytes, cuts: list[int]) -> None:
    whole = find_lines(data, is_start=True)
    # The first three bytes stay together, as they do in blocks of any real size.
    places = sorted({0, len(data), *(min(max(cut, 3), len(data)) for cut in cuts)})
    spans = Spans()
    for start, stop in pairwise(places):
        spans.add(look_through(data[start:stop], is_start=start == 0), stop - start)
    found = spans.end()
    assert spans.size == len(data)
    assert sum(span.items for span in found) == len(whole.starts)
    texts, numbers = [], []
    for span in found:
        part = find_lines(data[span.start : span.stop], is_start=span.start == 0)
        assert len(part.starts) == span.items
        texts += [data[span.start + a : span.start + b] for a, b in zip(part.starts, part.stops, strict=True)]
        numbers += (part.numbers + span.line).tolist()
    assert texts == [data[a:b] for a, b in zip(whole.starts, whole.stops, strict=True)]
    assert numbers == whole.numbers.tolist()


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".json"])
@given(data=text_files())
@example(data=b"")
@example(data=BOM + b"\r\n")
@example(data=b'{"a": 1}')
@example(data='"\u2028\u0085"\n"\x7f"'.encode())
def test_each_line_is_what_json_gives(tmp_path_factory: pytest.TempPathFactory, suffix: str, data: bytes) -> None:
    wanted = expected(data)
    if suffix == ".json" and len(wanted) == 1 and isinstance(wanted[0], list):
        return  # Taken for a whole array, and refused: see below.
    folder = write(tmp_path_factory.mktemp("lines"), {"a" + suffix: data})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_line_tables, "SPAN", 32)
        patch.setattr(_line_source, "IN_MEMORY", 0)
        source = open_lines(folder)
        found = samples(source)
    # By their text: NaN differs from itself.
    assert list(map(repr, found)) == list(map(repr, wanted))
    assert source.sizes.sum() == len(wanted)


def test_files_come_in_order_and_plain_ones_in_spans(tmp_path: Path) -> None:
    records = [{"id": number, "text": "x" * (number % 900)} for number in range(40_000)]
    write(tmp_path, {"b/1.jsonl": lines(records[:30_000]), "c.jsonl.gz": lines(records[30_000:35_000])})
    write(tmp_path, {"d.jsonl.zst": lines(records[35_000:]), "a.jsonl": b"\n\n", "e.jsonl": b""})
    source = open_lines(tmp_path)
    assert [sample["id"] for sample in samples(source, ("id",))] == list(range(40_000))
    size = (tmp_path / "b/1.jsonl").stat().st_size
    spans = math.ceil(size / _line_tables.SPAN)
    assert [source.file(chunk) for chunk in range(len(source.sizes))] == ["b/1.jsonl"] * spans + [
        "c.jsonl.gz",
        "d.jsonl.zst",
    ]
    assert source.stored[:spans].sum() == size
    assert source.stored[-1] == (tmp_path / "d.jsonl.zst").stat().st_size
    assert source.schema == {"id": "int", "text": "str"}
    assert source.columns == ("id", "text")
    assert not source.random_access
    assert source.load(0).nbytes < size // spans // 10, "a large local file is read in place"
    assert str(source.place(spans, 3)) == f"c.jsonl.gz, chunk {spans}, row 3"


def test_values_that_are_no_objects_have_no_columns(tmp_path: Path) -> None:
    source = open_lines(write(tmp_path, {"a.jsonl": lines(range(5))}))
    # Lanes, as every chunked format: the order must not depend on where files lie.
    assert not source.random_access
    assert source.schema == {"": "json"}
    assert source.columns is None


@pytest.mark.usefixtures("small_spans")
def test_rows_far_from_each_other_are_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_line_tables, "SPAN", 10_000)
    source = open_lines(write(tmp_path, {"a.jsonl": lines({"id": number} for number in range(500))}))
    chunk = source.load(0)
    assert [sample["id"] for sample in chunk.take([499, 0, 250])] == [499, 0, 250]
    assert [sample["id"] for sample in chunk.take([7, 5, 6])] == [7, 5, 6]
    assert chunk.take([]) == []


@pytest.mark.usefixtures("small_spans")
def test_columns_are_those_asked_for_in_that_order(tmp_path: Path) -> None:
    source = open_lines(write(tmp_path, {"a.jsonl": lines({"a": n, "b": [n], "c": None} for n in range(9))}))
    found = samples(source, ("c", "a"))
    assert found == [{"c": None, "a": number} for number in range(9)]
    assert list(found[0]) == ["c", "a"]
    arrays = source.load(1).arrays(["b", "a"])
    assert list(arrays) == ["b", "a"]
    assert arrays["b"] == [[value] for value in arrays["a"]]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.usefixtures("small_spans")
def test_the_schema_is_of_the_first_lines_however_they_lie(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "BYTES_FOR_SCHEMA", 16)
    data = b"\n" * 100 + b'{"a": ' + b"1" * 200 + b'}\n{"b": 1}\n' + b'{"c": 1}\n' * 100
    source = open_lines(write(tmp_path, {"a.jsonl" + suffix: data}))
    assert source.schema["a"].startswith("int")
    assert "c" not in source.schema
    assert open_lines(write(tmp_path / "one", {"a.jsonl" + suffix: b'{"a": "' + b"x" * 99 + b'"}'})).schema == {
        "a": "str"
    }


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_counting_takes_bounded_memory(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_line_tables, "THREADS", 3)
    rng = np.random.default_rng(0)
    part = b"".join(b'{"text": "' + rng.bytes(500).hex().encode() + b'"}\n' for _ in range(5000))
    packed = {"": part, ".gz": gzip.compress(part, 1), ".zst": zstandard.compress(part, 1)}[suffix]
    (tmp_path / f"a.jsonl{suffix}").write_bytes(packed * 5)
    tracemalloc.start()
    try:
        source = open_lines(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert source.sizes.sum() == 25_000
    # A thread holds a block and what is found in it; one that decompresses, also what comes in.
    assert peak < (16 << 20 if suffix else 24 << 20)
    assert peak < len(part) * 5


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
@pytest.mark.usefixtures("small_spans")
def test_a_missing_key_is_null_and_another_value_names_file_and_line(tmp_path: Path, name: str) -> None:
    data = b'\n{"a": 1, "b": 2}\n\r\n' + b'{"a": 1, "b": 2}\n' * 200 + b'{"a": 1, "c": 2}\n' + b"5" * 40
    source = open_lines(write(tmp_path, {name: data}))
    assert len(samples(source)) == 203
    ends = np.cumsum(source.sizes)
    chunk = int(np.searchsorted(ends, 201, side="right"))
    row = 201 - int(ends[chunk] - source.sizes[chunk])
    assert source.load(chunk, ("a", "b"))[row] == {"a": 1, "b": None}
    with pytest.raises(DataError, match=rf"{name}, line 205: expected an object with 'a', found int"):
        samples(source, ("a",))


BAD_LINES = {
    "no JSON": (b"{'a': 1}", "expected a JSON value, found \"{'a': 1}\""),
    "cut off": (b'{"a": ', "expected a JSON value"),
    "two values": (b"{} {}", "expected a JSON value"),
    "no UTF-8": (b'{"a": "\xff"}', "expected UTF-8, found the byte 0xff at 7"),
    "UTF-16": ('{"a": 1}'.encode("utf-16-le"), "expected a JSON value"),
    "nested too deep": (b"[" * 200_000 + b"]" * 200_000, "deeper nesting"),
    "a number of too many digits": (b"1" * 10_000, "expected a JSON value"),
    "long": (b"x" * 10_000, "…"),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_line_that_is_no_json_is_named_when_it_is_read(tmp_path: Path, kind: str) -> None:
    line, message = BAD_LINES[kind]
    good = b'{"a": 1}\n'
    source = open_lines(write(tmp_path, {"a.jsonl": good * 150 + b"\n" + line + b"\n" + good}))
    chunk = source.load(0)
    assert len(chunk) == 152
    assert chunk[149] == chunk[151] == {"a": 1}
    with pytest.raises(DataError) as error:
        chunk[150]
    assert f"{tmp_path}/a.jsonl, line 152: " in str(error.value)
    assert message in str(error.value)
    assert len(str(error.value)) < 400
    with pytest.raises(DataError, match="line 152"):
        chunk.take(range(152))


def test_the_first_lines_are_read_to_tell_the_schema(tmp_path: Path) -> None:
    write(tmp_path, {"a.jsonl": b'\n{"a": 1}\nnonsense\n'})
    with pytest.raises(DataError, match=r"a\.jsonl, line 3: expected a JSON value, found 'nonsense'"):
        open_lines(tmp_path)


ARRAYS = {
    "over lines": ("a.json", b'[\n{"a": 1},\n{"a": 2}\n]\n'),
    "over lines, named as lines": ("a.jsonl", BOM + b'\n [{"a": 1},\n{"a": 2}]\n'),
    "on one line": ("a.json", b'[{"a": 1}, {"a": 2}]'),
    "compressed": ("a.json.gz", b'[{"a": 1}, {"a": 2}]\n'),
    "long": ("a.json", b"[" + b"1," * (3 << 20) + b"1]"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_is_refused_with_a_hint(tmp_path: Path, kind: str) -> None:
    name, data = ARRAYS[kind]
    write(tmp_path, {name: data})
    with pytest.raises(DataError, match=rf"{name}: expected JSON Lines .*found one JSON array\nhint: .*jq"):
        open_lines(tmp_path)


def test_lists_may_be_samples(tmp_path: Path) -> None:
    write(tmp_path, {"a.json": b"[1]\n[2]\n", "b.jsonl": b"[3]", "c.json": b"4"})
    assert samples(open_lines(tmp_path)) == [[1], [2], [3], 4]


@pytest.mark.usefixtures("small_spans")
def test_lines_longer_than_many_spans_are_one_sample(tmp_path: Path) -> None:
    values = ["x" * 500, "y", "z" * 31, "", "a" * 32, "b" * 1000]
    source = open_lines(write(tmp_path, {"a.jsonl": lines(values).rstrip()}))
    assert samples(source) == values
    assert (source.sizes > 0).all()


def test_what_was_counted_is_kept_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "data", {"a.jsonl": lines(range(100)), "b.jsonl.gz": lines(range(9))})
    monkeypatch.setattr(_line_tables, "_OWN_TABLE", 50)
    first = open_lines(folder, tmp_path / "cache")
    looked: list[bytes] = []

    def count_calls(data: bytes, *, is_start: bool = False) -> Any:
        looked.append(bytes(data))
        return look_through(data, is_start=is_start)

    monkeypatch.setattr(_line_tables, "look_through", count_calls)
    again = open_lines(folder, tmp_path / "cache")
    assert not looked
    assert samples(again) == samples(first)
    assert again.identity() == first.identity()
    write(folder, {"c.jsonl": lines(range(3))})
    more = open_lines(folder, tmp_path / "cache")
    # A file above the limit has a table of its own and is not looked through again.
    assert lines(range(100)) not in looked
    assert lines(range(3)) in looked
    assert samples(more) == [*range(100), *range(9), *range(3)]


def test_identity_is_of_names_sizes_and_items(tmp_path: Path) -> None:
    one = open_lines(write(tmp_path / "1", {"a.jsonl": lines(range(10))}))
    two = write(tmp_path / "2", {"a.jsonl": lines(range(10))})
    os.utime(two / "a.jsonl", (1, 1))
    assert open_lines(two).identity() == one.identity()
    (two / "a.jsonl").rename(two / "b.jsonl")
    assert open_lines(two).identity() != one.identity()
    fewer = open_lines(write(tmp_path / "3", {"a.jsonl": lines(range(10)).replace(b"8\n9", b"899")}))
    assert fewer.identity() != one.identity()
    assert fewer.sizes.sum() == 9


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_changed_file_is_told(tmp_path: Path, name: str) -> None:
    source = open_lines(write(tmp_path, {name: lines(range(10))}))
    write(tmp_path, {name: lines(range(9))})
    with pytest.raises(DataError):
        source.load(0)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "other"])
def test_a_damaged_compressed_file_is_told(tmp_path: Path, name: str, damage: str) -> None:
    path = write(tmp_path, {name: lines({"text": str(number**9)} for number in range(5000))}) / name
    data = path.read_bytes()
    if damage == "cut":
        data = data[:-1000]
    elif damage == "flipped":
        data = data[:5000] + bytes([data[5000] ^ 0xFF]) + data[5001:]
    else:
        data = b"nonsense" * 100
    path.write_bytes(data)
    with pytest.raises(DataError, match=name):
        samples(open_lines(tmp_path))


@pytest.mark.usefixtures("small_spans")
def test_a_source_goes_to_other_processes(tmp_path: Path) -> None:
    source = open_lines(write(tmp_path, {"a.jsonl": lines(range(100)), "b.jsonl.gz": lines(range(5))}))
    copy = pickle.loads(pickle.dumps(source))
    assert samples(copy) == samples(source)
    assert copy.identity() == source.identity()
    assert copy.schema == source.schema
    np.testing.assert_array_equal(copy.stored, source.stored)


def test_no_lines_are_no_samples(tmp_path: Path) -> None:
    source = open_lines(write(tmp_path, {"a.jsonl": b"", "b.jsonl.gz": b"\n \n"}))
    assert len(source.sizes) == 0
    assert samples(source) == []


@pytest.mark.parametrize(
    "values, schema",
    [
        ([{"a": 1}, {"a": 2.5}], {"a": "float"}),
        ([{"a": 1}, {"a": "x"}, {"a": True}], {"a": "bool|int|str"}),
        ([{"a": 1}, {"a": None}], {"a": "int?"}),
        ([{"a": 1}, {"b": []}], {"a": "int?", "b": "list?"}),
        ([{"a": None}, {"a": None}], {"a": "null"}),
        ([{"a": {}}], {"a": "dict"}),
        ([{"a": 1}, 5], {"": "json"}),
        ([{"": 1}], {"": "json"}),
        ([], {}),
    ],
)
def test_types_of_the_first_lines_are_merged(values: list[Any], schema: dict[str, str]) -> None:
    assert merge_types(values) == schema


def test_examples_run() -> None:
    assert doctest.testmod(jsonl) == (0, 1)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.jsonl.zst"])
@given(data=st.binary(max_size=60) | st.text(st.sampled_from('[]{}",:1 \n\r\\u'), max_size=40).map(str.encode))
def test_any_bytes_are_samples_or_refused(tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    (folder / name).write_bytes(data)
    try:
        found = samples(open_lines(folder))
    except DataError as error:
        assert name in str(error)  # noqa: PT017
        return
    if codec_of(name) is None:
        assert list(map(repr, found)) == list(map(repr, expected(data)))


# Keys that the first lines lack


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_keys_that_the_first_lines_lack(name: str, tmp_path: Path, small_spans: None) -> None:
    values: list[dict[str, Any]] = [{"id": at, "note": 'of "rare" kind, "nested": '} for at in range(300)]
    values[100]["rare"] = [1]
    values[101]["outer"] = {"nested": 1, "deep": {"rare": 2}}
    values[-1] |= {"last": 2.5, "ä/\u20ac": "x", "none": None}
    write(tmp_path, {name: lines(values)[:-1]})
    data = headrace.open(tmp_path, cache_dir=tmp_path / ".cache")
    assert list(data.schema) == ["id", "note"]
    picked = data.select(["last", "id", "rare", "ä/\u20ac", "none"])
    assert list(picked) == [
        {key: value.get(key) for key in ("last", "id", "rare", "ä/\u20ac", "none")} for value in values
    ]
    assert picked.schema == {"last": "float?", "id": "int", "rare": "list?", "ä/\u20ac": "str?", "none": "null"}
    assert [sample["id"] for sample in data.where(headrace.col("last") > 2)] == [299]
    for wrong in ("nested", "deep", "of", "rar", ""):
        with pytest.raises(ValueError, match=f"samples have no part {wrong!r}, only id, note"):
            data.select([wrong])
        with pytest.raises(ValueError, match=f"has no column {wrong!r}"):
            data.where(headrace.col(wrong) > 2)
    again = pickle.loads(pickle.dumps(picked))
    assert again[100] == {"last": None, "id": 100, "rare": [1], "ä/\u20ac": None, "none": None}


@pytest.mark.parametrize("key", ["a/b", "é", "\U0001f600", 'q"\\', "\n", "\ud800", "ÿ/\x7f"])
def test_ways_to_write_a_key(key: str, tmp_path: Path) -> None:
    plain = json.dumps({"k": 1, key: 2})
    ways = {
        plain,
        plain.replace("/", "\\/"),
        plain.replace("\\u00e", "\\u00E").replace("ud83d", "uD83D").replace("de00", "DE00"),
    }
    with contextlib.suppress(UnicodeEncodeError):
        ways.add(json.dumps({"k": 1, key: 2}, ensure_ascii=False).encode().decode())
    for number, way in enumerate(sorted(ways)):
        folder = tmp_path / str(number)
        write(folder, {"a.jsonl": b'{"k": 0}\n' * 100 + way.encode()})
        assert open_lines(folder).has_key(key), way
        assert not open_lines(folder).has_key(key + "x")


def test_a_key_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {f"{at:02}.jsonl": lines([{"id": at}] * 100 + [{f"k{at}": at}]) for at in range(80)})
    asked: list[str] = []
    monkeypatch.setattr(jsonl, "find_value", lambda *arguments: asked.append(arguments[2]) or find_value(*arguments))
    source = open_lines(tmp_path)
    assert source.has_key("id")
    assert asked == []
    for key, there in (("k0", True), ("k79", True), ("none", False)) * 2:
        assert source.has_key(key) == there
        assert open_lines(tmp_path).has_key(key) == there
    assert asked == ["k0", "k79", "none"]
    (tmp_path / "80.jsonl").write_bytes(lines([{"none": 1}]))
    assert open_lines(tmp_path).has_key("none")


def test_a_search_ends_with_the_line_that_has_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {f"{at:03}.jsonl": lines([{"id": at}] * 100 + [{"late": at}]) for at in range(500)})
    source = open_lines(tmp_path)
    before = source.traffic()[0]
    assert source.has_key("late")
    assert source.traffic()[0] - before < 200


@given(
    st.lists(st.binary(max_size=12).map(lambda part: part.replace(b"b", b"\n")), max_size=12).map(b"".join),
    st.integers(1, 9),
)
def testwhole_lines(data: bytes, size: int) -> None:
    found = list(whole_lines(data[at : at + size] for at in range(0, len(data), size)))
    assert b"".join(found) == data
    assert all(part.endswith(b"\n") for part in found[:-1])
