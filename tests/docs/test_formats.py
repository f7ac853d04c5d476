"""The bytes that the format documents show are those that the code writes."""

import re
import zlib
from decimal import Decimal

import msgspec
import pytest
from sqlalchemy import MetaData

from docs.sources import PROJECT, code_blocks
from partita.heat.axes import Bucket
from partita.heat.packing import pack
from partita.patterns.encryption import sealing as encryption
from partita.patterns.fields.large_values import LargeValue
from partita.patterns.following import moving
from partita.patterns.following.eventual_transactions import Started
from partita.patterns.operations.continuations import Kept, Position
from partita.patterns.protocol.values import RowKey
from partita.patterns.types import row_layout as layout
from partita.patterns.writing import derived_fields as derived
from partita.patterns.writing import index_rows as copies
from partita.patterns.writing import outbox_entry as outbox
from partita.patterns.writing.context import IndexState, OutboxReference
from partita.reliable.state import records
from partita.reliable.state.records import NO_HASH, Entry, Put, Record, Tip
from partita.reliable.storage import backup_chain, checkpoint, segment
from partita.reliable.values.serialization import ValueCodec
from partita.shards.catalog import global_catalog, local_catalog
from partita.shards.connections.validation import LOCK_CLASS, enter_sql
from partita.shards.keys import schema
from partita.shards.keys.shard_key import key_type
from partita.shards.moving import move_plan

FORMATS = PROJECT / "docs" / "formats"
TICKS = 17_000_000_000_000_000
LINE_OF_BYTES = re.compile(r"((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  .*)?")


class User(msgspec.Struct, frozen=True):
    mail: str
    visits: int


def shown_bytes(document: str) -> list[bytes]:
    """The lines of a document's blocks that begin with bytes, without what is said of them."""
    lines = (FORMATS / document).read_text("utf-8").splitlines()
    found = [LINE_OF_BYTES.fullmatch(line.replace("   ", "  ")) for line in lines]
    return [bytes.fromhex(match[1]) for match in found if match]


def test_the_record_of_the_document_is_what_is_written() -> None:
    put = Put(1, b"\x10ada\x00\x00", b"\x00\x01\xa3abc")
    record = Record(records.FORMAT, 1, 1, NO_HASH, TICKS, "", [Entry("a1-1", [put])])

    assert b"".join(shown_bytes("reliable-log.md")) == records.encode_record(record)


def test_the_axis_of_the_document_is_what_is_packed() -> None:
    packed = pack([Bucket("a", "ab", (3, 0, 0, 300, 0))])

    assert b"".join(shown_bytes("heat.md")) == zlib.decompress(packed[1:])


def test_the_values_of_the_document_are_what_is_written() -> None:
    codec: ValueCodec[User] = ValueCodec(User)
    user = User("ada@example.org", 3)

    assert shown_bytes("stored-value.md") == [
        codec.encode(user, version=1),
        codec.encode(user, version=1, expires=TICKS),
    ]


def test_the_sizes_of_the_document_are_those_of_the_log() -> None:
    text = (FORMATS / "reliable-log.md").read_text("utf-8")
    tip = Tip(0, NO_HASH, 0)

    assert f"{len(segment.encode_heading(tip))} bytes\n" in text
    assert f"{len(records.encode_frame(0, 1, 0, b''))} bytes + length\n" in text
    assert re.search(rf"mark +sequence 8 .* {len(segment.encode_mark(tip))} bytes\n", text)


def test_every_file_begins_as_its_document_says() -> None:
    magics = {
        "reliable-log.md": (segment.MAGIC, segment.FORMAT),
        "checkpoint.md": (checkpoint.MAGIC, checkpoint.PLAIN_FORMAT),
        "backup.md": (backup_chain.MAGIC, backup_chain.FORMAT),
    }

    for document, (magic, number) in magics.items():
        text = (FORMATS / document).read_text("utf-8")
        assert f'"{magic.decode().strip()}\\n" | format 4' in text
        assert number == 1, "the documents describe format 1"


def test_every_operation_of_a_record_has_its_tag_in_the_document() -> None:
    text = (FORMATS / "reliable-log.md").read_text("utf-8")

    for operation in records.Operation.__args__:
        tag = operation.__struct_config__.tag
        assert re.search(rf"^\| {tag} \| {operation.__name__.lower()}\b", text, re.MULTILINE)


def test_the_keys_of_the_document_are_what_is_written() -> None:
    examples: list[tuple[object, object]] = [
        (int, 42),
        (str, "eu"),
        (Decimal, Decimal("42.5")),
        ((str, int), ("eu", 7)),
    ]

    encoded = [key_type(declared).encode(key) for declared, key in examples]

    assert shown_bytes("shard-catalogs.md") == encoded


@pytest.mark.parametrize("catalog", [global_catalog.metadata, local_catalog.metadata])
def test_every_column_of_the_catalogs_is_in_the_document(catalog: MetaData) -> None:
    text = (FORMATS / "shard-catalogs.md").read_text("utf-8")

    for table in catalog.tables.values():
        names = {table.name, *(column.name for column in table.columns)}
        assert {name for name in names if f"`{name}`" not in text} == set()


def test_the_document_of_catalogs_has_the_versions_and_steps_of_the_code() -> None:
    text = (FORMATS / "shard-catalogs.md").read_text("utf-8")

    assert "now 1.0." in text
    assert (global_catalog.MAJOR, global_catalog.MINOR) == (1, 0)
    assert (local_catalog.MAJOR, local_catalog.MINOR) == (1, 0)
    assert schema.SCHEMA_FORMAT_VERSION == 1
    assert ", ".join(f"`{step}`" for step in move_plan.STEPS) in text
    assert f"{LOCK_CLASS} (`Part`)" in text
    assert {word for word in re.findall(r"'(\w+)'", enter_sql()) if f"`{word}`" not in text} <= {
        "transaction_isolation",
        "x",
    }


def shown_json(document: str) -> list[str]:
    return [block.strip() for block in code_blocks(FORMATS / document, "json")]


def test_the_texts_of_typed_entities_are_what_is_written() -> None:
    touched = outbox.Touched(
        "Employee", "Sales", "emp_000123", {"anywhere": [("junc@contoso.com", "Sales")]}
    )
    entry = RowKey("Sales", "~o_0017000000000000000_0123456789abcdef")
    name = "staff/Sales/emp_000123/Photo/2c26b46b-0123456789abcdef"
    position = Position(0, "Sales", "emp_000123")
    inside = Position(member=3, passed=RowKey("Sales", "000123"), listed=RowKey("Jones", "all"))
    written: list[msgspec.Struct] = [
        outbox.Entry([touched]),
        OutboxReference("staff", entry),
        Started("archive", '{"id":123}'),
        LargeValue(name, 3, "2c26b46b", "partita-large"),
        Kept(1, "0123456789abcdef", position),
        Kept(2, "0123456789abcdef", Position(passed=RowKey("Sales", "emp_000123"), seen=7)),
        Kept(2, "0123456789abcdef", inside),
    ]

    assert shown_json("typed-entities.md") == [
        msgspec.json.encode(each).decode() for each in written
    ]


def test_every_name_of_ours_is_in_the_document_of_typed_entities() -> None:
    text = (FORMATS / "typed-entities.md").read_text("utf-8")
    names = {
        *(layout.PARTS, layout.STAMP, layout.GENERATION, layout.WRITE, layout.VERSION),
        *(layout.STATES_PARTITION, layout.STATE_PREFIX, layout.STATE, encryption.SEAL),
        *(layout.SWEPT_KEY.row, "~sweep"),
        *(outbox.OUTBOX_PREFIX, outbox.OUTBOX_TYPE, outbox.TYPE_PROPERTY),
        *(derived.GUARD_PREFIX, derived.GUARD_TYPE, copies.MEMBER_PARTITION, copies.MEMBER_ROW),
        *(moving.MOVED_TO, moving.MOVED_FROM, moving.ADOPTED, f"{copies.IDS}0"),
        *(state.value for state in IndexState),
        *(outbox.Touched.__struct_fields__[3:] + outbox.Entry.__struct_fields__),
    }

    assert {name for name in names if f"`{name}`" not in text} == set()
    assert f"first {layout.ROW_PROPERTIES} properties" in text
