"""Arrays of NumPy and PyTorch, neither of which is imported for it, and their bytes as LitData has them.

Numbers of types are those that `headrace.formats.litdata` reads.
"""

import struct
import sys
from typing import Any

import numpy as np

from headrace.formats.litdata.arrays import BFLOAT16, NUMPY, TORCH

__all__ = [
    "is_array",
    "is_number",
    "is_pil",
    "is_tensor",
    "little",
    "numpy_bytes",
    "numpy_code",
    "tensor_array",
    "tensor_bytes",
    "torch_code",
    "torch_type",
    "twin",
]

_NUMPY_CODES = {np.dtype(name): code for code, name in enumerate(NUMPY)}
# Of the two numbers that some types have, litdata writes the higher one.
_TORCH_CODES = {np.dtype(name): code for code, name in enumerate(TORCH) if name is not None}


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


def numpy_code(dtype: np.dtype[Any]) -> int:
    """The number of a type of NumPy.

    Raises:
        TypeError: if it has none.
    """
    code = _NUMPY_CODES.get(dtype.newbyteorder("="))
    if code is None:
        known = ", ".join(known.name for known in _NUMPY_CODES)
        raise TypeError(f"expected an array of {known}, found one of {dtype}")
    return code


def numpy_bytes(array: Any) -> bytes:
    """An array behind its type and shape: ``u32 type, u32 dimensions, u32 shape[dimensions] | elements``."""
    head = struct.pack(f"<II{array.ndim}I", numpy_code(array.dtype), array.ndim, *array.shape)
    return head + little(array).tobytes()


def torch_code(tensor: Any) -> int:
    """The number of a tensor's type.

    Raises:
        TypeError: if it has none.
    """
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "bfloat16":
        return BFLOAT16
    try:
        return _TORCH_CODES[np.dtype(name)]
    except (TypeError, KeyError):
        known = ", ".join(known.name for known in _TORCH_CODES)
        raise TypeError(f"expected a tensor of {known} or bfloat16, found one of {name}") from None


def torch_type(code: int) -> str:
    """The name of the type with a number."""
    name = TORCH[code]
    return "bfloat16" if name is None else np.dtype(name).name


def twin(code: int) -> int:
    """The number that is written for the type of a number."""
    name = TORCH[code]
    return BFLOAT16 if name is None else _TORCH_CODES[np.dtype(name)]


def tensor_bytes(value: Any) -> bytes:
    """A tensor, or an array in its place, behind its type and shape, both as big-endian numbers."""
    if is_tensor(value):
        code, array = torch_code(value), tensor_array(value)
    else:
        array = little(value)
        code = _TORCH_CODES.get(value.dtype.newbyteorder("="))
        if code is None:
            known = ", ".join(known.name for known in _TORCH_CODES)
            raise TypeError(f"expected an array of {known}, found one of {value.dtype}")
    return struct.pack(f">II{array.ndim}I", code, array.ndim, *array.shape) + array.tobytes()


def little(array: Any) -> Any:
    """The same values, with the byte order of the files."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def tensor_array(tensor: Any) -> Any:
    """A tensor as an array; one of bfloat16 as its 16 bits.

    Raises:
        TypeError: if its values are not in memory one by one.
    """
    if tensor.layout != sys.modules["torch"].strided or tensor.is_meta:
        found = "on the meta device" if tensor.is_meta else f"of layout {tensor.layout}"
        raise TypeError(f"expected a tensor that holds all of its values, found one {found}")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if str(plain.dtype) == "torch.bfloat16":
        plain = plain.view(sys.modules["torch"].int16)
    return plain.numpy()
