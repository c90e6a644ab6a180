"""Media: values that are stored as the bytes of a file, and come back so, with a way to decode them.

`headrace.optimize` takes them in samples; LitData's come back as the same classes, and for bytes from elsewhere (a
column of Parquet, say) they are made by hand: ``headrace.Audio(row["audio"]).decode()``. Nothing here imports a package
that encodes or decodes before it is needed.
"""

from .audio import Audio
from .base import Encoded
from .files import File, Mesh, Nifti, Pdf, Video
from .images import Image, Tiff

__all__ = ["Audio", "Encoded", "File", "Image", "Mesh", "Nifti", "Pdf", "Tiff", "Video"]
