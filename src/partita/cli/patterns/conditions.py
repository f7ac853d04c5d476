"""Conditions on the command line: `age > 40 and grade in ("s", "j")`.

The text is parsed with `ast` and walked: names of fields, literals, comparisons, and, or, not.
Rule: no given text is ever executed.
"""

import ast
import enum
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from partita.errors import UsageError
from partita.patterns.fields.fields import Field
from partita.patterns.planning.columns import Column, Columns, Condition, all_of, any_of, plain_type
from partita.patterns.protocol.values import Int32
from partita.patterns.types.decorators import EntityType

CONDITION_CHARACTERS_MAX = 4096

_COMPARED: dict[type[ast.cmpop], Callable[[Column, Any], Any]] = {
    ast.Eq: lambda column, value: column == value,
    ast.NotEq: lambda column, value: column != value,
    ast.Lt: lambda column, value: column < value,
    ast.LtE: lambda column, value: column <= value,
    ast.Gt: lambda column, value: column > value,
    ast.GtE: lambda column, value: column >= value,
}
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}
_CONDITION, _VALUE = "condition", "value"
_GRAMMAR = (
    "Compare fields with literals: age > 40, 30 <= age < 40, grade in ('s', 'j'), email is None, "
    "last.startswith('C'); join them with and, or, not."
)


def parse_condition(text: str, model: EntityType[Any]) -> Condition:
    """Read a condition on the fields of a type."""
    if len(text) > CONDITION_CHARACTERS_MAX:
        raise _unreadable(_CONDITION, f"It is longer than {CONDITION_CHARACTERS_MAX} characters.")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return _condition(tree.body, model)
    except SyntaxError as error:
        raise _unreadable(_CONDITION, f"{error.msg} at character {error.offset}.") from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise _unreadable(_CONDITION, "It cannot be parsed.") from error


def parse_given(texts: Sequence[str], model: EntityType[Any]) -> dict[str, Any]:
    """Read values of key fields, each `name=value`."""
    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise _unreadable(
                _VALUE, f"{text!r} is not field=value.", hint="Write --given dept=Sales."
            )
        field = model.fields.get(name.strip())
        if field is None or not field.is_key:
            raise UsageError(
                "UnknownField",
                f"{name.strip()!r} is not a field of the keys of {model.name}.",
                hint=f"Use one of {', '.join(model.key_fields)}; write other fields as a "
                "condition: 'age > 40'.",
            )
        given[field.name] = _value(field, value)
    return given


def _condition(node: ast.expr, model: EntityType[Any]) -> Condition:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return all_of(*(_condition(each, model) for each in values))
        case ast.BoolOp(op=ast.Or(), values=values):
            return any_of(*(_condition(each, model) for each in values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_condition(operand, model)
        case ast.Compare(left=left, ops=operators, comparators=others):
            sides = [left, *others]
            pairs = zip(sides, operators, sides[1:], strict=False)
            return all_of(*(_compare(one, how, two, model) for one, how, two in pairs))
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=name), attr="startswith"), args=[text], keywords=[]
        ):
            return _column(name, model).startswith(_literal(text))
        case ast.Name(id=name):
            raise _unreadable(_CONDITION, f"{name!r} is not compared with a value.")
        case _:
            raise _unreadable(_CONDITION, f"{ast.unparse(node)!r} is not a comparison.")


def _compare(left: ast.expr, how: ast.cmpop, right: ast.expr, model: EntityType[Any]) -> Condition:
    mirrored = _MIRRORED.get(type(how))
    if not isinstance(left, ast.Name) and isinstance(right, ast.Name) and mirrored is not None:
        return _compare(right, mirrored(), left, model)
    if not isinstance(left, ast.Name):
        raise _unreadable(_CONDITION, f"{ast.unparse(left)!r} is not a field.")
    column, field = _column(left.id, model), model.fields[left.id]
    if isinstance(how, ast.Is | ast.IsNot) and _literal(right) is None:
        return column.is_absent() if isinstance(how, ast.Is) else column.is_present()
    if isinstance(how, ast.In | ast.NotIn):
        if not isinstance(right, ast.Tuple | ast.List | ast.Set):
            raise _unreadable(_CONDITION, f"{ast.unparse(right)!r} is not a list of values.")
        found = column.in_([_value(field, _literal(each)) for each in right.elts])
        return found if isinstance(how, ast.In) else ~found
    if type(how) not in _COMPARED:
        raise _unreadable(_CONDITION, "`is` is for None only: use == or !=.")
    value = _literal(right)
    compared: Condition = _COMPARED[type(how)](
        column, None if value is None else _value(field, value)
    )
    return compared


def _column(name: str, model: EntityType[Any]) -> Column:
    if name.startswith("_"):  # of Python itself, not of the type
        raise _unreadable(_CONDITION, f"{name!r} is not a field.")
    column: Column = getattr(Columns(model), name)
    return column


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value) if value is not Ellipsis and not isinstance(value, complex):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Name(id=name):
            raise _unreadable(
                _CONDITION,
                f"{name!r} is not a literal.",
                hint=f"Put text in quotes: '{name}'. {_GRAMMAR}",
            )
        case _:
            raise _unreadable(_CONDITION, f"{ast.unparse(node)!r} is not a literal.")


def _value(field: Field, raw: Any) -> Any:
    """Return the value of the field; text may stand for times, numbers and choices."""
    kind = plain_type(field)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _member(field, kind, raw)
    try:
        if kind is Int32:
            return Int32(msgspec.convert(raw, int, strict=False))
        if kind is Decimal and isinstance(raw, float):
            return Decimal(repr(raw))
        return msgspec.convert(raw, kind, strict=not isinstance(raw, str))
    except (msgspec.ValidationError, TypeError) as error:
        raise _unfit(field, raw) from error


def _member(field: Field, kind: type[enum.Enum], raw: Any) -> enum.Enum:
    for member in kind:
        if raw in (member.value, str(member.value)):
            return member
    if raw in kind.__members__:
        return kind[raw]
    choices = ", ".join(repr(member.value) for member in kind)
    raise _unfit(field, raw, hint=f"Use one of {choices}.")


def _unfit(field: Field, raw: object, hint: str = "") -> UsageError:
    return _unreadable(
        _VALUE, f"{field.name!r} holds {field.codec.expected}, not {raw!r}.", hint=hint
    )


def _unreadable(what: str, reason: str, *, hint: str = "") -> UsageError:
    return UsageError(
        "ConditionUnreadable", f"The {what} cannot be read: {reason}", hint=hint or _GRAMMAR
    )
