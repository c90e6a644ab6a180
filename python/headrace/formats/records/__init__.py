"""Files of fixed-size records, one behind another: token files of others, and headrace's own stores.

`layout` says what lies in which file; `flat`, `megatron` and `store` find that out for a format each; `sequences` and
`documents` are the sources of samples over it.
"""

from .documents import DocumentSource
from .flat import read_flat
from .layout import Records
from .megatron import has_megatron, read_megatron
from .pieces import PieceSource
from .sequences import SequenceSource, stretches
from .store import INDEX_FORMAT, is_records, read_store

__all__ = [
    "INDEX_FORMAT",
    "DocumentSource",
    "PieceSource",
    "Records",
    "SequenceSource",
    "has_megatron",
    "is_records",
    "read_flat",
    "read_megatron",
    "read_store",
    "stretches",
]
