"""Draw the diagrams of the documents as SVG: `python tools/draw_diagrams.py`; `--check` compares.

A diagram is a list of parts, from left to right, and a list of steps, from top to bottom. The text
of a diagram is data here, so that it changes with the code like any other text.
"""

import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent.parent / "docs" / "pictures" / "diagrams"
COLUMN, ROW, MARGIN, HEAD = 190, 34, 20, 46
INK, LINE, BOX, NOTE, GRID = "#1f2937", "#1d5fa8", "#e8f0fa", "#fff6dd", "#c3ccd8"


class Step(NamedTuple):
    """An arrow from one part to another, or, at the same part, work that it does."""

    start: str
    end: str
    text: str
    is_answer: bool = False


class Band(NamedTuple):
    """A line over the whole width: what holds from here on."""

    text: str


class Diagram(NamedTuple):
    title: str
    parts: list[str]
    steps: list[Step | Band]


def answer(start: str, end: str, text: str) -> Step:
    return Step(start, end, text, is_answer=True)


DIAGRAMS = {
    "request": Diagram(
        "An update of one entity, from the socket to the disk and back",
        ["client", "HTTP protocol", "Front", "engine", "store", "disk"],
        [
            Step("client", "HTTP protocol", "bytes"),
            Step("HTTP protocol", "Front", "Request, within limits"),
            Step("Front", "Front", "address, authentication"),
            Step("Front", "Front", "decode: a Call; permissions"),
            Step("Front", "engine", "run(table, group)"),
            Step("engine", "store", "change(…, decide)"),
            Step("store", "store", "SELECT, decide, UPSERT"),
            Band("changes of other requests join the same commit"),
            Step("store", "disk", "COMMIT, sync"),
            answer("disk", "store", "durable"),
            answer("store", "Front", "outcome"),
            answer("Front", "client", "204 and the new etag"),
        ],
    ),
    "commit": Diagram(
        "A commit of a reliable state",
        ["your program", "Transaction", "LockTable", "Committer", "Log", "State"],
        [
            Step("your program", "Transaction", "set(tx, key, value)"),
            Step("Transaction", "LockTable", "exclusive lock of the key"),
            answer("LockTable", "Transaction", "granted, or DeadlockError"),
            Step("your program", "Transaction", "end of the block: commit"),
            Step("Transaction", "Committer", "operations, index entries"),
            Band("one record in flight; waiting transactions go into the next"),
            Step("Committer", "Log", "append a record"),
            answer("Log", "Committer", "on disk, or on a majority"),
            Step("Committer", "State", "apply"),
            answer("Committer", "Transaction", "locks are released"),
            answer("Transaction", "your program", "committed"),
        ],
    ),
    "routed-transaction": Diagram(
        "A transaction of a routed session",
        ["your program", "RoutedSession", "MappingCache", "global catalog", "shard"],
        [
            Step("your program", "RoutedSession", "first statement for key 42"),
            Step("RoutedSession", "MappingCache", "where is 42?"),
            Step("MappingCache", "global catalog", "only if it is not cached"),
            answer("MappingCache", "RoutedSession", "a shard"),
            Step("RoutedSession", "shard", "BEGIN, lock and read the mapping"),
            Band("a stale mapping is dropped and looked up once more; no statement has run"),
            answer("shard", "RoutedSession", "the mapping is valid"),
            Step("RoutedSession", "shard", "your statements, COMMIT"),
            answer("shard", "your program", "the lock ends with the transaction"),
        ],
    ),
    "typed-save": Diagram(
        "A save of a typed entity",
        ["your program", "Table.save", "writing.write", "port", "service"],
        [
            Step("your program", "Table.save", "save(employee)"),
            Step("Table.save", "writing.write", "before and after"),
            Step("writing.write", "port", "GetRow: owners, index rows"),
            answer("port", "writing.write", "rows"),
            Step("writing.write", "writing.write", "a draft: every row, with its reason"),
            Step("writing.write", "port", "WriteRows: one group"),
            Step("port", "service", "one entity group transaction"),
            answer("service", "port", "all of it, or nothing"),
            Band("lost answer: the id of the write in the row shows whether it was done"),
            answer("writing.write", "your program", "the new etag"),
        ],
    ),
    "move": Diagram(
        "A range moves to another shard while its tenants work",
        ["clients", "source", "move", "target", "catalogs"],
        [
            Step("move", "source", "capture: triggers note changes"),
            Step("move", "target", "copy, in pieces"),
            Step("clients", "source", "read and write as before"),
            Step("move", "target", "catch_up: the noted changes"),
            Band("fence: the range is offline, usually for less than a second"),
            Step("clients", "source", "MappingOfflineError: retry"),
            Step("move", "target", "the last changes"),
            Step("move", "target", "verify: both sides are equal"),
            Step("move", "catalogs", "switch: the mapping points to the target"),
            Band("online again; a client with an old map is rerouted before a statement runs"),
            Step("clients", "target", "read and write"),
            Step("move", "source", "clean_up: remove the old rows"),
        ],
    ),
    "outbox": Diagram(
        "The outbox: rows in other partitions follow an entity",
        ["your program", "partition", "queue", "worker", "other partition"],
        [
            Step("your program", "partition", "one group: entity and outbox entry"),
            Step("your program", "queue", "a hint: look there"),
            Band("a lost hint costs only time: a sweep finds the entry"),
            Step("worker", "queue", "claim the message"),
            Step("worker", "partition", "read the entry and the entity"),
            Step("worker", "other partition", "read the row that follows"),
            Step("worker", "other partition", "write it under its etag"),
            Step("worker", "partition", "unchanged? remove the entry"),
            Step("worker", "queue", "delete the message"),
            Band("done twice, late or by two workers at once: the same state"),
        ],
    ),
    "failover": Diagram(
        "Another replica takes over",
        ["clients", "replica A", "NATS, three nodes", "replica B"],
        [
            Step("clients", "replica A", "transactions"),
            Step("replica A", "NATS, three nodes", "records, lease"),
            Step("NATS, three nodes", "replica B", "the same records"),
            Band("replica A fails, or loses its lease or the quorum"),
            Step("replica B", "NATS, three nodes", "take the lease"),
            Step("NATS, three nodes", "replica B", "the log, to its end"),
            Step("replica B", "NATS, three nodes", "append the record of a new epoch"),
            Band("only one replica can append it; records of a lower epoch are ignored"),
            Step("clients", "replica B", "transactions"),
            Step("replica A", "replica A", "if it lives: NotPrimaryError"),
        ],
    ),
}


def draw(diagram: Diagram) -> str:
    """Return the SVG of a diagram."""
    width = COLUMN * len(diagram.parts) + 2 * MARGIN
    top = MARGIN + 30
    height = top + HEAD + ROW * (len(diagram.steps) + 1) + MARGIN
    centres = {
        part: MARGIN + COLUMN * number + COLUMN // 2 for number, part in enumerate(diagram.parts)
    }
    drawn = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" role="img" font-family="sans-serif" font-size="13">'
        ),
        f"<title>{escape(diagram.title)}</title>",
        (
            f'<defs><marker id="arrow" markerWidth="9" markerHeight="8" refX="8" refY="4"'
            f' orient="auto"><path d="M0 0L9 4L0 8z" fill="{LINE}"/></marker></defs>'
        ),
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(MARGIN, MARGIN + 10, diagram.title, anchor="start", size=16),
    ]
    for part, centre in centres.items():
        drawn += [
            (
                f'<line x1="{centre}" y1="{top + HEAD - 8}" x2="{centre}" y2="{height - MARGIN}"'
                f' stroke="{GRID}" stroke-dasharray="4 4"/>'
            ),
            (
                f'<rect x="{centre - 80}" y="{top}" width="160" height="{HEAD - 12}" rx="6"'
                f' fill="{BOX}" stroke="{LINE}"/>'
            ),
            _text(centre, top + 22, part),
        ]
    for number, step in enumerate(diagram.steps):
        y = top + HEAD + ROW * (number + 1)
        drawn += _band(step, y, width) if isinstance(step, Band) else _step(step, y, centres)
    return "\n".join([*drawn, "</svg>", ""])


def _band(band: Band, y: int, width: int) -> list[str]:
    return [
        (
            f'<rect x="{MARGIN}" y="{y - 20}" width="{width - 2 * MARGIN}" height="26" rx="4"'
            f' fill="{NOTE}"/>'
        ),
        _text(width // 2, y - 3, band.text),
    ]


def _step(step: Step, y: int, centres: dict[str, int]) -> list[str]:
    start, end = centres[step.start], centres[step.end]
    if start == end:
        half = max(70, len(step.text) * 4)
        return [
            (
                f'<rect x="{start - half}" y="{y - 19}" width="{2 * half}" height="25" rx="4"'
                f' fill="#ffffff" stroke="{GRID}"/>'
            ),
            _text(start, y - 2, step.text),
        ]
    dashes = ' stroke-dasharray="6 4"' if step.is_answer else ""
    middle = (start + end) // 2
    return [
        (
            f'<line x1="{start}" y1="{y}" x2="{end}" y2="{y}" stroke="{LINE}"{dashes}'
            ' marker-end="url(#arrow)"/>'
        ),
        (
            f'<rect x="{middle - len(step.text) * 3.4:.0f}" y="{y - 19}"'
            f' width="{len(step.text) * 6.8:.0f}" height="15" fill="#ffffff" opacity="0.85"/>'
        ),
        _text(middle, y - 7, step.text),
    ]


def _text(x: int, y: int, text: str, *, anchor: str = "middle", size: int = 13) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" fill="{INK}">'
        f"{escape(text)}</text>"
    )


def main(arguments: list[str]) -> int:
    is_check = arguments == ["--check"]
    stale = []
    for name, diagram in DIAGRAMS.items():
        file, drawn = FOLDER / f"{name}.svg", draw(diagram)
        if file.exists() and file.read_text("utf-8") == drawn:
            continue
        stale.append(file.name)
        if not is_check:
            FOLDER.mkdir(parents=True, exist_ok=True)
            file.write_text(drawn, "utf-8")
    print(("out of date: " if is_check else "drawn: ") + (", ".join(stale) or "none"))
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
