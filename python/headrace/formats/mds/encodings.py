"""How MDS stores the value of a column, and how it is made from its bytes again.

Values are those that MosaicML Streaming returns, of the same types and dtypes; only that arrays can be written to.
A decoder takes exactly the bytes of one value. It raises `ValueError` (or another plain error of Python, for text that
is no number) with what was expected and found; who called it adds the place. Lengths and shapes in the bytes are
checked against the bytes there are before anything is made by them.
"""

import json
import math
import pickle
import struct
from collections.abc import Callable
from decimal import Decimal
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import DataError

__all__ = ["DTYPE_CODES", "PICKLE", "SCALARS", "SHAPE_LETTERS", "Decode", "decoder", "stored_size"]

Decode = Callable[[bytes], Any]

PICKLE = "pkl"
"""The encoding that runs code from the file when it is decoded."""

SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in SCALARS}
DTYPE_CODES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
SHAPE_LETTERS = "BHIQ"
"""How a shape's numbers are stored: uint8, uint16, uint32 or uint64."""

_BYTES_PER_PIXEL = {
    "L": 1, "P": 1, "LA": 2, "La": 2, "PA": 2, "I;16": 2, "I;16L": 2, "I;16B": 2, "I": 4, "F": 4,
    "RGB": 3, "HSV": 3, "YCbCr": 3, "LAB": 3, "RGBA": 4, "RGBa": 4, "RGBX": 4, "CMYK": 4,
}  # fmt: skip
_MOST_EMPTY = 2**16
"""The longest side of an image without a pixel: Pillow allocates for each line."""

_INT = struct.Struct("<q")
_PIL_HEAD = struct.Struct("<3I")
_COUNT = struct.Struct("<I")
_LIST_HEAD = struct.Struct("<II")


def stored_size(encoding: str, where: str) -> int | None:
    """Bytes of every value of an encoding, or None if they vary.

    Raises:
        DataError: if there is no such encoding; the message begins with `where`.
    """
    if encoding in _DTYPES:
        return _DTYPES[encoding].itemsize
    if encoding == "int":
        return _INT.size
    if encoding in _PLAIN:
        return None
    family, _, rest = encoding.partition(":")
    if family != "ndarray":
        known = ", ".join([*_PLAIN, "int", "ndarray", *SCALARS])
        raise DataError(f"{where}: expected an encoding among {known}, found {encoding!r}")
    dtype, shape = _array_arguments(rest, f"{where}: {encoding!r}")
    return None if dtype is None or shape is None else math.prod(shape) * dtype.itemsize


def decoder(encoding: str) -> Decode:
    """What makes a value from its bytes, for an encoding that `stored_size` knows."""
    if encoding in _DTYPES:
        return _scalar(_DTYPES[encoding])
    if encoding == "int":
        return _int
    if encoding in _PLAIN:
        return _PLAIN[encoding]
    return _ndarray(*_array_arguments(encoding.partition(":")[2], encoding))


def _bytes(data: bytes) -> bytes:
    return data


def _str(data: bytes) -> str:
    return data.decode()


def _int(data: bytes) -> int:
    return _INT.unpack(data)[0]


def _scalar(dtype: np.dtype[Any]) -> Decode:
    frombuffer = np.frombuffer

    def decode(data: bytes) -> Any:
        return frombuffer(data, dtype)[0]

    return decode


def _str_int(data: bytes) -> int:
    return int(data.decode())


def _str_float(data: bytes) -> float:
    return float(data.decode())


def _str_decimal(data: bytes) -> Decimal:
    return Decimal(data.decode())


def _json(data: bytes) -> Any:
    return json.loads(data.decode())


def _pickle(data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:  # Whatever the code in it raises.
        raise ValueError(f"expected a pickled object, found {type(error).__name__}: {error}") from error


# Arrays


def _array_arguments(text: str, where: str) -> tuple[np.dtype[Any] | None, tuple[int, ...] | None]:
    """Dtype and shape from ``"dtype:2,3"``, ``"dtype"`` or ``""``."""
    if not text:
        return None, None
    name, colon, dims = text.partition(":")
    if name not in _DTYPES:
        raise DataError(f"{where}: expected a dtype among {', '.join(SCALARS)}, found {name!r}")
    if not colon:
        return _DTYPES[name], None
    try:
        shape = tuple(int(dim) for dim in dims.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise DataError(f"{where}: expected a shape of positive numbers as 2,3, found {dims!r}")
    return _DTYPES[name], shape


def _ndarray(dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> Decode:
    if dtype is not None and shape is not None:
        fixed, dims = dtype, shape
        return lambda data: _array(data, 0, fixed, dims)

    def decode(data: bytes) -> npt.NDArray[Any]:
        at, kind = 0, dtype
        if kind is None:
            code = data[0] if data else -1
            if code not in DTYPE_CODES:
                raise ValueError(f"expected an array's dtype among {list(DTYPE_CODES)}, found {code}")
            kind, at = _DTYPES[DTYPE_CODES[code]], 1
        if len(data) <= at:
            raise ValueError("expected an array's shape, found no more bytes")
        ndim, letter = data[at] >> 2, SHAPE_LETTERS[data[at] & 3]
        dims = struct.Struct(f"<{ndim}{letter}")
        if len(data) < at + 1 + dims.size:
            raise ValueError(f"expected the {ndim} dimensions of an array, found only {len(data) - at - 1} more bytes")
        return _array(data, at + 1 + dims.size, kind, dims.unpack_from(data, at + 1))

    return decode


def _array(data: bytes, start: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    wanted, found = math.prod(shape) * dtype.itemsize, len(data) - start
    if wanted != found:
        raise ValueError(f"expected {wanted} bytes for a {dtype} array of shape {list(shape)}, found {found}")
    # A copy, so that it can be written to and its values are aligned.
    return np.frombuffer(bytearray(memoryview(data)[start:]), dtype).reshape(shape)


# Images


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "this dataset has images as PIL objects, which needs Pillow\nInstall it: pip install pillow"
        ) from error
    return Image


def _pil(data: bytes) -> Any:
    image = _pillow()
    if len(data) < _PIL_HEAD.size:
        raise ValueError(f"expected an image with a head of {_PIL_HEAD.size} bytes, found {len(data)} bytes")
    width, height, mode_size = _PIL_HEAD.unpack_from(data)
    start = _PIL_HEAD.size + mode_size
    if start > len(data):
        raise ValueError(
            f"expected the name of an image's mode in {mode_size} bytes, found {len(data) - _PIL_HEAD.size}"
        )
    mode = data[_PIL_HEAD.size : start].decode()
    if mode != "1" and mode not in _BYTES_PER_PIXEL:
        raise ValueError(f"expected an image in a mode among 1, {', '.join(_BYTES_PER_PIXEL)}, found {mode[:20]!r}")
    line = (width + 7) // 8 if mode == "1" else width * _BYTES_PER_PIXEL[mode]
    if line * height != len(data) - start:
        raise ValueError(
            f"expected {line * height} bytes for an image of {width} x {height} in mode {mode}, "
            f"found {len(data) - start}"
        )
    if not line * height and max(width, height) > _MOST_EMPTY:
        raise ValueError(f"expected an image without pixels to be small, found {width} x {height}")
    return image.frombytes(mode, (width, height), data[start:])


def _encoded_image(data: bytes) -> Any:
    image = _pillow()
    try:
        return image.open(BytesIO(data))
    except Exception as error:  # Pillow's plug-ins raise all sorts of things.
        raise ValueError(f"expected an image file, found {len(data)} bytes that Pillow cannot read: {error}") from error


def _split(data: bytes, head: int, count: int, decode: Decode) -> list[Any]:
    start = head + 4 * count
    if start > len(data):
        raise ValueError(f"expected the sizes of {count} values in {start} bytes, found {len(data)} bytes")
    sizes: tuple[int, ...] = struct.unpack_from(f"<{count}I", data, head)
    if start + sum(sizes) != len(data):
        raise ValueError(f"expected {count} values of together {sum(sizes)} bytes, found {len(data) - start}")
    values: list[Any] = []
    for size in sizes:
        values.append(decode(data[start : start + size]))
        start += size
    return values


def _list_of(decode: Decode) -> Decode:
    def decode_list(data: bytes) -> list[Any]:
        if len(data) < _LIST_HEAD.size:
            raise ValueError(f"expected a list with a head of {_LIST_HEAD.size} bytes, found {len(data)} bytes")
        return _split(data, _LIST_HEAD.size, _LIST_HEAD.unpack_from(data)[1], decode)

    return decode_list


def _jpeg_array(data: bytes) -> list[Any]:
    count = _COUNT.unpack_from(data)[0] if len(data) >= _COUNT.size else 0
    if not count:
        raise ValueError(f"expected at least one image, found none in {len(data)} bytes")
    return _split(data, _COUNT.size, count, _encoded_image)


_PLAIN: dict[str, Decode] = {
    "bytes": _bytes,
    "str": _str,
    "str_int": _str_int,
    "str_float": _str_float,
    "str_decimal": _str_decimal,
    "json": _json,
    PICKLE: _pickle,
    "pil": _pil,
    "jpeg": _encoded_image,
    "png": _encoded_image,
    "jpeg_array": _jpeg_array,
    "jpegarray": _jpeg_array,
    "list[pil]": _list_of(_pil),
    "list[jpeg]": _list_of(_encoded_image),
    "list[png]": _list_of(_encoded_image),
}
"""Encodings without arguments whose values vary in size."""
