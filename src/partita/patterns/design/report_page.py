"""The calculated design as one HTML page: plots in SVG, in light and dark, without a network.

Rule: every text of the application goes through `escape`.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape

import msgspec

from partita.patterns.design.calculator import ACCOUNT_TARGET, PARTITION_TARGET, Design
from partita.patterns.design.key_proposals import NO_INDEX, KeyProposal

_WIDTH, _LABEL, _BAR = 860, 300, 26
"""The width of a plot, of its labels, and the height of a bar with its gap."""
_PLOT = _WIDTH - _LABEL - 120

_STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1c1f24; --soft: #5d6673;
  --line: #d5dae1; --bar: #2a6fbb; --copy: #8db4de; --hot: #c0392b; --card: #f5f7f9; }
@media (prefers-color-scheme: dark) { :root { --back: #15181c; --text: #e6e9ed; --soft: #9aa4b1;
  --line: #343a42; --bar: #5b9ee0; --copy: #34597f; --hot: #f0695a; --card: #1e2329; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem; max-width: 940px; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; }
.card { background: var(--card); border-radius: 8px; padding: .6rem .8rem; min-width: 130px; }
.card b { display: block; font-size: 1.3rem; } .card span, small { color: var(--soft); }
svg { width: 100%; min-width: 620px; height: auto; }
svg text { fill: var(--text); font-size: 13px; }
svg .soft { fill: var(--soft); paint-order: stroke;
  stroke: var(--back); stroke-width: 4px; }
svg .target { stroke: var(--hot); stroke-dasharray: 4 3; }
.bar { fill: var(--bar); } .copy { fill: var(--copy); } .hot { fill: var(--hot); }
.key::before { content: ""; display: inline-block; width: .8em; height: .8em; margin: 0 .4em 0 1em;
  background: var(--bar); } .key.copy::before { background: var(--copy); }
.key.hot::before { background: var(--hot); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; } th { color: var(--soft); font-weight: 600; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: 13px ui-monospace, monospace; display: inline-block; min-width: 220px; }
"""


class _Bar(msgspec.Struct, frozen=True):
    label: str
    value: float
    shown: str
    kind: str = "bar"


def report_page(found: Design, title: str = "Table design") -> str:
    """Return a page with the plots, findings and proposals of a design."""
    body = "\n".join(_body(found, title))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _body(found: Design, title: str) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    yield _cards(found)
    yield "<h2>Busiest partition of each key</h2>"
    places = [
        _Bar(each.name, each.entities_per_second, f"{each.entities_per_second:,.1f}",
             "hot" if each.share >= 1 else "bar")
        for each in found.places
    ]  # fmt: skip
    yield _plot(places, "entities per second", PARTITION_TARGET)
    yield "<h2>Entities per second of each access and write</h2>"
    traffic = [
        _Bar(f"{each.type}: {each.name}", each.entities, f"{each.entities:,.1f}",
             "hot" if each.is_scan else "bar")
        for each in found.traffic
    ]  # fmt: skip
    yield _plot(traffic, "entities per second", ACCOUNT_TARGET)
    yield (
        '<small><span class="key">by keys</span><span class="key hot">scan</span>.'
        " The scale of both plots is logarithmic.</small>"
    )
    yield "<h2>Stored bytes</h2>"
    stored = [
        _Bar(each.name, each.bytes, size_text(each.bytes), "copy" if each.is_copy else "bar")
        for each in found.stored
    ]
    yield _plot(stored, "bytes", is_linear=True)
    yield '<small><span class="key">entities</span><span class="key copy">copies</span></small>'
    if found.prices is not None:
        yield f"<h2>Cost of a month in {escape(found.prices.currency)}</h2>"
        costs = [_Bar(name, float(cost), f"{cost:,.2f}") for name, cost in found.costs.items()]
        yield _plot(costs, found.prices.currency, is_linear=True)
        yield f"<small>Prices of {escape(found.prices.date)}: {escape(found.prices.source)}</small>"
    yield "<h2>Findings</h2>"
    yield _table(
        ("code", "subject", "finding", "section of the guide"),
        [(each.code, each.subject, each.message, each.section) for each in found.findings],
    )
    yield "<h2>Proposals from the accesses alone</h2>"
    yield _table(
        ("type", "access", "proposal", "reason", "section of the guide", "declared"),
        [
            (each.type, each.access, f"\0{each.text}", each.reason, each.section,
             _declared(each))
            for each in found.proposals
        ],
    )  # fmt: skip


def _declared(proposal: KeyProposal) -> str:
    if proposal.text == NO_INDEX:
        return ""
    return "yes" if proposal.is_declared else "no"


def _cards(found: Design) -> str:
    cards = [
        (f"{found.requests_per_second:,.1f}", "requests per second"),
        (f"{found.entities_per_second:,.1f}", "entities per second"),
        (f"{found.account_share:,.1%}", f"of {ACCOUNT_TARGET:,} per account"),
        (size_text(found.bytes), "stored, with copies"),
    ]
    if found.prices is not None:
        cards.append((f"{found.total_cost:,.2f}", f"{found.prices.currency} per month"))
    shown = "".join(f'<div class="card"><b>{a}</b><span>{escape(b)}</span></div>' for a, b in cards)
    return f'<div class="cards">{shown}</div>'


def _plot(
    bars: Sequence[_Bar], unit: str, target: float | None = None, *, is_linear: bool = False
) -> str:
    """Return horizontal bars; rates are logarithmic, because a scan would flatten the others."""
    if not bars:
        return "<p><small>none</small></p>"
    height = _BAR * len(bars) + (30 if target else 4)
    scale = float if is_linear else math.log1p
    top = max([each.value for each in bars] + ([target] if target else []))
    lines = [
        '<div class="scroll">',
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(unit)}">',
        f"<title>{escape(unit)}{'' if is_linear else ', logarithmic scale'}</title>",
    ]
    if target:
        x = _LABEL + _length(scale(target), scale(top))
        lines.append(
            f'<line class="target" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 26}"/>'
            f'<text class="soft" x="{x:.1f}" y="{height - 10}" text-anchor="end">'
            f"target {target:,.0f}</text>"
        )
    for place, bar in enumerate(bars):
        y, length = place * _BAR, _length(scale(bar.value), scale(top))
        lines.append(
            f'<text x="{_LABEL - 8}" y="{y + 16}" text-anchor="end">{escape(_cut(bar.label))}'
            f"<title>{escape(bar.label)}</title></text>"
            f'<rect class="{bar.kind}" x="{_LABEL}" y="{y + 3}" width="{length:.1f}" '
            f'height="{_BAR - 8}" rx="3"/>'
            f'<text class="soft" x="{_LABEL + length + 6:.1f}" y="{y + 16}">'
            f"{escape(bar.shown)}</text>"
        )
    return "\n".join([*lines, "</svg></div>"])


def _length(value: float, top: float) -> float:
    return _PLOT * value / top if top > 0 else 0.0


def _cut(label: str) -> str:
    return label if len(label) <= 44 else f"{label[:43]}…"


def size_text(count: float) -> str:
    """Return a size for people, in binary units."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "<p><small>none</small></p>"
    head = "".join(f"<th>{escape(each)}</th>" for each in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _cell(text: str) -> str:
    is_code = text.startswith("\0")
    shown = escape(text.removeprefix("\0"))
    return f"<td><code>{shown}</code></td>" if is_code else f"<td>{shown}</td>"
