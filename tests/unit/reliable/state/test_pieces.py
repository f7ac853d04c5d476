"""What a checkpoint reads block by block is the snapshot, whatever is written between two blocks.

Each broken sibling forgets one of the rules that this depends on, and must be found.
"""

from collections.abc import Iterator
from random import Random

import pytest

from partita.reliable.state import blocks as blocks_module
from partita.reliable.state.blocks import Blocks
from partita.reliable.state.state import Collection, Description, Rows, State

RUNS = 150
KEYS = [b"%02d" % number for number in range(40)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "FULL_ROWS", 3)
    monkeypatch.setattr(blocks_module, "SPARSE_ROWS", 2)


class Run:
    """Random writes to one collection, as `State.apply` does them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.state = State()
        self.collection = Collection(1, Description("c", "dictionary"))
        self.state.restore([self.collection], [])
        self.rows: dict[bytes, bytes] = {}

    def write(self, count: int) -> None:
        state, collection = self.state, self.collection
        for _ in range(count):
            state.sequence += 1
            key, value = self.random.choice(KEYS), b"%d" % state.sequence
            kind = self.random.random()
            if kind < 0.01:
                state._clear(collection, state.sequence)
                self.rows.clear()
            elif kind < 0.5:
                state._put(collection, key, value, state.sequence)
                self.rows[key] = value
            elif key in self.rows:
                state._delete(collection, key, state.sequence)
                del self.rows[key]

    def differences(self) -> Iterator[str]:
        """Yield what differs between a snapshot and the rows at the time when it was opened."""
        self.write(self.random.randrange(120))
        older = self.state.open_snapshot() if self.random.random() < 0.5 else None
        self.write(self.random.randrange(20))
        sequence, expected = self.state.open_snapshot(), sorted(self.rows.items())
        if older is not None and self.random.random() < 0.5:
            self.state.close_snapshot(older)
        found: list[tuple[bytes, bytes]] = []
        for piece in self.collection.pieces(sequence):
            found += piece.items()
            self.write(self.random.randrange(12))
        if found != expected:
            yield "the pieces"
        for reverse in (False, True):
            scanned = self.scanned(sequence, reverse=reverse)
            if scanned != (expected[::-1] if reverse else expected):
                yield "a scan"
        if dict(self.collection.rows.values) != self.rows:
            yield "the newest rows"
        gone = {key for key in self.collection.rows.history if key not in self.rows}
        if set(self.collection.rows.departed) != gone:
            yield "the departed keys"

    def scanned(self, sequence: int, *, reverse: bool) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        lower, upper = b"", None
        while True:
            step, last = self.collection.scan(sequence, lower, upper, limit=3, reverse=reverse)
            found += step
            if last is None:
                return found
            lower, upper = (lower, last) if reverse else (last + b"\x00", None)


def differences() -> set[str]:
    return {one for seed in range(RUNS) for one in Run(seed).differences()}


def test_the_pieces_of_a_snapshot_do_not_depend_on_what_is_written_between_them() -> None:
    assert differences() == set()


def test_without_the_replaced_rows_this_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rows, "_past_between", lambda *_: {})

    assert differences() == {"the pieces"}


def test_a_block_that_does_not_record_its_last_write_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put = Blocks.put
    monkeypatch.setattr(Blocks, "put", lambda blocks, key, value, _: put(blocks, key, value, 0))

    assert "the pieces" in differences()


def test_a_merge_that_forgets_the_last_write_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(blocks: Blocks, place: int) -> None:
        changed = [block.changed for block in blocks._blocks]
        if place:
            changed[place] = 0
        merge(blocks, place)
        if place and len(blocks._blocks) < len(changed):
            blocks._blocks[place - 1].changed = changed[place - 1]

    merge = Blocks._merge
    monkeypatch.setattr(Blocks, "_merge", forgetful)

    assert "the pieces" in differences()
