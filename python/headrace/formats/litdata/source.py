"""A LitData folder as a source of samples: a chunk file is a chunk."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from headrace._files import Store
from headrace._traffic import Traffic
from headrace._unpacking import unpack
from headrace.errors import DataError, HeadraceError
from headrace.formats.options import Decryption
from headrace.samples.source import Chunk, Extent, Source, digest

from .arrays import array_leaf, token_size
from .arrow import ArrowRows
from .containers import Footer, Items, decrypt, open_chunk
from .index import ChunkFile, Entry, Index, find_files, read_index
from .leaves import Options
from .temporal import TemporalSchema
from .tree import Node, TreeDecoder, parse_spec, texts

__all__ = ["LitDataSource"]

_IN_ARROW = frozenset({"str", "bool", "int", "float", "bytes", "json", "pickle"})
"""Serialisers of samples that litdata keeps as rows of a table, with all keys that any of them has."""


class _Decoder(NamedTuple):
    decode: Callable[[bytes], Any]
    fault: Callable[[bytes], str]
    """What is wrong with an item, as text, or no text."""


class LitDataSource(Source):
    """Chunks that `litdata.optimize` wrote. Made by `LitDataSource.open`."""

    format = "litdata"

    def __init__(
        self,
        store: Store,
        index: Index,
        files: list[ChunkFile],
        *,
        options: Options,
        decryption: Decryption | None,
        block_size: int | None,
    ) -> None:
        self.url = store.url
        self._store, self._index, self._files = store, index, files
        self._options, self._decryption, self._block = options, decryption, block_size
        self._node: Node | None = None
        self._temporal: TemporalSchema | None = None
        self._decoders: dict[tuple[str, ...] | None, _Decoder] = {}
        self.sizes = np.array([entry.items for entry in index.chunks], np.int64)
        self.stored = np.array([chunk.file.size for chunk in files], np.int64)
        self.schema: Mapping[str, str]
        if index.loader == "TokensLoader":
            self.schema = {"": self._open_tokens()}
        elif index.temporal is not None:
            self._temporal = TemporalSchema(index.temporal, options, index.where)
            self.schema = self._temporal.texts
        else:
            self.schema = self._open_tree()
        self.remote = self._store.is_remote

    @classmethod
    def open(
        cls,
        store: Store,
        *,
        allow_pickle: bool = False,
        tensors: Literal["numpy", "torch"] = "numpy",
        decryption: Decryption | None = None,
        serializers: Mapping[str, Any] | None = None,
        block_size: int | None = None,
    ) -> "LitDataSource":
        """Opens a folder with an ``index.json`` of LitData; reads that and lists the files.

        Values come out as litdata's `StreamingDataset` returns them, but tensors and decoded images as NumPy arrays,
        which are writable and own their memory; video, audio, meshes, PDF, NIfTI and files come as their encoded
        bytes, whatever packages are installed.

        Args:
            store: the folder.
            allow_pickle: whether pickles may be loaded, which runs what code they hold.
            tensors: ``"numpy"`` or ``"torch"``: what tensors and decoded images come as.
            decryption: the key of an encrypted dataset, as `headrace.encryption` reads it, or litdata's own object.
            serializers: the user's own, by name: objects with ``deserialize`` or functions of the bytes.
            block_size: for a dataset of tokens: tokens in an item. Blocks are cut from each chunk, and a rest shorter
                than one is left out, as in litdata; by default an item is what was stored as one.

        Raises:
            DataError: if the index is damaged, or a chunk is missing or not of its size.
            MissingError: if there is no index.
            ValueError: if an argument does not fit the dataset.
        """
        if tensors not in ("numpy", "torch"):
            raise ValueError(f'tensors must be "numpy" or "torch", got {tensors!r}')
        index = read_index(store)
        if block_size is not None and (index.loader != "TokensLoader" or block_size < 1):
            raise ValueError(
                f"block_size must be at least 1 and is for datasets of tokens, got {block_size!r} for {index.loader}"
            )
        _check_key(index, decryption)
        options = Options(allow_pickle=allow_pickle, torch=tensors == "torch", serializers=dict(serializers or {}))
        source = cls(
            store,
            index,
            find_files(index, store),
            options=options,
            decryption=decryption if index.encryption is not None else None,
            block_size=block_size,
        )
        source._check_empty()
        return source

    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        """Opens or reads a chunk: in place if it lies on a disk, is not compressed as a whole and not encrypted so."""
        entry, file = self._index.chunks[chunk], self._files[chunk]
        found = open_chunk(self._store, self._index, entry, file, self._decryption)
        where = self._where(chunk)
        if isinstance(found, Footer):
            if self.columns is None or self._temporal is not None:
                raise DataError(f"{where}: expected items as the index describes them, found rows of a table")
            return ArrowRows(found.data, rows=entry.items, columns=columns, known=self.columns, where=where)
        if self._block is not None:
            return _Blocks(found, entry, self._block, self._index.formats[0], self._options, where)
        return _Samples(self._plain(found, where), entry.items, self._decoder(columns), where)

    def file(self, chunk: int) -> str:
        """The file that a chunk lies in."""
        return self._files[chunk].file.path

    def identity(self, extent: Extent | None = None) -> str:
        """A digest of names, bytes and items of the chunks, and of what decides how items are read."""
        index = self._index
        chunks = index.chunks if extent is None else index.chunks[: extent.chunks]
        return digest(
            self.format,
            [[entry.name, entry.bytes, entry.items] for entry in chunks],
            [index.loader, index.formats, index.spec, index.temporal, self._block],
        )

    def traffic(self) -> Traffic:
        """Requests to the store, bytes read and retries so far."""
        return self._store.traffic()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoders": {}}

    def _check_empty(self) -> None:
        """Reads the chunks that no sample comes from by the index: nobody else will, and they may have some."""
        for chunk in np.flatnonzero((self.sizes == 0) & (self.stored > 0)).tolist():
            self.load(chunk, None if self.columns is None else ())

    def _where(self, chunk: int) -> str:
        return f"{self._store.uri(self.file(chunk))}, chunk {chunk}"

    def _open_tokens(self) -> str:
        index = self._index
        names = [name.partition(":")[0] for name in index.formats]
        if names not in (["no_header_numpy"], ["no_header_tensor"]):
            raise DataError(f"{index.where}: expected tokens as bare arrays, found {list(index.formats)}")
        try:
            text = array_leaf(index.formats[0], self._options)[1]
        except DataError as error:
            raise DataError(f"{index.where}: {error}") from None
        if self._block is None:
            return text
        if index.encryption is not None and index.encryption[1] == "sample":
            raise ValueError("block_size cannot be used with items that are encrypted one by one")
        if lost := [entry for entry in index.chunks if entry.tokens is None]:
            raise DataError(f"{index.where}: expected the tokens of each chunk as dim, found none for {lost[0].name}")
        self.sizes = np.array([(entry.tokens or 0) // self._block for entry in index.chunks], np.int64)
        return text

    def _open_tree(self) -> dict[str, str]:
        index = self._index
        node = parse_spec(index.spec, len(index.formats), index.where)
        self._node = node
        if not node.is_named:
            return {"": texts(node, index.formats, self._options)}
        schema: dict[str, str] = {}
        at = 0
        for key, child in zip(node.keys, node.children, strict=True):
            schema[key] = texts(child, index.formats[at : at + child.leaves], self._options)
            at += child.leaves
        extras = _extras(index, node)
        if extras:
            self._node = Node(node.kind, node.keys, node.children, node.detail, node.leaves, tuple(extras))
        return schema | extras

    def _decoder(self, columns: tuple[str, ...] | None) -> _Decoder:
        made = self._decoders.get(columns)
        if made is None:
            made = self._decoders[columns] = self._make_decoder(columns)
        return made

    def _make_decoder(self, columns: tuple[str, ...] | None) -> _Decoder:
        index = self._index
        if self._temporal is not None:
            return _Decoder(self._temporal.decoder(columns), _no_fault)
        try:
            if self._node is not None:
                tree = TreeDecoder(self._node, index.formats, self._options, columns)
                return _Decoder(tree.decode, tree.fault)
            tokens = array_leaf(index.formats[0], self._options)[0]
        except DataError as error:
            raise DataError(f"{index.where}: {error}") from None

        def decode(data: bytes) -> Any:
            return tokens(data, 0, len(data))

        return _Decoder(decode, _no_fault)

    def _plain(self, items: Items, where: str) -> Items:
        """Items that are neither compressed nor encrypted one by one."""
        read = items.read
        if self._index.compression is not None and self._index.level == "sample":
            read = _unpacked(read, where)
        if self._decryption is not None and self._decryption.level == "sample":
            read = _decrypted(read, self._decryption, where)
        return Items(read, items.offsets, items.nbytes)


class _Samples(Chunk):
    """Items, a sample each."""

    def __init__(self, items: Items, count: int, decoder: _Decoder, where: str) -> None:
        self._read, self._offsets, self.nbytes = items.read, items.offsets, items.nbytes
        self._count, self._decoder, self._where = count, decoder, where
        self._decode = decoder.decode

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> Any:
        try:
            return self._decode(self._read(self._offsets[row], self._offsets[row + 1]))
        except (ImportError, MemoryError):
            raise
        except Exception as error:
            if isinstance(error, HeadraceError) and not isinstance(error, DataError):
                raise
            raise self._fault(row, error) from error

    def _fault(self, row: int, error: Exception) -> DataError:
        where = f"{self._where}, row {row}"
        text = ""
        try:
            data = self._read(self._offsets[row], self._offsets[row + 1])
        except DataError:
            data = None
        if data is not None:
            text = self._decoder.fault(data)
        return DataError(f"{where}: {text or (error if isinstance(error, DataError) else _told(error))}")


class _Blocks(Chunk):
    """The tokens of a chunk, end to end, in blocks of one size."""

    def __init__(self, items: Items, entry: Entry, block: int, name: str, options: Options, where: str) -> None:
        self._read, self._decode = items.read, array_leaf(name, options)[0]
        self._start, stop = items.offsets[0], items.offsets[entry.items]
        size = token_size(name)
        if stop - self._start != (entry.tokens or 0) * size:
            raise DataError(
                f"{where}: expected {entry.tokens} tokens of {size} bytes as the index says, "
                f"found {stop - self._start} bytes"
            )
        self._count, self._bytes = (entry.tokens or 0) // block, block * size
        self.nbytes = items.nbytes

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> Any:
        start = self._start + row * self._bytes
        return self._decode(self._read(start, start + self._bytes), 0, self._bytes)


def _unpacked(read: Callable[[int, int], bytes], where: str) -> Callable[[int, int], bytes]:
    return lambda start, stop: bytes(unpack("zstd", memoryview(read(start, stop)), size=None, where=where))


def _decrypted(read: Callable[[int, int], bytes], key: Decryption, where: str) -> Callable[[int, int], bytes]:
    return lambda start, stop: decrypt(key, read(start, stop), where)


def _no_fault(data: bytes) -> str:
    return ""


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _check_key(index: Index, decryption: Decryption | None) -> None:
    if index.encryption is None:
        return
    algorithm, level = index.encryption
    if decryption is None:
        raise ValueError(
            f"{index.where}: the data is encrypted ({algorithm}, by {level})\n"
            f"hint: give its key as decryption=headrace.encryption.load_key(path, password)"
        )
    if (decryption.algorithm, decryption.level) != index.encryption:
        raise ValueError(
            f"{index.where}: expected a key of {algorithm} for each {level}, "
            f"got one of {decryption.algorithm} for each {decryption.level}"
        )


def _extras(index: Index, node: Node) -> dict[str, str]:
    """Keys that only later samples have, which litdata notes by their types, and their types."""
    types = index.types
    if not all(name in _IN_ARROW for name in index.formats):
        return {}
    if "type" in types and "type" not in node.keys and set(types) <= {"type", "value", "optional"}:
        return {}
    extras: dict[str, str] = {}
    for key, kind in types.items():
        if key and key not in node.keys:
            found = kind.get("type") if isinstance(kind, dict) else kind  # pyright: ignore
            extras[key] = found if isinstance(found, str) else "json"
    return extras
