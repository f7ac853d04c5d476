"""Scans: refused, allowed, or allowed with a warning."""

import warnings

import pytest

from partita.patterns import Database, PartitaError, ScanRefusedError, ScanWarning, connect
from partita.service.hosting.in_process import LocalAccount
from support.teams import Member, member


@pytest.fixture
def db(team_db: Database) -> Database:
    return team_db


async def test_scans_can_be_let_happen_with_a_warning(partita_account: LocalAccount) -> None:
    async with connect(partita_account, scans="warn") as db:
        members = db.table(Member)
        await db.create_tables()
        await members.save(member(1, age=50))
        old = members.where(members.c.age > 40)

        with pytest.warns(ScanWarning, match="TABLE SCAN") as told:
            found = await old.list()
        with warnings.catch_warnings(action="error"):
            meant = await old.allow_scan().list()

    assert [each.id for each in found] == [each.id for each in meant] == [1]
    assert [warning.filename for warning in told] == [__file__]
    assert "ALLOWED" in str(told[0].message)


async def test_scans_can_be_allowed_and_are_refused_otherwise(
    partita_account: LocalAccount,
) -> None:
    async with connect(partita_account, scans="allow") as db:
        members = db.table(Member)
        await db.create_tables()
        with warnings.catch_warnings(action="error"):
            assert await members.all().list() == []
    async with connect(partita_account) as db:
        with pytest.raises(ScanRefusedError):
            await db.table(Member).all().list()
    with pytest.raises(PartitaError) as refused:
        connect(partita_account, scans="off")
    assert refused.value.code == "UnknownOption"
