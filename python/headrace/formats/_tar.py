"""The headers of a tar archive: which files are in it, and where their bytes lie.

Read are ustar, GNU (long names) and pax (paths and sizes of their own) archives. Python's `tarfile` is not used: it
passes over what is cut short or damaged, and takes several times as long. Everything in an archive is taken for
untrusted: sizes are checked against the file, and nothing is allocated by them.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.errors import DataError

__all__ = ["Member", "members"]

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_MOST_EXTENSION = 1 << 20
"""Bytes of a header that precedes a member's own (long names, pax records): more than any program writes."""
_MOST_NAME = 8 << 10
"""Bytes of a name: twice what Linux can open."""
_TAIL = 64 << 10
"""Bytes behind the end of an archive that are looked at for a second archive; tar fills up to 10 KiB with zeros."""

_REGULAR = (b"0", b"\0", b"7")
_EMPTY = (b"2", b"3", b"4", b"5", b"6")
"""Symbolic links, devices, folders and pipes, which have no bytes whatever their size says."""
_PARTIAL = {b"1": "a hard link", b"M": "a part of a file", b"S": "a sparse file"}


class Member(NamedTuple):
    """A regular file in an archive."""

    name: bytes
    start: int
    """Where its bytes begin."""
    size: int


def members(read: Callable[[int, int], bytes], size: int, uri: str, *, window: int) -> Iterator[Member]:
    """The regular files in an archive, in their order. Folders, symbolic links and devices are passed over.

    Args:
        read: the bytes of ``range(start, stop)`` of the archive.
        size: bytes of the archive.
        uri: its name, for messages.
        window: bytes to read at once; headers of small members then come together.

    Raises:
        DataError: if the archive is damaged or cut short, or holds sparse files, hard links or parts of files.
    """
    take = _Window(read, size, window)
    everywhere: dict[bytes, bytes] = {}
    records: dict[bytes, bytes] = {}
    long_name: bytes | None = None
    at = 0
    while True:
        if at + _BLOCK > size:
            raise DataError(
                f"{_place(uri, at)}: expected a header or the end-of-archive mark, found the file's end at {size}\n"
                "The archive was cut short. If it is whole but for the mark, append 1024 zero bytes."
            )
        head = take(at, at + _BLOCK)
        if head == _ZEROS:
            break
        _check_sum(head, uri, at)
        kind, length = head[156:157], _number(head[124:136], uri, at)
        start = at + _BLOCK
        if kind in b"LKxXg":
            if length > _MOST_EXTENSION:
                raise DataError(
                    f"{_place(uri, at)}: expected a header of at most {_MOST_EXTENSION} bytes, found {length}"
                )
            if start + length > size:
                raise _cut(uri, at, length, size, "a header's extension")
            if kind == b"L":
                long_name = take(start, start + length).partition(b"\0")[0]
            elif kind == b"g":
                everywhere.update(_pax(take(start, start + length), uri, at))
            elif kind != b"K":
                records.update(_pax(take(start, start + length), uri, at))
            at = start + -(-length // _BLOCK) * _BLOCK
            continue
        own = {**everywhere, **records} if records or everywhere else records
        name = own[b"path"].rstrip(b"/") if b"path" in own else long_name or _name(head)
        records, long_name = {}, None
        if kind in _PARTIAL or (own and any(key.startswith(b"GNU.sparse.") for key in own)):
            what = _PARTIAL.get(kind, "a sparse file")
            raise DataError(f"{_place(uri, at)}: expected a file with all its bytes, found {what}: {_show(name)}")
        if len(name) > _MOST_NAME or b"\0" in name:
            raise DataError(f"{_place(uri, at)}: expected a name of at most {_MOST_NAME} bytes, found {_show(name)}")
        if kind in _EMPTY or (kind == b"\0" and name.endswith(b"/")):
            at = start
            continue
        if b"size" in own:
            length = _decimal(own[b"size"], uri, at)
        if start + length > size:
            raise _cut(uri, at, length, size, _show(name))
        if kind in _REGULAR:
            yield Member(name, start, length)
        at = start + -(-length // _BLOCK) * _BLOCK
    rest = take(at, min(size, at + _TAIL))
    if rest.count(0) != len(rest):
        raise DataError(
            f"{_place(uri, at)}: expected nothing behind the end-of-archive mark, found other bytes\n"
            "Were archives laid end to end? What follows the first one's end would be passed over."
        )


class _Window:
    """Bytes of a file, read some more at a time than asked for."""

    def __init__(self, read: Callable[[int, int], bytes], size: int, window: int) -> None:
        self._read, self._size, self._window = read, size, window
        self._start, self._bytes = 0, b""

    def __call__(self, start: int, stop: int) -> bytes:
        if not self._start <= start <= stop <= self._start + len(self._bytes):
            self._bytes = self._read(start, min(self._size, max(stop, start + self._window)))
            self._start = start
        return self._bytes[start - self._start : stop - self._start]


def _place(uri: str, at: int) -> str:
    return f"{uri}, at byte {at}"


def _cut(uri: str, at: int, length: int, size: int, what: str) -> DataError:
    there = size - at - _BLOCK
    return DataError(f"{_place(uri, at)}: expected {length} bytes of {what}, found the end of the file after {there}")


def _check_sum(head: bytes, uri: str, at: int) -> None:
    field = head[148:156]
    wanted = _octal(field)
    # Adler-32's lower half is one more than the sum of all bytes, modulo 65521: a sum in C.
    if wanted is not None and (wanted - 8 * 32 + sum(field) + 1) % 65521 == zlib.adler32(head) & 0xFFFF:
        return
    rest = head[:148] + b" " * 8 + head[156:]
    if wanted == sum(byte - 256 if byte > 127 else byte for byte in rest):  # Some old programs sum signed bytes.
        return
    hint = ""
    if at == 0 and head[:2] == b"\x1f\x8b":
        hint = "\nIt is compressed with gzip: name it .tar.gz."
    elif at == 0 and head[:4] == b"\x28\xb5\x2f\xfd":
        hint = "\nIt is compressed with zstd: name it .tar.zst."
    raise DataError(
        f"{_place(uri, at)}: expected a tar header with the checksum of its bytes, {sum(rest)}, found {field!r} in "
        f"{head[:16]!r}...{hint}"
    )


def _number(field: bytes, uri: str, at: int) -> int:
    """Octal digits, or a binary number if the first bit is set."""
    number = int.from_bytes(field[1:], "big") if field[0] == 0x80 else _octal(field)
    if number is None:
        raise DataError(f"{_place(uri, at)}: expected a tar header with octal numbers, found {field!r}")
    return number


def _octal(field: bytes) -> int | None:
    text = field.partition(b"\0")[0].strip()
    try:
        return int(text or b"0", 8) if not text or text.isdigit() else None
    except ValueError:
        return None


def _decimal(text: bytes, uri: str, at: int) -> int:
    if not text.isdigit() or len(text) > 19:
        raise DataError(f"{_place(uri, at)}: expected a pax record with a size, found {_show(text)}")
    return int(text)


def _name(head: bytes) -> bytes:
    name = head[:100].partition(b"\0")[0]
    # GNU's own format ("ustar  ") has times where ustar has the first part of long paths.
    if head[345] and head[257:263] == b"ustar\0":
        return head[345:500].partition(b"\0")[0] + b"/" + name
    return name


def _pax(data: bytes, uri: str, header: int) -> dict[bytes, bytes]:
    """Records of the form ``length key=value``, with the length that of the whole record."""
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(data) and data[at]:
        digits = data[at : at + 20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() and len(digits) < 20 else 0
        key, equals, value = data[at + len(digits) + 1 : at + length].partition(b"=")
        if not length or at + length > len(data) or not equals or not value.endswith(b"\n"):
            raise DataError(
                f"{_place(uri, header)}: expected pax records as 'length key=value', found {data[at : at + 40]!r}"
            )
        records[key] = value[:-1]
        at += length
    return records


def _show(name: bytes) -> str:
    text = name.decode(errors="backslashreplace")
    return repr(text if len(text) <= 200 else text[:200] + "...")
