"""Gathers text that every machine has: the sources of Python's standard library, and documentation.

What it gathers is a pure function of the files: sorted by place, each content once, up to a number of bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Text", "gather"]

MIN_BYTES = 200  # shorter files are mostly empty packages and one-line notices
MAX_BYTES = 2 << 20  # longer ones are mostly generated tables

TEXT_SUFFIXES = frozenset({".adoc", ".md", ".rst", ".txt"})
TEXT_NAMES = frozenset({"authors", "changelog", "changes", "copyright", "faq", "history", "news", "readme", "todo"})
SKIPPED_FOLDERS = frozenset({"__pycache__", "dist-packages", "node_modules", "site-packages"})


@dataclass(frozen=True, slots=True)
class Text:
    """One document.

    Attributes:
        id: where it was found, below the name of its root: "python/json/decoder.py".
        text: its content.
    """

    id: str
    text: str


def gather(folder: str | Path | None = None, *, limit: int = 48 << 20) -> Iterator[Text]:
    """The documents of `folder`, or those that this machine has.

    Args:
        folder: take all text files below it; None takes the standard library's sources and the documentation that
            is installed.
        limit: stop before more bytes of text than this.

    Yields:
        The documents, in the same order on every call; no content comes twice.
    """
    seen: set[bytes] = set()
    total = 0
    for name, root, python in [("text", Path(folder), True)] if folder else _roots():
        for path in _files(root):
            if not (folder or (path.suffix == ".py" if python else _is_documentation(path))):
                continue
            content = _read(path)
            if content is None:
                continue
            digest = hashlib.blake2b(content, digest_size=16).digest()
            if digest in seen:
                continue
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError:
                continue
            seen.add(digest)
            total += len(content)
            if total > limit:
                return
            yield Text(id=f"{name}/{path.relative_to(root).as_posix()}", text=text)


def _roots() -> list[tuple[str, Path, bool]]:
    """Name, folder, and whether to take Python sources there (else documentation)."""
    packages = {Path(sysconfig.get_path("purelib")), Path(sys.base_prefix, *_site_packages())}
    roots = [("python", Path(sysconfig.get_path("stdlib")), True)]
    roots += [("packages", path, False) for path in sorted(packages)]
    roots += [("doc", Path("/usr/share/doc"), False)]
    return [root for root in roots if root[1].is_dir()]


def _site_packages() -> tuple[str, ...]:
    return ("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith("."))
        for name in sorted(names):
            yield Path(folder, name)


def _is_documentation(path: Path) -> bool:
    name = Path(path.name.lower().removesuffix(".gz"))
    return name.suffix in TEXT_SUFFIXES or name.stem in TEXT_NAMES


def _read(path: Path) -> bytes | None:
    """The content, or None if it is no text of a useful size."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                content = file.read(MAX_BYTES + 1)
        else:
            content = path.read_bytes()
    except (OSError, EOFError):
        return None
    return content if MIN_BYTES <= len(content) <= MAX_BYTES and b"\0" not in content else None
