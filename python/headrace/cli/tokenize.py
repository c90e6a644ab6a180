"""`headrace tokenize`: text of any format that opens, as a dataset of tokens."""

import re
from typing import Any, Literal, cast

from headrace._units import show_bytes
from headrace.cli._common import console, facts, format_of, open_samples, print_json, storage_options
from headrace.prepare import tokenize

__all__ = ["run"]


def run(
    urls: list[str],
    output: str,
    *,
    tokenizer: str,
    column: str,
    bos: str,
    eos: str,
    keep: list[str] | None,
    to: str,
    chunk_bytes: str | None,
    chunk_size: int | None,
    compression: str | None,
    mode: str | None,
    workers: int | None,
    skip: bool,
    resume: bool,
    engine: str,
    format: str | None,
    storage_option: list[str] | None,
    output_option: list[str] | None,
    as_json: bool,
) -> int:
    """Writes the tokens of all documents, in their order; 1 if some were left out."""
    dataset = open_samples(urls, storage_option, format)
    made = tokenize(
        dataset,
        tokenizer,
        output,
        column=column,
        bos=_token("--bos", bos),
        eos=_token("--eos", eos),
        keep=keep,
        format=cast("Literal['litdata', 'mds', 'parquet', 'arrow']", to),
        chunk_bytes=chunk_bytes,
        chunk_size=chunk_size,
        compression=compression,
        mode=cast("Any", mode),
        num_workers=workers,
        on_error="skip" if skip else "raise",
        resume=resume,
        engine=cast("Literal['local', 'ray']", engine),
        output_options=storage_options(output_option, "--output-option") or None,
        verbose=False,
    )
    report: dict[str, Any] = {
        "url": dataset.url,
        "from": format_of(dataset),
        "to": to,
        "folder": str(made.folder),
        "documents": made.samples,
        "chunks": made.chunks,
        "bytes": made.bytes,
        "skipped": len(made.skipped),
        "seconds": round(made.seconds, 3),
    }
    if as_json:
        print_json(report)
    else:
        skipped = f"{len(made.skipped):,}" + (", listed in _headrace/skipped.jsonl" if made.skipped else "")
        pairs = [
            ("from", f"{report['url']} ({report['from']})"),
            ("to", f"{report['folder']} ({to})"),
            ("documents", f"{made.samples:,}"),
            ("chunks", f"{made.chunks:,}"),
            ("bytes", show_bytes(made.bytes)),
            ("skipped", skipped),
            ("seconds", f"{made.seconds:.1f}"),
        ]
        console().print(facts(pairs))
    return 1 if made.skipped else 0


def _token(name: str, value: str) -> bool | int:
    """What an option says of a token.

    Raises:
        ValueError: if it is neither yes, no nor an id.
    """
    if value in ("yes", "no"):
        return value == "yes"
    if re.fullmatch("[0-9]+", value):
        return int(value)
    raise ValueError(f"{name} must be yes, no or the id of a token, got {value!r}")
