from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.targets import TARGETS
from support.repeats import repeat

CORPUS = Path(__file__).resolve().parent / "corpus"
FILES = {target: sorted((CORPUS / target).iterdir()) for target in TARGETS}
INPUTS = {target: [file.read_bytes() for file in files] for target, files in FILES.items()}


@pytest.mark.parametrize(
    ("target", "file"),
    [(target, file) for target, files in FILES.items() for file in files],
    ids=lambda value: value.name if isinstance(value, Path) else value,
)
def test_every_file_of_the_corpus_obeys_the_rules(target: str, file: Path) -> None:
    # Names that start with "bad-" say that the input must be refused.
    assert TARGETS[target](file.read_bytes()) is not file.name.startswith("bad-")


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_target_has_a_corpus_of_good_and_bad_inputs(target: str) -> None:
    bad = [file for file in FILES[target] if file.name.startswith("bad-")]

    assert 10 <= len(FILES[target]) <= 40
    assert 2 <= len(bad) <= len(FILES[target]) - 2


@st.composite
def mutated(draw: st.DrawFn, inputs: list[bytes]) -> bytes:
    """Cut two inputs anywhere, join them, and put a few bytes in between."""
    front, back = draw(st.sampled_from(inputs)), draw(st.sampled_from(inputs))
    start = draw(st.integers(0, len(front)))
    end = draw(st.integers(0, len(back)))
    return front[:start] + draw(st.binary(max_size=4)) + back[end:]


@st.composite
def scratched(draw: st.DrawFn, inputs: list[bytes]) -> bytes:
    """Overwrite a few bytes of one input."""
    scratches = bytearray(draw(st.sampled_from(inputs)))
    for _ in range(draw(st.integers(1, 4))):
        if scratches:
            scratches[draw(st.integers(0, len(scratches) - 1))] = draw(st.integers(0, 255))
    return bytes(scratches)


@pytest.mark.repeated
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_mutated_inputs_obey_the_rules_too(target: str) -> None:
    inputs = INPUTS[target]

    @settings(
        max_examples=repeat(80, 300, 300),
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.one_of(mutated(inputs), scratched(inputs)))
    def run(data: bytes) -> None:
        assert TARGETS[target](data) in {True, False}

    run()
