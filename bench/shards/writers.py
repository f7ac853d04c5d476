"""What concurrent writers of one SQLite shard achieve, beside plain SQLAlchemy on the same file.

Each thread inserts one row per transaction. The sides take turns in short slots, and every commit
and every error is counted, so that a writer that starves or fails shows in the figures.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from partita.shards.keys.ranges import Range
from partita.shards.maps.manager import ShardMapManager

WRITERS = (1, 4, 8)
SLOT_SECONDS = 0.5
BUSY_SECONDS = 15.0
"""The time-out of both sides."""
RATIO_MIN = 0.7
"""Of plain SQLAlchemy's rate."""
Write = Callable[[int], object]


class Base(DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "entry"
    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int]


def measure(folder: Path, writers: int, rounds: int) -> dict[str, list[float]]:
    """Return commits per second of each side, and errors and the slowest writer's share."""
    folder.mkdir(parents=True)
    url = f"sqlite:///{folder / 'shard.db'}"
    with ShardMapManager.create(f"sqlite:///{folder / 'catalog.db'}") as manager:
        tenants = manager.create_range_map("tenants", key=int)
        shard = tenants.create_shard(url)
        tenants.create_mapping(Range(0, 100), shard)
        with shard.connect() as connection:
            Base.metadata.create_all(connection)
            connection.commit()
        make, engine = tenants.sessionmaker(), _plain_engine(url)

        def plain(tenant: int) -> None:
            with Session(engine) as session, session.begin():
                session.add(Entry(tenant_id=tenant))

        def routed(tenant: int) -> None:
            with make.begin(tenant) as session:
                session.add(Entry(tenant_id=tenant))

        def in_run(tenant: int) -> None:
            tenants.run(tenant, lambda session: session.add(Entry(tenant_id=tenant)))

        try:
            return _in_turns({"plain": plain, "session": routed, "run": in_run}, writers, rounds)
        finally:
            engine.dispose()


def _plain_engine(url: str) -> Engine:
    return create_engine(url, connect_args={"timeout": BUSY_SECONDS})


def _in_turns(sides: dict[str, Write], writers: int, rounds: int) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for name, write in sides.items():
            commits, errors, seconds = _slot(write, writers)
            if not number:  # the first slot connects
                continue
            seen.setdefault(name, []).append(sum(commits) / seconds)
            seen.setdefault(f"{name} errors", []).append(errors)
            slowest = min(commits) * writers / max(1, sum(commits))
            seen.setdefault(f"{name} slowest writer", []).append(slowest)
    return seen


def _slot(write: Write, writers: int) -> tuple[list[int], int, float]:
    commits, errors, started = [0] * writers, [0] * writers, time.perf_counter()

    def work(number: int) -> None:
        while time.perf_counter() - started < SLOT_SECONDS:
            try:
                write(number)
                commits[number] += 1
            except Exception:  # noqa: BLE001 - whatever fails is counted
                errors[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return commits, sum(errors), time.perf_counter() - started
