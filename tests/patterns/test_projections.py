"""Projections: where they are refused, copied and pickled; groups after their end."""

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from partita.patterns import (
    Database,
    Partial,
    PartitaError,
    ProjectionError,
    RawEntity,
    entity,
    evolve,
)
from support.teams import Member, member

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def db(team_db: Database) -> Database:
    return team_db


async def test_a_projection_is_refused_by_a_group_and_by_evolve(db: Database) -> None:
    members = db.table(Member)
    await members.save(member(1))
    part: Any = await members.partition(team="Sales").all().select("id", "team").first()
    group = members.partition(team="Sales").atomic()

    for give in (group.save, group.delete, evolve):
        with pytest.raises(ProjectionError) as refused:
            give(part)
        assert refused.value.code == "PartialEntity"
    with pytest.raises(TypeError):
        await members.save(part)


def test_a_projection_can_be_copied_and_sent_to_another_process() -> None:
    part: Partial[Member] = Partial("Member", {"id": 1})

    for twin in (copy.copy(part), copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert twin == part
        assert twin.id == 1


def test_a_projection_has_no_field_that_was_not_selected() -> None:
    part: Partial[Member] = Partial("Member", {"id": 1})

    assert hasattr(part, "id")
    assert not hasattr(part, "age")
    assert getattr(part, "_repr_html_", None) is None
    with pytest.raises(ProjectionError, match="FieldNotSelected: 'age' was not selected"):
        part.age  # noqa: B018 - asking for it is the test


async def test_what_is_put_into_a_group_after_its_end_is_not_lost_in_silence(
    db: Database,
) -> None:
    members = db.table(Member)
    async with members.partition(team="Sales").atomic() as group:
        group.save(member(1))

    late: list[Callable[[], None]] = [
        lambda: group.save(member(2)),
        lambda: group.delete(member(1)),
        lambda: group.delete_if_exists(id=1),
    ]
    for give in late:
        with pytest.raises(PartitaError) as refused:
            give()
        assert refused.value.code == "GroupEnded"

    assert [each.id for each in group.entities] == [1]


async def test_a_required_field_that_nothing_is_stored_for_tells_what_to_do(
    db: Database,
) -> None:
    @entity(table="auditstaff", partition="{team}", row="r_{id:06d}")
    class Required:
        team: str
        id: int
        age: int

    table = db.table(Required)
    await db.raw("auditstaff").save(RawEntity("Sales", "r_000001", {"EntityType": "Required"}))

    with pytest.raises(PartitaError) as refused:
        await table.get(team="Sales", id=1)

    assert "Required.age" in refused.value.message
    assert "default" in refused.value.hint
