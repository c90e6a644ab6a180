"""WebDataset: what webdataset and Python's tarfile write is read as webdataset reads it, and headers are read once."""

import gzip
import io
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from files import run_python
from headrace._files import Store
from headrace.errors import DataError
from headrace.formats import webdataset as formats
from headrace.formats.webdataset import WebDatasetSource
from tar_files import archive, opened, samples

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def by_webdataset(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """What the package's own pipeline gives, but for the path that it adds for local files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import webdataset as wds

        found = list(wds.WebDataset([os.fspath(path) for path in paths], shardshuffle=False, empty_check=False))
    for sample in found:
        assert sample.pop("__local_path__") == sample["__url__"]
    return found


def same(folder: Path, paths: Sequence[Path], **options: Any) -> WebDatasetSource:
    source = opened(folder, **options)
    expected = by_webdataset(paths)
    assert expected
    found = samples(source)
    assert found == expected
    assert [list(sample) for sample in found] == [list(sample) for sample in expected]
    return source


def written_by_webdataset(path: Path, rows: Sequence[Mapping[str, Any]], **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import webdataset as wds

        path.parent.mkdir(parents=True, exist_ok=True)
        with wds.TarWriter(os.fspath(path), **options) as writer:
            for row in rows:
                writer.write(row)
    return path


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "__key__": f"a/{at:04}",
            "txt": f"text {at}",
            "cls": at,
            "json": {"at": at},
            "seg.bin": bytes([at]) * (at * 50),
        }
        for at in range(count)
    ]


def test_what_tar_writer_writes(tmp_path: Path) -> None:
    path = written_by_webdataset(tmp_path / "a.tar", rows(20))
    source = same(tmp_path, [path])
    assert source.schema == {
        "__key__": "str", "__url__": "str", "txt": "bytes", "cls": "bytes", "json": "bytes", "seg.bin": "bytes",
    }  # fmt: skip
    assert not source.random_access
    assert source.load(0).nbytes < 4000
    assert (source.sizes.tolist(), source.stored.tolist()) == ([20], [path.stat().st_size])
    assert str(source.place(0, 7)) == "a.tar, chunk 0, row 7"


def test_what_shard_writer_writes(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import webdataset as wds

        with wds.ShardWriter(os.fspath(tmp_path / "part-%03d.tar"), maxcount=7, verbose=0) as writer:
            for row in rows(30):
                writer.write(row)
    calls: list[tuple[str, int, int]] = []
    source = same(tmp_path, sorted(tmp_path.glob("*.tar")), progress=lambda *call: calls.append(call))
    assert source.sizes.tolist() == [7, 7, 7, 7, 2]
    assert calls == [("reading the headers of archives", done, 5) for done in range(1, 6)]


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz", ".tar.zst"])
def test_compressed_archives(tmp_path: Path, suffix: str) -> None:
    plain = written_by_webdataset(tmp_path / "plain" / "a.tar", rows(9)).read_bytes()
    packed = gzip.compress(plain) if "g" in suffix else zstandard.compress(plain)
    (tmp_path / "packed").mkdir()
    path = tmp_path / "packed" / ("a" + suffix)
    path.write_bytes(packed)
    source = opened(tmp_path / "packed")
    expected = [{**sample, "__url__": str(path)} for sample in by_webdataset([tmp_path / "plain/a.tar"])]
    assert samples(source) == expected
    assert not source.random_access
    assert source.stored.tolist() == [len(packed)]
    assert source.load(0).nbytes > len(plain)
    assert samples(source, ("cls",)) == [{"cls": sample["cls"]} for sample in expected]


def test_what_tar_writer_compresses(tmp_path: Path) -> None:
    same(tmp_path, [written_by_webdataset(tmp_path / "a.tar.gz", rows(9), compress=True)])


NAMES = [
    "a.txt",
    "folder/a.txt",
    "folder.with.dots/22.0/a.x.txt",
    "/absolute/a.txt",
    "./a.json",
    "a/b/../c.txt",
    "x" * 95 + ".txt",
    "x" * 96 + ".txt",
    "f" * 90 + "/" + "x" * 90 + ".txt",
    "ä€/\u65e5\u672c.txt",
    "UPPER.TXT",
    "line\nbreak.txt",
    "no extension",
    "__meta__/a.txt",
    "__key__",
    "__x__.txt",
]
LONG = ["y" * 300 + ".txt", "d/" * 150 + "é" * 100 + ".txt", "ü" * 99 + ".txt"]


@pytest.mark.parametrize("kind", FORMATS)
def test_what_tarfile_writes(tmp_path: Path, kind: str) -> None:
    names = NAMES + (LONG if kind != "ustar" else [])
    path = archive(tmp_path / "a.tar", {name: name.encode() * 3 for name in names}, format=FORMATS[kind])
    found = samples(same(tmp_path, [path]))
    assert len(found) == len(names) - 3


def test_members_that_are_no_files(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, kind in [
            ("d.x", tarfile.DIRTYPE),
            ("link.txt", tarfile.SYMTYPE),
            ("pipe.txt", tarfile.FIFOTYPE),
            ("device.txt", tarfile.CHRTYPE),
            ("b.txt", tarfile.REGTYPE),
            ("c.txt", tarfile.AREGTYPE),
            ("e.txt", tarfile.CONTTYPE),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "b.txt"
            tar.addfile(info)
    assert [sample["__key__"] for sample in samples(same(tmp_path, [tmp_path / "a.tar"]))] == ["b", "c", "e"]


def test_global_pax_records_and_sizes_in_pax_records(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "é" * 700}) as tar:
        for name in ("a.txt", "b.txt"):
            info = tarfile.TarInfo(name)
            info.size = 600
            info.pax_headers = {"size": "600", "SCHILY.xattr.user.note": "x=y\nz"}
            tar.addfile(info, io.BytesIO(name.encode() * 120))
    data = bytearray((tmp_path / "a.tar").read_bytes())
    # The size in the member's own header made 0: that in the record holds, as for files beyond 8 GiB.
    at = data.index(b"a.txt\0")
    data[at + 124 : at + 136] = b"00000000000\0"
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    (tmp_path / "a.tar").write_bytes(data)
    found = samples(same(tmp_path, [tmp_path / "a.tar"]))
    assert [sample["txt"] for sample in found] == [b"a.txt" * 120, b"b.txt" * 120]


def test_binary_sizes_and_signed_checksums(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar", {"é.txt": b"abc"}, format=tarfile.GNU_FORMAT)
    data = bytearray(path.read_bytes())
    data[124:136] = b"\x80" + (3).to_bytes(11, "big")
    data[148:156] = b" " * 8
    for count in (sum(data[:512]), sum(byte - 256 if byte > 127 else byte for byte in data[:512])):
        data[148:156] = b"%06o\0 " % count
        path.write_bytes(data)
        assert samples(same(tmp_path, [path]))[0]["txt"] == b"abc"


def test_keys_end_at_the_first_dot_of_the_file_name_b095(tmp_path: Path) -> None:
    archive(tmp_path / "a.tar", {"22.0/1.1.png": b"1", "22.0/1.txt": b"2", "22.1/1.1.PNG": b"3", "22.1/.hid.txt": b""})
    found = [
        {name: value for name, value in sample.items() if name != "__url__"} for sample in samples(opened(tmp_path))
    ]
    assert found == [{"__key__": "22.0/1", "1.png": b"1", "txt": b"2"}, {"__key__": "22.1/1", "1.png": b"3"}]


@pytest.mark.parametrize(
    "names,message",
    [
        (["Track 2.0 (x).mp3", "Track 2.0 (x).json"], r"found 'Track 2\.0 \(x\)\.mp3'\n.*no dot comes before the"),
        (["a.txt", "b.txt", "a.json"], r"found 'a\.json' apart from others of the key 'a'\n.*--sort=name"),
        (["a.txt", "a.json", "a.TXT"], r"found 'a\.TXT' as a second 'txt' of the key 'a'\n.*first dot"),
        (["a."], r"expected an extension .* found 'a\.'"),
        (["a.__key__"], r"expected an extension .* found 'a\.__key__'"),
    ],
)
def test_broken_pairs_are_refused_b094(tmp_path: Path, names: list[str], message: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(DataError, match=r"a\.tar: (.|\n)*" + message):
        opened(tmp_path)


_PARTS = st.text(st.sampled_from("ab.é_/ -\n"), min_size=1, max_size=6)


@given(st.lists(st.tuples(_PARTS, st.binary(max_size=3)), max_size=8), st.sampled_from(sorted(FORMATS)))
def test_any_names_are_grouped_as_webdataset_does(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[str, bytes]], kind: str
) -> None:
    folder = tmp_path_factory.mktemp("any")
    files = [(name.strip("/") or "x", data) for name, data in files]
    # Names that begin with a dot webdataset may take for part of a folder's key.
    files = [(name, data) for name, data in files if not name.rpartition("/")[2].startswith(".") and "\n" not in name]
    path = archive(folder / "a.tar", files, format=FORMATS[kind])
    try:
        found = samples(opened(folder))
    except DataError:
        return  # The tests of broken pairs tell which.
    assert found == by_webdataset([path])


# Columns


def test_columns_are_read_alone_and_in_the_order_asked_for(tmp_path: Path) -> None:
    written_by_webdataset(tmp_path / "a.tar", rows(9))
    source = opened(tmp_path)
    whole = samples(source)
    asked = ("seg.bin", "__key__", "txt")
    found = samples(source, asked)
    assert found == [{name: sample[name] for name in asked} for sample in whole]
    assert list(found[0]) == list(asked)

    chunk: Any = source.load(0, ("cls",))
    ranges: list[int] = []
    read = chunk._blob.read

    class Counting:
        nbytes = 0

        def read(self, start: int, stop: int) -> bytes:
            ranges.append(stop - start)
            return read(start, stop)

    chunk._blob = Counting()
    assert chunk.take(range(9)) == [{"cls": str(at).encode()} for at in range(9)]
    assert ranges == [1] * 9
    assert samples(source, ("__key__",)) == [{"__key__": f"a/{at:04}"} for at in range(9)]


def test_a_sample_is_one_read_unless_it_is_large(tmp_path: Path) -> None:
    archive(tmp_path / "a.tar", {"a.x": b"1", "a.y": b"2" * 5000, "b.x": b"3" * (2 << 20), "b.y": b"4"})
    chunk: Any = opened(tmp_path).load(0)
    ranges: list[int] = []
    blob = chunk._blob

    class Counting:
        nbytes = 0

        def read(self, start: int, stop: int) -> bytes:
            ranges.append(stop - start)
            return blob.read(start, stop)

    chunk._blob = Counting()
    assert [(len(sample["x"]), len(sample["y"])) for sample in chunk.take([0, 1])] == [(1, 5000), (2 << 20, 1)]
    assert ranges == [512 + 512 + 5000, 2 << 20, 1]


def test_a_sample_that_lacks_a_column(tmp_path: Path) -> None:
    archive(tmp_path / "a.tar", {"a.x": b"1", "a.y": b"2", "b.x": b"3"})
    source = opened(tmp_path)
    assert source.columns == ("__key__", "__url__", "x", "y")
    assert [len(sample) for sample in samples(source)] == [4, 3]
    chunk = source.load(0, ("y",))
    assert chunk[0] == {"y": b"2"}
    with pytest.raises(DataError, match=r"a\.tar, chunk 0, row 1: expected a member 'y' of the sample 'b', it has x\n"):
        chunk[1]


# Opening again


def test_headers_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        written_by_webdataset(tmp_path / f"{number:02}.tar", rows(3))
    read = formats.members
    seen: list[str] = []

    def members(*arguments: Any, **options: Any) -> Any:
        seen.append(arguments[2])
        return read(*arguments, **options)

    monkeypatch.setattr(formats, "members", members)
    first = samples(opened(tmp_path))
    assert len(seen) == len(set(seen)) == 40
    assert samples(opened(tmp_path)) == first
    assert len(seen) == 40
    archive(tmp_path / "07.tar", {"new.x": b"1"})
    written_by_webdataset(tmp_path / "99.tar", rows(1))
    source = opened(tmp_path)
    assert {Path(uri).name for uri in seen[40:]} == {"07.tar", "99.tar"}
    assert source.sizes.tolist() == [3] * 7 + [1] + [3] * 32 + [1]
    assert samples(source)[21] == {"__key__": "new", "__url__": str(tmp_path / "07.tar"), "x": b"1"}
    for path in (tmp_path / ".cache/tables").iterdir():
        path.write_bytes(path.read_bytes()[:-3])
    assert samples(opened(tmp_path)) == samples(source)
    shutil.rmtree(tmp_path / ".cache")
    (tmp_path / ".cache").write_bytes(b"")
    assert samples(opened(tmp_path)) == samples(source)


def test_an_archive_that_changes_after_it_was_listed(tmp_path: Path) -> None:
    archive(tmp_path / "a.tar", {"a.x": b"1"})
    source = opened(tmp_path)
    archive(tmp_path / "a.tar", {"a.x": b"2"})
    os.utime(tmp_path / "a.tar", (1, 1))
    with pytest.raises(DataError, match="changed since it was indexed"):
        source.load(0)


def test_a_source_is_read_in_another_process(tmp_path: Path) -> None:
    archive(tmp_path / "a.tar", {"a.x": b"1"})
    archive(tmp_path / "b.tar", {"b.x": b"2"})
    source = opened(tmp_path)
    code = "import pickle, sys; s = pickle.load(sys.stdin.buffer); print([s.identity(), s.load(1, ('x',))[0]])"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(source), capture_output=True, check=True)
    assert done.stdout.decode().strip() == str([source.identity(), {"x": b"2"}])


def test_the_identity_is_of_what_is_stored(tmp_path: Path) -> None:
    archive(tmp_path / "one/a.tar", {"a.x": b"1"})
    identity = opened(tmp_path / "one").identity()
    shutil.copytree(tmp_path / "one", tmp_path / "two", copy_function=shutil.copyfile)
    os.utime(tmp_path / "two/a.tar", (1, 1))
    assert opened(tmp_path / "two").identity() == identity
    archive(tmp_path / "two/b.tar", {"a.x": b"1"})
    assert opened(tmp_path / "two").identity() != identity


def test_archives_without_samples(tmp_path: Path) -> None:
    archive(tmp_path / "a.tar", {})
    source = opened(tmp_path)
    assert (source.sizes.tolist(), samples(source)) == ([0], [])
    archive(tmp_path / "b.tar", {"x.a": b"", "x.b": b""})
    archive(tmp_path / "c.tar", {"README": b"1"})
    source = opened(tmp_path)
    assert source.sizes.tolist() == [0, 1, 0]
    assert source.columns == ("__key__", "__url__", "a", "b")
    assert samples(source) == [{"__key__": "x", "__url__": str(tmp_path / "b.tar"), "a": b"", "b": b""}]
    empty = WebDatasetSource.open(Store([str(tmp_path)], {}), [], cache_dir=tmp_path, progress=lambda *_: None)
    assert empty.sizes.dtype == np.int64
    assert len(empty.sizes) == 0


def test_archives_of_other_compressions_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.tar.xz").write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.tar\.xz: expected an archive as \.tar, \.tar\.gz, \.tgz or \.tar\.zst"):
        opened(tmp_path)


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_many_small_archives_and_more_workers_than_cores_come_to_an_end(tmp_path: Path, worker_type: str) -> None:
    for number in range(150):
        archive(tmp_path / f"{number:03}.tar", {"a.cls": str(number).encode()})
    found = run_python(
        """
        import sys
        import headrace as hr
        if __name__ == "__main__":
            data = hr.open(sys.argv[1])
            workers = 16 if sys.argv[2] == "thread" else 4
            loader = hr.DataLoader(data, 8, epochs=1, num_workers=workers, worker_type=sys.argv[2])
            print(sum(len(batch["cls"]) for batch in loader))
        """,
        tmp_path,
        worker_type,
        timeout=120,
    )
    assert int(found) == 150
