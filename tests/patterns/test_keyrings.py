"""Keyrings: keys of the SDK's protocol, PEM files, wrong kinds, entities that .NET encrypted."""

import base64
import hashlib
import json
from typing import Annotated, Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.keywrap import aes_key_unwrap, aes_key_wrap
from cryptography.hazmat.primitives.padding import PKCS7

from partita.errors import ConfigurationError
from partita.patterns import AesKey, Encrypted, Keyring, RsaKey, entity
from partita.patterns.sync import connect
from partita.service.hosting.in_process import LocalAccount

SECRET = bytes(range(32))


@entity(table="staff", partition="{dept}", row="emp_{id:06d}")
class Employee:
    dept: str
    id: int
    name: str = ""
    salary: Annotated[int | None, Encrypted] = None


class VaultKey:
    """A key of the SDK's own protocol, as a vault gives one."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get_kid(self) -> str:
        return "vault/payroll"

    def get_key_wrap_algorithm(self) -> str:
        return "A256KW"

    def wrap_key(self, key: bytes, algorithm: str = "A256KW") -> bytes:
        self.asked.append(f"wrap {algorithm}")
        return aes_key_wrap(SECRET, key)

    def unwrap_key(self, key: bytes, algorithm: str) -> bytes:
        self.asked.append(f"unwrap {algorithm}")
        return aes_key_unwrap(SECRET, key)


def test_a_key_of_the_sdk_s_protocol_is_a_keyring_by_itself(partita_account: LocalAccount) -> None:
    key = VaultKey()

    with connect(partita_account, keyring=Keyring(key)) as db:
        employees = db.table(Employee)
        db.create_tables()
        employees.save(Employee(dept="Sales", id=1, salary=70_000))

        assert employees.get(dept="Sales", id=1).salary == 70_000
    assert key.asked == ["wrap A256KW", "unwrap A256KW"]


@pytest.mark.parametrize("given", [VaultKey(), {"2025": SECRET}, "correct horse"])
def test_an_invalid_keyring_is_refused_when_the_database_is_opened(
    partita_account: LocalAccount, given: Any
) -> None:
    with pytest.raises(ConfigurationError) as refused, connect(partita_account, keyring=given):
        pass

    assert refused.value.code == "KeyUnusable"
    assert "takes a Keyring" in refused.value.message


def test_a_pem_and_its_password_may_be_texts() -> None:
    private = rsa.generate_private_key(65537, 2048)
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"open sesame"),
    )

    key = RsaKey.from_pem("payroll", pem.decode(), password="open sesame")

    assert key.unwrap_key(key.wrap_key(SECRET), "RSA-OAEP-256") == SECRET


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: AesKey("a", "0" * 32), "An AES key must be bytes, not a str."),  # type: ignore[arg-type]
        (
            lambda: Keyring.from_passphrase("words", salt="0" * 16),  # type: ignore[arg-type]
            "The salt must be bytes, not a str.",
        ),
        (
            lambda: Keyring.from_passphrase(b"words", salt=bytes(16)),  # type: ignore[arg-type]
            "A passphrase must be a non-empty text.",
        ),
        (
            lambda: RsaKey("a", ec.generate_private_key(ec.SECP256R1())),  # type: ignore[arg-type]
            "A ECPrivateKey is not an RSA key.",
        ),
    ],
)
def test_a_key_of_the_wrong_kind_is_told_as_such(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()

    assert refused.value.message == said


def sealed_by_dotnet(partition_key: str, row_key: str, values: dict[str, str]) -> dict[str, Any]:
    """Return an entity as the old .NET library stored it, from what is known of its format."""
    content_key, vector = bytes(range(100, 132)), bytes(range(16))

    def encrypted(name: str, text: str) -> bytes:
        place = (row_key + partition_key + name).encode()
        start = hashlib.sha256(vector + place).digest()[:16]
        encryptor = Cipher(algorithms.AES(content_key), modes.CBC(start)).encryptor()
        padder = PKCS7(128).padder()
        padded = padder.update(text.encode()) + padder.finalize()
        return encryptor.update(padded) + encryptor.finalize()

    wrapped = base64.b64encode(aes_key_wrap(SECRET, content_key)).decode()
    details = {
        "WrappedContentKey": {"KeyId": "old", "EncryptedKey": wrapped, "Algorithm": "A256KW"},
        "EncryptionAgent": {"Protocol": "1.0", "EncryptionAlgorithm": "AES_CBC_256"},
        "ContentEncryptionIV": base64.b64encode(vector).decode(),
        "KeyWrappingMetadata": {"EncryptionLibrary": ".NET 9.3.0"},
    }
    names = "_ClientEncryptionMetadata2"
    return {
        "PartitionKey": partition_key,
        "RowKey": row_key,
        **{name: encrypted(name, text) for name, text in values.items()},
        "_ClientEncryptionMetadata1": json.dumps(details),
        names: encrypted(names, json.dumps(list(values))),
    }


def test_a_projection_opens_what_an_old_library_encrypted(partita_account: LocalAccount) -> None:
    @entity(table="old", partition="{dept}", row="{id:06d}", type_property=None)
    class Person:
        dept: str
        id: int
        email: Annotated[str | None, Encrypted] = None

    stored = partita_account.tables.create_table("old")
    stored.create_entity(sealed_by_dotnet("Sales", "000001", {"Email": "ken@contoso.com"}))

    keyring = Keyring({"old": SECRET}, allow_dotnet_v1=True)
    with connect(partita_account, keyring=keyring) as db:
        found = db.table(Person).partition(dept="Sales").all().select("email").list()

    assert [each.email for each in found] == ["ken@contoso.com"]
