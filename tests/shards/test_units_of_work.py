"""Units of work: what is repeated, what is refused, savepoints and commits."""

from collections.abc import Iterator

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from partita.errors import MappingOfflineError, UsageError
from partita.shards import Retry
from support.routed import Note, Routed, a_shared_map


@pytest.fixture
def routed() -> Iterator[Routed]:
    with a_shared_map("sqlite") as made:
        yield made


def test_what_a_unit_of_work_committed_by_itself_is_not_repeated(routed: Routed) -> None:
    tries = []

    def work(session: Session) -> None:
        tries.append(1)
        session.add(Note(tenant_id=5, id=len(tries)))
        session.commit()
        raise MappingOfflineError("MappingOffline", "between two commits")

    with pytest.raises(MappingOfflineError):
        routed.tenants.run(5, work, retry=Retry(first=0.001))

    assert routed.notes(routed.one) == [(5, 1)]
    with pytest.raises(MappingOfflineError):
        routed.tenants.run(5, work, retry=Retry(first=0.001, tries=2), idempotent=True)
    assert routed.notes(routed.one) == [(5, 1), (5, 2), (5, 3)]


def test_a_savepoint_is_not_a_commit_and_the_unit_of_work_is_repeated(routed: Routed) -> None:
    tries = []

    def work(session: Session) -> None:
        tries.append(1)
        with session.begin_nested():
            session.add(Note(tenant_id=5, id=1))
        if len(tries) < 2:
            raise MappingOfflineError("MappingOffline", "after a savepoint")

    routed.tenants.run(5, work, retry=Retry(first=0.001))

    assert routed.notes(routed.one) == [(5, 1)]


async def a_coroutine(_session: object) -> None: ...


def test_a_coroutine_function_is_not_a_unit_of_work_of_run(routed: Routed) -> None:
    with pytest.raises(UsageError, match="NotAUnitOfWork"):
        routed.tenants.run(5, a_coroutine)  # type: ignore[unused-coroutine]
    with pytest.raises(UsageError, match="NotAUnitOfWork"):
        routed.tenants.run(5, lambda session: (note for note in session.scalars(select(Note))))


async def test_a_plain_function_is_not_a_unit_of_work_of_arun(routed: Routed) -> None:
    def plain(_session: AsyncSession) -> int:
        return 1

    with pytest.raises(UsageError, match="NotAUnitOfWork"):
        await routed.tenants.arun(5, plain)  # type: ignore[arg-type]
    await routed.manager.aclose()


def test_routed_without_the_name_of_the_argument_is_refused(routed: Routed) -> None:
    def work(_session: Session, tenant_id: int) -> int:
        return tenant_id

    with pytest.raises(UsageError, match="RoutedArgumentMissing"):
        routed.tenants.routed(work)  # type: ignore[arg-type]


def test_a_wrong_way_to_validate_is_told_where_it_is_written(routed: Routed) -> None:
    with pytest.raises(UsageError, match="UnknownValidation"):
        routed.tenants.sessionmaker(validate="allways")
