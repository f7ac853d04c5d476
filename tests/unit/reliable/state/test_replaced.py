"""The order of what is kept for snapshots: first in, first out, in pieces."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.reliable.state import replaced as replaced_module
from partita.reliable.state.replaced import Kept, ReplacedOrder


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaced_module, "PIECE_ENTRIES", 3)


@pytest.mark.usefixtures("_small_pieces")
class TestReplacedOrder:
    @given(st.lists(st.booleans(), max_size=40))
    def test_it_is_a_queue(self, steps: list[bool]) -> None:
        order, expected = ReplacedOrder(), list[Kept]()
        for number, is_added in enumerate(steps):
            if is_added or not expected:
                expected.append(Kept(number, None, b""))
                order.append(expected[-1])
            else:
                order.discard_first()
                del expected[0]
            assert (bool(order), len(order)) == (bool(expected), len(expected))
            assert not expected or order.first() is expected[0]


def test_the_garbage_collector_visits_pieces_and_not_their_entries() -> None:
    order = ReplacedOrder()
    for number in range(2_000):
        order.append(Kept(number, None, b"key"))
    gc.collect()

    assert [gc.is_tracked(piece) for piece in order._pieces] == [False] * 3
