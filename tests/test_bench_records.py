"""The benchmark of token files: it runs, and what it says of aims is what it measured."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.bench.records import command, worker
from headrace.bench.records.job import BATCH, CASES, SEQ_LEN
from headrace.bench.records.readers import READERS

TOKENS = 3 * BATCH * SEQ_LEN + 5


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tokens.bin"
    worker.write(path, TOKENS)
    assert path.stat().st_size == 2 * TOKENS
    return path


@pytest.mark.parametrize("name", [name for name in READERS if name not in ("memmap", "grain")])
def test_a_pass_has_every_sequence_once(file: Path, name: str) -> None:
    rows = np.fromfile(file, "<u2")[: TOKENS // SEQ_LEN * SEQ_LEN].reshape(-1, SEQ_LEN)
    go = READERS[name](file)
    for _ in range(2):
        found = np.concatenate([np.asarray(batch[0]).copy() for batch in go()])
        assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, rows.tolist()))


def test_inputs_and_targets_are_a_token_apart(file: Path) -> None:
    for name in ("headrace_int64", "memmap"):
        for x, y in READERS[name](file)():
            assert x.dtype == y.dtype == np.int64
            assert x.shape == y.shape == (BATCH, SEQ_LEN)
            assert np.array_equal(x[:, 1:], y[:, :-1])


def test_a_run_measures_and_says_what_is_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how = [str(tmp_path), "--cases", "stored", "--rounds", "1", "--tokens", "0.3", "--json", str(tmp_path / "out")]
    assert command.main(how) == 0
    shown = capsys.readouterr().out
    assert "300,000 tokens of 16 bits" in shown
    assert "gives the batch of step 1,000,000" in shown
    found = json.loads((tmp_path / "out").read_text())
    assert found["cases"]["stored"]["memcpy"]["rounds"][0]["tokens"] == 4 * BATCH * SEQ_LEN


def test_aims_are_compared_with_what_was_measured() -> None:
    def result(seconds: float) -> dict[str, Any]:
        return command.summarise([{"tokens": 1000, "seconds": seconds, "cpu_seconds": 1.0}])

    case = CASES["int64"]
    results = {"int64": {"headrace": result(1), "memmap": result(1.6), "grain": result(3.9)}}
    lines = command.table([case], results).splitlines()
    assert "1.5: met" in lines[3]
    assert "4: missed" in lines[4]
    results["int64"]["grain"] = {"skipped": "skipped: grain not installed"}
    assert "grain not installed" in command.table([case], results)
