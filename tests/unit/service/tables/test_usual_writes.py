"""A usual write has the answer and the row of any other write, byte for byte."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.errors import StoreStoppedError
from partita.service.auth.cors import CorsRule
from partita.service.http.observed import Observed
from partita.service.http.request import Request, Response
from partita.tables.sqlite_store import SqliteTableStore
from support.accounts import database_of
from support.fronts import PRIVATE_ACCOUNT, Fronts, opened_fronts, told
from support.repeats import repeat

ENTITY = "/Staff(PartitionKey='p',RowKey='r')"
BODY = b'{"PartitionKey":"p","RowKey":"r","Age":4,"Big@odata.type":"Edm.Int64","Big":"7","Is":true}'
COLUMNS = "SELECT tid, pk, rk, ticks, marks, short, document FROM entity ORDER BY tid, pk, rk"


class Pair:
    """Two equal servers: the first begins requests as usual ones, the second does not."""

    def __init__(self, begun: Fronts, general: Fronts) -> None:
        self._begun = begun
        self._general = general
        self.puts = 0
        """Requests that were answered without the general path."""

    async def ask(self, method: str, target: str, body: bytes = b"", **given: Any) -> Response:
        """Send a request to both; compare what is answered, noted and stored."""
        for fronts in (self._begun, self._general):
            fronts.clock.advance(1)
        front = self._begun.fronts["tables"]
        request = self._begun.request("tables", method, target, body, **given)
        respond, was_general = front.respond, False

        def respond_and_note(request: Request) -> Coroutine[Any, Any, Response]:
            nonlocal was_general
            was_general = True
            return respond(request)

        front.respond = respond_and_note  # type: ignore[method-assign]  # seen from outside
        try:
            answer = front.begin(request)
            answer = answer if isinstance(answer, Response) else await answer
        finally:
            del front.respond
        self.puts += not was_general
        other = self._general.request("tables", method, target, body, **given)
        expected = await self._general.fronts["tables"].respond(other)
        assert masked(answer) == masked(expected)
        assert noted(request.observed) == noted(other.observed)
        for name in self._begun.accounts:
            assert rows(self._begun, name) == rows(self._general, name)
        return answer


def masked(response: Response) -> Response:
    headers = [
        (name, "-" if name == "x-ms-request-id" else value) for name, value in response.headers
    ]
    body = response.body
    if response.status >= 400:
        body = body.partition(b"RequestId:")[0]
    return msgspec.structs.replace(response, headers=headers, body=body)


def noted(observed: Observed) -> dict[str, Any]:
    return msgspec.structs.asdict(observed) | {"queue_seconds": 0, "commit_seconds": 0}


def rows(fronts: Fronts, account: str) -> list[Any]:
    store = fronts.accounts[account].tables.store
    assert isinstance(store, SqliteTableStore)
    return list(store.database.reader.execute(COLUMNS))


@asynccontextmanager
async def opened_pair() -> AsyncIterator[Pair]:
    async with opened_fronts() as begun, opened_fronts() as general:
        pair = Pair(begun, general)
        for account in begun.accounts:
            await pair.ask("POST", "/Tables", b'{"TableName":"Staff"}', account=account)
        pair.puts = 0
        yield pair


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with opened_pair() as opened:
        yield opened


async def test_usual_writes_leave_out_the_general_path(pair: Pair) -> None:
    for account in (PRIVATE_ACCOUNT, "devstoreaccount1"):
        assert (await pair.ask("POST", "/Staff", BODY, account=account)).status == 201
        assert (await pair.ask("PUT", ENTITY, BODY, account=account)).status == 204
        assert (await pair.ask("PUT", ENTITY, b'{"B":1}', account=account)).status == 204

    assert pair.puts == 6


@pytest.mark.parametrize(
    ("method", "target", "body", "headers"),
    [
        ("POST", "/Staff", BODY, {"if-match": "*"}),
        ("PUT", ENTITY, BODY, {"if-match": "*"}),
        ("PUT", ENTITY, BODY, {"if-none-match": "*"}),
        ("POST", "/Staff?$format=json", BODY, {}),
        ("PATCH", ENTITY, BODY, {}),
        ("MERGE", ENTITY, BODY, {}),
        ("DELETE", ENTITY, b"", {"if-match": "*"}),
        ("POST", ENTITY, BODY, {}),
        ("PUT", "/Staff", BODY, {}),
        ("POST", "/Staff", BODY, {"x-http-method": "MERGE"}),
        ("POST", "/Nothing", BODY, {}),
        ("POST", "/Tables", b'{"TableName":"Staff"}', {}),
        ("POST", "/Staff", b'{"RowKey":"r"}', {}),
        ("POST", "/Staff", b'{"PartitionKey":"a/b","RowKey":"r"}', {}),
        ("POST", "/Staff", b"{", {}),
        ("POST", "/Staff", BODY, {"content-type": "application/atom+xml"}),
        ("POST", "/Staff", BODY, {"content-encoding": "gzip"}),
        ("POST", "/Staff", BODY, {"accept": "application/atom+xml"}),
        ("POST", "/Staff", BODY, {"origin": "http://localhost"}),
        ("POST", "/Staff", BODY, {"x-ms-version": ""}),
        ("POST", "/Staff", BODY, {"host": "example.org"}),
        ("POST", "/Staff", BODY, {"x-ms-date": "yesterday"}),
    ],
)
async def test_another_request_is_left_to_the_front(
    pair: Pair, method: str, target: str, body: bytes, headers: dict[str, str]
) -> None:
    await pair.ask(method, target, body, headers=headers)

    assert pair.puts == 0


async def test_a_refused_insert_changes_nothing(pair: Pair) -> None:
    await pair.ask("POST", "/Staff", BODY)
    assert (await pair.ask("POST", "/Staff", b'{"PartitionKey":"p","RowKey":"r"}')).status == 409
    assert pair.puts == 1


async def test_an_entity_that_is_too_large_is_refused_as_usual(pair: Pair) -> None:
    texts = ",".join(f'"T{number}":"{"x" * 32_000}"' for number in range(20))
    answer = await pair.ask("PUT", ENTITY, b"{%b}" % texts.encode())

    assert answer.header("x-ms-error-code") == "EntityTooLarge"
    assert pair.puts == 0


async def test_an_account_with_cors_rules_is_left_to_the_front(pair: Pair) -> None:
    for fronts in (pair._begun, pair._general):
        properties = fronts.account.properties["t"]
        rule = CorsRule(("*",), ("POST",), (), (), 5)
        fronts.account.properties["t"] = msgspec.structs.replace(properties, cors=[rule])

    assert (await pair.ask("POST", "/Staff", BODY)).status == 201
    assert pair.puts == 0


async def test_a_write_after_a_read_is_not_lost_to_a_learned_index(pair: Pair) -> None:
    query = "/Staff()?$filter=PartitionKey%20eq%20%27p%27%20and%20Age%20eq%204"
    for _ in range(4):
        await pair.ask("GET", query)
    await pair.ask("POST", "/Staff", BODY)
    assert b'"Age":4' in (await pair.ask("GET", query)).body
    assert pair.puts == 1


async def insert_many(fronts: Fronts, count: int) -> list[Response]:
    """Begin inserts together, as the requests of one turn; return their answers."""
    front = fronts.fronts["tables"]
    begun = []
    for number in range(count):
        body = b'{"PartitionKey":"p","RowKey":"%d"}' % number
        answer = front.begin(fronts.request("tables", "POST", "/Staff", body))
        assert not isinstance(answer, Response)
        begun.append(asyncio.ensure_future(answer))
    return list(await asyncio.gather(*begun))


async def test_a_write_that_begins_during_a_commit_waits_for_the_next_one(tmp_path: Path) -> None:
    async with opened_fronts(tmp_path) as fronts:
        await fronts.ask("tables", "POST", "/Tables", b'{"TableName":"Staff"}')
        first = asyncio.ensure_future(insert_many(fronts, 3))
        while not database_of(fronts.account)._is_committing:  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0)
        body = b'{"PartitionKey":"q","RowKey":"late"}'
        late = fronts.fronts["tables"].begin(fronts.request("tables", "POST", "/Staff", body))

        assert not isinstance(late, Response)
        assert (await late).status == 201
        assert [answer.status for answer in await first] == [201] * 3
        assert len(rows(fronts, fronts.account.name)) == 4


async def test_a_failed_commit_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_fronts(tmp_path) as fronts:
        await fronts.ask("tables", "POST", "/Tables", b'{"TableName":"Staff"}')
        database = database_of(fronts.account)

        def fail() -> None:
            raise StoreStoppedError("StoreStopped", "The disk failed.")

        monkeypatch.setattr(database, "_check_lock", fail)
        answers = await insert_many(fronts, 3)

        assert {told(answer) for answer in answers} == {"503 StoreStopped"}
        assert rows(fronts, fronts.account.name) == []


VALUES = st.sampled_from(
    [
        *('"x"', "1", "-0.0", "1.5", "2147483648", "true", "null", '"é\\n"', '"a\\"b"', "[]", '""'),
        *('"' + "y" * 40 + '"', "1e400", '"\\ud800"', '"2024-03-01T10:00:00Z"'),
    ]
)
NAMES = st.sampled_from(["A", "B", "Age", "Timestamp", "é", "a-b", "A@odata.type", "odata.etag"])
TYPES = st.sampled_from(["Edm.Int64", "Edm.Double", "Edm.String", "Edm.DateTime", "Edm.No"])
KEYS = st.sampled_from(["p", "r", "", "a b", "é", "a/b", "x" * 600])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    members = [f'"PartitionKey":"{draw(KEYS)}"', f'"RowKey":"{draw(KEYS)}"']
    for name, value in draw(st.lists(st.tuples(NAMES, VALUES), max_size=4)):
        if draw(st.booleans()):
            members.append(f'"{name}@odata.type":"{draw(TYPES)}"')
        members.append(f'"{name}":{value}')
    return ("{" + ",".join(members[draw(st.integers(0, 1)) :]) + "}").encode()


writes = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["POST", "POST", "PUT"]),
        "target": st.sampled_from(
            [
                *("/Staff", "/Staff", "/staff()", "/Staff/", "//Staff", "/Nothing", "/Tables"),
                *(ENTITY, ENTITY.replace("'", "%27"), "/Staff(RowKey='r',PartitionKey='p')"),
                *("/Staff(PartitionKey='',RowKey='%C3%A9')", "/$batch", ""),
            ]
        ),
        "body": bodies(),
        "account": st.sampled_from([PRIVATE_ACCOUNT, "devstoreaccount1"]),
        "is_signed": st.sampled_from([True, True, True, False]),
        "headers": st.fixed_dictionaries(
            {},
            optional={
                "accept": st.sampled_from(
                    ["", "*/*", "application/json;odata=fullmetadata", "application/atom+xml"]
                ),
                "prefer": st.sampled_from(["return-no-content", "return-content", "x"]),
                "content-type": st.sampled_from(["", "application/json;odata=verbose", "text/xml"]),
                "content-id": st.just("3"),
                "x-ms-client-request-id": st.sampled_from(["a", "é", "a\tb"]),
                "if-match": st.sampled_from(["", "*"]),
            },
        ),
    }
)


@pytest.mark.repeated
@settings(max_examples=repeat(8, 100, 500), deadline=None)
@given(wanted=st.lists(writes, min_size=20, max_size=20))
def test_answers_and_rows_are_those_of_the_front(wanted: list[dict[str, Any]]) -> None:
    async def check() -> None:
        async with opened_pair() as pair:
            for each in wanted:
                await pair.ask(**each)

    asyncio.run(check())
