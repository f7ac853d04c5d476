"""Names in outbox entries that this program does not know: they are left to a newer program.

Nothing stored distinguishes a new view from a removed one. So a worker does the work that it knows
and leaves the rest in the entry; only `forget` removes it. An index does have a stored state:
disabled, it was removed.
"""

from collections.abc import Iterable

from partita.errors import UnknownTypeError
from partita.patterns.protocol.calls import GetRow, Steps, ask
from partita.patterns.types.row_layout import STATE, state_key
from partita.patterns.writing.context import Context, IndexState, OutboxReference
from partita.patterns.writing.outbox_entry import Kind

_KINDS = frozenset(kind.value for kind in Kind)


def unknown_of(context: Context, names: Iterable[str]) -> Steps[frozenset[str]]:
    """Return the names (`outbox_entry.names_in`) that must be left to a newer program."""
    found: set[str] = set()
    for name in sorted(names):
        kind, _, rest = name.partition(":")
        if kind == Kind.INDEX.value:
            is_known = yield from _is_index_known(context, rest)
        else:
            is_known = kind in _KINDS and _is_known(context, Kind(kind), rest)
        if not is_known:
            found.add(name)
    return frozenset(found)


def _is_known(context: Context, kind: Kind, rest: str) -> bool:
    match kind:
        case Kind.TRANSACTION:
            return rest in context.transactions
        case Kind.FIELD:
            owner, _, field_name = rest.rpartition(".")
            model = context.models.get(owner)
            fields = [] if model is None else [each.fields for each in model.family()]
            return any(
                field_name in each and each[field_name].derived is not None for each in fields
            ) or _is_read_by_derived_field(context, rest)
        case Kind.VIEW:
            owner, _, view_name = rest.partition("@")
            model = context.models.get(owner)
            # If the type is unknown, the name of the type is reported instead.
            return model is None or any(view.name == view_name for view in model.followers.views)
        case _:
            return rest in context.models


def _is_read_by_derived_field(context: Context, name: str) -> bool:
    """Return whether a derived field reads a registered type, declared after that type."""
    watchers = (each for model in context.models.values() for each in model.followers.dependents)
    return any(each.name == name for each in watchers)


def _is_index_known(context: Context, rest: str) -> Steps[bool]:
    """Return whether an index is declared here or removed; its stored state tells."""
    owner, _, index_name = rest.partition("@")
    model = context.models.get(owner)
    if model is None or any(index.name == index_name for index in model.followers.indexes):
        return True
    for each in model.lineage():
        row = yield from ask(GetRow(model.table, state_key(each.name, index_name)))
        if row is not None:
            return row.properties.get(STATE) == IndexState.DISABLED.value
    return False


def unknown_names(reference: OutboxReference, names: Iterable[str]) -> UnknownTypeError:
    """Return the error for an entry whose work could not be completed."""
    names_text = ", ".join(sorted(names))
    return UnknownTypeError(
        "EntryUnknown",
        f"An outbox entry names what is not declared in this program: {names_text}.",
        facts={"table": reference.table, "partition_key": reference.key.partition},
        hint="Run a worker with the newer program, or register all types and transactions in this "
        "one. Remove names that are not declared any more with db.forget(...).",
    )
