"""`headrace.index`: indexes beside Parquet files, and tables of lines, before anybody opens them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace


def test_parquet_files_have_their_index_beside_them(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"tokens": [[1, 2], [3]]}), tmp_path / f"{number}.parquet", row_group_size=1)
    found = headrace.index(tmp_path, column="tokens")
    assert (found.format, found.files, found.chunks, found.samples) == ("parquet", 3, 6, 6)
    assert found.written == str(tmp_path / "_headrace/index.arrow")
    assert (tmp_path / "_headrace/index.arrow").exists()
    assert headrace.open(tmp_path).info()["columns"]["tokens"]["tokens"] == 9


def test_tables_of_lines_are_made_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    found = headrace.index(tmp_path / "data", in_place=False)
    assert (found.format, found.samples, found.bytes, found.written) == ("jsonl", 2, 18, None)
    assert list((tmp_path / "cache/tables").iterdir())
    with pytest.raises(ValueError, match="in_place is for Parquet files, found jsonl"):
        headrace.index(tmp_path / "data")
    with pytest.raises(ValueError, match="column is for Parquet files, found jsonl"):
        headrace.index(tmp_path / "data", in_place=False, column="a")
