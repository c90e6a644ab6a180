"""What the commands share: opening, errors as one message, tables, JSON."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

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
    "format_of",
    "open_dataset",
    "open_samples",
    "plural",
    "print_json",
    "printable",
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
    """Runs a command and exits with its code; what is wrong is one message and exit code 2.

    That is arguments or data that cannot be used, and memory that does not suffice.

    Raises:
        typer.Exit: unless the code is 0.
    """
    try:
        code = command(*arguments, **options)
    except (headrace.HeadraceError, ValueError, ImportError) as error:
        print(f"headrace {name}: {_as_options(str(error))}", file=sys.stderr)
        code = 2
    except MemoryError as error:
        # Python's own says nothing, NumPy's says how much was asked for.
        print(f"headrace {name}: not enough memory{f': {error}' if str(error) else ''}", file=sys.stderr)
        code = 2
    if code:
        raise typer.Exit(code)


def _as_options(message: str) -> str:
    """A message whose hints name options where they named arguments of functions."""
    what, sign, hints = message.partition("\nhint:")
    for argument, option in _OPTIONS:
        hints = argument.sub(option, hints)
    return what + sign + hints


_OPTIONS = (
    (re.compile(r'\bmode="(append|overwrite)"'), r"--mode \1"),
    (re.compile(r"\bresume=False\b"), "--no-resume"),
    (re.compile(r"\bnum_workers=([0-9]+)"), r"--workers \1"),
)
"""Arguments that messages of preparing name, and the options of its commands that they are."""


def storage_options(pairs: Iterable[str] | None, name: str = "--storage-option") -> dict[str, str]:
    """Settings from KEY=VALUE texts, which were given as an option of this name.

    Raises:
        ValueError: if one is of another form. The text is not shown: it may be a secret.
    """
    options: dict[str, str] = {}
    for number, pair in enumerate(pairs or ()):
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"{name} must be KEY=VALUE, got another text (number {number} of those given)")
        options[key] = value
    return options


def open_samples(
    urls: list[str], pairs: Iterable[str] | None, format: str | None, **how: Any
) -> headrace.SampleDataset:
    """Opens what was named, of any format."""
    return headrace.open(urls, format=cast("Any", format), storage_options=storage_options(pairs), **how)


def open_dataset(urls: list[str], pairs: Iterable[str] | None, *, index: str = "auto") -> headrace.TableDataset:
    """Opens the Parquet files that were named.

    Raises:
        ValueError: if it is another format.
    """
    dataset = open_samples(urls, pairs, None, index=index)
    if not isinstance(dataset, headrace.TableDataset):
        raise ValueError(
            f"{dataset.url}: expected Parquet files, found {format_of(dataset)}\n"
            "hint: this command is about token columns of Parquet files; inspect, head and verify take every format"
        )
    return dataset


def format_of(dataset: headrace.SampleDataset) -> str:
    """The name of a dataset's format; of several datasets the first one's."""
    return dataset.pipeline.origins[0].source.format


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


def printable(text: str) -> str:
    """Text on one line of a terminal: whatever it holds, nothing reaches the terminal's controls."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


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
