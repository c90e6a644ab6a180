"""The command line on every format: it prints what `headrace.open` gives, and damage is a fault with its place."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import headrace as hr
import litdata_files
import mds_files
from headrace.cli import app
from headrace.cli.head import _plain, _shown  # pyright: ignore[reportPrivateUsage]
from headrace.formats.jsonl import JsonlSource
from headrace.opening import Format
from tar_files import archive

TABLE = pa.table({"id": [0, 1, 2], "vector": [[0.5] * 20, [], [1.0]]})


def _parquet(folder: Path) -> None:
    pq.write_table(TABLE, folder / "a.parquet", row_group_size=2)


def _litdata(folder: Path) -> None:
    litdata_files.write(folder, [{"image": np.arange(24).reshape(2, 12), "label": number} for number in range(5)])


def _mds(folder: Path) -> None:
    mds_files.write(folder, [(mds_files.COLUMNS, mds_files.rows(3)), (mds_files.COLUMNS, mds_files.rows(2))])


def _huggingface(folder: Path) -> None:
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, TABLE.schema) as writer:
        writer.write_table(TABLE)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    floats = {"_type": "List", "feature": {"_type": "Value", "dtype": "float64"}}
    features = {"id": {"_type": "Value", "dtype": "int64"}, "vector": floats}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


def _arrow(folder: Path) -> None:
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_file(file, TABLE.schema) as writer:
        writer.write_table(TABLE)


def _webdataset(folder: Path) -> None:
    archive(folder / "a.tar", {"1.jpg": bytes(500), "1.txt": b"a cat", "2.jpg": b"", "2.txt": b"a dog"})


def _jsonl(folder: Path) -> None:
    lines = [
        {"id": number, "text": "word " * 50, "meta": {"tags": ["a"] * 20, "x": float("nan")}} for number in range(4)
    ]
    (folder / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))


def _files(folder: Path) -> None:
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(b"\x89PNG" * 100)


def _records(folder: Path) -> None:
    with hr.DocumentWriter(folder, "uint16") as writer:
        for number in range(4):
            writer.write(np.arange(number + 1))


def _megatron(folder: Path) -> None:
    lengths = np.array([3, 1, 4], "<i4")
    np.arange(8, dtype="<u2").tofile(folder / "a.bin")
    counts = np.array([len(lengths), len(lengths) + 1], "<i8").tobytes()
    pointers = (2 * np.concatenate([[0], np.cumsum(lengths)[:-1]])).astype("<i8").tobytes()
    head = b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + b"\x08"
    documents = np.arange(len(lengths) + 1, dtype="<i8").tobytes()
    (folder / "a.idx").write_bytes(head + counts + lengths.tobytes() + pointers + documents)


WRITE: dict[str, Callable[[Path], None]] = {
    "parquet": _parquet, "litdata": _litdata, "mds": _mds, "huggingface": _huggingface, "arrow": _arrow,
    "webdataset": _webdataset, "jsonl": _jsonl, "files": _files, "records": _records, "megatron": _megatron,
}  # fmt: skip
OTHERS = sorted({*WRITE} - {"parquet"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


def run(*arguments: object, code: int = 0) -> Result:
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def report(*arguments: object, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


def test_every_format_is_here() -> None:
    # These two are never found out: they have to be said.
    assert set(get_args(Format)) == {*WRITE, "text", "tokens"}


def test_text_is_taken_for_it_if_that_is_said(folder: Path) -> None:
    (folder / "a.txt").write_text("one\n\ntwo\n")
    assert report("inspect", folder)["format"] == "files"
    assert report("inspect", folder, "--format", "text")["schema"] == {"text": "str"}
    assert [shown["sample"] for shown in report("head", folder, "--format", "text")["samples"]] == [
        {"text": "one"}, {"text": "two"},
    ]  # fmt: skip
    assert report("verify", folder, "--format", "text")["samples"] == 2


def test_token_files_are_taken_for_them_if_their_type_is_said(folder: Path) -> None:
    np.arange(300, dtype="<u2").tofile(folder / "a.bin")
    how = ["--stored-dtype", "uint16"]
    assert report("inspect", folder, *how)["samples"] == 300
    assert report("head", folder, *how, "--start", 299)["samples"][0]["sample"] == {"tokens": 299}
    assert report("verify", folder, *how) == {"format": "tokens", "chunks": 1, "samples": 300, "faults": []}
    assert report("inspect", folder)["format"] == "files"
    (folder / "a.bin").write_bytes(b"odd")
    assert "3 bytes" in run("inspect", folder, *how, code=2).stderr
    (folder / "a.bin").rename(folder / "a.txt")
    for command in ("inspect", "head", "verify"):
        assert "stored_dtype is for token files" in run(command, folder, *how, code=2).stderr
    _parquet(folder)
    assert "--stored-dtype is the type of token files" in run("verify", folder, *how, code=2).stderr


@pytest.mark.parametrize("kind", OTHERS)
def test_inspect(kind: str, folder: Path) -> None:
    WRITE[kind](folder)
    data = hr.open(folder)
    info = data.info()
    found = report("inspect", folder)
    assert (found["url"], found["format"]) == (str(folder), kind)
    assert [found[name] for name in ("chunks", "samples", "bytes")] == [info["chunks"], len(data), info["bytes"]]
    assert found["samples_by_chunk"]["mean"] == pytest.approx(len(data) / info["chunks"])
    assert found["schema"] == dict(data.schema)
    text = run("inspect", folder, "--format", kind).stdout
    for name, part in data.schema.items():
        assert f"  {name} " in text
        assert part in text
    assert "is of the format" in run("inspect", folder, "--column", "x", code=2).stderr


@pytest.mark.parametrize("kind", WRITE)
def test_head(kind: str, folder: Path) -> None:
    WRITE[kind](folder)
    data = hr.open(folder)
    found = report("head", folder, "-n", 2)
    assert (found["format"], found["count"]) == (kind, len(data))
    for number, shown in enumerate(found["samples"]):
        place = data.place(number)
        assert (shown["number"], shown["file"], shown["chunk"], shown["row"]) == (number, *place)
        assert shown["sample"].keys() == data[number].keys()
    text = run("head", folder, "--start", len(data) - 1).stdout
    assert text.count("sample ") == 1
    assert f"sample {len(data) - 1} of {len(data)}: {data.place(len(data) - 1)}\n" in text
    assert max(map(len, text.splitlines())) <= 200
    (name, *_) = data.schema
    assert list(report("head", folder, "--select", name)["samples"][0]["sample"]) == [name]
    assert "samples have no part 'nothing'" in run("head", folder, "--select", "nothing", code=2).stderr
    assert f"--start must be in 0..{len(data)}" in run("head", folder, "--start", len(data) + 1, code=2).stderr
    assert report("head", folder, "--start", len(data))["samples"] == []


@pytest.mark.parametrize("kind", WRITE)
def test_verify_of_what_is_sound(kind: str, folder: Path) -> None:
    WRITE[kind](folder)
    found = report("verify", folder)
    assert found["faults"] == []
    assert found["documents" if kind == "parquet" else "samples"] == len(hr.open(folder))
    assert run("verify", folder, "--format", kind).stdout.endswith(": no fault\n")


def test_verify_finds_every_fault(folder: Path) -> None:
    lines = [b'{"id": %d}' % number for number in range(1000)]
    lines[300], lines[999] = b"{", b"\xff"
    (folder / "a.jsonl").write_bytes(b"\n".join([*lines, b""]))
    (folder / "b.jsonl").write_bytes(b"1\n2\n")
    found = report("verify", folder, code=1)
    assert (found["chunks"], found["samples"]) == (2, 1000)
    assert [(fault["file"], fault["chunk"], fault["row"]) for fault in found["faults"]] == [
        ("a.jsonl", 0, 300), ("a.jsonl", 0, 999),
    ]  # fmt: skip
    one, two, last = run("verify", folder, code=1).stdout.splitlines()
    assert one.startswith(f"{folder}/a.jsonl, line 301: expected a JSON value, found '{{'")
    assert "line 1000: expected UTF-8" in two
    assert last == "2 chunks, 1,000 samples: 2 faults"


def test_verify_compares_digests(folder: Path) -> None:
    _mds(folder)
    path = folder / "shard.00001.mds"
    path.write_bytes(path.read_bytes()[:-1] + b"\xee")
    (fault,) = report("verify", folder, code=1)["faults"]
    assert (fault["file"], fault["chunk"], fault["row"]) == (path.name, 1, None)
    assert "expected sha1" in fault["message"]
    entries = mds_files.read_entries(folder)
    for entry in entries:
        entry["raw_data"]["hashes"] = {}
    mds_files.write_index(folder, entries)
    assert report("verify", folder)["samples"] == 5


def test_verify_decodes_images(folder: Path) -> None:
    Image.fromarray(np.zeros((50, 50, 3), np.uint8)).save(folder / "a.png")
    cells = [{"x": (folder / "a.png").read_bytes()}, {"x": (folder / "a.png").read_bytes()[:-40]}]
    mds_files.write(folder, [({"x": "png"}, cells)])
    (fault,) = report("verify", folder, "--format", "mds", code=1)["faults"]
    assert (fault["row"], fault["message"].partition(":")[0]) == (1, "OSError")
    assert "x   image RGB 50 x 50" in run("head", folder, "--format", "mds").stdout


def test_verify_of_what_cannot_be_opened(folder: Path) -> None:
    path = archive(folder / "a.tar", {"1.x": bytes(5000)})
    path.write_bytes(path.read_bytes()[:3000])
    (fault,) = report("verify", folder, code=1)["faults"]
    assert (fault["file"], fault["row"]) == (None, None)
    assert str(path) in fault["message"]
    assert run("verify", folder, code=1).stdout.endswith("\n0 chunks, 0 samples: 1 fault\n")
    assert "none" in run("verify", folder / "none", code=2).stderr


@pytest.mark.parametrize("kind", ["litdata", "mds"])
@pytest.mark.parametrize("damage", [b"", b"[]", b"{", b"\xff"])
def test_verify_of_a_damaged_index(kind: str, damage: bytes, folder: Path) -> None:
    WRITE[kind](folder)
    index = folder / "index.json"
    index.write_bytes(index.read_bytes()[:20] if damage == b"{" else damage)
    for arguments, format in (([], None), (["--format", kind], kind)):
        found = report("verify", folder, *arguments, code=1)
        assert (found["format"], found["chunks"], found["samples"]) == (format, 0, 0)
        (fault,) = found["faults"]
        assert (fault["file"], fault["chunk"], fault["row"]) == (None, None, None)
        assert str(index) in fault["message"]
    text = run("verify", folder, code=1).stdout
    assert text.startswith(f"{index}: expected ")
    assert text.endswith("\n0 chunks, 0 samples: 1 fault\n")


@pytest.mark.parametrize("command", ["verify", "head"])
@pytest.mark.parametrize("text", ["", "Unable to allocate 1.00 EiB"])
def test_memory_that_does_not_suffice_is_one_message(
    command: str, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        raise MemoryError(*filter(None, [text]))

    _jsonl(folder)
    monkeypatch.setattr(JsonlSource, "load", load)
    wanted = f"headrace {command}: not enough memory" + (f": {text}" if text else "")
    assert run(command, folder, code=2).stderr == f"{wanted}\n"


def test_several_datasets(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for each in folders:
        each.mkdir()
        _mds(each)
    assert report("inspect", *folders)["samples"] == 10
    assert report("verify", *folders)["samples"] == 10
    assert report("head", *folders, "--start", 7)["samples"][0]["file"] == "shard.00000.mds"


@pytest.mark.parametrize("command", ["plan", "show", "index"])
def test_commands_for_tokens_say_so(command: str, folder: Path) -> None:
    _jsonl(folder)
    options = {"plan": ["--seq-len", "8", "--batch", "1"], "index": []}
    options["show"] = [*options["plan"], "--step", "0", "--row", "0"]
    text = run(command, folder, *options[command], code=2).stderr
    assert text.startswith(f"headrace {command}: {folder}: expected Parquet files, found jsonl\nhint: ")
    assert "inspect, head and verify take every format" in text


def test_a_wrong_format(folder: Path) -> None:
    _jsonl(folder)
    for command in ("inspect", "head", "verify"):
        assert "format must be None or one of parquet, " in run(command, folder, "--format", "zip", code=2).stderr


SHOWN = [
    ("x" * 101, repr("x" * 100) + " ... of 101 characters"),
    (b"\x00" * 25, repr(bytes(24)) + " ... of 25 bytes"),
    ("a\x1b[31m\n", r"'a\x1b[31m\n'"),
    (np.arange(6, dtype="u1"), "uint8 [6]: 0 1 2 3 4 5"),
    (np.zeros((7, 1000)), "float64 [7, 1000]: 0.0 0.0 0.0 ... 6,994 more ... 0.0 0.0 0.0"),
    (np.array(3.5), "float64 []: 3.5"),
    ([1, None, [True]] * 3, "[1, None, [True], 1, None, [True], ... 3 more]"),
    ({"a\x07": {"b": [[[1]]]}}, "{a\N{REPLACEMENT CHARACTER}: {b: [[[... 1 more]]]}}"),
    (np.float32(1.5), "1.5"),
]


@pytest.mark.parametrize("value,text", SHOWN)
def test_values_on_one_line(value: Any, text: str) -> None:
    assert _shown(value).replace("np.float32(1.5)", "1.5") == text


def test_values_as_json() -> None:
    value = {
        "a": float("inf"),
        1: [b"\xff", "\ud800"],
        "c": np.int8(3),
        "d": np.arange(9.0),
        "e": 1j,
        "f": (None, True),
    }
    assert json.loads(json.dumps(_plain(value), ensure_ascii=False, allow_nan=False).encode()) == {
        "a": "inf", "1": [{"bytes": 1, "hex": "ff"}, "\\ud800"], "c": 3,
        "d": {"dtype": "float64", "shape": [9], "first": [0, 1, 2, 3, 4, 5]}, "e": "1j", "f": [None, 1],
    }  # fmt: skip
