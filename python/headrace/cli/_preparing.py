"""What the commands take that make datasets."""

from typing import Annotated

import typer

from ._options import INT32, MOST, Engine, Json, OutputOptions, Resume, StorageOptions, StoredDtype, Urls

__all__ = [
    "convert",
    "optimize",
    "tokenize",
]


def convert(
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
    chunk_size: Annotated[int | None, typer.Option(min=1, max=MOST, help="Samples in a file.")] = None,
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
        int | None, typer.Option(min=1, max=INT32 - 1, help="Cuts token files and streams to samples of that length.")
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
    resume: Resume = True,
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


def optimize(
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
    chunk_size: Annotated[int | None, typer.Option(min=1, max=MOST, help="Samples in a file.")] = None,
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
        typer.Option(min=1, max=MOST, help="Inputs are Parquet files: call the function with tables of so many rows."),
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--column", metavar="NAME", help="With --rows: a column. May be repeated.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Call the function with lists of so many inputs.")
    ] = None,
    first: Annotated[int | None, typer.Option(min=1, max=MOST, help="Do only so many inputs, for a look.")] = None,
    skip: Annotated[bool, typer.Option("--skip", help="Leave out inputs for which the function raises.")] = False,
    resume: Resume = True,
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


def tokenize(
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
        int | None, typer.Option(min=1, max=MOST, help="Documents in a file; of LitData tokens.")
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
    resume: Resume = True,
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
