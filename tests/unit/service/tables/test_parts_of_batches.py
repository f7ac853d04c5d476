"""Equal parts of a batch are read and printed at once, with the same result as one by one."""

from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InvalidRequestError
from partita.service.formats.multipart import print_part, read_batch
from partita.service.http.request import Request
from partita.service.tables import answers
from partita.service.tables.calls import NO_CONTENT, Change, Level
from partita.tables.entity import EntityKey, build
from partita.tables.operations import Insert

HEADS = (
    "Content-Type: application/http\r\n\r\nPOST /a/T HTTP/1.1\r\nA: b\r\n\r\n",
    "Content-Type: application/http\r\n\r\nPOST /a/T HTTP/1.1\r\nA: b\r\n\r\n\r\n",
    "Content-Type: application/http\n\n\r\n\nPUT /a/T(PartitionKey='p',RowKey='r') HTTP/1.1\n\n",
    "Content-Type: application/http\r\n\r\nDELETE /a/T HTTP/1.1\r\nIf-Match: *",
    "Content-Type: application/http\r\n\r\nDELETE /a/T HTTP/1.1\r\nIf-Match: *\r\nB: c",
)
BODIES = ("", "{}", "\r\n{}\r\n", "\n\n", "x\r\n\r\ny", "\r", "--c", "A: b")


def change_set(parts: list[str]) -> bytes:
    text = "--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n"
    return (text + "".join(f"--c\r\n{part}\r\n" for part in parts) + "--c--\r\n--b--\r\n").encode()


def read(parts: list[str]) -> list[Request] | None:
    """Return the requests of a change set; None if it is refused."""
    try:
        return read_batch(change_set(parts), "multipart/mixed; boundary=b").parts
    except InvalidRequestError:
        return None


@given(
    st.lists(st.builds(str.__add__, st.sampled_from(HEADS), st.sampled_from(BODIES)), min_size=1)
)
def test_parts_are_read_as_if_each_was_alone(parts: list[str]) -> None:
    alone = [read([part]) for part in parts]

    together = read(parts)

    assert together == (None if None in alone else [each[0] for each in alone if each])


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=9),
    st.text(max_size=9),
    st.integers(0, 2**60),
    st.sampled_from(["http://127.0.0.1:10002/acct", "https://acct.table.example.net"]),
)
def test_an_insert_without_content_is_printed_like_other_parts(
    partition_key: str, row_key: str, ticks: int, root: str
) -> None:
    key = EntityKey(partition_key, row_key)
    call = Change("Staff", Insert(key, {}), Level.MINIMAL, NO_CONTENT)
    entity = build(key, ticks, {})

    printed = answers.part_of_change(entity, call, root, "acct")

    assert printed == print_part(answers._part_of_change(entity, call, root, "acct"))
