"""`partita patterns` on folders in this process: every verb as text and as JSON, and refusals."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from partita.cli.main import main
from partita.patterns import entity_type
from partita.patterns.protocol.calls import PutMessage, RowOperation, Verb, WriteRows, ask
from partita.patterns.protocol.utc import utc_now
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.sync import Database, connect
from support.terminal import run_on_terminal

Capture = pytest.CaptureFixture[str]

SHOP = """
import os
from typing import Annotated

from partita.patterns import (
    AesKey, CountOf, Encrypted, InBlob, Keyring, access, entity, eventual, idempotent, index, view,
)


@entity(table="staff", partition="{name}", row="dept")
class Department:
    name: str
    headcount: Annotated[int, CountOf("Employee", where={"dept": "name"})] = 0


@entity(
    table="staff",
    partition="{dept}",
    row="emp_{id:06d}",
    access=[
        access("one employee", get=("dept", "id")),
        access("yearly report", where=("age",), allow="scan"),
    ],
)
class Employee:
    dept: str
    id: int
    email: str
    age: int = 0
    salary: Annotated[int | None, Encrypted] = None
    photo: Annotated[bytes | None, InBlob] = None


by_email = index(Employee, row="email_{email}", unique=True)
anywhere = index(Employee, table="byemail", partition="{email}", row="{dept}", name="anywhere")

keyring = Keyring.from_bytes("old", b"o" * 32)


def rotated():
    return keyring.add(AesKey("new", b"n" * 32)).with_current("new")


@idempotent
async def note(db, arguments):
    if os.path.exists("broken"):
        raise RuntimeError("the step is broken")
    with open(arguments["file"], "w") as file:
        file.write(type(db).__module__)


@idempotent
def note_plainly(db, arguments):
    with open(arguments["plain"], "w") as file:
        file.write(type(db).__module__)


noting = eventual("noting", note, note_plainly)


@entity(table="orders", partition="{customer}", row="{number:06d}")
class Order:
    customer: str
    number: int


@view(Order)
def order_files(db, key, order):
    if os.path.exists("broken"):
        raise RuntimeError("the view is broken")
    with open("orders.txt", "a") as file:
        file.write(f"{key['number']} {order is not None}\\n")
"""
VISITS = """
import datetime as dt
from partita.patterns import TableSeries

by_day = TableSeries("visits", "day")


@entity(table="visits", partition="{ward}", row="{day:asc}", allow_hot=True)
class Visit:
    ward: str
    day: dt.date
    notes: Annotated[str, Encrypted] = ""
"""
NEWER = """

@view(Order, name="totals")
def order_totals(db, key, order):
    with open("totals.txt", "a") as file:
        file.write(f"{key['number']}\\n")
"""
KEY = "c2VjcmV0IHNlY3JldCBzZWNyZXQ="
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Work in an empty folder with an application in it; return the name of its module."""
    name = f"shop_{next(NUMBERS)}"  # a name of its own: types are found by those of modules
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("PARTITA_CONNECT", "partita:./store")
    (tmp_path / f"{name}.py").write_text(SHOP)
    yield name
    sys.modules.pop(name, None)


def run(capsys: Capture, *arguments: str, status: int = 0) -> str:
    capsys.readouterr()
    found = main(["patterns", *arguments])
    captured = capsys.readouterr()
    assert (found, captured.err) == (status, "")
    return captured.out


def run_json(capsys: Capture, *arguments: str, status: int = 0) -> dict[str, Any]:
    out = run(capsys, *arguments, "--json", status=status)
    assert out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    return found


def refusal(capsys: Capture, *arguments: str, status: int = 2) -> str:
    capsys.readouterr()
    assert main(["patterns", *arguments]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("partita: ")
    assert captured.err.count("\n") == 1
    return captured.err


@contextmanager
def opened(shop: str) -> Iterator[Database]:
    """The database of the folder, with the types of the module and all tables."""
    module = __import__(shop)
    with connect("partita:./store", keyring=module.keyring) as db:
        for cls in (module.Department, module.Employee, module.Order):
            db.table(cls)
        db.create_tables()
        yield db


def save(shop: str, *ids: int, dept: str = "Sales", **more: Any) -> None:
    module = __import__(shop)
    with opened(shop) as db:
        employees = db.table(module.Employee)
        for each in ids:
            employees.save(module.Employee(dept=dept, id=each, email=f"{each}@contoso.com", **more))


# Definitions


def test_check_says_what_is_declared_and_how_it_is_read(shop: str, capsys: Capture) -> None:
    out = run(capsys, "check", shop)

    assert "Employee: staff, '{dept}' and 'emp_{id:06d}'" in out
    assert "index   anywhere: byemail, '{email}' and '{dept}' (copy, by worker)" in out
    assert "(copy, unique, same group)" in out
    assert "access  one employee: point staff by dept, id" in out
    assert "view    order_files" in out
    assert "transactions: noting" in out


def test_check_prints_the_same_as_json(shop: str, capsys: Capture) -> None:
    found = run_json(capsys, "check", shop)

    assert found["is_good"] is True
    assert [each["name"] for each in found["types"]] == ["Department", "Employee", "Order"]
    (employee,) = (each for each in found["types"] if each["name"] == "Employee")
    assert employee["fields"]["age"] == "an int of 64 bits"
    assert [index["is_local"] for index in employee["indexes"]] == [True, False]
    assert found["lock"] is None


def test_check_ends_with_1_for_a_scan_that_is_not_meant(
    shop: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / f"{shop}.py").write_text(SHOP.replace(', allow="scan"', ""))

    out = run(capsys, "check", shop, status=1)

    assert "REFUSED yearly report: table staff residual age" in out
    assert "1 access pattern would scan" in out


def test_lints_are_opinions_unless_they_are_strict(
    shop: str, tmp_path: Path, capsys: Capture
) -> None:
    text = SHOP.replace(
        'partition="{customer}", row="{number:06d}"', 'partition="o", row="{number:06d}"'
    )
    (tmp_path / f"{shop}.py").write_text(text.replace("    customer: str\n", ""))

    assert "lint    SinglePartition" in run(capsys, "check", shop)
    run(capsys, "check", shop, "--strict", status=1)


def test_the_lock_is_written_once_and_then_compared(
    shop: str, tmp_path: Path, capsys: Capture
) -> None:
    first = run_json(capsys, "check", shop, "--lock", "partita.lock")
    text = (tmp_path / "partita.lock").read_text()
    second = run_json(capsys, "check", shop, "--lock", "partita.lock")

    assert (first["lock"]["state"], second["lock"]["state"]) == ("written", "current")
    assert "[Employee.fields.age]" in text
    assert "partita.lock is current." in run(capsys, "check", shop, "--lock", "partita.lock")


def test_a_new_field_leaves_the_lock_outdated_and_an_update_writes_it(
    shop: str, tmp_path: Path, capsys: Capture
) -> None:
    run(capsys, "check", shop, "--lock", "partita.lock")
    sys.modules.pop(shop)
    (tmp_path / f"{shop}.py").write_text(
        SHOP.replace("age: int = 0", "age: int = 0\n    x: int = 1")
    )

    found = run_json(capsys, "check", shop, "--lock", "partita.lock")
    written = run_json(capsys, "check", shop, "--lock", "partita.lock", "--update")

    assert (found["lock"]["state"], written["lock"]["state"]) == ("outdated", "written")
    assert run_json(capsys, "check", shop, "--lock", "partita.lock")["lock"]["state"] == "current"


def test_a_changed_key_and_a_dearer_plan_break_the_lock(
    shop: str, tmp_path: Path, capsys: Capture
) -> None:
    run(capsys, "check", shop, "--lock", "partita.lock")
    sys.modules.pop(shop)
    changed = SHOP.replace('row="emp_{id:06d}"', 'row="emp_{id:06d}_{email}"')
    (tmp_path / f"{shop}.py").write_text(changed)

    found = run_json(capsys, "check", shop, "--lock", "partita.lock", status=1)
    out = run(capsys, "check", shop, "--lock", "partita.lock", status=1)

    codes = {each["code"] for each in found["lock"]["differences"]}
    assert {"KeyTemplateChanged", "PlanWorse"} <= codes
    assert "PlanWorse Employee: one employee:" in out


def test_an_invalid_lock_file_is_refused(shop: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "partita.lock").write_text("[[[")

    assert "lock file is malformed" in refusal(capsys, "check", shop, "--lock", "partita.lock")
    assert "cannot be used" in refusal(capsys, "check", shop, "--lock", str(tmp_path))


def test_explain_refuses_a_table_scan_and_says_what_helps(shop: str, capsys: Capture) -> None:
    out = run(capsys, "explain", f"{shop}:Employee", "age > 40", status=1)

    assert out.startswith(
        "TABLE SCAN   staff   residual EntityType eq 'Employee' and Age gt 40   REFUSED\n"
        "help: give dept=..."
    )
    assert "index(Employee, row=" in out


def test_explain_with_the_keys_given_is_a_point(shop: str, capsys: Capture) -> None:
    arguments = ("--given", "dept=Sales", "--given", "id=7")

    found = run_json(capsys, "explain", f"{shop}:Employee", *arguments)

    assert (found["plan"], found["requests"], found["is_refused"]) == ("point", 1, False)


def test_explain_reads_via_an_index_by_its_variable_or_name(shop: str, capsys: Capture) -> None:
    for name in ("by_email", "email_email", f"{shop}:by_email"):
        out = run(
            capsys,
            *("explain", f"{shop}:Employee", "email == 'a@b'", "--given", "dept=Sales"),
            *("--via", name),
        )
        assert out.startswith("POINT   staff   via email_email")


def test_explain_shows_a_scan_that_is_allowed(shop: str, capsys: Capture) -> None:
    assert "ALLOWED" in run(capsys, "explain", f"{shop}:Employee", "age > 40", "--allow-scan")


def test_explain_needs_a_class_and_fields_that_it_has(shop: str, capsys: Capture) -> None:
    assert f"Write {shop}:Department." in refusal(capsys, "explain", shop)
    assert "is not an entity type" in refusal(capsys, "explain", f"{shop}:keyring")
    assert "has no field 'height'" in refusal(capsys, "explain", f"{shop}:Employee", "height > 3")
    assert "is not a field of the keys" in refusal(
        capsys, "explain", f"{shop}:Employee", "--given", "age=3"
    )
    assert "is not field=value" in refusal(capsys, "explain", f"{shop}:Employee", "--given", "dept")
    assert "is not an index" in refusal(capsys, "explain", f"{shop}:Employee", "--via", "other")


# Tables, indexes, keys, blobs


def test_create_makes_tables_once(shop: str, capsys: Capture) -> None:
    first = run_json(capsys, "create", shop)
    second = run(capsys, "create", shop)

    assert first["tables"] == ["byemail", "orders", "staff"]
    assert {each["state"] for each in first["indexes"]} == {"readable"}
    assert second.startswith("Every table is in ./store already.")


def test_an_index_that_came_later_is_rebuilt(shop: str, tmp_path: Path, capsys: Capture) -> None:
    late = 'late = index(Employee, table="late", partition="{email}", row="{dept}", name="late")\n'
    save(shop, 1, 2, 3)
    sys.modules.pop(shop)
    (tmp_path / f"{shop}.py").write_text(SHOP + late)

    created = run(capsys, "create", shop)
    found = run_json(capsys, "rebuild", f"{shop}:late", "--keyring", f"{shop}:keyring")
    again = run(capsys, "rebuild", f"{shop}:late", "--keyring", f"{shop}:keyring")

    assert "write-only" in created
    assert "partita patterns rebuild" in created
    assert found == {"type": "Employee", "index": "late", "entities": 3, "state": "readable"}
    assert again == "late of Employee: 3 entities; it is readable.\n"


def test_a_disabled_index_loses_its_rows(shop: str, capsys: Capture) -> None:
    save(shop, 1, 2)

    found = run_json(capsys, "disable", f"{shop}:by_email")
    states = {each["name"]: each["state"] for each in run_json(capsys, "create", shop)["indexes"]}

    assert found == {"type": "Employee", "index": "email_email", "rows": 2}
    assert states["email_email"] == "disabled"


def test_verify_finds_a_missing_copy_and_repairs_it(shop: str, capsys: Capture) -> None:
    save(shop, 1, 2)
    keys = ("--keyring", f"{shop}:keyring")
    run(capsys, "drain", shop, *keys)
    with opened(shop) as db:
        gone = RowOperation(Verb.DELETE, Row(RowKey("1@contoso.com", "Sales"), {}))
        db.run(ask(WriteRows("byemail", (gone,))))

    found = run_json(capsys, "verify", f"{shop}:Employee", *keys, status=1)
    told = run(capsys, "verify", f"{shop}:Employee", *keys, status=1)
    repaired = run_json(capsys, "verify", f"{shop}:Employee", "--repair", *keys)

    (drift,) = found["drifts"]
    assert (drift["kind"], drift["what"], drift["row_key"]) == ("missing", "anywhere", "emp_000001")
    assert "1 difference: repair them with --repair." in told
    assert (repaired["repaired"], repaired["left"], repaired["is_sound"]) == (1, 0, True)
    assert "There are no differences." in run(capsys, "verify", shop, *keys)


def test_keys_are_rotated_and_entities_stay_readable(shop: str, capsys: Capture) -> None:
    save(shop, 1, 2, salary=70_000)

    found = run_json(capsys, "rotate", f"{shop}:Employee", "--keyring", f"{shop}:rotated")
    again = run(capsys, "rotate", f"{shop}:Employee", "--keyring", f"{shop}:rotated")

    assert found["key"] == "new"
    assert found["rows"]["Employee"] >= 2
    assert again == "Employee: 0 rows wrapped with the key 'new'.\n"
    module = __import__(shop)
    with connect("partita:./store", keyring=module.rotated()) as db:
        assert db.table(module.Employee).get(dept="Sales", id=1).salary == 70_000


def test_rotation_needs_a_keyring(shop: str, capsys: Capture) -> None:
    assert "--keyring MODULE:NAME" in refusal(capsys, "rotate", f"{shop}:Employee")


def test_keys_in_the_tables_of_periods_are_rotated(
    shop: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / f"{shop}.py").write_text(SHOP + VISITS)
    module = __import__(shop)
    with connect("partita:./store", keyring=module.keyring) as db:
        visits = db.periods(module.Visit, module.by_day, at="day")
        today = utc_now(db.context.clock).date()
        visits.save(module.Visit(ward="w", day=today, notes="x"))
    keys = ("--keyring", f"{shop}:rotated")

    found = run_json(capsys, "rotate", f"{shop}:by_day", *keys)
    again = run(capsys, "rotate", shop, *keys)

    assert (found["rows"], found["periods"]) == ({}, {"visits": 1})
    assert "visits, by period: 0 rows wrapped with the key 'new'.\n" in again
    with connect("partita:./store", keyring=module.rotated()) as db:
        visits = db.periods(module.Visit, module.by_day, at="day")
        assert visits.get(ward="w", day=today).notes == "x"


def test_blobs_that_no_entity_names_are_collected(shop: str, capsys: Capture) -> None:
    save(shop, 1, photo=b"\x89PNG")
    module = __import__(shop)
    with opened(shop) as db:
        db.run(
            ask(
                WriteRows(
                    "staff", (RowOperation(Verb.DELETE, Row(RowKey("Sales", "emp_000001"), {})),)
                )
            )
        )
    assert entity_type(module.Employee).fields["photo"].blob is not None

    kept = run_json(capsys, "collect-blobs", shop)
    gone = run_json(capsys, "collect-blobs", shop, "--grace", "0.001")
    none = run(capsys, "collect-blobs", shop, "--container", "partita-large")

    assert (kept["blobs"], gone["blobs"]) == ({"partita-large": 0}, {"partita-large": 1})
    assert none == "partita-large: 0 blobs that no entity names, removed.\n"


# The outbox


def test_drain_brings_copies_and_views_and_transactions(
    shop: str, tmp_path: Path, capsys: Capture
) -> None:
    save(shop, 1)
    module = __import__(shop)
    with opened(shop) as db:
        db.table(module.Order).save(module.Order(customer="Ada", number=7))
        db.start(module.noting, file="noted.txt", plain="plain.txt")

    found = run_json(capsys, "drain", shop, "--keyring", f"{shop}:keyring")

    assert (found["entries"], found["transactions"], found["failures"]) == (2, 1, 0)
    assert (tmp_path / "orders.txt").read_text() == "7 True\n"
    assert (tmp_path / "noted.txt").read_text() == "partita.patterns.aio"
    assert (tmp_path / "plain.txt").read_text() == "partita.patterns.sync"
    with opened(shop) as db:
        employees = db.table(module.Employee)
        found_again = employees.via(module.anywhere).get(email="1@contoso.com", dept="Sales")
        assert found_again.id == 1


def test_what_a_function_raises_is_told_and_the_rest_is_done(
    shop: str, tmp_path: Path, capsys: Capture
) -> None:
    module = __import__(shop)
    save(shop, 1)
    with opened(shop) as db:
        db.table(module.Order).save(module.Order(customer="Ada", number=7))
    (tmp_path / "broken").touch()

    told = run(capsys, "drain", shop, "--keyring", f"{shop}:keyring", status=1)

    assert told.startswith("1 entry of the outbox, 0 transactions done; ")
    assert "  entry of orders, partition 'Ada': RuntimeError: the view is broken\n" in told


def test_a_condition_of_an_index_that_raises_is_one_line(
    shop: str, tmp_path: Path, capsys: Capture
) -> None:
    save(shop, 1)
    sys.modules.pop(shop)
    picky = 'picky = index(Employee, row="p_{id:06d}", where=lambda e: e.email / 2, name="picky")\n'
    (tmp_path / f"{shop}.py").write_text(SHOP + picky)

    told = refusal(capsys, "rebuild", f"{shop}:picky", "--keyring", f"{shop}:keyring")

    assert "TypeError: unsupported operand" in told
    assert f"in line {len((SHOP + picky).splitlines())} of {shop}.py." in told


def test_a_sweep_goes_on_behind_an_entry_that_fails(
    shop: str, tmp_path: Path, capsys: Capture
) -> None:
    module = __import__(shop)
    save(shop, 1)
    with opened(shop) as db:
        db.table(module.Order).save(module.Order(customer="Ada", number=7))
    (tmp_path / "broken").touch()

    young = run_json(capsys, "sweep", shop, "--keyring", f"{shop}:keyring")
    found = run_json(capsys, "sweep", shop, "--age", "0", "--keyring", f"{shop}:keyring", status=1)

    assert (young["entries"], young["failures"]) == (0, 0)
    assert (found["entries"], found["failures"]) == (1, 1)
    assert found["troubles"] == [
        "entry of orders, partition 'Ada': RuntimeError: the view is broken"
    ]


def test_status_tells_what_waits_and_for_how_long(shop: str, capsys: Capture) -> None:
    fresh = run_json(capsys, "status", shop, status=1)
    save(shop, 1, 2)

    found = run_json(capsys, "status", shop)
    late = run_json(capsys, "status", shop, "--late", "0", status=1)
    quick = run_json(capsys, "status", shop, "--late", "0", "--quick")
    told = run(capsys, "status", shop, "--late", "0", status=1)

    assert {each["state"] for each in fresh["indexes"]} == {None}
    assert found["is_healthy"] is True
    assert {each["table"]: each["entries"] for each in found["outbox"]} == {"orders": 0, "staff": 2}
    assert late["outbox"][1]["oldest_seconds"] > 0
    assert quick["outbox"][1]["entries"] is None
    assert [(each["queue"], each["messages"]) for each in found["queues"]] == [
        ("partita-outbox", 2)
    ]
    assert "check that a worker runs." in told


def test_what_only_a_newer_program_declares_waits_for_it(
    shop: str, tmp_path: Path, capsys: Capture
) -> None:
    newer = f"{shop}_newer"
    (tmp_path / f"{newer}.py").write_text(SHOP + NEWER)
    module = __import__(newer)
    with opened(newer) as db:
        db.table(module.Order).save(module.Order(customer="Ada", number=7))

    left = run_json(capsys, "drain", shop, status=1)
    told = run(capsys, "status", shop)
    waiting = run_json(capsys, "status", shop)["outbox"]
    done = run_json(capsys, "drain", newer)

    assert (left["entries"], left["failures"], left["left"] > 0) == (0, 0, True)
    assert any("view:Order@totals" in trouble for trouble in left["troubles"])
    assert "view:Order@totals" in told
    assert "partita patterns forget" in told
    assert {"view:Order@totals": 1} in [one["unknown"] for one in waiting]
    assert (done["entries"], done["left"]) == (1, 0)
    assert (tmp_path / "totals.txt").read_text() == "7\n"
    sys.modules.pop(newer)


def test_what_is_declared_no_more_is_forgotten(shop: str, tmp_path: Path, capsys: Capture) -> None:
    newer = f"{shop}_newer"
    (tmp_path / f"{newer}.py").write_text(SHOP + NEWER)
    module = __import__(newer)
    with opened(newer) as db:
        db.table(module.Order).save(module.Order(customer="Ada", number=7))
    sys.modules.pop(newer)

    told = run(capsys, "forget", shop, "--name", "view:Order@totals")
    again = run_json(capsys, "forget", shop, "--name", "view:Order@totals")
    done = run_json(capsys, "drain", shop)

    assert told == "view:Order@totals: removed from 1 entry.\n"
    assert again["entries"] == 0
    assert (done["entries"], done["left"]) == (1, 0)


def test_poison_is_shown_and_put_back(shop: str, tmp_path: Path, capsys: Capture) -> None:
    module = __import__(shop)
    (tmp_path / "broken").touch()
    with opened(shop) as db:
        db.start(module.noting, file="noted.txt", plain="plain.txt")
    flags = ("--sweep-every", "0", "--deliveries", "1", "--once", "--json")
    capsys.readouterr()
    assert main(["patterns", "worker", shop, "--keyring", f"{shop}:keyring", *flags]) == 1
    captured = capsys.readouterr()

    shown = run(capsys, "poison", status=1)
    unwell = run(capsys, "status", shop, "--queue", "partita-outbox", status=1)
    (tmp_path / "broken").unlink()
    put_back = run_json(capsys, "poison", "--retry")
    done = run_json(capsys, "drain", shop)

    assert captured.err == (
        "partita worker: poison after 1 attempt: transaction 'noting': "
        "RuntimeError: the step is broken\n"
    )
    start, end = map(json.loads, captured.out.splitlines())
    assert (start["transactions"], start["process"]) == (["noting"], os.getpid())
    assert (end["failures"], end["poisoned"]) == (1, 1)
    assert "transaction 'noting'  1         RuntimeError: the step is broken" in shown
    assert "partita patterns poison" in unwell
    assert (put_back["retried"], put_back["count"]) == (1, 0)
    assert done["transactions"] == 1
    assert (tmp_path / "plain.txt").exists()
    assert run(capsys, "poison") == "partita-poison is empty.\n"


def test_a_message_that_is_not_ours_stays_among_the_poison(shop: str, capsys: Capture) -> None:
    with opened(shop) as db:
        db.start(__import__(shop).noting, file="f", plain="p")
        db.run(ask(PutMessage("partita-outbox", "hello")))
    flags = ("--sweep-every", "0", "--deliveries", "1", "--once")
    assert main(["patterns", "worker", shop, "--keyring", f"{shop}:keyring", *flags]) == 1
    capsys.readouterr()

    found = run_json(capsys, "poison", status=1)

    assert [each["what"] for each in found["messages"]] == ["a message of another program"]
    assert "MessageNotUnderstood" in found["messages"][0]["reason"]


# Refusals


def test_without_a_place_nothing_is_done(
    shop: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PARTITA_CONNECT")

    said = refusal(capsys, "create", shop)
    assert "Give --connect partita:./folder, UseDevelopmentStorage=true, or a connection" in said
    assert "or set PARTITA_CONNECT." in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("--connect", f"AccountName=a;AccountKey={KEY}", "--nonsense"),
        ("--connect", f"AccountKey={KEY};nothing"),
        ("--connect", "partita::memory:", f"AccountKey={KEY}"),
        ("--other", f"AccountKey={KEY};AccountName=a"),
        ("--connect", f"SharedAccessSignature=sv=1&sig={KEY};TableEndpoint=ftp://here"),
    ],
)
def test_no_key_is_ever_printed(shop: str, capsys: Capture, arguments: tuple[str, ...]) -> None:
    status = main(["patterns", "poison", *arguments])
    captured = capsys.readouterr()

    assert status == 2
    assert KEY.lower() not in (captured.out + captured.err).lower()


def test_a_variable_keeps_the_key_out_of_the_list_of_processes(
    shop: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTITA_CONNECT", "partita:./elsewhere")

    assert run_json(capsys, "create", shop)["place"] == "./elsewhere"


def test_a_module_that_cannot_be_imported_is_one_line(
    shop: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "raising.py").write_text("raise ValueError('a\\nb')")
    (tmp_path / "empty.py").write_text("")

    assert "ModuleNotFoundError" in refusal(capsys, "check", "no_such_module")
    assert "raising cannot be imported: ValueError: a." in refusal(capsys, "check", "raising")
    assert "No entity type was found in empty" in refusal(capsys, "check", "empty")
    assert "cannot be imported: AttributeError" in refusal(capsys, "verify", f"{shop}:Nobody")


def test_two_types_of_one_name_are_refused(shop: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / f"{shop}_two.py").write_text(SHOP)

    assert "Two entity types are called" in refusal(capsys, "check", shop, f"{shop}_two")


def test_a_keyring_is_a_keyring_or_makes_one(shop: str, capsys: Capture) -> None:
    assert "is not a keyring" in refusal(capsys, "drain", shop, "--keyring", f"{shop}:noting")
    assert "is not module:name" in refusal(capsys, "drain", shop, "--keyring", shop)


def test_a_folder_that_somebody_holds_is_refused(shop: str, capsys: Capture) -> None:
    with opened(shop):
        assert str(os.getpid()) in refusal(capsys, "create", shop)


def test_tables_that_are_missing_are_told_with_the_verb_that_makes_them(
    shop: str, capsys: Capture
) -> None:
    assert "Make the tables with `partita patterns create`." in refusal(capsys, "drain", shop)


@pytest.mark.parametrize(
    "flags", [("--tasks", "0"), ("--poll", "0"), ("--visibility", "-1"), ("--deliveries", "x")]
)
def test_figures_that_make_no_sense_are_refused(
    shop: str, capsys: Capture, flags: tuple[str, str]
) -> None:
    assert "positive" in refusal(capsys, "worker", shop, *flags)


def test_without_the_sdk_the_extra_is_named(shop: str, tmp_path: Path) -> None:
    code = (
        "import sys\nsys.modules['azure.data'] = None\n"
        f"from partita.cli.main import main\nsys.exit(main(['patterns', 'create', {shop!r}]))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "partita[patterns]" in done.stderr


def test_progress_is_drawn_for_people_only(shop: str, tmp_path: Path) -> None:
    save(shop, *range(20))
    command = [sys.executable, "-m", "partita.cli.main", "patterns", "rebuild", f"{shop}:by_email"]

    done = run_on_terminal([*command, "--keyring", f"{shop}:keyring"], cwd=tmp_path)

    assert done.status == 0
    assert done.out == "email_email of Employee: 20 entities; it is readable.\n"
    assert "rebuild: " in done.drawn
    assert "entities" in done.drawn
