"""The loader as PyTorch's users expect it: tensors, on a device before they are asked for."""

from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex, cast

import numpy as np
import numpy.typing as npt
import torch

from headrace._moving import MovingLoader
from headrace._units import as_int

from .tensors import map_tensors, tensors_of
from .transfer import Transfer, transfer_to

__all__ = ["DataLoader", "TensorBatch"]

_AHEAD = 2


class TensorBatch(dict[str, Any]):
    """One rank's part of a global batch as tensors: a dict that knows where it stands.

    Attributes:
        step: the step, from 0 through the whole run.
        epoch: the epoch.
        rows: int64, (rows,): the number of each row in the run.

    Example:
        >>> from headrace.torch import DataLoader
        >>> batch = next(iter(DataLoader(packed, global_batch_size=4)))
        >>> batch["tokens"].shape, batch.step, batch.rows.tolist()
        (torch.Size([4, 64]), 0, [0, 1, 2, 3])
    """

    __slots__ = ("_batch", "epoch", "rows", "step")

    step: int
    epoch: int
    rows: npt.NDArray[np.int64]

    def __init__(self, tensors: Mapping[str, Any], batch: Any) -> None:
        super().__init__(tensors)
        self.step, self.epoch, self.rows = batch.step, batch.epoch, batch.rows
        self._batch = batch

    @property
    def state(self) -> dict[str, Any]:
        """The state after this batch, as `DataLoader.state_dict` gives it; built when asked for.

        Example:
            >>> from headrace.torch import DataLoader
            >>> batch = next(iter(DataLoader(packed, global_batch_size=4)))
            >>> batch.state["step"]
            1
        """
        return self._batch.state

    def sources(self) -> list[Any]:
        """Where each row comes from, see `headrace.Batch.sources`.

        Example:
            >>> from headrace.torch import DataLoader
            >>> batch = next(iter(DataLoader(packed, global_batch_size=4)))
            >>> len(batch.sources())
            4
        """
        return self._batch.sources()

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


class DataLoader(MovingLoader):
    """A `headrace.DataLoader` whose batches are tensors, on a device if one is named.

    On the CPU tensors share memory with the batch. For another device a thread sends the next batches ahead of use; on
    CUDA their copies run on a stream of their own beside the training loop's work, and whoever uses a batch waits for
    its copy alone. A half-used iterator that goes takes what was sent ahead back: iterating goes on behind the last
    batch that was given, and so does a state.

    All other arguments are those of `headrace.DataLoader`, in its order.

    Args:
        arguments: of `headrace.DataLoader`.
        device: where tensors go: a `torch.device` or its name; None for the CPU.
        pin_memory: for CUDA, whether copies go through a ring of pinned buffers, which are used again; for the CPU,
            whether tensors are pinned.
        ahead: batches on the device ahead of use, 2 by default.
        settings: of `headrace.DataLoader`.

    Raises:
        RuntimeError: if PyTorch has no such device.

    Example:
        >>> from headrace.torch import DataLoader
        >>> with DataLoader(packed, global_batch_size=4, device="cpu") as loader:
        ...     for batch in loader:
        ...         tokens = batch["tokens"]
        >>> tokens.dtype, loader.epoch
        (torch.int32, 1)
    """

    def __init__(
        self,
        *arguments: Any,
        device: torch.device | str | int | None = None,
        pin_memory: bool = False,
        ahead: SupportsIndex | None = None,
        **settings: Any,
    ) -> None:
        self.device = _device(device)
        is_elsewhere = self.device.type != "cpu"
        before = _AHEAD if ahead is None else as_int(ahead, "ahead", least=0, most=1024)
        super().__init__(*arguments, ahead=before if is_elsewhere else 0, **settings)
        self._pin: Callable[[torch.Tensor], torch.Tensor] | None = None
        self._transfer: Transfer | None = None
        if is_elsewhere:
            self._transfer = transfer_to(self.device, pinned=bool(pin_memory))
        elif pin_memory and torch.cuda.is_available():
            self._pin = torch.Tensor.pin_memory

    def _send(self, batch: Any) -> Any:
        tensors = tensors_of(batch)
        if self._pin is not None:
            tensors = map_tensors(tensors, self._pin)
        return batch, tensors if self._transfer is None else self._transfer.send(tensors)

    def _receive(self, sent: Any) -> Any:
        batch, tensors = cast("tuple[Any, Any]", sent)
        if self._transfer is not None:
            tensors = self._transfer.receive(tensors)
        if isinstance(batch, Mapping) and hasattr(batch, "step") and hasattr(batch, "state"):  # pyright: ignore
            return TensorBatch(tensors, batch)
        return tensors


def _device(device: torch.device | str | int | None) -> torch.device:
    """The device that is meant, with its number where there may be several.

    Raises:
        RuntimeError: if there is none.
    """
    if device is None:
        return torch.device("cpu")
    found = torch.device(device)
    if found.type == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError(f"device={str(device)!r}: PyTorch finds no CUDA device here")
        if str(found) == "cuda":
            return torch.device("cuda", torch.cuda.current_device())
    return found
