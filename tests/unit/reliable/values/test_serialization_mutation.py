"""Thirty ways to change a value behind the back of the log, and what stops each of them."""

import array
import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from typing import Any, NamedTuple

import msgspec
import pytest

from partita.errors import MutableTypeError, SchemaError
from partita.reliable.values.serialization import Schema, ValueCodec

NOW = datetime(2024, 2, 29, tzinfo=UTC)


class Bid(msgspec.Struct, frozen=True):
    seller: str
    item: str


class User(msgspec.Struct, frozen=True):
    email: str
    bids: tuple[Bid, ...] = ()
    labels: frozenset[str] = frozenset()
    raw: bytes = b""


@dataclasses.dataclass(frozen=True)
class Day:
    name: str
    bids: tuple[Bid, ...] = ()


class Point(NamedTuple):
    x: int
    bid: Bid


class Profile(msgspec.Struct):
    email: str
    last_login: datetime | None = None
    items: list[str] = []
    bids: list[Bid] = []
    scores: dict[str, list[int]] = {}
    labels: set[str] = set()
    raw: bytearray = bytearray()
    inner: "Profile | None" = None
    anything: Any = None


@dataclasses.dataclass
class Cart:
    items: list[str] = dataclasses.field(default_factory=list)


USERS: ValueCodec[User] = ValueCodec(User, schema=Schema())
PROFILES: ValueCodec[Profile] = ValueCodec(Profile, schema=Schema(), mutable="copy")


def a_profile() -> Profile:
    return Profile(
        "ada",
        None,
        ["lamp"],
        [Bid("a", "b")],
        {"go": [1, 2]},
        {"x"},
        bytearray(b"ab"),
        Profile("inner", items=["deep"]),
        {"free": [1, {"form": True}]},
    )


# The two examples of the guide


def test_a_change_after_the_write_is_found() -> None:
    user = a_profile()
    stored = PROFILES.encode(user, version=1)

    user.last_login = NOW

    assert PROFILES.mutated_path(user, stored) == "last_login"


def test_a_change_after_the_read_is_found() -> None:
    stored = PROFILES.encode(a_profile(), version=1)
    user = PROFILES.decode(stored)

    user.last_login = NOW

    assert PROFILES.mutated_path(user, stored) == "last_login"


def test_a_changed_copy_is_not_a_mutation() -> None:
    user = User("ada")
    stored = USERS.encode(user, version=1)

    other = msgspec.structs.replace(user, email="eve")

    assert USERS.mutated_path(user, stored) is None
    assert USERS.mutated_path(other, stored) == "email"


# Changes of mutable values: each is found, with its path


def set_inner(profile: Profile) -> None:
    assert profile.inner is not None
    profile.inner.items[0] = "other"


def drop_inner(profile: Profile) -> None:
    profile.inner = None


def hold_itself(profile: Profile) -> None:
    profile.anything = profile


def swap(profile: Profile) -> None:
    profile.items, profile.email = [], "other"


CHANGES: list[tuple[Callable[[Profile], object], str]] = [
    (lambda profile: setattr(profile, "email", "eve"), "email"),
    (lambda profile: profile.items.append("chair"), "items[1]"),
    (lambda profile: profile.items.clear(), "items[0]"),
    (lambda profile: profile.items.insert(0, "chair"), "items[0]"),
    (lambda profile: profile.bids.append(Bid("c", "d")), "bids[1]"),
    (lambda profile: profile.bids.__setitem__(0, Bid("a", "c")), "bids[0].item"),
    (lambda profile: profile.scores["go"].append(3), "scores['go'][2]"),
    (lambda profile: profile.scores.update(chess=[]), "scores['chess']"),
    (lambda profile: profile.scores.pop("go"), "scores['go']"),
    (lambda profile: profile.labels.add("y"), "labels"),
    (lambda profile: profile.raw.extend(b"c"), "raw"),
    (set_inner, "inner.items[0]"),
    (drop_inner, "inner"),
    (lambda profile: profile.anything["free"][1].update(form=False), "anything['free'][1]['form']"),
    (lambda profile: setattr(profile, "anything", object()), "anything"),
    (lambda profile: setattr(profile, "anything", 2**70), "anything"),
    (hold_itself, "anything"),
    (swap, "email"),
]


@pytest.mark.parametrize(("change", "path"), CHANGES)
def test_a_change_in_place_is_found_with_its_path(
    change: Callable[[Profile], object], path: str
) -> None:
    profile = a_profile()
    stored = PROFILES.encode(profile, version=1)
    assert PROFILES.mutated_path(profile, stored) is None

    change(profile)

    assert PROFILES.mutated_path(profile, stored) == path


def test_a_change_that_was_undone_is_not_a_mutation() -> None:
    profile = a_profile()
    stored = PROFILES.encode(profile, version=1)

    profile.items.append("chair")
    profile.items.pop()

    assert PROFILES.mutated_path(profile, stored) is None


# Changes of frozen values: Python refuses them


FROZEN = User("ada", (Bid("a", "b"),), frozenset({"x"}), b"ab")
ATTEMPTS: list[Callable[[], object]] = [
    lambda: setattr(FROZEN, "email", "eve"),
    lambda: delattr(FROZEN, "email"),
    lambda: setattr(FROZEN, "unheard_of", 1),
    lambda: setattr(FROZEN.bids[0], "item", "c"),
    lambda: FROZEN.bids.append(Bid("c", "d")),  # type: ignore[attr-defined]
    lambda: FROZEN.bids.__setitem__(0, Bid("c", "d")),  # type: ignore[index]
    lambda: FROZEN.labels.add("y"),  # type: ignore[attr-defined]
    lambda: FROZEN.raw.__setitem__(0, 1),  # type: ignore[index]
    lambda: setattr(Day("a"), "name", "b"),
    lambda: setattr(Point(1, Bid("a", "b")), "x", 2),
]


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_frozen_value_cannot_be_changed(attempt: Callable[[], object]) -> None:
    with pytest.raises((AttributeError, TypeError)):
        attempt()


@pytest.mark.parametrize(
    ("value", "change", "path"),
    [
        (Day("a"), lambda day: object.__setattr__(day, "name", "b"), "name"),
        (Day("a"), lambda day: day.__dict__.update(name="b"), "name"),
        (Day("a", (Bid("a", "b"),)), lambda day: object.__setattr__(day, "bids", ()), "bids[0]"),
        (
            FROZEN,
            lambda user: msgspec.structs.force_setattr(user.bids[0], "item", 5),
            "bids[0].item",
        ),
    ],
)
def test_a_change_by_force_is_found(
    value: object, change: Callable[[Any], object], path: str
) -> None:
    codec: ValueCodec[Any] = ValueCodec(type(value), schema=Schema())
    stored = codec.encode(value, version=1)
    copy = codec.decode(stored)

    change(copy)

    assert codec.mutated_path(copy, stored) == path
    assert codec.mutated_path(value, stored) is None


# Mutable values that slip into frozen types: refused when they are written


@pytest.mark.parametrize(
    "value",
    [
        User("ada", [Bid("a", "b")]),  # type: ignore[arg-type]
        User("ada", labels={"x"}),  # type: ignore[arg-type]
        User("ada", raw=bytearray(b"ab")),  # type: ignore[arg-type]
        User("ada", raw=memoryview(bytearray(b"ab"))),  # type: ignore[arg-type]
        User("ada", raw=array.array("b", b"ab")),  # type: ignore[arg-type]
        User("ada", ({"seller": "a", "item": "b"},)),  # type: ignore[arg-type]
        Profile("ada"),
        {"email": "ada"},
    ],
)
def test_a_mutable_value_in_a_frozen_type_is_not_written(value: Any) -> None:
    with pytest.raises(SchemaError) as error:
        USERS.encode(value, version=1)

    assert error.value.code == "WrongValueType"


@pytest.mark.parametrize("value_type", [Profile, Cart, list[User], dict[str, User], bytearray])
def test_a_mutable_type_is_not_opened(value_type: object) -> None:
    with pytest.raises(MutableTypeError):
        ValueCodec(value_type, schema=Schema())


# What must not be taken for a change

numbers = count()


class Numbered(msgspec.Struct):
    name: str
    number: int = msgspec.field(default_factory=lambda: next(numbers))


def test_a_default_that_is_new_on_each_read_is_not_a_change() -> None:
    codec: ValueCodec[Numbered] = ValueCodec(Numbered, schema=Schema(), mutable="copy")
    stored = b"\x00\x01" + msgspec.msgpack.encode({"name": "a"})
    value = codec.decode(stored)

    assert codec.mutated_path(value, stored) is None
    value.name = "b"
    assert codec.mutated_path(value, stored) == "name"


def test_not_a_number_is_not_a_change() -> None:
    codec: ValueCodec[Any] = ValueCodec(tuple[float, ...], schema=Schema())
    value = (float("nan"), 1.0)
    stored = codec.encode(value, version=1)

    assert codec.mutated_path(value, stored) is None
    assert codec.mutated_path((float("nan"), 2.0), stored) == "[1]"
    assert codec.mutated_path((1.0, 1.0), stored) == "[0]"


def test_another_order_of_a_set_or_map_is_not_a_change() -> None:
    codec: ValueCodec[Any] = ValueCodec(dict[str, set[int]], schema=Schema(), mutable="copy")
    stored = codec.encode({"a": {1, 2**40, 3}, "b": set()}, version=1)

    assert codec.mutated_path({"b": set(), "a": {3, 2**40, 1}}, stored) is None
