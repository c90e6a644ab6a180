"""`headrace convert` to stores of records and from them, and from token files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import headrace
import prepare_functions as functions
from full_disk import largest_file
from headrace.cli import app
from headrace.prepare import record_copying


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def convert(*arguments: Any) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def tokens_of(data: Any) -> list[list[int]]:
    return [sample["tokens"].tolist() for sample in data]


@pytest.fixture
def documents() -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(0, 60_000, size).tolist() for size in random.integers(0, 90, 100)]


@pytest.fixture
def parquet(tmp_path: Path, documents: list[list[int]]) -> Path:
    folder = tmp_path / "parquet"
    folder.mkdir()
    for part in range(2):
        some = documents[part * 50 : part * 50 + 50]
        numbers = list(range(part * 50, part * 50 + 50))
        table = pa.table(
            {
                "tokens": pa.array(some, pa.list_(pa.int32())),
                "id": pa.array(numbers, pa.int64()),
                "url": [f"https://example.org/{number}" for number in numbers],
            }
        )
        pq.write_table(table, folder / f"{part}.parquet", row_group_size=20)
    return folder


def test_parquet_becomes_documents_a_stream_and_parquet_again(
    tmp_path: Path, parquet: Path, documents: list[list[int]]
) -> None:
    made = convert(parquet, tmp_path / "d", "--format", "documents", "--dtype", "uint16", "--chunk-bytes", 2000)
    assert (made["from"], made["samples"], made["left_out"]) == ("parquet", 100, ["url"])
    assert made["chunks"] == len(list((tmp_path / "d").glob("*.bin"))) > 3
    assert {path.suffix for path in (tmp_path / "d").iterdir()} == {".json", ".bin", ".ends", ".meta"}
    data = headrace.open(tmp_path / "d", verify=True)
    assert isinstance(data, headrace.DocumentDataset)
    assert data.dtype == np.dtype([("tokens", "<u2")])
    assert tokens_of(data) == documents
    assert [sample["id"] for sample in data] == list(range(100))

    made = convert(tmp_path / "d", tmp_path / "s", "--format", "stream")
    assert (made["from"], made["samples"], made["left_out"]) == ("records", sum(map(len, documents)), ["id"])
    stream = headrace.open(tmp_path / "s", verify=True)
    assert isinstance(stream, headrace.StreamDataset)
    assert tokens_of(stream.documents()) == documents

    for source in ("d", "s"):
        made = convert(tmp_path / source, tmp_path / f"{source}-parquet", "--format", "parquet", "--workers", 0)
        assert made["samples"] == 100
        rows = pq.read_table(tmp_path / f"{source}-parquet")
        assert rows.schema.field("tokens").type.value_type == pa.uint16()
        assert rows["tokens"].to_pylist() == documents
    assert pq.read_table(tmp_path / "d-parquet")["id"].to_pylist() == list(range(100))


def test_token_files_become_a_stream_or_documents_of_one_length(tmp_path: Path) -> None:
    for part in range(2):
        np.arange(part * 700_000, part * 700_000 + 700_000, dtype="<u4").tofile(tmp_path / f"{part}.bin")
    how = ["--stored-dtype", "uint32"]
    convert(tmp_path / "*.bin", tmp_path / "s", *how, "--format", "stream")
    stream = headrace.open(tmp_path / "s", sequence_length=1_400_000)
    assert not list((tmp_path / "s").glob("*.ends"))
    assert np.array_equal(stream[0]["tokens"], np.arange(1_400_000))
    made = convert(tmp_path / "*.bin", tmp_path / "d", *how, "--sequence-length", 100_000, "--format", "documents")
    assert made["samples"] == 14
    assert np.array_equal(headrace.open(tmp_path / "d")[13]["tokens"], np.arange(1_300_000, 1_400_000))
    done = run(tmp_path / "*.bin", tmp_path / "none", *how, "--format", "documents")
    assert done.exit_code == 2
    assert "expected documents, found a stream that does not say where they end" in done.stderr


def test_several_columns_become_fields_side_by_side(tmp_path: Path) -> None:
    with (tmp_path / "a.jsonl").open("w") as file:
        for number in range(5):
            ids = list(range(number))
            file.write(json.dumps({"ids": ids, "weights": [one / 2 for one in ids], "ok": True, "text": "a"}) + "\n")
    how = ["--format", "documents", "--column", "ids", "--column", "weights", "--keep", "ok"]
    assert convert(tmp_path / "a.jsonl", tmp_path / "d", *how)["left_out"] == ["text"]
    data = headrace.open(tmp_path / "d")
    assert data[4]["weights"].tolist() == [0, 0.5, 1, 1.5]
    assert data[0]["ids"].tolist() == []
    assert data[1]["ok"] == np.True_
    assert convert(tmp_path / "d", tmp_path / "s", "--format", "stream")["samples"] == 10
    assert headrace.open(tmp_path / "s")[9]["weights"] == 1.5


def test_a_store_can_be_added_to_by_what_is_like_it(tmp_path: Path, parquet: Path, documents: list[list[int]]) -> None:
    how = ["--format", "documents", "--keep", "id"]
    convert(parquet / "0.parquet", tmp_path / "d", *how)
    assert "expected an empty folder, found index.json" in run(parquet, tmp_path / "d", *how).stderr
    convert(parquet / "1.parquet", tmp_path / "d", *how, "--mode", "append")
    assert tokens_of(headrace.open(tmp_path / "d")) == documents
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "d").iterdir())
    done = run(parquet, tmp_path / "d", *how, "--mode", "append", "--dtype", "uint16")
    assert done.exit_code == 2
    assert "expected dtype [['tokens', '<u2']] to add to it, found [['tokens', '<i4']]" in done.stderr
    assert sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "d").iterdir()) == before


def test_what_does_not_fit_is_named_and_leaves_nothing(tmp_path: Path, parquet: Path) -> None:
    wrong = pa.table({"tokens": [[1], [2], [70_000]], "id": [100, 101, 102], "url": ["", "", ""]})
    pq.write_table(wrong, parquet / "2.parquet")
    for arguments, message in (
        (["--dtype", "uint16", "--chunk-bytes", "2000"], r"2.parquet, chunk 6, row 2): document, tokens: expected"),
        (["--dtype", "uint16"], r"2.parquet, chunk 6, row 2): document, tokens: expected"),
        (["--column", "ids"], "expected a column 'ids', found tokens, id, url"),
        (["--column", "url"], "column 'url': expected arrays of numbers, found <U"),
        (["--keep", "url"], "keep: expected a number in 'url', found <U"),
        (["--dtype", "many"], "dtype must be a type of numbers"),
        (["--compression", "zstd"], "--compression is not for --format documents"),
    ):
        done = run(parquet, tmp_path / "d", "--format", "documents", "--no-resume", *arguments)
        assert done.exit_code == 2, arguments
        assert message in done.stderr
        assert [path.name for path in tmp_path.glob("d/*") if path.name != ".headrace"] == []
    # What had finished nothing leaves nothing.
    assert list((tmp_path / "d").iterdir()) == []
    convert(parquet / "0.parquet", tmp_path / "d", "--format", "documents", "--dtype", "uint16")
    before = sorted(path.name for path in (tmp_path / "d").iterdir())
    how = ["--format", "documents", "--dtype", "uint16", "--mode", "append", "--chunk-bytes", 2000]
    assert run(parquet, tmp_path / "d", *how).exit_code == 2
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == [".headrace", *before]
    done = run(parquet, tmp_path / "d", "--format", "mds", "--keep", "id")
    assert "--keep is not for --format mds" in done.stderr


class Counted(dict[str, Any]):
    """A sample that is counted while it is there."""

    there = most = 0

    def __init__(self, sample: dict[str, Any]) -> None:
        super().__init__(sample)
        Counted.there += 1
        Counted.most = max(Counted.most, Counted.there)

    def __del__(self) -> None:
        Counted.there -= 1


def test_samples_with_an_empty_list_each_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"tokens": list(range(number % 3)), "notes": []} for number in range(60)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples = record_copying._samples
    monkeypatch.setattr(record_copying, "_samples", lambda *given: map(Counted, samples(*given)))
    for how in ([], ["--column", "tokens"]):
        folder = tmp_path / f"out{len(how)}"
        if how:
            assert convert(tmp_path / "a.jsonl", folder, "--format", "documents", *how)["samples"] == 60
            assert tokens_of(headrace.open(folder)) == [row["tokens"] for row in rows]
        else:
            assert "tokens" in run(tmp_path / "a.jsonl", folder, "--format", "documents").output
    assert 0 < Counted.most < 10


def test_hints_are_for_those_who_gave_the_command(tmp_path: Path, parquet: Path) -> None:
    how = ["--format", "documents", "--dtype", "uint16"]
    folder = tmp_path / "d"
    with headrace.DocumentWriter(folder, "uint16") as writer:
        done = run(parquet, folder, *how, "--mode", "append")
        assert (done.exit_code, "another writer is at it\nhint: wait until it is closed" in done.stderr) == (2, True)
        with pytest.raises(headrace.StoreError, match="another writer is at it\nhint: give each writer a part="):
            headrace.DocumentWriter(folder, "uint16", mode="append")
        writer.write([1])
    done = run(parquet, folder, *how)
    assert "hint: --mode append adds to what is there, --mode overwrite replaces it" in done.stderr
    with largest_file(1000):
        done = run(parquet, tmp_path / "small", *how, "--chunk-bytes", "900")
    assert "File too large\nhint: once there is room, the same call goes on behind what was finished" in done.stderr
    assert convert(parquet, tmp_path / "small", *how, "--chunk-bytes", "900")["samples"] == len(headrace.open(parquet))
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="no 3"):
        headrace.optimize(functions.fails, range(9), tmp_path / "none", num_workers=0, verbose=False)
    done = run(parquet, tmp_path / "none", "--format", "mds", "--workers", 0)
    assert "hint: call it as before to go on with it; --no-resume forgets what it did" in done.stderr
