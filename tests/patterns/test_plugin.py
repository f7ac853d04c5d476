"""The pytest plugin as its users meet it: installed, unasked, in tests of their own."""

import subprocess
import sys
import time
from importlib.metadata import entry_points

import pytest

from partita.patterns.faults import Faults
from partita.patterns.ports.connecting import open_async
from partita.patterns.protocol.calls import Cost, CreateTable, GetRow
from partita.patterns.protocol.values import RowKey
from partita.patterns.sync import Database
from partita.service.hosting.in_process import LocalAccount, open_account
from support.entities import File

pytest_plugins = ["pytester"]


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=200
    ).stdout.strip()


def test_the_plugin_is_registered() -> None:
    (found,) = [point for point in entry_points(group="pytest11") if point.name == "partita"]

    assert found.value == "partita.patterns.testing"


def test_the_plugin_imports_neither_the_sdk_nor_the_service() -> None:
    loaded = run_python(
        "import sys, partita.patterns.testing\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'azure'"
        " or name.startswith('partita.service')])"
    )

    assert loaded == "[]"


def test_the_plugin_does_no_harm_where_extras_are_missing() -> None:
    code = "import sys\nsys.modules['azure'] = sys.modules['pytest_asyncio'] = None\n"

    assert run_python(code + "import partita.patterns.testing as t\nprint(t.__name__)") == (
        "partita.patterns.testing"
    )


def test_a_fresh_account_takes_less_than_50_ms() -> None:
    open_account(None).close()  # what is imported once is not counted

    def seconds() -> float:
        start = time.process_time()  # of all threads, and of nobody else on the machine
        account = open_account(None)
        taken = time.process_time() - start
        account.close()
        return taken

    assert min(seconds() for _ in range(5)) < 0.05


def test_accounts_of_two_tests_are_apart(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("time", range(2))
        def test_first_table(partita_account, time):
            partita_account.tables.create_table("Staff")
            assert [table.name for table in partita_account.tables.list_tables()] == ["Staff"]
        """
    )

    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-W", "error")

    result.assert_outcomes(passed=2)


def test_a_fresh_server_takes_less_than_300_ms() -> None:
    open_account(None).close()

    def seconds() -> float:
        start = time.process_time()
        account = open_account(None)
        account.listen()
        taken = time.process_time() - start
        account.close()
        return taken

    assert min(seconds() for _ in range(5)) < 0.3


SERVED = """
import multiprocessing
import urllib.request

import pytest
from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient
from azure.storage.queue import QueueServiceClient

@pytest.mark.parametrize("time", range(4))
def test_three_services(partita_server, time):
    text = partita_server.connection_string
    with TableServiceClient.from_connection_string(text) as tables:
        tables.create_table("Staff")
    with QueueServiceClient.from_connection_string(text) as queues:
        queues.create_queue("work").send_message("archive 00010")
    with BlobServiceClient.from_connection_string(text) as blobs:
        blobs.create_container("photos").upload_blob("a", b"1")
        assert [each.name for each in blobs.list_containers()] == ["photos"]

def test_both_ways_lead_to_one_account(partita_server, partita_account):
    partita_account.tables.create_table("Staff")
    assert partita_account.connection_string == partita_server.connection_string
    with TableServiceClient.from_connection_string(partita_server.connection_string) as tables:
        assert [table.name for table in tables.list_tables()] == ["Staff"]

def test_it_is_like_any_server(partita_server):
    at = partita_server.table_endpoint.replace(partita_server.account_name, "readyz")
    with urllib.request.urlopen(at) as answer:
        assert answer.read() == b"ready\\n"
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_every_test_has_a_server_of_its_own(pytester: pytest.Pytester, workers: int) -> None:
    pytester.makepyfile(SERVED)

    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-W", "error", "-n", str(workers))

    result.assert_outcomes(passed=6)


def test_a_server_needs_no_sdk(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import sys\nsys.modules['azure.core'] = sys.modules['azure.data'] = None\n"
    )
    pytester.makepyfile(
        """
        import urllib.request

        def test_it_answers(partita_server):
            at = partita_server.queue_endpoint.replace(partita_server.account_name, "healthz")
            with urllib.request.urlopen(at) as answer:
                assert answer.read() == b"ok\\n"
        """
    )

    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-W", "error")

    result.assert_outcomes(passed=1)


def test_faults_reach_official_clients_that_are_already_there(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from azure.core.exceptions import HttpResponseError

        def test_busy(partita_account, partita_faults):
            staff = partita_account.tables.create_table("Staff")
            entity = {"PartitionKey": "Sales", "RowKey": "1"}
            partita_faults.answer_503(times=2)
            staff.create_entity(entity)
            assert partita_faults.count == 4

            partita_faults.answer_503(times=100)
            with pytest.raises(HttpResponseError, match="busy"):
                staff.get_entity("Sales", "1")

            partita_faults.stop()
            assert staff.get_entity("Sales", "1") == entity
            assert partita_faults.requests[-1].endswith("Staff(PartitionKey='Sales',RowKey='1')")
        """
    )

    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-W", "error")

    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_a_database_is_opened_for_asynchronous_tests(pytester: pytest.Pytester, mode: str) -> None:
    pytester.makepyfile(
        """
        import pytest
        from partita.patterns import entity, index

        @entity(table="staff", partition="{dept}", row="{id:06d}")
        class Employee:
            dept: str
            id: int
            email: str

        anywhere = index(Employee, table="byemail", partition="{email}", row="{id:06d}_{dept}")

        @pytest.mark.asyncio
        async def test_hiring(partita_db, partita_worker, partita_faults):
            employees = partita_db.table(Employee)
            await partita_db.create_tables()
            partita_faults.lose_answers()
            await employees.save(Employee(dept="Sales", id=1, email="ken@contoso.com"))
            await partita_worker()
            found = await employees.via(anywhere).get(email="ken@contoso.com", dept="Sales", id=1)
            assert found.dept == "Sales"
        """
    )

    pytester.makeini(
        f"[pytest]\nasyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function\n"
    )
    result = pytester.runpytest_subprocess("-W", "error")

    result.assert_outcomes(passed=1)


def test_a_database_is_opened_for_synchronous_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from partita.patterns import entity

        @entity(table="staff", partition="{dept}", row="{id:06d}")
        class Employee:
            dept: str
            id: int

        def test_hiring(partita_db_sync):
            employees = partita_db_sync.table(Employee)
            partita_db_sync.create_tables()
            employees.save(Employee(dept="Sales", id=1))
            assert employees.get(dept="Sales", id=1).id == 1
        """
    )

    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-W", "error")

    result.assert_outcomes(passed=1)


# The fixtures are loaded here too, by the same entry point and once.


async def test_latency_keeps_every_request_waiting(
    partita_account: LocalAccount, partita_faults: Faults
) -> None:
    port = await open_async(partita_account)
    await port.perform(CreateTable("Staff"), Cost())
    partita_faults.latency(0.02)

    start = time.perf_counter()
    await port.perform(GetRow("Staff", RowKey("a", "b")), Cost())

    assert time.perf_counter() - start >= 0.02


async def test_faults_wait_for_the_request_that_they_are_meant_for(
    partita_account: LocalAccount, partita_faults: Faults
) -> None:
    port = await open_async(partita_account)
    cost = Cost()
    await port.perform(CreateTable("Staff"), cost)
    partita_faults.answer_503(times=1, match="PartitionKey='b'")

    await port.perform(GetRow("Staff", RowKey("a", "")), cost)
    assert cost.requests == 2
    await port.perform(GetRow("Staff", RowKey("b", "")), cost)
    assert cost.requests == 4


def test_fixtures_of_the_plugin_need_no_other_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio
        from partita.patterns import entity, index

        @entity(table="staff", partition="{dept}", row="{id:06d}")
        class Employee:
            dept: str
            id: int
            email: str

        anywhere = index(Employee, table="byemail", partition="{email}", row="{id:06d}_{dept}")

        def test_with_a_loop_of_its_own(partita_db, partita_worker):
            async def hire():
                employees = partita_db.table(Employee)
                await partita_db.create_tables()
                await employees.save(Employee(dept="Sales", id=1, email="ken@contoso.com"))
                await partita_worker()
                key = {"email": "ken@contoso.com", "id": 1, "dept": "Sales"}
                return await employees.via(anywhere).get(**key)

            assert asyncio.run(hire()).id == 1

        def test_without_a_loop(partita_db_sync, partita_worker_sync):
            employees = partita_db_sync.table(Employee)
            partita_db_sync.create_tables()
            employees.save(Employee(dept="Sales", id=1, email="ken@contoso.com"))
            assert partita_worker_sync().entries == 1
            assert employees.via(anywhere).range(email="ken@contoso.com").count() == 1
        """
    )

    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-W", "error")

    result.assert_outcomes(passed=2)


def test_a_fault_that_is_to_happen_no_time_does_not_happen(
    partita_db_sync: Database, partita_faults: Faults
) -> None:
    files = partita_db_sync.table(File)
    partita_db_sync.create_tables()
    partita_faults.answer_503(times=0)
    before = partita_faults.count

    assert files.get_or_none(dept="Sales", owner="user1", name="plan") is None

    assert partita_faults.count == before + 1
