"""Files that are copied from memory: cut short in the midst of it, and with others that handle the same signal."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import headrace as hr


@pytest.fixture(autouse=True)
def _local(tmp_path: Path) -> None:
    """Skips where the file system is not one whose files are mapped."""
    command = ["stat", "--file-system", "--format=%T", str(tmp_path)]
    if subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() in ("overlayfs", "tmpfs"):
        return
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(8))
    with probe.open("rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(8)], 0, os.RWF_NOWAIT)
        except OSError:
            pytest.skip("the file system of temporary files may be a network's")


PROGRAM = """
import faulthandler, mmap, os, resource, signal, subprocess, sys, threading
from pathlib import Path

import numpy as np

from headrace import _core
from headrace.errors import DataError

ROW, ROWS = 4096, 512
EVERY = np.arange(ROWS, dtype=np.int64)
GATHER = _core.Gather(keep=4)


class Data:
    # A file in memory, whose rows hold their numbers.
    def __init__(self, name, size=ROW * ROWS):
        self.path = Path(sys.argv[1]) / name
        np.repeat(EVERY.astype("<u2"), ROW // 2).tofile(self.path)
        os.truncate(self.path, size)
        status = self.path.stat()
        self.file = _core.OpenFile(self.path, status.st_size, f"m{status.st_mtime_ns}", keep_open=8)

    def take(self, rows=EVERY):
        taken = GATHER.take([self.file], np.zeros_like(rows), rows * ROW, ROW)
        return np.frombuffer(taken, "<u2").reshape(len(rows), -1)

    def check(self, rows=EVERY[::-1].copy()):
        assert (self.take(rows) == rows[:, None]).all()

    def used(self):
        # Often enough for it to be mapped, if it ever is.
        size = self.path.stat().st_size
        for _ in range(4 + size // 16 // (ROW * ROWS)):
            self.check()
        return self

    def is_mapped(self):
        return str(self.path) in Path("/proc/self/maps").read_text()

    def cut(self, size=0):
        # By another process.
        subprocess.run([sys.executable, "-c", f"import os; os.truncate({str(self.path)!r}, {size})"], check=True)

    def refused(self, rows=EVERY):
        try:
            self.take(rows)
        except DataError as error:
            assert str(self.path) in str(error) and "changed since" in str(error), error
        else:
            raise AssertionError("what is not there was given")


def mapped(name):
    data = Data(name).used()
    assert data.is_mapped(), "expected a file in memory to be mapped"
    return data


def read(name, *size):
    data = Data(name, *size).used()
    assert not data.is_mapped(), "expected a file not to be mapped"
    return data
"""


def run(folder: Path, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program to its end, whatever that is."""
    command = [sys.executable, "-c", PROGRAM + textwrap.dedent(program) + "\nprint('lives', flush=True)\n", str(folder)]
    environment = {**os.environ, **variables}
    environment.pop("PYTHONFAULTHANDLER", None)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def lives(folder: Path, program: str, **variables: str) -> None:
    """Runs a program that is to end well, and say nothing of signals."""
    done = run(folder, program, **variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, "lives\n", "")


def test_a_file_in_memory_is_mapped_and_gives_the_same(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 1 << 16, 3_000_000, np.uint16)
    tokens.tofile(tmp_path / "a.bin")
    data = hr.open(tmp_path / "a.bin", stored_dtype="uint16")
    for length, dtype in ((2048, None), (1001, "int64"), (7, "int32")):
        rows = data.sequences(length, overlap=1, dtype=dtype)
        with hr.DataLoader(rows, batch_size=1000, num_workers=2, epochs=3) as loader:
            for batch in (batch for _ in range(3) for batch in loader):
                wanted = tokens[batch.positions[:, None] * length + np.arange(length + 1)]
                np.testing.assert_array_equal(batch["tokens"], wanted)
            assert str(tmp_path / "a.bin") in Path("/proc/self/maps").read_text()


def test_a_file_that_was_cut_is_an_error_that_names_it_and_others_are_read(tmp_path):
    lives(
        tmp_path,
        """
        one, other, untouched = mapped("one"), mapped("other"), mapped("untouched")
        one.cut()
        one.refused()
        one.refused()
        # Up to a byte in mid-row, whose page goes on with zeros.
        other.cut(ROW * 300 + 5)
        other.refused(EVERY[299:301].copy())
        other.refused(EVERY[10:20].copy())
        untouched.check()
        mapped("later").check()
        """,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_whose_file_is_cut_raises_and_goes_on_with_others(tmp_path, workers):
    lives(
        tmp_path,
        f"""
        import headrace as hr
        one, two = Data("1.bin"), Data("2.bin")
        data = hr.open(str(one.path.parent / "*.bin"), stored_dtype="uint16").sequences(ROW // 2)
        loader = hr.DataLoader(data, batch_size=1, num_workers={workers}, memory=1, epochs=5)
        batches = (batch for _ in range(4) for batch in loader)
        assert all((batch["tokens"] == int(batch.positions[0]) % ROWS).all() for batch in batches)
        assert one.is_mapped() and two.is_mapped()
        one.cut(ROW)
        batches, given, refused = iter(loader), [], 0
        while True:
            try:
                given.append(int(next(batches).positions[0]))
            except StopIteration:
                break
            except DataError as error:
                assert str(one.path) in str(error)
                refused += 1
        assert (sorted(given), refused) == (list(range(ROWS, 2 * ROWS)), ROWS)
        """,
    )


def test_a_file_that_is_cut_while_threads_copy_it_ends_none_of_them(tmp_path):
    lives(
        tmp_path,
        """
        for attempt in range(3):
            data, other = mapped(f"{attempt}"), mapped(f"other-{attempt}")
            started, ends = threading.Barrier(5), []

            def go():
                started.wait()
                while True:
                    other.check()
                    try:
                        data.check()
                    except DataError as error:
                        ends.append(str(error))
                        return

            threads = [threading.Thread(target=go) for _ in range(4)]
            for thread in threads:
                thread.start()
            started.wait()
            data.cut(ROW * 100)
            for thread in threads:
                thread.join()
            assert len(ends) == 4 and all(str(data.path) in end for end in ends), ends
            other.check()
        """,
    )


def test_a_forked_child_reads_what_is_mapped_and_bears_a_cut(tmp_path):
    lives(
        tmp_path,
        """
        data, other = mapped("data"), mapped("other")
        child = os.fork()
        if not child:
            other.check()
            os.truncate(data.path, 0)
            data.refused()
            mapped("of-the-child")
            os._exit(7)
        assert os.waitpid(child, 0)[1] == 7 << 8
        data.refused()
        other.check()
        """,
    )


@pytest.mark.parametrize("before", [True, False])
def test_faulthandler_says_nothing_of_a_cut_file(tmp_path, before):
    lives(
        tmp_path,
        f"""
        if {before}:
            faulthandler.enable()
        data, other = mapped("data"), mapped("other")
        if not {before}:
            faulthandler.enable()
            read("without")
        data.cut()
        data.refused()
        other.check()
        if not {before}:
            # Ours is back.
            faulthandler.disable()
            data, other = mapped("again"), mapped("more")
            data.cut()
            data.refused()
            other.check()
        """,
    )


def test_a_handler_that_takes_the_place_of_ours_never_hears_of_a_cut_file(tmp_path):
    lives(
        tmp_path,
        """
        data, other = mapped("data"), mapped("other")
        heard = []
        signal.signal(signal.SIGBUS, lambda *_: heard.append(1))
        data.cut()
        data.refused()
        other.check()
        read("later")
        assert not heard
        """,
    )


def test_a_thread_that_has_the_signal_blocked_maps_nothing(tmp_path):
    lives(
        tmp_path,
        """
        data = mapped("data")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGBUS})
        data.check()
        data.cut()
        data.refused()
        read("later")
        """,
    )


def test_without_room_for_a_mapping_files_are_read(tmp_path):
    lives(
        tmp_path,
        """
        data = mapped("data")
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + (256 << 20), resource.RLIM_INFINITY))
        later = read("later", 512 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        later.cut()
        later.refused()
        data.cut()
        data.refused()
        """,
    )


FAULT = """
path = Path(sys.argv[1]) / "foreign"
path.write_bytes(bytes(1 << 16))
with open(path) as file:
    foreign = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
os.truncate(path, 0)
foreign[5000]
"""


def test_faults_of_others_end_the_process_as_before(tmp_path):
    for before, after, says in (
        ("", "", ""),
        ("faulthandler.enable()", "", "Bus error"),
        ("", "faulthandler.enable()", "Bus error"),
        ("signal.signal(signal.SIGBUS, signal.SIG_IGN)", "", ""),
    ):
        done = run(tmp_path, f"{before}\nmapped('data')\n{after}\n{FAULT}")
        assert (done.returncode, done.stdout) == (-signal.SIGBUS, ""), (before, after, done.stderr)
        assert says in done.stderr, (before, after)
        assert says or not done.stderr, (before, after)


def test_the_signal_by_itself_is_for_who_was_there_before(tmp_path):
    lives(
        tmp_path,
        """
        heard = []
        signal.signal(signal.SIGBUS, lambda *_: heard.append(1))
        data, other = mapped("data"), mapped("other")
        data.cut()
        data.refused()
        assert not heard
        for count in (1, 2):
            os.kill(os.getpid(), signal.SIGBUS)
            assert len(heard) == count
        other.cut()
        other.refused()
        assert len(heard) == 2
        """,
    )
    done = run(tmp_path, "mapped('data')\nos.kill(os.getpid(), signal.SIGBUS)")
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGBUS, "", "")
    lives(
        tmp_path,
        "signal.signal(signal.SIGBUS, signal.SIG_IGN)\nmapped('data')\nos.kill(os.getpid(), signal.SIGBUS)",
    )
