"""Conditions on columns, as `where` takes them: ``col("score") > 0.5``, evaluated for a whole chunk at a time."""

import operator as _operator
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

__all__ = ["Expression", "col"]

operator: Any = _operator  # untyped: what columns hold is known when they are read

Columns = Mapping[str, Any]
"""From names to arrays or lists with an entry for each item."""


class Expression:
    """A value for each item, computed from its columns.

    Comparisons, ``+ - * / // %``, ``& | ~`` and the methods below make further ones. What is null (None) is false in
    every comparison and makes arithmetic null; `is_null` tells it.

    Example:
        >>> (col("score") > 0.5) & ~col("lang").is_in(["de", "fr"])
        ((col('score') > 0.5) & ~col('lang').is_in(['de', 'fr']))
    """

    __slots__ = ("_evaluate", "_text", "columns")

    __array_ufunc__ = None
    """Has NumPy's numbers on the left leave operators to this class."""

    columns: frozenset[str]
    """The columns that it needs."""

    def __init__(self, columns: frozenset[str], text: str, evaluate: Callable[[Columns], Any]) -> None:
        self.columns = columns
        self._text = text
        self._evaluate = evaluate

    def mask(self, columns: Columns, count: int) -> npt.NDArray[np.bool_]:
        """Which of `count` items the condition holds for: bool, (count,).

        Raises:
            TypeError: if it is no condition, or the values are not of the kinds that it needs.

        Example:
            >>> (headrace.col("a") > 1).mask({"a": np.array([1, 2, 3])}, 3).tolist()
            [False, True, True]
        """
        found: npt.NDArray[Any] = np.asarray(_column(self._evaluate(columns)))
        if found.ndim == 0:
            found = np.full(count, found)
        if found.dtype == object and all(value is None or isinstance(value, bool | np.bool_) for value in found):
            found = np.array([bool(value) for value in found], dtype=np.bool_)
        if found.dtype != np.bool_ or found.shape != (count,):
            raise TypeError(
                f"{self!r}: expected a condition, True or False for each of {count} items, found {found.dtype} "
                f"of shape {found.shape}"
            )
        return found

    def is_null(self) -> "Expression":
        """Whether the value is missing.

        Example:
            >>> headrace.col("text").is_null().mask({"text": ["a", None]}, 2).tolist()
            [False, True]
        """
        return self._then(
            f"{self!r}.is_null()", lambda values: np.array([value is None for value in _listed(values)], dtype=np.bool_)
        )

    def is_in(self, values: Collection[Any]) -> "Expression":
        """Whether the value is one of these.

        Example:
            >>> len(samples.where(headrace.col("label").is_in([0, 2])))
            6
        """
        chosen = list(values)
        try:
            among: Any = frozenset(chosen)
        except TypeError:
            among = chosen
        return self._then(
            f"{self!r}.is_in({chosen!r})",
            lambda found: np.array([_is_among(value, among, chosen) for value in _listed(found)], dtype=np.bool_),
        )

    def startswith(self, prefix: str) -> "Expression":
        """Whether text begins so.

        Example:
            >>> len(samples.where(headrace.col("text").startswith("sample 1")))
            3
        """
        return self._each(f".startswith({prefix!r})", lambda value: value.startswith(prefix))

    def endswith(self, suffix: str) -> "Expression":
        """Whether text ends so.

        Example:
            >>> len(samples.where(headrace.col("text").endswith("1")))
            2
        """
        return self._each(f".endswith({suffix!r})", lambda value: value.endswith(suffix))

    def contains(self, part: Any) -> "Expression":
        """Whether text, bytes or a list hold this.

        Example:
            >>> len(samples.where(headrace.col("text").contains("11")))
            1
        """
        return self._each(f".contains({part!r})", lambda value: part in value)

    def length(self) -> "Expression":
        """The length of text, bytes, a list or an array; null stays null.

        Example:
            >>> len(samples.where(headrace.col("text").length() == 9))
            2
        """
        return self._then(
            f"{self!r}.length()",
            lambda values: _array([None if value is None else len(value) for value in _listed(values)]),
        )

    def field(self, name: str) -> "Expression":
        """A part of a struct.

        Example:
            >>> headrace.col("meta").field("lang") == "en"
            (col('meta').field('lang') == 'en')
        """
        return self._then(
            f"{self!r}.field({name!r})",
            lambda values: _array([None if value is None else value[name] for value in _listed(values)]),
        )

    def _each(self, text: str, function: Callable[[Any], bool]) -> "Expression":
        return self._then(
            f"{self!r}{text}",
            lambda values: np.array(
                [value is not None and bool(function(value)) for value in _listed(values)], dtype=np.bool_
            ),
        )

    def _then(self, text: str, function: Callable[[Any], Any]) -> "Expression":
        before = self._evaluate
        return Expression(self.columns, text, lambda columns: function(before(columns)))

    def _with(self, other: Any, sign: str, function: Callable[[Any, Any], Any], *, swap: bool = False) -> "Expression":
        if other is None and sign in _COMPARISONS:
            raise TypeError(
                f"{self!r} {sign} None is true for no sample\nhint: {self!r}.is_null() tells what is missing"
            )
        right = other if isinstance(other, Expression) else _constant(other)
        left: Expression = self
        if swap:
            left, right = right, left
        one, two = left._evaluate, right._evaluate
        return Expression(
            left.columns | right.columns,
            f"({left!r} {sign} {right!r})",
            lambda columns: _apply(function, sign, one(columns), two(columns)),
        )

    def __lt__(self, other: Any) -> "Expression":
        return self._with(other, "<", operator.lt)

    def __le__(self, other: Any) -> "Expression":
        return self._with(other, "<=", operator.le)

    def __gt__(self, other: Any) -> "Expression":
        return self._with(other, ">", operator.gt)

    def __ge__(self, other: Any) -> "Expression":
        return self._with(other, ">=", operator.ge)

    def __eq__(self, other: object) -> "Expression":  # type: ignore[override]
        return self._with(other, "==", operator.eq)

    def __ne__(self, other: object) -> "Expression":  # type: ignore[override]
        return self._with(other, "!=", operator.ne)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> "Expression":
        return self._with(other, "+", operator.add)

    def __radd__(self, other: Any) -> "Expression":
        return self._with(other, "+", operator.add, swap=True)

    def __sub__(self, other: Any) -> "Expression":
        return self._with(other, "-", operator.sub)

    def __rsub__(self, other: Any) -> "Expression":
        return self._with(other, "-", operator.sub, swap=True)

    def __mul__(self, other: Any) -> "Expression":
        return self._with(other, "*", operator.mul)

    def __rmul__(self, other: Any) -> "Expression":
        return self._with(other, "*", operator.mul, swap=True)

    def __truediv__(self, other: Any) -> "Expression":
        return self._with(other, "/", operator.truediv)

    def __rtruediv__(self, other: Any) -> "Expression":
        return self._with(other, "/", operator.truediv, swap=True)

    def __floordiv__(self, other: Any) -> "Expression":
        return self._with(other, "//", operator.floordiv)

    def __rfloordiv__(self, other: Any) -> "Expression":
        return self._with(other, "//", operator.floordiv, swap=True)

    def __mod__(self, other: Any) -> "Expression":
        return self._with(other, "%", operator.mod)

    def __rmod__(self, other: Any) -> "Expression":
        return self._with(other, "%", operator.mod, swap=True)

    def __and__(self, other: Any) -> "Expression":
        return self._with(other, "&", operator.and_)

    def __or__(self, other: Any) -> "Expression":
        return self._with(other, "|", operator.or_)

    def __invert__(self) -> "Expression":
        return self._then(f"~{self!r}", lambda values: ~_truth(values))

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self!r} is a condition for each item and neither true nor false\n"
            "hint: combine conditions with & | ~ rather than and, or, not, and write (a < x) & (x < b)"
        )

    def __repr__(self) -> str:
        return self._text


def col(name: str) -> Expression:
    """The values of a column, for a condition.

    Raises:
        TypeError: if the name is no text.

    Example:
        >>> headrace.col("tokens").length() >= 128
        (col('tokens').length() >= 128)
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"col takes the name of a column, got {name!r}")
    return Expression(frozenset([name]), f"col({name!r})", lambda columns: columns[name])


_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def _constant(value: Any) -> Expression:
    # Of NumPy's numbers Python's own: they have no end where integers grow.
    plain: Any = cast("Any", value).item() if isinstance(value, np.integer | np.floating | np.bool_) else value
    return Expression(frozenset(), repr(plain), lambda _: plain)


def _apply(function: Callable[[Any, Any], Any], sign: str, one: Any, two: Any) -> Any:
    """An operation on two columns or constants, item by item; nulls are left out."""
    if sign in ("&", "|"):
        return function(_truth(one), _truth(two))
    comparison = sign in _COMPARISONS
    one, two = _column(one), _column(two)
    columns: list[npt.NDArray[Any]] = [side for side in (one, two) if isinstance(side, np.ndarray)]
    if not columns:
        return function(one, two)
    if all(side.dtype != object for side in columns) and one is not None and two is not None:
        # A truth counts as 0 or 1, and integers have no end, as in Python.
        if comparison:
            return function(one, two)
        one, two = _number(one), _number(two)
        if not _may_overflow(one, two):
            try:
                with np.errstate(all="raise"):
                    return function(one, two)
            except FloatingPointError:
                pass
    count = len(columns[0])
    pairs = zip(_spread(one, count), _spread(two, count), strict=True)
    if comparison:
        return np.array([a is not None and b is not None and bool(function(a, b)) for a, b in pairs], dtype=np.bool_)
    return _array([None if a is None or b is None else function(a, b) for a, b in pairs])


def _column(side: Any) -> Any:
    """A column as an array, numbers in 64 bits: what a condition means must not hang on how a chunk stores them."""
    if isinstance(side, list):
        return _array(cast("list[Any]", side))
    if not isinstance(side, np.ndarray):
        return side
    array = cast("npt.NDArray[Any]", side)
    if array.dtype == np.uint64:
        return _array(array.tolist()) if array.size and int(array.max()) >= 2**63 else array.astype(np.int64)
    if array.dtype.kind in "iu":
        return array.astype(np.int64, copy=False)
    return array.astype(np.float64, copy=False) if array.dtype.kind == "f" and array.dtype.itemsize < 8 else array


def _number(side: Any) -> Any:
    if not isinstance(side, np.ndarray):
        return side
    array = cast("npt.NDArray[Any]", side)
    return array.astype(np.int64) if array.dtype == np.bool_ else array


def _may_overflow(one: Any, two: Any) -> bool:
    """Whether an operation on integers might leave 64 bits."""
    largest: list[int] = []
    for side in (one, two):
        if not isinstance(side, np.ndarray):
            if not isinstance(side, int):
                return False
            largest.append(abs(side))
            continue
        array = cast("npt.NDArray[Any]", side)
        if array.dtype.kind != "i":
            return False
        largest.append(max(abs(int(array.min())), abs(int(array.max()))) if array.size else 0)
    return max(largest[0] * largest[1], sum(largest)) >= 2**63


def _is_among(value: Any, among: Any, chosen: list[Any]) -> bool:
    try:
        return value in among
    except TypeError:  # a list, say, which has no hash
        return value in chosen


def _spread(side: Any, count: int) -> list[Any]:
    return _listed(side) if isinstance(side, np.ndarray) else [side] * count


def _listed(values: Any) -> list[Any]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _array(values: list[Any]) -> npt.NDArray[Any]:
    """Numbers or conditions as such an array, anything else as one of objects."""
    kinds = set(map(type, values))
    if kinds and kinds <= {bool, np.bool_}:
        return np.array(values, dtype=np.bool_)
    if kinds and kinds <= {int, float}:
        # Integers that would lose digits stay as they are.
        most = 2**53 if float in kinds else 2**63 - 1
        if all(type(value) is float or abs(value) <= most for value in values):
            return np.array(values, dtype=np.float64 if float in kinds else np.int64)
    out = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):  # at once, lists of equal length would become rows
        out[number] = value
    return out


def _truth(values: Any) -> npt.NDArray[np.bool_]:
    """A condition whose nulls are false.

    Raises:
        TypeError: if it is no condition.
    """
    array: npt.NDArray[Any] = np.asarray(values if isinstance(values, np.ndarray | bool) else _array(list(values)))
    if array.dtype == object and all(value is None or isinstance(value, bool | np.bool_) for value in array):
        array = np.array([bool(value) for value in array], dtype=np.bool_)
    if array.dtype != np.bool_:
        raise TypeError(f"& | ~ take conditions, found values of {array.dtype}\nhint: (col('a') > 1) & (col('b') < 2)")
    return array
