"""Sound, and WAV files of arrays."""

import io
import struct
from typing import Any, SupportsIndex

import numpy as np

from headrace._units import as_int

from .base import Encoded, as_array, is_array, package

__all__ = ["Audio"]

_TYPES = ("uint8", "int16", "int32", "float32", "float64")
_PCM, _FLOAT = 1, 3
"""Numbers of WAV for integers and for floating point."""


class Audio(Encoded):
    """Sound: an encoded file as it is, or an array that is stored as WAV, to the bit.

    Args:
        source: a path, the bytes of a file, or an array of shape (frames,) or (channels, frames) and type float32 or
            float64 (from -1 to 1), int16, int32 or uint8.
        sampling_rate: of an array: frames a second.

    Raises:
        TypeError: if the source is nothing of these, or there is a rate for a file, which has its own.
        ValueError: if an array has no rate, or another shape or type.

    Example:
        >>> samples, rate = headrace.Audio(np.zeros((2, 100), np.float32), sampling_rate=8000).decode()
        >>> samples.shape, rate
        ((2, 100), 8000)
    """

    __slots__ = ("sampling_rate",)

    takes = "a path, bytes or an array"

    def __init__(self, source: Any, *, sampling_rate: SupportsIndex | None = None) -> None:
        super().__init__(source)
        if is_array(source):
            sampling_rate = _checked(source, sampling_rate)
        elif sampling_rate is not None:
            raise TypeError(f"sampling_rate is for arrays, got one for {type(source).__name__}")
        self.sampling_rate = sampling_rate

    def decode(self) -> tuple[Any, int]:
        """Samples from -1 to 1 as an array of float32 and shape (channels, frames), and frames a second, by soundfile.

        Raises:
            ImportError: if that is not installed.

        Example:
            >>> headrace.Audio(np.array([0, 2**14], np.int16), sampling_rate=8000).decode()
            (array([[0. , 0.5]], dtype=float32), 8000)
        """
        library = package("soundfile", "soundfile", "sound is decoded")
        samples, rate = library.read(io.BytesIO(self.encoded()), dtype="float32", always_2d=True)
        return np.ascontiguousarray(samples.T), int(rate)

    def _is_object(self, source: Any) -> bool:
        return is_array(source)

    def _encode(self, source: Any) -> bytes:
        assert self.sampling_rate is not None
        return _wav(as_array(source), self.sampling_rate)


def _checked(array: Any, rate: SupportsIndex | None) -> int:
    """The rate of an array of sound."""
    name = getattr(array.dtype, "name", None) or str(array.dtype).removeprefix("torch.")
    if name not in _TYPES:
        raise ValueError(f"sound must be an array of {', '.join(_TYPES)}, got one of {name}")
    if array.ndim not in (1, 2):
        raise ValueError(f"sound must be of shape (frames,) or (channels, frames), got {tuple(array.shape)}")
    if array.ndim == 2 and not 1 <= array.shape[0] < 2**16:
        raise ValueError(f"sound must have 1 to 65,535 channels, got {array.shape[0]}")
    if rate is None:
        raise ValueError("sampling_rate must be the frames a second of an array, got None")
    return as_int(rate, "sampling_rate", least=1, most=2**32 - 1)


def _wav(array: Any, rate: int) -> bytes:
    """``RIFF size WAVE``, then chunks: the format, for floating point the number of frames, and the samples."""
    frames = np.atleast_2d(array).T
    dtype = frames.dtype.newbyteorder("<")
    data = frames.astype(dtype).tobytes()
    count, channels = frames.shape
    size = channels * dtype.itemsize
    is_float = dtype.kind == "f"
    head = struct.pack(
        "<HHIIHH", _FLOAT if is_float else _PCM, channels, rate, rate * size % 2**32, size, 8 * dtype.itemsize
    )
    chunks = [(b"fmt ", head)]
    if is_float:
        chunks = [(b"fmt ", head + b"\0\0"), (b"fact", struct.pack("<I", count))]
    chunks.append((b"data", data))
    body = b"".join(name + struct.pack("<I", len(part)) + part + b"\0" * (len(part) % 2) for name, part in chunks)
    if len(body) + 4 >= 2**32:
        raise ValueError(f"WAV holds less than 4 GiB, got {len(data):,} bytes of sound")
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body
