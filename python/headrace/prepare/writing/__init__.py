"""Formats that are written: an `Encoder` and a `Layout` for each, by its name."""

from .base import Catalog, Encoder, Entry, Existing, Layout, Options, Piece, Stored

__all__ = [
    "FORMATS",
    "Catalog",
    "Encoder",
    "Entry",
    "Existing",
    "Layout",
    "Options",
    "Piece",
    "Stored",
    "encoder",
    "layout",
]

FORMATS = ("litdata", "mds", "parquet", "arrow")


def encoder(format: str, options: Options) -> Encoder:
    """What encodes samples for a format.

    Raises:
        ImportError: if the format needs pyarrow, which is not installed.
    """
    match format:
        case "litdata":
            from .litdata import LitDataEncoder

            return LitDataEncoder(options)
        case "mds":
            from .mds import MdsEncoder

            return MdsEncoder(options)
        case _:
            _need_pyarrow(format)
            from .tables import TableEncoder

            return TableEncoder(options)


def layout(format: str, options: Options) -> Layout:
    """How a format's files look.

    Raises:
        ImportError: if the format needs pyarrow, which is not installed.
    """
    match format:
        case "litdata":
            from .litdata import LitDataLayout

            return LitDataLayout(options)
        case "mds":
            from .mds import MdsLayout

            return MdsLayout(options)
        case _:
            _need_pyarrow(format)
            from .tables import ArrowLayout, ParquetLayout

            return ParquetLayout(options) if format == "parquet" else ArrowLayout(options)


def _need_pyarrow(format: str) -> None:
    try:
        import pyarrow  # noqa: F401 # pyright: ignore[reportUnusedImport, reportMissingTypeStubs]
    except ImportError as error:
        raise ImportError(f"writing {format} needs pyarrow\nhint: pip install 'headrace[prepare]'") from error
