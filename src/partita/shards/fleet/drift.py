"""Find the differences between a database and the schema that it should have.

The revision is recorded in the database; drift is its actual state. Alembic compares tables,
columns, types, indexes and foreign keys. Primary keys are compared here, because moves copy rows by
primary key. The catalogs (`partita_*`) and the table of Alembic are ignored. CHECK constraints,
triggers and views are not compared.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, MetaData, Table, inspect

CATALOG_PREFIX = "partita_"


class Difference(msgspec.Struct, frozen=True):
    """One object of the database that is extra, missing or different."""

    kind: str
    """`extra column`, `missing table`, `other type`…, as seen from the database."""
    table: str
    name: str = ""
    detail: str = ""

    def __str__(self) -> str:
        where = f"{self.table}.{self.name}" if self.name else self.table
        return f"{self.kind} {where}" + (f" ({self.detail})" if self.detail else "")


def find_differences(
    connection: Connection,
    metadata: MetaData | Sequence[MetaData],
    *,
    ignore_tables: Collection[str] = (),
    options: dict[str, Any] | None = None,
) -> list[Difference]:
    """Compare the database with the metadata; nothing is changed.

    `options` are those of an Alembic environment (`include_object`, `compare_type`…), so that
    objects excluded from `alembic revision --autogenerate` are excluded here as well.
    """
    schemas = (metadata,) if isinstance(metadata, MetaData) else tuple(metadata)
    compared = {**(options or _own_options(schemas)), "as_sql": False}
    compared["include_name"] = _names_to_compare(compared.get("include_name"), ignore_tables)
    context = MigrationContext.configure(connection=connection, opts=compared)
    # A single MetaData is passed as it is: hooks of Alembic may compare it by identity.
    found = compare_metadata(context, schemas[0] if len(schemas) == 1 else schemas)  # type: ignore[arg-type]
    differences = [_name_difference(*diff) for diff in _flat(found)]
    tables = [table for schema in schemas for table in schema.tables.values()]
    differences += _primary_keys(connection, tables, ignore_tables)
    return sorted(differences, key=lambda each: (each.table, each.name, each.kind))


def list_tables(connection: Connection) -> list[str]:
    """Return the tables of the default schema, without those of the catalogs."""
    names = inspect(connection).get_table_names()
    return sorted(name for name in names if not name.startswith(CATALOG_PREFIX))


def _own_options(schemas: Sequence[MetaData]) -> dict[str, Any]:
    named = {table.schema for schema in schemas for table in schema.tables.values()}
    return {
        "compare_type": True,
        "include_schemas": bool(named - {None}),
        "include_name": lambda name, kind, _parents: kind != "schema" or name in {None, *named},
    }


def _names_to_compare(included: Any, ignored: Collection[str]) -> Any:
    def include_name(name: str | None, kind: str, parents: Any) -> bool:
        if kind == "table" and name and (name.startswith(CATALOG_PREFIX) or name in ignored):
            return False
        return included is None or bool(included(name, kind, parents))

    return include_name


def _flat(found: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    # Alembic returns the changes of one column as a nested list.
    for diff in found:
        if isinstance(diff, list):
            yield from diff
        else:
            yield diff


def _name_difference(action: str, *parts: Any) -> Difference:
    verb, _, subject = action.partition("_")
    if verb == "modify":
        schema, table, column, _, existing, wanted = parts
        return Difference(
            f"other {subject}", _full(schema, table), column, f"is {existing!r}, not {wanted!r}"
        )
    kind = f"{'missing' if verb == 'add' else 'extra'} {_SUBJECTS.get(subject, subject)}"
    if subject == "column":
        schema, table, column = parts
        return Difference(kind, _full(schema, table), column.name)
    if isinstance(parts[0], Table):
        return Difference(kind, parts[0].fullname)
    part = parts[0]
    columns = ", ".join(column.name for column in part.columns)
    return Difference(kind, part.table.fullname, part.name or "", columns)


_SUBJECTS = {"fk": "foreign key", "table_comment": "table comment"}


def _primary_keys(
    connection: Connection, tables: Iterable[Table], ignored: Collection[str]
) -> Iterator[Difference]:
    inspector = inspect(connection)
    for schema, group in _by_schema(tables).items():
        stored = {
            name[1]: tuple(key["constrained_columns"])
            for name, key in inspector.get_multi_pk_constraint(schema=schema).items()
        }
        for table in group:
            wanted = tuple(column.name for column in table.primary_key.columns)
            found = stored.get(table.name, wanted)
            if table.name not in ignored and set(found) != set(wanted):
                detail = f"is {', '.join(found) or 'none'}, not {', '.join(wanted) or 'none'}"
                yield Difference("other primary key", table.fullname, "", detail)


def _by_schema(tables: Iterable[Table]) -> dict[str | None, list[Table]]:
    groups: dict[str | None, list[Table]] = {}
    for table in tables:
        groups.setdefault(table.schema, []).append(table)
    return groups


def _full(schema: str | None, table: str) -> str:
    return f"{schema}.{table}" if schema else table
