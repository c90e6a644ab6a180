"""`headrace convert`: any format that opens to any that writes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import headrace
import prepare_functions as functions
from headrace.cli import app
from tar_files import archive

WRITTEN = ("litdata", "mds", "parquet", "arrow")


def ours(folder: Path) -> list[Any]:
    data = headrace.open(folder)
    return [data[number] for number in range(len(data))]


def convert(*arguments: Any) -> Any:
    done = CliRunner().invoke(app, ["convert", *map(str, arguments), "--workers", "0", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("source", WRITTEN)
def test_any_format_that_is_written_becomes_any_other(tmp_path: Path, source: str) -> None:
    headrace.optimize(
        functions.sample, range(9), tmp_path / "data", format=source, chunk_size=4, num_workers=0, verbose=False
    )  # fmt: skip
    wanted = ours(tmp_path / "data")
    assert len(wanted) == 9
    for target in WRITTEN:
        report = convert(tmp_path / "data", tmp_path / target, "--format", target, "--chunk-size", 2)
        assert (report["from"], report["to"], report["samples"], report["chunks"]) == (source, target, 9, 5)
        found = ours(tmp_path / target)
        for one, two in zip(found, wanted, strict=True):
            assert one.keys() == two.keys()
            np.testing.assert_equal(one, two)


def test_other_formats_become_tables(tmp_path: Path) -> None:
    lines = [{"id": number, "tags": ["a"] * (number % 3), "meta": {"x": None, "y": 0.5}} for number in range(6)]
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert convert(tmp_path / "lines", tmp_path / "arrow", "--format", "arrow")["from"] == "jsonl"
    assert ours(tmp_path / "arrow") == lines
    (tmp_path / "tar").mkdir()
    archive(tmp_path / "tar" / "a.tar", {"1.jpg": bytes(500), "1.txt": b"a cat", "2.jpg": b"", "2.txt": b"a dog"})
    report = convert(tmp_path / "tar", tmp_path / "mds", "--format", "mds", "--compression", "zstd")
    assert report["from"] == "webdataset"
    assert ours(tmp_path / "mds") == ours(tmp_path / "tar")


def test_encoded_images_stay_as_they_are(tmp_path: Path) -> None:
    headrace.optimize(functions.image, range(3), tmp_path / "data", num_workers=0, verbose=False)
    convert(tmp_path / "data", tmp_path / "parquet", "--format", "parquet")
    assert [one["image"] for one in ours(tmp_path / "parquet")] == [
        functions.image(number)["image"].encoded() for number in range(3)
    ]


def test_a_process_converts_with_processes(tmp_path: Path) -> None:
    headrace.optimize(functions.sample, range(30), tmp_path / "data", num_workers=0, verbose=False)
    command = [sys.executable, "-m", "headrace", "convert", tmp_path / "data", tmp_path / "out"]
    done = subprocess.run([*command, "--format", "mds", "--workers", "2"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "samples   30" in done.stdout
    np.testing.assert_equal(ours(tmp_path / "out"), ours(tmp_path / "data"))


def test_what_cannot_be_converted_is_one_message(tmp_path: Path) -> None:
    headrace.optimize(functions.sample, range(3), tmp_path / "data", num_workers=0, verbose=False)
    for arguments, message in (
        ([tmp_path / "data", tmp_path / "out", "--format", "csv"], "format must be one of 'litdata'"),
        ([tmp_path / "data", tmp_path / "data", "--format", "mds"], "expected an empty folder"),
        ([tmp_path / "none", tmp_path / "out", "--format", "mds"], "No such file"),
    ):
        done = CliRunner().invoke(app, ["convert", *map(str, arguments)])
        assert done.exit_code == 2
        assert message in done.stderr
        assert "Traceback" not in done.output


def test_an_unfinished_run_is_forgotten_if_that_is_said(tmp_path: Path) -> None:
    headrace.optimize(functions.sample, range(9), tmp_path / "data", num_workers=0, verbose=False)
    with pytest.raises(ValueError, match="no 3"):
        headrace.optimize(functions.fails, range(9), tmp_path / "out", num_workers=0, verbose=False)
    arguments = ["convert", str(tmp_path / "data"), str(tmp_path / "out"), "--format", "mds"]
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, "has an unfinished run with other arguments" in done.stderr) == (2, True)
    assert convert(*arguments[1:], "--no-resume")["samples"] == 9
