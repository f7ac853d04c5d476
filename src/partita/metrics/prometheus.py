"""A collector for prometheus_client (extra `ops`): the metrics of this process in its registry."""

from collections.abc import Iterable

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from partita.metrics.families import Family
from partita.metrics.sources import collect


class PartitaCollector(Collector):
    """Reads the registered sources when the registry is scraped.

    >>> from prometheus_client import CollectorRegistry, generate_latest
    >>> registry = CollectorRegistry()
    >>> _ = PartitaCollector(registry)
    >>> isinstance(generate_latest(registry), bytes)
    True
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: sources come and go."""
        return []

    def collect(self) -> Iterable[Metric]:
        metrics: dict[str, Metric] = {}
        for family in collect():
            name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
            metric = metrics.setdefault(name, Metric(name, family.help, family.kind))
            _add(metric, name, family)
        return metrics.values()


def _add(metric: Metric, name: str, family: Family) -> None:
    suffix = "_total" if family.kind == "counter" else ""
    for sample in family.samples:
        metric.add_sample(name + (sample.suffix or suffix), dict(sample.labels), sample.value)
