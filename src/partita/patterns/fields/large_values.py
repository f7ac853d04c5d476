"""References to large values, which entities store instead of the values."""

import hashlib

import msgspec

from partita.errors import ChecksumError, InvalidPropertyError
from partita.patterns.protocol.untrusted_json import decode


class LargeValue(msgspec.Struct, frozen=True):
    """A large value that was not read: the name, length and hash that the entity stores instead.

    A field of this type, `Annotated[LargeValue | None, InBlob]`, is read and written in chunks on
    request, with `table.large(entity, "field")`.
    """

    name: str
    length: int
    sha256: str
    container: str

    def to_text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: object) -> "LargeValue":
        try:
            return decode(str(text), cls)
        except msgspec.DecodeError as error:
            raise InvalidPropertyError(
                "PropertyTypeMismatch",
                "The property is not a reference to a blob.",
                hint="Check the declaration: the field is InBlob, but another value was stored.",
            ) from error

    def is_of(self, content: bytes) -> bool:
        """Return whether this is a reference to this content."""
        return len(content) == self.length and hashlib.sha256(content).hexdigest() == self.sha256

    def check(self, content: bytes) -> None:
        """Raise if the content is not what was written."""
        self.check_hash(hashlib.sha256(content).hexdigest())

    def check_hash(self, sha256: str) -> None:
        """Raise if this is not the hash of what was written."""
        if sha256 != self.sha256:
            raise ChecksumError(
                "BlobChanged",
                "The blob of a large property is not what was written.",
                facts={"container": self.container, "blob": self.name},
            )
