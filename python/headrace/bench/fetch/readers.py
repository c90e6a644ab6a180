"""Those that read: each is opened with the URL of a folder, and then reads all of its column chunks once a call."""

# obstore's types are not complete:
# pyright: basic

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import obstore
from obstore.store import from_url

import headrace
from headrace import _core
from headrace._ranks import default_workers
from headrace.bench.fetch.data import COLUMN, Part, parts
from headrace.loading import packed_run

__all__ = ["READERS"]

REQUESTS = 16
"""Of obstore under way at a time: with 8 it was as fast for long requests and slower for short ones, with 32 it was
slower for long ones."""

LONGEST = 8 << 20
"""Bytes of a request, as headrace asks for them."""

MEMORY = 2 << 30
BATCH = 8
SEQ_LEN = 2048


def own(url: str) -> Callable[[], int]:
    """The first stage of headrace's engine: planned, fetched ahead and in order by its threads, and not decoded."""
    dataset = headrace.open(url, index="rebuild")
    assert isinstance(dataset, headrace.TableDataset), "what is written there is Parquet"
    given = packed_run.Given(
        seed=0,
        shuffle=True,
        lanes=None,
        window=None,
        batch_size=None,
        schedule={0: BATCH},
        epochs=None,
        pad=False,
        exclude=None,
    )
    run, position = packed_run.start(dataset.pack(SEQ_LEN, column=COLUMN), given, 1, 0, None)
    return lambda: _core.fetch(
        run.core,
        position.steps,
        epoch=0,
        world=1,
        rank=0,
        workers=default_workers(),
        memory=MEMORY,
        prefetch=2,
    )


def threads(url: str) -> Callable[[], int]:
    """obstore, called by a pool of threads."""
    store, wanted = from_url(url), parts(url, LONGEST)

    def get(part: Part) -> int:
        return len(obstore.get_range(store, part.key, start=part.start, end=part.stop))

    def read() -> int:
        with ThreadPoolExecutor(REQUESTS) as pool:
            return sum(pool.map(get, wanted))

    return read


def coroutines(url: str) -> Callable[[], int]:
    """obstore, called by coroutines."""
    store, wanted = from_url(url), parts(url, LONGEST)

    async def get(part: Part, turns: asyncio.Semaphore) -> int:
        async with turns:
            return len(await obstore.get_range_async(store, part.key, start=part.start, end=part.stop))

    async def all_of_them() -> int:
        turns = asyncio.Semaphore(REQUESTS)
        return sum(await asyncio.gather(*(get(part, turns) for part in wanted)))

    return lambda: asyncio.run(all_of_them())


READERS = {"headrace": own, "obstore-threads": threads, "obstore-async": coroutines}
