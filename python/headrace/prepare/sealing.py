"""What a run that encrypts keeps until the end: neither its samples nor its key lie on the disk in the clear.

Samples that are encrypted one by one wait as they will be stored. Where chunks are encrypted, what waits for its chunk
is encrypted with the same key meanwhile. A run that goes on has to have the key with which it was begun, since each
`FernetEncryption` has one of its own: the journal keeps a word that only this key opens.
"""

import base64
from pathlib import Path

from headrace.encryption import Encryption
from headrace.errors import StateMismatch

__all__ = ["check_mark", "mark_of", "spool_key"]

_WORD = b"headrace"


def spool_key(encryption: Encryption | None) -> Encryption | None:
    """What encrypts samples that wait for their chunk, if they are not encrypted themselves."""
    return encryption if encryption is not None and encryption.level == "chunk" else None


def mark_of(encryption: Encryption | None) -> str | None:
    """A word that the key encrypted, as text for the journal."""
    return None if encryption is None else base64.b64encode(encryption.encrypt(_WORD)).decode()


def check_mark(mark: str | None, encryption: Encryption | None, folder: Path) -> None:
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
