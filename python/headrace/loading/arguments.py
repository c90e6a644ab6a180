"""The arguments of a loader as they were given, before a driver makes sense of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import TIMEOUT_MAX
from typing import Any, Final, Literal, SupportsIndex

from headrace._units import as_int

__all__ = ["UNSET", "Arguments", "optional_int"]


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final[Any] = _Unset()
"""An argument that was not given, where None means something."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What `headrace.DataLoader` was called with; the names and meanings are documented there."""

    batch_size: SupportsIndex | None
    shuffle: bool | None
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    num_workers: SupportsIndex | None
    collate_fn: Callable[[list[Any]], Any] | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], object] | None
    generator: Any
    prefetch_factor: SupportsIndex | None
    global_batch_size: SupportsIndex | Mapping[int, int] | None
    seed: SupportsIndex | None
    window: SupportsIndex | None
    lanes: SupportsIndex | None
    rank: SupportsIndex | None
    world_size: SupportsIndex | None
    memory: str | SupportsIndex
    epochs: SupportsIndex | None
    remainder: Literal["drop", "pad"] | None
    worker_type: Literal["thread", "process", "auto"]
    items_in_parallel: SupportsIndex
    allow_empty: bool
    on_error: Literal["raise", "skip"]
    exclude: Any

    def check(self) -> None:
        """Refuses what no kind of dataset can make sense of.

        Raises:
            TypeError: if a value is of the wrong type.
            ValueError: if it is out of range, or two do not go together.
        """
        if self.batch_size not in (None, UNSET) and self.global_batch_size is not None:
            raise ValueError(
                f"give batch_size or global_batch_size, got {self.batch_size!r} and {self.global_batch_size!r}"
            )
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"timeout must be a number of seconds, got {self.timeout!r}")
        if not 0 <= self.timeout <= TIMEOUT_MAX:
            raise ValueError(
                f"timeout must be 0 or a positive number of seconds, {TIMEOUT_MAX:.0f} at most, got {self.timeout!r}"
            )
        if self.shuffle is not None and not isinstance(self.shuffle, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"shuffle must be True, False or None, got {self.shuffle!r}")
        for name, value, choices in (
            ("worker_type", self.worker_type, ("thread", "process", "auto")),
            ("on_error", self.on_error, ("raise", "skip")),
            ("remainder", self.remainder, (None, "drop", "pad")),
        ):
            if value not in choices:
                wanted = " or ".join(f'"{choice}"' for choice in choices if choice is not None)
                raise ValueError(f"{name} must be {wanted}, got {value!r}")

    def refuse(self, kind: str, names: Iterable[str]) -> None:
        """Refuses arguments that mean nothing for a kind of dataset.

        Raises:
            ValueError: if one was given.
        """
        for name in names:
            value = getattr(self, name)
            if not any(value is nothing for nothing in (None, False, UNSET)) and not _is_default(name, value):
                raise ValueError(f"{name} has no meaning for {kind}, got {value!r}")

    @property
    def seconds(self) -> float | None:
        """The timeout in seconds, None for no end."""
        return float(self.timeout) or None


_DEFAULTS: Final[Mapping[str, Any]] = {
    "worker_type": "thread",
    "items_in_parallel": 1,
    "on_error": "raise",
    "memory": "2GiB",
}


def _is_default(name: str, value: Any) -> bool:
    return isinstance(value, str | int) and value == _DEFAULTS.get(name)


def optional_int(value: SupportsIndex | None, name: str, least: int, most: int) -> int | None:
    """An integer within bounds, or None for None."""
    return None if value is None else as_int(value, name, least=least, most=most)
