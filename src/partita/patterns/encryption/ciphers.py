"""Cryptographic primitives: the only module that imports `cryptography`.

Everything here raises one of `FAILURES` if decryption fails, without the reason: which check
failed would help only an attacker.
"""

from partita.errors import ConfigurationError

try:
    from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
    from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap
    from cryptography.hazmat.primitives.padding import PKCS7
except ImportError as error:  # only without the extra
    raise ConfigurationError(
        "ExtraMissing",
        "Encrypted properties require the package cryptography.",
        hint="pip install './partita[patterns]'.",
    ) from error

__all__ = [
    "AESGCM",
    "FAILURES",
    "NONCE_BYTES",
    "PrivateKey",
    "PublicKey",
    "aes_key_unwrap",
    "aes_key_wrap",
    "load_rsa",
    "open_cbc",
    "rsa_unwrap",
    "rsa_wrap",
    "stretch",
]

FAILURES = (InvalidTag, InvalidUnwrap, ValueError)
"""The exceptions for a value or a wrapped key that cannot be decrypted."""

NONCE_BYTES = 12
_BLOCK_BITS = 128

PrivateKey = rsa.RSAPrivateKey
PublicKey = rsa.RSAPublicKey

_HASHES: dict[str, hashes.HashAlgorithm] = {
    "RSA-OAEP-256": hashes.SHA256(),
    # SHA-1 is not broken as a mask; .NET and Key Vault wrapped keys with it by default.
    "RSA-OAEP": hashes.SHA1(),  # noqa: S303 - read only
}


def open_cbc(key: bytes, iv: bytes, sealed: bytes) -> bytes:
    """Decrypt AES-CBC with PKCS7 padding, without authentication."""
    decryptor = Cipher(algorithms.AES(key), modes.CBC(iv)).decryptor()
    unpadder = PKCS7(_BLOCK_BITS).unpadder()
    padded = decryptor.update(sealed) + decryptor.finalize()
    return unpadder.update(padded) + unpadder.finalize()


def stretch(passphrase: bytes, salt: bytes, *, length: int, cost: tuple[int, int, int]) -> bytes:
    """Derive bytes from a passphrase with scrypt (RFC 7914); `cost` is (log2 n, r, p)."""
    log_n, r, p = cost
    return Scrypt(salt=salt, length=length, n=1 << log_n, r=r, p=p).derive(passphrase)


def load_rsa(pem: bytes, password: bytes | None) -> PrivateKey | PublicKey:
    """Load a PEM with a private or public RSA key; anything else raises ValueError."""
    try:
        loaded: object = (
            serialization.load_pem_private_key(pem, password)
            if b"PRIVATE KEY" in pem
            else serialization.load_pem_public_key(pem)
        )
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(*error.args) from error
    if not isinstance(loaded, PrivateKey | PublicKey):
        raise ValueError("not an RSA key")  # noqa: TRY004 - the PEM is wrong, not its type
    return loaded


def rsa_wrap(public: PublicKey, key: bytes) -> bytes:
    """Wrap with RSA-OAEP-256."""
    return public.encrypt(key, _oaep("RSA-OAEP-256"))


def rsa_unwrap(private: PrivateKey, wrapped: bytes, algorithm: str) -> bytes:
    return private.decrypt(wrapped, _oaep(algorithm))


def _oaep(algorithm: str) -> padding.OAEP:
    if algorithm not in _HASHES:
        raise ValueError("the key does not support this algorithm")
    chosen = _HASHES[algorithm]
    return padding.OAEP(mgf=padding.MGF1(chosen), algorithm=chosen, label=None)
