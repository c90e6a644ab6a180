"""Leaves that are images: encoded files decoded by Pillow, raw pixels, lists of JPEGs, TIFF."""

import io
import struct
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from headrace.errors import DataError

from .arrays import as_tensor
from .leaves import Decode, Options

__all__ = ["image_leaf"]

# Bits of a pixel by mode. A mode that is not here has no raw form that Pillow reads back.
_BITS = {
    "L": 8, "P": 8, "LA": 16, "PA": 16, "La": 16, "RGB": 24, "YCbCr": 24, "LAB": 24, "HSV": 24,
    "RGBA": 32, "RGBa": 32, "RGBX": 32, "CMYK": 32, "I": 32, "F": 32, "I;16": 16, "I;16L": 16, "I;16B": 16,
}  # fmt: skip

_U32 = struct.Struct("<I").unpack_from
_SIZE = struct.Struct("<III").unpack_from


def image_leaf(name: str, options: Options) -> tuple[Decode, str]:
    """The decoder of ``jpeg``, ``image``, ``jpeg_array``, ``pil``, ``tifffile`` or ``tiff``."""
    first, _, second = name.partition(":")
    kind = second if second in _KINDS else first
    return _KINDS[kind](options)


def _image(options: Options) -> tuple[Decode, str]:
    as_torch = options.torch

    def decode(data: bytes, start: int, stop: int) -> Any:
        array = _pixels(data[start:stop])
        return as_tensor(array, -1) if as_torch else array

    return decode, "image"


def _images(options: Options) -> tuple[Decode, str]:
    one, _ = _image(options)

    def decode(data: bytes, start: int, stop: int) -> Any:
        if stop - start < 4:
            raise DataError(f"expected a number of images, found {stop - start} bytes")
        count = _U32(data, start)[0]
        at = start + 4 + 4 * count
        if at > stop:
            raise DataError(f"expected {count} images, found {stop - start} bytes")
        images: list[Any] = []
        for size in struct.unpack_from(f"<{count}I", data, start + 4):
            if size > stop - at:
                raise DataError(f"expected an image of {size} bytes, found {stop - at}")
            images.append(one(data, at, at + size))
            at += size
        if at != stop:
            raise DataError(f"expected images of {at - start} bytes, found {stop - start}")
        return images

    return decode, "list[image]"


def _pil(options: Options) -> tuple[Decode, str]:
    pillow = _pillow()

    def decode(data: bytes, start: int, stop: int) -> Any:
        if stop - start < 12:
            raise DataError(f"expected an image's header of 12 bytes, found {stop - start}")
        width, height, size = _SIZE(data, start)
        begin = start + 12 + size
        if size > 16 or begin > stop:
            raise DataError(f"expected the mode of an image, found one of {size} bytes")
        mode = data[start + 12 : begin].decode()
        line = -(-width // 8) if mode == "1" else width * _BITS.get(mode, 0) // 8
        if mode != "1" and mode not in _BITS:
            raise DataError(f"expected the mode of an image, found {mode!r}")
        if line * height != stop - begin:
            raise DataError(
                f"expected {line * height} bytes for an image of {width} x {height} {mode}, found {stop - begin}"
            )
        return pillow.frombytes(mode, (width, height), data[begin:stop])

    return decode, "PIL.Image"


def _tiff(options: Options) -> tuple[Decode, str]:
    try:
        import tifffile
    except ImportError as error:
        raise ImportError(
            "this dataset has TIFF images, which tifffile decodes\n"
            'hint: pip install tifffile, or say serializers={"tifffile": headrace.Tiff} for files that are not decoded'
        ) from error
    library = cast("Any", tifffile)

    def decode(data: bytes, start: int, stop: int) -> Any:
        return library.imread(io.BytesIO(data[start:stop]))

    return decode, "ndarray"


def _pixels(data: bytes) -> npt.NDArray[Any]:
    """An encoded image as RGB, channels first: uint8, (3, height, width), with a first axis of frames if it moves.

    As in litdata, which way is up is taken from a JPEG's EXIF data, and transparency is dropped.
    """
    with _pillow().open(io.BytesIO(data)) as image:
        if image.format == "PNG" and data[24:25] == b"\x10":
            return _deep(image)
        frames = getattr(image, "n_frames", 1) if image.format in ("GIF", "WEBP") else 1
        if frames == 1:
            return _rgb(_upright(image))
        found: list[npt.NDArray[Any]] = []
        for frame in range(frames):
            image.seek(frame)
            found.append(_rgb(image))
    return np.stack(found)


def _upright(image: Any) -> Any:
    if image.format not in ("JPEG", "MPO") or "exif" not in image.info:
        return image
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def _rgb(image: Any) -> npt.NDArray[Any]:
    if image.mode != "RGB":
        # Pillow warns if a palette's transparency is lost, so it goes by way of a channel of its own.
        image = image.convert("RGBA").convert("RGB") if "transparency" in image.info else image.convert("RGB")
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def _deep(image: Any) -> npt.NDArray[Any]:
    """A PNG of 16 bits: uint16, where Pillow keeps them."""
    if image.mode not in ("I", "I;16"):
        raise DataError(
            "expected an image of 8 bits a channel, found a PNG of 16 bits in colour, which Pillow would cut to 8\n"
            'hint: serializers={"image": bytes} gives the file\'s bytes'
        )
    grey = np.asarray(image).astype(np.uint16)
    return np.stack([grey, grey, grey])


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("this dataset has images, which Pillow decodes\nhint: pip install pillow") from error
    return Image


_KINDS = {"image": _image, "jpeg": _image, "jpeg_array": _images, "pil": _pil, "tifffile": _tiff, "tiff": _tiff}
