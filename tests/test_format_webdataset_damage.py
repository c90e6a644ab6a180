"""Archives that are damaged, cut short or hold what cannot be read: refused with their place, never passed over."""

import io
import random
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataError
from headrace.formats._tar import Member, members
from tar_files import archive, opened, samples

FILES = {"a.x": b"1" * 10, "a.y": b"2" * 600, "f/" + "l" * 120 + ".x": b"3", "ü" * 80 + ".x": b"4"}


def headers(data: bytes, window: int = 2048) -> list[Member]:
    return list(members(lambda start, stop: data[start:stop], len(data), "a.tar", window=window))


@pytest.fixture(params=["ustar", "gnu", "pax"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    kinds = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    files = FILES if request.param != "ustar" else {name: FILES[name] for name in ("a.x", "a.y")}
    return archive(tmp_path / "a.tar", files, format=kinds[request.param]).read_bytes()


def test_an_archive_that_was_cut_short(data: bytes) -> None:
    whole = headers(data)
    end = whole[-1].start + -(-whole[-1].size // 512) * 512 + 512  # Behind the first block of the end mark.
    for length in range(0, len(data), 64):
        if length < end:
            with pytest.raises(
                DataError, match=r"a\.tar, at byte \d+: expected .* found the (end of the file|file's end)"
            ):
                headers(data[:length])
        else:
            assert headers(data[:length]) == whole


def test_every_byte_of_a_header_counts(data: bytes) -> None:
    whole = headers(data)
    for at in set(range(512)) - {154, 155}:  # The checksum's digits end before these.
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(DataError, match="at byte 0: expected a tar header"):
            headers(damaged)
    assert [data[start : start + size] for _, start, size in whole] == list(FILES.values())[: len(whole)]


@given(st.data())
def test_damage_is_refused_or_read_but_nothing_else(draw: st.DataObject) -> None:
    files = {f"{at}.x": bytes([at]) * draw.draw(st.integers(0, 1200)) for at in range(draw.draw(st.integers(0, 4)))}
    files |= {"n" * draw.draw(st.integers(1, 300)) + ".y": b""}
    out = io.BytesIO()
    kind = draw.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
    with tarfile.open(fileobj=out, mode="w", format=kind) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    data = bytearray(out.getvalue())
    assert [(m.name.decode(), data[m.start : m.start + m.size]) for m in headers(bytes(data))] == list(files.items())
    assert headers(bytes(data), 512) == headers(bytes(data), 1 << 20)
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    for block in range(0, len(data), 512):  # The checksums made right again, so that what is behind them is reached.
        head = data[block : block + 512]
        if head[257:262] == b"ustar":
            data[block + 148 : block + 156] = b"%06o\0 " % (sum(head) - sum(head[148:156]) + 256)
    try:
        for _, start, size in headers(bytes(data)):
            assert start + size <= len(data)
    except DataError:
        pass


@given(st.binary(max_size=3000))
def test_any_bytes_are_refused(data: bytes) -> None:
    if data[:512] != bytes(512):
        with pytest.raises(DataError, match=r"a\.tar, at byte \d+: expected"):
            headers(data)


def with_header(info: tarfile.TarInfo, kind: int = tarfile.GNU_FORMAT, behind: bytes = b"") -> bytes:
    return info.tobuf(kind, "utf-8", "surrogateescape") + behind + bytes(1024)


@pytest.mark.parametrize("kind,message", [(b"1", "a hard link"), (b"S", "a sparse file"), (b"M", "a part of a file")])
def test_files_without_their_bytes(kind: bytes, message: str) -> None:
    info = tarfile.TarInfo("a.txt")
    info.type = kind
    with pytest.raises(DataError, match=f"expected a file with all its bytes, found {message}: 'a.txt'"):
        headers(with_header(info))


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs the program tar")
@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=posix", "--sparse-version=1.0"]])
def test_sparse_files_as_tar_writes_them(tmp_path: Path, options: list[str]) -> None:
    with (tmp_path / "a.bin").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x")
    subprocess.run(["tar", *options, "--sparse", "-cf", "a.tar", "a.bin"], cwd=tmp_path, check=True)
    with pytest.raises(DataError, match="found a sparse file"):
        headers((tmp_path / "a.tar").read_bytes())


def test_archives_as_tar_writes_them(tmp_path: Path) -> None:
    for name in ("a.txt", "d.x/" + "long" * 50 + ".txt", "é.json"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
    for kind in ("v7", "oldgnu", "gnu", "ustar", "posix"):
        names = ["a.txt", "é.json"] + (["d.x"] if kind in ("gnu", "posix", "oldgnu") else [])
        command = ["tar", f"--format={kind}", "-cf", tmp_path / "a.tar", *names]
        subprocess.run(command, cwd=tmp_path / "in", check=True)
        data = (tmp_path / "a.tar").read_bytes()
        found = headers(data)
        assert len(found) == len(names)
        assert all(data[start : start + size] == name for name, start, size in found)


@pytest.mark.parametrize(
    "records,message",
    [
        (b"12 size=1x2\n", "expected a pax record with a size, found '1x2'"),
        (b"11 size=-1\n", "expected a pax record with a size, found '-1'"),
        (b"30 size=1\n", "expected pax records"),
        (b"0 size=1\n", "expected pax records"),
        (b"size=1\n", "expected pax records"),
        (b"9 size 1\n", "expected pax records"),
        (b"29 size=99999999999999999999\n", "expected a pax record with a size"),
        (b"27 size=999999999999999999\n", "expected 999999999999999999 bytes of 'a.txt', found the end of the file"),
        (b"12 path=a\0b\n", "expected a name of at most"),
        (b"8207 path=" + b"x" * 8196 + b"\n", "expected a name of at most 8192 bytes"),
        (b"22 GNU.sparse.major=1\n", "found a sparse file: 'a.txt'"),
    ],
)
def test_pax_records_that_are_wrong(records: bytes, message: str) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = b"x", len(records)
    padded = records + bytes(-len(records) % 512)
    with pytest.raises(DataError, match=message):
        headers(with_header(info, behind=padded)[:-1024] + with_header(tarfile.TarInfo("a.txt")))


@pytest.mark.parametrize("kind", [b"L", b"x", b"g"])
def test_a_header_that_declares_too_much(kind: bytes) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, 2 << 20
    with pytest.raises(DataError, match="expected a header of at most 1048576 bytes, found 2097152"):
        headers(with_header(info, behind=bytes(2 << 20)))
    info.size = 2048
    with pytest.raises(
        DataError, match="expected 2048 bytes of a header's extension, found the end of the file after 1024"
    ):
        headers(with_header(info))


def test_archives_laid_end_to_end(tmp_path: Path) -> None:
    data = archive(tmp_path / "a.tar", FILES, format=tarfile.GNU_FORMAT).read_bytes()
    with pytest.raises(DataError, match="Were archives laid end to end"):
        headers(data + data)
    assert headers(data + bytes(1 << 20)) == headers(data)


@pytest.mark.parametrize("start,hint", [(b"\x1f\x8b", r"\.tar\.gz"), (b"\x28\xb5\x2f\xfd", r"\.tar\.zst"), (b"PK", "")])
def test_a_file_that_is_no_archive(tmp_path: Path, start: bytes, hint: str) -> None:
    (tmp_path / "a.tar").write_bytes(start + random.Random(0).randbytes(5000).replace(b"\0", b"1"))
    with pytest.raises(DataError, match=rf"a\.tar, at byte 0: expected a tar header(.|\n)*{hint}"):
        opened(tmp_path)
    (tmp_path / "a.tar").write_bytes(b"")
    with pytest.raises(DataError, match="found the file's end at 0"):
        opened(tmp_path)


def test_compressed_archives_that_are_damaged(tmp_path: Path) -> None:
    import gzip

    data = gzip.compress(archive(tmp_path / "plain/a.tar", FILES, format=tarfile.GNU_FORMAT).read_bytes())
    path = tmp_path / "b.tgz"
    for length in range(0, len(data) - 1, 9):
        path.write_bytes(data[:length])
        with pytest.raises(DataError, match=r"b\.tgz"):
            opened(tmp_path)
    path.write_bytes(data)
    assert len(samples(opened(tmp_path))) == 3
