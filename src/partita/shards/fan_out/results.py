"""What callers take from the rows of a fan-out, with the names and errors of SQLAlchemy's Result.

The rows arrive by `__next__` or `__anext__` of a subclass. Rule: a method that returns at most one
value closes the result, so that the other shards are cancelled.
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, Self, TypeVar

from sqlalchemy import RowMapping
from sqlalchemy.exc import MultipleResultsFound, NoResultFound

from partita.shards.fan_out.shard_reader import AnyRow

V = TypeVar("V")
W = TypeVar("W")
_END: Any = object()


class Taken(Iterator[V]):
    """Values that are taken once, in the order in which they arrive."""

    @abstractmethod
    def close(self) -> None:
        """Cancel what is still running; further calls do nothing."""

    def all(self) -> list[V]:
        """Return the remaining values."""
        return list(self)

    def first(self) -> V | None:
        """Return the next value, or None, and close."""
        with self:
            return next(self, None)

    def one_or_none(self) -> V | None:
        """Return the only value, or None, and close; MultipleResultsFound if there are more."""
        with self:
            found = next(self, _END)
            if found is not _END and next(self, _END) is not _END:
                raise _several()
        return None if found is _END else found

    def one(self) -> V:
        """Return the only value and close; raise NoResultFound or MultipleResultsFound."""
        with self:
            found = next(self, _END)
            if found is _END:
                raise _none()
            if next(self, _END) is not _END:
                raise _several()
        value: V = found
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncTaken(AsyncIterator[V]):
    """The same values for asyncio."""

    @abstractmethod
    async def aclose(self) -> None:
        """Cancel what is still running; further calls do nothing."""

    async def all(self) -> list[V]:
        """Return the remaining values."""
        return [value async for value in self]

    async def first(self) -> V | None:
        """Return the next value, or None, and close."""
        async with self:
            return await anext(self, None)

    async def one_or_none(self) -> V | None:
        """Return the only value, or None, and close; MultipleResultsFound if there are more."""
        async with self:
            found = await anext(self, _END)
            if found is not _END and await anext(self, _END) is not _END:
                raise _several()
        return None if found is _END else found

    async def one(self) -> V:
        """Return the only value and close; raise NoResultFound or MultipleResultsFound."""
        async with self:
            found = await anext(self, _END)
            if found is _END:
                raise _none()
            if await anext(self, _END) is not _END:
                raise _several()
        value: V = found
        return value

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Converted(Taken[W], Generic[V, W]):
    """The values of another result, each converted."""

    def __init__(self, taken: Taken[V], convert: Callable[[V], W]) -> None:
        self._taken = taken
        self._convert = convert

    def close(self) -> None:
        self._taken.close()

    def __next__(self) -> W:
        return self._convert(next(self._taken))


class AsyncConverted(AsyncTaken[W], Generic[V, W]):
    """The values of another result, each converted, for asyncio."""

    def __init__(self, taken: AsyncTaken[V], convert: Callable[[V], W]) -> None:
        self._taken = taken
        self._convert = convert

    async def aclose(self) -> None:
        await self._taken.aclose()

    async def __anext__(self) -> W:
        return self._convert(await anext(self._taken))


def column_of(index: int) -> Callable[[AnyRow], Any]:
    """Return the conversion of `scalars(index)`."""
    return lambda row: row[index]


def mapping_of(row: AnyRow) -> RowMapping:
    return row._mapping  # noqa: SLF001 - the public name of SQLAlchemy


def _none() -> NoResultFound:
    return NoResultFound("No row was found when one was required")


def _several() -> MultipleResultsFound:
    return MultipleResultsFound("Multiple rows were found when exactly one was required")
