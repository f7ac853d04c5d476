from typing import TYPE_CHECKING

import pytest

from partita.errors import (
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    LimitExceededError,
)
from partita.tables.entity import Entity, EntityKey, build, etag_of
from partita.tables.operations import (
    Delete,
    Insert,
    InsertOrMerge,
    InsertOrReplace,
    Merge,
    Operation,
    Replace,
    merged,
)

if TYPE_CHECKING:
    from partita.tables.edm import Members

KEY = EntityKey("p", "r")
EARLIER, NOW = 17_000_000_000_000_000, 17_000_000_000_000_001


def an_entity(**properties: str | int | float | bool) -> Entity:
    return build(KEY, EARLIER, properties)


def conditional(etag: str) -> list[Operation]:
    return [Replace(KEY, {"A": 1}, etag), Merge(KEY, {"A": 1}, etag), Delete(KEY, etag)]


def test_an_insert_writes_a_new_entity() -> None:
    after = Insert(KEY, {"A": 1}).apply(None, NOW)

    assert (after.key, after.ticks, after.properties()) == (KEY, NOW, {"A": 1})


def test_an_insert_of_an_existing_entity_is_refused() -> None:
    with pytest.raises(EntityExistsError) as error:
        Insert(KEY, {"A": 1}).apply(an_entity(), NOW)

    assert error.value.code == "EntityAlreadyExists"
    assert error.value.message == "The specified entity already exists."


@pytest.mark.parametrize("etag", ["*", etag_of(EARLIER)])
def test_a_replace_drops_unmentioned_properties(etag: str) -> None:
    after = Replace(KEY, {"B": 2}, etag).apply(an_entity(A=1), NOW)

    assert (after.ticks, after.properties()) == (NOW, {"B": 2})


@pytest.mark.parametrize("etag", ["*", etag_of(EARLIER)])
def test_a_merge_leaves_unmentioned_properties(etag: str) -> None:
    after = Merge(KEY, {"B": 2, "C": 3}, etag).apply(an_entity(A=1, B=1), NOW)

    assert (after.ticks, after.properties()) == (NOW, {"A": 1, "B": 2, "C": 3})


def test_a_merge_that_changes_nothing_still_moves_the_etag() -> None:
    before = an_entity(A=1)

    after = Merge(KEY, {}).apply(before, NOW)

    assert after.properties() == before.properties()
    assert after.etag == etag_of(NOW) != before.etag


@pytest.mark.parametrize("etag", ["*", etag_of(EARLIER)])
def test_a_delete_leaves_nothing(etag: str) -> None:
    Delete(KEY, etag).apply(an_entity(A=1), NOW)


@pytest.mark.parametrize("operation", conditional("*") + conditional(etag_of(EARLIER)))
def test_a_missing_entity_is_not_found_whatever_the_etag(operation: Operation) -> None:
    with pytest.raises(EntityNotFoundError) as error:
        operation.apply(None, NOW)

    assert error.value.code == "ResourceNotFound"
    assert error.value.message == "The specified resource does not exist."


@pytest.mark.parametrize(
    "operation",
    conditional(etag_of(EARLIER + 1))
    + conditional(etag_of(EARLIER).removeprefix("W/"))
    + conditional("")
    + conditional('W/"x"'),
)
def test_a_stale_etag_is_refused(operation: Operation) -> None:
    with pytest.raises(ETagMismatchError) as error:
        operation.apply(an_entity(A=1), NOW)

    assert error.value.code == "UpdateConditionNotSatisfied"
    assert error.value.message == "The update condition specified in the request was not satisfied."


def test_an_upsert_inserts_what_is_missing() -> None:
    for operation in (InsertOrReplace(KEY, {"A": 1}), InsertOrMerge(KEY, {"A": 1})):
        after = operation.apply(None, NOW)
        assert (after.key, after.ticks, after.properties()) == (KEY, NOW, {"A": 1})


def test_an_insert_or_replace_drops_unmentioned_properties() -> None:
    assert InsertOrReplace(KEY, {"B": 2}).apply(an_entity(A=1), NOW).properties() == {"B": 2}


def test_an_insert_or_merge_leaves_unmentioned_properties() -> None:
    after = InsertOrMerge(KEY, {"B": 2}).apply(an_entity(A=1), NOW)

    assert after.properties() == {"A": 1, "B": 2}


def test_a_merge_may_change_the_type_of_a_property() -> None:
    big: Members = {"A@odata.type": "Edm.Int64", "A": "5"}

    assert merged(big, {"A": "text"}) == {"A": "text"}
    assert merged({"A": "text"}, big) == big
    assert merged(big, {"A@odata.type": "Edm.Guid", "A": "x"}) == {
        "A@odata.type": "Edm.Guid",
        "A": "x",
    }


def test_an_annotation_stands_before_its_property_after_a_merge() -> None:
    result = merged({"A": 1, "B": 2}, {"A@odata.type": "Edm.Int64", "A": "5"})

    assert list(result) == ["B", "A@odata.type", "A"]


def test_a_merge_leaves_the_entity_before_as_it_was() -> None:
    before = an_entity(A=1)

    Merge(KEY, {"A": 2, "B": 3}).apply(before, NOW)

    assert before.properties() == {"A": 1}


@pytest.mark.parametrize("kind", [Merge, InsertOrMerge])
def test_a_merge_cannot_make_an_entity_of_253_properties(
    kind: type[Merge] | type[InsertOrMerge],
) -> None:
    before = build(KEY, EARLIER, {f"P{n}": n for n in range(252)})

    assert kind(KEY, {"P0": -1}).apply(before, NOW).properties()["P0"] == -1
    with pytest.raises(LimitExceededError) as error:
        kind(KEY, {"New": 1}).apply(before, NOW)

    assert error.value.code == "TooManyProperties"


@pytest.mark.parametrize("kind", [Merge, InsertOrMerge])
def test_a_merge_cannot_make_an_entity_over_1_mib(
    kind: type[Merge] | type[InsertOrMerge],
) -> None:
    before = build(KEY, EARLIER, {f"T{n}": "x" * 32_000 for n in range(16)})

    with pytest.raises(LimitExceededError) as error:
        kind(KEY, {"New": "x" * 32_000}).apply(before, NOW)

    assert error.value.code == "EntityTooLarge"
