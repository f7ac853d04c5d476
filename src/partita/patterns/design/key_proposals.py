"""Keys and indexes for a type, proposed from its accesses and their rates alone.

1. The access that gets one entity, most often, names the fields that identify an entity.
2. Of these, the partition key is the field that the rest of the load gives most often; the others
   are the row key, with a field that is asked for by range first.
3. Each other access is served by these keys, or by an index in the partition if it gives the
   partition key, or by an index elsewhere; or it stays a scan, if that reads less than keeping an
   index writes.

The keys of the class decide nothing here: they only tell whether a proposal is declared already.
"""

from collections.abc import Sequence
from datetime import date
from typing import Any

import msgspec

from partita.patterns.design.access_patterns import Access, check_access
from partita.patterns.design.index_advice import part_text
from partita.patterns.design.loads import TypeLoad
from partita.patterns.design.sections import Section
from partita.patterns.fields.fields import Field
from partita.patterns.planning.columns import plain_type
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.indexes import AnyIndex

NO_INDEX = "no index"
COPY_ROWS = 2.0
"""Rows that one write of an indexed entity adds: the new copy, and at times the old one."""


class KeyProposal(msgspec.Struct, frozen=True):
    """Keys or an index, or why there is none."""

    type: str
    access: str
    """The accesses that it serves."""
    text: str
    """The declaration as source text; `NO_INDEX` for a scan."""
    reason: str
    section: str
    page: str
    is_declared: bool


class _Wanted(msgspec.Struct, frozen=True):
    """One access as the fields that it gives, and its load."""

    name: str
    equal: tuple[str, ...]
    ranges: tuple[str, ...]
    rate: float
    returns: float
    is_single: bool
    """Whether it returns one entity at most."""
    is_point: bool
    """Whether its fields identify the entity: an access of partitions may return one by chance."""

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.equal, *self.ranges)


class _Keys(msgspec.Struct, frozen=True):
    partition: tuple[str, ...]
    row: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.partition, *self.row)


def propose(model: EntityType[Any], load: TypeLoad) -> list[KeyProposal]:
    """Return the keys and indexes for the accesses of a type that have a rate."""
    wanted = [_wanted(model, each.access, load) for each in check_access(model)]
    asked = sorted((each for each in wanted if each.rate > 0), key=lambda each: -each.rate)
    if not asked:
        return []
    keys = _choose_keys(model, asked)
    found = [_key_proposal(model, keys, asked)]
    found += [_index_for(model, keys, each, load) for each in asked if not _is_served(keys, each)]
    return found


def _wanted(model: EntityType[Any], access: Access, load: TypeLoad) -> _Wanted:
    given = load.access.get(access.name)
    # A condition on a number or a time is an interval; on anything else, an equality.
    ranges = [name for name in access.where if _is_range(model.fields[name])]
    equal = [name for name in access.where if name not in ranges]
    returns = given.returns if given is not None and given.returns is not None else None
    is_single = access.is_single or returns == 1
    many = float(load.entities) ** 0.5
    return _Wanted(
        access.name,
        (*access.given, *equal),
        (*access.ranges, *ranges),
        0.0 if given is None else given.rate,
        returns if returns is not None else 1.0 if is_single else many,
        is_single,
        access.is_single,
    )


def _is_range(field: Field) -> bool:
    kind = plain_type(field)
    if not isinstance(kind, type) or issubclass(kind, bool):
        return False
    return issubclass(kind, int | float | date)


# ---------------------------------------------------------------------------------------------
# Keys


def _choose_keys(model: EntityType[Any], asked: Sequence[_Wanted]) -> _Keys:
    identity = _identity(model, asked)
    others = [each for each in asked if set(each.equal) != set(identity) or each.ranges]
    shared = {name: sum(each.rate for each in others if name in each.equal) for name in identity}
    # The first of equals: a name is declared from the most general to the most special.
    best = max(identity, key=lambda name: (shared[name], -identity.index(name)))
    rest = [name for name in identity if name != best]
    ranged = {
        name: sum(each.rate for each in others if name in each.ranges and best in each.equal)
        for name in rest
    }
    led = {
        name: sum(each.rate for each in others if name in each.equal and best in each.equal)
        for name in rest
    }
    rest.sort(key=lambda name: (-led[name], -ranged[name], identity.index(name)))
    return _Keys((best,), tuple(rest))


def _identity(model: EntityType[Any], asked: Sequence[_Wanted]) -> tuple[str, ...]:
    """Return the fields that identify one entity: those of a point read, or of the keys."""
    single = [each for each in asked if each.is_point and not each.ranges and each.equal]
    keyed = [each for each in single if not _is_subset_of_other(each, single)]
    return (keyed or single)[0].equal if single else tuple(model.key_fields)


def _is_subset_of_other(this: _Wanted, others: Sequence[_Wanted]) -> bool:
    return any(set(this.equal) < set(other.equal) and other.rate >= this.rate for other in others)


def _key_proposal(model: EntityType[Any], keys: _Keys, asked: Sequence[_Wanted]) -> KeyProposal:
    served = [each for each in asked if _is_served(keys, each)]
    total = sum(each.rate for each in asked)
    giving = [each for each in asked if set(keys.partition) <= set(each.equal)]
    share = sum(each.rate for each in giving) / total
    newest = [name for name in keys.row if _is_newest_first(model, name, asked)]
    partition = _template(model, keys.partition)
    row = _template(model, keys.row, descending=newest) if keys.row else model.name.lower()
    reason = (
        f"{len(giving)} of {len(asked)} accesses give {', '.join(keys.partition)}, "
        f"{share:.0%} of the requests"
    )
    section = Section.PARTITION_KEY
    if newest:
        reason += f"; {newest[0]} is read by interval, so that the newest come first"
        section = Section.LOG_TAIL
    elif len(keys.row) > 1:
        reason += f"; the row key is compound: {', '.join(keys.row)}"
        section = Section.COMPOUND_KEY
    is_declared = model.partition.fields == keys.partition and model.row.fields == keys.row
    names = ", ".join(each.name for each in served)
    text = f'@entity(partition="{partition}", row="{row}")'
    return _proposal(model, names, text, reason, section, is_declared=is_declared)


def _is_newest_first(model: EntityType[Any], name: str, asked: Sequence[_Wanted]) -> bool:
    kind = plain_type(model.fields[name])
    is_time = isinstance(kind, type) and issubclass(kind, date)
    return is_time and any(name in each.ranges for each in asked)


def _is_served(keys: _Keys, wanted: _Wanted) -> bool:
    """Return whether the keys limit an access to what it returns."""
    if not set(keys.partition) <= set(wanted.equal):
        return False
    left = set(wanted.fields) - set(keys.partition)
    for name in keys.row:
        if name in left and name in wanted.equal:
            left.discard(name)
            continue
        left.discard(name)
        break
    return not left


# ---------------------------------------------------------------------------------------------
# Indexes


def _index_for(model: EntityType[Any], keys: _Keys, wanted: _Wanted, load: TypeLoad) -> KeyProposal:
    is_near = set(keys.partition) <= set(wanted.equal)
    scanned = _scanned(model, keys, load, is_near=is_near)
    saved = wanted.rate * max(scanned - wanted.returns, 0)
    written = COPY_ROWS * load.writes.total
    if saved <= written:
        reason = (
            f"a scan reads {wanted.rate * scanned:,.1f} entities per second, and keeping an index "
            f'would write {written:,.1f}: declare the access with allow="scan"'
        )
        return _proposal(model, wanted.name, NO_INDEX, reason, Section.QUERY_KINDS)
    gain = f"{wanted.rate * scanned:,.0f} entities per second are read without it"
    extra = [name for name in wanted.equal if name not in keys.all]
    if is_near:
        return _near(model, keys, wanted, extra, gain)
    return _elsewhere(model, keys, wanted, gain)


def _near(
    model: EntityType[Any], keys: _Keys, wanted: _Wanted, extra: Sequence[str], gain: str
) -> KeyProposal:
    first = (*extra, *wanted.ranges, *wanted.equal)[0]
    cls = model.cls.__name__
    if wanted.is_single and extra:
        row = f"{first}_{_template(model, extra)}"
        text = f'index({cls}, row="{row}", unique=True)'
        reason = f"one entity by {', '.join(extra)} in a partition that is given; {gain}"
        section = Section.INTRA_INDEX
    elif extra and not wanted.ranges:
        text = f'list_index({cls}, row="{first}_{_template(model, extra)}")'
        reason = f"a list of entities by {', '.join(extra)} in a partition that is given; {gain}"
        section = Section.INDEX_ENTITIES
    else:
        order = (*extra, *(name for name in wanted.ranges if name not in extra), *keys.row)
        row = f"{first}_{_template(model, tuple(dict.fromkeys(order)))}"
        text = f'index({cls}, row="{row}")'
        reason = f"sorted by {', '.join(wanted.ranges) or first} in a partition; {gain}"
        section = Section.SORTING
    return _proposal(
        model, wanted.name, text, reason, section, is_declared=_has_index(model, wanted, near=True)
    )


def _elsewhere(model: EntityType[Any], keys: _Keys, wanted: _Wanted, gain: str) -> KeyProposal:
    cls = model.cls.__name__
    equal = tuple(dict.fromkeys(wanted.equal))
    if not equal:
        reason = (
            f"it gives no field by one value, so that no partition can be named; {gain}: "
            'declare the access with allow="scan", or give a field such as a period'
        )
        return _proposal(model, wanted.name, NO_INDEX, reason, Section.QUERY_KINDS)
    row = _template(model, tuple(dict.fromkeys((*wanted.ranges, *_texts_last(model, keys.all)))))
    partition = _template(model, equal)
    table = f"{model.table}by{equal[0].replace('_', '')}"
    text = f'index({cls}, table="{table}", partition="{partition}", row="{row}")'
    reason = f"{', '.join(keys.partition)} is not given, but {', '.join(equal)} is; {gain}"
    return _proposal(
        model,
        wanted.name,
        text,
        reason,
        Section.INTER_INDEX,
        is_declared=_has_index(model, wanted, near=False),
    )


def _texts_last(model: EntityType[Any], names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: plain_type(model.fields[name]) is str)


def _scanned(model: EntityType[Any], keys: _Keys, load: TypeLoad, *, is_near: bool) -> float:
    """Return the entities that an access reads without an index."""
    if not is_near:
        return float(load.entities)
    is_same = model.partition.fields == keys.partition
    partitions = load.partitions if is_same and load.partitions else None
    return load.entities / partitions if partitions else float(load.entities) ** 0.5


def _has_index(model: EntityType[Any], wanted: _Wanted, *, near: bool) -> bool:
    """Return whether a declared index serves an access."""
    return any(
        index.is_local == near and set(wanted.fields) <= set(_leading(index, len(wanted.fields)))
        for index in model.indexes
    )


def _leading(index: AnyIndex, count: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*index.partition.fields, *index.row.fields)))[:count]


# ---------------------------------------------------------------------------------------------
# Texts


def _template(model: EntityType[Any], names: Sequence[str], descending: Sequence[str] = ()) -> str:
    parts: list[str] = []
    for place, name in enumerate(names):
        if name in descending:
            parts.append(f"{{{name}:desc}}")
        else:
            field = model.fields[name]
            parts.append(part_text(model, field, is_last=place == len(names) - 1))
    return "_".join(parts)


def _proposal(
    model: EntityType[Any],
    access: str,
    text: str,
    reason: str,
    section: Section,
    *,
    is_declared: bool = False,
) -> KeyProposal:
    return KeyProposal(model.name, access, text, reason, section.title, section.page, is_declared)
