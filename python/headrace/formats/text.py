"""Plain text, plain or compressed: a text on each line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace._files import Blob, File, Store
from headrace.errors import DataError

from ._line_source import LineChunk, LineSource
from ._lines import Lines
from ._tables import Table

__all__ = ["TextSource"]

_COLUMN = "text"


class TextSource(LineSource):
    """Lines of text files. A sample is ``{"text": line}``; blank lines are passed over."""

    format = "text"
    is_json = False

    def __init__(
        self, store: Store, files: Sequence[File], tables: Sequence[tuple[Sequence[int], Table]], cache_dir: Path
    ) -> None:
        super().__init__(store, files, tables, cache_dir)
        self.schema = {_COLUMN: "str"}

    def make(
        self, blob: Blob, offset: int, lines: Lines, uri: str, line: int, columns: tuple[str, ...] | None
    ) -> "TextChunk":
        """See `LineSource.make`."""
        return TextChunk(blob, offset, lines, uri, line)


class TextChunk(LineChunk):
    """Lines as they are, without their ends."""

    def sample(self, row: int, line: bytes) -> Any:
        """See `LineChunk.sample`."""
        try:
            return {_COLUMN: str(line, "utf-8").removesuffix("\r")}
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.where(row)}: expected UTF-8, found the byte 0x{line[error.start]:02x} at {error.start}"
            ) from None
