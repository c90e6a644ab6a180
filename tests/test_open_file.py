"""Local files that stay open, as Python's readers of formats read them."""

import os
from pathlib import Path

import pytest

import headrace as hr
from headrace import _core

SIZES = [0, 1, 4096, (32 << 10) - 1, 32 << 10, 100_000, 1 << 20]
"""Small ones and large ones are read differently."""


def _open(path: Path) -> _core.OpenFile:
    status = path.stat()
    return _core.OpenFile(path, status.st_size, f"m{status.st_mtime_ns}", keep_open=8)


@pytest.mark.parametrize("size", SIZES)
def test_any_part_is_read(tmp_path: Path, size: int) -> None:
    content = os.urandom((1 << 20) + 5)
    path = tmp_path / "file"
    path.write_bytes(content)
    file = _open(path)
    for start in (0, 1, len(content) - size):
        assert file.read(start, min(len(content), start + size)) == content[start : start + size]


@pytest.mark.parametrize("size", SIZES[1:])
def test_what_is_not_there_or_changed_is_an_error_that_names_the_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 << 20))
    file = _open(path)
    with pytest.raises(hr.StoreError, match="file"):
        file.read((2 << 20) - size + 1, (2 << 20) + 1)
    with pytest.raises(hr.StoreError, match="file"):
        file.read(1 << 63, (1 << 63) + size)
    with pytest.raises(IndexError, match="there are no bytes"):
        file.read(size, 0)
    os.truncate(path, size)
    for start in (0, size - 1):
        with pytest.raises(hr.DataError, match="changed since"):
            file.read(start, start + size)
