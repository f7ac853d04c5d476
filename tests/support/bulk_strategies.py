"""Entities with every type of property, for tests of formats."""

import base64
import uuid

import hypothesis.strategies as st

from partita.bulk.entities import Typed, print_entity, typed
from partita.tables import edm

_ODD = st.sampled_from("\",'\r\n\t=+-@\0\ufeff")
_IN_KEYS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\#?")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | _ODD, max_size=12)
KEYS = st.text(_IN_KEYS | st.sampled_from("',\" "), max_size=8)
TICKS = st.integers(edm.TICKS_MIN, edm.TICKS_MAX)
VALUES: dict[str, st.SearchStrategy[object]] = {
    edm.STRING: TEXTS,
    edm.INT32: st.integers(edm.INT32_MIN, edm.INT32_MAX),
    edm.INT64: st.integers(edm.INT64_MIN, edm.INT64_MAX),
    edm.DOUBLE: st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["NaN", "Infinity", "-Infinity", 3750.0, 1e300, 5e-324]),
    edm.BOOLEAN: st.booleans(),
    edm.DATETIME: TICKS.map(edm.text_of),
    edm.GUID: st.integers(0, 2**128 - 1).map(lambda n: str(uuid.UUID(int=n))),
    edm.BINARY: st.binary(max_size=20).map(lambda raw: base64.b64encode(raw).decode()),
}
NAMES = st.sampled_from(["A", "B", "Name", "x_1", "Größe", "Ω"])


@st.composite
def properties(draw: st.DrawFn) -> list[tuple[str, str, object]]:
    names = draw(st.lists(NAMES, unique=True, max_size=6))
    found = []
    for name in names:
        kind = draw(st.sampled_from(sorted(VALUES)))
        found.append((name, kind, draw(VALUES[kind])))
    return found


def entities() -> st.SearchStrategy[Typed]:
    return st.builds(typed, KEYS, KEYS, properties())


def documents() -> st.SearchStrategy[bytes]:
    return entities().map(print_entity)
