"""A slow and obvious reading of the filter rules, to compare the fast one with.

It works on typed values, `{name: (type, value)}`, not on stored text: what it has in common
with the closures is the tree alone.
"""

import base64
import json
import math
from collections.abc import Mapping

from partita.tables import edm, entity
from partita.tables.entity import Entity
from partita.tables.filters import And, Comparison, Constant, Filter, Literal, Not, Or, Truth

Value = str | int | float | bool | bytes
Typed = tuple[str, Value]
TypedEntity = Mapping[str, Typed]

WIDENS = {
    edm.INT32: (edm.INT32, edm.INT64, edm.DOUBLE),
    edm.INT64: (edm.INT64, edm.DOUBLE),
}


def evaluate(node: Filter, properties: TypedEntity) -> bool:
    if isinstance(node, Constant):
        return node.value
    if isinstance(node, Truth):
        return properties.get(node.name) == (edm.BOOLEAN, True)
    if isinstance(node, Not):
        return not evaluate(node.child, properties)
    if isinstance(node, And):
        return all(evaluate(child, properties) for child in node.children)
    if isinstance(node, Or):
        return any(evaluate(child, properties) for child in node.children)
    return compare(node, properties)


def compare(node: Comparison, properties: TypedEntity) -> bool:
    if node.name not in properties:
        return False
    kind, value = properties[node.name]
    if kind not in WIDENS.get(node.literal.type, (node.literal.type,)):
        return node.operator in ("ne", "lt", "le")
    return in_order(value, node.operator, widened(node.literal, kind))


def widened(literal: Literal, kind: str) -> Value:
    if kind == edm.DOUBLE:
        return float(literal.value)
    return literal.value


def in_order(left: Value, operator: str, right: Value) -> bool:
    is_less = left < right  # type: ignore[operator]  # of one type by now
    is_greater = left > right  # type: ignore[operator]
    is_equal = left == right
    return {
        "eq": is_equal,
        "ne": not is_equal,
        "lt": is_less,
        "le": is_less or is_equal,
        "gt": is_greater,
        "ge": is_greater or is_equal,
    }[operator]


def build(properties: TypedEntity) -> Entity:
    """Store typed values the way a request would."""
    members: edm.Members = {}
    for name, (kind, value) in properties.items():
        if name in ("PartitionKey", "RowKey", "Timestamp"):
            continue
        kept, stored = edm.canonical(name, wire_form(kind, value), kind)
        if kept is not None:
            members[name + edm.TYPE_SUFFIX] = kept
        members[name] = stored
    key = (str(properties["PartitionKey"][1]), str(properties["RowKey"][1]))
    return entity.build(key, int(properties["Timestamp"][1]), members)


def wire_form(kind: str, value: Value) -> object:
    if kind == edm.DATETIME:
        return edm.text_of(int(value))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return value


def decode(stored: Entity) -> Mapping[str, object]:
    members: dict[str, object] = json.loads(b"{" + stored.document)
    return members
