"""Pictures: what Pillow encodes, and TIFF."""

import io
from typing import Any, cast

import numpy as np

from headrace._units import as_int

from .base import Encoded, as_array, is_array, package

__all__ = ["Image", "Tiff"]


class Image(Encoded):
    r"""An image that is stored as an encoded file: as it is, or encoded by Pillow.

    Bytes and files are taken as they are, unless a quality or a format is given. Arrays and Pillow's images are
    encoded: as PNG, which loses nothing, or as JPEG if a quality is given.

    Args:
        source: a path, the bytes of an encoded image, an array of shape (height, width) or (height, width, channels)
            and type uint8, or an image of Pillow.
        quality: of JPEG, WebP or AVIF, 1 to 100.
        format: as Pillow names it: ``"JPEG"``, ``"PNG"``, ``"WEBP"`` ...

    Raises:
        ValueError: if the quality is out of bounds, or of a format that loses nothing, or an array is of another shape
            or type.
        TypeError: if the source is nothing of these, or the quality no integer.

    Example:
        >>> import numpy as np
        >>> headrace.Image(np.zeros((8, 8, 3), np.uint8), quality=90).encoded()[:2]
        b'\xff\xd8'
    """

    __slots__ = ("format", "quality")

    takes = "a path, bytes, an array or an image of Pillow"

    def __init__(self, source: Any, *, quality: int | None = None, format: str | None = None) -> None:
        super().__init__(source)
        if isinstance(source, np.ndarray):
            _check_pixels(cast("Any", source))
        if quality is not None and format is not None and format.upper() in _LOSSLESS:
            raise ValueError(f"quality is for formats that lose something, such as JPEG, got it for {format}")
        self.quality = None if quality is None else as_int(quality, "quality", least=1, most=100)
        self.format = format

    def encoded(self) -> bytes:
        """The bytes of the file.

        Raises:
            OSError: if it cannot be read.
            ValueError: if Pillow cannot encode it.

        Example:
            >>> headrace.Image(b"as it is").encoded()
            b'as it is'
        """
        data = super().encoded()
        if self._is_object(self.source) or (self.quality is None and self.format is None):
            return data
        with _pillow().open(io.BytesIO(data)) as image:
            return self._save(image, self.format or image.format)

    def decode(self) -> Any:
        """The pixels as an array, of the kind that the file has, by Pillow.

        Raises:
            ImportError: if that is not installed.
            OSError: if it cannot be read, or is no image.

        Example:
            >>> headrace.Image(np.zeros((8, 9, 3), np.uint8)).decode().shape
            (8, 9, 3)
        """
        with _pillow().open(io.BytesIO(self.encoded())) as image:
            return np.array(image)

    def _is_object(self, source: Any) -> bool:
        return isinstance(source, np.ndarray) or (hasattr(source, "mode") and hasattr(source, "tobytes"))

    def _encode(self, source: Any) -> bytes:
        made = _pillow().fromarray(source) if isinstance(source, np.ndarray) else source
        return self._save(made, self.format or ("PNG" if self.quality is None else "JPEG"))

    def _save(self, image: Any, format: str) -> bytes:
        out = io.BytesIO()
        options = {} if self.quality is None else {"quality": self.quality}
        image.save(out, format=format, **options)
        return out.getvalue()


_LOSSLESS = ("PNG", "BMP", "GIF", "PPM", "TGA")
_CHANNELS = (1, 2, 3, 4)


def _check_pixels(array: Any) -> None:
    if array.dtype not in (np.uint8, np.bool_):
        raise ValueError(f"an image must be an array of uint8, got one of {array.dtype}\nhint: Tiff stores other types")
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in _CHANNELS):
        raise ValueError(
            f"an image must be of shape (height, width) or (height, width, channels), got {tuple(array.shape)}"
        )


class Tiff(Encoded):
    """A TIFF file: as it is, or an array that tifffile encodes.

    Args:
        source: a path, the bytes of a file, or an array.

    Raises:
        TypeError: if it is nothing of these.

    Example:
        >>> headrace.Tiff(np.eye(2)).decode()
        array([[1., 0.],
               [0., 1.]])
    """

    __slots__ = ()

    takes = "a path, bytes or an array"

    def decode(self) -> Any:
        """The array, by tifffile.

        Raises:
            ImportError: if that is not installed.

        Example:
            >>> headrace.Tiff(np.zeros((2, 3), np.uint16)).decode().shape
            (2, 3)
        """
        return _tifffile().imread(io.BytesIO(self.encoded()))

    def _is_object(self, source: Any) -> bool:
        return is_array(source)

    def _encode(self, source: Any) -> bytes:
        out = io.BytesIO()
        _tifffile().imwrite(out, as_array(source))
        return out.getvalue()


def _pillow() -> Any:
    return package("PIL.Image", "pillow", "images are encoded and decoded")


def _tifffile() -> Any:
    return package("tifffile", "tifffile", "TIFF is encoded and decoded")
