"""Conditions on columns against plain Python, one sample at a time; nulls, and what is refused."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.samples.expression import Expression, col
from sample_sources import MadeUp, dataset_of, ids, made_up, source_of

Row = dict[str, Any]
Meaning = Callable[[Row], Any]
"""What an expression means for one sample; None is null."""

COMPARISONS: list[Callable[[Any, Any], Any]] = [
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
]
ARITHMETIC: list[Callable[[Any, Any], Any]] = [operator.add, operator.sub, operator.mul]
DIVISIONS: list[Callable[[Any, Any], Any]] = [operator.truediv, operator.floordiv, operator.mod]

INTS = st.integers(-5, 5) | st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64, 10**30])
FLOATS = st.sampled_from([0.0, 0.5, -1.5, 1e300, float("inf"), float("nan")])
TEXTS = st.sampled_from(["", "a", "ab", "b", "ba", "é"])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | INTS,
            "m": INTS,
            "x": st.none() | FLOATS,
            "t": st.none() | TEXTS,
            "l": st.none() | st.lists(st.integers(0, 3), max_size=3),
            "b": st.none() | st.booleans(),
        }
    ),
    max_size=8,
)


def evaluated(condition: Expression, rows: list[Row], names: str = "nmxtlb") -> list[bool]:
    return condition.mask({name: [row[name] for row in rows] for name in names}, len(rows)).tolist()


def null_if_null(function: Callable[..., Any], *parts: Meaning) -> Meaning:
    def meaning(row: Row) -> Any:
        values = [part(row) for part in parts]
        return None if any(value is None for value in values) else function(*values)

    return meaning


def numbers() -> st.SearchStrategy[tuple[Expression, Meaning]]:
    leaves: st.SearchStrategy[tuple[Expression, Meaning]] = st.sampled_from(
        [
            (col("n"), lambda row: row["n"]),
            (col("m"), lambda row: row["m"]),
            (col("t").length(), lambda row: None if row["t"] is None else len(row["t"])),
            (col("l").length(), lambda row: None if row["l"] is None else len(row["l"])),
        ]
    )

    def combined(inner: st.SearchStrategy[tuple[Expression, Meaning]]) -> st.SearchStrategy[tuple[Expression, Meaning]]:
        def two(function: Any, one: Any, other: Any) -> tuple[Expression, Meaning]:
            return function(one[0], other[0]), null_if_null(function, one[1], other[1])

        def constant(function: Any, one: Any, number: int, swap: bool) -> tuple[Expression, Meaning]:
            if swap:
                return function(number, one[0]), null_if_null(lambda value: function(number, value), one[1])
            return function(one[0], number), null_if_null(lambda value: function(value, number), one[1])

        return st.builds(two, st.sampled_from(ARITHMETIC), inner, inner) | st.builds(
            constant, st.sampled_from(ARITHMETIC), inner, INTS, st.booleans()
        )

    return st.recursive(leaves, combined, max_leaves=4)


def conditions() -> st.SearchStrategy[tuple[Expression, Meaning]]:
    def compared(function: Any, one: Any, other: Any) -> tuple[Expression, Meaning]:
        # A null makes a comparison false.
        return function(one[0], other[0]), lambda row: bool(null_if_null(function, one[1], other[1])(row))

    def of_column(name: str, function: Any, value: Any) -> tuple[Expression, Meaning]:
        return function(col(name), value), lambda row: row[name] is not None and bool(function(row[name], value))

    leaves = (
        st.builds(compared, st.sampled_from(COMPARISONS), numbers(), numbers())
        | st.builds(of_column, st.just("n"), st.sampled_from(COMPARISONS), INTS)
        | st.builds(of_column, st.just("x"), st.sampled_from(COMPARISONS), FLOATS)
        | st.builds(of_column, st.just("t"), st.sampled_from(COMPARISONS), TEXTS)
        | st.builds(
            lambda part: (col("t").startswith(part), lambda row: bool(row["t"]) and row["t"][:1] == part),
            st.sampled_from("ab"),
        )
        | st.builds(
            lambda part: (col("t").endswith(part), lambda row: bool(row["t"]) and row["t"][-1:] == part),
            st.sampled_from("ab"),
        )
        | st.builds(
            lambda part: (col("t").contains(part), lambda row: part in (row["t"] or " ")), st.sampled_from("ab")
        )
        | st.builds(lambda part: (col("l").contains(part), lambda row: part in (row["l"] or [])), st.integers(0, 3))
        | st.builds(
            lambda few: (col("n").is_in(few), lambda row: row["n"] in few), st.lists(INTS | st.none(), max_size=3)
        )
        | st.builds(
            lambda few: (col("l").is_in(few), lambda row: row["l"] in few), st.lists(st.just([1]) | st.just("a"))
        )
        | st.builds(lambda name: (col(name).is_null(), lambda row: row[name] is None), st.sampled_from("nmxtlb"))
        | st.just((col("b"), lambda row: bool(row["b"])))
    )

    def combined(inner: st.SearchStrategy[tuple[Expression, Meaning]]) -> st.SearchStrategy[tuple[Expression, Meaning]]:
        return (
            st.builds(lambda one, two: (one[0] & two[0], lambda row: one[1](row) and two[1](row)), inner, inner)
            | st.builds(lambda one, two: (one[0] | two[0], lambda row: one[1](row) or two[1](row)), inner, inner)
            | st.builds(lambda one: (~one[0], lambda row: not one[1](row)), inner)
        )

    return st.recursive(leaves, combined, max_leaves=4)


@given(rows=ROWS, condition=conditions())
def test_a_condition_means_what_python_means(rows: list[Row], condition: tuple[Expression, Meaning]) -> None:
    expression, meaning = condition
    assert evaluated(expression, rows) == [bool(meaning(row)) for row in rows]


@given(rows=ROWS, condition=conditions())
def test_what_a_condition_means_for_a_sample_does_not_depend_on_its_neighbours(
    rows: list[Row], condition: tuple[Expression, Meaning]
) -> None:
    expression, _ = condition
    together = evaluated(expression, rows)
    assert together == [evaluated(expression, [row])[0] for row in rows]


@given(
    values=st.lists(st.integers(0, 255), min_size=1, max_size=5),
    kind=st.sampled_from(["uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]),
    function=st.sampled_from([*ARITHMETIC, *DIVISIONS]),
    number=st.integers(-300, 300).filter(bool),
    comparison=st.sampled_from(COMPARISONS),
    bound=st.integers(-300, 70_000),
)
def test_narrow_integers_do_not_wrap(
    values: list[int], kind: str, function: Any, number: int, comparison: Any, bound: int
) -> None:
    condition = comparison(function(col("a"), number), bound)
    wanted = [comparison(function(value, number), bound) for value in values]
    assert condition.mask({"a": np.array(values, dtype=kind)}, len(values)).tolist() == wanted
    assert condition.mask({"a": values}, len(values)).tolist() == wanted


@pytest.mark.parametrize("kind", ["uint64", "int64", "list"])
def test_integers_do_not_wrap_at_64_bits(kind: str) -> None:
    numbers = [2**62, 1, 2**63 - 1]
    column: Any = numbers if kind == "list" else np.array(numbers, dtype=kind)
    mask = ((col("a") * 4 > 2**63) | (col("a") + 2 == 3)).mask({"a": column}, 3)
    assert mask.tolist() == [True, True, True]
    assert (col("a") - 2**64 < 0).mask({"a": column}, 3).tolist() == [True] * 3
    assert (col("a") * np.int64(2**62) > 0).mask({"a": column}, 3).tolist() == [True] * 3
    large = np.array([2**64 - 1, 5], dtype=np.uint64)
    assert (col("a") > col("b")).mask({"a": large, "b": [-1, -1]}, 2).tolist() == [True, True]
    assert (col("a") + 1 == 2**64).mask({"a": large}, 2).tolist() == [True, False]


def test_digits_are_not_lost_where_integers_and_floats_are_mixed() -> None:
    values = [2**53 + 1, 0.5, 2**53]
    assert (col("a") == 2**53 + 1).mask({"a": values}, 3).tolist() == [True, False, False]


def test_a_null_elsewhere_in_the_chunk_changes_nothing() -> None:
    narrow = np.array([0.1, 0.25], dtype=np.float32)
    for condition in (col("a") == 0.1, col("a") * 3 > 0.3, col("a") == 0.25):
        alone = condition.mask({"a": narrow}, 2).tolist()
        assert condition.mask({"a": [*narrow.tolist(), None]}, 3).tolist() == [*alone, False]


def test_truths_are_counted_not_joined() -> None:
    rows = {"a": [1, 5, 5], "b": [5, 1, 5]}
    both = (col("a") > 2) + (col("b") > 2)
    assert (both == 2).mask(rows, 3).tolist() == [False, False, True]
    assert (both >= 1).mask(rows, 3).tolist() == [True, True, True]
    assert ((col("a") > 2) - (col("b") > 2) == -1).mask(rows, 3).tolist() == [True, False, False]


@pytest.mark.parametrize("function", DIVISIONS)
@pytest.mark.parametrize("column", [[4, 0], [4.0, 0.0], [4, 0, None], np.array([4, 0], np.uint8), np.array([1.0, 0.0])])
def test_a_division_by_zero_is_an_error(function: Any, column: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        (function(1, col("a")) > 0).mask({"a": column}, len(column))


def test_constants_may_stand_on_the_left() -> None:
    rows = {"a": [1, 2, 3, None]}
    for condition in (12 / col("a") == 4, 7 // col("a") == 2, 7 % col("a") == 1, 3 - col("a") == 0):
        assert condition.mask(rows, 4).any()
    assert (np.int64(2) < col("a")).mask(rows, 4).tolist() == [False, False, True, False]
    assert (np.float64(6.0) / col("a") == 2.0).mask(rows, 4).tolist() == [False, False, True, False]


def test_what_is_null_is_false_in_comparisons_and_null_in_arithmetic() -> None:
    rows = {"a": [None, 1], "b": [2, None]}
    for condition in (col("a") == col("b"), col("a") != col("b"), col("a") < 9):
        assert not condition.mask(rows, 2)[0]
    assert (col("a") + col("b")).is_null().mask(rows, 2).tolist() == [True, True]
    assert (col("a") + None).is_null().mask(rows, 2).tolist() == [True, True]
    assert (~(col("a") > 0)).mask(rows, 2).tolist() == [True, False]


def test_parts_of_structs() -> None:
    rows = {"meta": [{"lang": "en", "n": 1}, None, {"lang": "de", "n": None}]}
    assert (col("meta").field("lang") == "en").mask(rows, 3).tolist() == [True, False, False]
    assert col("meta").field("n").is_null().mask(rows, 3).tolist() == [False, True, True]


def test_arrays_have_lengths() -> None:
    rows = {"a": [np.arange(3), np.arange(0), None]}
    assert (col("a").length() >= 1).mask(rows, 3).tolist() == [True, False, False]


def test_conditions_say_what_they_are() -> None:
    condition = (col("a") > 1) & ~col("b").is_in(["x"]) | col("c").field("d").is_null()
    assert repr(condition) == "(((col('a') > 1) & ~col('b').is_in(['x'])) | col('c').field('d').is_null())"
    assert condition.columns == {"a", "b", "c"}


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda: col("a") > 1 and col("b") > 1, "neither true nor false(.|\n)*& |"),
        (lambda: 0 < col("a") < 5, "neither true nor false"),
        (lambda: not col("a"), "neither true nor false"),
        (lambda: col(3), "name of a column"),  # type: ignore[arg-type]
    ],
)
def test_what_python_cannot_overload_is_refused(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        wrong()


@pytest.mark.parametrize(
    "condition, message",
    [
        (col("m"), "expected a condition.*int64"),
        (col("t"), "expected a condition.*object"),
        (col("l"), "expected a condition"),
        (col("m") + 1, "expected a condition"),
        (col("m") & (col("m") > 1), "take conditions"),
        (~col("t"), "take conditions"),
        (col("t") > 5, "not supported between"),
        (col("m").startswith("a"), "startswith"),
    ],
)
def test_what_is_no_condition_is_refused(condition: Expression, message: str) -> None:
    rows = [{"m": 1, "t": "a", "l": [1]}, {"m": 2, "t": "b", "l": [1, 2]}]
    with pytest.raises((TypeError, AttributeError), match=message):
        evaluated(condition, rows, "mtl")


# where


def test_where_counts_and_reads_only_its_columns() -> None:
    data = made_up([4, 0, 5, 3])
    found = data.where((hr.col("id") % 3 == 0) & (hr.col("half") > 1))
    assert sorted(source_of(data).loads) == [(0, ("half", "id")), (2, ("half", "id")), (3, ("half", "id"))]
    assert len(found) == 3
    assert ids(found) == [3, 6, 9]
    assert len(data.where(hr.col("id") < 0)) == 0


def test_where_reads_a_chunk_once_however_often_it_is_part() -> None:
    data = made_up([6, 6])
    repeated = data.take(9).repeat(3)
    assert ids(repeated.where(hr.col("id") > 5)) == [6, 7, 8] * 3
    conditions = [load for load in source_of(data).loads if load[1] == ("id",)]
    assert sorted(conditions) == [(0, ("id",)), (1, ("id",))]


def test_where_goes_on_from_any_selection_and_keeps_its_order() -> None:
    data = made_up([6, 6])
    assert ids(data.subset([7, 2, 7, 0, 11]).where(hr.col("id") > 1)) == [7, 2, 7, 11]
    assert ids(data.where(hr.col("id") > 2).where(hr.col("id") < 8).skip(1)) == [4, 5, 6, 7]
    assert ids(hr.concat([data.take(2), made_up([3], start=50)]).where(hr.col("id") != 51)) == [0, 1, 50, 52]


def test_where_after_select_looks_at_stored_columns() -> None:
    found = made_up([6]).select(["text"]).where(hr.col("id") >= 4)
    assert list(found) == [{"text": "sample 4"}, {"text": "sample 5"}]


@pytest.mark.parametrize(
    "wrong, error, message",
    [
        (lambda data: data.where(lambda sample: True), TypeError, "condition(.|\n)*filter"),
        (lambda data: data.where(True), TypeError, "condition"),
        (lambda data: data.where(hr.col("gone") > 1), ValueError, "no column 'gone', only id, text, half"),
        (lambda data: data.map(dict).where(hr.col("id") > 1), TypeError, r"map\(dict\) comes before(.|\n)*where first"),
        (lambda data: data.where(hr.col("id")), TypeError, "expected a condition"),
    ],
)
def test_where_refuses(wrong: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wrong(made_up([3, 3]))


def test_what_a_condition_raises_names_it_and_the_file() -> None:
    with pytest.raises(TypeError) as caught:
        made_up([3]).where(hr.col("text") > 5)
    assert any("(col('text') > 5)" in note and "file-0" in note for note in caught.value.__notes__)


def test_a_damaged_chunk_is_an_error_in_where() -> None:
    def fault(chunk: int, row: int) -> None:
        if chunk == 1:
            raise hr.DataError("file-1 is damaged")

    with pytest.raises(hr.DataError, match="file-1"):
        dataset_of(MadeUp([3, 3, 3], fault=fault)).where(hr.col("id") > 1)


def test_a_comparison_with_none_points_to_is_null() -> None:
    for compare in (lambda: col("a") == None, lambda: col("a") != None):  # noqa: E711
        with pytest.raises(TypeError, match=r"is_null\(\)"):
            compare()
