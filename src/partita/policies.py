"""Stored access policies of tables, queues and containers."""

import msgspec


class Policy(msgspec.Struct, frozen=True, gc=False):
    """A stored access policy. Times are texts as given; None means not given."""

    id: str
    start: str | None = None
    expiry: str | None = None
    permission: str | None = None
