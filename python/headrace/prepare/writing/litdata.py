"""LitData's chunks and ``index.json``, which litdata reads as its own."""

import itertools
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from headrace._files import Store
from headrace.encryption import Encryption
from headrace.errors import DataError
from headrace.formats.litdata.arrays import token_size
from headrace.formats.litdata.containers import check_key
from headrace.formats.litdata.index import INDEX, is_litdata
from headrace.formats.litdata.tree import KINDS, Node, parse_spec

from .base import Entry, Existing, Options, Piece, at_key, below, joined, kind_of, zstd
from .leaves import Encode, leaf_encoder, leaf_name
from .rows import RowEncoder, RowLayout

__all__ = ["LitDataEncoder", "LitDataLayout"]

_CONTAINERS = {dict: "builtins.dict", list: "builtins.list", tuple: "builtins.tuple"}
assert set(_CONTAINERS.values()) <= set(KINDS)


class LitDataEncoder(RowEncoder):
    """Samples are trees of dicts, lists and tuples; each has the structure and the types of the first."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._serializers: Mapping[str, Any] = options.serializers or {}
        self._tokens = options.tokens
        self._key = _key_of(options, "sample")
        self._schema: str | None = None
        self._encode: Callable[[Any], bytes] | None = None

    @property
    def schema(self) -> str | None:
        """``data_spec`` and ``data_format`` of the index."""
        return self._schema

    @schema.setter
    def schema(self, value: str | None) -> None:
        if value == self._schema or value is None:
            return
        spec, formats = json.loads(value)
        node = parse_spec(spec, len(formats), "samples")
        encoders = [leaf_encoder(name, self._serializers) for name in formats]
        if self._tokens:
            self._encode = _bare(formats, encoders)
        elif node.kind == "dict" and all(child.kind == "leaf" for child in node.children):
            self._encode = _flat(node, encoders)
        else:
            self._encode = _tree(node, encoders)
        self._schema = value

    def encode(self, sample: Any) -> bytes:
        """See `RowEncoder.encode`."""
        if self._encode is None:
            formats: list[str] = []
            spec = self._describe(sample, "", formats)
            if not formats:
                raise TypeError(f"expected a sample with at least one value, found an empty {kind_of(sample)}")
            self.schema = json.dumps([json.dumps([1, spec]), formats])
        assert self._encode is not None
        item = self._encode(sample)
        return item if self._key is None else self._key.encrypt(item)

    def _describe(self, value: Any, name: str, formats: list[str]) -> dict[str, Any]:
        """The structure of a sample, as the index has it; adds the serialisers of its leaves."""
        container = _CONTAINERS.get(cast("Any", type(value)))
        if container is None:
            try:
                formats.append(leaf_name(value, self._serializers))
            except TypeError as error:
                raise at_key(name, error) from None
            return {"type": None, "context": None, "children_spec": []}
        if isinstance(value, dict):
            pairs = list(cast("dict[Any, Any]", value).items())
            if wrong := [key for key, _ in pairs if type(key) not in (str, int)]:
                raise at_key(name, TypeError(f"expected keys of text or integers, found {wrong[0]!r}"))
            context = json.dumps([key for key, _ in pairs])
        else:
            pairs = list(enumerate(cast("list[Any]", value)))
            context = "null"
        children = [self._describe(child, below(name, key), formats) for key, child in pairs]
        return {"type": container, "context": context, "children_spec": children}


class LitDataLayout(RowLayout):
    """``chunk-<run>-<number>.bin``; a run that adds to a dataset takes the next number for its chunks' names."""

    format = "litdata"
    index_name = INDEX
    pattern = r"chunk-(\d+)-\d+\..*bin"

    def __init__(self, options: Options) -> None:
        self._options = options

    def name(self, base: int, number: int) -> str:
        """See `Layout.name`."""
        packing = f".{self._options.compression}" if self._options.compression else ""
        return f"chunk-{base}-{number}{packing}.bin"

    def write(self, path: Path, name: str, pieces: Sequence[Piece], schema: str | None) -> Entry:
        """See `Layout.write`."""
        header = self.header(pieces)
        samples = sum(len(piece.sizes) for piece in pieces)
        content = sum(int(piece.sizes.sum()) for piece in pieces)
        parts = itertools.chain([header], joined(pieces))
        stored = len(header) + content
        if (key := _key_of(self._options, "chunk")) is not None:
            parts = [key.encrypt(b"".join(parts))]
            stored = len(parts[0])
        if self._options.compression is not None:
            parts = [zstd(self._options.compression).compress(b"".join(parts), asbytes=True)]
        size = self.save(path, parts)
        dim = content // _token_bytes(schema) if self._options.tokens else None
        return {"name": name, "samples": samples, "bytes": size, "chunk_bytes": stored, "dim": dim}

    def index(self, entries: Sequence[Entry], schema: str | None) -> bytes:
        """See `Layout.index`."""
        spec, formats = cast("tuple[Any, Any]", (None, []) if schema is None else json.loads(schema))
        chunks = [
            {
                "chunk_bytes": entry["chunk_bytes"],
                "chunk_size": entry["samples"],
                "dim": entry["dim"],
                "filename": entry["name"],
            }
            for entry in entries
        ]
        options = self._options
        config: dict[str, Any] = {
            "chunk_bytes": options.chunk_bytes,
            "chunk_size": options.chunk_size,
            "compression": options.compression,
            "data_format": formats,
            "data_spec": spec,
            "encryption": _described(options.encryption),
            "item_loader": "TokensLoader" if options.tokens else "PyTreeLoader",
        }
        # litdata takes this for the version of the dataset. A digest says that as well as the time does, and is the
        # same when the same data is written again.
        version = zlib.crc32(json.dumps([chunks, config]).encode())
        return json.dumps({"chunks": chunks, "config": config, "updated_at": f"{version}.0"}, sort_keys=True).encode()

    def read(self, index: bytes, there: Store) -> Existing:
        """See `Layout.read`."""
        where = there.uri(self.index_name)
        try:
            found: Any = json.loads(index)
        except ValueError as error:
            raise DataError(f"{where}: expected JSON: {error}") from None
        if not is_litdata(found):
            raise DataError(f"{where}: expected an index of LitData, with chunks and config")
        config: dict[str, Any] = found["config"]
        options = self._options
        tokens = config.get("item_loader") == "TokensLoader"
        encryption = _described(options.encryption)
        wanted = {"compression": options.compression, "encryption": encryption, "tokens": options.tokens}
        kind = {
            "compression": config.get("compression") or None,
            "encryption": config.get("encryption") or None,
            "tokens": tokens,
        }
        if config.get("compression_level") not in (None, "chunk"):
            raise ValueError(f"{where}: headrace cannot add to chunks that are compressed by parts")
        if kind != wanted:
            raise ValueError(f"{where}: expected a dataset of {wanted}, to be able to add to it, found one of {kind}")
        if options.encryption is not None:
            check_key(there, options.encryption)
        sizes = {file.path: file.size for file in there.files}
        entries = [
            {
                "name": chunk["filename"],
                "samples": chunk["chunk_size"],
                "bytes": _size(sizes, where, chunk["filename"]),
                "chunk_bytes": chunk["chunk_bytes"],
                "dim": chunk["dim"],
            }
            for chunk in found["chunks"]
        ]
        formats = config.get("data_format")
        schema = json.dumps([config["data_spec"], formats]) if formats else None
        return Existing(entries, schema)

    def weights(self, sizes: npt.NDArray[np.int64], schema: str | None) -> npt.NDArray[np.int64]:
        """See `Layout.weights`."""
        return sizes // _token_bytes(schema) if self._options.tokens else super().weights(sizes, schema)

    def bring_together(self, known: str, found: str) -> str:
        """See `Layout.unify`."""
        one, two = (_texts(schema) for schema in (known, found))
        names = [name for name in {**one, **two} if one.get(name) != two.get(name)]
        if not names:
            raise TypeError("expected containers of the same types, and keys in the same order, as in the first sample")
        name = names[0]
        error = TypeError(
            f"expected {one.get(name, 'no such key')} as in the first sample, found {two.get(name, 'no such key')}"
        )
        raise at_key(name, error)


def _key_of(options: Options, level: str) -> Encryption | None:
    """What encrypts at a level, if anything does."""
    encryption = options.encryption
    return encryption if encryption is not None and encryption.level == level else None


def _described(encryption: Encryption | None) -> dict[str, str] | None:
    """What the index says of the encryption."""
    return None if encryption is None else {"algorithm": encryption.algorithm, "level": encryption.level}


def _size(sizes: Mapping[str, int], where: str, name: str) -> int:
    if name not in sizes:
        raise DataError(f"{where}: names {name}, and it is not there")
    return sizes[name]


def _texts(schema: str) -> dict[str, str]:
    """Leaves by their names."""
    spec, formats = json.loads(schema)
    return dict(zip(_names(parse_spec(spec, len(formats), "samples"), ""), formats, strict=True))


def _names(node: Node, name: str) -> list[str]:
    if node.kind == "leaf":
        return [name]
    keys = node.keys or range(len(node.children))
    return [leaf for key, child in zip(keys, node.children, strict=True) for leaf in _names(child, below(name, key))]


def _token_bytes(schema: str | None) -> int:
    return token_size(json.loads(schema or "")[1][0])


def _bare(formats: Sequence[str], encoders: Sequence[Encode]) -> Encode:
    if len(formats) != 1 or not formats[0].startswith("no_header_"):
        raise TypeError("expected each sample to be an array or tensor with 1 dimension, as tokens=True says")
    encode = encoders[0]

    def bare(sample: Any) -> bytes:
        row = encode(sample)
        if not row:
            raise ValueError(
                "expected at least one token in a sample, found none\nhint: give nothing for such an input"
            )
        return row

    return bare


def _flat(node: Node, encoders: Sequence[Encode]) -> Encode:
    """For a dict of leaves, which most samples are."""
    keys = dict.fromkeys(node.keys)
    pairs = list(zip(node.keys, encoders, strict=True))
    pack = Struct(f"<{len(pairs)}I").pack
    join = b"".join

    def encode(sample: Any) -> bytes:
        if type(sample) is not dict or sample.keys() != keys.keys():
            raise _other(node, sample, "")
        try:
            parts = [encode(sample[key]) for key, encode in pairs]
        except (TypeError, ValueError):
            _explain([(str(key), cast("Any", sample[key]), encode) for key, encode in pairs])
            raise
        return pack(*map(len, parts)) + join(parts)

    return encode


def _tree(node: Node, encoders: Sequence[Encode]) -> Encode:
    names = _names(node, "")
    pack = Struct(f"<{len(names)}I").pack

    def encode(sample: Any) -> bytes:
        leaves: list[Any] = []
        _flatten(node, sample, "", leaves)
        try:
            parts = [encode(leaf) for encode, leaf in zip(encoders, leaves, strict=True)]
        except (TypeError, ValueError):
            _explain(list(zip(names, leaves, encoders, strict=True)))
            raise
        return pack(*map(len, parts)) + b"".join(parts)

    return encode


def _explain(leaves: Sequence[tuple[str, Any, Encode]]) -> None:
    """Raises the error of a leaf with its name: nothing is spent on names while all is well."""
    for name, value, encode in leaves:
        try:
            encode(value)
        except (TypeError, ValueError) as error:
            raise at_key(name, error) from None


def _flatten(node: Node, value: Any, name: str, leaves: list[Any]) -> None:
    if node.kind == "leaf":
        leaves.append(value)
        return
    kind: Any = {"dict": dict, "list": list, "tuple": tuple}.get(node.kind)
    if kind is None:
        raise at_key(name, TypeError(f"headrace writes dicts, lists and tuples, the dataset has a {node.kind}"))
    if type(value) is not kind or len(value) != len(node.children):
        raise _other(node, value, name)
    if kind is not dict:
        for number, (child, part) in enumerate(zip(node.children, value, strict=True)):
            _flatten(child, part, below(name, number), leaves)
        return
    for key, child in zip(node.keys, node.children, strict=True):
        if key not in value:
            raise _other(node, value, name)
        _flatten(child, value[key], below(name, key), leaves)


def _other(node: Node, value: Any, name: str) -> Exception:
    """The error for a part that has another structure than in the first sample."""
    if node.kind == "dict" and type(value) is dict:
        found = [str(key) for key in cast("dict[Any, Any]", value)]
        wanted = [str(key) for key in node.keys]
        text = f"expected the keys {', '.join(wanted)} as in the first sample, found {', '.join(found) or 'none'}"
    elif node.kind == kind_of(value):
        text = f"expected a {node.kind} of {len(node.children)} as in the first sample, found one of {len(value)}"
        text += "\nLitData holds one length for all samples: store lists that vary as an array, or as JSON text"
    else:
        text = f"expected a {node.kind} as in the first sample, found {kind_of(value)}"
    return at_key(name, TypeError(text))
