"""The benchmark of samples: what a loader adds to a dataset of the user's, and how it reads the formats of others."""

__all__ = []
