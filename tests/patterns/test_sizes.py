"""The measured size of an entity is what the service counts."""

import pytest

from partita.patterns import Database, DefinitionError, RawEntity, measure
from partita.patterns.protocol.values import Row, RowKey
from support.teams import Meter


@pytest.fixture
def db(team_db: Database) -> Database:
    return team_db


async def test_an_entity_measures_what_the_service_counts_for_it(db: Database) -> None:
    meters = db.table(Meter)
    meter = Meter(house="a", year=2024, text="é😀", plan=b"plan", days={0: 1, 364: 2})
    before = measure(meter)

    await meters.save(meter)
    rows = [each async for each in db.raw("auditwide").query("PartitionKey eq 'a'")]

    assert len(rows) == 2
    assert before == sum(map(measure, rows))


def test_a_row_and_a_raw_entity_are_measured_alike() -> None:
    row = Row(RowKey("a", "b"), {"Age": 7})

    assert measure(row) == measure(RawEntity("a", "b", {"Age": 7})) == 30
    with pytest.raises(DefinitionError, match="not an entity class"):
        measure(7)
