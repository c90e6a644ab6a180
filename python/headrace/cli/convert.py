"""`headrace convert`: a dataset of any format in the files of another one."""

from typing import Any, Literal, cast

import headrace
from headrace._units import show_bytes
from headrace.cli._common import console, facts, format_of, open_samples, print_json
from headrace.media import File, Image, Tiff
from headrace.prepare import Graph, optimize

__all__ = ["run"]


class _Samples:
    """Reads a sample by its number, in whatever process."""

    def __init__(self, dataset: headrace.SampleDataset) -> None:
        self._dataset = dataset

    def __call__(self, number: int) -> Any:
        return self._dataset[number]


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
    storage_option: list[str] | None,
    as_json: bool,
) -> int:
    """Writes all samples, in their order."""
    # What is encoded stays as it is, where decoding and encoding it would change it.
    kinds = {"image": Image, "jpeg": Image, "tiff": Tiff, "tifffile": Tiff, "file": File, "graph": Graph}
    how: dict[str, Any] = {"serializers": kinds, "decode": False}
    dataset = open_samples(urls, storage_option, format, **how)
    made = optimize(
        _Samples(dataset),
        range(len(dataset)),
        output,
        format=cast("Literal['litdata', 'mds', 'parquet', 'arrow']", to),
        chunk_bytes=chunk_bytes,
        chunk_size=chunk_size,
        compression=compression,
        mode=cast("Any", mode),
        num_workers=workers,
        keep_data_ordered=True,
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
        ("seconds", f"{made.seconds:.1f}"),
    ]
    console().print(facts(pairs))
    return 0
