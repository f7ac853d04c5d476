import json
import math
import re
import struct
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import aes_key_unwrap, aes_key_wrap
from hypothesis import given
from hypothesis import strategies as st

from docs.sources import PROJECT
from partita.clock import ManualClock, SystemClock
from partita.errors import (
    EncryptionKeyError,
    FormatVersionError,
    InvalidPropertyError,
    LimitExceededError,
    PartitaError,
    SealBrokenError,
)
from partita.patterns.encryption.keyring import AesKey, Keyring, RsaKey
from partita.patterns.encryption.sealing import (
    SEAL,
    SEALED_BYTES_MORE,
    is_sealed,
    needed_for,
    rewrap,
    seal,
    sealed_names,
    unseal,
)
from partita.patterns.protocol.values import Instant, Int32, RowKey, Value
from partita.tables import edm, limits

SECRET = bytes(range(32))
KEYRING = Keyring.from_bytes("k1", SECRET)
KEY = RowKey("Sales", "emp_000123")
MOMENT = datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)
EVERY_TYPE: dict[str, Value] = {
    "Text": "Žofia 潤 😀",
    "Bytes": b"\0\xff",
    "Flag": True,
    "Small": Int32(-7),
    "Large": 2**40,
    "Real": -0.1,
    "Moment": Instant.of(MOMENT, "2024-02-29T23:59:59.1234567Z"),
    "Id": UUID(int=2**127 + 5),
}

TEXTS = st.text()
MOMENTS = st.datetimes(
    datetime(1, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
    datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5))]),
)
INSTANTS = st.integers(edm.TICKS_MIN, edm.TICKS_MAX).map(
    lambda ticks: Instant.of(
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ticks // 10), edm.text_of(ticks)
    )
)
VALUES: st.SearchStrategy[Value] = st.one_of(
    TEXTS,
    st.binary(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1).map(Int32),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    MOMENTS,
    INSTANTS,
    st.uuids(),
)
ENTITIES = st.dictionaries(st.from_regex(r"[A-Za-z]\w{0,9}", fullmatch=True), VALUES, max_size=6)


class CountingClock(ManualClock):
    """Its random bytes are 0, 1, 2, ...: so that what is sealed can be written down."""

    def random_bytes(self, count: int) -> bytes:
        return bytes(place % 256 for place in range(count))


GOLDEN: dict[str, Value] = {
    "Text": bytes.fromhex(
        "808182838485868788898a8b6160d374277b80b17836b110b6ec32a5e8b854222935b48f6a690719cf5fa711"
    ),
    "Bytes": bytes.fromhex("2c2d2e2f303132333435363750fdda7f40a2090bc7123fe379bc21b007e2b4"),
    "Flag": bytes.fromhex("38393a3b3c3d3e3f404142437f7d52a3490cf85796b17c422b598a0a593f"),
    "Small": bytes.fromhex("7475767778797a7b7c7d7e7fade612fdb7fbc2329d76aff5b4c05e4f36171b808f"),
    "Large": bytes.fromhex(
        "505152535455565758595a5b97273675e450b9e65cc12f2017c9af27efce593076c9289024"
    ),
    "Real": bytes.fromhex(
        "68696a6b6c6d6e6f70717273285cb0d4216601ddef1f80c3b6b1ad924ea91c168597d9164a"
    ),
    "Moment": bytes.fromhex(
        "5c5d5e5f60616263646566676ec3dbf29eaf28022ba49a9b6d2924dd692246815f39518510"
    ),
    "Id": bytes.fromhex(
        "4445464748494a4b4c4d4e4fc3f7f6907b7c97f71ccbf524d8b29c49a97710d7e204c7c2744d78dba434d26aea"
    ),
    SEAL: (
        '{"protocol":"P1","kid":"k1","algorithm":"A256KW","key":"4j8e5Zt1osZTwnn+Hvnw2FDQeCDi'
        'EteMqOTcZ+E+PbjpaLpSeLk/tHN0MGxiRm40","sealed":{"Bytes":"Binary","Flag":"Boolean","I'
        'd":"Guid","Large":"Int64","Moment":"DateTime","Real":"Double","Small":"Int32","Text"'
        ':"String"},"tag":"ICEiIyQlJicoKSor1BP0Y/VJFit8IdDo7fgB4g=="}'
    ),
}
"""Every type, sealed with `SECRET` and the bytes of `CountingClock`."""


def sealed_entity(
    properties: dict[str, Value] | None = None, names: list[str] | None = None, **changes: Any
) -> dict[str, Value]:
    given_properties = {"Salary": 70_000, "Age": 47} if properties is None else properties
    where: dict[str, Any] = {"table": "staff", "key": KEY, "keyring": KEYRING} | changes
    return seal(
        given_properties,
        list(given_properties) if names is None else names,
        clock=where.pop("clock", ManualClock()),
        **where,
    )


def opened(stored: dict[str, Value], **changes: Any) -> dict[str, Value]:
    where: dict[str, Any] = {"table": "staff", "key": KEY, "keyring": KEYRING} | changes
    return unseal(stored, **where)


def seal_text(stored: dict[str, Value]) -> str:
    text = stored[SEAL]
    assert isinstance(text, str)
    return text


def binary(stored: dict[str, Value], name: str) -> bytes:
    value = stored[name]
    assert isinstance(value, bytes)
    return value


# ---------------------------------------------------------------------------------------------
# Round trips


def test_every_type_comes_back_as_it_was() -> None:
    stored = sealed_entity(EVERY_TYPE)

    back = opened(stored)

    assert back == EVERY_TYPE
    assert {name: type(value) for name, value in back.items()} == {
        name: type(value) for name, value in EVERY_TYPE.items()
    }


def test_an_instant_keeps_its_seventh_digit() -> None:
    moment = opened(sealed_entity(EVERY_TYPE))["Moment"]

    assert isinstance(moment, Instant)
    assert moment.text == "2024-02-29T23:59:59.1234567Z"


def test_an_instant_reckoned_from_another_is_sealed_by_its_own_time() -> None:
    read = Instant.of(MOMENT, "2024-02-29T23:59:59.1234567Z")
    later = read + timedelta(seconds=1)

    assert opened(sealed_entity({"At": later})) == {"At": MOMENT + timedelta(seconds=1)}


@given(properties=ENTITIES, key=st.builds(RowKey, TEXTS, TEXTS))
def test_what_was_sealed_is_what_is_opened(properties: dict[str, Value], key: RowKey) -> None:
    stored = sealed_entity(properties, key=key)

    back = opened(stored, key=key)

    assert back == properties
    for name, value in properties.items():
        is_moment = isinstance(value, datetime)
        assert isinstance(back[name], Instant if is_moment else type(value))


@given(ticks=st.integers(edm.TICKS_MIN, edm.TICKS_MAX))
def test_every_tick_is_kept(ticks: int) -> None:
    text = edm.text_of(ticks)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ticks // 10)

    back = opened(sealed_entity({"At": Instant.of(moment, text)}))["At"]

    assert isinstance(back, Instant)
    assert (back, back.text) == (moment, text)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -0.0, 5e-324])
def test_unusual_doubles_are_kept_to_the_bit(number: float) -> None:
    back = opened(sealed_entity({"Real": number}))["Real"]

    assert isinstance(back, float)
    assert struct.pack(">d", back) == struct.pack(">d", number)


def test_only_the_chosen_properties_are_sealed() -> None:
    stored = sealed_entity({"Salary": 70_000, "Age": 47}, ["Salary", "Bonus"])

    assert isinstance(stored["Salary"], bytes)
    assert stored["Age"] == 47
    assert sealed_names(stored) == {"Salary"}
    assert stored.keys() == {"Salary", "Age", SEAL}


def test_an_entity_with_nothing_to_seal_is_left_alone() -> None:
    plain: dict[str, Value] = {"Age": 47}

    stored = sealed_entity(plain, ["Salary"], keyring=None)

    assert stored == plain
    assert stored is not plain
    assert not is_sealed(stored)
    assert sealed_names(stored) == frozenset()
    assert opened(stored, keyring=None) == plain


def test_none_is_absent_and_not_sealed() -> None:
    properties: dict[str, Any] = {"Salary": None, "Age": 47}

    assert sealed_entity(properties, ["Salary"]) == properties


def test_plaintext_does_not_show_in_what_is_stored() -> None:
    stored = sealed_entity({"Note": "the fox", "Raw": b"the fox"})

    assert b"fox" not in binary(stored, "Note") + binary(stored, "Raw")
    assert "fox" not in seal_text(stored)


def test_sealing_adds_as_many_bytes_as_it_says() -> None:
    stored = sealed_entity({"Raw": bytes(100)})

    assert len(binary(stored, "Raw")) == 100 + SEALED_BYTES_MORE


def test_names_of_tables_do_not_differ_by_case() -> None:
    assert opened(sealed_entity(table="Staff"), table="sTAFF") == {"Salary": 70_000, "Age": 47}


# ---------------------------------------------------------------------------------------------
# Keys


def test_nothing_opens_without_a_keyring() -> None:
    with pytest.raises(EncryptionKeyError) as caught:
        opened(sealed_entity(), keyring=None)

    assert caught.value.code == "KeyringMissing"


def test_nothing_is_sealed_without_a_keyring() -> None:
    with pytest.raises(EncryptionKeyError) as caught:
        sealed_entity(keyring=None)

    assert caught.value.code == "KeyringMissing"


def test_a_key_that_is_not_there_is_named_with_the_entity() -> None:
    with pytest.raises(EncryptionKeyError) as caught:
        opened(sealed_entity(), keyring=Keyring.from_bytes("k2", SECRET))

    assert caught.value.code == "KeyUnknown"
    assert caught.value.facts == {
        "table": "staff",
        "partition_key": "Sales",
        "row_key": "emp_000123",
        "kid": "k1",
    }


def test_another_key_of_the_same_id_breaks_the_seal() -> None:
    with pytest.raises(SealBrokenError):
        opened(sealed_entity(), keyring=Keyring.from_bytes("k1", bytes(32)))


def test_an_rsa_key_seals_and_opens() -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    keyring = Keyring([RsaKey("rsa", private)])
    writer = Keyring([RsaKey("rsa", private.public_key())])

    stored = sealed_entity(keyring=writer)

    assert opened(stored, keyring=keyring) == {"Salary": 70_000, "Age": 47}


def test_no_value_and_no_key_is_in_an_error() -> None:
    stored = sealed_entity({"Note": "the fox"})
    broken: list[dict[str, Value]] = [
        stored | {"Note": "the fox"},
        stored | {SEAL: "the fox"},
        {"Note": stored["Note"], SEAL: seal_text(stored).replace("k1", "k2")},
    ]

    for each in broken:
        with pytest.raises(PartitaError) as caught:
            opened(each)
        assert "fox" not in f"{caught.value} {caught.value!r}"


def test_every_write_has_its_own_content_key_and_nonces() -> None:
    nonces = set()
    content_keys = set()
    for _ in range(300):
        stored = sealed_entity({"A": "same", "B": "same"}, clock=SystemClock())
        metadata = json.loads(seal_text(stored))
        nonces |= {binary(stored, "A")[:12], binary(stored, "B")[:12]}
        nonces.add(b64decode(metadata["tag"])[:12])
        content_keys.add(aes_key_unwrap(SECRET, b64decode(metadata["key"])))

    assert (len(nonces), len(content_keys)) == (900, 300)


# ---------------------------------------------------------------------------------------------
# Tampering


def test_a_change_to_any_byte_of_a_sealed_value_is_found() -> None:
    stored = sealed_entity({"Salary": 70_000})
    value = binary(stored, "Salary")

    for place in range(len(value)):
        changed = value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
        with pytest.raises(SealBrokenError):
            opened(stored | {"Salary": changed})


def test_a_sealed_value_cannot_be_cut_or_made_longer() -> None:
    stored = sealed_entity({"Note": "the fox"})
    value = binary(stored, "Note")

    for length in range(len(value)):
        with pytest.raises(SealBrokenError):
            opened(stored | {"Note": value[:length]})
    with pytest.raises(SealBrokenError):
        opened(stored | {"Note": value + b"\0"})


def test_a_change_to_any_byte_of_the_metadata_is_found() -> None:
    keyring = KEYRING.add(AesKey("k2", bytes(32))).add(AesKey("k0", SECRET[::-1]))
    stored = sealed_entity({"Salary": 70_000, "Note": "the fox"})
    text = seal_text(stored)

    assert opened(stored, keyring=keyring)
    for place in range(len(text)):
        for other in {chr(ord(text[place]) ^ 1), " ", '"', "A", "0"} - {text[place]}:
            changed = text[:place] + other + text[place + 1 :]
            with pytest.raises((SealBrokenError, EncryptionKeyError, FormatVersionError)):
                opened(stored | {SEAL: changed}, keyring=keyring)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + " ",
        lambda text: text.replace(":", ": ", 1),
        lambda text: text.replace('"k1"', '"\\u006b1"'),
        lambda text: text.replace('"kid"', '"kid":"k1","kid"'),
        lambda text: text[:-1] + ',"more":1}',
        lambda text: json.dumps(dict(reversed(json.loads(text).items())), separators=(",", ":")),
        lambda text: text.replace(
            '"Age":"Int64","Salary":"Int64"', '"Salary":"Int64","Age":"Int64"'
        ),
        lambda text: "",
        lambda text: "[]",
        lambda text: '{"protocol":"P1"}',
        lambda text: "\ud800",
        lambda text: text.encode(),
        lambda text: 7,
    ],
)
def test_the_same_metadata_in_other_words_is_refused(change: Any) -> None:
    stored = sealed_entity()

    with pytest.raises(SealBrokenError):
        opened(stored | {SEAL: change(seal_text(stored))})


def test_base64_in_another_spelling_is_refused() -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    keyring = Keyring([RsaKey("rsa", private)])
    stored = sealed_entity(keyring=keyring)
    text = seal_text(stored)
    # 256 bytes leave four bits of the last letter unused: whatever they are, they decode alike.
    last = re.findall(r'"key":"[^"]*?(.)=="', text)[0]
    other = {"A": "B", "Q": "R", "g": "h", "w": "x"}[last]

    with pytest.raises(SealBrokenError):
        opened(stored | {SEAL: text.replace(f"{last}==", f"{other}==", 1)}, keyring=keyring)


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"table": "staff2"},
        {"key": RowKey("Sales", "emp_000124")},
        {"key": RowKey("Marketing", "emp_000123")},
        {"key": RowKey("Salese", "mp_000123")},
        {"key": RowKey("", "Salesemp_000123")},
    ],
)
def test_an_entity_carried_elsewhere_does_not_open(elsewhere: dict[str, Any]) -> None:
    with pytest.raises(SealBrokenError):
        opened(sealed_entity(), **elsewhere)


def test_values_of_two_entities_cannot_be_exchanged() -> None:
    rich = sealed_entity({"Salary": 1_000_000})
    poor = sealed_entity({"Salary": 1}, key=RowKey("Sales", "emp_000124"))

    with pytest.raises(SealBrokenError):
        opened(rich | {"Salary": poor["Salary"]})
    with pytest.raises(SealBrokenError):
        opened(poor, key=KEY)


def test_a_value_of_an_older_write_cannot_be_brought_back() -> None:
    older = sealed_entity({"Salary": 1}, clock=ManualClock(seed=1))
    newer = sealed_entity({"Salary": 2}, clock=ManualClock(seed=2))

    with pytest.raises(SealBrokenError):
        opened(newer | {"Salary": older["Salary"]})
    with pytest.raises(SealBrokenError):
        opened(newer | {SEAL: older[SEAL]})


def test_values_of_two_properties_cannot_be_exchanged() -> None:
    stored = sealed_entity({"Salary": 70_000, "Bonus": 500})

    with pytest.raises(SealBrokenError):
        opened(stored | {"Salary": stored["Bonus"], "Bonus": stored["Salary"]})


def test_a_sealed_value_cannot_be_given_another_type() -> None:
    stored = sealed_entity({"Salary": 70_000})

    for type_name in ("Int32", "Double", "DateTime", "Binary", "String", "Decimal"):
        text = seal_text(stored).replace("Int64", type_name)
        with pytest.raises(SealBrokenError):
            opened(stored | {SEAL: text})


def test_plaintext_in_place_of_a_sealed_value_is_found() -> None:
    stored = sealed_entity()

    for plain in (1_000_000, "1000000", b"1000000", True):
        for is_projection in (False, True):
            with pytest.raises(SealBrokenError):
                opened(stored | {"Salary": plain}, is_projection=is_projection)


def test_a_sealed_property_that_was_removed_is_found() -> None:
    stored = sealed_entity()
    del stored["Salary"]

    with pytest.raises(SealBrokenError) as caught:
        opened(stored)

    assert caught.value.facts["property"] == "Salary"


def test_a_property_cannot_be_taken_off_the_list() -> None:
    stored = sealed_entity()
    text = seal_text(stored).replace(',"Salary":"Int64"', "")

    with pytest.raises(SealBrokenError):
        opened(stored | {SEAL: text, "Salary": 1_000_000})


def test_a_property_cannot_be_put_on_the_list() -> None:
    stored = sealed_entity()
    text = seal_text(stored).replace('"Age":', '"Admin":"Boolean","Age":')

    with pytest.raises(SealBrokenError):
        opened(stored | {SEAL: text, "Admin": stored["Age"]})


def test_a_required_property_in_the_clear_beside_sealed_ones_is_found() -> None:
    stored: dict[str, Value] = sealed_entity() | {"Bonus": 500}

    with pytest.raises(SealBrokenError) as caught:
        opened(stored, required=["Salary", "Bonus"])

    assert (caught.value.code, caught.value.facts["property"]) == ("SealMissing", "Bonus")


def test_a_required_property_in_the_clear_without_any_seal_is_found() -> None:
    with pytest.raises(SealBrokenError) as caught:
        opened({"Salary": 1_000_000}, required=["Salary"])

    assert caught.value.code == "SealMissing"


def test_a_required_property_may_be_absent() -> None:
    assert opened({"Age": 47}, required=["Salary"]) == {"Age": 47}
    assert opened(sealed_entity(), required=["Salary", "Bonus"])["Salary"] == 70_000


def test_clear_properties_may_be_changed_by_others() -> None:
    stored = sealed_entity({"Salary": 70_000, "Age": 47}, ["Salary"])

    assert opened(stored | {"Age": 48, "Office": "B2"}) == {
        "Salary": 70_000,
        "Age": 48,
        "Office": "B2",
    }


def test_metadata_of_version_1_beside_a_seal_means_nothing() -> None:
    keyring = Keyring({"k1": SECRET}, allow_dotnet_v1=True)
    stored: dict[str, Value] = sealed_entity() | {"_ClientEncryptionMetadata1": "{}"}

    assert opened(stored, keyring=keyring) == {"Salary": 70_000, "Age": 47}


def test_a_content_key_without_the_version_in_front_is_refused() -> None:
    stored = sealed_entity()
    metadata = json.loads(seal_text(stored))
    versioned = aes_key_unwrap(SECRET, b64decode(metadata["key"]))
    assert versioned[:8] == b"P1\0\0\0\0\0\0"

    for content_key in (versioned[8:], b"2.0\0\0\0\0\0" + versioned[8:], versioned + bytes(8)):
        metadata["key"] = b64encode(aes_key_wrap(SECRET, content_key)).decode()
        with pytest.raises(SealBrokenError, match="version"):
            opened(stored | {SEAL: json.dumps(metadata, separators=(",", ":"))})


def test_bytes_that_no_value_has_break_the_seal_even_with_the_key() -> None:
    stored = sealed_entity({"Salary": 70_000})
    metadata = json.loads(seal_text(stored))
    box = AESGCM(aes_key_unwrap(SECRET, b64decode(metadata["key"]))[8:])
    bound = bind("value", "Salary", "Int64")

    for encoded in (b"", b"\x05", b"\x05" + bytes(7), b"\x04" + bytes(8), b"\x07" + bytes(8)):
        value = bytes(12) + box.encrypt(bytes(12), encoded, bound)
        with pytest.raises(SealBrokenError):
            opened(stored | {"Salary": value})


def test_a_moment_outside_of_the_calendar_breaks_the_seal() -> None:
    stored = sealed_entity({"At": MOMENT})
    metadata = json.loads(seal_text(stored))
    box = AESGCM(aes_key_unwrap(SECRET, b64decode(metadata["key"]))[8:])
    encoded = b"\x07" + (2**63 - 1).to_bytes(8, "big")
    value = bytes(12) + box.encrypt(bytes(12), encoded, bind("value", "At", "DateTime"))

    with pytest.raises(SealBrokenError):
        opened(stored | {"At": value})


def test_a_newer_protocol_is_told_from_damage() -> None:
    stored = sealed_entity()

    with pytest.raises(FormatVersionError) as caught:
        opened(stored | {SEAL: '{"protocol":"P2","other":1}'})

    assert caught.value.code == "SealVersion"


def test_a_damaged_name_of_the_protocol_is_not_taken_for_a_newer_one() -> None:
    stored = sealed_entity()

    with pytest.raises(SealBrokenError):
        opened(stored | {SEAL: seal_text(stored).replace('"P1"', '"P2"')})


# ---------------------------------------------------------------------------------------------
# Projections


def test_a_projection_asks_for_the_seal() -> None:
    assert needed_for(["Salary"]) == (SEAL,)
    assert needed_for(["Salary", SEAL]) == ()


def test_a_projection_is_opened_and_checked() -> None:
    stored = sealed_entity({"Salary": 70_000, "Bonus": 500, "Age": 47}, ["Salary", "Bonus"])
    part = {name: stored[name] for name in ("Salary", *needed_for(["Salary"]))}

    assert opened(part, is_projection=True) == {"Salary": 70_000}
    with pytest.raises(SealBrokenError):
        opened(part | {"Salary": stored["Bonus"]}, is_projection=True)
    with pytest.raises(SealBrokenError):
        opened(part, is_projection=True, key=RowKey("Sales", "emp_000124"))


# ---------------------------------------------------------------------------------------------
# Rotation


def test_rotation_changes_the_seal_and_no_value() -> None:
    stored = sealed_entity()
    both = KEYRING.add(AesKey("k2", bytes(32))).with_current("k2")

    turned = stored | {SEAL: rewrap(seal_text(stored), both)}

    assert json.loads(seal_text(turned))["kid"] == "k2"
    assert opened(turned, keyring=Keyring.from_bytes("k2", bytes(32))) == opened(stored)
    assert sealed_names(turned) == sealed_names(stored)


def test_rotation_leaves_a_seal_of_the_current_key_as_it_is() -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    keyring = Keyring([RsaKey("rsa", private)])  # which wraps differently each time
    text = seal_text(sealed_entity(keyring=keyring))

    assert rewrap(text, keyring) == text


def test_rotation_to_rsa_and_back_opens() -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    both = KEYRING.add(RsaKey("rsa", private))
    stored = sealed_entity()

    to_rsa = rewrap(seal_text(stored), both.with_current("rsa"))
    back = rewrap(to_rsa, both)

    assert opened(stored | {SEAL: to_rsa}, keyring=both) == opened(stored)
    assert back == seal_text(stored)


def test_rotation_does_not_heal_a_broken_list() -> None:
    stored = sealed_entity()
    both = KEYRING.add(AesKey("k2", bytes(32))).with_current("k2")
    changed = seal_text(stored).replace(',"Salary":"Int64"', "")

    turned = rewrap(changed, both)

    with pytest.raises(SealBrokenError):
        opened(stored | {SEAL: turned}, keyring=both)


def test_rotation_needs_the_old_key() -> None:
    with pytest.raises(EncryptionKeyError):
        rewrap(seal_text(sealed_entity()), Keyring.from_bytes("k2", bytes(32)))


# ---------------------------------------------------------------------------------------------
# Refusals


def test_what_is_sealed_is_not_sealed_again() -> None:
    stored = sealed_entity({"Salary": 70_000, "Age": 47}, ["Salary"])

    for names in (["Age"], []):
        with pytest.raises(InvalidPropertyError) as caught:
            sealed_entity(stored, names)
        assert caught.value.code == "AlreadySealed"


@pytest.mark.parametrize(
    "value",
    [2**63, -(2**63) - 1, Int32(2**31), datetime(2024, 2, 29), (1, 2)],  # noqa: DTZ001
)
def test_a_value_that_no_property_can_have_is_refused(value: Any) -> None:
    with pytest.raises(InvalidPropertyError) as caught:
        sealed_entity({"Salary": value})

    assert caught.value.code == "ValueNotSealable"
    assert caught.value.facts["property"] == "Salary"


def test_a_value_that_is_too_large_when_sealed_is_refused() -> None:
    fits = bytes(limits.PROPERTY_BYTES_MAX - SEALED_BYTES_MORE)

    assert opened(sealed_entity({"Raw": fits})) == {"Raw": fits}
    with pytest.raises(LimitExceededError) as caught:
        sealed_entity({"Raw": fits + b"\0"})
    assert caught.value.code == "PropertyValueTooLarge"


def test_a_list_of_names_that_does_not_fit_is_refused() -> None:
    properties: dict[str, Value] = {f"P{'x' * 250}{place:03}": True for place in range(200)}

    with pytest.raises(LimitExceededError) as caught:
        sealed_entity(properties)

    assert caught.value.facts == {"property": SEAL}


# ---------------------------------------------------------------------------------------------
# The format


def bind(kind: str, *parts: str) -> bytes:
    """Join with lengths, as the document of the format says."""
    everything = ["P1", kind, "staff", "Sales", "emp_000123", *parts]
    return b"".join(struct.pack(">I", len(part.encode())) + part.encode() for part in everything)


def test_a_reader_written_from_the_document_opens_what_is_sealed() -> None:
    stored = sealed_entity({"Salary": 70_000, "Note": "fox"})
    metadata = json.loads(seal_text(stored))

    versioned = aes_key_unwrap(SECRET, b64decode(metadata["key"]))
    box = AESGCM(versioned.removeprefix(b"P1\0\0\0\0\0\0"))
    tag = b64decode(metadata["tag"])
    salary, note = binary(stored, "Salary"), binary(stored, "Note")

    assert box.decrypt(tag[:12], tag[12:], bind("list", "Note", "String", "Salary", "Int64")) == b""
    assert box.decrypt(note[:12], note[12:], bind("value", "Note", "String")) == b"\x01fox"
    assert box.decrypt(
        salary[:12], salary[12:], bind("value", "Salary", "Int64")
    ) == b"\x05" + struct.pack(">q", 70_000)


def test_the_bytes_of_the_document_are_what_is_written() -> None:
    text = (PROJECT / "docs" / "formats" / "sealed-properties.md").read_text("utf-8")
    stored = sealed_entity({"Salary": 70_000}, clock=CountingClock())

    assert binary(stored, "Salary").hex(" ") in text
    assert seal_text(stored) in text


def test_what_the_first_version_sealed_opens_for_ever() -> None:
    assert opened(GOLDEN) == EVERY_TYPE
    assert sealed_entity(EVERY_TYPE, clock=CountingClock()) == GOLDEN
