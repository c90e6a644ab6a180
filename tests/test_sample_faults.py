"""Faults of samples and of loaders over them that were found once: each stays as a test."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace import _files


def lines(folder: Path, count: int = 40, name: str = "a.jsonl") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps({"id": number}) + "\n" for number in range(count)))
    return folder


def drain(loader: hr.DataLoader, errors: type[BaseException]) -> tuple[list[int], int]:
    """The ids that a loader gives, and how often it raised; each batch says of itself what it holds."""
    ids: list[int] = []
    raised = 0
    batches = iter(loader)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return ids, raised
        except errors:
            raised += 1
            continue
        assert batch["id"].tolist() == batch.positions.tolist()
        ids += batch["id"].tolist()


@pytest.mark.parametrize("error", [TimeoutError, KeyError, SystemExit, GeneratorExit])
@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_function_raises_costs_its_batch_alone(tmp_path: Path, error: type[BaseException], workers: int) -> None:
    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 5:
            raise error("once")
        return sample

    loader = hr.DataLoader(hr.open(lines(tmp_path)).map(fail), batch_size=4, shuffle=False, num_workers=workers)
    assert drain(loader, error) == ([*range(4), *range(8, 40)], 1)


def test_a_helper_never_makes_a_sample_of_nothing(tmp_path: Path) -> None:
    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 5:
            raise GeneratorExit
        return sample

    data = hr.open(lines(tmp_path)).map(fail)
    for _ in range(5):
        loader = hr.DataLoader(data, batch_size=8, shuffle=False, num_workers=1, items_in_parallel=4)
        assert drain(loader, GeneratorExit) == (list(range(8, 40)), 1)


def test_a_damaged_chunk_is_skipped_and_nothing_with_it(tmp_path: Path) -> None:
    for name, start in (("a", 0), ("b", 10), ("c", 20)):
        text = "".join(json.dumps({"id": number}) + "\n" for number in range(start, start + 10))
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    data = hr.open(tmp_path)
    assert len(data) == 30
    (tmp_path / "b.jsonl.gz").write_bytes(b"damaged")
    loader = hr.DataLoader(data, batch_size=8, shuffle=False, on_error="skip", num_workers=2)
    assert [number for batch in loader for number in batch["id"].tolist()] == [*range(10), *range(20, 30)]
    assert loader.stats()["samples_skipped"] == 10
    position, place, error = loader.stats()["skipped"][0]
    assert (position, place) == (10, "b.jsonl.gz, chunk 1, row 0")
    assert "DataError" in error
    with pytest.raises(hr.DataError) as caught:
        list(hr.DataLoader(data, batch_size=8, shuffle=False))
    assert "headrace: sample 10 (b.jsonl.gz, chunk 1, row 0)" in caught.value.__notes__


def test_numbers_have_one_type_whatever_batch_they_are_in(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array(range(40), pa.int32())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array(range(40), pa.int64())}), tmp_path / "b.parquet")
    for shuffle in (False, True):
        batches = list(hr.DataLoader(hr.open(tmp_path), batch_size=7, shuffle=shuffle))
        assert {batch["x"].dtype.name for batch in batches} == {"int32"}
    one, two = (hr.open(tmp_path / name) for name in ("a.parquet", "b.parquet"))
    batches = list(hr.DataLoader(hr.concat([one, two]), batch_size=7))
    assert {batch["x"].dtype.name for batch in batches} == {"int64"}
    pq.write_table(pa.table({"x": [2**40]}), tmp_path / "c.parquet")
    with pytest.raises(hr.DataError, match="column 'x' is of int32"):
        list(hr.DataLoader(hr.open(tmp_path), batch_size=100))


def test_a_folder_of_datasets_names_them(tmp_path: Path) -> None:
    for name in ("train", "val"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.json").write_text("{}")
        (tmp_path / name / "shard.00000.mds").write_bytes(b"x")
    with pytest.raises(hr.DataError, match="train, val"):
        hr.open(tmp_path)
    assert len(hr.open(tmp_path, format="files")) == 4


def archive(first: int) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        for number in range(first, first + 20):
            member = tarfile.TarInfo(f"{number:06}.txt")
            member.size = 6
            tar.addfile(member, io.BytesIO(b"%06d" % number))
    return memory.getvalue()


def test_tar_beside_parquet_of_the_same_name_must_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "00000.tar").write_bytes(archive(0))
    pq.write_table(pa.table({"caption": ["a"]}), tmp_path / "00000.parquet")
    with pytest.raises(hr.DataError, match='format="webdataset"'):
        hr.open(tmp_path)
    assert len(hr.open(tmp_path, format="webdataset")) == 20
    assert len(hr.open(tmp_path, format="parquet")) == 1


def test_a_file_that_is_written_over_is_refused_when_it_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "0.tar"
    path.write_bytes(archive(0))
    data = hr.open(tmp_path)
    assert data[0]["txt"] == b"000000"
    time.sleep(0.02)  # a clock that ticks every 4 ms
    with path.open("r+b") as file:
        file.write(archive(500_000))
    with pytest.raises(hr.DataError, match=r"0\.tar: changed since"):
        data[1]


def test_more_files_than_may_be_open_are_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "_MOST_KEPT", 3)
    for number in range(8):
        lines(tmp_path, 300, f"{number}.jsonl")
        with (tmp_path / f"{number}.jsonl").open("a") as file:
            file.write(" " * 2**20 + "\n")  # large enough to be read in place

    def opened() -> int:
        targets = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        return sum(target.endswith(".jsonl") for target in targets)

    data = hr.open(tmp_path)
    seen = 0
    for batch in hr.DataLoader(data, batch_size=64, num_workers=0):
        seen += len(batch["id"])
        assert 0 < opened() <= 3
    assert seen == 8 * 300


def test_keys_that_some_lines_lack_are_null(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n{"id": 2, "lang": "en"}\n{"id": 3, "lang": null}\n')
    data = hr.open(tmp_path)
    assert data.select(["lang", "id"])[0] == {"lang": None, "id": 1}
    assert [sample["id"] for sample in data.where(hr.col("lang") == "en")] == [2]
    assert [sample["id"] for sample in data.where(hr.col("lang").is_null())] == [1, 3]


def test_a_dict_of_any_collation_carries_its_state(tmp_path: Path) -> None:
    def collate(samples: list[Any]) -> dict[str, Any]:
        return {"ids": [sample["id"] for sample in samples]}

    loader = hr.DataLoader(hr.open(lines(tmp_path)), batch_size=4, collate_fn=collate)
    for batch in loader:
        assert batch.state == loader.state_dict()
        assert batch["ids"] == batch.positions.tolist()


def test_a_table_goes_to_another_process_unless_its_files_changed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(10)}), tmp_path / "b.parquet")
    data = hr.open(tmp_path)
    packed = pickle.dumps(data)
    mapped = pickle.dumps(data.map(str))
    again = pickle.loads(packed)
    assert isinstance(again, hr.TableDataset)
    assert again[3] == {"x": 3}
    pq.write_table(pa.table({"x": np.arange(10)}), tmp_path / "a.parquet")
    for data in (packed, mapped):
        with pytest.raises(hr.DataError, match="changed since it was opened"):
            pickle.loads(data)


def test_moving_a_loader_that_another_thread_waits_for_is_refused(tmp_path: Path) -> None:
    go = threading.Event()

    def wait(sample: dict[str, Any]) -> dict[str, Any]:
        go.wait(30)
        return sample

    loader = hr.DataLoader(hr.open(lines(tmp_path)).map(wait), batch_size=4, shuffle=False, num_workers=2)
    state = loader.state_dict()
    found: list[Any] = []
    batches = iter(loader)
    thread = threading.Thread(target=lambda: found.append(next(batches)["id"].tolist()))
    thread.start()
    time.sleep(0.2)
    for move in (lambda: loader.seek(3), lambda: loader.load_state_dict(state), lambda: loader.skip(range(1, 2))):
        with pytest.raises(RuntimeError, match="another thread"):
            move()
    go.set()
    thread.join(30)
    assert found == [[0, 1, 2, 3]]
    loader.seek(3)
    assert next(iter(loader))["id"].tolist() == [12, 13, 14, 15]


@pytest.mark.parametrize("wrong", [None, 3, b"x"])
def test_what_is_no_state_is_refused(tmp_path: Path, wrong: Any) -> None:
    loader = hr.DataLoader(hr.open(lines(tmp_path)), batch_size=4)
    with pytest.raises(hr.StateMismatch, match="no state"):
        loader.load_state_dict(wrong)
    with pytest.raises(hr.StateMismatch, match="kind"):
        loader.load_state_dict({**loader.state_dict(), "kind": []})
