"""The bulk verbs as a user runs them, against `partita serve`."""

import gzip
import json
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import msgspec
import pytest
from azure.data.tables import TableAccessPolicy, TableCorsRule, TableServiceClient

from bulk.shell import Shell
from partita.bulk import scanning
from partita.bulk.canonical import Digest, canonical
from partita.bulk.connecting import connected
from partita.bulk.entities import decode_keys
from partita.bulk.scanning import Scan
from partita.bulk.wire import Query, TableClient
from partita.bulk.work import reading
from support.live import PATIENCE_SECONDS, LiveServer
from support.repeats import repeat

ALL_TYPES = (
    '{"PartitionKey":"%s","RowKey":"%s","S":"a,\\"b\\"\\nc","E":"","I":7,"D":3750.0,"T":true,'
    '"L@odata.type":"Edm.Int64","L":"9007199254740993",'
    '"At@odata.type":"Edm.DateTime","At":"2024-02-29T23:59:59.1234567Z",'
    '"G@odata.type":"Edm.Guid","G":"00000000-0000-4000-8000-00000000000f",'
    '"X@odata.type":"Edm.Binary","X":"AAH/",'
    '"N@odata.type":"Edm.Double","N":"NaN","P@odata.type":"Edm.Double","P":"-Infinity"}'
)


def lines(count: int, partitions: int = 3) -> str:
    return "".join(
        json.dumps(
            {"PartitionKey": f"p{n % partitions}", "RowKey": f"{n:07}", "N": n, "Text": "x" * 40}
        )
        + "\n"
        for n in range(count)
    )


def sum_of(text: str) -> tuple[int, str]:
    digest = Digest()
    for line in text.splitlines():
        digest.add(line.encode())
    return digest.count, digest.text


async def table_sum(client: TableClient, table: str) -> tuple[int, str]:
    digest = Digest()
    async for page in client.pages(table):
        for entity in page.entities:
            digest.add(entity)
    return digest.count, digest.text


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.csv", "a.parquet"])
async def test_every_type_survives_an_export_and_an_import(
    shell: Shell, client: TableClient, name: str
) -> None:
    first, second = f"T{time.time_ns()}", f"U{time.time_ns()}"
    shell.write("first.jsonl", "\n".join(ALL_TYPES % ("p", n) for n in "123"))

    shell.run("import", first, "first.jsonl")
    exported = shell.facts("export", first, "--to", name)
    imported = shell.facts("import", second, name)

    assert exported["entities"] == 3
    assert imported["files"][0]["is_sum_right"] is True
    assert await table_sum(client, first) == await table_sum(client, second)
    found = await client.get(second, "p", "1")
    assert canonical(found.document) == canonical((ALL_TYPES % ("p", "1")).encode())
    assert not list(shell.folder.glob("*.partita-*"))


async def test_bad_rows_go_to_a_file_with_line_and_reason(
    shell: Shell, client: TableClient, name: str
) -> None:
    good = '{"PartitionKey":"p","RowKey":"%s","A":1}'
    bad = [
        "nonsense",
        '{"PartitionKey":"p"}',
        '{"PartitionKey":"p","RowKey":"a/b"}',
        '{"PartitionKey":"p","RowKey":"x","A":99999999999}',
        '{"PartitionKey":"p","RowKey":"y","A":[1]}',
        json.dumps({"PartitionKey": "p", "RowKey": "z", "A": "x" * 40_000}),
    ]
    rows = [good % n for n in range(50)] + bad + [good % n for n in range(50, 120)]
    shell.write("rows.jsonl", "\n".join(rows))

    facts = shell.facts("import", name, "rows.jsonl", status=1)

    file = facts["files"][0]
    assert (file["written"], file["rejected"]) == (120, len(bad))
    kept = (shell.folder / file["rejects_file"]).read_text()
    rejects = [json.loads(line) for line in kept.splitlines()]
    assert [reject["line"] for reject in rejects] == list(range(51, 51 + len(bad)))
    assert all(reject["reason"] for reject in rejects)
    assert await reading.count_entities(client, name) == 120

    dry = shell.facts("import", name, "rows.jsonl", "--dry-run", status=1)
    assert dry["files"][0]["rejected"] == len(bad)


async def test_bytes_that_are_not_utf8_are_rejected_and_shown(
    shell: Shell, client: TableClient, name: str
) -> None:
    rows = "PartitionKey,RowKey,A\np,1,caf\u00e9\np,2,cafe\n".encode("latin-1")
    (shell.folder / "rows.csv").write_bytes(rows)

    facts = shell.facts("import", name, "rows.csv", "--types", "A=String", status=1)

    assert facts["files"][0]["written"] == 1
    kept = (shell.folder / facts["files"][0]["rejects_file"]).read_text()
    assert json.loads(kept)["row"] == "p,1,caf\\xe9"
    (shell.folder / "wide.csv").write_text("PartitionKey,RowKey,A\np,1,x\n", encoding="utf-16")
    assert "iconv" in shell.run("import", name, "wide.csv", "--infer", status=2)
    assert "3 to 63 letters" in shell.run("import", "ab", "rows.csv", status=2)


async def test_a_bad_row_of_a_file_with_a_sum_is_rejected(
    shell: Shell, client: TableClient, name: str
) -> None:
    rows = [
        '{"PartitionKey":"p","RowKey":"a","A":1}',
        '{"PartitionKey":"p","RowKey":"b","A":1e999}',
        '{"PartitionKey":"p","RowKey":"c","A@odata.type":[],"A":1}',
    ]
    shell.write("rows.jsonl", "\n".join(rows))
    shell.write("rows.jsonl.sum.json", json.dumps({"entities": 3, "sha256_sum": "0" * 64}))

    facts = shell.facts("import", name, "rows.jsonl", status=1)

    assert (facts["files"][0]["written"], facts["files"][0]["rejected"]) == (1, 2)
    assert await reading.count_entities(client, name) == 1


def test_a_file_of_rejects_replaces_no_other_file(shell: Shell, name: str) -> None:
    for file in ("one.jsonl", "two.jsonl"):
        shell.write(file, "nonsense")

    several = shell.run("import", name, "one.jsonl", "two.jsonl", "--rejects", "bad", status=2)
    same = shell.run("import", name, "one.jsonl", "--rejects", "./one.jsonl", status=2)

    assert "--rejects" in several
    assert "--rejects" in same
    assert (shell.folder / "one.jsonl").read_text() == "nonsense"


async def test_what_happens_to_existing_entities_is_chosen(
    shell: Shell, client: TableClient, table: str
) -> None:
    async def stored() -> dict[str, object]:
        members = msgspec.json.decode((await client.get(table, "p", "2")).document)
        return {name: members[name] for name in "AB" if name in members}

    shell.write("old.jsonl", '{"PartitionKey":"p","RowKey":"2","A":1,"B":1}')
    new = "\n".join(f'{{"PartitionKey":"p","RowKey":"{n}","A":2}}' for n in range(5))
    shell.write("new.jsonl", new)
    shell.run("import", table, "old.jsonl")

    skipped = shell.facts("import", table, "new.jsonl", "--on-existing", "skip")
    assert (skipped["files"][0]["written"], skipped["files"][0]["skipped"]) == (4, 1)
    assert await stored() == {"A": 1, "B": 1}

    failed = shell.facts("import", table, "new.jsonl", "--on-existing", "fail", status=1)
    assert failed["files"][0]["rejected"] == 5

    shell.run("import", table, "new.jsonl", "--on-existing", "merge")
    assert await stored() == {"A": 2, "B": 1}
    shell.run("import", table, "new.jsonl")
    assert await stored() == {"A": 2}


async def test_the_last_of_two_rows_with_one_key_is_kept(
    shell: Shell, client: TableClient, table: str
) -> None:
    rows = [f'{{"PartitionKey":"p","RowKey":"r","N":{n}}}' for n in range(5)]
    shell.write("rows.jsonl", "\n".join(rows))

    facts = shell.facts("import", table, "rows.jsonl")

    assert facts["files"][0]["written"] == 5
    assert b'"N":4' in (await client.get(table, "p", "r")).document


async def test_a_csv_without_types_is_refused_until_they_are_guessed_or_given(
    shell: Shell, client: TableClient, name: str
) -> None:
    shell.write("people.csv", "country,id,age,zip\nPT,1,42,01234\nDK,2,,98765\n")
    keys = ("--partition-key", "country", "--row-key", "id")

    assert "--partition-key" in shell.run("import", name, "people.csv", status=2)
    assert "--infer" in shell.run("import", name, "people.csv", *keys, status=2)
    assert name not in await client.list_tables()
    said = shell.run("import", name, "people.csv", *keys, "--infer", "--types", "age=Int64")

    assert "zip" in said
    found = msgspec.json.decode((await client.get(name, "PT", "1")).document)
    assert (found["age"], found["age@odata.type"], found["zip"]) == ("42", "Edm.Int64", "01234")
    assert b'"age"' not in (await client.get(name, "DK", "2")).document


async def test_files_of_azcopy_are_read(shell: Shell, client: TableClient, name: str) -> None:
    entities = ",".join(ALL_TYPES % ("p", n) for n in "12")
    shell.write("account_T_2016_0_0_ABC.json", f"[{entities}]")

    shell.run("import", name, "account_T_2016_0_0_ABC.json")

    assert await reading.count_entities(client, name) == 2


async def test_a_copy_is_verified_and_differences_are_named(
    shell: Shell, client: TableClient, name: str, server: LiveServer
) -> None:
    shell.write("rows.jsonl", lines(2500))
    shell.run("import", name, "rows.jsonl")
    ends = ("--from", server.connection_string, "--to", "./copy")

    copied = shell.facts("copy", name, *ends, "--verify")

    assert copied["tables"][0]["written"] == copied["tables"][0]["target_entities"] == 2500
    assert copied["tables"][0]["source_sum"] == copied["tables"][0]["target_sum"]
    assert shell.run("count", name, "--connect", "./copy").strip() == "2,500"

    await client.merge(name, "p0", "0000003", b'{"PartitionKey":"p0","RowKey":"0000003","N":3.0}')
    await client.delete(name, "p1", "0000001")
    found = shell.facts("copy", name, *ends, "--verify-only", status=1)["tables"][0]
    assert [(each["row_key"], each["what"]) for each in found["differences"]] == [
        ("0000003", "differs in N"),
        ("0000001", "only in the target"),
    ]


async def test_a_copy_with_settings_has_policies_and_service_properties(
    shell: Shell, client: TableClient, table: str, server: LiveServer
) -> None:
    with TableServiceClient.from_connection_string(server.connection_string) as service:
        policy = TableAccessPolicy(permission="r", expiry=datetime(2030, 1, 1, tzinfo=UTC))
        service.get_table_client(table).set_table_access_policy({"readers": policy})
        service.set_service_properties(
            cors=[TableCorsRule(["https://example.com"], ["GET"], max_age_in_seconds=7)]
        )
    try:
        ends = ("--from", server.connection_string, "--to", "./copy")
        shell.run("copy", table, *ends)
        async with connected("./copy") as target:
            assert b"readers" not in await target.get_policies(table)

        assert "service properties" in shell.run("copy", table, *ends, "--with-settings")

        async with connected("./copy") as target:
            assert b"<Id>readers</Id>" in await target.get_policies(table)
            assert await target.get_properties() == await client.get_properties()
            assert b"https://example.com" in await target.get_properties()
    finally:
        with TableServiceClient.from_connection_string(server.connection_string) as service:
            service.set_service_properties(cors=[])


async def test_entities_are_deleted_only_when_it_is_confirmed(
    shell: Shell, client: TableClient, table: str
) -> None:
    shell.write("rows.jsonl", lines(1000))
    shell.run("import", table, "rows.jsonl")

    assert "--all" in shell.run("delete-where", table, "N lt 10", status=2)
    assert "--yes" in shell.run("delete-where", table, "PartitionKey eq 'p1'", status=2)
    assert shell.facts("delete-where", table, "PartitionKey eq 'p1'", "--dry-run")["found"] == 333
    assert await reading.count_entities(client, table) == 1000

    facts = shell.facts("delete-where", table, "N lt 100", "--all", "--yes")

    assert facts["deleted"] == 100
    assert await reading.count_entities(client, table) == 900


def test_a_query_is_explained_and_printed(shell: Shell, name: str) -> None:
    shell.write("rows.jsonl", lines(10))
    shell.run("import", name, "rows.jsonl")

    point = shell.facts(
        "query", name, "--where", "PartitionKey eq 'p0' and RowKey eq '1'", "--explain"
    )
    assert point["plan"] == point["server_plan"] == "point pk='p0' rk='1'"
    assert shell.facts("query", name, "--where", "N gt 3", "--explain")["advice"]
    for verb in ("query", "count"):
        assert "If N is a number, write 3:" in shell.run(verb, name, "--where", "N eq '3'")
    assert len(shell.run("query", name, "--top", "4").splitlines()) == 5
    assert shell.run("query", name, "--format", "csv").startswith("PartitionKey,RowKey,Timestamp")
    assert "10 entities." in shell.run("query", name, "--format", "table")
    assert name in shell.run("query")


def test_a_signature_reads_its_range_only(shell: Shell, name: str) -> None:
    shell.write("rows.jsonl", lines(30))
    shell.run("import", name, "rows.jsonl")

    made = shell.facts("sas", name, "--from-partition", "p1", "--to-partition", "p1")

    assert "in partition 'p1'" in made["grants"]
    assert shell.run("count", name, "--connect", made["url"]).strip() == "10"
    assert shell.run("count", name, "--connect", made["connection_string"]).strip() == "10"
    refused = shell.run("import", name, "rows.jsonl", "--connect", made["url"], status=2)
    assert "sig=" not in refused
    assert "permissions" in shell.run("sas", name, "--permissions", "xyz", status=2)


def test_the_rate_is_limited(shell: Shell, table: str) -> None:
    shell.write("rows.jsonl", lines(300))

    facts = shell.facts("import", table, "rows.jsonl", "--max-rate", "400")

    assert facts["seconds"] >= 0.5


async def test_ranges_are_divided_without_loss_or_repetition(
    shell: Shell, client: TableClient, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "DIVIDE_PAGES", 1)
    text = lines(3000, partitions=7)
    shell.write("rows.jsonl", text)
    shell.run("import", table, "rows.jsonl")

    for condition in ("", "PartitionKey eq 'p3'", "N lt 2000"):
        scan = Scan(client, table, Query(condition, top=50), concurrency=4)
        keys: list[tuple[str, str]] = []
        async for part, page in scan.pages():
            found = [decode_keys(entity) for entity in page.entities]
            keys += [(each.partition_key, each.row_key) for each in found]
            part.advance(page)
        assert condition or len(scan.parts) > 1
        assert all(part.is_done for part in scan.parts)
        assert (
            len(keys)
            == len(set(keys))
            == await reading.count_entities(client, table, condition, concurrency=1)
        )


def test_an_existing_file_is_kept_and_a_progress_of_another_command_is_refused(
    shell: Shell, name: str
) -> None:
    shell.write("rows.jsonl", lines(10))
    shell.run("import", name, "rows.jsonl")
    assert "--replace" in shell.run("export", name, "--to", "rows.jsonl", status=2)
    shell.run("export", name, "--to", "rows.jsonl", "--replace")

    content = {"version": 1, "task": {"verb": "export"}, "state": {}}
    shell.write("rows.jsonl.partita-progress", json.dumps(content))
    assert "--restart" in shell.run("import", name, "rows.jsonl", status=2)
    shell.run("import", name, "rows.jsonl", "--restart")


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "csv"])
def test_an_export_to_a_full_disk_is_one_line_and_continues(
    shell: Shell, name: str, suffix: str
) -> None:
    shell.write("rows.jsonl", lines(3_000))
    shell.run("import", name, "rows.jsonl")
    full = [
        "bash",
        "-c",
        'ulimit -f 8; exec "$@"',
        "bash",
        sys.executable,
        "-m",
        "partita.cli.main",
    ]
    ended = subprocess.run(
        [*full, "export", name, "--to", f"out.{suffix}"],
        cwd=shell.folder,
        # Python would cut the files of its compiled modules off, too, and keep them.
        env={**shell.environment, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    assert "cannot be written: File too large" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert shell.facts("export", name, "--to", f"out.{suffix}")["entities"] == 3_000


# --- killed


def test_an_interrupted_import_tells_how_to_continue(shell: Shell, name: str) -> None:
    shell.write("rows.jsonl", lines(400))
    process = shell.start("import", name, "rows.jsonl", "--max-rate", "100", "--concurrency", "1")
    while not (shell.folder / "rows.jsonl.partita-progress").exists():
        assert process.poll() is None

    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE_SECONDS)

    assert (process.returncode, told) == (130, "Interrupted: the same command continues it.\n")
    assert shell.facts("import", name, "rows.jsonl")["files"][0]["written"] == 400


def _kill_soon(process: subprocess.Popen[str], seconds: float) -> None:
    """Kill a process after a time, unless it has ended."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
    finally:
        process.communicate()


KILLS = [
    pytest.param(2, id="few"),
    pytest.param(repeat(2, 12, 50), id="many", marks=pytest.mark.proof),
]


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize("mode", ["replace", "fail"])
async def test_an_import_that_is_killed_ends_as_if_it_was_not(
    shell: Shell, client: TableClient, table: str, kills: int, mode: str
) -> None:
    text = lines(400 * kills + 2000, partitions=11)
    shell.write("rows.jsonl", text)
    chance = random.Random(kills)
    words = ("import", table, "rows.jsonl", "--on-existing", mode, "--max-rate", "1500")

    progress = shell.folder / "rows.jsonl.partita-progress"

    for _ in range(kills):
        _kill_soon(shell.start(*words), chance.uniform(0.3, 2.5))
        is_over = not progress.exists() and await table_sum(client, table) == sum_of(text)
        if mode == "fail" and is_over:
            break  # perhaps killed after its last step: once more would find all entities
    else:
        shell.run(*words)

    assert await table_sum(client, table) == sum_of(text)
    assert not progress.exists()


@pytest.mark.parametrize("kills", KILLS)
async def test_an_export_that_is_killed_ends_as_if_it_was_not(
    shell: Shell, client: TableClient, table: str, kills: int
) -> None:
    text = lines(400 * kills + 2000, partitions=11)
    shell.write("rows.jsonl", text)
    shell.run("import", table, "rows.jsonl")
    chance = random.Random(kills)

    for _ in range(kills):
        _kill_soon(shell.start("export", table, "--to", "out.jsonl.gz"), chance.uniform(0.3, 1.5))
        if not (shell.folder / "out.jsonl.gz.partita-progress").exists():
            for left in shell.folder.glob("out.*"):
                left.unlink()
    shell.run("export", table, "--to", "out.jsonl.gz")

    found = gzip.decompress((shell.folder / "out.jsonl.gz").read_bytes()).decode()
    assert sum_of(found) == sum_of(text)


@pytest.mark.parametrize("kills", KILLS)
async def test_a_copy_that_is_killed_ends_as_if_it_was_not(
    shell: Shell, client: TableClient, table: str, kills: int, server: LiveServer
) -> None:
    text = lines(400 * kills + 2000, partitions=11)
    shell.write("rows.jsonl", text)
    shell.run("import", table, "rows.jsonl")
    chance = random.Random(kills)
    ends = ("--from", server.connection_string, "--to", server.connection_string)
    words = ("copy", table, *ends, "--to-table", f"{table}x", "--max-rate", "1500")

    for _ in range(kills):
        _kill_soon(shell.start(*words), chance.uniform(0.3, 2.0))
    shell.run(*words)

    assert await table_sum(client, f"{table}x") == sum_of(text)
