import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InvalidKeyError, LimitExceededError
from partita.queues import limits
from partita.queues.message import (
    MessagePlace,
    check_text,
    expiry_of,
    find_place,
    find_receipt,
    new_receipt,
    nonce_of,
    print_id,
    print_receipt,
)
from partita.queues.names import check_queue_name
from partita.ticks import TICKS_PER_SECOND

PLACES = st.builds(
    MessagePlace,
    st.integers(0, 2**62 - 1),
    st.binary(min_size=8, max_size=8).map(nonce_of),
)


@given(PLACES)
def test_an_identifier_is_a_guid_that_finds_its_place(place: MessagePlace) -> None:
    text = print_id(place)

    assert uuid.UUID(text).version == 4
    assert find_place(text) == find_place(text.upper()) == place


@given(PLACES)
def test_a_nonce_fits_into_a_signed_number_of_64_bits(place: MessagePlace) -> None:
    assert -(2**63) <= place.nonce < 2**63


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "00000000-0000-4000-8000-00000000000",
        "00000000-0000-1000-8000-000000000007",
        "00000000-0000-4000-c000-000000000007",
        "{00000000-0000-4000-8000-000000000007}",
        "00000000-0000-4000-8000-00000000000\u0667",
    ],
)
def test_other_texts_are_no_identifiers(text: str) -> None:
    assert find_place(text) is None


@given(st.integers(0, 2**63 - 1), st.binary(min_size=16, max_size=16))
def test_a_receipt_is_read_as_it_was_printed(stamp: int, secret: bytes) -> None:
    receipt = new_receipt(stamp, secret)

    assert find_receipt(print_receipt(receipt)) == receipt


@pytest.mark.parametrize("text", ["", "x", "AAAA", "é", "!" * 32, "A" * 20, "A" * 33])
def test_a_text_that_is_not_base64_of_a_receipt_is_malformed(text: str) -> None:
    assert find_receipt(text) is None


@pytest.mark.parametrize("size", [16, 20, 24, 27, 30])
def test_a_receipt_of_another_server_is_well_formed(size: int) -> None:
    assert find_receipt(print_receipt(bytes(size))) == bytes(size)


def test_a_lifetime_ends_in_the_year_9999_at_the_latest() -> None:
    assert expiry_of(5, 2) == 5 + 2 * TICKS_PER_SECOND
    assert expiry_of(5, None) == limits.NEVER
    assert expiry_of(limits.NEVER - 1, 2) == limits.NEVER


@pytest.mark.parametrize("text", ["x" * 65536, "é" * 32768, "\U0001f600" * 16384])
def test_a_text_of_64_kib_is_taken_and_not_one_byte_more(text: str) -> None:
    assert check_text(text) == text
    with pytest.raises(LimitExceededError) as refused:
        check_text(text + "x")

    assert refused.value.code == "RequestBodyTooLarge"


@pytest.mark.parametrize("name", ["abc", "a-b", "0-1-2", "a" * 63, "123"])
def test_names_of_queues(name: str) -> None:
    assert check_queue_name(name) == name


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ab", "OutOfRangeInput"),
        ("a" * 64, "OutOfRangeInput"),
        ("", "OutOfRangeInput"),
        ("Abc", "InvalidResourceName"),
        ("a--b", "InvalidResourceName"),
        ("-ab", "InvalidResourceName"),
        ("ab-", "InvalidResourceName"),
        ("a_b", "InvalidResourceName"),
        ("a.b", "InvalidResourceName"),
        ("abc\n", "InvalidResourceName"),
        ("äbc", "InvalidResourceName"),
        ("a/b", "InvalidResourceName"),
    ],
)
def test_invalid_queue_names(name: str, code: str) -> None:
    with pytest.raises(InvalidKeyError) as refused:
        check_queue_name(name)

    assert refused.value.code == code
