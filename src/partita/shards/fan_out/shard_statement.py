"""Build the statement of a fan-out: the caller's SELECT with order, limit and shard column.

Nothing is executed here. Rule: shards sort in an order that Python can reproduce (text by code
point, explicit position of nulls), because their rows are merged by it.
"""

import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

import msgspec
from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    CompoundSelect,
    Date,
    DateTime,
    Enum,
    Executable,
    Float,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    Select,
    SelectBase,
    SQLColumnExpression,
    String,
    Table,
    TextualSelect,
    Time,
    TypeDecorator,
    Uuid,
    collate,
    literal,
    select,
    type_coerce,
)
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import BindParameter, Label, TextClause, UnaryExpression
from sqlalchemy.types import TypeEngine

from partita.errors import InvalidRequestError, NotSupportedError
from partita.shards.fan_out.merging import Ordering

KEYS_PARAMETER = "keys"
"""An expanding parameter of this name receives the keys of each shard."""
CODE_POINT_COLLATIONS = {"postgresql": "C", "sqlite": "BINARY"}
_READING = re.compile(
    r"(?is)(\s|\(|--[^\n]*\n|/\*.*?\*/)*(select|with|values|table|explain|show)\b"
)
"""The beginning of a text that reads. The transaction is read-only or rolled back in any case."""
_COMPARABLE: tuple[type[TypeEngine[Any]], ...] = (
    Integer,
    Numeric,
    Float,
    String,
    LargeBinary,
    Boolean,
    Date,
    DateTime,
    Time,
    Interval,
    Uuid,
)

OrderBy = str | SQLColumnExpression[Any]
"""The name of a result column, or a column: of a table or of a mapped class."""


class Facts(msgspec.Struct, frozen=True):
    """Properties of a statement, found by traversing it."""

    has_entities: bool
    wants_keys: bool
    table_columns: tuple[tuple[str, Table], ...]
    """The selected columns that belong to a table, with their names in it."""


_known_facts: MutableMapping[SelectBase, Facts] = WeakKeyDictionary()
"""Facts of live statements: a traversal costs as much as a small query."""


class ShardStatement(msgspec.Struct, frozen=True):
    """The statement of a fan-out, before it is adapted to one shard."""

    statement: SelectBase
    facts: Facts
    order: "tuple[_OrderColumn, ...]" = ()
    limit: int | None = None
    shard_column: str | None = None
    hidden: int = 0
    """The number of columns at the end of each row that serve only the merge."""
    orderings: tuple[Ordering, ...] = ()

    @property
    def is_single(self) -> bool:
        """Whether a shard executes one SELECT compiled by SQLAlchemy; text may be anything."""
        is_select = isinstance(self.statement, Select | CompoundSelect)
        return is_select and not self.facts.has_entities

    def on(self, dialect: str, shard_text: str) -> SelectBase:
        """Return the statement for one shard."""
        statement = self.statement
        if self.shard_column is not None:
            marker = literal(shard_text, String()).label(self.shard_column)
            statement = cast("Select[Any]", statement).add_columns(marker)
        if not isinstance(statement, Select):
            return statement
        hidden = [column.value for column in self.order if column.is_hidden]
        if hidden:
            statement = statement.add_columns(
                *(value.label(f"_order_{number}") for number, value in enumerate(hidden))
            )
        if self.order:
            statement = statement.order_by(*(column.clause(dialect) for column in self.order))
        return statement if self.limit is None else statement.limit(self.limit)


class _OrderColumn(msgspec.Struct, frozen=True):
    value: ColumnElement[Any]
    position: int | None
    """The position in the select list; None if it is added as a hidden column."""
    descending: bool
    nulls_last: bool

    @property
    def is_hidden(self) -> bool:
        return self.position is None

    def clause(self, dialect: str) -> ColumnElement[Any]:
        value = self.value.element if isinstance(self.value, Label) else self.value
        if isinstance(value.type, String):
            value = collate(value, CODE_POINT_COLLATIONS.get(dialect, "C"))
        ordered = value.desc() if self.descending else value.asc()
        return ordered.nulls_last() if self.nulls_last else ordered.nulls_first()


def shard_statement(
    statement: Executable,
    *,
    order_by: OrderBy | Sequence[OrderBy] | None = None,
    limit: int | None = None,
    shard_column: str | None = None,
) -> ShardStatement:
    """Check the statement and add order, limit and shard column."""
    checked = _checked(statement)
    if order_by is None and limit is None and shard_column is None:
        return ShardStatement(checked, facts=_facts_of(checked))
    has_entities = _has_entities(checked)
    orders = () if order_by is None else _sequence(order_by)
    if orders or limit is not None:
        _refuse_own_order(checked)
    checked = _as_select(checked, has_entities=has_entities, ordered=bool(orders))
    names = _names(checked)
    if shard_column is not None and shard_column in names:
        raise InvalidRequestError(
            "ShardColumnTaken",
            f"The statement already has a column {shard_column!r}.",
            hint="Choose another name for shard_column=.",
        )
    columns = tuple(_order_column(checked, each) for each in orders)
    return ShardStatement(
        statement=checked,
        order=columns,
        limit=limit,
        shard_column=shard_column,
        hidden=sum(column.is_hidden for column in columns),
        orderings=_orderings(columns, len(names) + (shard_column is not None)),
        facts=_facts_of(checked),
    )


def _facts_of(statement: SelectBase) -> Facts:
    facts = _known_facts.get(statement)
    if facts is None:
        facts = Facts(_has_entities(statement), _wants_keys(statement), _table_columns(statement))
        _known_facts[statement] = facts
    return facts


def order_of_names(
    names: Sequence[str], order_by: OrderBy | Sequence[OrderBy]
) -> tuple[Ordering, ...]:
    """Return the order of reduced rows, by the names of their columns."""
    orderings = []
    for each in _sequence(order_by):
        value, descending, nulls_last = _parts(each)
        name = _text_of(value) or getattr(value, "key", None) or getattr(value, "name", "")
        if name not in names:
            raise _unknown_column(str(name), names)
        orderings.append(Ordering(names.index(name), descending, nulls_last))
    return tuple(orderings)


# --- which statements are accepted ----------------------------------------------------------------


def _checked(statement: Executable) -> SelectBase:
    if isinstance(statement, TextClause):
        if _READING.match(statement.text) is None:
            raise not_a_select("this text")
        return statement.columns()  # its rows have the columns that the database names
    if not isinstance(statement, Select | CompoundSelect | TextualSelect):
        raise not_a_select(type(statement).__name__)
    if _private(statement, "_for_update_arg") is not None:
        raise NotSupportedError(
            "LocksInFanOut",
            "A fan-out is read-only and cannot lock rows for update.",
            hint="Omit with_for_update(), or lock the rows through a routed session.",
        )
    return statement


def not_a_select(kind: str) -> NotSupportedError:
    return NotSupportedError(
        "NotASelect",
        f"Only a SELECT can be fanned out, not {kind}.",
        hint="Write through a routed session for each key, or use fleet.execute_on_all().",
    )


def _private(statement: SelectBase, name: str) -> Any:
    # SQLAlchemy has no public attribute for the ORDER BY, LIMIT or DISTINCT of a SELECT.
    return getattr(statement, name, None)


def _refuse_own_order(statement: SelectBase) -> None:
    own = {
        "ORDER BY": bool(_private(statement, "_order_by_clauses")),
        "LIMIT": _private(statement, "_limit_clause") is not None
        or _private(statement, "_fetch_clause") is not None,
        "OFFSET": _private(statement, "_offset_clause") is not None,
    }
    for word, is_there in own.items():
        if is_there:
            raise InvalidRequestError(
                "OrderGivenTwice",
                f"The statement has {word}, which would apply to each shard separately.",
                hint="Remove it from the statement and pass order_by= and limit=.",
            )


def _as_select(statement: SelectBase, *, has_entities: bool, ordered: bool) -> Select[Any]:
    # ORDER BY of a DISTINCT accepts only selected columns, so a subquery is ordered instead.
    is_plain = isinstance(statement, Select) and not (ordered and _is_distinct(statement))
    if is_plain:
        return cast("Select[Any]", statement)
    if has_entities:
        raise NotSupportedError(
            "OrderedDistinctEntities",
            "Distinct entities cannot be ordered across shards.",
            hint="Select columns instead of entities.",
        )
    return select(*statement.subquery().c)


def _is_distinct(statement: SelectBase) -> bool:
    return bool(_private(statement, "_distinct"))


def _is_grouped(statement: SelectBase) -> bool:
    return bool(_private(statement, "_group_by_clauses"))


def _has_entities(statement: SelectBase) -> bool:
    if not isinstance(statement, Select):
        return False
    described = statement.column_descriptions
    return any(
        each.get("entity") is not None and each["expr"] is each["entity"] for each in described
    )


def _wants_keys(statement: SelectBase) -> bool:
    return any(
        isinstance(each, BindParameter) and each.key == KEYS_PARAMETER and each.expanding
        for each in visitors.iterate(statement)
    )


def _table_columns(statement: SelectBase) -> tuple[tuple[str, Table], ...]:
    if not isinstance(statement, Select):
        return ()
    found = []
    for column in statement.selected_columns:
        table: object = column.table if isinstance(column, Column) else None
        if isinstance(table, Table):
            found.append((str(column.name), table))
    return tuple(found)


def _names(statement: SelectBase) -> list[str]:
    if isinstance(statement, Select):
        return [each["name"] for each in statement.column_descriptions]
    return list(statement.selected_columns.keys())


# --- order ----------------------------------------------------------------------------------------


def _sequence(order_by: OrderBy | Sequence[OrderBy]) -> tuple[OrderBy, ...]:
    if isinstance(order_by, str) or not isinstance(order_by, Sequence):
        return (order_by,)
    return tuple(order_by)


def _parts(given: OrderBy) -> tuple[Any, bool, bool]:
    """Return (value, descending, nulls last); by default nulls are the greatest values."""
    value: Any = given
    descending, nulls_last = False, None
    while isinstance(value, UnaryExpression) and operators.is_ordering_modifier(
        cast("Any", value.modifier)
    ):
        if value.modifier is operators.desc_op:
            descending = True
        elif value.modifier is operators.nulls_last_op:
            nulls_last = True
        elif value.modifier is operators.nulls_first_op:
            nulls_last = False
        value = value.element
    return value, descending, (not descending) if nulls_last is None else nulls_last


def _text_of(value: Any) -> str:
    """Return the label given as text, as in "name" or desc("name"); else ""."""
    if isinstance(value, str):
        return value
    inside = getattr(value, "element", None)
    return inside if isinstance(inside, str) else ""


def _order_column(statement: Select[Any], given: OrderBy) -> _OrderColumn:
    value, descending, nulls_last = _parts(given)
    described = statement.column_descriptions
    label = _text_of(value)
    if label:
        position = _position_of_name(described, label)
        value = _clause(described[position]["expr"])
    else:
        value = _clause(value)
        found = _position_of_clause(described, value)
        position = -1 if found is None else found
    declared = value.type
    if isinstance(declared, TypeDecorator):
        # The database orders by the stored value, so that value must be compared.
        value, position = type_coerce(value, declared.impl_instance), -1
    _check_comparable(value)
    if position >= 0:
        return _OrderColumn(value, position, descending, nulls_last)
    if _is_grouped(statement) or _is_distinct(statement):
        raise InvalidRequestError(
            "OrderNotSelected",
            "A grouped or distinct statement can be ordered only by columns that it selects.",
            hint="Select the column and give it a label.",
        )
    return _OrderColumn(value, None, descending, nulls_last)


def _position_of_name(described: Sequence[Mapping[str, Any]], name: str) -> int:
    for position, each in enumerate(described):
        if each["name"] == name and each["expr"] is not each.get("entity"):
            return position
    raise _unknown_column(name, [each["name"] for each in described])


def _position_of_clause(
    described: Sequence[Mapping[str, Any]], value: ColumnElement[Any]
) -> int | None:
    for position, each in enumerate(described):
        if each["expr"] is not each.get("entity") and _clause(each["expr"]).compare(value):
            return position
    return None


def _clause(value: Any) -> ColumnElement[Any]:
    clause = getattr(value, "__clause_element__", None)
    if callable(clause):
        return cast("ColumnElement[Any]", clause())
    if isinstance(value, ColumnElement):
        return value
    raise InvalidRequestError(
        "OrderNotAColumn",
        f"order_by= does not accept {type(value).__name__}.",
        hint="Pass columns or names of result columns, optionally with desc().",
    )


def _check_comparable(value: ColumnElement[Any]) -> None:
    is_comparable = isinstance(value.type, _COMPARABLE) and not isinstance(value.type, Enum)
    if is_comparable and getattr(value, "operator", None) is not operators.collate:
        return
    raise NotSupportedError(
        "OrderNotMergeable",
        f"Rows cannot be merged by a value of type {value.type!r}: Python orders it differently, "
        "or not at all.",
        hint="Order by numbers, text without collate(), bytes, dates, times, UUIDs or booleans; "
        "give an expression its type with cast().",
    )


def _orderings(columns: Sequence[_OrderColumn], first_hidden: int) -> tuple[Ordering, ...]:
    orderings = []
    for column in columns:
        position = column.position
        if position is None:
            position, first_hidden = first_hidden, first_hidden + 1
        orderings.append(Ordering(position, column.descending, column.nulls_last))
    return tuple(orderings)


def _unknown_column(name: str, names: Sequence[str]) -> InvalidRequestError:
    return InvalidRequestError(
        "OrderColumnUnknown",
        f"The statement has no column {name!r} to order by.",
        facts={"columns": tuple(names)},
        hint="Pass the name of a result column, or the column itself.",
    )
