"""Keyrings: the keys that wrap content keys, by id; one of them is current.

A key is any object with the four methods of the SDK's key protocol, so that a Key Vault key for
blobs works for entities too. Such an object may do I/O when it wraps or unwraps; the keys defined
here are local. A keyring is immutable: adding a key returns another keyring.
"""

import inspect
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from partita.errors import ConfigurationError, EncryptionKeyError, SealBrokenError
from partita.patterns.encryption import ciphers

KEY_BYTES = 32
SALT_BYTES_MIN = 16
RSA_BITS_MIN = 2048
SCRYPT_COST = (15, 8, 3)
"""log2 n, r and p of RFC 7914: 32 MiB and a quarter of a second. Part of the key id."""
_CHECK_BYTES = 6

AES_WRAP = "A256KW"
"""AES key wrap (RFC 3394), by its name in JSON Web Algorithms and Key Vault."""
RSA_WRAP = "RSA-OAEP-256"


class KeyEncryptionKey(Protocol):
    """The SDK's protocol for keys of client-side encryption (`key_encryption_key=`)."""

    def get_kid(self) -> str: ...

    def get_key_wrap_algorithm(self) -> str: ...

    def wrap_key(self, key: bytes, /) -> bytes: ...

    def unwrap_key(self, key: bytes, algorithm: str, /) -> bytes: ...


class WrappedKey(msgspec.Struct, frozen=True):
    """A content key as it is stored, with the id and algorithm of the key that wraps it."""

    kid: str
    algorithm: str
    key: bytes


class AesKey:
    """A local key of 256 bits."""

    __slots__ = ("_kid", "_secret")

    def __init__(self, kid: str, secret: bytes) -> None:
        _check_bytes(kid, "An AES key", secret)
        if len(secret) != KEY_BYTES:
            raise _unusable(kid, f"An AES key must have {KEY_BYTES} bytes, not {len(secret)}.")
        self._kid = kid
        self._secret = bytes(secret)

    @classmethod
    def from_passphrase(cls, passphrase: str, *, salt: bytes, kid: str = "") -> "AesKey":
        """Derive a key from a passphrase. This takes a quarter of a second: do it once.

        Without `kid`, the id contains the cost of scrypt and a check value, so that a wrong
        passphrase is reported as an unknown key. The salt is not secret, but is needed to decrypt.
        """
        _check_text(kid, passphrase)
        _check_bytes(kid, "The salt", salt)
        if len(salt) < SALT_BYTES_MIN:
            raise _unusable(kid, f"The salt must have at least {SALT_BYTES_MIN} bytes.")
        # The same characters can be entered as different code points on different machines.
        text = unicodedata.normalize("NFC", passphrase).encode()
        length = KEY_BYTES + _CHECK_BYTES
        derived = ciphers.stretch(text, salt, length=length, cost=SCRYPT_COST)
        log_n, r, p = SCRYPT_COST
        # The check value reveals no more than the wrapped keys, which contain one too.
        check = derived[KEY_BYTES:].hex()
        return cls(kid or f"scrypt-{log_n}-{r}-{p}-{check}", derived[:KEY_BYTES])

    def __repr__(self) -> str:
        return f"AesKey({self._kid!r})"

    def get_kid(self) -> str:
        return self._kid

    def get_key_wrap_algorithm(self) -> str:
        return AES_WRAP

    def wrap_key(self, key: bytes, /) -> bytes:
        return ciphers.aes_key_wrap(self._secret, key)

    def unwrap_key(self, key: bytes, algorithm: str, /) -> bytes:
        if algorithm != AES_WRAP:
            raise ValueError("the key does not support this algorithm")
        return ciphers.aes_key_unwrap(self._secret, key)


class RsaKey:
    """A local RSA key. With the public key alone it can encrypt but not decrypt.

    Anyone with the public key can encrypt: RSA keeps values secret but does not authenticate the
    writer.
    """

    __slots__ = ("_kid", "_private", "_public")

    def __init__(self, kid: str, key: ciphers.PrivateKey | ciphers.PublicKey) -> None:
        if not isinstance(key, ciphers.PrivateKey | ciphers.PublicKey):
            raise _unusable(kid, f"A {type(key).__name__} is not an RSA key.")
        if key.key_size < RSA_BITS_MIN:
            raise _unusable(kid, f"The RSA key must have at least {RSA_BITS_MIN} bits.")
        self._kid = kid
        self._private = key if isinstance(key, ciphers.PrivateKey) else None
        self._public = key.public_key() if isinstance(key, ciphers.PrivateKey) else key

    @classmethod
    def from_pem(
        cls, kid: str, pem: bytes | str, *, password: bytes | str | None = None
    ) -> "RsaKey":
        if isinstance(password, str):
            password = password.encode()
        try:
            key = ciphers.load_rsa(pem.encode() if isinstance(pem, str) else pem, password)
        except ValueError as error:
            raise _unusable(kid, "The PEM has no readable RSA key.") from error
        return cls(kid, key)

    def __repr__(self) -> str:
        return f"RsaKey({self._kid!r})"

    def get_kid(self) -> str:
        return self._kid

    def get_key_wrap_algorithm(self) -> str:
        return RSA_WRAP

    def wrap_key(self, key: bytes, /) -> bytes:
        return ciphers.rsa_wrap(self._public, key)

    def unwrap_key(self, key: bytes, algorithm: str, /) -> bytes:
        if self._private is None:
            raise EncryptionKeyError(
                "PrivateKeyMissing",
                f"The key {self._kid!r} has only its public part and cannot decrypt.",
                facts={"kid": self._kid},
                hint="Load the PEM with the private key to read entities or rotate keys.",
            )
        return ciphers.rsa_unwrap(self._private, key, algorithm)


class Keyring:
    """Keys by id. Writes use the current key; each stored entity is read with its own key.

    A mapping gives the ids of the keys; bytes in it are local AES keys.

    >>> keyring = Keyring({"2024": bytes(32), "2025": bytes(range(32))}, current="2025")
    >>> keyring
    Keyring(kids=['2024', '2025'], current='2025')
    """

    __slots__ = ("_allow_dotnet_v1", "_current", "_keys")

    def __init__(
        self,
        keys: Mapping[str, KeyEncryptionKey | bytes]
        | Iterable[KeyEncryptionKey]
        | KeyEncryptionKey,
        current: str = "",
        *,
        allow_dotnet_v1: bool = False,
    ) -> None:
        """Hold `keys`; `current` may be omitted if there is only one.

        `allow_dotnet_v1` allows reading entities that the old SDKs encrypted. That format does
        not authenticate the writer: allow it only while such entities are migrated.
        """
        self._keys = _by_kid(keys)
        self._current = current or (next(iter(self._keys)) if len(self._keys) == 1 else "")
        self._allow_dotnet_v1 = allow_dotnet_v1
        if self._current not in self._keys:
            raise _unusable(
                self._current,
                "The current key is not in the keyring."
                if self._current
                else "A keyring without exactly one key requires current=.",
            )

    @classmethod
    def from_passphrase(cls, passphrase: str, *, salt: bytes, kid: str = "") -> "Keyring":
        """Return a keyring of one key, derived from a passphrase; see `AesKey.from_passphrase`."""
        return cls([AesKey.from_passphrase(passphrase, salt=salt, kid=kid)])

    @classmethod
    def from_bytes(cls, kid: str, key: bytes) -> "Keyring":
        """Return a keyring of one local AES key of 32 random bytes."""
        return cls([AesKey(kid, key)])

    def __repr__(self) -> str:
        return f"Keyring(kids={list(self._keys)!r}, current={self._current!r})"

    def __contains__(self, kid: object) -> bool:
        return kid in self._keys

    @property
    def kids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    @property
    def current(self) -> str:
        return self._current

    @property
    def allow_dotnet_v1(self) -> bool:
        return self._allow_dotnet_v1

    def add(self, key: KeyEncryptionKey) -> "Keyring":
        """Return a keyring with one more key; the current key stays.

        An id that is already in use is an error: entities encrypted with that key would be lost.
        """
        kid = key.get_kid()
        if kid in self._keys:
            raise _unusable(kid, "The keyring has another key with this id.")
        return Keyring(
            {**self._keys, kid: key}, self._current, allow_dotnet_v1=self._allow_dotnet_v1
        )

    def with_current(self, kid: str) -> "Keyring":
        """Return a keyring of the same keys with another current key."""
        self._find(kid, {})
        return Keyring(self._keys, kid, allow_dotnet_v1=self._allow_dotnet_v1)

    def wrap(self, content_key: bytes) -> WrappedKey:
        """Wrap a content key with the current key."""
        key = self._keys[self._current]
        wrapped = _bytes_from(key.wrap_key(content_key), self._current)
        return WrappedKey(self._current, key.get_key_wrap_algorithm(), wrapped)

    def unwrap(self, wrapped: WrappedKey, facts: Mapping[str, object]) -> bytes:
        """Unwrap with the key that wrapped it. `facts` name the entity in errors.

        Other exceptions of a key object, such as those of an unreachable vault, are not caught.
        """
        key = self._find(wrapped.kid, facts)
        try:
            content_key = key.unwrap_key(wrapped.key, wrapped.algorithm)
        except ciphers.FAILURES as error:
            raise SealBrokenError(
                "SealBroken",
                f"The content key cannot be unwrapped with the key {wrapped.kid!r}.",
                facts={**facts, "kid": wrapped.kid},
                hint="Check the key: the entity was changed, or encrypted with another key of "
                "this id.",
            ) from error
        return _bytes_from(content_key, wrapped.kid)

    def _find(self, kid: str, facts: Mapping[str, object]) -> KeyEncryptionKey:
        if kid not in self._keys:
            raise EncryptionKeyError(
                "KeyUnknown",
                f"The key {kid!r} is not in the keyring.",
                facts={**facts, "kid": kid},
                hint="Add the key with this id, or check the passphrase and the salt.",
            )
        return self._keys[kid]


def _by_kid(
    keys: Mapping[str, KeyEncryptionKey | bytes] | Iterable[KeyEncryptionKey] | KeyEncryptionKey,
) -> dict[str, KeyEncryptionKey]:
    if isinstance(keys, Mapping):
        held = {
            kid: AesKey(kid, key) if isinstance(key, bytes) else key for kid, key in keys.items()
        }
        for kid, key in held.items():
            _check_protocol(key, kid)
        return held
    held = {}
    for key in keys if isinstance(keys, Iterable) else (keys,):
        _check_protocol(key, "")
        kid = key.get_kid()
        if kid in held:
            raise _unusable(kid, "Two keys have the same id.")
        held[kid] = key
    return held


def _check_protocol(key: object, kid: str) -> None:
    methods = ("get_kid", "get_key_wrap_algorithm", "wrap_key", "unwrap_key")
    missing = [name for name in methods if not callable(getattr(key, name, None))]
    if missing:
        raise _unusable(
            kid, f"A {type(key).__name__} is not a key: it has no method {', '.join(missing)}."
        )


def check_keyring(given: object) -> None:
    """Raise if an object is not a Keyring."""
    if not isinstance(given, Keyring):
        raise _unusable("", f"keyring= takes a Keyring, not a {type(given).__name__}.")


def _check_text(kid: str, passphrase: object) -> None:
    if not isinstance(passphrase, str) or not passphrase:
        raise _unusable(kid, "A passphrase must be a non-empty text.")


def _check_bytes(kid: str, what: str, given: object) -> None:
    if not isinstance(given, bytes | bytearray | memoryview):
        raise _unusable(kid, f"{what} must be bytes, not a {type(given).__name__}.")


def _bytes_from(answer: object, kid: str) -> bytes:
    if isinstance(answer, bytes | bytearray | memoryview):
        return bytes(answer)
    if inspect.iscoroutine(answer):
        answer.close()
    raise _unusable(kid, f"The key returned a {type(answer).__name__} instead of bytes.")


def _unusable(kid: str, message: str) -> ConfigurationError:
    return ConfigurationError(
        "KeyUnusable",
        message,
        facts={"kid": kid} if kid else {},
        hint="Use 32 random bytes, an RSA key of at least 2048 bits, a passphrase with a salt of "
        "16 bytes, or an object with the SDK's synchronous key protocol.",
    )
