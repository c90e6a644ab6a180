"""LitData's leaves: a function for each of its serialisers, from a value to bytes.

Names, numbers of types and layouts are those that `headrace.formats.litdata` reads.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from headrace.formats.litdata.arrays import NUMPY
from headrace.media import Audio, Encoded, File, Image, Mesh, Nifti, Pdf, Tiff, Video

from .arrays import (
    is_array,
    is_number,
    is_pil,
    is_tensor,
    little,
    numpy_bytes,
    numpy_code,
    tensor_array,
    tensor_bytes,
    torch_code,
    torch_type,
    twin,
)
from .base import kind_of
from .graphs import Graph, is_graph

__all__ = ["Encode", "leaf_encoder", "leaf_name", "pil_bytes", "utf8"]

Encode = Callable[[Any], bytes]

_INT = struct.Struct("<q")
_FLOAT = struct.Struct("<d")
_POSSIBLE = (
    "str, bytes, bool, int, float, NumPy arrays and scalars, torch tensors, PIL images, graphs of PyG, headrace.Image, "
    "Audio, Video, Pdf, Nifti, Mesh, Tiff, Graph and File, and dicts, lists and tuples of these"
)
_HINT = f"\nLitData holds {_POSSIBLE}; a class of your own needs serializers={{name: ...}}"


def leaf_name(value: Any, serializers: Mapping[str, Any]) -> str:
    """The serialiser for the values of a place in the structure, by the first of them.

    Raises:
        TypeError: if there is none.
    """
    for name, serializer in serializers.items():
        if serializer.can_serialize(value):
            return name
    kind = cast("Any", type(value))
    if (name := _BY_TYPE.get(kind)) is not None:
        return name
    if kind is Mesh:
        return f"mesh:{value.file_type}"
    if is_array(value):
        return f"no_header_numpy:{numpy_code(value.dtype)}" if value.ndim == 1 else "numpy"
    if is_number(value):
        if isinstance(value, str):
            return "str"
        numpy_code(value.dtype)
        return "numpy"
    if is_tensor(value):
        return f"no_header_tensor:{torch_code(value)}" if value.ndim == 1 else "tensor"
    if is_pil(value):
        return "pil"
    if is_graph(value):
        return "graph"
    raise TypeError(f"expected a value that LitData can hold, found {kind_of(value)}{_HINT}")


def leaf_encoder(name: str, serializers: Mapping[str, Any]) -> Encode:
    """What encodes the values of a serialiser, and refuses others.

    Raises:
        ValueError: if headrace does not write such values.
    """
    if name in serializers:
        return _users(serializers[name])
    kind, _, detail = name.partition(":")
    if kind == "no_header_numpy":
        return _bare_numpy(int(detail))
    if kind == "no_header_tensor":
        return _bare_tensor(int(detail))
    if kind == "mesh":
        return _mesh(detail or "glb")
    # litdata notes a suffix behind the kind of a file.
    found = _ENCODERS.get(kind)
    if found is None:
        raise ValueError(f"headrace writes no values of litdata's serialiser {name!r}")
    return found


def _wrong(wanted: str, value: Any) -> TypeError:
    return TypeError(f"expected {wanted} as in the first sample, found {kind_of(value)}")


def _users(serializer: Any) -> Encode:
    def encode(value: Any) -> bytes:
        if not serializer.can_serialize(value):
            raise _wrong(f"what {type(serializer).__name__} can serialise", value)
        made: Any = serializer.serialize(value)
        # litdata's give the bytes and a name, or None.
        data: Any = cast("Any", made[0] if type(made) is tuple else made)
        if not isinstance(data, bytes):
            raise TypeError(f"{type(serializer).__name__}.serialize must give bytes, got {kind_of(data)}")
        return data

    return encode


def _str(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _wrong("str", value)
    return utf8(value)


def utf8(text: str) -> bytes:
    """A text's bytes.

    Raises:
        ValueError: if it has none: it holds half a pair of surrogates.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"expected text that UTF-8 can hold: {error.reason} at {error.start}") from None


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray):
        raise _wrong("bytes", value)
    return bytes(value)


def _int(value: Any) -> bytes:
    if type(value) is not int:
        raise _wrong("int", value)
    try:
        return _INT.pack(value)
    except struct.error:
        raise ValueError(f"expected an int of 64 bits, found {value}") from None


def _float(value: Any) -> bytes:
    if type(value) is not float:
        raise _wrong("float", value)
    return _FLOAT.pack(value)


def _bool(value: Any) -> bytes:
    if type(value) is not bool:
        raise _wrong("bool", value)
    return b"\1" if value else b"\0"


def _media(kind: type[Encoded]) -> Encode:
    def encode(value: Any) -> bytes:
        if type(value) is not kind:
            raise _wrong(f"headrace.{kind.__name__}", value)
        return value.encoded()

    return encode


def _mesh(file_type: str) -> Encode:
    def encode(value: Any) -> bytes:
        if type(value) is not Mesh:
            raise _wrong("headrace.Mesh", value)
        if value.file_type != file_type:
            raise TypeError(f"expected a mesh as {file_type} as in the first sample, found one as {value.file_type}")
        return value.encoded()

    return encode


def _graph(value: Any) -> bytes:
    if type(value) is not Graph and not is_graph(value):
        raise _wrong("a graph", value)
    return (value if type(value) is Graph else Graph(value)).encoded()


def _pil(value: Any) -> bytes:
    if not is_pil(value):
        raise _wrong("an image of Pillow", value)
    return pil_bytes(value)


def pil_bytes(image: Any) -> bytes:
    """An image of Pillow by its pixels: ``u32 width, height, len(mode) | mode | pixels``."""
    mode = image.mode.encode()
    return struct.pack("<III", *image.size, len(mode)) + mode + image.tobytes()


def _numpy(value: Any) -> bytes:
    if not is_array(value) and not is_number(value):
        raise _wrong("an array of NumPy", value)
    array: Any = np.asarray(value)
    if array.ndim == 1:
        raise _wrong("an array whose dimensions are not one", value)
    return numpy_bytes(array)


def _bare_numpy(code: int) -> Encode:
    dtype = np.dtype(NUMPY[code])

    def encode(value: Any) -> bytes:
        if not is_array(value) or value.ndim != 1 or value.dtype.newbyteorder("=") != dtype:
            raise _wrong(f"an array of {dtype} with 1 dimension", value)
        return little(value).tobytes()

    return encode


def _tensor(value: Any) -> bytes:
    if not is_tensor(value):
        raise _wrong("a tensor", value)
    if value.ndim == 1:
        raise TypeError("expected a tensor whose dimensions are not one as in the first sample, found one of 1")
    return tensor_bytes(value)


def _bare_tensor(code: int) -> Encode:
    def encode(value: Any) -> bytes:
        if not is_tensor(value) or value.ndim != 1 or torch_code(value) != twin(code):
            found = f"one of {value.dtype} with {value.ndim}" if is_tensor(value) else kind_of(value)
            raise TypeError(f"expected a tensor of {torch_type(code)} with 1 dimension as in the first, found {found}")
        return tensor_array(value).tobytes()

    return encode


_FILES: dict[str, type[Encoded]] = {
    "image": Image, "audio": Audio, "video": Video, "nifti": Nifti, "pdf": Pdf, "tifffile": Tiff, "file": File,
}  # fmt: skip

_BY_TYPE: dict[type, str] = {
    str: "str", bytes: "bytes", bytearray: "bytes", bool: "bool", int: "int", float: "float", Graph: "graph",
    **{kind: name for name, kind in _FILES.items()},
}  # fmt: skip

_ENCODERS: dict[str, Encode] = {
    "str": _str, "bytes": _bytes, "bool": _bool, "int": _int, "float": _float, "pil": _pil, "numpy": _numpy,
    "tensor": _tensor, "graph": _graph, **{name: _media(kind) for name, kind in _FILES.items()},
}  # fmt: skip
