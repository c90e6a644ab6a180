"""`headrace optimize`: a function by its name, over files or lines of a list."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import headrace
from headrace.cli import app
from prepare_functions import environment

SOURCE = """
import os
from pathlib import Path
FACTOR = 2
def length(path):
    return {"name": Path(path).name, "length": FACTOR * len(Path(path).read_bytes())}
class Lines:
    @staticmethod
    def upper(lines):
        return {"text": "".join(lines).upper()}
def rows(table):
    yield from table.to_pylist()
def dies(line):
    os._exit(3)
def holds(line):
    return {"line": line, "number": object() if line == "b" else 1}
def fails(line):
    if line == "b":
        raise KeyError("no b")
    return {"line": line}
"""


@pytest.fixture
def source(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of functions under a name that no other test imports."""
    path = tmp_path / f"functions_{abs(hash(request.node.name))}.py"
    path.write_text(SOURCE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return path


def run(*arguments: Any, code: int = 0, text: str | None = None) -> Result:
    done = CliRunner().invoke(
        app, ["optimize", *map(str, arguments), "--workers", "0"], env={"COLUMNS": "200"}, input=text
    )
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def ours(folder: Path) -> list[Any]:
    data = headrace.open(folder)
    return [data[number] for number in range(len(data))]


def test_files_of_globs_and_folders(source: Path, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for name in ("a.txt", "b.txt", "c.bin"):
        (tmp_path / "raw" / name).write_text(name * 10)
    out = tmp_path / "out"
    report = json.loads(
        run(f"{source}:length", tmp_path / "raw/*.txt", tmp_path / "raw/c.bin", out, "--ordered", "--json").stdout
    )
    assert report.pop("seconds") >= 0
    assert report.pop("bytes") > 0
    assert report == {
        "function": f"{source}:length", "inputs": 3, "to": "litdata", "folder": str(out), "samples": 3, "chunks": 1,
        "input_bytes": 150, "skipped": 0,
    }  # fmt: skip
    assert ours(out) == [{"name": name, "length": 100} for name in ("a.txt", "b.txt", "c.bin")]


def test_lines_of_a_list_in_batches(source: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("a\nb\n\nc\n")
    options = ["--ordered", "--batch-size", "2", "--format", "parquet"]
    shown = run(
        f"{source}:Lines.upper", tmp_path / "out", "--list", tmp_path / "list", "--list", "-", *options, text="d"
    )
    assert [sample["text"] for sample in ours(tmp_path / "out")] == ["AB", "CD"]
    assert "samples   2" in shown.stdout


def test_parquet_files_by_rows(source: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(25), "other": ["x"] * 25}), tmp_path / "a.parquet")
    options = ["--rows", "10", "--column", "id", "--ordered", "--first", "2"]
    run(f"{source}:rows", tmp_path / "a.parquet", tmp_path / "out", *options)
    assert [sample["id"] for sample in ours(tmp_path / "out")] == list(range(16))


def test_what_the_function_raises_is_shown_with_its_place(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list").write_text("a\nb\nc\n")
    done = run(f"{source}:fails", tmp_path / "out", "--list", tmp_path / "list", code=1)
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("KeyError: 'no b'\nin input 1: 'b'\n")
    assert re.findall(r'File ".*/(.*?)", line \d+, in (\w+)', done.stderr) == [(source.name, "fails")]
    shown = run(f"{source}:fails", tmp_path / "out", "--list", tmp_path / "list", "--skip", "--no-resume", code=1)
    assert "1, listed in _headrace/skipped.jsonl" in shown.stdout
    assert [sample["line"] for sample in ours(tmp_path / "out")] == ["a", "c"]


def test_worker_processes_find_the_function(source: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("text")
    command = [sys.executable, "-m", "headrace", "optimize", f"{source.name}:length", "in.txt", "out", "--workers", "1"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ours(tmp_path / "out") == [{"name": "in.txt", "length": 8}]
    options = ["--workers", "1", "--list", "-"]
    command = [sys.executable, "-m", "headrace", "optimize", f"{source.name}:fails", "failed", *options]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), input="a\nb\n", capture_output=True, text=True)
    assert done.returncode == 1
    assert re.findall(r'File ".*/(.*?)", line \d+, in (\w+)', done.stderr) == [(source.name, "fails")]
    assert done.stderr.startswith("KeyError: 'no b'\nin input 1: 'b'\nin worker process 0 (pid ")
    command[4:6] = f"{source.name}:holds", "held"
    done = subprocess.run(command, cwd=tmp_path, env=environment(), input="a\nb\n", capture_output=True, text=True)
    assert done.returncode == 1
    assert re.findall(r'File ".*/(.*?)", line \d+, in (\w+)', done.stderr) == [(source.name, "holds")]
    assert done.stderr.startswith(
        "TypeError: key 'number': expected int as in the first sample, found object\nin input 1"
    )
    command[4:6] = f"{source.name}:dies", "died"
    done = subprocess.run(command, cwd=tmp_path, env=environment(), input="a\n", capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("headrace optimize: input 0 was begun 2 times, and its process ended each time")
    command = [sys.executable, "-m", "headrace", "optimize", f"{source.stem}:length", "in.txt", "out", "--workers", "1"]
    done = subprocess.run(
        [*command, "--mode", "append"], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(ours(tmp_path / "out")) == 2


def test_functions_that_are_not_there(source: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("def load(path): pass\n")
    for name, message in (
        ("length", "expected a function as module:function or file.py:function, got 'length'"),
        (f"{tmp_path}/none.py:f", "expected a file of Python that can be imported"),
        ("no_such_module_at_all:f", "the module cannot be imported: No module named 'no_such_module_at_all'"),
        (f"{source}:other", "expected a function 'other', found none"),
        (f"{source}:FACTOR", "expected 'FACTOR' to be a function, found a int"),
        (f"{tmp_path}/json.py:load", "expected a module of a name of its own, found"),
    ):
        assert message in run(name, tmp_path, tmp_path / "out", code=2).output
    message = "expected inputs: files, folders or globs, or --list FILE"
    assert message in run(f"{source}:length", tmp_path / "out", code=2).output
    assert (
        "--list nothing: expected a file of text"
        in run(f"{source}:length", tmp_path / "out", "--list", "nothing", code=2).output
    )
    assert "engine must be one of 'local', 'ray', got 'spark'" in (
        run(f"{source}:length", tmp_path, tmp_path / "out", "--engine", "spark", code=2).output
    )
    assert "--column is for --rows" in run(f"{source}:rows", tmp_path, tmp_path / "out", "--column", "a", code=2).output
    assert not os.path.lexists(tmp_path / "out")
