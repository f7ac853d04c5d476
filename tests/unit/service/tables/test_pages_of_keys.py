"""A page of keys that is cut from the documents is the page that is printed from the entities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.service.tables.answers import View, entity_page
from partita.service.tables.calls import Level
from partita.tables.entity import EntityKey, build
from partita.tables.reading.documents import StoredEntities

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ['","Timestamp":"', '"PartitionKey":', "\\", '\\"', "", "é"]
)


@pytest.mark.parametrize("level", [Level.NONE, Level.MINIMAL])
@given(keys=st.lists(st.tuples(TEXTS, TEXTS), max_size=5), ticks=st.integers(1, 2**60))
def test_a_page_of_keys_is_cut_as_it_is_printed(
    level: Level, keys: list[tuple[str, str]], ticks: int
) -> None:
    entities = [build(EntityKey(*key), ticks, {"RowKeys": "x", "Age": 1}) for key in keys]
    stored = StoredEntities([ticks] * len(keys), [entity.document for entity in entities])
    view = View("http://here", "account", "Staff", level, ("PartitionKey", "RowKey"))

    assert entity_page(stored, view) == entity_page(entities, view)
