"""MDS shards and ``index.json``, which MosaicML Streaming reads as its own."""

import hashlib
import itertools
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from headrace._files import Store
from headrace.errors import DataError
from headrace.formats.mds.encodings import DTYPE_CODES, SCALARS, SHAPE_LETTERS, stored_size
from headrace.formats.mds.index import is_mds
from headrace.formats.mds.source import INDEX
from headrace.media import Encoded, Image

from .arrays import is_array, is_number, is_pil, is_tensor, little, tensor_array
from .base import Entry, Existing, Options, Piece, at_key, joined, kind_of, zstd
from .graphs import Graph, is_graph
from .leaves import pil_bytes, utf8
from .rows import RowEncoder, RowLayout

__all__ = ["MdsEncoder", "MdsLayout"]

_Encode = Callable[[Any], bytes]

_ARRAYS = frozenset(DTYPE_CODES.values())
_JSON = (bool, dict, list, type(None))
_IMAGES = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_POSSIBLE = (
    "\nMDS holds dicts of str, bytes, int, float, numbers and arrays of NumPy and torch, PIL images, headrace.Image "
    "(JPEG or PNG), graphs and what headrace.Audio and the like hold as bytes, and what JSON can hold"
)
_HASH = "sha1"


class MdsEncoder(RowEncoder):
    """Samples are dicts, with the keys of the first and an encoding for each."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._schema: str | None = None
        self._columns: list[tuple[str, _Encode, bool]] = []

    @property
    def schema(self) -> str | None:
        """Encodings by column, as JSON."""
        return self._schema

    @schema.setter
    def schema(self, value: str | None) -> None:
        if value == self._schema or value is None:
            return
        encodings: dict[str, str] = json.loads(value)
        self._columns = [
            (name, _encoder(encoding), stored_size(encoding, name) is None)
            for name, encoding in sorted(encodings.items())
        ]
        self._keys = dict.fromkeys(encodings)
        self._schema = value

    def encode(self, sample: Any) -> bytes:
        """See `RowEncoder.encode`."""
        if type(sample) is not dict:
            raise TypeError(f"expected a dict, found {kind_of(sample)}{_POSSIBLE}")
        values = cast("dict[Any, Any]", sample)
        if self._schema is None:
            self.schema = _describe(values)
        if values.keys() != self._keys.keys():
            found = ", ".join(map(str, values)) or "none"
            raise TypeError(f"expected the keys {', '.join(self._keys)} as in the first sample, found {found}")
        head: list[int] = []
        parts: list[bytes] = []
        for name, encode, varies in self._columns:
            try:
                part = encode(values[name])
            except (TypeError, ValueError) as error:
                raise at_key(name, error) from None
            if varies:
                head.append(len(part))
            parts.append(part)
        return struct.pack(f"<{len(head)}I", *head) + b"".join(parts)


class MdsLayout(RowLayout):
    """``shard.00000.mds``, with a digest of each in the index."""

    format = "mds"
    index_name = INDEX
    pattern = r"shard\.(\d+)\.mds.*"

    def __init__(self, options: Options) -> None:
        self._options = options

    def name(self, base: int, number: int) -> str:
        """See `Layout.name`."""
        return f"shard.{base + number:05}.mds" + (".zstd" if self._options.compression else "")

    def write(self, path: Path, name: str, pieces: Sequence[Piece], schema: str | None) -> Entry:
        """See `Layout.write`."""
        described = self._described(schema)
        header = self.header(pieces, json.dumps(described, sort_keys=True).encode())
        samples = sum(len(piece.sizes) for piece in pieces)
        raw = len(header) + sum(int(piece.sizes.sum()) for piece in pieces)
        digest, zipped = _Digest(), None
        parts = digest.of(itertools.chain([header], joined(pieces)))
        if self._options.compression is None:
            size = self.save(path, parts)
        else:
            packed = _Digest()
            data = zstd(self._options.compression).compress(b"".join(parts), asbytes=True)
            size = self.save(path, packed.of([data]))
            zipped = {"basename": name, "bytes": size, "hashes": packed.hashes}
        shard = described | {
            "samples": samples,
            "raw_data": {"basename": name.removesuffix(".zstd"), "bytes": raw, "hashes": digest.hashes},
            "zip_data": zipped,
        }
        return {"name": name, "samples": samples, "bytes": size, "shard": shard}

    def renamed(self, entry: Entry, name: str) -> Entry:
        """See `Layout.renamed`."""
        shard: dict[str, Any] = entry["shard"]
        raw = {**shard["raw_data"], "basename": name.removesuffix(".zstd")}
        packed = shard["zip_data"] and {**shard["zip_data"], "basename": name}
        return {**entry, "name": name, "shard": {**shard, "raw_data": raw, "zip_data": packed}}

    def index(self, entries: Sequence[Entry], schema: str | None) -> bytes:
        """See `Layout.index`."""
        found = {"version": 2, "shards": [entry["shard"] for entry in entries]}
        return json.dumps(found, sort_keys=True).encode()

    def read(self, index: bytes, there: Store) -> Existing:
        """See `Layout.read`."""
        where = there.uri(self.index_name)
        try:
            found: Any = json.loads(index)
        except ValueError as error:
            raise DataError(f"{where}: expected JSON: {error}") from None
        if not isinstance(found, dict) or not is_mds(cast("dict[str, Any]", found)):
            raise DataError(f"{where}: expected an index of MDS, with a list of shards")
        shards = cast("list[dict[str, Any]]", found["shards"])
        if wrong := [shard for shard in shards if shard.get("format") != "mds"]:
            raise ValueError(f"{where}: headrace adds to shards in the format mds, found {wrong[0].get('format')!r}")
        entries: list[Entry] = []
        for shard in shards:
            file: dict[str, Any] = shard["zip_data"] or shard["raw_data"]
            entries.append(
                {"name": file["basename"], "samples": shard["samples"], "bytes": file["bytes"], "shard": shard}
            )
        schema = None
        if shards:
            schema = json.dumps(dict(zip(shards[-1]["column_names"], shards[-1]["column_encodings"], strict=True)))
        return Existing(entries, schema)

    def bring_together(self, known: str, found: str) -> str:
        """See `Layout.unify`."""
        one, two = json.loads(known), json.loads(found)
        differ = [name for name in {**one, **two} if one.get(name) != two.get(name)]
        if not differ:
            return known
        name = differ[0]
        error = TypeError(
            f"expected {one.get(name, 'no such key')} as in the first sample, found {two.get(name, 'no such key')}"
        )
        raise at_key(name, error)

    def _described(self, schema: str | None) -> dict[str, Any]:
        columns: dict[str, str] = json.loads(schema or "{}")
        names = sorted(columns)
        return {
            "version": 2,
            "format": "mds",
            "compression": self._options.compression,
            "hashes": [_HASH],
            "size_limit": self._options.chunk_bytes,
            "column_names": names,
            "column_encodings": [columns[name] for name in names],
            "column_sizes": [stored_size(columns[name], name) for name in names],
        }


class _Digest:
    """The digest of a file whose parts go by."""

    def __init__(self) -> None:
        self._found = hashlib.new(_HASH, usedforsecurity=False)

    def of(self, parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """The parts, counted in as they are taken."""
        for part in parts:
            self._found.update(part)
            yield part

    @property
    def hashes(self) -> dict[str, str]:
        """As the index has it."""
        return {_HASH: self._found.hexdigest()}


def _describe(sample: dict[Any, Any]) -> str:
    """An encoding for each value of the first sample."""
    if not sample:
        raise TypeError("expected a sample with at least one key, found an empty dict")
    encodings: dict[str, str] = {}
    for name, value in sample.items():
        if type(name) is not str:
            raise TypeError(f"expected keys of text, found {name!r}")
        try:
            encodings[name] = _encoding(value)
        except TypeError as error:
            raise at_key(name, error) from None
    return json.dumps(dict(sorted(encodings.items())))


def _encoding(value: Any) -> str:
    kind = cast("Any", type(value))
    if (found := _BY_TYPE.get(kind)) is not None:
        return found
    if kind in _JSON:
        return "json"
    if kind is Image:
        return _image_kind(value.encoded())
    if isinstance(value, Encoded) or is_graph(value):
        return "bytes"
    if is_pil(value):
        return "pil"
    if isinstance(value, str):
        return "str"
    array = _as_array(value)
    name = array.dtype.name
    if name not in _ARRAYS:
        raise TypeError(f"expected an array or number of {', '.join(SCALARS)}, found one of {name}")
    return name if is_number(value) else f"ndarray:{name}"


def _encoder(encoding: str) -> _Encode:
    family, _, rest = encoding.partition(":")
    if family == "ndarray":
        dtype, _, dims = rest.partition(":")
        return _ndarray(dtype, tuple(int(dim) for dim in dims.split(",")) if dims else None)
    if family in SCALARS:
        return _number(family)
    if family in _IMAGES:
        return lambda value: _image(value, family)
    found = _ENCODERS.get(family)
    if found is None:
        raise ValueError(f"headrace writes no values in MDS's encoding {encoding!r}")
    return found


def _wrong(wanted: str, value: Any) -> TypeError:
    return TypeError(f"expected {wanted} as in the first sample, found {kind_of(value)}")


def _str(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _wrong("str", value)
    return utf8(value)


def _bytes(value: Any) -> bytes:
    if isinstance(value, Encoded) and type(value) is not Image:
        return value.encoded()
    if is_graph(value):
        return Graph(value).encoded()
    if not isinstance(value, bytes | bytearray):
        raise _wrong("bytes", value)
    return bytes(value)


def _int(value: Any) -> bytes:
    if type(value) is not int:
        raise _wrong("int", value)
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"expected an int of 64 bits, found {value}")
    return struct.pack("<q", value)


def _number(name: str) -> _Encode:
    dtype = np.dtype(name)

    def encode(value: Any) -> bytes:
        is_float = type(value) is float and name == "float64"
        if not is_float and not (is_number(value) and cast("Any", value).dtype.newbyteorder("=") == dtype):
            raise _wrong("a float" if name == "float64" else f"a number of {name}", value)
        return np.asarray(value, dtype.newbyteorder("<")).tobytes()

    return encode


def _json(value: Any) -> bytes:
    _check_json(value)
    return json.dumps(value).encode()


def _check_json(value: Any) -> None:
    """Refuses what JSON would change: tuples, keys that are no text, and whatever it cannot hold."""
    if type(value) is dict:
        for key, part in cast("dict[Any, Any]", value).items():
            if type(key) is not str:
                raise TypeError(f"expected keys of text, as JSON has them, found {key!r}")
            try:
                _check_json(part)
            except TypeError as error:
                raise at_key(key, error) from None
    elif type(value) is list:
        for number, part in enumerate(cast("list[Any]", value)):
            try:
                _check_json(part)
            except TypeError as error:
                raise at_key(str(number), error) from None
    elif type(value) not in (str, int, float, bool, type(None)):
        raise TypeError(f"expected a value that JSON can hold, found {kind_of(value)}{_POSSIBLE}")


def _image(value: Any, kind: str) -> bytes:
    if type(value) is not Image:
        raise _wrong("headrace.Image", value)
    data = value.encoded()
    if (found := _image_kind(data)) != kind:
        raise TypeError(f"expected an image of {kind} as in the first sample, found one of {found}")
    return data


def _image_kind(data: bytes) -> str:
    for kind, magic in _IMAGES.items():
        if data.startswith(magic):
            return kind
    raise TypeError(
        f"expected an image as JPEG or PNG, which MDS holds, found one that begins with {data[:4]!r}\n"
        'hint: headrace.Image(..., format="PNG") encodes it anew; headrace.File(...) stores it as bytes'
    )


def _pil(value: Any) -> bytes:
    if not is_pil(value):
        raise _wrong("an image of Pillow", value)
    return pil_bytes(value)


def _as_array(value: Any) -> Any:
    if is_array(value) or is_number(value):
        return np.asarray(value)
    if is_tensor(value):
        if str(value.dtype) == "torch.bfloat16":
            raise TypeError("expected a tensor of a type that NumPy has, found one of bfloat16")
        return tensor_array(value)
    raise TypeError(f"expected a value that MDS can hold, found {kind_of(value)}{_POSSIBLE}")


def _ndarray(dtype: str, shape: tuple[int, ...] | None) -> _Encode:
    def encode(value: Any) -> bytes:
        array = _as_array(value)
        if is_number(value) or (dtype and array.dtype.name != dtype):
            raise TypeError(f"expected an array of {dtype} as in the first sample, found {kind_of(array)}")
        if not array.ndim or not array.size:
            raise ValueError(
                f"expected an array of at least one element and dimension, found one of shape {list(array.shape)}, "
                "which MDS cannot hold"
            )
        head = b""
        if not dtype:
            head = bytes([{name: code for code, name in DTYPE_CODES.items()}[array.dtype.name]])
        if shape is not None and array.shape != shape:
            raise TypeError(f"expected an array of shape {list(shape)}, found one of {list(array.shape)}")
        if shape is None:
            width = next(at for at in range(4) if max(array.shape) < 1 << (8 << at))
            head += bytes([array.ndim << 2 | width])
            head += struct.pack(f"<{array.ndim}{SHAPE_LETTERS[width]}", *array.shape)
        return head + little(array).tobytes()

    return encode


_BY_TYPE: dict[type, str] = {
    str: "str", bytes: "bytes", bytearray: "bytes", int: "int", float: "float64",
}  # fmt: skip

_ENCODERS: dict[str, _Encode] = {"str": _str, "bytes": _bytes, "int": _int, "json": _json, "pil": _pil}
