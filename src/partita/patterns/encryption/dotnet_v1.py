"""Entities encrypted by the old SDKs ("version 1", of .NET, Java, Python, Node): read only.

    _ClientEncryptionMetadata1  text: JSON with the wrapped key, its id, the IV of the entity
    _ClientEncryptionMetadata2  binary: names of the encrypted properties, itself encrypted
    property                    binary: AES-256-CBC, PKCS7, of a text in UTF-8
    IV of a property            first 16 bytes of SHA-256(IV of the entity | RK + PK + name)

The format is not authenticated: anyone who can write to the table can change the decrypted values.
Partita never writes it.
"""

import hashlib
from collections.abc import Mapping

import msgspec

from partita.errors import EncryptionKeyError, SealBrokenError
from partita.patterns.encryption import ciphers
from partita.patterns.encryption.keyring import KEY_BYTES, Keyring, WrappedKey
from partita.patterns.protocol.untrusted_json import decode
from partita.patterns.protocol.values import RowKey, Value

KEY_DETAILS = "_ClientEncryptionMetadata1"
PROPERTY_DETAILS = "_ClientEncryptionMetadata2"
METADATA = frozenset({KEY_DETAILS, PROPERTY_DETAILS})

_PROTOCOL = "1.0"
_ALGORITHM = "AES_CBC_256"
_IV_BYTES = 16


class _WrappedContentKey(msgspec.Struct, frozen=True, rename="pascal"):
    key_id: str
    encrypted_key: bytes
    algorithm: str


class _Agent(msgspec.Struct, frozen=True, rename="pascal"):
    protocol: str
    encryption_algorithm: str


class _KeyDetails(msgspec.Struct, frozen=True, rename="pascal"):
    wrapped_content_key: _WrappedContentKey
    encryption_agent: _Agent
    content_encryption_iv: bytes = msgspec.field(name="ContentEncryptionIV")
    key_wrapping_metadata: dict[str, str] | None = None

    @property
    def is_of_java(self) -> bool:
        """Whether Java wrote it: with the partition key first, and its own format of names."""
        written_by = self.key_wrapping_metadata
        return written_by is None or "Java" in written_by.get("EncryptionLibrary", "")


class _Reader:
    """Decrypts the properties of one entity."""

    def __init__(
        self, details: _KeyDetails, content_key: bytes, key: RowKey, facts: Mapping[str, object]
    ) -> None:
        self._iv = details.content_encryption_iv
        self._key = content_key
        self._facts = facts
        self._place = key.partition + key.row if details.is_of_java else key.row + key.partition

    def text(self, name: str, sealed: Value) -> str:
        identity = (self._place + name).encode("utf-8", "surrogatepass")
        iv = hashlib.sha256(self._iv + identity).digest()[:_IV_BYTES]
        try:
            if isinstance(sealed, bytes):
                return ciphers.open_cbc(self._key, iv, sealed).decode()
        except ciphers.FAILURES:
            # The same error for padding and UTF-8, without a cause: the difference would be a
            # padding oracle.
            pass
        raise _broken("A property encrypted by version 1 cannot be decrypted.", self._facts, name)


def unseal(
    properties: Mapping[str, Value], *, key: RowKey, keyring: Keyring, facts: Mapping[str, object]
) -> tuple[dict[str, Value], frozenset[str]]:
    """Return the decrypted properties without the metadata, and the names of the encrypted ones.

    Missing properties of the list are ignored, as in the old SDKs: the list is not authenticated.
    """
    if not keyring.allow_dotnet_v1:
        raise EncryptionKeyError(
            "DotnetV1Refused",
            "The entity was encrypted by an old SDK (version 1), and reading that is not allowed.",
            facts=facts,
            hint="Read it with Keyring(..., allow_dotnet_v1=True), and save it to encrypt it anew.",
        )
    details = _parse_details(properties.get(KEY_DETAILS), facts)
    wrapped = details.wrapped_content_key
    content_key = keyring.unwrap(
        WrappedKey(wrapped.key_id, wrapped.algorithm, wrapped.encrypted_key), facts
    )
    # A content key of P1 begins with its version and must not be used for this format.
    if len(content_key) != KEY_BYTES:
        raise _broken("The content key is not of version 1.", facts, KEY_DETAILS)
    reader = _Reader(details, content_key, key, facts)
    listed = reader.text(PROPERTY_DETAILS, properties.get(PROPERTY_DETAILS, ""))
    names = _parse_names(listed, facts) & properties.keys()
    opened = {
        name: reader.text(name, value) if name in names else value
        for name, value in properties.items()
        if name not in METADATA
    }
    return opened, names


def _parse_details(text: Value | None, facts: Mapping[str, object]) -> _KeyDetails:
    try:
        if isinstance(text, str):
            details = decode(text, _KeyDetails)
            agent = details.encryption_agent
            if (agent.protocol, agent.encryption_algorithm) == (_PROTOCOL, _ALGORITHM):
                return details
    except msgspec.DecodeError:
        pass
    raise _broken("The metadata of version 1 is malformed.", facts, KEY_DETAILS)


def _parse_names(text: str, facts: Mapping[str, object]) -> frozenset[str]:
    try:
        return frozenset(decode(text, list[str]))
    except msgspec.DecodeError:
        pass
    if text.startswith("[") and text.endswith("]"):  # the format of a set in Java: [First, Last]
        return frozenset(name.strip() for name in text[1:-1].split(","))
    raise _broken("The list of encrypted properties is malformed.", facts, PROPERTY_DETAILS)


def _broken(message: str, facts: Mapping[str, object], name: str) -> SealBrokenError:
    return SealBrokenError(
        "SealBroken",
        message,
        facts={**facts, "property": name},
        hint="Restore the entity from a backup: it was changed, copied from another entity, or "
        "encrypted with another key.",
    )
