"""What the commands share: opening, errors as one message, tables, JSON."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

import headrace
from headrace import _core

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "Packing",
    "chosen_column",
    "clean",
    "console",
    "core_of",
    "facts",
    "open_dataset",
    "plural",
    "print_json",
    "storage_options",
    "warn",
]


@dataclass(frozen=True)
class Packing:
    """How documents are packed, as given."""

    seq_len: int
    column: str | None
    eos_id: int | None
    bos_id: int | None
    overlap: int

    def pack(self, dataset: headrace.TableDataset, *, boundaries: bool = False) -> headrace.PackedDataset:
        """The dataset, packed."""
        return dataset.pack(
            self.seq_len,
            column=chosen_column(core_of(dataset), self.column),
            eos_id=self.eos_id,
            bos_id=self.bos_id,
            overlap=self.overlap,
            boundaries=boundaries,
        )


def clean(name: str, command: Callable[..., int], *arguments: Any, **options: Any) -> None:
    """Runs a command and exits with its code; what is wrong with arguments or data is one message and exit code 2.

    Raises:
        typer.Exit: unless the code is 0.
    """
    try:
        code = command(*arguments, **options)
    except (headrace.HeadraceError, ValueError) as error:
        print(f"headrace {name}: {error}", file=sys.stderr)
        code = 2
    if code:
        raise typer.Exit(code)


def storage_options(pairs: Iterable[str] | None) -> dict[str, str]:
    """Settings from KEY=VALUE texts.

    Raises:
        ValueError: if one is of another form. The text is not shown: it may be a secret.
    """
    options: dict[str, str] = {}
    for number, pair in enumerate(pairs or ()):
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"--storage-option must be KEY=VALUE, got another text (number {number} of those given)")
        options[key] = value
    return options


def open_dataset(urls: list[str], pairs: Iterable[str] | None, *, index: str = "auto") -> headrace.TableDataset:
    """Opens what was named."""
    dataset = headrace.open(urls, storage_options=storage_options(pairs), index=index)
    if not isinstance(dataset, headrace.TableDataset):
        raise ValueError(f"{dataset.url}: expected Parquet files, found {dataset.info()['format']}")
    return dataset


def core_of(dataset: headrace.TableDataset) -> _core.Index:
    """The index of a dataset."""
    return dataset._core  # pyright: ignore[reportPrivateUsage]


def chosen_column(core: _core.Index, given: str | None) -> str:
    """The token column that is meant: the given one, "tokens", or the only one.

    Raises:
        ValueError: if that is not clear.
    """
    if given is not None:
        return given
    columns = core.columns
    if len(columns) == 1:
        return columns[0]
    if columns and "tokens" not in columns:
        raise ValueError(f"{core.url}: several token columns: {', '.join(columns)}\nhint: --column says which")
    # Without a token column at all, the error names what the first file has in its place.
    return "tokens"


def print_json(value: Mapping[str, Any]) -> None:
    """The value on stdout, and nothing else."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def plural(count: int, name: str) -> str:
    """A count and what is counted."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def warn(message: str) -> None:
    """A line on stderr."""
    print(f"headrace: {message}", file=sys.stderr)


def console() -> "Console":
    """Where tables go: as wide as the terminal, or wide enough for paths."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)


def facts(pairs: Iterable[tuple[str, str]]) -> "Table":
    """A table of names and values."""
    from rich.table import Table

    table = Table.grid(padding=(0, 3))
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    return table
