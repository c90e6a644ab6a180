"""What a sample may hold beside plain values: images and files that are stored as their encoded bytes."""

import io
import os
from pathlib import Path
from typing import Any, cast

import numpy as np

__all__ = ["File", "Image", "pillow"]

Source = str | os.PathLike[str] | bytes


def pillow() -> Any:
    """Pillow's module of images.

    Raises:
        ImportError: if it is not installed; says what to do.
    """
    try:
        from PIL import Image as library
    except ImportError as error:
        raise ImportError("images are encoded by Pillow\nhint: pip install pillow") from error
    return library


class Image:
    r"""An image that is stored as an encoded file: as it is, or encoded by Pillow.

    Bytes and files are taken as they are, unless a quality or a format is given. Arrays and Pillow's images are
    encoded: as PNG, which loses nothing, or as JPEG if a quality is given.

    Args:
        source: a path, the bytes of an encoded image, an array of shape (height, width) or (height, width, channels)
            and type uint8, or an image of Pillow.
        quality: of JPEG or WebP, 1 to 100.
        format: as Pillow names it: ``"JPEG"``, ``"PNG"``, ``"WEBP"`` ...

    Raises:
        ValueError: if the quality is out of bounds.
        TypeError: if the source is nothing of these.

    Example:
        >>> import numpy as np
        >>> headrace.Image(np.zeros((8, 8, 3), np.uint8), quality=90).encoded()[:2]
        b'\xff\xd8'
    """

    __slots__ = ("format", "quality", "source")

    def __init__(self, source: Any, *, quality: int | None = None, format: str | None = None) -> None:
        is_image = hasattr(source, "mode") and hasattr(source, "tobytes")
        if not isinstance(source, str | os.PathLike | bytes | np.ndarray) and not is_image:
            raise TypeError(f"Image takes a path, bytes, an array or an image of Pillow, got {type(source).__name__}")
        if quality is not None and not 1 <= quality <= 100:
            raise ValueError(f"quality must be in 1..100, got {quality}")
        self.source: Any = source
        self.quality = quality
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
        source: Any = self.source
        if isinstance(source, str | os.PathLike | bytes):
            data = _bytes(cast("Source", source))
            if self.quality is None and self.format is None:
                return data
            with pillow().open(io.BytesIO(data)) as image:
                return self._encode(image, self.format or image.format)
        made = pillow().fromarray(source) if type(source) is np.ndarray else source
        return self._encode(made, self.format or ("PNG" if self.quality is None else "JPEG"))

    def _encode(self, image: Any, format: str) -> bytes:
        out = io.BytesIO()
        options = {} if self.quality is None else {"quality": self.quality}
        image.save(out, format=format, **options)
        return out.getvalue()


class File:
    """A file that is stored as its bytes, whatever it holds: audio, video, PDF.

    Args:
        source: a path, or the bytes.

    Raises:
        TypeError: if it is neither.

    Example:
        >>> headrace.File(b"RIFF").encoded()
        b'RIFF'
    """

    __slots__ = ("source",)

    def __init__(self, source: Source) -> None:
        if not isinstance(source, str | os.PathLike | bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"File takes a path or bytes, got {type(source).__name__}")
        self.source: Source = source

    def encoded(self) -> bytes:
        """The bytes of the file.

        Raises:
            OSError: if it cannot be read.

        Example:
            >>> headrace.File(b"%PDF").encoded()
            b'%PDF'
        """
        return _bytes(self.source)


def _bytes(source: Source) -> bytes:
    return source if isinstance(source, bytes) else Path(source).read_bytes()
