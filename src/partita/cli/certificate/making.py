"""A self-signed certificate for development: for the names of this machine, and a short time.

It is not the certificate of an authority: a client that trusts it trusts this server only.
"""

import ipaddress
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line
from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.ticks import TICKS_PER_SECOND

CERTIFICATE_FILE, KEY_FILE = "certificate.pem", "key.pem"
DAYS_MAX = 397
"""The longest time that clients accept a certificate for."""
LOCAL_NAMES = (
    *("localhost", "*.blob.localhost", "*.queue.localhost", "*.table.localhost"),
    *("127.0.0.1", "::1"),
)
"""The names that every certificate is for."""


class CertificateMade(Facts, frozen=True):
    """A new certificate and its key, and how clients learn to trust it."""

    certificate: str
    key: str
    hosts: list[str]
    until: str

    def lines(self) -> Iterator[Line]:
        yield f"Made: {self.certificate} for {', '.join(self.hosts)}, valid until {self.until}."
        yield f"  Serve:        partita serve --tls-cert {self.certificate} --tls-key {self.key}"
        yield f"  Python:       export SSL_CERT_FILE={self.certificate}"
        yield f"                export REQUESTS_CA_BUNDLE={self.certificate}"
        yield f"  JavaScript:   export NODE_EXTRA_CA_CERTS={self.certificate}"


def make_certificate(given: Given) -> CertificateMade:
    """Run `partita certificate make`."""
    if given.days > DAYS_MAX:
        raise ConfigurationError(
            "Configuration",
            f"A certificate is valid for at most {DAYS_MAX} days.",
            hint="Give --days a smaller number.",
        )
    folder = Path(given.to).expanduser().resolve()
    hosts = list(dict.fromkeys((*LOCAL_NAMES, *given.host)))
    now = datetime.fromtimestamp(SystemClock().ticks() / TICKS_PER_SECOND, UTC)
    until = now + timedelta(days=given.days)
    key, certificate = self_signed(hosts, now, until)
    _write(folder / KEY_FILE, key, 0o600, replaces=given.renew)
    _write(folder / CERTIFICATE_FILE, certificate, 0o644, replaces=True)
    return CertificateMade(
        str(folder / CERTIFICATE_FILE), str(folder / KEY_FILE), hosts, f"{until:%Y-%m-%d}"
    )


def self_signed(hosts: Sequence[str], start: datetime, until: datetime) -> tuple[bytes, bytes]:
    """Return a private key and a certificate for some hosts, both in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Partita development")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - timedelta(minutes=5))
        .not_valid_after(until)
        .add_extension(x509.SubjectAlternativeName([*map(_name, hosts)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private, certificate.public_bytes(serialization.Encoding.PEM)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigurationError(
            "Configuration",
            f"{host!r} is not a name or an address of a server.",
            hint="Give --host a name in ASCII, or an address.",
        ) from error


def _write(path: Path, content: bytes, mode: int, *, replaces: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, flags | (os.O_TRUNC if replaces else os.O_EXCL), mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
    except FileExistsError as error:
        raise ConfigurationError(
            "Configuration",
            f"The file {path} exists already.",
            hint="Give --renew to replace it, or another folder with --to.",
        ) from error
    except OSError as error:
        raise ConfigurationError(
            "Configuration",
            f"The file {path} cannot be written: {error.strerror}.",
            hint="Check --to and its permissions.",
        ) from error
