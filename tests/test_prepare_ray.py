"""`engine="ray"`: the same files as without Ray, whatever dies. Programs run in an environment that has Ray."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
import prepare_functions as functions
from prepare_functions import expected

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venv-ray/bin/python"
QUIET: dict[str, Any] = {"progress": False, "verbose": False}
SECONDS = 90

PRELUDE = """
import functools, os, sys, time
from pathlib import Path
import headrace, ray
import prepare_functions as functions

out = Path(sys.argv[1])
quiet = {"engine": "ray", "progress": False, "verbose": False}
ordered = {**quiet, "keep_data_ordered": True, "chunk_size": 17}
"""


class Cluster:
    """A cluster of this machine, and programs that find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (Path(headrace.__file__).parents[1], Path(__file__).parent))),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "RAY_TMPDIR": str(folder),
            # No process is killed as this machine has little memory left, and an object store that is full is an error.
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_local_fs_capacity_threshold": "0",
        }
        # Ray keeps an address there, and makes no folder for it.
        (folder / "ray").mkdir()
        command = [PYTHON, ROOT / "tests/tools/ray_cluster.py", folder / "ray"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment, text=True
        )
        self.environment["RAY_ADDRESS"] = self._line()

    def say(self, *words: str) -> None:
        """Does what ray_cluster.py says."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        assert self._line() == "done"

    def close(self) -> None:
        assert self.process.stdin is not None
        with self.process:
            self.process.stdin.close()
            self.process.wait(SECONDS)

    @contextlib.contextmanager
    def start(self, folder: Path, program: str, **environment: str) -> "Iterator[subprocess.Popen[str]]":
        """A program behind the prelude, in a session of its own; it ends with this, if not before."""
        folder.mkdir(exist_ok=True)
        path = folder / "program.py"
        path.write_text(PRELUDE + textwrap.dedent(program))
        process = subprocess.Popen(
            [PYTHON, path, folder],
            env={**self.environment, **environment},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, folder: Path, program: str, **environment: str) -> str:
        """Runs a program to its end; gives what it printed."""
        with self.start(folder, program, **environment) as process:
            return ended(process)

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"ray_cluster.py ended with {self.process.wait()}"
        return line.strip()


def ended(process: "subprocess.Popen[str]") -> str:
    """What a program printed, which ends well."""
    printed, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors[-5000:]
    return printed


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if not PYTHON.exists():
        pytest.skip("Ray is not installed: make .venv-ray/.installed")
    # Paths of sockets are short.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    started = Cluster(folder)
    try:
        yield started
    finally:
        started.close()
        shutil.rmtree(folder, ignore_errors=True)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def local(folder: Path, count: int, **how: Any) -> dict[str, bytes]:
    """The files that come of it without Ray."""
    headrace.optimize(
        functions.several, range(count), folder, keep_data_ordered=True, chunk_size=17, num_workers=0, **how, **QUIET
    )
    return files(folder)


def numbers(folder: Path) -> list[int]:
    data = headrace.open(folder)
    return sorted(data[at]["number"] for at in range(len(data)))


def until(condition: Any, process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()[1][-5000:]
        assert time.monotonic() < end
        time.sleep(0.01)


# What comes out


def test_files_are_those_of_the_local_engine(cluster: Cluster, tmp_path: Path) -> None:
    printed = cluster.run(
        tmp_path / "ray",
        """
        ray.init(logging_level="warning")
        mine = ray.put("mine")
        for format in ("litdata", "arrow"):
            made = headrace.optimize(functions.several, range(120), out / format, format=format, **ordered)
            print(made.samples, made.chunks, made.skipped)
        headrace.optimize(functions.several, range(90), out / "unordered", **quiet)
        made = headrace.map(functions.write_file, range(40), out / "map", num_workers=3, **quiet)
        print(made.chunks, made.bytes)
        (out / "texts").mkdir()
        for number in range(9):
            (out / "texts" / f"{number}.txt").write_text(f"{number}" * number)
        for engine, workers in (("local", 0), ("ray", 2)):
            how = {**quiet, "engine": engine, "num_workers": workers}
            headrace.tokenize("texts", functions.letters, out / engine, eos=0, vocab_size=256, **how)
        # A connection that was there is left alone.
        print(ray.get(mine))
        """,
    )
    assert printed.splitlines() == ["120 8 []"] * 2 + ["40 70", "mine"]
    for format in ("litdata", "arrow"):
        assert files(tmp_path / "ray" / format) == local(tmp_path / format, 120, format=format)
    assert numbers(tmp_path / "ray" / "unordered") == sorted(sample["number"] for sample in expected(90))
    assert files(tmp_path / "ray" / "ray") == files(tmp_path / "ray" / "local") != {}
    assert files(tmp_path / "ray" / "map") == {f"deep/{number}.txt": str(number).encode() for number in range(40)}


def test_functions_and_exceptions_of_the_program_itself(cluster: Cluster, tmp_path: Path) -> None:
    printed = cluster.run(
        tmp_path,
        """
        class Own(Exception):
            pass

        def own(number):
            if number == 7:
                raise Own(number)
            # Workers find files where the program does.
            return {"number": number, "here": Path("program.py").exists(), "pid": os.getpid()}

        headrace.optimize(lambda number: {"number": number}, range(5), out / "lambda", **quiet)
        try:
            headrace.optimize(own, range(20), out / "own", **ordered)
        except Own as error:
            notes = "".join(error.__notes__)
            print("in input 7: 7" in notes, "Ray worker " in notes, "raise Own(number" in notes)
        made = headrace.optimize(own, range(20), out / "skipped", on_error="skip", **quiet)
        print([failure.input for failure in made.skipped])
        data = headrace.open(out / "skipped")
        print(all(data[at]["here"] and data[at]["pid"] != os.getpid() for at in range(19)))
        """,
    )
    assert printed.splitlines()[-3:] == ["True True True", "[7]", "True"]
    assert numbers(tmp_path / "lambda") == list(range(5))


def test_blocks_leave_the_object_store(cluster: Cluster, tmp_path: Path) -> None:
    """It holds 80 MiB and may not use the disk: 340 MiB go through it, inputs too."""
    cluster.run(
        tmp_path,
        """
        def echo(data):
            yield {"data": data}

        headrace.optimize(functions.huge, range(20), out / "huge", **{**ordered, "chunk_size": 100})
        inputs = (bytes([number]) * (6 << 20) for number in range(18))
        headrace.optimize(echo, inputs, out / "echo", **ordered)
        """,
    )
    data = headrace.open(tmp_path / "huge")
    assert [(data[at]["input"], data[at]["part"]) for at in range(0, len(data), 17)] == [
        divmod(at, 40) for at in range(0, 800, 17)
    ]
    data = headrace.open(tmp_path / "echo")
    assert [data[at]["data"] == bytes([at]) * (6 << 20) for at in range(18)] == [True] * 18


# What dies


def test_a_node_that_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    cluster.say("add", "spare")
    log = functions.Logged(tmp_path / "log", 0)
    program = """
        fn = functions.Logged(out / "log", 0.03)
        options = {"resources": {"spare": 2}}
        made = headrace.optimize(fn, range(90), out / "data", ray_options=options, **ordered)
        print("made", made.samples)
    """
    with cluster.start(tmp_path, program) as process:
        # There is no other machine of the kind, until the next one comes.
        until(lambda: len(log.calls()) > 30, process)
        cluster.say("kill")
        assert not (tmp_path / "data" / "index.json").exists()
        cluster.say("add", "spare")
        printed = ended(process)
    cluster.say("kill")
    assert "made 90" in printed.splitlines()
    assert files(tmp_path / "data") == local(tmp_path / "local", 90)
    calls = log.calls()
    assert set(calls) == set(range(90))
    # What was done in the last moment, by four threads' tasks, is done again.
    assert len(calls) - 90 <= 16


def test_workers_that_die(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    printed = cluster.run(
        tmp_path,
        """
        def exits(number):
            if number == 5:
                sys.exit(3)
            return {"number": number}

        fn = functions.KilledOnce(out / "marks", {0, 17, 18, 59})
        headrace.optimize(fn, range(60), out / "once", **ordered)
        try:
            fn = functions.KilledOnce(out, {7}, always=True)
            headrace.optimize(fn, range(20), out / "always", num_workers=1, **ordered)
        except RuntimeError as error:
            print(error)
        fn.at = set()
        headrace.optimize(fn, range(20), out / "always", num_workers=1, **ordered)
        made = headrace.optimize(exits, range(9), out / "exits", on_error="skip", **ordered)
        print(made.skipped[0].input, made.skipped[0].error)
        """,
    )
    assert len(list((tmp_path / "marks").iterdir())) == 4
    assert files(tmp_path / "once") == local(tmp_path / "once-local", 60)
    assert re.search(r"input 7 was begun 2 times, and its process ended each time: Ray worker 0 \(pid \d+ on ", printed)
    assert files(tmp_path / "always") == local(tmp_path / "always-local", 20)
    assert re.search(r"^5 Ray worker \d .* died: .*exit code 3", printed, re.MULTILINE)


def test_a_program_that_is_killed_or_interrupted_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    log = functions.Logged(tmp_path / "log", 0)

    program = """
        headrace.optimize(functions.Logged(out / "log", 0.03), range(90), out / "data", **ordered)
        ray.init(logging_level="warning")
        # Workers that the cluster has not got back yet end now.
        while ray.available_resources().get("CPU") != 2:
            time.sleep(0.1)
    """
    for number, done in ((signal.SIGKILL, 15), (signal.SIGINT, 45)):
        with cluster.start(tmp_path, program) as process:
            until(lambda done=done: len(log.calls()) > done, process)
            process.send_signal(number)
            process.communicate(timeout=SECONDS)
            assert process.returncode != 0
        assert not (tmp_path / "data" / "index.json").exists()
    cluster.run(tmp_path, program)
    assert files(tmp_path / "data") == local(tmp_path / "local", 90)
    assert len(log.calls()) - 90 <= 2 * 32


# Where it runs


def test_a_cluster_that_was_started_for_a_call_ends_with_it(cluster: Cluster, tmp_path: Path) -> None:
    program = """
        made = headrace.optimize(functions.several, range(30), out / "data", **ordered)
        print(ray.is_initialized(), "RAY_USAGE_STATS_ENABLED" in os.environ)
        sys.stdout.flush()
        time.sleep(100)
    """
    with cluster.start(tmp_path, program, RAY_ADDRESS="local") as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == ["False", "True"]
        left = session(process.pid)
    assert left == [process.pid]
    assert files(tmp_path / "data") == local(tmp_path / "local", 30)


def session(leader: int) -> list[int]:
    """The processes of a session that live."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        # It may have gone by now.
        with contextlib.suppress(OSError):
            state, _, _, number = path.read_text().rpartition(")")[2].split()[:4]
            if int(number) == leader and state != "Z":
                found.append(int(path.parent.name))
    return found


def test_workers_that_nothing_has_room_for(cluster: Cluster, tmp_path: Path) -> None:
    program = """
        from headrace.prepare import on_ray

        on_ray._NOTICE_SECONDS = 0.5
        options = {"resources": {"late": 1}}
        try:
            headrace.optimize(functions.several, range(9), out / "none", ray_options=options, **ordered)
        except ValueError as error:
            print(error)
        headrace.optimize(functions.several, range(90), out / "data", num_workers=9, ray_options=options, **ordered)
    """
    with cluster.start(tmp_path, program) as process:
        assert process.stderr is not None
        said = ""
        while "Ray gave no worker yet" not in said:
            said = process.stderr.readline()
            assert said
        # It has room for two of nine.
        cluster.say("add", "late")
        printed = ended(process)
    cluster.say("kill")
    assert "each worker needs {'CPU': 1, 'late': 1}, and no machine of the Ray cluster has that\nhint: " in printed
    assert files(tmp_path / "data") == local(tmp_path / "local", 90)


def test_machines_that_lack_something(cluster: Cluster, tmp_path: Path) -> None:
    for name, text in (("old", "__version__ = '0.0.1'"), ("none", "raise ImportError('not here')")):
        (tmp_path / name / "headrace").mkdir(parents=True)
        (tmp_path / name / "headrace" / "__init__.py").write_text(text)
    (tmp_path / "of_the_program.py").write_text("def fn(number):\n    return {'number': number}\n")
    printed = cluster.run(
        tmp_path,
        """
        import of_the_program

        for name in ("old", "none"):
            options = {"runtime_env": {"env_vars": {"PYTHONPATH": str(out / name)}}}
            try:
                headrace.optimize(functions.several, range(9), out / "data", ray_options=options, **ordered)
            except RuntimeError as error:
                print(error)
        headrace.prepare.job.Place.begin = lambda self, anew: None
        try:
            headrace.map(functions.write_file, range(9), out / "files", **quiet)
        except headrace.StoreError as error:
            print(error)
        headrace.optimize(of_the_program.fn, range(9), out / "module", **ordered)
        (out / "of_the_program.py").rename(out / "moved.py")
        try:
            headrace.optimize(of_the_program.fn, range(9), out / "gone", **ordered)
        except ImportError as error:
            print(*error.__notes__, sep="\\n")
        """,
    )
    expects = "Ray worker . .pid .* on .*.: expected headrace .*, "
    assert re.search(expects + "found headrace 0.0.1 there\nhint: install it there", printed)
    assert re.search(expects + "found none there: not here\nhint: install it there", printed)
    assert re.search(
        f"{tmp_path / 'files'}: expected the folder that this run writes to, .* has another one or none there\n"
        "hint: choose a folder that all machines share",
        printed,
    )
    assert "hint: what fn imports has to be on all machines" in printed
    assert numbers(tmp_path / "module") == list(range(9))


def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(**how: Any) -> None:
        headrace.optimize(functions.several, range(9), tmp_path / "data", **how)

    with pytest.raises(ValueError, match="engine must be one of 'local', 'ray', got 'dask'"):
        call(engine="dask")
    with pytest.raises(ValueError, match='ray_options are for engine="ray", got them with engine="local"'):
        call(ray_options={})
    with pytest.raises(ValueError, match='num_workers must be at least 1 with engine="ray", got 0'):
        call(engine="ray", num_workers=0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'engine="ray" needs Ray: .*\nhint: pip install "headrace\[ray\]"'):
        call(engine="ray")
    assert not (tmp_path / "data").exists()


def test_arguments_of_ray(cluster: Cluster, tmp_path: Path) -> None:
    printed = cluster.run(
        tmp_path,
        """
        import threading

        lock = threading.Lock()
        for fn, options in ((functions.several, {"max_restarts": 3}), (lambda number: lock, None)):
            try:
                headrace.optimize(fn, range(9), out / "data", ray_options=options, **ordered)
            except (TypeError, ValueError) as error:
                print(error)
        try:
            headrace.optimize(functions.several, [lock], out / "data", **ordered)
        except TypeError as error:
            print(*error.__notes__)
        """,
    )
    assert "ray_options must be some of num_cpus, num_gpus, memory, " in printed
    assert "got 'max_restarts'\n" in printed
    assert re.search("fn cannot be sent to Ray's workers: .*lock.*\nhint: what it refers to is sent with it", printed)
    assert "while input 0, or one behind it, was sent to a worker process" in printed
