"""The benchmark of flat token files: how fast they are read, in any order."""

__all__ = []
