import subprocess
import sys
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.keywrap import (
    aes_key_unwrap_with_padding,
    aes_key_wrap_with_padding,
)

from partita.errors import ConfigurationError, EncryptionKeyError, PartitaError, SealBrokenError
from partita.patterns.encryption.keyring import AesKey, Keyring, RsaKey, WrappedKey

SECRET = bytes(range(32))
OTHER = bytes(range(32, 64))
CONTENT = b"P1\0\0\0\0\0\0" + bytes(range(100, 132))
SALT = b"16 bytes of salt"
PRIVATE = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PRIVATE_PEM = PRIVATE.private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.BestAvailableEncryption(b"the password"),
)
PUBLIC_PEM = PRIVATE.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


class Vault:
    """A key as Key Vault users write it for the SDK: other parameter names, RFC 5649 inside."""

    def __init__(self, kid: str, secret: bytes) -> None:
        self._kid = kid
        self._secret = secret
        self.is_reachable = True

    def get_kid(self) -> str:
        return self._kid

    def get_key_wrap_algorithm(self) -> str:
        return "CKM_AES_KEY_WRAP_PAD"

    def wrap_key(self, content: bytes) -> bytes:
        return aes_key_wrap_with_padding(self._secret, content)

    def unwrap_key(self, wrapped: bytes, algorithm: str) -> bytes:
        if not self.is_reachable:
            raise ConnectionError("the vault is away")
        assert algorithm == self.get_key_wrap_algorithm()
        return aes_key_unwrap_with_padding(self._secret, wrapped)


class AsyncVault(Vault):
    async def wrap_key(self, content: bytes) -> bytes:  # type: ignore[override]
        return super().wrap_key(content)


class Clerk:
    """Not a key: it cannot unwrap."""

    def get_kid(self) -> str:
        return "clerk"

    def get_key_wrap_algorithm(self) -> str:
        return "A256KW"

    def wrap_key(self, content: bytes) -> bytes:
        return content


def pem_of(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def test_a_wrapped_key_opens_with_the_key_of_its_id() -> None:
    keyring = Keyring({"old": SECRET, "new": OTHER}, current="new")

    wrapped = keyring.wrap(CONTENT)

    assert (wrapped.kid, wrapped.algorithm) == ("new", "A256KW")
    assert keyring.unwrap(wrapped, {}) == CONTENT
    assert keyring.with_current("old").unwrap(wrapped, {}) == CONTENT


def test_a_key_wrapped_by_the_document_of_the_standard_opens() -> None:
    # RFC 3394, 4.6: 256 bits of key data with a 256-bit key.
    wrapped = bytes.fromhex(
        "28c9f404c4b810f4cbccb35cfb87f8263f5786e2d80ed326cbc7f0e71a99f43bfb988b9b7a02dd21"
    )
    expected = bytes.fromhex("00112233445566778899aabbccddeeff000102030405060708090a0b0c0d0e0f")

    keyring = Keyring.from_bytes("k", SECRET)

    assert keyring.unwrap(WrappedKey("k", "A256KW", wrapped), {}) == expected


def test_a_key_that_is_not_there_is_named() -> None:
    wrapped = Keyring.from_bytes("lost", SECRET).wrap(CONTENT)

    with pytest.raises(EncryptionKeyError, match="'lost'") as caught:
        Keyring.from_bytes("k", SECRET).unwrap(wrapped, {"row_key": "7"})

    assert caught.value.code == "KeyUnknown"
    assert caught.value.facts == {"row_key": "7", "kid": "lost"}


def test_another_key_of_the_same_id_opens_nothing() -> None:
    wrapped = Keyring.from_bytes("k", SECRET).wrap(CONTENT)

    with pytest.raises(SealBrokenError) as caught:
        Keyring.from_bytes("k", OTHER).unwrap(wrapped, {})

    assert caught.value.code == "SealBroken"


@pytest.mark.parametrize(
    "key", [AesKey("k", SECRET), RsaKey("k", PRIVATE)], ids=lambda key: type(key).__name__
)
def test_a_key_refuses_algorithms_that_are_not_its_own(key: AesKey | RsaKey) -> None:
    keyring = Keyring([key])

    wrapped = WrappedKey("k", "RSA1_5", keyring.wrap(CONTENT).key)

    with pytest.raises(SealBrokenError):
        keyring.unwrap(wrapped, {})


def test_a_passphrase_gives_the_same_key_again() -> None:
    first = Keyring.from_passphrase("only for this example", salt=SALT)
    again = Keyring.from_passphrase("only for this example", salt=SALT)

    assert first.kids == again.kids == ("scrypt-15-8-3-9d49b805e296",)
    assert again.unwrap(first.wrap(CONTENT), {}) == CONTENT


def test_a_passphrase_typed_with_other_code_points_is_the_same() -> None:
    composed = Keyring.from_passphrase("caf\u00e9", salt=SALT, kid="k")
    decomposed = Keyring.from_passphrase("cafe\u0301", salt=SALT, kid="k")

    assert decomposed.unwrap(composed.wrap(CONTENT), {}) == CONTENT


@pytest.mark.parametrize(
    ("passphrase", "salt"),
    [("only for this exampl\u00e9", SALT), ("only for this example", b"16 bytes of malt")],
)
def test_another_passphrase_or_salt_is_an_unknown_key(passphrase: str, salt: bytes) -> None:
    wrapped = Keyring.from_passphrase("only for this example", salt=SALT).wrap(CONTENT)

    with pytest.raises(EncryptionKeyError) as caught:
        Keyring.from_passphrase(passphrase, salt=salt).unwrap(wrapped, {})

    assert caught.value.code == "KeyUnknown"


def test_an_rsa_key_from_a_pem_with_a_password_wraps_and_unwraps() -> None:
    keyring = Keyring([RsaKey.from_pem("rsa", PRIVATE_PEM, password=b"the password")])

    wrapped = keyring.wrap(CONTENT)

    assert wrapped.algorithm == "RSA-OAEP-256"
    assert keyring.unwrap(wrapped, {}) == CONTENT


def test_the_public_half_of_an_rsa_key_seals_and_cannot_open() -> None:
    writer = Keyring([RsaKey.from_pem("rsa", PUBLIC_PEM)])

    wrapped = writer.wrap(CONTENT)

    assert Keyring([RsaKey("rsa", PRIVATE)]).unwrap(wrapped, {}) == CONTENT
    with pytest.raises(EncryptionKeyError) as caught:
        writer.unwrap(wrapped, {})
    assert caught.value.code == "PrivateKeyMissing"


@pytest.mark.parametrize(
    ("pem", "password"),
    [
        (PRIVATE_PEM, b"another password"),
        (PRIVATE_PEM, None),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", None),
        (b"", None),
        (pem_of(ec.generate_private_key(ec.SECP256R1())), None),
        (pem_of(rsa.generate_private_key(public_exponent=65537, key_size=1024)), None),
    ],
    ids=["password", "no password", "damaged", "empty", "no rsa", "too short"],
)
def test_a_pem_that_holds_no_good_key_is_refused(pem: bytes, password: bytes | None) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RsaKey.from_pem("rsa", pem, password=password)

    assert caught.value.code == "KeyUnusable"


def test_an_object_of_the_sdk_protocol_drops_in() -> None:
    kid = "https://acme.vault.azure.net/keys/staff/7f3a"
    keyring = Keyring([Vault(kid, SECRET)])

    wrapped = keyring.wrap(CONTENT)

    assert wrapped.kid == kid
    assert wrapped.algorithm == "CKM_AES_KEY_WRAP_PAD"
    assert keyring.unwrap(wrapped, {}) == CONTENT


def test_a_damaged_key_of_a_vault_is_a_broken_seal() -> None:
    keyring = Keyring([Vault("v", SECRET)])
    wrapped = WrappedKey("v", "CKM_AES_KEY_WRAP_PAD", bytes(48))

    with pytest.raises(SealBrokenError):
        keyring.unwrap(wrapped, {})


def test_what_a_vault_raises_reaches_the_caller() -> None:
    vault = Vault("v", SECRET)
    keyring = Keyring([vault])
    wrapped = keyring.wrap(CONTENT)
    vault.is_reachable = False

    with pytest.raises(ConnectionError):
        keyring.unwrap(wrapped, {})


def test_an_asynchronous_key_is_refused_when_it_answers() -> None:
    keys: Any = [AsyncVault("v", SECRET)]

    with pytest.raises(ConfigurationError, match="coroutine"):
        Keyring(keys).wrap(CONTENT)


def test_an_object_without_the_protocol_is_refused() -> None:
    keys: Any = [Clerk()]

    with pytest.raises(ConfigurationError, match="unwrap_key"):
        Keyring(keys)


def test_a_key_can_be_held_under_another_id_than_its_own() -> None:
    keyring = Keyring({"alias": Vault("v", SECRET)})

    assert keyring.wrap(CONTENT).kid == "alias"


def test_adding_a_key_makes_another_keyring() -> None:
    before = Keyring.from_bytes("old", SECRET)

    after = before.add(AesKey("new", OTHER))

    assert before.kids == ("old",)
    assert (after.kids, after.current) == (("old", "new"), "old")
    assert after.with_current("new").current == "new"
    assert "new" in after
    assert "new" not in before


def test_permission_for_version_1_goes_along() -> None:
    keyring = Keyring({"old": SECRET}, allow_dotnet_v1=True)

    after = keyring.add(AesKey("new", OTHER)).with_current("new")

    assert after.allow_dotnet_v1
    assert not Keyring.from_bytes("old", SECRET).allow_dotnet_v1


def test_a_key_that_is_not_held_cannot_be_current() -> None:
    with pytest.raises(EncryptionKeyError) as caught:
        Keyring.from_bytes("old", SECRET).with_current("new")

    assert caught.value.code == "KeyUnknown"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Keyring.from_bytes("k", bytes(16)),
        lambda: Keyring.from_passphrase("", salt=SALT),
        lambda: Keyring.from_passphrase("x", salt=bytes(15)),
        lambda: Keyring({}),
        lambda: Keyring({"a": SECRET, "b": OTHER}),
        lambda: Keyring({"a": SECRET}, current="b"),
        lambda: Keyring([AesKey("a", SECRET), AesKey("a", OTHER)]),
        lambda: Keyring([AesKey("a", SECRET)]).add(AesKey("a", OTHER)),
    ],
)
def test_what_makes_no_keyring_is_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()

    assert caught.value.code == "KeyUnusable"


def test_no_key_is_shown() -> None:
    shown = []
    keyring = Keyring({"a": SECRET, "b": OTHER}, current="a")
    wrapped = keyring.wrap(CONTENT)
    for broken in (
        WrappedKey("gone", "A256KW", wrapped.key),
        WrappedKey("a", "A256KW", bytes(40)),
        WrappedKey("b", "A256KW", wrapped.key),
    ):
        with pytest.raises(PartitaError) as caught:
            keyring.unwrap(broken, {})
        shown.append(f"{caught.value!r} {caught.value} {caught.value.facts}")
    held = [keyring, AesKey("a", SECRET), RsaKey("r", PRIVATE)]
    shown += [f"{key!r} {key}" for key in held]

    for text in shown:
        for secret in (SECRET, OTHER, CONTENT[8:]):
            assert repr(secret)[2:-1] not in text
            assert secret.hex() not in text
    assert repr(held[1]) == "AesKey('a')"


def test_without_the_extra_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from partita.errors import ConfigurationError\n"
        "try:\n"
        "    import partita.patterns.encryption.keyring\n"
        "except ConfigurationError as error:\n"
        "    print(error.code, error.hint)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True
    )

    assert done.stdout == "ExtraMissing pip install './partita[patterns]'.\n"
