"""What a run that encrypts keeps until the end: neither its samples nor its key lie on the disk in the clear.

Samples that are encrypted one by one wait as they will be stored. Where chunks are encrypted, what waits for its chunk
is encrypted with the same key meanwhile. A run that goes on has to have the key with which it was begun, since each
`FernetEncryption` has one of its own: the journal keeps a word that only this key opens.
"""

import base64
from collections.abc import Callable
from pathlib import Path

from headrace.encryption import Encryption
from headrace.errors import StateMismatch

__all__ = ["Seal", "check_mark", "mark_of", "seal_of"]

_WORD = b"headrace"


class Seal:
    """Encrypts blocks of samples, and opens them again, in any threads."""

    def __init__(self, encryption: Encryption) -> None:
        self._encryption = encryption
        self._last = (-1, memoryview(b""))

    def close(self, data: memoryview) -> memoryview:
        """A block, encrypted."""
        return memoryview(self._encryption.encrypt(bytes(data)))

    def open(self, number: int, read: Callable[[], memoryview]) -> memoryview:
        """A block as it was.

        Args:
            number: of the block. The last one is kept, as small chunks take it part by part.
            read: gives what it was encrypted to.
        """
        last, data = self._last
        if number != last:
            data = memoryview(self._encryption.decrypt(bytes(read())))
            self._last = number, data
        return data


def seal_of(encryption: Encryption | None) -> Seal | None:
    """What encrypts samples that wait for their chunk, if they are not encrypted themselves."""
    return Seal(encryption) if encryption is not None and encryption.level == "chunk" else None


def mark_of(encryption: Encryption | None) -> str | None:
    """A word that the key encrypted, as text for the journal."""
    return None if encryption is None else base64.b64encode(encryption.encrypt(_WORD)).decode()


def check_mark(mark: str | None, encryption: Encryption | None, folder: Path | str) -> None:
    """Refuses to go on with another key than that of a mark.

    Raises:
        StateMismatch: if the key does not open it.
    """
    if mark is None or encryption is None:
        return
    try:
        found = encryption.decrypt(base64.b64decode(mark))
    except Exception:
        # Any: who knows what a class of the user's raises.
        found = b""
    if found != _WORD:
        raise StateMismatch(
            f"{folder} has an unfinished run that encrypts with another key\n"
            "hint: save a key before it is used, and load it to go on: each FernetEncryption or RSAEncryption that is "
            "made has a key of its own; resume=False forgets what the run did"
        )
