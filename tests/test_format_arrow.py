"""Arrow files and streams: rows are what pyarrow gives for the same files."""

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._files import Store
from headrace.errors import DataError
from headrace.formats import arrow
from headrace.formats.arrow import ArrowSource
from huggingface_files import plain, samples, silent


def open_arrow(folder: Path) -> ArrowSource:
    store = Store([str(folder)], {})
    return ArrowSource.open(store, store.files, progress=silent)


def tables() -> Iterable[pa.Table]:
    for number in range(3):
        rows = range(number * 10, number * 10 + 10)
        yield pa.table(
            {"a": pa.array(rows, pa.int64()), "b": [str(row) for row in rows], "c": [[row, 1] for row in rows]}
        )


def write_arrow(path: Path, parts: Iterable[pa.Table], *, stream: bool = False) -> None:
    parts = list(parts)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), parts[0].schema) as writer:
        for part in parts:
            writer.write_table(part, max_chunksize=4)


@pytest.mark.parametrize("stream", [False, True])
def test_arrow_files_are_what_pyarrow_gives(tmp_path: Path, stream: bool) -> None:
    first, *others = tables()
    write_arrow(tmp_path / "a.arrow", [first], stream=stream)
    write_arrow(tmp_path / "b.arrow", others, stream=stream)
    source = open_arrow(tmp_path)
    assert plain(samples(source)) == [row for table in tables() for row in table.to_pylist()]
    assert source.sizes.tolist() == [4, 4, 2] * 3
    assert list(source.schema) == ["a", "b", "c"]
    row = source.load(1, ("c", "a"))[0]
    assert list(row) == ["c", "a"]
    assert plain(row) == {"c": [4, 1], "a": 4}
    assert source.load(1).arrays(["a"])["a"].tolist() == [4, 5, 6, 7]
    assert list(source.load(1).arrays(["b", "a"])["b"]) == ["4", "5", "6", "7"]
    assert plain(samples(pickle.loads(pickle.dumps(source)))) == plain(samples(source))


def test_what_files_hold_is_kept_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number, table in enumerate(tables()):
        write_arrow(folder / f"{number}.arrow", [table])
    store = Store([str(folder)], {})
    opened: list[str] = []

    def count_calls(store: Store, file: Any) -> Any:
        opened.append(file.path)
        return open_file(store, file)

    open_file = arrow._open
    monkeypatch.setattr(arrow, "_open", count_calls)
    first = ArrowSource.open(store, store.files, progress=silent, cache_dir=tmp_path / "cache")
    rows = plain(samples(first))
    assert opened == ["0.arrow", "1.arrow", "2.arrow"], "once each"
    again = ArrowSource.open(store, store.files, progress=silent, cache_dir=tmp_path / "cache")
    assert len(opened) == 3
    assert again.identity() == first.identity()
    assert again.schema == first.schema
    assert again.stored.tolist() == first.stored.tolist()
    assert plain(samples(again)) == rows
    assert len(opened) == 6
    assert ArrowSource.open(store, [], progress=silent, cache_dir=tmp_path / "cache").sizes.tolist() == []


def test_batches_without_rows_are_no_chunks(tmp_path: Path) -> None:
    table = next(iter(tables()))
    write_arrow(tmp_path / "a.arrow", [table.slice(0, 0)])
    with pa.ipc.new_file(str(tmp_path / "b.arrow"), table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 3), table.slice(0, 0), table.slice(3)):
            for batch in part.to_batches() or [pa.record_batch(part.schema.empty_table().to_pydict(), part.schema)]:
                writer.write_batch(batch)
    source = open_arrow(tmp_path)
    assert source.sizes.tolist() == [3, 7]
    assert plain(samples(source)) == table.to_pylist()
    assert 0 < source.stored.sum() < (tmp_path / "b.arrow").stat().st_size


def test_the_file_whose_columns_differ_is_named(tmp_path: Path) -> None:
    """B080: two files with an extra column break the whole load."""
    table = next(iter(tables()))
    write_arrow(tmp_path / "a.arrow", [table])
    write_arrow(tmp_path / "b.arrow", [table.append_column("extra", table["a"])])
    assert [list(row) for row in samples(open_arrow(tmp_path))] == [["a", "b", "c"]] * 20
    write_arrow(tmp_path / "c.arrow", [table.drop_columns(["b"])])
    with pytest.raises(DataError, match=r"c\.arrow: expected a column 'b' of type .*, as in a\.arrow, found none"):
        open_arrow(tmp_path)
    write_arrow(tmp_path / "c.arrow", [table.set_column(0, "a", table["b"])])
    with pytest.raises(DataError, match=r"c\.arrow: expected a column 'a' of type .*, found one of"):
        open_arrow(tmp_path)


def test_a_damaged_arrow_file_is_named(tmp_path: Path) -> None:
    write_arrow(tmp_path / "a.arrow", tables())
    whole = (tmp_path / "a.arrow").read_bytes()
    for data in (b"", whole[:100], whole[:-9], b"ARROW1\0\0" + b"\0" * 50):
        (tmp_path / "a.arrow").write_bytes(data)
        with pytest.raises(DataError, match=r"a\.arrow"):
            open_arrow(tmp_path)


@pytest.mark.parametrize("stream", [False, True])
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=3), st.booleans())
def test_a_damaged_arrow_file_gives_values_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, stream: bool, changes: list[tuple[int, int]], cut: bool
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    write_arrow(folder / "a.arrow", tables(), stream=stream)
    data = bytearray((folder / "a.arrow").read_bytes())
    for place, value in changes:
        data[place % len(data)] = value
    (folder / "a.arrow").write_bytes(data[: len(data) - changes[0][0] % 100] if cut else data)
    try:
        samples(open_arrow(folder))
    except DataError as error:
        assert "a.arrow" in str(error)  # noqa: PT017
