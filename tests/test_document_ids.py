"""Names of documents: as text, in files and lists, and which items of which formats they mean."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import MissingError
from headrace.loading.exclusion import exclude_of
from headrace.samples.document_ids import DocumentIds, read_ids
from headrace.samples.excluding import marked, without
from headrace.samples.source import Place, Places
from sample_sources import made_up

IDS = st.lists(
    st.tuples(st.sampled_from(["a", "b:c", "ä/{", '"']), st.integers(0, 3), st.integers(0, 3) | st.just(10**18 - 1))
)


def each(ids: DocumentIds) -> list[str]:
    return [ids.text(number) for number in range(len(ids))]


@given(IDS)
def test_names_are_kept_once_in_their_order_whatever_form_they_have(ids: list[tuple[str, int, int]]) -> None:
    wanted = list(dict.fromkeys(f"{file}:{chunk}:{row}" for file, chunk, row in ids))
    places = [Place(*one) for one in ids]
    forms: list[Any] = [
        ids,
        places,
        [place.id for place in places],
        [hr.Source(*one, 3, 4) for one in ids],
        [list(one) for one in ids],
        [Places(places)],
        [[], [hr.Source(*one, 3, 4) for one in ids[:2]], [list(one) for one in ids[2:]]],
        ((file, np.int64(chunk), np.uint64(row)) for file, chunk, row in ids),
    ]
    for form in forms:
        found = DocumentIds(read_ids(form))
        assert each(found) == wanted
        assert len(found) == len(wanted)
        groups = list(found.by_chunk())
        assert len({(file, chunk) for file, chunk, *_ in groups}) == len(groups)
        assert {
            (f"{file}:{chunk}:{row}", number)
            for file, chunk, rows, numbers in groups
            for row, number in zip(rows.tolist(), numbers.tolist(), strict=True)
        } == {(name, number) for number, name in enumerate(wanted)}


@given(IDS, IDS)
def test_a_digest_is_of_the_first_ones_in_their_order(
    ids: list[tuple[str, int, int]], more: list[tuple[str, int, int]]
) -> None:
    short, long = DocumentIds(ids), DocumentIds(ids + more)
    assert long.digest(len(short)) == short.digest(len(short))
    digests = [long.digest(count) for count in range(len(long) + 1)]
    assert len(set(digests)) == len(digests)
    turned = DocumentIds(reversed(ids))
    assert (turned.digest(len(turned)) == short.digest(len(short))) == (each(turned) == each(short))


def test_files_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "b:c.parquet:0:17",
        " a.parquet:3:4\r",
        "",
        json.dumps("ä.jsonl:0:1"),
        json.dumps({"file": "{", "row_group": 1, "row": 2, "tokens": 9}),
        json.dumps({"row": 3, "chunk": 1, "file": "x"}),
        "a.parquet:3:4",
    ]
    path = tmp_path / "bad.txt"
    path.write_text("\n".join(lines))
    wanted = ["b:c.parquet:0:17", "a.parquet:3:4", "ä.jsonl:0:1", "{:1:2", "x:1:3"]
    monkeypatch.chdir(tmp_path)
    for form in (path, str(path), "bad.txt", path.as_uri()):
        assert each(DocumentIds(read_ids(form))) == wanted
    path.write_text("")
    assert len(DocumentIds(read_ids(path))) == 0
    with pytest.raises(MissingError, match=r"none\.txt"):
        list(read_ids(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    "line,told",
    [
        ("a.parquet", "expected file:chunk:row, such as .*, found 'a.parquet'"),
        ("a.parquet:1", "found 'a.parquet:1'"),
        (":1:2", "found ':1:2'"),
        ("a:-1:2", "found 'a:-1:2'"),
        ("a:1:2.0", "found 'a:1:2.0'"),
        ("a:1:²", "found 'a:1:²'"),
        (f"a:1:{10**18}", "found"),
        (f'{{"file": "a", "chunk": 0, "row": {10**18}}}', "found"),
        ('{"file": "a", "row": 3}', "found {'file': 'a', 'row': 3}"),
        ('{"file": "a", "row_group": true, "row": 3}', "expected file:chunk:row"),
        ('{"file": "a"', "expected JSON"),
        ('"a:1"', "found 'a:1'"),
    ],
)
def test_a_line_that_is_no_name_is_named(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(f"a:0:0\n\n{line}\nb:0:0\n")
    with pytest.raises(ValueError, match=rf"{path}, line 3: .*{told}"):
        hr.DataLoader(made_up((3,)), batch_size=2, exclude=path)


def test_what_names_nothing_is_refused(tmp_path: Path) -> None:
    for entry in ("a:1", 7, ("a", 1), (1, 2, 3), None, Place("a", 0, -1)):
        with pytest.raises(ValueError, match=r"exclude\[1\]: expected file:chunk:row"):
            list(read_ids(["a:0:0", entry]))
    with pytest.raises(ValueError, match=r"exclude\[0\]\[1\]: expected file:chunk:row.*found 7"):
        list(read_ids([[Place("a", 0, 0), 7]]))
    for unordered in ({"a:0:0"}, frozenset(["a:0:0"])):
        with pytest.raises(TypeError, match=r"exclude must come in an order.*set\nhint: sorted"):
            hr.DataLoader(made_up((3,)), batch_size=2, exclude=unordered)
    for what in (7, b"a:0:0", 1.5):
        with pytest.raises(TypeError, match="exclude must be a file of documents' names, a list of them"):
            hr.DataLoader(made_up((3,)), batch_size=2, exclude=what)
    path = tmp_path / "bad.txt"
    path.write_bytes(b"a:0:0\nb:\xff:0\n")
    with pytest.raises(ValueError, match=r"bad.txt, line 2: .* as UTF-8, found other bytes"):
        list(read_ids(path))


@given(st.data())
def test_items_of_a_pipeline_are_found_by_name(data: st.DataObject) -> None:
    whole = made_up((5, 1, 0, 4))
    other = made_up((2, 3), start=50)
    makers: list[Callable[[], hr.SampleDataset]] = [
        lambda: whole,
        lambda: hr.concat([whole.skip(3), other, whole.take(7)]),
        lambda: whole.subset([9, 0, 3, 3, 5]),
        lambda: whole.repeat(2),
        lambda: whole.subset([0, 2, 2, 4, 8]),
    ]
    dataset = data.draw(st.sampled_from(makers), "dataset")()
    ids = DocumentIds(
        data.draw(st.lists(st.tuples(*[st.sampled_from(["file-0", "file-1", "file-3"])] + [st.integers(0, 5)] * 2)))
    )
    names = each(ids)
    pipeline = dataset.pipeline
    found = marked(pipeline, ids)
    all_names = [pipeline.place(number).id for number in range(len(pipeline))]
    assert dict(zip(found.position.tolist(), found.number.tolist(), strict=True)) == {
        number: names.index(name) for number, name in enumerate(all_names) if name in names
    }
    left = without(pipeline, found.position)
    assert [left.place(number).id for number in range(len(left))] == [name for name in all_names if name not in names]


def test_raw_files_are_named_by_their_own_path(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(b"x")
    data = hr.open(tmp_path, format="files")
    assert data.place(1).id == "1.bin:0:1"
    found = exclude_of(["1.bin:0:1", "2.bin:0:2"], data)
    assert found is not None
    assert marked(data.pipeline, found).position.tolist() == [1, 2]
    with pytest.warns(UserWarning, match=r"2 of 3 .* the first is '0.bin:0:1'"):
        exclude_of(["0.bin:0:1", "0.bin:9:0", "0.bin:0:0"], data)


def test_many_names_cost_little(tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    path.write_text("".join(f"file-{number % 1000}:{number % 1000}:{number // 1000}\n" for number in range(200_000)))
    data = made_up([220] * 1000)
    begin = time.process_time()
    loader = hr.DataLoader(data, batch_size=50, exclude=path, num_workers=0)
    batch = next(iter(loader))
    assert min(place.row for place in batch.sources()) >= 200
    assert len(loader) == 400
    assert time.process_time() - begin < 10
