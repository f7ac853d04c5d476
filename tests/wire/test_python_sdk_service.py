"""Who may do what, and the service itself, through the official Python SDK, both halves."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
)
from azure.data.tables import (
    AccountSasPermissions,
    ResourceTypes,
    TableAccessPolicy,
    TableAnalyticsLogging,
    TableCorsRule,
    TableMetrics,
    TableRetentionPolicy,
    TableSasPermissions,
    UpdateMode,
    generate_account_sas,
    generate_table_sas,
)

from support.live import LiveServer
from wire.conftest import Certificate, StartServer
from wire.sdk import CREDENTIAL, all_of, code_of, open_service

NOW = datetime.now(UTC)
LATER = NOW + timedelta(hours=1)
EARLIER = NOW - timedelta(hours=1)

OpenTable = Callable[[str], Awaitable[Any]]


def an_entity(partition: str = "p", row: str = "r", **properties: Any) -> dict[str, Any]:
    return {"PartitionKey": partition, "RowKey": row} | properties


@pytest.fixture
async def with_sas(half: str, server: LiveServer, table: str) -> AsyncIterator[OpenTable]:
    """Open the table with a SAS instead of the key."""
    opened: list[Any] = []

    async def open_table(sas: str) -> Any:
        context = open_service(half, server.endpoint, AzureSasCredential(sas))
        opened.append(context)
        service = await context.__aenter__()
        return service.get_table_client(table)

    yield open_table
    for context in opened:
        await context.__aexit__(None, None, None)


def table_sas(table: str, permission: str | None = "raud", **terms: Any) -> str:
    chosen = TableSasPermissions.from_string(permission) if permission else None
    terms = {"expiry": LATER} | terms
    return generate_table_sas(CREDENTIAL, table, permission=chosen, **terms)


def account_sas(permission: str, types: str = "sco", **terms: Any) -> str:
    return generate_account_sas(
        CREDENTIAL,
        ResourceTypes.from_string(types),
        AccountSasPermissions.from_string(permission),
        terms.pop("expiry", LATER),
        **terms,
    )


async def refused_code(call: Awaitable[Any]) -> str:
    with pytest.raises(HttpResponseError) as refused:
        await call
    return code_of(refused)


# Table SAS


async def test_a_table_sas_allows_what_its_letters_say(
    client: Any, with_sas: OpenTable, table: str
) -> None:
    await client.create_entity(an_entity(row="there"))

    for letters in ("r", "a", "u", "d", "au", "raud"):
        holder = await with_sas(table_sas(table, letters))
        new, old = an_entity(row=f"new{letters}"), an_entity(row="there", A=letters)
        attempts: list[tuple[str, Awaitable[Any]]] = [
            ("r", holder.get_entity("p", "there")),
            ("r", all_of(holder.list_entities())),
            ("a", holder.create_entity(new)),
            ("u", holder.update_entity(old, mode=UpdateMode.MERGE)),
            ("u", holder.update_entity(old, mode=UpdateMode.REPLACE)),
            ("au", holder.upsert_entity(an_entity(row=f"up{letters}"))),
            (
                "au",
                holder.submit_transaction(
                    [("create", an_entity(row=f"tx{letters}")), ("update", old)]
                ),
            ),
            ("d", holder.delete_entity("p", f"gone{letters}")),
        ]
        for needed, attempt in attempts:
            if set(needed) <= set(letters):
                await attempt
            else:
                assert await refused_code(attempt) == "AuthorizationPermissionMismatch"


async def test_a_table_sas_is_for_its_table_in_any_case(
    client: Any, with_sas: OpenTable, service: Any, table: str, name: str
) -> None:
    await client.create_entity(an_entity(A=1))

    holder = await with_sas(table_sas(table.upper()))
    assert (await holder.get_entity("p", "r"))["A"] == 1

    stranger = await with_sas(table_sas("Elsewhere"))
    assert (await refused_code(stranger.get_entity("p", "r"))).startswith("Auth")


async def test_a_table_sas_cannot_manage_tables(with_sas: OpenTable, table: str) -> None:
    holder = await with_sas(table_sas(table))

    for call in (holder.create_table(), holder.delete_table(), holder.get_table_access_policy()):
        with pytest.raises(HttpResponseError) as refused:
            await call
        assert refused.value.status_code == 403


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"start_pk": "b"}, [("b", ""), ("z", "z")], [("a", "z")]),
        ({"end_pk": "b"}, [("a", ""), ("b", "z")], [("ba", "")]),
        (
            {"start_pk": "b", "start_rk": "5", "end_pk": "c", "end_rk": "5"},
            [("b", "5"), ("b", "9"), ("c", ""), ("c", "5")],
            [("b", "4"), ("c", "6"), ("a", "7"), ("d", "")],
        ),
        ({"start_pk": "b", "end_pk": "b"}, [("b", ""), ("b", "z")], [("a", "z"), ("c", "")]),
    ],
)
async def test_a_range_bounds_every_operation(
    client: Any,
    with_sas: OpenTable,
    table: str,
    bounds: dict[str, str],
    inside: list[tuple[str, str]],
    outside: list[tuple[str, str]],
) -> None:
    holder = await with_sas(table_sas(table, **bounds))
    for keys in outside:
        await client.create_entity(an_entity(*keys))

    for keys in inside:
        await holder.create_entity(an_entity(*keys))
        assert (await holder.get_entity(*keys))["RowKey"] == keys[1]
    found = await all_of(holder.list_entities())
    assert [(each["PartitionKey"], each["RowKey"]) for each in found] == sorted(inside)

    for keys in outside:
        entity = an_entity(*keys, A=1)
        with pytest.raises(ResourceNotFoundError):
            await holder.get_entity(*keys)
        for call in (
            holder.create_entity(entity),
            holder.update_entity(entity),
            holder.upsert_entity(entity),
            holder.delete_entity(*keys),
            holder.submit_transaction([("upsert", entity)]),
        ):
            assert await refused_code(call) == "AuthorizationFailure"
        assert "A" not in await client.get_entity(*keys)


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        ({"expiry": EARLIER}, "AuthenticationFailed"),
        ({"start": LATER}, "AuthenticationFailed"),
        ({"start": LATER, "expiry": LATER + timedelta(hours=1)}, "AuthenticationFailed"),
        ({"protocol": "https"}, "AuthorizationProtocolMismatch"),
        ({"ip_address_or_range": "192.0.2.1-192.0.2.9"}, "AuthorizationSourceIPMismatch"),
    ],
)
async def test_the_terms_of_a_sas_bind(
    with_sas: OpenTable, table: str, terms: dict[str, Any], code: str
) -> None:
    holder = await with_sas(table_sas(table, **terms))

    assert await refused_code(all_of(holder.list_entities())) == code


async def test_terms_that_hold_let_in(with_sas: OpenTable, table: str) -> None:
    holder = await with_sas(
        table_sas(
            table,
            start=EARLIER,
            protocol="https,http",
            ip_address_or_range="127.0.0.0-127.0.0.9",
        )
    )

    assert await all_of(holder.list_entities()) == []


async def test_a_sas_that_was_changed_is_refused(with_sas: OpenTable, table: str) -> None:
    holder = await with_sas(table_sas(table, "r").replace("sp=r&", "sp=raud&"))

    with pytest.raises(ClientAuthenticationError):
        await all_of(holder.list_entities())


# Stored policies


async def test_policies_come_back_as_they_were_set(client: Any) -> None:
    assert await client.get_table_access_policy() == {}

    policy = TableAccessPolicy(start=EARLIER, expiry=LATER, permission="raud")
    await client.set_table_access_policy({"full": policy, "empty": None})

    shown = await client.get_table_access_policy()
    assert (list(shown), shown["empty"]) == (["full", "empty"], None)
    assert shown["full"].permission == "raud"
    # The SDK sends whole seconds.
    assert (shown["full"].start, shown["full"].expiry) == (
        EARLIER.replace(microsecond=0),
        LATER.replace(microsecond=0),
    )
    await client.set_table_access_policy({})
    assert await client.get_table_access_policy() == {}


async def test_a_table_has_at_most_five_policies(client: Any) -> None:
    six: dict[str, None] = {f"id{number}": None for number in range(6)}

    with pytest.raises(ValueError, match="more than 5 access policies"):
        await client.set_table_access_policy(six)
    assert await client.get_table_access_policy() == {}


async def test_a_policy_completes_a_sas_until_it_is_taken_back(
    client: Any, with_sas: OpenTable, table: str
) -> None:
    await client.set_table_access_policy(
        {"reader": TableAccessPolicy(expiry=LATER, permission="r")}
    )
    sas = generate_table_sas(CREDENTIAL, table, policy_id="reader")
    holder = await with_sas(sas)

    assert await all_of(holder.list_entities()) == []
    code = await refused_code(holder.create_entity(an_entity()))
    assert code == "AuthorizationPermissionMismatch"

    await client.set_table_access_policy({})
    assert await refused_code(all_of(holder.list_entities())) == "AuthenticationFailed"


async def test_what_the_policy_says_the_sas_must_not_say(
    client: Any, with_sas: OpenTable, table: str
) -> None:
    await client.set_table_access_policy(
        {"reader": TableAccessPolicy(expiry=LATER, permission="r")}
    )

    holder = await with_sas(table_sas(table, "r", policy_id="reader"))

    assert await refused_code(all_of(holder.list_entities())) == "AuthenticationFailed"


# Account SAS


async def test_an_account_sas_allows_what_it_says(half: str, server: LiveServer, name: str) -> None:
    credential = AzureSasCredential(account_sas("rwdlacu"))

    async with open_service(half, server.endpoint, credential) as service:
        client = await service.create_table(name)
        await client.upsert_entity(an_entity(A=1))
        assert (await client.get_entity("p", "r"))["A"] == 1
        assert name in [item.name for item in await all_of(service.list_tables())]
        assert (await service.get_service_properties())["cors"] == []
        assert await refused_code(client.get_table_access_policy()) == "AuthorizationFailure"
        await service.delete_table(name)


@pytest.mark.parametrize(
    ("permission", "types", "code"),
    [
        ("rwdacu", "sco", "AuthorizationPermissionMismatch"),
        ("rwdlacu", "so", "AuthorizationResourceTypeMismatch"),
    ],
)
async def test_an_account_sas_forbids_the_rest(
    half: str, server: LiveServer, permission: str, types: str, code: str
) -> None:
    credential = AzureSasCredential(account_sas(permission, types))

    async with open_service(half, server.endpoint, credential) as service:
        assert await refused_code(all_of(service.list_tables())) == code


async def test_an_expired_account_sas_is_refused(half: str, server: LiveServer) -> None:
    credential = AzureSasCredential(account_sas("rl", expiry=EARLIER))

    async with open_service(half, server.endpoint, credential) as service:
        with pytest.raises(ClientAuthenticationError):
            await all_of(service.list_tables())


# Service properties, statistics, the secondary


async def test_service_properties_are_kept(half: str, start_server: StartServer) -> None:
    live = start_server()
    keep = TableRetentionPolicy(enabled=True, days=5)
    rule = TableCorsRule(
        ["https://www.example.org"],
        ["GET", "PUT"],
        allowed_headers=["x-ms-meta-target*", "content-type"],
        exposed_headers=["x-ms-*"],
        max_age_in_seconds=500,
    )
    async with open_service(half, live.endpoint, CREDENTIAL) as service:
        await service.set_service_properties(
            analytics_logging=TableAnalyticsLogging(
                read=True, write=True, delete=True, retention_policy=keep
            ),
            hour_metrics=TableMetrics(enabled=True, include_apis=True, retention_policy=keep),
            minute_metrics=TableMetrics(enabled=False),
        )
        await service.set_service_properties(cors=[rule])

    live.restart()

    async with open_service(half, live.endpoint, CREDENTIAL) as service:
        shown = await service.get_service_properties()
        logging, hour = shown["analytics_logging"], shown["hour_metrics"]
        assert (logging.read, logging.write, logging.delete) == (True, True, True)
        assert (logging.retention_policy.days, hour.retention_policy.days) == (5, 5)
        assert (hour.enabled, hour.include_apis) == (True, True)
        assert shown["minute_metrics"].enabled is False
        (kept,) = shown["cors"]
        assert kept.allowed_origins == ["https://www.example.org"]
        assert kept.allowed_methods == ["GET", "PUT"]
        assert set(kept.allowed_headers) == {"x-ms-meta-target*", "content-type"}
        assert (kept.exposed_headers, kept.max_age_in_seconds) == (["x-ms-*"], 500)

        await service.set_service_properties(cors=[])
        assert (await service.get_service_properties())["cors"] == []


async def test_service_properties_beyond_the_limits_are_refused(service: Any) -> None:
    rules = [TableCorsRule(["https://www.example.org"], ["GET"]) for _ in range(6)]
    too_long = TableMetrics(
        enabled=True,
        include_apis=True,
        retention_policy=TableRetentionPolicy(enabled=True, days=366),
    )

    for properties in ({"cors": rules}, {"minute_metrics": too_long}):
        code = await refused_code(service.set_service_properties(**properties))
        assert code == "InvalidXmlDocument"


async def test_statistics_come_from_the_secondary(service: Any) -> None:
    shown = await service.get_service_stats()

    assert shown["geo_replication"]["status"] == "live"
    assert isinstance(shown["geo_replication"]["last_sync_time"], datetime)


async def test_the_secondary_reads_and_never_writes(
    half: str, server: LiveServer, client: Any, table: str
) -> None:
    await client.create_entity(an_entity(A=1))

    there = open_service(half, server.endpoint, CREDENTIAL, location_mode="secondary")
    async with there as service:
        mirror = service.get_table_client(table)
        assert (await mirror.get_entity("p", "r"))["A"] == 1
        assert len(await all_of(mirror.list_entities())) == 1
        assert table in [item.name for item in await all_of(service.list_tables())]
        with pytest.raises(HttpResponseError, match=r"Write operations are not allowed\."):
            await mirror.upsert_entity(an_entity(A=2))
    assert (await client.get_entity("p", "r"))["A"] == 1


# Other servers


async def test_a_server_with_tls_serves_https(
    half: str, start_server: StartServer, self_signed: Certificate
) -> None:
    flags = ("--tls-cert", str(self_signed.certificate), "--tls-key", str(self_signed.key))
    live = start_server("--in-memory", *flags)
    trusted = str(self_signed.certificate)

    async with open_service(half, live.endpoint, CREDENTIAL, connection_verify=trusted) as service:
        client = await service.create_table("Staff")
        await client.upsert_entity(an_entity(A=1))
        assert (await client.get_entity("p", "r"))["A"] == 1

    sas = generate_table_sas(
        CREDENTIAL,
        "Staff",
        permission=TableSasPermissions(read=True),
        expiry=LATER,
        protocol="https",
    )
    async with open_service(
        half, live.endpoint, AzureSasCredential(sas), connection_verify=trusted
    ) as service:
        assert len(await all_of(service.get_table_client("Staff").list_entities())) == 1


async def test_an_account_has_two_keys_that_both_work(
    half: str, start_server: StartServer, tmp_path: Any
) -> None:
    keys = ["b25lIG1vcmUga2V5", "YW5vdGhlciBrZXk="]
    (tmp_path / "keys").write_text("\n".join(keys))
    (tmp_path / "keys").chmod(0o600)
    live = start_server(
        "--in-memory", "--account", "harbour", "--account-key-file", str(tmp_path / "keys")
    )

    for key in keys:
        credential = AzureNamedKeyCredential("harbour", key)
        async with open_service(half, live.endpoint, credential) as service:
            await service.create_table_if_not_exists("Staff")
            assert [item.name for item in await all_of(service.list_tables())] == ["Staff"]
