"""Damaged Hugging Face datasets, and features of all kinds: what is wrong is named, and nothing else is raised."""

import doctest
import io
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataError, MissingError
from headrace.formats import _features
from headrace.formats._features import decoded_columns, feature_decoder, feature_text
from huggingface_files import copied, edit, open_saved, plain, samples, saved

__all__ = ["saved"]  # A fixture.

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
