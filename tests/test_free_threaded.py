"""A CPython without a GIL: the module needs none, threads run at the same time, and nothing of theirs is lost.

Runs in the environment that `make free-threaded` makes, and only there is it tested.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from tools import free_threaded_program as program

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venv-free-threaded" / "bin" / "python"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples and tokens in eight files each."""
    folder = tmp_path_factory.mktemp("free-threaded")
    for name in ("lines", "tokens"):
        (folder / name).mkdir()
    for number in range(8):
        lines = [json.dumps({"id": number * 500 + line, "text": "x" * 400}) for line in range(500)]
        (folder / "lines" / f"{number}.jsonl").write_text("\n".join(lines))
        documents = [list(range(number * 100 + length, number * 100 + 2 * length)) for length in range(300)]
        pq.write_table(pa.table({"tokens": documents}), folder / "tokens" / f"{number}.parquet", row_group_size=50)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """What the program found in the other interpreter."""
    if not (PYTHON.parent.parent / ".built").exists():
        pytest.skip(f"no free-threaded CPython in {PYTHON.parent}: `make free-threaded` builds one, in minutes")
    # Only what this checkout has, and the GIL not asked for.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHON_GIL")}
    done = subprocess.run(
        [PYTHON, program.__file__, str(folder)], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    one, two = found["seconds"]["1"], found["seconds"]["2"]
    print(f"{found['python']}\nitems of pure Python: {one} s by one worker, {two} s by two: {one / two:.2f} times")
    return found


def test_the_gil_stays_off(found: dict[str, Any]) -> None:
    assert found["gil"] is False


def test_items_of_pure_python_are_made_at_the_same_time(found: dict[str, Any]) -> None:
    assert found["meeting"] == [0, 1]


def test_loaders_that_share_samples_give_what_they_give_here(found: dict[str, Any], folder: Path) -> None:
    loader = hr.DataLoader(hr.open(folder / "lines"), batch_size=16, seed=7, num_workers=0)
    expected = "".join(program.digest(iter(loader), "id") for _ in range(3))
    assert found["samples"] == [expected] * program.THREADS


def test_loaders_that_share_tokens_give_what_they_give_here(found: dict[str, Any], folder: Path) -> None:
    dataset = hr.open(folder / "tokens").pack(seq_len=64)
    expected = program.digest(iter(hr.DataLoader(dataset, batch_size=8, seed=7, epochs=1)), "tokens")
    assert found["tokens"] == [expected] * program.THREADS


def test_samples_asked_for_by_several_threads_are_all_counted(found: dict[str, Any]) -> None:
    *sums, asked = found["single_samples"]
    assert sums == [4000 * 3999 // 2] * program.THREADS
    assert asked == 4000 * program.THREADS


def test_errors_come_in_the_place_of_their_batches(found: dict[str, Any]) -> None:
    expected = np.arange(1000)
    expected[3::10] *= -1
    assert found["faults"] == [expected.tolist()] * program.THREADS


def test_an_iterator_that_several_threads_share_loses_nothing(found: dict[str, Any]) -> None:
    assert found["shared_iterator"] == {"complete": True, "step": 1000, "position": 4000}


def test_an_order_that_several_threads_share_gives_each_its_epoch(found: dict[str, Any]) -> None:
    assert found["orders"] == [True] * program.THREADS


def test_iterators_dropped_in_other_threads_leave_none(found: dict[str, Any]) -> None:
    assert found["dropped"] == []


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this interpreter has no GIL")
def test_with_a_gil_the_items_are_not_made_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test of it can fail."""
    monkeypatch.setattr(program, "WAIT_SECONDS", 1)
    with pytest.raises(TimeoutError, match="the other item"):
        program.meeting()
