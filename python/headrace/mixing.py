"""Several datasets as one, row by row in given shares."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any, Final, Literal, SupportsIndex, cast

from ._base import Dataset
from ._units import as_int
from .dataset import PackedDataset
from .samples.dataset import SampleDataset
from .samples.document_pipeline import DocumentPipeline
from .samples.dynamic_dataset import DynamicDataset

__all__ = ["MixDataset", "Mixable", "WeightSchedule", "documents_of", "is_empty", "mix"]

Weights = Mapping[str, float]
"""The weight of each source, by its name."""

Mixable = PackedDataset | SampleDataset | DynamicDataset
"""What a source may be."""

_LINEAR_PIECES: Final = 256
"""The most pieces of constant weights that a linear change is made of: a step of 0.4 % of it."""

_SHOWN: Final = 8
"""Sources that `repr` shows."""

_EXACT: Final = Context(prec=40)
"""Decimal numbers, whose powers are the same on every machine: those of floats are the C library's."""


@dataclass(frozen=True)
class WeightSchedule:
    """Weights that change during a run, for `mix`.

    Args:
        points: from a count of steps or tokens to the weight of each source there. Without a point at 0 the weights
            that `mix` is given hold until the first one.
        over: what is counted: ``"steps"``, or ``"tokens"`` of all ranks' rows (an overlap's once).
        shape: ``"constant"``: a point's weights hold until the next one; ``"linear"``: they change evenly to those of
            the next one, in up to 256 pieces. The last point's hold to the end.

    Raises:
        TypeError: if `points` is no dict of dicts.
        ValueError: if `over` or `shape` is none of these.

    Example:
        >>> headrace.WeightSchedule({0: {"web": 9, "code": 1}, 1000: {"web": 1, "code": 1}}, shape="linear").over
        'steps'
    """

    points: Mapping[int, Weights]
    over: Literal["steps", "tokens"] = "steps"
    shape: Literal["constant", "linear"] = "constant"

    def __post_init__(self) -> None:
        points: Any = self.points
        if not isinstance(points, Mapping) or not all(
            isinstance(weights, Mapping) for weights in cast("Mapping[Any, Any]", points).values()
        ):
            raise TypeError(
                "a schedule must be a dict from steps or tokens to the weight of each source, such as "
                f'{{0: {{"web": 9, "code": 1}}}}, got {points!r}'
            )
        if self.over not in ("steps", "tokens") or self.shape not in ("constant", "linear"):
            raise ValueError(
                'a schedule is over "steps" or "tokens" and of shape "constant" or "linear", '
                f"got over={self.over!r}, shape={self.shape!r}"
            )

    def pieces(self) -> list[tuple[int, dict[str, float]]]:
        """Weights that hold from a count on, in order; the first from 0.

        Example:
            >>> headrace.WeightSchedule({0: {"web": 1}, 500: {"web": 2}}).pieces()
            [(0, {'web': 1}), (500, {'web': 2})]
        """
        points = [(at, dict(weights)) for at, weights in sorted(self.points.items())]
        if self.shape == "constant" or not points:
            return points
        names = set(points[0][1])
        if odd := [at for at, weights in points if set(weights) != names]:
            raise ValueError(
                f"a linear schedule must have the same sources at each point, got {sorted(points[0][1])} at "
                f"{points[0][0]} and {sorted(self.points[odd[0]])} at {odd[0]}"
            )
        even = [(at, _normal(weights)) for at, weights in points]
        pieces: list[tuple[int, dict[str, float]]] = []
        for (begin, first), (end, last) in pairwise(even):
            count = min(_LINEAR_PIECES, end - begin)
            for number in range(count):
                done = (2 * number + 1) / (2 * count)
                mixed = {name: weight + (last[name] - weight) * done for name, weight in first.items()}
                pieces.append((begin - (begin - end) * number // count, mixed))
        return [*pieces, even[-1]]


def _normal(weights: Weights) -> dict[str, float]:
    largest = max(weights.values())
    # Twice, for numbers whose sum is beyond counting.
    scaled = {name: weight / largest for name, weight in weights.items()}
    total = math.fsum(scaled.values())
    return {name: weight / total for name, weight in scaled.items()}


def documents_of(dataset: Mixable) -> DocumentPipeline:
    """What a source is made of where its rows come lane by lane."""
    if isinstance(dataset, SampleDataset):
        return DocumentPipeline(dataset.pipeline)
    return dataset.pipeline if isinstance(dataset, DynamicDataset) else dataset.documents


def is_empty(dataset: Mixable) -> bool:
    """Whether a source is known to have no row."""
    return not (dataset.weight if isinstance(dataset, PackedDataset) else len(documents_of(dataset).base))


@dataclass(frozen=True, kw_only=True)
class MixDataset(Dataset):
    """Several datasets as one, as `mix` makes it. ``len()`` is the rows of a pass over each of them, if that is known.

    Attributes:
        sources: the datasets by name. The numbers in ``batch["source"]`` are those of `names`.
        weights: what each weighs, and when.
        on_exhausted: what becomes of the mixture when a source has no row left.
        per_batch: whether each batch is of one source.
        max_epochs: passes over a source after which it has no row left; what is not in here has as many as it takes.

    Example:
        >>> headrace.mix({"web": (packed, 3), "code": (packed, 1)}).names
        ('web', 'code')
    """

    sources: Mapping[str, Mixable]
    weights: WeightSchedule = field(repr=False)
    on_exhausted: Literal["repeat", "stop", "drop"]
    per_batch: bool
    max_epochs: Mapping[str, int]

    @property
    def names(self) -> tuple[str, ...]:
        """The sources by number."""
        return tuple(self.sources)

    @property
    def packed(self) -> Mapping[str, PackedDataset]:
        """The sources, if all are packed datasets, whose rows are then counted: nothing if not."""
        packed = {name: one for name, one in self.sources.items() if isinstance(one, PackedDataset)}
        return packed if len(packed) == len(self.sources) else {}

    def passes(self, name: str) -> int | None:
        """Passes after which a source has no row left; None if it never ends.

        Example:
            >>> headrace.mix({"web": (packed, 3), "code": (packed, 1)}, max_epochs={"code": 4}).passes("code")
            4
        """
        return self.max_epochs.get(name, None if self.on_exhausted == "repeat" else 1)

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.sources.values())

    def info(self) -> dict[str, Any]:
        """What is mixed: ``on_exhausted``, ``per_batch``, ``max_epochs``, the ``weights`` at the beginning, and of each
        of the ``sources`` what its own `info` says.

        Example:
            >>> headrace.mix({"a": (packed, 3), "b": (packed, 1)}).info()["weights"]
            {'a': 3.0, 'b': 1.0}
        """  # noqa: D205
        return {
            "on_exhausted": self.on_exhausted,
            "per_batch": self.per_batch,
            "max_epochs": dict(self.max_epochs),
            "weights": self.weights.pieces()[0][1],
            "sources": {name: dataset.info() for name, dataset in self.sources.items()},
        }

    def __repr__(self) -> str:
        shares = [f"{name}={share:.3g}" for name, share in _normal(self.weights.pieces()[0][1]).items()]
        shown = shares if len(shares) <= _SHOWN else [*shares[:_SHOWN], f"… {len(shares)} sources"]
        rest = {"on_exhausted": self.on_exhausted, "per_batch": self.per_batch, "max_epochs": dict(self.max_epochs)}
        given = [f"{key}={value!r}" for key, value in rest.items() if value not in ("repeat", False, {})]
        return f"mix({', '.join(shown + given)})"


def mix(
    sources: Mapping[str, tuple[Mixable, float] | Mixable],
    *,
    schedule: WeightSchedule | Mapping[int, Weights] | None = None,
    temperature: float | None = None,
    on_exhausted: Literal["repeat", "stop", "drop"] = "repeat",
    per_batch: bool = False,
    max_epochs: Mapping[str, SupportsIndex] | None = None,
) -> MixDataset:
    """A mixture of datasets: each row is of one of them, in shares that follow the weights closely.

    The sources are packed datasets, samples, or what `flat_map`, `batch_map` and `pack` make of these. Rows of packed
    datasets alone are counted. In any other mixture all rows come lane by lane: those of a packed dataset are then what
    ``data.select([column]).pack(...)`` gives. Where samples end is known if each stored one
    is a row; where other sources of such a mixture end only reading tells, so they repeat.

    One row of each lane is always within one row of the weights, and so is each batch of as many rows as there are
    lanes, which is the default. One of m times as many is within 1 + log2(m) / 2 rows, for m up to 64 and lanes up to
    4,096. Each lane is within 8 rows of them for a million of its rows. "Mixtures" in docs/order.md says which row is
    of which source.

    Args:
        sources: by name a dataset and its weight: 0 or more, and not all 0. Weights are relative to each other. A
            source of weight 0 gives no row. With a schedule that begins at 0 datasets alone.
        schedule: weights that change during a run; a dict is one of steps whose weights hold until the next point.
        temperature: above 0. Weights count to the power of 1 / temperature: above 1 small ones gain. Of weights that
            are sizes, such as numbers of tokens, this makes usual shares.
        on_exhausted: what becomes of the mixture in the first row of all lanes for which a source cannot supply a lane:
            ``"repeat"``: sources are gone through again and again, and nothing ends, but those in `max_epochs` leave
            the mixture; ``"stop"``: it ends; ``"drop"``: the source leaves, and the others' shares grow.
        per_batch: whether all rows of a batch are of one source: then the weights are those of batches.
        max_epochs: passes over a source after which it is exhausted; for others 1, or with ``"repeat"`` no end.

    Raises:
        TypeError: if something is of the wrong type.
        ValueError: if weights are negative, not finite or all 0; names do not fit; rows of two sources differ in
            length, type or name; or a source's end has to be known, and is not.

    Example:
        >>> mixed = headrace.mix({"web": (packed, 0.75), "code": (packed, 0.25)})
        >>> batch = next(iter(headrace.DataLoader(mixed, global_batch_size=4, seed=0)))
        >>> sorted(batch["source"].tolist()), batch["tokens"].shape
        ([0, 0, 0, 1], (4, 64))
    """
    datasets, weights = _split(sources)
    points = _points(weights, schedule, temperature)
    if on_exhausted not in ("repeat", "stop", "drop"):
        raise ValueError(f'on_exhausted must be "repeat", "stop" or "drop", got {on_exhausted!r}')
    passes = {
        name: as_int(epochs, f"max_epochs[{name!r}]", least=1, most=2**32 - 1)
        for name, epochs in (max_epochs or {}).items()
    }
    if unknown := [name for name in passes if name not in datasets]:
        raise ValueError(f"max_epochs names {unknown[0]!r}, but the sources are {', '.join(map(repr, datasets))}")
    mixed = MixDataset(
        sources=datasets, weights=points, on_exhausted=on_exhausted, per_batch=bool(per_batch), max_epochs=passes
    )
    if mixed.packed:
        _check_alike(mixed.packed)
    else:
        _check_lanes(mixed)
    _check_filled(mixed)
    return mixed


def _split(
    sources: Mapping[str, tuple[Mixable, float] | Mixable],
) -> tuple[dict[str, Mixable], dict[str, float] | None]:
    """Datasets, and weights if they were given."""
    if not isinstance(sources, Mapping) or not sources:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"mix takes a dict of names to (dataset, weight), got {sources!r}")
    datasets: dict[str, Mixable] = {}
    weights: dict[str, float] = {}
    for name, source in sources.items():
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a source's name must be text, got {name!r}")
        dataset: Any = source
        if isinstance(source, tuple):
            if len(source) != 2:  # pyright: ignore[reportUnnecessaryComparison]
                raise TypeError(f"source {name!r} must be (dataset, weight), got {len(source)} values")
            dataset, weights[name] = source
        if not isinstance(dataset, Mixable):
            raise TypeError(f"source {name!r} must be a dataset of samples or packed tokens, got {dataset!r}")
        datasets[name] = dataset
    if weights and len(weights) < len(datasets):
        without = next(name for name in datasets if name not in weights)
        raise ValueError(f"source {without!r} has no weight, but source {next(iter(weights))!r} has one")
    return datasets, weights or None


def _points(
    weights: dict[str, float] | None,
    schedule: WeightSchedule | Mapping[int, Weights] | None,
    temperature: float | None,
) -> WeightSchedule:
    """The whole schedule, checked."""
    given = schedule if isinstance(schedule, WeightSchedule) else WeightSchedule({} if schedule is None else schedule)
    points = {as_int(at, "a point of the schedule", least=0, most=2**62): one for at, one in given.points.items()}
    if 0 not in points:
        if weights is None:
            raise ValueError("weights are missing: give (dataset, weight) for each source, or a schedule from 0 on")
        points[0] = weights
    elif weights is not None:
        raise ValueError("a schedule from 0 on says all weights: give datasets without a weight")
    checked = {at: _check_weights(one, at) for at, one in points.items()}
    names = set(checked[0])
    for at, one in checked.items():
        if odd := sorted(names ^ set(one)):
            raise ValueError(f"the weights at {at} must be those of all sources and no others: see {odd[0]!r}")
    if temperature is not None:
        checked = {at: _heated(one, temperature) for at, one in checked.items()}
    return WeightSchedule(dict(sorted(checked.items())), given.over, given.shape)


def _check_weights(weights: Weights, at: int) -> dict[str, float]:
    """Weights as floats, in the order of the names.

    Raises:
        TypeError: if one is no number.
        ValueError: if one is out of range, or all are 0.
    """
    where = f" at {at}" if at else ""
    checked: dict[str, float] = {}
    for name, weight in weights.items():
        try:
            checked[name] = float(weight)
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"the weight of source {name!r}{where} must be a number, got {weight!r}") from None
        if not 0 <= checked[name] < math.inf:
            raise ValueError(f"the weight of source {name!r}{where} must be 0 or more and finite, got {weight!r}")
    if not any(checked.values()):
        raise ValueError(f"a source must have a weight above 0{where}, got {checked}")
    return checked


def _heated(weights: Weights, temperature: float) -> dict[str, float]:
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"temperature must be a number, got {temperature!r}")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be above 0 and finite, got {temperature!r}")
    largest = max(weights.values())
    power = _EXACT.divide(Decimal(1), Decimal(temperature))
    return {
        name: float(_EXACT.power(_EXACT.divide(Decimal(weight), Decimal(largest)), power)) if weight else 0.0
        for name, weight in weights.items()
    }


def _check_alike(datasets: Mapping[str, PackedDataset]) -> None:
    """Refuses sources whose rows do not fit into one array."""
    (first, one), *others = datasets.items()
    if one.packing.name == "source":
        raise ValueError(f"the tokens of source {first!r} must not be named 'source', as the numbers of sources are")
    for name, other in others:
        for key in ("seq_len", "overlap", "boundaries", "dtype", "name"):
            here, there = _row(one)[key], _row(other)[key]
            if here != there:
                raise ValueError(
                    f"the rows of all sources must be alike: {key} is {here!r} for source {first!r} "
                    f"and {there!r} for source {name!r}"
                )


def _row(dataset: PackedDataset) -> dict[str, Any]:
    packing = dataset.packing
    return vars(packing) | {"dtype": "int64" if packing.wide else "int32"}


def _check_lanes(mixed: MixDataset) -> None:
    """Refuses rows that do not fit into one array, and ends that nobody would know of."""
    from .loading.lanes.mixture import check_alike

    check_alike(mixed)
    for name, dataset in mixed.sources.items():
        if mixed.passes(name) is not None and not documents_of(dataset).is_counted:
            given = f"max_epochs={dict(mixed.max_epochs)}" if name in mixed.max_epochs else ""
            raise ValueError(
                f"{given or f'on_exhausted={mixed.on_exhausted!r}'} needs sources whose rows are counted: only reading "
                f"tells where source {name!r} ends\n"
                "hint: counted are packed datasets alone, and samples without filter, flat_map, batch_map and pack\n"
                'hint: other sources repeat, with on_exhausted="repeat" and no max_epochs: stop after some steps'
            )


def _check_filled(mixed: MixDataset) -> None:
    """Refuses sources without a row that are to give some."""
    what = "token" if mixed.packed else "sample"
    empty = [name for name, dataset in mixed.sources.items() if is_empty(dataset)]
    for name in empty:
        drawn = any(weights[name] > 0 for weights in mixed.weights.points.values())
        if drawn and mixed.on_exhausted != "drop":
            raise ValueError(
                f"source {name!r} holds no {what}\n"
                'hint: a weight of 0 leaves it out, and on_exhausted="drop" goes on without it'
            )
    if len(empty) == len(mixed.sources):
        raise ValueError(f"the sources hold no {what}")
