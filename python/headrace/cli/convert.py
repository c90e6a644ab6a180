"""`headrace convert`: a dataset of any format in the files of another one."""

from collections.abc import Mapping
from typing import Any, Literal, cast

import headrace
from headrace._units import show_bytes
from headrace.cli._common import (
    console,
    facts,
    format_of,
    open_samples,
    print_json,
    printable,
    storage_options,
)
from headrace.media import File, Image, Tiff
from headrace.prepare import Graph, optimize
from headrace.prepare.record_copying import KINDS, copy_records
from headrace.prepare.target import Target

__all__ = ["run"]


def run(
    urls: list[str],
    output: str,
    *,
    to: str,
    chunk_bytes: str | None,
    chunk_size: int | None,
    compression: str | None,
    mode: str | None,
    workers: int | None,
    format: str | None,
    stored_dtype: str | None,
    sequence_length: int | None,
    column: list[str] | None,
    keep: list[str] | None,
    dtype: str | None,
    resume: bool,
    storage_option: list[str] | None,
    output_option: list[str] | None,
    as_json: bool,
) -> int:
    """Writes all samples, in their order."""
    # What is encoded stays as it is, where decoding and encoding it would change it.
    kinds = {"image": Image, "jpeg": Image, "tiff": Tiff, "tifffile": Tiff, "file": File, "graph": Graph}
    how: dict[str, Any] = {"serializers": kinds, "decode": False}
    cut: dict[str, Any] = {"stored_dtype": stored_dtype, "sequence_length": sequence_length}
    dataset = open_samples(urls, storage_option, format, **how, **cut)
    options = storage_options(output_option, "--output-option") or None
    left_out: list[str] = []
    if to in KINDS:
        _refuse(
            to,
            {
                "--chunk-size": chunk_size,
                "--compression": compression,
                "--workers": workers,
            },
        )
        made, left_out = copy_records(
            dataset,
            Target(output, options),
            kind=to,
            columns=column,
            keep=keep,
            dtype=dtype,
            shard_bytes=chunk_bytes or "1GiB",
            mode=cast("Any", mode),
            resume=resume,
            progress=True,
        )
    else:
        _refuse(to, {"--column": column, "--keep": keep, "--dtype": dtype})
        if isinstance(dataset, headrace.StreamDataset) and sequence_length is None and dataset.has_documents:
            dataset = dataset.documents()
        made = optimize(
            _same,
            dataset,
            output,
            format=cast("Literal['litdata', 'mds', 'parquet', 'arrow']", to),
            chunk_bytes=chunk_bytes,
            chunk_size=chunk_size,
            compression=compression,
            mode=cast("Any", mode),
            num_workers=workers,
            keep_data_ordered=True,
            resume=resume,
            output_options=options,
            verbose=False,
        )
    report: dict[str, Any] = {
        "url": dataset.url,
        "from": format_of(dataset),
        "to": to,
        "folder": str(made.folder),
        "samples": made.samples,
        "chunks": made.chunks,
        "bytes": made.bytes,
        "left_out": left_out,
        "seconds": round(made.seconds, 3),
    }
    if as_json:
        print_json(report)
        return 0
    pairs = [
        ("from", f"{report['url']} ({report['from']})"),
        ("to", f"{report['folder']} ({to})"),
        ("samples", f"{made.samples:,}"),
        ("chunks", f"{made.chunks:,}"),
        ("bytes", show_bytes(made.bytes)),
        *([("left out", ", ".join(map(printable, left_out)))] if left_out else []),
        ("seconds", f"{made.seconds:.1f}"),
    ]
    console().print(facts(pairs))
    return 0


def _same(sample: Any) -> Any:
    return sample


def _refuse(to: str, options: Mapping[str, Any]) -> None:
    """Refuses options that say nothing about what is written."""
    for name, value in options.items():
        if value is not None and value != []:
            raise ValueError(f"{name} is not for --format {to}")
