"""Ranges of keys that are read at the same time, and where to divide them; pure.

A range is a condition of `$filter`: the service compares keys, so that ranges neither overlap nor
leave a gap whatever its order of characters is.
"""

import msgspec

_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_FIRST_CHARACTER = 0x20
"""Keys have no control characters."""


class Span(msgspec.Struct, frozen=True):
    """Partition keys from `lower` to before `upper`; or row keys so, if there is a `partition`."""

    lower: str = ""
    upper: str | None = None
    partition: str | None = None

    def condition(self) -> str:
        """Return the range as a filter; empty for all keys.

        >>> Span("a", "it's").condition()
        "PartitionKey ge 'a' and PartitionKey lt 'it''s'"
        """
        name = "PartitionKey" if self.partition is None else "RowKey"
        parts = [] if self.partition is None else [f"PartitionKey eq {quoted(self.partition)}"]
        if self.lower:
            parts.append(f"{name} ge {quoted(self.lower)}")
        if self.upper is not None:
            parts.append(f"{name} lt {quoted(self.upper)}")
        return " and ".join(parts)


EVERYWHERE = Span()


def quoted(text: str) -> str:
    """Return a text as a literal of a filter."""
    return "'" + text.replace("'", "''") + "'"


def both(one: str, other: str) -> str:
    """Return a filter for what two filters select; an empty one selects everything."""
    return f"({one}) and ({other})" if one and other else one or other


def midpoint(low: str, high: str | None) -> str | None:
    """Return a text between two texts in the order of code points; None if none is found.

    It is only a proposal: the entity that follows it is where a range is divided.

    >>> midpoint("a", "k"), midpoint("item-1", "item-9"), midpoint("b", None)
    ('f', 'item-5', None)
    """
    if high is None or low >= high:
        return None
    shared = 0
    while shared < len(low) and low[shared] == high[shared]:
        shared += 1
    first = ord(low[shared]) if shared < len(low) else _FIRST_CHARACTER
    last = ord(high[shared])
    middle = (first + last + 1) // 2
    if first < middle <= last and (middle < last or len(high) > shared + 1):
        return high[:shared] + _character(middle)
    # The characters are neighbours: divide the texts that begin as the lower one.
    rest = low[shared + 1 : shared + 2]
    after = ord(rest) if rest else _FIRST_CHARACTER
    end = 0x7F if after < 0x7F else _LAST_CHARACTER
    middle = (after + end + 1) // 2
    begun = high[:shared] + (low[shared] if shared < len(low) else "")
    found = begun + _character(middle)
    return found if low < found < high else None


def _character(code: int) -> str:
    return chr(code if code not in _SURROGATES else _SURROGATES.stop)
