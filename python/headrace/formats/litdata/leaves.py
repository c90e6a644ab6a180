"""Leaves: a function for each of litdata's serialisers, from a span of an item's bytes to its value.

A `Decode` is called as ``decode(data, start, stop)``, so that a leaf costs one copy of its bytes at most. It raises
`DataError`, or whatever Python does about such bytes: who calls it says where they lie.
"""

import copy
import pickle
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import DataError

__all__ = ["Decode", "Options", "fixed", "leaf", "unpickle"]

Decode = Callable[[bytes, int, int], Any]

_INT = struct.Struct("<q").unpack_from
_FLOAT = struct.Struct("<d").unpack_from


@dataclass(frozen=True)
class Options:
    """How leaves are to come out."""

    allow_pickle: bool = False
    torch: bool = False
    """Whether tensors are PyTorch's rather than NumPy arrays."""
    serializers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The user's own: objects with ``deserialize(data)`` and perhaps ``setup(name)``, or functions of the bytes."""


def leaf(name: str, options: Options) -> tuple[Decode, str]:
    """How to decode the leaves of a serialiser, and what comes out of it, in a word or two.

    Args:
        name: as ``data_format`` in the index has it: ``"a"`` or ``"a:b"``. As in litdata, the latter is serialiser
            ``b`` if there is one of that name, else ``a``.
        options: how leaves are to come out.

    Raises:
        DataError: if there is no such serialiser, or its values cannot come out as asked.
    """
    first, _, second = name.partition(":")
    known = second in options.serializers or second in _BUILT_IN
    key = second if known else first
    if key in options.serializers:
        return _users(options.serializers[key], name), key
    make = _BUILT_IN.get(key)
    if make is None:
        raise DataError(
            f"expected a serialiser of litdata, found {name!r}\n"
            f"hint: if it is your own, give it as serializers={{{key!r}: ...}}"
        )
    return make(name, options)


def fixed(size: int, start: int, stop: int) -> None:
    """Refuses a span that is not of its size."""
    if stop - start != size:
        raise DataError(f"expected {size} bytes, found {stop - start}")


def unpickle(data: bytes, options: Options) -> Any:
    """Unpickles, if that is allowed."""
    if not options.allow_pickle:
        raise DataError(_NO_PICKLE)
    return pickle.loads(data)


_NO_PICKLE = (
    "this is stored as a pickle, and unpickling runs whatever code the file holds\n"
    "hint: say allow_pickle=True if you trust whoever wrote the dataset"
)


def _users(serializer: Any, name: str) -> Decode:
    deserialize: Any = serializer
    if hasattr(serializer, "deserialize"):
        own = copy.deepcopy(serializer)
        if hasattr(own, "setup"):
            own.setup(name)
        deserialize = own.deserialize

    def decode(data: bytes, start: int, stop: int) -> Any:
        return deserialize(data[start:stop])

    return decode


def _bytes(data: bytes, start: int, stop: int) -> bytes:
    return data[start:stop]


def _str(data: bytes, start: int, stop: int) -> str:
    return str(data[start:stop], "utf-8")


def _int(data: bytes, start: int, stop: int) -> int:
    if stop - start != 8:
        fixed(8, start, stop)
    return _INT(data, start)[0]


def _float(data: bytes, start: int, stop: int) -> float:
    if stop - start != 8:
        fixed(8, start, stop)
    return _FLOAT(data, start)[0]


def _bool(data: bytes, start: int, stop: int) -> bool:
    fixed(1, start, stop)
    return data[start] != 0


def _plain(decode: Decode, kind: str) -> Callable[[str, Options], tuple[Decode, str]]:
    def make(name: str, options: Options) -> tuple[Decode, str]:
        return decode, kind

    return make


def _media(name: str, options: Options) -> tuple[Decode, str]:
    from headrace.media import Audio, Mesh, Nifti, Pdf, Video

    key, _, suffix = name.partition(":")
    if key == "mesh":
        file_type = suffix or "glb"
        return (lambda data, start, stop: Mesh(data[start:stop], file_type=file_type)), key
    kind = {"audio": Audio, "nifti": Nifti, "pdf": Pdf, "video": Video}[key]
    return (lambda data, start, stop: kind(data[start:stop])), key


def _arrays(name: str, options: Options) -> tuple[Decode, str]:
    from . import arrays

    return arrays.array_leaf(name, options)


def _images(name: str, options: Options) -> tuple[Decode, str]:
    from . import images

    return images.image_leaf(name, options)


def _json(name: str, options: Options) -> tuple[Decode, str]:
    from .nested import nested

    return nested, "json"


def _graph(name: str, options: Options) -> tuple[Decode, str]:
    from .graph import graph_leaf

    return graph_leaf(options), "graph"


def _pickle(name: str, options: Options) -> tuple[Decode, str]:
    if not options.allow_pickle:
        raise DataError(_NO_PICKLE)
    return (lambda data, start, stop: unpickle(data[start:stop], options)), "pickle"


_BUILT_IN: dict[str, Callable[[str, Options], tuple[Decode, str]]] = {
    "str": _plain(_str, "str"),
    "text": _plain(_str, "str"),
    "bool": _plain(_bool, "bool"),
    "int": _plain(_int, "int"),
    "float": _plain(_float, "float"),
    # Whether a package that could open these is installed does not decide what comes out: they can be decoded later.
    "video": _media,
    "audio": _media,
    "nifti": _media,
    "mesh": _media,
    "pdf": _media,
    "file": _plain(_bytes, "bytes"),
    "bytes": _plain(_bytes, "bytes"),
    "image": _images,
    "jpeg": _images,
    "jpeg_array": _images,
    "pil": _images,
    "tifffile": _images,
    "tiff": _images,
    "graph": _graph,
    "no_header_numpy": _arrays,
    "numpy": _arrays,
    "no_header_tensor": _arrays,
    "tensor": _arrays,
    "json": _json,
    "pickle": _pickle,
}
