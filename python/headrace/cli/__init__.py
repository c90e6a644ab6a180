"""The command line: `headrace inspect | head | verify | plan | show | index | convert | optimize | tokenize | ...`.

Here is what each command takes. What it does is in a module of its own, imported when it is called, so that
``headrace --help`` loads none of them.
"""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(
    name="headrace",
    help="Look at training data where it lies, and at the rows that a run makes of it.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_MOST = 2**32 - 1
_INT32 = 2**31

Urls = Annotated[
    list[str],
    typer.Argument(metavar="URL...", help="A folder, file, glob or URL (s3://, gs://, ...); several make one dataset."),
]
Column = Annotated[
    str | None, typer.Option(help='The token column, such as "tokens" or "a.b"; by default "tokens", or the only one.')
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option("--storage-option", metavar="KEY=VALUE", help="A setting of the store; may be repeated."),
]
OutputOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--output-option", metavar="KEY=VALUE", help="A setting of the store that is written to; may be repeated."
    ),
]
CacheDir = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="The cache folder; by default that which headrace.open takes.")
]
Format = Annotated[
    str | None,
    typer.Option(metavar="FORMAT", help="The format, as headrace.open takes it; by default it is found out."),
]
StoredDtype = Annotated[
    str | None, typer.Option(metavar="TYPE", help="Of token files that do not say it, such as uint16.")
]
Engine = Annotated[str, typer.Option(metavar="NAME", help="local, or ray for processes on a Ray cluster.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SeqLen = Annotated[int, typer.Option(min=1, max=_INT32 - 1, help="Tokens in a row.")]
GlobalBatch = Annotated[int, typer.Option("--batch", min=1, max=_MOST, help="Rows of all ranks in a step.")]
Seed = Annotated[int, typer.Option(min=0, max=2**64 - 1, help="The seed of the order.")]
Shuffle = Annotated[bool, typer.Option(help="Shuffle, or keep the order of storage.")]
Window = Annotated[int | None, typer.Option(min=1, max=_MOST, help="Row groups that are shuffled together.")]
Lanes = Annotated[int | None, typer.Option(min=1, max=_MOST, help="Lanes; by default from the data and the batch.")]
Memory = Annotated[str, typer.Option(metavar="SIZE", help="The memory budget of a rank.")]
EosId = Annotated[int | None, typer.Option(min=-_INT32, max=_INT32 - 1, help="Put behind each document.")]
BosId = Annotated[int | None, typer.Option(min=-_INT32, max=_INT32 - 1, help="Put before each document.")]
Overlap = Annotated[int, typer.Option(min=0, help="Tokens with which the next row begins.")]


def _version(wanted: bool) -> None:
    if wanted:
        from headrace import __version__

        print(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _main(  # pyright: ignore[reportUnusedFunction]
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Look at training data where it lies, and at the rows that a run makes of it."""


@app.command("inspect")
def _inspect(  # pyright: ignore[reportUnusedFunction]
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


@app.command("head")
def _head(  # pyright: ignore[reportUnusedFunction]
    urls: Urls,
    count: Annotated[int, typer.Option("--count", "-n", min=0, max=_MOST, help="Samples.")] = 3,
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


@app.command("verify")
def _verify(  # pyright: ignore[reportUnusedFunction]
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


@app.command("plan")
def _plan(  # pyright: ignore[reportUnusedFunction]
    urls: Urls,
    seq_len: SeqLen,
    batch: GlobalBatch,
    world: Annotated[int, typer.Option(min=1, max=_MOST, help="Ranks.")] = 1,
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


@app.command("show")
def _show(  # pyright: ignore[reportUnusedFunction]
    urls: Urls,
    seq_len: SeqLen,
    batch: GlobalBatch,
    step: Annotated[int, typer.Option(min=0, max=2**40, help="The step, from 0.")],
    row: Annotated[int, typer.Option(min=0, max=_MOST, help="The row of the global batch, from 0.")],
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


@app.command("index")
def _index(  # pyright: ignore[reportUnusedFunction]
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


@app.command("convert")
def _convert(  # pyright: ignore[reportUnusedFunction]
    urls: Urls,
    output: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Where the new dataset goes: an empty folder, or a URL in a store.")
    ],
    to: Annotated[
        str,
        typer.Option(
            "--format", metavar="NAME", help="What is written: litdata, mds, parquet, arrow, documents or stream."
        ),
    ],
    chunk_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of samples in a file; by default 64MiB, 1GiB of records.")
    ] = None,
    chunk_size: Annotated[int | None, typer.Option(min=1, max=_MOST, help="Samples in a file.")] = None,
    compression: Annotated[str | None, typer.Option(metavar="NAME", help="zstd or zstd:LEVEL.")] = None,
    mode: Annotated[
        str | None, typer.Option(metavar="NAME", help="append or overwrite, if there is a dataset in the folder.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, max=4096, help="Processes; by default as many as there are processors.")
    ] = None,
    source_format: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="The format of what is read; by default it is found out."),
    ] = None,
    stored_dtype: StoredDtype = None,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, max=_INT32 - 1, help="Cuts token files and streams to samples of that length.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Of documents and streams: what records are; by default tokens."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What is stored with a document; by default all single numbers."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Of the numbers in documents and streams; by default the same.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with an unfinished run, or forget it.")] = True,
    storage_option: StorageOptions = None,
    output_option: OutputOptions = None,
    json: Json = False,
) -> None:
    """Write a dataset of any format as LitData chunks, MDS shards, Parquet or Arrow files, or records, in its order."""
    from headrace.cli import convert as command
    from headrace.cli._common import clean

    clean(
        "convert",
        command.run,
        urls,
        output,
        to=to,
        chunk_bytes=chunk_bytes,
        chunk_size=chunk_size,
        compression=compression,
        mode=mode,
        workers=workers,
        format=source_format,
        stored_dtype=stored_dtype,
        sequence_length=sequence_length,
        column=column,
        keep=keep,
        dtype=dtype,
        resume=resume,
        storage_option=storage_option,
        output_option=output_option,
        as_json=json,
    )


@app.command("optimize")
def _optimize(  # pyright: ignore[reportUnusedFunction]
    function: Annotated[
        str, typer.Argument(metavar="FUNCTION", help="What makes samples of an input: module:name or file.py:name.")
    ],
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[INPUT]... FOLDER",
            help="Files, folders, globs or URLs: the function gets files. Last an empty folder, for the dataset.",
        ),
    ],
    lists: Annotated[
        list[str] | None,
        typer.Option("--list", metavar="FILE", help="Text with an input on each line; - for stdin. May be repeated."),
    ] = None,
    to: Annotated[
        str, typer.Option("--format", metavar="NAME", help="What is written: litdata, mds, parquet or arrow.")
    ] = "litdata",
    chunk_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of samples in a file; by default 64MiB.")
    ] = None,
    chunk_size: Annotated[int | None, typer.Option(min=1, max=_MOST, help="Samples in a file.")] = None,
    compression: Annotated[str | None, typer.Option(metavar="NAME", help="zstd or zstd:LEVEL.")] = None,
    mode: Annotated[
        str | None, typer.Option(metavar="NAME", help="append or overwrite, if there is a dataset in the folder.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, max=4096, help="Processes; by default as many as there are processors.")
    ] = None,
    ordered: Annotated[bool, typer.Option("--ordered", help="Keep the order of inputs.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Samples are arrays of tokens, for LitData.")] = False,
    rows: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST, help="Inputs are Parquet files: call the function with tables of so many rows."),
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--column", metavar="NAME", help="With --rows: a column. May be repeated.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="Call the function with lists of so many inputs.")
    ] = None,
    first: Annotated[int | None, typer.Option(min=1, max=_MOST, help="Do only so many inputs, for a look.")] = None,
    skip: Annotated[bool, typer.Option("--skip", help="Leave out inputs for which the function raises.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on with an unfinished run, or forget it.")] = True,
    engine: Engine = "local",
    storage_option: StorageOptions = None,
    output_option: OutputOptions = None,
    json: Json = False,
) -> None:
    """Make a dataset of what a function of yours makes of each input."""
    from headrace.cli import optimize as command
    from headrace.cli._common import clean

    clean(
        "optimize",
        command.run,
        function,
        places[:-1],
        places[-1],
        lists=lists,
        to=to,
        chunk_bytes=chunk_bytes,
        chunk_size=chunk_size,
        compression=compression,
        mode=mode,
        workers=workers,
        ordered=ordered,
        tokens=tokens,
        rows=rows,
        columns=columns,
        batch_size=batch_size,
        first=first,
        skip=skip,
        resume=resume,
        engine=engine,
        storage_option=storage_option,
        output_option=output_option,
        as_json=json,
    )


@app.command("tokenize")
def _tokenize(  # pyright: ignore[reportUnusedFunction]
    urls: Urls,
    output: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Where the new dataset goes: an empty folder, or a URL in a store.")
    ],
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="A tokenizer.json, a folder that has one, or an encoding such as tiktoken:gpt2."
        ),
    ],
    column: Annotated[str, typer.Option(metavar="NAME", help="The part of a sample that is the text.")] = "text",
    bos: Annotated[
        str, typer.Option(metavar="TOKEN", help="yes, no or the id of the token that documents begin with.")
    ] = "no",
    eos: Annotated[
        str, typer.Option(metavar="TOKEN", help="yes, no or the id of the token that documents end with.")
    ] = "yes",
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A part of a sample that is kept; by default id, or file and row."),
    ] = None,
    to: Annotated[
        str, typer.Option("--format", metavar="NAME", help="What is written: parquet, arrow, litdata or mds.")
    ] = "parquet",
    chunk_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of samples in a file; by default 64MiB.")
    ] = None,
    chunk_size: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="Documents in a file; of LitData tokens.")
    ] = None,
    compression: Annotated[str | None, typer.Option(metavar="NAME", help="zstd or zstd:LEVEL.")] = None,
    mode: Annotated[
        str | None, typer.Option(metavar="NAME", help="append or overwrite, if there is a dataset in the folder.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, max=4096, help="Processes; by default as many as there are processors.")
    ] = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="Leave out documents that are damaged or no text; exit code 1 if there are.")
    ] = False,
    source_format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="The format of what is read; by default it is found out. text: each line is a document.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with an unfinished run, or forget it.")] = True,
    engine: Engine = "local",
    storage_option: StorageOptions = None,
    output_option: OutputOptions = None,
    json: Json = False,
) -> None:
    """Write the tokens of text in any format as Parquet or Arrow files, LitData chunks or MDS shards, in its order."""
    from headrace.cli import tokenize as command
    from headrace.cli._common import clean

    clean(
        "tokenize",
        command.run,
        urls,
        output,
        tokenizer=tokenizer,
        column=column,
        bos=bos,
        eos=eos,
        keep=keep,
        to=to,
        chunk_bytes=chunk_bytes,
        chunk_size=chunk_size,
        compression=compression,
        mode=mode,
        workers=workers,
        skip=skip,
        format=source_format,
        resume=resume,
        engine=engine,
        storage_option=storage_option,
        output_option=output_option,
        as_json=json,
    )


_cache = typer.Typer(help="The folder of indexes, and of what was read of remote stores.", no_args_is_help=True)
app.add_typer(_cache, name="cache")


@_cache.command("path")
def _cache_path(  # pyright: ignore[reportUnusedFunction]
    cache_dir: CacheDir = None, json: Json = False
) -> None:
    """Where it is."""
    from headrace.cli import cache as command
    from headrace.cli._common import clean

    clean("cache path", command.path, cache_dir=cache_dir, as_json=json)


@_cache.command("info")
def _cache_info(  # pyright: ignore[reportUnusedFunction]
    cache_dir: CacheDir = None, json: Json = False
) -> None:
    """What it holds."""
    from headrace.cli import cache as command
    from headrace.cli._common import clean

    clean("cache info", command.info, cache_dir=cache_dir, as_json=json)


@_cache.command("clear")
def _cache_clear(  # pyright: ignore[reportUnusedFunction]
    everything: Annotated[
        bool, typer.Option("--all", help="Also indexes and tables, which opening a dataset makes anew.")
    ] = False,
    cache_dir: CacheDir = None,
    json: Json = False,
) -> None:
    """Remove what was read of remote stores; files that headrace did not put there stay."""
    from headrace.cli import cache as command
    from headrace.cli._common import clean

    clean("cache clear", command.clear, cache_dir=cache_dir, everything=everything, as_json=json)


@app.command(
    "demo",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def _demo(  # pyright: ignore[reportUnusedFunction]
    context: typer.Context,
) -> None:
    """Load this machine's own text, kill the run, resume it on other ranks, compare."""
    from headrace.demo.run import main as run

    run(context.args)
