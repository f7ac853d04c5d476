"""Version 1, from its format facts: a tiny writer here, and vectors that OpenSSL made."""

import base64
import hashlib
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding as rsa_padding
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.keywrap import aes_key_wrap
from cryptography.hazmat.primitives.padding import PKCS7
from hypothesis import given
from hypothesis import strategies as st

from partita.clock import ManualClock
from partita.errors import EncryptionKeyError, InvalidPropertyError, SealBrokenError
from partita.patterns.encryption.keyring import Keyring, RsaKey
from partita.patterns.encryption.sealing import (
    SEAL,
    is_sealed,
    needed_for,
    seal,
    sealed_names,
    unseal,
)
from partita.patterns.protocol.values import RowKey, Value

SECRET = bytes(range(32))
CONTENT_KEY = bytes.fromhex("00112233445566778899aabbccddeeff000102030405060708090a0b0c0d0e0f")
IV = bytes(range(16))
KEY = RowKey("Sales", "000123")
ALLOWED = Keyring({"symmKey1": SECRET}, allow_dotnet_v1=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))

# Wrapped as RFC 3394 shows in 4.6; the values are of `openssl enc -aes-256-cbc`.
WRAPPED = "KMn0BMS4EPTLzLNc+4f4Jj9XhuLYDtMmy8fw5xqZ9Dv7mIubegLdIQ=="
DETAILS: dict[str, Any] = {
    "WrappedContentKey": {
        "KeyId": "symmKey1",
        "EncryptedKey": WRAPPED,
        "Algorithm": "A256KW",
    },
    "EncryptionAgent": {"Protocol": "1.0", "EncryptionAlgorithm": "AES_CBC_256"},
    "ContentEncryptionIV": "AAECAwQFBgcICQoLDA0ODw==",
    "KeyWrappingMetadata": {"EncryptionLibrary": ".NET 9.3.1"},
}
OF_DOTNET: dict[str, Value] = {
    "Age": 47,
    "Email": bytes.fromhex("96933577169d61ddf58c6a861b00c2bfb59342ea1903ec7779c45d5544642afe"),
    "Name": bytes.fromhex("b636aae524ae5108ed4a806e76ddf8b1"),
    "_ClientEncryptionMetadata1": json.dumps(DETAILS),
    "_ClientEncryptionMetadata2": bytes.fromhex(
        "1bba95c927a9ff0463ac082fd6f67a54a8c98f9030a2aa5b6d032839ca84319a"
    ),
}
OF_JAVA: dict[str, Value] = {
    "Age": 47,
    "Email": bytes.fromhex("73360f877cc94168322e176e3a8506693b64a311c26dea871e94aae55238e96c"),
    "Name": bytes.fromhex("6507a11593a3e006afd52bdae9d24969"),
    "_ClientEncryptionMetadata1": json.dumps(
        DETAILS | {"KeyWrappingMetadata": {"EncryptionLibrary": "Java 5.3.0"}}
    ),
    "_ClientEncryptionMetadata2": bytes.fromhex("82f19d9c906b3654e701ad5a83947e8a"),
}
CLEAR = {"Age": 47, "Email": "junc@contoso.com", "Name": "Žofia 潤 😀"}


def read(properties: dict[str, Value], keyring: Keyring = ALLOWED, **more: Any) -> dict[str, Value]:
    return unseal(properties, table="staff", key=KEY, keyring=keyring, **more)


def with_details(changes: dict[str, Any]) -> dict[str, Value]:
    return OF_DOTNET | {"_ClientEncryptionMetadata1": json.dumps(DETAILS | changes)}


def encrypt_v1(
    texts: dict[str, str], key: RowKey, details: dict[str, Any], *, is_java: bool = False
) -> dict[str, Value]:
    """Write as the old SDKs did, from the description of the format."""
    place = key.partition + key.row if is_java else key.row + key.partition

    def sealed(name: str, text: str) -> bytes:
        iv = hashlib.sha256(IV + (place + name).encode()).digest()[:16]
        padder = PKCS7(128).padder()
        encryptor = Cipher(algorithms.AES(CONTENT_KEY), modes.CBC(iv)).encryptor()
        return encryptor.update(padder.update(text.encode()) + padder.finalize())

    names = f"[{', '.join(texts)}]" if is_java else json.dumps(list(texts))
    return {
        **{name: sealed(name, text) for name, text in texts.items()},
        "_ClientEncryptionMetadata1": json.dumps(details),
        "_ClientEncryptionMetadata2": sealed("_ClientEncryptionMetadata2", names),
    }


def test_an_entity_of_dotnet_is_read() -> None:
    assert read(OF_DOTNET) == CLEAR


def test_an_entity_of_java_is_read() -> None:
    assert read(OF_JAVA) == CLEAR


def test_an_entity_without_wrapping_metadata_is_one_of_java() -> None:
    details = {name: part for name, part in DETAILS.items() if name != "KeyWrappingMetadata"}
    null = details | {"KeyWrappingMetadata": None}

    assert read(OF_JAVA | {"_ClientEncryptionMetadata1": json.dumps(details)}) == CLEAR
    assert read(OF_JAVA | {"_ClientEncryptionMetadata1": json.dumps(null)}) == CLEAR


def test_an_entity_with_empty_wrapping_metadata_is_in_the_order_of_dotnet() -> None:
    assert read(with_details({"KeyWrappingMetadata": {}})) == CLEAR


@given(
    texts=st.dictionaries(st.from_regex(r"[A-Za-z_]\w{0,9}", fullmatch=True), TEXTS, max_size=4),
    key=st.builds(RowKey, TEXTS, TEXTS),
    is_java=st.booleans(),
)
def test_what_the_writer_of_the_format_facts_writes_is_read(
    texts: dict[str, str], key: RowKey, is_java: bool
) -> None:
    library = {"EncryptionLibrary": "Java 8.1.0" if is_java else ".NET 9.3.1"}
    details = DETAILS | {"KeyWrappingMetadata": library}

    stored = encrypt_v1(texts, key, details, is_java=is_java)

    assert unseal(stored, table="t", key=key, keyring=ALLOWED) == texts


def test_a_content_key_that_rsa_wrapped_with_sha_1_is_read() -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    sha_1 = hashes.SHA1()
    oaep = rsa_padding.OAEP(rsa_padding.MGF1(sha_1), sha_1, None)
    wrapped = base64.b64encode(private.public_key().encrypt(CONTENT_KEY, oaep)).decode()
    keyring = Keyring({"symmKey1": RsaKey("rsa", private)}, allow_dotnet_v1=True)
    named = {"KeyId": "symmKey1", "EncryptedKey": wrapped, "Algorithm": "RSA-OAEP"}

    assert read(with_details({"WrappedContentKey": named}), keyring) == CLEAR


def test_version_1_is_refused_unless_it_is_allowed() -> None:
    with pytest.raises(EncryptionKeyError) as caught:
        read(OF_DOTNET, Keyring({"symmKey1": SECRET}))

    assert caught.value.code == "DotnetV1Refused"
    assert "allow_dotnet_v1" in caught.value.hint


def test_version_1_needs_its_key() -> None:
    with pytest.raises(EncryptionKeyError) as caught:
        read(OF_DOTNET, Keyring({"another": SECRET}, allow_dotnet_v1=True))

    assert caught.value.code == "KeyUnknown"
    assert caught.value.facts["kid"] == "symmKey1"


def test_version_1_is_sealed_anew_when_it_is_written() -> None:
    opened = read(OF_DOTNET)

    stored = seal(opened, ["Email"], table="staff", key=KEY, keyring=ALLOWED, clock=ManualClock())

    assert not {name for name in stored if name.startswith("_Client")}
    assert sealed_names(stored) == {"Email"}
    assert read(stored) == CLEAR


def test_version_1_cannot_be_written_back_as_it_is() -> None:
    with pytest.raises(InvalidPropertyError) as caught:
        seal(OF_DOTNET, ["Age"], table="staff", key=KEY, keyring=ALLOWED, clock=ManualClock())

    assert caught.value.code == "AlreadySealed"


def test_version_1_counts_as_sealed_for_required_properties() -> None:
    assert is_sealed(OF_DOTNET)
    assert read(OF_DOTNET, required=["Email"]) == CLEAR
    with pytest.raises(SealBrokenError) as caught:
        read(OF_DOTNET, required=["Age"])
    assert caught.value.code == "SealMissing"


def test_a_projection_asks_for_both_properties_of_version_1_if_it_is_allowed() -> None:
    metadata = ("_ClientEncryptionMetadata1", "_ClientEncryptionMetadata2")

    assert needed_for(["Email"], ALLOWED) == (SEAL, *metadata)
    assert needed_for(["Email", *metadata], ALLOWED) == (SEAL,)
    assert needed_for(["Email"], Keyring({"symmKey1": SECRET})) == (SEAL,)


def test_a_projection_of_version_1_is_read() -> None:
    part = {name: value for name, value in OF_DOTNET.items() if name != "Email"}

    assert read(part, is_projection=True) == {"Age": 47, "Name": CLEAR["Name"]}


def test_a_property_of_another_entity_does_not_open() -> None:
    with pytest.raises(SealBrokenError) as caught:
        unseal(OF_DOTNET, table="staff", key=RowKey("Sales", "000124"), keyring=ALLOWED)

    assert caught.value.code == "SealBroken"


@pytest.mark.parametrize(
    "changes",
    [
        {"Email": b""},
        {"Email": bytes(15)},
        {"Email": bytes(32)},
        {"Email": "junc@contoso.com"},
        {"_ClientEncryptionMetadata1": "{}"},
        {"_ClientEncryptionMetadata1": "\ud800"},
        {"_ClientEncryptionMetadata1": b"{}"},
        {"_ClientEncryptionMetadata2": b""},
        {"_ClientEncryptionMetadata2": "[]"},
    ],
)
def test_what_does_not_open_is_a_broken_seal_without_a_reason(changes: dict[str, Value]) -> None:
    with pytest.raises(SealBrokenError) as caught:
        read(OF_DOTNET | changes)

    assert caught.value.code == "SealBroken"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", ["_ClientEncryptionMetadata1", "_ClientEncryptionMetadata2"])
def test_half_of_the_metadata_is_a_broken_seal(name: str) -> None:
    half = {each: value for each, value in OF_DOTNET.items() if each != name}

    with pytest.raises(SealBrokenError):
        read(half)


@pytest.mark.parametrize(
    "agent",
    [
        {"Protocol": "2.0", "EncryptionAlgorithm": "AES_CBC_256"},
        {"Protocol": "1.0", "EncryptionAlgorithm": "AES_GCM_256"},
    ],
)
def test_another_protocol_or_cipher_is_not_read(agent: dict[str, str]) -> None:
    with pytest.raises(SealBrokenError):
        read(with_details({"EncryptionAgent": agent}))


def test_a_content_key_of_partita_is_not_lent_to_version_1() -> None:
    versioned = base64.b64encode(aes_key_wrap(SECRET, b"P1\0\0\0\0\0\0" + CONTENT_KEY)).decode()
    named = {"KeyId": "symmKey1", "EncryptedKey": versioned, "Algorithm": "A256KW"}

    with pytest.raises(SealBrokenError, match="content key"):
        read(with_details({"WrappedContentKey": named}))


def test_a_list_that_is_none_is_a_broken_seal() -> None:
    iv = hashlib.sha256(IV + b"000123Sales_ClientEncryptionMetadata2").digest()[:16]
    encryptor = Cipher(algorithms.AES(CONTENT_KEY), modes.CBC(iv)).encryptor()
    sealed = encryptor.update(b"Email" + bytes([11]) * 11)

    with pytest.raises(SealBrokenError, match="list"):
        read(OF_DOTNET | {"_ClientEncryptionMetadata2": sealed})
