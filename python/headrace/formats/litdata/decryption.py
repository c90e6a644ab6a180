"""Keys for encrypted LitData: what opens a chunk or a sample that was encrypted.

Anything with ``algorithm``, ``level`` and ``decrypt`` serves, so the objects of `litdata.utilities.encryption` do too.
The classes here read the files which those save, without litdata.
"""

import base64
import json
import os
from pathlib import Path
from typing import Any, cast

from headrace.errors import DataError
from headrace.formats.options import Decryption

__all__ = ["Decryption", "FernetDecryption", "RSADecryption", "load_decryption"]

_ITERATIONS = 480_000
"""Rounds of PBKDF2 that litdata derives a key with."""


class FernetDecryption:
    """Fernet by a password and the salt that litdata saved.

    Args:
        password: what the data was encrypted with.
        salt: 16 bytes.
        level: ``"chunk"`` or ``"sample"``.
    """

    algorithm = "fernet"

    def __init__(self, password: str, *, salt: bytes, level: str) -> None:
        _cryptography()
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC

        self.level = level
        derivation = PBKDF2HMAC(algorithm=hashes.SHA256(), length=32, salt=salt, iterations=_ITERATIONS)
        self._key = base64.urlsafe_b64encode(derivation.derive(password.encode()))
        self._fernet = _fernet(self._key)

    def decrypt(self, data: bytes) -> bytes:
        """The bytes that were encrypted."""
        return self._fernet.decrypt(data)

    def __getstate__(self) -> tuple[str, bytes]:
        return self.level, self._key

    def __setstate__(self, state: tuple[str, bytes]) -> None:
        self.level, self._key = state
        self._fernet = _fernet(self._key)


class RSADecryption:
    """RSA (OAEP with SHA-256) by a private key.

    Args:
        pem: the private key as PEM text.
        password: what the key itself is encrypted with, if it is.
        level: ``"chunk"`` or ``"sample"``.
    """

    algorithm = "rsa"

    def __init__(self, pem: str, *, password: str | None, level: str) -> None:
        _cryptography()
        self.level = level
        self._pem, self._password = pem, password
        self._open()

    def decrypt(self, data: bytes) -> bytes:
        """The bytes that were encrypted."""
        return self._private.decrypt(data, self._padding)

    def _open(self) -> None:
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import padding

        password = self._password.encode() if self._password else None
        self._private: Any = serialization.load_pem_private_key(self._pem.encode(), password=password)
        self._padding = padding.OAEP(mgf=padding.MGF1(algorithm=hashes.SHA256()), algorithm=hashes.SHA256(), label=None)

    def __getstate__(self) -> tuple[str, str, str | None]:
        return self.level, self._pem, self._password

    def __setstate__(self, state: tuple[str, str, str | None]) -> None:
        self.level, self._pem, self._password = state
        self._open()


def load_decryption(path: str | os.PathLike[str], password: str) -> FernetDecryption | RSADecryption:
    """The key of a file that litdata's ``encryption.save`` wrote.

    Args:
        path: the file: JSON with the salt (Fernet) or the private key (RSA).
        password: what the data, or the private key, was encrypted with.

    Raises:
        DataError: if the file is no such key.
        ValueError: if the password does not open it.
    """
    try:
        state = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{os.fspath(path)}: expected a key as litdata saves it (JSON): {error}") from None
    found = cast("dict[str, Any]", state) if isinstance(state, dict) else {}
    level, salt, pem = found.get("level"), found.get("salt"), found.get("private_key")
    if level in ("chunk", "sample") and isinstance(salt, str):
        return FernetDecryption(password, salt=base64.urlsafe_b64decode(salt), level=level)
    if level in ("chunk", "sample") and isinstance(pem, str):
        return RSADecryption(pem, password=password, level=level)
    raise DataError(
        f"{os.fspath(path)}: expected a key as litdata saves it, with a level and a salt or private_key, "
        f"found {sorted(found)}"
    )


def _fernet(key: bytes) -> Any:
    from cryptography.fernet import Fernet

    return Fernet(key)


def _cryptography() -> None:
    try:
        import cryptography as _  # noqa: F401
    except ImportError as error:
        raise ImportError("encrypted LitData needs the package cryptography\nhint: pip install cryptography") from error
