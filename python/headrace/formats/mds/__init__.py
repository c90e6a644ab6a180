"""MDS, the shards of MosaicML Streaming, with its JSON, CSV, TSV and XSV shards; docs/formats/mds.md tells of them.

`index` reads ``index.json``, `encodings` knows how a column's values are stored, `shard` how samples lie in a file, and
`source` brings them together. Nothing here writes.
"""

from .index import is_mds
from .source import MdsSource, NoDigest

__all__ = ["MdsSource", "NoDigest", "is_mds"]
