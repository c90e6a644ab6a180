"""Schemes that headrace does not know itself, through fsspec."""

import json
import pickle
import random
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

import headrace as hr
from files import run_python
from headrace._files import Store

SECRET = "headrace-secret-0123456789"
NAMES = ["plain.bin", "deep/er/and/deeper.bin", "a b/50%/ü+x.bin", "50%25.bin", "q?x=1&y#z.bin"]


class Fickle(LocalFileSystem):
    """A folder, behind what a test says goes wrong. It is told in `faults`: an error, or seconds to wait."""

    protocol = "fickle"
    faults: list[Exception | float] = []  # noqa: RUF012
    calls = 0
    options: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        type(self).options = {name: value for name, value in options.items() if name not in ("token", "retries")}
        super().__init__(**{name: value for name, value in options.items() if name == "auto_mkdir"})

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return "/" + str(path).removeprefix("fickle://").strip("/")

    def cat_file(self, path: Any, start: Any = None, end: Any = None, **more: Any) -> bytes:
        type(self).calls += 1
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            time.sleep(fault)
        return super().cat_file(path, start=start, end=end, **more)


class Awaited(AsyncFileSystem):
    """A folder whose files are awaited, as those of most stores are."""

    protocol = "awaited"

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return "/" + str(path).removeprefix("awaited://").strip("/")

    async def _info(self, path: str, **more: Any) -> dict[str, Any]:
        found = Path(path).stat()
        kind = "directory" if Path(path).is_dir() else "file"
        return {"name": path, "size": found.st_size, "type": kind, "mtime": found.st_mtime}

    async def _ls(self, path: str, detail: bool = True, **more: Any) -> list[Any]:
        return [await self._info(str(below)) for below in Path(path).iterdir()]

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **more: Any) -> bytes:
        return Path(path).read_bytes()[start:end]


@pytest.fixture(autouse=True)
def _schemes() -> Iterator[None]:
    fsspec.register_implementation("fickle", Fickle, clobber=True)
    fsspec.register_implementation("awaited", Awaited, clobber=True)
    Fickle.faults, Fickle.calls = [], 0
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of two row groups, and one of lines below another folder."""
    folder = tmp_path_factory.mktemp("corpus")
    values = np.random.default_rng(0).integers(0, 2**31 - 1, (3, 8000), dtype=np.int32)
    offsets = pa.array(np.arange(0, 8001, 100, dtype=np.int32))
    (folder / "tokens").mkdir()
    for number in range(3):
        table = pa.table({"tokens": pa.ListArray.from_arrays(offsets, pa.array(values[number]))})
        pq.write_table(table, folder / "tokens" / f"{number}.parquet", row_group_size=40)
    (folder / "lines").mkdir()
    (folder / "lines" / "a.jsonl").write_text("\n".join(json.dumps({"x": number}) for number in range(100)))
    return folder


@pytest.fixture
def archive(corpus: Path, tmp_path: Path) -> str:
    """The corpus in an archive; where its folders are, but for their names."""
    with zipfile.ZipFile(tmp_path / "corpus.zip", "w") as file:
        for path in corpus.rglob("*.*"):
            file.write(path, path.relative_to(corpus))
    return f"::file://{tmp_path}/corpus.zip"


def urls(corpus: Path, archive: str, kind: str, folder: str) -> str:
    """A folder of the corpus in a scheme."""
    match kind:
        case "memory":
            fsspec.filesystem("memory").put(str(corpus / folder), f"/data/{folder}", recursive=True)
            return f"memory://data/{folder}"
        case "zip":
            return f"zip://{folder}{archive}"
        case _:
            return f"{kind}://{corpus / folder}"


def rows(packed: hr.PackedDataset) -> list[list[int]]:
    loader = hr.DataLoader(packed, 8, seed=3, epochs=1, num_workers=2)
    return [row for batch in loader for row in batch["tokens"].tolist()]


def numbers(data: Any, **options: Any) -> list[int]:
    return [x for batch in hr.DataLoader(data, 10, seed=1, epochs=1, **options) for x in batch["x"]]


@pytest.mark.parametrize("kind", ["memory", "zip", "fickle", "awaited"])
def test_data_is_that_of_the_local_files(corpus: Path, archive: str, kind: str) -> None:
    tokens = hr.open(urls(corpus, archive, kind, "tokens"))
    assert rows(tokens.pack(100)) == rows(hr.open(corpus / "tokens").pack(100))
    assert tokens.files[0].startswith(f"{kind}://")
    loader = hr.DataLoader(tokens.pack(100), 8, epochs=1)
    list(loader)
    assert loader.stats()["requests"] > 0
    lines = hr.open(urls(corpus, archive, kind, "lines"))
    assert lines[17] == {"x": 17}
    assert numbers(lines) == numbers(hr.open(corpus / "lines"))


def test_files_are_listed_and_read_by_any_name() -> None:
    for name in [f"in/{name}" for name in NAMES] + ["in-other/x.bin"]:
        fsspec.filesystem("memory").pipe_file(f"/{name}", name.encode())
    store = Store(["memory://in"], {})
    assert {file.path: store.read(file) for file in store.files} == {name: f"in/{name}".encode() for name in NAMES}
    assert [store.head(file.path) for file in store.files] == store.files
    assert store.uri("plain.bin") == "memory://in/plain.bin"
    for name in NAMES:
        alone = Store([f"memory://in/{name}"], {})
        assert [alone.read(file) for file in alone.files] == [f"in/{name}".encode()]
    pattern = Store(["memory://in/*.bin"], {})
    assert [file.path for file in pattern.files] == sorted(name for name in NAMES if "/" not in name)
    assert [file.path for file in Store(["memory://"], {}).files] == sorted(
        [f"in/{name}" for name in NAMES] + ["in-other/x.bin"]
    )


def test_ranges_are_exact(archive: str, corpus: Path) -> None:
    body = (corpus / "tokens" / "0.parquet").read_bytes()
    store = Store([f"zip://tokens/0.parquet{archive}"], {})
    (file,) = store.files
    chance = random.Random(1)
    for start, stop in [(0, 0), (0, len(body)), *(sorted(chance.choices(range(len(body)), k=2)) for _ in range(10))]:
        assert store.read(file, start, stop) == body[start:stop]


def test_it_goes_to_other_processes(archive: str) -> None:
    data = hr.open(f"zip://lines{archive}")
    again = pickle.loads(pickle.dumps(data))
    assert again[3] == {"x": 3}
    mapped = data.map(dict)
    assert numbers(mapped, num_workers=2, worker_type="process") == numbers(mapped)
    packed = hr.open(f"zip://tokens{archive}").pack(100)
    assert rows(pickle.loads(pickle.dumps(packed))) == rows(packed)


def test_a_forked_child_reads_with_connections_of_its_own(archive: str) -> None:
    run_python(
        """
        import os, sys
        import headrace as hr
        data = hr.open(sys.argv[1])
        assert data[3] == {"x": 3}
        child = os.fork()
        if child == 0:
            assert hr.open(sys.argv[1])[4] == {"x": 4}
            os._exit(7 if data[99] == {"x": 99} else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        """,
        f"zip://lines{archive}",
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_pytorch_read_it(archive: str, method: str) -> None:
    pytest.importorskip("torch")
    run_python(
        """
        import sys, torch.utils.data
        import headrace as hr

        def main() -> None:
            data = hr.open(sys.argv[1])
            # Connections, and a thread for calls that are awaited, are there before the workers are.
            assert data[3] == {"x": 3}
            loader = torch.utils.data.DataLoader(
                data, batch_size=10, shuffle=True, num_workers=2, multiprocessing_context=sys.argv[2]
            )
            for _ in range(2):
                assert sorted(x for batch in loader for x in batch["x"].tolist()) == list(range(100))
            assert data[4] == {"x": 4}

        if __name__ == "__main__":
            main()
        """,
        f"zip://lines{archive}",
        method,
        timeout=240,
    )


def test_a_process_ends_while_calls_are_under_way(corpus: Path) -> None:
    run_python(
        """
        import sys, threading, time
        sys.path.insert(0, "tests")
        import headrace as hr
        import fsspec
        from test_fsspec import Fickle
        fsspec.register_implementation("fickle", Fickle)
        data = hr.open(sys.argv[1])
        Fickle.faults.extend([1.0] * 10)
        threading.Thread(target=lambda: data[5], daemon=True).start()
        time.sleep(0.2)
        """,
        f"fickle://{corpus}/lines",
    )


def test_what_passes_is_tried_again(corpus: Path) -> None:
    wanted = rows(hr.open(corpus / "tokens").pack(100))
    packed = hr.open(f"fickle://{corpus}/tokens").pack(100)
    Fickle.faults = [ConnectionResetError("reset"), OSError("try again"), TimeoutError("slow")]
    loader = hr.DataLoader(packed, 8, seed=3, epochs=1, num_workers=1)
    assert [row for batch in loader for row in batch["tokens"].tolist()] == wanted
    assert Fickle.faults == []
    assert loader.stats()["retries"] == 3


@pytest.mark.parametrize(
    "fault, wanted, told",
    [
        (FileNotFoundError("no such thing"), hr.MissingError, "1 attempt"),
        (PermissionError(f"token {SECRET} refused"), hr.StoreError, "1 attempt.*hint: check the login"),
        (ConnectionError("down"), hr.StoreError, "3 attempts.*down.*hint: "),
        (NotImplementedError("no ranges"), hr.StoreError, "1 attempt.*no ranges"),
        (30.0, hr.StoreError, r"nothing arrived for 0\.2 s"),
    ],
)
def test_what_stays_broken_is_one_error_in_time(
    corpus: Path, fault: Exception | float, wanted: type[Exception], told: str
) -> None:
    options = {"timeout": "0.2", "retry_timeout": "3", "max_retries": "2", "inner": json.dumps({"login": [SECRET]})}
    data = hr.open(f"fickle://{corpus}/lines", storage_options=options)
    Fickle.faults = [fault] * 10 if isinstance(fault, Exception) else [1.0] * 10
    begun = time.monotonic()
    with pytest.raises(wanted, match=f"(?s)^fickle://.*/lines/a.jsonl: read bytes.*{told}") as caught:
        data[0]
    assert time.monotonic() - begun < 5
    assert isinstance(caught.value, hr.MissingError) == (wanted is hr.MissingError)
    assert SECRET not in f"{caught.value} {data!r}"


def test_a_file_that_is_replaced_is_never_mixed() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/in/a.bin", b"old" * 100)
    store = Store(["memory://in"], {})
    (file,) = store.files
    time.sleep(0.001)
    memory.pipe_file("/in/a.bin", b"new" * 100)
    with pytest.raises(hr.DataError, match=r"memory://in/a\.bin: changed"):
        store.read(file)


def test_what_cannot_be_listed_is_not_left_out(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Fickle.ls

    def ls(self: Fickle, path: str, detail: bool = False, **more: Any) -> Any:
        if path.endswith("lines"):
            raise PermissionError(path)
        return whole(self, path, detail=detail, **more)

    monkeypatch.setattr(Fickle, "ls", ls)
    with pytest.raises(hr.StoreError, match=r"(?s)list failed after 1 attempt.*PermissionError.*hint"):
        hr.open(f"fickle://{corpus}")


def test_options_are_values_or_text(corpus: Path) -> None:
    options = {
        "anon": "true",
        "port": "22",
        "depth": '{"a": [1, null]}',
        "host": "example.org",
        "username": "1234",
        "quoted": '"12"',
    }
    hr.open(f"fickle://{corpus}/lines", storage_options=options)
    assert Fickle.options == {
        "anon": True,
        "port": 22,
        "depth": {"a": [1, None]},
        "host": "example.org",
        "username": "1234",
        "quoted": "12",
    }


def test_the_disk_cache_keeps_it(corpus: Path, tmp_path: Path) -> None:
    def read() -> int:
        packed = hr.open(f"fickle://{corpus}/tokens", cache_dir=tmp_path, cache_size="10MiB").pack(100)
        before = Fickle.calls
        rows(packed)
        return Fickle.calls - before

    assert read() > 0
    assert read() == 0


def test_an_index_lies_beside_the_data(corpus: Path, archive: str, tmp_path: Path) -> None:
    url = urls(corpus, archive, "memory", "tokens")
    saved = hr.open(url, cache_dir=tmp_path / "a").save_index()
    assert saved == "memory://data/tokens/_headrace/index.arrow"
    loader = hr.DataLoader(hr.open(url, cache_dir=tmp_path / "b").pack(100), 8)
    assert loader.stats()["requests"] == 1, "the index instead of footers"


def test_a_scheme_that_nobody_knows_says_what_is_known() -> None:
    with pytest.raises(
        ValueError, match=r"(?s)unknown scheme \"nobody\".*s3://.*hint: fsspec does not know it"
    ) as caught:
        hr.open("nobody://me:hunter2@host/x")
    assert "hunter2" not in str(caught.value)


def test_without_fsspec_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ValueError, match=r'hint: .*pip install "headrace\[fsspec\]"'):
        hr.open("memory://x")


def test_a_package_that_fsspec_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paramiko", None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.sftp", raising=False)
    with pytest.raises(ValueError, match="sftp://: fsspec lacks a package for it"):
        hr.open("sftp://host/x")


def test_a_password_belongs_into_the_options() -> None:
    with pytest.raises(ValueError, match=r"(?s)holds a password.*hint: .*storage_options") as caught:
        hr.open("ftp://me:hunter2@host/x")
    assert "hunter2" not in str(caught.value)


def test_what_is_missing_is_named(archive: str) -> None:
    for url in ("memory://gone", "memory://gone/a.parquet", f"zip://gone{archive}"):
        with pytest.raises(hr.MissingError, match="gone"):
            hr.open(url)


def test_a_read_that_brings_nothing_is_an_error(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"retry_timeout": "1", "max_retries": "1"}
    data = hr.open(f"fickle://{corpus}/tokens", storage_options=options)
    iterator = iter(hr.DataLoader(data.pack(100), 8, epochs=1))
    monkeypatch.setattr(Fickle, "cat_file", lambda self, path, start=None, end=None, **more: b"")
    with pytest.raises(hr.StoreError, match=r"(?s)\.parquet: read bytes .* attempts?: .*hint: "):
        list(iterator)
