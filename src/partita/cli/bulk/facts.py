"""What the bulk verbs found or did."""

from collections.abc import Iterator
from typing import Any

import msgspec

from partita.bulk.work.copying import Difference
from partita.cli.kit.facts import Facts, Line, Table
from partita.cli.kit.text import count_text, size_text


class FileImported(msgspec.Struct, frozen=True):
    """What one file brought."""

    file: str
    written: int
    skipped: int
    rejected: int
    rejects_file: str
    """Empty if no row was rejected."""
    is_sum_right: bool | None
    """Whether the file is what `<file>.sum.json` describes; None: there is none."""
    resumed_at: int


class ImportFacts(Facts, frozen=True):
    """The result of `partita import`."""

    table: str
    to: str
    is_dry: bool
    files: list[FileImported]
    seconds: float
    entities_per_second: float
    throttled: int

    @property
    def exit_status(self) -> int:
        return int(any(each.rejected or each.is_sum_right is False for each in self.files))

    def lines(self) -> Iterator[Line]:
        for each in self.files:
            done = "valid" if self.is_dry else "imported"
            yield (
                f"{each.file}: {count_text(each.written, 'entity', 'entities')} {done}"
                + (f", {each.skipped:,} skipped because they exist" if each.skipped else "")
                + (f", {count_text(each.rejected, 'row')} rejected" if each.rejected else "")
                + "."
            )
            if each.rejected:
                yield f"The rejected rows, with line and reason, are in {each.rejects_file}."
            if each.is_sum_right is not None:
                state = "match" if each.is_sum_right else "DO NOT match"
                yield f"The entities {state} the sum that the export wrote."
        if self.is_dry:
            yield f"Nothing was written to {self.table}."
        else:
            yield _rate_text(self.seconds, self.entities_per_second, self.throttled)


class ExportFacts(Facts, frozen=True):
    """The result of `partita export`."""

    table: str
    file: str
    entities: int
    bytes: int
    sha256_sum: str
    is_resumed: bool
    seconds: float
    entities_per_second: float
    throttled: int
    plan: str

    def lines(self) -> Iterator[Line]:
        yield (
            f"{count_text(self.entities, 'entity', 'entities')} of {self.table} in {self.file}, "
            f"{size_text(self.bytes)}."
        )
        yield _rate_text(self.seconds, self.entities_per_second, self.throttled)


class CountFacts(Facts, frozen=True):
    """The result of `partita count`, and of verbs that only count."""

    table: str
    where: str
    entities: int
    plan: str
    seconds: float

    def lines(self) -> Iterator[Line]:
        yield f"{self.entities:,}"


class CopyFacts(Facts, frozen=True):
    """The result of `partita copy`, by table."""

    source: str
    target: str
    is_dry: bool
    tables: list["TableCopied"]
    seconds: float
    has_settings: bool = False
    """Whether policies and service properties were copied."""

    @property
    def exit_status(self) -> int:
        return int(any(each.rejected or each.different for each in self.tables))

    def lines(self) -> Iterator[Line]:
        for each in self.tables:
            yield from each.lines(is_dry=self.is_dry)
        if self.has_settings:
            yield "Access policies and service properties copied."


class TableCopied(msgspec.Struct, frozen=True):
    """What was copied of one table, and how it compares."""

    table: str
    to_table: str
    written: int = 0
    skipped: int = 0
    rejected: int = 0
    reasons: list[str] = []
    is_verified: bool = False
    source_entities: int = 0
    target_entities: int = 0
    different: int = 0
    differences: list[Difference] = []
    source_sum: str = ""
    target_sum: str = ""

    def lines(self, *, is_dry: bool) -> Iterator[Line]:
        name = self.table if self.table == self.to_table else f"{self.table} → {self.to_table}"
        if is_dry:
            yield f"{name}: {count_text(self.source_entities, 'entity', 'entities')} to copy."
            return
        if self.written or self.skipped or self.rejected or not self.is_verified:
            yield (
                f"{name}: {count_text(self.written, 'entity', 'entities')} copied"
                + (f", {self.skipped:,} skipped because they exist" if self.skipped else "")
                + (f", {self.rejected:,} rejected" if self.rejected else "")
                + "."
            )
        yield from (f"  {reason}" for reason in self.reasons[:10])
        if not self.is_verified:
            return
        if not self.different:
            yield f"{name}: verified, {self.source_entities:,} entities are equal."
            return
        yield (
            f"{name}: {count_text(self.different, 'difference')} between "
            f"{self.source_entities:,} and {self.target_entities:,} entities."
        )
        rows = [(each.partition_key, each.row_key, each.what) for each in self.differences]
        yield Table(("PARTITION KEY", "ROW KEY", "DIFFERENCE"), rows)


class DeleteFacts(Facts, frozen=True):
    """The result of `partita delete-where`."""

    table: str
    where: str
    plan: str
    is_dry: bool
    found: int
    deleted: int = 0
    already_deleted: int = 0
    changed: int = 0
    changed_keys: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def exit_status(self) -> int:
        return int(self.changed > 0)

    def lines(self) -> Iterator[Line]:
        yield f"Plan: {self.plan}."
        if self.is_dry:
            yield f"{count_text(self.found, 'entity', 'entities')} would be deleted."
            return
        yield f"{count_text(self.deleted, 'entity', 'entities')} deleted."
        if self.changed:
            yield (
                f"{count_text(self.changed, 'entity', 'entities')} not deleted: changed after the "
                "read. Run it again, or give --force."
            )


class ExplainFacts(Facts, frozen=True):
    """The result of `partita query --explain`."""

    table: str
    filter: str
    plan: str
    server_plan: str
    """How the server describes it; empty if it does not."""
    meaning: str
    advice: str
    ranges: str = ""
    """The ranges of a fleet that it reads, and their shards; empty on one database."""

    def lines(self) -> Iterator[Line]:
        yield f"Plan: {self.plan}"
        yield self.meaning
        if self.ranges:
            yield f"Ranges: {self.ranges}"
        if self.advice:
            yield f"Advice: {self.advice}"


class QueryFacts(Facts, frozen=True):
    """The entities that `partita query` found, as a table."""

    table: str
    names: list[str]
    rows: list[list[Any]]
    entities: list[msgspec.Raw]
    has_more: bool
    plan: str

    def lines(self) -> Iterator[Line]:
        if self.rows:
            yield Table(self.names, self.rows)
        more = " There are more: raise --top." if self.has_more else ""
        yield f"{count_text(len(self.rows), 'entity', 'entities')}.{more}"


class TablesFacts(Facts, frozen=True):
    """The tables of an account."""

    account: str
    at: str
    tables: list[str]

    def lines(self) -> Iterator[Line]:
        yield from self.tables
        if not self.tables:
            yield f"{self.at} has no tables. `partita import TABLE FILE` creates one."


class SasFacts(Facts, frozen=True):
    """A signature, and what it permits."""

    url: str
    connection_string: str
    sas: str
    grants: str
    expires: str
    shows_connection_string: bool = False

    def lines(self) -> Iterator[Line]:
        yield self.connection_string if self.shows_connection_string else self.url
        yield self.grants


def _rate_text(seconds: float, rate: float, throttled: int) -> str:
    waits = f"; the server was busy {throttled:,} times" if throttled else ""
    return f"{seconds:.1f} s, {rate:,.0f} entities per second{waits}."
