"""PyTorch's DataLoader with workers that stay: the faster way, where epochs follow each other."""

from headrace.bench.samples.job import Place
from headrace.bench.samples.loaders import torch_map

__all__ = ["Loader"]


class Loader(torch_map.Loader):
    """With ``persistent_workers=True``."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, persistent=True)
