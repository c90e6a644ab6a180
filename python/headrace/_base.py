"""What all datasets have in common."""

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["Dataset"]


class Dataset(ABC):
    """What a `DataLoader` can be made of, or a step on the way there."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """What is known without reading data, as plain types."""
