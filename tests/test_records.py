"""headrace's own stores of records: what is written, what becomes of kills, and how loaders read them."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from files import run_python
from full_disk import largest_file
from headrace.errors import DataError, StoreError

FIELDS = [("tokens", "<u2"), ("weight", "<f4"), ("place", "<i8", (2,))]


def records(count: int, first: int = 0) -> np.ndarray:
    rows = np.zeros(count, FIELDS)
    rows["tokens"] = np.arange(first, first + count) % 60_000
    rows["weight"] = np.arange(first, first + count) / 3
    rows["place"] = np.arange(2 * count).reshape(count, 2)
    return rows


def with_numpy(folder: Path) -> np.ndarray:
    """All records, read by what docs/formats/records.md says and NumPy alone."""
    index = json.loads((folder / "index.json").read_text())
    dtype = np.dtype([(name, kind, *(tuple(part) for part in shape)) for name, kind, *shape in index["dtype"]])
    parts = [np.memmap(folder / shard["name"], dtype, mode="r") for shard in index["shards"]]
    return np.concatenate([np.zeros(0, dtype), *parts])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def opened(folder: Path, **settings) -> hr.StreamDataset:
    data = hr.open(folder, **settings)
    assert isinstance(data, hr.StreamDataset)
    return data


# Writing


def test_a_stream_is_what_was_written_by_headrace_and_by_numpy(tmp_path):
    rows = records(1000)
    with hr.StreamWriter(tmp_path / "s", FIELDS, shard_bytes=22 * 300) as writer:
        for start in range(0, 1000, 77):
            writer.write(rows[start : start + 77])
        assert writer.records == 1000
    assert [path.stat().st_size // 22 for path in sorted((tmp_path / "s").glob("*.bin"))] == [300, 300, 300, 100]
    assert np.array_equal(with_numpy(tmp_path / "s"), rows)
    data = opened(tmp_path / "s", verify=True)
    assert len(data) == 1000
    assert data.dtype == np.dtype(FIELDS)
    assert data[999]["weight"] == rows["weight"][999]
    assert [sample["tokens"] for sample in data[3:5]] == [3, 4]
    sequences = data.sequences(50)
    assert len(sequences) == 20
    assert np.array_equal(sequences[7]["place"], rows["place"][350:400])
    assert names(tmp_path / "s") == ["index.json", *(f"shard-{number:05d}.bin" for number in range(4))]


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 40), max_size=30),
    shard=st.integers(1, 200),
    length=st.integers(1, 12),
    overlap=st.integers(0, 3),
    as_stream=st.booleans(),
)
def test_documents_come_back_whole_and_in_pieces(tmp_path_factory, lengths, shard, length, overlap, as_stream):
    folder = tmp_path_factory.mktemp("records") / "d"
    documents = [np.arange(count, dtype=np.int32) + 100 * number for number, count in enumerate(lengths)]
    if as_stream:
        with hr.StreamWriter(folder, "<i4", documents=True, shard_bytes=shard) as writer:
            for document in documents:
                for part in np.array_split(document, 3):
                    writer.write(part)
                writer.end_document()
        data = opened(folder).documents() if documents else None
    else:
        with hr.DocumentWriter(folder, "<i4", meta=[("number", "<i8")], shard_bytes=shard) as writer:
            for number, document in enumerate(documents):
                writer.write(document, {"number": number})
        data = hr.open(folder) if documents else None
    if data is None:
        assert json.loads((folder / "index.json").read_text())["shards"] == []
        return
    assert isinstance(data, hr.DocumentDataset)
    assert len(data) == len(documents)
    for number, sample in enumerate(data):
        assert np.array_equal(sample["tokens"], documents[number])
        assert as_stream or sample["number"] == number
    overlap = min(overlap, length)
    pieces = [
        document[at : at + length + overlap]
        for document in documents
        for at in range(0, max(1, len(document) - overlap), length)
        if len(document)
    ]
    found = data.sequences(length, overlap=overlap, within_documents=True, pad_id=-7)
    assert len(found) == len(pieces)
    gathered = found[list(range(len(pieces)))]
    for sample, wanted in zip(gathered, pieces, strict=True):
        assert np.array_equal(sample["tokens"][: len(wanted)], wanted)
        assert (sample["tokens"][len(wanted) :] == -7).all()
        assert sample["loss_mask"].tolist() == [1] * len(wanted) + [0] * (length + overlap - len(wanted))


def test_what_cannot_be_stored_unchanged_is_refused_and_nothing_of_it_written(tmp_path):
    with hr.StreamWriter(tmp_path / "s", "uint16") as writer:
        writer.write([1, 2])
        for wrong, what in (
            ([70_000], "fit into uint16.*such as 70000"),
            ([-1], "fit into uint16.*such as -1"),
            ([[1, 2]], "one dimension"),
        ):
            with pytest.raises(ValueError, match=what):
                writer.write(wrong)
        for wrong in ([1.5], ["a"], {"other": [1]}):
            with pytest.raises(TypeError, match=r"whole numbers|columns tokens, got other"):
                writer.write(wrong)
        with pytest.raises(ValueError, match="documents=True"):
            writer.end_document()
        writer.write({"tokens": [3]})
    assert with_numpy(tmp_path / "s")["tokens"].tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="closed"):
        writer.write([1])
    with hr.DocumentWriter(tmp_path / "d", "uint16", meta=[("id", "<i4"), ("name", "S3")]) as writer:
        writer.write([], {"id": 1, "name": b"abc"})
        with pytest.raises(TypeError, match="meta must have id, name, got id"):
            writer.write([], {"id": 1})
        with pytest.raises(ValueError, match="meta, name: expected values that fit into"):
            writer.write([], {"id": 1, "name": b"abcd"})
        record = np.ones(1, [("id", "<i4"), ("name", "S3")])[0]
        for wrong_meta in (record, np.array(record), 5):
            with pytest.raises(TypeError, match="meta must be a dict, got "):
                writer.write([], wrong_meta)
    assert [sample["id"] for sample in hr.open(tmp_path / "d")] == [1]
    for wrong in (object, [("a", "O")], "nonsense", []):
        with pytest.raises(TypeError, match="dtype must be a NumPy type of fixed size"):
            hr.StreamWriter(tmp_path / "x", wrong)
    with pytest.raises(ValueError, match="both have 'tokens'"):
        hr.DocumentWriter(tmp_path / "x", "uint16", meta=[("tokens", "<i4")])


def test_append_and_overwrite(tmp_path):
    folder = tmp_path / "s"
    with hr.StreamWriter(folder, "uint16", shard_bytes=20) as writer:
        writer.write(np.arange(25))
    with pytest.raises(ValueError, match=r'expected an empty folder.*\n.*mode="append"'):
        hr.StreamWriter(folder, "uint16")
    before = {path: path.read_bytes() for path in folder.glob("*.bin")}
    with hr.StreamWriter(folder, "uint16", shard_bytes=20, mode="append") as writer:
        writer.write(np.arange(25, 40))
    assert all(path.read_bytes() == data for path, data in before.items())
    assert with_numpy(folder)["tokens"].tolist() == list(range(40))
    with pytest.raises(ValueError, match=r"expected dtype .*<i4.*to add to it, found .*<u2"):
        hr.StreamWriter(folder, "int32", mode="append")
    (folder / "notes.txt").write_text("mine")
    with hr.StreamWriter(folder, "int32", mode="overwrite") as writer:
        writer.write([7])
    assert len(names(folder)) == 3
    assert {"index.json", "notes.txt"} < set(names(folder))
    assert with_numpy(folder)["tokens"].tolist() == [7]


def test_overwriting_leaves_the_old_store_until_it_is_closed(tmp_path):
    folder = tmp_path / "s"
    with hr.DocumentWriter(folder, "uint16", shard_bytes=20) as writer:
        for number in range(5):
            writer.write([number] * 9)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match="both have 'tokens'"):
        hr.DocumentWriter(folder, "int32", meta=[("tokens", "<i8")], mode="overwrite")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    writer = hr.DocumentWriter(folder, "int32", shard_bytes=20, mode="overwrite")
    for number in range(3):
        writer.write([number] * 9)
    assert [len(row["tokens"]) for row in hr.open(folder)] == [9] * 5
    writer.discard()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    for lost in ("shard-00000.bin", "shard-00001.ends"):
        (folder / lost).unlink()
    with hr.DocumentWriter(folder, "int32", shard_bytes=20, mode="overwrite") as writer:
        for number in range(3):
            writer.write([number] * 9)
    found = hr.open(folder)
    assert [row["tokens"].tolist() for row in found] == [[number] * 9 for number in range(3)]
    assert len(names(folder)) == 1 + 2 * len(json.loads((folder / "index.json").read_bytes())["shards"])


def _write_part(folder: str, part: int, count: int) -> None:
    with hr.StreamWriter(folder, [("tokens", "<i4")], part=part, shard_bytes=4 * 16) as writer:
        writer.write(np.arange(count) + 1000 * part)


def test_several_processes_write_and_one_call_completes(tmp_path):
    folder = tmp_path / "s"
    context = get_context("spawn")
    processes = [context.Process(target=_write_part, args=(str(folder), part, 32)) for part in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    with pytest.raises(DataError, match=r"expected index\.json, found part-00000\.json .*\n.*complete_dataset"):
        hr.open(folder)
    made = hr.complete_dataset(folder)
    assert (made.samples, made.chunks) == (64, 4)
    assert len(list(folder.glob("shard-*.bin"))) == 4
    data = hr.open(folder, sequence_length=4)
    assert len(data) == 16
    # Two ranks, four batches each, the same on every run, and on after two.
    runs = []
    for _ in range(2):
        given = []
        for rank in range(2):
            loader = hr.DataLoader(data, batch_size=2, shuffle=True, seed=42, num_workers=2, rank=rank, world_size=2)
            assert len(loader) == 4
            given.append([batch["tokens"].tolist() for batch in loader])
        runs.append(given)
    assert runs[0] == runs[1]
    assert [len(batches) for batches in runs[0]] == [4, 4]
    flat = sorted(token for batches in runs[0] for batch in batches for row in batch for token in row)
    assert flat == sorted([*range(32), *range(1000, 1032)])
    for rank in range(2):
        first = hr.DataLoader(data, batch_size=2, shuffle=True, seed=42, num_workers=2, rank=rank, world_size=2)
        batches = iter(first)
        state = [next(batches) for _ in range(2)][1].state
        again = hr.DataLoader(data, batch_size=2, num_workers=2, rank=rank, world_size=2)
        again.load_state_dict(state)
        assert [batch["tokens"].tolist() for batch in again] == runs[0][rank][2:]


def test_parts_are_added_to_a_store_that_is_complete(tmp_path):
    folder = tmp_path / "s"

    def add(part: int, document: list[int], mode=None) -> None:
        with hr.DocumentWriter(folder, "uint16", meta=[("id", "<i8")], part=part, mode=mode) as writer:
            writer.write(document, {"id": part})

    add(1, [3])
    add(0, [1, 2])
    assert hr.complete_dataset(folder).samples == 2
    with pytest.raises(ValueError, match=r"expected parts that are not complete yet, found index\.json"):
        add(0, [9], "overwrite")
    add(0, [4, 5, 6], "append")
    add(2, [], "append")
    before = (folder / "part-00000.json").read_text(), (folder / "part-00002.json").read_text()
    for _ in range(2):
        hr.complete_dataset(folder)
        assert [sample["tokens"].tolist() for sample in hr.open(folder, verify=True)] == [[1, 2], [3], [4, 5, 6], []]
        # As a call leaves them that was ended in between.
        for number, text in zip((0, 2), before, strict=True):
            (folder / f"part-0000{number}.json").write_text(text)


def test_parts_that_do_not_fit_together_are_refused_and_nothing_changed(tmp_path):
    folder = tmp_path / "s"
    _write_part(str(folder), 0, 20)
    with hr.StreamWriter(folder, [("tokens", "<i4")], part=1) as writer:
        with pytest.raises(StoreError, match="another writer is at it"):
            hr.complete_dataset(folder)
        writer.write([1])
    with hr.StreamWriter(folder, "uint16", part=2) as writer:
        writer.write([7])
    with pytest.raises(TypeError, match=r"part-00002\.json: expected dtype \[\['tokens', '<i4'\]\] as in part-00000"):
        hr.complete_dataset(folder)
    (folder / "part-00002.json").unlink()
    shard = folder / "shard-00000-00001.bin"
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"shard-00000-00001\.bin: expected 16 bytes as its index says, found 12"):
        hr.complete_dataset(folder)
    assert not (folder / "index.json").exists()
    assert (folder / "part-00000.json").exists()
    assert list(folder.glob(".lock-*")) == []


def test_a_second_writer_of_the_same_place_is_refused(tmp_path):
    with hr.StreamWriter(tmp_path / "s", "uint16") as writer:
        with pytest.raises(StoreError, match="another writer is at it"):
            hr.StreamWriter(tmp_path / "s", "uint16", mode="append")
        writer.write([1])
    with hr.StreamWriter(tmp_path / "s", "uint16", mode="append") as writer:
        writer.write([2])
    assert with_numpy(tmp_path / "s")["tokens"].tolist() == [1, 2]


KILLED = """
import sys, numpy as np, headrace as hr
writer = hr.DocumentWriter(sys.argv[1], "uint16", meta=[("id", "<i8")], shard_bytes=4000, mode="append")
number = 0
while True:
    writer.write(np.full(number % 50, number % 1000), {"id": number})
    number += 1
    if number == 20:
        print("going", flush=True)
"""


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.3])
def test_a_killed_writer_leaves_a_prefix_that_can_be_added_to(tmp_path, seconds):
    folder = tmp_path / "d"
    process = subprocess.Popen([sys.executable, "-c", KILLED, folder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"
    deadline = time.monotonic() + 60
    while not (folder / "index.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    data = hr.open(folder, verify=True)
    count = len(data)
    assert count > 0
    for number, sample in enumerate(data):
        assert sample["id"] == number
        assert np.array_equal(sample["tokens"], np.full(number % 50, number % 1000))
    with hr.DocumentWriter(folder, "uint16", meta=[("id", "<i8")], mode="append") as writer:
        writer.write([5], {"id": count})
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    again = hr.open(folder)
    assert len(again) == count + 1
    assert again[count]["id"] == count


def test_damage_is_named(tmp_path):
    folder = tmp_path / "d"
    with hr.DocumentWriter(folder, "uint16", meta=[("id", "<i8")], shard_bytes=100) as writer:
        for number in range(40):
            writer.write(np.full(number % 9, number), {"id": number})
    index = json.loads((folder / "index.json").read_text())
    last = folder / index["shards"][-1]["name"]
    data = bytearray(last.read_bytes())
    data[0] ^= 1
    last.write_bytes(data)
    assert len(hr.open(folder)) == 40
    with pytest.raises(DataError, match=rf"{last.name}: expected bytes with the digest"):
        hr.open(folder, verify=True)[39]
    last.write_bytes(data[:-2])
    with pytest.raises(DataError, match=rf"{last.name}: expected {len(data)} bytes as .*index.json says, found"):
        hr.open(folder)
    last.unlink()
    with pytest.raises(DataError, match=rf"{last.name}: expected this file as .*index.json says, found none"):
        hr.open(folder)
    last.write_bytes(data)
    text = (folder / "index.json").read_text()
    for old, new in (
        ('"version": 1', '"version": 2'),
        ('"kind": "documents"', '"kind": "other"'),
        ('"<u2"', '"O"'),
        (index["shards"][0]["name"], "../shard"),
        (f'"records": {index["shards"][0]["records"]}', '"records": -1'),
        (f'"documents": {index["shards"][0]["documents"]}', '"documents": "4"'),
    ):
        assert old in text
        (folder / "index.json").write_text(text.replace(old, new, 1))
        with pytest.raises(DataError, match=r"index\.json"):
            hr.open(folder, format="records")
    ends = folder / index["shards"][0]["ends"]
    (folder / "index.json").write_text(text)
    ends.write_bytes(np.frombuffer(ends.read_bytes(), "<i8")[::-1].tobytes())
    with pytest.raises(DataError, match=r"expected ends of documents that increase"):
        list(hr.open(folder))


def test_what_cannot_be_written_is_taken_back_and_nothing_else(tmp_path):
    folder = tmp_path / "d"
    with hr.DocumentWriter(folder, "uint16", meta=[("id", "<i8")]) as writer:
        writer.write([1, 1], {"id": 1})
        with largest_file(7), pytest.raises(StoreError, match=r"shard-00000\.bin.*: File too large\nhint: .*append"):
            writer.write([2, 2, 2], {"id": 2})
        assert writer.records == 2
        with largest_file(8), pytest.raises(StoreError, match=r"shard-00000\.ends.*: File too large"):
            writer.write([3], {"id": 3})
        writer.write([4, 4], {"id": 4})
    found = [(sample["id"], sample["tokens"].tolist()) for sample in hr.open(folder, verify=True)]
    assert found == [(1, [1, 1]), (4, [4, 4])]
    assert not [name for name in names(folder) if name.startswith(".")]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["os.fsync", "headrace.prepare.recording.write_index"])
@pytest.mark.parametrize("again", ["write", "close"])
def test_an_end_of_a_shard_that_fails_is_done_by_the_next_call(tmp_path, monkeypatch, error, where, again):
    folder = tmp_path / "d"
    writer = hr.DocumentWriter(folder, "uint16", meta=[("id", "<i8")], shard_bytes=8)
    writer.write([1, 1, 1], {"id": 1})

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(where, fail)
        with pytest.raises((StoreError, OSError, KeyboardInterrupt)):
            writer.write([2, 2, 2], {"id": 2})
    wanted = [1]
    if again == "write":
        writer.write([3, 3, 3], {"id": 3})
        wanted.append(3)
    writer.close()
    assert [sample["id"] for sample in hr.open(folder, verify=True)] == wanted
    assert not [name for name in names(folder) if name.startswith(".")]


def test_an_overwrite_that_does_not_end_leaves_the_store_as_it_was(tmp_path):
    folder = tmp_path / "s"
    with hr.StreamWriter(folder, "uint16", shard_bytes=8) as writer:
        writer.write([1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match="both have 'tokens'"):
        hr.DocumentWriter(folder, "int32", meta=[("tokens", "<i8")], mode="overwrite")
    writer = hr.StreamWriter(folder, "uint16", shard_bytes=4, mode="overwrite")
    writer.write([6, 7, 8])
    assert with_numpy(folder)["tokens"].tolist() == [1, 2, 3, 4, 5]
    writer.discard()
    assert with_numpy(folder)["tokens"].tolist() == [1, 2, 3, 4, 5]
    with hr.StreamWriter(folder, "uint16", mode="overwrite") as writer:
        writer.write([9])
    assert with_numpy(folder)["tokens"].tolist() == [9]
    assert len(names(folder)) == 2


def test_a_writer_is_for_one_thread_and_one_process(tmp_path):
    folder = tmp_path / "d"
    refused: list[Exception] = []
    with hr.DocumentWriter(folder, "uint16", shard_bytes=2000) as writer:

        def write() -> None:
            for number in range(300):
                try:
                    writer.write(np.full(number % 40, number))
                except RuntimeError as error:
                    refused.append(error)

        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        child = os.fork()
        if not child:
            try:
                writer.close()
                writer.write([1])
            except RuntimeError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        writer.write([5])
    found = [sample["tokens"].tolist() for sample in hr.open(folder, verify=True)]
    assert found[-1] == [5]
    assert len(found) == 901 - len(refused)
    assert all(len(set(tokens)) <= 1 for tokens in found)
    assert all("another thread is writing" in str(error) for error in refused)


def test_a_writer_of_all_and_one_of_a_part_do_not_meet(tmp_path):
    with hr.StreamWriter(tmp_path / "s", "uint16", part=0) as part:
        part.write([1])
        with pytest.raises(StoreError, match=r"another writer is at it \(part-00000"):
            hr.StreamWriter(tmp_path / "s", "uint16", mode="append")
    with hr.StreamWriter(tmp_path / "t", "uint16") as whole:
        whole.write([1])
        with pytest.raises(StoreError, match=r"another writer is at it \(index"):
            hr.StreamWriter(tmp_path / "t", "uint16", part=1)
    assert with_numpy(tmp_path / "t")["tokens"].tolist() == [1]


def test_a_writer_that_is_dropped_says_what_is_lost_and_gives_its_lock_up(tmp_path):
    def write_and_drop() -> None:
        hr.StreamWriter(tmp_path / "s", "uint16", shard_bytes=4).write([1, 2, 3])
        gc.collect()

    with pytest.warns(ResourceWarning, match="was not closed; 1 records of its last shard are lost"):
        write_and_drop()
    with hr.StreamWriter(tmp_path / "s", "uint16", mode="append") as again:
        again.write([4])
    assert with_numpy(tmp_path / "s")["tokens"].tolist() == [1, 2, 4]


@pytest.mark.parametrize(
    "dtype, values, error",
    [
        ("float32", [1e300], ValueError),
        ("float16", [1e6], ValueError),
        ("float32", [2**24 + 1], ValueError),
        ("float64", [2**53 + 1], ValueError),
        ("float32", [1 + 2j], TypeError),
        ("bool", [2, -1], TypeError),
        ("uint64", [-1], ValueError),
        ("int64", [2**63], ValueError),
        ([("a", "<f4", (3,))], [1, 2, 3], ValueError),
        ([("a", "<f4"), ("b", "<f4")], {"a": 1, "b": 2}, ValueError),
        ("uint16", np.ma.masked_array([1, 2], [False, True]), TypeError),
    ],
)
def test_values_that_would_change_are_refused(tmp_path, dtype, values, error):
    """B073."""
    with hr.StreamWriter(tmp_path / "s", dtype) as writer:
        with pytest.raises(error, match="records"):
            writer.write(values)
        assert writer.records == 0


LAYOUTS = {
    "with gaps": np.dtype([("tokens", "<u2"), ("weight", "<f8"), ("pair", "<i4", (2,))], align=True),
    "big-endian": np.dtype([("tokens", ">u2"), ("weight", ">f8"), ("pair", ">i4", (2,))]),
    "in another order": np.dtype([("pair", "<i4", (2,)), ("weight", "<f8"), ("tokens", "<u2")]),
    "smaller": np.dtype([("tokens", "u1"), ("weight", "<f4"), ("pair", "<i2", (2,))]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_records_that_are_laid_out_otherwise_are_the_same_values(tmp_path: Path, layout: str) -> None:
    dtype = LAYOUTS[layout]
    records = np.zeros(20, dtype)
    records["tokens"], records["weight"], records["pair"] = np.arange(20), 0.5, [[-1, 7]]
    stored = np.dtype([("tokens", "<u2"), ("weight", "<f8"), ("pair", "<i4", (2,))])
    own = dtype if layout in ("with gaps", "big-endian") else stored
    with hr.StreamWriter(tmp_path / "stream", own) as writer:
        writer.write(records)
        writer.write(records[::2])
    wanted = np.zeros(20, stored)
    for name in stored.names:
        wanted[name] = records[name]
    found = np.fromfile(tmp_path / "stream" / "shard-00000.bin", stored)
    assert np.array_equal(found, np.concatenate([wanted, wanted[::2]]))
    with hr.DocumentWriter(tmp_path / "documents", own) as writer:
        writer.write(records)
    document = hr.open(tmp_path / "documents")[0]
    assert all(np.array_equal(document[name], wanted[name]) for name in stored.names)


def test_records_of_other_values_are_refused_by_name(tmp_path: Path) -> None:
    stored = [("tokens", "<u2"), ("weight", "<f4")]
    with hr.StreamWriter(tmp_path / "stream", stored) as writer:
        large = np.array([(70_000, 0.5)], [("tokens", ">i4"), ("weight", "<f4")])
        with pytest.raises(ValueError, match=r"records, tokens: expected values that fit into uint16, .* 70000"):
            writer.write(large)
        with pytest.raises(TypeError, match="records, tokens: expected whole numbers for uint16, got float32"):
            writer.write(large.astype([("tokens", "<f4"), ("weight", "<f4")]))
        with pytest.raises(TypeError, match=r"records must be records of \[\('tokens'.*, got \[\('ids'"):
            writer.write(np.zeros(1, [("ids", "<u2"), ("weight", "<f4")]))
        with pytest.raises(ValueError, match=r"records must have one dimension, got shape \(2, 2\)"):
            writer.write(np.zeros((2, 2), np.dtype(stored, align=True)))
        assert writer.records == 0
    with pytest.raises(TypeError, match=r"single values or arrays of them, got records in the field 'of'.*\nhint"):
        hr.StreamWriter(tmp_path / "nested", [("tokens", "<u2"), ("of", [("a", "<i4"), ("b", "<i4")])])


def test_values_that_fit_are_kept(tmp_path):
    with hr.StreamWriter(tmp_path / "s", [("a", "<f4", (2,)), ("b", "<u8"), ("c", "?")]) as writer:
        writer.write({"a": [[0.1, np.inf], [np.nan, 2**24]], "b": [2**64 - 1, 1], "c": [True, False]})
    stored = with_numpy(tmp_path / "s")
    assert np.array_equal(stored["a"], np.array([[0.1, np.inf], [np.nan, 2**24]], np.float32), equal_nan=True)
    assert stored["b"].tolist() == [2**64 - 1, 1]
    assert stored["c"].tolist() == [True, False]


@pytest.mark.parametrize("value", [None, 3, "ä" * 9, "a\0"])
def test_text_in_meta_that_would_change_is_refused(tmp_path, value):
    with (
        hr.DocumentWriter(tmp_path / "d", "uint16", meta=[("name", "U8")]) as writer,
        pytest.raises((TypeError, ValueError), match="meta, name"),
    ):
        writer.write([1], {"name": value})


# Loading


@pytest.fixture(scope="module")
def stream(tmp_path_factory) -> hr.StreamDataset:
    folder = tmp_path_factory.mktemp("records") / "s"
    with hr.StreamWriter(folder, "uint16", shard_bytes=2 * 700) as writer:
        writer.write(np.arange(5000))
    return opened(folder).sequences(32, overlap=1, dtype="int64")


def rows_of(loader) -> list[list[int]]:
    return [row for batch in loader for row in batch["tokens"].tolist()]


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_every_sequence_comes_once_an_epoch_in_one_order(stream, world, worker_type):
    whole = rows_of(hr.DataLoader(stream, batch_size=6, seed=1, rank=0, world_size=1, num_workers=0))
    assert sorted(row[0] for row in whole) == sorted(sample["tokens"][0] for sample in stream)
    assert all(row == list(range(row[0], row[0] + 33)) for row in whole)
    ranks = []
    for rank in range(world):
        loader = hr.DataLoader(
            stream, global_batch_size=6, seed=1, rank=rank, world_size=world, num_workers=2, worker_type=worker_type
        )
        ranks.append([batch["tokens"].tolist() for batch in loader])
    steps = zip(*ranks, strict=True)
    assert [row for step in steps for batch in step for row in batch] == whole


def test_a_run_goes_on_at_any_step_at_once(stream):
    loader = hr.DataLoader(stream, batch_size=4, seed=1, rank=0, world_size=1)
    loader.seek(10**6)
    batch = next(iter(loader))
    again = hr.DataLoader(stream, batch_size=4, rank=0, world_size=1)
    again.load_state_dict(batch.state)
    assert again.step == 10**6 + 1
    wanted = next(iter(loader))
    assert np.array_equal(next(iter(again))["tokens"], wanted["tokens"])


def test_a_batch_may_be_written_and_kept(stream):
    loader = hr.DataLoader(stream, batch_size=8, seed=1, rank=0, world_size=1)
    kept = [batch["tokens"] for batch in loader]
    copies = [tokens.copy() for tokens in kept]
    for _ in loader:
        pass
    assert all(np.array_equal(one, other) for one, other in zip(kept, copies, strict=True))
    kept[0] += 1
    assert np.array_equal(kept[0], copies[0] + 1)


@pytest.mark.parametrize("init", [None, abs], ids=["gathered ahead", "by workers"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_are_read_together_are_those_that_are_read_alone(tmp_path, workers, init):
    numbers = np.arange(4000, dtype="<u4")
    numbers[1234] = 3_000_000_000
    numbers.tofile(tmp_path / "a.bin")
    data = hr.open(tmp_path / "a.bin", stored_dtype="uint32").sequences(10, dtype="int32")
    given: list[list[int]] = []
    kept: list[np.ndarray] = []
    loader = hr.DataLoader(data, batch_size=4, shuffle=False, num_workers=workers, worker_init_fn=init, epochs=1)
    batches = iter(loader)
    while len(given) < 30:
        batch = next(batches)
        given.append(batch["tokens"].ravel().tolist())
        kept.append(batch["tokens"])
    # What the core gathers has memory of its own, what workers read at once is a part of one array.
    arrays = len({id(tokens.base) for tokens in kept})
    assert arrays == 30 if init is None else 1 < arrays < 30
    with pytest.raises(DataError, match="found 3000000000 at byte 4936") as caught:
        next(batches)
    assert "batch 30 of this iterator" in caught.value.__notes__
    assert any("sample 123 " in note for note in caught.value.__notes__)
    assert loader.step == 31
    for batch in batches:
        given.append(batch["tokens"].ravel().tolist())
    assert [number for row in given for number in row] == [*range(1200), *range(1240, 4000)]


def test_records_of_a_store_are_those_of_a_disk(tmp_path):
    with hr.DocumentWriter(tmp_path / "d", "uint16", meta=[("id", "<i8")], shard_bytes=1000) as writer:
        for number in range(100):
            writer.write(np.arange(number % 40) + number, {"id": number})
    memory = fsspec.filesystem("memory")
    for path in (tmp_path / "d").iterdir():
        memory.pipe(f"/records/{path.name}", path.read_bytes())
    here, there = hr.open(tmp_path / "d"), hr.open("memory://records")
    assert isinstance(here, hr.DocumentDataset)
    assert isinstance(there, hr.DocumentDataset)
    numbers = np.random.default_rng(0).permutation(100).tolist()
    for one, other in zip(here[numbers], there[numbers], strict=True):
        np.testing.assert_equal(other, one)
    for dtype in (None, "int64"):
        cut = [data.sequences(8, within_documents=True, dtype=dtype) for data in (here, there)]
        batches = [list(hr.DataLoader(data, batch_size=7, epochs=1)) for data in cut]
        for one, other in zip(*batches, strict=True):
            np.testing.assert_equal(dict(other), dict(one))
            assert other["tokens"].dtype == one["tokens"].dtype


def test_documents_are_samples_of_their_own_lengths(tmp_path):
    with hr.DocumentWriter(tmp_path / "d", "uint16", meta=[("id", "<i8")]) as writer:
        for number in range(50):
            writer.write(np.full(number % 7, number), {"id": number})
    data = hr.open(tmp_path / "d")
    loader = hr.DataLoader(data, batch_size=5, rank=0, world_size=1, collate_fn=lambda samples: samples)
    found = {int(sample["id"]): sample["tokens"].tolist() for batch in loader for sample in batch}
    assert found == {number: [number] * (number % 7) for number in range(50)}
    ids = hr.DataLoader(data.select(["id"]), batch_size=50, shuffle=False, rank=0, world_size=1)
    assert next(iter(ids))["id"].tolist() == list(range(50))


@pytest.mark.parametrize("how", ["index", "slice", "map", "mix", "int64", "processes"])
def test_samples_of_more_shards_than_the_process_may_open_are_read(tmp_path: Path, how: str) -> None:
    for number in range(250):
        np.arange(10 * number, 10 * number + 10, dtype="<u2").tofile(tmp_path / f"{number:03}.bin")
    program = """
        import os, resource, sys
        import numpy as np
        import headrace as hr
        resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
        how = sys.argv[2]
        wide = how == "int64"
        data = hr.open(sys.argv[1], stored_dtype="uint16").sequences(5, dtype="int64" if wide else None)
        wanted = np.arange(2500).reshape(500, 5)
        order = np.random.default_rng(0).permutation(500)
        if how == "index":
            found = np.stack([data[int(at)]["tokens"] for at in order])
        elif how == "slice":
            found = np.stack([sample["tokens"] for sample in data[:]])
            order = np.arange(500)
        else:
            many = data.map(dict)
            means = {"worker_type": "process"} if how == "processes" else {}
            if how == "mix":
                many = hr.mix({"one": (many, 1)}, on_exhausted="stop")
            else:
                means["epochs"] = 1
            with hr.DataLoader(many, batch_size=250, shuffle=True, num_workers=2, seed=0, **means) as loader:
                found = np.concatenate([batch["tokens"] for batch in loader])
            order = found[:, 0] // 5
            assert np.array_equal(np.sort(order), np.arange(500)) and found.flags.writeable
        assert found.dtype == ("int64" if wide else "uint16") and np.array_equal(found, wanted[order])
        held = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        print(sum(path.endswith(".bin") for path in held))
    """
    kept = int(run_python(program, tmp_path, how))
    assert kept <= 25, kept
