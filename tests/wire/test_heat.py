"""Heat through real servers: the shapes of three loads, the endpoint, the verb, its file."""

import contextlib
import io
import json
from itertools import pairwise
from pathlib import Path

import pytest
from azure.data.tables import TableServiceClient
from PIL import Image

from partita.cli.main import main
from partita.heat.axes import READS, SCANNED, WRITES, total
from partita.heat.drawing.picture import draw
from partita.heat.kept import Column
from partita.heat.shapes import Kind, recognise
from partita.heat.sqlite_heat import HEAT_FILE
from support.heated import (
    LOADS,
    HeatedServer,
    get,
    heated_server,
    insert,
    query,
    run_load,
    upserts,
)
from support.live import LiveServer, needs_folder

ACCOUNT = "devstoreaccount1"


async def columns_of(load: str) -> list[Column]:
    table, _load = LOADS[load]
    async with heated_server(None, table) as heated:
        return await run_load(heated, load, minutes=8, scale=2)


async def counts_of(heated: HeatedServer, table: str) -> tuple[int, ...]:
    (column,) = await heated.columns(table)
    return total(column.axis)


async def test_an_append_only_table_is_a_diagonal() -> None:
    columns = await columns_of("append")

    shapes = recognise(columns)
    picture = draw(columns, "writes", rows_max=80, columns_max=80)
    lit = [[row for row, rate in enumerate(column) if rate > 0] for column in picture.cells]
    assert [shape.kind for shape in shapes] == [Kind.APPEND]
    assert len(lit) == 8
    assert all(max(before) <= min(after) for before, after in pairwise(lit))


async def test_a_hot_tenant_is_one_bright_band() -> None:
    columns = await columns_of("hot-tenant")

    (shape,) = recognise(columns)
    picture = draw(columns, "reads", rows_max=80, columns_max=80)
    is_hot = [
        row.first.startswith("tenant-023") and row.last.startswith("tenant-023")
        for row in picture.rows
    ]
    late = picture.cells[-1]
    rates = {
        hot: [rate for rate, each in zip(late, is_hot, strict=True) if each is hot]
        for hot in (True, False)
    }
    assert (shape.kind, shape.partition) == (Kind.HOT_PARTITION, "tenant-023")
    assert sum(rates[True]) > sum(rates[False])
    assert 0 < sum(is_hot) < len(is_hot) / 2
    assert max(rates[True]) > 3 * max(rates[False])


async def test_a_scan_is_a_stripe_over_all_keys() -> None:
    columns = await columns_of("scan")

    shapes = recognise(columns)
    picture = draw(columns, "reads", rows_max=60, columns_max=80)
    lit = [sum(rate > 0 for rate in column) / len(column) for column in picture.cells]
    assert [shape.kind for shape in shapes] == [Kind.SCAN]
    assert lit[3] > 0.95
    assert max(lit[:3]) < 0.8
    assert sum(picture.cells[3]) > 5 * sum(picture.cells[2])


async def test_a_scan_that_finds_nothing_is_spread_over_the_keys_it_has_read() -> None:
    async with heated_server(None, "Staff") as heated:
        await heated.minute(
            [
                *(insert("Staff", f"p{number}", "1") for number in range(4)),
                query("Staff", "$filter=Age%20gt%2040"),
            ]
        )
        (column,) = await heated.columns("Staff")

    assert [bucket.first for bucket in column.axis] == [f"p{number}\0" + "1" for number in range(4)]
    assert total(column.axis)[SCANNED] > 0


async def test_every_request_of_a_quiet_server_is_counted_exactly() -> None:
    rows = [f"{number:03}" for number in range(30)]
    async with heated_server(None, "Staff") as heated:
        statuses = await heated.minute(
            [
                insert("Staff", "p", "000"),
                insert("Staff", "p", "000"),
                upserts("Staff", "p", rows),
                get("Staff", "p", "007"),
                get("staff", "p", "missing"),
                get("Absent", "p", "r"),
                query("Staff", "$filter=PartitionKey%20eq%20'p'"),
                query("Staff"),
                query("Staff", "$filter=PartitionKey%20eq%20'p'%20and%20RowKey%20eq%20'003'"),
            ]
        )
        counts = await counts_of(heated, "Staff")
        absent = await heated.columns("Absent")

    assert statuses == [201, 409, 202, 200, 404, 404, 200, 200, 200]
    assert counts[WRITES] == 32
    assert counts[READS] == 2 + 30 + 30 + 1
    assert counts[SCANNED] == 30
    assert absent == []


async def test_an_account_without_heat_counts_nothing(tmp_path: Path) -> None:
    async with heated_server(tmp_path, "Staff") as heated:
        heated.account.meter.stop()
        await heated.minute([insert("Staff", "p", "1"), query("Staff"), get("Staff", "p", "1")])

        assert await heated.columns("Staff") == []


def output_of(*words: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["heat", *words]) == 0
    return printed.getvalue()


@needs_folder
def test_the_verb_reads_a_running_server_and_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = LiveServer(tmp_path, "--metrics-port", "0")
    connection = live.announced["connection_string"]
    with TableServiceClient.from_connection_string(connection) as service:
        table = service.create_table("Orders")
        for number in range(150):
            table.create_entity({"PartitionKey": f"p{number % 5}", "RowKey": f"{number:04}"})
        endpoint = live.announced["metrics_endpoint"]
        data = str(tmp_path / "partita-data")
        asked = json.loads(output_of("orders", "--metrics", endpoint, "--path", data, "--json"))
    live.stop()
    read = json.loads(output_of("Orders", "--path", data, "--json"))
    text = output_of("Orders", "--path", data)
    tables = output_of("--connect", data, "--since", "30m")
    (drawn, drawn_too) = tmp_path / "heat.png", tmp_path / "heat.svg"
    output_of("Orders", "--path", data, "--png", str(drawn), "--svg", str(drawn_too))

    for found in (asked, read):
        counts = [bucket[2] for column in found["columns"] for bucket in column["axis"]]
        assert sum(each[WRITES] for each in counts) == 150
    assert "hottest ranges" in text
    assert "p4 / 0" in text
    assert "Orders" in tables
    assert "No load" in output_of("Elsewhere", "--path", data)
    assert "give --metrics URL" in capsys.readouterr().err
    with Image.open(drawn) as image:
        assert image.size == (1000, 560)
    assert "Orders: entities/s" in drawn_too.read_text()


@needs_folder
def test_a_server_without_heat_writes_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = LiveServer(tmp_path, "--no-heat")
    live.stop()
    folder = tmp_path / "partita-data"

    assert not (folder / ACCOUNT / HEAT_FILE).exists()
    assert main(["heat", "Orders", "--path", str(folder)]) == 2
    assert "--no-heat" in capsys.readouterr().err


@needs_folder
def test_a_damaged_file_does_not_keep_a_server_from_starting(tmp_path: Path) -> None:
    folder = tmp_path / "partita-data" / ACCOUNT
    folder.mkdir(parents=True, mode=0o700)
    (folder / HEAT_FILE).write_bytes(b"damage" * 4096)
    live = LiveServer(tmp_path)
    with TableServiceClient.from_connection_string(live.announced["connection_string"]) as service:
        service.create_table("Orders").create_entity({"PartitionKey": "p", "RowKey": "r"})
    live.stop()

    assert (folder / "heat.damaged").exists()
    assert "Orders" in output_of("--path", str(folder.parent))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["T", "--metrics", "ftp://x"], "--metrics http://127.0.0.1:10004"),
        (["T", "--metrics", "http://127.0.0.1:1", "--token-file", "TOKEN"], "does not answer"),
        (["T", "--metrics", "http://127.0.0.1:1", "--token-file", "nothing"], "--token-file FILE"),
        (["T", "--since", "yesterday"], "30m, 6h, 7d"),
        (["T", "--path", "nothing"], "no account"),
        (["--png", "x.png", "--path", "."], "no account"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "TOKEN").write_text("t" * 43)

    assert main(["heat", *words]) == 2
    assert said in capsys.readouterr().err
