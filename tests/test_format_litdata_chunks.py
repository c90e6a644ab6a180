"""LitData folders: how chunks are laid out, compressed, encrypted and found, each read as litdata reads it."""

import json
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
import pytest

import litdata_files as files
from headrace.encryption import load_key
from headrace.errors import DataError, MissingError
from headrace.formats.litdata import is_litdata
from litdata_files import HOW, by_hand, edit, everything, item, opened, ours, same, spec, theirs, write

torch = files.torch

from litdata.streaming.item_loader import TokensLoader  # noqa: E402
from litdata.streaming.temporal import TemporalArrayLoader  # noqa: E402
from litdata.utilities.encryption import FernetEncryption, RSAEncryption  # noqa: E402

_random = np.random.default_rng(5)

_SAMPLES = [
    {"image": bytes([number]) * number, "label": number, "ids": np.arange(number), "text": "ä" * number}
    for number in range(11)
]


@pytest.mark.parametrize("how", HOW)
def test_compressed_chunks(how: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "data", _SAMPLES, chunk_size=5, **HOW[how])
    source = opened(folder)
    same(everything(source), theirs(folder))
    same(everything(source), _SAMPLES)
    assert source.sizes.tolist() == [5, 5, 1]
    assert source.stored.tolist() == [(folder / source.file(chunk)).stat().st_size for chunk in range(3)]
    assert source.columns == ("image", "label", "ids", "text")
    chosen = everything(source, ("text", "label"))
    same(chosen, [{"text": sample["text"], "label": sample["label"]} for sample in _SAMPLES])
    held = source.load(0).nbytes
    assert (held > 150) == (how not in ("plain", "sample"))


_KEYS = {"fernet": FernetEncryption, "rsa": RSAEncryption}


@pytest.mark.parametrize("packed", ["plain", "chunk"])
@pytest.mark.parametrize("algorithm", _KEYS)
@pytest.mark.parametrize("level", ["chunk", "sample"])
def test_encrypted_chunks(level: str, algorithm: str, packed: str, tmp_path: Path) -> None:
    key = _KEYS[algorithm]("secret", level=level)
    # RSA encrypts no more than 190 bytes at once.
    samples = [(number, b"ab" * number) for number in range(7)]
    folder = write(tmp_path / "data", samples, encryption=key, chunk_size=3, **HOW[packed])
    key.save(str(tmp_path / "key"))
    saved = load_key(tmp_path / "key", "secret")
    for decryption in (key, saved, pickle.loads(pickle.dumps(saved))):
        same(ours(folder, decryption=decryption), samples)
    same(theirs(folder, encryption=key), samples)

    with pytest.raises(ValueError, match="hint: give its key"):
        opened(folder)
    with pytest.raises(ValueError, match="expected a key of"):
        opened(folder, decryption=_KEYS[algorithm]("secret", level="chunk" if level == "sample" else "sample"))
    with pytest.raises(DataError, match="either the key is another one"):
        ours(folder, decryption=_KEYS[algorithm]("secret", level=level))


def test_saved_keys_that_are_none(tmp_path: Path) -> None:
    for text in ("", "[]", '{"level": "sample"}', '{"level": "row", "salt": ""}'):
        (tmp_path / "key").write_text(text)
        with pytest.raises(DataError, match="expected a key as litdata saves it"):
            load_key(tmp_path / "key", "secret")


_ROWS = [
    {"text": "é" * number, "n": number, "list": list(range(number)), "deep": {"a": [{"b": 1.5}], "c": None}}
    for number in range(300)
]


@pytest.mark.parametrize("how", [{}, {"compression": "zstd"}, {"compression": "zstd", "compression_level": "chunk"}])
def test_rows_of_a_table(how: dict[str, Any], tmp_path: Path) -> None:
    folder = write(tmp_path / "data", _ROWS, chunk_size=280, **how)
    source = opened(folder)
    same(everything(source), theirs(folder))
    same(everything(source), _ROWS)
    assert source.columns == ("text", "n", "list", "deep")
    same(everything(source, ("n", "text")), [{"n": row["n"], "text": row["text"]} for row in _ROWS])
    same(dict(source.load(1).arrays(("n",))), {"n": list(range(280, 300))})


def test_keys_that_only_later_rows_have(tmp_path: Path) -> None:
    rows = [{"a": 1}] * 3 + [{"a": 2, "b": "x"}, {"a": 3}, {"a": 4}] + [{"a": 5}] * 3
    folder = write(tmp_path / "data", rows)
    source = opened(folder)
    assert source.schema == {"a": "int", "b": "str"}
    # litdata itself leaves the key out of a chunk in which no row has it.
    same(everything(source), [{"a": row["a"], "b": row.get("b")} for row in rows])
    same(everything(source, ("b",)), [{"b": row.get("b")} for row in rows])


@pytest.mark.parametrize("make", [pyarrow.ipc.new_file, pyarrow.ipc.new_stream])
def test_tables_of_old_releases(make: Any, tmp_path: Path) -> None:
    """They stand behind items that hold the same, in batches of any size, and may be streams."""
    values = {
        "a": [None, 5, 6],
        "b": ["x", "é", ""],
        "c": [b"", b"y", None],
        "d": [1.5, 2.5, 3.5],
        "e": [[1], [], None],
        "f": [True, False, True],
        "g": [-1, 2, 3],
    }
    table = pyarrow.table(values)
    sink = pyarrow.BufferOutputStream()
    with make(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    rows = sink.getvalue().to_pybytes()
    data = files.chunk([item(b"1", b"2")] * 3) + rows + struct.pack("<I", len(rows)) + b"LDARW01\0"
    by_hand(tmp_path, [data], [3], data_format=["int", "str"], data_spec=spec("a", "b"))
    same(ours(tmp_path), table.to_pylist())
    same(ours(tmp_path, ("d", "a")), table.select(["d", "a"]).to_pylist())


@pytest.mark.parametrize("level", ["chunk", "sample"])
def test_encrypted_tables_which_litdata_cannot_read(level: str, tmp_path: Path) -> None:
    key = FernetEncryption("secret", level=level)
    folder = write(tmp_path / "data", _ROWS[:5], encryption=key)
    same(ours(folder, decryption=key), _ROWS[:5])


@pytest.mark.parametrize("as_tensors", [False, True])
def test_tokens(as_tensors: bool, tmp_path: Path) -> None:
    documents = [np.arange(number * 7, number * 9 + 3, dtype=np.int32) for number in range(10)]
    given_ = [torch.from_numpy(document) for document in documents] if as_tensors else documents
    folder = write(tmp_path / "data", given_, chunk_bytes=90, item_loader=TokensLoader())
    same(ours(folder), documents)
    for block in (4, 1000):
        source = opened(folder, block_size=block)
        same(everything(source), theirs(folder, item_loader=TokensLoader(block_size=block)))
        assert source.schema == {"": "ndarray[int32]"}
    assert len({opened(folder, block_size=block).identity() for block in (None, 1, 4)}) == 3
    with pytest.raises(ValueError, match="block_size must be at least 1"):
        opened(folder, block_size=0)
    edit(folder, chunk_0={"dim": 1})
    with pytest.raises(DataError, match="expected 1 tokens of 4 bytes"):
        ours(folder, block_size=2)
    edit(folder, chunk_0={"dim": None})
    with pytest.raises(DataError, match="expected the tokens of each chunk"):
        ours(folder, block_size=2)
    with pytest.raises(ValueError, match="is for datasets of tokens"):
        opened(write(tmp_path / "other", _SAMPLES), block_size=2)


def test_temporal_items(tmp_path: Path) -> None:
    records = [
        {"x": _random.random((frames, 2), np.float32), "y": torch.arange(frames), "ok": np.ones(frames, bool)}
        for frames in (3, 1, 8, 2)
    ]
    folder = write(tmp_path / "data", records, item_loader=TemporalArrayLoader([["y", "ok"]]))
    source = opened(folder)
    same(everything(source), theirs(folder, item_loader=TemporalArrayLoader()))
    same(ours(folder, tensors="torch"), records)
    assert source.schema == {"x": "ndarray[float32]", "y": "ndarray[int64]", "ok": "ndarray[bool]"}
    same(everything(source, ("ok",)), [{"ok": record["ok"]} for record in records])


def test_another_process_can_open_it(tmp_path: Path) -> None:
    source = opened(write(tmp_path / "data", _SAMPLES))
    source.load(0)
    program = "import pickle, sys; source = pickle.load(sys.stdin.buffer); print(source.load(2)[1], source.identity())"
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(source), capture_output=True, check=True)
    assert done.stdout.decode().strip() == f"{_SAMPLES[7]} {source.identity()}"


def test_what_is_there_of_compressed_and_decompressed_files(tmp_path: Path) -> None:
    """Case B122."""
    folder = write(tmp_path / "data", _SAMPLES, **HOW["chunk"])
    packed = opened(folder)
    (name, other, *_) = [packed.file(chunk) for chunk in range(len(packed.sizes))]
    plain = files.Store([str(folder)], {}).open(packed._files[0].file, codec="zstd")
    (folder / name).unlink()
    (folder / name.replace(".zstd", "")).write_bytes(plain.read(0, plain.size))
    # A torn twin is passed over.
    (folder / other.replace(".zstd", "")).write_bytes(b"torn")
    mixed = opened(folder)
    assert [mixed.file(0), mixed.file(1)] == ["chunk-0-0.bin", "chunk-0-1.zstd.bin"]
    same(everything(mixed), _SAMPLES)
    assert mixed.identity() == packed.identity()
    edit(folder, chunk_0={"filename": "chunk-0-0.bin"}, chunk_1={"filename": "chunk-0-1.bin"})
    same(ours(folder), _SAMPLES)


def test_indexes_of_old_releases(tmp_path: Path) -> None:
    """They leave the header out of chunk_bytes, and most of the config."""
    for how in ("plain", "chunk"):
        folder = write(tmp_path / how, _SAMPLES, **HOW[how])
        path = folder / "index.json"
        index = json.loads(path.read_text())
        for entry in index["chunks"]:
            entry["chunk_bytes"] -= 4 + 4 * (entry["chunk_size"] + 1)
        kept = ("compression", "data_format", "data_spec")
        path.write_text(json.dumps({"chunks": index["chunks"], "config": {k: index["config"][k] for k in kept}}))
        same(ours(folder), _SAMPLES)


def test_what_is_an_index() -> None:
    assert is_litdata({"chunks": [], "config": {}})
    for other in (None, [], {}, {"shards": []}, {"chunks": {}, "config": {}}, {"chunks": []}):
        assert not is_litdata(other)


def test_identity_is_that_of_the_samples(tmp_path: Path) -> None:
    one = write(tmp_path / "one", _SAMPLES)
    two = write(tmp_path / "two", _SAMPLES)
    assert opened(one).identity() == opened(two).identity() == opened(one, tensors="torch").identity()
    assert opened(one).identity() != opened(write(tmp_path / "three", _SAMPLES[:-1])).identity()


def test_no_index_and_none_of_litdata(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-0.bin").write_bytes(b"x")
    with pytest.raises(MissingError):
        opened(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(DataError, match="expected JSON"):
        opened(tmp_path)
    (tmp_path / "index.json").write_text('{"shards": []}')
    with pytest.raises(DataError, match="expected an index of LitData"):
        opened(tmp_path)
    with pytest.raises(ValueError, match="tensors must be"):
        opened(tmp_path, tensors="jax")
