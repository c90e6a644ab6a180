"""The benchmark of fetching, run as a user runs it, on little data."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import s3_server

pytest.importorskip("obstore")

FIELDS = {"bytes_per_second", "spread", "cores", "cpu_ns_per_byte", "rounds", "versions"}
SERVER = [sys.executable, s3_server.__file__, "--serve"]
BENCH = [sys.executable, "-m", "headrace.bench", "fetch"]


def test_it_reads_all_ranges_in_each_way(tmp_path: Path) -> None:
    arguments = ["s3://data/fetch", "--quick", "--chunks", "1 MB,32 MB", "--json", str(tmp_path / "out.json")]
    done = subprocess.run([*SERVER, *BENCH, *arguments], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["chunks"].keys() == {"1 MB", "32 MB"}
    for readers in found["chunks"].values():
        assert readers.keys() == {"headrace", "obstore-threads", "obstore-async"}
        assert readers["headrace"].keys() == FIELDS
        # The same bytes, whoever reads them.
        assert len({reader["rounds"][0]["bytes"] for reader in readers.values()}) == 1
        assert readers["headrace"]["rounds"][0]["bytes"] > 15_000_000
        for other in ("obstore-threads", "obstore-async"):
            assert readers[other].keys() == FIELDS | {"times_as_fast", "aim", "met"}
            assert readers[other]["met"] == (readers[other]["times_as_fast"] >= 0.8)
    assert done.stdout.count("headrace") >= 3
    assert done.stdout.count("obstore-async") == 2


@pytest.mark.parametrize(
    "arguments, told", [(["--chunks", "2 MB"], "no such chunks: '2 MB'"), (["--rounds", "0"], "at least one round")]
)
def test_wrong_arguments_are_refused(arguments: list[str], told: str) -> None:
    done = subprocess.run([*BENCH, "s3://data/x", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert told in done.stderr
