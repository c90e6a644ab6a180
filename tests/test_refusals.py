"""What cannot be meant is refused where it is said, with what to say instead."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("lines", "texts", "tokens", "table"):
        (tmp_path / name).mkdir()
    rows = [{"text": f"line {number}", "tokens": [number] * 9} for number in range(20)]
    (tmp_path / "lines" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "texts" / "a.txt").write_text("one\ntwo\n")
    np.arange(100, dtype="<u2").tofile(tmp_path / "tokens" / "a.bin")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "table" / "a.parquet")
    return tmp_path


def letters(text: str) -> list[int]:
    return list(text.encode())


def raised(kind: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


def test_a_schedule_is_a_dict_of_dicts() -> None:
    for points in (5, [1, 2], {0: 5}, {0: {"a": 1}, 9: None}):
        text = raised(TypeError, lambda points=points: hr.WeightSchedule(points))  # pyright: ignore[reportArgumentType]
        assert "a schedule must be a dict from steps or tokens to the weight of each source, such as {0: {" in text
        assert text.endswith(f"got {points!r}")
    for shape in ("constant", "linear"):
        assert hr.WeightSchedule({}, shape=shape).pieces() == []
    assert "got over='rows', shape='constant'" in raised(
        ValueError,
        lambda: hr.WeightSchedule({}, over="rows"),  # pyright: ignore[reportArgumentType]
    )
    assert "got over='steps', shape='step'" in raised(
        ValueError,
        lambda: hr.WeightSchedule({0: {"a": 1}}, shape="step"),  # pyright: ignore[reportArgumentType]
    )
    odd = hr.WeightSchedule({0: {"a": 1}, 9: {"b": 1}}, shape="linear")
    assert "the same sources at each point, got ['a'] at 0 and ['b'] at 9" in raised(ValueError, odd.pieces)


def test_names_of_columns_are_a_list(folder: Path) -> None:
    assert raised(TypeError, lambda: hr.ParquetReader(columns="text")) == "columns must be a list of names, got 'text'"
    assert hr.ParquetReader(columns=("text",)).columns == ["text"]


def test_a_key_is_no_password(folder: Path) -> None:
    for key, kind in (("password", "str"), (b"key", "bytes"), (object(), "object")):
        text = raised(TypeError, lambda key=key: hr.open(folder / "lines", decryption=key))  # pyright: ignore[reportArgumentType]
        assert f"got a {kind} without algorithm\nhint: headrace.encryption.load_key(path, password)" in text


def test_packed_columns_have_types_that_hold_what_is_added(folder: Path) -> None:
    lines = hr.open(folder / "lines")
    assert "columns['tokens'] must be \"bool\", " in raised(
        ValueError, lambda: lines.pack(8, columns={"tokens": "potato"})
    )
    for name, given, kind in (("eos_id", 256, "uint8"), ("bos_id", -1, "uint16"), ("eos_id", 2**15, "int16")):
        how: dict[str, Any] = {name: given, "columns": {"tokens": kind}}
        text = raised(ValueError, lambda how=how: lines.pack(8, **how))
        assert f"{name} must fit into 'tokens', which is {kind} (" in text
        assert text.endswith(f", got {given}")
    loader = hr.DataLoader(lines.pack(10, columns={"tokens": "uint8"}, eos_id=255), global_batch_size=4)
    assert 255 in next(iter(loader))["tokens"]


def test_a_text_that_is_not_there_is_told_at_once(folder: Path) -> None:
    for name in ("lines", "table"):
        text = raised(ValueError, lambda name=name: hr.open(folder / name).tokenize(letters, column="txt", eos=0))
        assert "tokenize: samples have no part 'txt', only text, tokens\nhint: column= names the text" in text
    lines = hr.open(folder / "lines")
    assert lines.map(lambda row: {"txt": row["text"]}).tokenize(letters, column="txt", eos=0)[0]["tokens"][-1] == 0
    # A key that only a late line has is found.
    with (folder / "lines" / "a.jsonl").open("a") as out:
        out.write("".join(json.dumps({"late": "x"}) + "\n" for _ in range(3000)))
    assert len(hr.open(folder / "lines").skip(20).tokenize(letters, column="late", eos=False)[0]["tokens"]) == 1


def test_raw_files_say_how_they_are_opened_as_what_they_are(folder: Path) -> None:
    texts = hr.open(folder / "texts")
    for call in (lambda: texts.tokenize(letters, eos=0), lambda: texts.pack(8)):
        assert 'hint: headrace.open(..., format="text") makes a sample {"text": line}' in raised(ValueError, call)
    lines = hr.open(folder / "texts", format="text").tokenize(letters, eos=0)
    assert [sample["tokens"].tolist() for sample in lines] == [[111, 110, 101, 0], [116, 119, 111, 0]]
    tokens = hr.open(folder / "tokens")
    hint = 'hint: headrace.open(..., stored_dtype="uint16") reads these files as tokens of that type'
    assert hint in raised(ValueError, lambda: tokens.pack(8))
    assert hint in raised(TypeError, lambda: tokens.sequences(8))
    assert len(hr.open(folder / "tokens", stored_dtype="uint16").sequences(8)) == 12


def test_single_records_are_not_packed(folder: Path) -> None:
    stream = hr.open(folder / "tokens", stored_dtype="uint16")
    text = raised(TypeError, lambda: stream.pack(8))
    assert "pack: expected samples that are lists of tokens, got single records of" in text
    assert text.endswith("hint: sequences(length) makes them")
    with hr.StreamWriter(folder / "ends", "uint16", documents=True) as writer:
        writer.write([1, 2])
    assert "sequences(length), or documents() makes" in raised(TypeError, lambda: hr.open(folder / "ends").pack(8))
    batch = next(iter(hr.DataLoader(stream.sequences(10).pack(5), global_batch_size=2, shuffle=False)))
    assert batch["tokens"].shape == (2, 5)


def test_keys_of_stores_are_text(folder: Path) -> None:
    store = hr.Store(folder)
    calls: list[Callable[[Any], Any]] = [
        store.read, store.head, store.delete, store.uri,
        lambda key: store.put(key, b""), lambda key: store.swap(key, b"", "1"),
    ]  # fmt: skip
    for call in calls:
        for key in (5, None, b"a", Path("a")):
            text = raised(TypeError, lambda call=call, key=key: call(key))
            assert text == f"key must be text, the path of a file below the store's root, got {key!r}"
    assert raised(TypeError, lambda: store.list(5)).startswith("prefix must be text")  # pyright: ignore[reportArgumentType]


def test_a_store_fills_its_templates_once(folder: Path) -> None:
    store = hr.Store(folder / "{a{%%}b}")
    assert store.url == str(folder / "{a%b}")
    assert pickle.loads(pickle.dumps(store)).url == store.url


@pytest.mark.parametrize("kind", ["packed", "lanes", "samples"])
def test_batches_pickle_as_what_they_hold(folder: Path, kind: str) -> None:
    data: Any = {
        "packed": lambda: hr.open(folder / "table").pack(6, boundaries=True),
        "lanes": lambda: hr.open(folder / "lines").pack(6, mode="pad"),
        "samples": lambda: hr.open(folder / "lines"),
    }[kind]()
    batch: Any = next(iter(hr.DataLoader(data, global_batch_size=2, seed=0)))
    again = pickle.loads(pickle.dumps(batch))
    assert type(again) is dict
    assert list(again) == list(batch)
    for name, value in batch.items():
        np.testing.assert_array_equal(again[name], value)
