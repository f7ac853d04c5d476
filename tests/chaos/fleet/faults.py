"""Faults of PostgreSQL, of a front end, and of the network between them."""

import contextlib
import time

import psycopg
from psycopg import sql

from chaos.fleet.world import ROLE, Fault, FrontEnd, World
from support.proxy import Direction

LOCK_SECONDS = 10.0
TABLES = ("entity", "entity", "message", "blob", "range_own")
EXHAUSTED_SECONDS = 4.0


def restart_database(world: World) -> float:
    """Stop PostgreSQL as a crash does, and start it again."""
    world.server.stop(immediately=True)
    return _start_database(world)


def kill_database(world: World) -> float:
    world.server.kill()
    return _start_database(world)


def _start_database(world: World) -> float:
    time.sleep(world.chance.uniform(0.1, 2.0))
    ended = time.monotonic()
    world.server.restart()
    world.use(world.server)
    return ended


def exhaust_connections(world: World) -> float:
    """Take every connection, also those that the front ends had."""
    with contextlib.ExitStack() as taken:
        first = taken.enter_context(world.server.connect())
        end = time.monotonic() + EXHAUSTED_SECONDS
        while time.monotonic() < end:
            # The freed places are taken before the front ends have connected again, mostly.
            with contextlib.suppress(psycopg.OperationalError):
                while True:
                    taken.enter_context(world.server.connect())
            first.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                f" WHERE usename = '{ROLE}' AND backend_type = 'client backend'"
            )
            time.sleep(0.1)
    return time.monotonic()


def lock_table(world: World) -> float:
    """Lock the whole table of a service, as a careless operator does."""
    table = sql.Identifier("partita", world.chance.choice(TABLES))
    with world.server.connect() as connection, connection.transaction():
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(table))
        time.sleep(LOCK_SECONDS)
    return time.monotonic()


def freeze(world: World) -> float:
    end = _any(world)
    end.freeze()
    time.sleep(world.chance.uniform(1, 12))
    end.thaw()
    return time.monotonic()


def kill(world: World) -> float:
    end = _any(world)
    end.kill()
    ended = time.monotonic()
    end.start()
    return ended


def lose_requests(world: World) -> float:
    return _blackhole(world, Direction.REQUESTS)


def lose_answers(world: World) -> float:
    return _blackhole(world, Direction.ANSWERS)


def _blackhole(world: World, direction: Direction) -> float:
    end = _any(world)
    end.proxy.blackhole(direction)
    time.sleep(world.chance.uniform(1, 6))
    end.proxy.heal()
    return time.monotonic()


def delay(world: World) -> float:
    end = _any(world)
    end.proxy.delay(world.chance.uniform(0.02, 0.3))
    time.sleep(world.chance.uniform(1, 3))
    end.proxy.heal()
    return time.monotonic()


def reset(world: World) -> float:
    end = _any(world)
    end.proxy.drop()
    time.sleep(world.chance.uniform(0.1, 1.0))
    end.proxy.heal()
    return time.monotonic()


def _any(world: World) -> FrontEnd:
    return world.chance.choice([each for each in world.front_ends if not each.is_frozen])


OF_DATABASE: dict[str, Fault] = {
    "restart of PostgreSQL (immediate)": restart_database,
    "kill of PostgreSQL": kill_database,
    "no free connection": exhaust_connections,
    "table locked by another": lock_table,
}
OF_FRONT_END: dict[str, Fault] = {"SIGSTOP of a front end": freeze, "kill of a front end": kill}
OF_NETWORK: dict[str, Fault] = {
    "blackhole of statements": lose_requests,
    "blackhole of results": lose_answers,
    "delay": delay,
    "reset": reset,
}
FAULTS = OF_DATABASE | OF_FRONT_END | OF_NETWORK
