"""Fuzz targets of patterns: keys, conditions, continuations, places, messages, seals, answers."""

import datetime as dt
import enum
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec

from partita.cli.patterns.conditions import parse_condition
from partita.clock import ManualClock
from partita.errors import (
    FilterSyntaxError,
    InvalidPropertyError,
    PartitaError,
    UnavailableError,
)
from partita.patterns.encryption import sealing as encryption
from partita.patterns.encryption.keyring import AesKey, Keyring
from partita.patterns.following.worker import Report, _do_text
from partita.patterns.keys.templates import KeyTemplate
from partita.patterns.operations.continuations import parse_continuation, print_continuation
from partita.patterns.operations.run_query import Ask, fingerprint_of
from partita.patterns.planning.filter_text import evaluate_values
from partita.patterns.planning.plans import PointRead, QueryPlan, plan_query
from partita.patterns.ports.connecting import remote_capabilities
from partita.patterns.ports.direct_rows import members_of
from partita.patterns.ports.group_body import etag_of, read_answer
from partita.patterns.ports.row_requests import read_page
from partita.patterns.ports.sdk_errors import refusal_of_part
from partita.patterns.protocol.calls import Message, PutMessage
from partita.patterns.protocol.capabilities import Capabilities
from partita.patterns.protocol.row_json import print_row
from partita.patterns.protocol.values import Int32, Row, RowKey, measure
from partita.patterns.types.decorators import entity, entity_type
from partita.patterns.writing import outbox_entry as outbox
from partita.patterns.writing.context import Context
from partita.patterns.writing.rows import encode, marks_of
from partita.service.hosting.locations import Folder, Remote, parse
from partita.tables import filters, limits


class Grade(enum.StrEnum):
    JUNIOR = "j"
    SENIOR = "s"


@entity(table="things", partition="{place:esc}", row="{number:06d}")
class Thing:
    place: str
    number: int
    text: str | None = None
    short: Int32 | None = None
    long: int | None = None
    ratio: float | None = None
    flag: bool | None = None
    moment: dt.datetime | None = None
    badge: UUID | None = None
    octets: bytes | None = None
    amount: Decimal | None = None
    grade: Grade | None = None


MODEL = entity_type(Thing)
BADGE = UUID("c9da6455-213d-42c9-9a79-3e9149a57833")
MOMENT = dt.datetime(2024, 1, 1, 12, 30, tzinfo=dt.UTC)
THINGS = [
    Thing(place="", number=0),
    Thing(
        place="Sales",
        number=41,
        text="a",
        short=Int32(5),
        long=2**40,
        ratio=0.5,
        flag=True,
        moment=MOMENT,
        badge=BADGE,
        octets=b"\xff",
        amount=Decimal("9.5"),
    ),
    Thing(
        place="Sales",
        number=42,
        text="",
        short=Int32(-5),
        long=-1,
        ratio=-1e300,
        flag=False,
        grade=Grade.SENIOR,
    ),
    Thing(place="é/'#", number=999_999, text="O'Brien \U0001f600", ratio=float("inf")),
]


def _text(data: bytes) -> str:
    """Return a text as JSON can bring it: with halves of surrogate pairs."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def condition(data: bytes) -> bool:
    """Read a condition of the command line; what its plan finds is what it means."""
    try:
        wanted = parse_condition(data.decode("utf-8", "replace"), MODEL)
        planned = plan_query(MODEL, {}, wanted)
        texts = [planned.filter_of(read) for read in planned.requests]
    except PartitaError:
        return False
    for each in THINGS:
        values = MODEL.values(each)
        found = _finds(planned, texts, values)
        assert found in (evaluate_values(wanted, values), None), (planned.summary, texts, values)
    return True


def _finds(planned: QueryPlan, texts: Iterable[str], values: dict[str, Any]) -> bool | None:
    """Tell whether a plan finds an entity, by the engine's own parser; None: it is too deep."""
    if planned.client is not None and not evaluate_values(planned.client, values):
        return False
    key = MODEL.key(values)
    members = {
        "PartitionKey": key.partition,
        "RowKey": key.row,
        **members_of({**marks_of(MODEL), **encode(MODEL, values, {})}),
    }
    found = False
    for read, text in zip(planned.requests, texts, strict=True):
        if isinstance(read, PointRead):
            found |= read.key == key
            continue
        try:
            tree = filters.parse(text)
        except FilterSyntaxError:
            assert text.count("(") > limits.FILTER_DEPTH_MAX, text
            return None
        found |= tree is None or filters.compile_filter(tree)(members)
    return found


# ---------------------------------------------------------------------------------------------
# Keys

FIELDS: dict[str, object] = {
    "name": str,
    "id": int,
    "at": dt.datetime,
    "day": dt.date,
    "badge": UUID,
    "amount": Decimal,
    "flag": bool,
    "grade": Grade,
    "size": Literal[1, 2, 30],
    "maybe": str | None,
}
ROLES: dict[str, Literal["partition", "row"]] = {"partition": "partition", "row": "row"}


def key_template(data: bytes) -> bool:
    """Read three lines: the role with `optional` and `wide` behind it, a template, a key."""
    lines = _text(data).split("\n", 2)
    words, text, key = [*lines, "", ""][:3]
    role, *flags = words.split() or [""]
    if role not in ROLES:
        return False
    try:
        template = KeyTemplate.compile(
            text,
            FIELDS,
            role=ROLES[role],
            owner="Thing",
            optional="optional" in flags,
            no_tilde="wide" in flags,
        )
        values = template.parse(key)
    except PartitaError:
        return False
    assert not key.startswith("~")
    assert template.may_begin_with(key)
    if values.keys() == set(template.fields):
        try:
            printed = template.format(values)
        except PartitaError:
            # Only further rows of a wide entity have a `~`, and only they may be so long.
            assert template.reserve_tilde, key
            return False
        assert printed == key, (template, values)
        _check_bounds(template, key, values)
    return True


def _check_bounds(template: KeyTemplate, key: str, values: dict[str, Any]) -> None:
    given: dict[str, Any] = {}
    for field in [None, *template.fields]:
        if field is not None:
            given[field] = values[field]
        bounds = template.bounds(given)
        assert bounds.lower <= key, given
        assert bounds.upper is None or key < bounds.upper, given


# ---------------------------------------------------------------------------------------------
# What is handed out and comes back


def _query() -> Ask:
    return Ask(plan_query(MODEL, {"place": "Sales"}, None))


def continuation(data: bytes) -> bool:
    text = data.decode("utf-8", "surrogateescape")
    query = fingerprint_of(_query())
    try:
        position = parse_continuation(query, text)
    except PartitaError:
        return False
    printed = print_continuation(query, position)
    assert printed is not None
    assert parse_continuation(query, printed) == position
    return True


def outbox_text(data: bytes) -> bool:
    """Read a text as an outbox entry, and as a message to a worker."""
    text = _text(data)
    return any([_check_entry(text), _check_message(text)])


def _check_entry(text: str) -> bool:
    key = RowKey("Sales", f"~o_{text[:40]}")
    outbox.written_at(key)
    try:
        entry = outbox.read_entry(Row(key, {"EntityType": "~outbox", "Entry0": text}))
    except PartitaError:
        return False
    operation = outbox.entry_operation(key, entry)
    assert outbox.read_entry(operation.row) == entry
    return True


def _check_message(text: str) -> bool:
    """Let a worker take the message as far as its first question to the world."""
    context = Context(ManualClock(), Capabilities())
    try:
        call = next(_do_text(context, "partita-outbox", Message("1", "1", text, 1), Report()), None)
    except PartitaError:
        return False
    assert call is not None
    if isinstance(call, PutMessage):
        return True  # a started transaction was understood; it is not known here, and is put back
    reference = outbox.read_hint(text)
    assert outbox.read_hint(outbox.hint(reference)) == reference
    return True


def place(data: bytes) -> bool:
    """Read what `connect` is given; an error never repeats it, because it may hold a key."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        found = parse(text)
    except PartitaError as error:
        said = f"{error.message} {error.facts}"
        secrets = [part.partition("=")[2].strip() for part in text.split(";")]
        assert not any(len(secret) > 40 and secret in said for secret in secrets), said
        return False
    if isinstance(found, Folder):
        assert found.path is None or (found.path and "\0" not in found.path)
        return True
    assert found.key or found.sas
    assert not (found.key and found.sas)
    assert repr(found) == f"Remote({found.endpoints!r})"
    assert isinstance(remote_capabilities(found), Capabilities)
    assert parse(_printed(found)) == found
    return True


def _printed(remote: Remote) -> str:
    members = {
        **({"AccountName": remote.account} if remote.account else {}),
        **({"AccountKey": remote.key} if remote.key else {}),
        **({"SharedAccessSignature": remote.sas} if remote.sas else {}),
    }
    for kind, endpoint in remote.endpoints.items():
        members[f"{kind.removesuffix('s').title()}Endpoint"] = endpoint
    return ";".join(f"{name}={value}" for name, value in members.items())


# ---------------------------------------------------------------------------------------------
# Seals and answers

SEALED = {"Salary": 70_000, "Note": "nobody's business", "Photo": b"\x00\xff"}
KEYRING = Keyring(
    [AesKey("first", bytes(range(32))), AesKey("second", bytes(range(32, 64)))], "first"
)


def seal(data: bytes) -> bool:
    """Read lines: the text of `_PartitaEnc`, then a name and hex digits for each property."""
    first, *others = data.decode("utf-8", "surrogateescape").split("\n")
    properties: dict[str, Any] = {encryption.SEAL: first}
    for line in others:
        name, _, digits = line.partition(" ")
        try:
            properties[name] = bytes.fromhex(digits)
        except ValueError:
            properties[name] = digits
    try:
        opened = encryption.unseal(
            properties,
            table="things",
            key=RowKey("Sales", "000041"),
            keyring=KEYRING,
            is_projection=True,
        )
        again = encryption.rewrap(first, KEYRING)
    except PartitaError:
        return False
    assert encryption.SEAL not in opened
    sealed = encryption.sealed_names(properties)
    # Nobody without the key makes a value that opens: those that do are the ones of the corpus.
    assert all(opened[name] == SEALED[name] for name in sealed & opened.keys())
    assert encryption.sealed_names({encryption.SEAL: again}) == sealed
    return True


def group_answer(data: bytes) -> bool:
    """Read the answer to a group; a first line that starts with `multipart` is its type."""
    content_type, body = "multipart/mixed; boundary=batchresponse_B", data
    if data.startswith(b"multipart"):
        line, _, body = data.partition(b"\n")
        content_type = line.decode("latin-1").strip()
    try:
        parts = read_answer(body, content_type)
    except PartitaError:
        return False
    assert parts
    for part in parts:
        assert 100 <= part.status <= 999
        assert isinstance(etag_of(part), str)
        refusal = refusal_of_part(part.status, part.headers, part.body)
        assert refusal.code
        msgspec.json.encode(str(refusal).encode("utf-8", "replace").decode())
    return True


def page_answer(data: bytes) -> bool:
    """Read a page of rows; what was read goes back as it came."""
    try:
        page = read_page(data, {})
        rows = [(row, print_row(row)) for row in page.rows]
    except (UnavailableError, InvalidPropertyError):  # no answer; or an integer beyond 64 bits
        return False
    for row, printed in rows:
        measure(row)
        again = read_page(b'{"value":[%s]}' % printed.encode("ascii"), {}).rows[0]
        assert (repr(again.key), repr(again.properties)) == (repr(row.key), repr(row.properties))
    return True
