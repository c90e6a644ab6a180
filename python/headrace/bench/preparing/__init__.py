"""The benchmark of preparing data: how fast datasets are made."""

__all__ = []
