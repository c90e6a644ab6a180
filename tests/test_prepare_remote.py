"""Outputs in stores: what is there is whole, and no kill, fault or second writer harms it."""

import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import litdata as original
import pytest
from typer.testing import CliRunner

import headrace as hr
import prepare_functions as functions
from headrace.cli import app
from headrace.prepare import lease as leases
from headrace.prepare import lines, output, uploading
from places import Place
from prepare_functions import expected
from tokenizer_files import letters
from tools.fault_proxy import Weather

pytestmark = pytest.mark.usefixtures("no_settings_from_outside")

FORMATS = ("litdata", "mds", "parquet", "arrow")
QUIET: dict[str, Any] = {"progress": False, "verbose": False}
ORDERED: dict[str, Any] = {"num_workers": 0, "keep_data_ordered": True, "chunk_size": 5, **QUIET}


@pytest.fixture
def s3(at: Callable[[str], Place]) -> Place:
    return at("s3")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def there(place: Place, folder: str = "data") -> dict[str, bytes]:
    """All that lies at a place, hidden files too."""
    store = hr.Store(place.url(folder), storage_options=place.options())
    return {file.key: store.read(file.key) for file in store.list()}


def here(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def left(tmp_path: Path) -> list[str]:
    """What runs left in the cache folder."""
    return sorted(str(path.relative_to(tmp_path / "cache")) for path in (tmp_path / "cache" / "outputs").rglob("*"))


def optimized(place: Place, inputs: Any = range(60), fn: Any = functions.several, **how: Any) -> Any:
    return hr.optimize(fn, inputs, place.url("data"), output_options=place.options(), **(ORDERED | how))


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    def of(value: Any) -> Any:
        return bytes(value) if isinstance(value, memoryview) else value.tolist() if hasattr(value, "tolist") else value

    return {name: of(value) for name, value in sample.items()}


def ours(place: Place, folder: str = "data") -> list[Any]:
    data = hr.open(place.url(folder), storage_options=place.options())
    return [plain(data[number]) for number in range(len(data))]


def wanted(count: int) -> list[Any]:
    return [plain(sample) for sample in expected(count)]


# What comes out


@pytest.mark.parametrize("kind", ["s3", "gs", "az", "fsspec"])
@pytest.mark.parametrize("format", FORMATS)
def test_the_files_are_those_of_a_folder(kind: str, format: Any, at: Callable[[str], Place], tmp_path: Path) -> None:
    place = at(kind)
    made = optimized(place, format=format, num_workers=1)
    hr.optimize(functions.several, range(60), tmp_path / "local", format=format, **ORDERED)
    assert there(place) == here(tmp_path / "local")
    assert (made.samples, made.chunks) == (60, 12)
    assert made.folder == hr.Store(place.url("data"), storage_options=place.options()).url
    assert ours(place) == wanted(60)
    assert left(tmp_path) == []


def test_litdata_reads_what_was_uploaded(s3: Place, tmp_path: Path) -> None:
    optimized(s3)
    for name, data in there(s3).items():
        (tmp_path / "copy").mkdir(exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(data)
    found = original.StreamingDataset(str(tmp_path / "copy"))
    assert [plain(found[number]) for number in range(len(found))] == wanted(60)


def test_large_chunks_go_in_parts_and_make_room(s3: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    add = uploading.Uploads.add

    def watched(self: uploading.Uploads, name: str) -> None:
        nonlocal most
        add(self, name)
        most = max(most, len(list((tmp_path / "cache" / "outputs").rglob("chunk-*"))))

    monkeypatch.setattr(uploading.Uploads, "add", watched)
    made = optimized(s3, range(16), functions.huge, chunk_size=None, chunk_bytes="9MiB")
    assert made.chunks > 18
    assert most <= 6, "chunks go from the disk as they arrive"
    assert any("partNumber=2" in target for target in s3.requests("PUT"))
    data = hr.open(s3.url("data"), storage_options=s3.options())
    assert len(data) == 640
    assert data[639]["data"] == bytes([39]) * 300_000


def test_append_and_overwrite(s3: Place, tmp_path: Path) -> None:
    optimized(s3)
    s3.put("data/notes.txt", b"mine")
    with pytest.raises(ValueError, match=r"expected an empty folder, found chunk-0-0\.bin(?s:.*)hint: mode="):
        optimized(s3)
    before = there(s3)
    optimized(s3, range(60, 80), mode="append")
    after = there(s3)
    assert all(after[name] == before[name] for name in before if name != "index.json")
    assert len(ours(s3)) == len(wanted(80))
    optimized(s3, range(10), mode="overwrite")
    assert ours(s3) == wanted(10)
    names = {chunk["filename"] for chunk in json.loads(there(s3)["index.json"])["chunks"]}
    assert set(there(s3)) == {*names, "index.json", "notes.txt"}
    assert not names & set(after), "chunks have new names"
    assert left(tmp_path) == []


def test_a_damaged_dataset_is_not_added_to(s3: Place) -> None:
    optimized(s3, format="mds")
    s3.put("data/shard.00001.mds", b"short")
    with pytest.raises(hr.DataError, match=r"00001\.mds: expected \d+ bytes as index.json says, found another"):
        optimized(s3, range(9), mode="append", format="mds")
    optimized(s3, mode="overwrite")
    (chunk,) = [name for name in there(s3) if name.endswith("-1.bin")]
    s3.server.delete(s3.bucket, f"data/{chunk}")
    with pytest.raises(hr.DataError, match=f"names {chunk}, and it is not there"):
        optimized(s3, range(9), mode="append")


def test_skipped_inputs_are_reported(s3: Place) -> None:
    made = optimized(s3, range(6), functions.fails, on_error="skip")
    report = [json.loads(line) for line in there(s3)["_headrace/skipped.jsonl"].splitlines()]
    assert [line["input"] for line in report] == [failure.input for failure in made.skipped] == [3]
    optimized(s3, mode="overwrite", on_error="skip")
    assert "_headrace/skipped.jsonl" not in there(s3)


@pytest.mark.parametrize("kind", ["s3", "az"])
def test_map_uploads_files(kind: str, at: Callable[[str], Place], tmp_path: Path) -> None:
    place = at(kind)

    def run(fn: Any = functions.write_file, **how: Any) -> Any:
        options = place.options()
        return hr.map(fn, range(8), place.url("data"), output_options=options, num_workers=1, **how, **QUIET)

    assert run().chunks == 8
    hr.map(functions.write_file, range(8), tmp_path / "local", num_workers=0, **QUIET)
    assert there(place) == here(tmp_path / "local")
    assert run(mode="append").chunks == 8, "the same files may be there: a killed run leaves some"
    with pytest.raises(FileExistsError, match=re.escape(place.url("data/same.txt")) + " is there already"):
        run(functions.write_same, mode="append")
    with pytest.raises(FileExistsError, match=r"same\.txt is there already, of input \d"):
        run(functions.write_same, mode="overwrite", resume=False)
    made = hr.map(
        functions.write_same,
        [8],
        place.url("data"),
        output_options=place.options(),
        num_workers=0,
        mode="overwrite",
        resume=False,
        **QUIET,
    )
    assert (made.chunks, there(place)["same.txt"]) == (1, b"8")
    assert there(place).keys() - here(tmp_path / "local") == {"same.txt"}
    assert left(tmp_path) == []


def test_text_is_tokenized_to_a_store(s3: Place, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text("".join(f'{{"text": "text {number}"}}\n' for number in range(30)))
    how: dict[str, Any] = {"eos": 0, "vocab_size": 256, "chunk_size": 7, "num_workers": 0, **QUIET}
    for target, options in ((s3.url("data"), s3.options()), (tmp_path / "local", None)):
        hr.tokenize(tmp_path / "texts.jsonl", letters, target, output_options=options, **how)
    assert there(s3) == here(tmp_path / "local")
    packed = hr.open(s3.url("data"), storage_options=s3.options()).pack(16)
    assert len(hr.DataLoader(packed, 1, epochs=1)) > 10


def test_the_commands_write_to_stores(s3: Place, tmp_path: Path) -> None:
    hr.optimize(functions.several, range(60), tmp_path / "local", **ORDERED)
    options = [f"--output-option={name}={value}" for name, value in s3.options().items()]
    arguments = ["convert", str(tmp_path / "local"), s3.url("data"), "--format", "mds", "--workers", "0", "--json"]
    done = CliRunner().invoke(app, [*arguments, *options])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["folder"] == s3.url("data")
    assert ours(s3) == wanted(60)
    done = CliRunner().invoke(app, [*arguments, "--output-option=secret"])
    assert (done.exit_code, "secret" in done.stderr) == (2, False)
    assert "--output-option must be KEY=VALUE" in done.stderr


def test_merged_datasets_are_uploaded_from_where_they_lie(s3: Place, tmp_path: Path) -> None:
    for part in range(2):
        inputs = range(part * 30, part * 30 + 30)
        hr.optimize(functions.several, inputs, tmp_path / f"part-{part}", **ORDERED)
    parts = [tmp_path / "part-0", tmp_path / "part-1"]
    s3.proxies[0].add("status", match="chunk-0-7", method="PUT", status=400)
    with pytest.raises(hr.StoreError, match="chunk-0-7"):
        hr.merge_datasets(parts, s3.url("data"), output_options=s3.options())
    s3.clear()
    made = hr.merge_datasets(parts, s3.url("data"), output_options=s3.options())
    assert made.samples == 60
    sent = [target for target in s3.requests("PUT") if "chunk-" in target]
    assert len(sent) == made.chunks - 7, "what had arrived is not sent again"
    assert ours(s3) == wanted(60)
    with pytest.raises(ValueError, match="expected an empty folder"):
        hr.merge_datasets(parts, s3.url("data"), output_options=s3.options())
    assert left(tmp_path) == []
    with pytest.raises(ValueError, match="dirs must be a folder on a disk"):
        hr.merge_datasets([s3.url("data")], tmp_path / "out")


# Kills


class Stop(BaseException):
    """The process ends here."""


def test_a_run_that_ends_at_any_write_goes_on(s3: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends a run at each call that changes a file or the store, as a kill between two of them would."""
    hr.optimize(functions.several, range(24), tmp_path / "whole", **ORDERED)
    whole = here(tmp_path / "whole")
    places = [(lines.Lines, "add"), (hr.Store, "put"), (output.Output, "replace"), (output.Path, "unlink")]
    ends = 0
    for before in (True, False):
        for at in range(200):
            url = s3.url(f"{before}-{at}")
            run = {"output_options": s3.options(), **ORDERED}
            with monkeypatch.context() as patch:
                calls = iter(range(at + 1))
                for owner, name in places:
                    patch.setattr(owner, name, _ending(getattr(owner, name), calls, before=before))
                try:
                    hr.optimize(functions.several, range(24), url, **run)
                    break
                except Stop:
                    ends += 1
            found = {name: data for name, data in there(s3, f"{before}-{at}").items() if not name.startswith(".")}
            if "index.json" in found:
                assert found == whole
                if not any(path.endswith("journal.jsonl") for path in left(tmp_path)):
                    # Nothing but tidying up was left.
                    continue
            hr.optimize(functions.several, range(24), url, **run)
            assert there(s3, f"{before}-{at}") == whole, (before, at)
        else:
            pytest.fail("the run never came to its end")
    assert ends > 40


def _ending(call: Any, calls: Any, *, before: bool) -> Any:
    def ending(*arguments: Any, **options: Any) -> Any:
        left = next(calls, None) is not None
        if before and not left:
            raise Stop
        result = call(*arguments, **options)
        if not before and not left:
            raise Stop
        return result

    return ending


PROGRAM = """
import json, sys
import headrace as hr
import prepare_functions as functions
from pathlib import Path
url, options, log = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
if __name__ == "__main__":
    hr.optimize(functions.Logged(log, 0.004), range(300), url, output_options=options, num_workers=1,
        keep_data_ordered=True, chunk_size=4, progress=False, verbose=False)
"""


def started(place: Place, tmp_path: Path) -> "subprocess.Popen[str]":
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = [place.url("data"), json.dumps(place.options()), str(tmp_path / "log")]
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(
        [sys.executable, "-P", str(tmp_path / "program.py"), *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_runs_go_on_and_upload_nothing_twice(s3: Place, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    kills = 0
    log = functions.Logged(tmp_path / "log", 0)
    while True:
        process = started(s3, tmp_path)
        begun, deadline = len(log.calls()), time.monotonic() + 60
        while process.poll() is None and len(log.calls()) == begun and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            _, errors = process.communicate(timeout=chance.uniform(0.03, 0.3) if kills < 6 else 60)
            assert process.returncode == 0, errors
            assert left(tmp_path) == []
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
        if "index.json" in there(s3):
            assert ours(s3) == wanted(300)
            if not any(path.endswith("journal.jsonl") for path in left(tmp_path)):
                break
    assert kills >= 3
    assert ours(s3) == wanted(300)
    assert len(log.calls()) < 300 + 40 * kills, "finished inputs are not done again"
    sent = Counter(target.rpartition("/")[2] for target in s3.requests("PUT") if "chunk-" in target)
    # A chunk whose upload was under way in either thread is sent again.
    assert sum(sent.values()) - len(sent) <= 2 * kills


# Faults


def test_uploads_get_over_a_storm(s3: Place) -> None:
    s3.proxies[0].weather = Weather(5, rate=0.2)
    options = s3.options(timeout="1")
    hr.optimize(functions.several, range(60), s3.url("data"), output_options=options, **ORDERED)
    s3.proxies[0].weather = None
    assert ours(s3) == wanted(60)


@pytest.mark.parametrize("match", ["chunk-0-3", "index.json"])
def test_an_upload_that_fails_is_one_error_and_the_call_goes_on(s3: Place, tmp_path: Path, match: str) -> None:
    options = s3.options(timeout="1", retry_timeout="1", max_retries="1")
    s3.proxies[0].add("status", match=match, method="PUT", status=503, count=1000)
    log = functions.Logged(tmp_path / "log", 0)

    def run() -> Any:
        return hr.optimize(log, range(60), s3.url("data"), output_options=options, **ORDERED)

    with pytest.raises(
        hr.StoreError, match=rf"{match}.* failed after 2 attempts(?s:.*)503(?s:.*)the same call goes on"
    ):
        run()
    assert "index.json" not in there(s3)
    s3.clear()
    assert run().samples == 60
    assert ours(s3) == wanted(60)
    assert sorted(log.calls()) == list(range(60))
    again = [target for target in s3.requests("PUT") if "chunk-0-0" in target]
    assert again == [], "what had arrived is not sent again"


def unfinished(s3: Place) -> None:
    """All is there but the index."""
    s3.proxies[0].add("status", match="index.json", method="PUT", status=400)
    with pytest.raises(hr.StoreError, match=r"index\.json"):
        optimized(s3, range(30))
    assert sum(name.startswith("chunk-") for name in there(s3)) == 6


def test_a_run_that_is_given_up_leaves_nothing(s3: Place, tmp_path: Path) -> None:
    unfinished(s3)
    with pytest.raises(hr.StateMismatch, match="unfinished run with other arguments"):
        optimized(s3)
    assert optimized(s3, resume=False, chunk_size=30).samples == 60
    assert len(there(s3)) == 3, "chunks of the run that was given up are gone"
    assert ours(s3) == wanted(60)
    assert left(tmp_path) == []


def test_a_chunk_that_went_away_is_noticed(s3: Place) -> None:
    unfinished(s3)
    s3.put("data/chunk-0-0.bin", b"of somebody else")
    with pytest.raises(
        hr.DataError, match=r"chunk-0-0\.bin: expected \d+ bytes of version .* found 16 bytes of version"
    ):
        optimized(s3, range(30))
    s3.server.delete(s3.bucket, "data/chunk-0-0.bin")
    with pytest.raises(hr.DataError, match=r"chunk-0-0\.bin: expected \d+ bytes of version .* found none"):
        optimized(s3, range(30))
    optimized(s3, range(30), resume=False)
    assert ours(s3) == wanted(30)


# One writer


def test_a_second_writer_is_refused(s3: Place, tmp_path: Path) -> None:
    process = started(s3, tmp_path)
    log = functions.Logged(tmp_path / "log", 0)
    while not log.calls():
        time.sleep(0.01)
    # On this machine by the work folder, on others by the lease.
    for how in ({}, {"work_dir": tmp_path / "other"}):
        with pytest.raises(hr.StoreError, match=f"another process writes a dataset there .process {process.pid} on"):
            optimized(s3, **how)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert ours(s3) == wanted(300)
    assert list((tmp_path / "other").iterdir()) == []


def test_a_lease_that_is_not_renewed_is_taken_over(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store = hr.Store(s3.url("data"), storage_options=s3.options())
    first = leases.Lease(store, "first")
    with pytest.raises(hr.StoreError, match="another process writes a dataset there"):
        leases.Lease(store, "second")
    monkeypatch.setattr(leases, "_STALE", -1.0)
    second = leases.Lease(store, "second")
    with pytest.raises(hr.StoreError, match="another process took over"):
        first.check()
    first.release()
    second.check()
    again = leases.Lease(store, "second")
    with pytest.raises(hr.StoreError, match="another process took over"):
        second.check()
    again.release()
    assert there(s3) == {}


LEASE = ".headrace/writer.json"


def test_a_lease_is_renewed(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_EVERY", 0.2)
    store = hr.Store(s3.url("data"), storage_options=s3.options())
    first = leases.Lease(store, "first")
    begun = store.head(LEASE).modified
    assert begun is not None
    deadline = time.monotonic() + 60
    # The times of the store are whole seconds.
    while (now := store.head(LEASE).modified) is None or (now - begun).total_seconds() < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(hr.StoreError, match="another process writes a dataset there"):
        leases.Lease(store, "second")
    first.check()
    first.release()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("mode", [None, "overwrite"])
def test_a_run_that_was_taken_over_changes_nothing(
    s3: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, mode: Any
) -> None:
    if mode is not None:
        optimized(s3, range(7), format=format)

    def stops(number: int) -> Any:
        if number == 0:
            # It stands still for so long that another one takes over, and comes to its end.
            with monkeypatch.context() as patch:
                patch.setattr(leases, "_STALE", -1.0)
                optimized(s3, range(100, 130), format=format, mode=mode, work_dir=tmp_path / "second")
            made.update(there(s3))
        return functions.sample(number)

    made: dict[str, bytes] = {}
    with pytest.raises(hr.StoreError, match="another process took over"):
        optimized(s3, range(30), stops, format=format, mode=mode, work_dir=tmp_path / "first")
    assert there(s3) == made
    assert ours(s3) == [plain(sample) for number in range(100, 130) for sample in functions.several(number)]


@pytest.mark.parametrize("mode", [None, "overwrite"])
def test_an_index_that_comes_right_before_its_own_is_not_replaced(
    s3: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    if mode is not None:
        optimized(s3, range(7))
    expect = output.Output.expect_unchanged

    def looked(self: output.Output, *arguments: Any) -> None:
        expect(self, *arguments)
        if len(arguments) == 3:
            s3.put("data/index.json", b"of another run")

    monkeypatch.setattr(output.Output, "expect_unchanged", looked)
    with pytest.raises(hr.StateMismatch, match="another run made a dataset there since this one began"):
        optimized(s3, mode=mode, work_dir=tmp_path / "work")
    assert there(s3)["index.json"] == b"of another run"


def test_a_lease_that_was_taken_over_is_not_released(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store = hr.Store(s3.url("data"), storage_options=s3.options())
    first = leases.Lease(store, "first")
    with monkeypatch.context() as patch:
        patch.setattr(leases, "_STALE", -1.0)
        second = leases.Lease(store, "second")
    first.release()
    second.check()
    second.release()
    assert there(s3) == {}


def test_a_work_folder_among_other_files_leaves_them(s3: Place, tmp_path: Path) -> None:
    work = tmp_path / "scratch"
    work.mkdir()
    (work / "thesis.txt").write_text("mine")
    (work / "chunks").mkdir()
    (work / "chunks" / "photo.png").write_bytes(b"mine too")
    before = here(work)
    with pytest.raises(ValueError, match="no 3"):
        optimized(s3, range(30), functions.fails, work_dir=work)
    optimized(s3, range(30), resume=False, work_dir=work)
    assert here(work) == before
    lease = leases.Lease(hr.Store(s3.url("data"), storage_options=s3.options()), "somebody")
    with pytest.raises(hr.StoreError, match="another process writes a dataset there"):
        optimized(s3, mode="overwrite", work_dir=work)
    lease.release()
    assert here(work) == before
    assert len(list(work.iterdir())) == 2, "nothing of a run stays"


def test_a_dataset_that_came_in_between_is_not_replaced(s3: Place, tmp_path: Path) -> None:
    optimized(s3)
    with pytest.raises(ValueError, match="no 3"):
        optimized(s3, range(9), functions.fails, mode="append", work_dir=tmp_path / "one")
    optimized(s3, range(60, 80), mode="append", work_dir=tmp_path / "two")
    with pytest.raises(hr.StateMismatch, match=r"another run made a dataset there(?s:.*)resume=False"):
        optimized(s3, range(9), functions.fails, mode="append", work_dir=tmp_path / "one")
    assert len(ours(s3)) == len(wanted(80))


# Templates


@pytest.mark.parametrize("kind", ["s3", "local"])
def test_an_unfinished_run_of_a_template_goes_on_where_it_was(
    kind: str, at: Callable[[str], Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = at(kind)
    clock = iter(["08-00", "08-01", "08-02", "08-03"])
    monkeypatch.setattr("headrace.prepare.target.expanded", lambda path: path.replace("{%H-%M}", next(clock)))
    how = {"output_options": place.options() or None, **ORDERED, "chunk_size": 1}

    def run(fn: Any, **more: Any) -> str:
        return str(hr.optimize(fn, range(9), place.url("run-{%H-%M}"), **how, **more).folder)

    for _ in range(2):
        with pytest.raises(ValueError, match="no 3"):
            run(functions.fails)
    assert next(clock) == "08-01", "it is filled in once"
    assert run(functions.several, resume=False).rstrip("/").endswith("run-08-02")
    assert run(functions.several).rstrip("/").endswith("run-08-03"), "a finished run is not gone on with"


def test_arguments_are_checked(tmp_path: Path, s3: Place) -> None:
    with pytest.raises(ValueError, match="output_options are for outputs in stores"):
        hr.optimize(str, range(3), tmp_path / "data", output_options={"region": "x"}, **ORDERED)
    with pytest.raises(ValueError, match="work_dir is for outputs in stores"):
        hr.optimize(str, range(3), tmp_path / "data", work_dir=tmp_path / "work", **ORDERED)
    with pytest.raises(ValueError, match="files cannot be written there"):
        hr.optimize(str, range(3), "hf://datasets/org/name/data", **ORDERED)
    with pytest.raises(TypeError, match="output_dir must be a path or URL"):
        hr.optimize(str, range(3), 5, **ORDERED)  # type: ignore[arg-type]
    assert pickle.dumps(hr.Store(s3.url("x"), storage_options=s3.options()))
