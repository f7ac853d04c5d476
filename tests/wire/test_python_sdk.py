"""The official Python SDK, both halves, against a live server: tables, entities, queries."""

import math
import struct
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from azure.core import MatchConditions
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.data.tables import EdmType, EntityProperty, UpdateMode

from support.live import LiveServer
from wire.conftest import StartServer
from wire.sdk import CREDENTIAL, all_of, code_of, open_service, pages_of

STALE = "W/\"datetime'2012-06-15T22%3A51%3A44.9662825Z'\""


def an_entity(**properties: Any) -> dict[str, Any]:
    return {"PartitionKey": "p", "RowKey": "r"} | properties


# Tables


async def test_a_table_is_created_listed_and_deleted(service: Any, name: str) -> None:
    created = await service.create_table(name)
    assert created.table_name == name
    assert [item.name for item in await all_of(service.list_tables())].count(name) == 1

    await service.delete_table(name)
    assert name not in [item.name for item in await all_of(service.list_tables())]


async def test_a_table_is_created_once_whatever_the_case(service: Any, table: str) -> None:
    for spelling in (table, table.upper(), table.lower()):
        with pytest.raises(ResourceExistsError) as refused:
            await service.create_table(spelling)
        assert code_of(refused) == "TableAlreadyExists"

    await service.create_table_if_not_exists(table)


async def test_a_table_is_reached_in_any_case_and_shown_in_its_own(
    service: Any, client: Any, table: str
) -> None:
    await client.create_entity(an_entity(A=1))

    shown = await service.get_table_client(table.lower()).get_entity("p", "r")
    assert shown["A"] == 1
    listed = await all_of(service.query_tables(f"TableName eq '{table}'"))
    assert [item.name for item in listed] == [table]


async def test_deleting_a_missing_table_is_not_an_error(service: Any, name: str) -> None:
    await service.delete_table(name)


async def test_a_deleted_table_comes_back_empty(service: Any, client: Any, table: str) -> None:
    await client.create_entity(an_entity())

    await service.delete_table(table)
    with pytest.raises(ResourceNotFoundError) as missing:
        await client.get_entity("p", "r")
    assert code_of(missing) == "TableNotFound"
    await service.create_table(table)

    assert await all_of(client.list_entities()) == []


async def test_tables_are_listed_by_page_and_by_prefix(service: Any, name: str) -> None:
    names = [f"{name}{letter}" for letter in "aBcDe"]
    for each in names:
        await service.create_table(each)

    within = {"low": name, "high": f"{name}z"}
    listing = service.query_tables(
        "TableName ge @low and TableName lt @high", parameters=within, results_per_page=2
    )
    pages = await pages_of(listing)

    assert [[item.name for item in page] for page in pages] == [names[:2], names[2:4], names[4:]]


@pytest.mark.parametrize("bad", ["a-b", "1abc", "ab", "a" * 64, "größe"])
async def test_a_bad_table_name_is_refused_before_anything_is_made(service: Any, bad: str) -> None:
    with pytest.raises(ValueError, match="Storage table names must be"):
        await service.create_table(bad)


# The eight types


DOUBLES = [0.1, 5.0, 1e-7, 5e-324, 1.7976931348623157e308, math.pi, 2.0**53 + 2, 1e15 / 3]


async def test_every_type_comes_back_as_it_went(client: Any) -> None:
    sent = an_entity(
        Text="a 'quoted' \u2028 \U0001d11e ümlaut\t\\",
        Blank="  ",
        Empty="",
        Small=-(2**31),
        Int32=2**31 - 1,
        Int64=EntityProperty(2**63 - 1, EdmType.INT64),
        Lowest=EntityProperty(-(2**63), EdmType.INT64),
        SmallInt64=EntityProperty(64, EdmType.INT64),
        Truth=True,
        Lie=False,
        Moment=datetime(2008, 7, 10, 23, 59, 59, 123456, tzinfo=UTC),
        Whole=datetime(1601, 1, 1, tzinfo=UTC),
        Id=UUID("c9da6455-213d-42c9-9a79-3e9149a57833"),
        Bytes=bytes(range(256)),
        NoBytes=b"",
    )

    await client.create_entity(sent)

    shown = await client.get_entity("p", "r")
    assert dict(shown) == sent
    assert [type(shown[name]) for name in ("Small", "Truth", "Lie")] == [int, bool, bool]


@pytest.mark.parametrize("number", DOUBLES)
async def test_a_double_keeps_every_bit(client: Any, number: float) -> None:
    await client.create_entity(an_entity(Number=number, Negative=-number))

    shown = await client.get_entity("p", "r")
    assert struct.pack("<2d", shown["Number"], shown["Negative"]) == struct.pack(
        "<2d", number, -number
    )


async def test_numbers_that_are_none_come_back(client: Any) -> None:
    await client.create_entity(an_entity(Up=math.inf, Down=-math.inf, Nan=math.nan))

    shown = await client.get_entity("p", "r")
    assert (shown["Up"], shown["Down"]) == (math.inf, -math.inf)
    assert math.isnan(shown["Nan"])


async def test_a_whole_double_stays_a_double(client: Any) -> None:
    await client.create_entity(an_entity(Five=EntityProperty(5, EdmType.DOUBLE), Bare=39))

    shown = await client.get_entity("p", "r")
    assert [type(shown["Five"]), type(shown["Bare"])] == [float, int]


async def test_all_seven_digits_of_a_time_survive(client: Any) -> None:
    moment = "2014-02-14T01:02:03.1234567Z"
    await client.create_entity(an_entity(Moment=EntityProperty(moment, EdmType.DATETIME)))

    shown = await client.get_entity("p", "r")
    assert shown["Moment"].tables_service_value == moment
    await client.update_entity(shown, mode=UpdateMode.REPLACE)
    again = await client.get_entity("p", "r")
    assert again["Moment"].tables_service_value == moment


async def test_a_time_of_another_zone_is_kept_as_utc(client: Any) -> None:
    moment = datetime(2020, 1, 1, 3, 0, tzinfo=timezone(timedelta(hours=5)))

    await client.create_entity(an_entity(Moment=moment))

    assert (await client.get_entity("p", "r"))["Moment"] == moment


async def test_properties_may_differ_in_case_only_and_have_odd_names(client: Any) -> None:
    sent = an_entity(Birthday=1, birthday="two", date="x", etag="y", 啊=3, _x=4)

    await client.create_entity(sent)

    assert dict(await client.get_entity("p", "r")) == sent


async def test_none_is_not_stored(client: Any) -> None:
    await client.create_entity(an_entity(A=None, B=1))

    assert dict(await client.get_entity("p", "r")) == an_entity(B=1)


# Keys


@pytest.mark.parametrize(
    "key",
    [
        "",
        "   ",
        "o'clock",
        "''",
        "partition'key''with'''singlequotes'",
        "100%",
        "foo%25",
        "a+b",
        "a b",
        "日本語 啊齄",
        "\U0001f600",
        ',;:@&=$!*()"<>{}|^`~[]',
        "row)key(",
        "PartitionKey='x',RowKey='y'",
        "k" * 512,
    ],
)
async def test_odd_keys_work_in_every_operation(client: Any, key: str) -> None:
    sent = {"PartitionKey": key, "RowKey": key, "A": 1}

    await client.create_entity(sent)
    assert dict(await client.get_entity(key, key)) == sent
    await client.update_entity(sent | {"B": 2}, mode=UpdateMode.MERGE)
    await client.upsert_entity(sent | {"C": 3}, mode=UpdateMode.REPLACE)
    await client.submit_transaction([("update", {"PartitionKey": key, "RowKey": key, "D": 4})])
    found = await all_of(
        client.query_entities("PartitionKey eq @key and RowKey eq @key", parameters={"key": key})
    )
    assert [dict(entity) for entity in found] == [sent | {"C": 3, "D": 4}]

    await client.delete_entity(key, key)
    with pytest.raises(ResourceNotFoundError):
        await client.get_entity(key, key)


@pytest.mark.parametrize("bad", ["a/b", "a\\b", "a#b", "a?b", "a\tb", "a\x7fb"])
async def test_forbidden_characters_in_keys_are_refused(client: Any, bad: str) -> None:
    for keys in ({"PartitionKey": bad}, {"RowKey": bad}):
        with pytest.raises(HttpResponseError) as refused:
            await client.create_entity(an_entity(**keys))
        assert refused.value.status_code == 400


# Writes and their conditions


async def test_an_insert_says_date_etag_and_version(client: Any) -> None:
    said = await client.create_entity(an_entity())

    assert list(said) == ["date", "etag", "version"]
    shown = await client.get_entity("p", "r")
    assert shown.metadata["etag"] == said["etag"]


@pytest.mark.parametrize("preference", ["return-content", "return-no-content"])
async def test_a_preference_shows_in_what_an_insert_says(client: Any, preference: str) -> None:
    said = await client.create_entity(an_entity(A=1), headers={"Prefer": preference})

    assert said["preference_applied"] == preference
    if preference == "return-content":
        assert (said["content"]["A"], said["content"]["RowKey"]) == (1, "r")
    else:
        assert said["content"] is None


async def test_an_entity_is_inserted_once(client: Any) -> None:
    await client.create_entity(an_entity(A=1))

    with pytest.raises(ResourceExistsError) as refused:
        await client.create_entity(an_entity(A=2))

    assert code_of(refused) == "EntityAlreadyExists"
    assert (await client.get_entity("p", "r"))["A"] == 1


@pytest.mark.parametrize("mode", list(UpdateMode))
async def test_merge_keeps_and_replace_drops_what_is_not_mentioned(
    client: Any, mode: UpdateMode
) -> None:
    await client.create_entity(an_entity(Old=1))
    await client.update_entity(an_entity(New=2), mode=mode)
    updated = dict(await client.get_entity("p", "r"))
    await client.upsert_entity(an_entity(Newest=3), mode=mode)
    upserted = dict(await client.get_entity("p", "r"))

    if mode == UpdateMode.MERGE:
        assert updated == an_entity(Old=1, New=2)
        assert upserted == an_entity(Old=1, New=2, Newest=3)
    else:
        assert updated == an_entity(New=2)
        assert upserted == an_entity(Newest=3)


@pytest.mark.parametrize("mode", list(UpdateMode))
async def test_an_upsert_makes_what_is_missing(client: Any, mode: UpdateMode) -> None:
    said = await client.upsert_entity(an_entity(A=1), mode=mode)

    shown = await client.get_entity("p", "r")
    assert (shown["A"], shown.metadata["etag"]) == (1, said["etag"])


@pytest.mark.parametrize("mode", list(UpdateMode))
async def test_an_update_under_a_condition_needs_the_etag_it_names(
    client: Any, mode: UpdateMode
) -> None:
    only_unchanged = {"mode": mode, "match_condition": MatchConditions.IfNotModified}
    etag = (await client.create_entity(an_entity(A=1)))["etag"]

    second = await client.update_entity(an_entity(A=2), etag=etag, **only_unchanged)
    for old in (etag, STALE):
        with pytest.raises(ResourceModifiedError) as refused:
            await client.update_entity(an_entity(A=3), etag=old, **only_unchanged)
        assert code_of(refused) == "UpdateConditionNotSatisfied"

    shown = await client.get_entity("p", "r")
    assert (shown["A"], shown.metadata["etag"]) == (2, second["etag"])


@pytest.mark.parametrize("mode", list(UpdateMode))
async def test_an_update_of_a_missing_entity_is_not_found_whatever_the_condition(
    client: Any, mode: UpdateMode
) -> None:
    conditions: list[dict[str, Any]] = [
        {},
        {"etag": STALE, "match_condition": MatchConditions.IfNotModified},
    ]
    for condition in conditions:
        with pytest.raises(ResourceNotFoundError) as refused:
            await client.update_entity(an_entity(), mode=mode, **condition)
        assert code_of(refused) == "ResourceNotFound"


async def test_a_delete_under_a_condition_needs_the_etag_it_names(client: Any) -> None:
    only_unchanged = {"match_condition": MatchConditions.IfNotModified}
    etag = (await client.create_entity(an_entity()))["etag"]

    with pytest.raises(ResourceModifiedError):
        await client.delete_entity("p", "r", etag=STALE, **only_unchanged)
    await client.delete_entity("p", "r", etag=etag, **only_unchanged)

    with pytest.raises(ResourceNotFoundError):
        await client.get_entity("p", "r")


async def test_a_delete_of_a_missing_entity_is_not_an_error(client: Any) -> None:
    await client.delete_entity("p", "r")


async def test_an_etag_never_repeats(client: Any) -> None:
    etags = [(await client.upsert_entity(an_entity()))["etag"] for _ in range(20)]

    assert len(set(etags)) == 20
    assert etags == sorted(etags)


# Metadata


async def test_the_metadata_of_an_entity_depends_on_the_level(client: Any, table: str) -> None:
    etag = (await client.create_entity(an_entity(Moment=datetime(2020, 1, 1, tzinfo=UTC))))["etag"]

    def accepting(level: str) -> dict[str, str]:
        return {"accept": f"application/json;odata={level}"}

    full = await client.get_entity("p", "r", headers=accepting("fullmetadata"))
    minimal = await client.get_entity("p", "r", headers=accepting("minimalmetadata"))
    bare = await client.get_entity("p", "r", headers=accepting("nometadata"))

    assert full.metadata.keys() == {"type", "id", "etag", "editLink", "timestamp"}
    assert full.metadata["type"] == f"devstoreaccount1.{table}"
    assert minimal.metadata.keys() == bare.metadata.keys() == {"etag", "timestamp"}
    assert {each.metadata["etag"] for each in (full, minimal, bare)} == {etag}
    assert [type(each["Moment"]).__name__ for each in (minimal, bare)] == [
        "TablesEntityDatetime",
        "str",
    ]


async def test_a_time_stamp_is_now_and_moves_with_every_write(client: Any) -> None:
    await client.create_entity(an_entity())
    first = (await client.get_entity("p", "r")).metadata["timestamp"]
    await client.update_entity(an_entity())
    second = (await client.get_entity("p", "r")).metadata["timestamp"]

    assert second >= first
    assert abs(datetime.now(UTC) - second) < timedelta(minutes=1)


# Queries


async def fill(client: Any, *, partitions: str = "ab", rows: int = 5) -> None:
    for partition in partitions:
        await client.submit_transaction(
            [
                ("create", {"PartitionKey": partition, "RowKey": f"{row:03}", "Age": row})
                for row in range(rows)
            ]
        )


async def test_entities_come_in_the_order_of_their_keys(client: Any) -> None:
    keys = [("b", "2"), ("a", "10"), ("B", "1"), ("a", "1"), ("", "")]
    for partition, row in keys:
        await client.create_entity({"PartitionKey": partition, "RowKey": row})

    listed = [
        (each["PartitionKey"], each["RowKey"]) for each in await all_of(client.list_entities())
    ]
    assert listed == sorted(keys)


async def test_a_filter_chooses_by_every_type(client: Any) -> None:
    moment, identity = datetime(2020, 5, 17, tzinfo=UTC), UUID(int=7)
    values = {
        "Text": "it's",
        "Small": 7,
        "Large": EntityProperty(2**40, EdmType.INT64),
        "Half": 0.5,
        "Truth": True,
        "Moment": moment,
        "Id": identity,
        "Bytes": b"\x00\xff",
    }
    await client.create_entity(an_entity(**values))
    await client.create_entity(an_entity(RowKey="other"))

    for name, value in values.items():
        plain = value.value if isinstance(value, EntityProperty) else value
        found = await all_of(
            client.query_entities(f"{name} eq @value", parameters={"value": plain})
        )
        assert [entity["RowKey"] for entity in found] == ["r"], name


@pytest.mark.parametrize("value", [2**31, 2**32 - 1, -(2**31) - 1, 2**32, 2**40])
async def test_a_whole_number_beyond_int32_needs_its_suffix(client: Any, value: int) -> None:
    await client.create_entity(an_entity(Large=EntityProperty(value, EdmType.INT64)))

    with pytest.raises(HttpResponseError) as refused:
        await all_of(client.query_entities(f"Large eq {value}"))
    assert (refused.value.status_code, code_of(refused)) == (400, "InvalidInput")
    assert f"Unrecognized 'Edm.Int32' literal '{value}'" in str(refused.value)
    (found,) = await all_of(client.query_entities(f"Large eq {value}L"))
    assert found["Large"].value == value


async def test_a_parameter_gets_its_suffix_from_the_sdk_beyond_32_bits(client: Any) -> None:
    await client.create_entity(an_entity(Large=EntityProperty(2**32, EdmType.INT64)))

    def asked(value: int) -> Any:
        return all_of(client.query_entities("Large eq @value", parameters={"value": value}))

    assert len(await asked(2**32)) == 1
    with pytest.raises(HttpResponseError) as refused:
        await asked(2**32 - 1)  # of 32 bits: the SDK leaves the L out
    assert code_of(refused) == "InvalidInput"


async def test_a_value_in_a_filter_cannot_break_out(client: Any) -> None:
    await fill(client)

    evil = {"who": "x' or PartitionKey ne '"}
    assert await all_of(client.query_entities("PartitionKey eq @who", parameters=evil)) == []


async def test_select_shows_what_is_asked_for_and_null_for_what_is_absent(client: Any) -> None:
    await client.create_entity(an_entity(A=1, B=2))

    (listed,) = await all_of(client.list_entities(select=["B", "Absent"]))
    shown = await client.get_entity("p", "r", select="A,RowKey,Absent")

    assert dict(listed) == {"B": 2, "Absent": None}
    assert dict(shown) == {"A": 1, "RowKey": "r", "Absent": None}
    assert listed.metadata["etag"] == shown.metadata["etag"]


async def test_pages_have_their_size_and_a_continuation(client: Any) -> None:
    await fill(client)

    pages = await pages_of(client.list_entities(results_per_page=4))

    assert [len(page) for page in pages] == [4, 4, 2]
    found = client.query_entities("Age ge 3", results_per_page=1)
    assert [len(page) for page in await pages_of(found)] == [1, 1, 1, 1]


async def test_a_page_holds_at_most_a_thousand_entities(client: Any) -> None:
    for start in range(0, 1100, 100):
        rows = [{"PartitionKey": "p", "RowKey": f"{start + row:04}"} for row in range(100)]
        await client.submit_transaction([("upsert", row) for row in rows])

    pages = await pages_of(client.list_entities())

    assert [len(page) for page in pages] == [1000, 100]


async def test_a_continuation_works_after_a_restart(half: str, start_server: StartServer) -> None:
    live = start_server()
    async with open_service(half, live.endpoint, CREDENTIAL) as service:
        await fill(await service.create_table("Staff"))
        pages = service.get_table_client("Staff").list_entities(results_per_page=4).by_page()
        first = [entity["RowKey"] async for entity in await anext(pages)]
        continuation = pages.continuation_token

    live.restart()

    async with open_service(half, live.endpoint, CREDENTIAL) as service:
        listing = service.get_table_client("Staff").list_entities(results_per_page=4)
        rest = await pages_of(listing, continuation)
    rows = first + [entity["RowKey"] for page in rest for entity in page]
    assert rows == [f"{row:03}" for _ in "ab" for row in range(5)]


async def test_a_continuation_passes_over_what_was_deleted(client: Any) -> None:
    await fill(client, partitions="a", rows=4)
    pages = client.list_entities(results_per_page=2).by_page()
    assert [entity["RowKey"] async for entity in await anext(pages)] == ["000", "001"]

    await client.delete_entity("a", "002")

    rest = await pages_of(client.list_entities(results_per_page=2), pages.continuation_token)
    assert [[entity["RowKey"] for entity in page] for page in rest] == [["003"]]


@pytest.mark.parametrize(
    ("wrong", "status"), [("aaa bbb ccc", 400), ("A eq null", 400), ("startswith(A,'x')", 501)]
)
async def test_a_wrong_filter_fails_with_the_first_page(
    client: Any, wrong: str, status: int
) -> None:
    with pytest.raises(HttpResponseError) as refused:
        await all_of(client.query_entities(wrong))
    assert refused.value.status_code == status


# Errors as exceptions


async def test_every_operation_on_a_missing_table_is_not_found(service: Any, name: str) -> None:
    missing = service.get_table_client(name)

    for call in (
        lambda: missing.create_entity(an_entity()),
        lambda: missing.upsert_entity(an_entity()),
        lambda: missing.update_entity(an_entity()),
        lambda: missing.get_entity("p", "r"),
        lambda: all_of(missing.list_entities()),
    ):
        with pytest.raises(ResourceNotFoundError) as refused:
            await call()
        assert code_of(refused) == "TableNotFound"
    with pytest.raises(ResourceNotFoundError) as refused:
        await missing.get_table_access_policy()
    assert code_of(refused) == "ResourceNotFound"


async def test_a_wrong_key_is_an_authentication_error(half: str, server: LiveServer) -> None:
    wrong = AzureNamedKeyCredential("devstoreaccount1", "bm90IHRoZSBrZXk=")
    async with open_service(half, server.endpoint, wrong) as service:
        with pytest.raises(ClientAuthenticationError) as refused:
            await all_of(service.list_tables())
    assert code_of(refused) == "AuthenticationFailed"


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"Big": "x" * 32_769}, "PropertyValueTooLarge"),
        ({"Big": b"x" * 65_537}, "PropertyValueTooLarge"),
        ({f"P{number}": 1 for number in range(253)}, "TooManyProperties"),
        ({"n" * 256: 1}, "PropertyNameTooLong"),
        ({"123": 1}, "PropertyNameInvalid"),
        ({f"P{number}": "x" * 32_000 for number in range(17)}, "EntityTooLarge"),
        ({"Old": datetime(1600, 12, 31, tzinfo=UTC)}, "OutOfRangeInput"),
        ({"Bad": EntityProperty("maybe", EdmType.BOOLEAN)}, "InvalidInput"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_entity_beyond_the_limits_is_refused(
    client: Any, properties: dict[str, Any], code: str
) -> None:
    with pytest.raises(HttpResponseError) as refused:
        await client.create_entity(an_entity(**properties))

    assert (refused.value.status_code, code_of(refused)) == (400, code)
    assert await all_of(client.list_entities()) == []


async def test_an_entity_at_the_limits_is_taken(client: Any) -> None:
    sent = an_entity(
        Text="x" * 32_768, Bytes=b"x" * 65_536, **{f"P{number}": 1 for number in range(250)}
    )

    await client.create_entity(sent)

    assert dict(await client.get_entity("p", "r")) == sent


@pytest.mark.parametrize("version", ["2020-12-06", "2099-01-01"])
async def test_a_newer_version_is_served(service: Any, name: str, version: str) -> None:
    seen: list[str] = []

    def change(request: Any) -> None:
        request.http_request.headers["x-ms-version"] = version

    def note(response: Any) -> None:
        seen.append(response.http_response.headers["x-ms-version"])

    await service.create_table(name, raw_request_hook=change, raw_response_hook=note)
    assert seen == [version]
