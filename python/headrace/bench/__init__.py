"""Benchmarks of the loader beside other ways to get the same tokens; `python -m headrace.bench` or `make bench`."""

__all__ = []
