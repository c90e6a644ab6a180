"""Types of what `headrace.open` takes for some formats, apart from them so that it need not import them."""

from collections.abc import Callable
from typing import Literal, Protocol

__all__ = ["Decryption", "Group"]

Group = Literal["stem"] | Callable[[str], "str | tuple[str, str] | None"]
"""How files are put together: see `FilesSource.open`."""


class Decryption(Protocol):
    """What opens encrypted bytes. It must pickle if the dataset is to be read by other processes."""

    @property
    def algorithm(self) -> str:
        """``"fernet"`` or ``"rsa"``, as the index has it."""
        ...

    @property
    def level(self) -> str:
        """``"chunk"`` or ``"sample"``."""
        ...

    def decrypt(self, data: bytes) -> bytes:
        """The bytes that were encrypted."""
        ...
