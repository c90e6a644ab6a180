"""What `optimize` and `map` have in common: arguments, and what a run comes to."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex, cast

from headrace._paths import address, in_home
from headrace._units import as_int, parse_bytes, show_bytes
from headrace.encryption import Encryption

from .spool import Failure
from .workers import Engine, Local
from .writing import FORMATS, Options
from .writing.base import kind_of

__all__ = [
    "Prepared",
    "check_choice",
    "dev_limit",
    "engine_of",
    "local_folder",
    "options_of",
]

_DEV_INPUTS = 10
_TRIAL = b"headrace"
"""Encrypted and decrypted before a run, so that it does not end with files that nobody can read."""


@dataclass(frozen=True)
class Prepared:
    """What a run made.

    Example:
        >>> made = headrace.optimize(str, range(10), folder / "numbers", num_workers=0, progress=False)
        >>> made.samples, made.chunks, made.skipped
        (10, 1, [])
    """

    folder: Path | str
    """Where it lies: a folder, or a URL."""
    samples: int
    """Samples that the run wrote; those that were there before it are not counted."""
    chunks: int
    """Files that hold them."""
    bytes: int
    """Bytes of these files."""
    skipped: list[Failure]
    """Inputs that were left out, in their order; ``_headrace/skipped.jsonl`` has them too."""
    seconds: float
    """How long this call took; calls that it went on with are not in it."""
    read: int = 0
    """Bytes of the inputs that are paths of files on a disk; 0 if none is."""

    def __str__(self) -> str:
        rate = self.samples / max(self.seconds, 1e-9)
        of = f" ({self.bytes / self.read:.2f} of the {show_bytes(self.read)} of the inputs)" if self.read else ""
        text = (
            f"{self.folder}: {self.samples:,} samples in {self.chunks:,} chunks, {show_bytes(self.bytes)}{of}, "
            f"{self.seconds:.1f} s ({rate:,.0f} samples/s)"
        )
        return text + (f", {len(self.skipped):,} inputs skipped" if self.skipped else "")


def options_of(
    format: str,
    *,
    chunk_bytes: str | SupportsIndex | None,
    chunk_size: SupportsIndex | None,
    compression: str | None,
    encryption: Encryption | None,
    serializers: Any,
    tokens: bool,
) -> Options:
    """How samples are stored, checked.

    Raises:
        ValueError: if an argument cannot be used.
        TypeError: if it is of a wrong type.
    """
    check_choice("format", format, FORMATS)
    if compression is not None:
        if not isinstance(compression, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"compression must be None or text, got {compression!r}")
        name, colon, level = compression.partition(":")
        if name != "zstd" or (colon and not (level.isascii() and level.isdigit() and 1 <= int(level) <= 22)):
            raise ValueError(
                f'compression must be None, "zstd" or "zstd:<level>" with a level of 1 to 22, got {compression!r}'
            )
    if format != "litdata" and (serializers or tokens):
        raise ValueError(f'serializers and tokens are for format="litdata", got them with format={format!r}')
    if encryption is not None:
        _check_encryption(encryption, format, tokens)
    if serializers is not None and not isinstance(cast("object", serializers), Mapping):
        raise TypeError(f"serializers must be a mapping from names to objects, got a {kind_of(serializers)}")
    for key, serializer in dict(serializers or {}).items():
        if not hasattr(serializer, "can_serialize") or not hasattr(serializer, "serialize"):
            raise TypeError(
                f"serializers must map names to objects with can_serialize(value) and serialize(value), "
                f"got a {type(serializer).__name__} for {key!r}"
            )
    size = None if chunk_size is None else as_int(chunk_size, "chunk_size", least=1)
    if chunk_bytes is None and chunk_size is None:
        chunk_bytes = "64MiB"
    most = None if chunk_bytes is None else parse_bytes(chunk_bytes, "chunk_bytes")
    if most is not None and most > 2**30:
        raise ValueError(f'chunk_bytes must be at most "1GiB", got {chunk_bytes!r}')
    return Options(
        compression=compression,
        encryption=encryption,
        serializers=serializers,
        tokens=tokens,
        chunk_size=size,
        chunk_bytes=most,
    )


def _check_encryption(encryption: Any, format: str, tokens: bool) -> None:
    missing = [name for name in ("algorithm", "level", "encrypt", "decrypt") if not hasattr(encryption, name)]
    if missing:
        raise TypeError(
            f"encryption must be an object with algorithm, level, encrypt and decrypt, got a "
            f"{type(encryption).__name__} without {missing[0]}\n"
            "hint: headrace.encryption.FernetEncryption(password) is one"
        )
    if encryption.level not in ("chunk", "sample"):
        raise ValueError(f'encryption must have a level of "chunk" or "sample", got {encryption.level!r}')
    if format != "litdata":
        raise ValueError(
            f'encryption is for format="litdata", got it with format={format!r}, whose readers know no such key'
        )
    if tokens:
        raise ValueError(
            "encryption cannot be used with tokens=True: litdata would read what is encrypted as tokens\n"
            'hint: yield {"tokens": array} without tokens=True'
        )
    trial: Any = encryption.encrypt(_TRIAL)
    if not isinstance(trial, bytes):
        raise TypeError(f"{type(encryption).__name__}.encrypt must give bytes, got {kind_of(trial)}")
    if encryption.decrypt(trial) != _TRIAL:
        raise ValueError(f"{type(encryption).__name__}.decrypt must give back what encrypt was given, got other bytes")


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Refuses a value that is none of the choices.

    Raises:
        ValueError: if it is not.
    """
    choices = list(choices)
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {known}, got {value!r}")


def engine_of(engine: str, num_workers: SupportsIndex | None, ray_options: Mapping[str, Any] | None) -> Engine:
    """Where work is done: by default in as many processes as there are processors.

    Raises:
        ValueError: if an argument cannot be used.
        TypeError: if it is of a wrong type.
        ImportError: if Ray is wanted and not installed.
    """
    check_choice("engine", engine, ("local", "ray"))
    count = None if num_workers is None else as_int(num_workers, "num_workers", least=0, most=4096)
    if engine == "local":
        if ray_options is not None:
            raise ValueError('ray_options are for engine="ray", got them with engine="local"')
        return Local(len(os.sched_getaffinity(0)) if count is None else count)
    if count == 0:
        raise ValueError('num_workers must be at least 1 with engine="ray", got 0')
    try:
        from .on_ray import OPTIONS, OnRay
    except ModuleNotFoundError as error:
        raise ImportError(f'engine="ray" needs Ray: {error}\nhint: pip install "headrace[ray]"') from None
    options = dict(ray_options or {})
    if unknown := [name for name in options if name not in OPTIONS]:
        raise ValueError(f"ray_options must be some of {', '.join(OPTIONS)}, got {unknown[0]!r}")
    return OnRay(count, options)


def dev_limit(value: bool | SupportsIndex) -> int | None:
    """How many inputs `fast_dev_run` means, if it is wanted."""
    if isinstance(value, bool):
        return _DEV_INPUTS if value else None
    return as_int(value, "fast_dev_run", least=1)


def local_folder(value: str | os.PathLike[str], name: str) -> Path:
    """A folder on a disk, given as the argument of this name.

    Raises:
        ValueError: if it is a URL of a store.
        TypeError: if it is no path.
    """
    text = address(value, name)
    if "://" in text:
        raise ValueError(
            # What follows may be a login.
            f"{name} must be a folder on a disk, got the URL of a store ({text.partition('://')[0]}://)\n"
            "hint: headrace.Store reads and writes the files of stores"
        )
    return Path(in_home(text))
