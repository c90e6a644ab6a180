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
import pytest

from headrace._files import Store
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
