"""A connection has one thread at a time: in debug mode a second one is refused."""

import asyncio
import threading
from pathlib import Path

import apsw
import pytest

from partita.storage.database import Database


def test_a_second_thread_on_a_connection_is_refused_in_debug_mode(tmp_path: Path) -> None:
    async def use_twice() -> None:
        database = await Database.open(tmp_path)
        entered, left = threading.Event(), threading.Event()

        def hold(*_values: object) -> int:
            entered.set()
            left.wait(5)
            return 1

        connection = database.reader
        connection.create_scalar_function("hold", hold, 0)
        other = threading.Thread(target=lambda: connection.execute("SELECT hold()").get)
        other.start()
        entered.wait(5)
        try:
            with pytest.raises(apsw.ThreadingViolationError):
                connection.execute("SELECT 1").get  # noqa: B018 - runs the statement
        finally:
            left.set()
            other.join()
            await database.close()

    asyncio.run(use_twice(), debug=True)
