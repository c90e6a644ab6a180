"""Leaves that are arrays: NumPy's and PyTorch's, with and without a header of type and shape."""

import math
import struct
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from headrace.errors import DataError

from .leaves import Decode, Options

__all__ = ["BFLOAT16", "NUMPY", "TORCH", "array_leaf", "as_tensor", "dtype_of", "tensor", "token_size"]

NUMPY = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?")
"""Types by litdata's number for NumPy arrays; those behind (objects, text) are no numbers, and it never stores them."""

# By litdata's number for tensors, which has two for some. None is bfloat16, for which NumPy has no type.
TORCH = (
    "f4", "f4", "f8", "f8", "c8", "c8", "c16", "c16", "f2", "f2", None,
    "u1", "i1", "i2", "i2", "i4", "i4", "i8", "i8", "?", "u2",
)  # fmt: skip

BFLOAT16 = 10

_HEADER = {"<": struct.Struct("<II").unpack_from, ">": struct.Struct(">II").unpack_from}


def array_leaf(name: str, options: Options) -> tuple[Decode, str]:
    """The decoder of ``numpy``, ``no_header_numpy:<type>``, ``tensor`` or ``no_header_tensor:<type>``."""
    kind, _, code = name.partition(":")
    is_torch = kind.endswith("tensor")
    as_torch = is_torch and options.torch
    word = "tensor" if as_torch else "ndarray"
    if not kind.startswith("no_header"):
        return _with_header(is_torch, as_torch), word
    number = int(code) if code.isascii() and code.isdigit() and len(code) < 4 else -1
    dtype = dtype_of(number, is_torch=is_torch, as_torch=as_torch)
    bare = _without_header(dtype, number, as_torch)
    return bare, f"{word}[{'bfloat16' if is_torch and number == BFLOAT16 else dtype.name}]"


def dtype_of(code: int, *, is_torch: bool, as_torch: bool) -> np.dtype[Any]:
    """The type of litdata's number. That of bfloat16 is 16 bits for PyTorch to read, and refused for NumPy."""
    types = TORCH if is_torch else NUMPY
    if not 0 <= code < len(types):
        raise DataError(f"expected the number of an array's type, 0 to {len(types) - 1}, found {code}")
    name = types[code]
    if name is None:
        if not as_torch:
            raise DataError('NumPy has no bfloat16, the type of this tensor\nhint: say tensors="torch"')
        return np.dtype("<i2")
    return np.dtype("<" + name)


def token_size(name: str) -> int:
    """Bytes of an element of ``no_header_numpy:<type>`` or ``no_header_tensor:<type>``."""
    kind, _, code = name.partition(":")
    return dtype_of(int(code), is_torch=kind.endswith("tensor"), as_torch=True).itemsize


def tensor(data: bytes, start: int, stop: int) -> Any:
    """A tensor with its header, as PyTorch's."""
    return _with_header(True, True)(data, start, stop)


def as_tensor(array: npt.NDArray[Any], code: int) -> Any:
    """An array that is nobody else's, as PyTorch's tensor."""
    import torch

    made = cast("Any", torch).from_numpy(array)
    return made.view(torch.bfloat16) if code == BFLOAT16 else made


def _with_header(is_torch: bool, as_torch: bool) -> Decode:
    order = ">" if is_torch else "<"
    header = _HEADER[order]

    def decode(data: bytes, start: int, stop: int) -> Any:
        if stop - start < 8:
            raise DataError(f"expected an array's header of 8 bytes, found {stop - start}")
        code, rank = header(data, start)
        dtype = dtype_of(code, is_torch=is_torch, as_torch=as_torch)
        begin = start + 8 + 4 * rank
        if begin > stop:
            raise DataError(f"expected an array of {rank} dimensions, found {stop - start} bytes")
        shape = struct.unpack_from(f"{order}{rank}I", data, start + 8)
        count = math.prod(shape)
        if count * dtype.itemsize != stop - begin:
            raise DataError(
                f"expected {count * dtype.itemsize} bytes for an array of {dtype.name} {shape}, found {stop - begin}"
            )
        array = np.frombuffer(data, dtype, count, begin).reshape(shape).copy()
        return as_tensor(array, code) if as_torch else array

    return decode


def _without_header(dtype: np.dtype[Any], code: int, as_torch: bool) -> Decode:
    size = dtype.itemsize

    def decode(data: bytes, start: int, stop: int) -> Any:
        count, rest = divmod(stop - start, size)
        if rest:
            raise DataError(f"expected whole elements of {size} bytes, found {stop - start} bytes")
        array = np.frombuffer(data, dtype, count, start).copy()
        return as_tensor(array, code) if as_torch else array

    return decode
