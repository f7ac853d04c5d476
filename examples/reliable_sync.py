"""Reliable collections without asyncio: what a script, or a Django or Flask view, would write."""

import itertools
import sys
import tempfile
import threading

import msgspec

from partita.reliable import LockMode
from partita.reliable.sync import Transaction, open_state


class Account(msgspec.Struct, frozen=True):
    owner: str
    cents: int = 0


class Transfer(msgspec.Struct, frozen=True):
    source: str
    target: str
    cents: int


with open_state(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()) as state:
    accounts = state.dictionary("accounts", key=str, value=Account, indexes={"owner": lambda account: account.owner})
    mails = state.queue("mails", value=Transfer)

    with state.transaction() as tx:  # commits on the way out, aborts on an exception
        accounts.set(tx, "a-1", Account("ada", 1_000))
        accounts.set(tx, "b-1", Account("bob"))

    def move(tx: Transaction, transfer: Transfer) -> int:
        both = accounts.get_many(tx, (transfer.source, transfer.target), lock=LockMode.UPDATE)
        source, target = both[transfer.source], both[transfer.target]
        if source.cents < transfer.cents:
            raise ValueError("too little money")
        accounts.set(tx, transfer.source, msgspec.structs.replace(source, cents=source.cents - transfer.cents))
        accounts.set(tx, transfer.target, msgspec.structs.replace(target, cents=target.cents + transfer.cents))
        mails.enqueue(tx, transfer)
        return source.cents - transfer.cents

    # As a view would: a request that comes twice is done once, and gets the same answer twice.
    done = state.run(move, Transfer("a-1", "b-1", 100), idempotency_key="request-17")
    again = state.run(move, Transfer("a-1", "b-1", 100), idempotency_key="request-17")
    assert done == again and done.value == 900

    try:
        state.run(move, Transfer("a-1", "b-1", 5_000))
    except ValueError:
        pass  # aborted: nothing was moved

    # Threads of a server share the state; each has its own transactions.
    threads = [
        threading.Thread(target=state.run, args=(move, Transfer("a-1", "b-1", 10)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for attempt in state.attempts():  # the same retries, by hand
        with attempt as tx:
            assert accounts.get(tx, "a-1").cents == 820

    with state.snapshot() as snapshot:  # lock-free, consistent over all collections
        assert {name: account.cents for name, account in accounts.items(snapshot)} == {
            "a-1": 820,
            "b-1": 180,
        }
        assert [name for name, _ in accounts.find(snapshot, owner="bob")] == ["b-1"]
        assert mails.count(snapshot) == 9

    with state.transaction() as tx:
        assert len(mails.dequeue_many(tx, 100)) == 9

    with accounts.changes(since=0) as feed:
        assert [change.kind for change in itertools.islice(feed, 3)] == ["add", "add", "update"]

print("all is well")
