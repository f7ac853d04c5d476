"""Declarations of templates, upcasters, indexes and access patterns."""

from typing import Any
from uuid import UUID

import pytest

from partita.patterns import (
    Database,
    DefinitionError,
    access,
    check_access,
    entity,
    entity_type,
    index,
    list_index,
    upcast,
)
from partita.patterns.keys.templates import KeyTemplate
from support.teams import GUID, Grade, Member


def test_a_template_may_say_that_a_field_is_an_enum_or_a_uuid() -> None:
    annotations: dict[str, object] = {"grade": Grade, "of": UUID}

    said = KeyTemplate.compile("{grade:enum}_{of:uuid}", annotations, role="row", owner="X")
    plain = KeyTemplate.compile("{grade}_{of}", annotations, role="row", owner="X")

    values = {"grade": Grade.SENIOR, "of": GUID}
    assert said.format(values) == plain.format(values) == f"s_{GUID}"
    assert said.parse(said.format(values)) == values


@pytest.mark.parametrize("text", ["{name:enum}", "{grade:uuid}", "{of:enum}"])
def test_a_template_cannot_say_what_a_field_is_not(text: str) -> None:
    annotations: dict[str, object] = {"grade": Grade, "of": UUID, "name": str}

    with pytest.raises(DefinitionError) as refused:
        KeyTemplate.compile(text, annotations, role="row", owner="X")

    assert refused.value.code == "TemplateSpec"


def test_a_literal_that_is_too_long_is_told_from_one_that_is_not_legal() -> None:
    with pytest.raises(DefinitionError) as long:
        KeyTemplate.compile("x" * 513, {}, role="row", owner="X")
    with pytest.raises(DefinitionError) as illegal:
        KeyTemplate.compile("a/b", {}, role="row", owner="X")

    assert (long.value.code, illegal.value.code) == ("TemplateTooLong", "TemplateCharacter")
    assert "513" in long.value.message
    assert "too long" not in illegal.value.message


def test_the_version_of_an_upcaster_may_be_given_by_place() -> None:
    @entity(table="auditversions", partition="{team}", row="{id:04d}", version=2)
    class Versioned:
        team: str
        id: int

    @upcast(Versioned, 1)
    def keep(old: dict[str, Any]) -> dict[str, Any]:
        return old

    assert entity_type(Versioned).upcasters == {1: keep}


def test_a_list_index_in_an_unknown_store_is_refused_where_it_is_declared() -> None:
    store: Any = "file"

    with pytest.raises(DefinitionError) as refused:
        list_index(Member, row="x_{age:03d}", store=store)

    assert refused.value.code == "IndexRefused"
    assert "rows, partition, table, blob" in refused.value.hint


def test_one_name_of_a_field_need_not_be_put_into_a_list() -> None:
    @entity(
        table="auditaccess",
        partition="{team}",
        row="{id:06d}",
        access=[
            access("all of a team", partition="team"),
            access("from a number on", partition="team", range="id"),
            access("one of an age", partition="team", where="age"),
        ],
    )
    class Accessed:
        team: str
        id: int
        age: int = 0

    assert [each.plan.summary for each in check_access(Accessed)] == [
        "partition auditaccess by team",
        "range auditaccess by team, id",
        "partition auditaccess by team residual age",
    ]


@pytest.mark.parametrize("wrong", [["all of a team"], {"all": {"give": "team"}}, {"all": "team"}])
def test_an_access_pattern_that_is_none_is_refused(wrong: Any) -> None:
    @entity(table="auditaccess", partition="{team}", row="{id:06d}", access=wrong)
    class Wrong:
        team: str
        id: int

    with pytest.raises(DefinitionError) as refused:
        check_access(Wrong)

    assert refused.value.code == "AccessRefused"
    assert "access(" in refused.value.hint


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"table": "other", "partition": "{team}", "row": "{id:hash16}"}, "could have the same"),
        ({"table": "other", "partition": "{id:hash16}", "row": "{team}"}, "could have the same"),
        ({"row": "mail_{mail:hash16}", "unique": True}, "only a hash of 'mail'"),
    ],
)
def test_an_index_that_has_only_a_hash_of_a_field_is_refused(
    keys: dict[str, Any], reason: str
) -> None:
    @entity(table="hashed", partition="{team}", row="{id:04d}")
    class Hashed:
        team: str
        id: int
        mail: str

    with pytest.raises(DefinitionError) as refused:
        index(Hashed, **keys)

    assert refused.value.code == "IndexRefused"
    assert reason in refused.value.message


async def test_a_copy_in_a_partition_of_a_hash_has_the_hashed_field(direct_db: Database) -> None:
    @entity(table="hashed", partition="{device:hash16}", row="d_{device:esc}_{id:04d}")
    class Reading:
        device: str
        id: int
        code: str

    by_code = index(Reading, row="code_{code}", unique=True)
    readings = direct_db.table(Reading)
    await direct_db.create_tables()
    saved = await readings.save(Reading(device="a", id=1, code="x"))

    assert await readings.via(by_code).get(device="a", code="x") == saved
    assert await direct_db.verify(Reading) == []
