"""LitData: chunks of serialised samples with an ``index.json``, as `litdata.optimize` writes them."""

from .decryption import Decryption, FernetDecryption, RSADecryption, load_decryption
from .index import is_litdata
from .source import LitDataSource

__all__ = [
    "Decryption",
    "FernetDecryption",
    "LitDataSource",
    "RSADecryption",
    "is_litdata",
    "load_decryption",
]
