"""Every type through every format, and hostile files."""

import io
import json
import shlex
from collections.abc import Iterator

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from partita.bulk.canonical import canonical
from partita.bulk.entities import Typed, parse_entity, print_entity
from partita.bulk.formats import csv_rows, json_lines
from partita.bulk.formats.columns import (
    Column,
    ColumnCounter,
    FileColumn,
    TypeGuess,
    parse_renames,
    parse_types,
)
from partita.bulk.formats.csv_rows import CsvOptions
from partita.bulk.formats.parquet import (
    describe_parquet,
    fits_nanoseconds,
    import_pyarrow,
    parquet_rows,
    write_parquet,
)
from partita.bulk.formats.rows import Reject, Row
from partita.errors import ConfigurationError
from partita.tables import edm
from support.bulk_strategies import entities

RENAMES = ["Taken At=TakenAt", "=Text"]
ANY = st.lists(entities(), max_size=6)
BYTES = st.binary(max_size=80) | st.text('{}[]",:\\abc\r\n', max_size=60).map(str.encode)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def documents_of(rows: Iterator[Row | Reject]) -> list[bytes]:
    found = list(rows)
    assert not [row for row in found if isinstance(row, Reject)], found
    return [canonical(row.document) for row in found if isinstance(row, Row)]


def columns_of(found: list[Typed]) -> list[Column]:
    counter = ColumnCounter()
    for entity in found:
        counter.add(entity)
    return counter.columns()


def expected(found: list[Typed]) -> list[bytes]:
    return [canonical(print_entity(entity)) for entity in found]


@given(ANY, st.integers(1, 64))
def test_json_lines_keep_every_type(found: list[Typed], size: int) -> None:
    data = b"".join(print_entity(entity) + b"\n" for entity in found)

    assert documents_of(json_lines.line_rows(pieces(data, size))) == expected(found)


@given(ANY, st.integers(1, 64), st.booleans())
def test_json_documents_keep_every_type(found: list[Typed], size: int, in_array: bool) -> None:
    text = b"[" + b",\r\n ".join(map(print_entity, found)) + b"]"
    data = text if in_array else b'{"odata.metadata":"http://x/{}","value":' + text + b"}"

    assert documents_of(json_lines.document_rows(pieces(data, size))) == expected(found)


@given(ANY, st.integers(1, 64))
def test_csv_keeps_every_type(found: list[Typed], size: int) -> None:
    columns = columns_of(found)
    data = csv_rows.print_header(columns)
    data += b"".join(csv_rows.print_row(entity, columns) for entity in found)

    assert documents_of(csv_rows.csv_rows(pieces(data, size), CsvOptions())) == expected(found)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)
@given(ANY)
def test_parquet_keeps_every_type(found: list[Typed]) -> None:
    odd = {
        name
        for entity in found
        for name in entity.properties
        if entity.properties.get(f"{name}@odata.type") == edm.DATETIME
        and not fits_nanoseconds(str(entity.properties[name]))
    }
    columns = [Column(each.name, None) if each.name in odd else each for each in columns_of(found)]
    file = io.BytesIO()
    write_parquet(file, found, columns)
    read = documents_of(parquet_rows(io.BytesIO(file.getvalue()), CsvOptions()))

    assert read == expected(found)


def test_a_double_stays_a_double_and_digits_of_times_are_kept() -> None:
    entity = parse_entity(
        b'{"PartitionKey":"p","RowKey":"r","Salary":3750.0,"Big@odata.type":"Edm.Int64",'
        b'"Big":"9007199254740993","At@odata.type":"Edm.DateTime",'
        b'"At":"2024-02-29T23:59:59.1234567Z","Odd@odata.type":"Edm.Double","Odd":"NaN"}'
    )
    columns = columns_of([entity])
    line = csv_rows.print_row(entity, columns)
    file = io.BytesIO()
    write_parquet(file, [entity], columns)

    assert b"3750.0,Edm.Double" in line
    assert b"2024-02-29T23:59:59.1234567Z" in line
    assert documents_of(parquet_rows(io.BytesIO(file.getvalue()), CsvOptions())) == [
        canonical(print_entity(entity))
    ]


# --- hostile files


@given(BYTES, st.integers(1, 9))
def test_any_bytes_are_rows_or_rejects(data: bytes, size: int) -> None:
    for reader in (json_lines.line_rows, json_lines.document_rows):
        for row in reader(pieces(data, size)):
            if isinstance(row, Row):
                assert json.loads(row.document)["PartitionKey"] == row.partition_key
            else:
                assert row.reason


@given(BYTES, st.integers(1, 9))
def test_any_bytes_after_a_header_are_rows_or_rejects(data: bytes, size: int) -> None:
    header = b"PartitionKey,RowKey,A,A@type\r\n"
    for row in csv_rows.csv_rows(pieces(header + data, size), CsvOptions()):
        assert isinstance(row, Row) or row.reason


@given(BYTES, st.integers(1, 9))
def test_the_size_of_pieces_changes_nothing(data: bytes, size: int) -> None:
    for split in (json_lines.split_lines, json_lines.split_objects):
        assert list(split(pieces(data, size))) == list(split([data]))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"x", "malformed"),
        (b"[]", "JSON object"),
        (b'{"PartitionKey":"p"}', "no RowKey"),
        (b'{"PartitionKey":1,"RowKey":"r"}', "PartitionKey"),
        (b'{"PartitionKey":"p","RowKey":"r"', "truncated"),
        (b'{"PartitionKey":"p","RowKey":"\xff"}', "utf-8"),
        (b'{"PartitionKey":"p","RowKey":"r","A":' + b"[" * 50_000, "recursion"),
        (b'{"PartitionKey":"p","RowKey":1,"A":' + b"[" * 50_000, "JSON object"),
    ],
)
def test_a_bad_line_has_its_place_and_reason(line: bytes, reason: str) -> None:
    found = list(json_lines.line_rows([b'{"PartitionKey":"p","RowKey":"r"}\n\n' + line]))

    assert isinstance(found[1], Reject)
    assert found[1].place == 3
    assert reason in found[1].reason


def test_a_line_above_the_limit_is_one_reject_and_the_next_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_lines, "LINE_BYTES_MAX", 100)
    good = b'{"PartitionKey":"p","RowKey":"r"}\n'
    data = good + b"x" * 500 + b"\n" + good

    found = list(json_lines.line_rows(pieces(data, 50)))

    assert [type(row) for row in found] == [Row, Reject, Row]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (b"p,r,7", "has 3 cells"),
        (b'p,r,"7,Edm.Int32', "quotes"),
        (b"p,r,x,Edm.Int32", "Int32"),
        (b"p,r,7,Edm.Money", "type"),
        (b"p,r,7,", "type"),
        (b"a/b,r,,", "out of range"),
        (b"p,r,\xff,Edm.String", "quotes"),
    ],
)
def test_a_bad_record_has_its_line_and_reason(cells: bytes, reason: str) -> None:
    data = b'PartitionKey,RowKey,A,A@type\r\np,r,"1\n2",Edm.String\r\n' + cells

    first, second = csv_rows.csv_rows([data], CsvOptions())

    assert isinstance(first, Row)
    assert isinstance(second, Reject)
    assert second.place == 4
    assert reason in second.reason


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (b"", "HeaderUnusable"),
        (b"PartitionKey,Age", "HeaderUnusable"),
        (b"PartitionKey,RowKey,A,A", "HeaderUnusable"),
        (b"PartitionKey,RowKey,Age", "TypesMissing"),
    ],
)
def test_a_header_that_is_not_usable_is_an_error(header: bytes, code: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        list(csv_rows.csv_rows([header + b"\n"], CsvOptions()))

    assert caught.value.code == code


def test_a_column_with_the_name_of_a_key_is_not_lost_when_another_is_the_key() -> None:
    file = [b"PartitionKey,RowKey,Status@type,Status\nada,1,String,open\n"]

    with pytest.raises(ConfigurationError) as caught:
        list(csv_rows.csv_rows(file, CsvOptions(partition_key="Status")))

    assert caught.value.code == "HeaderUnusable"
    assert "'PartitionKey' cannot be a property" in caught.value.message


def test_absent_and_empty_text_differ() -> None:
    data = b'PartitionKey,RowKey,A\np,1,\np,2,""\n'

    rows = documents_of(csv_rows.csv_rows([data], CsvOptions({"A": edm.STRING})))

    assert b'"A"' not in rows[0]
    assert b'"A":""' in rows[1]


def test_types_are_guessed_from_all_rows_and_text_stays_text() -> None:
    data = (
        b"PartitionKey,RowKey,I,L,D,B,T,G,Zip,Phone,Mixed,Empty\n"
        b"p,1,1,1,1,true,2024-01-01,abcdef00-0000-4000-8000-00000000000f,01234,+351,1,\n"
        b"p,2,2,3000000000,1.5,FALSE,2024-01-01T10:00:00Z,,98765,12,x,\n"
    )

    found = {each.name: each.kind for each in csv_rows.guess_types([data], CsvOptions())}

    assert found == {
        "I": edm.INT32,
        "L": edm.INT64,
        "D": edm.DOUBLE,
        "B": edm.BOOLEAN,
        "T": edm.DATETIME,
        "G": edm.GUID,
        "Zip": edm.STRING,
        "Phone": edm.STRING,
        "Mixed": edm.STRING,
        "Empty": edm.STRING,
    }


def test_columns_are_described_before_a_key_is_chosen() -> None:
    data = b"country,id,Total,Total@type\nCH,1,3.5,Edm.Double\nIT,2,x,Edm.String\n"

    assert csv_rows.describe_columns([data]) == [
        FileColumn("country", edm.STRING, ["CH", "IT"]),
        FileColumn("id", edm.INT32, ["1", "2"]),
        FileColumn("Total", None, ["3.5", "x"]),
    ]


def test_columns_of_parquet_are_described_with_their_first_values() -> None:
    pa = import_pyarrow()
    file = io.BytesIO()
    table = pa.table({"country": ["CH", "IT"], "total": [3.5, None]})
    pa.parquet.write_table(table, file)

    assert describe_parquet(file) == [
        FileColumn("country", None, ["CH", "IT"]),
        FileColumn("total", None, ["3.5"]),
    ]


@given(st.lists(st.text(max_size=8), min_size=1, max_size=5))
def test_a_guessed_type_reads_every_text_it_was_guessed_from(texts: list[str]) -> None:
    guess = TypeGuess()
    for text in texts:
        guess.add(text)
    for text in texts:
        edm.canonical("A", text, guess.kind)


def test_types_of_the_command_line() -> None:
    assert parse_types(["A=int64, B=Edm.Guid", "C=Double"]) == {
        "A": edm.INT64,
        "B": edm.GUID,
        "C": edm.DOUBLE,
    }
    for wrong in ("A", "A=", "=Int32", "A=Money"):
        with pytest.raises(ConfigurationError):
            parse_types([wrong])


def test_other_columns_can_be_the_keys() -> None:
    options = CsvOptions({"age": edm.INT32}, "country", "id")

    found = documents_of(csv_rows.csv_rows([b"country,id,age\nPT,7,42\n"], options))

    assert msgspec.json.decode(found[0]) == {"PartitionKey": "PT", "RowKey": "7", "age": 42}


def test_columns_become_the_properties_that_are_named() -> None:
    header = b"Site,Reading Id,Taken At,Taken At@type,\n"
    options = CsvOptions({"Text": edm.STRING}, "Site", "Reading Id", parse_renames(RENAMES))

    (found,) = documents_of(csv_rows.csv_rows([header + b"a,7,5,Int32,x\n"], options))

    assert msgspec.json.decode(found) == {
        "PartitionKey": "a",
        "RowKey": "7",
        "TakenAt": 5,
        "Text": "x",
    }


def test_columns_of_parquet_become_the_properties_that_are_named() -> None:
    pyarrow = import_pyarrow()
    file = io.BytesIO()
    columns = {"Site": ["a"], "Reading Id": ["7"], "Taken At": [5], "": ["x"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    options = CsvOptions({}, "Site", "Reading Id", parse_renames(RENAMES))

    (found,) = documents_of(parquet_rows(io.BytesIO(file.getvalue()), options))

    assert msgspec.json.decode(found)["Text"] == "x"
    assert b'"TakenAt":"5"' in found


def test_a_renamed_column_can_be_a_key() -> None:
    options = CsvOptions({}, "Order No", "RowKey", {"Order No": "PartitionKey"})

    (found,) = documents_of(csv_rows.csv_rows([b"Order No,RowKey\n7,1\n"], options))

    assert msgspec.json.decode(found) == {"PartitionKey": "7", "RowKey": "1"}


def test_names_that_no_property_can_have_are_listed_with_what_to_add() -> None:
    header = b"PartitionKey,Row Key,Taken At,2nd,it's,\n"

    with pytest.raises(ConfigurationError) as caught:
        list(csv_rows.csv_rows([header], CsvOptions(row_key="Row Key")))

    flags = shlex.split(caught.value.hint.partition(": ")[2])[1::2]
    renames = parse_renames(flags)
    assert renames == {"Taken At": "TakenAt", "2nd": "_2nd", "it's": "ItS", "": "Column"}
    options = CsvOptions(dict.fromkeys(renames.values(), edm.STRING), row_key="Row Key")
    rows = csv_rows.csv_rows([header], msgspec.structs.replace(options, renames=renames))
    assert not list(rows)


@pytest.mark.parametrize("text", ["TakenAt", "Taken At=", "=", ""])
def test_a_rename_needs_a_column_and_a_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match="COLUMN=NAME"):
        parse_renames([text])


def test_a_rename_of_a_column_that_the_file_does_not_have_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="'Taken On'"):
        list(csv_rows.csv_rows([b"PartitionKey,RowKey\n"], CsvOptions(renames={"Taken On": "T"})))


def test_cells_that_look_like_formulas_are_marked_on_request() -> None:
    entity = parse_entity(b'{"PartitionKey":"p","RowKey":"r","A":"=1+1"}')

    assert b"'=1+1" in csv_rows.print_row(entity, columns_of([entity]), is_safe=True)
    assert b"'=1+1" not in csv_rows.print_row(entity, columns_of([entity]))


def test_parquet_of_other_programs_is_read_by_its_types() -> None:
    pa = import_pyarrow()
    table = pa.table(
        {
            "PartitionKey": pa.array(["p"]),
            "RowKey": pa.array(["r"]),
            "small": pa.array([7], pa.int8()),
            "long": pa.array([7], pa.int64()),
            "real": pa.array([float("inf")], pa.float64()),
            "word": pa.array(["x"]).dictionary_encode(),
            "at": pa.array([1_000_001], pa.timestamp("us", tz="UTC")),
        }
    )
    file = io.BytesIO()
    pa.parquet.write_table(table, file)

    (row,) = documents_of(parquet_rows(io.BytesIO(file.getvalue()), CsvOptions()))

    assert msgspec.json.decode(row) == {
        "PartitionKey": "p",
        "RowKey": "r",
        "small": 7,
        "long": "7",
        "long@odata.type": "Edm.Int64",
        "real": "Infinity",
        "real@odata.type": "Edm.Double",
        "word": "x",
        "at": "1970-01-01T00:00:01.000001Z",
        "at@odata.type": "Edm.DateTime",
    }


def test_a_type_without_an_equivalent_must_be_given() -> None:
    pa = import_pyarrow()
    table = pa.table(
        {"PartitionKey": ["p"], "RowKey": ["r"], "at": pa.array([0], pa.timestamp("us"))}
    )
    file = io.BytesIO()
    pa.parquet.write_table(table, file)

    with pytest.raises(ConfigurationError) as caught:
        list(parquet_rows(io.BytesIO(file.getvalue()), CsvOptions()))

    assert caught.value.code == "TypesMissing"
    with pytest.raises(ConfigurationError):
        list(parquet_rows(io.BytesIO(b"not parquet"), CsvOptions()))


def test_a_key_of_parquet_that_is_zero_is_not_an_empty_key() -> None:
    pa = import_pyarrow()
    file = io.BytesIO()
    table = pa.table({"PartitionKey": [0, 1], "RowKey": [0.0, None], "A": [1, 2]})
    pa.parquet.write_table(table, file)

    rows = parquet_rows(io.BytesIO(file.getvalue()), CsvOptions())

    assert [(row.partition_key, row.row_key) for row in rows if isinstance(row, Row)] == [
        ("0", "0.0"),
        ("1", ""),
    ]


def test_a_damaged_page_of_parquet_is_an_error_of_the_file() -> None:
    pa = import_pyarrow()
    file = io.BytesIO()
    keys = [str(number) for number in range(20_000)]
    pa.parquet.write_table(pa.table({"PartitionKey": keys, "RowKey": keys}), file)
    damaged = bytearray(file.getvalue())
    damaged[100:3000] = bytes(byte ^ 0x5A for byte in damaged[100:3000])

    with pytest.raises(ConfigurationError) as caught:
        list(parquet_rows(io.BytesIO(bytes(damaged)), CsvOptions()))

    assert caught.value.code == "FileUnreadable"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("0.1", edm.DOUBLE),
        ("-1.7976931348623157e308", edm.DOUBLE),
        ("100000000000000000000", edm.DOUBLE),
        ("12345678901234567890", edm.STRING),
        ("0.12345678901234567890", edm.STRING),
    ],
)
def test_a_number_that_would_lose_digits_stays_text(text: str, kind: str) -> None:
    guess = TypeGuess()
    guess.add(text)

    assert guess.kind == kind


def test_a_header_of_too_many_columns_is_refused_at_once() -> None:
    header = b"PartitionKey,RowKey" + b",a" * 1_000_000 + b"\n"

    with pytest.raises(ConfigurationError) as caught:
        list(csv_rows.csv_rows([header], CsvOptions()))

    assert caught.value.code == "TooManyColumns"


def test_values_of_parquet_that_cannot_be_converted_are_rejected() -> None:
    pa = import_pyarrow()
    year_20000 = 6_585_412
    columns = {
        "PartitionKey": ["p"] * 6,
        "RowKey": ["0", "1", "2", "3", "4", "5"],
        "day": pa.array([0, year_20000, None, None, None, None], pa.date32()),
        "at": pa.array([0, None, 2**50, None, None, None], pa.timestamp("s", tz="UTC")),
        "clock": pa.array([1000, None, None, 1, None, None], pa.time64("ns")),
        "word": pa.array([b"a", None, None, None, b"\xff", None]).cast(pa.string(), safe=False),
        "list": pa.array([None, None, None, None, None, [1]], pa.list_(pa.int8())),
    }
    file = io.BytesIO()
    pa.parquet.write_table(pa.table(columns), file)
    types = {"day": edm.DATETIME, "clock": edm.STRING, "list": edm.INT32}

    rows = list(parquet_rows(io.BytesIO(file.getvalue()), CsvOptions(types)))

    assert [(row.place, type(row)) for row in rows] == [
        (1, Row),
        *((place, Reject) for place in range(2, 7)),
    ]
    rejects = [row for row in rows if isinstance(row, Reject)]
    named = ["day", "at:", "clock", "word", "list"]
    assert [name in each.reason for name, each in zip(named, rejects, strict=True)] == [True] * 5
    assert all("PartitionKey='p'" in each.text for each in rejects)
