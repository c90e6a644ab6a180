"""`map`, `walk` and `merge_datasets`."""

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

import headrace
import prepare_functions as functions
from headrace.prepare import beginning, mapping
from headrace.prepare.job import MapJob, Start
from headrace.prepare.output import Output
from headrace.prepare.placing import StorePlace
from litdata_files import theirs
from litdata_files import write as write_litdata

FORMATS = ("litdata", "mds", "parquet", "arrow")
QUIET: dict[str, Any] = {"progress": False, "verbose": False}


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.md5(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# map


@pytest.mark.parametrize("workers", [0, 2])
def test_map_moves_what_was_written(tmp_path: Path, workers: int) -> None:
    made = headrace.map(functions.write_file, range(40), tmp_path / "out", num_workers=workers, **QUIET)
    assert (made.chunks, made.skipped) == (40, [])
    assert made.bytes == 70
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["deep"]
    found = {path.name: path.read_text() for path in (tmp_path / "out" / "deep").iterdir()}
    assert found == {f"{number}.txt": str(number) for number in range(40)}


@pytest.mark.parametrize("mode", [None, "append", "overwrite"])
def test_map_refuses_two_files_of_one_name(tmp_path: Path, mode: Any) -> None:
    how: dict[str, Any] = {"num_workers": 0, "mode": mode, **QUIET}
    for folder in ("out", "some"):
        (tmp_path / folder).mkdir()
        if mode == "overwrite":
            (tmp_path / folder / "same.txt").write_text("from before")
    with pytest.raises(FileExistsError, match=r"same.txt is there already, of input 0\nhint: give each input files of"):
        headrace.map(functions.write_same, range(3), tmp_path / "out", **how)
    assert (tmp_path / "out" / "same.txt").read_text() == "0"
    made = headrace.map(write_own_and_same, range(3), tmp_path / "some", on_error="skip", **how)
    assert [failure.input for failure in made.skipped] == [1, 2]
    assert {name for name in files(tmp_path / "some") if "_" not in name} == {"0.txt", "same.txt"}
    assert (tmp_path / "some" / "same.txt").read_text() == "0"


def test_map_replaces_files_from_before_if_it_is_to(tmp_path: Path) -> None:
    (tmp_path / "same.txt").write_text("from before")
    with pytest.raises(
        FileExistsError, match=r'same\.txt is there already\nhint: mode="overwrite" replaces files from'
    ):
        headrace.map(functions.write_same, [7], tmp_path, num_workers=0, mode="append", **QUIET)
    assert (tmp_path / "same.txt").read_text() == "from before"
    headrace.map(functions.write_same, [7], tmp_path, num_workers=0, mode="overwrite", resume=False, **QUIET)
    assert (tmp_path / "same.txt").read_text() == "7"


class Paths:
    """Writes files of some names for each input."""

    def __init__(self, *names: list[str]) -> None:
        self.names = names

    def __call__(self, number: int, folder: str) -> None:
        for name in self.names[number]:
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(str(number))


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("first,second", [("b", "b/c.txt"), ("b/c.txt", "b")])
def test_map_refuses_a_file_and_a_folder_of_one_name(tmp_path: Path, first: str, second: str, mode: Any) -> None:
    how: dict[str, Any] = {"num_workers": 0, "mode": mode, **QUIET}
    names = [first], ["a.txt", second], ["d.txt"]
    made = headrace.map(Paths(*names), range(3), tmp_path / "skipped", on_error="skip", **how)
    assert [(failure.input, failure.error[:15]) for failure in made.skipped] == [(1, "FileExistsError")]
    assert {name for name in files(tmp_path / "skipped") if not name.startswith("_")} == {first, "d.txt"}
    with pytest.raises(FileExistsError, match=r"b(/c.txt)? is there already, .*folder"):
        headrace.map(Paths(*names), range(3), tmp_path / "out", **how)
    names[1][1] = "c.txt"
    headrace.map(Paths(*names), range(3), tmp_path / "out", **how)
    assert set(files(tmp_path / "out")) == {first, "a.txt", "c.txt", "d.txt"}


def write_link(number: int, folder: str) -> None:
    Path(folder, f"{number}.txt").write_text("")
    if number == 1:
        Path(folder, "linked").symlink_to(folder)


def test_map_refuses_links_to_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected files and folders, found linked, a symbolic link to a folder"):
        headrace.map(write_link, range(3), tmp_path, num_workers=0, **QUIET)


def full(number: int, folder: str) -> None:
    Path(folder, f"{number}.txt").write_text("")
    if number == 2:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_sample(number: int) -> int:
    if number == 2:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    return number


@pytest.mark.parametrize("workers", [0, 1])
def test_no_input_is_skipped_because_a_disk_is_full(tmp_path: Path, workers: int) -> None:
    how: dict[str, Any] = {"num_workers": workers, "on_error": "skip", **QUIET}
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        headrace.map(full, range(5), tmp_path / "files", **how)
    headrace.map(functions.write_file, range(5), tmp_path / "files", resume=False, mode="append", **how)
    with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
        headrace.optimize(full_sample, range(5), tmp_path / "samples", **how)


def test_no_input_is_skipped_because_a_store_refuses_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(store: Any, key: str, *_: Any, **__: Any) -> Any:
        raise headrace.StoreError(f"{key}: refused")

    output = StorePlace(tmp_path, Path("memory"), "mark", headrace.Store(tmp_path / "store"))
    output.begin(anew=False)
    job = MapJob(functions.write_file, output, "skip", replace=False)
    monkeypatch.setattr(headrace.Store, "put", put)
    with pytest.raises(headrace.StoreError, match="refused") as caught:
        job(Start(0, [0], 0, None))
    assert caught.value.__notes__ == ["in input 0: 0"]


def test_a_disk_without_hard_links_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(headrace.StoreError, match=r"expected a disk where a file can have two names(?s:.*)hint: "):
        headrace.map(functions.write_file, range(3), tmp_path, num_workers=0, on_error="skip", **QUIET)


@pytest.mark.parametrize("synced", [False, True])
def test_map_does_again_what_a_power_cut_may_have_taken(
    tmp_path: Path, synced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn, syncs, boots = Sometimes({5}), [0], ["before"]
    monkeypatch.setattr(mapping, "_SYNC_SECONDS", 0 if synced else 1e9)
    monkeypatch.setattr(os, "sync", lambda: syncs.append(1))
    for module in (beginning, mapping):
        monkeypatch.setattr(module, "boot", lambda: boots[-1])
    with pytest.raises(OSError, match="no more"):
        headrace.map(fn, range(9), tmp_path, num_workers=0, **QUIET)
    assert any(syncs) == synced
    if not synced:
        for path in tmp_path.glob("*.txt"):
            path.write_text("")
    boots.append("after")
    fn.at, fn.calls = set(), []
    headrace.map(fn, range(9), tmp_path, num_workers=0, **QUIET)
    assert fn.calls == list(range(5 if synced else 0, 9))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        f"{number}-{part}.txt": part for number in range(9) for part in "ab"
    }


def write_own_and_same(number: int, folder: str) -> None:
    Path(folder, f"{number}.txt").write_text("own")
    functions.write_same(number, folder)


class Sometimes:
    """Writes half of what it has to, and fails, at some inputs."""

    def __init__(self, at: set[int]) -> None:
        self.at = at
        self.calls: list[int] = []

    def __call__(self, number: int, folder: str) -> None:
        self.calls.append(number)
        Path(folder, f"{number}-a.txt").write_text("a")
        if number in self.at:
            raise OSError("no more")
        Path(folder, f"{number}-b.txt").write_text("b")


def test_map_goes_on_after_an_error(tmp_path: Path) -> None:
    fn = Sometimes({5})
    with pytest.raises(OSError, match="no more") as caught:
        headrace.map(fn, range(9), tmp_path, num_workers=0, **QUIET)
    assert caught.value.__notes__ == ["in input 5: 5"]
    assert {name for name in files(tmp_path) if not name.startswith(".")} == {
        f"{number}-{part}.txt" for number in range(5) for part in "ab"
    }
    fn.at, fn.calls = set(), []
    headrace.map(fn, range(9), tmp_path, num_workers=0, **QUIET)
    assert fn.calls == [5, 6, 7, 8]
    assert set(files(tmp_path)) == {f"{number}-{part}.txt" for number in range(9) for part in "ab"}


class Stop(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_map_goes_on_where_it_ended_among_an_inputs_files(
    tmp_path: Path, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends a run at each call that changes the folder, as a kill between two of them would."""
    ends = 0
    for at in range(100):
        folder, fn, left = tmp_path / str(at), Sometimes(set()), at
        folder.mkdir()
        if mode == "overwrite":
            (folder / "1-a.txt").write_text("old")
        with monkeypatch.context() as patch:

            def ending(call: Any) -> Any:
                def ended(*arguments: Any, **options: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        raise Stop
                    return call(*arguments, **options)

                return ended

            for owner, name in [(Path, "rename"), (Path, "replace"), (Path, "hardlink_to"), (Output, "note")]:
                patch.setattr(owner, name, ending(getattr(owner, name)))
            try:
                headrace.map(fn, range(3), folder, num_workers=0, mode=mode, **QUIET)
                break
            except Stop:
                ends += 1
        calls = fn.calls[:]
        made = headrace.map(fn, range(3), folder, num_workers=0, mode=mode, **QUIET)
        assert made.bytes == 6
        # What was written whole is not written again.
        assert len(fn.calls) <= 4
        assert sorted({*calls, *fn.calls}) == [0, 1, 2]
        assert {path.name: path.read_text() for path in folder.iterdir()} == {
            f"{number}-{part}.txt": part for number in range(3) for part in "ab"
        }
    else:
        pytest.fail("the run never came to its end")
    assert ends > 10


def test_map_skips_and_reports(tmp_path: Path) -> None:
    made = headrace.map(Sometimes({5}), range(9), tmp_path, num_workers=0, on_error="skip", **QUIET)
    assert [(failure.input, failure.error) for failure in made.skipped] == [(5, "OSError: no more")]
    assert made.chunks == 8
    assert not list(tmp_path.glob("5-*"))
    report = (tmp_path / "_headrace" / "skipped.jsonl").read_text()
    assert report.count("\n") == 1
    headrace.map(Sometimes(set()), range(9, 12), tmp_path, num_workers=0, mode="append", **QUIET)
    assert (tmp_path / "_headrace" / "skipped.jsonl").read_text() == report


def test_map_wants_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(ValueError, match="expected an empty folder, found mine"):
        headrace.map(functions.write_file, range(3), tmp_path, num_workers=0, **QUIET)
    headrace.map(functions.write_file, range(3), tmp_path, num_workers=0, mode="append", **QUIET)
    assert sorted(files(tmp_path)) == ["deep/0.txt", "deep/1.txt", "deep/2.txt", "mine"]


# walk


def test_walk_gives_files_in_order(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a/10.txt", "a/9.txt", ".hidden/x.txt", "_aside.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = list(headrace.walk(tmp_path))
    assert found == [str(tmp_path / name) for name in ("a/10.txt", "a/9.txt", "b/2.txt")]
    assert all(Path(name).exists() for name in found)
    with pytest.raises(headrace.MissingError):
        headrace.walk(tmp_path / "nothing")
    with pytest.raises(ValueError, match="none"):
        list(headrace.walk(tmp_path / "*.none"))


# merge_datasets


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_merged_datasets_are_one(tmp_path: Path, format: str, compression: str | None) -> None:
    how: dict[str, Any] = {"format": format, "compression": compression, "chunk_size": 4, "num_workers": 0, **QUIET}
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        headrace.optimize(functions.sample, range(6), tmp_path / part / "00", **how)
    before = files(tmp_path)
    made = headrace.merge_datasets([tmp_path / "a/00", tmp_path / "b/00"], tmp_path / "both")
    assert (made.samples, made.chunks) == (12, 4)
    data = headrace.open(tmp_path / "both")
    assert [data[number]["number"] for number in range(12)] == [number - 50 for number in [*range(6), *range(6)]]
    assert {name: digest for name, digest in files(tmp_path).items() if not name.startswith("both")} == before
    headrace.optimize(functions.sample, range(6, 9), tmp_path / "both", mode="append", **how)
    assert len(headrace.open(tmp_path / "both")) == 15


def test_what_litdata_wrote_is_merged(tmp_path: Path) -> None:
    samples = [{"image": bytes([number]) * 5, "at": (number, 0.5)} for number in range(8)]
    write_litdata(tmp_path / "a", [(one["image"], one["at"][0]) for one in samples[:5]])
    write_litdata(tmp_path / "b", [(one["image"], one["at"][0]) for one in samples[5:]])
    headrace.merge_datasets([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    wanted = [(one["image"], one["at"][0]) for one in samples]
    data = headrace.open(tmp_path / "both")
    assert [tuple(data[number]) for number in range(8)] == wanted
    assert [tuple(one) for one in theirs(tmp_path / "both")] == wanted


def test_datasets_that_are_not_alike_are_not_merged(tmp_path: Path) -> None:
    how: dict[str, Any] = {"num_workers": 0, **QUIET}
    headrace.optimize(functions.sample, range(3), tmp_path / "a", **how)
    headrace.optimize(functions.image, range(3), tmp_path / "b", **how)
    headrace.optimize(functions.sample, range(3), tmp_path / "c", format="mds", **how)
    headrace.optimize(functions.sample, range(3), tmp_path / "d", compression="zstd", **how)
    (tmp_path / "e").mkdir()
    with pytest.raises(TypeError, match=r"b: key 'text': expected str .* found no such key"):
        headrace.merge_datasets([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    with pytest.raises(ValueError, match=r"c: expected a dataset of litdata as .*a, found one of mds"):
        headrace.merge_datasets([tmp_path / "a", tmp_path / "c"], tmp_path / "out")
    with pytest.raises(ValueError, match="to be able to add to it"):
        headrace.merge_datasets([tmp_path / "a", tmp_path / "d"], tmp_path / "out")
    with pytest.raises(ValueError, match=r"e: expected a dataset of .* found none"):
        headrace.merge_datasets([tmp_path / "e"], tmp_path / "out")
    with pytest.raises(ValueError, match="at least one folder"):
        headrace.merge_datasets([], tmp_path / "out")
    (tmp_path / "a" / "chunk-0-0.bin").unlink()
    with pytest.raises(headrace.DataError, match=r"chunk-0-0\.bin"):
        headrace.merge_datasets([tmp_path / "a"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
