"""headrace for PyTorch: batches as tensors, over the same memory or on a device ahead of use."""

from .dataset import IterableDataset
from .loader import DataLoader, TensorBatch

__all__ = ["DataLoader", "IterableDataset", "TensorBatch"]
