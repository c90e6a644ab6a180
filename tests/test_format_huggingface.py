"""Saved Hugging Face datasets: rows are what `datasets` gives for the same files."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import DataError
from huggingface_files import copied, edit, open_saved, plain, samples, saved

__all__ = ["saved"]  # A fixture.

CASES = [
    *("numbers", "values", "times", "lists", "nested", "arrays", "translation", "translations", "images", "json"),
    *("batches", "shuffled", "format_columns", "format_all_columns"),
]


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
