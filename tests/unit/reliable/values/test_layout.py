"""Which types fit to what values of a schema version consist of."""

import dataclasses
import enum
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict

import msgspec
import pytest

from partita.reliable.values.frozen_types import type_node
from partita.reliable.values.layout import Layout, Misfit, combined, layout_of


def layout(declared: object) -> Layout:
    return layout_of(type_node(declared))


def struct(*fields: Any, **config: Any) -> type:
    return msgspec.defstruct("T", fields, frozen=True, **config)


class Small(enum.Enum):
    A = "a"


class Large(enum.Enum):
    A = "a"
    B = "b"


class Tree(msgspec.Struct, frozen=True):
    name: str
    left: Optional["Tree"] = None


class TaggedTree(msgspec.Struct, frozen=True):
    name: str
    colour: str = ""
    left: Optional["TaggedTree"] = None


class WrongTree(msgspec.Struct, frozen=True):
    name: str
    left: Optional["WrongInside"] = None


class WrongInside(msgspec.Struct, frozen=True):
    name: int
    left: Optional["WrongTree"] = None


class Pair(NamedTuple):
    a: int
    b: str


class Triple(NamedTuple):
    a: int
    b: str
    c: int = 0


class StrictTriple(NamedTuple):
    a: int
    b: str
    c: int


@dataclasses.dataclass(frozen=True)
class Day:
    a: int


class Row(TypedDict):
    a: int


class Circle(msgspec.Struct, frozen=True, tag="circle"):
    radius: float


class Square(msgspec.Struct, frozen=True, tag="square"):
    side: float


class WideSquare(msgspec.Struct, frozen=True, tag="square"):
    side: float
    border: float = 0.0


class A(msgspec.Struct, frozen=True):
    a: int


class Wider(msgspec.Struct, frozen=True):
    a: int
    b: str = ""


class Other(msgspec.Struct, frozen=True):
    b: int = 0


class Text(msgspec.Struct, frozen=True):
    a: str


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        (int, int),
        (int, int | None),
        (Small, Large),
        (Literal["a"], Large),
        (int, Any),
        (list[int], tuple[int, ...]),
        (set[int], frozenset[int]),
        (bytearray, bytes),
        (int, Annotated[int, msgspec.Meta(ge=0)]),
        (A, struct(("a", int), ("b", str, ""))),
        (struct(("a", int), ("b", str)), A),
        (A, struct(("a", int, 0))),
        (struct(("a", int, 0)), A),
        (A, struct(("a", int | None))),
        (A, Day),
        (Day, Row),
        (Pair, Triple),
        (Tree, TaggedTree),
        (TaggedTree, Tree),
        (Circle, Circle | Square),
        (Circle | Square, Square | Circle),
        (Circle | Square, Circle | WideSquare),
        (dict[str, A], dict[str, Wider]),
        (tuple[int, A], tuple[int, Day]),
        (A | None, Wider | None),
    ],
)
def test_a_type_fits_that_reads_all_values_and_only_adds_fields_with_defaults(
    stored: object, given: object
) -> None:
    both = combined(layout(stored), layout(given))

    assert combined(both, layout(given)) == both


@pytest.mark.parametrize(
    ("stored", "given", "path"),
    [
        (int, str, ""),
        (int, float, ""),
        (int | None, int, ""),
        (Large, Small, ""),
        (str, Small, ""),
        (Any, int, ""),
        (list[int], set[int], ""),
        (tuple[int, int], tuple[int, int, int], ""),
        (tuple[int, str], tuple[int, int], "[1]"),
        (A, struct(("b", int, 0)), ""),
        (A, struct(("a", str)), "a"),
        (A, struct(("a", int), ("b", str)), "b"),
        (struct(("a", int, 0), omit_defaults=True), A, "a"),
        (struct(("x", A)), struct(("x", struct(("a", str)))), "x.a"),
        (struct(("x", tuple[A, ...])), struct(("x", tuple[Other, ...])), "x[...]"),
        (A, struct(("a", int), tag="t"), ""),
        (Tree, WrongTree, "left.name"),
        (Pair, StrictTriple, "c"),
        (Triple, Pair, ""),
        (Circle | Square, Circle, ""),
        (A | None, Text | None, "a"),
    ],
)
def test_a_type_that_does_not_fit_is_refused_with_its_path(
    stored: object, given: object, path: str
) -> None:
    with pytest.raises(Misfit) as refused:
        combined(layout(stored), layout(given))

    assert refused.value.path == path


def test_a_field_that_is_removed_and_a_field_that_is_added_later_fit() -> None:
    first = layout(struct(("a", int), ("b", str)))
    without_b = combined(first, layout(A))
    with_c = combined(without_b, layout(struct(("a", int), ("c", int, 0))))

    with pytest.raises(Misfit):
        combined(first, layout(struct(("a", int), ("c", int, 0))))
    assert with_c[0].former == ("b",)
    assert combined(with_c, layout(struct(("a", int), ("b", str, "")))) is not None


def test_a_removed_field_comes_back_with_its_type_and_a_default() -> None:
    without_b = combined(layout(struct(("a", int), ("b", str))), layout(A))

    for wrong in (struct(("a", int), ("b", int, 0)), struct(("a", int), ("b", str))):
        with pytest.raises(Misfit) as refused:
            combined(without_b, layout(wrong))
        assert refused.value.path == "b"
    combined(without_b, layout(struct(("a", int), ("b", str, ""))))


@pytest.mark.parametrize(
    "declared", [int, A, Tree, TaggedTree, Triple, Circle | Square, Row, Large]
)
def test_a_type_and_its_own_layout_give_the_same_layout(declared: object) -> None:
    assert combined(layout(declared), layout(declared)) == layout(declared)


def test_a_layout_is_read_again_as_it_was_written() -> None:
    written = msgspec.msgpack.encode(layout(TaggedTree))

    assert msgspec.msgpack.decode(written, type=Layout) == layout(TaggedTree)


def test_deeply_nested_unions_are_compared_once() -> None:
    nested: Any = int
    for _ in range(60):
        nested = struct(("inner", nested | None))

    assert combined(layout(nested), layout(nested)) == layout(nested)
