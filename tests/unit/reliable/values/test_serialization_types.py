import dataclasses
import enum
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import GenericAlias
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest

from partita.errors import MutableTypeError, SchemaError
from partita.reliable.values.serialization import Schema, ValueCodec, check_frozen

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Bid(msgspec.Struct, frozen=True):
    seller: str
    item: str


class Tree(msgspec.Struct, frozen=True):
    name: str
    children: "tuple[Tree, ...]" = ()
    parent: "Tree | None" = None


@dataclasses.dataclass(frozen=True)
class Day:
    when: date
    bids: tuple[Bid, ...] = ()


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Box(msgspec.Struct, Generic[T], frozen=True):
    content: T


class Circle(msgspec.Struct, frozen=True, tag="circle"):
    radius: float


class Square(msgspec.Struct, frozen=True, tag="square"):
    side: float


@pytest.mark.parametrize(
    "value_type",
    [
        str,
        bytes,
        int,
        float,
        bool,
        None,
        Decimal,
        datetime,
        date,
        time,
        timedelta,
        UUID,
        Colour,
        Bid,
        Tree,
        Day,
        Point,
        Box[int],
        Circle | Square,
        Bid | None,
        tuple[Bid, ...],
        tuple[int, str],
        frozenset[str],
        frozenset[Bid],
        Literal["a", "b"],
        Annotated[int, msgspec.Meta(ge=0)],
        NewType("Cents", int),
        int | str | None,
    ],
)
def test_frozen_types_are_accepted(value_type: object) -> None:
    check_frozen(value_type)
    ValueCodec(value_type, schema=Schema())


class Cart(msgspec.Struct):
    items: list[str]


class Basket(msgspec.Struct, frozen=True):
    items: list[str]


class Shop(msgspec.Struct, frozen=True):
    basket: Basket


class Holder(msgspec.Struct, frozen=True):
    cart: Cart | None = None


class Shelf(msgspec.Struct, frozen=True):
    bids: tuple[Bid, ...]
    labels: frozenset[tuple[str, dict[str, int]]]


@dataclasses.dataclass
class LooseDay:
    when: date


@dataclasses.dataclass(frozen=True)
class Diary:
    days: tuple[LooseDay, ...]


class Pair(NamedTuple):
    left: int
    right: set[int]


class Plain:
    pass


class Keeper(msgspec.Struct, frozen=True):
    thing: Plain


class Vague(msgspec.Struct, frozen=True):
    anything: Any


class Row(TypedDict):
    name: str


class Loop(msgspec.Struct, frozen=True):
    inner: "Loop | None" = None
    notes: "list[Loop]" = []


@pytest.mark.parametrize(
    ("value_type", "path", "remedy"),
    [
        (list[int], "list[int]", "tuple[int, ...]"),
        (list, "list[Any]", "tuple[Any, ...]"),
        (set[str], "set[str]", "frozenset[str]"),
        (dict[str, int], "dict[str, int]", "tuple[tuple[str, int], ...]"),
        (bytearray, "bytearray", "bytes"),
        (memoryview, "memoryview", "bytes"),
        (Any, "Any", "Declare a specific type"),
        (object, "object", "frozen Struct"),
        (Plain, "Plain", "frozen Struct"),
        (complex, "complex", "frozen Struct"),
        (Row, "Row", "frozen Struct"),
        (Cart, "Cart", "frozen=True"),
        (LooseDay, "LooseDay", "@dataclass(frozen=True)"),
        (Basket, "Basket.items: list[str]", "tuple[str, ...]"),
        (Shop, "Shop.basket.items: list[str]", "tuple[str, ...]"),
        (Holder, "Holder.cart: Cart", "frozen=True"),
        (Shelf, "Shelf.labels[...][1]: dict[str, int]", "tuple[tuple[str, int], ...]"),
        (Diary, "Diary.days[...]: LooseDay", "@dataclass(frozen=True)"),
        (Pair, "Pair.right: set[int]", "frozenset[int]"),
        (Keeper, "Keeper.thing: Plain", "frozen Struct"),
        (Vague, "Vague.anything: Any", "Declare a specific type"),
        (Loop, "Loop.notes: list[Loop]", "tuple[Loop, ...]"),
        (Box[list[int]], "Box[list[int]].content: list[int]", "tuple[int, ...]"),
        (tuple[list[int], ...], "tuple[list[int], ...][...]: list[int]", "tuple[int, ...]"),
        (tuple[int, set[int]], "tuple[int, set[int]][1]: set[int]", "frozenset[int]"),
        (Sequence[int], "list[int]", "tuple[int, ...]"),
        (Mapping[str, Bid], "dict[str, Bid]", "tuple[tuple[str, Bid], ...]"),
        (tuple, "tuple[Any, ...][...]: Any", "Declare a specific type"),
        (msgspec.Raw, "Raw", "frozen Struct"),
        (Annotated[list[int], "note"], "list[int]", "tuple[int, ...]"),
    ],
)
def test_mutable_types_are_refused_with_their_path(
    value_type: object, path: str, remedy: str
) -> None:
    with pytest.raises(MutableTypeError) as error:
        check_frozen(value_type)

    assert error.value.code == "MutableType"
    assert error.value.facts == {"path": path}
    assert error.value.message.startswith(f"{path} cannot be stored: ")
    assert remedy in error.value.hint
    is_class_without_a_form = "its encoding is unknown" in error.value.message
    assert ('mutable="copy"' in error.value.hint) == (
        not is_class_without_a_form or value_type is msgspec.Raw
    )


@pytest.mark.parametrize("value_type", [Cart, Basket, list[int], dict[int, Cart], Row, Any])
def test_mutable_types_are_accepted_where_it_is_said(value_type: object) -> None:
    with pytest.raises(MutableTypeError):
        ValueCodec(value_type, schema=Schema())

    ValueCodec(value_type, schema=Schema(), mutable="copy")


class Flat(msgspec.Struct, frozen=True, array_like=True):
    name: str


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class HoldsFlat(msgspec.Struct, frozen=True):
    flat: Flat


@pytest.mark.parametrize("mutable", ["refuse", "copy"])
@pytest.mark.parametrize(
    ("value_type", "text"),
    [
        (Flat, "array_like=True"),
        (HoldsFlat, "array_like=True"),
        (Strict, "forbid_unknown_fields=True"),
        (Bid | Tree, "tag="),
        (date | str, "UnsupportedType"),
        ("Nowhere", "UnsupportedType"),
    ],
)
def test_types_that_other_versions_could_not_read_are_refused(
    value_type: object, text: str, mutable: Literal["refuse", "copy"]
) -> None:
    with pytest.raises(SchemaError) as error:
        ValueCodec(value_type, schema=Schema(), mutable=mutable)

    assert error.value.code == "UnsupportedType"
    assert text in str(error.value)


def test_plain_classes_are_refused_for_copies_too() -> None:
    with pytest.raises(SchemaError, match=r"list\[Plain\]\[\.\.\.\]: Plain"):
        ValueCodec(list[Plain], schema=Schema(), mutable="copy")


def test_an_unknown_word_for_mutable_is_refused() -> None:
    with pytest.raises(SchemaError, match="neither 'refuse' nor 'copy'"):
        ValueCodec(Bid, schema=Schema(), mutable="yes")  # type: ignore[arg-type]


def fingerprint(value_type: object) -> str:
    return ValueCodec(value_type, schema=Schema(), mutable="copy").fingerprint


def test_a_fingerprint_does_not_see_names_of_classes_or_the_order_of_fields() -> None:
    one = msgspec.defstruct("One", [("a", int), ("b", str, "")], frozen=True)
    two = msgspec.defstruct("Two", [("b", str, "x"), ("a", int)], frozen=True, kw_only=True)

    assert fingerprint(one) == fingerprint(two)
    assert fingerprint(GenericAlias(tuple, (one, ...))) == fingerprint(
        GenericAlias(tuple, (two, ...))
    )


def test_a_fingerprint_sees_every_change_of_what_is_written() -> None:
    types: list[object] = [
        msgspec.defstruct("V", [("a", int)]),
        msgspec.defstruct("V", [("a", int, 5)]),
        msgspec.defstruct("V", [("a", str)]),
        msgspec.defstruct("V", [("b", int)]),
        msgspec.defstruct("V", [("a", int), ("b", int)]),
        msgspec.defstruct("V", [("a", int)], tag="v"),
        msgspec.defstruct("V", [("a", int | None)]),
        msgspec.defstruct("V", [("a", tuple[int, ...])]),
        msgspec.defstruct("V", [("a", frozenset[int])]),
        msgspec.defstruct("V", [("a", Bid)]),
        msgspec.defstruct("V", [("a", Tree)]),
        msgspec.defstruct("V", [("a", Colour)]),
        msgspec.defstruct("V", [("a", Literal["red"])]),
        int,
        Point,
    ]

    assert len(set(map(fingerprint, types))) == len(types)


def test_a_fingerprint_is_the_same_in_another_process() -> None:
    program = (
        "import msgspec; from partita.reliable.values.serialization import Schema, ValueCodec\n"
        "T = msgspec.defstruct('T', [('a', frozenset[str]), ('b', int | str)], frozen=True)\n"
        "print(ValueCodec(T, schema=Schema()).fingerprint)"
    )

    prints = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(prints) == 1
    assert len(prints.pop().strip()) == 32


def test_a_codec_tells_its_type() -> None:
    assert ValueCodec(Day, schema=Schema()).type_name == "Day"
    assert ValueCodec(tuple[Bid, ...], schema=Schema()).type_name == "tuple[Bid, ...]"
    assert ValueCodec(Bid, schema=Schema(version=3)).version == 3
