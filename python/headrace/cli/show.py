"""`headrace show`: one row of a run, and where it comes from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace import DataLoader
from headrace.cli._common import Packing, console, facts, open_dataset, plural, print_json

__all__ = ["Order", "run"]

_SHOWN_IDS = 12
"""Token ids of a part that are printed from its start, and as many from its end."""


@dataclass(frozen=True)
class Order:
    """In which order, as given."""

    batch: int
    window: int | None
    lanes: int | None
    seed: int
    shuffle: bool
    memory: str


def run(
    urls: list[str],
    *,
    packing: Packing,
    order: Order,
    step: int,
    row: int,
    tokenizer: Path | None,
    storage_option: list[str] | None,
    as_json: bool,
) -> int:
    """Prints the row."""
    if row >= order.batch:
        raise ValueError(f"--row must be in 0..{order.batch - 1}, the rows of a step, got {row}")
    decode = _decoder(tokenizer) if tokenizer is not None else None
    dataset = packing.pack(open_dataset(urls, storage_option), boundaries=True)
    # As the only rank, whose rows are in the order of their numbers.
    loader = DataLoader(
        dataset,
        global_batch_size=order.batch,
        shuffle=order.shuffle,
        seed=order.seed,
        window=order.window,
        lanes=order.lanes,
        rank=0,
        world_size=1,
        memory=order.memory,
        prefetch_factor=1,
    )
    loader.seek(step)
    batch = next(iter(loader))
    tokens: list[int] = np.asarray(batch["tokens"][row]).tolist()
    ids = np.asarray(batch["document_ids"][row])
    number = int(batch.rows[row])
    lanes = loader.stats()["lanes"]
    documents: list[dict[str, Any]] = []
    # A row's parts are numbered in order: each begins where the number changes.
    starts = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(tokens)]
    sources = batch.sources()[row]
    for source, start, end in zip(sources, starts[:-1], starts[1:], strict=True):
        document: dict[str, Any] = source._asdict() | {"start": start, "end": end}
        if decode is not None:
            document["text"] = decode(tokens[start:end])
        documents.append(document)
    report: dict[str, Any] = {
        "url": dataset.core.url,
        "step": step,
        "epoch": batch.epoch,
        "row": row,
        "number": number,
        "lane": number % lanes,
        "tokens": tokens,
        "documents": documents,
    }
    if decode is not None:
        report["text"] = decode(tokens)
    if as_json:
        print_json(report)
    else:
        _print(report)
    return 0


def _decoder(file: Path) -> Any:
    """A function from token ids to text.

    Raises:
        ValueError: if the package is missing or the file is none of its.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError("--tokenizer needs the package tokenizers\nhint: pip install tokenizers") from None
    if not file.is_file():
        raise ValueError(f"--tokenizer {str(file)!r}: expected a file, found none of that name")
    loaded: Any = Tokenizer
    try:
        tokenizer = loaded.from_file(str(file))
    except Exception as error:  # what the package raises is no narrower
        raise ValueError(f"--tokenizer {str(file)!r}: expected a tokenizers JSON file, found: {error}") from None

    def decode(ids: list[int]) -> str:
        if ids and min(ids) < 0:
            raise ValueError(f"--tokenizer: expected token ids of at least 0, found {min(ids)}")
        return tokenizer.decode(ids, skip_special_tokens=False)

    return decode


def _print(report: dict[str, Any]) -> None:
    from rich.table import Table

    out = console()
    pairs = [
        ("data", report["url"]),
        ("row", f"{report['row']:,} of step {report['step']:,}, in epoch {report['epoch']:,}"),
        ("number", f"{report['number']:,} of the run, in lane {report['lane']:,}"),
        ("tokens", f"{len(report['tokens']):,} from {plural(len(report['documents']), 'document')}"),
    ]
    out.print(facts(pairs))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    for name in ("in the row", "row group", "row", "its tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("file", overflow="fold")
    for document in report["documents"]:
        first, count = document["first_token"], document["tokens"]
        table.add_row(
            f"{document['start']:,}..{document['end']:,}",
            str(document["row_group"]),
            str(document["row"]),
            f"{first:,}..{first + count:,}",
            document["file"],
        )
    out.print()
    out.print(table)
    for document in report["documents"]:
        start, end = document["start"], document["end"]
        out.print(f"\n{start:,}..{end:,}  {_ids(report['tokens'][start:end])}", soft_wrap=True)
        if "text" in document:
            for line in document["text"].splitlines():
                # Whatever the text holds, it does not reach the terminal's controls.
                out.print("  | " + "".join(c if c.isprintable() else " " for c in line), soft_wrap=True)


def _ids(ids: list[int]) -> str:
    if len(ids) <= 2 * _SHOWN_IDS:
        return " ".join(map(str, ids))
    left_out = len(ids) - 2 * _SHOWN_IDS
    return " ".join([*map(str, ids[:_SHOWN_IDS]), f"... {left_out:,} more ...", *map(str, ids[-_SHOWN_IDS:])])
