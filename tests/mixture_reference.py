"""A second, slow implementation of mixtures, written from the section "Mixtures" of `docs/order.md` alone.

It draws every row from the beginning and counts what it has drawn, where the real implementation computes.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import accumulate, islice
from math import ceil, floor, fsum, inf
from operator import mul, sub
from typing import Literal, NamedTuple

from reference import ORDER_VERSION, chacha8_words

BEGINNINGS_OF_LANES = 4
DRAWS = 2
M = 2**48


def points(weights: Sequence[float]) -> list[int]:
    """How many points of the circle each source has."""
    parts = [floor(Fraction(weight / max(weights)) * 2**62) for weight in weights]
    exact = [Fraction(part * M, sum(parts)) for part in parts]
    whole = [floor(part) for part in exact]
    by_remainder = sorted(range(len(parts)), key=lambda source: (whole[source] - exact[source], source))
    for source in by_remainder[: M - sum(whole)]:
        whole[source] += 1
    return whole


def spread(lane: int, lanes: int) -> int:
    """The place of a lane on the circle, in parts of 1 / lanes."""
    place, unit = 0, lanes
    for base in bases(lanes):
        unit //= base
        lane, digit = divmod(lane, base)
        place += digit * unit
    return place


def bases(lanes: int) -> list[int]:
    """The prime factors of the number of lanes, the largest first."""
    factors = [p for p in range(2, lanes + 1) if lanes % p == 0 and all(p % q for q in range(2, p))]
    return [p for p in reversed(factors) for power in range(1, 64) if lanes % p**power == 0]


@cache
def candidates() -> list[int]:
    """A_0, A_1 ..."""
    found: list[int] = []
    for c in range(3**7):
        value = Fraction(2504730781961, 1548008755920)
        for j in reversed(range(7)):
            value = 1 + c // 3**j % 3 + 1 / value
        found.append(floor(M / value) | 1)
    return found


def growth(step: int, enough: float) -> int:
    """G of lanes that move by `step`; what is more than `enough` need not be exact."""
    sums, found = [0], 0
    for j in range(1, 11):
        while len(sums) <= 2**j:
            sums.append(sums[-1] + 2 * ((len(sums) - 1) * step % M) - M)
        # With k + l = n + 1 for the highest H up to k and the lowest up to l.
        highest, lowest = list(accumulate(sums[1:], max)), list(accumulate(sums[1:], min))
        found = max(found, max(map(sub, highest, reversed(lowest))) // j)
        if found > enough:
            break
    return found


@cache
def move(lanes: int) -> int:
    """A for a number of lanes."""
    blocks = [1, *accumulate(bases(lanes), mul)]
    best, least = 0, inf
    for candidate in candidates():
        found = 2 * growth(candidate * lanes % M, least / 2)
        for block in blocks[:-1]:
            if found >= least:
                break
            found = max(found, growth(candidate * block % M, least))
        if found < least:
            best, least = candidate, found
    return best


def offset(seed: int) -> int:
    """Where the lanes begin, beside their place."""
    key = b"".join(
        number.to_bytes(size, "little")
        for number, size in ((seed, 8), (ORDER_VERSION, 4), (BEGINNINGS_OF_LANES, 4), (0, 8), (0, 8))
    )
    low, high = islice(chacha8_words(key, 0), 2)
    return (low + 2**32 * high) % M


def linear(begin: int, first: Sequence[float], end: int, last: Sequence[float]) -> dict[int, list[float]]:
    """The pieces of a linear change between two points."""

    def even(weights: Sequence[float]) -> list[float]:
        scaled = [weight / max(weights) for weight in weights]
        return [weight / fsum(scaled) for weight in scaled]

    count = min(256, end - begin)
    return {
        begin + ceil(Fraction(k * (end - begin), count)): [
            a + (b - a) * ((2 * k + 1) / (2 * count)) for a, b in zip(even(first), even(last), strict=True)
        ]
        for k in range(count)
    }


class Drawn(NamedTuple):
    """A row of a mixture: its source, which of that one's rows it is, where it begins in its lane there, and L."""

    source: int
    row: int
    begin: int
    length: int


class MixtureReference:
    """The rows of a mixture.

    Args:
        seed: of the run.
        lanes: N.
        source_lanes: n_s.
        weights: from which round on which hold.
        limits: the units that each source has in all its passes, which are rows where L is 1; None for no end.
        exhausted: what becomes of the mixture when a source has no row for a lane.
        draws: for batches of one source the step that each round belongs to.
        lengths: from which round on which L holds.
        overlap: o.
    """

    def __init__(
        self,
        *,
        seed: int,
        lanes: int,
        source_lanes: Sequence[int],
        weights: Mapping[int, Sequence[float]],
        limits: Sequence[int | None] | None = None,
        exhausted: Literal["stop", "drop"] = "drop",
        draws: Sequence[int] | None = None,
        lengths: Mapping[int, int] | None = None,
        overlap: int = 0,
    ) -> None:
        self.lanes = lanes
        self.source_lanes = source_lanes
        self.weights = weights
        self.limits = limits or [None] * len(source_lanes)
        self.exhausted = exhausted
        self.draws = draws
        self.lengths = lengths or {0: 1}
        self.overlap = overlap
        self._offset = offset(seed)
        self.gone: set[int] = set()
        """Sources that had no row for a lane."""
        self._given = [[0] * own for own in source_lanes]
        self._used = [[0] * own for own in source_lanes]
        self.rows: list[Drawn] = []
        self.ended = False

    def up_to(self, row: int) -> list[Drawn]:
        """The rows before one, fewer if the mixture ends."""
        while len(self.rows) < row and not self.ended:
            self._draw(len(self.rows) // self.lanes)
        return self.rows[:row]

    def _draw(self, t: int) -> None:
        weights = self.weights[max(begin for begin in self.weights if begin <= t)]
        while True:
            left = [0.0 if source in self.gone else weight for source, weight in enumerate(weights)]
            if not any(left):
                self.ended = True
                return
            sources = [self._source(points(left), self._point(t, lane)) for lane in range(self.lanes)]
            drawn, given, used = self._number(sources, self.lengths[max(begin for begin in self.lengths if begin <= t)])
            short = [s for s in range(len(used)) if any(self._is_short(s, j, n) for j, n in enumerate(used[s]))]
            if not short:
                break
            if self.exhausted == "stop":
                self.ended = True
                return
            self.gone.add(short[0])
        self.rows += drawn
        self._given, self._used = given, used

    def _point(self, t: int, lane: int) -> int:
        if self.draws is not None:
            return (self._offset + move(1) * self.draws[t]) % M
        return (spread(lane, self.lanes) * M // self.lanes + self._offset + move(self.lanes) * t) % M

    def _source(self, shares: Sequence[int], point: int) -> int:
        return next(source for source in range(len(shares)) if point < sum(shares[: source + 1]))

    def _number(self, sources: Sequence[int], length: int) -> tuple[list[Drawn], list[list[int]], list[list[int]]]:
        """The rows of a round, and how many rows and units each lane of each source has given after it."""
        given, used = ([list(lanes) for lanes in before] for before in (self._given, self._used))
        drawn: list[Drawn] = []
        for lane, source in enumerate(sources):
            own = self.source_lanes[source]
            j = lane // (self.lanes // own)
            drawn.append(Drawn(source, given[source][j] * own + j, used[source][j], length))
            given[source][j] += 1
            used[source][j] += length
        return drawn, given, used

    def _is_short(self, source: int, lane: int, used: int) -> bool:
        """Whether a lane has given more units than it has; the last ones are only what its last row shares."""
        limit = self.limits[source]
        if limit is None:
            return False
        return used > max(0, len(range(lane, limit, self.source_lanes[source])) - self.overlap)
