"""Paths and settings of stores as users give them, and templates in the paths that are written to."""

import os
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

__all__ = ["address", "expanded", "has_template", "in_home", "options_of"]

_TEMPLATE = re.compile(r"\{([^{}]*%[^{}]*)\}")


def address(path: Any, name: str) -> str:
    """A path or URL as text.

    Args:
        path: what was given.
        name: of the argument, for messages.

    Raises:
        TypeError: if it is no path.
        ValueError: if it is empty or not UTF-8.
    """
    if isinstance(path, bytes) or not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name} must be a path or URL, got {path!r}")
    text: str = os.fspath(path)  # pyright: ignore[reportUnknownArgumentType]
    if not text:
        raise ValueError(f"{name} must be a path or URL, got no text")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError(f"{text!r}: the path is not UTF-8, so no state could hold it\nhint: rename it")
    return text


def in_home(path: str) -> str:
    """A path whose ``~``, alone or before a ``/``, is the home folder, as in paths that are read."""
    return os.path.expanduser(path) if path == "~" or path.startswith("~/") else path  # noqa: PTH111


def options_of(storage_options: Mapping[str, str] | None) -> dict[str, str]:
    """Settings of a store.

    Raises:
        TypeError: if they do not map text to text; no value is shown.
    """
    options = dict(storage_options or {})
    if wrong := [pair for pair in options.items() if not all(isinstance(part, str) for part in pair)]:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"storage_options must map text to text, got a {type(wrong[0][1]).__name__} for {wrong[0][0]!r}"
        )
    return options


def has_template(path: str) -> bool:
    """Whether a path holds a template such as ``{%Y-%m-%d}``."""
    return _TEMPLATE.search(path) is not None


def expanded(path: str, now: datetime | None = None) -> str:
    """A path with its templates filled in: what is in braces and has a ``%`` is read by `datetime.strftime`.

    Args:
        path: a path or URL that is going to be written to.
        now: the time, by default now by the local clock.
    """
    now = datetime.now().astimezone() if now is None else now
    return _TEMPLATE.sub(lambda found: now.strftime(found[1]), path)
