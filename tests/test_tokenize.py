"""`tokenize`: the ids of the tokenizer, in order, whatever the text lies in, who does it, and what is killed."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import DataError, StateMismatch
from headrace.prepare import job, spool, tokenizing
from headrace.prepare import parts as cutting
from tokenizer_files import END, Logged, byte_encoding, byte_level, letters, picky, saved, utf8

FORMATS = ("parquet", "arrow", "litdata", "mds")
QUIET: dict[str, Any] = {"progress": False, "verbose": False}
HERE: dict[str, Any] = QUIET | {"num_workers": 0}
BYTES: dict[str, Any] = {"eos": 255, "vocab_size": 256}


def text(number: int) -> str:
    return f"document {number} " + "naïve word " * (number % 5) if number % 10 else ""


def corpus(folder: Path, count: int = 100) -> Path:
    """Lines with an id and a text, every tenth of them empty."""
    folder.mkdir(exist_ok=True)
    rows = [{"id": f"d{number}", "text": text(number), "score": number / 4} for number in range(count)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def tokens(folder: Path) -> list[list[int]]:
    data = headrace.open(folder)
    samples = [data[number] for number in range(len(data))]
    return [(sample["tokens"] if isinstance(sample, dict) else sample).tolist() for sample in samples]


def encoded(count: int = 100) -> list[list[int]]:
    return [[*text(number).encode(), 255] if text(number) else [] for number in range(count)]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "_PART_ITEMS", 7)


# What comes out


def test_rows_are_the_ids_of_the_tokenizer_with_eos_and_the_source(tmp_path: Path) -> None:
    tokenizer = byte_level()
    made = headrace.tokenize(corpus(tmp_path / "in"), saved(tmp_path), tmp_path / "out", num_workers=1, **QUIET)
    assert (made.samples, made.chunks, made.skipped) == (100, 1, [])
    table = pq.read_table(tmp_path / "out/part-00000.parquet")
    assert table.column_names == ["id", "tokens"]
    assert table["tokens"].type == pa.list_(pa.uint16())
    assert table["id"].to_pylist() == [f"d{number}" for number in range(100)]
    expected = [tokenizer.encode(text(number)).ids for number in range(100)]
    assert table["tokens"].to_pylist() == [[*ids, 0] if ids else [] for ids in expected]
    footer = json.loads(pq.read_schema(tmp_path / "out/part-00000.parquet").metadata[b"headrace.tokens"])
    assert len(footer.pop("tokenizer")) == 32
    assert footer == {"vocab_size": 300, "bos_id": None, "eos_id": 0}


def test_what_is_written_is_packed_in_its_order(tmp_path: Path) -> None:
    headrace.tokenize(corpus(tmp_path / "in"), utf8, tmp_path / "out", **BYTES, **HERE)
    packed = headrace.open(tmp_path / "out").pack(32)
    flat = [token for row in encoded() for token in row]
    loader = headrace.DataLoader(packed, batch_size=1, shuffle=False, epochs=1)
    found = np.concatenate([batch["tokens"].ravel() for batch in loader]).tolist()
    assert found == flat[: len(found)]
    assert len(flat) - len(found) < 32


def test_datasets_reads_what_is_written(tmp_path: Path) -> None:
    headrace.tokenize(corpus(tmp_path / "in"), utf8, tmp_path / "out", **BYTES, **HERE)
    # In a process of its own, as a module of these tests has its name.
    code = (
        "import json, sys, datasets; from pathlib import Path; folder = Path(sys.argv[1]);"
        "paths = [str(path) for path in (folder / 'out').glob('*.parquet')];"
        "data = datasets.Dataset.from_parquet(paths, cache_dir=str(folder / 'cache'));"
        "print(json.dumps([data.column_names, data[3], len(data), str(data.features['tokens'])]))"
    )
    environment = {**os.environ, "HF_DATASETS_OFFLINE": "1", "PYTHONPATH": ""}
    run = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    names, row, count, kind = json.loads(run.stdout)
    assert (names, row, count) == (["id", "tokens"], {"id": "d3", "tokens": encoded()[3]}, 100)
    assert "uint8" in kind


@pytest.mark.parametrize("format", FORMATS)
def test_files_are_the_same_for_any_number_of_workers(format: str, tmp_path: Path, small_parts: None) -> None:
    source, found = corpus(tmp_path / "in"), []
    for workers in (0, 1, 3):
        out = tmp_path / str(workers)
        made = headrace.tokenize(source, utf8, out, format=format, chunk_size=30, num_workers=workers, **BYTES, **QUIET)
        found.append(files(out))
    assert found[0] == found[1] == found[2]
    assert made.chunks > 2
    rows = encoded() if format in ("parquet", "arrow") else [row for row in encoded() if row]
    if format == "litdata":
        index = json.loads((tmp_path / "0/index.json").read_text())
        assert index["config"]["item_loader"] == "TokensLoader"
        blocks = headrace.open(tmp_path / "0", block_size=1)
        assert [int(block[0]) for block in blocks] == [token for row in rows for token in row]
    else:
        assert tokens(tmp_path / "0") == rows


def _jsonl_gz(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    (folder / "a.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return {}


def _parquet(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet", row_group_size=7)
    return {}


def _lines(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    (folder / "a.txt").write_text("".join(row["text"] + "\n" for row in rows))
    return {"input_format": "text"}


def _raw(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    for number, row in enumerate(rows):
        (folder / f"{number:03}.txt").write_text(row["text"])
    return {}


def _mds(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    headrace.optimize(rows.__getitem__, range(len(rows)), folder, format="mds", keep_data_ordered=True, **HERE)
    return {}


@pytest.mark.parametrize("write", [_jsonl_gz, _parquet, _lines, _raw, _mds])
def test_text_lies_in_many_formats(
    write: Callable[[Path, list[dict[str, Any]]], dict[str, Any]], tmp_path: Path, small_parts: None
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [{"text": f"document {number}"} for number in range(30)]
    how = write(folder, rows)
    made = headrace.tokenize(folder, utf8, tmp_path / "out", num_workers=2, **how, **BYTES, **QUIET)
    assert made.samples == 30
    assert tokens(tmp_path / "out") == [[*row["text"].encode(), 255] for row in rows]
    names = set(dict(headrace.open(tmp_path / "out").schema)) - {"tokens"}
    assert names == ({"file"} if write is _raw else {"file", "row"})


def test_lists_of_paths_globs_and_datasets(tmp_path: Path) -> None:
    a, b = (corpus(tmp_path / name, 20) / "a.jsonl" for name in "ab")
    data = headrace.open([a, b])
    for number, inputs in enumerate(([a, str(b)], str(tmp_path / "[ab]/*.jsonl"), data)):
        headrace.tokenize(inputs, utf8, tmp_path / f"out-{number}", **BYTES, **HERE)
        assert tokens(tmp_path / f"out-{number}") == encoded(20) * 2
    some = data.where(headrace.col("score") > 2).map(lambda sample: {"text": sample["text"], "n": sample["score"]})
    headrace.tokenize(some, utf8, tmp_path / "some", keep=["n"], **BYTES, **HERE)
    assert [sample["n"] for sample in headrace.open(tmp_path / "some")] == [n / 4 for n in range(9, 20)] * 2


@pytest.mark.parametrize(
    "size, kind", [(256, pa.uint8()), (65_536, pa.uint16()), (65_537, pa.int32()), (None, pa.int32())]
)
def test_tokens_have_the_smallest_type(size: int | None, kind: Any, tmp_path: Path) -> None:
    headrace.tokenize(corpus(tmp_path / "in"), utf8, tmp_path / "out", eos=255, vocab_size=size, **HERE)
    assert pq.read_schema(tmp_path / "out/part-00000.parquet").field("tokens").type == pa.list_(kind)


def test_ids_beyond_the_vocabulary_are_refused_by_document(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "abc"}\n{"text": "日本"}\n')
    with pytest.raises(ValueError, match=r"letters: expected ids below 256, found 26,412\nhint") as caught:
        headrace.tokenize(tmp_path / "a.jsonl", letters, tmp_path / "out", eos=0, vocab_size=256, **HERE)
    assert any("headrace: document 1 (a.jsonl, chunk 0, row 1)" in note for note in caught.value.__notes__)


def test_what_is_kept(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")
    for number, (keep, names) in enumerate(
        [(["score", "row"], ["score", "row", "tokens"]), ([], ["tokens"]), (None, ["id", "tokens"])]
    ):
        out = tmp_path / str(number)
        headrace.tokenize(source, utf8, out, keep=keep, **BYTES, **HERE)
        assert pq.read_schema(out / "part-00000.parquet").names == names
    first = headrace.open(tmp_path / "0")[3]
    assert (first["score"], first["row"]) == (0.75, 3)


def test_row_groups_hold_some_mebibytes_of_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "_GROUP_BYTES", 1000)
    headrace.tokenize(corpus(tmp_path / "in"), utf8, tmp_path / "out", **BYTES, **HERE)
    metadata = pq.read_metadata(tmp_path / "out/part-00000.parquet")
    sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert len(sizes) in range(4, 9)
    assert max(sizes) - min(sizes) <= max(sizes[0] - sizes[-1], 1)


def test_a_document_larger_than_a_file_has_one_of_its_own(tmp_path: Path) -> None:
    texts = ["a" * 100, "b" * 20_000_000, "c" * 100]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in texts))
    made = headrace.tokenize(
        tmp_path / "a.jsonl", utf8, tmp_path / "out", chunk_bytes="1MiB", num_workers=1, **BYTES, **QUIET
    )
    assert made.chunks == 3
    lengths = [len(sample["tokens"]) for sample in headrace.open(tmp_path / "out")]
    assert lengths == [101, 20_000_001, 101]


def test_a_tiktoken_encoding_goes_to_processes(tmp_path: Path) -> None:
    encoding = byte_encoding()
    headrace.tokenize(corpus(tmp_path / "in", 20), encoding, tmp_path / "out", num_workers=1, **QUIET)
    expected = [encoding.encode_ordinary(text(number)) for number in range(20)]
    assert tokens(tmp_path / "out") == [[*ids, 300] if ids else [] for ids in expected]


def test_one_file_is_work_for_all_processes(tmp_path: Path, small_parts: None) -> None:
    for name, packed in (("a.jsonl", False), ("b.jsonl.gz", True)):
        data = "".join(json.dumps({"text": "x" * 60_000}) + "\n" for _ in range(300)).encode()
        (tmp_path / name).write_bytes(gzip.compress(data, 1) if packed else data)
        tokenizer = Logged(tmp_path / f"{name}.log", 0.005)
        headrace.tokenize(tmp_path / name, tokenizer, tmp_path / f"{name}.out", num_workers=3, **BYTES, **QUIET)
        calls = tokenizer.calls()
        assert len(calls) == 300
        assert len(set(calls)) == 3
        assert max(calls.count(process) for process in set(calls)) < 200


# Errors


def test_documents_that_cannot_be_are_skipped_and_listed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": "a"}\n{"text": "x"}\n{"text": null}\n{"text": "d"}\n{"text": "e\\ud800"}\n'
    )
    how: dict[str, Any] = {**BYTES, **QUIET, "num_workers": 1}
    with pytest.raises(DataError, match="row 2: expected text in 'text', found null"):
        headrace.tokenize(tmp_path / "a.jsonl", picky, tmp_path / "raised", **how)
    made = headrace.tokenize(tmp_path / "a.jsonl", picky, tmp_path / "out", on_error="skip", **how)
    assert tokens(tmp_path / "out") == [[97, 255], [100, 255]]
    report = [json.loads(line) for line in (tmp_path / "out/_headrace/skipped.jsonl").read_text().splitlines()]
    assert [(entry["value"], entry["error"].partition(":")[0]) for entry in report] == [
        ("a.jsonl, chunk 0, row 1", "ValueError"),
        ("a.jsonl, chunk 0, row 2", "DataError"),
        ("a.jsonl, chunk 0, row 4", "ValueError"),
    ]
    assert len(made.skipped) == 3
    with pytest.raises(ValueError, match="expected at least one sample, found none"):
        headrace.tokenize(tmp_path / "a.jsonl", _never, tmp_path / "none", on_error="skip", **BYTES, **HERE)


def _never(text: str) -> Any:
    raise RuntimeError(text)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("block", [1, 3, 100])
def test_what_was_skipped_is_listed_once_however_often_the_run_ends(
    block: int, killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    if killed:
        # Blocks wait in memory, and nothing writes them in the end.
        monkeypatch.setattr(spool, "_HELD_RATE", 0)
        monkeypatch.setattr(spool.Spool, "save", lambda self: None)
    texts = ["ax", "b", "cx", "dx", "e", "f", "gx"] * 6
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps({"text": one}) + "\n" for one in texts))
    how: dict[str, Any] = {"on_error": "skip", "chunk_size": 4, **BYTES, **HERE}
    headrace.tokenize(source, picky, tmp_path / "whole", **how)
    monkeypatch.setattr(job, "_BLOCK_SAMPLES", block)
    monkeypatch.setattr(tokenizing, "_BATCH_TEXTS", 1)
    for end in (1, 9, 15, 12, 4, 6):
        calls = 0

        def ends(text: str, end: int = end) -> Any:
            nonlocal calls
            calls += 1
            if calls == end:
                raise KeyboardInterrupt
            return utf8(text) if "x" not in text else picky(text)

        ends.__qualname__, ends.__module__ = picky.__qualname__, picky.__module__
        with pytest.raises(KeyboardInterrupt):
            headrace.tokenize(source, ends, tmp_path / "out", **how)
    headrace.tokenize(source, picky, tmp_path / "out", **how)
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert len((tmp_path / "out/_headrace/skipped.jsonl").read_text().splitlines()) == 24


def test_arguments_that_cannot_be_used(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")

    def refused(message: str, tokenizer: Any = utf8, inputs: Any = source, **how: Any) -> None:
        with pytest.raises((ValueError, TypeError), match=message):
            headrace.tokenize(inputs, tokenizer, tmp_path / "out", **{**BYTES, **HERE, **how})
        assert not (tmp_path / "out").exists()

    refused("format must be one of 'litdata', 'mds', 'parquet', 'arrow', got 'csv'", format="csv")
    refused("expected a column 'body', found 'id', 'text', 'score'", column="body")
    refused(r"keep must be a list of names, got 'id'", keep="id")
    refused(r"keep must be names other than 'tokens', each once", keep=["tokens"])
    refused(r"keep must be names other than 'tokens', each once", keep=["id", "id"])
    refused('format="litdata" has tokens alone', keep=["id"], format="litdata")
    refused("input_format and storage_options are for paths", inputs=headrace.open(source), input_format="jsonl")
    refused("tokenizer must be the path of a tokenizer.json", tokenizer=None)
    refused("expected the id of the eos token, which a function does not tell", eos=True)
    refused("mode must be one of", mode="new")
    refused("cannot be sent to worker processes", tokenizer=lambda text: [1], num_workers=1)
    refused("expected at least one document, found none", inputs=headrace.open(source).take(0))


# Kills, and what is there


PROGRAM = """
import sys
from pathlib import Path

import headrace
from headrace.prepare import parts
from tokenizer_files import Logged

parts._PART_ITEMS = 5
if __name__ == "__main__":
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    headrace.tokenize(
        folder / "in", Logged(folder / "log", 0.01), folder / "out", eos=255, vocab_size=256, chunk_size=9,
        num_workers=workers, on_error="skip", progress=False, verbose=False,
    )
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_is_killed_again_and_again_goes_on(tmp_path: Path, workers: int) -> None:
    folder = corpus(tmp_path / "in", 200)
    with (folder / "a.jsonl").open("a") as file:
        file.write('{"text": null}\n' * 3)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    log, kills = Logged(tmp_path / "log", 0), 0
    for calls in range(20, 600, 50):
        command = [sys.executable, tmp_path / "program.py", tmp_path, str(workers)]
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        while process.poll() is None and len(log.calls()) < calls:
            time.sleep(0.002)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        assert [path for path in files(tmp_path / "out") if not path.startswith(".headrace")] == []
    assert process.wait() == 0
    assert kills >= 2
    # Of the parts that were under way at a kill the texts are asked again, and no others.
    assert len(log.calls()) - 200 <= kills * 5 * max(2 * workers, 1)
    headrace.tokenize(folder, utf8, tmp_path / "whole", chunk_size=9, on_error="skip", **BYTES, **HERE)
    found, whole = files(tmp_path / "out"), files(tmp_path / "whole")
    assert found.keys() == whole.keys()
    assert tokens(tmp_path / "out") == tokens(tmp_path / "whole") == encoded(200)
    assert [json.loads(line)["value"] for line in found["_headrace/skipped.jsonl"].splitlines()] == [
        f"a.jsonl, chunk 0, row {row}" for row in (200, 201, 202)
    ]


def test_another_call_does_not_go_on_with_an_unfinished_one(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")
    with pytest.raises(ValueError, match="no x"):
        headrace.tokenize(source, _fails_late, tmp_path / "out", **BYTES, **HERE)
    with pytest.raises(StateMismatch, match=r"unfinished run with other arguments: keep of documents was .*, and is"):
        headrace.tokenize(source, _fails_late, tmp_path / "out", keep=[], **BYTES, **HERE)
    with pytest.raises(StateMismatch, match="tokenizer of tokens is not what it was"):
        headrace.tokenize(source, utf8, tmp_path / "out", **BYTES, **HERE)
    headrace.tokenize(source, utf8, tmp_path / "out", resume=False, **BYTES, **HERE)
    assert tokens(tmp_path / "out") == encoded()


def _fails_late(text: str) -> Any:
    return picky("x" if text.startswith("document 99") else text)


def test_append_wants_the_same_tokens_and_overwrite_does_not(tmp_path: Path) -> None:
    source, out = corpus(tmp_path / "in"), tmp_path / "out"
    headrace.tokenize(source, utf8, out, **BYTES, **HERE)
    made = headrace.tokenize(source, utf8, out, mode="append", fast_dev_run=True, **BYTES, **HERE)
    assert (made.samples, made.chunks) == (10, 1)
    assert tokens(out) == encoded() + encoded(10)
    with pytest.raises(ValueError, match=r'expected a dataset whose headrace.tokens is .*"bos_id": 1.*, to be able to'):
        headrace.tokenize(source, utf8, out, mode="append", bos=1, **BYTES, **HERE)
    with pytest.raises(ValueError, match=r"expected a dataset whose headrace\.tokens is None"):
        headrace.optimize(_row, range(5), out, format="parquet", mode="append", **HERE)
    headrace.tokenize(source, utf8, out, mode="overwrite", bos=1, **BYTES, **HERE)
    assert tokens(out)[1][:2] == [1, ord("d")]
    assert tokens(out)[0] == []


def _row(number: int) -> dict[str, Any]:
    return {"id": str(number), "tokens": np.zeros(3, np.uint8)}


def test_merging_keeps_what_is_known_of_the_tokens(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")
    for name, bos in (("a", False), ("b", False), ("c", 7)):
        headrace.tokenize(source, utf8, tmp_path / name, bos=bos, **BYTES, **HERE)
    headrace.merge_datasets([tmp_path / "a", tmp_path / "b"], tmp_path / "ab")
    headrace.tokenize(source, utf8, tmp_path / "ab", mode="append", **BYTES, **HERE)
    assert tokens(tmp_path / "ab") == encoded() * 3
    with pytest.raises(ValueError, match=r"expected a dataset whose headrace\.tokens is"):
        headrace.merge_datasets([tmp_path / "a", tmp_path / "c"], tmp_path / "ac")


def test_only_some_documents_for_a_trial(tmp_path: Path) -> None:
    source = corpus(tmp_path / "in")
    assert headrace.tokenize(source, utf8, tmp_path / "ten", fast_dev_run=True, **BYTES, **HERE).samples == 10
    assert headrace.tokenize(source, utf8, tmp_path / "three", fast_dev_run=3, **BYTES, **HERE).samples == 3
    assert tokens(tmp_path / "three") == encoded(3)


def test_worker_processes_print_nothing_of_forks_or_threads(tmp_path: Path) -> None:
    corpus(tmp_path / "in")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, headrace\n"
        "if __name__ == '__main__':\n"
        "    from tokenizers import Tokenizer\n"
        "    tokenizer = Tokenizer.from_file(sys.argv[2])\n"
        "    tokenizer.encode_batch(['a'] * 100)\n"
        "    headrace.tokenize(sys.argv[1] + '/in', tokenizer, sys.argv[1] + '/out', num_workers=2, progress=False)\n"
    )
    command = [sys.executable, program, tmp_path, saved(tmp_path, special=(END,))]
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert run.stderr.startswith(f"headrace tokenize: {tmp_path}/out: 100 samples in 1 chunks, ")
    assert run.stderr.count("\n") == 1
