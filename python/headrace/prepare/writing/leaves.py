"""LitData's leaves: a function for each of its serialisers, from a value to bytes.

Names, numbers of types and layouts are those that `headrace.formats.litdata` reads.
"""

import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from headrace.formats.litdata.arrays import BFLOAT16, NUMPY, TORCH
from headrace.prepare.values import File, Image

from .base import kind_of

__all__ = [
    "Encode",
    "is_array",
    "is_number",
    "is_pil",
    "is_tensor",
    "leaf_encoder",
    "leaf_name",
    "little",
    "pil_bytes",
    "tensor_array",
]

Encode = Callable[[Any], bytes]

_INT = struct.Struct("<q")
_FLOAT = struct.Struct("<d")
_POSSIBLE = (
    "str, bytes, bool, int, float, NumPy arrays and scalars, torch tensors, PIL images, headrace.Image, headrace.File, "
    "and dicts, lists and tuples of these"
)
_HINT = f"\nLitData holds {_POSSIBLE}; a class of your own needs serializers={{name: ...}}"

_NUMPY_CODES = {np.dtype(name): code for code, name in enumerate(NUMPY)}
# Of the two numbers that some types have, litdata writes the higher one.
_TORCH_CODES = {np.dtype(name): code for code, name in enumerate(TORCH) if name is not None}


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
    if is_array(value):
        return f"no_header_numpy:{_numpy_code(value.dtype)}" if value.ndim == 1 else "numpy"
    if is_number(value):
        if isinstance(value, str):
            return "str"
        _numpy_code(value.dtype)
        return "numpy"
    if is_tensor(value):
        return f"no_header_tensor:{_torch_code(value)}" if value.ndim == 1 else "tensor"
    if is_pil(value):
        return "pil"
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
    found = _ENCODERS.get("image" if kind == "image" else name)
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
    try:
        return value.encode()
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


def _image(value: Any) -> bytes:
    if type(value) is not Image:
        raise _wrong("headrace.Image", value)
    return value.encoded()


def _file(value: Any) -> bytes:
    if type(value) is not File:
        raise _wrong("headrace.File", value)
    return value.encoded()


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
    code = _numpy_code(array.dtype)
    if array.ndim == 1:
        raise _wrong("an array whose dimensions are not one", value)
    return struct.pack(f"<II{array.ndim}I", code, array.ndim, *array.shape) + little(array).tobytes()


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
    code = _torch_code(value)
    if value.ndim == 1:
        raise TypeError("expected a tensor whose dimensions are not one as in the first sample, found one of 1")
    return struct.pack(f">II{value.ndim}I", code, value.ndim, *value.shape) + tensor_array(value).tobytes()


def _bare_tensor(code: int) -> Encode:
    def encode(value: Any) -> bytes:
        if not is_tensor(value) or value.ndim != 1 or _torch_code(value) != _twin(code):
            found = f"one of {value.dtype} with {value.ndim}" if is_tensor(value) else kind_of(value)
            raise TypeError(f"expected a tensor of {_torch_type(code)} with 1 dimension as in the first, found {found}")
        return tensor_array(value).tobytes()

    return encode


def _twin(code: int) -> int:
    """The number that is written for the type of a number."""
    name = TORCH[code]
    return BFLOAT16 if name is None else _TORCH_CODES[np.dtype(name)]


def _torch_type(code: int) -> str:
    name = TORCH[code]
    return "bfloat16" if name is None else np.dtype(name).name


def _numpy_code(dtype: np.dtype[Any]) -> int:
    code = _NUMPY_CODES.get(dtype.newbyteorder("="))
    if code is None:
        known = ", ".join(known.name for known in _NUMPY_CODES)
        raise TypeError(f"expected an array of {known}, found one of {dtype}")
    return code


def _torch_code(tensor: Any) -> int:
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "bfloat16":
        return BFLOAT16
    try:
        return _TORCH_CODES[np.dtype(name)]
    except (TypeError, KeyError):
        known = ", ".join(known.name for known in _TORCH_CODES)
        raise TypeError(f"expected a tensor of {known} or bfloat16, found one of {name}") from None


def little(array: Any) -> Any:
    """The same values, with the byte order of the files."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def tensor_array(tensor: Any) -> Any:
    """A tensor as an array; one of bfloat16 as its 16 bits."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if str(plain.dtype) == "torch.bfloat16":
        plain = plain.view(sys.modules["torch"].int16)
    return plain.numpy()


def is_array(value: Any) -> bool:
    """Whether it is an array of NumPy."""
    return isinstance(value, np.ndarray)


def is_number(value: Any) -> bool:
    """Whether it is a scalar of NumPy."""
    return isinstance(value, np.generic)


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of PyTorch, which is not imported for it."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_pil(value: Any) -> bool:
    """Whether it is an image of Pillow, which is not imported for it."""
    library: Any = sys.modules.get("PIL.Image")
    return library is not None and isinstance(value, library.Image)


_BY_TYPE: dict[type, str] = {
    str: "str", bytes: "bytes", bytearray: "bytes", bool: "bool", int: "int", float: "float",
    Image: "image", File: "file",
}  # fmt: skip

_ENCODERS: dict[str, Encode] = {
    "str": _str, "bytes": _bytes, "bool": _bool, "int": _int, "float": _float, "image": _image, "file": _file,
    "pil": _pil, "numpy": _numpy, "tensor": _tensor,
}  # fmt: skip
