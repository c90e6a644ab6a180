"""What is measured, case by case."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.bench.samples.job import Case

__all__ = ["CASES", "TASKS", "chosen"]

_MAP = {"headrace": "headrace_map", "torch": "torch_persistent"}
_LITDATA = {"headrace": "headrace_folder", "litdata": "litdata_images"}
_MDS = {"headrace": "headrace_folder", "mosaic": "mosaic_images"}

_ALL = (
    Case(
        name="overhead-0",
        about="integers, no workers",
        data="integers",
        loaders={"headrace": "headrace_map", "torch": "torch_map"},
        aim=1.0,
        samples=200_000,
        quick=4_000,
        batch=64,
        workers=0,
    ),
    Case(
        name="overhead-2",
        about="integers, two workers",
        data="integers",
        loaders=_MAP,
        aim=8.0,
        samples=200_000,
        quick=4_000,
        batch=64,
    ),
    Case(
        name="epoch",
        about="from asking for another epoch to its first batch",
        data="integers",
        loaders={"headrace": "headrace_map", "torch": "torch_map", "torch-persistent": "torch_persistent"},
        aim=20.0,
        aside=("torch-persistent",),
        samples=20_000,
        quick=4_000,
        batch=64,
        measure="next_epoch_seconds",
        epochs=3,
    ),
    Case(
        name="network",
        about="items that wait for 5 ms; headrace has 16 on the way for each worker",
        data="waits",
        loaders=_MAP,
        aim=3.0,
        samples=640,
        quick=128,
        batch=32,
        items_in_parallel=16,
    ),
    Case(
        name="arrays",
        about='files of 64 KiB read and normalised with NumPy, with `worker_type="auto"`',
        data="arrays",
        loaders=_MAP,
        aim=1.5,
        samples=2_000,
        quick=128,
        batch=32,
        epochs=2,
        worker_type="auto",
    ),
    Case(
        name="python",
        about="0.5 ms of byte-code an item, in processes",
        data="python",
        loaders=_MAP,
        aim=0.95,
        samples=2_000,
        quick=128,
        batch=32,
        epochs=2,
        worker_type="process",
    ),
    *(
        Case(
            name=f"{format}-{kind}",
            about=f"{about}, {'JPEG decoded' if kind == 'decoded' else 'bytes kept'}",
            data=f"images_{format}",
            loaders=loaders,
            aim=aim,
            samples=5_000,
            quick=128,
            batch=32,
            decode=kind == "decoded",
        )
        for format, about, loaders, aim in (
            ("litdata", "images in LitData's chunks", _LITDATA, 2.0),
            ("mds", "images in MDS shards", _MDS, 3.0),
        )
        for kind in ("bytes", "decoded")
    ),
    Case(
        name="parquet",
        about="rows of five columns",
        data="rows",
        loaders={
            "headrace": "headrace_folder",
            "litdata": "litdata_rows",
            "hf-stream": "hf_rows",
            "hf-stream-torch": "hf_rows_torch",
        },
        aim=3.0,
        samples=200_000,
        quick=2_048,
        batch=256,
    ),
)

CASES = {case.name: case for case in _ALL}
TASKS = tuple(dict.fromkeys(case.task for case in _ALL))


def chosen(names: Sequence[str]) -> list[Case]:
    """The cases of some tasks, or those that are named themselves.

    Raises:
        ValueError: if there is no such task or case.
    """
    for name in names:
        if name not in CASES and name not in TASKS:
            raise ValueError(f"no such task: {name!r}; there are {', '.join(TASKS)}, and of those {', '.join(CASES)}")
    return [case for case in _ALL if case.name in names or case.task in names]
