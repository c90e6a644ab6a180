"""Keys for LitData: what `headrace.optimize` encrypts samples or chunks with, and `headrace.open` decrypts them with.

    key = FernetEncryption("a long password", level="chunk")
    key.save("key.json")
    headrace.optimize(fn, inputs, "data", encryption=key)

    headrace.open("data", decryption=load_key("key.json", "a long password"))

What is encrypted is as litdata has it, so its keys open what these encrypted and the other way round. Any object with
``algorithm``, ``level``, ``encrypt`` and ``decrypt`` serves in their place: litdata's own, or one of yours. All of this
needs the package cryptography.
"""

import base64
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from headrace.errors import DataError
from headrace.formats.options import Decryption

__all__ = ["Encryption", "FernetEncryption", "Level", "RSAEncryption", "load_key"]

Level = Literal["chunk", "sample"]
"""What is encrypted by itself: a file, or each sample in it."""

_LEVELS = ("chunk", "sample")
_ITERATIONS = 480_000
"""Rounds of PBKDF2 that litdata derives a key with."""
_RSA_BITS = 2048
_OAEP_BYTES = 66
"""What OAEP with SHA-256 takes of the bytes of an RSA key."""
_WRAPPED = b"HRRSA1\0\0"
"""Before a Fernet key that RSA encrypted, and what that key encrypted."""


class Encryption(Decryption, Protocol):
    """What encrypts bytes and opens them again. It must pickle if work is done in other processes."""

    def encrypt(self, data: bytes) -> bytes:
        """Encrypts bytes."""
        ...


class FernetEncryption:
    """Fernet (AES and HMAC) with a key that is derived from a password and a salt.

    Each object has a salt, and so a key, of its own: save it, the password alone opens nothing.

    Args:
        password: any text; it is not kept.
        level: what is encrypted by itself, ``"sample"`` or ``"chunk"``.
        salt: 16 bytes that were saved; by default they are drawn.

    Raises:
        ImportError: if cryptography is not installed.
        ValueError: if there is no password, or no such level.

    Example:
        >>> key = FernetEncryption("a long password", level="chunk")
        >>> key.decrypt(key.encrypt(b"content"))
        b'content'
    """

    algorithm = "fernet"

    def __init__(self, password: str, level: Level = "sample", *, salt: bytes | None = None) -> None:
        _check(level, password)
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC

        self.level: Level = level
        self._salt = os.urandom(16) if salt is None else salt
        derivation = PBKDF2HMAC(algorithm=hashes.SHA256(), length=32, salt=self._salt, iterations=_ITERATIONS)
        self._key = base64.urlsafe_b64encode(derivation.derive(password.encode()))
        self._fernet = _fernet(self._key)

    def encrypt(self, data: bytes) -> bytes:
        """Encrypts bytes, with a time and a random start: the same bytes come out differently each time.

        Example:
            >>> key = FernetEncryption("a long password")
            >>> key.encrypt(b"content") == key.encrypt(b"content")
            False
        """
        return self._fernet.encrypt(data)

    def decrypt(self, data: bytes) -> bytes:
        """The bytes that were encrypted.

        Raises:
            cryptography.fernet.InvalidToken: if another key encrypted them, or they were changed.

        Example:
            >>> key = FernetEncryption("a long password")
            >>> key.decrypt(key.encrypt(b"content"))
            b'content'
        """
        return self._fernet.decrypt(data)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the salt and the level, as litdata does: with the password they are the key.

        Example:
            >>> FernetEncryption("a long password").save(folder / "key.json")
        """
        _save(path, {**self.state_dict(), "salt": base64.urlsafe_b64encode(self._salt).decode()})

    @classmethod
    def load(cls, path: str | os.PathLike[str], password: str) -> "FernetEncryption":
        """The key of a file that `save`, or litdata's, wrote. Whether the password is the right one shows in use.

        Raises:
            DataError: if the file is no such key.

        Example:
            >>> key = FernetEncryption("a long password")
            >>> key.save(folder / "key.json")
            >>> FernetEncryption.load(folder / "key.json", "a long password").decrypt(key.encrypt(b"content"))
            b'content'
        """
        state = _load(path, "salt")
        try:
            salt = base64.urlsafe_b64decode(state["salt"])
        except ValueError:
            raise DataError(f"{os.fspath(path)}: expected a salt in base64, found something else") from None
        return cls(password, state["level"], salt=salt)

    def state_dict(self) -> dict[str, str]:
        """What an index says of the encryption; nothing of the key.

        Example:
            >>> FernetEncryption("a long password").state_dict()
            {'algorithm': 'fernet', 'level': 'sample'}
        """
        return {"algorithm": self.algorithm, "level": self.level}

    def __repr__(self) -> str:
        return f"FernetEncryption(level={self.level!r})"

    def __getstate__(self) -> tuple[Level, bytes, bytes]:
        return self.level, self._salt, self._key

    def __setstate__(self, state: tuple[Level, bytes, bytes]) -> None:
        self.level, self._salt, self._key = state
        self._fernet = _fernet(self._key)


class RSAEncryption:
    """RSA (OAEP with SHA-256): for short samples as litdata has it, for others with a Fernet key for each.

    RSA itself encrypts no more than 190 bytes with a key of 2048 bits, and litdata nothing longer. Longer samples, and
    chunks, are encrypted here by a Fernet key that is drawn for each, and that key by RSA.

    Args:
        password: what the private key is encrypted with when it is saved, None or ``""`` for not at all.
        level: what is encrypted by itself, ``"sample"`` or ``"chunk"``.
        private_key: a private key as PEM; by default one of 2048 bits is made.

    Raises:
        ImportError: if cryptography is not installed.
        ValueError: if the password does not open the private key, or there is no such level.

    Example:
        >>> key = RSAEncryption("a long password")
        >>> key.decrypt(key.encrypt(b"content" * 1000)) == b"content" * 1000
        True
    """

    algorithm = "rsa"

    def __init__(
        self, password: str | None = None, level: Level = "sample", *, private_key: bytes | None = None
    ) -> None:
        _check(level, password or "none")
        from cryptography.hazmat.primitives.asymmetric import rsa

        self.level: Level = level
        self._password = password or None
        if private_key is None:
            self._open(rsa.generate_private_key(public_exponent=65537, key_size=_RSA_BITS))
        else:
            self._open(_private(private_key, self._password))

    def encrypt(self, data: bytes) -> bytes:
        """Encrypts bytes; the same come out differently each time.

        Example:
            >>> len(RSAEncryption().encrypt(b"content"))
            256
        """
        if len(data) <= self._size - _OAEP_BYTES:
            return self._public.encrypt(data, self._padding)
        from cryptography.fernet import Fernet

        key = Fernet.generate_key()
        return _WRAPPED + self._public.encrypt(key, self._padding) + _fernet(key).encrypt(data)

    def decrypt(self, data: bytes) -> bytes:
        """The bytes that were encrypted.

        Raises:
            ValueError: if another key encrypted them.
            cryptography.fernet.InvalidToken: if they were changed.

        Example:
            >>> key = RSAEncryption()
            >>> key.decrypt(key.encrypt(b"content"))
            b'content'
        """
        if len(data) == self._size or not data.startswith(_WRAPPED):
            return self._private.decrypt(data, self._padding)
        at = len(_WRAPPED)
        key = self._private.decrypt(data[at : at + self._size], self._padding)
        return _fernet(key).decrypt(data[at + self._size :])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the keys and the level as JSON, the private key encrypted with the password.

        litdata's `load` reads such a file if there is no password: it looks for that in the file, beside the key that
        it protects, and here it is not written. For litdata, use `save_keys`.

        Example:
            >>> RSAEncryption("a long password").save(folder / "key.json")
        """
        private, public = self._pem(self._password)
        state = {"private_key": private.decode(), "public_key": public.decode(), "password": None}
        _save(path, {**self.state_dict(), **state})

    def save_keys(self, private_path: str | os.PathLike[str], public_path: str | os.PathLike[str]) -> None:
        """Writes the two keys as PEM files, which litdata's `load_keys` reads.

        Example:
            >>> key = RSAEncryption("a long password")
            >>> key.save_keys(folder / "private.pem", folder / "public.pem")
            >>> again = RSAEncryption("a long password", private_key=(folder / "private.pem").read_bytes())
            >>> again.decrypt(key.encrypt(b"content"))
            b'content'
        """
        for path, pem in zip((private_path, public_path), self._pem(self._password), strict=True):
            _write(path, pem)

    @classmethod
    def load(cls, path: str | os.PathLike[str], password: str | None) -> "RSAEncryption":
        """The key of a file that `save`, or litdata's, wrote.

        Raises:
            DataError: if the file is no such key.
            ValueError: if the password does not open it.

        Example:
            >>> key = RSAEncryption("a long password")
            >>> key.save(folder / "key.json")
            >>> RSAEncryption.load(folder / "key.json", "a long password").decrypt(key.encrypt(b"content"))
            b'content'
        """
        state = _load(path, "private_key")
        try:
            return cls(password, state["level"], private_key=state["private_key"].encode())
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None

    def state_dict(self) -> dict[str, str]:
        """What an index says of the encryption; nothing of the key.

        Example:
            >>> RSAEncryption(level="chunk").state_dict()
            {'algorithm': 'rsa', 'level': 'chunk'}
        """
        return {"algorithm": self.algorithm, "level": self.level}

    def __repr__(self) -> str:
        return f"RSAEncryption(level={self.level!r})"

    def __getstate__(self) -> tuple[Level, str | None, bytes]:
        return self.level, self._password, self._pem(None)[0]

    def __setstate__(self, state: tuple[Level, str | None, bytes]) -> None:
        self.level, self._password, private = state
        self._open(_private(private, None))

    def _open(self, private: Any) -> None:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        self._private, self._public = private, private.public_key()
        self._size: int = private.key_size // 8
        self._padding = padding.OAEP(mgf=padding.MGF1(algorithm=hashes.SHA256()), algorithm=hashes.SHA256(), label=None)

    def _pem(self, password: str | None) -> tuple[bytes, bytes]:
        """The private key, encrypted if there is a password, and the public one."""
        from cryptography.hazmat.primitives import serialization as forms

        hidden: Any = forms.NoEncryption()
        if password is not None:
            hidden = forms.BestAvailableEncryption(password.encode())
        private = self._private.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, hidden)
        return private, self._public.public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)


def load_key(path: str | os.PathLike[str], password: str | None) -> FernetEncryption | RSAEncryption:
    """The key of a file that ``save`` wrote, here or in litdata.

    Args:
        path: the file: JSON with the salt (Fernet) or the private key (RSA).
        password: what the data, or the private key, was encrypted with.

    Raises:
        DataError: if the file is no such key.
        ValueError: if the password does not open it.

    Example:
        >>> RSAEncryption("a long password").save(folder / "key.json")
        >>> load_key(folder / "key.json", "a long password")
        RSAEncryption(level='sample')
    """
    if "salt" in _load(path, "salt", "private_key"):
        return FernetEncryption.load(path, password or "")
    return RSAEncryption.load(path, password)


def _load(path: str | os.PathLike[str], *names: str) -> dict[str, Any]:
    """A saved key, which has a level and one of some other values."""
    try:
        state = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError):
        # What the parser says could quote the file.
        raise DataError(f"{os.fspath(path)}: expected a key as litdata saves it, found no JSON") from None
    found = cast("dict[str, Any]", state) if isinstance(state, dict) else {}
    if found.get("level") not in _LEVELS or not any(isinstance(found.get(name), str) for name in names):
        raise DataError(
            f"{os.fspath(path)}: expected a key as litdata saves it, with a level and {' or '.join(names)}, "
            f"found {', '.join(sorted(found)) or 'nothing of that'}"
        )
    return found


def _save(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    _write(path, json.dumps(state).encode())


def _write(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file that only its owner may read, so that it is there whole or what was there before still is."""
    # A link stays one.
    target = Path(path).resolve()
    # Made anew, it has no rights of one that is there.
    held, aside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(held, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        Path(aside).replace(target)
    except BaseException:
        Path(aside).unlink()
        raise


def _private(pem: bytes, password: str | None) -> Any:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    try:
        key = serialization.load_pem_private_key(pem, password=None if password is None else password.encode())
    except TypeError:
        # Says that a password is missing, or that there is one for a key that is not encrypted.
        wanted = "no password, as the key is not encrypted" if password else "the password of an encrypted private key"
        raise ValueError(f"expected {wanted}") from None
    except ValueError:
        raise ValueError(
            "expected a private key as PEM and its password, found another password or a damaged key"
        ) from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ValueError(f"expected a private key of RSA, found a {type(key).__name__}")
    return key


def _fernet(key: bytes) -> Any:
    from cryptography.fernet import Fernet

    return Fernet(key)


def _check(level: str, password: str) -> None:
    if level not in _LEVELS:
        raise ValueError(f'level must be "chunk" or "sample", got {level!r}')
    if not isinstance(password, str) or not password:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError("password must be text, and not empty")
    try:
        import cryptography as _  # noqa: F401
    except ImportError as error:
        raise ImportError("encryption needs cryptography\nhint: pip install 'headrace[encryption]'") from error
