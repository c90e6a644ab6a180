"""What functions do that they should not, and what is done to a run: one clear error, and what was finished is kept."""

import errno
import functools
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
import prepare_functions as functions
from headrace.prepare.writing.litdata import LitDataEncoder, LitDataLayout
from prepare_functions import expected

QUIET: dict[str, Any] = {"progress": False, "verbose": False}


def ordered(fn: Any, count: int, folder: Path, **how: Any) -> Any:
    return headrace.optimize(
        fn, range(count), folder, keep_data_ordered=True, chunk_size=7, **{"num_workers": 2, **how}, **QUIET
    )


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# The end of a process


class Ends:
    """Ends its process at an input, in one way or another; or does not."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self, number: int) -> Iterator[dict[str, Any]]:
        if number == 7:
            if self.how == "sys.exit":
                sys.exit(3)
            if self.how == "os._exit":
                os._exit(5)
            if self.how == "signal":
                os.kill(os.getpid(), signal.SIGSEGV)
        yield from functions.several(number)


@pytest.mark.parametrize(
    "how,said",
    [("sys.exit", "ended with exit status 3"), ("os._exit", "ended with exit status 5"), ("signal", "by SIGSEGV")],
)
def test_a_function_that_ends_its_process(tmp_path: Path, how: str, said: str) -> None:
    with pytest.raises(RuntimeError, match=rf"input 7 was begun 2 times.*{said}\nhint: .*ended by what it did"):
        ordered(Ends(how), 20, tmp_path / "data")
    assert not (tmp_path / "data" / "index.json").exists()
    made = ordered(Ends(how), 20, tmp_path / "skipped", on_error="skip")
    assert [failure.input for failure in made.skipped] == [7]
    assert said in made.skipped[0].error
    ordered(Ends("not"), 20, tmp_path / "data")
    ordered(functions.several, 20, tmp_path / "whole", num_workers=0)
    assert files(tmp_path / "data") == files(tmp_path / "whole")


class Doomed:
    """A function whose process is killed once for each of some stages: the first time that it gets there."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def _once(self, stage: str) -> None:
        try:
            (self.marks / stage).touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A worker, and not this process, gets the function.
        self.__dict__ = state
        self._once("unpickled")

    def __call__(self, number: int) -> Iterator[dict[str, Any]]:
        if number == 5:
            self._once("called")
        for part, sample in enumerate(functions.several(number)):
            yield {**sample, "own": Own(self.marks if number == 14 else None)}
            if number == 17 and part == 0:
                self._once("amid")
        if number == 23:
            # While the samples are on their way.
            threading.Timer(0.01, self._once, ("sent",)).start()
        if number == 60:
            # A run of so few inputs may be at its end before that.
            end = time.monotonic() + 5
            while not (self.marks / "sent").exists() and time.monotonic() < end:
                time.sleep(0.001)


class Own:
    def __init__(self, marks: Path | None) -> None:
        self.marks = marks


class OwnSerializer:
    def can_serialize(self, value: Any) -> bool:
        return isinstance(value, Own)

    def serialize(self, value: Own) -> bytes:
        if value.marks is not None:
            Doomed(value.marks)._once("encoded")
        return b"own"

    def deserialize(self, data: bytes) -> bytes:
        return data


def test_a_process_that_is_killed_at_any_stage(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    made = ordered(Doomed(marks), 90, tmp_path / "data", serializers={"own": OwnSerializer()})
    assert {path.name for path in marks.iterdir()} == {"unpickled", "called", "amid", "encoded", "sent"}
    assert made.samples == 90
    data = headrace.open(tmp_path / "data", serializers={"own": OwnSerializer()})
    assert [data[at]["number"] for at in range(90)] == [sample["number"] for sample in expected(90)]


# What cannot be sent


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("no one can read this", lambda: 0)


def raises(number: int) -> dict[str, Any]:
    if number == 5:
        raise Unpicklable
    return {"number": number}


def gives(number: int) -> dict[str, Any]:
    return {"number": number, "call": functions.several if number < 5 else (lambda: number)}


def test_what_cannot_be_sent_back_is_told_as_text(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"in worker process 0 (?s:.)*no one can read this(?s:.)*in input 5: 5"):
        ordered(raises, 20, tmp_path / "raises", num_workers=1)
    with pytest.raises(TypeError, match="key 'call': expected a value that LitData can hold, found function"):
        ordered(gives, 20, tmp_path / "gives")


# Values that a format cannot hold


def returned(number: int) -> dict[str, Any]:
    return {"meta": {"tags": ["a", {number} if number == 5 else "b"]}}


def yielded(number: int) -> Iterator[dict[str, Any]]:
    yield returned(0)
    yield returned(number)


def refuses(number: int) -> int:
    return 1 // (5 - number)


@pytest.mark.parametrize("format", ["litdata", "mds", "parquet", "arrow"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "fn, sample, line",
    [
        (returned, "in the sample of it", "def returned(number: int) -> dict[str, Any]:"),
        (functools.partial(returned), "in the sample of it", "def returned(number: int) -> dict[str, Any]:"),
        (yielded, "in sample 1 of it", "yield returned(number)"),
    ],
)
def test_a_value_that_cannot_be_stored_is_told_by_the_users_line(
    tmp_path: Path, format: str, workers: int, fn: Any, sample: str, line: str
) -> None:
    with pytest.raises(TypeError, match=r"^key 'meta\.tags\.1': expected .*, found set") as caught:
        ordered(fn, 20, tmp_path / "data", format=format, num_workers=workers)
    place, given, *worker = caught.value.__notes__
    assert place == "in input 5: 5"
    assert re.fullmatch(rf"{sample}, given by\n  File \"{__file__}\", line \d+, in \w+\n    {re.escape(line)}", given)
    assert [re.fullmatch(r"in worker process 0 \(pid \d+\)", note) is not None for note in worker] == [True] * workers
    # What lies between the call and the line is of no use.
    assert len([frame for frame in traceback.extract_tb(caught.tb) if frame.filename != __file__]) == 2


class UnsureSerializer(OwnSerializer):
    def can_serialize(self, value: Any) -> bool:
        return isinstance(value, set)

    def serialize(self, value: Any) -> bytes:
        raise ValueError("no bytes")


def collected(number: int) -> dict[str, Any]:
    return {"meta": {"tags": {number}}}


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_serializer_raises_is_shown_from_its_line_on(tmp_path: Path, workers: int) -> None:
    serializers = {"own": UnsureSerializer()}
    with pytest.raises(ValueError, match=r"^key 'meta\.tags': no bytes") as caught:
        ordered(collected, 20, tmp_path / "data", num_workers=workers, serializers=serializers)
    frames = [frame.name for frame in traceback.extract_tb(caught.tb) if frame.name not in ("optimize", "make")]
    assert frames[2:] == ([] if workers else ["serialize"])
    assert "".join(caught.value.__notes__).count("in serialize") == workers


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_function_raises_is_shown_from_its_line_on(tmp_path: Path, workers: int) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        ordered(refuses, 20, tmp_path / "data", num_workers=workers)
    frames = [frame.name for frame in traceback.extract_tb(caught.tb) if frame.name not in ("optimize", "make")]
    assert frames[2:] == ([] if workers else ["refuses"])
    assert "".join(caught.value.__notes__).count("in refuses") == workers


@pytest.mark.parametrize("is_deeper", [False, True], ids=["its own", "in Python's library"])
def test_a_fault_of_headrace_itself_keeps_its_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deeper: bool
) -> None:
    def broken(*_: Any) -> None:
        if is_deeper:
            shutil.copyfile(tmp_path / "nothing", tmp_path / "other")
        raise AssertionError

    monkeypatch.setattr(broken, "__code__", broken.__code__.replace(co_filename=headrace.optimize.__code__.co_filename))
    monkeypatch.setattr(LitDataEncoder, "add", broken)
    with pytest.raises(FileNotFoundError if is_deeper else AssertionError) as caught:
        ordered(returned, 1, tmp_path / "data", num_workers=0)
    frames = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert frames[frames.index("_blocks") :] == ["_blocks", "add", "broken", *(["copyfile"] * is_deeper)]


class Endless:
    """Has whatever it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name != "__wrapped__":
            raise AttributeError(name)
        return self

    def __call__(self, number: int) -> dict[str, Any]:
        return returned(number)


def test_the_line_of_a_function_without_an_end_is_told(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^key 'meta\.tags\.1': expected .*, found set") as caught:
        ordered(Endless(), 20, tmp_path / "data", num_workers=0)
    assert "in __call__" in caught.value.__notes__[1]


# Threads and processes of the function's own


def answer(number: int, pipe: Any) -> None:
    pipe.send(number)


def starts(number: int) -> dict[str, Any]:
    # One that is waited for when a program ends, but not by a run.
    threading.Thread(target=time.sleep, args=(600,)).start()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=answer, args=(number, theirs))
    process.start()
    found = ours.recv()
    process.join()
    return {"number": found}


def test_a_function_with_threads_and_processes_of_its_own(tmp_path: Path) -> None:
    start = time.monotonic()
    ordered(starts, 4, tmp_path)
    assert time.monotonic() - start < 120
    data = headrace.open(tmp_path)
    assert [data[at]["number"] for at in range(4)] == [0, 1, 2, 3]


# What is done to the output


class Removes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, number: int) -> Iterator[dict[str, Any]]:
        if number == 30:
            shutil.rmtree(self.folder)
        yield from functions.several(number)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_output_that_is_removed_meanwhile(tmp_path: Path, workers: int) -> None:
    folder = tmp_path / "data"
    with pytest.raises(
        headrace.StoreError, match=rf"^{folder}.*: the folder was removed, or its disk unmounted, while"
    ):
        ordered(Removes(folder), 90, folder, num_workers=workers)
    ordered(functions.several, 90, folder)
    assert len(headrace.open(folder)) == 90


LOCKED = """
import json, sys
from pathlib import Path
import headrace, prepare_functions

class Locks:
    def __init__(self, folder):
        self.folder = folder
    def __call__(self, number):
        if number == 30:
            for path in (self.folder, self.folder / ".headrace", self.folder / ".headrace/chunks"):
                path.chmod(0o500)
        yield from prepare_functions.several(number)

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    try:
        headrace.optimize(
            Locks(folder), range(90), folder, keep_data_ordered=True, chunk_size=7, num_workers=int(sys.argv[2]),
            progress=False, verbose=False,
        )
    except headrace.StoreError as error:
        print(json.dumps(str(error)))
"""


def test_of_a_chunk_that_cannot_be_removed_the_first_error_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(layout: Any, path: Path, *_: Any) -> None:
        path.mkdir()
        raise PermissionError(errno.EACCES, "written no more")

    monkeypatch.setattr(LitDataLayout, "write", write)
    with pytest.raises(headrace.StoreError, match=r"chunk-0-0\.bin: written no more"):
        ordered(functions.several, 90, tmp_path / "data", num_workers=0)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_output_that_may_not_be_written_to_any_more(tmp_path: Path, workers: int) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "data"
    program.write_text(LOCKED)
    paths = [Path(headrace.__file__).parents[1], Path(__file__).parent]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    # Nothing is forbidden to root, unless it gives that up.
    ahead = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    command = [*ahead, sys.executable, program, folder, str(workers)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    message = json.loads(done.stdout)
    assert message.startswith(f"{folder}/.headrace/")
    assert "Permission denied\nhint: what was finished is kept" in message
    for path in (folder, folder / ".headrace", folder / ".headrace" / "chunks"):
        path.chmod(0o700)
    ordered(functions.several, 90, folder, resume=False)
    assert len(headrace.open(folder)) == 90
