"""What is said about a field in `Annotated`: how it is stored, or from what it is kept.

>>> from typing import Annotated
>>> salary: Annotated[int | None, Encrypted] = None
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec


class Named(msgspec.Struct, frozen=True):
    """Store the field under this property name instead of the one that the policy gives."""

    name: str


class EncryptedMark(msgspec.Struct, frozen=True):
    """The type of `Encrypted`."""


Encrypted = EncryptedMark()
"""The field is sealed before it leaves the process. It cannot be filtered by or indexed."""


class BlobMark(msgspec.Struct, frozen=True):
    """The type of `InBlob`. Call it to name another container."""

    container: str = "partita-large"

    def __call__(self, container: str) -> "BlobMark":
        return BlobMark(container)


InBlob = BlobMark()
"""The value lies in a blob; the entity holds its name, length and hash."""


class Series(msgspec.Struct, frozen=True):
    """A dict from slot (0 to `slots` - 1) to value, one property a slot.

    `pattern` is formatted with the slot: `Series("h{:02d}", slots=24)`. What does not fit into
    one entity goes into further rows beside it, or, with `store="blob"`, all into one blob.
    """

    pattern: str
    slots: int
    store: Literal["properties", "blob"] = "properties"


class CopiedFrom(msgspec.Struct, frozen=True):
    """A copy of `field` of the `source` entity whose fields equal ours, as `where` says.

    `where` maps a field of the source to a field of ours. The source is a class, or the name of
    one that is declared beside this one.
    """

    source: Any
    field: str
    where: Mapping[str, str]


class CountOf(msgspec.Struct, frozen=True):
    """How many `source` entities have fields that equal ours, as `where` says."""

    source: Any
    where: Mapping[str, str]
