"""`map`: a function that writes files, for each of many inputs."""

import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, SupportsIndex

from headrace._frames import shortened

from .arguments import Prepared, check_choice, dev_limit, engine_of
from .beginning import begun
from .durable import believable, boot
from .engine import run
from .feed import Feed, Numbered
from .inputs import StartMethod, inputs_of
from .job import MapJob, OnError
from .optimizing import report_there, write_report
from .output import Mode, Output
from .placing import Place
from .progress import Done, Meter
from .readers import Reader
from .spool import Block, Failure
from .target import Target

__all__ = ["map"]

_SYNC_SECONDS = 30.0
"""What a power cut may cost: so much time's inputs are done again."""


def map(
    fn: Callable[[Any, str], Any],
    inputs: Iterable[Any] | Numbered | None,
    output_dir: str | os.PathLike[str],
    *,
    num_workers: SupportsIndex | None = None,
    mode: Mode | None = None,
    queue: Any = None,
    producers: int | Sequence[Any] = 1,
    reader: Reader | None = None,
    weights: Sequence[float] | None = None,
    batch_size: SupportsIndex | None = None,
    start_method: StartMethod = "spawn",
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
    """Calls a function that writes files for each input, in processes.

    The function is given a folder of its own. When it returns, the files there, with the folders they are in, are moved
    into the output: a file is there whole or not at all. A run that ended early goes on where it was when it is called
    again, as with `optimize`.

    Args:
        fn: of an input and the path of a folder to write to.
        inputs: a list, or anything else to iterate over, as with `optimize`.
        output_dir: a folder, made if it is not there, or a URL in a store, as with `optimize`: files are then uploaded
            one by one when the function returns.
        num_workers: processes; 0 does all work in this one. By default as many as there are processors.
        mode: None wants an empty folder, ``"append"`` adds files of new names, ``"overwrite"`` also replaces files.
        queue: gives the inputs, as with `optimize`; so do `producers`, `reader`, `weights`, `batch_size` and
            `start_method` what they do there.
        producers: see there.
        reader: see there.
        weights: see there.
        batch_size: see there.
        start_method: see there.
        fast_dev_run: whether to do only the first 10 inputs, or how many.
        resume: whether to go on with an unfinished run; False forgets it.
        on_error: ``"skip"`` leaves out inputs for which `fn` raises, and lists them in ``_headrace/skipped.jsonl``.
        engine: ``"ray"`` has processes on a Ray cluster do the work: on the one that this process is connected to, or
            that ``RAY_ADDRESS`` or this machine tells of, or else on one of this machine alone, for this call. By
            default there are as many as fit on it. All have to have the output, as a folder that machines share.
        ray_options: what each of them asks of Ray: ``num_cpus`` (1 by default), ``num_gpus``, ``memory``,
            ``resources``, ``accelerator_type``, ``label_selector``, ``scheduling_strategy``, ``runtime_env``.
        output_options: settings of the output's store.
        work_dir: see `optimize`.
        progress: whether to show how far it is, on stderr.
        verbose: whether to print a summary there in the end.

    Returns:
        What was done; a chunk is an input here, and there are no samples.

    Raises:
        ValueError: if an argument cannot be used, or the folder is not as `mode` wants it.
        TypeError: if `fn` cannot be sent to processes.
        FileExistsError: if two inputs have a file of the same name.
        ImportError: if Ray is wanted and not installed.
        StateMismatch: if the folder has an unfinished run of other inputs or arguments.
        StoreError: if the folder cannot be written to, or another process writes there.
        Exception: whatever `fn` raised, with a note that says for which input.

    Example:
        >>> import pathlib
        >>> def write(number, folder):
        ...     pathlib.Path(folder, f"{number}.txt").write_text(str(number))
        >>> made = headrace.map(write, range(3), folder / "texts", num_workers=0, verbose=False)
        >>> sorted(path.name for path in (folder / "texts").iterdir())
        ['0.txt', '1.txt', '2.txt']
    """
    check_choice("mode", mode, (None, "append", "overwrite"))
    check_choice("on_error", on_error, ("raise", "skip"))
    where, limit = engine_of(engine, num_workers, ray_options), dev_limit(fast_dev_run)
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
        ordered=False,
    )
    start = time.monotonic()
    output = Target(output_dir, output_options, work_dir).open(resume=resume)
    place = output.place()
    job = MapJob(work.fn, place, on_error, replace=mode == "overwrite")
    key = {**work.key, "limit": limit, "kind": "map", "mode": mode, "on_error": on_error}
    meter = Meter("map", shown=progress)
    finished = False
    try:
        first, lines = begun(output, key, resume, lambda: _beginning(output, mode))
        now = boot()
        lines, below = believable([first, *lines], now)
        place.begin(anew=below is not None)
        if below is not None:
            output.rewrite([*lines, {"boot": now}])
        files = _Files(output, place, meter)
        done = files.recover([line for line in lines if "done" in line])
        feed = Feed(work.source(done, limit=limit, lines=lines, output=output), alone=False)
        meter.begin(feed.total, done.count())
        try:
            run(job, feed, files, where, on_error)
        finally:
            meter.close()
        failures = sorted(files.failures, key=lambda failure: failure.input)
        write_report(output, failures, first["report"])
        finished = True
    except Exception as error:
        raise shortened(error)  # noqa: B904
    finally:
        output.close(finished=finished)
    count = files.done.count() - len(failures)
    made = Prepared(output.folder, 0, count, files.bytes, failures, time.monotonic() - start)
    if verbose:
        print(f"headrace map: {output.folder}: {count:,} inputs, {made.seconds:.1f} s", file=sys.stderr)
    return made


def _beginning(output: Output, mode: Mode | None) -> dict[str, Any]:
    if mode is None:
        output.expect_empty()
    return {"report": report_there(output, mode)}


class _Files:
    """Notes which inputs are done: their files are in place by then. A `Sink` of the engine."""

    schema = None

    def __init__(self, output: Output, place: Place, meter: Meter) -> None:
        self._output, self._place, self._meter = output, place, meter
        self.done = Done()
        self.failures: list[Failure] = []
        self.bytes = 0
        self._synced_at = time.monotonic()

    def keep(self, block: Block) -> Block:
        return block

    def accept(self, kept: Block) -> None:
        size = int(kept.sizes.sum())
        self._output.note(
            {
                "done": [kept.first, kept.last],
                "bytes": size,
                "failures": [dataclasses.astuple(failure) for failure in kept.failures],
            }
        )
        if time.monotonic() - self._synced_at >= _SYNC_SECONDS:
            self._place.sync()
            self._output.note({"synced": 0}, sync=True)
            self._synced_at = time.monotonic()
        for number in range(kept.first, kept.last + 1):
            shutil.rmtree(self._place.done(number), ignore_errors=True)
        self._add(kept.first, kept.last, size, kept.failures)
        self._meter.add(len(kept.counts), 0, size, kept.worker)

    def wait(self, first: int, stopped: Callable[[], bool]) -> None:
        """Nothing is kept."""

    def recover(self, lines: Iterable[Any]) -> Done:
        """The inputs that are done."""
        for line in lines:
            first, last = line["done"]
            self._add(first, last, line["bytes"], [Failure(*parts) for parts in line["failures"]])
        return self.done

    def _add(self, first: int, last: int, size: int, failures: Iterable[Failure]) -> None:
        self.done.add(first, last)
        self.bytes += size
        self.failures += failures
