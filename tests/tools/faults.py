"""What goes wrong between a client and a store: single faults, and weather that strikes by a seed.

| kind | what the client sees |
| --- | --- |
| `status` | `status` with an S3 error body, and `Retry-After` if `retry_after` is given |
| `cut` | the whole head, half of the body, then an orderly close |
| `short` | half of the body as if that were all that was asked for |
| `reset` | half of the body, then a connection reset; with `before=True` no answer at all |
| `connect` | a connection reset before a request is read; strikes the next connection, whatever it is for |
| `stall` | half of the body, then nothing for `seconds`; with `before=True` not even a head |
| `drip` | the body a byte at a time, `seconds` apart |
| `etag` | the right bytes under another entity tag |
| `range` | the right bytes with a `Content-Range` of others |
| `replace` | from now on the object's first half under another tag and time, and 412 to who wants the old tag |
| `expire` | from now on `status` to whoever shows the same credentials, until they are others |

A page of a listing is cut short by `cut` and `short` with `match=`: its target's part that only listings have.
"""

from __future__ import annotations

import random
import re
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from email.message import Message

__all__ = ["Fault", "Weather", "credentials"]

KINDS = ("status", "cut", "short", "reset", "connect", "stall", "drip", "etag", "range", "replace", "expire")

# Parameters of a query that differ each time that the same thing is asked for.
VOLATILE = re.compile(r"(?i)(?:^|&)(?:x-amz-[^=&]*|signature|sig|se|st|expires)=[^&]*")


@dataclass
class Fault:
    """A fault that waits for requests, and is used up by the first `count` of them that it fits."""

    kind: str
    count: int = 1
    status: int = 0
    """What is answered; 0 is 403 for credentials and 503 for all else."""
    code: str = ""
    """What S3 calls the error; the empty text is what it calls that status."""
    retry_after: int | None = None
    """Seconds."""
    seconds: float = 60.0
    before: bool = False
    match: str | None = None
    """A part of the target; None is a read of an object, which is a request with a `Range`."""
    method: str = "GET"
    skip: int = 0
    """Requests that it fits and spares, before the first."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        self.status = self.status or (403 if self.kind == "expire" else 503)

    def fits(self, method: str, target: str, ranged: bool) -> bool:
        """Whether it is meant for such a request."""
        if self.kind == "connect" or method != self.method:
            return False
        return ranged if self.match is None else self.match in target


STORM = (
    *(Fault("status", status=status) for status in (500, 502, 503, 504)),
    Fault("status", status=429, retry_after=1),
    Fault("cut"),
    Fault("reset"),
    Fault("reset", before=True),
    Fault("stall"),
    Fault("stall", before=True),
    Fault("range"),
)
"""All that any client can get over by asking again."""


class Weather:
    """Faults that strike by chance, and the same ones whenever the same is asked under the same seed.

    Whether a request is struck depends on the seed, on what it asks for and on how often that was asked for before: not
    on the clock, and not on what other connections do meanwhile.

    Args:
        seed: The seed.
        rate: How many of the requests are struck, from 0 to 1.
        faults: What may strike, each as likely as any other.
        most: How often the same read may be struck, so that patience is rewarded.
        match: A part of the target that is struck; None is reads of objects, the empty text everything.
    """

    def __init__(
        self,
        seed: int,
        *,
        rate: float = 0.2,
        faults: Sequence[Fault] = STORM,
        most: int = 2,
        match: str | None = "",
    ) -> None:
        self.seed = seed
        self.rate = rate
        self.faults = [replace(fault, match=match) for fault in faults]
        self.most = most
        self._asked: Counter[str] = Counter()
        self._struck: Counter[str] = Counter()

    def strike(self, method: str, target: str, wanted: str | None) -> Fault | None:
        """What happens to a request, whose `Range` is `wanted`."""
        path, _, query = target.partition("?")
        # What is left of a body that broke off ends where the body would have.
        end = (wanted or "").rpartition("-")[2]
        read = f"{method} {path}?{VOLATILE.sub('', query)} {end}"
        self._asked[read] += 1
        chance = random.Random(f"{self.seed} {self._asked[read]} {read}")
        if self._struck[read] >= self.most or chance.random() >= self.rate:
            return None
        fault = chance.choice(self.faults)
        if not fault.fits(method, target, wanted is not None):
            return None
        self._struck[read] += 1
        return fault


def credentials(headers: Message, target: str) -> str | None:
    """Whose request it is: what stays the same from one request to the next until credentials are renewed.

    A shared key of Azure cannot be told from another one of the same account.
    """
    shown = headers.get("Authorization") or ""
    if shown.startswith("AWS4-"):
        key = re.search(r"Credential=([^/,]+)", shown)
        return f"{key[1] if key else shown} {headers.get('X-Amz-Security-Token') or ''}"
    if shown.startswith("SharedKey "):
        return shown.partition(":")[0]
    fields = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(target).query))
    return shown or fields.get("sig") or fields.get("signature") or fields.get("X-Amz-Credential")
