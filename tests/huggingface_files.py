"""Saved Hugging Face datasets and Arrow files for tests, and how they are read there."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pytest

from headrace import _core
from headrace._files import Store
from headrace.errors import DataError
from headrace.formats.huggingface import HuggingFaceSource
from headrace.samples.source import Source

TESTS = Path(__file__).parent


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


def copied(folder: Path, to: Path) -> Path:
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def edit(path: Path, change: Callable[[Any], object]) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


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
def pyarrow_for_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(_core, "ArrowFile"):
        monkeypatch.setattr(_core, "ArrowFile", PyArrowFile, raising=False)
