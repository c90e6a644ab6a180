"""Who writes to a place in a store: a small object there that its owner renews, and that others respect.

It is made, renewed and taken over under conditions, so that of two who do so at the same time one succeeds. Time is
told by the store's clock alone. Through fsspec, which has no conditions, two who begin in the same moment may both
succeed.
"""

import contextlib
import json
import os
import threading
import time
import uuid
from typing import Any, cast

from headrace.errors import MissingError, StoreError
from headrace.store import Store, StoredFile

__all__ = ["Lease"]

_KEY = ".headrace/writer.json"
_EVERY = 30.0
"""Seconds between renewals."""
_STALE = 150.0
"""Seconds without a renewal after which an owner is taken to be dead: four renewals may fail."""


class Lease:
    """The right to write, held until it is released.

    Args:
        store: the place.
        owner: who wants it: a text that the same run has again after a kill.

    Raises:
        StoreError: if somebody else has it, or the store does not answer.
    """

    def __init__(self, store: Store, owner: str) -> None:
        self._store, self._owner = store, owner
        self._lost = False
        self._ended = threading.Event()
        self._renewing = threading.Lock()
        self._held = self._acquired()
        self._thread = threading.Thread(target=self._keep, name="headrace-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Renews it.

        Raises:
            StoreError: if somebody else took it, or the store does not answer.
        """
        with self._renewing:
            if not self._lost:
                found = self._store.swap(_KEY, self._text(), self._held.version)
                if found is not None:
                    self._held = found
                    return
                self._lost = True
        raise StoreError(
            f"{self._store.url}: another process took over after this one gave no sign of life for {_STALE:.0f} s\n"
            "hint: let it finish; this run's chunks are not part of its dataset"
        )

    def release(self) -> None:
        """Gives it up, if it is still held; what cannot be reached any more ends by itself."""
        self._ended.set()
        self._thread.join()
        # Stores delete under no condition: renewed right before, nobody takes it until it is gone.
        with contextlib.suppress(StoreError):
            self.check()
            self._store.delete(_KEY)

    def _keep(self) -> None:
        while not self._ended.wait(_EVERY):
            try:
                self.check()
            except StoreError:
                # If it is lost, the run hears of it when it looks; if the store is away, it may come back.
                if self._lost:
                    return

    def _acquired(self) -> StoredFile:
        # Somebody may release or take it between two looks.
        for _ in range(10):
            try:
                return self._store.put(_KEY, self._text(), only_new=True)
            except FileExistsError:
                pass
            try:
                there = self._store.head(_KEY)
                who = _who(self._store.read(_KEY))
            except MissingError:
                continue
            if who.get("owner") != self._owner and not self._is_stale(there):
                break
            taken = self._store.swap(_KEY, self._text(), there.version)
            if taken is not None:
                return taken
        else:
            who = {}
        told = f"process {who['process']} on {who['host']}" if "process" in who else "it just began"
        raise StoreError(
            f"{self._store.url}: another process writes a dataset there ({told})\nhint: wait for it, or choose another "
            f"folder; if it was killed on another machine, call again {_STALE:.0f} s later"
        )

    def _is_stale(self, there: StoredFile) -> bool:
        """Whether it was not renewed for long, by the clock of the store."""
        if there.modified is None:
            return False
        probe = f".headrace/{uuid.uuid4().hex}"
        now = self._store.put(probe, b"").modified
        self._store.delete(probe)
        return now is not None and (now - there.modified).total_seconds() > _STALE

    def _text(self) -> bytes:
        about = {"owner": self._owner, "process": os.getpid(), "host": os.uname().nodename, "renewed": time.time()}
        return json.dumps(about).encode()


def _who(text: bytes) -> dict[str, Any]:
    try:
        found: Any = json.loads(text)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
