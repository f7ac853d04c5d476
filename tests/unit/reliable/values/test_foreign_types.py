"""attrs classes, pydantic models and immutable mappings as values, keys and index keys."""

import types
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Optional, TypeVar
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InvalidKeyError, MutableTypeError, MutatedValueError, SchemaError
from partita.reliable import sync
from partita.reliable.values import limits
from partita.reliable.values.frozen_types import check_frozen
from partita.reliable.values.key_codec import encode_index_key, key_codec
from partita.reliable.values.serialization import Schema, ValueCodec, decode_result, encode_result
from support.states import Machine, a_state

K = TypeVar("K")
V = TypeVar("V")


class FrozenMap(Mapping[K, V]):
    """As `immutables.Map` is: a Mapping that is no dict."""

    def __init__(self, pairs: Any = ()) -> None:
        self._pairs = dict(pairs)

    def __getitem__(self, key: K) -> V:
        value: V = self._pairs[key]
        return value

    def __iter__(self) -> Iterator[K]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __hash__(self) -> int:
        return hash(frozenset(self._pairs.items()))


class FrozenDict(dict[K, V]):
    """As `frozendict.frozendict` is: a dict that refuses to be changed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError

    __setitem__ = __delitem__ = update = pop = clear = setdefault = popitem = _refuse


@attrs.frozen
class Seat:
    row: int
    letter: str = "a"


@attrs.define
class LooseSeat:
    row: int


@attrs.frozen
class Hidden:
    row: int
    _secret: str = ""


class Money(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)

    amount: Decimal
    currency: str = "EUR"


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, arbitrary_types_allowed=True)

    id: UUID
    price: Money
    lines: tuple[Money, ...] = ()
    seat: Seat | None = None
    labels: FrozenMap[str, int] = pydantic.Field(default_factory=FrozenMap)
    at: datetime | None = None
    day: date | None = None
    parent: Optional["Order"] = None


class LooseOrder(pydantic.BaseModel):
    name: str
    lines: list[int] = []


class Ticket(msgspec.Struct, frozen=True):
    seat: Seat
    prices: FrozenMap[str, Money]
    more: tuple[FrozenDict[int, Decimal], ...] = ()
    order: Order | None = None


T = TypeVar("T")


class Box(msgspec.Struct, Generic[T], frozen=True):
    inside: T


ORDER = Order(
    id=UUID(int=7),
    price=Money(amount=Decimal("1.50")),
    lines=(Money(amount=Decimal(2), currency="USD"),),
    seat=Seat(3, "b"),
    labels=FrozenMap({"a": 1}),
    at=datetime(2024, 1, 2, 3, tzinfo=UTC),
    day=date(2024, 1, 2),
    parent=Order(id=UUID(int=8), price=Money(amount=Decimal(3))),
)
TICKET = Ticket(
    Seat(1, "x"),
    FrozenMap({"full": Money(amount=Decimal(5))}),
    (FrozenDict({1: Decimal("0.5")}),),
    ORDER,
)
VALUES: list[tuple[Any, Any]] = [
    (Seat, Seat(3, "b")),
    (Money, Money(amount=Decimal("1.5"))),
    (Order, ORDER),
    (Ticket, TICKET),
    (FrozenMap[str, int], FrozenMap({"b": 1, "a": 2})),
    (FrozenDict[str, Seat], FrozenDict({"a": Seat(1)})),
    (FrozenMap[tuple[int, str], Money], FrozenMap({(1, "a"): Money(amount=Decimal(1))})),
    (FrozenMap[UUID, FrozenMap[str, int]], FrozenMap({UUID(int=1): FrozenMap({"a": 1})})),
    (Box[FrozenMap[str, int]], Box(FrozenMap({"a": 1}))),
    (tuple[Money, ...], (Money(amount=Decimal(1)),)),
    (frozenset[Seat], frozenset({Seat(1), Seat(2)})),
    (Money | None, None),
    (Money | None, Money(amount=Decimal(1))),
]


@pytest.mark.parametrize(("declared", "value"), VALUES)
def test_a_frozen_value_is_written_and_read_as_it_was(declared: Any, value: Any) -> None:
    codec: ValueCodec[Any] = ValueCodec(declared, schema=Schema())
    again = codec.decode(codec.encode(value, version=1))

    assert again == value
    assert type(again) is type(value)
    assert codec.mutated_path(again, codec.encode(value, version=1)) is None


async def test_frozen_values_survive_a_restart() -> None:
    machine = Machine()
    for _ in range(2):
        async with machine.open() as state:
            tickets = await state.dictionary("tickets", key=str, value=Ticket)
            queue = await state.queue("orders", value=Order)
            async with state.transaction() as tx:
                await tickets.set(tx, "a", TICKET)
                await queue.enqueue(tx, ORDER)
    async with machine.open() as state:
        tickets = await state.dictionary("tickets", key=str, value=Ticket)
        queue = await state.queue("orders", value=Order)
        async with state.transaction() as tx:
            assert await tickets.get(tx, "a") == TICKET
            assert await queue.dequeue(tx) == ORDER


def test_mappings_have_one_order_of_bytes() -> None:
    codec: ValueCodec[Any] = ValueCodec(FrozenMap[str, int], schema=Schema())

    assert codec.encode(FrozenMap({"a": 1, "b": 2}), version=1) == codec.encode(
        FrozenMap({"b": 2, "a": 1}), version=1
    )


def test_a_field_that_a_model_does_not_know_is_kept() -> None:
    wider = msgspec.defstruct("W", [("amount", Decimal), ("currency", str), ("note", str)])
    newer: ValueCodec[Any] = ValueCodec(wider, schema=Schema(), mutable="copy")
    stored = newer.encode(wider(Decimal(1), "EUR", "kept"), version=1)
    codec: ValueCodec[Money] = ValueCodec(Money, schema=Schema())

    again = codec.encode(Money(amount=Decimal(2)), version=1, stored=stored)

    assert codec.decode(again) == Money(amount=Decimal(2))
    assert msgspec.msgpack.decode(again[2:])["note"] == "kept"


@pytest.mark.parametrize(
    ("declared", "value", "path"),
    [
        (Money, {"amount": Decimal(1), "currency": "EUR"}, ""),
        (FrozenMap[str, int], {"a": 1}, ""),
        (Ticket, msgspec.structs.replace(TICKET, prices={}), "prices"),
        (Seat, Seat("3"), "row"),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_another_type_is_refused(declared: Any, value: Any, path: str) -> None:
    codec: ValueCodec[Any] = ValueCodec(declared, schema=Schema())

    with pytest.raises(SchemaError) as refused:
        codec.encode(value, version=1)

    assert refused.value.code == "WrongValueType"
    assert refused.value.facts["path"] == path


@pytest.mark.parametrize(
    ("loose", "frozen", "hint"),
    [
        (LooseSeat, Seat, "@attrs.frozen"),
        (LooseOrder, Money, "ConfigDict(frozen=True)"),
    ],
)
def test_what_is_not_frozen_is_refused_with_the_way_to_freeze_it(
    loose: type, frozen: type, hint: str
) -> None:
    with pytest.raises(MutableTypeError) as refused:
        check_frozen(loose)

    assert hint in refused.value.hint
    check_frozen(frozen)
    ValueCodec(loose, schema=Schema(), mutable="copy")  # the other way that the hint names


NAMES = {"tuple": tuple, "frozenset": frozenset, "bytes": bytes, "str": str, "int": int}


@pytest.mark.parametrize(
    "declared",
    [
        list[int],
        list[list[int]],
        set[int],
        dict[str, int],
        dict[str, list[int]],
        tuple[list[int], ...],
        list[dict[str, set[bytes]]],
        bytearray,
        memoryview,
    ],
)
def test_following_the_hint_for_a_mutable_type_leads_to_an_accepted_one(declared: Any) -> None:
    with pytest.raises(MutableTypeError) as refused:
        check_frozen(declared)

    proposed = refused.value.hint.removeprefix("Use ")
    proposed = proposed[: proposed.rindex("]") + 1] if "[" in proposed else proposed.split(",")[0]
    check_frozen(eval(proposed, NAMES))
    ValueCodec(declared, schema=Schema(), mutable="copy")


class Unknown:
    pass


@pytest.mark.parametrize("declared", [Unknown, complex, types.MappingProxyType])
def test_the_hint_for_an_unknown_class_does_not_lead_to_another_refusal(declared: Any) -> None:
    for mutable in ("refuse", "copy"):
        with pytest.raises((MutableTypeError, SchemaError)) as refused:
            ValueCodec(declared, schema=Schema(), mutable=mutable)
        assert "mutable=" not in refused.value.hint
        assert "frozen Struct, dataclass, attrs class or pydantic model" in refused.value.hint


def test_an_attrs_field_that_would_not_be_written_is_refused() -> None:
    with pytest.raises(SchemaError, match="_secret"):
        ValueCodec(Hidden, schema=Schema())


def test_a_change_of_a_mutable_model_is_found() -> None:
    codec: ValueCodec[LooseOrder] = ValueCodec(LooseOrder, schema=Schema(), mutable="copy")
    order = LooseOrder(name="a")
    stored = codec.encode(order, version=1)

    order.lines.append(1)

    assert codec.mutated_path(order, stored) == "lines[0]"


def test_a_result_may_be_a_model() -> None:
    raw = encode_result(ORDER, Order)

    assert decode_result(raw, Order) == ORDER


# --- keys ----------------------------------------------------------------------------------

FLOATS = st.floats(allow_nan=False)
NAIVE = st.datetimes()
CLOCKS = st.times()
SPANS = st.timedeltas()


@attrs.frozen
class Reading:
    sensor: str
    value: float
    at: datetime


class Slot(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)

    begins: time
    lasts: timedelta


SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (float, FLOATS),
    (timedelta, SPANS),
    (time, CLOCKS),
    (datetime, NAIVE),
    (tuple[float, time], st.tuples(FLOATS, CLOCKS)),
    (tuple[timedelta, ...], st.lists(SPANS, max_size=3).map(tuple)),
]


@pytest.mark.parametrize(("declared", "keys"), SCALARS)
@given(data=st.data())
def test_bytes_sort_as_the_keys_do(
    declared: Any, keys: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    codec = key_codec(declared)
    one, other = data.draw(keys), data.draw(keys)

    assert (codec.encode(one) < codec.encode(other)) == (one < other)
    assert (codec.encode(one) == codec.encode(other)) == (one == other)
    assert codec.decode(codec.encode(one)) == one


@given(FLOATS, FLOATS)
def test_no_float_is_the_beginning_of_another(one: float, other: float) -> None:
    codec = key_codec(tuple[float, ...])

    assert (codec.encode((one, other)) < codec.encode((other, one))) == (
        (one, other) < (other, one)
    )


def test_negative_zero_is_zero() -> None:
    codec = key_codec(float)

    assert codec.encode(-0.0) == codec.encode(0.0) == codec.encode(0)
    assert str(codec.decode(codec.encode(-0.0))) == "0.0"


def test_infinities_are_the_ends() -> None:
    codec = key_codec(float)
    keys = [float("-inf"), -1e308, -5e-324, 0.0, 5e-324, 1e308, float("inf")]

    assert [codec.decode(raw) for raw in sorted(map(codec.encode, keys))] == keys


@pytest.mark.parametrize(
    ("declared", "key"),
    [
        (float, float("nan")),
        (float, True),
        (float, 2**53 + 1),
        (float, 10**400),
        (float, "1"),
        (time, time(1, tzinfo=UTC)),
        (time, datetime(2024, 1, 1)),  # noqa: DTZ001
        (timedelta, 1.0),
    ],
)
def test_keys_that_have_no_place_in_the_order_are_refused(declared: Any, key: Any) -> None:
    with pytest.raises(InvalidKeyError) as refused:
        key_codec(declared).encode(key)

    assert refused.value.hint


def test_aware_datetimes_sort_by_the_moment_and_before_naive_ones() -> None:
    codec = key_codec(datetime)
    late = datetime(9999, 1, 1, tzinfo=UTC)
    early = datetime(1, 1, 1)  # noqa: DTZ001

    assert codec.encode(late) < codec.encode(early)
    assert codec.decode(codec.encode(early)) == early


@pytest.mark.parametrize(
    ("tz", "right"),
    [
        (True, datetime(2024, 1, 1, tzinfo=UTC)),
        (False, datetime(2024, 1, 1)),  # noqa: DTZ001
    ],
)
def test_a_datetime_key_can_be_declared_with_or_without_a_zone(tz: bool, right: datetime) -> None:

    codec = key_codec(Annotated[datetime, msgspec.Meta(tz=tz)])
    wrong = right.replace(tzinfo=None if tz else UTC)

    assert codec.decode(codec.encode(right)) == right
    with pytest.raises(InvalidKeyError) as refused:
        codec.encode(wrong)
    assert refused.value.code == "WrongKeyType"


KEYS: list[tuple[Any, Any, Any]] = [
    (Seat, Seat(1, "b"), Seat(2, "a")),
    (Reading, Reading("a", -1.5, datetime(2024, 1, 1)), Reading("a", 1.5, datetime(2023, 1, 1))),  # noqa: DTZ001
    (
        Slot,
        Slot(begins=time(8), lasts=timedelta(hours=1)),
        Slot(begins=time(9), lasts=timedelta(minutes=1)),
    ),
    (FrozenMap[str, int], FrozenMap({"b": 9, "a": 1}), FrozenMap({"a": 2})),
    (FrozenDict[int, Seat], FrozenDict({1: Seat(1)}), FrozenDict({1: Seat(2)})),
]


@pytest.mark.parametrize(("declared", "low", "high"), KEYS)
def test_frozen_classes_and_mappings_are_keys(declared: Any, low: Any, high: Any) -> None:
    codec = key_codec(declared)

    assert codec.encode(low) < codec.encode(high)
    for key in (low, high):
        assert codec.decode(codec.encode(key)) == key
        assert type(codec.decode(codec.encode(key))) is type(key)
        assert encode_index_key(key) == codec.encode(key)


def test_equal_mappings_are_one_key() -> None:
    codec = key_codec(FrozenMap[str, int])

    assert codec.encode(FrozenMap({"a": 1, "b": 2})) == codec.encode(FrozenMap({"b": 2, "a": 1}))


@attrs.frozen
class Computed:
    row: int
    double: int = attrs.field(init=False, default=0)


@pytest.mark.parametrize(
    "declared", [LooseSeat, LooseOrder, Computed, FrozenMap[str, list[int]], FrozenMap, Order]
)
def test_classes_whose_fields_are_no_keys_are_refused(declared: Any) -> None:
    with pytest.raises(SchemaError) as refused:
        key_codec(declared)

    assert refused.value.code == "UnsupportedKeyType"


def test_every_type_that_the_hint_for_keys_names_is_accepted() -> None:
    with pytest.raises(SchemaError) as refused:
        key_codec(list[int])

    scalars = {
        kind.__name__: kind
        for kind in (bool, int, float, str, bytes, UUID, date, datetime, time, timedelta, Decimal)
    }
    named = refused.value.hint.removeprefix("Use ").split(", or tuples")[0]
    assert set(named.replace(" or ", ", ").split(", ")) == set(scalars)
    for kind in scalars.values():
        key_codec(kind)


async def test_new_kinds_of_keys_are_found_and_enumerated_in_order() -> None:
    async with a_state() as state:
        readings = await state.dictionary(
            "readings", key=float, value=Seat, indexes={"row": lambda seat: float(seat.row)}
        )
        async with state.transaction() as tx:
            for key in (2.5, -1.0, 0.0):
                await readings.set(tx, key, Seat(7))
        async with state.snapshot() as snapshot:
            assert [key async for key in readings.keys(snapshot)] == [-1.0, 0.0, 2.5]
            assert [key async for key in readings.keys(snapshot, start=0)] == [0.0, 2.5]
            assert [key async for key, _ in readings.find(snapshot, row=7.0)] == [-1.0, 0.0, 2.5]


# --- changed values that an enumeration gave out -------------------------------------------


class Cart(msgspec.Struct):
    items: list[str]
    size: int = 1


async def _by_items(tx: Any, carts: Any) -> Any:
    [value] = [value async for _, value in carts.items(tx)]
    return value


async def _by_values(tx: Any, carts: Any) -> Any:
    [value] = [value async for value in carts.values(tx)]
    return value


async def _by_find(tx: Any, carts: Any) -> Any:
    [value] = [value async for _, value in carts.find(tx, size=1)]
    return value


async def _by_get_many(tx: Any, carts: Any) -> Any:
    return (await carts.get_many(tx, ["a"]))["a"]


class TestChangedValues:
    @pytest.mark.parametrize("read", [_by_items, _by_values, _by_find, _by_get_many])
    async def test_a_change_of_what_a_dictionary_gave_out_is_found(self, read: Any) -> None:
        async with a_state() as state:
            carts = await state.dictionary(
                "carts",
                key=str,
                value=Cart,
                mutable="copy",
                indexes={"size": lambda cart: cart.size},
            )
            async with state.transaction() as tx:
                await carts.set(tx, "a", Cart(["lamp"]))

            with pytest.raises(MutatedValueError) as refused:
                async with state.transaction() as tx:
                    (await read(tx, carts)).items.append("chair")

            assert (refused.value.key, refused.value.path) == ("a", "items[1]")
            async with state.transaction() as tx:
                cart = await read(tx, carts)
                cart.items.append("chair")
                await carts.set(tx, "a", cart)
            async with state.transaction() as tx:
                assert (await carts.get(tx, "a")).items == ["lamp", "chair"]
                cart = await read(tx, carts)
                cart.items.append("table")
                await carts.delete(tx, "a")

    @pytest.mark.parametrize("kind", ["queue", "concurrent_queue"])
    @pytest.mark.parametrize("verb", ["peek", "items"])
    async def test_a_change_of_what_a_queue_gave_out_is_found(self, kind: str, verb: str) -> None:
        async with a_state() as state:
            queue: Any = await getattr(state, kind)("carts", value=Cart, mutable="copy")
            async with state.transaction() as tx:
                await queue.enqueue(tx, Cart(["lamp"]))

            async def first(tx: Any) -> Any:
                if verb == "peek":
                    return await queue.peek(tx)
                [cart] = [cart async for cart in queue.items(tx)]
                return cart

            with pytest.raises(MutatedValueError) as refused:
                async with state.transaction() as tx:
                    (await first(tx)).items.append("chair")

            assert (refused.value.collection, refused.value.path) == ("carts", "items[1]")
            async with state.transaction() as tx:  # what is taken belongs to its consumer
                (await first(tx)).items.append("chair")
                (await queue.dequeue(tx)).items.append("chair")

    async def test_a_change_of_an_own_value_that_a_queue_gave_out_is_found(self) -> None:
        async with a_state() as state:
            queue = await state.queue("carts", value=Cart, mutable="copy")

            async def change(verb: str) -> None:
                async with state.transaction() as tx:
                    await queue.enqueue(tx, Cart([]))
                    if verb == "peek":
                        found = await queue.peek(tx)
                    else:
                        [found] = [cart async for cart in queue.items(tx)]
                    assert found is not None
                    found.items.append("chair")

            for verb in ("peek", "items"):
                with pytest.raises(MutatedValueError):
                    await change(verb)

    async def test_an_enumeration_keeps_a_bounded_number_of_values(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "HANDED_OUT_MAX", 10)
        async with a_state() as state:
            carts = await state.dictionary("carts", key=int, value=Cart, mutable="copy")
            async with state.transaction() as tx:
                for key in range(100):
                    await carts.set(tx, key, Cart([]))
            async with state.transaction() as tx:
                async for _ in carts.items(tx):
                    space = tx.space(carts)
                    assert space is not None
                    assert len(space.handed_out) <= 10

            async def change() -> None:
                async with state.transaction() as tx:
                    async for key, cart in carts.items(tx):
                        if key == 5:
                            cart.size = 2

            with pytest.raises(MutatedValueError) as refused:
                await change()
            assert refused.value.key == 5

    async def test_nothing_is_kept_where_nothing_is_checked(self) -> None:
        async with a_state() as state:
            state.set_mutation_check("off")
            carts = await state.dictionary("carts", key=int, value=Cart, mutable="copy")
            async with state.transaction() as tx:
                await carts.set(tx, 1, Cart([]))
            async with state.transaction() as tx:
                async for _, cart in carts.items(tx):
                    cart.items.append("lost")
                space = tx.space(carts)
                assert space is not None
                assert not space.handed_out

    def test_the_synchronous_face_finds_the_same(self, tmp_path: Path) -> None:
        with sync.open_state(tmp_path / "state") as state:
            carts = state.dictionary("carts", key=str, value=Cart, mutable="copy")
            queue = state.queue("queue", value=Cart, mutable="copy")
            with state.transaction() as tx:
                carts.set(tx, "a", Cart([]))
                queue.enqueue(tx, Cart([]))
            with pytest.raises(MutatedValueError), state.transaction() as tx:
                next(carts.values(tx)).items.append("chair")
            with pytest.raises(MutatedValueError), state.transaction() as tx:
                queue.peek(tx).items.append("chair")  # type: ignore[union-attr]
