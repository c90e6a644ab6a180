"""Arguments that several commands take."""

from typing import Annotated

import typer

__all__ = [
    "INT32",
    "MOST",
    "BosId",
    "CacheDir",
    "Column",
    "Engine",
    "EosId",
    "Format",
    "GlobalBatch",
    "Json",
    "Lanes",
    "Memory",
    "OutputOptions",
    "Overlap",
    "Resume",
    "Seed",
    "SeqLen",
    "Shuffle",
    "StorageOptions",
    "StoredDtype",
    "Urls",
    "Window",
]

MOST = 2**32 - 1
INT32 = 2**31

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
Resume = Annotated[bool, typer.Option(help="Go on with an unfinished run, or forget it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SeqLen = Annotated[int, typer.Option(min=1, max=INT32 - 1, help="Tokens in a row.")]
GlobalBatch = Annotated[int, typer.Option("--batch", min=1, max=MOST, help="Rows of all ranks in a step.")]
Seed = Annotated[int, typer.Option(min=0, max=2**64 - 1, help="The seed of the order.")]
Shuffle = Annotated[bool, typer.Option(help="Shuffle, or keep the order of storage.")]
Window = Annotated[int | None, typer.Option(min=1, max=MOST, help="Row groups that are shuffled together.")]
Lanes = Annotated[int | None, typer.Option(min=1, max=MOST, help="Lanes; by default from the data and the batch.")]
Memory = Annotated[str, typer.Option(metavar="SIZE", help="The memory budget of a rank.")]
EosId = Annotated[int | None, typer.Option(min=-INT32, max=INT32 - 1, help="Put behind each document.")]
BosId = Annotated[int | None, typer.Option(min=-INT32, max=INT32 - 1, help="Put before each document.")]
Overlap = Annotated[int, typer.Option(min=0, help="Tokens with which the next row begins.")]
