import gc

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from partita import metrics
from partita.metrics import Family, Histogram, Sample
from partita.metrics.families import quantile
from partita.metrics.prometheus import PartitaCollector
from partita.metrics.store_meter import StoreMeter, sum_of
from partita.metrics.text import print_families


class Commits:
    def __init__(self, state: str) -> None:
        self.state = state
        self.count = 0

    def families(self) -> list[Family]:
        sample = Sample(self.count, {"state": self.state})
        return [Family("partita_test_commits_total", "counter", "Committed.", [sample])]


def test_labels_and_help_are_escaped() -> None:
    family = Family("a", "gauge", "one\ntwo\\", [Sample(1.5, {"name": 'quo"te\\\nend'})])

    text = print_families([family])

    assert text == ('# HELP a one\\ntwo\\\\\n# TYPE a gauge\na{name="quo\\"te\\\\\\nend"} 1.5\n')
    (parsed,) = text_string_to_metric_families(text)
    assert parsed.samples[0].labels == {"name": 'quo"te\\\nend'}


def test_special_numbers_are_printed_as_prometheus_reads_them() -> None:
    values = [float("inf"), float("-inf"), float("nan"), 3, 0.1]
    family = Family("a", "gauge", "", [Sample(value, {"n": "x"}) for value in values])

    numbers = [line.rsplit(" ", 1)[1] for line in print_families([family]).splitlines()[2:]]

    assert numbers == ["+Inf", "-Inf", "NaN", "3", "0.1"]


def test_a_histogram_is_cumulative_and_includes_its_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)

    text = print_families([Family("h", "histogram", "", histogram.samples({"a": "b"}))])

    assert text.splitlines()[2:] == [
        'h_bucket{a="b",le="1"} 2',
        'h_bucket{a="b",le="2"} 3',
        'h_bucket{a="b",le="+Inf"} 4',
        'h_sum{a="b"} 12.0',
        'h_count{a="b"} 4',
    ]


def test_families_of_several_sources_with_one_name_are_one() -> None:
    first, second = Commits("a"), Commits("b")
    metrics.register(first)
    metrics.register(second)
    first.count = 3
    try:
        text = metrics.render()
    finally:
        metrics.unregister(first)
        metrics.unregister(second)

    assert text.count("# TYPE partita_test_commits_total counter") == 1
    assert 'partita_test_commits_total{state="a"} 3' in text
    assert 'partita_test_commits_total{state="b"} 0' in text


def test_sources_are_not_kept_alive() -> None:
    source = Commits("dropped")
    metrics.register(source)
    assert 'state="dropped"' in metrics.render()

    del source
    gc.collect()

    assert 'state="dropped"' not in metrics.render()


def test_a_source_that_fails_does_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def families(self) -> list[Family]:
            raise RuntimeError

    broken, working = Broken(), Commits("works")
    metrics.register(broken)
    metrics.register(working)
    try:
        assert 'state="works"' in metrics.render()
    finally:
        metrics.unregister(broken)
        metrics.unregister(working)
    assert "Broken" in caplog.text


def test_the_collector_of_prometheus_reads_the_same_sources() -> None:
    registry = CollectorRegistry()
    PartitaCollector(registry)
    source = Commits("collected")
    source.count = 7
    metrics.register(source)
    try:
        text = generate_latest(registry).decode()
    finally:
        metrics.unregister(source)

    assert 'partita_test_commits_total{state="collected"} 7.0' in text


def test_quantiles_are_within_their_bucket() -> None:
    bounds = (0.001, 0.01, 0.1)

    assert quantile(bounds, [0, 0, 0, 0], 0.5) == 0
    assert quantile(bounds, [100, 0, 0, 0], 0.5) == 0.0005
    assert quantile(bounds, [50, 50, 0, 0], 0.99) == pytest.approx(0.00982)
    assert quantile(bounds, [0, 0, 0, 5], 0.99) == 0.1


def test_stores_are_summed() -> None:
    first, second = StoreMeter(), StoreMeter()
    for meter in (first, second):
        meter.commit_changes.observe(5)
        meter.store_bytes = lambda: 100

    total = sum_of([first.facts(), second.facts()])

    assert total["store_bytes"] == 200
    assert total["commit_changes"]["sum"] == 10  # type: ignore[index]
    assert sum_of([])["store_bytes"] == 0
