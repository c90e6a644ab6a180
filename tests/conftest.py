"""What holds for every test: a cache folder of the session's own, no rank from outside, bounded property tests."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from datasets import CorpusWriter
from places import at, no_settings_from_outside, place, remote, servers, written
from store_data import corpus, records

__all__ = ["at", "corpus", "no_settings_from_outside", "place", "records", "remote", "servers", "write", "written"]

# Deadlines measure the machine, which here is two cores shared with other tests. Fewer examples than Hypothesis'
# hundred, as many of these tests run a loader for each; say --hypothesis-profile=thorough for more.
settings.register_profile("headrace", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("headrace"), max_examples=1000)
settings.load_profile("headrace")


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def _no_threads_of_preparing() -> Iterator[None]:
    """Whatever way a run that prepares data ends, nothing of it goes on."""
    before = set(threading.enumerate())
    yield
    names = [one.name for one in threading.enumerate() if one not in before]
    assert [name for name in names if name in ("headrace-settle", "headrace-meter")] == []


@pytest.fixture(scope="session")
def write(tmp_path_factory: pytest.TempPathFactory) -> CorpusWriter:
    """Writes files of documents to a new folder. Of the session, so that property tests may use it."""

    def new_folder() -> Path:
        return tmp_path_factory.mktemp("corpus")

    return CorpusWriter(new_folder)
