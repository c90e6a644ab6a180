"""Which texts there are to tokenise: parts of datasets of every kind, and what is no text."""

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.errors import DataError
from headrace.formats import _line_tables
from headrace.prepare import parts as cutting
from headrace.prepare.documents import Document, Documents
from headrace.prepare.job import Refused
from headrace.samples.dataset import SampleDataset

HOW: dict[str, Any] = {"column": "text", "keep": None, "limit": None, "on_error": "raise"}


def text(number: int) -> str:
    return f"text {number} " + "word " * (number % 7)


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"id": f"d{number}", "text": text(number), "other": number} for number in range(start, start + count)]


def jsonl(path: Path, values: list[Any]) -> Path:
    data = b"".join(json.dumps(value).encode() + b"\n" for value in values)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(documents: Documents) -> list[Any]:
    parts = documents.parts()
    # As in another process, and in an order of its own.
    again = pickle.loads(pickle.dumps(documents))
    return [one for part in pickle.loads(pickle.dumps(list(parts))) for one in again.read(part)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts everywhere."""
    monkeypatch.setattr(cutting, "_PART_BYTES", 200)
    monkeypatch.setattr(cutting, "_PART_ITEMS", 7)
    monkeypatch.setattr(_line_tables, "SPAN", 150)


def _plain(folder: Path) -> None:
    jsonl(folder / "a.jsonl", rows(30))
    jsonl(folder / "b.jsonl", rows(20, 30))


def _packed(folder: Path) -> None:
    jsonl(folder / "a.jsonl.gz", rows(30))
    jsonl(folder / "b.jsonl.gz", rows(20, 30))


def _both(folder: Path) -> None:
    jsonl(folder / "a.jsonl", rows(30))
    jsonl(folder / "b.jsonl.gz", rows(20, 30))


def _parquet(folder: Path) -> None:
    pq.write_table(pa.Table.from_pylist(rows(30)), folder / "a.parquet", row_group_size=9)
    pq.write_table(pa.Table.from_pylist(rows(20, 30)), folder / "b.parquet", row_group_size=100)


KINDS: dict[str, Callable[[Path], None]] = {"plain": _plain, "packed": _packed, "both": _both, "parquet": _parquet}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", KINDS)
def test_all_documents_come_in_order(kind: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path)
    documents = Documents(headrace.open(tmp_path), **HOW)
    assert len(documents.parts()) > 5
    expected = [Document(number, text(number), {"id": f"d{number}"}) for number in range(50)]
    assert read(documents) == expected
    places = Documents(headrace.open(tmp_path), **HOW | {"keep": ["row", "other", "file"]})
    suffix = {"a": "a.jsonl", "b": "b.jsonl"} if kind in ("plain", "packed") else {"a": "a", "b": "b"}
    found = [one.kept for one in read(places)]
    assert [list(kept) for kept in found] == [["row", "other", "file"]] * 50
    assert [(kept["row"], kept["other"]) for kept in found] == [(n if n < 30 else n - 30, n) for n in range(50)]
    assert [kept["file"].startswith(suffix["a" if n < 30 else "b"]) for n, kept in enumerate(found)] == [True] * 50


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.take(23),
        lambda data: data.skip(11),
        lambda data: data.where(headrace.col("other") > 17),
        lambda data: data.subset(list(range(0, 50, 3))),
        lambda data: data.subset([40, 3, 3, 17, 0]),
        lambda data: data.split([0.3, 0.7], seed=1)[1],
        lambda data: data.repeat(2),
        lambda data: headrace.concat([data.skip(40), data.take(5)]),
        lambda data: data.filter(lambda sample: sample["other"] % 4),
        lambda data: data.map(lambda sample: {**sample, "text": sample["text"].upper()}),
    ],
    ids=["take", "skip", "where", "subset", "scattered", "split", "repeat", "concat", "filter", "map"],
)
def test_documents_of_every_dataset(kind: str, change: Callable[[Any], SampleDataset], tmp_path: Path) -> None:
    KINDS[kind](tmp_path)
    dataset = change(headrace.open(tmp_path))
    documents = Documents(dataset, **HOW)
    parts = documents.parts()
    found = [one for part in parts for one in documents.read(part)]
    assert [one.text for one in found] == [sample["text"] for sample in dataset]
    assert len({one.position for one in found}) == len(found)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts)][:-1]


@given(
    sizes=st.lists(st.integers(0, 40), max_size=6),
    packed=st.lists(st.booleans(), min_size=6, max_size=6),
    part=st.integers(1, 500),
    items=st.integers(1, 20),
    start=st.integers(0, 60),
    asked=st.randoms(use_true_random=False),
)
def test_parts_cover_a_dataset_whatever_is_asked_first(
    sizes: list[int],
    packed: list[bool],
    part: int,
    items: int,
    start: int,
    asked: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    for number, size in enumerate(sizes):
        jsonl(folder / f"{number}.jsonl{'.gz' if packed[number] else ''}", rows(size))
    if not sum(sizes):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "_PART_BYTES", part)
        patch.setattr(cutting, "_PART_ITEMS", items)
        patch.setattr(_line_tables, "SPAN", 100)
        patch.setenv("HEADRACE_CACHE", str(folder / "_cache"))
        dataset = headrace.open(folder).skip(start)
        documents = Documents(dataset, **HOW)
        parts = documents.parts()
        numbers = list(range(len(parts)))
        asked.shuffle(numbers)
        found = {number: list(documents.read(parts[number])) for number in numbers}
        texts = [one.text for number in range(len(parts)) for one in found[number]]
        assert texts == [sample["text"] for sample in dataset]
        assert all(found.values()), "no part is empty"


def test_raw_files_are_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\ntwo\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("zw\xf6lf".encode()))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/c").write_bytes(b"three")
    found = read(Documents(headrace.open(tmp_path), **HOW))
    assert [(one.text, one.kept) for one in found] == [
        ("one\ntwo\n", {"file": "a.txt"}),
        ("zw\xf6lf", {"file": "b.txt.gz"}),
        ("three", {"file": "sub/c"}),
    ]
    lines = read(Documents(headrace.open(tmp_path / "a.txt", format="text"), **HOW))
    assert [(one.text, one.kept["row"]) for one in lines] == [("one", 0), ("two", 1)]


def test_samples_that_are_texts(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", ["one", "two"])
    found = read(Documents(headrace.open(tmp_path), **HOW))
    assert [(one.text, one.kept) for one in found] == [
        ("one", {"file": "a.jsonl", "row": 0}),
        ("two", {"file": "a.jsonl", "row": 1}),
    ]


def test_bytes_are_text_in_utf8(tmp_path: Path) -> None:
    values = pa.array(["zw\xf6lf".encode(), b"\xef\xbb\xbfx", b"a\xff"], pa.binary())
    pq.write_table(pa.table({"text": values}), tmp_path / "a.parquet")
    documents = Documents(headrace.open(tmp_path), **HOW | {"on_error": "skip"})
    first, second, third = read(documents)
    assert (first.text, second.text) == ("zw\xf6lf", "\ufeffx"), "a byte order mark is one at the start of files alone"
    error = "DataError: a.parquet, chunk 0, row 2: expected UTF-8, found the byte 0xff at 1"
    assert third == Refused("a.parquet, chunk 0, row 2", error)


@pytest.mark.parametrize(
    "value, found",
    [(None, "null"), (5, "int"), (["a"], "list"), ({"a": "b"}, "dict"), (True, "bool")],
    ids=["null", "int", "list", "dict", "bool"],
)
def test_what_is_no_text_is_refused_or_skipped(value: Any, found: str, tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", [{"text": "a"}, {"text": value}, {"text": "c"}])
    with pytest.raises(DataError, match=rf"a\.jsonl, chunk 0, row 1: expected text in 'text', found {found}"):
        read(Documents(headrace.open(tmp_path), **HOW))
    first, refused, last = read(Documents(headrace.open(tmp_path), **HOW | {"on_error": "skip"}))
    assert (first.text, last.text) == ("a", "c")
    assert refused.value == "a.jsonl, chunk 0, row 1"
    assert f"found {found}" in refused.error


def test_damaged_lines_are_refused_or_skipped(tmp_path: Path) -> None:
    bad = b'{"text"\n{"text": "\xff"}\n{"text": "d"}\n'
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n' * 100 + bad)
    with pytest.raises(DataError, match=r"a\.jsonl, line 101: expected a JSON value"):
        read(Documents(headrace.open(tmp_path), **HOW))
    found = read(Documents(headrace.open(tmp_path), **HOW | {"on_error": "skip"}))
    assert [type(one) for one in found] == [Document] * 100 + [Refused, Refused, Document]
    assert "line 102: expected UTF-8" in found[101].error


def test_null_and_missing_ids_are_kept_as_null(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", [{"text": "a", "id": 1}, {"text": "b", "id": None}, {"text": "c"}])
    for data in (headrace.open(tmp_path), headrace.open(tmp_path).filter(lambda sample: True)):
        assert [one.kept for one in read_here(Documents(data, **HOW))] == [{"id": 1}, {"id": None}, {"id": None}]


def read_here(documents: Documents) -> list[Any]:
    return [one for part in documents.parts() for one in documents.read(part)]


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    _plain(tmp_path)
    data = headrace.open(tmp_path)
    with pytest.raises(ValueError, match=r"expected a column 'body', found 'id', 'text', 'other'\nhint: column says"):
        Documents(data, **HOW | {"column": "body"})
    with pytest.raises(ValueError, match="expected a column 'url'"):
        Documents(data, **HOW | {"keep": ["url"]})
    mapped = data.map(lambda sample: {"body": sample["text"]})
    with pytest.raises(DataError, match=r"row 0: expected a sample with 'text', found 'body'"):
        read_here(Documents(mapped, **HOW))


def test_another_dataset_has_another_identity(tmp_path: Path) -> None:
    _plain(tmp_path)
    data = headrace.open(tmp_path)
    made = [
        Documents(data, **HOW),
        Documents(data.take(5), **HOW),
        Documents(data, **HOW | {"keep": ["other"]}),
        Documents(data, **HOW | {"column": "id"}),
        Documents(data.filter(lambda sample: True), **HOW),
    ]
    identities = [json.dumps(one.identity) for one in made]
    assert len(set(identities)) == len(made)
    assert json.dumps(Documents(headrace.open(tmp_path), **HOW).identity) == identities[0]


def test_large_files_are_cut_and_small_ones_joined(tmp_path: Path) -> None:
    line = json.dumps({"text": "x" * 1000})
    for number in range(100):
        (tmp_path / f"{number:03}.jsonl").write_text(line + "\n")
    parts = Documents(headrace.open(tmp_path), **HOW).parts()
    assert len(parts) == 1
    large = tmp_path / "large"
    large.mkdir()
    for name in ("a.jsonl", "b.jsonl.gz"):
        data = (line + "\n").encode() * 20_000
        (large / name).write_bytes(gzip.compress(data, 1) if name.endswith("gz") else data)
    sizes = np.diff([0, *(part.stop for part in Documents(headrace.open(large), **HOW).parts())])
    assert len(sizes) > 12
    assert sizes.max() < 4200
