"""What the commands take that look at data, and at the rows that a run makes of it."""

from pathlib import Path
from typing import Annotated

import typer

from ._options import (
    MOST,
    BosId,
    Column,
    EosId,
    Format,
    GlobalBatch,
    Json,
    Lanes,
    Memory,
    Overlap,
    Seed,
    SeqLen,
    Shuffle,
    StorageOptions,
    StoredDtype,
    Urls,
    Window,
)

__all__ = [
    "head",
    "index",
    "inspect",
    "plan",
    "show",
    "verify",
]


def inspect(
    urls: Urls,
    column: Column = None,
    lengths: Annotated[bool, typer.Option(help="Read the token column to count documents by length.")] = True,
    format: Format = None,
    stored_dtype: StoredDtype = None,
    storage_option: StorageOptions = None,
    json: Json = False,
) -> None:
    """What there is: format, chunks, samples, their schema; of tokens also how many, and how long documents are."""
    from headrace.cli import inspect as command
    from headrace.cli._common import clean

    clean(
        "inspect",
        command.run,
        urls,
        column=column,
        lengths=lengths,
        format=format,
        stored_dtype=stored_dtype,
        storage_option=storage_option,
        as_json=json,
    )


def head(
    urls: Urls,
    count: Annotated[int, typer.Option("--count", "-n", min=0, max=MOST, help="Samples.")] = 3,
    start: Annotated[int, typer.Option(min=0, max=2**62, help="The first sample, from 0.")] = 0,
    select: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this part of each sample; may be repeated.")
    ] = None,
    format: Format = None,
    stored_dtype: StoredDtype = None,
    storage_option: StorageOptions = None,
    json: Json = False,
) -> None:
    """Some samples of any format in storage order, with what is long cut short."""
    from headrace.cli import head as command
    from headrace.cli._common import clean

    clean(
        "head",
        command.run,
        urls,
        count=count,
        start=start,
        select=select,
        format=format,
        stored_dtype=stored_dtype,
        storage_option=storage_option,
        as_json=json,
    )


def verify(
    urls: Urls,
    column: Annotated[
        str | None,
        typer.Option(help="The token column, which each file must have; by default each list of integers is one."),
    ] = None,
    format: Format = None,
    stored_dtype: StoredDtype = None,
    storage_option: StorageOptions = None,
    json: Json = False,
) -> None:
    """Read everything and print each fault with its place; exit code 1 if there is one."""
    from headrace.cli import verify as command
    from headrace.cli._common import clean

    clean(
        "verify",
        command.run,
        urls,
        column=column,
        format=format,
        stored_dtype=stored_dtype,
        storage_option=storage_option,
        as_json=json,
    )


def plan(
    urls: Urls,
    seq_len: SeqLen,
    batch: GlobalBatch,
    world: Annotated[int, typer.Option(min=1, max=MOST, help="Ranks.")] = 1,
    window: Window = None,
    lanes: Lanes = None,
    seed: Seed = 0,
    shuffle: Shuffle = True,
    memory: Memory = "2GiB",
    eos_id: EosId = None,
    bos_id: BosId = None,
    overlap: Overlap = 0,
    column: Column = None,
    storage_option: StorageOptions = None,
    json: Json = False,
) -> None:
    """What a run over tokens would do: steps, tokens, bytes that each rank reads, memory."""
    from headrace.cli import plan as command
    from headrace.cli._common import Packing, clean

    packing = Packing(seq_len, column, eos_id, bos_id, overlap)
    clean(
        "plan",
        command.run,
        urls,
        packing=packing,
        order=command.Order(batch, world, window, lanes, seed, shuffle, memory),
        storage_option=storage_option,
        as_json=json,
    )


def show(
    urls: Urls,
    seq_len: SeqLen,
    batch: GlobalBatch,
    step: Annotated[int, typer.Option(min=0, max=2**40, help="The step, from 0.")],
    row: Annotated[int, typer.Option(min=0, max=MOST, help="The row of the global batch, from 0.")],
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A tokenizers JSON file, to show the text.")
    ] = None,
    window: Window = None,
    lanes: Lanes = None,
    seed: Seed = 0,
    shuffle: Shuffle = True,
    memory: Memory = "2GiB",
    eos_id: EosId = None,
    bos_id: BosId = None,
    overlap: Overlap = 0,
    column: Column = None,
    storage_option: StorageOptions = None,
    json: Json = False,
) -> None:
    """A row of a step: its tokens, the documents that they come from, and their text."""
    from headrace.cli import show as command
    from headrace.cli._common import Packing, clean

    clean(
        "show",
        command.run,
        urls,
        packing=Packing(seq_len, column, eos_id, bos_id, overlap),
        order=command.Order(batch, window, lanes, seed, shuffle, memory),
        step=step,
        row=row,
        tokenizer=tokenizer,
        storage_option=storage_option,
        as_json=json,
    )


def index(
    urls: Urls,
    in_place: Annotated[bool, typer.Option("--in-place", help="Write the index next to the data.")] = False,
    column: Annotated[
        str | None, typer.Option(help="A token column whose tokens and documents are to be counted as well.")
    ] = None,
    storage_option: StorageOptions = None,
    json: Json = False,
) -> None:
    """Read all footers of Parquet files anew and save the index, in the cache folder or also next to the data."""
    from headrace.cli import index as command
    from headrace.cli._common import clean

    clean("index", command.run, urls, in_place=in_place, column=column, storage_option=storage_option, as_json=json)
