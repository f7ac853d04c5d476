"""Markers for `Annotated`: how a field is stored, or which entity it is derived from.

>>> from typing import Annotated
>>> salary: Annotated[int | None, Encrypted] = None
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec


class Named(msgspec.Struct, frozen=True):
    """Store the field under this property name instead of the one that `naming` gives."""

    name: str


class EncryptedMark(msgspec.Struct, frozen=True):
    """The type of `Encrypted`."""


Encrypted = EncryptedMark()
"""The field is encrypted before it leaves the process. It cannot be used in filters or indexes."""


class BlobMark(msgspec.Struct, frozen=True):
    """The type of `InBlob`. Call it to name another container."""

    container: str = "partita-large"

    def __call__(self, container: str) -> "BlobMark":
        return BlobMark(container)


InBlob = BlobMark()
"""The value is stored in a blob; the entity holds its name, length and hash."""


class Series(msgspec.Struct, frozen=True):
    """A dict from slot to value, stored as one property per slot.

    `pattern` is formatted with the slot: `Series("h{:02d}", slots=24)`. The slots are numbered from
    `first` on. Slots that do not fit into one row are stored in additional rows, or, with
    `store="blob"`, all in one blob.
    """

    pattern: str
    slots: int
    store: Literal["properties", "blob"] = "properties"
    first: int = 0

    @property
    def last(self) -> int:
        return self.first + self.slots - 1


class CopiedFrom(msgspec.Struct, frozen=True):
    """A copy of `field` of the `source` entity that `where` selects.

    `where` maps fields of the source to the fields of this class that they must equal. The source
    is a class, or the name of a class in the same scope.
    """

    source: Any
    field: str
    where: Mapping[str, str]


When = Callable[[Any], Any]
"""Returns a condition on the columns of the source: `lambda order: order.status == "open"`."""


class CountOf(msgspec.Struct, frozen=True):
    """The number of `source` entities that `where` selects and `when` admits."""

    source: Any
    where: Mapping[str, str]
    when: When | None = None


class SumOf(msgspec.Struct, frozen=True):
    """The sum of `field` over the `source` entities that `where` selects and `when` admits."""

    source: Any
    field: str
    where: Mapping[str, str]
    when: When | None = None


class MinOf(msgspec.Struct, frozen=True):
    """The least `field` of the `source` entities that `where` selects; None if there are none."""

    source: Any
    field: str
    where: Mapping[str, str]
    when: When | None = None


class MaxOf(msgspec.Struct, frozen=True):
    """The greatest `field` of the `source` entities that `where` selects, or None."""

    source: Any
    field: str
    where: Mapping[str, str]
    when: When | None = None


Summary = CountOf | SumOf | MinOf | MaxOf
"""A field that summarises several entities."""
Derived = CopiedFrom | Summary
"""A field that is computed from other entities."""


def field_read(marker: Derived) -> str | None:
    """Return the field of the source that a derived field reads; None for a count."""
    return None if isinstance(marker, CountOf) else marker.field
