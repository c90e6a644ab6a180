"""Saved Hugging Face datasets and Arrow files: rows are what `datasets` and pyarrow give for the same files."""

import doctest
import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import _core
from headrace._files import Store
from headrace.errors import DataError, MissingError
from headrace.formats import _features, arrow
from headrace.formats._features import decoded_columns, feature_decoder, feature_text
from headrace.formats.arrow import ArrowSource
from headrace.formats.huggingface import HuggingFaceSource
from headrace.samples.source import Source

TESTS = Path(__file__).parent
CASES = [
    *("numbers", "values", "times", "lists", "nested", "arrays", "translation", "translations", "images", "json"),
    *("batches", "shuffled", "format_columns", "format_all_columns"),
]


def silent(phase: str, done: int, total: int) -> None:
    assert 0 <= done <= total, phase


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the real `datasets` saved: see huggingface_writer.py."""
    folder = tmp_path_factory.mktemp("saved")
    command = [sys.executable, "-P", str(TESTS / "huggingface_writer.py"), str(folder)]
    variables = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / ".home")}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def open_saved(folder: Path, **options: Any) -> HuggingFaceSource:
    return HuggingFaceSource.open(Store([str(folder)], {}), progress=silent, **options)


def open_arrow(folder: Path) -> ArrowSource:
    store = Store([str(folder)], {})
    return ArrowSource.open(store, store.files, progress=silent)


def samples(source: Source, columns: tuple[str, ...] | None = None) -> list[Any]:
    found = []
    for chunk, size in enumerate(source.sizes):
        loaded = source.load(chunk, columns)
        assert len(loaded) == size
        one_by_one = [loaded[row] for row in range(len(loaded))]
        assert plain(loaded.take(range(len(loaded)))) == plain(one_by_one)
        found += one_by_one
    return found


def plain(value: Any) -> Any:
    """As huggingface_writer.py writes it: arrays as lists, images as their pixels."""
    if isinstance(value, PIL.Image.Image):
        return ("image", value.mode, value.size, value.tobytes())
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", CASES)
def test_rows_are_what_datasets_gives(saved: Path, case: str) -> None:
    wanted = pickle.loads((saved / f"{case}.pickle").read_bytes())
    if case == "arrays":
        assert np.isnan(wanted[3]["ragged"]), "the one null that datasets gives otherwise"
        wanted[3]["ragged"] = None
    source = open_saved(saved / case)
    found = samples(source)
    assert len(found) == source.sizes.sum() == len(wanted) > 0
    assert [plain(row) for row in found] == wanted
    for row, right in zip(found, wanted, strict=True):
        assert set(row) == set(right) == set(source.schema)


@pytest.mark.parametrize("case", CASES)
def test_columns_and_other_processes_see_the_same(saved: Path, case: str) -> None:
    source = open_saved(saved / case)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.identity() == source.identity()
    assert copy.schema == source.schema
    rows = plain(samples(source))
    assert plain(samples(copy)) == rows
    for name in source.schema:
        assert plain(samples(copy, (name,))) == [{name: row[name]} for row in rows]
    arrays = [copy.load(chunk).arrays(list(source.schema)) for chunk in range(len(copy.sizes))]
    for name in source.schema:
        assert plain([value for part in arrays for value in part[name]]) == [row[name] for row in rows]


def test_rows_come_in_batches_of_files_in_order(saved: Path) -> None:
    source = open_saved(saved / "batches")
    assert source.sizes.sum() == 2500
    assert [row["a"] for row in samples(source, ("a",))] == list(range(2500))
    assert source.file(0) == "data-00000-of-00003.arrow"
    assert source.file(len(source.sizes) - 1) == "data-00002-of-00003.arrow"
    stored = sum(path.stat().st_size for path in (saved / "batches").glob("*.arrow"))
    assert 0.8 * stored < source.stored.sum() < stored
    assert source.schema == {"a": "int64", "b": "string"}
    assert str(source.place(1, 2)).endswith(".arrow, chunk 1, row 2")


def test_a_dataset_without_rows_is_one(saved: Path) -> None:
    source = open_saved(saved / "empty")
    assert len(source.sizes) == 0
    assert samples(source) == []


def test_schemas_and_splits_are_known(saved: Path) -> None:
    source = open_saved(saved / "images")
    assert source.split == "train"
    assert open_saved(saved / "batches").split is None
    assert source.schema["list"] == "List(Image)"
    assert source.schema["nested"] == "{image: Image, number: int32}"
    assert open_saved(saved / "arrays").schema["ragged"] == "Array2D([None, 2], int64)"
    assert open_saved(saved / "values").schema["label"] == "ClassLabel"


def test_arrays_have_their_dtype_and_shape(saved: Path) -> None:
    row = samples(open_saved(saved / "arrays"))[1]
    assert {name: (value.dtype.name, value.shape) for name, value in row.items()} == {
        "2": ("int32", (2, 3)),
        "3": ("uint8", (1, 2, 2)),
        "4": ("float32", (1, 1, 2, 1)),
        "5": ("float64", (1, 1, 1, 1, 2)),
        "ragged": ("int64", (2, 2)),
    }


def test_nothing_is_decoded_if_asked_not_to(saved: Path) -> None:
    rows = samples(open_saved(saved / "images", decode=False))
    assert rows[0]["png"]["bytes"].startswith(b"\x89PNG")
    assert rows[2]["list"][1]["bytes"].startswith(b"\x89PNG")
    assert rows[1]["turned"]["path"] == "1.jpg"
    assert [row["json"] for row in samples(open_saved(saved / "json", decode=False))][:2] == ['{"a":[1,null,{}]}', "5"]
    assert samples(open_saved(saved / "audio", decode=False)) == pickle.loads((saved / "audio.pickle").read_bytes())


def test_sound_is_decoded_to_the_mean_of_its_channels(saved: Path) -> None:
    for row in (row for row in samples(open_saved(saved / "audio")) if row["audio"] is not None):
        assert set(row["audio"]) == {"array", "sampling_rate", "path"}
        assert row["audio"]["sampling_rate"] == row["rate"]["sampling_rate"] == 16000
        assert row["audio"]["path"].endswith(".wav")
        array = row["audio"]["array"]
        assert array.dtype == np.float32
        channels = 2 if row["audio"]["path"] == "1.wav" else 1
        wanted = (np.sin(np.arange(200 * channels) / 9) * 0.7).reshape(-1, channels).mean(axis=1)
        np.testing.assert_allclose(array, wanted, atol=1e-4)


def test_sound_of_another_rate_is_not_passed_off(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved / "audio", tmp_path)
    edit(folder / "dataset_info.json", lambda info: info["features"]["rate"].update(sampling_rate=8000))
    with pytest.raises(DataError, match=r"column 'rate': expected sound of 8000 samples a second.* found 16000\nhint"):
        open_saved(folder).load(0)[0]
    assert open_saved(folder).load(0, ("audio",))[0]["audio"]["sampling_rate"] == 16000


def test_several_splits_are_listed(saved: Path) -> None:
    with pytest.raises(DataError, match=r"splits 'train', 'test'\nhint: open one of them, for example .*splits/train"):
        open_saved(saved / "splits")
    assert open_saved(saved / "splits" / "test").sizes.tolist() == [1]


def test_an_indices_mapping_is_refused(saved: Path, tmp_path: Path) -> None:
    """Rows in their stored order would be silently wrong."""
    folder = copied(saved / "batches", tmp_path)
    edit(folder / "state.json", lambda state: state.update(_indices_files=[{"filename": "indices.arrow"}]))
    with pytest.raises(DataError, match=r"found an indices mapping(.|\n)*hint: .*flatten_indices"):
        open_saved(folder)


def test_identity_is_of_names_sizes_rows_and_features(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved / "values", tmp_path)
    os.utime(folder / "data-00000-of-00002.arrow", (5, 5))
    assert open_saved(folder).identity() == open_saved(saved / "values").identity()
    edit(folder / "dataset_info.json", lambda info: info["features"]["label"].update(names=["yes", "no"]))
    assert open_saved(folder).identity() != open_saved(saved / "values").identity()


# Damage


def copied(folder: Path, to: Path) -> Path:
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def edit(path: Path, change: Callable[[Any], object]) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


DAMAGED_STATES = {
    "no files": lambda state: state.pop("_data_files"),
    "files of another type": lambda state: state.update(_data_files={"a": 1}),
    "file of another type": lambda state: state.update(_data_files=["data-00000-of-00003.arrow"]),
    "file name of another type": lambda state: state.update(_data_files=[{"filename": 5}]),
    "file elsewhere": lambda state: state.update(_data_files=[{"filename": "../x.arrow"}]),
    "absolute file": lambda state: state.update(_data_files=[{"filename": "/etc/passwd"}]),
    "columns of another type": lambda state: state.update(_format_columns="a"),
    "unknown columns": lambda state: state.update(_format_columns=["zz"]),
    "unhashable columns": lambda state: state.update(_format_columns=[{}]),
}


@pytest.mark.parametrize("kind", DAMAGED_STATES)
def test_a_damaged_state_is_named(saved: Path, tmp_path: Path, kind: str) -> None:
    folder = copied(saved / "batches", tmp_path)
    edit(folder / "state.json", DAMAGED_STATES[kind])
    with pytest.raises(DataError, match=r"state\.json: expected"):
        open_saved(folder)


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json"])
@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 200_000, b'{"a": ' + b"1" * 9999])
def test_what_is_no_json_is_named(saved: Path, tmp_path: Path, name: str, text: bytes) -> None:
    folder = copied(saved / "batches", tmp_path)
    (folder / name).write_bytes(text)
    with pytest.raises(DataError, match=rf"{name}: expected (JSON|a JSON object)"):
        open_saved(folder)


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json", "data-00001-of-00003.arrow"])
def test_a_missing_file_is_named(saved: Path, tmp_path: Path, name: str) -> None:
    folder = copied(saved / "batches", tmp_path)
    (folder / name).unlink()
    with pytest.raises(MissingError, match=name):
        open_saved(folder)


DAMAGED_FEATURES = {
    "no object": [],
    "of no type": {"a": 5},
    "unknown": {"a": {"_type": "Hologram"}},
    "list of two": {"a": [{"_type": "Image"}, {"_type": "Image"}]},
    "list of none": {"a": {"_type": "List"}},
    "array without shape": {"a": {"_type": "Array2D", "dtype": "int32"}},
    "array of another shape": {"a": {"_type": "Array2D", "shape": [2], "dtype": "int32"}},
    "array of objects": {"a": {"_type": "Array2D", "shape": [2, 2], "dtype": "object"}},
    "array of nonsense": {"a": {"_type": "Array2D", "shape": [2, 2], "dtype": "int33"}},
    "array of lists": {"a": {"_type": "Array2D", "shape": [2, 2], "dtype": ["int32"]}},
    "sound of many streams": {"a": {"_type": "Audio", "stream_index": 3}},
}


@pytest.mark.parametrize("kind", DAMAGED_FEATURES)
def test_damaged_features_are_named(saved: Path, tmp_path: Path, kind: str) -> None:
    folder = copied(saved / "batches", tmp_path)
    edit(folder / "dataset_info.json", lambda info: info.update(features=DAMAGED_FEATURES[kind]))
    with pytest.raises(DataError, match=r"dataset_info\.json: (column 'a'|expected 'features')"):
        open_saved(folder)


def test_features_nested_without_end_are_named() -> None:
    feature: Any = {"_type": "Image"}
    for _ in range(500):
        feature = {"_type": "List", "feature": feature}
    with pytest.raises(DataError, match="nested at most"):
        feature_decoder({"a": feature})


def test_features_that_are_not_known_leave_arrow_types(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved / "batches", tmp_path)
    edit(folder / "dataset_info.json", lambda info: info.update(features=None))
    assert plain(samples(open_saved(folder))) == plain(samples(open_saved(saved / "batches")))


STRUCT = {"bytes": b"nonsense", "path": "a.png"}
WRONG_VALUES = {
    "no image": ({"_type": "Image"}, STRUCT),
    "cut image": ({"_type": "Image"}, {"bytes": b"\x89PNG\r\n\x1a\n" + b"\0" * 9, "path": None}),
    "no sound": ({"_type": "Audio"}, STRUCT),
    "only a path": ({"_type": "Image"}, {"bytes": None, "path": "/etc/hostname"}),
    "sound with only a path": ({"_type": "Audio"}, {"bytes": None, "path": "/etc/hostname"}),
    "an image that is a number": ({"_type": "Image"}, 5),
    "no mode": ({"_type": "Image", "mode": "nonsense"}, STRUCT),
    "no JSON": ({"_type": "Json"}, "{"),
    "deep JSON": ({"_type": "Json"}, "[" * 200_000),
    "JSON that is a number": ({"_type": "Json"}, 5),
    "array of another shape": ({"_type": "Array2D", "shape": [2, 2], "dtype": "int32"}, [[1, 2, 3]]),
    "array of uneven rows": ({"_type": "Array2D", "shape": [2, 2], "dtype": "int32"}, [[1, 2], [1]]),
    "array of text": ({"_type": "Array2D", "shape": [1, 1], "dtype": "int32"}, [["x"]]),
    "array with nulls": ({"_type": "Array2D", "shape": [1, 1], "dtype": "int32"}, [[None]]),
    "no list": ({"_type": "List", "feature": {"_type": "Image"}}, 5),
    "no struct": ({"x": {"_type": "Image"}}, 5),
    "inside": ({"x": [{"_type": "Image"}]}, {"x": [None, STRUCT]}),
}


@pytest.mark.parametrize("kind", WRONG_VALUES)
def test_values_that_are_not_what_they_should_be_are_named(kind: str) -> None:
    feature, value = WRONG_VALUES[kind]
    decode = feature_decoder({"a": feature})
    assert decode({"a": None, "b": 1}) == {"a": None, "b": 1}
    assert decode({}) == {}
    with pytest.raises(DataError, match=r"^column 'a'.*: expected"):
        decode({"a": value})


def test_faults_name_file_and_row(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved / "images", tmp_path)
    edit(folder / "dataset_info.json", lambda info: info["features"].update(turned={"_type": "Audio"}))
    chunk = open_saved(folder).load(0)
    with pytest.raises(DataError, match=r"data-00000-of-00002\.arrow, batch 0, row 1: column 'turned': expected sound"):
        chunk[1]
    with pytest.raises(DataError, match=r"row 2: column 'turned'"):
        chunk.take([2])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    for kind, package in (("Image", "pillow"), ("Audio", "soundfile")):
        with pytest.raises(ImportError, match=rf"column 'a'.*pip install {package}(.|\n)*hint: decode=False"):
            feature_decoder({"a": {"_type": kind}})({"a": STRUCT})
        assert feature_decoder({"a": {"_type": kind}}, decode=False)({"a": STRUCT}) == {"a": STRUCT}


def test_files_that_datasets_has_others_decode_stay_as_they_are() -> None:
    for kind in ("Video", "Pdf", "Nifti", "Mesh"):
        assert feature_decoder({"a": {"_type": kind}})({"a": STRUCT}) == {"a": STRUCT}


def test_sequences_of_structs_from_older_versions_are_structs_of_lists() -> None:
    png = io.BytesIO()
    PIL.Image.new("RGB", (2, 3)).save(png, "PNG")
    feature = {"_type": "Sequence", "feature": {"image": {"_type": "Image"}, "n": {"_type": "Value", "dtype": "int32"}}}
    stored = {"bytes": png.getvalue(), "path": None}
    row = feature_decoder({"a": feature})({"a": {"image": [stored, None], "n": [1, 2]}})
    assert row["a"]["n"] == [1, 2]
    assert row["a"]["image"][0].size == (2, 3)
    assert row["a"]["image"][1] is None
    rows = feature_decoder({"a": feature})({"a": [{"image": stored, "n": 1}]})
    assert rows["a"][0]["image"].size == (2, 3)


features = st.recursive(
    st.sampled_from(["Image", "Audio", "Json", "Value", "ClassLabel", "Video"]).map(lambda kind: {"_type": kind}),
    lambda inner: (
        inner.map(lambda part: [part])
        | inner.map(lambda part: {"_type": "List", "feature": part})
        | inner.map(lambda part: {"_type": "LargeList", "feature": part})
        | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2)
    ),
    max_leaves=6,
)
values = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.just(STRUCT),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "bytes"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(features, values)
def test_any_value_is_decoded_or_refused(feature: Any, value: Any) -> None:
    stored = pickle.loads(pickle.dumps(value))
    assert isinstance(feature_text(feature), str)
    try:
        row = feature_decoder({"a": feature})({"a": value})
    except DataError as error:
        assert str(error).startswith("column 'a'")  # noqa: PT017
        return
    if not decoded_columns({"a": feature}):
        assert row == {"a": stored}


def test_examples_run() -> None:
    assert doctest.testmod(_features) == (0, 3)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["Image", "Array2D", "int8", "i4,i4", "O"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["_type", "feature", "shape", "dtype", "mode", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(json_values)
def test_any_feature_is_known_or_refused(feature: Any) -> None:
    assert isinstance(feature_text(feature), str)
    try:
        decode = feature_decoder({"a": feature})
    except DataError as error:
        assert str(error).startswith("column 'a'")  # noqa: PT017
        return
    assert decode({"a": None}) == {"a": None}


@pytest.mark.parametrize("key", ["dtype", "shape", "_type"])
def test_what_is_shown_of_features_has_an_end(saved: Path, tmp_path: Path, key: str) -> None:
    deep = "[" * 900 + "]" * 900
    folder = copied(saved / "batches", tmp_path)
    info = json.dumps({"features": {"a": {"_type": "Array2D", "dtype": "int8", "shape": [1, 1]} | {key: "DEEP"}}})
    (folder / "dataset_info.json").write_text(info.replace('"DEEP"', deep))
    with pytest.raises(DataError) as error:
        open_saved(folder)
    assert len(str(error.value)) < 2000
    edit(folder / "dataset_info.json", lambda info: info.update(features=None))
    for name in ("_data_files", "_format_columns"):
        state = json.loads((saved / "batches" / "state.json").read_text()) | {name: "DEEP"}
        (folder / "state.json").write_text(json.dumps(state).replace('"DEEP"', deep))
        with pytest.raises(DataError, match=r"state\.json"):
            open_saved(folder)


# Arrow files


def tables() -> Iterable[pa.Table]:
    for number in range(3):
        rows = range(number * 10, number * 10 + 10)
        yield pa.table(
            {"a": pa.array(rows, pa.int64()), "b": [str(row) for row in rows], "c": [[row, 1] for row in rows]}
        )


def write_arrow(path: Path, parts: Iterable[pa.Table], *, stream: bool = False) -> None:
    parts = list(parts)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), parts[0].schema) as writer:
        for part in parts:
            writer.write_table(part, max_chunksize=4)


@pytest.mark.parametrize("stream", [False, True])
def test_arrow_files_are_what_pyarrow_gives(tmp_path: Path, stream: bool) -> None:
    first, *others = tables()
    write_arrow(tmp_path / "a.arrow", [first], stream=stream)
    write_arrow(tmp_path / "b.arrow", others, stream=stream)
    source = open_arrow(tmp_path)
    assert plain(samples(source)) == [row for table in tables() for row in table.to_pylist()]
    assert source.sizes.tolist() == [4, 4, 2] * 3
    assert list(source.schema) == ["a", "b", "c"]
    row = source.load(1, ("c", "a"))[0]
    assert list(row) == ["c", "a"]
    assert plain(row) == {"c": [4, 1], "a": 4}
    assert source.load(1).arrays(["a"])["a"].tolist() == [4, 5, 6, 7]
    assert list(source.load(1).arrays(["b", "a"])["b"]) == ["4", "5", "6", "7"]
    assert plain(samples(pickle.loads(pickle.dumps(source)))) == plain(samples(source))


def test_what_files_hold_is_kept_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number, table in enumerate(tables()):
        write_arrow(folder / f"{number}.arrow", [table])
    store = Store([str(folder)], {})
    opened: list[str] = []

    def count_calls(store: Store, file: Any) -> Any:
        opened.append(file.path)
        return open_file(store, file)

    open_file = arrow._open
    monkeypatch.setattr(arrow, "_open", count_calls)
    first = ArrowSource.open(store, store.files, progress=silent, cache_dir=tmp_path / "cache")
    rows = plain(samples(first))
    assert opened == ["0.arrow", "1.arrow", "2.arrow"], "once each"
    again = ArrowSource.open(store, store.files, progress=silent, cache_dir=tmp_path / "cache")
    assert len(opened) == 3
    assert again.identity() == first.identity()
    assert again.schema == first.schema
    assert again.stored.tolist() == first.stored.tolist()
    assert plain(samples(again)) == rows
    assert len(opened) == 6
    assert ArrowSource.open(store, [], progress=silent, cache_dir=tmp_path / "cache").sizes.tolist() == []


def test_batches_without_rows_are_no_chunks(tmp_path: Path) -> None:
    table = next(iter(tables()))
    write_arrow(tmp_path / "a.arrow", [table.slice(0, 0)])
    with pa.ipc.new_file(str(tmp_path / "b.arrow"), table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 3), table.slice(0, 0), table.slice(3)):
            for batch in part.to_batches() or [pa.record_batch(part.schema.empty_table().to_pydict(), part.schema)]:
                writer.write_batch(batch)
    source = open_arrow(tmp_path)
    assert source.sizes.tolist() == [3, 7]
    assert plain(samples(source)) == table.to_pylist()
    assert 0 < source.stored.sum() < (tmp_path / "b.arrow").stat().st_size


def test_the_file_whose_columns_differ_is_named(tmp_path: Path) -> None:
    """B080: two files with an extra column break the whole load."""
    table = next(iter(tables()))
    write_arrow(tmp_path / "a.arrow", [table])
    write_arrow(tmp_path / "b.arrow", [table.append_column("extra", table["a"])])
    assert [list(row) for row in samples(open_arrow(tmp_path))] == [["a", "b", "c"]] * 20
    write_arrow(tmp_path / "c.arrow", [table.drop_columns(["b"])])
    with pytest.raises(DataError, match=r"c\.arrow: expected a column 'b' of type .*, as in a\.arrow, found none"):
        open_arrow(tmp_path)
    write_arrow(tmp_path / "c.arrow", [table.set_column(0, "a", table["b"])])
    with pytest.raises(DataError, match=r"c\.arrow: expected a column 'a' of type .*, found one of"):
        open_arrow(tmp_path)


def test_a_damaged_arrow_file_is_named(tmp_path: Path) -> None:
    write_arrow(tmp_path / "a.arrow", tables())
    whole = (tmp_path / "a.arrow").read_bytes()
    for data in (b"", whole[:100], whole[:-9], b"ARROW1\0\0" + b"\0" * 50):
        (tmp_path / "a.arrow").write_bytes(data)
        with pytest.raises(DataError, match=r"a\.arrow"):
            open_arrow(tmp_path)


@pytest.mark.skipif(not hasattr(_core, "ArrowFile"), reason="the core reads no Arrow files yet")
@pytest.mark.parametrize("stream", [False, True])
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=3), st.booleans())
def test_a_damaged_arrow_file_gives_values_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, stream: bool, changes: list[tuple[int, int]], cut: bool
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    write_arrow(folder / "a.arrow", tables(), stream=stream)
    data = bytearray((folder / "a.arrow").read_bytes())
    for place, value in changes:
        data[place % len(data)] = value
    (folder / "a.arrow").write_bytes(data[: len(data) - changes[0][0] % 100] if cut else data)
    try:
        samples(open_arrow(folder))
    except DataError as error:
        assert "a.arrow" in str(error)  # noqa: PT017


# Until the core reads Arrow files: what it will give, by pyarrow.


class PyArrowRows:
    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self.nbytes = batch.nbytes
        self.columns = batch.schema.names

    def __len__(self) -> int:
        return len(self._batch)

    def row(self, row: int) -> dict[str, Any]:
        return self.take([row])[0]

    def take(self, rows: list[int]) -> list[dict[str, Any]]:
        columns = {field.name: self._batch[field.name] for field in self._batch.schema}
        lists = {name: column.to_pylist() for name, column in columns.items()}
        return [{name: as_array(lists[name][row], columns[name].type) for name in columns} for row in rows]

    def arrays(self) -> dict[str, Any]:
        names = [
            field.name
            for field in self._batch.schema
            if pa.types.is_integer(field.type) and not self._batch[field.name].null_count
        ]
        return {name: self._batch[name].to_numpy(zero_copy_only=False) for name in names}


def as_array(value: Any, kind: pa.DataType) -> Any:
    """Lists of numbers as NumPy arrays."""
    if isinstance(value, list) and hasattr(kind, "value_type"):
        if pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type):
            return np.array(value, kind.value_type.to_pandas_dtype()) if None not in value else value
        return [as_array(part, kind.value_type) for part in value]
    return value


class PyArrowFile:
    def __init__(self, path: str) -> None:
        try:
            try:
                with pa.ipc.open_file(path) as reader:
                    self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
                    schema = reader.schema
            except pa.ArrowInvalid:
                with pa.OSFile(path) as file, pa.ipc.open_stream(file) as reader:
                    self._batches, schema = list(reader), reader.schema
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{path}: {error}") from None
        self._schema = [(field.name, str(field.type)) for field in schema]

    def schema(self) -> list[tuple[str, str]]:
        return self._schema

    def batch_rows(self) -> bytes:
        return np.array([len(batch) for batch in self._batches], np.int64).tobytes()

    def batch_bytes(self) -> bytes:
        return np.array([batch.nbytes for batch in self._batches], np.int64).tobytes()

    @staticmethod
    def open(listing: Any, path: str, size: int, version: str) -> "PyArrowFile":
        return PyArrowFile(f"{listing.local_root}/{path}")

    def read(self, batch: int, columns: list[str] | None) -> PyArrowRows:
        found = self._batches[batch]
        return PyArrowRows(found.select([name for name in found.schema.names if columns is None or name in columns]))


@pytest.fixture(autouse=True)
def _pyarrow_for_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(_core, "ArrowFile"):
        monkeypatch.setattr(_core, "ArrowFile", PyArrowFile, raising=False)
