"""`optimize`: nothing is lost or twice, whatever is killed, and the same dataset comes of any number of workers."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
import prepare_functions as functions
from prepare_functions import by_number, environment, files, ours, plain, started, wanted

FORMATS = ("litdata", "mds", "parquet", "arrow")
QUIET: dict[str, Any] = {"progress": False, "verbose": False}


# What comes out


@pytest.mark.parametrize("format", FORMATS)
def test_ordered_output_is_the_same_for_any_number_of_workers(tmp_path: Path, format: str) -> None:
    found: list[dict[str, bytes]] = []
    for workers in (0, 1, 3):
        made = headrace.optimize(
            functions.several,
            range(120),
            tmp_path / str(workers),
            format=format,
            chunk_size=17,
            num_workers=workers,
            keep_data_ordered=True,
            **QUIET,
        )
        assert (made.samples, made.chunks, made.skipped) == (120, 8, [])
        found.append(files(tmp_path / str(workers)))
    assert len(found[0]) == 9
    assert found[0] == found[1] == found[2]
    columns = sorted if format == "mds" else list
    assert [columns(one) for one in ours(tmp_path / "3")] == [columns(one) for one in wanted(120)]
    assert ours(tmp_path / "3") == wanted(120)


@pytest.mark.parametrize("format", FORMATS)
def test_without_an_order_samples_are_the_same(tmp_path: Path, format: str) -> None:
    headrace.optimize(functions.several, range(90), tmp_path / "data", format=format, num_workers=2, **QUIET)
    assert by_number(ours(tmp_path / "data")) == by_number(wanted(90))


def test_an_iterator_of_unknown_length(tmp_path: Path) -> None:
    made = headrace.optimize(
        functions.several, iter(range(60)), tmp_path / "data", num_workers=2, keep_data_ordered=True, **QUIET
    )
    assert made.samples == 60
    assert ours(tmp_path / "data") == wanted(60)


def test_an_input_that_yields_more_than_a_block(tmp_path: Path) -> None:
    for ordered in (True, False):
        folder = tmp_path / str(ordered)
        headrace.optimize(
            functions.huge, range(4), folder, chunk_bytes="2MiB", num_workers=2, keep_data_ordered=ordered, **QUIET
        )
        data = headrace.open(folder)
        found = [(sample["input"], sample["part"]) for sample in (data[at] for at in range(len(data)))]
        assert sorted(found) == [(number, part) for number in range(4) for part in range(40)]
        assert not ordered or found == sorted(found)


@pytest.mark.parametrize("format", FORMATS)
def test_no_samples_at_all_are_no_dataset(tmp_path: Path, format: str) -> None:
    for inputs in ([0, 3, 6], []):
        with pytest.raises(ValueError, match=f"expected at least one sample, found none in {len(inputs)} inputs"):
            headrace.optimize(functions.several, inputs, tmp_path / "data", format=format, num_workers=0, **QUIET)
        assert not (tmp_path / "data").exists()


def test_a_first_look_takes_some_inputs(tmp_path: Path) -> None:
    headrace.optimize(functions.sample, range(100), tmp_path / "ten", num_workers=0, fast_dev_run=True, **QUIET)
    assert len(headrace.open(tmp_path / "ten")) == 10
    headrace.optimize(functions.sample, iter(range(100)), tmp_path / "3", num_workers=0, fast_dev_run=3, **QUIET)
    assert len(headrace.open(tmp_path / "3")) == 3


def test_nothing_is_left_but_the_dataset(tmp_path: Path) -> None:
    headrace.optimize(functions.sample, range(3), tmp_path / "data", num_workers=1, **QUIET)
    assert sorted(files(tmp_path / "data")) == ["chunk-0-0.bin", "index.json"]
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["chunk-0-0.bin", "index.json"]


# One writer


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    process = started(tmp_path / "first", "litdata", ordered=True, workers=1)
    log = functions.Logged(tmp_path / "first" / "log", 0)
    while not log.calls():
        time.sleep(0.01)
    with pytest.raises(headrace.StoreError, match=f"another process writes a dataset there .process {process.pid} on"):
        headrace.optimize(functions.several, range(9), tmp_path / "first" / "data", num_workers=0, **QUIET)
    assert process.wait() == 0
    assert ours(tmp_path / "first" / "data") == wanted(90)


def test_an_unfinished_run_of_something_else_is_refused(tmp_path: Path) -> None:
    def unfinished() -> None:
        with pytest.raises(ValueError, match="no 3"):
            headrace.optimize(functions.fails, range(9), tmp_path, num_workers=0, keep_data_ordered=True, **QUIET)

    unfinished()
    other: list[tuple[dict[str, Any], str]] = [
        ({"inputs": range(8)}, "number of inputs was 9, and is 8"),
        ({"inputs": range(1, 10)}, "content of the inputs is not what it was"),
        ({"inputs": range(9), "format": "mds"}, "format was 'litdata', and is 'mds'"),
        ({"inputs": range(9), "chunk_size": 5}, "chunk_size of options was None, and is 5"),
        ({"inputs": range(9), "keep_data_ordered": False}, "ordered was True, and is False"),
    ]
    for how, message in other:
        with pytest.raises(headrace.StateMismatch, match=f"unfinished run with other arguments: {message}\nhint"):
            headrace.optimize(
                functions.fails, output_dir=tmp_path, num_workers=0, **{"keep_data_ordered": True} | how, **QUIET
            )
    with pytest.raises(headrace.StateMismatch, match=r"fn was '.*\.fails', and is '.*\.sample'"):
        headrace.optimize(functions.sample, range(9), tmp_path, num_workers=0, keep_data_ordered=True, **QUIET)
    headrace.optimize(functions.sample, range(9), tmp_path, num_workers=0, resume=False, **QUIET)
    assert len(headrace.open(tmp_path)) == 9


@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_error_a_run_may_go_on_without_what_fails(tmp_path: Path, workers: int) -> None:
    how: dict[str, Any] = {"num_workers": workers, "keep_data_ordered": True, "chunk_size": 1, **QUIET}
    with pytest.raises(ValueError, match="no 3"):
        headrace.optimize(functions.fails, range(9), tmp_path / "data", **how)
    made = headrace.optimize(functions.fails, range(9), tmp_path / "data", on_error="skip", **how)
    assert [failure.input for failure in made.skipped] == [3]
    headrace.optimize(functions.fails, range(9), tmp_path / "whole", on_error="skip", **how)
    assert files(tmp_path / "data") == files(tmp_path / "whole")
    # The other way round what was left out would be missing.
    with pytest.raises(KeyboardInterrupt):
        headrace.optimize(Interrupted(), range(9), tmp_path / "other", on_error="skip", **(how | {"num_workers": 0}))
    with pytest.raises(headrace.StateMismatch, match="on_error was 'skip', and is 'raise'"):
        headrace.optimize(Interrupted(), range(9), tmp_path / "other", **how)
    with pytest.raises(ValueError, match="no 3"):
        headrace.map(fails_or_writes, range(9), tmp_path / "map", num_workers=0, **QUIET)
    headrace.map(fails_or_writes, range(9), tmp_path / "map", num_workers=0, on_error="skip", **QUIET)
    assert sorted(path.name for path in (tmp_path / "map").glob("*.txt")) == [f"{n}.txt" for n in range(9) if n != 3]


class Interrupted:
    def __call__(self, number: int) -> Iterator[dict[str, Any]]:
        if number == 7:
            raise KeyboardInterrupt
        return functions.fails(number)


def fails_or_writes(number: int, folder: str) -> None:
    list(functions.fails(number))
    Path(folder, f"{number}.txt").write_text("")


# Modes


@pytest.mark.parametrize("format", FORMATS)
def test_append_adds_and_touches_nothing(tmp_path: Path, format: str) -> None:
    how: dict[str, Any] = {"format": format, "chunk_size": 7, "num_workers": 0, "keep_data_ordered": True, **QUIET}
    headrace.optimize(functions.several, range(20), tmp_path, **how)
    before = {name: (tmp_path / name).stat().st_ino for name in files(tmp_path) if "json" not in name}
    content = files(tmp_path)
    headrace.optimize(functions.several, range(20, 40), tmp_path, mode="append", **how)
    for name, inode in before.items():
        assert (tmp_path / name).stat().st_ino == inode
        assert (tmp_path / name).read_bytes() == content[name]
    headrace.optimize(functions.several, range(40, 50), tmp_path, mode="append", **how)
    assert ours(tmp_path) == wanted(50)


@pytest.mark.parametrize("format", FORMATS)
def test_append_wants_samples_that_are_alike(tmp_path: Path, format: str) -> None:
    how: dict[str, Any] = {"format": format, "num_workers": 0, **QUIET}
    headrace.optimize(functions.sample, range(5), tmp_path, **how)
    content = files(tmp_path)
    with pytest.raises(TypeError, match="number"):
        headrace.optimize(different, range(5), tmp_path, mode="append", **how)
    assert {name: data for name, data in files(tmp_path).items() if not name.startswith(".headrace")} == content
    assert len(headrace.open(tmp_path)) == 5


def different(number: int) -> dict[str, Any]:
    return {**functions.sample(number), "number": "text"}


@pytest.mark.parametrize("format", ["litdata", "mds", "arrow"])
@pytest.mark.parametrize("other", ["litdata", "mds", "arrow"])
def test_overwrite_removes_what_the_index_lists_and_nothing_else(tmp_path: Path, format: str, other: str) -> None:
    headrace.optimize(functions.several, range(30), tmp_path, format=format, chunk_size=7, num_workers=0, **QUIET)
    (tmp_path / "notes.md").write_text("mine")
    (tmp_path / "chunk-mine.bin").write_text("mine")
    old = {name for name in files(tmp_path) if "part" in name or "shard" in name or "chunk-0" in name}
    assert len(old) == 5
    if other == "arrow":
        with pytest.raises(ValueError, match=r"expected only files that headrace wrote, found chunk-mine\.bin"):
            headrace.optimize(
                functions.sample, range(9), tmp_path, mode="overwrite", format=other, num_workers=0, **QUIET
            )
        assert old < set(files(tmp_path))
        return
    headrace.optimize(functions.sample, range(9), tmp_path, mode="overwrite", format=other, num_workers=0, **QUIET)
    left = set(files(tmp_path))
    assert {"notes.md", "chunk-mine.bin"} < left
    assert not old & left
    assert by_number(ours(tmp_path)) == [plain(functions.sample(number)) for number in range(9)]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("lost", ["all", "the last"])
def test_overwrite_keeps_what_it_wrote_where_listed_files_are_gone(tmp_path: Path, format: str, lost: str) -> None:
    how: dict[str, Any] = {"format": format, "chunk_size": 5, "num_workers": 0, **QUIET}
    headrace.optimize(functions.sample, range(20), tmp_path, **how)
    there = [tmp_path / name for name in files(tmp_path) if name[0] != "_" and "json" not in name]
    for path in there if lost == "all" else there[-1:]:
        path.unlink()
    made = headrace.optimize(functions.sample, range(30, 50), tmp_path, mode="overwrite", **how)
    left = [name for name in files(tmp_path) if name[0] != "_" and "json" not in name]
    assert len(left) == made.chunks == len(there) == 4
    assert by_number(ours(tmp_path)) == [plain(functions.sample(number)) for number in range(30, 50)]


def test_a_folder_with_anything_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(ValueError, match=r'expected an empty folder, found mine\nhint: mode="append"'):
        headrace.optimize(functions.sample, range(3), tmp_path, num_workers=0, **QUIET)
    with pytest.raises(ValueError, match=r"expected a dataset of litdata with its index\.json, found mine"):
        headrace.optimize(functions.sample, range(3), tmp_path, mode="append", num_workers=0, **QUIET)
    assert list(files(tmp_path)) == ["mine"]


# Errors


def test_an_error_says_for_which_input_and_keeps_what_was_finished(tmp_path: Path) -> None:
    for workers in (0, 1):
        log = functions.Logged(tmp_path / f"log-{workers}", 0)
        folder = tmp_path / str(workers)
        with pytest.raises(ValueError, match="no 13") as caught:
            headrace.optimize(
                LoggedFailure(log, {13}), range(30), folder, num_workers=workers, keep_data_ordered=True, **QUIET
            )
        assert any("in input 13: 13" in note for note in caught.value.__notes__)
        assert set(range(13)) <= set(log.calls())
        headrace.optimize(
            LoggedFailure(log, set()), range(30), folder, num_workers=workers, keep_data_ordered=True, **QUIET
        )
        assert ours(folder) == wanted(30)
        if not workers:
            assert sorted(log.calls()) == list(range(30))


class LoggedFailure:
    def __init__(self, log: functions.Logged, at: set[int]) -> None:
        self.log, self.at = log, at

    def __call__(self, number: int) -> Iterator[dict[str, Any]]:
        if number in self.at:
            raise ValueError(f"no {number}")
        return self.log(number)


@pytest.mark.parametrize("workers", [0, 2])
def test_inputs_that_fail_are_skipped_and_reported(tmp_path: Path, workers: int) -> None:
    made = headrace.optimize(
        functions.fails, range(25), tmp_path, num_workers=workers, on_error="skip", keep_data_ordered=True, **QUIET
    )
    assert [failure.input for failure in made.skipped] == [3, 13, 14, 23]
    assert [json.loads(line) for line in (tmp_path / "_headrace" / "skipped.jsonl").read_text().splitlines()] == [
        {"input": 3, "value": "3", "error": "ValueError: no 3", "samples": 0},
        {"input": 13, "value": "13", "error": "ValueError: no 13", "samples": 0},
        {"input": 14, "value": "14", "error": "KeyError: 'late'", "samples": 1},
        {"input": 23, "value": "23", "error": "ValueError: no 23", "samples": 0},
    ]
    assert ours(tmp_path) == [plain(functions.sample(number)) for number in range(25) if number % 10 != 3]


def test_what_was_left_out_of_a_dataset_is_told_of_all_that_was_added(tmp_path: Path) -> None:
    how: dict[str, Any] = {"num_workers": 0, "on_error": "skip", **QUIET}

    def told() -> list[Any]:
        return [json.loads(line)["input"] for line in (tmp_path / "_headrace/skipped.jsonl").read_text().splitlines()]

    headrace.optimize(functions.fails, range(5), tmp_path, **how)
    assert told() == [3]
    headrace.optimize(functions.sample, range(5), tmp_path, mode="append", **how)
    assert told() == [3]
    headrace.optimize(functions.fails, [3, 9], tmp_path, mode="append", **how)
    assert told() == [3, 0]
    headrace.optimize(functions.sample, range(5), tmp_path, mode="overwrite", **how)
    assert not (tmp_path / "_headrace").exists() or not list((tmp_path / "_headrace").iterdir())


def test_an_output_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    made = headrace.optimize(functions.sample, range(5), "~/data-{%Y}", num_workers=0, **QUIET)
    assert Path(made.folder).parent == tmp_path / "home"
    with headrace.StreamWriter("~/records", "uint16") as writer:
        writer.write([1, 2])
    assert len(headrace.open("~/records")) == 2
    assert not (tmp_path / "~").exists()


def test_a_template_on_another_disk_than_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if Path(other).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is one disk only")
        made = headrace.optimize(functions.sample, range(5), f"{other}/data-{{%Y}}", num_workers=0, **QUIET)
        assert len(headrace.open(made.folder)) == 5


def test_a_template_that_cannot_be_noted_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "outputs").touch()
    for _ in range(2):
        with pytest.raises(headrace.StoreError, match=r"outputs.*File exists|outputs.*Not a directory"):
            headrace.optimize(functions.sample, range(5), tmp_path / "data-{%Y}", num_workers=0, **QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    (tmp_path / "cache" / "outputs").unlink()
    assert headrace.optimize(functions.sample, range(5), tmp_path / "data-{%Y}", num_workers=0, **QUIET).samples == 5


def test_what_cannot_be_sent_to_processes_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"fn cannot be sent to worker processes: .*\nhint: define it at the top"):
        headrace.optimize(lambda number: number, range(3), tmp_path / "data", num_workers=1, **QUIET)
    assert not (tmp_path / "data").exists()
    with pytest.raises((TypeError, AttributeError), match="pickle") as caught:
        headrace.optimize(functions.sample, [lambda: 1], tmp_path / "data", num_workers=1, **QUIET)
    assert caught.value.__notes__ == ["while input 0, or one behind it, was sent to a worker process"]


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(headrace.StoreError, match="expected a folder that can be written to: Not a directory"):
        headrace.optimize(functions.sample, range(3), tmp_path / "file" / "data", num_workers=0, **QUIET)


@pytest.mark.parametrize(
    "how,message",
    [
        ({"format": "csv"}, "format must be one of 'litdata', 'mds', 'parquet', 'arrow', got 'csv'"),
        ({"compression": "gzip"}, 'compression must be None, "zstd"'),
        ({"compression": "zstd:99"}, "level of 1 to 22"),
        ({"chunk_size": 0}, "chunk_size must be at least 1, got 0"),
        ({"chunk_bytes": "2GiB"}, 'chunk_bytes must be at most "1GiB"'),
        ({"mode": "replace"}, "mode must be one of None, 'append', 'overwrite'"),
        ({"on_error": "ignore"}, "on_error must be one of 'raise', 'skip'"),
        ({"num_workers": -1}, "num_workers must be at least 0"),
        ({"format": "mds", "tokens": True}, 'serializers and tokens are for format="litdata"'),
        ({"output_dir": "https://host/data"}, "files cannot be written there"),
        ({"output_dir": ""}, "got no text"),
        ({"fast_dev_run": 0}, "fast_dev_run must be at least 1"),
    ],
)
def test_arguments_are_checked_before_anything_is_written(tmp_path: Path, how: dict[str, Any], message: str) -> None:
    arguments = {"fn": functions.sample, "inputs": range(3), "output_dir": tmp_path / "data"} | how
    with pytest.raises(ValueError, match=message):
        headrace.optimize(**arguments, **QUIET)
    assert not (tmp_path / "data").exists()


def test_arguments_of_wrong_types(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"inputs must be a list.*\nhint: headrace.walk"):
        headrace.optimize(functions.sample, "data", tmp_path / "data", **QUIET)
    with pytest.raises(TypeError, match="fn must be a function of an input, got a NoneType"):
        headrace.optimize(None, [1], tmp_path / "data", **QUIET)  # pyright: ignore[reportArgumentType]


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    program = tmp_path / "script.py"
    program.write_text(
        "import sys, headrace, prepare_functions\n"
        "headrace.optimize(prepare_functions.sample, range(3), sys.argv[1], num_workers=1, progress=False)\n"
    )
    command = [sys.executable, program, tmp_path / "data"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert 'hint: put what the script does below `if __name__ == "__main__":`' in done.stderr


class SlowFirst:
    """A first sample that comes late, and has another structure than the others have."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def __call__(self, number: int) -> dict[str, Any]:
        (self.marks / str(number)).touch()
        if number:
            return {"number": number}
        # Long enough for another process to be first, if one may.
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline and not (self.marks / "1").exists():
            time.sleep(0.01)
        return {"other": number}


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_the_first_input_decides_what_samples_are_like(tmp_path: Path, on_error: Any) -> None:
    marks = tmp_path / "marks"
    how: dict[str, Any] = {"num_workers": 2, "on_error": on_error, **QUIET}
    marks.mkdir()
    if on_error == "raise":
        with pytest.raises(TypeError, match="expected the keys other as in the first sample, found number"):
            headrace.optimize(SlowFirst(marks), range(6), tmp_path / "out", **how)
        return
    made = headrace.optimize(SlowFirst(marks), range(6), tmp_path / "out", **how)
    assert [failure.input for failure in made.skipped] == [1, 2, 3, 4, 5]
    assert headrace.open(tmp_path / "out")[0] == {"other": 0}
