"""The text format of Prometheus, version 0.0.4. Pure."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from partita.metrics.families import Family, Sample

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def print_families(families: Iterable[Family]) -> str:
    r"""Print families; those with the same name become one, in the order of the first.

    >>> from partita.metrics.families import Family, Sample
    >>> requests = Family("requests_total", "counter", "Answered.", [Sample(2, {"path": 'a"b'})])
    >>> print(print_families([requests]), end="")
    # HELP requests_total Answered.
    # TYPE requests_total counter
    requests_total{path="a\"b"} 2
    """
    merged: dict[str, tuple[Family, list[Sample]]] = {}
    for family in families:
        _, samples = merged.setdefault(family.name, (family, []))
        samples.extend(family.samples)
    lines: list[str] = []
    for name, (family, samples) in merged.items():
        lines.append(f"# HELP {name} {_escaped_help(family.help)}")
        lines.append(f"# TYPE {name} {family.kind}")
        lines.extend(
            f"{name}{sample.suffix}{_labels(sample.labels)} {_number(sample.value)}"
            for sample in samples
        )
    lines.append("")
    return "\n".join(lines)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    parts = (f'{name}="{_escaped_value(value)}"' for name, value in labels.items())
    return f"{{{','.join(parts)}}}"


def _escaped_value(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
