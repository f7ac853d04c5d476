"""What an outbox entry names and this program does not know: it is a newer program's to do.

Nothing stored tells a view that is new from one that is gone. So a worker does what it knows,
and leaves the rest of the entry where it is; only who says so (`forget`) takes it away. An index
has a state, which does tell: one without any, or a disabled one, is gone.
"""

from collections.abc import Iterable

from partita.errors import UnknownTypeError
from partita.patterns.protocol.calls import GetRow, Steps, ask
from partita.patterns.types.row_layout import STATE, state_key
from partita.patterns.writing.context import Context, IndexState, OutboxReference
from partita.patterns.writing.outbox_entry import Kind


def unknown_of(context: Context, names: Iterable[str]) -> Steps[frozenset[str]]:
    """Return those names of entries (`outbox.names_in`) that are to be left to others."""
    found: set[str] = set()
    for name in sorted(names):
        kind, _, rest = name.partition(":")
        if kind == Kind.INDEX.value:
            is_known = yield from _is_index_known(context, rest)
        else:
            is_known = _is_known(context, Kind(kind), rest)
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
            ) or _is_watched(context, rest)
        case Kind.VIEW:
            owner, _, view_name = rest.partition("@")
            model = context.models.get(owner)
            # Of a type that is not known the type says it all.
            return model is None or any(view.name == view_name for view in model.all_views())
        case _:
            return rest in context.models


def _is_watched(context: Context, name: str) -> bool:
    """Tell whether a field of an owner follows a type that is known, declared after it was."""
    watchers = (each for model in context.models.values() for each in model.watchers())
    return any(each.name == name for each in watchers)


def _is_index_known(context: Context, rest: str) -> Steps[bool]:
    """Look for the state of an index that is not declared here: one that lives is somebody's."""
    owner, _, index_name = rest.partition("@")
    model = context.models.get(owner)
    if model is None or any(index.name == index_name for index in model.all_indexes()):
        return True
    for each in model.lineage():
        row = yield from ask(GetRow(model.table, state_key(each.name, index_name)))
        if row is not None and row.properties.get(STATE) != IndexState.DISABLED.value:
            return False
    return True


def left_to_others(reference: OutboxReference, names: Iterable[str]) -> UnknownTypeError:
    """Return what is said of an entry that could not be done to its end."""
    told = ", ".join(sorted(names))
    return UnknownTypeError(
        "EntryUnknown",
        f"An outbox entry names what this program does not know: {told}.",
        facts={"table": reference.table, "partition_key": reference.key.partition},
        hint="A worker with the newer program does it; let this one know all types and "
        "transactions. What is declared no more: db.forget(...).",
    )
