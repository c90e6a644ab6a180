"""Makes one batch of a map-style object: what a worker does with a list of keys."""

import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from .items import Helpers
from .pool import add_note

__all__ = ["Fetcher", "pin"]


class Fetcher:
    """Called with a list of keys it gives the batch of their samples. Several threads may call it; pickles.

    Args:
        dataset: what has the samples.
        collate: makes a batch of a list of samples; of one sample if not `batched`. None leaves them as they are.
        batched: False if each call is for one sample, with its key alone.
        parallel: samples that are made at the same time.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any] | None, *, batched: bool, parallel: int) -> None:
        self.dataset = dataset
        self._collate = collate
        self._batched = batched
        self._parallel = parallel
        self._helpers = Helpers(parallel - 1)
        # As PyTorch: a class may set it to None.
        self._whole = getattr(dataset, "__getitems__", None) if batched else None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_helpers", "_whole")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._helpers = Helpers(self._parallel - 1)
        self._whole = getattr(self.dataset, "__getitems__", None) if self._batched else None

    def __call__(self, keys: Any) -> Any:
        """The batch of a list of keys; if not `batched`, the sample of one key."""
        if not self._batched:
            samples = self.sample(keys)
        elif self._whole is not None:
            samples = self._all_at_once(keys) if keys else []
        elif self._parallel > 1 and len(keys) > 1:
            samples = self._helpers.map(self.sample, keys)
        else:
            samples = self._one_by_one(keys)
        if self._collate is None:
            return samples
        try:
            return self._collate(samples)
        except Exception as error:
            add_note(error, f"while {_name(self._collate)} made a batch of the samples {_show(keys)}")
            raise

    def sample(self, key: Any) -> Any:
        """One sample."""
        try:
            return self.dataset[key]
        except Exception as error:
            add_note(error, f"while reading sample {_show(key)}")
            raise

    def close(self) -> None:
        """Ends the threads that help; others are made when they are needed."""
        self._helpers.close()
        self._helpers = Helpers(self._parallel - 1)

    def _one_by_one(self, keys: list[Any]) -> list[Any]:
        dataset = self.dataset
        left = iter(keys)
        try:
            return [dataset[key] for key in left]
        except Exception as error:
            # How far the loop came is known without counting.
            number = len(keys) - operator.length_hint(left) - 1
            add_note(error, f"while reading sample {_show(keys[number])}, entry {number} of its batch")
            raise

    def _all_at_once(self, keys: list[Any]) -> list[Any]:
        try:
            samples = cast("Callable[[list[Any]], Any]", self._whole)(keys)
        except Exception as error:
            add_note(error, f"while reading the samples {_show(keys)}")
            raise
        if not hasattr(samples, "__len__"):
            samples = list(samples)
        if len(samples) != len(keys):
            raise RuntimeError(
                f"__getitems__ of {type(self.dataset).__name__} gave {len(samples)} samples for {len(keys)} keys"
            )
        return samples


def pin(batch: Any) -> Any:
    """A batch with its PyTorch tensors in pinned memory, if there is a GPU that gains from it."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return batch
    return _pin(batch)


def _pin(batch: Any) -> Any:
    if callable(getattr(batch, "pin_memory", None)):
        return batch.pin_memory()
    kind: Any = _kind(batch)
    if kind is dict:
        return {key: _pin(value) for key, value in batch.items()}
    make: Any = getattr(batch, "_make", None)
    if kind.__name__ in ("list", "tuple"):
        make = kind
    return make([_pin(value) for value in batch]) if callable(make) else batch


def _kind(value: Any) -> Any:
    return type(value)  # pyright: ignore[reportUnknownVariableType]


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _show(keys: Any) -> str:
    """Keys as text of bounded length."""
    if isinstance(keys, list):
        some = [repr(key) for key in cast("list[Any]", keys)[:4]]
        return ", ".join(some) + (f", ... ({len(cast('list[Any]', keys))})" if len(cast("list[Any]", keys)) > 4 else "")
    text = repr(keys)
    return text if len(text) <= 100 else text[:97] + "..."
