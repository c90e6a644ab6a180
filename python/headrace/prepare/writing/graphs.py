"""Graphs: the tensors of PyTorch Geometric's ``Data`` and ``HeteroData``, packed as LitData has them.

``"LDGR" | u8 version | u16 fields``, then each field as ``u16 bytes of name | name | u8 kind | u32 bytes | content``;
numbers are big-endian. The last field is a pickle of plain values: where tensors go in the graph, and what else it
holds. `headrace.formats.litdata` reads it without unpickling.
"""

import pickle
import struct
from collections.abc import Mapping
from typing import Any, TypeGuard, cast

from headrace.formats.litdata.graph import MAGIC, META, TENSOR, graph_leaf
from headrace.formats.litdata.leaves import Options
from headrace.media import Encoded

from .arrays import is_array, is_tensor, tensor_bytes
from .base import at_key, kind_of

__all__ = ["Graph", "is_graph"]

_VERSION = 3
_TENSOR_KIND, _PICKLE_KIND = 0, 1
_SCALARS = (str, bytes, bool, int, float, type(None))
_Path = tuple[Any, ...]


class Graph(Encoded):
    """A graph of tensors: one of PyTorch Geometric, or its parts.

    Parts are tensors or arrays, plain values, and dicts and lists of these: of a ``Data`` by their names, and of a
    ``HeteroData`` in a dict for each type of nodes, by its name, or of edges, by a tuple of three names.

    Args:
        source: a ``Data`` or ``HeteroData``, a dict of parts, or what was encoded before: a path or bytes.

    Raises:
        TypeError: if it is nothing of these.

    Example:
        >>> graph = headrace.Graph({"x": np.zeros((3, 2), np.float32), "edge_index": np.array([[0, 1], [1, 2]])})
        >>> graph.decode().num_nodes
        3
    """

    __slots__ = ()

    takes = "a graph of torch_geometric, a dict of its parts, or bytes"

    def decode(self) -> Any:
        """A ``Data`` or ``HeteroData`` if torch_geometric is installed, else its parts in dicts.

        Raises:
            DataError: if the bytes are no such graph.

        Example:
            >>> headrace.Graph({"x": np.zeros((3, 2), np.float32), "name": "three"}).decode().name
            'three'
        """
        data = self.encoded()
        return graph_leaf(Options())(data, 0, len(data))

    def _is_object(self, source: Any) -> bool:
        return _is_mapping(source) or is_graph(source)

    def _encode(self, source: Any) -> bytes:
        parts = source if _is_mapping(source) else source.to_dict()
        is_hetero = type(source).__name__ == "HeteroData" or any(
            _is_mapping(part) and any(map(_is_tensor, part.values())) for part in parts.values()
        )
        return _packed(parts, "hetero" if is_hetero else "data")


def is_graph(value: Any) -> bool:
    """Whether it is a graph of PyTorch Geometric, which is not imported for it."""
    return type(value).__module__.startswith("torch_geometric.data") and hasattr(value, "to_dict")


def _packed(parts: Mapping[Any, Any], kind: str) -> bytes:
    tensors: dict[_Path, Any] = {}
    tree = _tree(parts, (), tensors)
    names = [_name(path) for path in tensors]
    if len({*names}) != len(names):
        names = [f"t{number}" for number in range(len(names))]
    meta = {"_cls": kind, "_tree": tree, "_paths": list(tensors), "_fields": names}
    if len(tensors) >= 2**16 - 1:
        raise ValueError(f"expected a graph of less than 65,535 tensors, found one of {len(tensors):,}")
    fields = [MAGIC, struct.pack(">BH", _VERSION, len(tensors) + 1)]
    for name, (path, tensor) in zip(names, tensors.items(), strict=True):
        try:
            fields += _field(name, _TENSOR_KIND, tensor_bytes(tensor))
        except TypeError as error:
            raise at_key(_name(path), error) from None
    fields += _field(META, _PICKLE_KIND, pickle.dumps(meta, protocol=4))
    return b"".join(fields)


def _field(name: str, kind: int, content: bytes) -> tuple[bytes, ...]:
    text = name.encode()
    return struct.pack(">H", len(text)), text, struct.pack(">BI", kind, len(content)), content


def _tree(value: Any, path: _Path, tensors: dict[_Path, Any]) -> Any:
    """A part with a mark in the place of each tensor; adds these. Containers are new ones: none is used twice."""
    if _is_tensor(value):
        tensors[path] = value
        return TENSOR
    if _is_mapping(value):
        if wrong := [key for key in value if type(key) not in (str, int) and not _is_text(key)]:
            raise at_key(_name(path), TypeError(f"expected keys of text in a graph, found {wrong[0]!r}"))
        return {key: _tree(part, (*path, key), tensors) for key, part in value.items()}
    try:
        return _plain(value)
    except TypeError as error:
        raise at_key(_name(path), error) from None


def _plain(value: Any) -> Any:
    """A value without tensors, which a reader may take without unpickling."""
    kind = cast("Any", type(value))
    if kind in _SCALARS and value != TENSOR:
        return value
    if kind in (list, tuple):
        parts: Any = [_plain(part) for part in value]
        return parts if kind is list else tuple(parts)
    raise TypeError(f"expected tensors, arrays, text, numbers and lists of such in a graph, found {kind_of(value)}")


def _is_text(key: Any) -> bool:
    return type(key) is tuple and all(type(part) is str for part in cast("Any", key))


def _is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _is_tensor(value: Any) -> bool:
    return is_tensor(value) or is_array(value)


def _name(path: _Path) -> str:
    return ".".join("__".join(map(str, cast("Any", key))) if isinstance(key, tuple) else str(key) for key in path)
