"""Moving tensors to a device: at once, or beside the training loop's own work on CUDA.

On CUDA a batch is copied to pinned memory, and from there to the device on a stream of its own. Whoever uses it has its
own stream wait for that copy, and tells the allocator so; pinned memory is written again only when the copy out of it
is done.
"""

from abc import ABC, abstractmethod
from collections import deque
from typing import Any, NamedTuple

import torch

from .tensors import map_tensors

__all__ = ["CudaTransfer", "PlainTransfer", "Transfer", "transfer_to"]


class Transfer(ABC):
    """Moves batches of tensors."""

    @abstractmethod
    def send(self, batch: Any) -> Any:
        """Begins to move a batch; from any thread, one at a time."""

    @abstractmethod
    def receive(self, sent: Any) -> Any:
        """The batch on the device, for the stream that is current here."""


class PlainTransfer(Transfer):
    """Moves each batch at once, as PyTorch does by itself."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send(self, batch: Any) -> Any:
        """See `Transfer.send`."""
        return map_tensors(batch, lambda tensor: tensor.to(self._device))

    def receive(self, sent: Any) -> Any:
        """See `Transfer.receive`."""
        return sent


class Cuda:
    """A CUDA device and a stream on it: all that is asked of CUDA."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device, made on the stream."""
        with torch.cuda.stream(self._stream):
            return tensor.to(self._device, non_blocking=True)

    def event(self) -> Any:
        """Happens when all copies so far are made."""
        return self._stream.record_event()

    def wait(self, event: Any) -> None:
        """Has the caller's stream wait for an event."""
        torch.cuda.current_stream(self._device).wait_event(event)

    def used(self, tensor: torch.Tensor) -> torch.Tensor:
        """Says that the caller's stream uses a tensor of the other stream: its memory is not given away before that."""
        tensor.record_stream(torch.cuda.current_stream(self._device))
        return tensor

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        """A tensor in pinned memory."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


class _Sent(NamedTuple):
    batch: Any
    done: Any
    """The event behind the batch's last copy."""


class CudaTransfer(Transfer):
    """Moves batches on a stream of its own.

    Args:
        cuda: the device.
        pinned: whether copies go through pinned memory, so that they do not hold up the thread that sends.
    """

    def __init__(self, cuda: Cuda, *, pinned: bool) -> None:
        self._cuda = cuda
        self._ring = _Ring(cuda) if pinned else None

    def send(self, batch: Any) -> Any:
        """See `Transfer.send`."""
        ring = self._ring
        if ring is None:
            return _Sent(map_tensors(batch, self._cuda.copied), self._cuda.event())
        lent: list[torch.Tensor] = []

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            pinned = ring.take(tensor)
            pinned.copy_(tensor)
            lent.append(pinned)
            return self._cuda.copied(pinned)

        moved, done = map_tensors(batch, copied), self._cuda.event()
        for tensor in lent:
            ring.give_back(tensor, done)
        return _Sent(moved, done)

    def receive(self, sent: _Sent) -> Any:
        """See `Transfer.receive`."""
        self._cuda.wait(sent.done)
        return map_tensors(sent.batch, self._cuda.used)


class _Ring:
    """Pinned tensors that are used again when the copies out of them are made."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._free: dict[tuple[torch.Size, torch.dtype], deque[tuple[torch.Tensor, Any]]] = {}

    def take(self, like: torch.Tensor) -> torch.Tensor:
        """A pinned tensor of a tensor's shape and type that nothing reads any more."""
        free = self._free.get((like.shape, like.dtype))
        if free and (free[0][1].query() or len(free) >= _KEPT):
            tensor, done = free.popleft()
            done.synchronize()
            return tensor
        return self._cuda.pinned(like)

    def give_back(self, tensor: torch.Tensor, done: Any) -> None:
        """Says that a tensor can be used again behind an event."""
        shape = tensor.shape, tensor.dtype
        self._free.setdefault(shape, deque()).append((tensor, done))
        if len(self._free) > _SHAPES:
            # Batches of many shapes: the oldest goes. PyTorch keeps its memory until its copies are made.
            del self._free[next(iter(self._free))]


_KEPT = 8
"""Pinned tensors of one shape: with so many on their way it is waited for the oldest."""
_SHAPES = 64
"""Shapes of which pinned tensors are kept."""


def transfer_to(device: torch.device, *, pinned: bool) -> Transfer:
    """What moves batches to a device."""
    if device.type == "cuda":
        return CudaTransfer(Cuda(device), pinned=pinned)
    return PlainTransfer(device)
