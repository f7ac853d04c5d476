"""What the typed layer sends keeps to the rules of the protocol, as a second server sees it.

A scenario with every kind of row that Partita makes runs on Azurite; each request is looked at
by the published rules, apart from what Azurite itself refuses.
"""

import re
from datetime import UTC, datetime
from decimal import Decimal
from urllib.parse import parse_qsl, unquote

import msgspec
import pytest_asyncio

from partita.patterns import Database, connect, evolve
from partita.service.hosting.in_process import LocalAccount, Respond
from partita.service.hosting.services import TABLES, ServiceKind
from partita.service.http.request import Request, Response
from support.staff import KEYRING, Department, Employee, Expense, anywhere, by_last, person

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
ILLEGAL_IN_KEYS = re.compile(r"[/\\#?\x00-\x1f\x7f-\x9f]")
ADDRESSED = re.compile(r"\(PartitionKey='(.*?)',RowKey='(.*?)'\)")
JSON_LINE = re.compile(rb"^(\{.*\})\r?$", re.MULTILINE)
OPERATORS = re.compile(r"\b(substringof|startswith|endswith|contains|tolower|in)\b\s*\(")


class Sent(msgspec.Struct):
    """A request to the tables, and how it was answered."""

    request: Request
    response: Response


@pytest_asyncio.fixture
async def sent(partita_account: LocalAccount) -> list[Sent]:
    """Run the scenario and return what was sent to the tables."""
    kept: list[Sent] = []

    async def around(kind: ServiceKind, request: Request, respond: Respond) -> Response:
        response = await respond(request)
        if kind is TABLES:
            kept.append(Sent(request, response))
        return response

    partita_account.around = around
    async with connect(partita_account, keyring=KEYRING) as db:
        await _use_everything(db)
    return kept


async def _use_everything(db: Database) -> None:
    employees, departments, claims = db.table(Employee), db.table(Department), db.table(Expense)
    await db.create_tables()
    await departments.save(Department(name="Sales", manager_id=1))
    first = await employees.save(evolve(person(1), photo=b"photo" * 20_000))
    await employees.save(person(2))
    await employees.increment(first, "messages", 360)
    read = await employees.get(dept="Sales", id=1)
    await employees.save(evolve(read, last="O'Brien é \U0001f600"))
    in_sales = employees.partition(dept="Sales")
    await in_sales.where((employees.c.age > 40) & ~(employees.c.last == "x")).list()
    await in_sales.where(employees.c.last.startswith("O'")).select("last", "id").list()
    await employees.via(by_last).range(dept="Sales", last="Cao").list()
    await db.drain()
    await employees.via(anywhere).range(email=read.email).list()
    await db.verify(Employee)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    await claims.save(Expense(employee=1, at=at, number=1, amount=Decimal("9.50")))
    await claims.partition(employee=1).latest(1).list()
    await employees.delete(await employees.get(dept="Sales", id=2))
    await db.drain()


async def test_nothing_is_refused_for_its_form(sent: list[Sent]) -> None:
    assert len(sent) > 30
    refused = [each for each in sent if each.response.status in (400, 413, 415, 500, 501)]
    assert [(each.request.path, each.response.body) for each in refused] == []


async def test_properties_have_names_that_the_service_takes(sent: list[Sent]) -> None:
    names: set[str] = set()
    for each in sent:
        for line in JSON_LINE.findall(each.request.body):
            names |= {name.removesuffix("@odata.type") for name in msgspec.json.decode(line)}

    assert {"EntityType", "_Write", "_Parts"} <= names
    assert [name for name in names if not NAME.fullmatch(name)] == []


async def test_keys_have_no_character_that_the_service_refuses(sent: list[Sent]) -> None:
    keys: list[str] = []
    for each in sent:
        text = each.request.path + "\n" + each.request.body.decode()
        for found in ADDRESSED.findall(text):
            keys += map(unquote, found)

    assert any("~" in key for key in keys)
    assert [key for key in keys if ILLEGAL_IN_KEYS.search(key)] == []


async def test_queries_use_options_that_the_service_has(sent: list[Sent]) -> None:
    options = [dict(parse_qsl(each.request.query)) for each in sent if each.request.query]
    assert options
    for each in options:
        known = {"$filter", "$select", "$top", "$format", "NextPartitionKey", "NextRowKey"}
        assert set(each) <= known | {"NextTableName"}, each
        assert not OPERATORS.search(each.get("$filter", "")), each
        selected = each.get("$select", "PartitionKey").split(",")
        assert [name for name in selected if not NAME.fullmatch(name.strip())] == []
