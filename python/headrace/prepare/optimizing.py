"""`optimize`: a dataset of what a function makes of inputs."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, SupportsIndex

from headrace._frames import shortened
from headrace.encryption import Encryption

from . import writing
from .arguments import (
    Prepared,
    check_choice,
    dev_limit,
    engine_of,
    options_of,
)
from .beginning import begun
from .chunking import Chunks
from .durable import believable, boot
from .engine import run
from .feed import Feed, Numbered
from .inputs import Inputs, StartMethod, inputs_of
from .job import OnError, SampleJob
from .output import Mode, Output
from .progress import Meter
from .readers import Reader
from .sealing import check_mark, mark_of, seal_of
from .spool import Failure, Spool
from .target import Target
from .workers import Engine
from .writing import Entry, Layout

__all__ = ["How", "make", "optimize", "report_there", "write_report"]

_REPORT = "_headrace/skipped.jsonl"


def optimize(
    fn: Callable[[Any], Any],
    inputs: Iterable[Any] | Numbered | None,
    output_dir: str | os.PathLike[str],
    *,
    chunk_bytes: str | SupportsIndex | None = None,
    chunk_size: SupportsIndex | None = None,
    format: Literal["litdata", "mds", "parquet", "arrow"] = "litdata",
    num_workers: SupportsIndex | None = None,
    compression: str | None = None,
    encryption: Encryption | None = None,
    mode: Mode | None = None,
    keep_data_ordered: bool = False,
    align_chunking: bool = False,
    queue: Any = None,
    producers: int | Sequence[Any] = 1,
    reader: Reader | None = None,
    weights: Sequence[float] | None = None,
    batch_size: SupportsIndex | None = None,
    start_method: StartMethod = "spawn",
    tokens: bool = False,
    serializers: Mapping[str, Any] | None = None,
    fast_dev_run: bool | SupportsIndex = False,
    resume: bool = True,
    on_error: OnError = "raise",
    engine: Literal["local", "ray"] = "local",
    ray_options: Mapping[str, Any] | None = None,
    output_options: Mapping[str, str] | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    progress: bool = True,
    verbose: bool = True,
) -> Prepared:
    """Makes a dataset that trains fast of whatever a function makes of inputs.

    The dataset is there when it is whole: what is written lies below ``.headrace`` in the folder until the end. A run
    that ended early, killed or by an error, goes on where it was when it is called again: inputs that were finished are
    not done again, and of one that was not, the samples that are there are passed over.

    Args:
        fn: from an input to a sample, to None for no sample, or a generator of any number of samples. A sample is a
            dict of values (for LitData also lists and tuples, in each other): text, bytes, numbers, arrays of NumPy and
            PyTorch, images of Pillow, `headrace.Image`, `headrace.File`. Called twice with the same input, it has to
            give the same samples.
        inputs: a list, or anything else to iterate over; they are pickled to worker processes. Datasets of headrace,
            PyTorch and Hugging Face whose items have numbers are pickled themselves, and read there. None with a queue.
        output_dir: a folder, made if it is not there, or a URL in a store that can be written to, whose chunks are
            uploaded as they are done. A ``{%Y-%m-%d}`` in it is filled in by the clock, unless an unfinished run of the
            same text goes on.
        chunk_bytes: bytes of samples in a file, as a number or text, at most ``"1GiB"``. By default ``"64MiB"``, if
            `chunk_size` is not given either. A larger sample has a file of its own.
        chunk_size: samples in a file; tokens, if `tokens`.
        format: of the files. Parquet and Arrow need pyarrow.
        num_workers: processes; 0 does all work in this one. By default as many as there are processors.
        compression: ``"zstd"`` or ``"zstd:<level>"``.
        encryption: what encrypts samples or chunks of LitData: a key of `headrace.encryption`, litdata's own object, or
            any with ``algorithm``, ``level``, ``encrypt(data)`` and ``decrypt(data)``. Save a key before it is used.
        mode: None wants an empty folder, ``"append"`` adds to the dataset that is there and leaves its files as they
            are, ``"overwrite"`` puts the new dataset in its place, and removes only files that its index lists.
        keep_data_ordered: whether samples lie in the order of inputs, so that the files are the same, byte for byte,
            for any number of workers. Otherwise they lie in the order in which they were made.
        align_chunking: whether all files but the last have exactly `chunk_size` samples, in the order of inputs: it
            means `keep_data_ordered`, and that samples too large for that are an error.
        queue: gives the inputs while the run is under way: a queue of `multiprocessing`, `queue`, or any other with
            ``get(timeout=)``. None in it says that a producer has no more.
        producers: how many put inputs into the queue; or the processes and threads themselves, so that it is seen when
            one of them ends early.
        reader: cuts inputs into parts, and reads a part before `fn` is called with it; see `headrace.ParquetReader`.
        weights: about how much work each input is, in any unit: those heavier than the average come first.
        batch_size: calls `fn` with lists of so many inputs. Where inputs are counted, such a list is one.
        start_method: of worker processes: ``"spawn"``, as others are not sound where threads run.
        tokens: whether samples are arrays or tensors of tokens, with 1 dimension, for LitData's ``TokensLoader``.
        serializers: for values of your own in LitData, by name: objects with ``can_serialize(value)`` and
            ``serialize(value)``, which gives bytes, and ``deserialize(data)`` for `headrace.open`.
        fast_dev_run: whether to do only the first 10 inputs, or how many.
        resume: whether to go on with an unfinished run; False forgets it.
        on_error: ``"skip"`` leaves out inputs for which `fn` raises, and lists them in ``_headrace/skipped.jsonl``;
            samples that came before the error are kept.
        engine: ``"ray"`` has processes on a Ray cluster do the work: on the one that this process is connected to, or
            that ``RAY_ADDRESS`` or this machine tells of, or else on one of this machine alone, for this call. By
            default there are as many as fit on it. The dataset is written by this process.
        ray_options: what each of them asks of Ray: ``num_cpus`` (1 by default), ``num_gpus``, ``memory``,
            ``resources``, ``accelerator_type``, ``label_selector``, ``scheduling_strategy``, ``runtime_env``.
        output_options: settings of the output's store, as `headrace.open` takes them.
        work_dir: a folder of this machine, made if it is not there, for what an unfinished run of an output in a store
            needs to go on: a folder in it that is named after the output. By default it is in the cache folder.
        progress: whether to show how far it is, on stderr.
        verbose: whether to print a summary there in the end.

    Raises:
        ValueError: if an argument cannot be used, or the folder is not as `mode` wants it.
        TypeError: if `fn` cannot be sent to processes, or a value cannot be stored; says which one, and what can be.
        ImportError: if Ray is wanted and not installed.
        StateMismatch: if the folder has an unfinished run of other inputs or arguments.
        StoreError: if the folder cannot be written to, is full, or another process writes there.
        RuntimeError: if an input was fatal to its process twice.
        Exception: whatever `fn` raised, with a note that says for which input.

    Example:
        >>> made = headrace.optimize(str, range(10), folder / "texts", num_workers=0, progress=False, verbose=False)
        >>> headrace.open(folder / "texts")[3]
        '3'
    """
    options = options_of(
        format,
        chunk_bytes=chunk_bytes,
        chunk_size=chunk_size,
        compression=compression,
        encryption=encryption,
        serializers=serializers,
        tokens=tokens,
    )
    check_choice("mode", mode, (None, "append", "overwrite"))
    check_choice("on_error", on_error, ("raise", "skip"))
    where, limit = engine_of(engine, num_workers, ray_options), dev_limit(fast_dev_run)
    where.check("encryption", encryption)
    where.check("serializers", serializers)
    if align_chunking and (options.chunk_size is None or chunk_bytes is not None):
        raise ValueError("align_chunking needs chunk_size, which says how many samples a file has, and no chunk_bytes")
    ordered = keep_data_ordered or align_chunking
    work = inputs_of(
        fn,
        inputs,
        queue=queue,
        producers=producers,
        reader=reader,
        weights=weights,
        batch_size=batch_size,
        start_method=start_method,
        engine=where,
        ordered=ordered,
    )
    how = How(
        what="optimize",
        format=format,
        options=options,
        limit=limit,
        engine=where,
        on_error=on_error,
        ordered=ordered,
        align=align_chunking,
        mode=mode,
        resume=resume,
        progress=progress,
        verbose=verbose,
    )
    settings = {
        "options": [options.chunk_size, options.chunk_bytes, compression, tokens, sorted(serializers or {})],
        "encryption": None if encryption is None else [encryption.algorithm, encryption.level],
    }
    return make(work, Target(output_dir, output_options, work_dir), how, settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class How:
    """How a run is done."""

    what: str
    """What the user called."""
    format: str
    options: writing.Options
    limit: int | None
    engine: Engine
    on_error: OnError
    ordered: bool
    align: bool
    mode: Mode | None
    resume: bool
    progress: bool
    verbose: bool


def make(work: Inputs, target: Target, how: How, settings: Mapping[str, Any]) -> Prepared:
    """Makes the dataset, or what is left to do of it; see `optimize`.

    Args:
        work: the inputs, and what makes samples of them.
        target: where it goes.
        how: how it is done.
        settings: what else has to be the same for a run to go on with what another one left, as JSON.
    """
    layout = writing.layout(how.format, how.options)
    job = SampleJob(work.fn, how.format, how.options, how.on_error)
    key = {
        **work.key,
        "limit": how.limit,
        "kind": how.what,
        "format": how.format,
        **settings,
        "mode": how.mode,
        "ordered": how.ordered,
        "align": how.align,
        "on_error": how.on_error,
    }
    start = time.monotonic()
    output = target.open(resume=how.resume)
    finished = False
    spool = Spool(output.work, seal_of(how.options.encryption))
    try:
        first, lines = begun(output, key, how.resume, lambda: _beginning(output, layout, how))
        check_mark(first["mark"], how.options.encryption, output.folder)
        entries, failures, read = _run(job, work, output, spool, layout, first, lines, how)
        finished = True
    except Exception as error:
        raise shortened(error)  # noqa: B904
    finally:
        spool.close()
        output.close(finished=finished)
    size = sum(entry["bytes"] for entry in entries)
    samples = sum(entry["samples"] for entry in entries)
    made = Prepared(output.folder, samples, len(entries), size, failures, time.monotonic() - start, read)
    if how.verbose:
        print(f"headrace {how.what}: {made}", file=sys.stderr)
    return made


def report_there(output: Output, mode: Mode | None) -> str:
    """What is said of the inputs that were left out of the dataset which is added to."""
    return (output.read(_REPORT) or b"").decode() if mode == "append" else ""


def write_report(output: Output, failures: Sequence[Failure], there: str = "") -> None:
    """Writes which inputs were left out, if any were.

    Args:
        output: its folder.
        failures: of the run.
        there: what `report_there` gave when the run began.
    """
    lines = [json.dumps(dataclasses.asdict(failure)) for failure in failures]
    if report := there + "".join(f"{line}\n" for line in lines):
        output.write(_REPORT, report.encode())
    else:
        output.remove(_REPORT)


def _beginning(output: Output, layout: Layout, how: How) -> dict[str, Any]:
    existing, gone = output.existing(layout, how.mode)
    return {
        "base": output.base(layout),
        "there": existing.entries,
        "schema": existing.schema,
        "gone": gone,
        "mark": mark_of(how.options.encryption),
        "found": output.mark(layout),
        "report": report_there(output, how.mode),
    }


def _run(
    job: SampleJob,
    work: Inputs,
    output: Output,
    spool: Spool,
    layout: Layout,
    first: Mapping[str, Any],
    lines: Sequence[Any],
    how: How,
) -> tuple[list[Entry], list[Failure], int]:
    """Does what is left of a run; gives its chunks, the inputs that were left out, and bytes of inputs."""
    if lines and "whole" in lines[-1]:
        # It was killed while the dataset was made visible.
        whole = lines[-1]
        failures = [Failure(*parts) for parts in whole["failures"]]
    else:
        output.expect_unchanged(layout, first["found"])
        whole, failures = _make(job, work, output, spool, layout, first, lines, how)
        output.note(whole, sync=True)
    entries: list[Entry] = whole["whole"]
    index = layout.index([*first["there"], *entries], whole["schema"])
    output.publish(layout, entries, index, first["gone"], first["found"])
    write_report(output, failures, first["report"])
    return entries, failures, whole["read"]


def _make(
    job: SampleJob,
    work: Inputs,
    output: Output,
    spool: Spool,
    layout: Layout,
    first: Mapping[str, Any],
    lines: Sequence[Any],
    how: How,
) -> tuple[dict[str, Any], list[Failure]]:
    meter = Meter(how.what, shown=how.progress)
    chunks = Chunks(
        output,
        spool,
        layout,
        how.options,
        base=first["base"],
        ordered=how.ordered,
        aligned=how.align,
        bounded=not work.heavy,
        schema=first["schema"],
        meter=meter,
    )
    now = boot()
    lines, below = believable([first, *lines], now)
    try:
        done = chunks.recover(lines, below, now)
        # Where the first sample decides what all are like, it has to be the first by the order of inputs.
        alone = chunks.schema is None and layout.index_name == "index.json"
        feed = Feed(work.source(done, limit=how.limit, lines=lines, output=output), alone=alone)
        chunks.known = feed.together
        meter.begin(feed.total, done.count())
        run(job, feed, chunks, how.engine, how.on_error)
        meter.close()
        entries, schema = chunks.finish()
    finally:
        # After an error what it has goes to the spool, but for what is in the chunks that it still writes.
        chunks.close()
        meter.close()
    failures = sorted(chunks.failures, key=lambda failure: failure.input)
    if not entries and not first["there"]:
        write_report(output, failures)
        output.forget()
        raise ValueError(
            f"{output.folder}: expected at least one sample, found none in {done.count() + feed.given:,} inputs"
            + (f", of which {len(failures):,} were skipped" if failures else "")
        )
    for entry in entries:
        # Those that were brought to the schema are others than it wrote.
        output.secure(entry)
    noted = [dataclasses.astuple(failure) for failure in failures]
    whole = {"whole": entries, "schema": schema, "failures": noted, "read": chunks.read}
    return whole, failures
