"""Who may do what with a SAS: operations by permissions by ranges by keys by everything else.

Each combination is asked of a live application and of an independent oracle. What is refused
must change nothing, and what is read must lie inside the range.
"""

import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import product
from typing import Any

import pytest

from partita.policies import Policy
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from partita.service.http.request import Request, Response
from wire.hostile import sign_account_sas, sign_table_sas
from wire.sas_world import (
    EARLIER,
    ENTITY_OPERATIONS,
    FORBIDDEN,
    GET,
    KEYS,
    LACKS_PERMISSION,
    LATER,
    NOT_AUTHENTICATED,
    NOT_FOUND,
    NOW,
    OTHER,
    PARTITION_KEYS,
    QUERY,
    STORED,
    TABLE,
    TABLE_OPERATIONS,
    WRITES,
    Key,
    Operation,
    Verdict,
    World,
    account_sas,
    address,
    alone,
    batched,
    by_account_sas,
    by_table_sas,
    is_inside,
    open_world,
    read_continuation,
    subsets,
    table_sas,
)

RANGES: list[dict[str, str]] = [
    {},
    {"spk": "b"},
    {"epk": "b"},
    {"spk": "b", "epk": "b"},
    {"spk": "a", "epk": "c"},
    {"spk": "b", "srk": "2"},
    {"epk": "b", "erk": "2"},
    {"spk": "b", "srk": "2", "epk": "b", "erk": "2"},
    {"spk": "a", "srk": "2", "epk": "c", "erk": "2"},
    {"spk": "a", "srk": "3", "epk": "b"},
    {"spk": "a'", "epk": "a'"},
    {"spk": "\u00e9", "epk": "\u00e9"},
]
PRESENT: Key = ("b", "2")
ABSENT: Key = ("b", "9")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as world:
        yield world


class Trial:
    """Asks combination after combination and keeps those that came out wrong."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.count = 0
        self.wrong: list[str] = []

    async def expect(
        self, expected: Verdict, request: Request, title: str, touched: Iterable[Key] = ()
    ) -> None:
        self.count += 1
        verdict = await self._world.ask(request)
        if verdict != expected:
            self.wrong.append(f"{title}: {verdict} instead of {expected}")
        if verdict.is_success:
            await self._world.restore(touched)
        elif not await self._world.is_unchanged():
            self.wrong.append(f"{title}: refused, and yet something changed")
            await self._world.restore()

    def finish(self, *, count_min: int) -> None:
        assert self.wrong == []
        assert self.count >= count_min


def forms(operation: Operation, key: Key, sas: str) -> list[tuple[str, Request]]:
    """Return the request alone and, where it can be in one, in a batch."""
    requests = [("alone", alone(operation, key, sas))]
    if operation in ENTITY_OPERATIONS:
        requests.append(("batched", batched([(operation, key)], sas)))
    return requests


async def test_table_sas_grants_what_its_letters_say(world: World) -> None:
    trial = Trial(world)
    for letters, operation, key in product(
        subsets("raud"), [*ENTITY_OPERATIONS, *TABLE_OPERATIONS], (PRESENT, ABSENT)
    ):
        fields = {"sp": letters}
        expected = by_table_sas(operation, key, fields)
        for form, request in forms(operation, key, table_sas(**fields)):
            title = f"{operation.name} {form} with {letters} on {key}"
            await trial.expect(expected, request, title, [key])
    trial.finish(count_min=1000)


async def test_table_sas_writes_and_reads_only_inside_its_range(world: World) -> None:
    trial = Trial(world)
    operations = [operation for operation in ENTITY_OPERATIONS if operation is not QUERY]
    for number, (limits, operation, key) in enumerate(product(RANGES, operations, KEYS)):
        # The number of keys is odd: what one operation leaves out the next one takes.
        if number % 2:
            continue
        fields = {"sp": "raud", **limits}
        expected = by_table_sas(operation, key, fields)
        for form, request in forms(operation, key, table_sas(**fields)):
            await trial.expect(
                expected, request, f"{operation.name} {form} of {key} within {limits}", [key]
            )
    trial.finish(count_min=6_000)


async def test_account_sas_grants_by_service_resource_and_letter(world: World) -> None:
    trial = Trial(world)
    letters = [*"rwdlacup", "au", "rwdlacup"]
    for services, resources, permissions, operation in product(
        ("t", "bqtf", "bqf"),
        subsets("sco"),
        letters,
        [GET, QUERY, *WRITES[:5], WRITES[-1], *TABLE_OPERATIONS],
    ):
        fields = {"ss": services, "srt": resources, "sp": permissions}
        expected = by_account_sas(operation, ABSENT, fields)
        for form, request in forms(operation, ABSENT, account_sas(**fields)):
            await trial.expect(
                expected, request, f"{operation.name} {form} with {fields}", [ABSENT]
            )
    trial.finish(count_min=3000)


async def test_batch_needs_the_union_of_what_its_parts_need(world: World) -> None:
    insert, upsert, update, delete = WRITES[0], WRITES[1], WRITES[2], WRITES[-2]
    groups = [
        [(insert, ("b", "9")), (delete, ("b", "1"))],
        [(update, ("b", "1")), (upsert, ("b", "2"))],
        [(delete, ("b", "1")), (update, ("b", "2")), (insert, ("b", "9"))],
        [(upsert, ("b", "9")), (upsert, ("b", "1")), (delete, ("b", "2"))],
    ]
    trial = Trial(world)
    for group, letters in product(groups, subsets("raud")):
        needed = {letter for operation, _ in group for letter in operation.permissions[0]}
        is_granted = needed <= set(letters)
        for sas in (table_sas(sp=letters), account_sas(sp=letters)):
            first = Verdict(group[0][0].allowed)
            await trial.expect(
                first if is_granted else LACKS_PERMISSION,
                batched(group, sas),
                f"{[operation.name for operation, _ in group]} with {letters}",
                [key for _, key in group],
            )
    trial.finish(count_min=100)


@pytest.mark.parametrize("place", range(5))
async def test_one_part_outside_the_range_refuses_the_batch(world: World, place: int) -> None:
    trial = Trial(world)
    rows = [str(number) for number in range(10, 15)]
    rows[place] = "99"
    for operation in (WRITES[0], WRITES[1], WRITES[3]):
        sas = table_sas(spk="b", srk="10", epk="b", erk="14")
        group = [(operation, ("b", row)) for row in rows]
        await trial.expect(FORBIDDEN, batched(group, sas), f"{operation.name} at {place}")
    trial.finish(count_min=3)


# Queries: nothing outside, not even in a continuation

FILTERS: list[tuple[str, Callable[[Key], bool]]] = [
    ("", lambda _: True),
    ("PartitionKey ge ''", lambda _: True),
    ("PartitionKey eq 'b'", lambda key: key[0] == "b"),
    ("PartitionKey eq 'b' and RowKey eq '1'", lambda key: key == ("b", "1")),
    ("PartitionKey lt 'b' or PartitionKey gt 'b'", lambda key: key[0] != "b"),
    ("not (PartitionKey eq 'b')", lambda key: key[0] != "b"),
    ("RowKey eq '2'", lambda key: key[1] == "2"),
    ("PartitionKey gt 'c' or RowKey eq '1'", lambda key: key[0] > "c" or key[1] == "1"),
    ("V eq 1 or PartitionKey eq 'zzz'", lambda _: True),
    ("V eq 2", lambda _: False),
]


@pytest.mark.parametrize("is_batched", [False, True])
async def test_query_sees_only_the_range_page_by_page(world: World, is_batched: bool) -> None:
    count = 0
    for limits, (text, matches), top in product(RANGES, FILTERS, ("", "1", "2", "7")):
        sas = table_sas(sp="r", **limits)
        seen, tokens = await read_pages(world, sas, text, top, is_batched)

        assert seen == [key for key in sorted(STORED) if matches(key) and is_inside(key, limits)]
        assert [token for token in tokens if not is_inside(token, limits)] == []
        count += 1
    assert count >= 400


async def read_pages(
    world: World, sas: str, text: str, top: str, is_batched: bool
) -> tuple[list[Key], list[Key]]:
    """Read a query to its end; return the keys of all pages and those in their continuations."""
    seen: list[Key] = []
    tokens: list[Key] = []
    more = ""
    while True:
        options = "&".join(filter(None, (text and f"$filter={text}", top and f"$top={top}", more)))
        page, token = await read_page(world, sas, options.replace(" ", "%20"), is_batched)
        seen += [(entity["PartitionKey"], entity["RowKey"]) for entity in page]
        if token is None:
            return seen, tokens
        tokens.append((read_continuation(token[0]), read_continuation(token[1])))
        more = f"NextPartitionKey={token[0]}&NextRowKey={token[1]}"


async def read_page(
    world: World, sas: str, options: str, is_batched: bool
) -> tuple[list[Any], tuple[str, str] | None]:
    query = QUERY._replace(target=f"/{TABLE}()?{options}")
    if is_batched:
        # QUERY itself says that the part is a read; only its target differs.
        request = batched([(QUERY, PRESENT)], sas)
        target = query.target.encode()
        body = request.body.replace(QUERY.target.encode(), target)
        request = Request(request.method, request.path, request.query, request.headers, body)
    else:
        request = alone(query, PRESENT, sas)
    response = await world.respond(request)
    found = re.search(rb'\{.*"value":\[.*\]\}', response.body, re.DOTALL)
    assert found is not None, response
    return json.loads(found[0])["value"], continuation_of(response)


def continuation_of(response: Response) -> tuple[str, str] | None:
    text = "".join(f"{name}: {value}\r\n" for name, value in response.headers)
    text += response.body.decode()
    found = re.findall(r"x-ms-continuation-Next(?:PartitionKey|RowKey): (\S+)", text)
    assert len(found) in (0, 2)
    return (found[0], found[1]) if found else None


async def test_continuation_that_was_forged_opens_nothing(world: World) -> None:
    count = 0
    for limits, key in product(RANGES, KEYS):
        sas = table_sas(sp="r", **limits)
        token = "&".join(
            f"{name}={continuation(text)}"
            for name, text in zip(("NextPartitionKey", "NextRowKey"), key, strict=True)
        )
        page, _ = await read_page(world, sas, token, is_batched=False)
        assert [(entity["PartitionKey"], entity["RowKey"]) for entity in page] == [
            stored for stored in sorted(STORED) if stored >= key and is_inside(stored, limits)
        ]
        count += 1
    assert count >= 500


def continuation(text: str) -> str:
    encoded = b64encode(text.encode()).decode().translate(str.maketrans("+/=", "._-"))
    return f"1!{len(encoded)}!{encoded}"


# Time, protocol, address, versions, and tokens that were tampered with

PROTOCOL_MISMATCH = Verdict(403, "AuthorizationProtocolMismatch")
ADDRESS_MISMATCH = Verdict(403, "AuthorizationSourceIPMismatch")
OK = Verdict(200)

CONDITIONS: list[tuple[dict[str, str], str, str, Verdict]] = [
    # fields of the token, address of the client, scheme, verdict on a read
    ({}, "127.0.0.1", "http", OK),
    ({"st": EARLIER}, "127.0.0.1", "http", OK),
    ({"st": NOW}, "127.0.0.1", "http", OK),
    ({"st": "2023-11-14T22:13:21Z"}, "127.0.0.1", "http", NOT_AUTHENTICATED),
    ({"st": LATER}, "127.0.0.1", "http", NOT_AUTHENTICATED),
    ({"se": NOW}, "127.0.0.1", "http", NOT_AUTHENTICATED),
    ({"se": "2023-11-14T22:13:21Z"}, "127.0.0.1", "http", OK),
    ({"se": EARLIER}, "127.0.0.1", "http", NOT_AUTHENTICATED),
    ({"se": "2023-11-15"}, "127.0.0.1", "http", OK),
    ({"se": "2023-11-15T00:00Z"}, "127.0.0.1", "http", OK),
    ({"se": "2023-11-15T00:00:00.0000001Z"}, "127.0.0.1", "http", OK),
    ({"se": "2023-11-14T23:00:00+01:00"}, "127.0.0.1", "http", NOT_AUTHENTICATED),
    ({"se": ""}, "127.0.0.1", "http", NOT_AUTHENTICATED),
    ({"se": "tomorrow"}, "127.0.0.1", "http", NOT_AUTHENTICATED),
    ({"se": "9999-99-99"}, "127.0.0.1", "http", NOT_AUTHENTICATED),
    ({"spr": "https"}, "127.0.0.1", "http", PROTOCOL_MISMATCH),
    ({"spr": "https"}, "127.0.0.1", "https", OK),
    ({"spr": "https,http"}, "127.0.0.1", "http", OK),
    ({"spr": "http"}, "127.0.0.1", "http", NOT_AUTHENTICATED),
    ({"sip": "10.0.0.7"}, "10.0.0.7", "http", OK),
    ({"sip": "10.0.0.7"}, "::ffff:10.0.0.7", "http", OK),
    ({"sip": "10.0.0.7"}, "10.0.0.8", "http", ADDRESS_MISMATCH),
    ({"sip": "10.0.0.7-10.0.0.9"}, "10.0.0.7", "http", OK),
    ({"sip": "10.0.0.7-10.0.0.9"}, "10.0.0.9", "http", OK),
    ({"sip": "10.0.0.7-10.0.0.9"}, "10.0.0.10", "http", ADDRESS_MISMATCH),
    ({"sip": "10.0.0.7-10.0.0.9"}, "10.0.0.6", "http", ADDRESS_MISMATCH),
    ({"sip": "10.0.0.9-10.0.0.7"}, "10.0.0.8", "http", NOT_AUTHENTICATED),
    ({"sip": "somewhere"}, "10.0.0.8", "http", NOT_AUTHENTICATED),
    ({"sip": "10.0.0.7"}, "", "http", ADDRESS_MISMATCH),
    ({"sp": ""}, "127.0.0.1", "http", NOT_AUTHENTICATED),
    ({"sv": "2099-01-01"}, "127.0.0.1", "http", OK),
    ({"sv": "2020-12-06"}, "127.0.0.1", "http", OK),
    ({"sv": "2015-04-05"}, "127.0.0.1", "http", OK),
    ({"sv": ""}, "127.0.0.1", "http", NOT_AUTHENTICATED),
    ({"sv": "newest"}, "127.0.0.1", "http", NOT_AUTHENTICATED),
    ({"sv": "2009-09-19"}, "127.0.0.1", "http", NOT_AUTHENTICATED),
]
READS_AND_WRITES = [GET, QUERY, *WRITES[:3], *WRITES[-2:]]


@pytest.mark.parametrize("kind", ["table", "account"])
async def test_token_holds_only_under_its_conditions(world: World, kind: str) -> None:
    trial = Trial(world)
    for (fields, peer, scheme, verdict), operation in product(CONDITIONS, READS_AND_WRITES):
        sas = table_sas(**fields) if kind == "table" else account_sas(**fields)
        granted = by_table_sas(operation, PRESENT, {"sp": "raud"})
        expected = granted if verdict == OK else verdict
        title = f"{operation.name} with {fields} from {peer} by {scheme}"
        one = alone(operation, PRESENT, sas, peer=peer, scheme=scheme)
        await trial.expect(expected, one, title, [PRESENT])
        many = batched([(operation, PRESENT)], sas, peer=peer, scheme=scheme)
        await trial.expect(expected, many, f"batched {title}", [PRESENT])
    trial.finish(count_min=400)


@pytest.mark.parametrize("version", ["2012-02-12", "2013-08-15", "2014-02-14", "2015-02-21"])
async def test_old_token_without_permission_finds_nothing(world: World, version: str) -> None:
    trial = Trial(world)
    for letters, operation in product(("r", "raud"), READS_AND_WRITES):
        granted = by_table_sas(operation, PRESENT, {"sp": letters})
        expected = NOT_FOUND if granted == LACKS_PERMISSION else granted
        sas = table_sas(sv=version, sp=letters)
        await trial.expect(expected, alone(operation, PRESENT, sas), operation.name, [PRESENT])
    trial.finish(count_min=14)


NEVER_VALID: list[dict[str, str]] = [
    {"srk": "1"},
    {"erk": "1"},
    {"srk": "1", "epk": "b"},
    {"erk": "1", "spk": "b"},
    {"spk": "c", "epk": "b"},
    {"spk": "b", "srk": "3", "epk": "b", "erk": "2"},
    {"sp": "rw"},
    {"sp": "r\nraud"},
    {"spk": "a\nb"},
    {"ss": "t", "srt": "o"},
    {"tn": ""},
    {"tn": "Har/bour"},
    {"tn": "\u212arakow"},
    {"si": "nosuchpolicy"},
    {"spr": "ftp"},
]
TAMPERED: list[Callable[[str], str]] = [
    lambda sas: sas + "&sp=raud",
    lambda sas: sas + "&se=" + LATER,
    lambda sas: sas + "&tn=" + TABLE,
    lambda sas: sas + "&spk=",
    lambda sas: sas + "&" + sas,
    lambda sas: sas + "&sig=AAAA",
    lambda sas: sas + "&%73ig=AAAA",
    lambda sas: sas + "&ss=t",
    lambda sas: sas + "&srt=o",
    lambda sas: sas.replace("spk=b", "spk=a"),
    lambda sas: sas.replace("&spk=b", ""),
    lambda sas: sas.replace("epk=b", "epk=c"),
    lambda sas: sas.replace("&epk=b", ""),
    lambda sas: sas.replace("sp=raud", "sp=raudx"),
    lambda sas: sas.replace("sp=raud", "sp=duar"),
    lambda sas: re.sub(r"sig=.", "sig=", sas),
    lambda sas: re.sub(r"sig=.*", "sig=", sas),
    lambda sas: re.sub(r"sig=.*", "sig=%00", sas),
    lambda sas: re.sub(r"sv=[\d-]+", "sv=2020-12-06", sas),
]


async def test_token_that_cannot_be_meant_is_refused(world: World) -> None:
    trial = Trial(world)
    for fields, operation in product(NEVER_VALID, READS_AND_WRITES):
        for form, request in forms(operation, PRESENT, table_sas(**fields)):
            await trial.expect(NOT_AUTHENTICATED, request, f"{operation.name} {form}: {fields}")
    trial.finish(count_min=200)


async def test_token_that_was_tampered_with_is_refused(world: World) -> None:
    trial = Trial(world)
    for (number, change), operation in product(enumerate(TAMPERED), READS_AND_WRITES):
        sas = table_sas(spk="b", epk="b")
        for form, request in forms(operation, PRESENT, change(sas)):
            title = f"{operation.name} {form}: change {number}"
            await trial.expect(NOT_AUTHENTICATED, request, title)
        assert change(sas) != sas
    trial.finish(count_min=200)


async def test_account_token_cannot_be_made_a_table_token(world: World) -> None:
    trial = Trial(world)
    for added, operation in product(("&tn=Harbour", "&spk=a", "&si=p", "&srk=1"), READS_AND_WRITES):
        for form, request in forms(operation, PRESENT, account_sas() + added):
            await trial.expect(NOT_AUTHENTICATED, request, f"{operation.name} {form} {added}")
    trial.finish(count_min=50)


async def test_token_of_a_strange_key_or_account_is_refused(world: World) -> None:
    strange = b64encode(b"strange").decode()
    fields = {"sp": "raud", "se": LATER}
    of_account = {"sp": "rwdlacu", "se": LATER, "ss": "t", "srt": "sco"}
    trial = Trial(world)
    for sas, operation in product(
        (
            sign_table_sas(DEVELOPMENT_ACCOUNT, strange, TABLE, fields),
            sign_table_sas("harbour", DEVELOPMENT_KEY, TABLE, fields),
            sign_account_sas(DEVELOPMENT_ACCOUNT, strange, of_account),
            sign_account_sas("harbour", DEVELOPMENT_KEY, of_account),
        ),
        [*READS_AND_WRITES, *TABLE_OPERATIONS],
    ):
        for form, request in forms(operation, PRESENT, sas):
            await trial.expect(NOT_AUTHENTICATED, request, f"{operation.name} {form}")
    trial.finish(count_min=80)


async def test_token_beside_an_authorization_header_is_refused(world: World) -> None:
    trial = Trial(world)
    for operation in READS_AND_WRITES:
        request = alone(operation, PRESENT, table_sas())
        request.headers["authorization"] = f"SharedKey {DEVELOPMENT_ACCOUNT}:AAAA"
        await trial.expect(Verdict(400, "InvalidAuthenticationInfo"), request, operation.name)
    trial.finish(count_min=7)


# Which table


async def test_token_is_for_one_table_in_any_case_of_its_letters(world: World) -> None:
    trial = Trial(world)
    for name, table, operation in product(
        (TABLE, TABLE.upper(), TABLE.lower()),
        (TABLE, TABLE.upper(), OTHER, f"{TABLE}2", TABLE[:-1]),
        [GET, *WRITES],
    ):
        is_ours = table.lower() == TABLE.lower()
        expected = by_table_sas(operation, PRESENT, {"sp": "raud"}) if is_ours else FORBIDDEN
        sas = table_sas(tn=name)
        title = f"{operation.name} on {table} with tn={name}"
        one = alone(operation, PRESENT, sas, table=table)
        await trial.expect(expected, one, title, [PRESENT])
        many = batched([(operation, PRESENT)], sas, table=table)
        await trial.expect(expected, many, f"batched {title}", [PRESENT])
    trial.finish(count_min=400)


async def test_batch_cannot_carry_a_write_to_another_table(world: World) -> None:
    request = batched([(WRITES[0], ABSENT), (WRITES[1], PRESENT)], table_sas())
    body = request.body.replace(f"PUT /{TABLE}(".encode(), f"PUT /{OTHER}(".encode())
    mixed = Request(request.method, request.path, request.query, request.headers, body)

    verdict = await world.ask(mixed)

    assert verdict in (FORBIDDEN, Verdict(400, "InvalidInput"))
    assert await world.is_unchanged()


async def test_keys_of_the_address_rule_over_those_of_the_body(world: World) -> None:
    trial = Trial(world)
    sas = table_sas(spk="b", epk="b")
    upsert = WRITES[1]
    outside = upsert._replace(body=json.dumps({"PartitionKey": "c", "RowKey": "1"}))
    inside = upsert._replace(body=json.dumps({"PartitionKey": "b", "RowKey": "1"}))

    await trial.expect(FORBIDDEN, alone(inside, ("c", "1"), sas), "address outside, body inside")
    assert (await world.ask(alone(outside, ABSENT, sas))).is_success
    written = [key for name, key, _ in (await world.everything())[0] if name == TABLE]  # type: ignore[attr-defined]

    assert sorted(written) == sorted([*STORED, ABSENT])
    trial.finish(count_min=1)


@pytest.mark.parametrize("escape", ["%2F", "%5C", "%23", "%3F", "%00", "%0A", "%7F", "%C2%85"])
async def test_key_that_cannot_be_is_refused_inside_any_range(world: World, escape: str) -> None:
    for operation in (GET, *WRITES[1:]):
        target = address(("b", "KEY")).replace("KEY", f"b{escape}c")
        request = alone(operation._replace(target=target), PRESENT, table_sas(spk="a"))
        verdict = await world.ask(request)
        assert verdict.status == 400
        assert await world.is_unchanged()


# Stored policies

POLICIES = [
    Policy("whole", None, LATER, "r"),
    Policy("timed", EARLIER, LATER, None),
    Policy("lettered", None, None, "raud"),
    Policy("nothing"),
    Policy("expired", None, EARLIER, "raud"),
]
BY_POLICY: list[tuple[str, dict[str, str], str | None]] = [
    # policy, fields of the token, the letters that result (None: refused)
    ("whole", {}, "r"),
    ("whole", {"se": LATER}, None),
    ("whole", {"sp": "r"}, None),
    ("whole", {"sp": "raud"}, None),
    ("whole", {"st": EARLIER}, "r"),
    ("whole", {"st": LATER}, None),
    ("timed", {"sp": "raud"}, "raud"),
    ("timed", {"sp": "a"}, "a"),
    ("timed", {}, None),
    ("timed", {"sp": "r", "st": EARLIER}, None),
    ("timed", {"sp": "r", "se": LATER}, None),
    ("lettered", {"se": LATER}, "raud"),
    ("lettered", {"se": EARLIER}, None),
    ("lettered", {}, None),
    ("lettered", {"se": LATER, "sp": "r"}, None),
    ("nothing", {"se": LATER, "sp": "ud"}, "ud"),
    ("nothing", {}, None),
    ("expired", {}, None),
    ("absent", {"se": LATER, "sp": "raud"}, None),
    ("Whole", {}, None),
]


def policy_sas(policy: str, **fields: str) -> str:
    return sign_table_sas(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, TABLE, {"si": policy, **fields})


async def test_policy_and_token_complete_each_other_and_never_overlap(world: World) -> None:
    await world.tables.set_policies(TABLE, POLICIES)
    await world.remember()
    trial = Trial(world)
    for (policy, fields, letters), limits, operation in product(
        BY_POLICY, ({}, {"spk": "b", "epk": "b"}, {"epk": "a"}), READS_AND_WRITES
    ):
        expected = NOT_AUTHENTICATED
        if letters is not None:
            expected = by_table_sas(operation, PRESENT, {"sp": letters, **limits})
        for form, request in forms(operation, PRESENT, policy_sas(policy, **fields, **limits)):
            title = f"{operation.name} {form} by {policy} with {fields} within {limits}"
            await trial.expect(expected, request, title, [PRESENT])
    trial.finish(count_min=700)


async def test_policy_rules_its_own_table_only(world: World) -> None:
    await world.tables.set_policies(OTHER, POLICIES)
    await world.remember()
    trial = Trial(world)
    for operation in READS_AND_WRITES:
        for form, request in forms(operation, PRESENT, policy_sas("whole")):
            await trial.expect(NOT_AUTHENTICATED, request, f"{operation.name} {form}")
    trial.finish(count_min=14)


async def test_policy_that_is_changed_or_deleted_counts_at_once(world: World) -> None:
    read = alone(GET, PRESENT, policy_sas("p"))
    await world.tables.set_policies(TABLE, [Policy("p", None, LATER, "r")])
    assert await world.ask(read) == OK

    await world.tables.set_policies(TABLE, [Policy("p", None, LATER, "a")])
    assert await world.ask(read) == LACKS_PERMISSION

    await world.tables.set_policies(TABLE, [Policy("p", None, EARLIER, "r")])
    assert await world.ask(read) == NOT_AUTHENTICATED

    await world.tables.set_policies(TABLE, [])
    assert await world.ask(read) == NOT_AUTHENTICATED


# The secondary


async def test_secondary_only_reads_whatever_the_token_grants(world: World) -> None:
    refused = Verdict(403, "InsufficientAccountPermissions")
    trial = Trial(world)
    for sas, operation in product((account_sas(), table_sas()), READS_AND_WRITES):
        request = alone(operation, PRESENT, sas)
        path = request.path.replace(DEVELOPMENT_ACCOUNT, f"{DEVELOPMENT_ACCOUNT}-secondary", 1)
        there = Request(request.method, path, request.query, request.headers, request.body)
        is_read = operation in (GET, QUERY)
        await trial.expect(OK if is_read else refused, there, operation.name)
    trial.finish(count_min=14)


def test_every_partition_key_is_outside_some_range() -> None:
    """The ranges would prove little if a key were inside all of them."""
    for partition_key in PARTITION_KEYS:
        for limits in RANGES[1:]:
            if not is_inside((partition_key, "2"), limits):
                break
        else:
            pytest.fail(f"{partition_key!r} is inside every range")
