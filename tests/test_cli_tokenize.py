"""`headrace tokenize`: from text in files to tokens in others."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

import headrace
from headrace.cli import app
from tokenizer_files import byte_level, saved

TEXTS = ["one two", "", "three"]


def run(*arguments: Any, code: int = 0) -> Result:
    done = CliRunner().invoke(app, ["tokenize", *map(str, arguments), "--workers", "0"], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def rows(folder: Path) -> list[Any]:
    data = headrace.open(folder)
    return [{**data[number], "tokens": data[number]["tokens"].tolist()} for number in range(len(data))]


def test_text_becomes_tokens(tmp_path: Path) -> None:
    source, tokenizer = tmp_path / "a.jsonl", saved(tmp_path)
    source.write_text("".join(json.dumps({"body": text, "url": text[:1]}) + "\n" for text in TEXTS))
    options = ["--tokenizer", tokenizer, "--column", "body"]
    report = json.loads(run(source, tmp_path / "out", *options, "--json").stdout)
    assert report.pop("seconds") >= 0
    assert report.pop("bytes") == (tmp_path / "out/part-00000.parquet").stat().st_size
    assert report == {
        "url": str(tmp_path), "from": "jsonl", "to": "parquet", "folder": str(tmp_path / "out"), "documents": 3,
        "chunks": 1, "skipped": 0,
    }  # fmt: skip
    expected = [[*byte_level().encode(text).ids, 0] if text else [] for text in TEXTS]
    assert rows(tmp_path / "out") == [
        {"file": "a.jsonl", "row": row, "tokens": ids} for row, ids in enumerate(expected)
    ]
    text = run(source, tmp_path / "more", *options, "--keep", "url", "--bos", "7", "--eos", "no").stdout
    assert [line.split()[0] for line in text.splitlines()] == [
        "from", "to", "documents", "chunks", "bytes", "skipped", "seconds",
    ]  # fmt: skip
    assert rows(tmp_path / "more")[2] == {"url": "t", "tokens": [7, *expected[2][:-1]]}


def test_each_line_of_text_is_a_document_if_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    options = ["--tokenizer", saved(tmp_path), "--json"]
    assert json.loads(run(tmp_path / "a.txt", tmp_path / "one", *options).stdout)["documents"] == 1
    lines = run(tmp_path / "a.txt", tmp_path / "lines", *options, "--source-format", "text").stdout
    assert json.loads(lines)["documents"] == 2


def test_what_is_left_out_shows_in_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": null}\n')
    options = ["--tokenizer", saved(tmp_path)]
    error = run(tmp_path / "a.jsonl", tmp_path / "out", *options, code=2).stderr
    assert error.startswith("headrace tokenize: a.jsonl, chunk 0, row 1: expected text in 'text', found null")
    done = run(tmp_path / "a.jsonl", tmp_path / "out", "--skip", "--mode", "overwrite", *options, code=2)
    assert "has an unfinished run with other arguments" in done.stderr
    done = run(tmp_path / "a.jsonl", tmp_path / "out", "--skip", "--no-resume", *options, code=1)
    assert "skipped     1, listed in _headrace/skipped.jsonl" in done.stdout
    done = run(tmp_path / "a.jsonl", tmp_path / "other", "--skip", *options, code=1)
    assert "skipped     1, listed in _headrace/skipped.jsonl" in done.stdout


def test_what_cannot_be_used_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    source, out, file = tmp_path / "a.jsonl", tmp_path / "out", saved(tmp_path)
    for options, message in (
        (["--tokenizer", tmp_path / "none.json"], "none.json: expected a tokenizers JSON file, found none"),
        (["--tokenizer", source], "expected a tokenizers JSON file: "),
        (["--tokenizer", file, "--eos", "maybe"], "--eos must be yes, no or the id of a token, got 'maybe'"),
        (["--tokenizer", file, "--bos", "yes"], "expected a bos token, found none of"),
        (["--tokenizer", file, "--column", "body"], "expected a column 'body', found 'text'"),
        (["--tokenizer", file, "--format", "csv"], "format must be one of"),
    ):
        assert message in run(source, out, *options, code=2).stderr
