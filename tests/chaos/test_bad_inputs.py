"""The table of bad inputs: every answer is the expected one."""

import pytest

from chaos.bad_inputs import run


@pytest.mark.proof
def test_every_bad_input_has_its_answer() -> None:
    """`make chaos` also compares the longest turns; a test must not depend on time."""
    found = run()

    assert [(each.name, each.told) for each in found] == [
        (each.name, each.expected) for each in found
    ]
