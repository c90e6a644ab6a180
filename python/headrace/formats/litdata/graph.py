"""Graphs: the packed tensors of a `torch_geometric` ``Data`` or ``HeteroData``."""

import struct
from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from headrace.errors import DataError

from .arrays import array_leaf, tensor
from .leaves import Decode, Options, unpickle
from .plain import plain_pickle

__all__ = ["MAGIC", "META", "TENSOR", "graph_leaf"]

MAGIC = b"LDGR"
_VERSIONS = (1, 2, 3)
META = "_meta"
_TENSOR_KIND, _PICKLE_KIND = 0, 1
TENSOR = "__ldgr_t__"
"""Stands for a tensor in the tree of a graph's parts."""


def graph_leaf(options: Options) -> Decode:
    """The decoder: to ``Data`` or ``HeteroData`` if torch_geometric is installed, else to (nested) dicts of arrays."""

    def decode(data: bytes, start: int, stop: int) -> Any:
        own = data[start:stop]
        if not own.startswith(MAGIC):
            return unpickle(own, options)
        kind = _geometric()
        values, notes = _fields(own, options, kind is not None)
        tree, paths, fields = (notes.pop(name, None) for name in ("_tree", "_paths", "_fields"))
        hetero = notes.pop("_cls", "data") == "hetero"
        values = {**values, **notes}
        if isinstance(tree, dict) and isinstance(paths, list) and isinstance(fields, list):
            by_path = {
                cast("tuple[Any, ...]", path): values[cast("str", name)]
                for path, name in zip(cast("list[Any]", paths), cast("list[Any]", fields), strict=True)
            }
            values = _filled(cast("dict[Any, Any]", tree), by_path, ())
        if kind is None:
            return values
        return (kind.HeteroData if hetero else kind.Data).from_dict(values)

    return decode


def _geometric() -> Any:
    try:
        return import_module("torch_geometric.data")
    except ImportError:
        return None


def _fields(data: bytes, options: Options, as_torch: bool) -> tuple[dict[Any, Any], dict[Any, Any]]:
    version = data[len(MAGIC)]
    if version not in _VERSIONS:
        raise DataError(f"expected a graph of version {', '.join(map(str, _VERSIONS))}, found {version}")
    array = tensor if as_torch else array_leaf("tensor", options)[0]
    # Version 1 has no kinds; 1 and 2 count in bytes.
    short = ">H" if version >= 3 else ">B"
    at: int = len(MAGIC) + 1
    (count,) = struct.unpack_from(short, data, at)
    at += struct.calcsize(short)
    values: dict[Any, Any] = {}
    notes: dict[Any, Any] = {}
    for _ in range(count):
        (size,) = struct.unpack_from(short, data, at)
        at += struct.calcsize(short)
        name = _part(data, at, size).decode()
        at += size
        kind = data[at] if version >= 2 else _TENSOR_KIND
        at += version >= 2
        if kind not in (_TENSOR_KIND, _PICKLE_KIND):
            raise DataError(f"expected a tensor (0) or a pickle (1) in a graph, found kind {kind}")
        (size,) = struct.unpack_from(">I", data, at)
        at += 4
        payload = _part(data, at, size)
        at += size
        if kind == _PICKLE_KIND or name == META:
            notes.update(_notes(payload, options))
        else:
            values[name] = array(payload, 0, size)
    if at != len(data):
        raise DataError(f"expected a graph of {at} bytes, found {len(data)}")
    return values, notes


def _notes(payload: bytes, options: Options) -> Mapping[Any, Any]:
    if options.allow_pickle:
        found = unpickle(payload, options)
    else:
        try:
            found = plain_pickle(payload)
        except DataError as error:
            raise DataError(
                f"the notes of this graph are a pickle of more than plain values, and unpickling runs whatever code "
                f"the file holds ({error})\nhint: say allow_pickle=True if you trust whoever wrote the dataset"
            ) from None
    if not isinstance(found, dict):
        raise DataError(f"expected a dict as a graph's notes, found {type(found).__name__}")
    return cast("dict[Any, Any]", found)


def _part(data: bytes, at: int, size: int) -> bytes:
    if size > len(data) - at:
        raise DataError(f"expected {size} bytes of a graph at {at}, found {len(data) - at}")
    return data[at : at + size]


def _filled(tree: Any, tensors: Mapping[tuple[Any, ...], Any], path: tuple[Any, ...]) -> Any:
    if isinstance(tree, dict):
        parts = cast("dict[Any, Any]", tree)
        return {key: _filled(part, tensors, (*path, key)) for key, part in parts.items()}
    return tensors[path] if isinstance(tree, str) and tree == TENSOR else tree
