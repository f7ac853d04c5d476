import pytest

from partita.blobs.rules.leases import Lease
from partita.blobs.rules.names import LIVE
from partita.blobs.rules.stored_format import (
    StoredBlob,
    StoredContainer,
    decode_blob,
    decode_container,
    encode,
)
from partita.queues import limits
from partita.scaleout.copying import parts
from partita.scaleout.copying.parts import (
    CLOCKS_AGREE_TICKS,
    CopyPart,
    Digest,
    Moment,
    head_stamp_of,
    key_of,
    runs_of_contents,
    shift_between,
    shifted_head,
    shifted_row,
    stamp_of,
)

MESSAGE = (7, -5, 100, 900, 200, 0, b"receipt", "text")
LEASE = Lease("id", 60, 500, None)


def blob_row(facts: StoredBlob, snapshot: int = LIVE) -> tuple[object, ...]:
    return ("name", snapshot, True, 3, encode(facts))


def test_clocks_that_agree_do_not_shift_times() -> None:
    assert shift_between(Moment(1000, 0), Moment(1000 + CLOCKS_AGREE_TICKS, 0)) == 0
    assert shift_between(Moment(1000, 0), Moment(1001 + CLOCKS_AGREE_TICKS, 0)) > 0
    assert shift_between(Moment(1001 + CLOCKS_AGREE_TICKS, 0), Moment(1000, 0)) < 0


def test_a_shift_moves_only_when_a_message_becomes_visible() -> None:
    shifted = shifted_row(CopyPart("queue", "jobs"), MESSAGE, 50)

    assert shifted == (7, -5, 100, 900, 250, 0, b"receipt", "text")


@pytest.mark.parametrize(("shift", "expected"), [(-1000, 0), (limits.NEVER, limits.NEVER)])
def test_a_shifted_time_stays_within_its_limits(shift: int, expected: int) -> None:
    assert shifted_row(CopyPart("queue", "jobs"), MESSAGE, shift)[4] == expected


def test_a_shift_moves_leases_and_rehydration_of_blobs() -> None:
    facts = StoredBlob("BlockBlob", 1, 2, lease=LEASE, rehydrated_at=700)

    moved = decode_blob(shifted_row(CopyPart("container", "c"), blob_row(facts), 50)[-1])

    assert moved.lease == Lease("id", 60, 550, None)
    assert moved.rehydrated_at == 750
    assert moved.changed_at == 2


def test_a_shift_moves_the_lease_of_a_container() -> None:
    part = CopyPart("container", "c")
    leased = (encode(StoredContainer(9, lease=LEASE)),)
    free = (encode(StoredContainer(9)),)

    assert decode_container(shifted_head(part, leased, -100)[0]).lease == Lease("id", 60, 400, None)
    assert shifted_head(part, free, -100) == free


def test_rows_without_such_times_are_not_shifted() -> None:
    row = ("a", "b", 5, b"document")
    plain = blob_row(StoredBlob("BlockBlob", 1, 2))

    assert shifted_row(CopyPart("table", "t"), row, 50) is row
    assert shifted_row(CopyPart("container", "c"), plain, 50) == plain


def test_the_stamp_of_a_row_is_the_latest_in_it() -> None:
    assert stamp_of(CopyPart("table", "t"), ("a", "b", 5, b"")) == 5
    assert stamp_of(CopyPart("queue", "q"), MESSAGE) == 100
    assert stamp_of(CopyPart("container", "c"), blob_row(StoredBlob("BlockBlob", 1, 8))) == 8
    assert stamp_of(CopyPart("container", "c"), blob_row(StoredBlob("BlockBlob", 1, 8), 9)) == 9
    assert stamp_of(CopyPart("extents"), (1, 2, None, b"", b"xx")) == 0
    assert head_stamp_of(CopyPart("container", "c"), (encode(StoredContainer(9)),)) == 9


def test_runs_end_after_enough_large_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "BATCH_CONTENT_BYTES_MAX", 100)
    small, large = (1, 70, None, b"", b"..."), (2, 70, b"hash", b"", None)

    assert list(runs_of_contents([small, small, large, large, small])) == [
        [small, small, large, large],
        [small],
    ]
    assert list(runs_of_contents([])) == []


def test_a_digest_depends_on_the_head_and_on_the_order_of_rows() -> None:
    def digest(head: tuple[object, ...], *rows: tuple[object, ...]) -> str:
        made = Digest(head)
        made.update(rows)
        return made.hexdigest()

    assert digest(("h",), (1, b"a"), (2, b"b")) == digest(("h",), (1, b"a"), (2, b"b"))
    assert (
        len({digest(("h",), (1,), (2,)), digest(("h",), (2,), (1,)), digest((), (1,), (2,))}) == 3
    )


def test_keys_and_names_of_parts() -> None:
    assert key_of(CopyPart("table", "t"), ("a", "b", 5, b"")) == ("a", "b")
    assert key_of(CopyPart("queue", "q"), MESSAGE) == (7,)
    assert str(CopyPart("queue", "jobs")) == "queue 'jobs'"
    assert str(CopyPart("extents")) == "contents of blobs"
