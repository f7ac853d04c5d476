"""The table of bad inputs: every answer is the expected one."""

import pytest

from chaos.bad_inputs import run


@pytest.mark.soak
def test_every_bad_input_has_its_answer() -> None:
    """`make chaos` runs the same table, and also compares the longest turns."""
    found = run()

    assert [(each.name, each.told) for each in found] == [
        (each.name, each.expected) for each in found
    ]
