"""Stores of records made of other datasets, when runs end early, go on, add to a store and replace one."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.prepare import local, record_copying, record_shards, recording
from headrace.prepare.output import Output
from headrace.prepare.target import Target
from places import Place
from prepare_functions import environment

SHARD = 15_000
"""Bytes of a shard, about."""


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """What a kill leaves is there without the disk's word for it, which takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Documents for several shards: empty ones, and some that are longer than a shard."""
    random = np.random.default_rng(5)
    sizes = random.choice([0, 0, 1, 7, 40, 500], 120).tolist()
    rows = [{"tokens": random.integers(0, 9, size).tolist(), "id": number} for number, size in enumerate(sizes)]
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def few(tmp_path: Path) -> Path:
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps({"tokens": [number] * 200, "id": number}) + "\n" for number in range(5)))
    return path


def there(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def visible(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in there(folder).items() if not name.startswith(".")}


def copied(source: Any, target: Path | Target, kind: Any = "documents", **how: Any) -> Any:
    settings: dict[str, Any] = {"columns": None, "keep": None, "dtype": None, "shard_bytes": str(SHARD), "mode": None}
    settings |= {"resume": True, "progress": False}
    dataset = headrace.open(source) if isinstance(source, Path) else source
    where = Target(target) if isinstance(target, Path) else target
    return record_copying.copy_records(dataset, where, kind=kind, **(settings | how)).made


class Stop(BaseException):
    """The process ends here."""


PLACES = [
    (Output, "note"),
    (Output, "replace"),
    (local.Path, "rename"),
    (local.LocalOutput, "remove"),
    (record_shards._Aside, "finish"),
    (recording, "write_index"),
]
"""All that leaves something for a later run."""


def ending(call: Any, counts: Iterator[int], at: int, *, before: bool) -> Any:
    """The function, at whose so-and-so-many-th call the process ends: so do all that come after it."""

    def ending(*arguments: Any, **options: Any) -> Any:
        if before and next(counts) >= at:
            raise Stop
        result = call(*arguments, **options)
        if not before and next(counts) >= at:
            raise Stop
        return result

    return ending


@pytest.mark.parametrize("kind,mode", [("documents", "append"), ("stream", None), ("documents", "overwrite")])
def test_a_run_that_ends_at_any_write_goes_on(
    tmp_path: Path, few: Path, many: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, mode: Any
) -> None:
    """Ends a run at each call that changes something, as a kill between two of them would."""
    (tmp_path / "old").mkdir()
    if mode is not None:
        copied(few, tmp_path / "old", kind)
    old = there(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "whole")
    copied(many, tmp_path / "whole", kind, mode=mode)
    wanted = there(tmp_path / "whole")
    assert (old.items() <= wanted.items()) == (mode is None)
    ends = 0
    for before in (True, False):
        for at in range(500):
            folder = tmp_path / f"{before}-{at}"
            shutil.copytree(tmp_path / "old", folder)
            with monkeypatch.context() as patch:
                counts = itertools.count()
                for owner, name in PLACES:
                    patch.setattr(owner, name, ending(getattr(owner, name), counts, at, before=before))
                try:
                    copied(many, folder, kind, mode=mode)
                    break
                except Stop:
                    ends += 1
            index = visible(folder).get("index.json")
            assert index in (old.get("index.json"), wanted["index.json"])
            if index is not None:
                # Whichever it is, the store is whole.
                assert len(headrace.open(folder, verify=True))
            if visible(folder) == wanted and not (folder / ".headrace" / "journal.jsonl").exists():
                # Nothing but tidying up was left.
                continue
            copied(many, folder, kind, mode=mode)
            assert there(folder) == wanted, (before, at)
        else:
            pytest.fail("the run never came to its end")
        assert there(folder) == wanted
    assert ends > 40


@pytest.mark.parametrize("mode", [None, "append"])
@pytest.mark.parametrize("what", ["convert", "optimize", "map"])
def test_a_run_that_ends_while_it_tidies_up_is_done(
    tmp_path: Path, few: Path, monkeypatch: pytest.MonkeyPatch, what: str, mode: Any
) -> None:
    """The same call finds that nothing is left to do, and adds nothing a second time."""
    how: dict[str, Any] = {"mode": mode, "num_workers": 0, "verbose": False, "progress": False}

    replacing: dict[str, Any] = how | {"mode": None if mode is None else "overwrite"}

    def call(folder: Path) -> None:
        if what == "convert":
            copied(few, folder, mode=mode)
        elif what == "optimize":
            headrace.optimize(dict_of, range(9), folder, chunk_size=2, **how)
        else:
            headrace.map(written, range(9), folder, **replacing)

    call(tmp_path / "whole")
    if mode is not None:
        shutil.copytree(tmp_path / "whole", tmp_path / "data")
        call(tmp_path / "whole")
    with monkeypatch.context() as patch:
        close = Output.close

        def closed(output: Output, *, finished: bool) -> None:
            patch.setattr(shutil, "rmtree", ending(shutil.rmtree, itertools.count(), 0, before=False))
            close(output, finished=finished)

        patch.setattr(Output, "close", closed)
        with pytest.raises(Stop):
            call(tmp_path / "data")
    assert visible(tmp_path / "data") == visible(tmp_path / "whole")
    call(tmp_path / "data")
    assert there(tmp_path / "data") == there(tmp_path / "whole")


def dict_of(number: int) -> dict[str, int]:
    return {"number": number}


def written(number: int, folder: str) -> None:
    (Path(folder) / f"{number}.txt").write_text(str(number))


def test_a_killed_command_goes_on_where_it_was(tmp_path: Path, many: Path) -> None:
    copied(many, tmp_path / "whole", shard_bytes="100")
    command = [sys.executable, "-m", "headrace", "convert", many, tmp_path / "data", "--format", "documents"]
    command += ["--chunk-bytes", "100"]
    parts = tmp_path / "data" / ".headrace" / "chunks" / "part-00000.json"
    before: list[Any] = []
    for kill in range(4):
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL)
        while process.poll() is None and len(shards := listed(parts)) < 10 * (kill + 1):
            time.sleep(0.0005)
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        shards = listed(parts)
        # What was finished is not made again.
        assert shards[: len(before)] == before
        before = shards
        assert visible(tmp_path / "data") == {}
    kept = {path.name: path.stat().st_mtime_ns for path in parts.parent.glob("*.bin")}
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert there(tmp_path / "data") == there(tmp_path / "whole")
    for shard in before:
        assert (tmp_path / "data" / shard["name"]).stat().st_mtime_ns == kept[shard["name"]]


def listed(index: Path) -> list[Any]:
    return json.loads(index.read_bytes())["shards"] if index.exists() else []


def test_a_stream_without_ends_goes_on_within_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in range(3):
        np.arange(part * 10_000, part * 10_000 + 10_000, dtype="<u2").tofile(tmp_path / f"{part}.bin")
    data = headrace.open(tmp_path / "*.bin", stored_dtype="uint16")
    copied(data, tmp_path / "whole", "stream", shard_bytes="7000")
    monkeypatch.setattr(record_copying, "_STRETCH_BYTES", 1000)
    finish = record_shards.OpenShard.finish
    for shard in range(9):
        with monkeypatch.context() as patch:
            counts = itertools.count()
            patch.setattr(record_shards.OpenShard, "finish", ending(finish, counts, 1, before=True))
            if shard < 8:
                with pytest.raises(Stop):
                    copied(data, tmp_path / "data", "stream", shard_bytes="7000")
                assert len(listed(tmp_path / "data/.headrace/chunks/part-00000.json")) == shard + 1
            else:
                assert copied(data, tmp_path / "data", "stream", shard_bytes="7000").samples == 30_000
    assert there(tmp_path / "data") == there(tmp_path / "whole")


def test_an_error_keeps_what_was_finished(tmp_path: Path, many: Path) -> None:
    good = many.read_bytes()
    with many.open("a") as out:
        out.write(json.dumps({"tokens": [2.5], "id": 1}) + "\n")
    for _ in range(2):
        with pytest.raises(headrace.DataError, match=r"sample 120 \(.*many.jsonl.*document, tokens: expected"):
            copied(many, tmp_path / "data")
    assert len(listed(tmp_path / "data/.headrace/chunks/part-00000.json")) > 5
    many.write_bytes(good)
    with pytest.raises(headrace.StateMismatch, match="unfinished run with other"):
        copied(many, tmp_path / "data")
    copied(many, tmp_path / "data", resume=False)
    copied(many, tmp_path / "whole")
    assert there(tmp_path / "data") == there(tmp_path / "whole")


def test_an_unfinished_run_is_only_gone_on_with_as_it_was(
    tmp_path: Path, many: Path, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Output, "publish", ending(Output.publish, itertools.count(), 0, before=True))
        with pytest.raises(Stop):
            copied(many, tmp_path / "data")
    before = there(tmp_path / "data")
    for how, name in (
        ({"kind": "stream"}, "format"),
        ({"keep": ["id"], "columns": ["tokens"], "dtype": "int32"}, "dtype of types was"),
        ({"shard_bytes": "1000"}, "shard_bytes"),
        ({"mode": "overwrite"}, "mode"),
        ({"source": few}, "inputs"),
    ):
        given: dict[str, Any] = {"source": many, "kind": "documents", **how}
        with pytest.raises(headrace.StateMismatch, match=rf"unfinished run.*{name}(.|\n)*resume=False"):
            copied(target=tmp_path / "data", **given)
        assert there(tmp_path / "data") == before
    with pytest.raises(ValueError, match="unfinished run of headrace"):
        headrace.complete_dataset(tmp_path / "data")
    made = copied(many, tmp_path / "data")
    assert made.samples == len(headrace.open(tmp_path / "data")) == 120
    assert made.bytes == sum(len(data) for name, data in there(tmp_path / "data").items() if name != "index.json")


def test_a_store_that_another_writer_made_meanwhile_is_not_replaced(
    tmp_path: Path, many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        finish = record_shards.OpenShard.finish
        patch.setattr(record_shards.OpenShard, "finish", ending(finish, itertools.count(), 3, before=True))
        with pytest.raises(Stop):
            copied(many, tmp_path / "data")
    with headrace.StreamWriter(tmp_path / "data", "uint16") as writer:
        with pytest.raises(headrace.StoreError, match="another writer is at it"):
            copied(many, tmp_path / "data")
        writer.write([1, 2])
    with pytest.raises(headrace.StateMismatch, match="another run made a dataset there"):
        copied(many, tmp_path / "data")
    assert len(headrace.open(tmp_path / "data")) == 2


@pytest.mark.parametrize("there_is", ["records", "parts", "mds"])
def test_what_is_replaced_and_what_is_refused(tmp_path: Path, many: Path, few: Path, there_is: str) -> None:
    folder = tmp_path / "data"
    if there_is == "mds":
        rows = [{"n": number} for number in range(10)]
        headrace.optimize(dict, rows, folder, format="mds", num_workers=0, progress=False, verbose=False)
    elif there_is == "records":
        copied(few, folder, "stream")
    else:
        with headrace.DocumentWriter(folder, "int64", part=0) as writer:
            writer.write([1])
    (folder / "mine.txt").write_text("mine")
    before = there(folder)
    with pytest.raises(ValueError, match=r"expected an empty folder, found|complete_dataset"):
        copied(many, folder)
    for mode in ("append", "overwrite") if there_is == "parts" else ("append",):
        with pytest.raises((ValueError, headrace.DataError), match=r"expected (kind|the index|a store .* complete)"):
            copied(many, folder, mode=mode)
    assert there(folder) == before
    if there_is == "parts":
        return
    copied(many, folder, mode="overwrite")
    assert len(headrace.open(folder, verify=True)) == 120
    assert {name for name in there(folder) if name in before} <= {"index.json", "mine.txt"}
    # The other way round nothing is left either.
    headrace.optimize(
        dict, [{"n": 1}], folder, format="mds", num_workers=0, mode="overwrite", progress=False, verbose=False
    )
    assert sorted(there(folder)) == ["index.json", "mine.txt", "shard.00000.mds"]


@pytest.mark.parametrize("kind", ["documents", "stream"])
def test_a_store_in_a_bucket(
    tmp_path: Path,
    many: Path,
    few: Path,
    at: Callable[[str], Place],
    monkeypatch: pytest.MonkeyPatch,
    no_settings_from_outside: None,
    kind: Any,
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    place = at("s3")
    target = Target(place.url("data"), place.options())

    def bucket() -> dict[str, bytes]:
        store = headrace.Store(place.url("data"), storage_options=place.options())
        return {file.key: store.read(file.key) for file in store.list()}

    copied(few, target, kind)
    copied(few, tmp_path / "data", kind)
    assert bucket() == there(tmp_path / "data")
    ends = 0
    while ends < 30:
        with monkeypatch.context() as patch:
            counts = itertools.count()
            for owner, name in ((Output, "note"), (headrace.Store, "put")):
                patch.setattr(owner, name, ending(getattr(owner, name), counts, 4, before=True))
            try:
                copied(many, target, kind, mode="append")
                break
            except Stop:
                ends += 1
        assert bucket()["index.json"] == (tmp_path / "data" / "index.json").read_bytes()
    assert 2 <= ends < 30
    copied(many, tmp_path / "data", kind, mode="append")
    assert bucket() == there(tmp_path / "data")
    opened = headrace.open(place.url("data"), storage_options=place.options(), verify=True)
    assert len(opened) == len(headrace.open(tmp_path / "data"))


def test_of_an_index_that_cannot_be_removed_the_first_error_is_told(tmp_path: Path) -> None:
    (tmp_path / ".index.json.tmp").mkdir()
    with pytest.raises(headrace.StoreError, match=r"/index\.json: Is a directory"):
        record_shards.write_index(tmp_path / "index.json", {})
