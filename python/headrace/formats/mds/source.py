"""An MDS dataset: its shards where they lie, each a chunk."""

import hashlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from headrace._files import Blob, File, Store
from headrace._traffic import Traffic
from headrace.errors import DataError, MissingError
from headrace.samples.source import Chunk, Extent, Source, digest

from .encodings import PICKLE
from .index import Layout, Part, Shard, read_index
from .shard import LineChunk, MdsChunk, SeparatedChunk

__all__ = ["INDEX", "MdsSource", "NoDigest"]

INDEX = "index.json"
_PIECE = 2**23
"""Bytes that are hashed at once."""


class NoDigest(DataError):
    """A shard that cannot be verified: its index has no digest of it, or none that can be computed here."""


class MdsSource(Source):
    """Samples in the shards of MosaicML Streaming: dicts of the values that it returns itself.

    A shard is a chunk, in the order of the index. One that lies on a disk and is not compressed is read in place, a
    read for each sample; others are held in memory, decompressed. If a shard is there both ways, the plain file is read
    from a disk and the compressed one over a network.
    """

    format = "mds"

    def __init__(self, store: Store, shards: list[Shard], *, allow_pickle: bool, verify: bool) -> None:
        self._store = store
        self._shards = shards
        self._allow_pickle, self._verify = allow_pickle, verify
        self.url = store.url
        wanted = {name for shard in shards for part in _parts(shard) for name in (part.name, part.packed_name)}
        self._listed = {file.path: file for file in store.files if file.path in wanted}
        self._is_listed = bool(store.files)
        self.sizes = np.array([shard.samples for shard in shards], np.int64)
        self.stored = np.array([self._bytes(shard) for shard in shards], np.int64)
        self.schema = _schema({shard.layout: None for shard in shards})
        self.remote = store.is_remote
        # Which shards' digests were right: a file that changes later is refused when it is opened.
        self._verified: set[str] = set()

    @classmethod
    def open(cls, store: Store, *, allow_pickle: bool = False, verify: bool = False) -> "MdsSource":
        """Opens the dataset in a folder by its ``index.json``.

        Args:
            store: the folder.
            allow_pickle: whether columns of pickled objects may be read, which runs whatever code is in them.
            verify: whether each shard is read whole and compared with its digests in the index when it is opened.

        Raises:
            DataError: if the index is damaged, or a file has another size than it says.
            MissingError: if there is no index, or a shard is missing.
        """
        try:
            file = next((file for file in store.files if file.path == INDEX), None) or store.head(INDEX)
        except MissingError:
            below = [file.path.removesuffix(INDEX) for file in store.files if file.name == INDEX]
            hint = (
                f"\nThere is one in {', '.join(below[:3])}: open that, or merge them with streaming." if below else ""
            )
            raise MissingError(
                f"{store.uri(INDEX)}: expected the index of an MDS dataset, found no file{hint}"
            ) from None
        shards = read_index(bytes(store.read(file)), store.uri(INDEX))
        source = cls(store, shards, allow_pickle=allow_pickle, verify=verify)
        if verify:
            for part in itertools.chain.from_iterable(map(_parts, shards)):
                _hash_of(store.uri(part.name), part)
        source._check_counts()
        return source

    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        """Opens a shard: in place, or into memory."""
        shard = self._shards[chunk]
        layout, uri = shard.layout, self._store.uri(self.file(chunk))
        names = layout.names if columns is None else columns
        if missing := [name for name in names if name not in layout.names]:
            raise DataError(
                f"{uri}, chunk {chunk}: expected a column {missing[0]!r}, this shard has {', '.join(layout.names)}"
            )
        if not self._allow_pickle:
            self._refuse_pickle(uri, chunk, layout, names)
        data = self._open(shard.data, layout.codec)
        head = data if shard.meta is None else self._open(shard.meta, layout.codec)
        make = {"mds": MdsChunk, "json": LineChunk, "xsv": SeparatedChunk}[layout.format]
        return make(uri, chunk, shard, data, head, columns)

    def file(self, chunk: int) -> str:
        """The file of a shard that is read."""
        file, packed = self._choose(part := self._shards[chunk].data)
        if file is not None:
            return file.path
        return (part.packed_name if packed else None) or part.name

    def identity(self, extent: Extent | None = None) -> str:
        """A digest of the shards' names, sizes, counts and columns, however they are compressed."""
        shards = self._shards if extent is None else self._shards[: extent.chunks]
        layouts = {shard.layout: None for shard in shards}
        number = {layout: at for at, layout in enumerate(layouts)}
        return digest(
            "mds",
            [[layout.format, layout.names, layout.encodings, layout.separator, layout.newline] for layout in layouts],
            [
                [number[shard.layout], shard.samples, [[part.name, part.size] for part in _parts(shard)]]
                for shard in shards
            ],
        )

    def traffic(self) -> Traffic:
        """Requests to the store, bytes read and retries so far."""
        return self._store.traffic()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_verified": set[str]()}

    def _refuse_pickle(self, uri: str, chunk: int, layout: Layout, names: Iterable[str]) -> None:
        encodings = dict(zip(layout.names, layout.encodings, strict=True))
        if pickled := [name for name in names if encodings[name] == PICKLE]:
            raise DataError(
                f"{uri}, chunk {chunk}: column {pickled[0]!r} holds pickled objects; reading them runs whatever code "
                "the file has in it\nIf you trust who wrote it, open the dataset with allow_pickle=True; or select "
                "other columns."
            )

    def _check_counts(self) -> None:
        """Compares counts of samples with shards' bytes, as far as nobody does who reads them.

        More samples than a shard can hold would be believed until it is opened. One that has none by the index would
        never be, so it is now.
        """
        for number, shard in enumerate(self._shards):
            part, least = (shard.data if shard.meta is None else shard.meta), shard.least_bytes
            if shard.samples and part.size < least:
                raise DataError(
                    f"{self._store.uri(part.name)}: expected at least {least} bytes for {shard.samples} samples by the "
                    f"index, found {part.size}"
                )
            if not shard.samples and any(part.size for part in _parts(shard)):
                self.load(number, ())

    # Files

    def _choose(self, part: Part) -> tuple[File | None, bool]:
        """The file to read for a part of a shard, as far as it was listed, and whether it is the compressed one."""
        plain = self._listed.get(part.name)
        packed = None if part.packed_name is None else self._listed.get(part.packed_name)
        if plain is not None and packed is not None:
            return (packed, True) if self._store.is_remote else (plain, False)
        if plain is None and packed is None:
            return None, part.packed_name is not None
        return (plain, False) if packed is None else (packed, True)

    def _bytes(self, shard: Shard) -> int:
        """Bytes of a shard in the store; compares the files with the index."""
        total = 0
        for part in _parts(shard):
            file, packed = self._choose(part)
            wanted = part.packed_size if packed else part.size
            if file is not None:
                self._check(part, file, packed)
            elif self._is_listed and not any(step[0] in "._" for step in part.name.split("/")):
                also = f" or {part.packed_name}" if part.packed_name else ""
                raise MissingError(
                    f"{self._store.uri(part.name)}: expected a shard in the file{also}, found no such file"
                )
            total += wanted
        return total

    def _check(self, part: Part, file: File, packed: bool) -> None:
        wanted = part.packed_size if packed else part.size
        if file.size != wanted:
            raise DataError(
                f"{self._store.uri(file.path)}: expected {wanted} bytes by the index, found {file.size}\n"
                "It was cut short, or rewritten after the index."
            )

    def _find(self, part: Part) -> tuple[File, bool]:
        """The file to read; one that was not listed (its name is hidden, or nothing was) is looked for now."""
        file, packed = self._choose(part)
        if file is not None:
            return file, packed
        names = [(part.packed_name, True), (part.name, False)]
        for name, is_packed in names if self._store.is_remote else reversed(names):
            if name is None:
                continue
            try:
                file = self._store.head(name)
            except MissingError:
                continue
            self._check(part, file, is_packed)
            return file, is_packed
        raise MissingError(f"{self._store.uri(part.name)}: expected a shard in the file, found no such file")

    def _open(self, part: Part, codec: str | None) -> Blob:
        file, packed = self._find(part)
        blob = self._store.open(file, codec=codec, size=part.size) if packed else self._store.open(file)
        if self._verify and part.name not in self._verified:
            uri = self._store.uri(file.path)
            name, found = _hash_of(uri, part)
            for start in range(0, blob.size, _PIECE):
                found.update(blob.read(start, min(start + _PIECE, blob.size)))
            wanted = dict(part.hashes)[name]
            if found.hexdigest() != wanted.lower():
                raise DataError(f"{uri}: expected {name} {wanted} by the index, found {found.hexdigest()}")
            self._verified.add(part.name)
        return blob


def _parts(shard: Shard) -> tuple[Part, ...]:
    return (shard.data,) if shard.meta is None else (shard.data, shard.meta)


def _schema(layouts: Iterable[Layout]) -> dict[str, str]:
    """Columns with their encodings, those that only some shards have too; several encodings with a bar between."""
    found: dict[str, dict[str, None]] = {}
    for layout in layouts:
        for name, encoding in zip(layout.names, layout.encodings, strict=True):
            found.setdefault(name, {})[encoding] = None
    return {name: " | ".join(encodings) for name, encodings in found.items()}


def _hash_of(uri: str, part: Part) -> tuple[str, Any]:
    """A digest that the index has of a part and that can be computed here: its name, and a new hash."""
    names = [name for name, _ in part.hashes]
    for name in names:
        if (make := _algorithm(name)) is not None:
            return name, make()
    if not names:
        raise NoDigest(
            f"{uri}: expected digests to verify it with, the index has none\n"
            "Open the dataset without verify, or write it with hashes=[...]."
        )
    raise NoDigest(
        f"{uri}: expected a digest that can be computed here, the index has {', '.join(names)}\n"
        "Those of xxhash need a package: pip install xxhash"
    )


def _algorithm(name: str) -> Callable[[], Any] | None:
    if name in hashlib.algorithms_available and not name.startswith("shake_"):
        return lambda: hashlib.new(name, usedforsecurity=False)
    try:
        import xxhash  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return getattr(xxhash, name) if name in xxhash.algorithms_available else None
