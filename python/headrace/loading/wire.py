"""How batches come from worker processes: pickled, with the bytes of arrays in memory that both processes map.

An arena is a nameless file in memory (memfd): it is gone when the last process that has it open is gone, however that
ends, and nothing of it is ever in ``/dev/shm``.
"""

import fcntl
import io
import mmap
import os
import pickle
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

__all__ = ["FAILED", "MADE", "TEXT", "Arena", "above_standard", "decode", "encode"]

MADE: Final = 0
"""The reply is a batch."""
FAILED: Final = 1
"""The reply is an exception and its traceback as text."""
TEXT: Final = 2
"""The reply is text alone, of an exception that could not be pickled."""

_ALIGN: Final = 64
_LEAST_BYTES: Final = 1 << 20
_HEAD: Final = struct.Struct("<BI")
_PART: Final = struct.Struct("<QQ")


def above_standard(fd: int) -> int:
    """A descriptor in the place of one, that no process takes for its standard output, where that is closed."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


class Arena:
    """Memory that two processes have mapped. One writes, then the other reads; they tell each other whose turn it is.

    Args:
        fd: of a memfd; owned by this object.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None

    @classmethod
    def new(cls) -> "Arena":
        """An empty one."""
        return cls(above_standard(os.memfd_create("headrace")))

    def view(self, size: int) -> memoryview:
        """The first `size` bytes, which the writer must have made."""
        if self._map is None or len(self._map) < size:
            # Views of the old mapping keep it.
            self._map = mmap.mmap(self.fd, os.fstat(self.fd).st_size)
        return memoryview(self._map)[:size]

    def grow(self, size: int) -> memoryview:
        """At least `size` bytes, for the writer."""
        if size > os.fstat(self.fd).st_size:
            rounded = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
            # Reserved, so that a lack of memory is an error here and not a signal while it is written.
            os.posix_fallocate(self.fd, 0, rounded)
        return self.view(size)

    def close(self) -> None:
        """Gives up this process's part."""
        self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def encode(kind: int, value: Any, arena: Arena | None) -> bytes:
    """A reply; the bytes of large arrays are put into the arena."""
    buffers: list[memoryview] = []
    stream = io.BytesIO()

    def outside(buffer: pickle.PickleBuffer) -> bool:
        # True keeps it within the pickle.
        raw = buffer.raw()
        if raw.nbytes < 1024:
            return True
        buffers.append(raw)
        return False

    _Pickler(stream, None if arena is None else outside).dump(value)
    places: list[tuple[int, int]] = []
    end = 0
    for buffer in buffers:
        places.append((end, buffer.nbytes))
        end += -(-buffer.nbytes // _ALIGN) * _ALIGN
    if arena is not None and end:
        memory = np.frombuffer(arena.grow(end), np.uint8)
        for (begin, size), buffer in zip(places, buffers, strict=True):
            memory[begin : begin + size] = np.frombuffer(buffer, np.uint8)
    return b"".join((_HEAD.pack(kind, len(places)), *(_PART.pack(*place) for place in places), stream.getbuffer()))


def decode(reply: bytes, arena: Arena) -> tuple[int, Any]:
    """The kind and value of a reply; arrays are copied out, so that the arena can be used again."""
    kind, count = _HEAD.unpack_from(reply)
    places = [_PART.unpack_from(reply, _HEAD.size + number * _PART.size) for number in range(count)]
    buffers: list[Any] = []
    if places:
        memory = np.frombuffer(arena.view(places[-1][0] + places[-1][1]), np.uint8)
        for begin, size in places:
            copy = np.empty(size, np.uint8)
            # Without the GIL if it is large.
            copy[:] = memory[begin : begin + size]
            buffers.append(copy)
    return kind, pickle.loads(memoryview(reply)[_HEAD.size + count * _PART.size :], buffers=buffers)


class _Pickler(pickle.Pickler):
    """Pickles tensors as the arrays that they are."""

    def __init__(self, stream: io.BytesIO, outside: Callable[[pickle.PickleBuffer], bool] | None) -> None:
        super().__init__(stream, protocol=5, buffer_callback=outside)
        torch: Any = sys.modules.get("torch")
        self._torch = torch
        self._tensor = None if torch is None else torch.Tensor

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler`."""
        if self._tensor is None or type(obj) is not self._tensor:
            return NotImplemented
        torch = self._torch
        if obj.device.type != "cpu" or obj.layout != torch.strided or obj.requires_grad or obj.is_quantized:
            return NotImplemented
        tensor = obj.resolve_conj().resolve_neg().contiguous()
        if tensor.dtype in (torch.bfloat16,):
            return _tensor, (tensor.view(torch.int16).numpy(), "bfloat16")
        try:
            return _tensor, (tensor.numpy(), "")
        except TypeError:
            # Of a dtype that NumPy lacks.
            return NotImplemented


def _tensor(array: Any, dtype: str) -> Any:
    import torch

    tensor = torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]
    return tensor.view(getattr(torch, dtype)) if dtype else tensor
