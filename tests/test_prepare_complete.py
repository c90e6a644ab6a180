"""`complete_dataset`: the parts that workers left become one dataset, and nothing is lost on the way."""

import json
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import litdata
import pytest
from litdata.streaming.writer import BinaryWriter

import headrace
import prepare_functions as functions
from plain_values import plain as shown
from prepare_functions import files, ours, plain

QUIET: dict[str, Any] = {"num_workers": 0, "progress": False, "verbose": False}
ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".venv-peers/bin/python"


def written(folder: Path, ranks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What litdata's workers leave, each with an index of its own."""
    for rank in ranks:
        monkeypatch.setenv("DATA_OPTIMIZER_GLOBAL_RANK", str(rank))
        writer = BinaryWriter(str(folder), chunk_size=4)
        for number in range(10):
            writer[number] = {"number": rank * 10 + number, "text": f"worker {rank}"}
        writer.done()
    # The reader asks it as well.
    monkeypatch.delenv("DATA_OPTIMIZER_GLOBAL_RANK")


def test_indexes_of_litdatas_workers_in_the_order_of_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, [0, 2, 10], monkeypatch)
    assert {path.name for path in tmp_path.glob("*.json")} == {"0.index.json", "2.index.json", "10.index.json"}
    made = headrace.complete_dataset(tmp_path)
    assert (made.samples, made.chunks) == (30, 9)
    assert [path.name for path in tmp_path.glob("*.json")] == ["index.json"]
    assert not (tmp_path / ".headrace").exists()
    assert [sample["number"] for sample in ours(tmp_path)] == [*range(10), *range(20, 30), *range(100, 110)]
    theirs = litdata.StreamingDataset(str(tmp_path), shuffle=False)
    assert [theirs[number]["number"] for number in range(len(theirs))] == [s["number"] for s in ours(tmp_path)]


def test_parts_are_checked_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, [0, 1], monkeypatch)
    chunk = tmp_path / "chunk-1-1.bin"
    content = chunk.read_bytes()
    before = files(tmp_path)
    chunk.write_bytes(content[:-1])
    with pytest.raises(headrace.DataError, match=r"chunk-1-1\.bin: expected \d+ bytes as its index says, found"):
        headrace.complete_dataset(tmp_path)
    chunk.unlink()
    with pytest.raises(headrace.DataError, match=r"chunk-1-1\.bin: an index names it, and it is not there"):
        headrace.complete_dataset(tmp_path)
    chunk.write_bytes(content)
    index = tmp_path / "1.index.json"
    other = json.loads(index.read_bytes())
    other["config"]["data_format"] = ["int", "bytes"]
    index.write_text(json.dumps(other))
    with pytest.raises(TypeError, match=r"1\.index\.json: expected data_format to be .* as in 0\.index\.json, found"):
        headrace.complete_dataset(tmp_path)
    index.write_text("{")
    with pytest.raises(headrace.DataError, match=r"1\.index\.json: expected JSON"):
        headrace.complete_dataset(tmp_path)
    index.write_bytes(before["1.index.json"])
    assert files(tmp_path) == before
    (tmp_path / "index.json").write_text('{"chunks": [], "config": {}}')
    with pytest.raises(ValueError, match=r"index\.json: expected no index yet, found one of other files"):
        headrace.complete_dataset(tmp_path)
    (tmp_path / "index.json").unlink()
    assert headrace.complete_dataset(tmp_path).samples == 20


def test_completing_goes_on_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, [0, 1], monkeypatch)

    def ends(path: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", ends)
        with pytest.raises(KeyboardInterrupt):
            headrace.complete_dataset(tmp_path)
    assert (tmp_path / "index.json").exists()
    assert (tmp_path / "0.index.json").exists()
    assert headrace.complete_dataset(tmp_path).samples == 20
    assert not (tmp_path / "0.index.json").exists()


@pytest.mark.parametrize("removed", [1, 2, 3])
@pytest.mark.parametrize("last", ["samples", "nothing"])
def test_completing_goes_on_after_a_kill_among_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: int, last: str
) -> None:
    written(tmp_path, [0, 1, 2], monkeypatch)
    count = 30
    if last == "nothing":
        # A worker that had nothing to do.
        (tmp_path / "3.index.json").write_text('{"chunks": [], "config": null, "updated_at": "0"}')
    unlink, left = Path.unlink, iter(range(removed))

    def ends(path: Path, missing_ok: bool = False) -> None:
        if "index.json" in path.name and next(left, None) is None:
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", ends)
        try:
            headrace.complete_dataset(tmp_path)
        except KeyboardInterrupt:
            pass
        else:
            assert (removed, last) == (3, "samples")
            return
    whole = json.loads((tmp_path / "index.json").read_bytes())
    assert not (tmp_path / f"{removed - 1}.index.json").exists()
    assert headrace.complete_dataset(tmp_path).samples == count
    assert not list(tmp_path.glob("*.index.json"))
    again = json.loads((tmp_path / "index.json").read_bytes())
    assert (again["chunks"], again["config"]) == (whole["chunks"], whole["config"])
    assert len(headrace.open(tmp_path)) == count


def mds_parts(folder: Path) -> None:
    """Two parts whose folders have the same last name."""
    for place, first in (("a/00", 0), ("b/00", 30), ("c", 60)):
        numbers = range(first, first + 20)
        headrace.optimize(functions.sample, numbers, folder / place, format="mds", chunk_size=7, **QUIET)


def test_folders_of_mds_keep_apart_what_has_the_same_name(tmp_path: Path) -> None:
    mds_parts(tmp_path / "data")
    made = headrace.complete_dataset(tmp_path / "data")
    assert (made.samples, made.chunks) == (60, 9)
    wanted = [plain(functions.sample(first + number)) for first in (0, 30, 60) for number in range(20)]
    assert ours(tmp_path / "data") == wanted
    assert headrace.complete_dataset(tmp_path / "data").samples == 60


def test_streaming_reads_what_was_completed(tmp_path: Path) -> None:
    if not PEERS.exists():
        pytest.skip("MosaicML Streaming is not installed: make .venv-peers/.installed")
    mds_parts(tmp_path / "data")
    headrace.complete_dataset(tmp_path / "data")
    command = [PEERS, ROOT / "tests/tools/read_mds.py", tmp_path / "values", tmp_path / "data"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    found = pickle.loads((tmp_path / "values").read_bytes())["data"]
    data = headrace.open(tmp_path / "data")
    assert found == [shown(data[number]) for number in range(60)]


def test_what_cannot_be_completed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a folder with the parts of a dataset, found none"):
        headrace.complete_dataset(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"expected indexes of workers .* found none"):
        headrace.complete_dataset(tmp_path)
    assert list(tmp_path.iterdir()) == []
    headrace.optimize(functions.sample, range(5), tmp_path / "a", format="mds", **QUIET)
    headrace.optimize(functions.image, range(5), tmp_path / "b", format="mds", **QUIET)
    with pytest.raises(TypeError, match="expected shards of mds with"):
        headrace.complete_dataset(tmp_path)
    with pytest.raises(ValueError, match="no 3"):
        headrace.optimize(functions.fails, range(5), tmp_path / "run", **QUIET)
    with pytest.raises(ValueError, match="expected parts that are finished, found an unfinished run"):
        headrace.complete_dataset(tmp_path / "run")
