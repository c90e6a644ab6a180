"""Tables in the cache: built once, whole or not at all, and built anew when damaged."""

import doctest
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import DataError
from headrace.formats import _tables
from headrace.formats._tables import cached


def build() -> dict[str, np.ndarray]:
    return {
        "starts": np.arange(5, dtype=np.int64),
        "names": np.frombuffer(b"abc", np.uint8),
        "file": np.zeros(0, np.uint32),
        "square": np.ones((2, 3), np.float32),
    }


def refuse() -> dict[str, np.ndarray]:
    raise AssertionError("it was in the cache")


def same(found: dict[str, np.ndarray]) -> None:
    wanted = build()
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
        assert not found[name].flags.writeable


def only_file(folder: Path) -> Path:
    (path,) = (folder / "tables").iterdir()
    return path


def test_a_table_is_built_once(tmp_path: Path) -> None:
    key = [1, [["a.tar", 10, "m1"]]]
    same(cached(tmp_path, "tar", key, build))
    same(cached(tmp_path, "tar", key, refuse))
    with np.load(only_file(tmp_path), allow_pickle=False) as found:
        assert set(build()) < set(found.files)


def test_another_key_or_kind_is_another_table(tmp_path: Path) -> None:
    for kind, key in [("tar", [1]), ("tar", [2]), ("lines", [1]), ("tar", ["1"])]:
        cached(tmp_path, kind, key, build)
    assert len(list((tmp_path / "tables").iterdir())) == 4


@pytest.mark.parametrize("damage", ["empty", "short", "cut", "flip", "other", "pickle", "folder"])
def test_a_damaged_table_is_built_anew(tmp_path: Path, damage: str) -> None:
    cached(tmp_path, "tar", [1], build)
    path = only_file(tmp_path)
    data = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        cached(tmp_path, "tar", [2], lambda: {"starts": np.zeros(1)})
        (other,) = set((tmp_path / "tables").iterdir()) - {path}
        path.write_bytes({
            "empty": b"",
            "short": b"PK",
            "cut": data[:-1],
            "flip": data[:100] + bytes([data[100] ^ 1]) + data[101:],
            "other": other.read_bytes(),
            "pickle": pickle.dumps(build()),
        }[damage])  # fmt: skip
    same(cached(tmp_path, "tar", [1], build))
    if damage != "folder":
        same(cached(tmp_path, "tar", [1], refuse))


def test_every_flipped_byte_is_seen(tmp_path: Path) -> None:
    cached(tmp_path, "tar", [1], build)
    path = only_file(tmp_path)
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        same(cached(tmp_path, "tar", [1], build))
        assert path.read_bytes() == data


def test_an_error_while_building_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> dict[str, np.ndarray]:
        raise DataError("no")

    with pytest.raises(DataError, match="no"):
        cached(tmp_path, "tar", [1], fail)
    assert not (tmp_path / "tables").exists()
    with pytest.raises(TypeError, match="plain values"):
        cached(tmp_path, "tar", [1], lambda: {"a": np.array([None])})


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    same(cached(tmp_path / "file", "tar", [1], build))


def test_the_users_mask_decides_on_permissions(tmp_path: Path) -> None:
    cached(tmp_path, "tar", [1], build)
    (tmp_path / "plain").write_bytes(b"")
    assert only_file(tmp_path).stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_processes_may_build_the_same_table_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from headrace.formats._tables import cached\n"
        "for turn in range(20):\n"
        "    found = cached(Path(sys.argv[1]), 'tar', [turn], lambda: {'a': np.full(10000, turn)})\n"
        "    assert (found['a'] == turn).all() and len(found['a']) == 10000\n"
    )
    jobs = [subprocess.Popen([sys.executable, "-c", code, os.fspath(tmp_path)]) for _ in range(3)]
    assert [job.wait(60) for job in jobs] == [0, 0, 0]
    assert len(list((tmp_path / "tables").iterdir())) == 20


def test_the_example_runs(tmp_path: Path) -> None:
    assert doctest.testmod(_tables, extraglobs={"folder": tmp_path}) == (0, 3)
