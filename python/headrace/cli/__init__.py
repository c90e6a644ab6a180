"""The command line: `headrace inspect | head | verify | plan | show | index | convert | optimize | tokenize | ...`.

What each command takes is in `_reading` and `_preparing`, or here. What it does is in a module of its own, imported
when it is called, so that ``headrace --help`` loads none of them.
"""

from typing import Annotated

import typer

from . import _preparing, _reading
from ._options import CacheDir, Json

__all__ = ["app"]

app = typer.Typer(
    name="headrace",
    help="Look at training data where it lies, and at the rows that a run makes of it.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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


app.command("inspect")(_reading.inspect)
app.command("head")(_reading.head)
app.command("verify")(_reading.verify)
app.command("plan")(_reading.plan)
app.command("show")(_reading.show)
app.command("index")(_reading.index)
app.command("convert")(_preparing.convert)
app.command("optimize")(_preparing.optimize)
app.command("tokenize")(_preparing.tokenize)

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
