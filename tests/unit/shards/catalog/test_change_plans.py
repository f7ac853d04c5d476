"""Stored plans, and those of a newer program."""

import msgspec
import pytest

from partita.errors import DamageError, FormatVersionError
from partita.shards.catalog.change_plans import (
    ChangePlan,
    MapRow,
    decode_known,
    decode_plan,
    encode_plan,
)
from partita.shards.moving.move_plan import Progress

PLAN = ChangePlan("1", "add_mapping", MapRow("2", "tenants", "range", "int"), (), ())


def test_plan_is_read() -> None:
    assert decode_plan(encode_plan(PLAN)) == PLAN


@pytest.mark.parametrize("path", [(), ("map",)])
def test_plan_of_a_newer_program_is_refused_because_half_of_it_would_be_done(
    path: tuple[str, ...],
) -> None:
    stored = msgspec.json.decode(encode_plan(PLAN))
    place = stored
    for name in path:
        place = place[name]
    place["quorum"] = 2

    with pytest.raises(FormatVersionError, match="written by a newer program"):
        decode_plan(msgspec.json.encode(stored).decode())


def test_progress_of_a_newer_program_is_refused_because_a_save_would_lose_its_fields() -> None:
    with pytest.raises(FormatVersionError, match="A stored Progress was written by a newer"):
        decode_known('{"rows": 1, "indexes": 2}', Progress)


@pytest.mark.parametrize("text", ['{"rows": 1', '{"rows": "one"}', "["])
def test_damaged_progress_is_not_reported_as_that_of_a_newer_program(text: str) -> None:
    with pytest.raises(DamageError, match="A stored Progress is damaged"):
        decode_known(text, Progress)
