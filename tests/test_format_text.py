"""Lines of text as samples, and files of lines that are compressed, in parts."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace._files import Store
from headrace.errors import DataError
from headrace.formats import _line_tables
from headrace.formats.jsonl import JsonlSource
from headrace.formats.text import TextSource


def texts(path: Path) -> list[str]:
    data = headrace.open(path, format="text")
    return [data[number]["text"] for number in range(len(data))]


def opened(kind: Any, path: Path) -> Any:
    store = Store([str(path)], {})
    return kind.open(store, store.files, cache_dir=path.parent / "cache", progress=lambda *_: None)


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_lines_are_samples_but_blank_ones(suffix: str, tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf[one]\r\n\n  \t\n two \n\xc3\xa4\x00"
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    assert texts(path) == ["[one]", " two ", "\xe4\0"]
    assert dict(headrace.open(path, format="text").schema) == {"text": "str"}
    assert headrace.open(path, format="text").select(["text"])[1] == {"text": " two "}


def test_whatever_is_named_is_text(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# a\n")
    (tmp_path / "b.jsonl").write_text("1\n")
    (tmp_path / "c").write_text("")
    assert texts(tmp_path) == ["# a", "1"]
    assert headrace.open(tmp_path, format="text").place(1).file == "b.jsonl"


def test_what_is_not_utf8_is_an_error_that_says_where(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\n\nb\xff\n")
    data = headrace.open(tmp_path / "a.txt", format="text")
    with pytest.raises(DataError, match=r"a\.txt, line 3: expected UTF-8, found the byte 0xff at 1"):
        _ = data[1]


@given(
    lines=st.lists(st.sampled_from([b"", b" ", b'"x"', b'{"text": "abc"}', b'"' + b"y" * 70 + b'"']), max_size=40),
    span=st.integers(8, 200),
    end=st.booleans(),
)
def test_a_compressed_file_is_the_same_in_parts(
    lines: list[bytes], span: int, end: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.gz"
    path.write_bytes(gzip.compress(b"\n".join(lines) + b"\n" * end))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_line_tables, "SPAN", span)
        for kind in (TextSource, JsonlSource):
            source = opened(kind, path)
            items = sum(bool(line.strip()) for line in lines)
            assert source.sizes.tolist() == ([items] if items else [])
            if not items:
                continue
            cuts, whole = source.cuts(0), source.load(0)
            assert cuts[0] == 0
            assert cuts[-1] == items
            assert np.all(np.diff(cuts) > 0)
            found = [source.part(0, number, data) for number, data in enumerate(source.stream(0))]
            assert [len(part) for part in found] == np.diff(cuts).tolist()
            rows = [part.take(range(len(part))) for part in found]
            assert [row for part in rows for row in part] == whole.take(range(items))
            assert [part.where(0) for part in found] == [whole.where(int(row)) for row in cuts[:-1]]


def test_plain_files_need_no_parts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    assert opened(TextSource, tmp_path / "a.txt").cuts(0) is None
