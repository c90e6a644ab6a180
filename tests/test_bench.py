"""The benchmark, run as a user runs it, on little data; and what its numbers rest on."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.bench import processes
from headrace.bench.data import Variant, flat_tokens, prepare
from headrace.bench.report import loaders_table

BATCH = 32 * 2048  # tokens
FIELDS = {
    "convert_seconds",
    "convert_cpu_seconds",
    "convert_bytes",
    "tokens_per_second",
    "spread",
    "cores",
    "cpu_ns_per_token",
    "memory_bytes",
    "memory_before_bytes",
    "first_batch_seconds",
    "resume_seconds",
    "resume_exact",
    "resume_batches_compared",
    "tokens_lost",
    "tokens_repeated",
    "batches_per_epoch",
    "rounds",
    "versions",
}


def bench(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.bench", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Table and JSON of a run with two loaders that are here and one that is not."""
    folder = tmp_path_factory.mktemp("bench")
    sizes = ["--tokens", "0.5", "--rounds", "1"]
    done = bench(
        "tokens", folder, "--loaders", "headrace,headrace-mix,memmap,mosaic", *sizes, "--json", folder / "out.json"
    )
    return done.stdout, json.loads((folder / "out.json").read_text())


def test_the_json_has_all_that_is_measured(run: tuple[str, dict[str, Any]]) -> None:
    found = run[1]
    assert found["data"]["tokens"] > 400_000
    assert found["job"] == {"seq_len": 2048, "batch": 32, "seed": 0}
    for name in ("headrace", "headrace-mix", "memmap"):
        loader = found["loaders"][name]
        assert loader.keys() == FIELDS
        assert loader["tokens_per_second"] > 0
        assert loader["cpu_ns_per_token"] > 0
        assert 0 < loader["first_batch_seconds"] < 10
        assert loader["memory_bytes"] >= loader["memory_before_bytes"] > 0
        assert loader["versions"]
    assert [limit["name"] for limit in found["limits"]] == [
        "copy once in memory",
        "write into a reused batch",
        "write into memory that is new to the process",
        "find the documents' lengths",
        "decompress the pages",
        "decode the pages, decompression included",
        "the same, on each of two cores at once",
    ]
    assert all(limit["tokens_per_second"] > 0 for limit in found["limits"])


@pytest.mark.parametrize("name", ["headrace", "memmap"])
def test_only_the_last_incomplete_batch_is_lost_and_resume_is_exact(run: tuple[str, dict[str, Any]], name: str) -> None:
    found = run[1]["loaders"][name]
    batches, lost = divmod(run[1]["data"]["tokens"], BATCH)
    assert (found["batches_per_epoch"], found["tokens_lost"], found["tokens_repeated"]) == (batches, lost, 0)
    assert found["resume_exact"]
    assert found["resume_batches_compared"] == batches - batches // 2


def test_a_mixture_repeats_nothing_and_resumes_exactly(run: tuple[str, dict[str, Any]]) -> None:
    found = run[1]["loaders"]["headrace-mix"]
    assert found["tokens_repeated"] == 0
    assert found["resume_exact"]
    assert found["resume_batches_compared"] > 0


def test_the_table_is_markdown_with_a_row_for_each_loader(run: tuple[str, dict[str, Any]]) -> None:
    tables = [part.splitlines() for part in run[0].split("\n\n") if part.startswith("|")]
    assert len(tables) == 2
    for table in tables:
        assert len({line.count("|") for line in table}) == 1
    names = [line.split("|")[1].strip() for line in tables[0]]
    assert names[0] == "loader"
    assert names[2:] == ["headrace", "headrace-mix", "memmap", "mosaic"]
    assert "CPU ns/token" in tables[0][0]


def test_a_missing_peer_is_named_and_skipped_in_sight(run: tuple[str, dict[str, Any]]) -> None:
    wanted = "skipped: mosaicml-streaming not installed"
    assert wanted in run[0]
    assert run[1]["loaders"]["mosaic"]["skipped"] == wanted


def test_a_failure_has_a_row_that_says_why() -> None:
    lines = loaders_table({"grain": {"failed": "wanted a | b, got " + "c" * 500}}, documents=1).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "failed: wanted a / b, got ccc" in lines[2]


def test_a_wrong_argument_is_refused(tmp_path: Path) -> None:
    assert "no such loader: 'fastest'" in bench("tokens", tmp_path, "--loaders", "fastest", code=2).stderr
    assert "usage" in bench(code=1).stderr


def test_the_data_is_the_same_on_every_machine(tmp_path: Path) -> None:
    data = prepare(tmp_path, Variant(tokens=0.2, codec="snappy", vocabulary=50_304))
    digest = hashlib.blake2b(digest_size=8)
    files = [str(path) for path in sorted(data.parquet.glob("*.parquet"))]
    for tokens in flat_tokens(files):
        digest.update(tokens.astype("<i4").tobytes())
    assert (data.documents, data.tokens, digest.hexdigest()) == (200, 205_939, "51f64edb0b12d1d4")


def test_the_larger_vocabulary_outgrows_its_dictionary(tmp_path: Path) -> None:
    bytes_per_token: dict[int, float] = {}
    for vocabulary in (50_304, 128_256):
        data = prepare(tmp_path, Variant(tokens=1, codec="none", vocabulary=vocabulary))
        file = next(data.parquet.glob("*.parquet"))
        group = pq.ParquetFile(file).metadata.row_group(0)
        column = group.column(group.num_columns - 1)
        assert column.path_in_schema.startswith("input_ids")
        bytes_per_token[vocabulary] = column.total_uncompressed_size / column.num_values
    # 16 bits a token and the dictionary; 17 bits for some tokens, 32 for the others.
    assert 2.0 < bytes_per_token[50_304] < 2.5
    assert 2.8 < bytes_per_token[128_256] < 3.9


def test_children_count_in_cpu_time_and_memory() -> None:
    code = """
import time
held = b"x" * (64 << 20)
while time.process_time() < 0.3:
    pass
print("x", flush=True)
input()
"""
    before = processes.cpu_seconds(), processes.memory_bytes(os.getpid())
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.read(1)
        assert child.pid in processes.family(os.getpid())
        assert processes.cpu_seconds() - before[0] >= 0.28
        assert processes.memory_bytes(os.getpid()) - before[1] > 60 << 20
        child.communicate(b"\n")
    assert processes.cpu_seconds() - before[0] >= 0.3
