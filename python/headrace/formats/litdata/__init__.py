"""LitData: chunks of serialised samples with an ``index.json``, as `litdata.optimize` writes them."""

from .index import is_litdata
from .source import LitDataSource

__all__ = ["LitDataSource", "is_litdata"]
