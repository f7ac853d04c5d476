"""Builds the indexes of dictionaries from their rows."""

import asyncio
from collections.abc import Iterable
from typing import Any

from partita.errors import LimitExceededError
from partita.reliable.collections.dictionary_rows import DictionaryRows
from partita.reliable.collections.indexes import Index, IndexView
from partita.reliable.collections.transaction import Core, Transaction
from partita.reliable.manager.descriptions import Descriptions
from partita.reliable.manager.runner import Runner
from partita.reliable.state.locks import LockMode
from partita.reliable.state.records import Clear
from partita.reliable.state.state import Collection, Description

BUILT_AT_ONCE = 500


class IndexBuilder:
    """Creates and fills the indexes of open dictionaries, one at a time."""

    def __init__(self, core: Core, runner: Runner, descriptions: Descriptions) -> None:
        self._core = core
        self._runner = runner
        self._descriptions = descriptions
        self._building = asyncio.Lock()

    def declare(self, owner: DictionaryRows[Any, Any], indexes: dict[str, Index]) -> None:
        """Give a dictionary the views of its indexes, before they are built."""
        for name, index in indexes.items():
            full_name = f"{owner.name}\x00{name}"

            def locate(full_name: str = full_name) -> Collection | None:
                return self._core.state.find(full_name)

            owner.indexes[name] = IndexView(name, index, owner, locate)

    async def build_all(self, owners: Iterable[DictionaryRows[Any, Any]]) -> None:
        """Build the indexes that are not ready: new, changed, or marked by another writer."""
        for owner in owners:
            for view in list(owner.indexes.values()):
                if not view.is_ready:
                    await self.build(owner, view)

    async def build(self, owner: DictionaryRows[Any, Any], view: IndexView) -> None:
        """Fill an index from the rows, in small transactions beside those of the users."""
        async with self._building:
            if self._core.role_error is None and not view.is_ready:
                await self._build(owner, view)

    async def _build(self, owner: DictionaryRows[Any, Any], view: IndexView) -> None:
        if view.locate() is None:
            full_name = f"{owner.name}\x00{view.name}"
            await self._descriptions.create(
                Description(full_name, "index", owner=owner.collection.id, is_ready=False), owner
            )

        async def begin(tx: Transaction) -> None:
            # Exclusive: no transaction may have read the old entries and write after the clear.
            await tx.enter(owner, None, LockMode.EXCLUSIVE)
            identifier = view.collection.id
            tx.stage_operations([view.described(is_ready=False), Clear(identifier)])

        async def fill(tx: Transaction, keys: list[bytes]) -> None:
            # Exclusive: a shared lock is released when the commit starts, and a writer would not
            # see the entry that is being committed.
            await tx.enter(owner, None)
            for key in keys:
                tx.space(owner)  # each key is an operation with a time-out of its own
                await tx.lock(owner, key, LockMode.EXCLUSIVE, None)
            tx.stage_operations(view.entries_of(keys))

        await self._runner.run(begin)
        last, limit = b"", BUILT_AT_ONCE
        while keys := owner.collection.rows.between(last, None, limit=limit):
            try:
                await self._runner.run(fill, keys)
            except LimitExceededError:
                if len(keys) == 1:
                    raise
                limit = len(keys) // 2  # their entries do not fit into one transaction
            else:
                last = keys[-1] + b"\x00"
        await self._descriptions.commit(owner, lambda: view.described(is_ready=True))
