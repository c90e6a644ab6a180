"""WebDataset: tar archives in which neighbouring files of one name are a sample; docs/formats/webdataset.md.

An archive is a chunk. Its headers are read once, into a table that the cache keeps: where each file's bytes lie, and
which files are a sample.
"""

import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from headrace._files import Blob, File, Store
from headrace._traffic import Traffic
from headrace.errors import DataError
from headrace.samples.source import Chunk, Extent, Place, Source, digest

from ._tables import Table, cached
from ._tar import Member, members

__all__ = ["WebDatasetSource"]

_MEANING = 1
"""Of the tables' arrays: raised when they come to mean something else."""
_CODECS = {".tar.gz": "gzip", ".tgz": "gzip", ".tar.zst": "zstd", ".tar.zstd": "zstd", ".tzst": "zstd"}
_REFUSED = (".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.lz4", ".tar.br")
_KEY, _URL = "__key__", "__url__"
_RESERVED = (_KEY, _URL, "__local_path__", "__bad__")
"""What webdataset itself puts into a sample."""

_WINDOW = 32 << 10
"""Bytes read for headers at once where they lie on a disk: more would be read in vain between large members."""
_REMOTE_WINDOW = 1 << 20
"""The same over a network, where a request costs as much as this."""
_THREADS = 16
"""Archives whose headers are read at once: more than processors, as disks and stores have to be waited for."""
_UNPACKING = min(4, os.cpu_count() or 1)
"""The same where archives are compressed: each is whole in memory meanwhile."""
_AT_ONCE = 1 << 20
"""Bytes up to which a sample is one read, headers between its members and all; beyond, a read for each member."""


class WebDatasetSource(Source):
    """Samples in tar archives: ``{"__key__": str, "__url__": str, extension: bytes, ...}``, as webdataset gives them.

    Which files are a sample: a file's key is its path up to the first dot of its *file name*, the folder with all its
    dots included, and what follows that dot, in lower case, is its extension: ``22.0/1.seg.PNG`` has the key ``22.0/1``
    and the extension ``seg.png``. Neighbours of one key are a sample. Left out are files without an extension, those
    whose name begins with a dot, and those below a folder or of a name such as ``__meta__``.

    A plain archive on a disk is read in place; a compressed or a remote one is held in memory while it is used.
    """

    format = "webdataset"

    def __init__(self, store: Store, files: Sequence[File], cache_dir: Path, counts: Table) -> None:
        self._store, self._files, self._cache = store, list(files), cache_dir
        self.url = store.url
        self.remote = store.is_remote
        self.sizes = counts["samples"]
        self.stored = np.array([file.size for file in files], np.int64)
        self.schema = {_KEY: "str", _URL: "str", **dict.fromkeys(_texts(counts["first"]), "bytes")}

    @classmethod
    def open(
        cls, store: Store, files: Sequence[File], *, cache_dir: Path, progress: Callable[[str, int, int], None]
    ) -> "WebDatasetSource":
        """Reads the headers of archives, of each but once as long as the cache is kept.

        Args:
            store: where they lie.
            files: the archives, in their order: ``.tar`` (or any other name), ``.tar.gz``, ``.tgz``, ``.tar.zst``.
            cache_dir: the cache folder.
            progress: is called with (what is done, how many are done, of how many).

        Raises:
            DataError: if an archive is damaged, cut short, or compressed in another way; if a key comes twice with
                others between, or an extension twice in a sample.
        """
        for file in files:
            if file.path.lower().endswith(_REFUSED):
                raise DataError(
                    f"{store.uri(file.path)}: expected an archive as .tar, .tar.gz, .tgz or .tar.zst\n"
                    "Compress it with zstd or gzip instead, or not at all: then it is read in place."
                )

        def read() -> Table:
            return _count(store, files, cache_dir, progress)

        key = [_MEANING, store.url, [[file.path, file.size, file.version] for file in files]]
        counts = cached(cache_dir, "tars", key, read) if all(file.version for file in files) else read()
        return cls(store, files, cache_dir, counts)

    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        """Opens an archive: in place, or into memory."""
        file = self._files[chunk]
        uri = self._store.uri(file.path)
        blob = self._store.open(file, codec=_codec(file.path))
        table = _table(self._store, file, self._cache, lambda: _scan(blob.read, blob.size, uri, _WINDOW))
        samples, size = len(table["firsts"]) - 1, int(table["size"][0])
        if samples != self.sizes[chunk] or size != blob.size:
            raise DataError(
                f"{uri}: expected {self.sizes[chunk]} samples in {size} bytes as when it was opened, found {samples} "
                f"in {blob.size}"
            )
        return _TarChunk(uri, chunk, blob, table, columns)

    def file(self, chunk: int) -> str:
        """The archive."""
        return self._files[chunk].path

    def identity(self, extent: Extent | None = None) -> str:
        """A digest of the archives' paths, sizes and counts of samples."""
        counted = zip(self._files, self.sizes.tolist(), strict=True)
        chunks = None if extent is None else extent.chunks
        return digest("webdataset", [[file.path, file.size, count] for file, count in islice(counted, chunks)])

    def traffic(self) -> Traffic:
        """Requests to the store, bytes read and retries so far."""
        return self._store.traffic()


class _TarChunk(Chunk):
    def __init__(self, uri: str, number: int, blob: Blob, table: Table, columns: tuple[str, ...] | None) -> None:
        self._uri, self._number, self._blob = uri, number, blob
        self._firsts, self._members, self._key_ends = table["firsts"], table["members"], table["key_ends"]
        self._names, self._keys = _texts(table["exts"]), table["keys"].tobytes()
        self._columns = columns
        self._wanted = None if columns is None else frozenset(columns)
        self.nbytes = blob.nbytes + sum(array.nbytes for array in table.values())

    def __len__(self) -> int:
        return len(self._firsts) - 1

    def __getitem__(self, row: int) -> dict[str, Any]:
        ends, firsts, names = self._key_ends.item, self._firsts.item, self._names
        key = _text(self._keys[ends(row - 1) if row else 0 : ends(row)])
        sample: dict[str, Any] = {_KEY: key, _URL: self._uri}
        places: list[list[int]] = self._members[firsts(row) : firsts(row + 1)].tolist()
        if self._wanted is not None:
            places = [place for place in places if names[place[0]] in self._wanted]
        read = self._blob.read
        begin, stop = (places[0][1], places[-1][2]) if places else (0, 0)
        if len(places) < 2 or self._blob.nbytes or stop - begin > _AT_ONCE:
            for kind, start, end in places:
                sample[names[kind]] = read(start, end)
        else:
            data = read(begin, stop)
            for kind, start, end in places:
                sample[names[kind]] = data[start - begin : end - begin]
        if self._columns is None:
            return sample
        try:
            return {name: sample[name] for name in self._columns}
        except KeyError as missing:
            there: list[str] = [names[kind] for kind, _, _ in self._members[firsts(row) : firsts(row + 1)].tolist()]
            raise DataError(
                f"{Place(self._uri, self._number, row)}: expected a member {missing} of the sample {key!r}, it has "
                f"{', '.join(there)}\n"
                "Columns that not all samples have can be taken from whole samples only."
            ) from None


# Tables


def _count(store: Store, files: Sequence[File], cache_dir: Path, progress: Callable[[str, int, int], None]) -> Table:
    """Samples in each archive, and the extensions of the first sample of all."""

    def look(file: File) -> tuple[int, list[str]]:
        table = _table(store, file, cache_dir, lambda: _scan_file(store, file))
        names = _texts(table["exts"])
        kinds: list[int] = table["members"][: table["firsts"][:2][-1], 0].tolist()
        return len(table["firsts"]) - 1, [names[kind] for kind in kinds]

    samples = np.zeros(len(files), np.int64)
    first: list[str] = []
    unpacking = any(_codec(file.path) for file in files)
    pool = ThreadPoolExecutor(_UNPACKING if unpacking else _THREADS, "headrace-tar")
    try:
        for at, (count, names) in enumerate(pool.map(look, files)):
            samples[at] = count
            first = first or names
            progress("reading the headers of archives", at + 1, len(files))
    finally:
        pool.shutdown(cancel_futures=True)
    return {"samples": samples, "first": _joined(first)}


def _table(store: Store, file: File, cache_dir: Path, scan: Callable[[], Table]) -> Table:
    """The table of an archive; without a version nothing would tell that the archive was replaced."""
    key = [_MEANING, store.url, file.path, file.size, file.version]
    return cached(cache_dir, "tar", key, scan) if file.version else scan()


def _scan_file(store: Store, file: File) -> Table:
    uri, codec = store.uri(file.path), _codec(file.path)
    if codec is None and store.is_remote:
        return _scan(lambda start, stop: store.read(file, start, stop), file.size, uri, _REMOTE_WINDOW)
    with store.opened(file, codec=codec) as blob:
        return _scan(blob.read, blob.size, uri, _WINDOW)


def _scan(read: Callable[[int, int], bytes], size: int, uri: str, window: int) -> Table:
    """Reads an archive's headers.

    Returns:
        ``firsts`` (samples + 1): the first member of each sample; ``members`` (members, 3): the number of their
        extension in ``exts``, and where their bytes begin and end; ``keys`` and ``key_ends`` (samples): the keys one
        behind the other, and where each ends; ``size`` (1): bytes of the archive.
    """
    firsts = list[int]()
    places = array("q")  # Three numbers for each member; there may be millions.
    numbers: dict[str, int] = {}  # Of extensions.
    kinds: dict[bytes, int] = {}  # The same as they are written in names.
    keys: dict[bytes, None] = {}
    current: bytes | None = None
    there = set[int]()
    for member in members(read, size, uri, window=window):
        key, rest = _split(member.name)
        if key is None:
            continue
        kind = kinds.get(rest)
        if kind is None:
            ext = _extension(rest, member, uri)
            kind = kinds[rest] = numbers.setdefault(ext, len(numbers))
        if key != current:
            if key in keys:
                raise DataError(
                    f"{uri}: expected all members of a sample side by side, found {_show(member)} apart from others of "
                    f"the key {_text(key)!r}\nSort the files by name when they are archived (tar --sort=name)."
                )
            current, there = key, set[int]()
            keys[key] = None
            firsts.append(len(places) // 3)
        elif kind in there:
            raise DataError(
                f"{uri}: expected each extension once in a sample, found {_show(member)} as a second "
                f"{_text(rest).lower()!r} of the key {_text(key)!r}\n"
                "A key ends at the first dot of a file's name: names with further dots may fall together."
            )
        there.add(kind)
        places.extend((kind, member.start, member.start + member.size))
    firsts.append(len(places) // 3)
    return {
        "firsts": np.array(firsts, np.int64),
        "members": np.array(places, np.int64).reshape(-1, 3),
        "exts": _joined(numbers),
        "keys": np.frombuffer(b"".join(keys), np.uint8),
        "key_ends": np.cumsum(np.array([len(key) for key in keys], np.int64)),
        "size": np.array([size], np.int64),
    }


def _split(name: bytes) -> tuple[bytes | None, bytes]:
    """The key of a member and what follows it; no key if it is part of no sample."""
    if name.startswith(b"__"):
        top = name.partition(b"/")[0]
        if len(top) >= 4 and top.endswith(b"__"):
            return None, b""
    folder, slash, base = name.rpartition(b"/")
    stem, dot, rest = base.partition(b".")
    return (folder + slash + stem if dot and stem else None), rest


def _extension(rest: bytes, member: Member, uri: str) -> str:
    ext = _text(rest).lower()
    if not ext or ext in _RESERVED or any(letter.isspace() for letter in ext):
        raise DataError(
            f"{uri}: expected an extension behind the first dot of a file's name, found {_show(member)}\n"
            "A key ends at the first dot: rename files so that no dot comes before the extension."
        )
    return ext


def _codec(path: str) -> str | None:
    return next((codec for suffix, codec in _CODECS.items() if path.lower().endswith(suffix)), None)


def _joined(texts: Iterable[str] | Mapping[str, Any]) -> Any:
    return np.frombuffer("\0".join(texts).encode(errors="surrogateescape"), np.uint8)


def _texts(joined: Any) -> list[str]:
    return _text(joined.tobytes()).split("\0") if len(joined) else []


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


def _show(member: Member) -> str:
    return repr(member.name.decode(errors="backslashreplace"))
