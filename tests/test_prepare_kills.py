"""`optimize` when processes are killed, stopped or slow, when writes fail and when the power goes."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
import prepare_functions as functions
from headrace.bench.processes import family
from headrace.prepare import beginning, chunking, optimizing, settling
from headrace.prepare import output as outputs
from headrace.prepare import spool as spools
from headrace.prepare.writing import litdata
from prepare_functions import by_number, environment, files, ours, started, wanted

QUIET: dict[str, Any] = {"progress": False, "verbose": False}


@pytest.mark.slow
@pytest.mark.parametrize("format,ordered,workers", [
    ("litdata", True, 2), ("mds", True, 1), ("arrow", True, 0), ("parquet", False, 2),
])  # fmt: skip
def test_a_run_that_is_killed_again_and_again_goes_on(tmp_path: Path, format: Any, ordered: bool, workers: int) -> None:
    folder = tmp_path / "killed"
    log = functions.Logged(folder / "log", 0)
    kills = 0
    for inputs in range(5, 300, 20):
        process = started(folder, format, ordered=ordered, workers=workers)
        while process.poll() is None and len(log.calls()) < inputs:
            time.sleep(0.002)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        assert not (folder / "data" / "index.json").exists()
        assert [path for path in files(folder / "data") if not path.startswith(".headrace")] == []
    assert process.wait() == 0
    assert kills >= 3
    calls = log.calls()
    assert set(calls) == set(range(90))
    # What was done in the last moment before a kill is done again, nothing else: each of at most four threads waits for
    # a block of a twentieth of a second, which is five inputs, or more than that if none of them is delayed.
    assert len(calls) - 90 <= kills * 32
    found = ours(folder / "data")
    assert (found if ordered else by_number(found)) == (wanted(90) if ordered else by_number(wanted(90)))
    if ordered:
        headrace.optimize(
            functions.several, range(90), tmp_path / "whole", format=format, chunk_size=7, num_workers=0,
            keep_data_ordered=True, **QUIET,
        )  # fmt: skip
        assert files(folder / "data") == files(tmp_path / "whole")


@pytest.mark.parametrize("ordered", [True, False])
def test_a_killed_worker_is_replaced_and_nothing_is_lost(tmp_path: Path, ordered: bool) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    fn = functions.KilledOnce(marks, {0, 17, 18, 59})
    headrace.optimize(fn, range(60), tmp_path / "data", num_workers=2, keep_data_ordered=ordered, **QUIET)
    assert len(list(marks.iterdir())) == 4
    found = ours(tmp_path / "data")
    assert (found if ordered else by_number(found)) == (wanted(60) if ordered else by_number(wanted(60)))


def test_an_input_that_kills_its_process_each_time_is_named(tmp_path: Path) -> None:
    fn = functions.KilledOnce(tmp_path, {7}, always=True)
    with pytest.raises(RuntimeError, match=r"input 7 was begun 2 times.*SIGKILL\n.*memory"):
        headrace.optimize(fn, range(20), tmp_path / "data", num_workers=1, keep_data_ordered=True, **QUIET)
    fn.at = set()
    headrace.optimize(fn, range(20), tmp_path / "data", num_workers=1, keep_data_ordered=True, **QUIET)
    assert ours(tmp_path / "data") == wanted(20)


PLACES = [
    (outputs.Output, "note"),
    (outputs.Output, "replace"),
    (outputs.Path, "rename"),
    (outputs.Path, "unlink"),
    (spools.Spool, "append"),
    (litdata.LitDataLayout, "write"),
]
"""All that changes the folder."""


class Stop(BaseException):
    """The process ends here."""


def test_a_run_that_ends_at_any_write_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends a run at each call that changes the folder, as a kill between two of them would."""
    headrace.optimize(
        functions.several, range(24), tmp_path / "whole", chunk_size=5, num_workers=0, keep_data_ordered=True, **QUIET
    )
    ends = 0
    for before in (True, False):
        for at in range(200):
            folder = tmp_path / f"{before}-{at}"
            with monkeypatch.context() as patch:
                counts = Countdown(at)
                for owner, name in PLACES:
                    patch.setattr(owner, name, ending(getattr(owner, name), before=before, counts=counts))
                try:
                    headrace.optimize(
                        functions.several, range(24), folder, chunk_size=5, num_workers=0, keep_data_ordered=True,
                        **QUIET,
                    )  # fmt: skip
                    break
                except Stop:
                    ends += 1
            visible = {name: data for name, data in files(folder).items() if not name.startswith(".headrace")}
            if visible == files(tmp_path / "whole") and not (folder / ".headrace" / "journal.jsonl").exists():
                # Nothing but tidying up was left.
                continue
            headrace.optimize(
                functions.several, range(24), folder, chunk_size=5, num_workers=0, keep_data_ordered=True, **QUIET
            )
            assert files(folder) == files(tmp_path / "whole"), (before, at)
        else:
            pytest.fail("the run never came to its end")
    assert ends > 40


class Countdown:
    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def ending(call: Any, *, before: bool, counts: Countdown) -> Any:
    def ending(*arguments: Any, **options: Any) -> Any:
        if before and counts():
            raise Stop
        result = call(*arguments, **options)
        if not before and counts():
            raise Stop
        return result

    return ending


FULL = """
import resource, signal, sys
import headrace, prepare_functions
from headrace.prepare import spool
if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if sys.argv[3] == "spool":
        spool._HELD_BYTES = 0
    if sys.argv[2] != "0":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    try:
        headrace.optimize(
            prepare_functions.huge, range(3), sys.argv[1], chunk_bytes="2MiB", num_workers=0, keep_data_ordered=True,
            progress=False, verbose=False,
        )
    except headrace.StoreError as error:
        print(error)
"""


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    program = tmp_path / "full.py"
    program.write_text(FULL)

    def run(limit: int, where: str) -> str:
        command = [sys.executable, program, tmp_path / "data", str(limit), where]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # A limit on the size of files ends writes in their middle, as a disk does.
    for limit, where in ((1_000_000, "chunk"), (5_000_000, "spool"), (9_000_000, "spool"), (20_000_000, "spool")):
        assert "File too large\nhint: what was finished is kept" in run(limit, where)
        assert not (tmp_path / "data" / "index.json").exists()
    assert run(0, "chunk") == ""
    data = headrace.open(tmp_path / "data")
    found = [(sample["input"], sample["part"]) for sample in (data[at] for at in range(len(data)))]
    assert found == [(number, part) for number in range(3) for part in range(40)]


def test_an_interrupt_ends_a_run_which_then_goes_on(tmp_path: Path) -> None:
    process = started(tmp_path / "run", "litdata", ordered=True, workers=2)
    log = functions.Logged(tmp_path / "run" / "log", 0)
    while len(log.calls()) < 20:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) not in (0, -signal.SIGKILL)
    assert not (tmp_path / "run" / "data" / "index.json").exists()
    assert started(tmp_path / "run", "litdata", ordered=True, workers=2).wait(60) == 0
    assert ours(tmp_path / "run" / "data") == wanted(90)
    assert len(log.calls()) < 90 + 16


# Pauses


def test_a_worker_that_is_stopped_for_long_is_waited_for(tmp_path: Path) -> None:
    process = started(tmp_path / "run", "litdata", ordered=True, workers=2)
    log = functions.Logged(tmp_path / "run" / "log", 0)
    while len(log.calls()) < 10:
        time.sleep(0.01)
    stopped = family(process.pid)[1]
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(3)
    assert process.poll() is None
    os.kill(stopped, signal.SIGCONT)
    assert process.wait(60) == 0
    assert ours(tmp_path / "run" / "data") == wanted(90)
    assert sorted(log.calls()) == list(range(90))


# What waits in memory

FAST = """
import sys
import headrace, prepare_functions
if __name__ == "__main__":
    headrace.optimize(
        prepare_functions.huge, range(12), sys.argv[1], chunk_bytes="5MiB", num_workers=2,
        keep_data_ordered=sys.argv[2] == "1", progress=False, verbose=False,
    )
"""


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
def test_what_waited_in_memory_is_made_again(tmp_path: Path, ordered: bool) -> None:
    program = tmp_path / "fast.py"
    program.write_text(FAST)
    folder = tmp_path / "data"
    kills = 0
    for chunks in range(1, 40, 6):
        process = subprocess.Popen([sys.executable, program, folder, str(int(ordered))], env=environment())
        while process.poll() is None and len(list(folder.glob(".headrace/chunks/*.bin"))) < chunks:
            time.sleep(0.001)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert process.wait() == 0  # pyright: ignore[reportPossiblyUnboundVariable]
    assert kills >= 2
    data = headrace.open(folder)
    found = [(sample["input"], sample["part"]) for sample in (data[at] for at in range(len(data)))]
    whole = [(number, part) for number in range(12) for part in range(40)]
    assert (found if ordered else sorted(found)) == whole


# Power cuts


@pytest.mark.parametrize("often", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_power_cut_at_any_write_loses_nothing_that_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordered: bool, often: bool
) -> None:
    monkeypatch.setattr(spools, "_HELD_BYTES", 0)
    if often:
        monkeypatch.setattr(settling, "_SYNC_BYTES", 1)
    how: dict[str, Any] = {"chunk_size": 5, "num_workers": 0, "keep_data_ordered": ordered, **QUIET}
    headrace.optimize(functions.several, range(24), tmp_path / "whole", **how)
    calls: set[int] = set()
    for at in range(0, 200, 3):
        folder = tmp_path / str(at)
        for module in (beginning, optimizing):
            monkeypatch.setattr(module, "boot", lambda: "before")
        log = functions.Logged(tmp_path / f"log-{at}", 0)
        with monkeypatch.context() as patch:
            counts = Countdown(at)
            for owner, name in PLACES:
                patch.setattr(owner, name, ending(getattr(owner, name), before=True, counts=counts))
            try:
                headrace.optimize(log, range(24), folder, **how)
                break
            except Stop:
                pass
        synced = cut(folder)
        if synced is None:
            # All was in its place.
            continue
        for module in (beginning, optimizing):
            monkeypatch.setattr(module, "boot", lambda: "after")
        before = len(log.calls())
        headrace.optimize(log, range(24), folder, **how)
        assert files(folder) == files(tmp_path / "whole"), at
        calls.add(before + 24 - len(log.calls()))
    else:
        pytest.fail("the run never came to its end")
    # What was synced was not done again.
    assert max(calls) >= (15 if often else 0)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_kill_after_a_power_cut_brings_nothing_back_that_was_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """Blocks that the first resume did not believe are still in the spool at the second."""
    monkeypatch.setattr(spools, "_HELD_BYTES", 0)
    how: dict[str, Any] = {"chunk_size": 9, "num_workers": 0, "keep_data_ordered": ordered, **QUIET}
    headrace.optimize(functions.several, range(24), tmp_path / "whole", **how)
    resumed = 0
    for first, second in itertools.product(range(6, 30, 6), range(3, 30, 4)):
        folder = tmp_path / f"{first}-{second}"
        for start, at in ("before", first), ("after", second), ("after", 10**6):
            for module in (beginning, optimizing):
                monkeypatch.setattr(module, "boot", lambda start=start: start)
            with monkeypatch.context() as patch:
                counts = Countdown(at)
                for owner, name in PLACES:
                    patch.setattr(owner, name, ending(getattr(owner, name), before=True, counts=counts))
                with contextlib.suppress(Stop):
                    headrace.optimize(functions.several, range(24), folder, **how)
                    break
            if start == "before":
                # What the spool has is on the disk, and only of some of it that was said.
                journal = folder / ".headrace" / "journal.jsonl"
                begin, *_ = journal.read_bytes().splitlines(keepends=True)
                journal.write_bytes(begin + b'{"synced": 2}\n')
            resumed += start == "after"
        assert files(folder) == files(tmp_path / "whole"), (first, second)
    assert resumed > 10


def test_a_block_that_never_came_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accept = chunking.Chunks.accept

    def losing(self: chunking.Chunks, kept: spools.StoredBlock) -> None:
        if kept.block.first != 0:
            accept(self, kept)

    monkeypatch.setattr(chunking.Chunks, "accept", losing)
    with pytest.raises(RuntimeError, match=r"input 0 from number 0 on, found none of them, .* nothing was"):
        headrace.optimize(functions.sample, range(9), tmp_path, num_workers=0, keep_data_ordered=True, **QUIET)
    assert not (tmp_path / "index.json").exists()


def cut(folder: Path) -> int | None:
    """Leaves of a folder what a power cut may leave: of what was not synced, names at the best."""
    journal = folder / ".headrace" / "journal.jsonl"
    if not journal.exists():
        return None
    lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
    if "whole" in lines[-1]:
        return len(lines)
    last = max([number for number, line in enumerate(lines) if "synced" in line], default=0)
    safe = {line["chunk"]["name"] for line in lines[:last] if line.get("chunk")}
    for path in (folder / ".headrace" / "chunks").iterdir():
        if path.name not in safe:
            path.write_bytes(b"\0" * path.stat().st_size)
    blocks = lines[last].get("synced", 0)
    if not blocks:
        for path in (folder / ".headrace").glob("blocks-*"):
            path.write_bytes(b"\0" * path.stat().st_size)
    # A line may have come to the disk, and the one before it not.
    kept = journal.read_bytes().splitlines(keepends=True)
    later = [b"\0" * len(line) if number % 2 else line for number, line in enumerate(kept[last + 1 :])]
    journal.write_bytes(b"".join([*kept[: last + 1], *later]))
    return last


def test_a_disk_that_fails_when_it_is_told_to_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error at whatever file, and the same call goes on."""
    how: dict[str, Any] = {"chunk_size": 5, "num_workers": 0, **QUIET}
    fsync, errors = os.fsync, 0
    for at in range(40):
        folder, left = tmp_path / str(at), iter(range(at))

        def failing(fd: int, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise OSError(5, "Input/output error")
            fsync(fd)

        monkeypatch.setattr(os, "fsync", failing)
        try:
            headrace.optimize(functions.sample, range(9), folder, **how)
            break
        except headrace.StoreError:
            errors += 1
        finally:
            monkeypatch.setattr(os, "fsync", fsync)
        assert not (folder / "index.json").exists() or len(headrace.open(folder)) == 9
        headrace.optimize(functions.sample, range(9), folder, **how)
        assert len(headrace.open(folder)) == 9
    assert errors >= 5
