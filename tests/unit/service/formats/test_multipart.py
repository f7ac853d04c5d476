import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InvalidRequestError
from partita.service.formats.multipart import (
    BOUNDARY_CHARACTERS_MAX,
    BatchRequest,
    batch_content_type,
    print_batch,
    read_batch,
)
from partita.service.http.request import Request, Response

TYPE = "multipart/mixed; boundary=batch_B"
CHANGE = (
    "--changeset_C\r\n"
    "Content-Type: application/http\r\n"
    "Content-Transfer-Encoding: binary\r\n"
    "\r\n"
    "DELETE http://host/acct/MyTab(PartitionKey='a',RowKey='b') HTTP/1.1\r\n"
    "If-Match: *\r\n"
    "\r\n"
    "\r\n"
)
QUERY = (
    "Content-Type: application/http\r\n"
    "\r\n"
    "GET http://host/acct/MyTab(PartitionKey='a',RowKey='b') HTTP/1.1\r\n"
    "\r\n"
)


def a_change_set(*parts: str) -> str:
    return (
        "--batch_B\r\n"
        "Content-Type: multipart/mixed; boundary=changeset_C\r\n"
        "\r\n" + "".join(parts) + "--changeset_C--\r\n"
    )


def a_batch(*parts: str) -> bytes:
    return (a_change_set(*parts) + "--batch_B--\r\n").encode()


def a_change(request: str, head: str = "Content-Type: application/http\r\n") -> str:
    return f"--changeset_C\r\n{head}\r\n{request}\r\n"


def the_part(request: str, root_path: str = "") -> Request:
    batch = read_batch(a_batch(a_change(request)), TYPE, root_path)
    assert len(batch.parts) == 1
    return batch.parts[0]


def refusal(body: bytes, content_type: str = TYPE) -> tuple[str, str]:
    with pytest.raises(InvalidRequestError) as caught:
        read_batch(body, content_type)
    return caught.value.code, caught.value.message


REFUSED = ("InvalidInput", "One of the request inputs is not valid.")


def test_a_change_set_is_read_in_order() -> None:
    insert = (
        "POST http://host/acct/MyTab?$format=json HTTP/1.1\r\n"
        "Content-Type: application/json;odata=nometadata\r\n"
        "Prefer: return-no-content\r\n"
        "Content-Length: 999\r\n"
        "\r\n"
        '{"PartitionKey":"a","RowKey":"100%25"}'
    )

    assert read_batch(a_batch(a_change(insert), CHANGE), TYPE) == BatchRequest(
        [
            Request(
                "POST",
                "/acct/MyTab",
                "$format=json",
                {
                    "content-type": "application/json;odata=nometadata",
                    "prefer": "return-no-content",
                    "content-length": "999",
                },
                b'{"PartitionKey":"a","RowKey":"100%25"}',
            ),
            Request(
                "DELETE", "/acct/MyTab(PartitionKey='a',RowKey='b')", "", {"if-match": "*"}, b""
            ),
        ],
        is_query=False,
    )


def test_a_lone_query_is_read() -> None:
    body = f"--batch_B\r\n{QUERY}--batch_B--\r\n".encode()

    assert read_batch(body, TYPE) == BatchRequest(
        [Request("GET", "/acct/MyTab(PartitionKey='a',RowKey='b')")], is_query=True
    )


def test_line_feeds_alone_end_lines_too() -> None:
    body = a_batch(CHANGE, a_change('PUT /MyTab HTTP/1.1\r\na: b\r\n\r\n{"x":1}'))

    assert read_batch(body.replace(b"\r\n", b"\n"), TYPE) == read_batch(body, TYPE)


def test_the_javascript_form_is_read() -> None:
    body = (
        b"--batch_1\r\n"
        b"content-type: multipart/mixed; boundary=changeset_1\r\n"
        b"\r\n"
        b"\r\n"
        b"--changeset_1\r\n"
        b"content-type: application/http\r\n"
        b"content-transfer-encoding: binary\r\n"
        b"\r\n"
        b"PATCH http://127.0.0.1:10002/acct/MyTab(PartitionKey='a',RowKey='''') HTTP/1.1\r\n"
        b"accept: application/json\r\n"
        b"\r\n"
        b"\r\n"
        b'{"x":1}\r\n'
        b"--changeset_1\r\n"
        b"content-type: application/http\r\n"
        b"content-transfer-encoding: binary\r\n"
        b"\r\n"
        b"DELETE http://127.0.0.1:10002/acct/MyTab(PartitionKey='a',RowKey='c') HTTP/1.1\r\n"
        b"If-Match: *\r\n"
        b"\r\n"
        b"\r\n"
        b"\r\n"
        b"--changeset_1--\r\n"
        b"--batch_1--\r\n"
    )

    patch, delete = read_batch(body, "multipart/mixed; boundary=batch_1").parts

    assert (patch.path, patch.body) == ("/acct/MyTab(PartitionKey='a',RowKey='''')", b'{"x":1}')
    assert (delete.method, delete.headers, delete.body) == ("DELETE", {"if-match": "*"}, b"")


@pytest.mark.parametrize(
    "end", ["--batch_B--", "--batch_B--\r\n\r\n", "--batch_B\r\n", "--batch_B", ""]
)
def test_the_end_of_the_body_closes_the_batch_too(end: str) -> None:
    batch = read_batch((a_change_set(CHANGE) + end).encode(), TYPE)

    assert [part.method for part in batch.parts] == ["DELETE"]


def test_the_end_of_the_part_closes_the_change_set_too() -> None:
    body = a_batch(CHANGE).replace(b"--changeset_C--\r\n", b"")

    assert len(read_batch(body, TYPE).parts) == 1


def test_a_change_set_boundary_may_begin_with_the_one_of_the_batch() -> None:
    body = a_batch(CHANGE, CHANGE).replace(b"changeset_C", b"batch_B_2")

    assert len(read_batch(body, TYPE).parts) == 2


@pytest.mark.parametrize(
    "content_type",
    [
        'multipart/mixed; boundary="batch_B"',
        "Multipart/Mixed;Boundary=batch_B",
        "multipart/mixed; charset=utf-8; boundary=batch_B ; x=y",
    ],
)
def test_a_boundary_may_be_written_in_several_ways(content_type: str) -> None:
    assert len(read_batch(a_batch(CHANGE), content_type).parts) == 1


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("http://elsewhere:1/acct/MyTab", "/acct/MyTab"),
        ("https://acct.table.core.windows.net/MyTab", "/acct/MyTab"),
        ("/acct/MyTab", "/acct/MyTab"),
        ("/MyTab", "/acct/MyTab"),
        ("MyTab", "/acct/MyTab"),
        ("acct(PartitionKey='a',RowKey='b')", "/acct/acct(PartitionKey='a',RowKey='b')"),
        ("MyTab(PartitionKey='a', RowKey='b c')", "/acct/MyTab(PartitionKey='a', RowKey='b c')"),
        (
            "MyTab(PartitionKey='http://x',RowKey='')",
            "/acct/MyTab(PartitionKey='http://x',RowKey='')",
        ),
    ],
)
def test_every_address_becomes_a_path_below_the_account(address: str, path: str) -> None:
    assert the_part(f"PUT {address} HTTP/1.1\r\n", "/acct").path == path


def test_in_host_style_a_relative_address_starts_at_the_root() -> None:
    assert the_part("PUT MyTab HTTP/1.1\r\n").path == "/MyTab"


def test_content_id_is_kept_only_where_it_stands_inside_the_request() -> None:
    outer = a_change(
        "PUT /MyTab HTTP/1.1\r\n", "Content-Type: application/http\r\nContent-ID: 1\r\n"
    )
    inner = a_change("PUT /MyTab HTTP/1.1\r\nContent-ID: 2\r\n")

    parts = read_batch(a_batch(outer, inner), TYPE).parts

    assert [part.headers.get("content-id") for part in parts] == [None, "2"]


def test_a_repeated_header_is_joined_and_remembered() -> None:
    part = the_part("PUT /MyTab HTTP/1.1\r\nIf-Match: a\r\nx: y\r\nIF-MATCH: b\r\n")

    assert part.headers == {"if-match": "a,b", "x": "y"}
    assert part.repeated == {"if-match"}


def test_a_group_too_large_is_cut_one_after_the_limit() -> None:
    assert len(read_batch(a_batch(*[CHANGE] * 100), TYPE).parts) == 100
    assert len(read_batch(a_batch(*[CHANGE] * 101), TYPE).parts) == 101
    assert len(read_batch(a_batch(*[CHANGE] * 500), TYPE).parts) == 101


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "multipart/mixed",
        "multipart/mixed; boundary=",
        'multipart/mixed; boundary=""',
        "multipart/mixed; boundary=other",
        "multipart/mixed; boundary=batch_B; boundary=batch_B",
        "multipart/related; boundary=batch_B",
        "multipart/mixed; boundary=b\u00e9",
        'multipart/mixed; boundary="batch_B "',
        "multipart/mixed; boundary=" + "b" * (BOUNDARY_CHARACTERS_MAX + 1),
        "multipart/mixed; boundary=" + "b" * 2048,
        "multipart/mixed; boundary=batch_B;" + " " * 5000,
    ],
)
def test_a_content_type_without_a_usable_boundary_is_refused(content_type: str) -> None:
    assert refusal(a_batch(CHANGE), content_type) == REFUSED


def test_the_longest_boundary_is_accepted() -> None:
    boundary = "b" * BOUNDARY_CHARACTERS_MAX
    body = a_batch(CHANGE).replace(b"batch_B", boundary.encode())

    assert len(read_batch(body, f"multipart/mixed; boundary={boundary}").parts) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\r\n",
        b"--batch_B",
        b"--batch_B--\r\n",
        b"--batch_B\r\n\r\n--batch_B--\r\n",
        b"--batch_B\r\n--batch_B--\r\n",
        a_batch("\r\n--changeset_C\r\n\r\n" * 2),
        a_batch("--changeset_C\r\n\r\n", CHANGE),
        b"--transaction_1\r\n" + a_batch(CHANGE),
        b"x--batch_B\r\n" + a_batch(CHANGE),
        (a_change_set(CHANGE) + a_change_set(CHANGE) + "--batch_B--\r\n").encode(),
        (a_change_set(CHANGE) + f"--batch_B\r\n{QUERY}--batch_B--\r\n").encode(),
        (f"--batch_B\r\n{QUERY}" + a_change_set(CHANGE) + "--batch_B--\r\n").encode(),
        f"--batch_B\r\n{QUERY}--batch_B\r\n{QUERY}--batch_B--\r\n".encode(),
        f"--batch_B\r\n{QUERY}--batch_B--\r\n".replace("GET", "PUT").encode(),
        a_batch(f"--changeset_C\r\n{QUERY}"),
        a_batch(CHANGE.replace("application/http", "application/json")),
        a_batch(CHANGE.replace("application/http", "multipart/mixed; boundary=deeper")),
        a_batch(CHANGE.replace("binary", "base64")),
        a_batch(CHANGE.replace("Content-Type: application/http\r\n", "")),
        a_batch(CHANGE.replace("Content-Type: application/http", "Content-Type application/http")),
        a_batch(a_change("", "Content-Type: application/http\r\n" * 2)),
    ],
)
def test_a_malformed_envelope_is_refused(body: bytes) -> None:
    assert refusal(body) == REFUSED


@pytest.mark.parametrize("blank", ["", "--changeset_C\r\n\r\n", "--changeset_C\r\n"])
def test_a_change_set_without_parts_is_read_as_empty(blank: str) -> None:
    assert read_batch(a_batch(blank), TYPE) == BatchRequest([], is_query=False)


@pytest.mark.parametrize(
    "request_text",
    [
        "",
        "\r\n",
        "PUT\r\n",
        "PUT /MyTab\r\n",
        "PUT HTTP/1.1\r\n",
        "PUT /MyTab HTTP/2\r\n",
        "put /MyTab HTTP/1.1\r\n",
        "P\u00dcT /MyTab HTTP/1.1\r\n",
        "PUT /MyTab HTTP/1.1\r\nno colon\r\n",
        "PUT /MyTab HTTP/1.1\r\na : b\r\n",
        "PUT /MyTab HTTP/1.1\r\n: b\r\n",
        "PUT /MyTab HTTP/1.1\r\na: b\r\n folded: c\r\n",
        "PUT /MyTab HTTP/1.1\r\na: b\x00c\r\n",
        "PUT /MyTab HTTP/1.1\r\na: b\rc: d\r\n",
        "PUT /My\x01Tab HTTP/1.1\r\n",
        "PUT /MyTab HTTP/1.1\r\n" + "a: b\r\n" * 65,
        "PUT /MyTab HTTP/1.1\r\na: " + "b" * 20_000 + "\r\n",
    ],
)
def test_a_malformed_request_in_a_part_is_refused(request_text: str) -> None:
    assert refusal(a_batch(a_change(request_text))) == REFUSED


def test_headers_that_are_not_utf8_are_refused() -> None:
    assert refusal(a_batch(CHANGE).replace(b"If-Match: *", b"If-Match: \xff")) == REFUSED


@pytest.mark.parametrize(
    "unit",
    [
        b"--batch_B\r\n",
        b"\n--batch_Bx",
        b"\n--batch_",
        b"-",
        b"\r\n",
        b"\n--changeset_Cx",
        b"--changeset_C\r\n",
    ],
)
@pytest.mark.parametrize("front", [b"", a_batch(CHANGE).partition(b"If-Match")[0]])
def test_four_mebibytes_of_boundary_like_garbage_take_no_time(front: bytes, unit: bytes) -> None:
    body = front + unit * (4 * 1024 * 1024 // len(unit))

    started = time.process_time()
    with contextlib.suppress(InvalidRequestError):
        read_batch(body, TYPE)
    # Measured at 45 ms at most; quadratic time would be minutes.
    assert time.process_time() - started < 1.0


@given(st.binary(max_size=300))
def test_only_typed_errors_come_out_of_a_body(body: bytes) -> None:
    with contextlib.suppress(InvalidRequestError):
        read_batch(a_batch(CHANGE)[: len(body)] + body, TYPE)


NO_CONTENT = Response(
    204,
    [
        ("X-Content-Type-Options", "nosniff"),
        ("Cache-Control", "no-cache"),
        ("Preference-Applied", "return-no-content"),
        ("DataServiceVersion", "3.0;"),
        ("Location", "http://host/MyTab(PartitionKey='003',RowKey='r')"),
        ("DataServiceId", "http://host/MyTab(PartitionKey='003',RowKey='r')"),
        ("ETag", "W/\"datetime'2021-10-18T21%3A58%3A33.8431842Z'\""),
    ],
)


def test_the_answer_to_a_change_set_is_exact_to_the_byte() -> None:
    created = Response(201, [("DataServiceVersion", "3.0;")], b'{"a":"\xc3\xa9"}')

    assert print_batch([NO_CONTENT, created], "X", "Y") == (
        b"--batchresponse_X\r\n"
        b"Content-Type: multipart/mixed; boundary=changesetresponse_Y\r\n"
        b"\r\n"
        b"--changesetresponse_Y\r\n"
        b"Content-Type: application/http\r\n"
        b"Content-Transfer-Encoding: binary\r\n"
        b"\r\n"
        b"HTTP/1.1 204 No Content\r\n"
        b"X-Content-Type-Options: nosniff\r\n"
        b"Cache-Control: no-cache\r\n"
        b"Preference-Applied: return-no-content\r\n"
        b"DataServiceVersion: 3.0;\r\n"
        b"Location: http://host/MyTab(PartitionKey='003',RowKey='r')\r\n"
        b"DataServiceId: http://host/MyTab(PartitionKey='003',RowKey='r')\r\n"
        b"ETag: W/\"datetime'2021-10-18T21%3A58%3A33.8431842Z'\"\r\n"
        b"\r\n"
        b"\r\n"
        b"--changesetresponse_Y\r\n"
        b"Content-Type: application/http\r\n"
        b"Content-Transfer-Encoding: binary\r\n"
        b"\r\n"
        b"HTTP/1.1 201 Created\r\n"
        b"DataServiceVersion: 3.0;\r\n"
        b"\r\n"
        b'{"a":"\xc3\xa9"}\r\n'
        b"--changesetresponse_Y--\r\n"
        b"--batchresponse_X--\r\n"
    )


def test_the_answer_to_a_lone_query_has_no_change_set() -> None:
    missing = Response(404, [("DataServiceVersion", "3.0;")], b"{}")

    assert print_batch([missing], "X", None) == (
        b"--batchresponse_X\r\n"
        b"Content-Type: application/http\r\n"
        b"Content-Transfer-Encoding: binary\r\n"
        b"\r\n"
        b"HTTP/1.1 404 Not Found\r\n"
        b"DataServiceVersion: 3.0;\r\n"
        b"\r\n"
        b"{}\r\n"
        b"--batchresponse_X--\r\n"
    )


def test_the_content_type_of_the_answer_names_its_boundary() -> None:
    assert batch_content_type("X") == "multipart/mixed; boundary=batchresponse_X"
