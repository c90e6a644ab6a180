"""Files that packages of their own can open: video, PDF, NIfTI volumes, meshes, and files of any other kind."""

import gzip
import io
import os
from pathlib import Path
from typing import Any, cast

from .base import Encoded, as_array, is_array, package

__all__ = ["File", "Mesh", "Nifti", "Pdf", "Video"]


class File(Encoded):
    """A file that is stored as its bytes, whatever it holds.

    Args:
        source: a path, or the bytes.

    Raises:
        TypeError: if it is neither.

    Example:
        >>> headrace.File(b"RIFF").encoded()
        b'RIFF'
    """

    __slots__ = ()


class Video(Encoded):
    """An encoded video, stored as it is.

    Args:
        source: a path, or the bytes of a file.

    Raises:
        TypeError: if it is neither.

    Example:
        >>> headrace.Video(b"video").encoded()
        b'video'
    """

    __slots__ = ()

    takes = "a path or bytes of an encoded video"

    def decode(self) -> Any:
        """An open container of PyAV: ``for frame in container.decode(video=0)`` decodes as far as it goes.

        Raises:
            ImportError: if PyAV is not installed.

        Example:
            >>> with headrace.Video("clip.mp4").decode() as container:  # doctest: +SKIP
            ...     frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        """
        return package("av", "av", "video is decoded").open(io.BytesIO(self.encoded()))


class Pdf(Encoded):
    """A PDF file, stored as it is.

    Args:
        source: a path, or the bytes of a file.

    Raises:
        TypeError: if it is neither.

    Example:
        >>> headrace.Pdf(b"%PDF").encoded()
        b'%PDF'
    """

    __slots__ = ()

    def decode(self) -> Any:
        """The open file, by pdfplumber.

        Raises:
            ImportError: if that is not installed.

        Example:
            >>> with headrace.Pdf("paper.pdf").decode() as pdf:  # doctest: +SKIP
            ...     text = pdf.pages[0].extract_text()
        """
        return package("pdfplumber", "pdfplumber", "PDF is decoded").open(io.BytesIO(self.encoded()))


class Nifti(Encoded):
    """A NIfTI volume: a file as it is, compressed or not, or what nibabel makes one of.

    Args:
        source: a path, the bytes of a file, an image of nibabel, or an array.
        affine: of an array: the matrix from its indices to millimetres, by default that of unit cubes.

    Raises:
        TypeError: if the source is nothing of these, or there is an affine for another one than an array.

    Example:
        >>> headrace.Nifti(np.zeros((2, 3, 4), np.float32)).decode().shape
        (2, 3, 4)
    """

    __slots__ = ("affine",)

    takes = "a path, bytes, an image of nibabel or an array"

    def __init__(self, source: Any, *, affine: Any = None) -> None:
        super().__init__(source)
        if affine is not None and not is_array(source):
            raise TypeError(f"affine is for arrays, got one for {type(source).__name__}")
        self.affine = affine

    def decode(self) -> Any:
        """The image, by nibabel.

        Raises:
            ImportError: if that is not installed.

        Example:
            >>> headrace.Nifti(np.ones((1, 1, 2), np.int16)).decode().get_fdata()
            array([[[1., 1.]]])
        """
        data = self.encoded()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        # The header begins with its size: 348 bytes in the first version, 540 in the second.
        second = 540 in (int.from_bytes(data[:4], "little"), int.from_bytes(data[:4], "big"))
        library = _nibabel()
        return (library.Nifti2Image if second else library.Nifti1Image).from_bytes(data)

    def _is_object(self, source: Any) -> bool:
        # Integers have a to_bytes too.
        return (hasattr(source, "to_bytes") and hasattr(source, "affine")) or is_array(source)

    def _encode(self, source: Any) -> bytes:
        if is_array(source):
            import numpy as np

            affine = np.eye(4) if self.affine is None else self.affine
            source = _nibabel().Nifti1Image(as_array(source), affine)
        return source.to_bytes()


class Mesh(Encoded):
    """A mesh as GLB, PLY, STL or another type of file: as it is, or what trimesh makes one of.

    Args:
        source: a path, the bytes of a file, or a mesh or a scene of trimesh.
        file_type: ``"glb"``, ``"ply"`` ...; by default the path's suffix, what bytes begin like, and GLB for trimesh.

    Raises:
        TypeError: if the source is nothing of these.
        ValueError: if there is no such type of file.

    Example:
        >>> headrace.Mesh(b"ply and so on").file_type
        'ply'
    """

    __slots__ = ("file_type",)

    takes = "a path, bytes, or a mesh of trimesh"

    def __init__(self, source: Any, *, file_type: str | None = None) -> None:
        super().__init__(source)
        found = file_type or _mesh_type(source)
        if not found.isalnum():
            raise ValueError(f'file_type must be a word like "glb", got {found!r}')
        self.file_type = found

    def decode(self) -> Any:
        """The mesh or the scene, by trimesh.

        Raises:
            ImportError: if that is not installed.

        Example:
            >>> headrace.Mesh("bunny.ply").decode().vertices  # doctest: +SKIP
        """
        library = package("trimesh", "trimesh", "meshes are decoded")
        return library.load(io.BytesIO(self.encoded()), file_type=self.file_type)

    def _is_object(self, source: Any) -> bool:
        return type(source).__module__.partition(".")[0] == "trimesh" and hasattr(source, "export")

    def _encode(self, source: Any) -> bytes:
        return bytes(source.export(file_type=self.file_type))


_MESHES = {"glb": b"glTF", "ply": b"ply", "stl": b"solid", "off": b"OFF"}
"""What files begin with; binary ones of STL with anything."""
_STL_HEAD, _STL_FACE = 84, 50
"""Bytes of a binary STL file: of its head, which ends in the number of faces, and of each face."""


def _mesh_type(source: Any) -> str:
    if isinstance(source, bytes):
        for name, magic in _MESHES.items():
            if source.startswith(magic):
                return name
        faces = int.from_bytes(source[_STL_HEAD - 4 : _STL_HEAD], "little")
        if len(source) == _STL_HEAD + faces * _STL_FACE:
            return "stl"
        raise ValueError(
            'file_type must be given of a mesh whose bytes do not say it: "obj" ... , found '
            f"{len(source):,} bytes that begin with {source[:8]!r}"
        )
    if isinstance(source, str | os.PathLike):
        return Path(cast("str", source)).suffix.removeprefix(".").lower()
    return "glb"


def _nibabel() -> Any:
    return package("nibabel", "nibabel", "NIfTI is encoded and decoded")
