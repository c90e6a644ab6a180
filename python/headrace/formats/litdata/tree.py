"""Samples from items: the leaves of an item, put into the structure that the index describes."""

import json
import struct
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, cast

from headrace.errors import DataError

from .leaves import Decode, Options, leaf

__all__ = ["KINDS", "Node", "TreeDecoder", "parse_spec", "texts"]

_Build = Callable[[Iterator[Any]], Any]

KINDS = {
    "builtins.dict": "dict",
    "builtins.list": "list",
    "builtins.tuple": "tuple",
    "collections.OrderedDict": "OrderedDict",
    "collections.defaultdict": "defaultdict",
    "collections.deque": "deque",
}
_DEEPEST = 100
"""Containers around a leaf; what goes through a structure calls itself for each."""

_FACTORIES: dict[str, Callable[[], Any]] = {
    "bool": bool, "bytes": bytes, "dict": dict, "float": float, "int": int, "list": list, "set": set, "str": str,
    "tuple": tuple,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a sample: a leaf, or a container of parts."""

    kind: str
    """``"leaf"``, or the container's type."""
    keys: tuple[Any, ...] = ()
    """Of a dict, one for each child."""
    children: tuple["Node", ...] = ()
    detail: Any = None
    """A defaultdict's factory, by name; a deque's greatest length."""
    leaves: int = 1
    extras: tuple[str, ...] = field(default=())
    """Of a sample: keys that other samples of the dataset have, and this structure lacks."""

    @property
    def is_named(self) -> bool:
        """Whether it is a dict whose keys can be the names of columns."""
        is_dict = self.kind in ("dict", "OrderedDict", "defaultdict")
        return is_dict and all(isinstance(key, str) and key for key in self.keys)


def parse_spec(spec: str | None, leaves: int, where: str) -> Node:
    """The structure that the index describes.

    Args:
        spec: ``data_spec``.
        leaves: how many leaves there are by ``data_format``.
        where: the index' name, for messages.

    Raises:
        DataError: if it is damaged, or needs what only the program that wrote it has.
    """
    if spec is None:
        raise DataError(f"{where}: expected a data_spec, found none")
    try:
        version, found = json.loads(spec)
        if version != 1:
            raise DataError(f"expected version 1, found {version!r}")
        node = _node(found, 0)
    except DataError as error:
        raise DataError(f"{where}, data_spec: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(f"{where}: expected a data_spec of LitData: {type(error).__name__}: {error}") from None
    if node.leaves != leaves:
        raise DataError(f"{where}: expected a serialiser for each of {node.leaves} leaves, found {leaves}")
    return node


def _node(found: Any, depth: int) -> Node:
    if depth > _DEEPEST:
        raise DataError(f"expected containers in at most {_DEEPEST} others")
    name, context = found["type"], found["context"]
    children = tuple(_node(child, depth + 1) for child in found["children_spec"])
    if name is None:
        if children:
            raise DataError("expected a leaf without children")
        return Node("leaf")
    kind = KINDS.get(name)
    if kind is None:
        hint = ""
        if name == "collections.namedtuple":
            hint = f" {context!r}, whose class only the program that wrote it knows"
        raise DataError(f"expected samples of {', '.join(KINDS)}, found {name!r}{hint}")
    detail: Any = None
    keys: list[Any] = []
    if kind == "defaultdict":
        detail, keys = context["default_factory_name"], context["dict_context"]
        if context["default_factory_module"] != "builtins" or detail not in _FACTORIES:
            raise DataError(
                f"expected a defaultdict of a built-in type, found {context['default_factory_module']}.{detail}"
            )
    elif kind in ("dict", "OrderedDict"):
        keys = json.loads(context)
    elif kind == "deque":
        detail = json.loads(context)
        if detail is not None and (type(detail) is not int or detail < 0):
            raise DataError(f"expected a deque's greatest length, found {detail!r}")
    named = tuple(_hashable(key) for key in keys)
    if kind.endswith(("dict", "Dict")) and len({*named}) != len(children):
        raise DataError(f"expected {len(children)} different keys, found {keys!r}")
    return Node(kind, named, children, detail, sum(child.leaves for child in children))


def _hashable(key: Any) -> Any:
    """A key, as it was before JSON made lists of tuples."""
    return tuple(_hashable(part) for part in cast("list[Any]", key)) if isinstance(key, list) else key


def texts(node: Node, formats: Sequence[str], options: Options) -> str:
    """What a part is, as text."""
    return _text(node, iter(formats), options)


def _text(node: Node, formats: Iterator[str], options: Options) -> str:
    if node.kind == "leaf":
        name = next(formats)
        try:
            return leaf(name, options)[1]
        except (DataError, ImportError):
            return name
    parts = [_text(child, formats, options) for child in node.children]
    if node.kind.endswith(("dict", "Dict")):
        return "{" + ", ".join(f"{key}: {part}" for key, part in zip(node.keys, parts, strict=True)) + "}"
    return f"{node.kind}[{', '.join(parts)}]"


class TreeDecoder:
    """Makes samples of the bytes of items: ``u32 size[leaves] | leaves``.

    Attributes:
        decode: from an item's bytes to a sample.

    Args:
        node: the structure of a sample.
        formats: the serialiser of each leaf.
        options: how leaves come out.
        columns: the keys that are wanted, if not all.
    """

    decode: Callable[[bytes], Any]

    def __init__(
        self, node: Node, formats: Sequence[str], options: Options, columns: tuple[str, ...] | None = None
    ) -> None:
        self._names = list(_names(node, ""))
        self._head = 4 * node.leaves
        self._sizes = struct.Struct(f"<{node.leaves}I").unpack_from
        wanted: Sequence[int] = range(node.leaves)
        if columns is not None:
            node, wanted = _projected(node, columns)
        self._picks: list[tuple[int, Decode]] = []
        for number in wanted:
            try:
                self._picks.append((number, leaf(formats[number], options)[0]))
            except DataError as error:
                raise DataError(f"{_part(self._names[number])}{error}") from None
        if columns is not None:
            self.decode = self._some(_builder(node))
        elif node.kind == "dict" and not node.extras and all(child.kind == "leaf" for child in node.children):
            self.decode = self._flat(node.keys)
        else:
            self.decode = self._all(_builder(node))

    def fault(self, data: bytes) -> str:
        """What is wrong with an item's bytes, found by decoding it a leaf at a time; no text if nothing is."""
        try:
            sizes = self._sizes(data)
        except struct.error:
            return f"expected {self._head} bytes of sizes, found an item of {len(data)}"
        bounds = list(accumulate(sizes, initial=self._head))
        if bounds[-1] != len(data):
            return f"expected an item of {bounds[-1]} bytes by the sizes of its parts, found {len(data)}"
        for number, decode in self._picks:
            try:
                decode(data, bounds[number], bounds[number + 1])
            except DataError as error:
                return f"{_part(self._names[number])}{error}"
            except Exception as error:
                return f"{_part(self._names[number])}{type(error).__name__}: {error}"
        return ""

    def _flat(self, keys: tuple[Any, ...]) -> Callable[[bytes], Any]:
        """For a dict of leaves, which most samples are: half the time that `_all` takes."""
        head, unpack = self._head, self._sizes
        decoders = [decode for _, decode in self._picks]

        def decode(data: bytes) -> dict[Any, Any]:
            stop = head
            sample: dict[Any, Any] = {}
            for key, convert, size in zip(keys, decoders, unpack(data), strict=False):
                start = stop
                stop += size
                sample[key] = convert(data, start, stop)
            if stop != len(data):
                raise DataError(f"expected {stop} bytes")
            return sample

        return decode

    def _all(self, build: Callable[[list[Any]], Any]) -> Callable[[bytes], Any]:
        head, unpack = self._head, self._sizes
        decoders = [decode for _, decode in self._picks]

        def decode(data: bytes) -> Any:
            stop = head
            values: list[Any] = []
            add = values.append
            for convert, size in zip(decoders, unpack(data), strict=False):
                start = stop
                stop += size
                add(convert(data, start, stop))
            if stop != len(data):
                raise DataError(f"expected {stop} bytes")
            return build(values)

        return decode

    def _some(self, build: Callable[[list[Any]], Any]) -> Callable[[bytes], Any]:
        head, unpack, picks = self._head, self._sizes, self._picks

        def decode(data: bytes) -> Any:
            bounds = list(accumulate(unpack(data), initial=head))
            if bounds[-1] != len(data):
                raise DataError(f"expected {bounds[-1]} bytes")
            return build([decode(data, bounds[number], bounds[number + 1]) for number, decode in picks])

        return decode


def _part(name: str) -> str:
    return f"{name!r}: " if name else ""


def _names(node: Node, name: str) -> Iterator[str]:
    if node.kind == "leaf":
        yield name
    keys = node.keys or range(len(node.children))
    for key, child in zip(keys, node.children, strict=True):
        yield from _names(child, f"{name}.{key}" if name else str(key))


def _projected(node: Node, columns: tuple[str, ...]) -> tuple[Node, list[int]]:
    """The structure of some columns, and the numbers of their leaves."""
    starts = list(accumulate((child.leaves for child in node.children), initial=0))
    places = {key: number for number, key in enumerate(node.keys)}
    there = [places[column] for column in columns if column in places]
    wanted = [leaf for number in there for leaf in range(starts[number], starts[number + 1])]
    lost = [column for column in columns if column not in places]
    projected = Node(
        "dict",
        tuple(node.keys[number] for number in there),
        tuple(node.children[number] for number in there),
        leaves=len(wanted),
        extras=tuple(lost),
    )
    if not lost:
        return projected, wanted
    # A column that only other chunks have is None here; it takes its place in the order asked for.
    return Node("picked", columns, (projected,), leaves=len(wanted)), wanted


def _builder(node: Node) -> Callable[[list[Any]], Any]:
    """A function of the list of all leaves. Flat samples, which most are, do without an iterator."""
    if node.kind == "leaf":
        return lambda values: values[0]
    if all(child.kind == "leaf" for child in node.children):
        keys = node.keys
        if node.kind == "dict" and not node.extras:
            return lambda values: dict(zip(keys, values, strict=True))
        if node.kind == "list":
            return lambda values: values
        if node.kind == "tuple":
            return tuple
    build = _nested(node)
    return lambda values: build(iter(values))


def _nested(node: Node) -> _Build:
    if node.kind == "leaf":
        return next
    builds = [_nested(child) for child in node.children]
    if node.kind == "picked":
        return lambda leaves: _picked(builds[0](leaves), node.keys)
    if node.kind in ("list", "tuple", "deque"):
        return _sequence(node, builds)
    pairs = list(zip(node.keys, builds, strict=True))
    rest = dict.fromkeys(node.extras)

    def plain(leaves: Iterator[Any]) -> dict[Any, Any]:
        made = {key: build(leaves) for key, build in pairs}
        made.update(rest)
        return made

    if node.kind == "OrderedDict":
        return lambda leaves: OrderedDict(plain(leaves))
    if node.kind == "defaultdict":
        factory = _FACTORIES[node.detail]
        return lambda leaves: defaultdict(factory, plain(leaves))
    return plain


def _picked(sample: Mapping[str, Any], columns: tuple[Any, ...]) -> dict[str, Any]:
    return {column: sample[column] for column in columns}


def _sequence(node: Node, builds: Sequence[_Build]) -> _Build:
    if node.kind == "tuple":
        return lambda leaves: tuple([build(leaves) for build in builds])
    if node.kind == "deque":
        return lambda leaves: deque((build(leaves) for build in builds), maxlen=node.detail)
    return lambda leaves: [build(leaves) for build in builds]
