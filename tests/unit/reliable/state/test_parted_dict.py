"""A parted dict behaves as a dict, and no part grows beyond its bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.reliable.state import parted_dict as parted_dict_module
from partita.reliable.state.parted_dict import PartedDict

KEYS = st.integers(0, 20).map(lambda number: b"%d" % number)


@pytest.fixture
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parted_dict_module, "PART_KEYS", 3)


@pytest.mark.usefixtures("_small_parts")
@given(st.lists(st.tuples(KEYS, st.none() | st.integers())), st.sets(KEYS))
def test_it_is_a_dict(steps: list[tuple[bytes, int | None]], asked: set[bytes]) -> None:
    parted, plain = PartedDict[int](), dict[bytes, int]()
    for key, value in steps:
        if value is not None:
            parted[key] = plain[key] = value
        elif key in plain:
            del parted[key], plain[key]
        assert (parted.get(key), key in parted) == (plain.get(key), key in plain)

    assert parted == plain
    assert (len(parted), bool(parted)) == (len(plain), bool(plain))
    assert sorted(parted.pairs()) == sorted(plain.items())
    assert parted.among(dict.fromkeys(asked)) == asked & plain.keys()
    assert max(map(len, parted._parts)) <= 3


def test_a_key_that_is_absent_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        PartedDict[int]()[b"key"]
    with pytest.raises(KeyError):
        del PartedDict[int]()[b"key"]
